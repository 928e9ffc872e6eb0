// Reductions of bags of rows: a sparse product with the table where every entry counts and the gradient is dense, else
// a reduction of segments of the gathered rows.
#include <limits>
#include <optional>

#include "autograd/autocast.h"
#include "autograd/ops/index/dims.h"
#include "levin/sparse.h"

namespace levin {
namespace {

constexpr const char* kOp = "embedding_bag";

// Where each bag begins, and the number of entries at the end.
Tensor bounds(const Tensor& index, const Tensor& offsets, const BagOptions& o) {
  if (index.rank() == 2) { return arange(0, index.size(0) + 1, 1, index.device()) * index.size(1); }
  const Tensor end = full({1}, index.numel(), index.device(), DType::i64);
  return o.include_last_offset ? offsets : cat({offsets, end}, 0);
}

void check(const Tensor& weight, const Tensor& index, const Tensor& offsets, const BagOptions& o) {
  check_float(kOp, weight);
  check_defined(kOp, index);
  if (weight.rank() != 2) fail<ShapeError>(kOp, ": weight has shape ", weight.shape(), ", expected [rows, columns]");
  check_index_type(kOp, weight, index);
  if (index.rank() != 1 && index.rank() != 2)
    fail<ShapeError>(kOp, ": index has shape ", index.shape(), ", expected [E] with offsets, or [bags, n]");
  if (index.rank() == 1 && !offsets.defined())
    fail<StateError>(kOp, ": offsets are undefined beside an index of shape ", index.shape(), ", expected [bags]");
  if (index.rank() == 2 && offsets.defined())
    fail<ShapeError>(kOp, ": offsets are given beside an index of shape ", index.shape(), ", expected none");
  if (offsets.defined()) {
    check_same_device(kOp, weight, offsets);
    if (offsets.dtype() != DType::i64) fail<DTypeError>(kOp, ": offsets are ", offsets.dtype(), ", expected i64");
    if (offsets.rank() != 1 || (o.include_last_offset && offsets.numel() == 0))
      fail<ShapeError>(kOp, ": offsets have shape ", offsets.shape(), ", expected one number for each bag");
  }
  if (const Tensor& w = o.per_sample_weights; w.defined()) {
    if (o.mode != Reduce::sum) fail<ConfigError>(kOp, ": per_sample_weights are given, expected Reduce::sum with them");
    check_dtypes_meet(kOp, weight, w);
    check_same_device(kOp, weight, w);
    if (w.shape() != index.shape())
      fail<ShapeError>(kOp, ": per_sample_weights have shape ", w.shape(), ", expected index's ", index.shape());
  }
  if (o.padding_idx && (*o.padding_idx < -weight.size(0) || *o.padding_idx >= weight.size(0))) {
    fail<IndexError>(kOp, ": padding_idx is ", *o.padding_idx, ", expected ", -weight.size(0), " to ",
                     weight.size(0) - 1);
  }
  check_indices(kOp, index, weight.size(0), "dimension 0 of weight " + text(weight.shape()));
}

}  // namespace

Tensor embedding_bag(const Tensor& weight, const Tensor& index, const Tensor& offsets, const BagOptions& o) {
  check(weight, index, offsets, o);
  const Tensor at = bounds(index, offsets, o), entries = flatten(index);
  const Tensor scale = o.per_sample_weights.defined() ? flatten(o.per_sample_weights) : Tensor();
  if (!o.padding_idx && o.gradient == EmbeddingGrad::dense)
    return spmm({.crow = at, .col = entries, .cols = weight.size(0)}, scale, weight, o.mode);

  std::optional<std::int64_t> padding = o.padding_idx;
  if (padding && *padding < 0) *padding += weight.size(0);
  const Tensor left_out = unsqueeze(eq(entries, padding.value_or(-1)), 1);
  const DType wide = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor rows = cast(embedding(weight, entries, padding, o.gradient), wide);
  const bool extreme = o.mode == Reduce::max || o.mode == Reduce::min;
  const double last =
      o.mode == Reduce::max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  Tensor counted = masked_fill(rows, left_out, extreme ? last : 0);
  if (scale.defined()) counted = counted * unsqueeze(cast(scale, wide), 1);
  Tensor y = segment_reduce(counted, at, extreme ? o.mode : Reduce::sum);
  if (o.mode != Reduce::sum) {
    const Tensor count = segment_reduce(cast(logical_not(left_out), wide), at);
    y = extreme ? masked_fill(y, eq(count, 0), 0) : y / clamp(count, 1, {});
  }
  return cast(y, weight.dtype());
}

}  // namespace levin
