// Element types: a closed enum, and the two 16-bit floats as plain structs that are the same type in every translation
// unit.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "levin/error.h"
#include "levin/export.h"

namespace levin {

// b8 is bool, one byte an element. i8 and i16 are storage: see is_storage. Files hold the numbers: new dtypes go last.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8, b8, i8, i16 };
inline constexpr int kDTypeCount = 10;

namespace detail {
// x as a float whose last bit is set when x does not fit ("round to odd"): rounding that to 16 bits then gives what
// rounding x once would, where rounding to the nearest float first can land on a tie that x is not.
constexpr float to_odd(double x) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) {
    float cut = 0;
    asm("cvt.rz.f32.f64 %0, %1;" : "=f"(cut) : "d"(x));
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(cut) | (static_cast<double>(cut) != x ? 1u : 0u));
  }
#endif
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  std::uint32_t u = std::bit_cast<std::uint32_t>(nearest);
  u -= (back < 0 ? -back : back) > (x < 0 ? -x : x) ? 1u : 0u;  // toward zero
  u |= back != x ? 1u : 0u;
  return std::bit_cast<float>(u);
}
template <std::integral I>
constexpr float to_odd(I x) {
  if constexpr (sizeof(I) <= 4) {
    return to_odd(static_cast<double>(x));
  } else {
    const std::uint64_t u = static_cast<std::uint64_t>(x);
    const std::uint64_t magnitude = x < 0 ? 0 - u : u;
    const std::uint64_t head = (magnitude >> 11) | ((magnitude & 0x7ffu) != 0 ? 1u : 0u);  // 53 bits, exact in a double
    const double value = (magnitude >> 53) != 0 ? static_cast<double>(head) * 2048.0 : static_cast<double>(magnitude);
    return to_odd(x < 0 ? -value : value);
  }
}
}  // namespace detail

// IEEE 754 binary16. Conversions round once, to nearest even; overflow goes to infinity, NaN stays NaN.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(float x) {
#if defined(__CUDA_ARCH__)
    if (!std::is_constant_evaluated()) {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
      return;
    }
#endif
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = u & 0x7fffffffu;
    // Below 2^-14 results are subnormal: adding 0.5 leaves round(x / 2^-24) in the low mantissa bits.
    const std::uint32_t small =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
    const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    std::uint32_t h = magnitude < 0x38800000u ? small : normal;
    h = magnitude >= 0x477ff000u ? 0x7c00u : h;  // 65520 and more rounds to infinity
    h = magnitude > 0x7f800000u ? 0x7e00u : h;
    bits = static_cast<std::uint16_t>(h | ((u >> 16) & 0x8000u));
  }
  constexpr explicit f16(double x) : f16(detail::to_odd(x)) {}
  template <std::integral I>
  constexpr explicit f16(I x) : f16(detail::to_odd(x)) {}
  constexpr explicit operator float() const {
#if defined(__CUDA_ARCH__)
    if (!std::is_constant_evaluated()) {
      float x = 0;
      asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
      return x;
    }
#endif
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;  // exact, subnormals included
    std::uint32_t u = std::bit_cast<std::uint32_t>(scaled);
    u = magnitude >= (0x7c00u << 13) ? (magnitude | 0x7f800000u) : u;
    return std::bit_cast<float>(u | (static_cast<std::uint32_t>(bits & 0x8000u) << 16));
  }
  constexpr explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }
  friend constexpr bool operator==(f16 a, f16 b) { return static_cast<float>(a) == static_cast<float>(b); }
};

// bfloat16: the upper half of a binary32. Conversions round once, to nearest even.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  constexpr explicit bf16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (!std::is_constant_evaluated()) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
      return;
    }
#endif
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded);
  }
  constexpr explicit bf16(double x) : bf16(detail::to_odd(x)) {}
  template <std::integral I>
  constexpr explicit bf16(I x) : bf16(detail::to_odd(x)) {}
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  constexpr explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }
  friend constexpr bool operator==(bf16 a, bf16 b) { return static_cast<float>(a) == static_cast<float>(b); }
};

// f32, f64, f16, bf16; i32, i64, u8, i8, i16; bytes an element.
[[nodiscard]] constexpr bool is_float(DType t) { return t <= DType::bf16; }
[[nodiscard]] constexpr bool is_integer(DType t) { return t > DType::bf16 && t != DType::b8; }
// i8, i16: ops move, compare and convert them. What computes refuses them; to(DType::i32) is the way there.
[[nodiscard]] constexpr bool is_storage(DType t) { return t == DType::i8 || t == DType::i16; }
[[nodiscard]] constexpr std::size_t itemsize(DType t) {
  // Binary logarithms of two bits each: a table would be written to the stack at every call.
  return std::size_t{1} << (0b01'00'00'00'11'10'01'01'11'10u >> 2 * static_cast<int>(t) & 3u);
}
[[nodiscard]] LEVIN_API const char* name(DType t);  // "f32", ..., "i64", "u8", "bool", "i8", "i16"
[[nodiscard]] inline std::string text(DType t) { return name(t); }

// The distance from 1 to the next number: 2^-23, 2^-52, 2^-10, 2^-7. Throws DTypeError for integers and bool.
[[nodiscard]] LEVIN_API double epsilon(DType t);

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::b8;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<std::int16_t> {
  static constexpr DType value = DType::i16;
};
}  // namespace detail

// The C++ types of elements, and the DType of one.
template <class T>
concept Element = requires {
  detail::DTypeOf<T>::value;
};
template <Element T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

namespace detail {
// x as an integer: toward zero, the nearest that fits, NaN as 0; not 0 as true.
template <std::integral I>
constexpr I saturated(double x) {
  if constexpr (std::same_as<I, bool>) {
    return x != 0;
  } else {
    constexpr I low = std::numeric_limits<I>::min(), high = std::numeric_limits<I>::max();
    if (!(x > static_cast<double>(low))) return x != x ? I(0) : low;
    return x >= static_cast<double>(high) ? high : static_cast<I>(x);  // 64 bits: the bound rounds up to a power of two
  }
}
}  // namespace detail

// A C++ number, which takes the dtype of the tensor it meets. A fraction beside an integer tensor throws DTypeError,
// and so does an integer outside of the dtype's range where the result cannot hold it.
class Scalar {
 public:
  template <std::integral I>
  constexpr Scalar(I x) : real_(static_cast<double>(x)), is_integer_(true) {
    if constexpr (!std::same_as<I, bool> && std::unsigned_integral<I> && sizeof(I) >= sizeof(std::int64_t)) {
      constexpr auto high = static_cast<I>(std::numeric_limits<std::int64_t>::max());
      beyond_ = x > high;
      integer_ = static_cast<std::int64_t>(beyond_ ? high : x);
    } else {
      integer_ = static_cast<std::int64_t>(x);
    }
  }
  template <std::floating_point F>
  constexpr Scalar(F x) : real_(static_cast<double>(x)) {}
  [[nodiscard]] constexpr bool is_integer() const { return is_integer_; }
  [[nodiscard]] constexpr double real() const { return real_; }
  // Toward zero, the nearest that fits, NaN as 0.
  [[nodiscard]] constexpr std::int64_t integer() const {
    return is_integer_ ? integer_ : detail::saturated<std::int64_t>(real_);
  }
  // The value as a T: the nearest that fits for integers (NaN as 0), not 0 as true for bool, rounded for floats.
  template <class T>
  requires(Element<T> || std::integral<T>) [[nodiscard]] constexpr T to() const {
    if constexpr (std::same_as<T, bool>) {
      return real_ != 0;
    } else if constexpr (std::integral<T>) {
      if (!is_integer_ || beyond_) return detail::saturated<T>(real_);
      return below<T>()   ? std::numeric_limits<T>::min()
             : above<T>() ? std::numeric_limits<T>::max()
                          : static_cast<T>(integer_);
    } else if constexpr (std::same_as<T, double>) {
      return real_;
    } else if (is_integer_ && !beyond_) {
      return T(integer_);
    } else {
      return T(real_);
    }
  }
  // An integer outside of T's range, under or over it; bool has 0 and 1. Floats hold every integer, rounded.
  template <class T>
  [[nodiscard]] constexpr bool below() const {
    if constexpr (std::integral<T>)
      return is_integer_ && std::cmp_less(integer_, lowest<T>());
    else
      return false;
  }
  template <class T>
  [[nodiscard]] constexpr bool above() const {
    if constexpr (std::same_as<T, std::uint64_t>)
      return false;
    else if constexpr (std::integral<T>)
      return is_integer_ && (beyond_ || std::cmp_greater(integer_, highest<T>()));
    else
      return false;
  }

 private:
  // Promoted, since std::cmp_less takes no bool.
  template <class T>
  static constexpr auto lowest() {
    return +std::numeric_limits<T>::min();
  }
  template <class T>
  static constexpr auto highest() {
    return +std::numeric_limits<T>::max();
  }
  std::int64_t integer_ = 0;
  double real_ = 0;
  bool is_integer_ = false;
  bool beyond_ = false;  // an unsigned integer above INT64_MAX: integer_ is INT64_MAX then
};
[[nodiscard]] LEVIN_API std::string text(const Scalar& s);

}  // namespace levin
