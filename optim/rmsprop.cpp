#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<RMSpropOptions> {
  static constexpr const char *kName = "rmsprop", *kWriter = "rmsprop_step";
  static constexpr auto kMomentum = &RMSpropOptions::momentum;
  static constexpr bool kMomentumMakesState = true;

  static void check_momentum(double momentum) { check_not_negative(kName, "momentum", momentum); }
  static void check(const RMSpropOptions& o) {
    check_not_negative(kName, "alpha", o.alpha);
    check_not_negative(kName, "eps", o.eps);
    check_momentum(o.momentum);
    check_not_negative(kName, "weight_decay", o.weight_decay);
  }
  static kernels::RmspropRule rule(const RMSpropOptions& o, const double* lr) {
    return {lr, o.alpha, o.eps, o.weight_decay, o.momentum, o.centered, o.maximize};
  }
  // A buffer that exists stays part of the state at a momentum of 0.
  static std::array<const char*, 3> state_names(const RMSpropOptions& o, const auto& kept) {
    return {"square_avg", o.momentum > 0 || kept(1) ? "momentum_buffer" : nullptr, o.centered ? "grad_avg" : nullptr};
  }
  static std::vector<std::pair<const char*, double*>> numbers(RMSpropOptions& o) {
    return {{"alpha", &o.alpha}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}, {"momentum", &o.momentum}};
  }
};
template class OptimizerOf<RMSpropOptions>;

}  // namespace levin::optim
