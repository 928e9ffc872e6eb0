#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<RpropOptions> {
  static constexpr const char *kName = "rprop", *kWriter = "rprop_step";

  static void check(const RpropOptions& o) {
    if (!(o.eta_minus > 0 && o.eta_minus < 1 && o.eta_plus > 1 && std::isfinite(o.eta_plus)))
      fail<ConfigError>(kName, ": the factors are ", o.eta_minus, " and ", o.eta_plus,
                        ", expected one between 0 and 1 and one above 1");
    check_not_negative(kName, "step_size_min", o.step_size_min);
    check_not_negative(kName, "step_size_max", o.step_size_max);
  }
  static kernels::RpropRule rule(const RpropOptions& o, const double* lr) {
    return {lr, o.eta_minus, o.eta_plus, o.step_size_min, o.step_size_max, o.maximize};
  }
  static std::array<const char*, 3> state_names(const RpropOptions&, const auto&) { return {"prev", "step_size"}; }
  static double initial_state(const RpropOptions&, int which, double lr) { return which == 1 ? lr : 0; }
  static std::vector<std::pair<const char*, double*>> numbers(RpropOptions& o) {
    return {{"eta_minus", &o.eta_minus},
            {"eta_plus", &o.eta_plus},
            {"step_size_min", &o.step_size_min},
            {"step_size_max", &o.step_size_max}};
  }
};
template class OptimizerOf<RpropOptions>;

}  // namespace levin::optim
