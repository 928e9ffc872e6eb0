// The inverse of erf, and the gamma function's logarithm with its derivatives, which are computed in double for float.
// Errors are a few units in the last place of the result or, next to a zero of the function, of 1.
#pragma once

#include <cmath>

#include "kernels/math/math.h"

namespace levin::kernels::math {

// erf(y) = x: infinite at -1 and 1, NaN beyond. By the quantile of the normal distribution of M. Wichura, "Algorithm AS
// 241: the percentage points of the normal distribution", 1988: one rational function of degree 7 for each of three
// ranges, to 10^-16.
LEVIN_HD double erfinv(double x) {
  const double a = detail::abs(x), q = 0.5 * a, near = 0.180625 - q * q;
  const double tail = std::sqrt(-log(0.5 - q)), middle = tail - 1.6, far = tail - 5;
  const double p0 =
      detail::poly(near, 3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                   1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4,
                   2.5090809287301226727e3) *
      q /
      detail::poly(near, 1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
                   2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3);
  const double p1 = detail::poly(middle, 1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
                                 3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
                                 2.27238449892691845833e-2, 7.74545014278341407640e-4) /
                    detail::poly(middle, 1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
                                 6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
                                 5.47593808499534494600e-4, 1.05075007164441684324e-9);
  const double p2 = detail::poly(far, 6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
                                 2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                 2.71155556874348757815e-5, 2.01033439929228813265e-7) /
                    detail::poly(far, 1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
                                 1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5,
                                 1.42151175831644588870e-7, 2.04426310338993978564e-15);
  const double inside = q <= 0.425 ? p0 : tail <= 5 ? p1 : p2;
  const double edge = a == 1 ? detail::Format<double>::inf : detail::Format<double>::nan;
  return detail::with_sign(a < 1 ? inside * 0x1.6a09e667f3bcdp-1 : edge, x);
}
// Of float, y / x is a function of w = -log(1 - x^2), or of its root: a polynomial of degree 9 for each of two ranges
// (minimax fits, 2^-27.4 and 2^-26.5), as M. Giles, "Approximating the erfinv function", 2011. To 2.5 units.
LEVIN_HD float erfinv(float x) {
  const float a = detail::abs(x), w = -log((1 - a) * (1 + a)), root = std::sqrt(w);
  const float near =
      detail::poly(w - 1.5f, 1.25206384f, 0.250362414f, 0.000879775408f, -0.00209222207f, 0.000177638896f,
                   2.3193469e-05f, -5.33695801e-06f, -3.60989704e-08f, 1.02331736e-07f, -8.78919295e-09f);
  const float far = detail::poly(root - 3, 2.8329768f, 1.00167495f, 0.00944520054f, -0.00763697659f, 0.00568778467f,
                                 -0.00359893093f, 0.0014828765f, -5.38212936e-05f, -0.000307748867f, 0.000113655472f);
  const float edge = a == 1 ? detail::Format<float>::inf : detail::Format<float>::nan;
  return detail::with_sign(a < 1 ? a * (w <= 5 ? near : far) : edge, x);
}

// log |Gamma(x)|.
LEVIN_HD double lgamma(double x) {
#if defined(__CUDA_ARCH__)
  return ::lgamma(x);
#else
  int sign;  // lgamma would write it to a variable that threads share
  return ::lgamma_r(x, &sign);
#endif
}
// The same for 0 < x < inf, without a branch: by Stirling's series at x + 8, or at x where that is large.
LEVIN_HD float lgamma_positive(float x) {
  const double a = double(x);
  const bool small = a < 8;
  const double z = small ? a + 8 : a, r = 1 / z;
  const double q = a * (a + 7), below = q * (q + 6) * (q + 10) * (q + 12);  // a (a + 1) ... (a + 7)
  const double series =
      detail::poly(r * r, 1. / 12, -1. / 360, 1. / 1260, -1. / 1680, 1. / 1188, -691. / 360360, 1. / 156);
  constexpr double half_log_two_pi = 0.918938533204672741780329736406;
  return float(((z - 0.5) * log(z) - z) + (half_log_two_pi + r * series) - log(small ? below : 1));
}
// Whether lgamma_positive and digamma_positive are not for x.
LEVIN_HD bool is_far_from_positive(float x) { return !(x > 0 && x < detail::Format<float>::inf); }
LEVIN_HD float lgamma(float x) {
#if defined(__CUDA_ARCH__)
  return float(lgamma(double(x)));
#else
  return is_far_from_positive(x) ? float(lgamma(double(x))) : lgamma_positive(x);
#endif
}

namespace detail {

// psi(x) for x > 0: by psi(x) = psi(x + 1) - 1 / x to an argument where the asymptotic series serves.
LEVIN_HD double digamma_positive(double x) {
  double below = 0;
  for (; x < 10; x += 1) below += 1 / x;
  const double z = 1 / (x * x);
  const double series = z * poly(z, 1. / 12, -1. / 120, 1. / 252, -1. / 240, 1. / 132, -691. / 32760, 1. / 12);
  return (log(x) - 0.5 / x) - series - below;
}

// x^-s for s >= 0.
LEVIN_HD double inverse_power(double x, int s) {
  double power = 1, r = 1 / x;
  for (; s > 0; s >>= 1) {
    if ((s & 1) != 0) power *= r;
    r *= r;
  }
  return power;
}

// The sum of (a + k)^-s over k >= 0, for a > 0 and an integer s >= 2: terms as they are, and the rest by Euler and
// Maclaurin's formula.
LEVIN_HD double zeta_positive(int s, double a) {
  double sum = 0;
  for (; a < 10 + s; a += 1) sum += inverse_power(a, s);
  // B(2 j) / (2 j)!
  const double weights[] = {1. / 12,           -1. / 720,
                            1. / 30240,        -1. / 1209600,
                            1. / 47900160,     -691. / 1307674368000.,
                            1. / 74724249600., -3617. / 10670622842880000.};
  const double above = inverse_power(a, s - 1), power = above / a;
  double rest = 0, factor = power * s / a;
  for (int j = 0; j < 8; ++j) {
    rest += weights[j] * factor;
    factor *= (double(s) + (2 * j + 1)) * (double(s) + (2 * j + 2)) / (a * a);
  }
  return sum + (above / (s - 1) + (0.5 * power + rest));
}

}  // namespace detail

// The derivative of lgamma: -inf at 0, inf at -0, NaN at other integers below.
LEVIN_HD double digamma(double x) {
  if (x == 0) return -1 / x;
  if (x > 0 || x != x) return x < detail::Format<double>::inf ? detail::digamma_positive(x) : x;
  const double part = x - std::nearbyint(x);
  if (part == 0) return detail::Format<double>::nan;
  constexpr double pi = 0x1.921fb54442d18p+1;
  return detail::digamma_positive(1 - x) - pi / std::tan(pi * part);
}
LEVIN_HD float digamma(float x) { return float(digamma(double(x))); }
// The same for 0 < x < inf, without a branch: at x + 8, or at x where that is large. 1 / (x + i) + 1 / (x + 7 - i) =
// (2 x + 7) / (x (x + 7) + i (7 - i)).
LEVIN_HD float digamma_positive(float x) {
  const double a = double(x);
  const bool small = a < 8;
  const double z = small ? a + 8 : a, r = 1 / z, w = r * r;
  const double q = a * (a + 7), outer = q * (q + 6), inner = (q + 10) * (q + 12);
  const double below = (2 * a + 7) * ((2 * q + 6) * inner + (2 * q + 22) * outer) / (outer * inner);
  const double series = w * detail::poly(w, 1. / 12, -1. / 120, 1. / 252, -1. / 240, 1. / 132, -691. / 32760, 1. / 12);
  return float((log(z) - 0.5 * r) - series - (small ? below : 0));
}

// The sum of (x + k)^-s over k >= 0 for an integer s >= 2. The sum over all integers k, which depends on x's fraction
// alone, gives the one for negative x. Infinite at 0 and negative integers.
LEVIN_HD double hurwitz_zeta(int s, double x) {
  if (x > 0 || x != x) return detail::zeta_positive(s, x);
  const double part = x - std::nearbyint(x);
  if (part == 0) return detail::Format<double>::inf;
  const double below = part > 0 ? 1 - part : -part;  // to the next integer
  const double mirrored = detail::zeta_positive(s, below) - detail::zeta_positive(s, 1 - x);
  return detail::zeta_positive(s, part > 0 ? part : 1 + part) + ((s & 1) != 0 ? -mirrored : mirrored);
}

}  // namespace levin::kernels::math
