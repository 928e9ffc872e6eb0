// Searches in sorted numbers, and what follows from them: membership, histograms, weighted counts.
#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "levin/ops.h"
#include "tensor/device/runtime.h"

namespace levin {
namespace {

// How many of the n elements from sorted[start] on stand before v, or before and beside it; NaN is the largest. The
// steps follow from n and have no branch on what is compared: a processor would mispredict half of them, and searches
// overlap.
template <class T>
struct PlaceIn {
  const T* sorted;
  std::int64_t n;
  bool right;
  template <class V>
  LEVIN_HD std::int64_t operator()(V v, std::int64_t start) const {
    if (v != v) return right ? n : count_before(start, [](T there) { return V(there) == V(there); });
    if (right) return count_before(start, [=](T there) { return V(there) <= v; });
    return count_before(start, [=](T there) { return V(there) < v; });
  }
  template <class F>
  LEVIN_HD std::int64_t count_before(std::int64_t start, const F& is_before) const {
    const T* const first = sorted + start;
    std::int64_t low = 0, rest = n;  // the place is one of low to low + rest
    for (; rest > 1; rest -= rest / 2) low = is_before(first[low + rest / 2 - 1]) ? low + rest / 2 : low;
    return rest == 1 && is_before(first[low]) ? low + 1 : low;
  }
};

struct SearchSorted {
  static constexpr OpInfo info{.name = "searchsorted", .autocast = AutocastPolicy::widest};
  SearchSide side;

  // starts: where the row of each value begins in `sorted`, of a shape that broadcasts to values'.
  Tensor forward(const Tensor& sorted, const Tensor& values, const Tensor& starts) {
    Tensor y = empty(values.shape(), values.device(), DType::i64);
    const Tensor dense = sorted.contiguous();
    const std::int64_t n = sorted.size(-1);
    dispatch(info, values, kAll, [&]<class T>(const auto& on, T) {
      pointwise::run(on, PlaceIn<T>{ptr<const T>(dense), n, side == SearchSide::right},
                     pointwise::Signature<std::int64_t, T, std::int64_t>{}, y, values, starts);
    });
    return y;
  }
};
LEVIN_OP_TABLE(SearchSorted)

// The bin of an element: of `bins` of one width from `low` to `high`, whose upper end the last bin has. One more bin
// takes a NaN and what lies outside.
struct BinOf {
  std::int64_t bins;
  template <class V>
  LEVIN_HD std::int64_t operator()(V v, V low, V high) const {
    // The product first, as PyTorch: whole numbers then lie in their bins. Where it overflows the quotient comes first.
    const V wide = (v - low) * V(bins),
            share = wide - wide == V(0) ? wide / (high - low) : (v - low) / (high - low) * V(bins);
    if (!(v >= low && v <= high)) return bins;
    return !(share < V(bins)) ? bins - 1 : static_cast<std::int64_t>(share > 0 ? share : V(0));
  }
};

struct HistogramBins {
  static constexpr OpInfo info{.name = "histc"};
  std::int64_t bins;

  Tensor forward(const Tensor& x, const Tensor& low, const Tensor& high) {
    Tensor y = empty(x.shape(), x.device(), DType::i64);
    dispatch(info, x, kFloats, [&]<class T>(const auto& on, T) {
      pointwise::run(on, BinOf{bins}, pointwise::Signature<std::int64_t, T, T, T>{}, y, x, low, high);
    });
    return y;
  }
};
LEVIN_OP_TABLE(HistogramBins)

void check_search(const char* op, const Tensor& sorted, const Tensor& values) {
  check_dtypes_meet(op, sorted, values);
  check_same_device(op, sorted, values);
  if (sorted.rank() == 0)
    fail<ShapeError>(op, ": the sorted tensor is a single element, expected numbers along its last dimension");
}

Tensor flat(const Tensor& x) { return reshape(x, {x.numel()}); }

}  // namespace

Tensor searchsorted(const Tensor& sorted, const Tensor& values, SearchSide side) {
  constexpr const char* op = "searchsorted";
  check_search(op, sorted, values);
  const Device device = sorted.device();
  if (sorted.rank() == 1) return apply(SearchSorted{side}, sorted, values, zeros({}, device, DType::i64));
  const int last = sorted.rank() - 1;
  if (values.rank() != sorted.rank() || values.shape().with(last, 1) != sorted.shape().with(last, 1)) {
    fail<ShapeError>(op, ": sorted has shape ", sorted.shape(), " and values ", values.shape(),
                     ", expected equal sizes but for the last dimension");
  }
  const Shape rows = sorted.shape().with(last, 1);
  const Tensor starts = reshape(arange(rows.numel(), device) * sorted.shape()[last], Dims(rows.dims()));
  return apply(SearchSorted{side}, sorted, values, starts);
}

Tensor bucketize(const Tensor& values, const Tensor& boundaries, SearchSide side) {
  constexpr const char* op = "bucketize";
  check_search(op, boundaries, values);
  if (boundaries.rank() != 1) fail<ShapeError>(op, ": boundaries have shape ", boundaries.shape(), ", expected rank 1");
  return apply(SearchSorted{side}, boundaries, values, zeros({}, values.device(), DType::i64));
}

Tensor isin(const Tensor& elements, const Tensor& test) {
  constexpr const char* op = "isin";
  check_dtypes_meet(op, elements, test);
  check_same_device(op, elements, test);
  if (is_storage(test.dtype())) return isin(elements.to(DType::i32), test.to(DType::i32));
  const std::int64_t n = test.numel();
  if (n == 0) return zeros(elements.shape(), elements.device(), DType::b8);
  const Tensor sorted = sort(flat(test.detach())).values, all = flat(elements.detach());
  const Tensor place = clamp(searchsorted(sorted, all), {}, n - 1);
  return reshape(eq(index_select(sorted, 0, place), all), Dims(elements.shape().dims()));
}

Tensor histc(const Tensor& x, std::int64_t bins, double low, double high) {
  constexpr const char* op = "histc";
  check_float(op, x);
  if (bins < 1 || bins > kMaxDim) fail<ShapeError>(op, ": bins is ", bins, ", expected 1 to 2^40");
  if (!(std::isfinite(low) && std::isfinite(high) && low <= high))
    fail<ConfigError>(op, ": low is ", low, " and high ", high, ", expected finite numbers with low <= high");
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Device device = x.device();
  const Tensor all = flat(x.detach()).to(wide);
  Tensor from = full({}, low, device, wide), to = full({}, high, device, wide);
  if (low == high && x.numel() > 0) {
    from = amin(all);
    to = amax(all);
  }
  const Tensor one = cast(eq(from, to), wide);
  const Tensor bin = apply(HistogramBins{bins}, all, from - one, to + one);
  const Tensor counts = counts_of(bin, bins + 1);
  return narrow(counts, 0, 0, bins).to(x.dtype());
}

Tensor bincount(const Tensor& index, const Tensor& weights, std::int64_t minlength) {
  constexpr const char* op = "bincount";
  check_defined(op, index, weights);
  check_index_type(op, weights, index);
  if (index.rank() != 1) fail<ShapeError>(op, ": index has shape ", index.shape(), ", expected rank 1");
  if (weights.shape() != index.shape())
    fail<ShapeError>(op, ": weights have shape ", weights.shape(), ", expected index's, ", index.shape());
  if (minlength < 0) fail<ShapeError>(op, ": minlength is ", minlength, ", expected at least 0");
  check_has_values(op, index);
  detail::refuse_while_capturing(op, index.device());
  check_indices(op, index, kMaxDim, "the largest possible result");
  const std::int64_t top = index.numel() == 0 ? -1 : amax(index).item<std::int64_t>();
  const std::int64_t bins = std::max(minlength, top + 1);
  if (bins == 0) return narrow(weights, 0, 0, 0).clone();
  return index_add(zeros({bins}, weights.device(), weights.dtype()), 0, index, weights);
}

}  // namespace levin
