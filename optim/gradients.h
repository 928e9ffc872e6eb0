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
  // Calls f(span of slots) for each dtype: T float, double, f16 and bf16.
  template <class F>
  void each(F&& f) const {
    const auto call = [&f]<class T>(const std::vector<kernels::Slot<T>>& slots) {
      f(std::span<const kernels::Slot<T>>(slots));
    };
    call(single_), call(wide_), call(half_), call(brain_);
  }

 private:
  std::vector<Tensor> tensors_;  // kept until kernels are enqueued
  std::vector<kernels::Slot<float>> single_;
  std::vector<kernels::Slot<double>> wide_;
  std::vector<kernels::Slot<f16>> half_;
  std::vector<kernels::Slot<bf16>> brain_;
};

}  // namespace levin::optim
