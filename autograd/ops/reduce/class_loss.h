// What losses over class indices share: their arguments, and the gradient of cross-entropy as an op.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/softmax/cross_entropy.cuh"
#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {

// The dense and checked arguments of a loss over classes. None of them has a gradient.
struct Classes {
  SavedInput target{};  // i64 [rows]
  SavedInput weight{};  // [cols] in the type of the sums, or undefined
  std::int64_t ignore_index;
  double label_smoothing = 0;
  Reduction reduction;
};

// Checks the options of cross-entropy and the values of `target`, which check_targets compares with a shape, for logits
// of `dtype` and `classes`.
[[nodiscard]] Classes checked_classes(const char* op, const Tensor& target, DType dtype, std::int64_t classes,
                                      const CrossEntropyOptions& options);
// target is i64 and on x's device; weight [classes] in x's dtype on x's device, or undefined.
void check_targets(const char* op, const Tensor& x, const Tensor& target, std::int64_t classes, const Tensor& weight);

void check_class_weight(const char* op, const Tensor& x, std::int64_t classes, const Tensor& weight);
// `target` is dense, on the CPU or a device, whose kernel that reads it checks its values. Throws IndexError.
void check_range(const char* op, const Tensor& target, std::int64_t classes,
                 std::optional<std::int64_t> ignore_index = {});

// gy * d cross_entropy(x) / dx for x [rows, cols]: gy [rows] for Reduction::none, else []. lse and weight_sum are what
// cross_entropy's kernel gave.
[[nodiscard]] Tensor cross_entropy_backward(const Tensor& gy, const Tensor& x, const Classes& classes,
                                            const Tensor& lse, const Tensor& weight_sum);

[[nodiscard]] inline kernels::Reduction kernel_reduction(Reduction r) {
  return r == Reduction::none  ? kernels::Reduction::none
         : r == Reduction::sum ? kernels::Reduction::sum
                               : kernels::Reduction::mean;
}

}  // namespace levin
