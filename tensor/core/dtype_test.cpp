#include "levin/dtype.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

using namespace levin;

namespace {

// Decodes by the definition of the format: sign, exponent of `exponent_bits`, mantissa of `mantissa_bits`.
double decoded(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

template <class H>
H from_bits(unsigned bits) {
  H h;
  h.bits = static_cast<std::uint16_t>(bits);
  return h;
}

// All 65536 values decode as the format says and come back unchanged, NaNs as some NaN.
template <class H>
int wrong_decodings(int exponent_bits, int mantissa_bits) {
  int wrong = 0;
  for (unsigned b = 0; b < 65536; ++b) {
    const H h = from_bits<H>(b);
    const float f = static_cast<float>(h);
    const double expected = decoded(static_cast<std::uint16_t>(b), exponent_bits, mantissa_bits);
    const H back = H(f);
    const bool returned = std::isnan(f) ? std::isnan(static_cast<float>(back)) : back.bits == b;
    if (!same(f, expected) || !same(static_cast<double>(h), expected) || !returned) ++wrong;
  }
  return wrong;
}

// Between each two neighbours of the format: the midpoint rounds to the even one, a float on either side of the
// midpoint to the nearer. `top` is the largest finite value's bits; its upper neighbour is infinity.
template <class H>
int wrong_roundings(unsigned top, int exponent_bits, int mantissa_bits) {
  int wrong = 0;
  for (unsigned b = 0; b <= top; ++b) {
    const double low = decoded(static_cast<std::uint16_t>(b), exponent_bits, mantissa_bits);
    const double high = b == top
                            ? low + (low - decoded(static_cast<std::uint16_t>(b - 1), exponent_bits, mantissa_bits))
                            : decoded(static_cast<std::uint16_t>(b + 1), exponent_bits, mantissa_bits);
    const auto middle = static_cast<float>((low + high) / 2);
    if (static_cast<double>(middle) != (low + high) / 2) continue;  // no float between them: bf16's smallest
    const unsigned even = b & 1 ? b + 1 : b;
    for (const float sign : {1.f, -1.f}) {
      const unsigned s = sign < 0 ? 0x8000u : 0;
      if (H(sign * middle).bits != (even | s)) ++wrong;
      if (H(sign * std::nextafterf(middle, 0)).bits != (b | s)) ++wrong;
      if (H(sign * std::nextafterf(middle, INFINITY)).bits != ((b + 1) | s)) ++wrong;
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("all 65536 f16 values convert to float and back as IEEE binary16 says") {
  CHECK(wrong_decodings<f16>(5, 10) == 0);
}

TEST_CASE("all 65536 bf16 values convert to float and back as the upper half of binary32") {
  CHECK(wrong_decodings<bf16>(8, 7) == 0);
}

TEST_CASE("floats round to the nearest f16, ties to even, at every boundary") {
  CHECK(wrong_roundings<f16>(0x7bff, 5, 10) == 0);
}

TEST_CASE("floats round to the nearest bf16, ties to even, at every boundary") {
  CHECK(wrong_roundings<bf16>(0x7f7f, 8, 7) == 0);
}

#if defined(__FLT16_MANT_DIG__)
TEST_CASE("f16 agrees with the compiler's _Float16 over floats of every exponent") {
  int wrong = 0;
  for (std::uint64_t u = 0; u < (std::uint64_t{1} << 32); u += 10007) {  // prime: all exponents, varied mantissas
    const float f = std::bit_cast<float>(static_cast<std::uint32_t>(u));
    const auto expected = std::bit_cast<std::uint16_t>(static_cast<_Float16>(f));
    const f16 h(f);
    if (std::isnan(f) ? !std::isnan(static_cast<float>(h)) : h.bits != expected) ++wrong;
  }
  CHECK(wrong == 0);
}
#endif

TEST_CASE("a double rounds once on its way to 16 bits") {
  // Just above a tie of f16, closer than a float can resolve: rounding to float first would give the tie.
  CHECK(f16(1 + 0x1p-11 + 0x1p-40).bits == 0x3c01);
  CHECK(f16(1 + 0x1p-11).bits == 0x3c00);
  CHECK(f16(1 + 0x3p-11 - 0x1p-40).bits == 0x3c01);
  CHECK(f16(-1 - 0x1p-11 - 0x1p-40).bits == 0xbc01);
  CHECK(bf16(1 + 0x1p-8 + 0x1p-40).bits == 0x3f81);
  CHECK(bf16(1 + 0x1p-8).bits == 0x3f80);
  CHECK(bf16(1 + 0x3p-8 - 0x1p-40).bits == 0x3f81);
  CHECK(f16(65519.999999999).bits == 0x7bff);
  CHECK(f16(1e300).bits == 0x7c00);
  CHECK(std::isnan(static_cast<float>(f16(static_cast<double>(NAN)))));
}

TEST_CASE("an integer rounds once on its way to 16 bits") {
  CHECK(bf16((std::int64_t{1} << 62) + (std::int64_t{1} << 54) + 1).bits == 0x5e81);
  CHECK(bf16(std::int64_t{1} << 62).bits == 0x5e80);
  CHECK(f16(2049).bits == f16(2048.f).bits);
  CHECK(f16(2051).bits == f16(2052.f).bits);
}

TEST_CASE("16-bit floats compare by value") {
  CHECK(f16(0.f) == f16(-0.f));
  CHECK(!(f16(NAN) == f16(NAN)));
  CHECK(bf16(0.f) == bf16(-0.f));
}

TEST_CASE("conversions are constant expressions") {
  static_assert(f16(1.f).bits == 0x3c00);
  static_assert(bf16(1.f).bits == 0x3f80);
  static_assert(static_cast<float>(f16(0.1f)) == 0.0999755859375f);
  static_assert(itemsize(DType::bf16) == 2);
}

TEST_CASE("dtypes know size, kind, name and distance behind one") {
  CHECK(itemsize(DType::f64) == 8);
  CHECK(itemsize(DType::i64) == 8);
  CHECK(itemsize(DType::b8) == 1);
  CHECK(is_float(DType::bf16));
  CHECK(!is_float(DType::i32));
  CHECK(is_integer(DType::u8));
  CHECK(!is_integer(DType::b8));
  CHECK(is_integer(DType::i8));
  CHECK(is_integer(DType::i16));
  CHECK(!is_integer(DType::bf16));
  CHECK(!is_float(DType::i8));
  CHECK(is_storage(DType::i16));
  CHECK(!is_storage(DType::u8));
  const std::size_t sizes[] = {4, 8, 2, 2, 4, 8, 1, 1, 1, 2};
  for (int i = 0; i < kDTypeCount; ++i) CHECK(itemsize(static_cast<DType>(i)) == sizes[i]);
  // Files hold the numbers.
  CHECK(static_cast<int>(DType::b8) == 7);
  CHECK(static_cast<int>(DType::i8) == 8);
  CHECK(static_cast<int>(DType::i16) == 9);
  const std::string names[] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool", "i8", "i16"};
  for (int i = 0; i < kDTypeCount; ++i) CHECK(name(static_cast<DType>(i)) == names[i]);
  CHECK(epsilon(DType::f16) == static_cast<double>(static_cast<float>(from_bits<f16>(0x3c01)) - 1.f));
  CHECK(epsilon(DType::bf16) == static_cast<double>(static_cast<float>(from_bits<bf16>(0x3f81)) - 1.f));
  CHECK(epsilon(DType::f32) == static_cast<double>(std::numeric_limits<float>::epsilon()));
  CHECK(epsilon(DType::f64) == std::numeric_limits<double>::epsilon());
  CHECK_THROWS_AS((void)epsilon(DType::i32), DTypeError);
}

TEST_CASE("a scalar keeps integers exactly and tells them from fractions") {
  const Scalar big = (std::int64_t{1} << 62) + 1;
  CHECK(big.is_integer());
  CHECK(big.integer() == (std::int64_t{1} << 62) + 1);
  CHECK(big.to<std::int64_t>() == (std::int64_t{1} << 62) + 1);
  const Scalar half = 0.5;
  CHECK(!half.is_integer());
  CHECK(half.integer() == 0);
  CHECK(half.to<f16>().bits == 0x3800);
  CHECK(half.to<double>() == 0.5);
  CHECK(text(half) == "0.5");
  CHECK(text(Scalar(3)) == "3");
}
