// Backward ops of which those of other files are made.
#pragma once

#include <array>

#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {

// gy * gelu'(x).
[[nodiscard]] Tensor gelu_backward(const Tensor& gy, const Tensor& x, GeluForm form);

// Of y = x W^T + b for gy [rows, out] and x [rows, in]: the gradient gy^T x of W, and that of b, the sum of gy's rows, as
// far as needed; x may be undefined where W's is not. Both are one pass over gy where cuBLASLt makes the product.
[[nodiscard]] std::array<Tensor, 2> linear_parameters_backward(const Tensor& gy, const Tensor& x, NeedMask need);

[[nodiscard]] inline NeedMask need_of(bool first, bool second) {
  NeedMask need;
  if (first) need.set(0);
  if (second) need.set(1);
  return need;
}

}  // namespace levin
