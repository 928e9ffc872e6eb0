// Tensors of rank 0, and whole tensors, in ops that work along a dimension.
#pragma once

#include <concepts>
#include <type_traits>

#include "kernels/executor/dispatch.h"
#include "levin/ops.h"

namespace levin {

// A tensor of rank 0 has the dimensions 0 and -1 of a line of one element, as in PyTorch: f(that line), of rank 0
// again.
template <class F>
[[nodiscard]] auto of_point(const Tensor& x, F f) {
  const auto point = [](const Tensor& y) { return reshape(y, {}); };
  const auto y = f(reshape(x, {1}));
  if constexpr (std::same_as<std::remove_const_t<decltype(y)>, Tensor>)
    return point(y);
  else
    return ValuesIndices{point(y.values), point(y.indices)};
}

// x as a line.
[[nodiscard]] inline Tensor flat(const char* op, const Tensor& x) {
  check_defined(op, x);
  return reshape(x, {x.numel()});
}

}  // namespace levin
