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

#include "levin/error.h"
#include "levin/export.h"

namespace levin {

enum class DType : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8, b8 };  // b8 is bool, one byte an element
inline constexpr int kDTypeCount = 8;

namespace detail {
// x as a float whose last bit is set when x does not fit ("round to odd"): rounding that to 16 bits then gives what
// rounding x once would, where rounding to the nearest float first can land on a tie that x is not.
constexpr float to_odd(double x) {
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

[[nodiscard]] constexpr bool is_float(DType t) { return t <= DType::bf16; }
[[nodiscard]] constexpr bool is_integer(DType t) { return t == DType::i32 || t == DType::i64 || t == DType::u8; }
[[nodiscard]] constexpr std::size_t itemsize(DType t) {
  constexpr std::size_t sizes[kDTypeCount] = {4, 8, 2, 2, 4, 8, 1, 1};
  return sizes[static_cast<int>(t)];
}
[[nodiscard]] LEVIN_API const char* name(DType t);  // "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool"
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
}  // namespace detail

template <class T>
concept Element = requires {
  detail::DTypeOf<T>::value;
};
template <Element T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

// A C++ number that takes the dtype of the tensor it meets; a fraction meeting an integer tensor throws DTypeError.
class Scalar {
 public:
  template <std::integral I>
  constexpr Scalar(I x) : integer_(static_cast<std::int64_t>(x)), real_(static_cast<double>(x)), is_integer_(true) {}
  template <std::floating_point F>
  constexpr Scalar(F x) : real_(static_cast<double>(x)) {}
  [[nodiscard]] constexpr bool is_integer() const { return is_integer_; }
  [[nodiscard]] constexpr double real() const { return real_; }
  [[nodiscard]] constexpr std::int64_t integer() const {
    return is_integer_ ? integer_ : static_cast<std::int64_t>(real_);
  }
  // The value as a T, as a tensor of that dtype would hold it.
  template <Element T>
  [[nodiscard]] constexpr T to() const {
    if constexpr (std::integral<T>) {
      return static_cast<T>(is_integer_ ? integer_ : static_cast<std::int64_t>(real_));
    } else if constexpr (std::same_as<T, double>) {
      return real_;
    } else if (is_integer_) {
      return T(integer_);
    } else {
      return T(real_);
    }
  }

 private:
  std::int64_t integer_ = 0;
  double real_ = 0;
  bool is_integer_ = false;
};
[[nodiscard]] LEVIN_API std::string text(const Scalar& s);

}  // namespace levin
