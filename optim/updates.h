// Builds the list of slots that a multi-tensor kernel updates.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kernels/update/update.cuh"
#include "kernels/update/update_device.h"
#include "levin/optim.h"
#include "tensor/device/in_stream.h"
#include "tensor/device/one_memory.h"

namespace levin::optim {

// What an optimizer does with a gradient of rows (autograd/row_gradient.h): makes it dense; updates these rows alone
// where rows_of gives them; refuses a dense gradient.
enum class RowUse : std::uint8_t { none, where_possible, required };

// Note [The learning rate on its way]
// A schedule calls Optimizer::set_lr, which writes Group::lr. An optimizer's rule (its Kind in adam.cpp, sgd.cpp, ...)
// has a pointer to that number.
// CPU: Updates::run hands the rule to kernels::cpu::update, which reads *rule.lr (kernels/update/update.cuh).
// GPU, simt: Updates::prepare (optimizer.cpp) writes lr and momentum to two f64 on the device (Group::numbers), only
// where they changed. kernels::update_on_device passes their address, and the kernel reads them
// (kernels/update/update_device.cuh). So a recorded step follows the schedule: Optimizer::prepare_replay writes before
// each replay.
// LBFGS has no rule: its step reads Group::lr on the host.
struct Updates {
  // Runs `rule` over the parameters of the group that have a gradient; state tensors are made at their first update.
  // `writer` is the op's name in the error of a stale saved tensor. On a device that launches kernels nothing changes
  // when *found_inf, in the device's memory, is not 0; on the cpu the caller has checked.
  template <class Rule>
  static void run(Optimizer& optimizer, int group, const Rule& rule, const char* writer, const float* found_inf) {
    const Collected all = collect(optimizer, group, writer);
    run(optimizer, group, rule, found_inf, all.slots);
  }
  // As run, where gradients of rows need not be dense.
  template <class Rule>
  static void run_with_rows(Optimizer& optimizer, int group, const Rule& rule, const char* writer,
                            const float* found_inf, RowUse use) {
    const Collected all = collect(optimizer, group, writer, use);
    run(optimizer, group, rule, found_inf, all.slots);
    for (const Rows& r : all.rows) {
      if (r.part.defined()) {
        r.put_back();
        continue;
      }
      const kernels::Cpu on;
      const auto* const rows = first<std::int64_t>(r.rows);
      for (const auto& s : r.slots.single) kernels::cpu::update_rows(on, rule, s, rows, s.n / r.rows.numel());
      for (const auto& s : r.slots.wide) kernels::cpu::update_rows(on, rule, s, rows, s.n / r.rows.numel());
    }
  }
  template <class T>
  [[nodiscard]] static T* first(const Tensor& t) {
    if (!t.defined()) return nullptr;
    return reinterpret_cast<T*>(detail::address_in_stream(t));
  }
  // States of 16-bit parameters are f32.
  [[nodiscard]] static DType state_dtype(DType parameter) { return parameter == DType::f64 ? DType::f64 : DType::f32; }
  [[nodiscard]] static Tensor dense(const Tensor& t) { return t.detach().contiguous(); }
  // Kernels walk the memory of a parameter, its gradient and its states from end to end. So all lie as the parameter
  // does, in one of the memory formats.
  [[nodiscard]] static bool is_dense(const Tensor& t) { return t.is_contiguous(t.suggest_memory_format()); }
  [[nodiscard]] static Tensor laid_out_as(const Tensor& like, Tensor t) {
    const MemoryFormat format = like.suggest_memory_format();
    if (!t.is_contiguous(format)) t = t.detach().contiguous(format);
    return t;
  }
  // On the cpu: `to`, dense, gets the values of `from`, rounded to its dtype.
  static void round_into(const Tensor& to, const Tensor& from);
  // Memory that lies as the dense `like`.
  [[nodiscard]] static Tensor allocated(StateMemory& memory, const Tensor& like, DType dtype);
  // A new state of the parameter `like` on its device, or in `memory` if the shapes are the same. Throws
  // CaptureError while the device records.
  [[nodiscard]] static Tensor filled(const Tensor& like, const Shape& shape, double value, StateMemory* memory);
  // The tensors' memory is not used before the next step.
  template <class... Ts>
  static void rests(StateMemory& memory, const Ts&... tensors) {
    const StateMemory::Part parts[] = {
        {first<std::byte>(tensors), static_cast<std::size_t>(tensors.numel()) * itemsize(tensors.dtype())}...};
    memory.rest(parts);
  }
  // Dense values of any device on `device`, or their copy in `memory`.
  [[nodiscard]] static Tensor kept(const Tensor& values, Device device, StateMemory* memory);
  // The update of a state that is not in memory as a whole: of so many elements at once as the memory says.
  template <class Rule, class T>
  static void run_in_parts(const Rule& rule, const std::vector<kernels::Slot<T>>& slots, StateMemory& memory) {
    std::vector<kernels::Slot<T>> part;
    std::vector<StateMemory::Part> used;
    std::int64_t room = memory.elements_at_once();
    const auto update = [&] {
      if (part.empty()) return;
      kernels::cpu::update(kernels::Cpu{}, rule, std::span<const kernels::Slot<T>>(part));
      for (const kernels::Slot<T>& s : part) {
        const auto n = static_cast<std::size_t>(s.n);
        used.push_back({s.p, n * (s.half == kernels::Half::none ? sizeof(T) : 2)});
        for (const auto* state : {s.a, s.b, s.c}) {
          if (state) used.push_back({state, n * sizeof *state});
        }
      }
      memory.rest(used);
      part.clear();
      used.clear();
      room = memory.elements_at_once();
    };
    for (const kernels::Slot<T>& slot : slots) {
      for (std::int64_t begin = 0; begin < slot.n;) {
        const std::int64_t n = std::min(slot.n - begin, room);
        part.push_back(part_of(slot, begin, n));
        begin += n;
        room -= n;
        if (room == 0) update();
      }
    }
    update();
  }
  static void zero_gradients(const Parameters& parameters);  // in place, except for one that is not dense
  // The step counts and numbers of a group in its device's memory. Numbers are written when a schedule changed them.
  static void prepare(Optimizer::Group& g, Device device, double momentum);
  // Throws StateError when the owner has converted a parameter since it was given: the kernels would read its memory,
  // or that of its state, with the old dtype or device.
  static void check(const char* op, const ParamRef& p, Device device, const Optimizer::State* state = nullptr,
                    const Optimizer* of = nullptr, int group = 0) {
    const Tensor& value = *p.value;
    const DType dtype = value.dtype();
    bool fits = is_float(dtype) && detail::one_memory(value.device(), device) && is_dense(value);
    for (std::size_t k = 0; fits && state && k < state->tensors.size(); ++k) {
      const Tensor& t = state->tensors[k];
      fits =
          !t.defined() || (state->dtype == dtype && t.dtype() == state_dtype(dtype) &&
                           lies_as(t, value, of, group, static_cast<int>(k)) && detail::one_memory(t.device(), device));
    }
    if (fits) [[likely]]
      return;
    fail<StateError>(op, ": parameter ", p.name, " is now ", text(value), ", expected dense floats on ",
                     state && state->tensors[0].defined() ? state->tensors[0].device() : device,
                     ", as at its last update; make a new optimizer after to()");
  }

 private:
  // Rows and values of the gradient of parameter i where they can be updated alone: undefined tensors where it is
  // dense, and where a master, a piece or other memory lies in between. Stochastic rounding goes by an element's place,
  // so it needs all.
  [[nodiscard]] static RowGradient rows_of(const Optimizer& optimizer, const Optimizer::Group& g, std::size_t i);
  static void check_rows(const Optimizer& optimizer, const Optimizer::Group& g);  // of each parameter, or StateError
  // Whether state tensor `which` lies as its parameter does, or densely where it has a shape of its own.
  [[nodiscard]] static bool lies_as(const Tensor& state, const Tensor& parameter, const Optimizer* of, int group,
                                    int which) {
    if (state.numel() == parameter.numel()) return state.is_contiguous(parameter.suggest_memory_format());
    return of && of->state_shape(group, which, parameter.shape()) == state.shape() && state.is_contiguous();
  }
  // Elements [begin, begin + n) of a slot.
  template <class T>
  [[nodiscard]] static kernels::Slot<T> part_of(kernels::Slot<T> s, std::int64_t begin, std::int64_t n) {
    const auto bytes = begin * static_cast<std::int64_t>(s.half == kernels::Half::none ? sizeof(T) : 2);
    s.p = reinterpret_cast<T*>(reinterpret_cast<std::byte*>(s.p) + bytes);
    s.g = reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(s.g) + bytes);
    for (auto* state : {&s.a, &s.b, &s.c}) {
      if (*state) *state += begin;
    }
    s.first += begin;
    s.n = n;
    return s;
  }
  template <class Rule>
  static void run(Optimizer& optimizer, [[maybe_unused]] int group, const Rule& rule,
                  [[maybe_unused]] const float* found_inf, const auto& slots) {
#if LEVIN_LAUNCHES
    Optimizer::Group& g = optimizer.groups_[static_cast<std::size_t>(group)];
    const Device device = g.parameters.front().value->device();
    if (device.launches()) {
      const kernels::Gpu on{Stream::current(device)};
      slots.each([&]<class T>(const std::vector<kernels::Slot<T>>& list) {
        kernels::update_on_device(on, rule, std::span<const kernels::Slot<T>>(list), first<double>(g.numbers),
                                  found_inf, optimizer.factors_);
      });
      return;
    }
#endif
    if (optimizer.memory_) {
      run_in_parts(rule, slots.single, *optimizer.memory_);
      run_in_parts(rule, slots.wide, *optimizer.memory_);
      return;
    }
    const kernels::Cpu on;
    if (!slots.single.empty()) kernels::cpu::update(on, rule, std::span<const kernels::Slot<float>>(slots.single));
    if (!slots.wide.empty()) kernels::cpu::update(on, rule, std::span<const kernels::Slot<double>>(slots.wide));
  }

  // Lists by dtype. A 16-bit parameter on the cpu, and a master with the model's gradient on a device, are in `single`
  // and marked there; see kernels/update/update.cuh.
  struct Slots {
    std::vector<kernels::Slot<float>> single;
    std::vector<kernels::Slot<double>> wide;
#if LEVIN_LAUNCHES
    std::vector<kernels::Slot<f16>> half;
    std::vector<kernels::Slot<bf16>> brain;
    template <class F>
    void each(F&& f) const {
      f(single), f(wide), f(half), f(brain);
    }
#endif

    struct Place {
      std::uint32_t parameter;
      std::int64_t first;  // element
    };
    // `rounded`: the parameter that the update rounds its master `value` into, or undefined.
    void add(const Tensor& value, const Tensor& gradient, Optimizer::State& s, std::int64_t* step, Place place,
             Rounding rounding, const Tensor& rounded) {
      const auto put = [&]<class T>(std::vector<kernels::Slot<T>>& list, kernels::Half half = kernels::Half::none) {
        using A = kernels::Accum<T>;
        kernels::Slot<T>& slot = list.emplace_back();  // a copy would wait for its numbers to reach memory
        slot.p = first<T>(value);
        slot.g = first<T>(gradient);
        slot.a = first<A>(s.tensors[0]);
        slot.b = first<A>(s.tensors[1]);
        slot.c = first<A>(s.tensors[2]);
        slot.n = gradient.numel();
        slot.step = step;
        slot.first = place.first;
        slot.rounded = first<void>(rounded);
        slot.parameter = place.parameter;
        slot.half = half;
        slot.rounded_as = rounded.defined() ? half_of(rounded.dtype()) : kernels::Half::none;
        slot.stochastic = rounding == Rounding::stochastic;
      };
      if (value.dtype() == DType::f32) return put(single, half_of(gradient.dtype()));
      if (value.dtype() == DType::f64) return put(wide);
#if LEVIN_LAUNCHES
      if (value.device().launches()) return value.dtype() == DType::f16 ? put(half) : put(brain);
#endif
      put(single, half_of(value.dtype()));
    }
    [[nodiscard]] static kernels::Half half_of(DType t) {
      return t == DType::f16 ? kernels::Half::f16 : t == DType::bf16 ? kernels::Half::bf16 : kernels::Half::none;
    }
  };

 public:
  // The rows of a parameter that its gradient has. The CPU's kernel finds them by itself; for a device's, which is told
  // where everything lies before the rows are known, they are copied, and put back after it.
  struct Rows {
    Tensor value, rows, part;       // part: on a device
    Optimizer::State whole, state;  // of the parameter; of `part`
    Slots slots{};                  // on the CPU, of the rows' gradient

    Rows(const Tensor& of, const Tensor& at, const Optimizer::State& states);
    void put_back() const;
  };

  // The group's parameters that have a gradient. States are made, steps counted on the cpu, numbers written.
  struct Collected {
    Slots slots;
    std::vector<Tensor> gradients;  // kept until the kernels are enqueued
    std::size_t first_place = 0;    // Slot::parameter of the group's first one
    std::vector<Rows> rows;
  };
  static Collected collect(Optimizer& optimizer, int group, const char* writer, RowUse use = RowUse::none) {
    Optimizer::Group& g = optimizer.groups_[static_cast<std::size_t>(group)];
    const auto names = optimizer.state_names(group);
    const Device device = g.parameters.front().value->device();
    std::size_t place = 0;  // of the group's first parameter among all
    for (int k = 0; k < group; ++k) place += optimizer.groups_[static_cast<std::size_t>(k)].parameters.size();
    for (std::size_t i = 0; i < g.parameters.size(); ++i)
      check(optimizer.name(), g.parameters[i], device, &g.state[i], &optimizer, group);
    if (use == RowUse::required) check_rows(optimizer, g);
    if (device.launches()) prepare(g, device, optimizer.momentum(group).value_or(0));
    Collected all;
    auto& [slots, gradients, first_place, in_rows] = all;
    first_place = place;
    slots.single.reserve(g.parameters.size());
    gradients.reserve(g.parameters.size());
    for (std::size_t i = 0; i < g.parameters.size(); ++i) {
      auto [rows, gradient] = use == RowUse::none ? RowGradient() : rows_of(optimizer, g, i);
      if (!rows.defined()) gradient = (optimizer.reads_model_ ? g.source(i) : *g.parameters[i].value).grad();
      if (!gradient.defined()) continue;
      gradients.push_back(laid_out_as(*g.parameters[i].value, std::move(gradient)));
      Optimizer::State& state = g.state[i];
      for (std::size_t k = 0; k < names.size(); ++k) {
        if (!names[k] || state.tensors[k].defined()) continue;
        const Tensor& value = *g.parameters[i].value;
        const auto shape = optimizer.state_shape(group, static_cast<int>(k), value.shape());
        if (!shape) continue;
        state.tensors[k] =
            filled(value, *shape, optimizer.initial_state(group, static_cast<int>(k)), optimizer.memory_.get());
      }
      state.dtype = g.parameters[i].value->dtype();
      ++state.step;
      Tensor& value = *g.parameters[i].value;
      std::int64_t* const step = device.launches() ? first<std::int64_t>(g.steps) + i : &state.step;
      if (rows.defined()) {
        const Slots::Place of{static_cast<std::uint32_t>(place + i), 0};
        if (gradients.back().numel() > 0) {
          Rows& r = in_rows.emplace_back(value, rows, state);
          if (r.part.defined())
            slots.add(r.part, gradients.back(), r.state, step, of, g.rounding, {});
          else
            r.slots.add(value, gradients.back(), state, step, of, g.rounding, {});
        }
        value.get().storage->wrote(writer);
        continue;
      }
      slots.add(value, gradients.back(), state, step, {static_cast<std::uint32_t>(place + i), g.first_element(i)},
                g.rounding, optimizer.rounds_ && g.masters[i] ? g.source(i) : Tensor{});
      value.get().storage->wrote(writer);
    }
    return all;
  }
  [[nodiscard]] static const Tensor& value_of(Optimizer& optimizer, int group, std::size_t i) {
    return *optimizer.groups_[static_cast<std::size_t>(group)].parameters[i].value;
  }
  [[nodiscard]] static const double* lr_of(Optimizer& optimizer, int group) {
    return &optimizer.groups_[static_cast<std::size_t>(group)].lr;
  }
  [[nodiscard]] static const double* device_numbers(Optimizer& optimizer, int group) {
    return first<double>(optimizer.groups_[static_cast<std::size_t>(group)].numbers);
  }
};

}  // namespace levin::optim
