// What ops that divide share: what integers do about a divisor of 0, and the sign of floats' remainders.
#pragma once

#include "autograd/autocast.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "kernels/math/math.h"

namespace levin::pointwise {

// Whether b is 0, which a kernel of a device reports. The CPU looks before, by check_divisor.
template <class T>
LEVIN_HD bool is_zero_divisor(T b, [[maybe_unused]] levin::detail::FaultSlot* faults, [[maybe_unused]] const char* op) {
#if defined(__CUDA_ARCH__) || defined(LEVIN_SIMT)
  if (b == T(0) && faults) kernels::report_value(faults, levin::detail::Fault::zero_divisor, op, 0);
#endif
  return b == T(0);
}

// b, or 1 in place of -1, by which the least number cannot be divided. Neither this nor what follows a division has a
// branch, which random numbers would mispredict.
template <class T>
LEVIN_HD T safe_divisor(T b) {
  return std::is_signed_v<T> && b == T(-1) ? T(1) : b;
}
// Whether a quotient was rounded up: its remainder r is not 0 and has another sign than the divisor.
template <class T>
LEVIN_HD bool is_rounded_up(T r, T b) {
  return ((r != T(0)) & ((r < T(0)) != (b < T(0)))) != 0;
}

[[noreturn]] inline void fail_divisor(const char* op) {
  fail<IndexError>(op, ": the divisor holds a 0, expected none in an integer tensor");
}
inline void check_divisor(const char* op, const Tensor& a, const Tensor& b) {
  check_dtypes_meet(op, a, b);
  if (is_integer(b.dtype()) && b.device().is_cpu() && !all(b).item<bool>()) fail_divisor(op);
}
inline void check_divisor(const char* op, const Tensor& a, Scalar b) {
  if (is_integer(a.dtype()) && b.is_integer() && b.integer() == 0) fail_divisor(op);
}

// The remainder with the sign of the divisor, from r of fmod.
template <class T>
LEVIN_HD T with_sign_of_divisor(T r, T b) {
  return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}

}  // namespace levin::pointwise
