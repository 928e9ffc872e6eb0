// The gradients of a list of parameters, as kernels take them.
#pragma once

#include <vector>

#include "kernels/update/update_device.h"
#include "levin/optim.h"
#include "optim/updates.h"

namespace levin::optim {

class Gradients {
 public:
  // The defined gradients, dense. With a `writer`, the op's name in the error of a stale saved tensor, they may be
  // written: a gradient that is not dense is replaced by its copy. Throws DeviceError for a second device, and changes
  // nothing then.
  Gradients(const char* op, const Parameters& parameters, const char* writer = nullptr);
  [[nodiscard]] bool empty() const { return tensors_.empty(); }
  [[nodiscard]] Device device() const { return empty() ? Device::cpu() : tensors_.front().device(); }
  [[nodiscard]] kernels::GradientSlots slots() const { return {single_, wide_, half_, brain_}; }
  // On the cpu: calls f(T* gradient, elements) for each, T float or double. A 16-bit gradient is passed as a float
  // copy, which is rounded back if gradients may be written.
  template <class F>
  void each(F&& f) const {
    for (const auto& s : single_) f(s.p, s.n);
    for (const auto& s : wide_) f(s.p, s.n);
    for (const Tensor& t : narrow_) {
      const Tensor copy = t.detach().to(DType::f32);
      f(Updates::first<float>(copy), t.numel());
      if (write_) Updates::round_into(t, copy);
    }
  }

 private:
  std::vector<Tensor> narrow_;  // on the cpu, of 16 bits
  bool write_ = false;
  std::vector<Tensor> tensors_;  // kept until kernels are enqueued
  std::vector<kernels::Slot<float>> single_;
  std::vector<kernels::Slot<double>> wide_;
  std::vector<kernels::Slot<f16>> half_;
  std::vector<kernels::Slot<bf16>> brain_;
};

}  // namespace levin::optim
