// What poolings share.
#pragma once

#include <cstdint>
#include <span>

#include "levin/ops.h"
#include "levin/shape.h"

namespace levin {

// Elements from the first that a window sees to its last.
[[nodiscard]] inline std::int64_t pool_span(std::int64_t kernel, std::int64_t dilation) {
  return (kernel - 1) * dilation + 1;
}
// ShapeError unless at least one window along dimension d of x fits and each sees an element: kernel, stride, dilation
// and the span from 1 to 2^30, padding at most half the kernel, and the dimension not empty.
void check_pool_axis(const char* op, const Shape& x, int d, std::int64_t kernel, std::int64_t stride,
                     std::int64_t padding, std::int64_t dilation);
// ConfigError unless each is 1: for pools that take no other.
void check_no_dilation(const char* op, std::span<const std::int64_t> dilation);

// max_pool2d_with_indices before it widens the indices, which are i32.
[[nodiscard]] ValuesIndices max_pool2d_places(const Tensor& x, const PoolOptions& options);

// Places i64 [N, C, D', P] in volumes of D slices of `pixels`: those of in_planes [N, C * D, H', W'], i32, in slices,
// at in_lines, i32 [N, C, D', P] with P = H' W', which are places in [D, P].
[[nodiscard]] Tensor places_in_volumes(const Tensor& in_planes, const Tensor& in_lines, std::int64_t pixels);

}  // namespace levin
