#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<SGDOptions> {
  static constexpr const char *kName = "sgd", *kWriter = "sgd_step";
  static constexpr auto kMomentum = &SGDOptions::momentum;
  static constexpr bool kMomentumMakesState = true;

  static void check_momentum(double momentum) { check_not_negative(kName, "momentum", momentum); }
  static void check(const SGDOptions& o) {
    check_momentum(o.momentum);
    check_finite(kName, "dampening", o.dampening);
    check_not_negative(kName, "weight_decay", o.weight_decay);
    if (o.nesterov && o.dampening != 0)
      fail<ConfigError>("sgd: nesterov is on with dampening ", o.dampening, ", expected dampening 0");
  }
  // Later a schedule may pass through a momentum of 0.
  static void check_new(const SGDOptions& o) {
    if (o.nesterov && o.momentum <= 0)
      fail<ConfigError>("sgd: nesterov is on with momentum ", o.momentum, ", expected momentum above 0");
  }
  static kernels::SgdRule rule(const SGDOptions& o, const double* lr) {
    return {lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize};
  }
  // Momentum and decay move every row, and these do not.
  static RowUse row_use(const SGDOptions& o, const auto& kept) {
    return o.momentum == 0 && o.weight_decay == 0 && !kept(0) ? RowUse::where_possible : RowUse::none;
  }
  // A buffer that exists stays part of the state at a momentum of 0.
  static std::array<const char*, 3> state_names(const SGDOptions& o, const auto& kept) {
    return {o.momentum != 0 || kept(0) ? "momentum_buffer" : nullptr};
  }
  static std::vector<std::pair<const char*, double*>> numbers(SGDOptions& o) {
    return {{"momentum", &o.momentum}, {"dampening", &o.dampening}, {"weight_decay", &o.weight_decay}};
  }
};
template class OptimizerOf<SGDOptions>;

}  // namespace levin::optim
