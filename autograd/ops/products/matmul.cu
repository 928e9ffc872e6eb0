// Products of matrices. Kernels read operands in place, through their strides; nothing is transposed in memory.
#include <array>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/home.h"
#include "autograd/op_table.h"
#include "autograd/ops/products/backward_parts.h"
#include "autograd/ops/products/gemm_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_device.cuh"
#include "levin/autograd.h"
#include "levin/flops.h"
#include "levin/ops.h"
#include "tensor/core/by_columns.h"

namespace levin {
namespace {

using kernels::BatchDim;
using kernels::GemmSize;
using kernels::Matrix;

Tensor turned(const Tensor& t) { return transpose(t, -2, -1); }

// One product per batch index on a device, as cpu::gemm_batched computes it, with memory for the parts of long sums.
// With CUDA cuBLASLt computes large products.
template <class T>
void gemm_batched(const Gpu& on, const Tensor& y, std::span<const BatchDim> batch, const GemmSize& size,
                  const Matrix<T>& a, const Matrix<T>& b, kernels::gpu::Target<T> to) {
  if constexpr (kHasGemmLibrary) {
    if (library_multiplies() &&
        library_made(on, kernels::library_product<T>(batch, size, a, b, to.y, to.row_step, to.col_bias)))
      return;
  }
  std::int64_t batches = 1;
  for (const BatchDim& dim : batch) batches *= dim.size;
  const kernels::GemmPlan plan = kernels::plan_gemm<T>(size, batches);
  const GemmParts<T> parts(plan, y.device());
  to.partial = parts.get();
  kernels::gpu::gemm_batched(on, plan, batch, a, b, to);
}

// [..., m, k] [..., k, n] -> [..., m, n]; the leading dimensions broadcast.
struct Matmul {
  static constexpr OpInfo info{.name = "matmul", .autocast = AutocastPolicy::lower};
  Shape shape;     // the result's
  Tensor place{};  // memory for the result, during forward only; undefined: new memory
  SavedInput a{}, b{};

  Tensor forward(const Tensor& a_, const Tensor& b_) {
    Tensor y = detail::place_or_empty(std::exchange(place, Tensor()), shape, a_.device(), a_.dtype());
    const int lead = shape.rank() - 2;
    const GemmSize size{shape[lead], shape[lead + 1], a_.shape().back()};
    std::array<BatchDim, kMaxRank> dims{};
    for (int d = 0; d < lead; ++d) {
      dims[static_cast<std::size_t>(d)] = {shape[d], step(a_, lead - d), step(b_, lead - d), y.strides()[d]};
    }
    const std::span<const BatchDim> batch(dims.data(), static_cast<std::size_t>(lead));
    dispatch(info, a_, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          if (lead == 0)
                            return kernels::cpu::gemm(on, size, matrix<T>(a_), matrix<T>(b_), ptr<T>(y),
                                                      y.strides()[0]);
                          kernels::cpu::gemm_batched(on, batch, size, matrix<T>(a_), matrix<T>(b_), ptr<T>(y),
                                                     y.strides()[lead]);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          gemm_batched(on, y, batch, size, matrix<T>(a_), matrix<T>(b_),
                                       kernels::gpu::Target<T>{.y = ptr<T>(y), .row_step = y.strides()[lead]});
                        }});
    FlopCounter::count(info.name, {2, y.numel(), size.k});
    a = a_;
    b = b_;
    return y;
  }
  Grads<2> backward(const Tensor& gy, NeedMask need) {
    Grads<2> g;
    // Gradients of matrices can be born in their homes; broadcast ones are summed first.
    const auto place = [&](std::size_t input) { return shape.rank() == 2 ? detail::birth_place(input) : Tensor(); };
    // The gradient of t(weight) lies as t(weight) does: that of the weight is dense, and its sums read along rows.
    const auto turns = [&](const Tensor& operand, const Tensor& into) {
      return shape.rank() == 2 && !into.defined() && detail::lies_by_columns(operand);
    };
    if (need[0]) {
      const Tensor into = place(0);
      g[0] =
          turns(a.get(), into) ? t(matmul(b.get(), turned(gy))) : fit(matmul_into(into, gy, turned(b.get())), a.get());
    }
    if (need[1]) {
      const Tensor into = place(1);
      g[1] =
          turns(b.get(), into) ? t(matmul(turned(gy), a.get())) : fit(matmul_into(into, turned(a.get()), gy), b.get());
    }
    return g;
  }

 private:
  // The distance between t's matrices along the batch dimension that is `from_last` before the rows; 0 where t
  // broadcasts.
  static std::int64_t step(const Tensor& t, int from_last) {
    const int d = t.rank() - 2 - from_last;
    return d < 0 || t.shape()[d] == 1 ? 0 : t.strides()[d];
  }
  static Tensor fit(const Tensor& g, const Tensor& like) {
    return g.shape() == like.shape() ? g : sum_to(g, like.shape());
  }
};

// y = x W^T + b in one pass.
struct Linear {
  static constexpr OpInfo info{.name = "linear", .autocast = AutocastPolicy::lower};
  Shape shape;
  SavedInput x{}, weight{};

  Tensor forward(const Tensor& x_, const Tensor& w, const Tensor& bias) {
    Tensor y = empty(shape, x_.device(), x_.dtype());
    dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
      const Tensor dense = x_.rank() == 2 ? x_ : x_.contiguous();
      const std::int64_t in = w.shape()[1], out = w.shape()[0], rows = rows_of(x_);
      const Matrix<T> left = x_.rank() == 2 ? matrix<T>(x_) : Matrix<T>{ptr<T>(dense), in, 1};
      const Matrix<T> right{ptr<T>(w), w.strides()[1], w.strides()[0]};
      const Tensor b = bias.defined() ? bias.contiguous() : bias;
      const T* const col_bias = ptr_or_null<T>(b);
      const GemmSize size{rows, out, in};
      if constexpr (std::is_same_v<decltype(on), const Cpu&>) {
        kernels::cpu::gemm(on, size, left, right, ptr<T>(y), out, kernels::GemmOptions<T>{.col_bias = col_bias});
      } else {
        gemm_batched(on, y, {}, size, left, right,
                     kernels::gpu::Target<T>{.y = ptr<T>(y), .row_step = out, .col_bias = col_bias});
      }
    });
    FlopCounter::count(info.name, {2, y.numel(), w.shape()[1]});
    x = x_;
    weight = w;
    return y;
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    Grads<3> g;
    const Tensor rows = reshape(gy, {rows_of(gy), gy.shape().back()});
    if (need[0]) g[0] = reshape(matmul(rows, weight.get()), Dims(x.get().shape().dims()));
    const Tensor in = need[1] ? reshape(x.get(), {rows.size(0), x.get().shape().back()}) : Tensor();
    std::array<Tensor, 2> parameters =
        linear_parameters_backward(rows, in, need_of(need[1], need[2]), need[1] ? detail::birth_place(1) : Tensor());
    g[1] = std::move(parameters[0]);
    g[2] = std::move(parameters[1]);
    return g;
  }

 private:
  // The product of all dimensions but the last, also where the last dimension is 0.
  static std::int64_t rows_of(const Tensor& t) {
    std::int64_t n = 1;
    for (int d = 0; d + 1 < t.rank(); ++d) n *= t.shape()[d];
    return n;
  }
};

LEVIN_OP_TABLE(Matmul)
LEVIN_OP_TABLE(Linear)

}  // namespace

Tensor matmul_into(const Tensor& place, const Tensor& a, const Tensor& b) {
  if (!place.defined()) return matmul(a, b);
  return apply(Matmul{.shape = place.shape(), .place = place}, a, b);
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_dtypes_meet("matmul", a, b);
  check_same_device("matmul", a, b);
  if (a.rank() == 0 || b.rank() == 0) {
    fail<ShapeError>("matmul: a has shape ", a.shape(), " and b ", b.shape(), ", expected at least one dimension each");
  }
  const std::int64_t inner = b.rank() == 1 ? b.shape()[0] : b.shape()[b.rank() - 2];
  if (a.shape().back() != inner) {
    fail<ShapeError>("matmul: a has shape ", a.shape(), " and b ", b.shape(), "; the last dimension of a, ",
                     a.shape().back(), ", and the ", b.rank() == 1 ? "only" : "second last", " one of b, ", inner,
                     ", must be equal");
  }
  // A vector is a matrix of one row (a) or one column (b); the result drops that dimension.
  if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  if (a.rank() == 2 && b.rank() == 2) return apply(Matmul{.shape = {a.shape()[0], b.shape()[1]}}, a, b);
  const Shape& as = a.shape();
  const Shape& bs = b.shape();
  const int ar = a.rank(), br = b.rank();
  // Many matrices times one: the rows of all form one tall matrix, and the gradient of b is one product as well.
  if (br == 2 && a.is_contiguous()) {
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < ar; ++d) rows *= as[d];
    return reshape(matmul(reshape(a, {rows, inner}), b), Dims(as.with(ar - 1, bs[1]).dims()));
  }
  const Shape lead_a(as.dims().first(static_cast<std::size_t>(ar - 2)));
  const Shape lead_b(bs.dims().first(static_cast<std::size_t>(br - 2)));
  const Shape lead = lead_a == lead_b ? lead_a : broadcast_shapes("matmul", lead_a, lead_b);
  const Shape shape = lead.inserted(lead.rank(), as[ar - 2]).inserted(lead.rank() + 1, bs[br - 1]);
  return apply(Matmul{.shape = shape}, a, b);
}

Tensor mm(const Tensor& a, const Tensor& b) {
  check_defined("mm", a, b);
  if (a.rank() != 2 || b.rank() != 2)
    fail<ShapeError>("mm: a has shape ", a.shape(), " and b ", b.shape(), ", expected [m, k] and [k, n]; use matmul");
  return matmul(a, b);
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  check_defined("bmm", a, b);
  if (a.rank() != 3 || b.rank() != 3 || a.shape()[0] != b.shape()[0])
    fail<ShapeError>("bmm: a has shape ", a.shape(), " and b ", b.shape(),
                     ", expected [b, m, k] and [b, k, n]; use matmul");
  return matmul(a, b);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_dtypes_meet("linear", x, weight);
  check_same_device("linear", x, weight);
  if (weight.rank() != 2 || x.rank() == 0 || x.shape().back() != weight.shape()[1]) {
    fail<ShapeError>("linear: x has shape ", x.shape(), " and weight ", weight.shape(),
                     ", expected [..., in] and [out, in]");
  }
  if (bias.defined()) {
    check_dtypes_meet("linear", x, bias);
    check_same_device("linear", x, bias);
    if (bias.shape() != Shape{weight.shape()[0]}) {
      fail<ShapeError>("linear: bias has shape ", bias.shape(), ", expected [", weight.shape()[0],
                       "], the rows of weight ", weight.shape());
    }
  }
  return apply(Linear{.shape = x.shape().with(x.rank() - 1, weight.shape()[0])}, x, weight, bias);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  if (a.rank() != 1 || b.rank() != 1) {
    fail<ShapeError>("outer: a has shape ", a.shape(), " and b ", b.shape(), ", expected one dimension each");
  }
  return unsqueeze(a, 1) * unsqueeze(b, 0);
}

}  // namespace levin
