// Where the elements stand that an order of lines chooses.
#pragma once

#include <cstdint>
#include <span>

#include "levin/tensor.h"

namespace levin::detail {

enum class FirstNan : bool { no, yes };
// The indices along dim of the elements at `ks` of each sorted line, i64 of x's shape with ks.size() in dim: x of the
// CPU, of at least one element along dim, and 0 <= k < x.size(dim). first: of a line with NaN its first NaN. op: for
// errors.
Tensor kth_places(const char* op, const Tensor& x, int dim, std::span<const std::int64_t> ks, FirstNan first);
inline Tensor kth_places(const char* op, const Tensor& x, int dim, std::int64_t k, FirstNan first) {
  return kth_places(op, x, dim, std::span<const std::int64_t>(&k, 1), first);
}

}  // namespace levin::detail
