// The order of the rows of a matrix.
#pragma once

#include <cstdint>

#include "levin/tensor.h"

namespace levin::detail {

// How many different rows of x [n, columns] stand before each one in lexicographic order, i64 [n]: x dense or not,
// n >= 1, columns >= 1, every dtype. A NaN is the largest and equals nothing. op: for errors.
Tensor rank_rows(const char* op, const Tensor& x);
// The same by sorts of columns, on any device: what rank_rows does where a device launches kernels. `most`: the
// elements that are sorted at once, which bound its memory.
Tensor rank_rows_by_sorts(const Tensor& x, std::int64_t most = std::int64_t{1} << 22);

}  // namespace levin::detail
