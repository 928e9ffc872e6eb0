#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "autograd/ops/pointwise/pointwise_case_test.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
const double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

}  // namespace

LEVIN_OP_CASE(copysign) {
  return binary_case(
      "copysign", &copysign,
      {[](double a, double b) { return std::copysign(a, b); },
       [](double a, double b) { return a == 0 ? 0 : a / std::copysign(a, b); }, [](double, double) { return 0.0; }},
      kFloatDTypes, {.kinks = {2}}, {.kinks = {-1}});
}

LEVIN_OP_CASE(heaviside) {
  OpCase c{.ops = {"heaviside"}, .dtypes = kNumberDTypes, .differentiable = false};
  const auto add = [&](Input x, Input values) {
    c.samples.push_back({.inputs = {std::move(x), std::move(values)},
                         .call = [](const Tensors& in) { return Tensors{heaviside(in[0], in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               return Tensors{map_reference(
                                   in[0], in[1], [](double a, double b) { return a == 0 ? b : double(a > 0); })};
                             },
                         .slopes = [](const Tensors&) { return Tensors{}; }});  // compared element by element
  };
  for (const auto& [a, b] : {std::pair{Shape{1}, Shape{1}},
                             {Shape{0}, Shape{0}},
                             {Shape{40}, Shape{40}},
                             {Shape{3, 1}, Shape{4}},
                             {Shape{}, Shape{5}}})
    add(real(a, -2, 3), real(b, 0, 9));
  const std::array<Input, 2> specials = special_pairs({}, {0.5});
  add(specials[0], specials[1]);
  c.errors.push_back({"two dtypes", [] { (void)heaviside(zeros({1}, cpu), zeros({1}, cpu, DType::f64)); },
                      throws<DTypeError>, "heaviside: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(clamp_by_tensors) {
  OpCase c{.ops = {"clamp_min", "clamp_max"}, .dtypes = kNumberDTypes};
  const auto add = [&](Input x, Input low, Input high, bool gradcheck = true) {
    c.samples.push_back({.inputs = {std::move(x), optional(std::move(low)), optional(std::move(high))},
                         .call = [](const Tensors& in) { return Tensors{clamp(in[0], in[1], in[2])}; },
                         .reference =
                             [](const Tensors& in) {
                               const auto nan = [](double a, double b) { return std::isnan(a) || std::isnan(b); };
                               const Tensor above = map_reference(in[0], in[1], [nan](double a, double b) {
                                 return nan(a, b) ? kNan : std::max(a, b);
                               });
                               return Tensors{map_reference(above, in[2], [nan](double a, double b) {
                                 return nan(a, b) ? kNan : std::min(a, b);
                               })};
                             },
                         .gradcheck = gradcheck});
  };
  add(real({1}, 0, 9), real({1}, 1, 4), real({1}, 4, 8));
  add(real({0}, 0, 9), real({0}, 1, 4), real({0}, 4, 8));
  add(real({}, 0, 9), real({}, 1, 4), real({}, 4, 8));
  add(real({40}, 0, 9), real({40}, 1, 4), real({40}, 4, 8));
  add(real({3, 5}, 0, 9), real({5}, 1, 4), real({3, 1}, 4, 8));
  add(real({3, 5}, 0, 9), real({}, 2, 3), real({5}, 1, 8));
  add(real({70, 1000}, 0, 9), real({1000}, 1, 4), real({70, 1}, 4, 8));
  const std::array<Input, 2> specials = special_pairs({1, 6}, {2, 5});
  add(specials[0], specials[1], specials[1], false);
  add(specials[0], real({1}, 1, 4), specials[1], false);
  c.errors.push_back(
      {"no bound", [] { (void)clamp(zeros({1}, cpu), Tensor(), Tensor()); }, throws<ConfigError>, "clamp: neither"});
  c.errors.push_back({"two dtypes", [] { (void)clamp(zeros({1}, cpu), zeros({1}, cpu, DType::f64), Tensor()); },
                      throws<DTypeError>, "clamp_min: tensors are f32 and f64"});
  c.errors.push_back({"shapes", [] { (void)clamp(zeros({2}, cpu), Tensor(), zeros({3}, cpu)); }, throws<ShapeError>,
                      "clamp_max: shapes [2] and [3]"});
  return c;
}

LEVIN_OP_CASE(nan_to_num) {
  return unary_case(
      {"nan_to_num"}, [](const Tensor& x) { return nan_to_num(x, 0.5, 3, -4); },
      {[](double x) { return std::isnan(x)   ? 0.5
                             : std::isinf(x) ? (x > 0 ? 3 : -4)
                                             : x; },
       [](double x) { return double(std::isfinite(x)); }},
      kFloatDTypes);
}

TEST_CASE("nan_to_num gives the ends of the dtype's range for infinities, and 0 for NaN") {
  for (const auto& [dtype, largest] : {std::pair{DType::f32, double{std::numeric_limits<float>::max()}},
                                       {DType::f64, std::numeric_limits<double>::max()},
                                       {DType::f16, 65504.0},
                                       {DType::bf16, 0x1.fep127}}) {
    const std::vector<double> y =
        nan_to_num(tensor({kNan, kInf, -kInf, 2.0}, cpu).to(dtype)).to(DType::f64).to_vector<double>();
    CHECK(y == std::vector<double>{0, largest, -largest, 2});
  }
}

TEST_CASE("a NaN among the bounds of clamp makes the result NaN, without a gradient") {
  Tensor x = tensor({1.0, kNan}, cpu);
  x.requires_grad_();
  for (const Tensor& y :
       {clamp(x, kNan, std::nullopt), clamp(x, std::nullopt, kNan), clamp(x, 0, kNan),
        clamp(x, full({1}, kNan, cpu, DType::f64), Tensor()), clamp(x, Tensor(), full({}, kNan, cpu, DType::f64))}) {
    CHECK(all(isnan(y.detach())).item<bool>());
    CHECK(grad(Tensors{sum(y)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{0, 0});
  }
}

TEST_CASE("the gradient of clamp by tensors goes to the operand that is the result") {
  Tensor x = tensor({1.0, 5.0, 9.0, 3.0, 7.0}, cpu), low = tensor({3.0, 3.0, 3.0, 3.0, 8.0}, cpu),
         high = tensor({7.0, 7.0, 7.0, 7.0, 6.0}, cpu);
  for (Tensor* t : {&x, &low, &high}) t->requires_grad_();
  const Tensor y = clamp(x, low, high);
  CHECK(y.to_vector<double>() == std::vector<double>{3, 5, 7, 3, 6});
  const Tensors g = grad(Tensors{sum(y)}, Tensors{x, low, high});
  CHECK(g[0].to_vector<double>() == std::vector<double>{0, 1, 0, 1, 0});
  CHECK(g[1].to_vector<double>() == std::vector<double>{1, 0, 0, 0, 0});
  CHECK(g[2].to_vector<double>() == std::vector<double>{0, 0, 1, 0, 1});
}

}  // namespace levin::testing
