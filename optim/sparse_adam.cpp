#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<SparseAdamOptions> {
  static constexpr const char *kName = "sparse_adam", *kWriter = "sparse_adam_step";
  static constexpr auto kMomentum = &SparseAdamOptions::beta1;
  static constexpr bool kMomentumMakesState = false;

  static void check_beta(const char* which, double beta) {
    if (!(beta >= 0 && beta < 1))
      fail<ConfigError>(kName, ": ", which, " is ", beta, ", expected at least 0 and below 1");
  }
  static void check_momentum(double beta1) { check_beta("beta1", beta1); }
  static void check(const SparseAdamOptions& o) {
    check_beta("beta1", o.beta1);
    check_beta("beta2", o.beta2);
    if (!(o.eps > 0)) fail<ConfigError>(kName, ": eps is ", o.eps, ", expected a number above 0");
  }
  static RowUse row_use(const SparseAdamOptions&, const auto&) { return RowUse::required; }
  static kernels::AdamRule rule(const SparseAdamOptions& o, const double* lr) {
    return {.lr = lr,
            .beta1 = o.beta1,
            .beta2 = o.beta2,
            .eps = o.eps,
            .weight_decay = 0,
            .decoupled = false,
            .amsgrad = false,
            .maximize = o.maximize,
            .raw_eps = true};
  }
  static std::array<const char*, 3> state_names(const SparseAdamOptions&, const auto&) {
    return {"exp_avg", "exp_avg_sq"};
  }
  static std::vector<std::pair<const char*, double*>> numbers(SparseAdamOptions& o) {
    return {{"beta1", &o.beta1}, {"beta2", &o.beta2}, {"eps", &o.eps}};
  }
};
template class OptimizerOf<SparseAdamOptions>;

}  // namespace levin::optim
