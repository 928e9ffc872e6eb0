// The gradient of relu, for ops that end in one.
#pragma once

#include "levin/tensor.h"

namespace levin {

// gy where y, the result of relu, is above 0, else gy * 0. Differentiable.
[[nodiscard]] Tensor relu_backward(const Tensor& gy, const Tensor& y);

}  // namespace levin
