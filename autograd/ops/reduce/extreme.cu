// Reductions along one dimension that return positions.
#include <array>

#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/point.h"
#include "autograd/ops/reduce/kernel_scratch.h"
#include "kernels/executor/dispatch.h"
#include "kernels/reduce/scan.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

template <bool kLargest, class T>
void arg_extreme(const Cpu& on, const Tensor& x, T* values, std::int64_t* indices, const AlongDim& l) {
  kernels::cpu::arg_extreme<kLargest, T>(on, ptr<const T>(x), values, indices, l.outer, l.n, l.inner);
}
template <bool kLargest, class T>
void arg_extreme(const Gpu& on, const Tensor& x, T* values, std::int64_t* indices, const AlongDim& l) {
  kernels::gpu::arg_extreme<kLargest, T>(on, ptr<const T>(x), values, indices, l.outer, l.n, l.inner,
                                         KernelScratch{x.device()});
}

template <bool kLargest>
struct ArgExtreme {
  static constexpr OpInfo info{.name = kLargest ? "argmax" : "argmin"};
  std::optional<int> dim;
  Shape out;

  Tensor forward(const Tensor& x) {
    Tensor y = empty(out, x.device(), DType::i64);
    const Tensor dense = x.contiguous();
    dispatch(info, x, kAll, [&]<class T>(const auto& on, T) {
      const AlongDim l = dim ? AlongDim(x.shape(), *dim) : AlongDim(Shape{x.numel()}, 0);
      arg_extreme<kLargest, T>(on, dense, nullptr, ptr<std::int64_t>(y), l);
    });
    return y;
  }
};
LEVIN_OP_TABLE(ArgExtreme<true>)
LEVIN_OP_TABLE(ArgExtreme<false>)

template <bool kLargest>
Tensor place_of_extreme(const Tensor& x, std::optional<std::int64_t> dim, KeepDim keep) {
  constexpr const char* op = ArgExtreme<kLargest>::info.name;
  if (dim && x.rank() == 0)
    return of_point(x, [&](const Tensor& line) { return place_of_extreme<kLargest>(line, dim, keep); });
  const std::optional<int> at = dim ? std::optional(wrap_dim(op, *dim, x.rank())) : std::nullopt;
  if ((at ? x.shape()[*at] : x.numel()) == 0) {
    fail<ShapeError>(op, ": x ", x.shape(), " has no elements to choose from, expected at least one");
  }
  const std::uint32_t mask = at ? 1u << *at : (1u << x.rank()) - 1u;
  return apply(ArgExtreme<kLargest>{at, reduced_shape(x.shape(), mask, keep)}, x);
}

template <bool kLargest>
struct ExtremeAlong {
  static constexpr OpInfo info{.name = kLargest ? "max" : "min"};
  int dim;
  KeepDim keep;
  Shape in{};
  Stash indices{};

  std::array<Tensor, 2> forward(const Tensor& x) {
    in = x.shape();
    const Shape out = reduced_shape(in, 1u << dim, keep);
    Tensor values = empty(out, x.device(), x.dtype());
    indices = empty(out, x.device(), DType::i64);
    const Tensor dense = x.contiguous();
    dispatch(info, x, kAll, [&]<class T>(const auto& on, T) {
      const AlongDim l(in, dim);
      arg_extreme<kLargest, T>(on, dense, ptr<T>(values), ptr<std::int64_t>(indices), l);
    });
    return {values, indices};
  }
  Grads<1> backward(const Tensor& gy, const Tensor&, Need<1>) {
    if (keep == KeepDim::yes) return {put_back(gy, in, dim, indices)};
    return {put_back(unsqueeze(gy, dim), in, dim, unsqueeze(indices, dim))};
  }
};
LEVIN_OP_TABLE(ExtremeAlong<true>)
LEVIN_OP_TABLE(ExtremeAlong<false>)

template <bool kLargest>
ValuesIndices extreme_along(const Tensor& x, std::int64_t dim, KeepDim keep) {
  constexpr const char* op = ExtremeAlong<kLargest>::info.name;
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return extreme_along<kLargest>(line, dim, keep); });
  const int at = wrap_dim(op, dim, x.rank());
  if (x.shape()[at] == 0) {
    fail<ShapeError>(op, ": dimension ", at, " of x ", x.shape(), " is empty, expected at least one element");
  }
  auto [values, indices] = apply(ExtremeAlong<kLargest>{at, keep}, x);
  return {values, indices};
}

}  // namespace

Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, KeepDim keep) {
  return place_of_extreme<true>(x, dim, keep);
}
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, KeepDim keep) {
  return place_of_extreme<false>(x, dim, keep);
}
ValuesIndices max(const Tensor& x, std::int64_t dim, KeepDim keep) { return extreme_along<true>(x, dim, keep); }
ValuesIndices min(const Tensor& x, std::int64_t dim, KeepDim keep) { return extreme_along<false>(x, dim, keep); }

}  // namespace levin
