// What losses between two tensors share.
#pragma once

#include "autograd/autocast.h"
#include "levin/ops.h"

namespace levin {

// A loss of a broadcast pair is nearly always a mistake: [N] against [N, 1] gives N * N differences.
inline void check_equal_shapes(const char* op, const char* a_name, const Tensor& a, const char* b_name,
                               const Tensor& b) {
  check_same_device(op, a, b);
  if (a.shape() != b.shape()) {
    fail<ShapeError>(op, ": ", a_name, " has shape ", a.shape(), " and ", b_name, " ", b.shape(),
                     ", expected equal shapes; reshape or expand one");
  }
}
inline void check_pair(const char* op, const Tensor& x, const Tensor& target) {
  check_dtypes_meet(op, x, target);
  check_equal_shapes(op, "x", x, "target", target);
}
[[nodiscard]] inline Tensor reduced(const Tensor& loss, Reduction r) {
  return r == Reduction::none ? loss : r == Reduction::sum ? sum(loss) : mean(loss);
}
// weight broadcasts to x's shape, or is undefined.
inline void check_loss_weight(const char* op, const char* name, const Tensor& x, const Tensor& weight) {
  if (!weight.defined()) return;
  check_dtypes_meet(op, x, weight);
  check_same_device(op, x, weight);
  if (broadcast_shapes(op, x.shape(), weight.shape()) != x.shape()) {
    fail<ShapeError>(op, ": ", name, " has shape ", weight.shape(), ", expected one that broadcasts to x's ",
                     x.shape());
  }
}
// The type in which values of dtype t are added.
[[nodiscard]] inline DType accumulator(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

// Ops in a row compute 16-bit numbers in f32, from widened operands, and reduce them before they are rounded.
[[nodiscard]] inline Tensor widened(const Tensor& x) { return cast(x, accumulator(x.dtype())); }
// y, which came from x widened, in the dtype of a result for x.
[[nodiscard]] inline Tensor finished(const Tensor& y, const Tensor& x, Reduction r = Reduction::none) {
  return cast(reduced(y, r), full_result(x.dtype()));
}

}  // namespace levin
