#include "optim/gradients.h"

#include "optim/updates.h"

namespace levin::optim {

Gradients::Gradients(const char* op, const Parameters& parameters, const char* writer) {
  for (const ParamRef& p : parameters) {
    Tensor g = p.value->grad();
    if (!g.defined()) continue;
    if (g.dtype() != DType::f32 && g.dtype() != DType::f64)
      fail<UnsupportedError>(op, ": the gradient of ", p.name, " is ", g.dtype(), "; has f32, f64");
    if (!empty() && g.device() != device()) {
      fail<DeviceError>(op, ": the gradient of ", p.name, " is on ", g.device(), ", others are on ", device(),
                        "; give each device's parameters a call of their own");
    }
    tensors_.push_back(std::move(g));
  }
  std::size_t at = 0;
  for (const ParamRef& p : parameters) {
    if (!p.value->grad().defined()) continue;
    Tensor& g = tensors_[at++];
    if (!g.is_contiguous()) {
      g = Updates::dense(g);
      if (writer) p.value->set_grad(g);
    }
    if (writer) g.get().storage->wrote(writer);
    if (g.numel() == 0) continue;
    if (g.dtype() == DType::f32)
      single_.push_back({.p = Updates::first<float>(g), .g = Updates::first<float>(g), .n = g.numel()});
    else
      wide_.push_back({.p = Updates::first<double>(g), .g = Updates::first<double>(g), .n = g.numel()});
  }
}

}  // namespace levin::optim
