#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "autograd/ops/pointwise/pointwise_case_test.h"
#include "levin/autograd.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
const std::vector<DType> kIntegerDTypes{DType::i32, DType::i64, DType::u8};
const std::vector<DType> kBitDTypes{DType::i32, DType::i64, DType::u8, DType::b8};

double floor_quotient(double a, double b) {
  if (b == 0) return a / b;
  const double r = std::fmod(a, b), q = (a - r) / b;
  return std::isnan(r) ? r : r != 0 && (r < 0) != (b < 0) ? q - 1 : q;
}
double zero(double, double) { return 0; }
double one(double, double) { return 1; }
// -trunc(a / b), where it is exact.
double minus_quotient(double a, double b) {
  return std::abs(a / b) < 0x1p52 ? -std::nearbyint((a - std::fmod(a, b)) / b)
                                  : std::numeric_limits<double>::quiet_NaN();
}

// Inside one quotient, so that a rounded a has the same, and any quotient of floats.
OpCase quotient_case(const char* op, Tensor (*f)(const Tensor&, const Tensor&), Tensor (*number)(const Tensor&, Scalar),
                     const Binary& want) {
  OpCase c = binary_case(op, f, want, kNumberDTypes, {.low = 26.2, .high = 28.8, .kinks = {1, -7}, .wide = false},
                         {.low = 8, .high = 9, .kinks = {1e-3, -3}});
  OpSample any = c.samples.back();
  any.inputs = {real({50, 3}, -9, 9), real({50, 3}, 1, 9)};
  c.samples.push_back(any);
  const std::string name = op;
  for (const Shape& shape : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back({.inputs = {real(shape, 26.2, 28.8)},
                         .call = [number](const Tensors& in) { return Tensors{number(in[0], 8)}; },
                         .reference =
                             [want](const Tensors& in) {
                               return Tensors{map_reference(in[0], [want](double x) { return want.value(x, 8); })};
                             }});
  }
  c.errors.push_back({"an integer divisor of 0",
                      [f] { (void)f(ones({2}, cpu, DType::i64), zeros({2}, cpu, DType::i64)); }, throws<IndexError>,
                      name + ": the divisor holds a 0"});
  c.errors.push_back({"the number 0", [number] { (void)number(ones({2}, cpu, DType::i32), 0); }, throws<IndexError>,
                      name + ": the divisor holds a 0"});
  c.errors.push_back({"a fraction", [number] { (void)number(ones({2}, cpu, DType::i32), 0.5); }, throws<DTypeError>,
                      name + ": the number 0.5"});
  return c;
}

template <class F>
OpCase bits_case(const char* op, Tensor (*f)(const Tensor&, const Tensor&), Tensor (*number)(const Tensor&, Scalar),
                 const std::vector<DType>& dtypes, double largest, F want) {
  OpCase c{.ops = {op}, .dtypes = dtypes, .differentiable = false};
  const auto value = [want](double a, double b) {
    return static_cast<double>(want(static_cast<std::int64_t>(a), static_cast<std::int64_t>(b)));
  };
  for (const auto& [a, b] : {std::pair{Shape{1}, Shape{1}},
                             {Shape{0}, Shape{0}},
                             {Shape{40}, Shape{40}},
                             {Shape{3, 1}, Shape{4}},
                             {Shape{}, Shape{5}},
                             {Shape{70, 1000}, Shape{70, 1000}}}) {
    c.samples.push_back(
        {.inputs = {real(a, -9, 9), real(b, largest > 8 ? -9 : 0, largest)},
         .call = [f](const Tensors& in) { return Tensors{f(in[0], in[1])}; },
         .reference = [value](const Tensors& in) { return Tensors{map_reference(in[0], in[1], value)}; }});
  }
  c.samples.push_back({.inputs = {real({9}, -9, 9)},
                       .call = [number](const Tensors& in) { return Tensors{number(in[0], 1)}; },
                       .reference =
                           [value](const Tensors& in) {
                             return Tensors{map_reference(in[0], [value](double x) { return value(x, 1); })};
                           }});
  const std::string name = op;
  c.errors.push_back(
      {"floats", [f] { (void)f(zeros({1}, cpu), zeros({1}, cpu)); }, throws<UnsupportedError>, name + ": f32"});
  c.errors.push_back({"a number that does not fit", [number] { (void)number(zeros({1}, cpu, DType::u8), 256); },
                      throws<DTypeError>, name + ": the number 256 does not fit u8"});
  c.errors.push_back({"shapes", [f] { (void)f(zeros({2}, cpu, DType::i32), zeros({3}, cpu, DType::i32)); },
                      throws<ShapeError>, name + ": shapes [2] and [3]"});
  return c;
}

}  // namespace

LEVIN_OP_CASE(floor_divide) {
  return quotient_case("floor_divide", &floor_divide, &floor_divide, {floor_quotient, zero, zero});
}
LEVIN_OP_CASE(fmod) {
  return quotient_case("fmod", &fmod, &fmod, {[](double a, double b) { return std::fmod(a, b); }, one, minus_quotient});
}
LEVIN_OP_CASE(bitwise_and) {
  return bits_case("bitwise_and", &bitwise_and, &bitwise_and, kBitDTypes, 9,
                   [](std::int64_t a, std::int64_t b) { return a & b; });
}
LEVIN_OP_CASE(bitwise_or) {
  return bits_case("bitwise_or", &bitwise_or, &bitwise_or, kBitDTypes, 9,
                   [](std::int64_t a, std::int64_t b) { return a | b; });
}
LEVIN_OP_CASE(bitwise_xor) {
  return bits_case("bitwise_xor", &bitwise_xor, &bitwise_xor, kBitDTypes, 9,
                   [](std::int64_t a, std::int64_t b) { return a ^ b; });
}
LEVIN_OP_CASE(bitwise_left_shift) {
  return bits_case("bitwise_left_shift", &bitwise_left_shift, &bitwise_left_shift, kIntegerDTypes, 5,
                   [](std::int64_t a, std::int64_t b) { return a * (std::int64_t{1} << b); });
}
LEVIN_OP_CASE(bitwise_right_shift) {
  return bits_case("bitwise_right_shift", &bitwise_right_shift, &bitwise_right_shift, kIntegerDTypes, 5,
                   [](std::int64_t a, std::int64_t b) { return a >> b; });
}
LEVIN_OP_CASE(bitwise_not) {
  OpCase c{.ops = {"bitwise_not"}, .dtypes = kBitDTypes, .differentiable = false};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}, Shape{}}) {
    c.samples.push_back(
        {.inputs = {real(s, -9, 9)},
         .call =
             [](const Tensors& in) {
               const Tensor y = bitwise_not(in[0]);  // 255 - x of bytes, 1 - x of bool
               if (y.dtype() == DType::u8) return Tensors{y.to(DType::i32) - 256};
               return Tensors{y.dtype() == DType::b8 ? y.to(DType::i32) - 2 : y};
             },
         .reference =
             [](const Tensors& in) { return Tensors{map_reference(in[0], [](double x) { return -1 - x; })}; }});
  }
  c.errors.push_back(
      {"floats", [] { (void)bitwise_not(zeros({1}, cpu)); }, throws<UnsupportedError>, "bitwise_not: f32"});
  return c;
}

TEST_CASE("quotients of integers have the signs of Python's // and %, and of C's %") {
  const Tensor a = tensor({7, -7, 7, -7, 6, -6}, cpu).to(DType::i64),
               b = tensor({2, 2, -2, -2, 3, 3}, cpu).to(DType::i64);
  using Integers = std::vector<std::int64_t>;
  CHECK(floor_divide(a, b).to_vector<std::int64_t>() == Integers{3, -4, -4, 3, 2, -2});
  CHECK(remainder(a, b).to_vector<std::int64_t>() == Integers{1, 1, -1, -1, 0, 0});
  CHECK(fmod(a, b).to_vector<std::int64_t>() == Integers{1, -1, 1, -1, 0, 0});
  CHECK(floor_divide(a, -2).to_vector<std::int64_t>() == Integers{-4, 3, -4, 3, -3, 3});
  CHECK(remainder(a, 4).to_vector<std::int64_t>() == Integers{3, 1, 3, 1, 2, 2});
  CHECK(fmod(a, 4).to_vector<std::int64_t>() == Integers{3, -3, 3, -3, 2, -2});
  const auto least = std::numeric_limits<std::int32_t>::min();
  const Tensor lowest = full({3}, least, cpu, DType::i32);
  CHECK(floor_divide(lowest, -1).to_vector<int>() == std::vector<int>{least, least, least});
  CHECK(fmod(lowest, -1).to_vector<int>() == std::vector<int>{0, 0, 0});
  CHECK(floor_divide(full({1}, 254, cpu, DType::u8), 255).item<int>() == 0);
}

TEST_CASE("quotients of floats round as Python's, and a zero divisor gives infinities and NaN") {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor a = tensor({1.0, -1.0, 0.0, 5.0, -5.0, 1.0}, cpu), b = tensor({0.0, 0.0, 0.0, inf, inf, 0.1}, cpu);
  const std::vector<double> q = floor_divide(a, b).to_vector<double>();
  CHECK(q[0] == inf);
  CHECK(q[1] == -inf);
  CHECK(std::isnan(q[2]));
  CHECK(q[3] == 0);
  CHECK(q[4] == -1);
  CHECK(q[5] == 9);  // 0.1 is above one tenth
}

TEST_CASE("powers of integers wrap around, and negative ones are 0 but for 1 and -1") {
  const Tensor x = tensor({0, 1, -1, 2, -1, 3}, cpu).to(DType::i32);
  const Tensor y = tensor({-1, -2, -3, -1, -2, 20}, cpu).to(DType::i32);
  CHECK(pow(x, y).to_vector<int>() == std::vector<int>{0, 1, -1, 0, 1, -808182895});
  CHECK(pow(x, 2).to_vector<int>() == std::vector<int>{0, 1, 1, 4, 1, 9});
  CHECK(pow(x, 0).to_vector<int>() == std::vector<int>{1, 1, 1, 1, 1, 1});
  CHECK(pow(tensor({std::int64_t{-3}}, cpu), 39).item<std::int64_t>() == -4052555153018976267);
  CHECK(pow(full({1}, 7, cpu, DType::u8), 3).item<int>() == 343 - 256);
  CHECK(pow(full({1}, 3, cpu, DType::u8), full({1}, 255, cpu, DType::u8)).item<int>() == 171);
}

TEST_CASE("a shift by a negative number or by all bits leaves only the sign") {
  const Tensor x = tensor({-5, 5, -5, 5}, cpu).to(DType::i32), by = tensor({32, 40, -1, -2}, cpu).to(DType::i32);
  CHECK(bitwise_left_shift(x, by).to_vector<int>() == std::vector<int>{0, 0, 0, 0});
  CHECK(bitwise_right_shift(x, by).to_vector<int>() == std::vector<int>{-1, 0, -1, 0});
  CHECK(bitwise_right_shift(x, 1).to_vector<int>() == std::vector<int>{-3, 2, -3, 2});
  CHECK(bitwise_left_shift(full({1}, 3, cpu, DType::i32), 31).item<int>() == std::numeric_limits<int>::min());
  CHECK(bitwise_left_shift(full({1}, 129, cpu, DType::u8), 1).item<int>() == 2);
  CHECK(bitwise_right_shift(full({1}, 200, cpu, DType::u8), 9).item<int>() == 0);
  CHECK(bitwise_left_shift(tensor({std::int64_t{1}}, cpu), 62).item<std::int64_t>() == std::int64_t{1} << 62);
}

TEST_CASE("the operators of bits are the ops") {
  const Tensor a = tensor({12, 10}, cpu).to(DType::i64), b = tensor({10, 3}, cpu).to(DType::i64);
  CHECK(equal(a & b, bitwise_and(a, b)));
  CHECK(equal(a | b, bitwise_or(a, b)));
  CHECK(equal(a ^ b, bitwise_xor(a, b)));
  CHECK(equal(~a, -a - 1));
  const Tensor yes = gt(a, 11), no = gt(b, 11);
  CHECK((yes | no).to_vector<bool>() == std::vector<bool>{true, false});
  CHECK((~no & yes).to_vector<bool>() == std::vector<bool>{true, false});
}

TEST_CASE("quotients and remainders take a number on the left, and % is Python's") {
  const Tensor b = tensor<std::int64_t>({2, -2, 3, -4}, cpu);
  using Integers = std::vector<std::int64_t>;
  CHECK(floor_divide(7, b).to_vector<std::int64_t>() == Integers{3, -4, 2, -2});
  CHECK(remainder(7, b).to_vector<std::int64_t>() == Integers{1, -1, 1, -1});
  CHECK(fmod(-7, b).to_vector<std::int64_t>() == Integers{-1, -1, -1, -3});
  CHECK(equal(7 % b, remainder(7, b)));
  CHECK(equal(b % 3, remainder(b, 3)));
  CHECK(equal(b % (b + 5), remainder(b, b + 5)));
  CHECK((7.5 % tensor({2.0, -2.0}, cpu)).to_vector<double>() == std::vector<double>{1.5, -0.5});
  CHECK((3 % zeros({0, 2}, cpu)).shape() == Shape{0, 2});
  CHECK(std::isnan((1 % zeros({}, cpu)).item()));
  // 7.5 = 3 * 2 + 1.5 = -4 * -2 - 0.5.
  Tensor x = tensor({2.0, -2.0}, cpu);
  x.requires_grad_();
  CHECK(grad(Tensors{sum(7.5 % x)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{-3, 4});
  CHECK(grad(Tensors{sum(fmod(7.5, x))}, Tensors{x})[0].to_vector<double>() == std::vector<double>{-3, 3});
  CHECK(grad(Tensors{sum(floor_divide(7.5, x))}, Tensors{x})[0].to_vector<double>() == std::vector<double>{0, 0});
  CHECK_THROWS_WITH_AS((void)(7 % (b - 2)), doctest::Contains("remainder: the divisor holds a 0"), IndexError);
  CHECK_THROWS_WITH_AS((void)floor_divide(0.5, b), doctest::Contains("floor_divide: the number 0.5 meets"), DTypeError);
  CHECK_THROWS_WITH_AS((void)fmod(300, full({1}, 7, cpu, DType::u8)),
                       doctest::Contains("fmod: the number 300 does not"), DTypeError);
}

}  // namespace levin::testing
