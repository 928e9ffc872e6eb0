// Inverse trigonometric functions, hyperbolic functions and their inverses, of float and double, made and tested as
// math.h's are. Largest errors in units in the last place:
//
//   atan2 0.51 of float, 3 of double   asin 2.4   acos atan sinh cosh asinh acosh atanh 2
#pragma once

#include <cmath>

#include "kernels/math/math.h"

namespace levin::kernels::math {

namespace detail {

// pi / 2 as the nearest number and the rest.
template <class F>
inline constexpr F kHalfPi = sizeof(F) == 4 ? F(0x1.921fb6p+0f) : F(0x1.921fb54442d18p+0);
template <class F>
inline constexpr F kHalfPiRest = sizeof(F) == 4 ? F(-0x1.777a5cp-25f) : F(0x1.1a62633145c07p-54);
template <class F>
inline constexpr F kLn2 = F(0x1.62e42fefa39efp-1);

// asin(s) = s + s z P(z) with z = s^2, |s| <= 1/2.
template <class F>
LEVIN_HD F asin_small(F s, F z) {
  if constexpr (sizeof(F) == 4)  // 2^-29.7
    return s + s * (z * poly(z, 0.16666661f, 0.075004645f, 0.04452318f, 0.03176342f, 0.01458602f, 0.03733035f));
  else  // 2^-58.6
    return s + s * (z * poly(z, 0x1.555555555555dp-3, 0x1.3333333330affp-4, 0x1.6db6db7078e9cp-5, 0x1.f1c71b18cc628p-6,
                             0x1.6e8bd20cfe419p-6, 0x1.1c4ac0050d4f5p-6, 0x1.ca0dc494ca9b4p-7, 0x1.760c15fbbcd97p-7,
                             0x1.5e7d14c941ccdp-7, 0x1.067bc6a29a99cp-8, 0x1.5865e36ea917bp-6, -0x1.48ea9ff9f4b57p-6,
                             0x1.06c7a2dc3d35ep-5));
}

// e^a / 2 for a >= 0, which overflows later than e^a.
template <class F>
LEVIN_HD F half_exp(F a) {
  const F t = a * F(kLog2E) + kExpMagic<F>;
  const F y = exp_of_parts(t - 1, exp_remainder(a, t - kExpMagic<F>));
  return a > F(sizeof(F) == 4 ? 90 : 711) ? Format<F>::inf : y;
}

}  // namespace detail

// asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2)) above 1/2.
template <class F>
LEVIN_HD F asin(F x) {
  const F a = detail::abs(x);
  const bool small = a < F(0.5);
  const F z = small ? a * a : F(0.5) * (1 - a), p = detail::asin_small(small ? a : std::sqrt(z), z);
  const F large = detail::kHalfPi<F> - ((p + p) - detail::kHalfPiRest<F>);
  return detail::with_sign(small ? p : large, x);
}

template <class F>
LEVIN_HD F acos(F x) {
  const F a = detail::abs(x);
  const bool small = a < F(0.5);
  const F z = small ? a * a : F(0.5) * (1 - a), p = detail::asin_small(small ? x : std::sqrt(z), z);
  const F rest = detail::kHalfPi<F> - (p - detail::kHalfPiRest<F>);
  const F large = x < 0 ? rest + rest : p + p;
  return small ? rest : large;
}

// atan(a) = pi / 4 + atan((a - 1) / (a + 1)) = pi / 2 - atan(1 / a).
template <class F>
LEVIN_HD F atan(F x) {
  const F a = detail::abs(x);
  const bool middle = a > F(0.5), high = a > F(2.5);
  const F above = high ? F(-1) : a - 1, below = high ? a : a + 1;
  const F r = middle ? above / below : a, z = r * r;
  F p;                           // atan(r) = r + r z P(z) for |r| <= 1/2
  if constexpr (sizeof(F) == 4)  // 2^-29.0
    p = detail::poly(z, -0.33333328f, 0.19999534f, -0.14272779f, 0.10946001f, -0.08000862f, 0.03893639f);
  else  // 2^-57.0
    p = detail::poly(z, -0x1.5555555555554p-2, 0x1.99999999994dcp-3, -0x1.249249246753bp-3, 0x1.c71c71b169645p-4,
                     -0x1.745d1431b9f44p-4, 0x1.3b136b068922ap-4, -0x1.110ce30df5963p-4, 0x1.e1899b92e5588p-5,
                     -0x1.ac963810380a4p-5, 0x1.787ac1ae2ffc6p-5, -0x1.31416ec500ffcp-5, 0x1.86bd3a5a260e4p-6,
                     -0x1.15ec75845f713p-7);
  const F y = r + r * (z * p);
  const F quarters = high ? F(1) : F(0.5);
  const F large = quarters * detail::kHalfPi<F> + (quarters * detail::kHalfPiRest<F> + y);
  return detail::with_sign(middle ? large : y, x);
}

// The angle of the point (x, y), from -pi to pi, by that to the nearest axis. float goes through double.
template <class F>
LEVIN_HD F atan2(F y_, F x_) {
  constexpr double inf = detail::Format<double>::inf, half_pi = detail::kHalfPi<double>;
  constexpr double rest = detail::kHalfPiRest<double>;
  const double y = double(y_), x = double(x_), a = detail::abs(y), b = detail::abs(x);
  const bool steep = a > b;
  const double low = steep ? b : a, high = steep ? a : b;
  double near;
  if constexpr (sizeof(F) == 4) {
    // atan(low / high) = pi / 4 + atan((low - high) / (low + high)), by the one whose tangent is below tan(pi / 8).
    const bool middle = low > high * 0x1.a827999fcef32p-2 || low == inf;
    const double above = middle ? low - high : low, below = middle ? low + high : high;
    const double r = above == 0 || high == inf ? 0.0 : above / below, z = r * r;  // inf - inf and inf / inf: an axis
    const double p = detail::poly(z, -0x1.5555554efed9ap-2, 0x1.99999217e2401p-3, -0x1.2490c7185b312p-3,
                                  0x1.c6d278609b862p-4, -0x1.7087857e92e54p-4, 0x1.1e70f13757f67p-4,
                                  -0x1.36f2bc22e9debp-5);  // 2^-40.2
    near = (middle ? half_pi / 2 : 0.0) + (r + r * (z * p));
  } else {
    near = atan(high == 0 ? 0.0 : low == inf ? 1.0 : low / high);
  }
  const double up = steep ? half_pi - (near - rest) : near;
  const double angle = detail::bits(x) >> 63 != 0 ? 2 * half_pi - (up - 2 * rest) : up;
  return F(y != y || x != x ? y + x : detail::with_sign(angle, y));
}

template <class F>
LEVIN_HD F sinh(F x) {
  const F a = detail::abs(x), z = a * a;
  F p;                           // sinh(a) = a + a z P(z) for a <= 1
  if constexpr (sizeof(F) == 4)  // 2^-28.0
    p = detail::poly(z, 0.16666667f, 0.008333333f, 0.00019841295f, 2.755214e-06f, 2.5526713e-08f);
  else  // 2^-56.8
    p = detail::poly(z, 0x1.5555555555555p-3, 0x1.1111111111111p-7, 0x1.a01a01a019fd1p-13, 0x1.71de3a55730b7p-19,
                     0x1.ae64567508132p-26, 0x1.61246a7584c91p-33, 0x1.ae75bcc070d54p-41, 0x1.9a666c7b73732p-49);
  const F half = detail::half_exp(a);
  return detail::with_sign(a < 1 ? a + a * (z * p) : half - F(0.25) / half, x);
}

template <class F>
LEVIN_HD F cosh(F x) {
  const F half = detail::half_exp(detail::abs(x));
  return half + F(0.25) / half;
}

// asinh(a) = log(a + sqrt(a^2 + 1)); for a beyond 2^60, log(2 a).
template <class F>
LEVIN_HD F asinh(F x) {
  const F a = detail::abs(x);
  const bool big = a > F(0x1p60);
  const F b = big ? F(0) : a, square = b * b;
  const F u = a + square / (1 + std::sqrt(1 + square));
  F y = detail::log1p_inside(u) + (big ? detail::kLn2<F> : F(0));
  y = a < detail::Format<F>::inf ? y : a;
  return a < F(0x1p-60) ? x : detail::with_sign(y, x);
}

// acosh(x) = log(x + sqrt(x^2 - 1)); for x beyond 2^60, log(2 x). NaN below 1.
template <class F>
LEVIN_HD F acosh(F x) {
  const bool big = x > F(0x1p60);
  const F t = x - 1, b = big ? F(0) : t;
  F y = detail::log1p_inside(t + std::sqrt(b * (b + 2))) + (big ? detail::kLn2<F> : F(0));
  y = x < detail::Format<F>::inf ? y : x;
  return x < 1 ? detail::Format<F>::nan : y;
}

// atanh(a) = log(1 + 2 a / (1 - a)) / 2; infinite at 1, NaN beyond.
template <class F>
LEVIN_HD F atanh(F x) {
  const F a = detail::abs(x), twice = a + a, q = (a < F(0.5) ? twice * a : twice) / (1 - a);
  const F y = F(0.5) * detail::log1p_inside(a < F(0.5) ? twice + q : q);
  const F edge = a == 1 ? detail::Format<F>::inf : detail::Format<F>::nan;
  return a < F(0x1p-60) ? x : detail::with_sign(a < 1 ? y : edge, x);
}

}  // namespace levin::kernels::math
