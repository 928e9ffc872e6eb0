#include "train/run/on_meta.h"

#include <map>

namespace levin::train {

OnMeta::OnMeta(nn::Module& tree) : tree_(tree), device_(tree.device()) {
  for (const ParamRef& p : tree.parameters()) before_.emplace_back(p.value, *p.value);
  for (const nn::BufferRef& b : tree.buffers()) before_.emplace_back(b.value, *b.value);
  for (const auto& [name, generator] : tree.generators()) generators_.emplace_back(generator, generator->state());
  try {
    tree.to(Device::meta());  // modules make tensors on their own device, so it changes too
    // A tensor with two names stays one tensor, and a module that was on meta gets values of its own.
    std::map<const detail::TensorImpl*, Tensor> made;
    for (const auto& [slot, value] : before_) {
      Tensor& fresh = made[value.impl()];
      if (!fresh.defined()) {
        fresh = empty(value.shape(), Device::meta(), value.dtype());
        if (value.requires_grad()) fresh.requires_grad_();
      }
      *slot = fresh;
    }
  } catch (...) {
    restore();
    throw;
  }
}

void OnMeta::restore() noexcept {
  for (const auto& [slot, value] : before_) *slot = value;
  for (const auto& [generator, state] : generators_) generator->set_state(state);
  try {
    tree_.to(device_);  // copies nothing: the values are there
  } catch (...) {}      // no memory for the list of tensors
}

}  // namespace levin::train
