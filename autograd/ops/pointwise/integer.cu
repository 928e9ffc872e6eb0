// Quotients without a fraction, their remainders, and the bits of integers.
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "autograd/autocast.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/ops/pointwise/quotient.h"

namespace levin {
namespace pointwise {
namespace {

// Toward minus infinity. Of floats it is the quotient that belongs to the remainder with the sign of b.
struct FloorDivide {
  static constexpr OpInfo info{.name = "floor_divide", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::nothing;
  static constexpr bool kSavesWithNumber = false;
  levin::detail::FaultSlot* faults = nullptr;  // see Remainder
  const char* op = info.name;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (is_zero_divisor(b, faults, op)) return T(0);
      const T divisor = safe_divisor(b), q = static_cast<T>(a / divisor), r = static_cast<T>(a % divisor);
      const T negated = wrapping(T(0), a, [](auto z, auto y) { return static_cast<decltype(y)>(z - y); });
      return divisor != b ? negated : static_cast<T>(q - T(is_rounded_up(r, divisor)));
    } else {
      const T r = std::fmod(a, b);
      const T q = (a - r) / b - (r != T(0) && (r < T(0)) != (b < T(0)) ? T(1) : T(0));
      const T below = std::floor(q), nearest = q - below > T(0.5) ? below + T(1) : below;
      const T whole = q != T(0) ? nearest : std::copysign(T(0), a / b);
      return b == T(0) ? a / b : whole;
    }
  }
  Tensor backward_a(const Tensor& gy) const { return zeros_like(gy); }
  Tensor backward_b(const Tensor& gy) const { return zeros_like(gy); }
  Tensor backward_right(const Tensor& gy, const SavedInput&, Scalar) const { return zeros_like(gy); }
};

// a - b trunc(a / b), with the sign of a.
struct Fmod {
  static constexpr OpInfo info{.name = "fmod", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::input;
  static constexpr bool kSavesWithNumber = false;
  levin::detail::FaultSlot* faults = nullptr;  // see Remainder
  const char* op = info.name;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return is_zero_divisor(b, faults, op) ? T(0) : static_cast<T>(a % safe_divisor(b));
    } else {
      return std::fmod(a, b);
    }
  }
  template <std::same_as<float> T>
  LEVIN_HD T near(T a, T b) const {
    return kernels::math::fmod_near(a, b);
  }
  template <std::same_as<float> T>
  LEVIN_HD bool is_far(T a, T b) const {
    return !kernels::math::quotient_is_near(a, b);
  }
  Tensor backward_a(const Tensor& gy, const Tensor&, const Tensor&) const { return gy; }
  // a = quotient b + remainder. This is the quotient of the given values, which trunc(a / b) may miss by one.
  Tensor backward_b(const Tensor& gy, const Tensor& a, const Tensor& b) const {
    const Tensor x = a.detach(), y = b.detach();
    return neg(gy * where(isinf(y), trunc(x / y), round((x - fmod(x, y)) / y)));
  }
  Tensor backward_right(const Tensor& gy, const SavedInput&, Scalar) const { return gy; }
};

inline constexpr Types<std::int32_t, std::int64_t, std::uint8_t, bool> kBits{};

#define LEVIN_BITWISE(Type, op_name, expression)   \
  struct Type {                                    \
    static constexpr OpInfo info{.name = op_name}; \
    static constexpr auto kTypes = kBits;          \
    template <class T>                             \
    LEVIN_HD T operator()(T a, T b) const {        \
      return static_cast<T>(expression);           \
    }                                              \
  }
LEVIN_BITWISE(BitwiseAnd, "bitwise_and", a& b);
LEVIN_BITWISE(BitwiseOr, "bitwise_or", a | b);
LEVIN_BITWISE(BitwiseXor, "bitwise_xor", a ^ b);
#undef LEVIN_BITWISE

// A shift by a negative number, or by all bits and more, leaves no bit of a: what remains is 0, or for a shift to the
// right of a negative number -1.
template <class T>
LEVIN_HD bool shifts_all(T by) {
  return by < T(0) || by >= static_cast<T>(sizeof(T) * 8);
}
struct ShiftLeft {
  static constexpr OpInfo info{.name = "bitwise_left_shift"};
  static constexpr auto kTypes = kIntegers;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    using U = std::make_unsigned_t<T>;
    return shifts_all(b) ? T(0) : static_cast<T>(static_cast<U>(a) << b);
  }
};
struct ShiftRight {
  static constexpr OpInfo info{.name = "bitwise_right_shift"};
  static constexpr auto kTypes = kIntegers;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return static_cast<T>(shifts_all(b) ? (a < T(0) ? T(-1) : T(0)) : a >> b);
  }
};

struct BitwiseNot {
  static constexpr OpInfo info{.name = "bitwise_not"};
  template <class T>
  LEVIN_HD T operator()(T x) const {
    if constexpr (std::is_same_v<T, bool>)
      return !x;
    else
      return static_cast<T>(~x);
  }
};

template <class F>
struct Bitwise {
  static constexpr OpInfo info = F::info;
  Tensor forward(const Tensor& a, const Tensor& b) { return map(info, F{}, F::kTypes, a, b); }
};
template <class F>
struct BitwiseNumber {
  static constexpr OpInfo info = F::info;
  Scalar number;
  Tensor forward(const Tensor& a) { return map<Side::right>(info, F{}, F::kTypes, a, number); }
};
template <class F>
struct BitwiseUnary {
  static constexpr OpInfo info = F::info;
  Tensor forward(const Tensor& x) { return map(info, F{}, kBits, x); }
};

LEVIN_OP_TABLE(Binary<FloorDivide>)
LEVIN_OP_TABLE(Binary<Fmod>)
LEVIN_OP_TABLE(Bitwise<BitwiseAnd>)
LEVIN_OP_TABLE(Bitwise<BitwiseOr>)
LEVIN_OP_TABLE(Bitwise<BitwiseXor>)
LEVIN_OP_TABLE(Bitwise<ShiftLeft>)
LEVIN_OP_TABLE(Bitwise<ShiftRight>)
LEVIN_OP_TABLE(BitwiseUnary<BitwiseNot>)

template <class F>
Tensor bitwise(const Tensor& a, const Tensor& b) {
  return apply(Bitwise<F>{}, a, b);
}
template <class F>
Tensor bitwise(const Tensor& a, Scalar b) {
  return apply(BitwiseNumber<F>{b}, a);
}

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  check_divisor("floor_divide", a, b);
  return apply(Binary<FloorDivide>{}, a, b);
}
Tensor floor_divide(const Tensor& a, Scalar b) {
  check_divisor("floor_divide", a, b);
  return apply(WithNumber<FloorDivide, Side::right>{{}, b}, a);
}
Tensor floor_divide(Scalar a, const Tensor& b) { return floor_divide(number_beside("floor_divide", a, b), b); }
Tensor fmod(const Tensor& a, const Tensor& b) {
  check_divisor("fmod", a, b);
  return apply(Binary<Fmod>{}, a, b);
}
Tensor fmod(const Tensor& a, Scalar b) {
  check_divisor("fmod", a, b);
  return apply(WithNumber<Fmod, Side::right>{{}, b}, a);
}
Tensor fmod(Scalar a, const Tensor& b) { return fmod(number_beside("fmod", a, b), b); }
Tensor bitwise_and(const Tensor& a, const Tensor& b) { return bitwise<BitwiseAnd>(a, b); }
Tensor bitwise_or(const Tensor& a, const Tensor& b) { return bitwise<BitwiseOr>(a, b); }
Tensor bitwise_xor(const Tensor& a, const Tensor& b) { return bitwise<BitwiseXor>(a, b); }
Tensor bitwise_left_shift(const Tensor& a, const Tensor& b) { return bitwise<ShiftLeft>(a, b); }
Tensor bitwise_right_shift(const Tensor& a, const Tensor& b) { return bitwise<ShiftRight>(a, b); }
Tensor bitwise_and(const Tensor& a, Scalar b) { return bitwise<BitwiseAnd>(a, b); }
Tensor bitwise_or(const Tensor& a, Scalar b) { return bitwise<BitwiseOr>(a, b); }
Tensor bitwise_xor(const Tensor& a, Scalar b) { return bitwise<BitwiseXor>(a, b); }
Tensor bitwise_left_shift(const Tensor& a, Scalar b) { return bitwise<ShiftLeft>(a, b); }
Tensor bitwise_right_shift(const Tensor& a, Scalar b) { return bitwise<ShiftRight>(a, b); }
Tensor bitwise_not(const Tensor& x) { return apply(BitwiseUnary<BitwiseNot>{}, x); }

}  // namespace levin
