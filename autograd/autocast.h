// How an op's checks see autocast: dtypes that it will make alike may differ.
#pragma once

#include "kernels/dispatch.h"
#include "levin/autograd.h"

namespace levin {

// As check_same_dtype(op, a, b), but where autocast is on and casts both inputs to one dtype they may differ. f64, which
// autocast leaves alone, may not meet another.
inline void check_same_dtype(const OpInfo& info, const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) [[likely]]
    return;
  const bool casts = detail::mode().autocast && info.autocast != AutocastPolicy::keep && is_float(a.dtype()) &&
                     is_float(b.dtype()) && a.dtype() != DType::f64 && b.dtype() != DType::f64;
  if (!casts) check_same_dtype(info.name, a, b);
}

}  // namespace levin
