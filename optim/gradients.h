// The gradients of a list of parameters, as kernels take them.
#pragma once

#include <vector>

#include "kernels/update_device.h"
#include "levin/optim.h"

namespace levin::optim {

class Gradients {
 public:
  // Those that are there, dense. With a `writer`, the name under which a stale saved tensor finds who wrote, they may be
  // written: one that is not dense is replaced by its copy. Throws UnsupportedError for dtypes other than f32 and f64,
  // DeviceError for a second device; nothing has changed then.
  Gradients(const char* op, const Parameters& parameters, const char* writer = nullptr);
  [[nodiscard]] bool empty() const { return tensors_.empty(); }
  [[nodiscard]] Device device() const { return empty() ? Device::cpu() : tensors_.front().device(); }
  [[nodiscard]] kernels::GradientSlots slots() const { return {single_, wide_}; }
  // Calls f(T* gradient, elements) on each.
  template <class F>
  void each(F&& f) const {
    for (const auto& s : single_) f(s.p, s.n);
    for (const auto& s : wide_) f(s.p, s.n);
  }

 private:
  std::vector<Tensor> tensors_;  // kept until kernels are enqueued
  std::vector<kernels::Slot<float>> single_;
  std::vector<kernels::Slot<double>> wide_;
};

}  // namespace levin::optim
