// Samples of searches, counts and reductions by index for the conformance suite.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;
using Places = std::vector<std::int64_t>;

Tensor vec(const Values& v, DType dtype = DType::f64) {
  return from_data(v, {static_cast<std::int64_t>(v.size())}, cpu).to(dtype);
}
Tensor whole(const Tensor& x) { return floor(x.to(DType::f64)).to(x.dtype()); }

// The place of v among the numbers from `begin` on.
double place_of(const Values& v, std::size_t begin, std::size_t n, double value, SearchSide side) {
  const auto first = v.begin() + static_cast<std::ptrdiff_t>(begin), last = first + static_cast<std::ptrdiff_t>(n);
  return static_cast<double>(
      (side == SearchSide::left ? std::lower_bound(first, last, value) : std::upper_bound(first, last, value)) - first);
}

}  // namespace

LEVIN_OP_CASE(searchsorted) {
  OpCase c{.ops = {"searchsorted"}, .dtypes = kComputedDTypes, .differentiable = false};
  for (const SearchSide side : {SearchSide::left, SearchSide::right}) {
    for (const auto& [sorted, values] : {std::pair{Shape{9}, Shape{3, 4}},
                                         {Shape{3, 9}, Shape{3, 4}},
                                         {Shape{2, 2, 5}, Shape{2, 2, 1}},
                                         {Shape{1}, Shape{1}},
                                         {Shape{0}, Shape{3}},
                                         {Shape{4}, Shape{0}},
                                         {Shape{3}, Shape{}}}) {
      c.samples.push_back(
          {.inputs = {real(sorted, 0, 8), real(values, 0, 8)},
           .call =
               [=](const Tensors& in) { return Tensors{searchsorted(sort(whole(in[0])).values, whole(in[1]), side)}; },
           .reference =
               [=](const Tensors& in) {
                 const Plain s(sort(floor(in[0])).values), v(floor(in[1]));
                 const auto n = static_cast<std::size_t>(s.shape.back());
                 const bool one = s.shape.rank() == 1;
                 Plain y(v.shape);
                 const auto m = one ? std::size_t{1} : static_cast<std::size_t>(v.shape.back());
                 for (std::size_t k = 0; k < y.values.size(); ++k)
                   y.values[k] = place_of(s.values, one ? 0 : k / m * n, n, v.values[k], side);
                 return Tensors{y.tensor(DType::i64)};
               }});
    }
  }
  c.errors.push_back({"shape",
                      [] {
                        (void)searchsorted(zeros({2, 3}, cpu), zeros({3, 3}, cpu));
                      },
                      throws<ShapeError>, "searchsorted: sorted has shape [2, 3] and values [3, 3]"});
  c.errors.push_back({"dtype", [] { (void)searchsorted(zeros({2}, cpu), zeros({3}, cpu, DType::f64)); },
                      throws<DTypeError>, "searchsorted: tensors are f32 and f64"});
  c.errors.push_back({"rank", [] { (void)searchsorted(zeros({}, cpu), zeros({3}, cpu)); }, throws<ShapeError>,
                      "searchsorted: the sorted tensor is a single element"});
  return c;
}

LEVIN_OP_CASE(bucketize) {
  OpCase c{.ops = {}, .dtypes = kComputedDTypes, .differentiable = false};
  for (const auto& [values, n] : {std::pair{Shape{3, 4}, 9}, {Shape{1}, 1}, {Shape{0}, 2}}) {
    c.samples.push_back({.inputs = {real(values, 0, 8), real({n}, 0, 8)},
                         .call =
                             [](const Tensors& in) {
                               return Tensors{bucketize(whole(in[0]), sort(whole(in[1])).values, SearchSide::right)};
                             },
                         .reference =
                             [](const Tensors& in) {
                               const Plain s(sort(floor(in[1])).values), v(floor(in[0]));
                               Plain y(v.shape);
                               for (std::size_t k = 0; k < y.values.size(); ++k)
                                 y.values[k] = place_of(s.values, 0, s.values.size(), v.values[k], SearchSide::right);
                               return Tensors{y.tensor(DType::i64)};
                             }});
  }
  c.errors.push_back({"rank",
                      [] {
                        (void)bucketize(zeros({2}, cpu), zeros({2, 2}, cpu));
                      },
                      throws<ShapeError>, "bucketize: boundaries have shape [2, 2]"});
  return c;
}

LEVIN_OP_CASE(isin) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes, .differentiable = false};
  for (const auto& [elements, test] : {std::pair{Shape{5, 4}, Shape{2, 3}},
                                       {Shape{1}, Shape{1}},
                                       {Shape{3}, Shape{0}},
                                       {Shape{0}, Shape{3}},
                                       {Shape{}, Shape{2}}}) {
    c.samples.push_back({.inputs = {real(elements, 0, 8), real(test, 0, 8)},
                         .call = [](const Tensors& in) { return Tensors{isin(whole(in[0]), whole(in[1]))}; },
                         .reference =
                             [](const Tensors& in) {
                               const Plain x(floor(in[0])), t(floor(in[1]));
                               Plain y(x.shape);
                               for (std::size_t k = 0; k < y.values.size(); ++k)
                                 y.values[k] = std::count(t.values.begin(), t.values.end(), x.values[k]) > 0;
                               return Tensors{y.tensor(DType::b8)};
                             }});
  }
  c.errors.push_back({"dtype", [] { (void)isin(zeros({2}, cpu), zeros({2}, cpu, DType::f64)); }, throws<DTypeError>,
                      "isin: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(histc) {
  OpCase c{.ops = {"histc"}, .dtypes = kFloatDTypes, .differentiable = false};
  // Bins whose edges all dtypes hold, and elements between the edges.
  for (const Shape& s : {Shape{40}, Shape{3, 5}, Shape{1}, Shape{0}}) {
    c.samples.push_back({.inputs = {real(s, -1, 9)},
                         .call = [](const Tensors& in) { return Tensors{histc(floor(in[0]) + 0.5, 8, 0, 8)}; },
                         .reference =
                             [](const Tensors& in) {
                               Plain y({8});
                               for (const double v : Plain(floor(in[0])).values) {
                                 if (v >= 0 && v < 8) y.values[static_cast<std::size_t>(v)] += 1;
                               }
                               return Tensors{y.tensor()};
                             }});
  }
  c.errors.push_back({"bins", [] { (void)histc(zeros({2}, cpu), 0); }, throws<ShapeError>, "histc: bins is 0"});
  c.errors.push_back({"ends", [] { (void)histc(zeros({2}, cpu), 4, 2, 1); }, throws<ConfigError>,
                      "histc: low is 2 and high 1, expected finite numbers with low <= high"});
  return c;
}

LEVIN_OP_CASE(bincount_of_weights) {
  OpCase c{.ops = {}, .dtypes = kNumberDTypes, .sums = 20, .values_on_meta = true};
  for (const std::int64_t n : {20, 1, 0}) {
    c.samples.push_back({.inputs = {index({n}, 6), real({n})},
                         .call = [](const Tensors& in) { return Tensors{bincount(in[0], in[1], 9)}; },
                         .reference =
                             [](const Tensors& in) {
                               Plain y({9});
                               const Plain at(in[0]), w(in[1]);
                               for (std::size_t k = 0; k < w.values.size(); ++k)
                                 y.values[static_cast<std::size_t>(at.values[k])] += w.values[k];
                               return Tensors{y.tensor()};
                             }});
  }
  c.errors.push_back({"shape", [] { (void)bincount(zeros({2}, cpu, DType::i64), zeros({3}, cpu)); }, throws<ShapeError>,
                      "bincount: weights have shape [3], expected index's, [2]"});
  return c;
}

LEVIN_OP_CASE(unique_consecutive) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes, .differentiable = false, .values_on_meta = true};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{40}, Shape{5, 60}}) {
    c.samples.push_back({.inputs = {real(s, 0, 2)},
                         .call =
                             [](const Tensors& in) {
                               const UniqueResult y = unique_consecutive(whole(in[0]));
                               return Tensors{y.values, y.inverse, y.counts};
                             },
                         .reference =
                             [](const Tensors& in) {
                               const Plain x(floor(in[0]));
                               Values values, counts;
                               Plain places(x.shape);
                               for (std::size_t k = 0; k < x.values.size(); ++k) {
                                 if (k == 0 || x.values[k] != x.values[k - 1]) {
                                   values.push_back(x.values[k]);
                                   counts.push_back(0);
                                 }
                                 counts.back() += 1;
                                 places.values[k] = static_cast<double>(values.size()) - 1;
                               }
                               return Tensors{vec(values), places.tensor(DType::i64), vec(counts, DType::i64)};
                             }});
  }
  c.errors.push_back(
      {"undefined", [] { (void)unique_consecutive(Tensor()); }, throws<StateError>, "unique_consecutive: "});
  return c;
}

namespace {
// What stands at one place.
double reduced(ScatterReduce reduce, const Values& all) {
  double y = reduce == ScatterReduce::prod ? 1 : 0;
  for (const double v : all) y = reduce == ScatterReduce::prod ? y * v : y + v;
  if (reduce == ScatterReduce::mean) y /= static_cast<double>(all.size());
  if (reduce == ScatterReduce::amax) y = *std::max_element(all.begin(), all.end());
  if (reduce == ScatterReduce::amin) y = *std::min_element(all.begin(), all.end());
  return y;
}
struct Sending {
  Shape x, index, src;
  int dim;
};
void add_reductions(OpCase& c, ScatterReduce reduce) {
  for (const IncludeSelf include : {IncludeSelf::yes, IncludeSelf::no}) {
    for (const Sending& s : {Sending{{4, 3}, {2, 3}, {2, 3}, 0},
                             {{3, 4}, {3, 9}, {3, 9}, 1},
                             {{2, 3, 4}, {2, 5, 3}, {2, 6, 4}, 1},
                             {{1}, {1}, {1}, 0},
                             {{1}, {5}, {5}, 0},
                             {{3, 2}, {0, 2}, {0, 2}, 0}}) {
      c.samples.push_back({.inputs = {real(s.x), index(s.index, s.x[s.dim]), real(s.src)},
                           .call =
                               [=](const Tensors& in) {
                                 return Tensors{
                                     scatter_reduce(in[0], s.dim - s.x.rank(), in[1], in[2], reduce, include)};
                               },
                           .reference =
                               [=](const Tensors& in) {
                                 const Plain x(in[0]), at(in[1]), src(in[2]);
                                 return Tensors{Plain(s.x, [&](const At& to) {
                                                  Values all;
                                                  at.each([&](const At& from) {
                                                    if (with(from, s.dim, at(from)) == to) all.push_back(src(from));
                                                  });
                                                  if (all.empty()) return x(to);
                                                  if (include == IncludeSelf::yes) all.push_back(x(to));
                                                  return reduced(reduce, all);
                                                }).tensor()};
                               }});
    }
  }
}
OpCase reductions(const std::vector<ScatterReduce>& kinds, std::vector<std::string> ops, std::vector<DType> dtypes) {
  OpCase c{.ops = std::move(ops), .dtypes = std::move(dtypes), .sums = 10};
  for (const ScatterReduce kind : kinds) add_reductions(c, kind);
  const ScatterReduce any = kinds.front();
  c.errors.push_back(
      {"outside",
       [=] { (void)scatter_reduce(zeros({2}, cpu), 0, tensor<std::int64_t>({2}, cpu), zeros({1}, cpu), any); },
       throws<IndexError>, "scatter_reduce: index 2 at position [0] is out of range, expected 0 to 1"});
  c.errors.push_back({"larger",
                      [=] {
                        const Tensor at = zeros({1, 3}, cpu, DType::i64);
                        (void)scatter_reduce(zeros({2, 2}, cpu), 0, at, zeros({1, 3}, cpu), any);
                      },
                      throws<ShapeError>, "scatter_reduce: index [1, 3] is larger than x [2, 2]"});
  c.errors.push_back({"rank",
                      [=] {
                        const Tensor at = zeros({1}, cpu, DType::i64);
                        (void)scatter_reduce(zeros({2, 2}, cpu), 0, at, zeros({1}, cpu), any);
                      },
                      throws<ShapeError>, "scatter_reduce: x has shape [2, 2], index [1] and src [1]"});
  return c;
}
}  // namespace

LEVIN_OP_CASE(scatter_reduce) { return reductions({ScatterReduce::sum, ScatterReduce::prod}, {}, kNumberDTypes); }
LEVIN_OP_CASE(scatter_reduce_mean) { return reductions({ScatterReduce::mean}, {}, kFloatDTypes); }
LEVIN_OP_CASE(scatter_reduce_extremes) {
  return reductions({ScatterReduce::amax, ScatterReduce::amin}, {"scatter_amax", "scatter_amin"}, kNumberDTypes);
}

LEVIN_OP_CASE(index_reduce) {
  OpCase c{.ops = {}, .dtypes = kNumberDTypes, .sums = 6};
  for (const auto& [shape, dim, n] :
       {std::tuple{Shape{4, 3}, 0, 6}, {Shape{2, 3, 2}, 1, 5}, {Shape{1}, 0, 1}, {Shape{3, 0}, 0, 2}}) {
    const Shape x = shape;
    const int at = dim;
    c.samples.push_back(
        {.inputs = {real(x), index({n}, x[at]), real(x.with(at, n))},
         .call = [=](const Tensors& in) { return Tensors{index_reduce(in[0], at, in[1], in[2], ScatterReduce::prod)}; },
         .reference =
             [=](const Tensors& in) {
               Plain y(in[0]);
               const Plain i(in[1]), src(in[2]);
               src.each(
                   [&](const At& from) { y(with(from, at, i({from[static_cast<std::size_t>(at)]}))) *= src(from); });
               return Tensors{y.tensor()};
             }});
  }
  c.errors.push_back({"shape",
                      [] {
                        const Tensor at = zeros({2}, cpu, DType::i64);
                        (void)index_reduce(zeros({4, 3}, cpu), 0, at, zeros({3, 3}, cpu), ScatterReduce::sum);
                      },
                      throws<ShapeError>, "index_reduce: x has shape [4, 3], index [2] and src [3, 3]"});
  return c;
}

TEST_CASE("NaN counts as largest in a search, equals nothing in isin, and is counted by no bin") {
  const Tensor sorted = vec({-kInf, 0, 1, 1, kInf, kNan, kNan});
  const auto places = [&](SearchSide side) {
    return searchsorted(sorted, vec({-kInf, 1, 2, kInf, kNan}), side).to_vector<std::int64_t>();
  };
  CHECK(places(SearchSide::left) == Places{0, 2, 4, 4, 5});
  CHECK(places(SearchSide::right) == Places{1, 4, 4, 5, 7});
  CHECK(isin(vec({kNan, 0, -0.0, kInf}), vec({kNan, 0, 5})).to(DType::i64).to_vector<std::int64_t>() ==
        Places{0, 1, 1, 0});
  const auto bins = [](const Tensor& x, std::int64_t n, double low, double high) {
    return histc(x, n, low, high).to(DType::f64).to_vector<double>();
  };
  CHECK(bins(vec({0, 1, 2, kNan, kInf, 4}), 4, 0, 4) == Values{1, 1, 1, 1});
  CHECK(bins(vec({1, 2, 3, 5}), 2, 0, 0) == Values{2, 2});  // [1, 5]
  CHECK(bins(vec({3, 3}), 2, 0, 0) == Values{0, 2});        // [2, 4]
  for (const std::int64_t n : {41, 100, 128}) {             // whole numbers lie in their bins
    for (const DType dtype : {DType::f32, DType::f64}) {
      const std::vector<double> ones = bins(arange(n, cpu).to(dtype), n, 0, double(n));
      CHECK(std::ranges::all_of(ones, [](double count) { return count == 1; }));
    }
  }
  const double far = 3e38;  // times the number of bins it is infinite
  CHECK(bins(vec({0, 1.6e38, far}).to(DType::f32), 4, 0, far) == Values{1, 0, 1, 1});
}

TEST_CASE("scatter_reduce lets NaN win, shares the gradient of equal extremes, and differentiates products of zeros") {
  const Tensor at = tensor<std::int64_t>({0, 0, 0, 1}, cpu);
  CHECK(
      std::isnan(scatter_reduce(vec({1, 1}), 0, at, vec({2, kNan, 1, 4}), ScatterReduce::amin).to_vector<double>()[0]));
  Tensor x = vec({5, 1}), src = vec({5, 5, 2, 4});
  x.requires_grad_();
  src.requires_grad_();
  backward(sum(scatter_reduce(x, 0, at, src, ScatterReduce::amax)));
  CHECK(x.grad().to_vector<double>()[0] == doctest::Approx(1.0 / 3));
  CHECK(src.grad().to_vector<double>()[1] == doctest::Approx(1.0 / 3));
  CHECK(src.grad().to_vector<double>()[3] == 1);
  Tensor zero = vec({0, 3, 2, 0});
  zero.requires_grad_();
  backward(sum(scatter_reduce(vec({1, 1}), 0, at, zero, ScatterReduce::prod)));
  CHECK(zero.grad().to_vector<double>() == Values{6, 0, 0, 1});
}

}  // namespace levin::testing
