// Backward ops that other files build on.
#pragma once

#include <array>

#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {

// gy * gelu'(x).
[[nodiscard]] Tensor gelu_backward(const Tensor& gy, const Tensor& x, GeluForm form);

// For y = x W^T + b, gy [rows, out] and x [rows, in]: the gradient of W is gy^T x, the gradient of b the sum of gy's
// rows; each only where needed. x may be undefined where the gradient of W is not needed. Devices compute both in one
// pass over gy; without it they are two passes. `place`, if it is defined, gets the gradient of W (birth_place).
[[nodiscard]] std::array<Tensor, 2> linear_parameters_backward(const Tensor& gy, const Tensor& x, NeedMask need,
                                                               const Tensor& place = {});

// matmul of two matrices, into `place` where it is defined.
[[nodiscard]] Tensor matmul_into(const Tensor& place, const Tensor& a, const Tensor& b);

[[nodiscard]] inline NeedMask need_of(bool first, bool second) {
  NeedMask need;
  if (first) need.set(0);
  if (second) need.set(1);
  return need;
}

}  // namespace levin
