#include "optim/masters.h"

#include <set>
#include <string>

#include "levin/stream.h"
#include "optim/updates.h"
#include "tensor/core/gradient_rows.h"

namespace levin::optim {
namespace {

template <class From, class To>
void add(std::vector<kernels::Move<From, To>>& list, const Tensor& from, const Tensor& to) {
  if (from.numel() > 0) list.push_back({Updates::first<From>(from), Updates::first<To>(to), from.numel()});
}

}  // namespace

std::vector<Masters::Gradient> Masters::gradients(Optimizer& optimizer, Which which, const char* writer) {
  std::vector<Gradient> all;
  for (Optimizer::Group& group : optimizer.groups_) {
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      Optimizer::Master* const master = group.masters.empty() ? nullptr : group.masters[i].get();
      if (!master && which == Which::masters) continue;
      Tensor& value = group.source(i);
      Tensor from = master ? value.grad() : detail::gradient_values(value);
      if (!from.defined()) {
        if (master) master->value.set_grad({});
        continue;
      }
      if (Tensor in_order = Updates::laid_out_as(value, from); in_order.impl() != from.impl()) {
        from = std::move(in_order);
        value.set_grad(from);
      }
      Tensor to = from;
      if (master) {
        if (!master->gradient.defined()) master->gradient = empty_like(master->value);
        to = master->gradient;
        master->value.set_grad(to);
      }
      to.get().storage->wrote(writer);
      all.push_back({std::move(from), std::move(to)});
    }
  }
  optimizer.gathered_ = true;
  return all;
}

std::vector<Masters::Gradient> Masters::sources(Optimizer& optimizer) {
  std::vector<Gradient> all;
  for (Optimizer::Group& group : optimizer.groups_) {
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      Optimizer::Master* const master = group.masters.empty() ? nullptr : group.masters[i].get();
      if (master) master->value.set_grad({});
      Tensor& value = group.source(i);
      Tensor from = master ? value.grad() : detail::gradient_values(value);
      if (!from.defined()) continue;
      if (Tensor in_order = Updates::laid_out_as(value, from); in_order.impl() != from.impl()) {
        from = std::move(in_order);
        value.set_grad(from);
      }
      all.push_back({std::move(from), {}});
    }
  }
  return all;
}

void Masters::make(Optimizer::Group& group, StateMemory* memory) {
  if (group.model.empty()) group.model = group.parameters;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    ParamRef& p = group.parameters[i];
    const Tensor& value = group.source(i);
    group.masters.emplace_back();
    if (itemsize(value.dtype()) != 2) continue;
    group.masters.back() = std::make_shared<Optimizer::Master>();
    Tensor& master = group.masters.back()->value;
    master = value.detach().to(DType::f32);
    if (memory) master = Updates::kept(master, Device::cpu(), memory);
    master.requires_grad_();
    p.value = &master;
  }
}

void Masters::check(const Optimizer& optimizer) {
  for (const Optimizer::Group& group : optimizer.groups_) {
    for (std::size_t i = 0; i < group.masters.size(); ++i) {
      if (!group.masters[i]) continue;
      const Tensor &value = group.source(i), &master = group.masters[i]->value;
      if (itemsize(value.dtype()) == 2 && is_float(value.dtype()) && value.numel() == master.numel() &&
          value.device() == master.device() && value.is_contiguous(master.suggest_memory_format()))
        continue;
      fail<StateError>(std::string(optimizer.name()), ": parameter ", group.model[i].name, " is now ", text(value),
                       ", expected dense f16 or bf16 ", master.shape(), " on ", master.device(),
                       ", as when its master was made; make a new optimizer after to()");
    }
  }
}

void Masters::round(Optimizer& optimizer, [[maybe_unused]] const float* found_inf) {
  for (Optimizer::Group& group : optimizer.groups_) {
    std::vector<kernels::Move<float, f16>> half;
    std::vector<kernels::Move<float, bf16>> brain;
    for (std::size_t i = 0; i < group.masters.size(); ++i) {
      if (!group.masters[i]) continue;
      Tensor& value = group.source(i);
      const Tensor& master = group.masters[i]->value;
      value.get().storage->wrote("master_weights");
      if (optimizer.rounds_) continue;
      if (value.device().is_cpu()) {
        Updates::round_into(value, master);
        if (optimizer.memory_) Updates::rests(*optimizer.memory_, master, value);
      } else if (value.dtype() == DType::f16)
        add(half, master, value);
      else
        add(brain, master, value);
    }
#if LEVIN_LAUNCHES
    if (half.empty() && brain.empty()) continue;
    const kernels::Gpu on{Stream::current(group.parameters.front().value->device())};
    kernels::convert_on_device(on, std::span<const kernels::Move<float, f16>>(half), found_inf);
    kernels::convert_on_device(on, std::span<const kernels::Move<float, bf16>>(brain), found_inf);
#endif
  }
}

GradientLists::GradientLists(const std::vector<Masters::Gradient>& gradients) {
  for (const auto& [from, to] : gradients) {
    if (from.dtype() == DType::f32)
      add(single_, from, to);
    else if (from.dtype() == DType::f64)
      add(wide_, from, to);
    else if (from.dtype() == DType::f16)
      add(half_, from, to);
    else
      add(brain_, from, to);
  }
}

void Optimizer::use_master_weights() {
  if (masters_) return;
  for (const Group& g : groups_) {
    for (std::size_t i = 0; i < g.state.size(); ++i) {
      if (g.state[i].step != 0)
        fail<StateError>(std::string(name()), ": use_master_weights() is called after the first step (parameter ",
                         g.parameters[i].name, " has state); call it when the optimizer is made");
    }
  }
  masters_ = true;
  ++layout_;
  for (Group& g : groups_) Masters::make(g, memory_.get());
}

std::vector<ParamRef> Optimizer::model_parameters() const {
  std::vector<ParamRef> all;
  for (const Group& g : groups_) {
    const Parameters& p = g.model.empty() ? g.parameters : g.model;
    all.insert(all.end(), p.begin(), p.end());
  }
  return all;
}

void Optimizer::gather_gradients() {
  if (!masters_ || gathered_ || on_meta()) return;
  Masters::check(*this);
  const auto gradients = Masters::gradients(*this, Masters::Which::masters, "gather_gradients");
  // Groups may lie on different devices.
  for (std::size_t begin = 0, end = 0; begin < gradients.size(); begin = end) {
    const Device device = gradients[begin].to.device();
    while (end < gradients.size() && gradients[end].to.device() == device) ++end;
    if (device.is_cpu()) {
      for (std::size_t i = begin; i < end; ++i) Updates::round_into(gradients[i].to, gradients[i].from);
      continue;
    }
#if LEVIN_LAUNCHES
    const GradientLists lists(
        {gradients.begin() + static_cast<std::ptrdiff_t>(begin), gradients.begin() + static_cast<std::ptrdiff_t>(end)});
    const kernels::Gpu on{Stream::current(device)};
    kernels::convert_on_device(on, lists.moves().half);
    kernels::convert_on_device(on, lists.moves().brain);
#endif
  }
}

}  // namespace levin::optim
