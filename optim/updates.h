// Builds the list of slots that a multi-tensor kernel updates.
#pragma once

#include <span>
#include <vector>

#include "kernels/update.cuh"
#include "kernels/update_device.h"
#include "levin/optim.h"

namespace levin::optim {

struct Updates {
  // Runs `rule` over the parameters of the group that have a gradient; state tensors are made at their first update.
  // `writer` is the name under which a stale saved tensor finds who wrote. On a device that launches kernels nothing
  // changes where *found_inf, in its memory, is not 0; the cpu's caller has looked.
  template <class Rule>
  static void run(Optimizer& optimizer, int group, const Rule& rule, const char* writer,
                  [[maybe_unused]] const float* found_inf) {
    Optimizer::Group& g = optimizer.groups_[static_cast<std::size_t>(group)];
    const auto names = optimizer.state_names(group);
    const Device device = g.parameters.front().value->device();
    for (std::size_t i = 0; i < g.parameters.size(); ++i) check(optimizer.name(), g.parameters[i], device, &g.state[i]);
    if (device.launches()) prepare(g, device, optimizer.momentum(group).value_or(0));
    std::vector<kernels::Slot<float>> single;
    std::vector<kernels::Slot<double>> wide;
    single.reserve(g.parameters.size());
    std::vector<Tensor> gradients;  // kept until the kernel is done
    gradients.reserve(g.parameters.size());
    for (std::size_t i = 0; i < g.parameters.size(); ++i) {
      Tensor gradient = g.parameters[i].value->grad();
      if (!gradient.defined()) continue;
      gradients.push_back(gradient.is_contiguous() ? std::move(gradient) : dense(gradient));
      Optimizer::State& state = g.state[i];
      for (std::size_t k = 0; k < names.size(); ++k) {
        if (names[k] && !state.tensors[k].defined()) {
          state.tensors[k] = filled(*g.parameters[i].value, optimizer.initial_state(group, static_cast<int>(k)));
        }
      }
      ++state.step;
      Tensor& value = *g.parameters[i].value;
      if (value.dtype() == DType::f32)
        single.push_back(slot<float>(value, gradients.back(), state));
      else
        wide.push_back(slot<double>(value, gradients.back(), state));
      if (device.launches()) {
        std::int64_t* step = first<std::int64_t>(g.steps) + i;
        if (value.dtype() == DType::f32)
          single.back().step = step;
        else
          wide.back().step = step;
      }
      value.get().storage->wrote(writer);
    }
#if LEVIN_LAUNCHES
    if (device.launches()) {
      const kernels::Gpu on{Stream::current(device)};
      const double* numbers = first<double>(g.numbers);
      kernels::update_on_device(on, rule, std::span<const kernels::Slot<float>>(single), numbers, found_inf);
      kernels::update_on_device(on, rule, std::span<const kernels::Slot<double>>(wide), numbers, found_inf);
      return;
    }
#endif
    const kernels::Cpu on;
    if (!single.empty()) kernels::cpu::update(on, rule, std::span<const kernels::Slot<float>>(single));
    if (!wide.empty()) kernels::cpu::update(on, rule, std::span<const kernels::Slot<double>>(wide));
  }

  template <class T>
  [[nodiscard]] static T* first(const Tensor& t) {
    return t.defined() ? reinterpret_cast<T*>(t.get().storage->data) + t.offset() : nullptr;
  }
  [[nodiscard]] static Tensor dense(const Tensor& t) { return t.detach().contiguous(); }
  [[nodiscard]] static Tensor filled(const Tensor& like, double value);
  // The step counts and numbers of a group in its device's memory. Numbers are written when a schedule changed them.
  static void prepare(Optimizer::Group& g, Device device, double momentum);
  // A parameter is a reference, and its owner may have converted it since it was given: the kernels would read its
  // memory, or that of its state, as what it was.
  static void check(const char* op, const ParamRef& p, Device device, const Optimizer::State* state = nullptr) {
    const Tensor& value = *p.value;
    const DType dtype = value.dtype();
    bool fits = (dtype == DType::f32 || dtype == DType::f64) && value.device() == device && value.is_contiguous();
    for (std::size_t k = 0; fits && state && k < state->tensors.size(); ++k) {
      const Tensor& t = state->tensors[k];
      fits = !t.defined() || (t.dtype() == dtype && t.numel() == value.numel() && t.device() == device);
    }
    if (fits) [[likely]]
      return;
    fail<StateError>(op, ": parameter ", p.name, " is now ", text(value), ", expected contiguous f32 or f64 on ",
                     state && state->tensors[0].defined() ? state->tensors[0].device() : device,
                     ", as at its last update; make a new optimizer after to()");
  }

 private:
  template <class T>
  static kernels::Slot<T> slot(const Tensor& value, const Tensor& gradient, Optimizer::State& s) {
    return {first<T>(value),
            first<T>(gradient),
            first<T>(s.tensors[0]),
            first<T>(s.tensors[1]),
            first<T>(s.tensors[2]),
            value.numel(),
            &s.step};
  }
};

}  // namespace levin::optim
