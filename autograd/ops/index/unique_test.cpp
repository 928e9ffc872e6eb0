// Samples of unique slices for the conformance suite, and the order of rows.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "autograd/ops/index/rank_rows.h"
#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;
using Places = std::vector<std::int64_t>;

Tensor whole(const Tensor& x) { return floor(x.to(DType::f64)).to(x.dtype()); }

// The slices of x along dim, each as its numbers in row-major order.
std::vector<Values> slices_of(const Plain& x, int dim) {
  std::vector<Values> slices(static_cast<std::size_t>(x.shape[dim]));
  x.each([&](const At& at) { slices[static_cast<std::size_t>(at[static_cast<std::size_t>(dim)])].push_back(x(at)); });
  return slices;
}
// What unique gives where slice i belongs to group[i].
Tensors grouped(const Plain& x, int dim, const Places& group) {
  const std::int64_t n = x.shape[dim], m = n == 0 ? 0 : *std::max_element(group.begin(), group.end()) + 1;
  Places first(static_cast<std::size_t>(m), -1), counts(static_cast<std::size_t>(m));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto g = static_cast<std::size_t>(group[static_cast<std::size_t>(i)]);
    if (counts[g]++ == 0) first[g] = i;
  }
  const Plain values(x.shape.with(dim, m), [&](const At& at) {
    const auto g = static_cast<std::size_t>(at[static_cast<std::size_t>(dim)]);
    return x(with(at, dim, double(first[g])));
  });
  return {values.tensor(), from_data(group, {n}, cpu), from_data(counts, {m}, cpu)};
}
Tensors listed(const UniqueResult& y) { return {y.values, y.inverse, y.counts}; }

OpCase slices(UniqueResult (*f)(const Tensor&, std::int64_t), Places (*group)(const std::vector<Values>&)) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes, .differentiable = false, .values_on_meta = true};
  for (const auto& [shape, dim] : {std::pair{Shape{1}, 0},
                                   {Shape{0}, 0},
                                   {Shape{0, 3}, 0},
                                   {Shape{40}, 0},
                                   {Shape{1, 30}, 0},
                                   {Shape{60, 2}, 0},
                                   {Shape{2, 60}, 1},
                                   {Shape{2, 40, 2}, 1},
                                   {Shape{30, 11}, 0}}) {
    const int at = dim;
    c.samples.push_back({.inputs = {real(shape, 0, 2)},
                         .call = [=](const Tensors& in) { return listed(f(whole(in[0]), at - in[0].rank())); },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain x(floor(in[0]));
                               return grouped(x, at, group(slices_of(x, at)));
                             }});
  }
  return c;
}

// The groups of equal rows in lexicographic order. A NaN is the largest and equals nothing.
Places ranks_of(const std::vector<Values>& rows) {
  const auto before = [&](std::size_t i, std::size_t j) {
    for (std::size_t c = 0; c < rows[i].size(); ++c) {
      const double a = rows[i][c], b = rows[j][c];
      if (std::isnan(a) && std::isnan(b)) return i < j;
      if (std::isnan(a) || std::isnan(b)) return std::isnan(b);
      if (a != b) return a < b;
    }
    return false;
  };
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), before);
  Places ranks(rows.size());
  std::int64_t rank = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (k > 0) rank += before(order[k - 1], order[k]);
    ranks[order[k]] = rank;
  }
  return ranks;
}
Places runs_of(const std::vector<Values>& rows) {
  Places runs(rows.size());
  for (std::size_t i = 1; i < rows.size(); ++i) runs[i] = runs[i - 1] + (rows[i] != rows[i - 1]);
  return runs;
}

}  // namespace

LEVIN_OP_CASE(unique_slices) {
  OpCase c = slices(&unique, &ranks_of);
  c.errors.push_back({"undefined", [] { (void)unique(Tensor(), 0); }, throws<StateError>, "unique: "});
  c.errors.push_back({"no elements",
                      [] {
                        (void)unique(zeros({3, 0}, cpu), 0);
                      },
                      throws<ShapeError>,
                      "unique: slices of x [3, 0] along dimension 0 have no elements, expected 1 or more"});
  c.errors.push_back({"rank", [] { (void)unique(zeros({}, cpu), 0); }, throws<IndexError>,
                      "unique: dimension is 0, but a tensor of rank 0 has none"});
  return c;
}

LEVIN_OP_CASE(unique_consecutive_slices) {
  OpCase c = slices(&unique_consecutive, &runs_of);
  c.errors.push_back(
      {"undefined", [] { (void)unique_consecutive(Tensor(), 0); }, throws<StateError>, "unique_consecutive: "});
  c.errors.push_back({"no elements",
                      [] {
                        (void)unique_consecutive(zeros({0, 0}, cpu), -1);
                      },
                      throws<ShapeError>, "unique_consecutive: slices of x [0, 0] along dimension 1 have no elements"});
  return c;
}

TEST_CASE("rows have the ranks of their lexicographic order by keys and by sorts, with ties, infinities and NaN") {
  std::mt19937_64 rng(5);
  constexpr std::array<double, 8> kSome{0.0, -0.0, 1, 1, 2, kInf, -kInf, kNan};
  struct Size {
    std::int64_t n, columns;
    std::size_t kinds;  // the first of kSome
  };
  for (const Size& s : {Size{1, 1, 8},
                        {1, 9, 8},
                        {9, 1, 8},
                        {40, 2, 8},
                        {60, 3, 8},
                        {50, 5, 7},
                        {300, 17, 2},
                        {300, 9, 3},
                        {5000, 2, 8},
                        {6000, 9, 4}}) {
    CAPTURE(s.n);
    CAPTURE(s.columns);
    Plain x({s.n, s.columns});
    for (double& v : x.values) v = kSome[rng() % s.kinds];
    // Many rows that differ in their last column alone.
    for (std::int64_t i = 0; i < s.n / 2; ++i) {
      for (std::int64_t c = 0; c + 1 < s.columns; ++c) x({i, c}) = x({0, c});
    }
    const Places want = ranks_of(slices_of(x, 0));
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      if (s.n > 1000 && dtype == DType::f16) continue;
      CAPTURE(text(dtype));
      const Tensor rows = x.tensor(dtype);
      CHECK(detail::rank_rows("rows", rows).to_vector<std::int64_t>() == want);
      CHECK(detail::rank_rows_by_sorts(rows).to_vector<std::int64_t>() == want);
      CHECK(detail::rank_rows_by_sorts(rows, 2 * s.n).to_vector<std::int64_t>() == want);  // two columns at a time
      CHECK(detail::rank_rows_by_sorts(rows, 1).to_vector<std::int64_t>() == want);
    }
  }
}

TEST_CASE("integers of all widths and signs order rows as numbers") {
  std::mt19937_64 rng(6);
  for (const DType dtype : {DType::i64, DType::i32, DType::i16, DType::i8, DType::u8, DType::b8}) {
    CAPTURE(text(dtype));
    const std::array<double, 5> of_all{-128, -1, 0, 1, 127}, of_u8{0, 1, 127, 128, 255}, of_bool{0, 1, 0, 1, 1};
    const auto& some = dtype == DType::u8 ? of_u8 : dtype == DType::b8 ? of_bool : of_all;
    Plain x({400, 10});
    for (double& v : x.values) v = some[rng() % some.size()];
    for (std::int64_t i = 0; i < 300; ++i) {
      for (std::int64_t c = 0; c < 8; ++c) x({i, c}) = x({0, c});
    }
    const Places want = ranks_of(slices_of(x, 0));
    CHECK(detail::rank_rows("rows", x.tensor(dtype)).to_vector<std::int64_t>() == want);
    CHECK(detail::rank_rows_by_sorts(x.tensor(dtype)).to_vector<std::int64_t>() == want);
  }
}

TEST_CASE("the number of threads does not change the ranks of many runs of rows") {
  std::mt19937_64 rng(7);
  Plain x({20000, 6});
  for (double& v : x.values) v = double(rng() % 9);
  const Tensor rows = x.tensor(DType::f32);
  const int before = num_threads();
  set_num_threads(1);
  const Tensor one = detail::rank_rows("rows", rows);
  set_num_threads(3);
  CHECK(equal(detail::rank_rows("rows", rows), one));
  set_num_threads(before);
  CHECK(one.to_vector<std::int64_t>() == ranks_of(slices_of(x, 0)));
}

TEST_CASE("slices with NaN equal nothing, and the first of two that differ in the sign of a zero stands for both") {
  const Tensor x = from_data<double>(Values{kNan, 1, kNan, 1, 1, kNan, 1, 1}, {4, 2}, cpu);
  const UniqueResult sorted = unique(x, 0);
  CHECK(sorted.inverse.to_vector<std::int64_t>() == Places{2, 3, 1, 0});
  CHECK(sorted.counts.to_vector<std::int64_t>() == Places{1, 1, 1, 1});
  const Tensor want = from_data<double>(Values{1, 1, 1, kNan, kNan, 1, kNan, 1}, {4, 2}, cpu);
  CHECK(allclose(sorted.values, want, 0, 0, EqualNan::yes));
  CHECK(unique_consecutive(x, 0).counts.to_vector<std::int64_t>() == Places{1, 1, 1, 1});
  CHECK(unique_consecutive(transpose(x, 0, 1), 1).inverse.to_vector<std::int64_t>() == Places{0, 1, 2, 3});

  const Tensor zeros_of_both = from_data<double>(Values{2, -0.0, 2, 0.0}, {2, 2}, cpu);
  for (const UniqueResult& y : {unique(zeros_of_both, 0), unique_consecutive(zeros_of_both, 0)}) {
    CHECK(y.counts.to_vector<std::int64_t>() == Places{2});
    CHECK(std::signbit(y.values.to_vector<double>()[1]));
  }
}

TEST_CASE("unique slices of rank 1 are the unique elements, and carry no gradient") {
  Tensor x = tensor({3.0, 1.0, 3.0, 2.0, 2.0, 1.0}, cpu);
  x.requires_grad_();
  const Tensors sorted = listed(unique(x)), along = listed(unique(x, -1));
  const Tensors runs = listed(unique_consecutive(x)), runs_along = listed(unique_consecutive(x, 0));
  for (std::size_t k = 0; k < 3; ++k) {
    CHECK(equal(sorted[k], along[k]));
    CHECK(equal(runs[k], runs_along[k]));
    CHECK_FALSE(along[k].requires_grad());
    CHECK_FALSE(runs_along[k].requires_grad());
  }
}

}  // namespace levin::testing
