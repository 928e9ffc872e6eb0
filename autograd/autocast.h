// How an op's checks see autocast: dtypes that it will make alike may differ.
#pragma once

#include "kernels/dispatch.h"
#include "levin/autograd.h"

namespace levin {

// check_same_dtype for an op whose policy is not `keep`: where autocast is on and makes both inputs one dtype they may differ.
// f64, which autocast leaves alone, may not meet another.
inline void check_dtypes_meet(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, a, b);
  if (a.dtype() == b.dtype()) [[likely]]
    return;
  const bool cast = detail::mode().autocast && is_float(a.dtype()) && is_float(b.dtype()) && a.dtype() != DType::f64 &&
                    b.dtype() != DType::f64;
  if (!cast) check_same_dtype(op, a, b);
}

// The dtype of the result of an op whose policy is `full_result`, of an input of dtype t. Asked before apply(), which runs
// the op with autocast off.
inline DType full_result(DType t) { return detail::mode().autocast && is_float(t) && t != DType::f64 ? DType::f32 : t; }

}  // namespace levin
