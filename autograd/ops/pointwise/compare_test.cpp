#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/autograd.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

Tensor as_bool(const Tensor& x) { return x.to(DType::b8); }

OpCase comparison(const char* op, Tensor (*f)(const Tensor&, const Tensor&), Tensor (*number)(const Tensor&, Scalar),
                  double (*want)(double, double)) {
  OpCase c{.ops = {op}, .dtypes = kAllDTypes, .differentiable = false};
  for (const auto& [a, b] :
       {std::pair{Shape{1}, Shape{1}}, {Shape{0}, Shape{0}}, {Shape{40}, Shape{40}}, {Shape{3, 1}, Shape{4}}}) {
    c.samples.push_back(
        {.inputs = {real(a, 0, 2), real(b, 0, 2)},
         .call = [f](const Tensors& in) { return Tensors{f(in[0], in[1])}; },
         .reference = [want](const Tensors& in) { return Tensors{as_bool(map_reference(in[0], in[1], want))}; }});
  }
  c.samples.push_back({.inputs = {real({9}, 0, 2)},
                       .call = [number](const Tensors& in) { return Tensors{number(in[0], 1)}; },
                       .reference =
                           [want](const Tensors& in) {
                             return Tensors{as_bool(map_reference(in[0], [want](double x) { return want(x, 1); }))};
                           }});
  c.errors.push_back({"shapes", [f] { (void)f(zeros({2}, cpu), zeros({3}, cpu)); }, throws<ShapeError>,
                      std::string(op) + ": shapes [2] and [3]"});
  return c;
}

OpCase float_test(const char* op, Tensor (*f)(const Tensor&), double (*want)(double)) {
  OpCase c{.ops = {op}, .dtypes = kFloatDTypes, .differentiable = false};
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back(
        {.inputs = {real(s)},
         .call = [f](const Tensors& in) { return Tensors{f(in[0])}; },
         .reference = [want](const Tensors& in) { return Tensors{as_bool(map_reference(in[0], want))}; }});
  }
  const Tensor edges = tensor({nan, inf, -inf, 0.0, 1.0}, cpu);
  c.samples.push_back(
      {.inputs = {real({5}), fixed(edges)},
       .call = [f](const Tensors& in) { return Tensors{f(in[1].to(in[0].dtype()))}; },
       .reference = [want, edges](const Tensors&) { return Tensors{as_bool(map_reference(edges, want))}; }});
  c.errors.push_back({"integers", [f] { (void)f(zeros({1}, cpu, DType::i64)); }, throws<UnsupportedError>, op});
  return c;
}

OpCase logical(const char* op, Tensor (*f)(const Tensor&, const Tensor&), double (*want)(double, double)) {
  OpCase c{.ops = {op}, .dtypes = {DType::b8}, .differentiable = false};
  for (const auto& [a, b] :
       {std::pair{Shape{1}, Shape{1}}, {Shape{0}, Shape{0}}, {Shape{40}, Shape{40}}, {Shape{3, 1}, Shape{4}}}) {
    c.samples.push_back(
        {.inputs = {real(a, 0, 2), real(b, 0, 2)},
         .call = [f](const Tensors& in) { return Tensors{f(in[0], in[1])}; },
         .reference = [want](const Tensors& in) { return Tensors{as_bool(map_reference(in[0], in[1], want))}; }});
  }
  c.errors.push_back({"floats", [f] { (void)f(zeros({1}, cpu), zeros({1}, cpu)); }, throws<UnsupportedError>,
                      std::string(op) + ": f32"});
  return c;
}

}  // namespace

#define COMPARISON(name, sign)                                                                                   \
  LEVIN_OP_CASE(name) {                                                                                          \
    return comparison(#name, &levin::name, &levin::name, [](double a, double b) -> double { return a sign b; }); \
  }
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)
#undef COMPARISON

LEVIN_OP_CASE(isnan) {
  return float_test("isnan", &isnan, [](double x) -> double { return std::isnan(x); });
}
LEVIN_OP_CASE(isinf) {
  return float_test("isinf", &isinf, [](double x) -> double { return std::isinf(x); });
}
LEVIN_OP_CASE(isfinite) {
  return float_test("isfinite", &isfinite, [](double x) -> double { return std::isfinite(x); });
}
LEVIN_OP_CASE(logical_and) {
  return logical("logical_and", &logical_and, [](double a, double b) -> double { return a && b; });
}
LEVIN_OP_CASE(logical_or) {
  return logical("logical_or", &logical_or, [](double a, double b) -> double { return a || b; });
}
LEVIN_OP_CASE(logical_xor) {
  return logical("logical_xor", &logical_xor, [](double a, double b) -> double { return a != b; });
}
LEVIN_OP_CASE(logical_not) {
  OpCase c{.ops = {"logical_not"}, .dtypes = {DType::b8}, .differentiable = false};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back(
        {.inputs = {real(s, 0, 2)},
         .call = [](const Tensors& in) { return Tensors{logical_not(in[0])}; },
         .reference =
             [](const Tensors& in) { return Tensors{as_bool(map_reference(in[0], [](double x) { return 1 - x; }))}; }});
  }
  c.errors.push_back(
      {"floats", [] { (void)logical_not(zeros({1}, cpu)); }, throws<UnsupportedError>, "logical_not: f32"});
  return c;
}

LEVIN_OP_CASE(where) {
  OpCase c{.ops = {"where"}, .dtypes = kAllDTypes};
  struct Three {
    Shape m, a, b;
  };
  for (const Three& s : {Three{{1}, {1}, {1}}, Three{{0}, {0}, {0}}, Three{{7}, {7}, {7}}, Three{{3, 1}, {4}, {3, 4}},
                         Three{{2, 3}, {}, {3}}}) {
    c.samples.push_back(
        {.inputs = {mask(s.m), real(s.a), real(s.b)},
         .call = [](const Tensors& in) { return Tensors{where(in[0], in[1], in[2])}; },
         .reference =
             [](const Tensors& in) {
               const Tensor zero = map_reference(in[0].to(DType::f64), in[1], [](double, double) { return 0; });
               const Tensor a =
                   map_reference(in[0].to(DType::f64), in[1], [](double m, double x) { return m != 0 ? x : 0; });
               const Tensor b =
                   map_reference(in[0].to(DType::f64), in[2], [](double m, double x) { return m != 0 ? 0 : x; });
               return Tensors{map_reference(a, b, [](double x, double y) { return x + y; })};
             }});
  }
  c.errors.push_back({"condition", [] { (void)where(zeros({1}, cpu), zeros({1}, cpu), zeros({1}, cpu)); },
                      throws<DTypeError>, "where: the condition is f32"});
  return c;
}

LEVIN_OP_CASE(masked_fill) {
  OpCase c{.ops = {"masked_fill"}, .dtypes = kAllDTypes};
  for (const auto& [a, m] :
       {std::pair{Shape{1}, Shape{1}}, {Shape{0}, Shape{0}}, {Shape{3, 5}, Shape{5}}, {Shape{4}, Shape{3, 1}}}) {
    c.samples.push_back({.inputs = {real(a), mask(m)},
                         .call = [](const Tensors& in) { return Tensors{masked_fill(in[0], in[1], 1)}; },
                         .reference =
                             [](const Tensors& in) {
                               return Tensors{map_reference(in[0], in[1].to(DType::f64),
                                                            [](double x, double y) { return y != 0 ? 1 : x; })};
                             }});
  }
  c.errors.push_back({"mask", [] { (void)masked_fill(zeros({1}, cpu), zeros({1}, cpu), 1); }, throws<DTypeError>,
                      "masked_fill: the mask is f32"});
  return c;
}

TEST_CASE("equal asks for the same shape, dtype and values; allclose accepts equal infinities alone") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(equal(tensor({1.0, 2.0}, cpu), tensor({1.0, 2.0}, cpu)));
  CHECK_FALSE(equal(tensor({1.0, 2.0}, cpu), tensor({1.f, 2.f}, cpu)));
  CHECK_FALSE(equal(tensor({nan}, cpu), tensor({nan}, cpu)));
  CHECK(allclose(tensor({1.0, inf}, cpu), tensor({1.0 + 1e-9, inf}, cpu)));
  CHECK_FALSE(allclose(tensor({1.0}, cpu), tensor({1.1}, cpu)));
  CHECK_FALSE(allclose(tensor({1.0}, cpu), tensor({inf}, cpu)));
  CHECK_FALSE(allclose(tensor({-inf}, cpu), tensor({inf}, cpu)));
  CHECK_FALSE(allclose(tensor({inf}, cpu), tensor({1.0}, cpu)));
}

TEST_CASE("isclose is allclose's test of each pair of elements, broadcast") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto bools = [](const Tensor& t) { return t.to_vector<bool>(); };
  const Tensor a = tensor({1.0, 1.0, inf, -inf, nan, 1.0, 0.0}, cpu);
  const Tensor b = tensor({1.0 + 1e-6, 1.1, inf, inf, nan, inf, 1e-9}, cpu);
  CHECK(bools(isclose(a, b)) == std::vector<bool>{true, false, true, false, false, false, true});
  CHECK(bools(isclose(a, b, 0.2, 0)) == std::vector<bool>{true, true, true, false, false, false, false});
  CHECK(bools(isclose(tensor({1.0, 2.0}, cpu), full({}, 2.0, cpu, DType::f64))) == std::vector<bool>{false, true});
  CHECK(bools(isclose(tensor<std::int64_t>({3, 4}, cpu), tensor<std::int64_t>({3, 5}, cpu))) ==
        std::vector<bool>{true, false});
  CHECK(isclose(zeros({0, 3}, cpu), zeros({3}, cpu)).shape() == Shape{0, 3});
  CHECK_THROWS_WITH_AS((void)isclose(a, b.to(DType::f32)), doctest::Contains("isclose: tensors are f64 and f32"),
                       DTypeError);
  CHECK_THROWS_AS((void)isclose(a, zeros({2}, cpu, DType::f64)), ShapeError);
}

TEST_CASE("NaN is close to NaN alone, and with EqualNan::yes alone") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto bools = [](const Tensor& t) { return t.to_vector<bool>(); };
  const Tensor a = tensor({nan, nan, 1.0, inf, nan, 1.0}, cpu), b = tensor({nan, 1.0, nan, inf, inf, 1.1}, cpu);
  CHECK(bools(isclose(a, b, 1e-5, 1e-8, EqualNan::yes)) == std::vector<bool>{true, false, false, true, false, false});
  CHECK(bools(isclose(a, b)) == std::vector<bool>{false, false, false, true, false, false});
  CHECK(bools(isclose(a, full({}, nan, cpu, DType::f64), 1, 1, EqualNan::yes)) ==
        std::vector<bool>{true, true, false, false, true, false});
  CHECK(bools(isclose(tensor<std::int64_t>({3, 4}, cpu), tensor<std::int64_t>({3, 5}, cpu), 0, 0, EqualNan::yes)) ==
        std::vector<bool>{true, false});
  for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const Tensor x = tensor({nan, 2.0}, cpu).to(t);
    CHECK(allclose(x, x, 1e-5, 1e-8, EqualNan::yes));
    CHECK_FALSE(allclose(x, x));
    CHECK_FALSE(allclose(x, flip(x, {0}), 1e-5, 1e-8, EqualNan::yes));
  }
}

TEST_CASE("where takes a number on either side, which has the tensor's dtype, and the tensor alone has a gradient") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor mask = tensor<std::int64_t>({1, 0, 1}, cpu) == 1;
  Tensor x = tensor({1.0, 2.0, nan}, cpu);
  x.requires_grad_();
  const Tensor right = where(mask, x, 7), left = where(mask, -0.5, x);
  CHECK(right.dtype() == DType::f64);
  CHECK(right.detach()[Slice{0, 2}].to_vector<double>() == std::vector<double>{1, 7});
  CHECK(left.detach().to_vector<double>() == std::vector<double>{-0.5, 2, -0.5});
  CHECK(grad(Tensors{sum(right)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{1, 0, 1});
  CHECK(grad(Tensors{sum(left)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{0, 1, 0});
  CHECK(where(mask, full({2, 1}, 5, cpu, DType::u8), 9).to_vector<std::uint8_t>() ==
        std::vector<std::uint8_t>{5, 9, 5, 5, 9, 5});
  CHECK(where(mask, 3, full({}, 4, cpu, DType::i64)).to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 4, 3});
  CHECK(where(zeros({0}, cpu, DType::b8), zeros({}, cpu), 1).shape() == Shape{0});
  CHECK_THROWS_WITH_AS((void)where(mask, zeros({3}, cpu, DType::i64), 0.5),
                       doctest::Contains("where: the number 0.5 meets a tensor of i64"), DTypeError);
  CHECK_THROWS_AS((void)where(mask, 300, zeros({3}, cpu, DType::u8)), DTypeError);
  CHECK_THROWS_AS((void)where(zeros({3}, cpu), 1, zeros({3}, cpu)), DTypeError);
}

TEST_CASE("where and masked_fill choose by element when an operand is a single one for more than a block of them") {
  constexpr std::int64_t kCount = 1000;
  const Tensor at = arange(kCount, cpu), odd = eq(remainder(at, 2), 1);
  for (const DType dtype : {DType::u8, DType::i16, DType::i32, DType::i64, DType::f32, DType::f64}) {
    CAPTURE(dtype);
    const Tensor x = remainder(at, 100).to(dtype), next = (remainder(at, 100) + 1).to(dtype);
    const Tensor one = full({1}, 7, cpu, dtype), other = full({1}, 9, cpu, dtype);
    const auto value = [](std::int64_t i) { return double(i % 100); };
    const auto check = [&](const Tensor& y, auto expected) {
      const auto got = y.to(DType::f64).to_vector<double>();
      REQUIRE(got.size() == kCount);
      for (std::int64_t i = 0; i < kCount; ++i) CHECK(got[std::size_t(i)] == expected(i, i % 2 != 0));
    };
    check(where(odd, x, one), [&](std::int64_t i, bool c) { return c ? value(i) : 7; });
    check(where(odd, one, x), [&](std::int64_t i, bool c) { return c ? 7 : value(i); });
    check(where(odd, one, other), [&](std::int64_t, bool c) { return c ? 7 : 9; });
    check(where(slice(odd, 0, 1, 2), x, one), [&](std::int64_t i, bool) { return value(i); });
    check(where(odd, x, next), [&](std::int64_t i, bool c) { return value(i) + (c ? 0 : 1); });
    check(masked_fill(x, odd, 5), [&](std::int64_t i, bool c) { return c ? 5 : value(i); });
    check(masked_fill(one, odd, 5), [&](std::int64_t, bool c) { return c ? 5 : 7; });
  }
}

TEST_CASE("numbers outside a tensor's dtype compare and clamp as numbers, and do not fill") {
  const Tensor x = tensor({std::uint8_t{0}, std::uint8_t{44}, std::uint8_t{255}}, cpu);
  const auto bools = [](const Tensor& t) { return t.to_vector<bool>(); };
  CHECK(bools(lt(x, 300)) == std::vector<bool>{true, true, true});
  CHECK(bools(eq(x, 300)) == std::vector<bool>{false, false, false});
  CHECK(bools(ge(x, -1)) == std::vector<bool>{true, true, true});
  CHECK(bools(gt(x, 255)) == std::vector<bool>{false, false, false});
  CHECK(clamp(x, -5, 300).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 44, 255});
  CHECK(clamp(x, 10, 300).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{10, 44, 255});
  CHECK_THROWS_AS((void)clamp(x, 300, 400), DTypeError);
  CHECK_THROWS_WITH_AS((void)full({2}, 300, cpu, DType::u8), doctest::Contains("does not fit u8, expected 0 to 255"),
                       DTypeError);
  CHECK_THROWS_AS((void)(x + 300), DTypeError);
  CHECK_THROWS_AS((void)masked_fill(x, gt(x, 1), -1), DTypeError);
}

TEST_CASE("a number read out of a tensor saturates in a narrower type, and NaN is 0") {
  CHECK(tensor({1e30}, cpu).item<int>() == std::numeric_limits<int>::max());
  CHECK(tensor({-1e30}, cpu).item<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  CHECK(tensor({std::numeric_limits<double>::quiet_NaN()}, cpu).item<int>() == 0);
  CHECK(tensor({std::int64_t{1} << 40}, cpu).item<std::uint8_t>() == 255);
  CHECK(Scalar(std::numeric_limits<std::uint64_t>::max()).real() == doctest::Approx(0x1p64));
}

}  // namespace levin::testing
