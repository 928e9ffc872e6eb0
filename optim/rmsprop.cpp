#include <algorithm>

#include "optim/options.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

void check_momentum(double momentum) { check_not_negative("rmsprop", "momentum", momentum); }
void check(const RMSpropOptions& o) {
  check_not_negative("rmsprop", "alpha", o.alpha);
  check_not_negative("rmsprop", "eps", o.eps);
  check_momentum(o.momentum);
  check_not_negative("rmsprop", "weight_decay", o.weight_decay);
}

}  // namespace

RMSprop::RMSprop(Parameters parameters, RMSpropOptions options) { add_group(std::move(parameters), options); }

void RMSprop::add_group(Parameters parameters, RMSpropOptions o) {
  check(o);
  add("rmsprop", std::move(parameters), o.lr, o.rounding);
  options_.push_back(o);
}

void RMSprop::update(int g, const float* found_inf) {
  const RMSpropOptions& o = options_[static_cast<std::size_t>(g)];
  Updates::run(*this, g,
               kernels::RmspropRule{&groups_[static_cast<std::size_t>(g)].lr, o.alpha, o.eps, o.weight_decay,
                                    o.momentum, o.centered, o.maximize},
               "rmsprop_step", found_inf);
}

std::optional<double> RMSprop::momentum(int group) const {
  (void)group_at(group);
  return options_[static_cast<std::size_t>(group)].momentum;
}
void RMSprop::set_momentum(int group, double value) {
  (void)group_at(group);
  check_momentum(value);
  double& momentum = options_[static_cast<std::size_t>(group)].momentum;
  if (momentum == 0 && value != 0) ++layout_;  // buffers are made
  momentum = value;
}

std::array<const char*, Optimizer::kMaxState> RMSprop::state_names(int group) const {
  const RMSpropOptions& o = options_[static_cast<std::size_t>(group)];
  // A schedule may pass through a momentum of 0: a buffer that exists stays part of the state.
  const auto& states = groups_[static_cast<std::size_t>(group)].state;
  const bool kept = o.momentum > 0 ||
                    std::any_of(states.begin(), states.end(), [](const State& s) { return s.tensors[1].defined(); });
  return {"square_avg", kept ? "momentum_buffer" : nullptr, o.centered ? "grad_avg" : nullptr};
}

std::vector<std::pair<const char*, double*>> RMSprop::numbers(int group) {
  RMSpropOptions& o = options_[static_cast<std::size_t>(group)];
  return {{"alpha", &o.alpha}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}, {"momentum", &o.momentum}};
}

void RMSprop::check_numbers(int group) const { check(options_[static_cast<std::size_t>(group)]); }

}  // namespace levin::optim
