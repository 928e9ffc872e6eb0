// Where the elements stand that an order of lines chooses.
#pragma once

#include <cstdint>

#include "levin/tensor.h"

namespace levin::detail {

enum class FirstNan : bool { no, yes };
// The index along dim of the element at k of each sorted line, i64 of x's shape with 1 in dim: x of the CPU, of at
// least one element along dim, and 0 <= k < x.size(dim). first: of a line with NaN its first NaN. op: for errors.
Tensor kth_places(const char* op, const Tensor& x, int dim, std::int64_t k, FirstNan first);

}  // namespace levin::detail
