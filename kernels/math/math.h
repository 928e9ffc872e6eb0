// Elementary functions of float and double for the inside of loops: no branches, no tables, no calls, so that a plain
// loop over them becomes vector code at every x86 level, from SSE2 on. Inf, NaN and signed zeros are as in <cmath>, and
// subnormal results are not flushed. Largest errors in units in the last place (math_test.cpp sweeps all exponents):
//
//   exp 1   log 1   pow 1 (of float; double is std::pow, a call)   expm1 log1p tanh erf rsqrt softplus 1.6 sigmoid 2.3
//   fmod_near 0, of float where quotient_is_near
//   erfc 4   tanh_times_sigmoid 5   sin cos 1.6 for |x| <= kSineNear; for the rest there is kernels/math/far_sine.h
//   normal_cdf, normal_pdf: see there
//
// The polynomials are minimax fits (Remez exchange in 45 digits, coefficients then rounded); the comment beside each
// gives the largest relative error it causes in the function's result, rounding of the coefficients included.
//
// Note [Fused multiply-add]
// The code says a * b + c and the compiler fuses it where the level has FMA: an explicit fma would be a library call at
// the base level. So results may differ between levels in the last bit, but both stay within the bounds above. Numbers
// that must have the same bits everywhere (kernels/random/random.cuh) do not use this header.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/executor/hd.h"

namespace levin::kernels::math {

namespace detail {

// Constants as members: device code may not call std::numeric_limits.
template <class F>
struct Limits {
  static constexpr F inf = std::numeric_limits<F>::infinity(), nan = std::numeric_limits<F>::quiet_NaN();
  static constexpr F smallest = std::numeric_limits<F>::min();
};
template <class F>
struct Format;
template <>
struct Format<float> : Limits<float> {
  using Bits = uint32_t;
  static constexpr int mantissa = 23;
  static constexpr Bits exponent = 0x7f800000u;
  // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits of the sum.
  static constexpr float round = 0x1.8p23f;
  static constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;  // 16 bits: times an exponent is exact
};
template <>
struct Format<double> : Limits<double> {
  using Bits = uint64_t;
  static constexpr int mantissa = 52;
  static constexpr Bits exponent = 0x7ff0000000000000u;
  static constexpr double round = 0x1.8p52;
  static constexpr double ln2_hi = 0x1.62e42fefa38p-1, ln2_lo = 0x1.ef35793c7673p-45;  // 42 bits and the rest
};

template <class F>
LEVIN_HD auto bits(F x) {
  return kernels::bit_cast<typename Format<F>::Bits>(x);
}
template <class F>
LEVIN_HD F from_bits(typename Format<F>::Bits b) {
  return kernels::bit_cast<F>(b);
}
template <class F>
LEVIN_HD F abs(F x) {
  return from_bits<F>(bits(x) & (~typename Format<F>::Bits{0} >> 1));
}
// |x| with the sign of s; x >= 0.
template <class F>
LEVIN_HD F with_sign(F x, F s) {
  return from_bits<F>(bits(x) | (bits(s) & ~(~typename Format<F>::Bits{0} >> 1)));
}
// min and max against a constant; NaN stays NaN.
template <class F>
LEVIN_HD F at_most(F x, F hi) {
  return hi < x ? hi : x;
}
template <class F>
LEVIN_HD F at_least(F x, F lo) {
  return lo > x ? lo : x;
}

// c0 + c1 x + c2 x^2 + ... by Horner's rule.
template <class F>
LEVIN_HD F poly(F, F c0) {
  return c0;
}
template <class F, class... C>
LEVIN_HD F poly(F x, F c0, C... c) {
  return c0 + x * poly(x, c...);
}

// (exp(r) - 1 - r) / r^2 for |r| <= 0.348.
template <class F>
LEVIN_HD F exp_tail(F r) {
  if constexpr (std::is_same_v<F, float>)  // 2^-28.2
    return poly(r, 0.49999994f, 0.166665137f, 0.0416680612f, 0.00836951192f, 0.00138424675f);
  else  // 2^-57.1
    return poly(r, 0x1.000000000000ap-1, 0x1.55555555554f7p-3, 0x1.55555555506b6p-5, 0x1.1111111128455p-7,
                0x1.6c16c18494cb3p-10, 0x1.a01a01284d52bp-13, 0x1.a01998da7afdbp-16, 0x1.71df28020571fp-19,
                0x1.28ae9a90ccedbp-22, 0x1.ad7e2e809f5f2p-26);
}

inline constexpr double kLog2E = 0x1.71547652b82fep+0;  // 1 / ln 2

// t = x / ln 2 + kExpMagic rounds to an integer: n = t - kExpMagic, and the low bits of t hold n + twice the bias.
template <class F>
inline constexpr F kExpMagic = Format<F>::round + F(2 * (Format<F>::exponent >> (Format<F>::mantissa + 1)));
template <class F>
LEVIN_HD F exp_remainder(F x, F n) {
  return (x - n * Format<F>::ln2_hi) - n * Format<F>::ln2_lo;
}
// 2^n exp(r). The power is two factors, so that n = 128 and subnormal results come out right.
template <class F>
LEVIN_HD F exp_of_parts(F t, F r) {
  using Fmt = Format<F>;
  const F q = r + r * r * exp_tail(r);
  const auto first = (bits(t) << (Fmt::mantissa - 1)) & Fmt::exponent;
  const auto second = (bits(t) << Fmt::mantissa) - first;
  const F s = from_bits<F>(first);
  return (s + s * q) * from_bits<F>(second);
}

// log(1 + f) + e ln 2 for sqrt(1/2) - 1 <= f <= sqrt(2) - 1.
template <class F>
LEVIN_HD F log_of_parts(F f, F e) {
  using Fmt = Format<F>;
  if constexpr (std::is_same_v<F, float>) {  // log(1 + f) = f - f^2 / 2 + f^3 P(f), 2^-28.2
    const F p = poly(f, 0.333333135f, -0.250000089f, 0.200021192f, -0.166679963f, 0.142195538f, -0.124055848f,
                     0.118881561f, -0.116756931f, 0.067467086f);
    const F f2 = f * f;
    const F low = e * Fmt::ln2_lo + f2 * (f * p);
    return e * Fmt::ln2_hi + (f + (low - F(0.5) * f2));
  } else {  // log(1 + f) = 2 atanh(s) = f - s (f - R(s^2)), s = f / (2 + f), 2^-58.1
    const F s = f / (2 + f), z = s * s;
    const F r = z * poly(z, 0x1.5555555555593p-1, 0x1.999999997fb2ap-2, 0x1.2492494218162p-2, 0x1.c71c51e7973d0p-3,
                         0x1.746646405f433p-3, 0x1.39a0f2fff1fb7p-3, 0x1.2f0da2fb6e0dcp-3);
    return e * Fmt::ln2_hi + (f - (s * (f - r) - e * Fmt::ln2_lo));
  }
}

// x = m 2^e with m in [sqrt(1/2), sqrt(2)), x > 0 and normal. `raw` is e + 2^k in the low bits, for scaling.
template <class F>
struct Split {
  F m, e;
  typename Format<F>::Bits raw;
};
template <class F>
LEVIN_HD Split<F> split(F x) {
  using Fmt = Format<F>;
  using Bits = typename Fmt::Bits;
  constexpr Bits root = sizeof(F) == 4 ? Bits(0x3f3504f3u) : Bits(0x3fe6a09e667f3bcdu);       // sqrt(1/2)
  constexpr Bits offset = Bits((Fmt::exponent >> (Fmt::mantissa + 1)) + 1) << Fmt::mantissa;  // keeps e + 128 >= 0
  constexpr F whole = F(Bits(1) << Fmt::mantissa);
  const Bits raw = (bits(x) - root + offset) >> Fmt::mantissa;
  const F e = from_bits<F>(bits(whole) | raw) - (whole + F(offset >> Fmt::mantissa));
  return {from_bits<F>(bits(x) - (raw << Fmt::mantissa) + offset), e, raw};
}

// What log does with zero, negative numbers, inf and NaN.
template <class F>
LEVIN_HD F log_edges(F x, F y) {
  y = x < Format<F>::inf ? y : x;
  const F edge = x == 0 ? -Format<F>::inf : Format<F>::nan;
  return x > 0 ? y : edge;
}

}  // namespace detail

// e^x.
template <class F>
LEVIN_HD F exp(F x) {
  const F t = x * F(detail::kLog2E) + detail::kExpMagic<F>;
  F y = detail::exp_of_parts(t, detail::exp_remainder(x, t - detail::kExpMagic<F>));
  // Out of range t is meaningless. Clamping x first is not faster: the compiler moves constants past the arithmetic.
  y = x > F(sizeof(F) == 4 ? 89 : 710) ? detail::Format<F>::inf : y;
  return x < F(sizeof(F) == 4 ? -104 : -746) ? F(0) : y;
}

namespace detail {
// e^x where that is a normal number.
template <class F>
LEVIN_HD F exp_inside(F x) {
  using Fmt = Format<F>;
  constexpr F magic = Fmt::round + F(Fmt::exponent >> (Fmt::mantissa + 1));
  const F t = x * F(kLog2E) + magic;  // the low bits of t hold the biased exponent of 2^n
  const F r = exp_remainder(x, t - magic);
  const F q = r + r * r * exp_tail(r);
  const F s = from_bits<F>(bits(t) << Fmt::mantissa);
  return s + s * q;
}
}  // namespace detail

// e^x for x <= 0 (and a little above), a quarter cheaper: results below the smallest normal number become 0. For
// softmax.
template <class F>
LEVIN_HD F exp_nonpositive(F x) {
  return x < F(sizeof(F) == 4 ? -87.33 : -708.39) ? F(0) : detail::exp_inside(x);
}

// e^x - 1, accurate near zero.
template <class F>
LEVIN_HD F expm1(F x) {
  using Fmt = detail::Format<F>;
  constexpr F magic = Fmt::round + F((Fmt::exponent >> (Fmt::mantissa + 1)) - 1);
  const F t = x * F(detail::kLog2E) + magic;  // the low bits of t hold the biased exponent of 2^(n - 1)
  const F r = detail::exp_remainder(x, t - magic);
  const F s = detail::from_bits<F>(detail::bits(t) << Fmt::mantissa);
  const F half = ((s - F(0.5)) + s * r) + s * (r * r * detail::exp_tail(r));
  F y = half + half;
  y = x > F(sizeof(F) == 4 ? 89 : 710) ? detail::Format<F>::inf : y;
  y = x < F(sizeof(F) == 4 ? -18 : -38) ? F(-1) : y;
  return detail::abs(x) < F(0x1p-60) ? x : y;
}

// Natural logarithm.
template <class F>
LEVIN_HD F log(F x) {
  constexpr bool is_float = sizeof(F) == 4;
  const bool subnormal = x < detail::Format<F>::smallest;
  const auto p = detail::split(subnormal ? x * F(is_float ? 0x1p25 : 0x1p54) : x);
  const F e = p.e - (subnormal ? F(is_float ? 25 : 54) : F(0));
  return detail::log_edges(x, detail::log_of_parts(p.m - 1, e));
}

namespace detail {
// log(1 + x) for x > -1 and 1 + x finite.
template <class F>
LEVIN_HD F log1p_inside(F x) {
  using Fmt = Format<F>;
  const F u = 1 + x, v = u - 1;
  const F c = (1 - (u - v)) + (x - v);  // 1 + x = u + c exactly
  const auto p = split(u);
  constexpr auto twice_bias = typename Fmt::Bits(2) * (Fmt::exponent >> (Fmt::mantissa + 1)) + 1;
  // 2^-e; there is no c to scale, and in the end no such power, for large x.
  const F scale = x > F(0x1p60) ? F(0) : from_bits<F>((twice_bias - p.raw) << Fmt::mantissa);
  return log_of_parts((p.m - 1) + c * scale, p.e);
}
}  // namespace detail

// log(1 + x), accurate near zero.
template <class F>
LEVIN_HD F log1p(F x) {
  const F y = detail::log_edges(1 + x, detail::log1p_inside(x));
  return detail::abs(x) < F(0x1p-60) ? x : y;
}

// 1 / (1 + e^-x).
template <class F>
LEVIN_HD F sigmoid(F x) {
  const F e = exp(-detail::abs(x));
  return (x < 0 ? e : F(1)) / (1 + e);
}

// log(1 + e^x), without overflow.
template <class F>
LEVIN_HD F softplus(F x) {
  const F e = exp(-detail::abs(x)), above = x < 0 ? F(0) : x;
  if constexpr (sizeof(F) == 4) {  // log(1 + f), or that of 2 (1 + f), for -1/4 <= f <= 1/2, which is exact
    using Fmt = detail::Format<F>;
    const bool half = e > 0.5f;
    const F f = half ? 0.5f * e - 0.5f : e, f2 = f * f;
    // log(1 + f) = f - f^2 / 2 + f^3 P(f), 2^-27.6
    const F p = detail::poly(f, 0.333333403f, -0.250001639f, 0.199996054f, -0.166552961f, 0.142762378f, -0.127277762f,
                             0.11700666f, -0.09116216f, 0.0376731567f);
    const F low = (half ? Fmt::ln2_lo : F(0)) + f2 * (f * p);
    return above + ((half ? Fmt::ln2_hi : F(0)) + (f + (low - 0.5f * f2)));
  } else {
    return above + detail::log1p_inside(e);
  }
}

namespace detail {
// tanh x for |x| < 0.6: x + x^3 P(x^2).
template <class F>
LEVIN_HD F tanh_small(F x) {
  const F z = x * x;
  F p;
  if constexpr (sizeof(F) == 4)  // 2^-28.4
    p = poly(z, -0.333332986f, 0.133319363f, -0.05378462f, 0.0207977742f, -0.0058962456f);
  else  // 2^-58.7
    p = poly(z, -0x1.5555555555554p-2, 0x1.1111111110ef0p-3, -0x1.ba1ba1b9f81e0p-5, 0x1.664f487975baep-6,
             -0x1.226e33f0e93cdp-7, 0x1.d6d38933eb69dp-9, -0x1.7d9eaff482915p-10, 0x1.3521e10a4faf0p-11,
             -0x1.f21b3b62190f2p-13, 0x1.83f40e77b8823p-14, -0x1.059a1e59398b6p-15, 0x1.b4a9dbe748b50p-18);
  return x + x * (z * p);
}
// From here on tanh is 1.
template <class F>
inline constexpr F kTanhEnd = sizeof(F) == 4 ? 10 : 20;
}  // namespace detail

template <class F>
LEVIN_HD F tanh(F x) {
  const F a = detail::abs(x), large = 1 - 2 / (detail::exp_inside(2 * detail::at_most(a, detail::kTanhEnd<F>)) + 1);
  return detail::with_sign(a < F(0.6) ? detail::tanh_small(a) : large, x);
}

// tanh(x) sigmoid(y) by one division.
template <class F>
LEVIN_HD F tanh_times_sigmoid(F x, F y) {
  const F a = detail::abs(x), e = exp(-detail::abs(y));
  // tanh a = (1 - u) / (1 + u). Numbers above 1 in place of u would lose a bit in both sums.
  const F u = detail::exp_inside(-2 * detail::at_most(a, detail::kTanhEnd<F>));
  const bool near = a < F(0.6);
  const F over = (near ? detail::tanh_small(a) : 1 - u) * (y < 0 ? e : F(1));
  return detail::with_sign(over / ((near ? F(1) : 1 + u) * (1 + e)), x);
}

namespace detail {
// erf(a) / a - 1 with z = a^2, a <= 1.
template <class F>
LEVIN_HD F erf_small(F z) {
  if constexpr (sizeof(F) == 4)  // 2^-29.3
    return poly(z, 0.128379166f, -0.37612626f, 0.112835765f, -0.0268531796f, 0.00518672913f, -0.000799319299f,
                7.78903632e-05f);
  else  // 2^-56.3
    return poly(z, 0x1.06eba8214db69p-3, -0x1.812746b0379e7p-2, 0x1.ce2f21a042bddp-4, -0x1.b82ce3128899bp-6,
                0x1.565bcd0e64ab6p-8, -0x1.c02db3fed8f36p-11, 0x1.f9a326bfb6a87p-14, -0x1.f4d255e13c124p-17,
                0x1.b9e64d07150d2p-20, -0x1.5f6d6b49700cep-23, 0x1.fc4116973c200p-27, -0x1.4e55ca15ddc98p-30,
                0x1.7ecbe87b3a461p-34, -0x1.2928cbcd16f3fp-38);
}

// erfc(a), a >= 0.48: exp(-a^2) G(q) / (1 + 2 a), q = (a - k) / (a + k): G is nearly constant over the whole half-line.
template <class F>
LEVIN_HD F erfc_large(F a) {
  constexpr bool is_float = sizeof(F) == 4;
  using Bits = typename Format<F>::Bits;
  a = at_most(a, F(is_float ? 10.3 : 28));  // erfc is zero there
  constexpr F k = is_float ? 2 : 3;
  const F q = (a - k) / (a + k);
  F g;
  if constexpr (is_float)  // 2^-27.1
    g = poly(q, 1.27697837f, -0.0927638113f, -0.166030332f, 0.164050639f, -0.0542213656f, -0.00802511908f,
             0.00873283204f, 0.00121939811f, -0.00148659642f, -0.000315971411f, 0.000234001665f);
  else  // 2^-54.4
    g = poly(q, 0x1.40c522d7e4987p+0, -0x1.15c084bb9e8f3p-3, -0x1.85a15c58aa5c1p-5, 0x1.098366a5b46d7p-3,
             -0x1.e88b803a49524p-4, 0x1.17ca2877f0ad0p-4, -0x1.8574c40bbe70ap-6, 0x1.4b884e44d8573p-9,
             0x1.ef1bdd3648b9ep-10, -0x1.98db512bd0fd4p-11, -0x1.b912695deab76p-14, 0x1.065a38d51005cp-13,
             0x1.4c205a797b75bp-18, -0x1.513b61ef3a330p-16, -0x1.87c27e7aaa608p-21, 0x1.d204a9fd8877ap-19,
             0x1.79e6b9b5dc82ep-22, -0x1.4a58009ffd6c0p-21, -0x1.1e530259842e5p-23, 0x1.aa79fd006d60fp-24,
             0x1.1fadaab373396p-25, -0x1.742198a51d7ddp-27, -0x1.18e3cd14f9848p-28);
  // a^2 = square + rest: the first product is exact, and exp keeps the second, which rounding a^2 would lose.
  const F top = from_bits<F>(bits(a) & ~((Bits(1) << (is_float ? 12 : 27)) - 1));
  const F square = top * top, rest = (a - top) * (a + top);
  const F t = kExpMagic<F> - (square + rest) * F(kLog2E);
  const F e = exp_of_parts(t, exp_remainder(-square, t - kExpMagic<F>) - rest);
  return e * (g / (1 + 2 * a));
}
}  // namespace detail

// 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x.
template <class F>
LEVIN_HD F erf(F x) {
  const F a = detail::abs(x);
  if constexpr (sizeof(F) == 4) {
    // One polynomial, whose argument and coefficients are chosen: erf(a) / a - 1 in a^2 for a < 1 (erf_small), else
    // log2 erfc(a) in a (2^-27.1 of the result), up to where the result is 1.
    const bool near = a < 1;
    const F t = near ? x * x : detail::at_most(a, F(4));
    const auto either = [=](F small, F large) { return near ? small : large; };
    const F p = detail::poly(t, either(0.128379166f, -0.000510340673f), either(-0.37612626f, -1.62597489f),
                             either(0.112835765f, -0.920765221f), either(-0.0268531796f, -0.148651332f),
                             either(0.00518672913f, 0.0314583406f), either(-0.000799319299f, -0.0042409366f),
                             either(7.78903632e-05f, 0.000267724681f));
    constexpr F magic = detail::Format<F>::round + F(127);
    const F n = p + magic, f = p - (n - magic);  // the low bits of n hold the biased exponent of erfc(a)
    // 2^f, 2^-22.6, of which the result has at most 2^-25.3
    const F power =
        detail::poly(f, 1.00000012f, 0.693146944f, 0.240221202f, 0.0555071309f, 0.00967554189f, 0.00132764759f);
    const F large = 1 - detail::from_bits<F>(detail::bits(n) << 23) * power;
    return detail::with_sign(near ? a + a * p : large, x);
  } else {
    const F small = a + a * detail::erf_small(x * x);
    const F large = 1 - detail::erfc_large(a);
    return detail::with_sign(a < 1 ? small : large, x);
  }
}

// 1 - erf(x), accurate where it is small.
template <class F>
LEVIN_HD F erfc(F x) {
  const F a = detail::abs(x);
  const F p = detail::erf_small(x * x);
  const F small = (F(0.5) - x) + (F(0.5) - x * p);
  const F large = detail::erfc_large(a);
  return a < F(0.5) ? small : (x < 0 ? 2 - large : large);
}

// The standard normal distribution function, for GELU. float: absolute error 2e-7 (one rational function: GELU is
// twice as fast so, and PyTorch's form 0.5 * (1 + erf) is no better); double: that of erfc, relative.
template <class F>
LEVIN_HD F normal_cdf(F x) {
  if constexpr (sizeof(F) == 4) {  // 1/2 + x P(x^2) / Q(x^2) for |x| <= 5.5, absolute error 2^-26.7
    const F w = x * x;
    // Scaled so that Q's first coefficient is 1: an addition instead of a multiplication.
    const F p = detail::poly(w, 338062.156f, 29128.0352f, 3988.74194f, 147.292068f, 5.38573503f, 0.0187641811f);
    const F q = ((((w + 63.6288414f) * w + 1620.89661f) * w + 24522.3867f) * w + 214245.078f) * w + 847396.312f;
    const F y = x * p / q;
    return F(0.5) + (detail::abs(x) > F(5.5) ? detail::with_sign(F(0.5), x) : y);
  } else {
    return F(0.5) * erfc(x * F(-0x1.6a09e667f3bcdp-1));
  }
}

// exp(-x^2 / 2) / sqrt(2 pi).
template <class F>
LEVIN_HD F normal_pdf(F x) {
  return F(0x1.9884533d43651p-2) * exp(F(-0.5) * x * x);
}

namespace detail {
// sin(rest + tail + quadrant pi / 2), |rest| <= pi / 4 and a little.
template <class F>
LEVIN_HD F sine_of_parts(double rest, [[maybe_unused]] double tail, typename Format<F>::Bits quadrant) {
  const F r = F(rest), z = r * r;
  F s, c;
  if constexpr (sizeof(F) == 4) {
    s = r + (r * z) * poly(z, -0.166666552f, 0.0083321901f, -0.000195184082f);                  // 2^-28.0
    c = (1 - F(0.5) * z) + (z * z) * poly(z, 0.0416666456f, -0.00138873013f, 2.44306793e-05f);  // 2^-33.1
  } else {
    s = r + ((r * z) * poly(z, -0x1.5555555555549p-3, 0x1.111111110f842p-7, -0x1.a01a019c0a2c3p-13,
                            0x1.71de3570fe13bp-19, -0x1.ae5e60c43b0d2p-26, 0x1.5d915ddcf6600p-33) +
             F(tail));  // 2^-56.8
    const F half = F(0.5) * z, w = 1 - half;
    c = w + (((1 - w) - half) - r * F(tail) +
             (z * z) * poly(z, 0x1.5555555555553p-5, -0x1.6c16c16c16118p-10, 0x1.a01a019e20ebbp-16,
                            -0x1.27e4f900478c3p-22, 0x1.1eea864612c12p-29,
                            -0x1.8ff804b87c649p-37));  // 2^-61.3
  }
  const F y = (quadrant & 1) != 0 ? c : s;
  return from_bits<F>(bits(y) ^ ((quadrant & 2) << (sizeof(F) * 8 - 2)));
}
// sin(x + quadrants pi / 2).
template <class F, int quadrants>
LEVIN_HD F sine(F x) {
  // The multiple of pi / 2 is taken away in double, from parts short enough that the leading products are exact.
  constexpr double round = Format<double>::round;
  const double t = x * 0x1.45f306dc9c883p-1 + round;
  const double n = t - round;
  double rest, tail = 0;
  if constexpr (sizeof(F) == 4) {
    rest = x - n * 0x1.921fb54p+0;
    rest = rest - n * 0x1.10b4611a62633p-30;
  } else {
    const double a = x - n * 0x1.921fb544p+0, b = n * 0x1.0b4611a6p-34;
    const double c = a - b, low = ((a - c) - b) - n * 0x1.3198a2e037073p-69;  // a - b = c + (a - c - b) exactly
    rest = c + low;
    tail = (c - rest) + low;
  }
  // The low bits of t hold n.
  return sine_of_parts<F>(rest, tail, typename Format<F>::Bits(bits(t)) + quadrants);
}

}  // namespace detail

// Up to here sin and cos are right: the multiples of pi / 2 in x are taken away in arithmetic of double.
template <class F>
inline constexpr F kSineNear = sizeof(F) == 4 ? F(0x1p26) : F(0x1p20);
template <class F>
LEVIN_HD F sin(F x) {
  return x == 0 ? x : detail::sine<F, 0>(x);
}
template <class F>
LEVIN_HD F cos(F x) {
  return detail::sine<F, 1>(x);
}

// 1 / sqrt(x).
template <class F>
LEVIN_HD F rsqrt(F x) {
  return 1 / std::sqrt(x);
}

namespace detail {
// log a with a relative error of 2^-44.9, for normal a > 0.
LEVIN_HD double log_for_power(double a) {
  const auto p = split(a);
  const double f = p.m - 1, s = f / (2 + f), z = s * s;  // log(m) = 2 atanh(s)
  const double q = z * poly(z, 0x1.555555561e06ap-2, 0x1.999996a9aec2bp-3, 0x1.249411d57cdddp-3, 0x1.c62b18e0a448bp-4,
                            0x1.911579a35ef5fp-4);
  return p.e * 0x1.62e42fefa39efp-1 + (s + s) * (1 + q);
}
// e^high in double, for a result of float: beyond +-128 that is 0 or inf. A NaN gives some number.
LEVIN_HD double exp_for_power(double high) {
  const double x = high > 128 ? 128 : high < -128 ? -128 : high;
  constexpr double magic = Format<double>::round + 1023;  // the low bits of t hold the exponent of 2^n
  const double t = x * kLog2E + magic, r = x - (t - magic) * 0x1.62e42fefa39efp-1;
  const double tail = poly(r, 0x1.0000000b9129bp-1, 0x1.5555555a78ed4p-3, 0x1.5554e9063586ep-5, 0x1.1110e0f238322p-7,
                           0x1.6d43246b523b4p-10, 0x1.a124f19fe89acp-13);  // of exp, 2^-32.1
  const double scale = from_bits<double>(bits(t) << Format<double>::mantissa);
  return scale + scale * (r + r * r * tail);
}
}  // namespace detail

// x^y for x > 0, both finite.
LEVIN_HD float pow_positive(float x, float y) {
  return float(detail::exp_for_power(double(y) * detail::log_for_power(double(x))));
}
// Whether pow_positive does not hold.
LEVIN_HD bool is_far_from_pow_positive(float x, float y) {
  constexpr float inf = detail::Format<float>::inf;
  return !(x > 0 && x < inf && detail::abs(y) < inf);
}

// x^y. float goes through double; double is std::pow, a call.
template <class F>
LEVIN_HD F pow(F x, F y) {
  if constexpr (sizeof(F) == 4) {
    constexpr double inf = detail::Format<double>::inf, nan = detail::Format<double>::nan;
    const double a = detail::abs(double(x)), b = double(y), size = detail::abs(b);
    const double t = size + 0x1p52;  // rounds to an integer, its parity in the last bit
    const bool whole = t - 0x1p52 == size || size >= 0x1p53;
    const bool odd = (detail::bits(t) & 1) != 0;
    const double high = b * detail::log_edges(a, detail::log_for_power(a));
    double r = high != high ? high : detail::exp_for_power(high);
    r = (a == 1 && size == inf) ? 1.0 : r;
    const bool negative = detail::bits(x) >> 31 != 0;
    r = x < 0 && a < inf && !whole ? nan : r;
    r = negative && whole && odd ? -r : r;
    r = (b == 0 || x == 1) ? 1.0 : r;
    return F(r);
  } else {
    return std::pow(x, y);
  }
}

// a - b trunc(a / b) with the sign of a, exactly, for the quotients up to 2^28 of finite numbers: in double neither
// their product with b nor the difference rounds, and a quotient just below an integer does not round up to it.
LEVIN_HD bool quotient_is_near(float a, float b) {
  return detail::abs(a / b) < 0x1p28f && detail::abs(b) < detail::Format<float>::inf;
}
LEVIN_HD float fmod_near(float a, float b) {
  const double x = double(a), y = double(b);
  return detail::with_sign(detail::abs(float(x - std::trunc(x / y) * y)), a);
}

}  // namespace levin::kernels::math
