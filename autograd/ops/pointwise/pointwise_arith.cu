// Arithmetic: ops whose kernels are one or two machine instructions.
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/ops/pointwise/quotient.h"

namespace levin {
namespace pointwise {
namespace {

struct Add {
  static constexpr OpInfo info{.name = "add", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::nothing;
  static constexpr bool kSavesWithNumber = false;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return wrapping_sum(a, b);
  }
  Tensor backward_a(const Tensor& gy) const { return gy; }
  Tensor backward_b(const Tensor& gy) const { return gy; }
  Tensor backward_right(const Tensor& gy, const SavedInput&, Scalar) const { return gy; }
};

struct Sub {
  static constexpr OpInfo info{.name = "sub", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::nothing;
  static constexpr bool kSavesWithNumber = false;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return static_cast<decltype(x)>(x - y); });
  }
  Tensor backward_a(const Tensor& gy) const { return gy; }
  Tensor backward_b(const Tensor& gy) const { return neg(gy); }
  Tensor backward_right(const Tensor& gy, const SavedInput&, Scalar) const { return gy; }
  Tensor backward_left(const Tensor& gy, const SavedInput&, Scalar) const { return neg(gy); }
};

struct Mul {
  static constexpr OpInfo info{.name = "mul", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::input;
  static constexpr bool kSavesWithNumber = false;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return wrapping_product(a, b);
  }
  Tensor backward_a(const Tensor& gy, const Tensor&, const Tensor& b) const { return gy * b; }
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor&) const { return gy * a; }
  Tensor backward_right(const Tensor& gy, const SavedInput&, Scalar s) const { return gy * s; }
};

struct Div {
  static constexpr OpInfo info{.name = "div", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr Saves kSaves = Saves::input;
  static constexpr bool kSavesWithNumber = true;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return a / b;
  }
  Tensor backward_a(const Tensor& gy, const Tensor&, const Tensor& b) const { return gy / b; }
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const { return neg(gy * (a / b) / b); }
  Tensor backward_right(const Tensor& gy, const SavedInput&, Scalar s) const { return gy / s; }
  Tensor backward_left(const Tensor& gy, const SavedInput& x, Scalar s) const {
    return neg(gy * (s / x.get()) / x.get());
  }
};

struct Maximum {
  static constexpr OpInfo info{.name = "maximum", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
  // Beside NaN neither operand loses.
  static Tensor share(const Tensor& gy, const Tensor& loses, const Tensor& ties) {
    return where(ties, gy * 0.5, where(loses, zeros_like(gy), gy));
  }
  Tensor backward_a(const Tensor& gy, const Tensor& a, const Tensor& b) const { return share(gy, lt(a, b), eq(a, b)); }
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const { return share(gy, lt(b, a), eq(a, b)); }
};

struct Minimum {
  static constexpr OpInfo info{.name = "minimum", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
  Tensor backward_a(const Tensor& gy, const Tensor& a, const Tensor& b) const {
    return Maximum::share(gy, gt(a, b), eq(a, b));
  }
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const {
    return Maximum::share(gy, gt(b, a), eq(a, b));
  }
};

struct Remainder {
  static constexpr OpInfo info{.name = "remainder", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::input;
  static constexpr bool kSavesWithNumber = false;
  levin::detail::FaultSlot* faults = nullptr;  // where a kernel reports a divisor of 0; the CPU looks before
  const char* op = info.name;                  // on the host: slots hold its pointers
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (is_zero_divisor(b, faults, op)) return T(0);
      const T divisor = safe_divisor(b), r = static_cast<T>(a % divisor);
      return static_cast<T>(r + (is_rounded_up(r, divisor) ? divisor : T(0)));
    } else {
      return with_sign_of_divisor(std::fmod(a, b), b);
    }
  }
  template <std::same_as<float> T>
  LEVIN_HD T near(T a, T b) const {
    return with_sign_of_divisor(kernels::math::fmod_near(a, b), b);
  }
  template <std::same_as<float> T>
  LEVIN_HD bool is_far(T a, T b) const {
    return !kernels::math::quotient_is_near(a, b);
  }
  Tensor backward_a(const Tensor& gy, const Tensor&, const Tensor&) const { return gy; }
  // a = quotient b + remainder. This is the quotient of the given values, which floor(a / b) may miss by one.
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const {
    const Tensor x = a.detach(), y = b.detach();
    return neg(gy * where(isinf(y), floor(x / y), round((x - remainder(x, y)) / y)));
  }
  Tensor backward_right(const Tensor& gy, const SavedInput&, Scalar) const { return gy; }
};

struct Neg {
  static constexpr OpInfo info{.name = "neg"};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::nothing;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return wrapping(T(0), x, [](auto z, auto y) {
      return std::is_integral_v<T> ? static_cast<decltype(y)>(z - y) : static_cast<decltype(y)>(-y);
    });
  }
  Tensor backward(const Tensor& gy) const { return neg(gy); }
};

struct Abs {
  static constexpr OpInfo info{.name = "abs"};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::abs(x);
    else
      return x < T(0) ? Neg{}(x) : x;
  }
  Tensor backward(const Tensor& gy, const Tensor& x) const { return gy * sign(x); }
};

struct Sign {
  static constexpr OpInfo info{.name = "sign"};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::nothing;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return T(x > T(0)) - T(x < T(0));
    else
      return static_cast<T>((x > T(0)) - (x < T(0)));
  }
  Tensor backward(const Tensor& gy) const { return zeros_like(gy); }
};

struct Square {
  static constexpr OpInfo info{.name = "square"};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return Mul{}(x, x);
  }
  Tensor backward(const Tensor& gy, const Tensor& x) const { return gy * x * 2; }
};

#define LEVIN_ROUNDING(Type, op_name, expression)                      \
  struct Type {                                                        \
    static constexpr OpInfo info{.name = op_name};                     \
    static constexpr auto kTypes = kFloats;                            \
    static constexpr Saves kSaves = Saves::nothing;                    \
    template <class T>                                                 \
    LEVIN_HD T operator()(T x) const {                                 \
      return expression;                                               \
    }                                                                  \
    Tensor backward(const Tensor& gy) const { return zeros_like(gy); } \
  }
LEVIN_ROUNDING(Floor, "floor", std::floor(x));
LEVIN_ROUNDING(Ceil, "ceil", std::ceil(x));
LEVIN_ROUNDING(Trunc, "trunc", std::trunc(x));
LEVIN_ROUNDING(Round, "round", std::nearbyint(x));  // the rounding mode is never changed: ties to even
#undef LEVIN_ROUNDING

struct Clamp {
  static constexpr OpInfo info{.name = "clamp"};
  static constexpr auto kTypes = kNumbers;
  static constexpr Saves kSaves = Saves::input;
  Scalar low, high;
  bool has_low, has_high;
  double least = 0, most = 0;  // of floats; a bound that is not given is infinite
  template <class T>
  LEVIN_HD T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) {
      const T above = x < T(least) ? T(least) : x;
      return above > T(most) ? T(most) : above;
    }
    if (has_low) x = x < low.to<T>() ? low.to<T>() : x;
    if (has_high) x = x > high.to<T>() ? high.to<T>() : x;
    return x;
  }
  Tensor backward(const Tensor& gy, const Tensor& x) const {
    Tensor inside = has_low ? ge(x, low) : le(x, high);
    if (has_low && has_high) inside = logical_and(inside, le(x, high));
    return where(inside, gy, zeros_like(gy));
  }
};

LEVIN_OP_TABLE(Binary<Add>)
LEVIN_OP_TABLE(Binary<Sub>)
LEVIN_OP_TABLE(Binary<Mul>)
LEVIN_OP_TABLE(Binary<Div>)
LEVIN_OP_TABLE(Binary<Maximum>)
LEVIN_OP_TABLE(Binary<Minimum>)
LEVIN_OP_TABLE(Binary<Remainder>)
LEVIN_OP_TABLE(Unary<Neg>)
LEVIN_OP_TABLE(Unary<Abs>)
LEVIN_OP_TABLE(Unary<Sign>)
LEVIN_OP_TABLE(Unary<Square>)
LEVIN_OP_TABLE(Unary<Floor>)
LEVIN_OP_TABLE(Unary<Ceil>)
LEVIN_OP_TABLE(Unary<Trunc>)
LEVIN_OP_TABLE(Unary<Round>)
LEVIN_OP_TABLE(Unary<Clamp>)

template <class F>
Tensor binary(const Tensor& a, const Tensor& b) {
  return apply(Binary<F>{}, a, b);
}
template <class F, Side side = Side::right>
Tensor with_number(const Tensor& x, Scalar s) {
  return apply(WithNumber<F, side>{{}, s}, x);
}

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor add(const Tensor& a, const Tensor& b) { return binary<Add>(a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary<Sub>(a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary<Mul>(a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return binary<Div>(a, b); }
Tensor add(const Tensor& a, Scalar b) { return with_number<Add>(a, b); }
Tensor sub(const Tensor& a, Scalar b) { return with_number<Sub>(a, b); }
Tensor mul(const Tensor& a, Scalar b) { return with_number<Mul>(a, b); }
Tensor div(const Tensor& a, Scalar b) { return with_number<Div>(a, b); }
Tensor sub(Scalar a, const Tensor& b) { return with_number<Sub, Side::left>(b, a); }
Tensor div(Scalar a, const Tensor& b) { return with_number<Div, Side::left>(b, a); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary<Maximum>(a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary<Minimum>(a, b); }
Tensor neg(const Tensor& x) { return unary<Neg>(x); }
Tensor abs(const Tensor& x) { return unary<Abs>(x); }
Tensor sign(const Tensor& x) { return unary<Sign>(x); }
Tensor square(const Tensor& x) { return unary<Square>(x); }
Tensor floor(const Tensor& x) { return unary<Floor>(x); }
Tensor ceil(const Tensor& x) { return unary<Ceil>(x); }
Tensor trunc(const Tensor& x) { return unary<Trunc>(x); }
Tensor round(const Tensor& x) { return unary<Round>(x); }

Tensor remainder(const Tensor& a, const Tensor& b) {
  check_divisor("remainder", a, b);
  return binary<Remainder>(a, b);
}
Tensor remainder(const Tensor& a, Scalar b) {
  check_divisor("remainder", a, b);
  return with_number<Remainder>(a, b);
}
Tensor remainder(Scalar a, const Tensor& b) { return remainder(number_beside("remainder", a, b), b); }

Tensor clamp(const Tensor& x, std::optional<Scalar> low, std::optional<Scalar> high) {
  if (!low && !high) fail<ConfigError>("clamp: neither low nor high is given");
  if (is_float(x.dtype()) && ((low && std::isnan(low->real())) || (high && std::isnan(high->real())))) {
    return masked_fill(x, full({}, true, x.device(), DType::b8), std::numeric_limits<double>::quiet_NaN());
  }
  // A bound beyond the dtype's range on its own side has no effect; beyond the other side it would be the result.
  const DType t = x.dtype();
  for (const auto& bound : {low, high}) {
    if (bound) check_kind("clamp", t, *bound);
  }
  if (low && range_of(*low, t) == Range::above) fail_range("clamp", t, *low);
  if (high && range_of(*high, t) == Range::below) fail_range("clamp", t, *high);
  constexpr double inf = std::numeric_limits<double>::infinity();
  return unary(x, Clamp{low.value_or(0), high.value_or(0), low.has_value(), high.has_value(), low ? low->real() : -inf,
                        high ? high->real() : inf});
}

}  // namespace levin
