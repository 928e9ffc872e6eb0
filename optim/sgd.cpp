#include <algorithm>

#include "optim/options.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

void check_momentum(double momentum) { check_not_negative("sgd", "momentum", momentum); }
// What a schedule or a state may set: a momentum of 0 on the way is fine for nesterov too.
void check_ranges(const SGDOptions& o) {
  check_momentum(o.momentum);
  check_finite("sgd", "dampening", o.dampening);
  check_not_negative("sgd", "weight_decay", o.weight_decay);
  if (o.nesterov && o.dampening != 0)
    fail<ConfigError>("sgd: nesterov is on with dampening ", o.dampening, ", expected dampening 0");
}
void check(const SGDOptions& o) {
  check_ranges(o);
  if (o.nesterov && o.momentum <= 0)
    fail<ConfigError>("sgd: nesterov is on with momentum ", o.momentum, ", expected momentum above 0");
}

}  // namespace

SGD::SGD(Parameters parameters, SGDOptions options) { add_group(std::move(parameters), options); }

void SGD::add_group(Parameters parameters, SGDOptions options) {
  check(options);
  add("sgd", std::move(parameters), options.lr, options.rounding);
  options_.push_back(options);
}

void SGD::update(int g, const float* found_inf) {
  const SGDOptions& o = options_[static_cast<std::size_t>(g)];
  Updates::run(*this, g,
               kernels::SgdRule{&groups_[static_cast<std::size_t>(g)].lr, o.momentum, o.dampening, o.weight_decay,
                                o.nesterov, o.maximize},
               "sgd_step", found_inf);
}

std::optional<double> SGD::momentum(int group) const {
  (void)group_at(group);
  return options_[static_cast<std::size_t>(group)].momentum;
}
void SGD::set_momentum(int group, double value) {
  (void)group_at(group);
  check_momentum(value);
  double& momentum = options_[static_cast<std::size_t>(group)].momentum;
  if (momentum == 0 && value != 0) ++layout_;  // buffers are made
  momentum = value;
}

std::array<const char*, Optimizer::kMaxState> SGD::state_names(int group) const {
  // A schedule may pass through a momentum of 0: a buffer that exists stays part of the state.
  const auto& states = groups_[static_cast<std::size_t>(group)].state;
  const bool kept = options_[static_cast<std::size_t>(group)].momentum != 0 ||
                    std::any_of(states.begin(), states.end(), [](const State& s) { return s.tensors[0].defined(); });
  return {kept ? "momentum_buffer" : nullptr, nullptr, nullptr};
}

std::vector<std::pair<const char*, double*>> SGD::numbers(int group) {
  SGDOptions& o = options_[static_cast<std::size_t>(group)];
  return {{"momentum", &o.momentum}, {"dampening", &o.dampening}, {"weight_decay", &o.weight_decay}};
}

void SGD::check_numbers(int group) const { check_ranges(options_[static_cast<std::size_t>(group)]); }

}  // namespace levin::optim
