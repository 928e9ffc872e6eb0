// What ops on images share.
#pragma once

#include <array>
#include <cstdint>

#include "levin/ops.h"

namespace levin {

// Longer strides, paddings and padded extents mean nothing, and the product of two must not overflow.
inline constexpr std::int64_t kMostExtent = std::int64_t{1} << 31;
// The limit on the pixels of a padded image keeps the kernels' counts small.
inline constexpr std::int64_t kMostPadded = std::int64_t{1} << 40;

// ShapeError unless both are from `least` to the limit.
void check_extents(const char* op, const char* what, const std::array<std::int64_t, 2>& v, std::int64_t least);

// (n - 1) * step + 1, or more than any extent may be.
std::int64_t reach_of(std::int64_t n, std::int64_t step);

// The height and width of an image with its padding; ShapeError where they are beyond the limits.
std::array<std::int64_t, 2> padded_extents(const char* op, const std::array<std::int64_t, 2>& size,
                                           const std::array<std::int64_t, 2>& padding);

// ShapeError unless the kernel fits the padded image, the last two dimensions of `image`.
void check_windows(const char* op, const Shape& image, const std::array<std::int64_t, 2>& kernel,
                   const std::array<std::int64_t, 2>& padding, const std::array<std::int64_t, 2>& dilation);

}  // namespace levin
