// Functions of a GPU's special function unit, one instruction each, and formulas made of them. They serve results of 16
// bits: their errors are below the rounding of such a result. Numbers below the least normal f32 count as 0, as
// arguments and as results, with their sign.
//
//   function              largest error                     inf, NaN
//   unit::exp2(x)         2^-22, relative                   as std::exp2
//   unit::log2(x)         2^-22, absolute, in [1, 2]        as std::log2
//   unit::reciprocal(x)   2^-23, relative                   as 1 / x
//   unit::sqrt(x)         2^-23, relative                   as std::sqrt
//   unit::tanh(x)         2^-11, relative                   as std::tanh
//   larger_or_nan(a, b)   none                              NaN if a or b is NaN; smaller_or_nan likewise
//
// These errors are from the PTX ISA. The host's bodies, which the shim runs, are accurate: bits differ between simt and
// a GPU, as they do for expf.
//
// Errors of the formulas after rounding to H, in units in the last place of H:
//
//   formula               bf16     f16
//   sigmoid               0.51     0.52
//   exp, log, log1p       0.51     0.52
//   tanh                  0.63     0.66
//   softplus, expm1       0.52     0.60
//   erf                   0.51     0.52
//   normal_cdf            0.56     0.98, and 2e-8 absolute for |x| > 5.5
//   asin, acos, atan      0.51     0.52, and likewise sinh, cosh, asinh, acosh and atanh
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels {

namespace unit {

#if defined(__CUDA_ARCH__)

LEVIN_HD float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LEVIN_HD float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LEVIN_HD float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LEVIN_HD float sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LEVIN_HD float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

namespace detail {
LEVIN_HD float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
}  // namespace detail
LEVIN_HD float exp2(float x) { return detail::flushed(std::exp2(x)); }
LEVIN_HD float log2(float x) { return std::log2(detail::flushed(x)); }
LEVIN_HD float reciprocal(float x) { return detail::flushed(1.0f / detail::flushed(x)); }
LEVIN_HD float sqrt(float x) { return std::sqrt(detail::flushed(x)); }
LEVIN_HD float tanh(float x) { return std::tanh(x); }

#endif

}  // namespace unit

LEVIN_HD float larger_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a > b || a != a ? a : b;
#endif
}
LEVIN_HD float smaller_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a < b || a != a ? a : b;
#endif
}

// Two numbers rounded to H, the first in the lower half.
template <class H>
LEVIN_HD std::uint32_t rounded_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  if constexpr (std::is_same_v<H, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return H(low).bits | std::uint32_t(H(high).bits) << 16;
#endif
}

// What math.h computes for f32 and f64, for a result of type H, a 16-bit float.
namespace half_math {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f, kHalfPi = 1.57079633f;

LEVIN_HD float exp(float x) { return unit::exp2(x * kLog2E); }
// The same with subnormal results, which f16 rounds to 0.
template <class H>
LEVIN_HD float exp_of_any(float x) {
  if constexpr (std::is_same_v<H, f16>) return exp(x);
  const float t = x * kLog2E;
  const bool small = t < -126;
  return unit::exp2(small ? t + 64 : t) * (small ? 0x1p-64f : 1.0f);
}
LEVIN_HD float sigmoid(float x) { return unit::reciprocal(1 + unit::exp2(x * -kLog2E)); }

template <class H>
LEVIN_HD float tanh(float x) {
  if constexpr (std::is_same_v<H, bf16>) {
    return unit::tanh(x);
  } else {
    const float z = x * x, small = x * (1 + z * (-0.33319074f + z * (0.13086419f + z * -0.04138779f)));  // 2^-18
    const float large = 1 - 2 * unit::reciprocal(1 + unit::exp2(std::fabs(x) * (2 * kLog2E)));
    return std::fabs(x) < 0.6f ? small : std::copysign(large, x);
  }
}

// e^x - 1 for x <= 0.
LEVIN_HD float expm1_nonpositive(float x) {
  const float small = x * (1 + x * (0.49997747f + x * (0.16612118f + x * 0.03786211f)));  // 2^-21
  const float large = unit::exp2(x * kLog2E) - 1;
  return x > -0.25f ? small : large;
}

// log(1 + e^x).
LEVIN_HD float softplus(float x) {
  const float e = unit::exp2(std::fabs(x) * -kLog2E);
  const float small = e + e * e * (-0.49853757f + e * 0.29418772f);  // 2^-15
  const float low = e < 0.125f ? small : unit::log2(1 + e) * kLn2;
  return (x < 0 ? 0.0f : x) + low;
}

// The standard normal distribution function: log(p / (1 - p)) / x is a smooth function of x^2.
LEVIN_HD float normal_cdf(float x) {
  const float w = x * x;
  // To base 2, for |x| <= 5.5; 2^-12.1 of the result.
  const float near =
      2.300998f +
      w * (0.10632999f + w * (-6.5050216e-4f +
                              w * (-6.8717804e-5f + w * (4.1392864e-6f + w * (-9.9313922e-8f + w * 9.0476082e-10f)))));
  const float p = w > 30.25f ? 1e3f : near;  // 0 or 1, as in math::normal_cdf
  return unit::reciprocal(1 + unit::exp2(-x * p));
}
// log(1 + d) for |d| <= 1/16; 2^-22.
LEVIN_HD float log_near_one(float d) { return d * (1 + d * (-0.5f + d * (0.333333343f + d * (-0.25f + d * 0.2f)))); }
// Of subnormal numbers, too.
LEVIN_HD float log(float x) {
  const bool small = x < 0x1p-126f;
  const float far = (unit::log2(small ? x * 0x1p32f : x) - (small ? 32.0f : 0.0f)) * kLn2, d = x - 1;
  return std::fabs(d) <= 0.0625f ? log_near_one(d) : far;
}
LEVIN_HD float log1p(float x) {
  const float far = unit::log2(1 + x) * kLn2;
  return std::fabs(x) <= 0.0625f ? log_near_one(x) : far;
}

// One polynomial, whose argument and coefficients are chosen: erf(a) / a in a^2 (2^-17.6), or log2 erfc(a) in a
// (2^-17.3 of the result).
LEVIN_HD float erf(float x) {
  const float a = std::fabs(x);
  const bool near = a < 0.8f;
  const float t = near ? x * x : a;
  const float p = (near ? 1.12837338f : -0.0293725524f) +
                  t * ((near ? -0.375839591f : -1.51831388f) +
                       t * ((near ? 0.110583991f : -1.07270074f) + t * (near ? -0.0210181735f : -0.0480383188f)));
  return std::copysign(near ? a * p : 1 - unit::exp2(p), x);
}
LEVIN_HD float normal_pdf(float x) { return 0.398942280f * unit::exp2(x * x * (-0.5f * kLog2E)); }

// asin(s), z = s^2, for |s| <= 1/2; 2^-19.1.
LEVIN_HD float asin_small(float s, float z) {
  return s * (1 + z * (0.166801259f + z * (0.0718997940f + z * 0.0641073063f)));
}
LEVIN_HD float asin(float x) {
  const float a = std::fabs(x);
  const bool small = a < 0.5f;
  const float z = small ? a * a : 0.5f - 0.5f * a, p = asin_small(small ? a : unit::sqrt(z), z);
  return std::copysign(small ? p : kHalfPi - 2 * p, x);
}
LEVIN_HD float acos(float x) {
  const float a = std::fabs(x);
  const bool small = a < 0.5f;
  const float z = small ? a * a : 0.5f - 0.5f * a, p = asin_small(small ? x : unit::sqrt(z), z), rest = kHalfPi - p;
  return small ? rest : x < 0 ? rest + rest : p + p;
}
// atan(r) for r <= 1; 2^-17.6.
LEVIN_HD float atan_small(float r) {
  const float z = r * r;
  return r * (1 + z * (-0.333088994f +
                       z * (0.196182936f + z * (-0.122514568f + z * (0.0587697327f + z * -0.0139548890f)))));
}
LEVIN_HD float atan(float x) {
  const float a = std::fabs(x);
  const bool high = a > 1;
  const float p = atan_small(high ? unit::reciprocal(a) : a);
  return std::copysign(high ? kHalfPi - p : p, x);
}
// e^a / 2, which overflows later than e^a.
LEVIN_HD float half_exp(float a) { return unit::exp2(a * kLog2E - 1); }
LEVIN_HD float sinh(float x) {
  const float a = std::fabs(x), z = a * a, half = half_exp(a);
  const float small = a * (1 + z * (0.166582137f + z * 0.00861060899f));  // 2^-17.1
  return std::copysign(a < 1 ? small : half - 0.25f * unit::reciprocal(half), x);
}
LEVIN_HD float cosh(float x) {
  const float half = half_exp(std::fabs(x));
  return half + 0.25f * unit::reciprocal(half);
}
// log(x + root), whose sum may overflow.
LEVIN_HD float log_of_sum(float x, float root) { return (unit::log2(0.5f * x + 0.5f * root) + 1) * kLn2; }
LEVIN_HD float asinh(float x) {
  const float a = std::fabs(x), z = a * a;
  const float small = a * (1 + z * (-0.16660586f + z * (0.0734559372f + z * -0.0330612995f)));  // 2^-20.4
  const float large = log_of_sum(a, a > 0x1p30f ? a : unit::sqrt(z + 1));
  return std::copysign(a < 0.5f ? small : large, x);
}
// Below -1 the sum of x and the root may round to 0; that of x and x has no logarithm.
LEVIN_HD float acosh(float x) { return log_of_sum(x, x > -1 && x <= 0x1p30f ? unit::sqrt((x - 1) * (x + 1)) : x); }
LEVIN_HD float atanh(float x) {
  const float a = std::fabs(x), z = a * a;
  const float small = a * (1 + z * (0.333406389f + z * (0.196936503f + z * 0.178417489f)));  // 2^-20.9
  const float large = (unit::log2(1 + a) - unit::log2(1 - a)) * (0.5f * kLn2);
  return std::copysign(a < 0.375f ? small : large, x);
}

}  // namespace half_math

}  // namespace levin::kernels
