// The members of OptimizerOf<Options>, which call Kind<Options>. The source of each optimizer defines its Kind and
// instantiates the class.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "optim/options.h"
#include "optim/updates.h"

namespace levin::optim {

// What sets one optimizer apart:
// - kName, and kWriter, the op's name in the error of a stale saved tensor;
// - check(options), and optionally check_new(options), which only the options of a new group must pass;
// - rule(options, lr) for the kernel;
// - state_names(options, kept); kept(k) says whether state tensor k of a parameter exists;
// - numbers(options): names and places of the numbers in the state;
// - with a momentum: kMomentum, its member, check_momentum(value), and kMomentumMakesState, whether a momentum other
//   than 0 adds a state tensor;
// - in place of a rule, where an update is more than one kernel: run(optimizer, group, options, found_inf), and
//   optionally check_parameters(parameters);
// - where a state has another shape than its parameter: state_shape(which, parameter), none where it has no such state;
// - where a gradient of rows is not always made dense: row_use(options, kept);
// - where states do not start with 0: initial_state(options, which, lr).
template <class Options>
struct Kind;

template <class Options>
concept HasMomentum = requires {
  Kind<Options>::kMomentum;
};

template <class Options>
OptimizerOf<Options>::OptimizerOf(Parameters parameters, Options options) {
  add_group(std::move(parameters), options);
}

template <class Options>
void OptimizerOf<Options>::add_group(Parameters parameters, Options options) {
  Kind<Options>::check(options);
  if constexpr (requires { &Kind<Options>::check_parameters; }) Kind<Options>::check_parameters(parameters);
  if constexpr (requires { Kind<Options>::check_new(options); }) Kind<Options>::check_new(options);
  Rounding rounding = Rounding::nearest;
  if constexpr (requires { options.rounding; }) rounding = options.rounding;
  add(Kind<Options>::kName, std::move(parameters), options.lr, rounding);
  options_.push_back(options);
}

template <class Options>
const char* OptimizerOf<Options>::name() const {
  return Kind<Options>::kName;
}

template <class Options>
std::optional<double> OptimizerOf<Options>::momentum(int group) const {
  if constexpr (HasMomentum<Options>)
    return options_[index_of(group)].*Kind<Options>::kMomentum;
  else
    return Optimizer::momentum(group);
}

template <class Options>
void OptimizerOf<Options>::set_momentum(int group, double value) {
  if constexpr (HasMomentum<Options>) {
    double& momentum = options_[index_of(group)].*Kind<Options>::kMomentum;
    Kind<Options>::check_momentum(value);
    if (Kind<Options>::kMomentumMakesState && momentum == 0 && value != 0) ++layout_;
    momentum = value;
  } else {
    Optimizer::set_momentum(group, value);
  }
}

template <class Options>
void OptimizerOf<Options>::update(int group, const float* found_inf) {
  using K = Kind<Options>;
  const std::size_t g = index_of(group);
  const Options& o = options_[g];
  const auto kept = [&](std::size_t k) { return has_state(g, k); };
  if constexpr (requires { &K::run; })
    K::run(*this, group, o, found_inf);
  else if constexpr (requires { K::row_use(o, kept); })
    Updates::run_with_rows(*this, group, K::rule(o, &groups_[g].lr), K::kWriter, found_inf, K::row_use(o, kept));
  else
    Updates::run(*this, group, K::rule(o, &groups_[g].lr), K::kWriter, found_inf);
}

// Whether a parameter of the group has state tensor `which`.
template <class Options>
bool OptimizerOf<Options>::has_state(std::size_t group, std::size_t which) const {
  return std::ranges::any_of(groups_[group].state, [&](const State& s) { return s.tensors[which].defined(); });
}

template <class Options>
auto OptimizerOf<Options>::state_names(int group) const -> std::array<const char*, kMaxState> {
  const std::size_t g = index_of(group);
  const auto kept = [&](std::size_t k) { return has_state(g, k); };
  return Kind<Options>::state_names(options_[g], kept);
}

template <class Options>
std::optional<Shape> OptimizerOf<Options>::state_shape(int group, int which, const Shape& parameter) const {
  if constexpr (requires { Kind<Options>::state_shape(which, parameter); })
    return Kind<Options>::state_shape(which, parameter);
  else
    return Optimizer::state_shape(group, which, parameter);
}

template <class Options>
double OptimizerOf<Options>::initial_state(int group, int which) const {
  if constexpr (requires(const Options& o) { Kind<Options>::initial_state(o, which, 0.0); })
    return Kind<Options>::initial_state(options_[index_of(group)], which, lr(group));
  else
    return Optimizer::initial_state(group, which);
}

template <class Options>
std::vector<std::pair<const char*, double*>> OptimizerOf<Options>::numbers(int group) {
  return Kind<Options>::numbers(options_[index_of(group)]);
}

template <class Options>
void OptimizerOf<Options>::check_numbers(int group) const {
  Kind<Options>::check(options_[index_of(group)]);
}

}  // namespace levin::optim
