#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "autograd/ops/pointwise/pointwise_case_test.h"
#include "tests/ops/harness.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
// u8 wraps around; read as a signed number the result is -x there, too.
Tensor minus(const Tensor& x) {
  const Tensor y = neg(x);
  return x.dtype() == DType::u8 ? y.to(DType::i32) - gt(y, 127).to(DType::i32) * 256 : y;
}
double nearest_even(double x) { return std::nearbyint(x); }
double pi = 3.14159265358979323846;

// Integers are exact in every dtype up to 8 bits: small values only, so that bf16 holds them and u8 does not wrap.
const Domain kSmallInts{0, 6}, kPositive{0.3, 3};
const double kNan = std::numeric_limits<double>::quiet_NaN();

double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b); }
double smaller(double a, double b) { return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b); }
double share_of_larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? 1 : a == b ? 0.5 : a > b; }
double sign_of(double x) { return (x > 0) - (x < 0); }
// a - quotient b with the sign of b, and the quotient.
double python_remainder(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
double python_quotient(double a, double b) {
  return std::abs(a / b) < 0x1p52 ? std::nearbyint((a - python_remainder(a, b)) / b) : kNan;
}
// b a^(b - 1). Not compared where the power without the factor b is beyond the dtype's range, and where a sign depends
// on the last bit of b - 1.
double pow_slope(double a, double b) {
  const double power = std::pow(a, b - 1);
  if (b == 0) return 0;
  return (std::abs(b) < 1 && std::abs(power) > 65504) || (a < 0 && std::abs(b) > 100) ? kNan : b * power;
}
// x / (x^2 + y^2) without squares that overflow, 0 at the origin; NaN where x is infinite.
double over_square(double x, double y) {
  if (x == 0 && y == 0) return 0;
  const long double a = x, b = y;
  return static_cast<double>(a / (a * a + b * b));
}

}  // namespace

#define ARITHMETIC(name, value, slope_a, slope_b, ...)                                                           \
  LEVIN_OP_CASE(name) {                                                                                          \
    return binary_case(#name, &levin::name,                                                                      \
                       {[](double a, double b) -> double { return value; },                                      \
                        []([[maybe_unused]] double a, [[maybe_unused]] double b) -> double { return slope_a; },  \
                        []([[maybe_unused]] double a, [[maybe_unused]] double b) -> double { return slope_b; }}, \
                       __VA_ARGS__);                                                                             \
  }
ARITHMETIC(add, a + b, 1, 1, kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(sub, a - b, 1, -1, kNumberDTypes, {.low = 8, .high = 16, .wide = false}, kSmallInts)
ARITHMETIC(mul, a* b, b, a, kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(div, a / b, 1 / b, -a / b / b, kFloatDTypes, {}, kPositive)
ARITHMETIC(maximum, larger(a, b), share_of_larger(a, b), share_of_larger(b, a), kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(minimum, smaller(a, b), share_of_larger(b, a), share_of_larger(a, b), kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(atan2, std::atan2(a, b), over_square(b, a), -over_square(a, b), kFloatDTypes, {}, kPositive)
#undef ARITHMETIC

LEVIN_OP_CASE(remainder) {
  // Well inside one period of b, so that a rounded a has the same quotient; b is a whole number in every dtype.
  OpCase c = binary_case(
      "remainder", &levin::remainder,
      {python_remainder, [](double, double) { return 1.0; }, [](double a, double b) { return -python_quotient(a, b); }},
      kNumberDTypes, {.low = 10.2, .high = 12.8, .kinks = {1, -7}, .wide = false},
      {.low = 16, .high = 17, .kinks = {1e-3, -3}});
  // Of floats any quotient.
  OpSample any = c.samples.back();
  any.inputs = {real({50, 3}, -9, 9), real({50, 3}, 1, 9)};
  c.samples.push_back(any);
  c.errors.push_back({"an integer divisor of 0",
                      [] { (void)remainder(ones({2}, cpu, DType::i64), zeros({2}, cpu, DType::i64)); },
                      throws<IndexError>, "remainder: the divisor holds a 0"});
  return c;
}

// Bytes as i32, which holds the powers.
Tensor power(const Tensor& x, const Tensor& y) {
  return x.defined() && y.defined() && x.dtype() == DType::u8 && y.dtype() == DType::u8
             ? pow(x.to(DType::i32), y.to(DType::i32))
             : pow(x, y);
}

LEVIN_OP_CASE(pow) {
  OpCase c = binary_case("pow", &power,
                         {[](double a, double b) { return std::pow(a, b); }, pow_slope,
                          [](double a, double b) { return a == 0 && b >= 0 ? 0 : std::pow(a, b) * std::log(a); }},
                         kNumberDTypes, {.low = 0.3, .high = 3, .kinks = {1, -1, 2}, .wide = false},
                         {.low = 0, .high = 3, .kinks = {1, 2, 3, -1, -2.5, 0.5}});
  OpSample any = c.samples.back();
  any.inputs = {real({50, 3}, -9, 9), real({50, 3}, 0, 9)};
  c.samples.push_back(any);
  return c;
}

LEVIN_OP_CASE(pow_by_number) {
  OpCase c{.ops = {"pow"}, .dtypes = kFloatDTypes};
  for (const double p : {-1.5, 0.0, 1.0, 2.0, 3.0}) {
    for (const Shape& shape : {Shape{1}, Shape{0}, Shape{4}}) {
      c.samples.push_back({.inputs = {real(shape, 0.3, 2)},
                           .call = [p](const Tensors& in) { return Tensors{pow(in[0], p)}; },
                           .reference =
                               [p](const Tensors& in) {
                                 return Tensors{map_reference(in[0], [p](double x) { return std::pow(x, p); })};
                               }});
    }
  }
  c.errors.push_back({"an integer to a negative power", [] { (void)pow(ones({2}, cpu, DType::i64), -1); },
                      throws<ConfigError>, "pow: the exponent -1 is negative"});
  c.errors.push_back({"an integer to a fraction", [] { (void)pow(ones({2}, cpu, DType::i64), 0.5); },
                      throws<DTypeError>, "pow: the number 0.5 meets a tensor of i64"});
  return c;
}

LEVIN_OP_CASE(with_numbers) {
  OpCase c{.ops = {"add", "sub", "mul", "div"}, .dtypes = kFloatDTypes};
  const auto add = [&](Tensor (*f)(const Tensor&), F1 want) {
    for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
      c.samples.push_back({.inputs = {real(s, 0.5, 2)},
                           .call = [f](const Tensors& in) { return Tensors{f(in[0])}; },
                           .reference = [want](const Tensors& in) { return Tensors{map_reference(in[0], want)}; }});
    }
  };
  add([](const Tensor& x) { return (x + 1.5) * 2 - (0.25 + x); }, [](double x) { return (x + 1.5) * 2 - (0.25 + x); });
  add([](const Tensor& x) { return 3.5 - x; }, [](double x) { return 3.5 - x; });
  add([](const Tensor& x) { return 2 / x; }, [](double x) { return 2 / x; });
  add([](const Tensor& x) { return x / 4; }, [](double x) { return x / 4; });
  c.errors.push_back({"a fraction meets integers", [] { (void)(zeros({2}, cpu, DType::i64) + 0.5); },
                      throws<DTypeError>, "add: the number 0.5 meets a tensor of i64"});
  c.errors.push_back(
      {"integers do not divide", [] { (void)(ones({2}, cpu, DType::i64) / 2); }, throws<UnsupportedError>, "div: i64"});
  return c;
}

#define ELEMENTARY(name, value, slope, ...)                                                                    \
  LEVIN_OP_CASE(name) {                                                                                        \
    return unary_case(                                                                                         \
        {#name}, &levin::name,                                                                                 \
        {[](double x) -> double { return value; }, []([[maybe_unused]] double x) -> double { return slope; }}, \
        __VA_ARGS__);                                                                                          \
  }
LEVIN_OP_CASE(neg) {
  return unary_case({"neg"}, &minus, {[](double x) { return -x; }, [](double) { return -1.0; }}, kNumberDTypes);
}
const std::vector<double> kHalves{0.5, 1, 1.5, 2.5, -0.5, -1, -1.5, -2.5};
ELEMENTARY(abs, std::abs(x), sign_of(x), kNumberDTypes)
ELEMENTARY(sign, sign_of(x), 0, kNumberDTypes)
ELEMENTARY(square, x* x, 2 * x, kNumberDTypes)
ELEMENTARY(floor, std::floor(x), 0, kFloatDTypes, {.kinks = kHalves})
ELEMENTARY(ceil, std::ceil(x), 0, kFloatDTypes, {.kinks = kHalves})
ELEMENTARY(trunc, std::trunc(x), 0, kFloatDTypes, {.kinks = kHalves})
ELEMENTARY(round, nearest_even(x), 0, kFloatDTypes, {.kinks = kHalves})
ELEMENTARY(sqrt, std::sqrt(x), 0.5 / std::sqrt(x), kFloatDTypes, kPositive)
ELEMENTARY(rsqrt, 1 / std::sqrt(x), -0.5 / x / std::sqrt(x), kFloatDTypes, kPositive)
ELEMENTARY(reciprocal, 1 / x, -1 / x / x, kFloatDTypes, kPositive)
ELEMENTARY(exp, std::exp(x), std::exp(x), kFloatDTypes,
           {.low = -2, .high = 2, .kinks = {88.7, -87.4, -103.9, 709.7, -745}})
ELEMENTARY(expm1, std::expm1(x), std::exp(x), kFloatDTypes, {.low = -2, .high = 2, .kinks = {88.7, -18, -38, 1e-20}})
ELEMENTARY(log, std::log(x), 1 / x, kFloatDTypes, {.low = 0.3, .high = 3, .kinks = {1}})
ELEMENTARY(log1p, std::log1p(x), 1 / (1 + x), kFloatDTypes, {.low = 0.3, .high = 3, .kinks = {-1, -2, 1e-20}})
ELEMENTARY(log2, std::log2(x), 1 / (x * std::log(2)), kFloatDTypes, {.low = 0.3, .high = 3, .kinks = {1}})
ELEMENTARY(log10, std::log10(x), 1 / (x * std::log(10)), kFloatDTypes, {.low = 0.3, .high = 3, .kinks = {1}})
// Beyond the kinks another method subtracts the multiples of pi / 2.
ELEMENTARY(sin, std::sin(x), std::cos(x), kFloatDTypes,
           {.kinks = {0x1p20, 0x1p26, -0x1p26, 0x1p30, 3.65e9, 1e15, -1e22}})
ELEMENTARY(cos, std::cos(x), -std::sin(x), kFloatDTypes,
           {.kinks = {0x1p20, 0x1p26, -0x1p26, 0x1p30, 3.65e9, 1e15, -1e22}})
ELEMENTARY(tan, std::tan(x), 1 + std::tan(x) * std::tan(x), kFloatDTypes, {-1.2, 1.2})
ELEMENTARY(erf, std::erf(x), std::exp(-x* x) * 2 / std::sqrt(pi), kFloatDTypes,
           {.low = -2, .high = 2, .kinks = {1, -1}})
ELEMENTARY(erfc, std::erfc(x), -std::exp(-x* x) * 2 / std::sqrt(pi), kFloatDTypes,
           {.low = -2, .high = 2, .kinks = {0.5, -0.5, 1, -1, 6, 10, 26, -30}})
ELEMENTARY(asin, std::asin(x), 1 / std::sqrt((1 - x) * (1 + x)), kFloatDTypes,
           {.low = -0.9, .high = 0.9, .kinks = {0.5, -0.5, 1, -1, 1.5}})
ELEMENTARY(acos, std::acos(x), -1 / std::sqrt((1 - x) * (1 + x)), kFloatDTypes,
           {.low = -0.9, .high = 0.9, .kinks = {0.5, -0.5, 1, -1, 1.5}})
ELEMENTARY(atan, std::atan(x), 1 / (1 + x * x), kFloatDTypes, {.kinks = {0.5, -0.5, 2.5, -2.5, 1e20}})
ELEMENTARY(sinh, std::sinh(x), std::cosh(x), kFloatDTypes,
           {.low = -2, .high = 2, .kinks = {1, -1, 1e-20, 88.7, -89.4, 90, 709.7, 710.4, -711}})
ELEMENTARY(cosh, std::cosh(x), std::sinh(x), kFloatDTypes,
           {.low = -2, .high = 2, .kinks = {1e-20, 88.7, -89.4, 90, 709.7, 710.4, -711}})
ELEMENTARY(asinh, std::asinh(x), 1 / std::hypot(x, 1.0), kFloatDTypes, {.kinks = {0.5, 300, 1e-20, 1e18, 1e19, -1e30}})
ELEMENTARY(acosh, std::acosh(x), 1 / (std::sqrt(x - 1) * std::sqrt(x + 1)), kFloatDTypes,
           {.low = 1.2, .high = 3, .kinks = {1, 0.5, 300, 1e18, 1e19, 1e30}})
ELEMENTARY(atanh, std::atanh(x), 1 / ((1 - x) * (1 + x)), kFloatDTypes,
           {.low = -0.9, .high = 0.9, .kinks = {0.5, -0.5, 1, -1, 1.5, 1e-20}})
#undef ELEMENTARY

#define CLAMP(name, low, high, value, slope, ...)                                                                   \
  LEVIN_OP_CASE(name) {                                                                                             \
    OpCase c = unary_case({"clamp"}, [](const Tensor& x) { return clamp(x, low, high); },                           \
                          {[](double x) -> double { return value; }, [](double x) -> double { return slope; }},     \
                          kNumberDTypes, {.kinks = {__VA_ARGS__}});                                                 \
    c.errors = {{"no bound", [] { (void)clamp(zeros({1}, cpu), std::nullopt, std::nullopt); }, throws<ConfigError>, \
                 "clamp: neither"}};                                                                                \
    return c;                                                                                                       \
  }
CLAMP(clamp, 2, 5, std::clamp(x, 2.0, 5.0), x >= 2 && x <= 5, 2, 5, 1.5, 5.5)
CLAMP(clamp_above, {}, 4, std::min(x, 4.0), x <= 4, 4, 4.5)
CLAMP(clamp_below, 3, {}, std::max(x, 3.0), x >= 3, 3, 2.5)
#undef CLAMP

TEST_CASE("edge values: NaN, infinities and ties as PyTorch has them") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const Tensor x = tensor({nan, inf, -inf, 0.0, -0.0, 0.5, 1.5, 2.5}, cpu);
  CHECK(std::isnan(relu(x).to_vector<double>()[0]));
  CHECK(round(x).to_vector<double>()[5] == 0);
  CHECK(round(x).to_vector<double>()[7] == 2);
  CHECK(sigmoid(x).to_vector<double>()[1] == 1);
  CHECK(sigmoid(x).to_vector<double>()[2] == 0);
  CHECK(std::isnan(maximum(x, zeros_like(x)).to_vector<double>()[0]));
  CHECK(std::isnan(maximum(zeros_like(x), x).to_vector<double>()[0]));
  CHECK(std::isnan(minimum(zeros_like(x), x).to_vector<double>()[0]));
  CHECK(std::isnan(clamp(x, 0, 1).to_vector<double>()[0]));
  Tensor a = tensor({1.0}, cpu), b = tensor({1.0}, cpu);
  a.requires_grad_();
  b.requires_grad_();
  backward(maximum(a, b));
  CHECK(a.grad().item() == 0.5);
  CHECK(b.grad().item() == 0.5);
  Tensor zero = tensor({0.0}, cpu);
  zero.requires_grad_();
  backward(relu(zero) + abs(zero) + pow(zero, 0));
  CHECK(zero.grad().item() == 0);
}

TEST_CASE("integers wrap around instead of being undefined") {
  const Tensor big = full({1}, std::numeric_limits<std::int64_t>::max(), cpu, DType::i64);
  CHECK((big + 1).item<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  CHECK((tensor({std::uint8_t{250}}, cpu) + tensor({std::uint8_t{10}}, cpu)).item<int>() == 4);
}

TEST_CASE("the remainder of bytes by 255 is what is below 255, and the least number can be divided by -1") {
  const Tensor x = tensor({std::uint8_t{1}, std::uint8_t{7}, std::uint8_t{254}, std::uint8_t{255}}, cpu);
  const std::vector<std::uint8_t> want{1, 7, 254, 0};
  CHECK(remainder(x, full({4}, 255, cpu, DType::u8)).to_vector<std::uint8_t>() == want);
  const auto least = std::numeric_limits<std::int64_t>::min();
  const Tensor lowest = full({1}, least, cpu, DType::i64), minus_one = full({1}, -1, cpu, DType::i64);
  CHECK(remainder(lowest, minus_one).item<std::int64_t>() == 0);
  CHECK(fmod(lowest, minus_one).item<std::int64_t>() == 0);
  CHECK(floor_divide(lowest, minus_one).item<std::int64_t>() == least);  // wraps around
}

TEST_CASE("a row that repeats gives every row what it gives alone, also where it is a row of what changes") {
  Generator gen(4);
  for (const std::int64_t width : {1, 3, 7, 16, 100, 511, 700}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8}) {
      CAPTURE(width);
      CAPTURE(dtype);
      const std::int64_t rows = 2 * (2048 / width) + 3;
      const Tensor x = (rand({rows, width}, gen, Device::cpu()) * 90).to(dtype),
                   row = (rand({width}, gen, Device::cpu()) * 90).to(dtype), y = x - row, z = row * x,
                   less = lt(x, row);
      for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, rows / 2, rows - 2, rows - 1}) {
        const auto is_same = [](const Tensor& a, const Tensor& b) -> bool {
          return all(eq(a, b)).to_vector<bool>()[0];
        };
        CHECK(is_same(select(y, 0, i), select(x, 0, i) - row));
        CHECK(is_same(select(z, 0, i), row * select(x, 0, i)));
        CHECK(is_same(select(less, 0, i), lt(select(x, 0, i), row)));
      }
    }
  }
  Tensor own = ones({600, 4}, Device::cpu());
  add_(own, select(own, 0, 0));
  CHECK(sum(own).item() == 600 * 4 * 2);
}

TEST_CASE("operands that are dense along another dimension give what their dense copies give") {
  Generator gen(5);
  const auto drawn = [&](const Shape& shape, DType t) { return randint(0, 100, shape, gen, cpu, DType::i64).to(t); };
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    CAPTURE(text(t));
    for (const auto& [rows, cols] : {std::pair{130, 77}, {64, 64}, {17, 1000}, {1000, 17}, {300, 15}}) {
      const Tensor a = drawn({rows, cols}, t), b = transpose(drawn({cols, rows}, t), 0, 1);
      const Tensor deep = permute(drawn({cols, 3, rows}, t), {1, 2, 0}), line = drawn({cols}, t);
      CHECK(equal(add(a, b), add(a, b.contiguous())));
      CHECK(equal(mul(b, line), mul(b.contiguous(), line)));
      CHECK(equal(add(deep, b), add(deep.contiguous(), b.contiguous())));
      const Tensor chosen = transpose(gt(drawn({cols, rows}, DType::f32), 0), 0, 1);
      CHECK(equal(where(chosen, a, b), where(chosen.contiguous(), a, b.contiguous())));
    }
  }
}

TEST_CASE("results that are larger than the cache have the numbers of their parts") {
  Generator gen(5);
  const std::int64_t rows = (std::int64_t{9} << 10) + 3, columns = 1030;  // 36 MiB in f32, no multiple of a block
  const Tensor x = randn({rows, columns}, gen, cpu), bias = randn({columns}, gen, cpu);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor a = x.to(dtype), b = bias.to(dtype);
    for (const auto& f : {+[](const Tensor&p, const Tensor&) { return relu(p); },
                          +[](const Tensor&p, const Tensor&q) { return add(p, q); },
                          +[](const Tensor&p, const Tensor&) { return mul(p, p); },
                          +[](const Tensor&p, const Tensor&) { return p.to(DType::f16); }}) {
      const Tensor whole = f(a, b);
      for (std::int64_t at = 0; at < rows; at += 1000) {
        const std::int64_t n = std::min<std::int64_t>(1000, rows - at);
        CHECK(same_bits(narrow(whole, 0, at, n).contiguous(), f(narrow(a, 0, at, n).contiguous(), b)));
      }
    }
  }
  Tensor in_place = x.clone();
  add_(in_place, bias);
  CHECK(same_bits(in_place, add(x, bias)));
  // Short rows: of whole cache lines, and not.
  constexpr std::int64_t many = 73000, quarter = many / 4;
  const Tensor wide = reshape(narrow(reshape(x, {-1}), 0, 0, many * 128), {many, 128});
  for (const std::int64_t length : {64, 63}) {
    const Tensor left = narrow(wide, 1, 0, length), right = narrow(wide, 1, 64, length), sums = add(left, right);
    for (std::int64_t at = 0; at < many; at += quarter) {
      const auto part = [=](const Tensor& t) { return narrow(t, 0, at, quarter).contiguous(); };
      CHECK(same_bits(part(sums), add(part(left), part(right))));
    }
  }
  // Copies: of rows that begin at any byte, and of rows in reverse.
  const Tensor parts[] = {narrow(x, 1, 0, 515), narrow(x, 1, 515, 515)};
  CHECK(same_bits(cat(parts, 1), x));
  const Tensor turned = flip(x, {1});
  for (std::int64_t at = 0; at < columns; at += 206)
    CHECK(same_bits(narrow(turned, 1, at, 1).contiguous(), narrow(x, 1, columns - 1 - at, 1).contiguous()));
}

TEST_CASE("gelu and its derivative give no subnormal numbers, on which some CPUs compute slowly") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double least = dtype == DType::f32 ? std::numeric_limits<float>::min() : std::numeric_limits<double>::min();
    for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
      Tensor x = mul(arange(0, 60000, 1, cpu).to(dtype), -1e-3);  // 0 to -60
      x.requires_grad_();
      const Tensor y = gelu(x, form);
      backward(sum(y));
      for (const Tensor& t : {y.detach(), x.grad()}) {
        const Tensor size = abs(t).to(DType::f64);
        CHECK(sum(logical_and(gt(size, 0.0), lt(size, least)).to(DType::i64)).item<std::int64_t>() == 0);
        CHECK(sum(gt(size, 0.0).to(DType::i64)).item<std::int64_t>() > 5000);
      }
    }
  }
}

TEST_CASE("gelu of a negative zero is a negative zero, and far below 0 its results are zeros") {
  for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
    const Tensor y = gelu(tensor({-0.0f, 0.0f, -100.0f}, cpu), form);
    CHECK(y.data<float>()[0] == 0.0f);
    CHECK(std::signbit(y.data<float>()[0]));
    CHECK_FALSE(std::signbit(y.data<float>()[1]));
    CHECK(y.data<float>()[2] == 0.0f);
  }
}

TEST_CASE("sin and cos of a row that has near and far numbers in any place are right to 2 units in the last place") {
  std::vector<float> x;
  for (int i = 0; i < 3000; ++i) x.push_back(i % 700 == 3 ? 1e6f * float(i) * float(i) * 1e10f : float(i) * 0.37f);
  const Tensor t = from_data(x, {3000}, cpu);
  Tensor steps = empty({3000, 2}, cpu);
  Tensor stepped = select(steps, 1, 0);
  copy_(stepped, t);
  for (const Tensor& in : {t, stepped}) {
    const std::vector<float> s = sin(in).to_vector<float>(), c = cos(in).to_vector<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      REQUIRE(std::abs(s[i] - std::sin(double(x[i]))) <= 0x1p-23);
      REQUIRE(std::abs(c[i] - std::cos(double(x[i]))) <= 0x1p-23);
    }
  }
}

// Pairs of numbers of every size and kind, more than a block of a loop.
std::array<std::vector<double>, 2> pairs_of_every_size() {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> all{0.0,      inf,      std::nan(""),   1.0,    2.0,    3.0,
                          0x1p-149, 0x1p-126, 0x1.fffffep127, 0x1p24, 0x1p28, 0x1p29};
  std::mt19937 gen(3);
  while (all.size() < 40) {
    const float part = 1 + float(gen() % (1 << 23)) * 0x1p-23f;
    all.push_back(std::ldexp(double(part), int(gen() % 60) - 30));
    all.push_back(std::floor(all.back()));
  }
  std::array<std::vector<double>, 2> pairs;
  for (const double a : all)
    for (const double b : all)
      for (const double sign : {1.0, -1.0})
        for (const double other : {1.0, -1.0}) pairs[0].push_back(a * sign), pairs[1].push_back(b * other);
  return pairs;
}

TEST_CASE("fmod and remainder are exact, and atan2 rounds once, for numbers of every size") {
  const auto [a, b] = pairs_of_every_size();
  const auto n = static_cast<std::int64_t>(a.size());
  for (const DType dtype : {DType::f32, DType::f64}) {
    CAPTURE(dtype);
    const Tensor x = from_data(std::span<const double>(a), {n}, cpu).to(dtype);
    const Tensor y = from_data(std::span<const double>(b), {n}, cpu).to(dtype);
    const auto got = fmod(x, y).to(DType::f64).to_vector<double>(),
               python = remainder(x, y).to(DType::f64).to_vector<double>(),
               angle = atan2(x, y).to(DType::f64).to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      CAPTURE(a[i]);
      CAPTURE(b[i]);
      const double r = std::fmod(a[i], b[i]), turn = std::atan2(a[i], b[i]);
      const auto same = [](double u, double v) {
        return std::isnan(v) ? std::isnan(u) : u == v && std::signbit(u) == std::signbit(v);
      };
      REQUIRE(same(got[i], r));
      // The sum of the divisor and a remainder of the other sign rounds.
      const bool turns = r != 0 && (r < 0) != (b[i] < 0);
      const double sum = turns ? (dtype == DType::f32 ? double(float(r) + float(b[i])) : r + b[i]) : r;
      REQUIRE(same(python[i], sum));
      if (std::isnan(turn)) {
        REQUIRE(std::isnan(angle[i]));
        continue;
      }
      REQUIRE(std::signbit(angle[i]) == std::signbit(turn));
      const double unit = dtype == DType::f32 ? std::max(std::ldexp(1.0, std::ilogb(turn) - 23), 0x1p-149)
                                              : std::max(std::ldexp(1.0, std::ilogb(turn) - 52), 0x1p-1074);
      REQUIRE(std::abs(angle[i] - turn) <= (dtype == DType::f32 ? 0.51 : 3) * (turn == 0 ? 0 : unit));
    }
  }
}

TEST_CASE("the derivative of remainder in its divisor is the quotient of the value that it gives") {
  Tensor a = tensor({1.0, -1.0, 7.0}, cpu), b = tensor({1e-3, 0.1, -2.0}, cpu);
  b.requires_grad_();
  const Tensor r = remainder(a, b);
  const std::vector<double> g = grad(Tensors{sum(r)}, Tensors{b})[0].to_vector<double>(), v = r.to_vector<double>();
  CHECK(g == std::vector<double>{-999, 10, 4});  // 1 = 999 * 1e-3 + 9.99e-4, as the f64 nearest to 1e-3 is above it
  for (std::size_t i = 0; i < 3; ++i) {
    const double from = a.to_vector<double>()[i], by = b.detach().to_vector<double>()[i];
    CHECK(v[i] == doctest::Approx(from + g[i] * by).epsilon(1e-12));
  }
}

TEST_CASE("the derivative of atan2 is 0 where both are 0, and right where squares overflow") {
  Tensor y = tensor({0.f, 3e30f, 3e-30f}, cpu), x = tensor({0.f, 4e30f, 4e-30f}, cpu);
  y.requires_grad_();
  x.requires_grad_();
  const Tensors g = grad(Tensors{sum(atan2(y, x))}, Tensors{y, x});
  const std::vector<float> of_y = g[0].to_vector<float>(), of_x = g[1].to_vector<float>();
  CHECK(of_y[0] == 0);
  CHECK(of_x[0] == 0);
  CHECK(of_y[1] == doctest::Approx(0.16e-30));
  CHECK(of_x[1] == doctest::Approx(-0.12e-30));
  CHECK(of_y[2] == doctest::Approx(0.16e30));
  CHECK(of_x[2] == doctest::Approx(-0.12e30));
}

TEST_CASE("an empty view whose offset and strides are absurd is refused or empty, and its bytes are not counted") {
  const Tensor x = ones({4}, cpu);
  const auto most = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS((void)as_strided(x, {0}, Strides{}, most), ShapeError);
  Strides far;
  far[0] = most / 2;
  CHECK_THROWS_AS((void)as_strided(x, {1}, far, 0), ShapeError);
  far[0] = std::int64_t{1} << 49;
  far[1] = std::int64_t{1} << 49;
  const Tensor empty = as_strided(x, {0, std::int64_t{1} << 20}, far, std::int64_t{1} << 49);
  CHECK((empty + empty).numel() == 0);
}

TEST_CASE("erfc keeps its digits where erf is 1") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CAPTURE(dtype);
    const Tensor x = arange(-400, 2700, 1, cpu, DType::f64).to(dtype) / 100;
    const std::vector<double> at = x.to(DType::f64).to_vector<double>(), y = erfc(x).to(DType::f64).to_vector<double>();
    const double least = dtype == DType::f32 ? 0x1p-149 : 0x1p-1074;
    for (std::size_t i = 0; i < at.size(); ++i) {
      CAPTURE(at[i]);
      const long double want = std::erfc(static_cast<long double>(at[i]));
      // kernels/math/math.h: 4 units in the last place.
      REQUIRE(std::abs(y[i] - want) <= 4 * (epsilon(dtype) * want + least));
    }
  }
}

TEST_CASE("exp2 and powers of a number are rounded once in f32, and have their values at the ends") {
  const Tensor x = arange(-1500, 1280, 1, cpu, DType::f64).to(DType::f32) / 10;
  const std::vector<float> at = x.to_vector<float>(), y = exp2(x).to_vector<float>(),
                           z = pow(0.7, x).to_vector<float>();
  for (std::size_t i = 0; i < at.size(); ++i) {
    CAPTURE(at[i]);
    const double two = std::exp2(double(at[i])), other = std::pow(double(0.7f), double(at[i]));
    REQUIRE(std::abs(y[i] - two) <= 0x1p-23 * two + 0x1p-149);
    REQUIRE(std::abs(z[i] - other) <= 0x1p-23 * other + 0x1p-149);
  }
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> ends = exp2(tensor({kNan, inf, -inf, 0.0, 10.0, 1024.0, -1074.0}, cpu)).to_vector<double>();
  CHECK(std::isnan(ends[0]));
  CHECK(std::vector<double>(ends.begin() + 1, ends.end()) == std::vector<double>{inf, 0, 1, 1024, inf, 0x1p-1074});
  CHECK(exp2(full({}, 3.0, cpu)).item() == 8);
  CHECK(exp2(zeros({0, 2}, cpu)).shape() == Shape{0, 2});
  CHECK(pow(3, tensor<std::int64_t>({0, 1, 4}, cpu)).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 3, 81});
  CHECK_THROWS_WITH_AS((void)exp2(ones({2}, cpu, DType::i64)), doctest::Contains("exp2: i64 on cpu; has f32"),
                       UnsupportedError);
  CHECK_THROWS_WITH_AS((void)pow(0.5, ones({2}, cpu, DType::i64)), doctest::Contains("pow: the number 0.5 meets"),
                       DTypeError);
}

TEST_CASE("the derivative of a power of a number is its value times the logarithm, and of 0 it is 0 or infinite") {
  Tensor x = tensor({-1.5, 0.0, 0.25, 3.0}, cpu);
  x.requires_grad_();
  const std::vector<double> at = x.detach().to_vector<double>();
  for (const double a : {2.0, 0.3, 1.0}) {
    CAPTURE(a);
    const Tensor y = a == 2 ? exp2(x) : pow(a, x), g = grad(Tensors{sum(y)}, Tensors{x}, {}, {.create_graph = true})[0];
    const std::vector<double> first = g.detach().to_vector<double>();
    for (std::size_t i = 0; i < at.size(); ++i)
      CHECK(first[i] == doctest::Approx(std::pow(a, at[i]) * std::log(a)).epsilon(1e-14));
    if (a == 1) continue;
    const std::vector<double> second = grad(Tensors{sum(g)}, Tensors{x})[0].to_vector<double>();
    for (std::size_t i = 0; i < at.size(); ++i)
      CHECK(second[i] == doctest::Approx(std::pow(a, at[i]) * std::log(a) * std::log(a)).epsilon(1e-14));
  }
  const std::vector<double> of_zero = grad(Tensors{sum(pow(0, x))}, Tensors{x})[0].to_vector<double>();
  CHECK(of_zero == std::vector<double>{-std::numeric_limits<double>::infinity(), 0, 0, 0});
  CHECK(std::isnan(grad(Tensors{sum(pow(-2.0, x))}, Tensors{x})[0].to_vector<double>()[3]));
}

TEST_CASE("logit is the inverse of sigmoid, is infinite at 0 and 1, and clamps to [eps, 1 - eps]") {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> ends = logit(tensor({0.0, 1.0, -0.1, 1.1, kNan}, cpu)).to_vector<double>();
  CHECK(ends[0] == -inf);
  CHECK(ends[1] == inf);
  for (std::size_t i = 2; i < 5; ++i) CHECK(std::isnan(ends[i]));
  const Tensor back = arange(-30, 31, 1, cpu, DType::f64);
  CHECK(allclose(logit(sigmoid(narrow(back, 0, 0, 50))), narrow(back, 0, 0, 50), 1e-7, 1e-12));
  CHECK(logit(tensor({1e-300}, cpu)).item() == doctest::Approx(std::log(1e-300)).epsilon(1e-15));

  Tensor x = tensor({0.0, 0.05, 0.3, 0.95, 1.0, 2.0}, cpu);
  x.requires_grad_();
  const Tensor y = logit(x, 0.1);
  const std::vector<double> v = y.detach().to_vector<double>(), at = x.detach().to_vector<double>();
  const std::vector<double> inside{0.1, 0.1, 0.3, 0.9, 0.9, 0.9};
  for (std::size_t i = 0; i < v.size(); ++i)
    CHECK(v[i] == doctest::Approx(std::log(inside[i] / (1 - inside[i]))).epsilon(1e-14));
  const std::vector<double> g = grad(Tensors{sum(y)}, Tensors{x})[0].to_vector<double>();
  for (std::size_t i = 0; i < g.size(); ++i)
    CHECK(g[i] == doctest::Approx(i == 2 ? 1 / (0.3 * 0.7) : 0).epsilon(1e-14));
  CHECK(isnan(logit(tensor({kNan}, cpu), 0.1)).item<bool>());

  // Of 16 bits it is rounded once.
  const Tensor fine = rsqrt(arange(2, 200, 1, cpu, DType::f64)).to(DType::bf16);
  CHECK(equal(logit(fine), logit(fine.to(DType::f32)).to(DType::bf16)));
  CHECK(logit(zeros({0}, cpu)).numel() == 0);
  CHECK_THROWS_WITH_AS((void)logit(x, 0.6), doctest::Contains("logit: eps is 0.6"), ConfigError);
  CHECK_THROWS_AS((void)logit(x, kNan), ConfigError);
  CHECK_THROWS_AS((void)logit(ones({1}, cpu, DType::i32)), UnsupportedError);
}

TEST_CASE("max and min of one tensor are its extremes, and of two the larger and the smaller elements") {
  Tensor x = tensor({1.0, 3.0, 3.0, -2.0}, cpu), y = tensor({2.0, 3.0, 1.0, -3.0}, cpu);
  x.requires_grad_();
  CHECK(max(x).shape() == Shape{});
  CHECK(max(x).item() == 3);
  CHECK(min(x).item() == -2);
  CHECK(std::isnan(max(tensor({1.0, kNan}, cpu)).item()));
  CHECK(grad(Tensors{max(x)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{0, 0.5, 0.5, 0});
  CHECK(grad(Tensors{min(x)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{0, 0, 0, 1});
  CHECK(max(x, y).detach().to_vector<double>() == std::vector<double>{2, 3, 3, -2});
  CHECK(min(x, y).detach().to_vector<double>() == std::vector<double>{1, 3, 1, -3});
  CHECK(grad(Tensors{sum(max(x, y))}, Tensors{x})[0].to_vector<double>() == std::vector<double>{0, 0.5, 1, 1});
  CHECK(max(x, 0).indices.item<int>() == 1);
  CHECK(max(full({}, 7.0, cpu)).item() == 7);
  CHECK_THROWS_AS((void)max(zeros({0}, cpu)), ShapeError);
  CHECK_THROWS_AS((void)max(x, zeros({3}, cpu, DType::f64)), ShapeError);
}

}  // namespace levin::testing
