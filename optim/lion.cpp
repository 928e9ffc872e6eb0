#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<LionOptions> {
  static constexpr const char *kName = "lion", *kWriter = "lion_step";
  static constexpr auto kMomentum = &LionOptions::beta1;
  static constexpr bool kMomentumMakesState = false;

  static void check_beta(const char* which, double beta) {
    if (!(beta >= 0 && beta < 1))
      fail<ConfigError>(kName, ": ", which, " is ", beta, ", expected at least 0 and below 1");
  }
  static void check_momentum(double beta1) { check_beta("beta1", beta1); }
  static void check(const LionOptions& o) {
    check_beta("beta1", o.beta1);
    check_beta("beta2", o.beta2);
    check_not_negative(kName, "weight_decay", o.weight_decay);
  }
  static kernels::LionRule rule(const LionOptions& o, const double* lr) {
    return {lr, o.beta1, o.beta2, o.weight_decay, o.maximize};
  }
  static std::array<const char*, 3> state_names(const LionOptions&, const auto&) { return {"exp_avg"}; }
  static std::vector<std::pair<const char*, double*>> numbers(LionOptions& o) {
    return {{"beta1", &o.beta1}, {"beta2", &o.beta2}, {"weight_decay", &o.weight_decay}};
  }
};
template class OptimizerOf<LionOptions>;

}  // namespace levin::optim
