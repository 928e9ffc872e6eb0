// The formulas of kernels/device/hardware_math.cuh at every 16-bit number. The bodies of the host are accurate, so this
// is the error of the polynomials and of the rounding; the unit's own error of a GPU is below 2^-21, apart from tanh of
// bf16.
#include "kernels/device/hardware_math.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace levin::kernels {
namespace {

template <class H>
inline constexpr int kDigits = std::is_same_v<H, bf16> ? 7 : 10;  // of the fraction
template <class H>
inline constexpr int kLeastExponent = std::is_same_v<H, bf16> ? -126 : -14;

// The largest error of f, rounded to H, at the numbers of H in [low, high], in units in the last place. f flushes
// results below the least normal f32.
template <class H, class F, class R>
double worst(const F& f, const R& reference, double low, double high) {
  double most = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    H h;
    h.bits = static_cast<std::uint16_t>(bits);
    const float x = float(h);
    if (!(x >= low && x <= high)) continue;
    const double want = reference(double(x)), got = double(float(H(f(x))));
    if (std::abs(want) < 0x1p-126 && got == 0) continue;
    const int exponent = want == 0 ? kLeastExponent<H> : std::max(std::ilogb(want), kLeastExponent<H>);
    most = std::max(most, std::abs(got - want) / std::ldexp(1.0, exponent - kDigits<H>));
  }
  return most;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double normal_cdf(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
double normal_pdf(double x) { return std::exp(-0.5 * x * x) / std::sqrt(8 * std::atan(1.0)); }

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE_TEMPLATE("formulas for 16-bit results are within the errors of their table at every number", H, f16, bf16) {
  constexpr bool kWide = std::is_same_v<H, f16>;
  CHECK(worst<H>([](float x) { return half_math::sigmoid(x); }, sigmoid, -1e30, 1e30) <= (kWide ? 0.52 : 0.51));
  CHECK(worst<H>([](float x) { return half_math::exp(x); }, [](double x) { return std::exp(x); }, -1e30, 11) <=
        (kWide ? 0.52 : 0.51));
  CHECK(worst<H>([](float x) { return half_math::exp_of_any<H>(x); }, [](double x) { return std::exp(x); }, -1e30,
                 kWide ? 11 : 88.5) <= (kWide ? 0.52 : 0.51));
  if (!kWide) CHECK(half_math::exp_of_any<H>(-90.0f) > 0);
  CHECK(worst<H>([](float x) { return half_math::tanh<H>(x); }, [](double x) { return std::tanh(x); }, -1e30, 1e30) <=
        (kWide ? 0.66 : 0.63));
  CHECK(worst<H>([](float x) { return half_math::softplus(x); }, softplus, -1e30, 1e30) <= (kWide ? 0.60 : 0.52));
  CHECK(worst<H>([](float x) { return half_math::expm1_nonpositive(x); }, [](double x) { return std::expm1(x); }, -1e30,
                 0) <= (kWide ? 0.60 : 0.52));
  CHECK(worst<H>([](float x) { return half_math::normal_cdf(x); }, normal_cdf, -5.5, 5.5) <= (kWide ? 0.98 : 0.56));
  CHECK(worst<H>([](float x) { return half_math::log(x); }, [](double x) { return std::log(x); }, 0x1p-149, 1e38) <=
        (kWide ? 0.52 : 0.51));
  CHECK(worst<H>([](float x) { return half_math::log1p(x); }, [](double x) { return std::log1p(x); }, -0.9999, 1e38) <=
        (kWide ? 0.52 : 0.51));
  CHECK(worst<H>([](float x) { return half_math::erf(x); }, [](double x) { return std::erf(x); }, -1e30, 1e30) <=
        (kWide ? 0.52 : 0.51));
  CHECK(worst<H>([](float x) { return half_math::normal_pdf(x); }, normal_pdf, -5.5, 5.5) <= (kWide ? 0.52 : 0.51));
  const double most = kWide ? 0.52 : 0.51;
  CHECK(worst<H>([](float x) { return half_math::asin(x); }, [](double x) { return std::asin(x); }, -1, 1) <= most);
  CHECK(worst<H>([](float x) { return half_math::acos(x); }, [](double x) { return std::acos(x); }, -1, 1) <= most);
  CHECK(worst<H>([](float x) { return half_math::atan(x); }, [](double x) { return std::atan(x); }, -4e38, 4e38) <=
        most);
  const double high = kWide ? 11.78 : 89.4;  // the largest whose result is no infinity
  CHECK(worst<H>([](float x) { return half_math::sinh(x); }, [](double x) { return std::sinh(x); }, -high, high) <=
        most);
  CHECK(worst<H>([](float x) { return half_math::cosh(x); }, [](double x) { return std::cosh(x); }, -high, high) <=
        most);
  CHECK(worst<H>([](float x) { return half_math::asinh(x); }, [](double x) { return std::asinh(x); }, -4e38, 4e38) <=
        most);
  CHECK(worst<H>([](float x) { return half_math::acosh(x); }, [](double x) { return std::acosh(x); }, 1, 4e38) <= most);
  CHECK(worst<H>([](float x) { return half_math::atanh(x); }, [](double x) { return std::atanh(x); }, -0.9999,
                 0.9999) <= most);
}

TEST_CASE("formulas for 16-bit results keep NaN, and have their limits at the infinities") {
  for (const float y : {half_math::sigmoid(kNan),    half_math::exp(kNan),        half_math::tanh<f16>(kNan),
                        half_math::tanh<bf16>(kNan), half_math::softplus(kNan),   half_math::expm1_nonpositive(kNan),
                        half_math::normal_cdf(kNan), half_math::normal_pdf(kNan), half_math::log(kNan),
                        half_math::log(-1.0f),       half_math::log1p(kNan),      half_math::log1p(-2.0f),
                        half_math::erf(kNan),        half_math::asin(kNan),       half_math::asin(1.5f),
                        half_math::acos(kNan),       half_math::acos(-1.5f),      half_math::atan(kNan),
                        half_math::sinh(kNan),       half_math::cosh(kNan),       half_math::asinh(kNan),
                        half_math::acosh(kNan),      half_math::acosh(0.99f),     half_math::acosh(-2.0f),
                        half_math::acosh(-65504.0f), half_math::acosh(-1e-40f),   half_math::acosh(-1e30f),
                        half_math::acosh(-kInf),     half_math::atanh(kNan),      half_math::atanh(1.5f),
                        half_math::atanh(kInf)})
    CHECK(std::isnan(y));
  CHECK(half_math::sigmoid(kInf) == 1);
  CHECK(half_math::sigmoid(-kInf) == 0);
  CHECK(half_math::tanh<f16>(-kInf) == -1);
  CHECK(half_math::tanh<bf16>(kInf) == 1);
  CHECK(std::signbit(half_math::tanh<f16>(-0.0f)));
  CHECK(std::signbit(half_math::expm1_nonpositive(-0.0f)));
  CHECK(half_math::log(kInf) == kInf);
  CHECK(half_math::log(-0.0f) == -kInf);
  CHECK(half_math::log1p(kInf) == kInf);
  CHECK(half_math::log1p(-1.0f) == -kInf);
  CHECK(std::signbit(half_math::log1p(-0.0f)));
  CHECK(half_math::erf(-kInf) == -1);
  CHECK(std::signbit(half_math::erf(-0.0f)));
  for (const float y : {half_math::asin(-0.0f), half_math::atan(-0.0f), half_math::sinh(-0.0f), half_math::asinh(-0.0f),
                        half_math::atanh(-0.0f)})
    CHECK((y == 0 && std::signbit(y)));
  CHECK(half_math::acos(1.0f) == 0);
  CHECK(half_math::acosh(1.0f) == 0);
  for (const float y : {half_math::sinh(kInf), half_math::cosh(-kInf), half_math::asinh(kInf), half_math::acosh(kInf),
                        half_math::atanh(1.0f)})
    CHECK(y == kInf);
  CHECK(half_math::atan(-kInf) == -half_math::kHalfPi);
  CHECK(half_math::softplus(-kInf) == 0);
  CHECK(half_math::softplus(kInf) == kInf);
  CHECK(half_math::expm1_nonpositive(-kInf) == -1);
  CHECK(half_math::normal_cdf(-kInf) == 0);
  CHECK(half_math::normal_cdf(-6.0f) == 0);
  CHECK(half_math::normal_cdf(kInf) == 1);
  CHECK(std::isnan(larger_or_nan(kNan, 1)));
  CHECK(std::isnan(smaller_or_nan(1, kNan)));
  CHECK(larger_or_nan(1, 2) == 2);
}

}  // namespace levin::kernels
