// Checks of dtypes under autocast: dtypes that autocast will make equal may differ.
#pragma once

#include <span>

#include "kernels/executor/dispatch.h"
#include "levin/autograd.h"

namespace levin {

// check_same_dtype for an op whose policy is not `keep`: under autocast both inputs may differ where autocast makes
// them one dtype. f64, which autocast leaves alone, meets only f64.
inline void check_dtypes_meet(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, a, b);
  if (a.dtype() == b.dtype()) [[likely]]
    return;
  const bool cast = detail::mode().autocast && is_float(a.dtype()) && is_float(b.dtype()) && a.dtype() != DType::f64 &&
                    b.dtype() != DType::f64;
  if (!cast) check_same_dtype(op, a, b);
}

inline void check_float(const char* op, const Tensor& x) {
  check_defined(op, x);
  if (!is_float(x.dtype())) fail_unsupported({.name = op}, x, kFloats);
}

// The result's dtype of an op with the policy `full_result`, for an input of dtype t. Ask before apply(), which runs
// the op with autocast off.
inline DType full_result(DType t) { return detail::mode().autocast && is_float(t) && t != DType::f64 ? DType::f32 : t; }

// Tensors of one dtype as `dtype`, as one op. On a device that launches kernels f32 and 16 bits take one launch, and so
// do the gradients, once all of them are there.
[[nodiscard]] Tensors cast_all(std::span<const Tensor> x, DType dtype);

}  // namespace levin
