#ifndef LEVIN_LEVEL
#include "kernels/math/math.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"

#include "kernels/executor/cpu.h"
#include "kernels/math/far_sine.h"
#include "kernels/math/trigonometry.h"

namespace levin::kernels {
namespace {
#define LEVIN_MATH_FUNCTIONS(X) \
  X(exp)                        \
  X(expm1)                      \
  X(log)                        \
  X(log1p)                      \
  X(tanh)                       \
  X(sigmoid)                    \
  X(softplus) X(erf) X(erfc) X(sin) X(cos) X(rsqrt) X(normal_cdf) X(exp_nonpositive) X(square_root_power) X(gated_tanh)
#define LEVIN_TRIGONOMETRY(X) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh) X(acosh) X(atanh)

namespace fn {
using namespace math;
template <class F>
LEVIN_HD F square_root_power(F x) {
  return math::pow(x, F(0.5));
}
template <class F>
LEVIN_HD F gated_tanh(F x) {
  return tanh_times_sigmoid(x, -x);
}
}  // namespace fn
}  // namespace
}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/math/math_test.cpp"
#include "kernels/executor/each_level.h"

namespace levin::kernels {
namespace cpu {
#define LEVIN_PICK_MATH(f) LEVIN_PICK(map_##f)
LEVIN_MATH_FUNCTIONS(LEVIN_PICK_MATH)
LEVIN_TRIGONOMETRY(LEVIN_PICK_MATH)
LEVIN_PICK(map_pow)
LEVIN_PICK(map_pow_positive)
}  // namespace cpu

namespace {

using test::levels;
// The reference is computed in the next wider type.
template <class F>
using Wide = std::conditional_t<sizeof(F) == 4, double, long double>;

template <class R>
R ref_exp(R x) {
  return std::exp(x);
}
template <class R>
R ref_expm1(R x) {
  return std::expm1(x);
}
template <class R>
R ref_log(R x) {
  return std::log(x);
}
template <class R>
R ref_log1p(R x) {
  return std::log1p(x);
}
template <class R>
R ref_tanh(R x) {
  return std::tanh(x);
}
template <class R>
R ref_erf(R x) {
  return std::erf(x);
}
template <class R>
R ref_erfc(R x) {
  return std::erfc(x);
}
template <class R>
R ref_sin(R x) {
  return std::sin(x);
}
template <class R>
R ref_cos(R x) {
  return std::cos(x);
}
template <class R>
R ref_rsqrt(R x) {
  return 1 / std::sqrt(x);
}
template <class R>
R ref_square_root_power(R x) {
  return std::pow(x, R(0.5));
}
template <class R>
R ref_sigmoid(R x) {
  return x > 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
template <class R>
R ref_gated_tanh(R x) {
  return std::tanh(x) * ref_sigmoid(-x);
}
template <class R>
R ref_softplus(R x) {
  return std::fmax(x, R(0)) + std::log1p(std::exp(-std::fabs(x)));
}

template <class R>
R ref_asin(R x) {
  return std::asin(x);
}
template <class R>
R ref_acos(R x) {
  return std::acos(x);
}
template <class R>
R ref_atan(R x) {
  return std::atan(x);
}
template <class R>
R ref_sinh(R x) {
  return std::sinh(x);
}
template <class R>
R ref_cosh(R x) {
  return std::cosh(x);
}
template <class R>
R ref_asinh(R x) {
  return std::asinh(x);
}
template <class R>
R ref_acosh(R x) {
  return std::acosh(x);
}
template <class R>
R ref_atanh(R x) {
  return std::atanh(x);
}

// |y - r| in units of the last place of r in F, subnormal numbers included; wrong special values count as 1e30.
template <class F>
double ulps(F y, Wide<F> r) {
  if (std::isnan(r) || std::isnan(y)) return std::isnan(r) && std::isnan(y) ? 0 : 1e30;
  if (std::isinf(r)) return y == F(r) ? 0 : 1e30;
  constexpr int digits = std::numeric_limits<F>::digits;
  constexpr int smallest = std::numeric_limits<F>::min_exponent - digits;
  int e = smallest;
  if (r != 0) std::frexp(r, &e);
  if (std::isinf(y)) return std::fabs(r) >= Wide<F>(std::numeric_limits<F>::max()) ? 1 : 1e30;
  if (y == 0 && r == 0) return std::signbit(y) == std::signbit(r) ? 0 : 1e30;
  return double(std::fabs(std::ldexp(Wide<F>(y) - r, -std::max(e - digits, smallest))));
}

// Numbers of every exponent and sign, the edges, and a dense sweep of the range where most functions bend.
template <class F>
std::vector<F> sweep(double limit) {
  std::vector<F> x;
  auto add = [&](F v) {
    if (!(std::fabs(v) > F(limit))) x.push_back(v);
  };
  for (const double v : {0.0, 1.0, 0.5, 0.6, 5.5, 88.72, 88.73, 103.97, 104.0, 709.78, 709.79, 745.13, 745.14, 1e30}) {
    add(F(v));
    add(F(-v));
  }
  for (const F v : {std::numeric_limits<F>::infinity(), std::numeric_limits<F>::max(), std::numeric_limits<F>::min(),
                    std::numeric_limits<F>::denorm_min()}) {
    add(v);
    add(-v);
  }
  x.push_back(std::numeric_limits<F>::quiet_NaN());
  if constexpr (sizeof(F) == 4) {
    for (uint64_t b = 1; b < uint64_t{1} << 32; b += 65521) add(std::bit_cast<float>(uint32_t(b)));
  } else {
    for (uint64_t b = 1; b < ~uint64_t{0} - 0x0003fffffffffff1u; b += 0x0003fffffffffff1u)
      add(std::bit_cast<double>(b));
  }
  constexpr int n = sizeof(F) == 4 ? 60000 : 12000;
  for (const double span : {0.7, 4.0, 30.0, 120.0, 760.0})
    for (int i = 0; i < n; ++i) add(F((i - n / 2 + 0.37) * (2 * span / n)));
  return x;
}

template <class F, class Map, class Ref>
void check(const char* name, Map map, Ref ref, double bound, double limit = std::numeric_limits<double>::infinity()) {
  const std::vector<F> x = sweep<F>(limit);
  std::vector<Wide<F>> want(x.size());
  for (size_t i = 0; i < x.size(); ++i) want[i] = ref(Wide<F>(x[i]));
  std::vector<F> y(x.size());
  for (const CpuLevel level : levels()) {
    map(Cpu{level}, x.data(), y.data(), int64_t(x.size()));
    double worst = 0;
    F where = 0;
    for (size_t i = 0; i < x.size(); ++i)
      if (const double e = ulps<F>(y[i], want[i]); e > worst) worst = e, where = x[i];
    INFO(std::string(name), " of ", sizeof(F) * 8, " bits at level ", std::string(kernels::name(level)),
         ", x = ", double(where));
    CHECK(worst <= bound);
  }
}

#define LEVIN_CHECK_MATH(f, bound, ...)                                                 \
  check<float>(                                                                         \
      #f, [](auto&&... a) { cpu::map_##f(a...); }, [](double x) { return ref_##f(x); }, \
      bound __VA_OPT__(, ) __VA_ARGS__)
#define LEVIN_CHECK_MATH64(f, bound, ...)                                                    \
  check<double>(                                                                             \
      #f, [](auto&&... a) { cpu::map_##f(a...); }, [](long double x) { return ref_##f(x); }, \
      bound __VA_OPT__(, ) __VA_ARGS__)

TEST_CASE("elementary functions of float keep their error bounds for every exponent, at every level") {
  LEVIN_CHECK_MATH(exp, 1.0);
  LEVIN_CHECK_MATH(expm1, 1.6);
  LEVIN_CHECK_MATH(log, 1.0);
  LEVIN_CHECK_MATH(log1p, 1.6);
  LEVIN_CHECK_MATH(tanh, 1.6);
  LEVIN_CHECK_MATH(sigmoid, 2.3);
  LEVIN_CHECK_MATH(softplus, 1.6);
  LEVIN_CHECK_MATH(erf, 1.6);
  LEVIN_CHECK_MATH(erfc, 4.0);
  LEVIN_CHECK_MATH(gated_tanh, 5.0);
  LEVIN_CHECK_MATH(rsqrt, 1.6);
  LEVIN_CHECK_MATH(square_root_power, 1.0);
  LEVIN_CHECK_MATH(sin, 1.6, 0x1p26);
  LEVIN_CHECK_MATH(cos, 1.6, 0x1p26);
  LEVIN_CHECK_MATH(asin, 2.4);
  LEVIN_CHECK_MATH(acos, 2.0);
  LEVIN_CHECK_MATH(atan, 2.0);
  LEVIN_CHECK_MATH(sinh, 2.0);
  LEVIN_CHECK_MATH(cosh, 2.0);
  LEVIN_CHECK_MATH(asinh, 2.0);
  LEVIN_CHECK_MATH(acosh, 2.0);
  LEVIN_CHECK_MATH(atanh, 2.0);
}

TEST_CASE_TEMPLATE("tanh times a sigmoid keeps its error bound for arguments of any two sizes and signs", F, float,
                   double) {
  using W = Wide<F>;
  constexpr F kInf = std::numeric_limits<F>::infinity();
  std::vector<F> some{0, F(-0.0), F(0.59), F(0.61), F(8.3254194), F(8.3383703), F(9.5), 25, 80, 100, kInf};
  for (int k = 1; k < 300; ++k) some.push_back(F(0.0371) * F(k));
  const std::size_t n = some.size();
  for (std::size_t k = 0; k < n; ++k) some.push_back(-some[k]);
  double worst = 0;
  for (const F x : some)
    for (const F y : some) {
      const W want = std::tanh(W(x)) * ref_sigmoid(W(y));
      worst = std::max(worst, ulps<F>(math::tanh_times_sigmoid(x, y), want));
    }
  CHECK(worst <= 5.0);
  for (const F v : {F(0), F(3), kInf}) {
    CHECK(std::isnan(math::tanh_times_sigmoid(v, std::numeric_limits<F>::quiet_NaN())));
    CHECK(std::isnan(math::tanh_times_sigmoid(std::numeric_limits<F>::quiet_NaN(), v)));
  }
}

TEST_CASE("elementary functions of double keep their error bounds for every exponent, at every level") {
  LEVIN_CHECK_MATH64(exp, 1.0);
  LEVIN_CHECK_MATH64(expm1, 1.6);
  LEVIN_CHECK_MATH64(log, 1.0);
  LEVIN_CHECK_MATH64(log1p, 1.6);
  LEVIN_CHECK_MATH64(tanh, 1.6);
  LEVIN_CHECK_MATH64(sigmoid, 2.3);
  LEVIN_CHECK_MATH64(softplus, 1.6);
  LEVIN_CHECK_MATH64(erf, 1.6);
  LEVIN_CHECK_MATH64(erfc, 4.0);
  LEVIN_CHECK_MATH64(gated_tanh, 5.0);
  LEVIN_CHECK_MATH64(rsqrt, 1.6);
  LEVIN_CHECK_MATH64(sin, 1.6, 0x1p20);
  LEVIN_CHECK_MATH64(cos, 1.6, 0x1p20);
  LEVIN_CHECK_MATH64(asin, 2.4);
  LEVIN_CHECK_MATH64(acos, 2.0);
  LEVIN_CHECK_MATH64(atan, 2.0);
  LEVIN_CHECK_MATH64(sinh, 2.0);
  LEVIN_CHECK_MATH64(cosh, 2.0);
  LEVIN_CHECK_MATH64(asinh, 2.0);
  LEVIN_CHECK_MATH64(acosh, 2.0);
  LEVIN_CHECK_MATH64(atanh, 2.0);
}

template <class F>
void check_far() {
  int far = 0;
  double worst = 0;
  std::vector<F> x = sweep<F>(std::numeric_limits<double>::infinity());
  // The double that comes nearest to a multiple of pi / 2, and numbers at the border.
  for (const F v : {F(6381956970095103.0 * 0x1p797), F(1e22), math::kSineNear<F> * F(1.001), math::kSineNear<F> * 2})
    x.push_back(v), x.push_back(-v);
  for (const F v : x) {
    if (!math::is_far(v)) continue;
    ++far;
    const auto wide = Wide<F>(v);
    worst = std::max(worst, ulps<F>(math::far_sine<F, 0>(v), std::sin(wide)));
    worst = std::max(worst, ulps<F>(math::far_sine<F, 1>(v), std::cos(wide)));
  }
  CHECK(far > 1000);
  CHECK(worst <= 1.6);
  CHECK(math::is_far(std::numeric_limits<F>::infinity()));
  CHECK(!math::is_far(math::kSineNear<F>));
}

TEST_CASE("sin and cos of numbers of any size keep the error bound of small ones") {
  check_far<float>();
  check_far<double>();
}

TEST_CASE("the normal distribution function of float is exact to 2e-7, and 0 or 1 far from zero") {
  const std::vector<float> x = sweep<float>(std::numeric_limits<double>::infinity());
  std::vector<float> y(x.size());
  for (const CpuLevel level : levels()) {
    cpu::map_normal_cdf(Cpu{level}, x.data(), y.data(), int64_t(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        REQUIRE(std::isnan(y[i]));
        continue;
      }
      REQUIRE(std::fabs(double(y[i]) - std::erfc(-double(x[i]) / std::sqrt(2.0)) / 2) <= 2e-7);
      if (x[i] < -6) REQUIRE(y[i] == 0);
      if (x[i] > 6) REQUIRE(y[i] == 1);
    }
  }
}

template <class F>
void check_exp_nonpositive(double last_normal) {
  const std::vector<F> x = sweep<F>(std::numeric_limits<double>::infinity());
  std::vector<F> y(x.size());
  for (const CpuLevel level : levels()) {
    cpu::map_exp_nonpositive(Cpu{level}, x.data(), y.data(), int64_t(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] > 0) continue;
      INFO("x = ", double(x[i]));
      if (x[i] < F(last_normal))
        REQUIRE(y[i] == 0);
      else
        REQUIRE(ulps<F>(y[i], std::exp(Wide<F>(x[i]))) <= 1);
    }
  }
}

TEST_CASE("exp of numbers up to zero is exp, or 0 where exp is not a normal number") {
  check_exp_nonpositive<float>(-87.33);
  check_exp_nonpositive<double>(-708.39);
}

TEST_CASE("pow of float has the special cases of std::pow") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -0.5f, 2.0f,   -2.0f,       3.0f,         -3.0f,
                                     7.5f, -7.5f, inf,  -inf,  nan,  1e30f, -1e30f, 16777215.0f, -16777217.0f, 1e-40f};
  std::vector<float> x, y, r;
  for (const float a : values)
    for (const float b : values) x.push_back(a), y.push_back(b);
  r.resize(x.size());
  for (const CpuLevel level : levels()) {
    cpu::map_pow(Cpu{level}, x.data(), y.data(), r.data(), int64_t(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      INFO("pow(", x[i], ", ", y[i], ") = ", r[i]);
      REQUIRE(ulps<float>(r[i], std::pow(double(x[i]), double(y[i]))) <= 1);
    }
  }
}

TEST_CASE("pow of a positive number has the bits of pow, and what is far from that is no such number or not finite") {
  std::vector<float> x, y;
  const std::vector<float> bases = sweep<float>(std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < bases.size(); i += 16)
    for (const float b : {0.0f, -0.0f, 0.5f, 1.0f, -1.0f, 2.5f, -3.0f, 40.0f, -1e30f, 3e38f, 1e-40f})
      x.push_back(bases[i]), y.push_back(b);
  for (const float odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const float size : {odd, -odd}) x.insert(x.end(), {size, 2.0f}), y.insert(y.end(), {2.0f, size});
  std::vector<float> near(x.size()), r(x.size());
  for (const CpuLevel level : levels()) {
    cpu::map_pow(Cpu{level}, x.data(), y.data(), r.data(), int64_t(x.size()));
    cpu::map_pow_positive(Cpu{level}, x.data(), y.data(), near.data(), int64_t(x.size()));
    size_t count = 0, wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const bool is_near = x[i] > 0 && std::isfinite(x[i]) && std::isfinite(y[i]);
      wrong += math::is_far_from_pow_positive(x[i], y[i]) == is_near;
      if (!is_near) continue;
      wrong += std::bit_cast<uint32_t>(near[i]) != std::bit_cast<uint32_t>(r[i]);
      ++count;
    }
    CHECK(wrong == 0);
    CHECK(count > x.size() / 4);
  }
}

}  // namespace
}  // namespace levin::kernels
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {
namespace {
#define LEVIN_MAP_MATH(f)                                 \
  template <class F>                                      \
  void map_##f(const Cpu&, const F* x, F* y, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) y[i] = fn::f(x[i]);   \
  }
LEVIN_MATH_FUNCTIONS(LEVIN_MAP_MATH)
LEVIN_TRIGONOMETRY(LEVIN_MAP_MATH)
#undef LEVIN_MAP_MATH
template <class F>
void map_pow(const Cpu&, const F* x, const F* y, F* r, int64_t n) {
  for (int64_t i = 0; i < n; ++i) r[i] = math::pow(x[i], y[i]);
}
template <class F>
void map_pow_positive(const Cpu&, const F* x, const F* y, F* r, int64_t n) {
  for (int64_t i = 0; i < n; ++i) r[i] = math::pow_positive(x[i], y[i]);
}
}  // namespace
}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
