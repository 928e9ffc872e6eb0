// Backward ops that other files build on.
#pragma once

#include <array>

#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {

// gy * gelu'(x).
[[nodiscard]] Tensor gelu_backward(const Tensor& gy, const Tensor& x, GeluForm form);

// For y = x W^T + b, gy [rows, out] and x [rows, in]: the gradient of W is gy^T x, the gradient of b the sum of gy's
// rows; each only where needed. x may be undefined where the gradient of W is not needed. cuBLASLt computes both in one
// pass over gy; without it they are two passes.
[[nodiscard]] std::array<Tensor, 2> linear_parameters_backward(const Tensor& gy, const Tensor& x, NeedMask need);

[[nodiscard]] inline NeedMask need_of(bool first, bool second) {
  NeedMask need;
  if (first) need.set(0);
  if (second) need.set(1);
  return need;
}

}  // namespace levin
