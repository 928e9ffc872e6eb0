// Samples of order statistics for the conformance suite.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

// f of the sorted elements along dim, with their places.
using Line = std::vector<std::pair<double, std::int64_t>>;
Tensors along(const Tensor& t, int dim, const std::function<std::pair<double, std::int64_t>(const Line&)>& f) {
  const Plain x(t);
  const Shape out = x.shape.with(dim, 1);
  Plain values(out), places(out);
  values.each([&](const At& at) {
    Line line;
    for (std::int64_t i = 0; i < x.shape[dim]; ++i) line.emplace_back(x(with(at, dim, double(i))), i);
    std::stable_sort(line.begin(), line.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto [value, place] = f(line);
    values(at) = value;
    places(at) = double(place);
  });
  return {values.tensor(), places.tensor(DType::i64)};
}
Tensor flat_of(const Tensor& x) { return reshape(x, {x.numel()}); }

}  // namespace

LEVIN_OP_CASE(kthvalue) {
  OpCase c{.ops = {}, .dtypes = kComputedDTypes, .no_empty = "no element can be chosen from none"};
  const auto add = [&](const Shape& s, std::int64_t k, int dim, KeepDim keep) {
    c.samples.push_back({.inputs = {real(s, -50, 50)},
                         .call =
                             [=](const Tensors& in) {
                               const ValuesIndices y = kthvalue(in[0], k, dim - in[0].rank(), keep);
                               return Tensors{y.values, y.indices};
                             },
                         .reference =
                             [=](const Tensors& in) {
                               Tensors y = along(in[0], dim, [=](const Line& l) { return l[std::size_t(k - 1)]; });
                               if (keep == KeepDim::no)
                                 for (Tensor& t : y) t = squeeze(t, {dim});
                               return y;
                             }});
  };
  add({1}, 1, 0, KeepDim::no);
  add({5, 7}, 3, 1, KeepDim::no);
  add({5, 7}, 5, 0, KeepDim::yes);
  add({2, 300, 2}, 17, 1, KeepDim::no);
  c.errors.push_back(
      {"k", [] { (void)kthvalue(zeros({3}, cpu), 0); }, throws<IndexError>, "kthvalue: k is 0, expected 1 to 3"});
  c.errors.push_back({"none",
                      [] {
                        (void)kthvalue(zeros({2, 0}, cpu), 1);
                      },
                      throws<ShapeError>, "kthvalue: dimension 1 of x [2, 0] has no elements"});
  return c;
}

LEVIN_OP_CASE(median) {
  OpCase c{.ops = {}, .dtypes = kComputedDTypes, .no_empty = "no element can be chosen from none"};
  const auto middle = [](const Line& l) { return l[(l.size() - 1) / 2]; };
  for (const auto& [shape, dim] : {std::pair{Shape{1}, 0}, std::pair{Shape{5, 8}, 1}, std::pair{Shape{5, 8}, 0}}) {
    const int at = dim;
    c.samples.push_back({.inputs = {real(shape, -50, 50)},
                         .call =
                             [=](const Tensors& in) {
                               const ValuesIndices y = median(in[0], at, KeepDim::yes);
                               return Tensors{y.values, y.indices, median(in[0])};
                             },
                         .reference =
                             [=](const Tensors& in) {
                               Tensors y = along(in[0], at, middle);
                               y.push_back(squeeze(along(flat_of(in[0]), 0, middle)[0]));
                               return y;
                             }});
  }
  c.errors.push_back({"none", [] { (void)median(zeros({0}, cpu)); }, throws<ShapeError>,
                      "median: dimension 0 of x [0] has no elements"});
  return c;
}

namespace {
const std::array kBetween{Between::linear, Between::lower, Between::higher, Between::midpoint, Between::nearest};

// The quantile of a sorted line.
double quantile_of(const Line& l, double q, Between between) {
  const double place = q * double(l.size() - 1), low = std::floor(place), high = std::ceil(place);
  const double a = l[std::size_t(low)].first, b = l[std::size_t(high)].first;
  switch (between) {
    case Between::linear: break;
    case Between::lower: return a;
    case Between::higher: return b;
    case Between::midpoint: return (a + b) / 2;
    case Between::nearest: return l[std::size_t(std::nearbyint(place))].first;
  }
  return a + (place - low) * (b - a);
}
Tensor quantile_along(const Tensor& x, int dim, double q, Between between) {
  return squeeze(along(x, dim, [&](const Line& l) { return std::pair(quantile_of(l, q, between), 0); })[0], {dim});
}
Shape ones_like_of(const Shape& s) {
  Shape ones = s;
  for (int d = 0; d < s.rank(); ++d) ones = ones.with(d, 1);
  return ones;
}
// One after the other along dim, and of all elements, with dimensions of size 1.
Tensors quantiles_of(const Tensor& x, int dim, const std::vector<double>& qs, Between between) {
  Tensors lines, all;
  for (const double q : qs) {
    lines.push_back(quantile_along(x, dim, q, between));
    all.push_back(reshape(quantile_along(flat_of(x), 0, q, between), Dims(ones_like_of(x.shape()).dims())));
  }
  return {stack(lines), stack(all)};
}
}  // namespace

LEVIN_OP_CASE(quantile) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .no_empty = "no element can be chosen from none"};
  for (const Between between : kBetween) {
    for (const double q : {0.0, 0.3, 0.5, 0.77, 1.0}) {
      for (const Shape& s : {Shape{1}, Shape{4, 7}}) {
        c.samples.push_back({.inputs = {real(s)},
                             .call =
                                 [=](const Tensors& in) {
                                   return Tensors{quantile(in[0], q, 0, {.between = between}),
                                                  quantile(in[0], q, {}, {.between = between, .keep = KeepDim::yes})};
                                 },
                             .reference =
                                 [=](const Tensors& in) {
                                   const Tensors y = quantiles_of(in[0], 0, {q}, between);
                                   return Tensors{squeeze(y[0], {0}), squeeze(y[1], {0})};
                                 }});
      }
    }
  }
  c.errors.push_back({"q", [] { (void)quantile(zeros({3}, cpu), 1.5); }, throws<ConfigError>,
                      "quantile: q is 1.5, expected a number from 0 to 1"});
  return c;
}

LEVIN_OP_CASE(quantiles) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8};
  for (const Between between : kBetween) {
    for (const std::vector<double>& qs : {std::vector<double>{0.3}, {0.77, 0, 0.5, 0.5, 1}}) {
      for (const auto& [shape, dim] : {std::pair{Shape{1}, 0}, {Shape{4, 7}, 1}, {Shape{4, 7}, 0}, {{2, 9, 3}, 1}}) {
        const int at = dim;
        c.samples.push_back({.inputs = {real(shape)},
                             .call =
                                 [=](const Tensors& in) {
                                   return Tensors{quantile(in[0], qs, at - in[0].rank(), {.between = between}),
                                                  quantile(in[0], qs, {}, {.between = between, .keep = KeepDim::yes})};
                                 },
                             .reference = [=](const Tensors& in) { return quantiles_of(in[0], at, qs, between); }});
      }
    }
  }
  c.samples.push_back({.inputs = {real({0, 4})},
                       .call =
                           [](const Tensors& in) {
                             return Tensors{quantile(in[0], {0.1, 0.9}, 1)};
                           },
                       .reference =
                           [](const Tensors& in) {
                             return Tensors{zeros({2, 0}, in[0].device())};
                           }});
  c.errors.push_back({"q",
                      [] {
                        (void)quantile(zeros({3}, cpu), {0.5, -0.5});
                      },
                      throws<ConfigError>, "quantile: q is -0.5, expected a number from 0 to 1"});
  c.errors.push_back({"none",
                      [] {
                        (void)quantile(zeros({2, 0}, cpu), {0.5, 1}, 1);
                      },
                      throws<ShapeError>, "quantile: dimension 1 of x [2, 0] has no elements, expected 1 or more"});
  return c;
}

LEVIN_OP_CASE(quantiles_of_a_tensor) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8};
  for (const Between between : kBetween) {
    for (const auto& [shape, dim, m] : {std::tuple{Shape{1}, 0, Shape{1}},
                                        {Shape{4, 7}, 1, Shape{3}},
                                        {Shape{4, 7}, 0, Shape{3}},
                                        {{2, 9, 3}, 1, Shape{4}},
                                        {Shape{3, 2}, 0, Shape{0}}}) {
      const int at = dim;
      // Between two elements a line of numbers has a slope; other places jump.
      const Input q = between == Between::linear ? real(m, 0, 1) : constant(m, 0, 1);
      c.samples.push_back({.inputs = {real(shape), q},
                           .call =
                               [=](const Tensors& in) {
                                 return Tensors{quantile(in[0], in[1], at - in[0].rank(), {.between = between}),
                                                quantile(in[0], in[1], {}, {between, KeepDim::yes})};
                               },
                           .reference =
                               [=](const Tensors& in) {
                                 const std::vector<double> qs = in[1].to_vector<double>();
                                 if (!qs.empty()) return quantiles_of(in[0], at, qs, between);
                                 const Shape whole = ones_like_of(in[0].shape());
                                 return Tensors{zeros(in[0].shape().removed(at).inserted(0, 0), cpu, DType::f64),
                                                zeros(whole.inserted(0, 0), cpu, DType::f64)};
                               }});
    }
  }
  c.errors.push_back({"q",
                      [] {
                        (void)quantile(zeros({3}, cpu), tensor({0.5f, 1.5f}, cpu));
                      },
                      throws<ConfigError>, "quantile: q is 1.5, expected a number from 0 to 1"});
  c.errors.push_back({"dtype of q", [] { (void)quantile(zeros({3}, cpu), tensor({0.5}, cpu)); }, throws<DTypeError>,
                      "quantile: tensors are f32 and f64"});
  c.errors.push_back({"rank of q",
                      [] {
                        (void)quantile(zeros({3}, cpu), zeros({1, 2}, cpu));
                      },
                      throws<ShapeError>, "quantile: q has shape [1, 2], expected [m] or a single element"});
  return c;
}

LEVIN_OP_CASE(unique) {
  OpCase c{.ops = {}, .dtypes = kComputedDTypes, .differentiable = false, .values_on_meta = true};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{0, 3}, Shape{40}, Shape{5, 60}}) {
    c.samples.push_back(
        {.inputs = {real(s, 0, 8)},
         .call =
             [](const Tensors& in) {
               const Tensor whole = floor(in[0].to(DType::f64)).to(in[0].dtype());
               const UniqueResult y = unique(whole);
               return Tensors{y.values, y.inverse, y.counts};
             },
         .reference =
             [](const Tensors& in) {
               Plain x(in[0]);
               for (double& v : x.values) v = std::floor(v);
               std::vector<double> values = x.values;
               std::sort(values.begin(), values.end());
               values.erase(std::unique(values.begin(), values.end()), values.end());
               std::vector<std::int64_t> counts(values.size());
               Plain places(x.shape);
               for (std::size_t i = 0; i < x.values.size(); ++i) {
                 const auto at = std::lower_bound(values.begin(), values.end(), x.values[i]) - values.begin();
                 places.values[i] = double(at);
                 ++counts[std::size_t(at)];
               }
               const auto n = static_cast<std::int64_t>(values.size());
               return Tensors{from_data(std::span<const double>(values), {n}, cpu), places.tensor(DType::i64),
                              from_data(std::span<const std::int64_t>(counts), {n}, cpu)};
             }});
  }
  c.errors.push_back({"undefined", [] { (void)unique(Tensor()); }, throws<StateError>, "unique: "});
  return c;
}

TEST_CASE("a NaN makes the median and each quantile NaN, along its own line alone") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = from_data<double>(std::vector<double>{3, nan, 1, 4, 2, 6}, {2, 3}, cpu);
  const ValuesIndices m = median(x, 1);
  CHECK(std::isnan(m.values.to_vector<double>()[0]));
  CHECK(m.values.to_vector<double>()[1] == 4);
  CHECK(m.indices.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0});
  CHECK(std::isnan(median(x).item()));
  const std::vector<double> q = quantile(x, 0.0, 1).to_vector<double>();
  CHECK(std::isnan(q[0]));
  CHECK(q[1] == 2);
  CHECK(unique(tensor({nan, 1.0, nan}, cpu)).counts.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 1, 1});
}

TEST_CASE(
    "several quantiles are those of one q each, with their gradients; those of a tensor are those of its numbers") {
  Generator gen(3);
  const std::vector<double> qs{0.9, 0.125, 0.5, 0.123, 1};
  for (const std::int64_t n : {1, 2, 5, 1500}) {
    CAPTURE(n);
    Tensor x = randn({3, n}, gen, cpu, DType::f64);
    x.requires_grad_();
    Tensors ones;
    for (const double q : qs) ones.push_back(quantile(x, q, 1));
    const Tensor want = stack(ones), seed = randn({5, 3}, gen, cpu, DType::f64);
    const Tensor got = quantile(x, qs, 1), of_tensor = quantile(x, from_data(qs, {5}, cpu), 1);
    CHECK(equal(got, want));
    CHECK(allclose(of_tensor, want, 1e-14, 1e-14));
    const Tensor slope = grad(Tensors{want}, Tensors{x}, Tensors{seed})[0];
    CHECK(allclose(grad(Tensors{got}, Tensors{x}, Tensors{seed})[0], slope, 1e-14, 1e-14));
    CHECK(allclose(grad(Tensors{of_tensor}, Tensors{x}, Tensors{seed})[0], slope, 1e-14, 1e-14));
  }
}

TEST_CASE("f32 numbers have the places of f32 products, as in PyTorch") {
  const Tensor x = arange(101, cpu).to(DType::f32);
  const auto check = [&](double q, Between between, double want) {
    CHECK(quantile(x, q, 0, {.between = between}).item() == want);
    CHECK(quantile(x, tensor({float(q)}, cpu), 0, {.between = between}).item() == want);
  };
  for (const double q : {0.07, 0.14, 0.29, 0.57, 0.58}) {
    for (const Between between : kBetween) {
      if (between != Between::linear) check(q, between, std::round(q * 100));
    }
  }
  check(0.53, Between::lower, 52);
  check(0.53, Between::higher, 53);
  check(0.59, Between::lower, 58);
  CHECK(quantile(x.to(DType::f64), 0.29, 0, {.between = Between::lower}).item() == 28);  // 0.29 * 100 < 29 in f64
}

TEST_CASE("quantiles have the shape of q in front, also of a single element and of no q") {
  const Tensor x = zeros({4, 2, 3}, cpu), one = zeros({}, cpu), none = zeros({0}, cpu), half = full({}, 0.5, cpu);
  CHECK(quantile(x, {0.1, 0.9}, 1).shape() == Shape{2, 4, 3});
  CHECK(quantile(x, {0.1, 0.9}, 1, {.keep = KeepDim::yes}).shape() == Shape{2, 4, 1, 3});
  CHECK(quantile(x, {0.5}, -1).shape() == Shape{1, 4, 2});
  CHECK(quantile(x, {0.1, 0.9}).shape() == Shape{2});
  CHECK(quantile(x, std::span<const double>{}, 1).shape() == Shape{0, 4, 3});
  CHECK(quantile(x, none, 1, {.keep = KeepDim::yes}).shape() == Shape{0, 4, 1, 3});
  CHECK(quantile(x, half, 1).shape() == Shape{4, 3});
  CHECK(quantile(x, half, 1, {.keep = KeepDim::yes}).shape() == Shape{4, 1, 3});
  for (const std::int64_t dim : {0, -1}) {
    CHECK(quantile(one, {0.1, 0.9}, dim).shape() == Shape{2});
    CHECK(quantile(one, none, dim, {.keep = KeepDim::yes}).shape() == Shape{0});
    CHECK(quantile(one, half, dim).shape() == Shape{});
  }
  CHECK_THROWS_AS((void)quantile(one, {0.1, 0.9}, 1), IndexError);
}

TEST_CASE("a line with NaN has NaN for each of several quantiles and takes no gradient; infinities are elements") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<double> qs{0.25, 0.5, 1};
  for (const bool as_tensor : {false, true}) {
    CAPTURE(as_tensor);
    Tensor x = from_data<double>(std::vector<double>{3, nan, 1, 4, 2, 6}, {2, 3}, cpu);
    Tensor q = from_data(qs, {3}, cpu);
    x.requires_grad_();
    q.requires_grad_();
    const Tensor y = as_tensor ? quantile(x, q, 1) : quantile(x, qs, 1);
    const std::vector<double> got = y.detach().to_vector<double>();
    for (const std::size_t i : {0, 2, 4}) CHECK(std::isnan(got[i]));
    CHECK(std::vector<double>{got[1], got[3], got[5]} == std::vector<double>{3, 4, 6});
    const Tensors slopes = grad(Tensors{sum(y)}, Tensors{x, q}, {}, {.allow_unused = true});
    CHECK(slopes[0].to_vector<double>() == std::vector<double>{0, 0, 0, 1.5, 0.5, 1});
    if (as_tensor) CHECK(slopes[1].to_vector<double>() == std::vector<double>{4, 0, 0});
    const Tensor far = tensor({1.0, inf, -inf}, cpu);
    const Tensor ends = as_tensor ? quantile(far, tensor({0.0, 0.5, 1.0}, cpu), 0) : quantile(far, {0, 0.5, 1}, 0);
    CHECK(ends.to_vector<double>() == std::vector<double>{-inf, 1, inf});
  }
}

}  // namespace levin::testing
