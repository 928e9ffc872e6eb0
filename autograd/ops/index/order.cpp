// What follows from sorted elements.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "autograd/autocast.h"
#include "autograd/ops/index/kth.h"
#include "autograd/ops/index/point.h"
#include "levin/ops.h"

namespace levin {
namespace {

// The dimension, of at least one element.
int checked_dim(const char* op, const Tensor& x, std::int64_t dim) {
  check_defined(op, x);
  const int at = wrap_dim(op, dim, x.rank());
  if (x.shape()[at] == 0)
    fail<ShapeError>(op, ": dimension ", at, " of x ", x.shape(), " has no elements, expected 1 or more");
  return at;
}
Tensor flat(const char* op, const Tensor& x) {
  check_defined(op, x);
  return reshape(x, {x.numel()});
}
// Equal elements of a vector that follow each other.
UniqueResult runs_of(const Tensor& x) {
  const std::int64_t n = x.numel();
  Tensor begins = ones({std::min<std::int64_t>(n, 1)}, x.device(), DType::b8);
  if (n > 1) begins = cat({begins, ne(narrow(x, 0, 1, n - 1), narrow(x, 0, 0, n - 1))});
  const Tensor group = cumsum(begins.to(DType::i64), 0) - 1;
  return {masked_select(x, begins), group, bincount(group)};
}
Tensor without(const Tensor& y, int at, KeepDim keep) { return keep == KeepDim::yes ? y : squeeze(y, {at}); }
// The elements of x at the places, which have one along `at`.
ValuesIndices chosen(const Tensor& x, int at, const Tensor& places, KeepDim keep) {
  return {without(gather(x, at, places), at, keep), without(places, at, keep)};
}

}  // namespace

ValuesIndices kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim, KeepDim keep) {
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return kthvalue(line, k, dim, keep); });
  const int at = checked_dim("kthvalue", x, dim);
  const std::int64_t n = x.shape()[at];
  if (k < 1 || k > n) fail<IndexError>("kthvalue: k is ", k, ", expected 1 to ", n);
  if (x.device().is_cpu())
    return chosen(x, at, detail::kth_places("kthvalue", x, at, k - 1, detail::FirstNan::no), keep);
  return chosen(x, at, narrow(argsort(x, at), at, k - 1, 1), keep);
}

ValuesIndices median(const Tensor& x, std::int64_t dim, KeepDim keep) {
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return median(line, dim, keep); });
  const int at = checked_dim("median", x, dim);
  const std::int64_t n = x.shape()[at], middle = (n - 1) / 2;
  if (!is_float(x.dtype())) return kthvalue(x, middle + 1, at, keep);
  // NaNs stand last in order; where there is one, the first of them counts.
  if (x.device().is_cpu())
    return chosen(x, at, detail::kth_places("median", x, at, middle, detail::FirstNan::yes), keep);
  const Tensor nans = sum(isnan(x.detach()), {at}, KeepDim::yes);
  const Tensor place = where(gt(nans, 0), n - nans, full_like(nans, middle));
  return chosen(x, at, gather(argsort(x, at), at, place), keep);
}
Tensor median(const Tensor& x) {
  const Tensor all = flat("median", x);
  return median(all, 0).values;
}

Tensor quantile(const Tensor& x, double q, std::optional<std::int64_t> dim, const QuantileOptions& o) {
  constexpr const char* op = "quantile";
  check_float(op, x);
  if (dim && x.rank() == 0) return of_point(x, [&](const Tensor& line) { return quantile(line, q, dim, o); });
  if (!(q >= 0 && q <= 1)) fail<ConfigError>(op, ": q is ", q, ", expected a number from 0 to 1");
  if (!dim) {
    const Tensor y = quantile(flat(op, x), q, 0, {.between = o.between});
    if (o.keep == KeepDim::no) return y;
    Shape ones = x.shape();
    for (int d = 0; d < ones.rank(); ++d) ones = ones.with(d, 1);
    return reshape(y, Dims(ones.dims()));
  }
  const int at = checked_dim(op, x, *dim);
  const Tensor sorted = sort(x, at).values;
  const double place = q * static_cast<double>(x.shape()[at] - 1), low = std::floor(place), part = place - low;
  const auto element = [&](double i) { return narrow(sorted, at, static_cast<std::int64_t>(i), 1); };
  const auto blend = [&](double weight) {
    if (weight == 0) return element(low);
    return weight == 1 ? element(std::ceil(place)) : lerp(element(low), element(std::ceil(place)), weight);
  };
  Tensor y;
  switch (o.between) {
    case Between::linear: y = blend(part); break;
    case Between::lower: y = element(low); break;
    case Between::higher: y = element(std::ceil(place)); break;
    case Between::midpoint: y = blend(part > 0 ? 0.5 : 0); break;
    case Between::nearest: y = element(std::nearbyint(place)); break;
  }
  const Tensor any_nan = any(isnan(x.detach()), {at}, KeepDim::yes);
  return without(masked_fill(y, any_nan, std::numeric_limits<double>::quiet_NaN()), at, o.keep);
}

UniqueResult unique(const Tensor& x) {
  const Tensor all = flat("unique", x).detach();
  const ValuesIndices sorted = sort(all);
  const UniqueResult runs = runs_of(sorted.values);
  const Tensor inverse = scatter(zeros({all.numel()}, x.device(), DType::i64), 0, sorted.indices, runs.inverse);
  return {runs.values, reshape(inverse, Dims(x.shape().dims())), runs.counts};
}

UniqueResult unique_consecutive(const Tensor& x) {
  const UniqueResult runs = runs_of(flat("unique_consecutive", x).detach());
  return {runs.values, reshape(runs.inverse, Dims(x.shape().dims())), runs.counts};
}

}  // namespace levin
