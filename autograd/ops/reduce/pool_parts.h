// What poolings share.
#pragma once

#include <cstdint>

#include "levin/shape.h"

namespace levin {

// ShapeError unless at least one window along dimension d of x fits: kernel and stride from 1 to 2^30, padding at most
// half the kernel, and the dimension not empty.
void check_pool_axis(const char* op, const Shape& x, int d, std::int64_t kernel, std::int64_t stride,
                     std::int64_t padding);

}  // namespace levin
