#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<LAMBOptions> {
  static constexpr const char *kName = "lamb", *kWriter = "lamb_step";
  static constexpr auto kMomentum = &LAMBOptions::beta1;
  static constexpr bool kMomentumMakesState = false;

  static void check_beta(const char* which, double beta) {
    if (!(beta >= 0 && beta < 1))
      fail<ConfigError>(kName, ": ", which, " is ", beta, ", expected at least 0 and below 1");
  }
  static void check_momentum(double beta1) { check_beta("beta1", beta1); }
  static void check(const LAMBOptions& o) {
    check_beta("beta1", o.beta1);
    check_beta("beta2", o.beta2);
    check_not_negative(kName, "eps", o.eps);
    check_not_negative(kName, "weight_decay", o.weight_decay);
  }
  static kernels::LambRule rule(const LAMBOptions& o, const double* lr) {
    return {lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.maximize};
  }
  static std::array<const char*, 3> state_names(const LAMBOptions&, const auto&) { return {"exp_avg", "exp_avg_sq"}; }
  static std::vector<std::pair<const char*, double*>> numbers(LAMBOptions& o) {
    return {{"beta1", &o.beta1}, {"beta2", &o.beta2}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}};
  }
};
template class OptimizerOf<LAMBOptions>;

}  // namespace levin::optim
