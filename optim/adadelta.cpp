#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<AdadeltaOptions> {
  static constexpr const char *kName = "adadelta", *kWriter = "adadelta_step";

  static void check(const AdadeltaOptions& o) {
    if (!(o.rho >= 0 && o.rho <= 1)) fail<ConfigError>(kName, ": rho is ", o.rho, ", expected 0 to 1");
    check_not_negative(kName, "eps", o.eps);
    check_not_negative(kName, "weight_decay", o.weight_decay);
  }
  static kernels::AdadeltaRule rule(const AdadeltaOptions& o, const double* lr) {
    return {lr, o.rho, o.eps, o.weight_decay, o.maximize};
  }
  static std::array<const char*, 3> state_names(const AdadeltaOptions&, const auto&) {
    return {"square_avg", "acc_delta"};
  }
  static std::vector<std::pair<const char*, double*>> numbers(AdadeltaOptions& o) {
    return {{"rho", &o.rho}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}};
  }
};
template class OptimizerOf<AdadeltaOptions>;

}  // namespace levin::optim
