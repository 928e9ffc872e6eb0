// Functions of two numbers that would overflow or be NaN if they were put together from others, the inverse of erf, and
// the gamma function's logarithm with its derivatives.
#include <cmath>
#include <concepts>

#include "autograd/ops/pointwise/elementary.h"
#include "kernels/device/hardware_math.cuh"
#include "kernels/math/special.h"
#include "kernels/math/trigonometry.h"

namespace levin {
namespace pointwise {
namespace {

namespace h = kernels::half_math;

// log(e^a + e^b), or to base 2.
template <int base>
struct Logaddexp {
  static constexpr OpInfo info{.name = base == 2 ? "logaddexp2" : "logaddexp", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr std::int64_t kGrain = 8192;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    // Of two NaNs a sum would have either's bits: y is none.
    const T larger = a > b || a != a ? a : b, apart = std::abs(a - b), below = apart == apart ? -apart : T(0);
    T y = base == 2 ? m::softplus(below * m::detail::kLn2<T>) / m::detail::kLn2<T> : m::softplus(below);
    y = a == b ? (base == 2 ? T(1) : m::detail::kLn2<T>) : y;  // also of equal infinities
    return larger + y;
  }
  template <class H>
  LEVIN_HD float for_half(float a, float b) const {
    const float apart = std::abs(a - b), below = apart == apart ? -apart : 0.0f;
    const float low = h::log1p(kernels::unit::exp2(base == 2 ? below : below * h::kLog2E));
    return kernels::larger_or_nan(a, b) + (base == 2 ? low * h::kLog2E : low);
  }
  // The share of a. Equal infinities have equal shares.
  static Tensor share(const Tensor& a, const Tensor& b) {
    const Tensor apart = masked_fill(a - b, logical_and(eq(a, b), isinf(a)), 0);
    return sigmoid(base == 2 ? apart * m::detail::kLn2<double> : apart);
  }
  Tensor backward_a(const Tensor& gy, const Tensor& a, const Tensor& b) const { return gy * share(a, b); }
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const { return gy * share(b, a); }
};

// sqrt(a^2 + b^2) without a square that overflows: f32 by f64, f64 by the quotient of the smaller and the larger.
struct Hypot {
  static constexpr OpInfo info{.name = "hypot", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr std::int64_t kGrain = 16384;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    constexpr T inf = m::detail::Format<T>::inf;
    const T x = std::abs(a), y = std::abs(b);
    T r;
    if constexpr (sizeof(T) == 4) {
      r = T(std::sqrt(double(x) * x + double(y) * y));
    } else {
      const T larger = x > y ? x : y, q = (x > y ? y : x) / larger;
      r = x == 0 && y == 0 ? T(0) : larger * std::sqrt(1 + q * q);
    }
    return x == inf || y == inf ? inf : r;
  }
  static Tensor share(const Tensor& a, const Tensor& b) {
    const Tensor r = hypot(a, b);
    return a / masked_fill(r, eq(r, 0), 1);
  }
  Tensor backward_a(const Tensor& gy, const Tensor& a, const Tensor& b) const { return gy * share(a, b); }
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const { return gy * share(b, a); }
};

// a log(b), 0 where a is 0.
struct Xlogy {
  static constexpr OpInfo info{.name = "xlogy", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr std::int64_t kGrain = 16384;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return of(a, b, m::log(b));
  }
  template <class H>
  LEVIN_HD float for_half(float a, float b) const {
    return of(a, b, h::log(b));
  }
  template <class T>
  LEVIN_HD static T of(T a, T b, T log) {
    const T y = a * log;
    return a == T(0) && b == b ? T(0) : y;
  }
  Tensor backward_a(const Tensor& gy, const Tensor& a, const Tensor& b) const {
    const Tensor zero = logical_and(eq(a, 0), le(b, 0));
    return gy * log(where(zero, ones_like(gy), b + zeros_like(gy)));
  }
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const {
    return where(eq(a, 0), zeros_like(gy), gy * a / b);
  }
};

constexpr std::int64_t kHighestPolygamma = 170;  // 171! is beyond f64
constexpr double kHalfRootPi = 0.886226925452758013649083741671;

LEVIN_MATH_OF_GRAIN(Erfinv, 4096, "erfinv", full, Saves::output, m::erfinv(x), gy*(exp(s* s) * kHalfRootPi))
// A function of f64, and of f32 with a form for positive numbers that is vector code: see HasNear.
#define LEVIN_GAMMA(Type, function, rule)                                              \
  struct Type {                                                                        \
    static constexpr OpInfo info{.name = #function, .autocast = AutocastPolicy::full}; \
    static constexpr auto kTypes = kFloats;                                            \
    static constexpr Saves kSaves = Saves::input;                                      \
    static constexpr std::int64_t kGrain = 4096;                                       \
    template <class T>                                                                 \
    LEVIN_HD T operator()(T x) const {                                                 \
      return m::function(x);                                                           \
    }                                                                                  \
    template <std::same_as<float> T>                                                   \
    LEVIN_HD T near(T x) const {                                                       \
      return m::function##_positive(x);                                                \
    }                                                                                  \
    template <class T>                                                                 \
    LEVIN_HD bool is_far(T x) const {                                                  \
      return m::is_far_from_positive(x);                                               \
    }                                                                                  \
    Tensor backward(const Tensor& gy, const Tensor& x) const { return gy * (rule); }   \
  };                                                                                   \
  LEVIN_OP_TABLE(Unary<Type>)
LEVIN_GAMMA(Lgamma, lgamma, digamma(x))
LEVIN_GAMMA(Digamma, digamma, polygamma(1, x))
#undef LEVIN_GAMMA

Tensor polygamma_of(std::int64_t n, const Tensor& x);

struct Polygamma {
  static constexpr OpInfo info{.name = "polygamma", .autocast = AutocastPolicy::full};
  static constexpr auto kTypes = kFloats;
  static constexpr Saves kSaves = Saves::input;
  static constexpr std::int64_t kGrain = 1024;
  int n;
  double factor, more;  // their product is (-1)^(n + 1) n!, which alone is infinite above kHighestPolygamma
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return T(factor * m::hurwitz_zeta(n + 1, double(x)) * more);
  }
  Tensor backward(const Tensor& gy, const Tensor& x) const { return gy * polygamma_of(n + 1, x); }
};
LEVIN_OP_TABLE(Unary<Polygamma>)

// Derivatives lead above kHighestPolygamma.
Tensor polygamma_of(std::int64_t n, const Tensor& x) {
  double factor = n % 2 == 0 ? -1 : 1, more = 1;
  for (std::int64_t k = 2; k <= n; ++k) (k <= kHighestPolygamma ? factor : more) *= static_cast<double>(k);
  return unary(x, Polygamma{static_cast<int>(n), factor, more});
}

LEVIN_OP_TABLE(Binary<Logaddexp<0>>)
LEVIN_OP_TABLE(Binary<Logaddexp<2>>)
LEVIN_OP_TABLE(Binary<Hypot>)
LEVIN_OP_TABLE(Binary<Xlogy>)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor logaddexp(const Tensor& a, const Tensor& b) { return apply(Binary<Logaddexp<0>>{}, a, b); }
Tensor logaddexp2(const Tensor& a, const Tensor& b) { return apply(Binary<Logaddexp<2>>{}, a, b); }
Tensor hypot(const Tensor& a, const Tensor& b) { return apply(Binary<Hypot>{}, a, b); }
Tensor erfinv(const Tensor& x) { return unary<Erfinv>(x); }
Tensor lgamma(const Tensor& x) { return unary<Lgamma>(x); }
Tensor digamma(const Tensor& x) { return unary<Digamma>(x); }
Tensor polygamma(std::int64_t n, const Tensor& x) {
  if (n < 0 || n > kHighestPolygamma) {
    fail<ConfigError>("polygamma: n is ", n, ", expected 0 to ", kHighestPolygamma);
  }
  return n == 0 ? digamma(x) : polygamma_of(n, x);
}
Tensor xlogy(const Tensor& a, const Tensor& b) { return apply(Binary<Xlogy>{}, a, b); }

}  // namespace levin
