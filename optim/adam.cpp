#include "optim/optimizer_of.h"

namespace levin::optim {

template <WeightDecay decay>
struct Kind<AdamOptionsOf<decay>> {
  using Options = AdamOptionsOf<decay>;
  static constexpr bool kDecoupled = decay == WeightDecay::decoupled;
  static constexpr const char *kName = kDecoupled ? "adamw" : "adam",
                              *kWriter = kDecoupled ? "adamw_step" : "adam_step";
  static constexpr auto kMomentum = &Options::beta1;
  static constexpr bool kMomentumMakesState = false;

  static void check_beta(const char* which, double beta) {
    if (!(beta >= 0 && beta < 1))
      fail<ConfigError>(kName, ": ", which, " is ", beta, ", expected at least 0 and below 1");
  }
  static void check_momentum(double beta1) { check_beta("beta1", beta1); }
  static void check(const Options& o) {
    check_beta("beta1", o.beta1);
    check_beta("beta2", o.beta2);
    check_not_negative(kName, "eps", o.eps);
    check_not_negative(kName, "weight_decay", o.weight_decay);
  }
  static kernels::AdamRule rule(const Options& o, const double* lr) {
    return {lr, o.beta1, o.beta2, o.eps, o.weight_decay, kDecoupled, o.amsgrad, o.maximize};
  }
  static std::array<const char*, 3> state_names(const Options& o, const auto&) {
    return {"exp_avg", "exp_avg_sq", o.amsgrad ? "max_exp_avg_sq" : nullptr};
  }
  static std::vector<std::pair<const char*, double*>> numbers(Options& o) {
    return {{"beta1", &o.beta1}, {"beta2", &o.beta2}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}};
  }
};
template class OptimizerOf<AdamOptions>;
template class OptimizerOf<AdamWOptions>;

}  // namespace levin::optim
