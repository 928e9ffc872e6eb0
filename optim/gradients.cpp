#include "optim/gradients.h"

#include <unordered_set>

#include "tensor/core/gradient_rows.h"
#include "tensor/device/one_memory.h"

namespace levin::optim {

Gradients::Gradients(const char* op, const Parameters& parameters, const char* writer) {
  std::vector<const ParamRef*> once;     // with a gradient
  std::unordered_set<const void*> seen;  // modules may share a tensor (tied weights), which counts once
  for (const ParamRef& p : parameters) {
    if (!p.value || !p.value->defined()) fail<ConfigError>(op, ": parameter ", p.name, " is undefined");
    Tensor g = detail::gradient_values(*p.value);
    if (!g.defined() || !seen.insert(p.value->impl()).second) continue;
    once.push_back(&p);
    if (!empty() && !detail::one_memory(g.device(), device())) {
      fail<DeviceError>(op, ": the gradient of ", p.name, " is on ", g.device(), ", others are on ", device(),
                        "; give each device's parameters a call of their own");
    }
    tensors_.push_back(std::move(g));
  }
  std::size_t at = 0;
  for (const ParamRef* p : once) {
    Tensor& g = tensors_[at++];
    if (!Updates::is_dense(g)) {
      g = Updates::dense(g);
      if (writer) p->value->set_grad(g);
    }
    if (writer) g.get().storage->wrote(writer);
    if (g.numel() == 0) continue;
    const auto put = [&]<class T>(std::vector<kernels::Slot<T>>& list) {
      list.push_back({.p = Updates::first<T>(g), .g = Updates::first<T>(g), .n = g.numel()});
    };
    if (g.dtype() == DType::f32)
      put(single_);
    else if (g.dtype() == DType::f64)
      put(wide_);
    else if (g.dtype() == DType::f16)
      put(half_);
    else
      put(brain_);
  }
}

}  // namespace levin::optim
