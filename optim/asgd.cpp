#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<ASGDOptions> {
  static constexpr const char *kName = "asgd", *kWriter = "asgd_step";

  static void check(const ASGDOptions& o) {
    check_not_negative(kName, "lambd", o.lambd);
    check_finite(kName, "alpha", o.alpha);
    check_finite(kName, "t0", o.t0);
    check_not_negative(kName, "weight_decay", o.weight_decay);
  }
  static kernels::AsgdRule rule(const ASGDOptions& o, const double* lr) {
    return {lr, o.lambd, o.alpha, o.t0, o.weight_decay, o.maximize};
  }
  static std::array<const char*, 3> state_names(const ASGDOptions&, const auto&) { return {"ax"}; }
  static std::vector<std::pair<const char*, double*>> numbers(ASGDOptions& o) {
    return {{"lambd", &o.lambd}, {"alpha", &o.alpha}, {"t0", &o.t0}, {"weight_decay", &o.weight_decay}};
  }
};
template class OptimizerOf<ASGDOptions>;

}  // namespace levin::optim
