// The state of an optimizer in memory that is not the CPU's own.
#include <cstring>
#include <string>
#include <utility>

#include "levin/optim.h"
#include "optim/updates.h"

namespace levin::optim {

StateMemory::~StateMemory() = default;

Tensor Updates::allocated(StateMemory& memory, const Tensor& like, DType dtype) {
  const Tensor t = memory.allocate(like.shape(), dtype);
  return like.is_contiguous() ? t : as_strided(t, like.shape(), like.strides(), t.offset());
}

Tensor Updates::kept(const Tensor& values, Device device, StateMemory* memory) {
  if (!memory) return values.to(device);
  const Tensor from = values.to(Device::cpu()), to = allocated(*memory, from, values.dtype());
  if (to.numel() == 0) return to;
  std::memcpy(first<std::byte>(to), first<std::byte>(from),
              static_cast<std::size_t>(to.numel()) * itemsize(to.dtype()));
  rests(*memory, to);
  return to;
}

void Optimizer::keep_state_in(std::shared_ptr<StateMemory> memory) {
  const std::string op = name();
  if (!elementwise())
    fail<ConfigError>(op, ": its state stays in memory, expected an optimizer of another kind in keep_state_in()");
  if (!memory) fail<ConfigError>(op, ": keep_state_in() is given no memory");
  for (const Group& g : groups_) {
    for (std::size_t i = 0; i < g.parameters.size(); ++i) {
      const ParamRef& p = g.parameters[i];
      if (g.state[i].step != 0)
        fail<StateError>(op, ": keep_state_in() is called after the first step (parameter ", p.name,
                         " has state); call it when the optimizer is made");
      if (!p.value->device().is_cpu())
        fail<ConfigError>(op, ": parameter ", p.name, " is on ", p.value->device(),
                          ", expected the CPU, where keep_state_in() keeps the state");
    }
  }
  memory_ = std::move(memory);
  for (const Group& g : groups_) {
    for (const auto& master : g.masters) {
      if (!master) continue;
      master->value = Updates::kept(master->value.detach(), Device::cpu(), memory_.get());
      master->value.requires_grad_();
    }
  }
}

}  // namespace levin::optim
