// Scans: running sums, products, extremes.
#include <algorithm>
#include <array>
#include <limits>

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

template <class T>
using SumOf = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;

struct CumSum {
  static constexpr OpInfo info{.name = "cumsum", .autocast = AutocastPolicy::full};
  int dim;

  Tensor forward(const Tensor& x) {
    const Tensor dense = x.contiguous();
    Tensor y = empty_like(dense, is_float(x.dtype()) ? x.dtype() : DType::i64);
    const AlongDim l(x.shape(), dim);
    dispatch(info, x, kAll,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::cumsum(on, ptr<const T>(dense), ptr<SumOf<T>>(y), l.outer, l.n, l.inner);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::cumsum(on, ptr<const T>(dense), ptr<SumOf<T>>(y), l.outer, l.n, l.inner,
                                               KernelScratch{x.device()});
                        }});
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {flip(cumsum(flip(gy, dim), dim), dim)}; }
};
LEVIN_OP_TABLE(CumSum)

// ---- Other scans. Their derivatives are those of a scan in public ops, log2 n steps of whole tensors, which join each
// element with the one `step` before it.

template <class T, class Op>
void scan(const Cpu& on, const T* x, const Op& op, const AlongDim& l, Device) {
  kernels::cpu::scan(on, x, op, l.outer, l.n, l.inner);
}
template <class T, class Op>
void scan(const Gpu& on, const T* x, const Op& op, const AlongDim& l, Device device) {
  kernels::gpu::scan(on, x, op, l.outer, l.n, l.inner, KernelScratch{device});
}

Tensor widened(const Tensor& x) { return x.dtype() == DType::f64 ? x : cast(x, DType::f32); }

// x[0] ... x[k]: unlike reversed sums of gy * y, divided by x, derivatives of any order are right where elements are 0.
Tensor product_steps(const Tensor& x, int dim) {
  Tensor y = x;
  const std::int64_t n = x.shape()[dim];
  for (std::int64_t step = 1; step < n; step *= 2) {
    y = cat({narrow(y, dim, 0, step), narrow(y, dim, 0, n - step) * narrow(y, dim, step, n - step)}, dim);
  }
  return y;
}

// What CumProd gives for gy, by public ops.
Tensor product_slope(const Tensor& gy, const Tensor& x, int dim) {
  const auto steps = [&](auto& in) { return cast(product_steps(widened(in[0]), dim), gy.dtype()); };
  return vjp<1>(steps, {x}, std::array{gy}, NeedMask(1))[0];
}

// The same on the CPU, where a line is one chain.
struct CumProdBackward {
  static constexpr OpInfo info{.name = "cumprod_backward"};
  int dim;
  SavedInput gy{}, x{};

  Tensor forward(const Tensor& gy_, const Tensor& x_) {
    gy = gy_, x = x_;
    const Tensor g = gy_.contiguous(), dense = x_.contiguous();
    Tensor gx = empty_like(dense);
    const AlongDim l(x_.shape(), dim);
    dispatch_dtype(info, x_, kFloats, [&]<class T>(T) {
      if (gx.numel() == 0) return;
      kernels::cpu::cumprod_backward(Cpu{}, ptr<const T>(g), ptr<const T>(dense), ptr<T>(gx), l.outer, l.n, l.inner);
    });
    return gx;
  }
  Grads<2> backward(const Tensor& g, NeedMask need) {
    return vjp<2>([&](auto& in) { return product_slope(in[0], in[1], dim); }, {gy.get(), x.get()}, std::array{g}, need);
  }
};
LEVIN_OP_TABLE(CumProdBackward)

struct CumProd {
  static constexpr OpInfo info{.name = "cumprod", .autocast = AutocastPolicy::full};
  int dim;
  SavedInput x{};

  Tensor forward(const Tensor& x_) {
    x = x_;
    const Tensor dense = x_.contiguous();
    Tensor y = empty_like(dense, is_float(x_.dtype()) ? x_.dtype() : DType::i64);
    const AlongDim l(x_.shape(), dim);
    dispatch(info, x_, kAll,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::cumprod(on, ptr<const T>(dense), ptr<SumOf<T>>(y), l.outer, l.n, l.inner);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::cumprod(on, ptr<const T>(dense), ptr<SumOf<T>>(y), l.outer, l.n, l.inner,
                                                KernelScratch{x_.device()});
                        }});
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor& from = x.get();
    return {from.device().is_cpu() ? apply(CumProdBackward{dim}, gy, from) : product_slope(gy, from, dim)};
  }
};
LEVIN_OP_TABLE(CumProd)

// dx[k] = sum over i >= k of gy[i] e^(x[k] - y[i]) = e^(x[k] - y[k]) h[k], with h[k] = gy[k] + e^(y[k] - y[k+1])
// h[k+1]. y never falls, so no power overflows. `below` turns the -inf of elements before which there is nothing into
// 0.
Tensor log_sum_exp_slope(const Tensor& gy, const Tensor& x, const Tensor& y, int dim) {
  const std::int64_t n = x.shape()[dim];
  const Tensor below = masked_fill(y, eq(y.detach(), -std::numeric_limits<double>::infinity()), 0);
  const auto from = [&](const Tensor& t, std::int64_t begin) { return narrow(t, dim, begin, n - begin); };
  const auto front = [&](const Tensor& t, std::int64_t count) { return narrow(t, dim, 0, count); };
  const auto back = [&](const Tensor& t, std::int64_t count) { return narrow(t, dim, n - count, count); };
  Tensor h = gy;
  if (n > 1) {
    // A factor belongs to the step from k + 1 to k; the last element has none after it.
    const Tensor both = logical_and(eq(front(y, n - 1).detach(), -std::numeric_limits<double>::infinity()),
                                    ne(from(y, 1).detach(), -std::numeric_limits<double>::infinity()));
    Tensor factor = masked_fill(exp(front(below, n - 1) - from(below, 1)), both, 0);
    factor = cat({factor, zeros(x.shape().with(dim, 1), x.device(), x.dtype())}, dim);
    for (std::int64_t step = 1; step < n; step *= 2) {
      const Tensor far = front(factor, n - step);
      h = cat({front(h, n - step) + far * from(h, step), back(h, step)}, dim);
      factor = cat({far * from(factor, step), back(factor, step)}, dim);
    }
  }
  return exp(x - below) * h;
}

struct LogCumSumExp {
  static constexpr OpInfo info{.name = "logcumsumexp", .autocast = AutocastPolicy::full};
  int dim;
  SavedInput x{};

  Tensor forward(const Tensor& x_) {
    x = x_;
    const Tensor dense = x_.contiguous();
    Tensor y = empty_like(dense);
    const AlongDim l(x_.shape(), dim);
    dispatch(info, x_, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::logcumsumexp(on, ptr<const T>(dense), ptr<T>(y), l.outer, l.n, l.inner);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::logcumsumexp(on, ptr<const T>(dense), ptr<T>(y), l.outer, l.n, l.inner,
                                                     KernelScratch{x_.device()});
                        }});
    return y;
  }
  // y is computed again in f32 for 16 bits: what it loses by rounding would be an error of every factor.
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor wide = widened(x.get());
    return {cast(log_sum_exp_slope(cast(gy, wide.dtype()), wide, logcumsumexp(wide, dim), dim), gy.dtype())};
  }
};
LEVIN_OP_TABLE(LogCumSumExp)

template <bool kLargest>
struct CumExtreme {
  static constexpr OpInfo info{.name = kLargest ? "cummax" : "cummin"};
  int dim;
  Shape in{};
  Stash indices{};

  std::array<Tensor, 2> forward(const Tensor& x) {
    in = x.shape();
    const Tensor dense = x.contiguous();
    Tensor values = empty_like(dense);
    indices = empty_like(dense, DType::i64);
    dispatch(info, x, kAll, [&]<class T>(const auto& on, T) {
      scan(on, ptr<const T>(dense), kernels::RunningExtreme<kLargest, T>{ptr<T>(values), ptr<std::int64_t>(indices)},
           AlongDim(in, dim), x.device());
    });
    return {values, indices};
  }
  Grads<1> backward(const Tensor& gy, const Tensor&, Need<1>) { return {put_back(gy, in, dim, indices)}; }
};
LEVIN_OP_TABLE(CumExtreme<true>)
LEVIN_OP_TABLE(CumExtreme<false>)

template <bool kLargest>
ValuesIndices running_extreme(const Tensor& x, std::int64_t dim) {
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return running_extreme<kLargest>(line, dim); });
  auto [values, indices] = apply(CumExtreme<kLargest>{wrap_dim(CumExtreme<kLargest>::info.name, dim, x.rank())}, x);
  return {values, indices};
}

template <class Op>
Tensor scanned(const Tensor& x, std::int64_t dim) {
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return scanned<Op>(line, dim); });
  return apply(Op{wrap_dim(Op::info.name, dim, x.rank())}, x);
}

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) { return scanned<CumSum>(x, dim); }
Tensor cumprod(const Tensor& x, std::int64_t dim) { return scanned<CumProd>(x, dim); }
Tensor logcumsumexp(const Tensor& x, std::int64_t dim) { return scanned<LogCumSumExp>(x, dim); }
ValuesIndices cummax(const Tensor& x, std::int64_t dim) { return running_extreme<true>(x, dim); }
ValuesIndices cummin(const Tensor& x, std::int64_t dim) { return running_extreme<false>(x, dim); }

}  // namespace levin
