#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/pointwise_case_test.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
const double kPi = 3.14159265358979323846, kNan = std::numeric_limits<double>::quiet_NaN();

double logistic(double x) { return 1 / (1 + std::exp(-x)); }
// NaN at the infinities: there the formulas multiply infinity by 0, as the values do at -infinity.
double gelu_tanh_slope(double x) {
  if (std::abs(x) > 1e15) return kNan;  // its square overflows on the way
  if (std::abs(x) > 20) return x > 0;
  const double t = std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * x * x);
}
double gelu_slope(double x) {
  if (std::isinf(x)) return kNan;
  if (std::abs(x) > 40) return x > 0;
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * kPi);
}
double silu_slope(double x) {
  if (std::isinf(x)) return kNan;
  return logistic(x) * (1 + x * (1 - logistic(x)));
}
double mish_value(double x) {
  if (x > 40) return x;
  const double n = std::exp(x) * (std::exp(x) + 2);
  return x * (n / (n + 2));
}
double mish_slope(double x) {
  if (std::isinf(x)) return kNan;
  if (x > 40) return 1;
  const double e = std::exp(x), n = e * (e + 2), t = n / (n + 2);
  return t + x * e * (1 + e) * 4 / (n + 2) / (n + 2);
}
double within(double x, double low, double high) { return x < low ? low : x > high ? high : x; }
constexpr double kSelu = 1.0507009873554804934193349852946, kSeluAlpha = 1.6732632423543772848170429916717;
double hardswish_slope(double x) { return x >= 3 ? 1 : x <= -3 ? 0 : x / 3 + 0.5; }

}  // namespace
#define ACTIVATION(name, info, call, value, slope, ...)                                                     \
  LEVIN_OP_CASE(name) {                                                                                     \
    return unary_case({info, info "_backward"}, [](const Tensor& x) { return call; },                       \
                      {[](double x) -> double { return value; }, [](double x) -> double { return slope; }}, \
                      kFloatDTypes, {__VA_ARGS__});                                                         \
  }
ACTIVATION(relu, "relu", relu(x), std::max(x, 0.0), std::isnan(x) || x > 0)
ACTIVATION(tanh, "tanh", tanh(x), std::tanh(x), 1 - std::tanh(x) * std::tanh(x), .kinks = {0.6, -0.6})
ACTIVATION(sigmoid, "sigmoid", sigmoid(x), logistic(x), logistic(x) * (1 - logistic(x)))
// x times a distribution function that is exact to 2e-7 for x up to 5.5, in f32.
ACTIVATION(gelu, "gelu", gelu(x), x * 0.5 * std::erfc(-x / std::sqrt(2.0)), gelu_slope(x),
           .kinks = {5.5, -5.5, 12, -12}, .floor = 3)
// The factor of 1 - s in its derivative grows to 20 before 1 - s is 0.
ACTIVATION(gelu_tanh, "gelu_tanh", gelu(x, GeluForm::tanh),
           0.5 * x * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x))), gelu_tanh_slope(x),
           .kinks = {12, -12, 1e4, -1e4}, .floor = 20)
// At -100 the result is 100 times a number that f32 holds with few digits.
ACTIVATION(silu, "silu", silu(x), x* logistic(x), silu_slope(x), .kinks = {100, -100}, .floor = 1e-30)
ACTIVATION(logsigmoid, "logsigmoid", logsigmoid(x), std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))), logistic(-x))
ACTIVATION(leaky_relu, "leaky_relu", leaky_relu(x, 0.2), x > 0 ? x : 0.2 * x, x > 0 ? 1 : 0.2)
ACTIVATION(elu, "elu", elu(x, 1.5), x > 0 ? x : 1.5 * std::expm1(x), x > 0 ? 1 : 1.5 * std::exp(x))
LEVIN_OP_CASE(softplus) {
  OpCase c = unary_case({"softplus", "softplus_backward"}, [](const Tensor& x) { return softplus(x, 2, 3); },
                        {[](double x) { return 2 * x > 3 ? x : std::log1p(std::exp(2 * x)) / 2; },
                         [](double x) { return 2 * x > 3 ? 1 : logistic(2 * x); }},
                        kFloatDTypes, {.low = -2, .high = 1.4, .kinks = {1.5, 1.75}});
  c.errors.push_back(
      {"beta of 0", [] { (void)softplus(zeros({1}, cpu), 0); }, throws<ConfigError>, "softplus: beta is 0"});
  return c;
}
ACTIVATION(selu, "elu", selu(x), kSelu*(x > 0 ? x : kSeluAlpha * std::expm1(x)),
           kSelu*(x > 0 ? 1 : kSeluAlpha * std::exp(x)))
// At -100 the result is 100 times a number that f32 holds with few digits.
ACTIVATION(mish, "mish", mish(x), mish_value(x), mish_slope(x), .kinks = {20, 21, 100, -100}, .floor = 1e-30)
ACTIVATION(relu6, "hardtanh", relu6(x), within(x, 0, 6), x > 0 && x < 6, .kinks = {6})
ACTIVATION(hardsigmoid, "hardsigmoid", hardsigmoid(x), within(x / 6 + 0.5, 0, 1), x > -3 && x < 3 ? 1. / 6 : 0,
           .kinks = {3, -3}, .floor = 1)
ACTIVATION(hardswish, "hardswish", hardswish(x), x* within(x / 6 + 0.5, 0, 1), hardswish_slope(x), .kinks = {3, -3},
           .floor = 1)
ACTIVATION(softsign, "softsign", softsign(x), x / (1 + std::abs(x)), 1 / (1 + std::abs(x)) / (1 + std::abs(x)))
LEVIN_OP_CASE(celu) {
  OpCase c = unary_case(
      {"elu", "elu_backward"}, [](const Tensor& x) { return celu(x, 2); },
      {[](double x) { return x > 0 ? x : 2 * std::expm1(x / 2); },
       [](double x) { return x > 0 ? 1 : std::exp(x / 2); }},
      kFloatDTypes);
  c.errors.push_back({"alpha of 0", [] { (void)celu(zeros({1}, cpu), 0); }, throws<ConfigError>, "celu: alpha is 0"});
  return c;
}
LEVIN_OP_CASE(hardtanh) {
  OpCase c = unary_case({"hardtanh", "hardtanh_backward"}, [](const Tensor& x) { return hardtanh(x, -2, 1); },
                        {[](double x) { return within(x, -2, 1); }, [](double x) { return double(x > -2 && x < 1); }},
                        kFloatDTypes, {.kinks = {-2, 1}});
  c.errors.push_back(
      {"low above high", [] { (void)hardtanh(zeros({1}, cpu), 2, 1); }, throws<ConfigError>, "hardtanh: low is 2"});
  return c;
}
LEVIN_OP_CASE(prelu) {
  OpCase c{.ops = {"prelu"}, .dtypes = kFloatDTypes};
  const auto add = [&](Input x, Input w, bool gradcheck = true) {
    c.samples.push_back(
        {.inputs = {std::move(x), std::move(w)},
         .call = [](const Tensors& in) { return Tensors{prelu(in[0], in[1])}; },
         .reference =
             [](const Tensors& in) {
               Shape along{in[1].size(0)};
               if (in[0].rank() > 2) along = Shape{in[1].size(0), 1};
               if (in[0].rank() > 3) along = Shape{in[1].size(0), 1, 1};
               const Tensor spread = in[0].rank() == 0
                                         ? select(in[1], 0, 0)
                                         : as_strided(in[1].contiguous(), along, contiguous_strides(along), 0);
               return Tensors{map_reference(in[0], spread, [](double a, double b) { return a > 0 ? a : a * b; })};
             },
         .gradcheck = gradcheck});
  };
  add(real({1}), real({1}));
  add(real({}), real({1}));
  add(real({7}), real({1}));
  add(real({0, 3}), real({3}));
  add(real({4, 3}), real({3}));
  add(real({2, 3, 4}), real({3}));
  add(real({2, 3, 4, 5}), real({3}));
  add(real({2, 3, 4}), real({1}));
  add(special_row({}), real({1}, 0.1, 0.9), false);
  const char* expected = "prelu: weight has shape [2] for x of shape [4, 3], expected [1] or [3]";
  c.errors.push_back({"a weight of other channels",
                      [] {
                        (void)prelu(zeros({4, 3}, cpu), zeros({2}, cpu));
                      },
                      throws<ShapeError>, expected});
  c.errors.push_back({"a weight of two dimensions",
                      [] {
                        (void)prelu(zeros({4, 3}, cpu), zeros({1, 3}, cpu));
                      },
                      throws<ShapeError>, "prelu: weight has shape [1, 3]"});
  return c;
}
LEVIN_OP_CASE(glu) {
  OpCase c{.ops = {"glu", "glu_backward"}, .dtypes = kFloatDTypes};
  const auto add = [&](Shape shape, std::int64_t dim) {
    c.samples.push_back(
        {.inputs = {real(shape)},
         .call = [dim](const Tensors& in) { return Tensors{glu(in[0], dim)}; },
         .reference =
             [dim](const Tensors& in) {
               const Tensors halves = split(in[0], in[0].size(dim) / 2, dim);
               return Tensors{map_reference(halves[0], halves[1], [](double a, double b) { return a * logistic(b); })};
             }});
  };
  add({2}, 0);
  add({3, 4}, -1);
  add({6, 5}, 0);
  add({2, 4, 3}, 1);
  c.samples.push_back({.inputs = {real({0, 4})},
                       .call = [](const Tensors& in) { return Tensors{glu(in[0])}; },
                       .reference =
                           [](const Tensors& in) {
                             return Tensors{zeros({0, 2}, cpu, in[0].dtype())};
                           }});
  c.no_single = "glu halves x";
  c.errors.push_back({"an odd size",
                      [] {
                        (void)glu(zeros({2, 3}, cpu));
                      },
                      throws<ShapeError>, "glu: x has 3 elements along dim -1"});
  c.errors.push_back({"no dimension", [] { (void)glu(zeros({}, cpu)); }, throws<IndexError>, "dim"});
  return c;
}
#undef ACTIVATION

TEST_CASE("activations of NaN are NaN, and their gradients there are PyTorch's") {
  struct Case {
    Tensor (*f)(const Tensor&);
    double gradient;
  };
  const auto leaky = [](const Tensor& x) { return leaky_relu(x); };
  const auto unit = [](const Tensor& x) { return elu(x); };
  const auto tanh_like = [](const Tensor& x) { return hardtanh(x); };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& c : {Case{relu, 1},
                          {leaky, 0.01},
                          {unit, kNan},
                          {selu, kNan},
                          {tanh_like, 0},
                          {relu6, 0},
                          {hardsigmoid, 0},
                          {hardswish, kNan},
                          {softsign, kNan},
                          {mish, kNan}}) {
      Tensor x = full({40}, kNan, cpu, dtype);
      x.requires_grad_();
      const Tensor y = c.f(x);
      CHECK(all(isnan(y.detach())).item<bool>());
      const double g = grad(Tensors{sum(y)}, Tensors{x})[0].to(DType::f64).to_vector<double>()[7];
      if (std::isnan(c.gradient))
        CHECK(std::isnan(g));
      else
        CHECK(g == doctest::Approx(c.gradient).epsilon(0.01));
    }
  }
}

}  // namespace levin::testing
