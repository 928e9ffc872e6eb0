// What follows from sorted elements.
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

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
Tensor without(const Tensor& y, int at, KeepDim keep) { return keep == KeepDim::yes ? y : squeeze(y, {at}); }
// The elements of x at the places, which have one along `at`.
ValuesIndices chosen(const Tensor& x, int at, const Tensor& places, KeepDim keep) {
  return {without(gather(x, at, places), at, keep), without(places, at, keep)};
}

// What a quantile is read from, and its shape.
struct Lines {
  Tensor x;
  int at;
  Shape shape;
};
Lines lines_of(const char* op, const Tensor& x, std::optional<std::int64_t> dim, KeepDim keep) {
  if (dim && x.rank() > 0) {
    const int at = checked_dim(op, x, *dim);
    return {x, at, keep == KeepDim::yes ? x.shape().with(at, 1) : x.shape().removed(at)};
  }
  const Tensor all = flat(op, x);
  Shape shape;
  for (int d = 0; keep == KeepDim::yes && d < x.rank(); ++d) shape = shape.inserted(d, 1);
  return {all, checked_dim(op, all, dim.value_or(0)), shape};
}
void check_share(const char* op, double q) {
  if (!(q >= 0 && q <= 1)) fail<ConfigError>(op, ": q is ", q, ", expected a number from 0 to 1");
}

// A quantile of n sorted elements: the one at `low`, or the sum of (1 - weight) of it and weight of the next one.
struct Place {
  std::int64_t low;
  double weight;
};
// Where a place chooses elements it is a product in the dtype of the numbers, as PyTorch's: 0.29 of 101 f32 numbers is
// element 29. f32 holds the places of so many numbers. Between::linear has no jump there, and takes the digits of f64.
constexpr std::int64_t kMostPlacesInF32 = std::int64_t{1} << 24;
bool has_f32_places(DType dtype, std::int64_t n, Between between) {
  return dtype != DType::f64 && between != Between::linear && n <= kMostPlacesInF32;
}

Place place_of(double q, std::int64_t n, DType dtype, Between between) {
  const double place = has_f32_places(dtype, n, between)
                           ? static_cast<double>(static_cast<float>(q) * static_cast<float>(n - 1))
                           : q * static_cast<double>(n - 1);
  const double below = std::floor(place), part = place - below;
  double low = below, weight = 0;
  switch (between) {
    case Between::linear: weight = part; break;
    case Between::lower: break;
    case Between::higher: low = std::ceil(place); break;
    case Between::midpoint: weight = part > 0 ? 0.5 : 0; break;
    case Between::nearest: low = std::nearbyint(place); break;
  }
  return {static_cast<std::int64_t>(low), weight};
}
// The indices of the elements at `ks` of each sorted line, in the order of ks along `at`; of a line with NaN each is
// that of a NaN.
Tensor sorted_places(const char* op, const Tensor& x, int at, std::span<const std::int64_t> ks) {
  if (x.device().is_cpu()) return detail::kth_places(op, x, at, ks, detail::FirstNan::yes);
  const Tensor order = argsort(x, at), last = narrow(order, at, x.shape()[at] - 1, 1);
  Tensors places;
  for (const std::int64_t k : ks) places.push_back(narrow(order, at, k, 1));
  return where(isnan(gather(x.detach(), at, last)), last, cat(places, at));
}
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A quantile of each line along `at` for each of qs, [qs, lines]. A line with NaN gets no gradient.
Tensor quantiles_of(const char* op, const Tensor& x, std::span<const double> qs, int at, Between between) {
  std::vector<Place> places;
  std::vector<std::int64_t> ks;
  for (const double q : qs) {
    places.push_back(place_of(q, x.shape()[at], x.dtype(), between));
    ks.push_back(places.back().low);
    if (places.back().weight > 0) ks.push_back(places.back().low + 1);
  }
  const Tensors elements = unbind(gather(x, at, sorted_places(op, x, at, ks)), at);
  Tensors y;
  std::size_t next = 0;
  for (const Place& p : places) {
    const Tensor& low = elements[next++];
    y.push_back(p.weight > 0 ? lerp(low, elements[next++], p.weight) : low);
  }
  return masked_fill(y.size() == 1 ? unsqueeze(y[0], 0) : stack(y), isnan(elements[0].detach()), kNan);
}
// The same for q [m], whose numbers may lie on a device and have a gradient: m along `at`.
Tensor quantiles_of(const Tensor& x, const Tensor& q, int at, Between between) {
  const std::int64_t n = x.shape()[at];
  const DType wide = has_f32_places(q.dtype(), n, between) ? DType::f32 : DType::f64;
  const Tensor place = cast(cast(q, wide) * (n - 1), DType::f64), low = floor(place);
  Shape along;
  for (int d = 0; d < x.rank(); ++d) along = along.inserted(d, d == at ? q.numel() : 1);
  const Tensor order = argsort(x, at), last = narrow(order, at, n - 1, 1);
  const Tensor has_nan =
      logical_or(isnan(gather(x.detach(), at, last)), reshape(isnan(place.detach()), Dims(along.dims())));
  const auto element = [&](const Tensor& i) {
    // A derivative in q is 0 times the elements of a line with NaN.
    return masked_fill(gather(x, at, index_select(order, at, i.detach().to(DType::i64))), has_nan, 0);
  };
  Tensor y;
  if (between == Between::linear || between == Between::midpoint) {
    const Tensor part = reshape(cast(place - low, x.dtype()), Dims(along.dims()));
    const Tensor below = element(low), above = element(ceil(place));
    y = where(eq(part, 0), below, between == Between::linear ? lerp(below, above, part) : lerp(below, above, 0.5));
  } else {
    y = element(between == Between::lower ? low : between == Between::higher ? ceil(place) : round(place));
  }
  return masked_fill(y, has_nan, kNan);
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
  check_share(op, q);
  const Lines l = lines_of(op, x, dim, o.keep);
  return reshape(quantiles_of(op, l.x, std::span<const double>(&q, 1), l.at, o.between), Dims(l.shape.dims()));
}

Tensor quantile(const Tensor& x, std::span<const double> qs, std::optional<std::int64_t> dim,
                const QuantileOptions& o) {
  constexpr const char* op = "quantile";
  check_float(op, x);
  for (const double q : qs) check_share(op, q);
  const Lines l = lines_of(op, x, dim, o.keep);
  const Shape shape = l.shape.inserted(0, static_cast<std::int64_t>(qs.size()));
  if (qs.empty()) return narrow(quantile(x, {0.5}, dim, o), 0, 0, 0);
  return reshape(quantiles_of(op, l.x, qs, l.at, o.between), Dims(shape.dims()));
}

Tensor quantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim, const QuantileOptions& o) {
  constexpr const char* op = "quantile";
  check_float(op, x);
  check_dtypes_meet(op, x, q);
  check_same_device(op, x, q);
  if (q.rank() > 1)
    fail<ShapeError>(op, ": q has shape ", q.shape(), ", expected [m] or a single element; use flatten");
  if (q.device().is_cpu()) {
    for (const double share : q.detach().to(DType::f64).to_vector<double>()) check_share(op, share);
  }
  const Lines l = lines_of(op, x, dim, o.keep);
  const Shape shape = q.rank() == 0 ? l.shape : l.shape.inserted(0, q.numel());
  const Tensor y = quantiles_of(l.x, reshape(q, {q.numel()}), l.at, o.between);
  return reshape(movedim(y, {l.at}, {0}), Dims(shape.dims()));
}

}  // namespace levin
