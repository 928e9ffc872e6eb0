// Samples of order statistics for the conformance suite.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

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

LEVIN_OP_CASE(quantile) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .no_empty = "no element can be chosen from none"};
  for (const Between between :
       {Between::linear, Between::lower, Between::higher, Between::midpoint, Between::nearest}) {
    for (const double q : {0.0, 0.3, 0.5, 0.77, 1.0}) {
      for (const Shape& s : {Shape{1}, Shape{4, 7}}) {
        const auto at_q = [=](const Line& l) {
          const double place = q * double(l.size() - 1), low = std::floor(place), high = std::ceil(place);
          const double a = l[std::size_t(low)].first, b = l[std::size_t(high)].first;
          double y = a + (place - low) * (b - a);
          if (between == Between::lower) y = a;
          if (between == Between::higher) y = b;
          if (between == Between::midpoint) y = (a + b) / 2;
          if (between == Between::nearest) y = l[std::size_t(std::nearbyint(place))].first;
          return std::pair(y, std::int64_t{0});
        };
        c.samples.push_back({.inputs = {real(s)},
                             .call =
                                 [=](const Tensors& in) {
                                   return Tensors{quantile(in[0], q, 0, {.between = between}),
                                                  quantile(in[0], q, {}, {.between = between, .keep = KeepDim::yes})};
                                 },
                             .reference =
                                 [=](const Tensors& in) {
                                   Shape ones = s;
                                   for (int d = 0; d < s.rank(); ++d) ones = ones.with(d, 1);
                                   return Tensors{squeeze(along(in[0], 0, at_q)[0], {0}),
                                                  reshape(along(flat_of(in[0]), 0, at_q)[0], Dims(ones.dims()))};
                                 }});
      }
    }
  }
  c.errors.push_back({"q", [] { (void)quantile(zeros({3}, cpu), 1.5); }, throws<ConfigError>,
                      "quantile: q is 1.5, expected a number from 0 to 1"});
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

}  // namespace levin::testing
