// Memory for the parts of a device's split sums, for the length of an op.
#pragma once

#include "kernels/dispatch.h"
#include "kernels/gemm_device.cuh"
#include "levin/ops.h"

namespace levin {

// See Note [Long sums are split].
template <class T>
class GemmParts {
 public:
  GemmParts(const kernels::GemmPlan& plan, Device device) {
    if (plan.workspace() > 0) memory_ = empty({plan.workspace()}, device, dtype_of<kernels::Accum<T>>);
  }
  [[nodiscard]] kernels::Accum<T>* get() const { return memory_.defined() ? ptr<kernels::Accum<T>>(memory_) : nullptr; }

 private:
  Tensor memory_;
};

}  // namespace levin
