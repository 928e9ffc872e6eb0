#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/ops/pointwise/pointwise_case_test.h"
#include "levin/autograd.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
const double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
using Wide = long double;

double sum_of_exponentials(double a, double b, double base) {
  if (a == b) return a + std::log(2.0) / std::log(base);
  return std::max(a, b) + std::log1p(std::pow(base, -std::abs(a - b))) / std::log(base);
}
double share_of_sum(double a, double b, double base) { return a == b ? 0.5 : 1 / (1 + std::pow(base, b - a)); }
// NaN where the length is beyond the range of a dtype, or among its smallest numbers, whose digits are few.
double share_of_length(double a, double b) {
  const double x = std::abs(a), y = std::abs(b);
  if ((x > 4e4 && y > 4e4) || (x > 0 && y > 0 && x < 6.2e-5 && y < 6.2e-5)) return kNan;
  return x == 0 && y == 0 ? 0 : a / std::hypot(a, b);
}

// Newton's method on erfc, which is exact where x is near 1.
double inverse_of_erf(double x) {
  const double a = std::abs(x);
  if (!(a < 1)) return a == 1 ? x * kInf : kNan;
  if (a < 1e-8) return x * std::sqrt(std::acos(-1.0)) / 2;
  const Wide slope = 2 / std::sqrt(std::acos(Wide{-1}));
  const Wide l = std::log((1 - Wide{a}) * (1 + Wide{a})), k = Wide{4.33} + l / 2;
  Wide y = std::sqrt(std::sqrt(k * k - l / Wide{0.147}) - k);
  for (int i = 0; i < 5; ++i) {
    const Wide miss = a > 0.5 ? (1 - Wide{a}) - std::erfc(y) : std::erf(y) - a;
    y -= miss / (slope * std::exp(-y * y));
  }
  return std::copysign(static_cast<double>(y), x);
}

// The sum of (x + k)^-s over k >= 0: 300 terms and the rest by an integral with its first corrections.
double zeta_sum(int s, double x) {
  if (x <= 0 && x == std::floor(x)) return x == -kInf ? kNan : kInf;
  if (!(std::abs(x) < 1e4)) { return x > 0 ? std::pow(x, 1 - s) / (s - 1) * (1 + (s - 1) / (2 * x)) : kNan; }
  Wide sum = 0, a = x;
  const int terms = 300 + (x < 0 ? static_cast<int>(-x) : 0);
  for (int k = 0; k < terms; ++k, a += 1) sum += std::pow(a, Wide(-s));
  const Wide power = std::pow(a, Wide(-s));
  return static_cast<double>(
      sum + power * (a / (s - 1) + Wide{0.5} + s / (12 * a) - s * (s + Wide{1}) * (s + 2) / (720 * a * a * a)));
}
// The derivative of lgamma, in the same way.
double psi(double x) {
  if (x == 0) return -1 / x;
  if (std::isnan(x) || x == kInf) return x;
  if (x < 0 && (x == std::floor(x) || x < -1e4)) return kNan;
  Wide sum = 0, a = x;
  if (x < 1e4) {
    for (; a < 300; a += 1) sum -= 1 / a;
  }
  return static_cast<double>(sum + std::log(a) - 1 / (2 * a) - 1 / (12 * a * a) + 1 / (120 * a * a * a * a));
}

}  // namespace

#define PAIRS(name, value, slope_a, slope_b, ...)                                                                \
  LEVIN_OP_CASE(name) {                                                                                          \
    return binary_case(#name, &levin::name,                                                                      \
                       {[](double a, double b) -> double { return value; },                                      \
                        []([[maybe_unused]] double a, [[maybe_unused]] double b) -> double { return slope_a; },  \
                        []([[maybe_unused]] double a, [[maybe_unused]] double b) -> double { return slope_b; }}, \
                       kFloatDTypes, __VA_ARGS__);                                                               \
  }
PAIRS(logaddexp, sum_of_exponentials(a, b, std::exp(1.0)), share_of_sum(a, b, std::exp(1.0)),
      share_of_sum(b, a, std::exp(1.0)), {.kinks = {1, 1.5}, .floor = 1}, {.kinks = {1, -90}})
PAIRS(logaddexp2, sum_of_exponentials(a, b, 2), share_of_sum(a, b, 2), share_of_sum(b, a, 2),
      {.kinks = {1, 1.5}, .floor = 1}, {.kinks = {1, -90}})
PAIRS(hypot, std::hypot(a, b), share_of_length(a, b), share_of_length(b, a), {.kinks = {3, 1e30}},
      {.kinks = {4, 1e-30}})
PAIRS(xlogy, a == 0 && !std::isnan(b) ? 0 : a * std::log(b), a == 0 && b <= 0 ? 0 : std::log(b), a == 0 ? 0 : a / b,
      {.kinks = {1}}, {.low = 0.3, .high = 3, .kinks = {1, -1}})
#undef PAIRS

LEVIN_OP_CASE(erfinv) {
  return unary_case({"erfinv"}, &levin::erfinv,
                    {inverse_of_erf,
                     [](double x) {
                       const double y = inverse_of_erf(x);
                       return std::sqrt(std::acos(-1.0)) / 2 * std::exp(y * y);
                     }},
                    kFloatDTypes, {.low = -0.9, .high = 0.9, .kinks = {0.85, -0.85, 1, -1, 1.5, 1e-20}});
}
// Near their zeros these functions are differences of numbers up to 3, polygamma(2, x) up to 17.
LEVIN_OP_CASE(lgamma) {
  return unary_case({"lgamma"}, &levin::lgamma, {[](double x) { return std::lgamma(x); }, psi}, kFloatDTypes,
                    {.low = 0.3, .high = 6, .kinks = {1, 2, 8, -0.5, -1, -2.5, 30}, .floor = 1});
}
LEVIN_OP_CASE(digamma) {
  return unary_case({"digamma"}, &levin::digamma, {psi, [](double x) { return zeta_sum(2, x); }}, kFloatDTypes,
                    {.low = 0.3, .high = 6, .kinks = {1, 2, -0.5, -1, -2.5, 30}, .floor = 3});
}
LEVIN_OP_CASE(polygamma) {
  OpCase c = unary_case({"polygamma"}, [](const Tensor& x) { return polygamma(2, x); },
                        {[](double x) { return -2 * zeta_sum(3, x); }, [](double x) { return 6 * zeta_sum(4, x); }},
                        kFloatDTypes, {.low = 0.5, .high = 6, .kinks = {1, 2, -0.5, -1, -2.5, 30}, .floor = 17});
  for (OpSample& s : c.samples) {
    if (s.inputs[0].shape.numel() > 1000) s.inputs[0].shape = Shape{70, 10};  // the reference is slow
  }
  c.errors.push_back({"a negative n", [] { (void)polygamma(-1, ones({1}, cpu)); }, throws<ConfigError>,
                      "polygamma: n is -1, expected 0 to 170"});
  return c;
}

TEST_CASE("polygamma of any order has the values that series and reflection give") {
  const double pi = std::acos(-1.0);
  const auto at = [](std::int64_t n, double x) { return polygamma(n, tensor({x}, cpu)).item(); };
  CHECK(at(0, 1) == doctest::Approx(-0.57721566490153286).epsilon(1e-15));
  CHECK(at(1, 1) == doctest::Approx(pi * pi / 6).epsilon(1e-14));
  CHECK(at(1, -0.5) == doctest::Approx(pi * pi / 2 + 4).epsilon(1e-14));
  CHECK(at(3, 1) == doctest::Approx(std::pow(pi, 4) / 15).epsilon(1e-14));
  CHECK(at(3, 0.5) == doctest::Approx(std::pow(pi, 4)).epsilon(1e-14));
  CHECK(at(2, -1e6 + 0.25) == doctest::Approx(-4 * std::pow(pi, 3)).epsilon(1e-8));
  CHECK(at(1, -1e300) == kInf);
  CHECK(at(20, 1e10) == doctest::Approx(-std::tgamma(20.0) * 1e-200).epsilon(1e-8));
  CHECK(at(1, kInf) == 0);
}

TEST_CASE("polygamma of the highest order has derivatives, although 171! is infinite in f64") {
  const auto slope = [](double at) {
    Tensor x = tensor({at}, cpu);
    x.requires_grad_();
    backward(polygamma(170, x));
    return x.grad().item();
  };
  // 171! (2^-172 + 3^-172), of which log(171!) is lgamma(172).
  CHECK(std::log(slope(2)) == doctest::Approx(std::lgamma(172.0) - 172 * std::log(2.0)).epsilon(1e-12));
  CHECK(slope(0.5) == kInf);  // 171! 2^172
  CHECK_THROWS_AS((void)polygamma(171, ones({1}, cpu)), ConfigError);
}

TEST_CASE("erfinv near 1 has the digits of its argument, and its derivative those that y^2 leaves") {
  for (const double value : {0.99, -0.999, 1 - 1e-9, 1 - 1e-12}) {
    CAPTURE(value);
    Tensor x = tensor({value}, cpu);
    x.requires_grad_();
    const Tensor y = levin::erfinv(x);
    const double want = inverse_of_erf(value), eps = 0x1p-52;
    CHECK(std::abs(y.item() - want) <= 4 * eps * std::abs(want));
    backward(y);
    // An error of y counts 2 y^2 times in e^(y^2).
    const double slope = std::sqrt(std::acos(-1.0)) / 2 * std::exp(want * want);
    CHECK(std::abs(x.grad().item() - slope) <= (8 + 8 * want * want) * eps * slope);
  }
}

TEST_CASE("erfinv of f32 is within 2.5 units in the last place of f64's, next to 0 and to 1 too") {
  std::vector<float> values{1e-45f, 1e-39f};
  for (double x = 1e-30; x < 0.1; x *= 1.13) values.push_back(float(x));
  for (int i = 1; i < 30'000; ++i) values.push_back(float(i) / 30'000);
  for (int i = 1; i < 10'000; ++i) values.push_back(1 - float(i) * 0x1p-24f);
  const Tensor x = from_data(values, {static_cast<std::int64_t>(values.size())}, cpu);
  const Tensor y = levin::erfinv(x), want = levin::erfinv(x.to(DType::f64));
  const std::vector<float> got = y.to_vector<float>();
  const std::vector<double> exact = want.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double unit = std::ldexp(1.0, std::max(std::ilogb(exact[i]), -126) - 23);
    worst = std::max(worst, std::abs(double(got[i]) - exact[i]) / unit);
  }
  CHECK(worst <= 2.5);
  CHECK(equal(levin::erfinv(-x), -y));
}

TEST_CASE("hypot and logaddexp neither overflow on the way nor lose an infinity") {
  const Tensor a = tensor({3e38f, 3e-38f, -2e30f}, cpu), b = tensor({1e38f, 4e-38f, 0.f}, cpu);
  const std::vector<float> h = hypot(a, b).to_vector<float>();
  CHECK(h[0] == doctest::Approx(std::sqrt(10.0) * 1e38));
  CHECK(h[1] == doctest::Approx(5e-38));
  CHECK(h[2] == 2e30f);
  CHECK(hypot(tensor({1e308}, cpu), tensor({1e308}, cpu)).item() == doctest::Approx(std::sqrt(2.0) * 1e308));
  CHECK(hypot(tensor({kInf}, cpu), tensor({kNan}, cpu)).item() == kInf);
  CHECK(logaddexp(tensor({-kInf}, cpu), tensor({-kInf}, cpu)).item() == -kInf);
  CHECK(logaddexp2(tensor({1000.0}, cpu), tensor({1000.0}, cpu)).item() == 1001);
  CHECK(std::isnan(logaddexp(tensor({kNan}, cpu), tensor({kInf}, cpu)).item()));
}

}  // namespace levin::testing
