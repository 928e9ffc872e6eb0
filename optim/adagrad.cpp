#include "optim/optimizer_of.h"

namespace levin::optim {

template <>
struct Kind<AdagradOptions> {
  static constexpr const char *kName = "adagrad", *kWriter = "adagrad_step";

  static void check(const AdagradOptions& o) {
    check_not_negative(kName, "lr_decay", o.lr_decay);
    check_not_negative(kName, "eps", o.eps);
    check_not_negative(kName, "weight_decay", o.weight_decay);
    check_not_negative(kName, "initial_accumulator_value", o.initial_accumulator_value);
  }
  static kernels::AdagradRule rule(const AdagradOptions& o, const double* lr) {
    return {lr, o.lr_decay, o.eps, o.weight_decay, o.maximize};
  }
  // A gradient of 0 changes nothing, so other rows stay.
  static RowUse row_use(const AdagradOptions& o, const auto&) {
    return o.weight_decay == 0 ? RowUse::where_possible : RowUse::none;
  }
  static std::array<const char*, 3> state_names(const AdagradOptions&, const auto&) { return {"sum"}; }
  static double initial_state(const AdagradOptions& o, int, double) { return o.initial_accumulator_value; }
  static std::vector<std::pair<const char*, double*>> numbers(AdagradOptions& o) {
    return {{"lr_decay", &o.lr_decay}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}};
  }
};
template class OptimizerOf<AdagradOptions>;

}  // namespace levin::optim
