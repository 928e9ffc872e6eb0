// Samples of reductions that are public ops in a row.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;

// f of the elements along dim, or of all.
Tensor along(const Tensor& t, std::optional<int> dim, const std::function<double(const Values&)>& f) {
  const Plain x(t);
  if (!dim) return Plain({}, f(x.values)).tensor();
  return Plain(x.shape.removed(*dim),
               [&](const At& at) {
                 Values line;
                 At place = at;
                 place.insert(place.begin() + *dim, 0);
                 for (std::int64_t k = 0; k < x.shape[*dim]; ++k)
                   line.push_back(x(with(place, *dim, static_cast<double>(k))));
                 return f(line);
               })
      .tensor();
}
Dims dims_of(std::optional<int> dim) { return dim ? Dims(*dim) : Dims(); }

struct Sample {
  Shape shape;
  std::optional<int> dim;
};
const Sample kSamples[] = {{{3, 5}, 0}, {{3, 5}, 1}, {{2, 3, 2}, {}}, {{1}, 0}, {{0, 4}, 1}, {{}, {}}};

// f of one line, once for each output.
using Lines = std::vector<std::function<double(const Values&)>>;
OpCase statistics(std::vector<DType> dtypes, const std::function<Tensors(const Tensor&, std::optional<int>)>& call,
                  const Lines& lines, bool differentiable = true) {
  OpCase c{.ops = {},
           .dtypes = std::move(dtypes),
           .sums = 20,
           .differentiable = differentiable,
           .layout_changes_sums = true};
  for (const Sample& s : kSamples) {
    c.samples.push_back({.inputs = {real(s.shape)},
                         .call = [=](const Tensors& in) { return call(in[0], s.dim); },
                         .reference =
                             [=](const Tensors& in) {
                               Tensors out;
                               for (const auto& f : lines) out.push_back(along(in[0], s.dim, f));
                               return out;
                             }});
  }
  c.errors.push_back({"dim", [=] { (void)call(zeros({3}, cpu), 1); }, throws<IndexError>, ": dimension is 1"});
  return c;
}
double total(const Values& v) {
  double s = 0;
  for (const double x : v) s += x;
  return s;
}
double mean_of(const Values& v) { return total(v) / static_cast<double>(v.size()); }
double variance(const Values& v) {
  double s = 0;
  for (const double x : v) s += (x - mean_of(v)) * (x - mean_of(v));
  return s / (static_cast<double>(v.size()) - 0.5);
}

}  // namespace

LEVIN_OP_CASE(count_nonzero) {
  return statistics(
      kAllDTypes, [](const Tensor& x, std::optional<int> d) { return Tensors{count_nonzero(x, dims_of(d))}; },
      {[](const Values& v) { return static_cast<double>(v.size()) - double(std::count(v.begin(), v.end(), 0)); }},
      false);
}
LEVIN_OP_CASE(nansum) {
  return statistics(kComputedDTypes,
                    [](const Tensor& x, std::optional<int> d) { return Tensors{nansum(x, dims_of(d))}; }, {total});
}
LEVIN_OP_CASE(nanmean) {
  return statistics(kFloatDTypes, [](const Tensor& x, std::optional<int> d) { return Tensors{nanmean(x, dims_of(d))}; },
                    {mean_of});
}
LEVIN_OP_CASE(aminmax) {
  return statistics(kComputedDTypes,
                    [](const Tensor& x, std::optional<int> d) {
                      const MinMax y = aminmax(x, d ? std::optional<std::int64_t>(*d) : std::nullopt);
                      return Tensors{y.min, y.max};
                    },
                    {[](const Values& v) { return *std::min_element(v.begin(), v.end()); },
                     [](const Values& v) { return *std::max_element(v.begin(), v.end()); }});
}
LEVIN_OP_CASE(var_mean) {
  return statistics(kFloatDTypes,
                    [](const Tensor& x, std::optional<int> d) {
                      const MeanOf y = var_mean(x, dims_of(d), 0.5);
                      return Tensors{y.spread, y.mean};
                    },
                    {variance, mean_of});
}
LEVIN_OP_CASE(std_mean) {
  return statistics(kFloatDTypes,
                    [](const Tensor& x, std::optional<int> d) {
                      const MeanOf y = std_mean(x, dims_of(d), 0.5);
                      return Tensors{y.spread, y.mean};
                    },
                    {[](const Values& v) { return std::sqrt(variance(v)); }, mean_of});
}

TEST_CASE("sums and means leave NaN out, and give it no gradient") {
  Tensor x = from_data(Values{1, kNan, 3, kNan, kNan, kNan}, {2, 3}, cpu);
  x.requires_grad_();
  CHECK(nansum(x, 1).to_vector<double>() == Values{4, 0});
  const Values mean = nanmean(x, 1).to_vector<double>();
  CHECK(mean[0] == 2);
  CHECK(std::isnan(mean[1]));
  backward(sum(select(nanmean(x, 1), 0, 0)));
  CHECK(x.grad().to_vector<double>() == Values{0.5, 0, 0.5, 0, 0, 0});
  CHECK(count_nonzero(x.detach(), 1).to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 3});
}

}  // namespace levin::testing
