#include "optim/options.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

void check(const AdagradOptions& o) {
  check_not_negative("adagrad", "lr_decay", o.lr_decay);
  check_not_negative("adagrad", "eps", o.eps);
  check_not_negative("adagrad", "weight_decay", o.weight_decay);
  check_not_negative("adagrad", "initial_accumulator_value", o.initial_accumulator_value);
}

}  // namespace

Adagrad::Adagrad(Parameters parameters, AdagradOptions options) { add_group(std::move(parameters), options); }

void Adagrad::add_group(Parameters parameters, AdagradOptions o) {
  check(o);
  add("adagrad", std::move(parameters), o.lr, o.rounding);
  options_.push_back(o);
}

void Adagrad::update(int g, const float* found_inf) {
  const AdagradOptions& o = options_[static_cast<std::size_t>(g)];
  Updates::run(
      *this, g,
      kernels::AdagradRule{&groups_[static_cast<std::size_t>(g)].lr, o.lr_decay, o.eps, o.weight_decay, o.maximize},
      "adagrad_step", found_inf);
}

std::array<const char*, Optimizer::kMaxState> Adagrad::state_names(int) const { return {"sum", nullptr, nullptr}; }
double Adagrad::initial_state(int group, int) const {
  return options_[static_cast<std::size_t>(group)].initial_accumulator_value;
}

std::vector<std::pair<const char*, double*>> Adagrad::numbers(int group) {
  AdagradOptions& o = options_[static_cast<std::size_t>(group)];
  return {{"lr_decay", &o.lr_decay}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}};
}

void Adagrad::check_numbers(int group) const { check(options_[static_cast<std::size_t>(group)]); }

}  // namespace levin::optim
