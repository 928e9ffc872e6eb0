// Reductions that are public ops in a row.
#include "autograd/autocast.h"
#include "levin/ops.h"

namespace levin {
namespace {

Tensor without_nan(const Tensor& x) { return masked_fill(x, isnan(x.detach()), 0); }

}  // namespace

Tensor count_nonzero(const Tensor& x, Dims dims) { return sum(ne(x, 0), dims); }

Tensor nansum(const Tensor& x, Dims dims, KeepDim keep) {
  check_defined("nansum", x);
  return sum(is_float(x.dtype()) ? without_nan(x) : x, dims, keep);
}

Tensor nanmean(const Tensor& x, Dims dims, KeepDim keep) {
  check_float("nanmean", x);
  // 16-bit numbers are summed in f32, which holds the sum and the count.
  const Tensor wide = x.dtype() == DType::f64 ? x : cast(x, DType::f32);
  const Tensor count = sum(logical_not(isnan(x.detach())), dims, keep);
  return cast(sum(without_nan(wide), dims, keep) / cast(count, wide.dtype()), full_result(x.dtype()));
}

MinMax aminmax(const Tensor& x, std::optional<std::int64_t> dim, KeepDim keep) {
  const Dims dims = dim ? Dims(*dim) : Dims();
  return {amin(x, dims, keep), amax(x, dims, keep)};
}

MeanOf var_mean(const Tensor& x, Dims dims, double correction, KeepDim keep) {
  return {var(x, dims, correction, keep), mean(x, dims, keep)};
}
MeanOf std_mean(const Tensor& x, Dims dims, double correction, KeepDim keep) {
  return {levin::std(x, dims, correction, keep), mean(x, dims, keep)};
}

}  // namespace levin
