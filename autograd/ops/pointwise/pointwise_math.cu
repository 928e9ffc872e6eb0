// Elementary functions.
#include <cmath>
#include <concepts>
#include <type_traits>

#include "autograd/autocast.h"
#include "autograd/ops/pointwise/elementary.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/device/hardware_math.cuh"
#include "kernels/math/far_sine.h"
#include "kernels/math/trigonometry.h"

namespace levin {
namespace pointwise {
namespace {

namespace h = kernels::half_math;

constexpr double kLn2 = 0.693147180559945309417232121458, kLn10 = 2.30258509299404568401799145468;
constexpr double kTwoOverSqrtPi = 1.12837916709551257389615890312;

LEVIN_MATH(Sqrt, "sqrt", keep, Saves::output, std::sqrt(x), gy * 0.5 / s)
LEVIN_MATH(Rsqrt, "rsqrt", full, Saves::output, m::rsqrt(x), gy * -0.5 * (s * s * s))
LEVIN_MATH(Reciprocal, "reciprocal", full, Saves::output, T(1) / x, neg(gy* s* s))
LEVIN_MATH(Exp, "exp", full, Saves::output, m::exp(x), gy* s, LEVIN_HALF_FORM(h::exp_of_any<H>(x)))
LEVIN_MATH(Expm1, "expm1", full, Saves::output, m::expm1(x), gy*(s + 1))
LEVIN_MATH(Log, "log", full, Saves::input, m::log(x), gy / s, LEVIN_HALF_FORM(h::log(x)))
LEVIN_MATH(Log1p, "log1p", full, Saves::input, m::log1p(x), gy / (s + 1), LEVIN_HALF_FORM(h::log1p(x)))
LEVIN_MATH(Log2, "log2", full, Saves::input, std::log2(x), gy / (s * kLn2), LEVIN_HALF_FORM(h::log(x) * h::kLog2E))
LEVIN_MATH(Log10, "log10", full, Saves::input, std::log10(x), gy / (s * kLn10),
           LEVIN_HALF_FORM(h::log(x) * 0.434294482f))
LEVIN_MATH(Tan, "tan", full, Saves::output, std::tan(x), gy*(s* s + 1))
LEVIN_MATH(Erf, "erf", keep, Saves::input, m::erf(x), gy*(exp(neg(s* s)) * kTwoOverSqrtPi), LEVIN_HALF_FORM(h::erf(x)))
LEVIN_MATH(Erfc, "erfc", keep, Saves::input, m::erfc(x), gy*(exp(neg(s* s)) * -kTwoOverSqrtPi))

// sin(x + quadrants pi / 2) gives sin and cos.
template <int quadrants>
struct Sine {
  static constexpr OpInfo info{.name = quadrants == 0 ? "sin" : "cos"};
  static constexpr auto kTypes = kFloats;
  static constexpr Saves kSaves = Saves::input;
  static constexpr std::int64_t kGrain = 16384;
  template <class T>
  LEVIN_HD T near(T x) const {
    return quadrants == 0 ? m::sin(x) : m::cos(x);
  }
  template <class T>
  LEVIN_HD bool is_far(T x) const {
    return m::is_far(x);
  }
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return m::is_far(x) ? m::far_sine<T, quadrants>(x) : near(x);
  }
  Tensor backward(const Tensor& gy, const Tensor& x) const { return quadrants == 0 ? gy * cos(x) : neg(gy * sin(x)); }
};
LEVIN_OP_TABLE(Unary<Sine<0>>)
LEVIN_OP_TABLE(Unary<Sine<1>>)

// By squaring, with wrap-around. A negative power is 0 but for 1 and -1.
template <class T>
LEVIN_HD T integer_power(T x, T y) {
  if constexpr (std::is_signed_v<T>) {
    if (y < T(0)) return x == T(1) ? T(1) : x != T(-1) ? T(0) : (y & T(1)) != 0 ? T(-1) : T(1);
  }
  T power = 1;
  for (; y != T(0); y = static_cast<T>(y >> 1)) {
    if ((y & T(1)) != 0) power = wrapping_product(power, x);
    x = wrapping_product(x, x);
  }
  return power;
}

struct Pow {
  static constexpr OpInfo info{.name = "pow", .autocast = AutocastPolicy::full};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::input;
  static constexpr bool kSavesWithNumber = true;
  static constexpr std::int64_t kGrain = 4096;
  static constexpr bool kIsVectorCode = true;
  template <class T>
  LEVIN_HD T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>)
      return integer_power(x, y);
    else
#if defined(__CUDA_ARCH__)
      return std::pow(x, y);
#else
      return m::pow(x, y);
#endif
  }
  template <std::same_as<float> T>
  LEVIN_HD T near(T x, T y) const {
    return m::pow_positive(x, y);
  }
  template <std::same_as<float> T>
  LEVIN_HD bool is_far(T x, T y) const {
    return m::is_far_from_pow_positive(x, y);
  }
  // x^0 is constant, also at 0 where y x^(y-1) would be 0 * inf.
  Tensor backward_a(const Tensor& gy, const Tensor& x, const Tensor& y) const {
    return where(eq(y, 0), zeros_like(gy), gy * y * pow(x, y - 1));
  }
  // 0^y is constant for y > 0, where log would be -inf.
  Tensor backward_b(const Tensor& gy, const Tensor& x, const Tensor& y) const {
    const Tensor flat = logical_and(eq(x, 0), ge(y, 0));
    return where(flat, zeros_like(gy), gy * pow(x, y) * log(where(flat, ones_like(gy), x + zeros_like(gy))));
  }
  Tensor backward_right(const Tensor& gy, const SavedInput& x, Scalar y) const {
    if (y.real() == 0) return zeros_like(gy);
    return gy * (pow(x.get(), y.real() - 1) * y.real());
  }
  Tensor backward_left(const Tensor& gy, const SavedInput& y, Scalar x) const {
    const Tensor g = gy * (pow(x, y.get()) * std::log(x.real()));
    return x.real() == 0 ? where(ge(y.get(), 0), zeros_like(gy), g) : g;
  }
};

struct Atan2 {
  static constexpr OpInfo info{.name = "atan2", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr Saves kSaves = Saves::input;
  static constexpr std::int64_t kGrain = 4096;
  template <class T>
  LEVIN_HD T operator()(T y, T x) const {
#if defined(__CUDA_ARCH__)
    return std::atan2(y, x);
#else
    return m::atan2(y, x);
#endif
  }
  // of / (x^2 + y^2), 0 where both are 0. Both are divided by the larger one first, so no square overflows.
  static Tensor over_square(const Tensor& of, const Tensor& y, const Tensor& x) {
    const Tensor size = maximum(abs(x.detach()), abs(y.detach())), zero = eq(size, 0);
    const Tensor scale = masked_fill(size, logical_or(zero, isinf(size)), 1), a = x / scale, b = y / scale;
    return of / scale / scale / masked_fill(a * a + b * b, zero, 1);
  }
  Tensor backward_a(const Tensor& g, const Tensor& y, const Tensor& x) const { return g * over_square(x, y, x); }
  Tensor backward_b(const Tensor& g, const Tensor& y, const Tensor& x) const { return neg(g * over_square(y, y, x)); }
};

LEVIN_OP_TABLE(Binary<Pow>)
LEVIN_OP_TABLE(Binary<Atan2>)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor sqrt(const Tensor& x) { return unary<Sqrt>(x); }
Tensor rsqrt(const Tensor& x) { return unary<Rsqrt>(x); }
Tensor reciprocal(const Tensor& x) { return unary<Reciprocal>(x); }
Tensor exp(const Tensor& x) { return unary<Exp>(x); }
Tensor expm1(const Tensor& x) { return unary<Expm1>(x); }
Tensor log(const Tensor& x) { return unary<Log>(x); }
Tensor log1p(const Tensor& x) { return unary<Log1p>(x); }
Tensor log2(const Tensor& x) { return unary<Log2>(x); }
Tensor log10(const Tensor& x) { return unary<Log10>(x); }
Tensor sin(const Tensor& x) { return unary<Sine<0>>(x); }
Tensor cos(const Tensor& x) { return unary<Sine<1>>(x); }
Tensor tan(const Tensor& x) { return unary<Tan>(x); }
Tensor erf(const Tensor& x) { return unary<Erf>(x); }
Tensor erfc(const Tensor& x) { return unary<Erfc>(x); }
Tensor atan2(const Tensor& y, const Tensor& x) { return apply(Binary<Atan2>{}, y, x); }
Tensor pow(const Tensor& x, const Tensor& y) { return apply(Binary<Pow>{}, x, y); }
Tensor pow(const Tensor& x, Scalar y) {
  if (y.real() == 2 && (is_float(x.dtype()) || (is_integer(x.dtype()) && y.is_integer()))) {
    return square(x);  // exact, and far cheaper
  }
  if (is_integer(x.dtype()) && y.is_integer() && y.integer() < 0) {
    fail<ConfigError>("pow: the exponent ", y, " is negative, expected 0 or more for a tensor of ", x.dtype(),
                      "; convert the tensor to floats");
  }
  return apply(WithNumber<Pow, Side::right>{{}, y}, x);
}
Tensor pow(Scalar x, const Tensor& y) { return apply(WithNumber<Pow, Side::left>{{}, x}, y); }

Tensor exp2(const Tensor& x) {
  check_float("exp2", x);
  return pow(2, x);  // rounded once in f32, since kernels::math::pow computes in f64
}

// Steps of their own would each round a 16-bit number.
Tensor logit(const Tensor& x, std::optional<double> eps) {
  check_float("logit", x);
  if (eps && !(*eps >= 0 && *eps <= 0.5)) fail<ConfigError>("logit: eps is ", *eps, ", expected a number in [0, 0.5]");
  const Tensor wide = widened(x), inside = eps ? clamp(wide, *eps, 1 - *eps) : wide;
  return finished(log(inside) - log1p(neg(inside)), x);
}

}  // namespace levin
