#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
using F1 = double (*)(double);
using F2 = double (*)(double, double);

struct Domain {
  double low = -2, high = 2;
};

OpCase unary_case(std::vector<std::string> ops, Tensor (*f)(const Tensor&), F1 want, std::vector<DType> dtypes,
                  Domain d = {}) {
  OpCase c{.ops = std::move(ops), .dtypes = std::move(dtypes)};
  for (const Shape& s : {Shape{}, Shape{1}, Shape{0}, Shape{7}, Shape{3, 5}, Shape{2, 0, 3}, Shape{70, 1000}}) {
    c.samples.push_back({.inputs = {real(s, d.low, d.high)},
                         .call = [f](const Tensors& in) { return Tensors{f(in[0])}; },
                         .reference = [want](const Tensors& in) { return Tensors{map_reference(in[0], want)}; }});
  }
  c.errors.push_back({"bool has no kernel", [f] { (void)f(zeros({2}, cpu, DType::b8)); }, throws<UnsupportedError>,
                      "bool on cpu; has"});
  return c;
}

OpCase binary_case(const char* op, Tensor (*f)(const Tensor&, const Tensor&), F2 want, std::vector<DType> dtypes,
                   Domain a = {}, Domain b = {}) {
  OpCase c{.ops = {op}, .dtypes = std::move(dtypes)};
  const auto add = [&](Shape x, Shape y) {
    c.samples.push_back(
        {.inputs = {real(x, a.low, a.high), real(y, b.low, b.high)},
         .call = [f](const Tensors& in) { return Tensors{f(in[0], in[1])}; },
         .reference = [want](const Tensors& in) { return Tensors{map_reference(in[0], in[1], want)}; }});
  };
  add({1}, {1});
  add({0}, {0});
  add({7}, {7});
  add({3, 5}, {5});
  add({3, 1}, {1, 4});
  add({}, {2, 3});
  add({2, 1, 3}, {4, 1});
  add({65, 1030}, {65, 1030});
  const std::string name = op;
  c.errors.push_back({"shapes that do not broadcast",
                      [f] {
                        (void)f(zeros({2, 3}, cpu), zeros({4}, cpu));
                      },
                      throws<ShapeError>, name + ": shapes [2, 3] and [4] do not broadcast"});
  c.errors.push_back({"two dtypes", [f] { (void)f(zeros({2}, cpu), zeros({2}, cpu, DType::f64)); }, throws<DTypeError>,
                      name + ": tensors are f32 and f64"});
  c.errors.push_back({"two devices", [f] { (void)f(zeros({2}, cpu), zeros({2}, Device::meta())); }, throws<DeviceError>,
                      name + ": tensors are on cpu and meta"});
  return c;
}

Tensor minus(const Tensor& x) { return neg(x); }
double nearest_even(double x) { return std::nearbyint(x); }
double pi = 3.14159265358979323846;

// Integers are exact in every dtype up to 8 bits: small values only, so that bf16 holds them and u8 does not wrap.
const Domain kSmallInts{0, 6}, kPositive{0.3, 3}, kOrdered{1, 6};

}  // namespace

#define ARITHMETIC(name, expression, ...)                                                           \
  LEVIN_OP_CASE(name) {                                                                             \
    return binary_case(                                                                             \
        #name, &levin::name, [](double a, double b) -> double { return expression; }, __VA_ARGS__); \
  }
ARITHMETIC(add, a + b, kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(sub, a - b, kNumberDTypes, {8, 16}, kSmallInts)
ARITHMETIC(mul, a* b, kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(div, a / b, kFloatDTypes, {}, kPositive)
ARITHMETIC(maximum, std::max(a, b), kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(minimum, std::min(a, b), kNumberDTypes, kSmallInts, kSmallInts)
ARITHMETIC(atan2, std::atan2(a, b), kFloatDTypes, {}, kPositive)
#undef ARITHMETIC

LEVIN_OP_CASE(remainder) {
  // Well inside one period of b, so that a rounded a has the same quotient; b is a whole number in every dtype.
  OpCase c = binary_case("remainder", &levin::remainder, [](double a, double b) { return a - b * std::floor(a / b); },
                         kNumberDTypes, {10.2, 12.8}, {16, 17});
  c.errors.push_back({"an integer divisor of 0",
                      [] { (void)remainder(ones({2}, cpu, DType::i64), zeros({2}, cpu, DType::i64)); },
                      throws<IndexError>, "remainder: the divisor holds a 0"});
  return c;
}

LEVIN_OP_CASE(pow) {
  OpCase c = binary_case("pow", static_cast<Tensor (*)(const Tensor&, const Tensor&)>(&levin::pow),
                         [](double a, double b) { return std::pow(a, b); }, kFloatDTypes, kPositive, {-2, 3});
  for (const double p : {-1.5, 0.0, 1.0, 2.0, 3.0}) {
    c.samples.push_back({.inputs = {real({4}, 0.3, 2)},
                         .call = [p](const Tensors& in) { return Tensors{pow(in[0], p)}; },
                         .reference =
                             [p](const Tensors& in) {
                               return Tensors{map_reference(in[0], [p](double x) { return std::pow(x, p); })};
                             }});
  }
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

#define ELEMENTARY(name, expression, ...)                                                   \
  LEVIN_OP_CASE(name) {                                                                     \
    return unary_case(                                                                      \
        {#name}, &levin::name, [](double x) -> double { return expression; }, __VA_ARGS__); \
  }
LEVIN_OP_CASE(neg) {
  OpCase c = unary_case({"neg"}, &minus, [](double x) { return -x; },
                        {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64});
  c.dtypes.push_back(DType::u8);  // wraps: -x is 256 - x there
  c.samples.clear();
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back(
        {.inputs = {real(s, 0, 1)},
         .call = [](const Tensors& in) { return Tensors{neg(in[0])}; },
         .reference = [](const Tensors& in) { return Tensors{map_reference(in[0], [](double x) { return 0 - x; })}; }});
  }
  return c;
}
ELEMENTARY(abs, std::abs(x), kNumberDTypes)
ELEMENTARY(sign, double((x > 0) - (x < 0)), kNumberDTypes)
ELEMENTARY(square, x* x, kNumberDTypes)
ELEMENTARY(floor, std::floor(x), kFloatDTypes)
ELEMENTARY(ceil, std::ceil(x), kFloatDTypes)
ELEMENTARY(trunc, std::trunc(x), kFloatDTypes)
ELEMENTARY(round, nearest_even(x), kFloatDTypes)
ELEMENTARY(sqrt, std::sqrt(x), kFloatDTypes, kPositive)
ELEMENTARY(rsqrt, 1 / std::sqrt(x), kFloatDTypes, kPositive)
ELEMENTARY(reciprocal, 1 / x, kFloatDTypes, kPositive)
ELEMENTARY(exp, std::exp(x), kFloatDTypes)
ELEMENTARY(expm1, std::expm1(x), kFloatDTypes)
ELEMENTARY(log, std::log(x), kFloatDTypes, kPositive)
ELEMENTARY(log1p, std::log1p(x), kFloatDTypes, kPositive)
ELEMENTARY(log2, std::log2(x), kFloatDTypes, kPositive)
ELEMENTARY(log10, std::log10(x), kFloatDTypes, kPositive)
ELEMENTARY(sin, std::sin(x), kFloatDTypes)
ELEMENTARY(cos, std::cos(x), kFloatDTypes)
ELEMENTARY(tan, std::tan(x), kFloatDTypes, {-1.2, 1.2})
ELEMENTARY(erf, std::erf(x), kFloatDTypes)
#undef ELEMENTARY

LEVIN_OP_CASE(clamp) {
  OpCase c{.ops = {"clamp"}, .dtypes = kNumberDTypes};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back({.inputs = {real(s, 0, 8)},
                         .call =
                             [](const Tensors& in) {
                               return Tensors{clamp(in[0], 2, 5), clamp(in[0], {}, 4), clamp(in[0], 3, {})};
                             },
                         .reference =
                             [](const Tensors& in) {
                               return Tensors{map_reference(in[0], [](double x) { return std::clamp(x, 2.0, 5.0); }),
                                              map_reference(in[0], [](double x) { return std::min(x, 4.0); }),
                                              map_reference(in[0], [](double x) { return std::max(x, 3.0); })};
                             }});
  }
  c.errors.push_back({"no bound", [] { (void)clamp(zeros({1}, cpu), {}, {}); }, throws<ConfigError>, "clamp: neither"});
  return c;
}

#define ACTIVATION(name, info, expression)                                        \
  LEVIN_OP_CASE(name) {                                                           \
    return unary_case(                                                            \
        {info, info "_backward"}, [](const Tensor& x) { return levin::name(x); }, \
        [](double x) -> double { return expression; }, kFloatDTypes);             \
  }
namespace {
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
}  // namespace
ACTIVATION(relu, "relu", std::max(x, 0.0))
ACTIVATION(tanh, "tanh", std::tanh(x))
ACTIVATION(sigmoid, "sigmoid", logistic(x))
ACTIVATION(gelu, "gelu", x * 0.5 * std::erfc(-x / std::sqrt(2.0)))
ACTIVATION(silu, "silu", x* logistic(x))
ACTIVATION(logsigmoid, "logsigmoid", -std::log1p(std::exp(-x)))
#undef ACTIVATION
LEVIN_OP_CASE(gelu_tanh) {
  return unary_case(
      {"gelu_tanh", "gelu_tanh_backward"}, [](const Tensor& x) { return gelu(x, GeluForm::tanh); },
      [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x))); }, kFloatDTypes);
}
LEVIN_OP_CASE(leaky_relu) {
  return unary_case(
      {"leaky_relu", "leaky_relu_backward"}, [](const Tensor& x) { return leaky_relu(x, 0.2); },
      [](double x) { return x > 0 ? x : 0.2 * x; }, kFloatDTypes);
}
LEVIN_OP_CASE(elu) {
  return unary_case(
      {"elu", "elu_backward"}, [](const Tensor& x) { return elu(x, 1.5); },
      [](double x) { return x > 0 ? x : 1.5 * std::expm1(x); }, kFloatDTypes);
}
LEVIN_OP_CASE(softplus) {
  OpCase c = unary_case(
      {"softplus", "softplus_backward"}, [](const Tensor& x) { return softplus(x, 2, 3); },
      [](double x) { return 2 * x > 3 ? x : std::log1p(std::exp(2 * x)) / 2; }, kFloatDTypes, {-2, 1.4});
  c.errors.push_back(
      {"beta of 0", [] { (void)softplus(zeros({1}, cpu), 0); }, throws<ConfigError>, "softplus: beta is 0"});
  return c;
}

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

}  // namespace levin::testing
