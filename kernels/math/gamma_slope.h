// The derivative of a gamma variable in its concentration.
#pragma once

#include "kernels/math/special.h"

namespace levin::kernels::math {

namespace detail {

// digamma(a) - log(a) for a > 0, without the rounding errors of the two.
LEVIN_HD double digamma_minus_log(double a) {
  if (a < 10) return digamma_positive(a) - log(a);
  const double z = 1 / (a * a);
  return -0.5 / a - z * poly(z, 1. / 12, -1. / 120, 1. / 252, -1. / 240, 1. / 132, -691. / 32760, 1. / 12);
}

// The integral of f from 0 to 1 by Gauss and Legendre's rule, whose abscissas lie on [-1, 1] in pairs.
template <int kNodes>
LEVIN_HD double gauss_legendre(const auto& f) {
  static_assert(kNodes == 10 || kNodes == 24);
  double sum = 0;
  if constexpr (kNodes == 10) {
    const double at[5] = {0.1488743389816312109, 0.4333953941292471908, 0.6794095682990244062, 0.8650633666889845107,
                          0.9739065285171717201};
    const double weight[5] = {0.2955242247147528702, 0.2692667193099963551, 0.219086362515982044, 0.1494513491505805931,
                              0.06667134430868813759};
    for (int k = 0; k < 5; ++k) sum += weight[k] * (f(0.5 - 0.5 * at[k]) + f(0.5 + 0.5 * at[k]));
  } else {
    const double at[12] = {0.06405689286260562609, 0.1911188674736163092, 0.3150426796961633744, 0.4337935076260451385,
                           0.5454214713888395357,  0.6480936519369755693, 0.7401241915785543642, 0.820001985973902922,
                           0.8864155270044010342,  0.9382745520027327585, 0.9747285559713094982, 0.9951872199970213602};
    const double weight[12] = {0.127938195346752157,   0.1258374563468282961,  0.1216704729278033912,
                               0.1155056680537256014,  0.1074442701159656348,  0.09761865210411388827,
                               0.08619016153195327592, 0.07334648141108030573, 0.05929858491543678075,
                               0.04427743881741980617, 0.02853138862893366318, 0.01234122979998719955};
    for (int k = 0; k < 12; ++k) sum += weight[k] * (f(0.5 - 0.5 * at[k]) + f(0.5 + 0.5 * at[k]));
  }
  return 0.5 * sum;
}

}  // namespace detail

// Note [The derivative of a gamma variable]
// A sample x of the gamma distribution with concentration a and rate 1 moves with a as its quantile does (implicit
// reparametrization: M. Figurnov, S. Mohamed, A. Mnih, "Implicit reparameterization gradients", NeurIPS 2018):
//   dx/da = -(dP(a, x) / da) / p(a, x),  P(a, x) = integral of p(a, t) over 0 < t < x,  p(a, t) = t^(a-1) e^-t / G(a).
// Since d log p(a, t) / da = log t - psi(a), t = x e^-s and, for the integral from x on, t = x e^s give
//   d log x / da = integral over s > 0 of (psi(a) - log x + s) exp(-(a s + x (e^-s - 1)))       where x <= a
//                = integral over s > 0 of (log x - psi(a) + s) exp(-(x (e^s - 1) - a s))        where x > a:
// positive but for the first factor near s = 0, of one scale, which a rule of Gauss and Legendre integrates to its end.
// Where x is small, or a is and x <= a, the series of P(a, x) in x needs fewer operations:
//   d log x / da = sum over n >= 0 of (psi(a + n + 1) - log x) x^n / (a (a + 1) ... (a + n)).

// d log x / da for a > 0, x >= 0 and its logarithm, which is finite where x underflows. For T = double the relative
// error is 1e-11 for a from 1e-3 to 1e5 and x that occur with a probability above 1e-9, for float 2e-6.
template <class T>
LEVIN_HD double gamma_log_slope(double a, double x, double log_x) {
  constexpr bool is_float = sizeof(T) == 4;
  constexpr int kNodes = is_float ? 10 : 24;
  constexpr double kEnd = is_float ? 15 : 27;  // the integrand ends at e^-kEnd of where it begins
  if (!(a > 0 && a < detail::Format<double>::inf && x < detail::Format<double>::inf))
    return detail::Format<double>::nan;
  if (x <= 2 || (x <= a && a <= 30)) {
    double r = 1 / (a + 1), term = 1 / a, above = detail::digamma_positive(a + 1) - log_x, sum = term * above;
    for (int n = 2; n < 200; ++n) {
      term *= x * r;
      above += r;
      const double more = term * above;
      sum += more;
      if (x < a + n && detail::abs(more) < (is_float ? 1e-8 : 1e-17) * sum) break;
      r = 1 / (a + n);
    }
    return sum;
  }
  const double apart = x - a, log_ratio = x < 2 * a && a < 2 * x ? log1p(apart / a) : log(x) - log(a);
  const double first = log_ratio - detail::digamma_minus_log(a), c = kEnd / x;  // first: log x - psi(a)
  if (apart >= 0) {
    const double by_x = log1p(c + std::sqrt(2 * c)), by_a = kEnd / apart, end = by_x < by_a ? by_x : by_a;
    return end * detail::gauss_legendre<kNodes>([=](double u) {
             const double s = end * u;
             return (first + s) * exp_nonpositive(-(x * (expm1(s) - s) + apart * s));
           });
  }
  const double by_x = 0.5 * (c + std::sqrt(c * (c + 8))), by_a = -kEnd / apart, end = by_x < by_a ? by_x : by_a;
  return end * detail::gauss_legendre<kNodes>([=](double u) {
           const double s = end * u;
           return (s - first) * exp_nonpositive(-(x * (expm1(-s) + s) - apart * s));
         });
}

}  // namespace levin::kernels::math
