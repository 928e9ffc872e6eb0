// Cross-entropy of a linear layer's logits, without the logits of all rows in memory.
//
// Note [Chunks of logits]
//
// The last layer of a language model makes a logit for each word of the vocabulary. Those of all rows take more memory
// than the rest of a small model, and go to memory and back several times. So rows are taken in chunks:
//
// 1. The logits of a chunk are one product.
// 2. One pass over them gives the losses of its rows, and puts the slopes of the logits in their place. For the
//    reductions mean and sum a slope is known but for a factor, which is the same for all rows.
// 3. Two products of the slopes give the gradient of the chunk's rows of x and the chunk's part of the gradient of the
//    weight. The latter is added up over chunks, in their order, in f32.
//
// Backward multiplies these gradients by the factor, in place, so a second backward of a retained graph makes them
// again. For the reduction none the factors of rows come with backward, which goes over the chunks once more. The
// bounds of chunks follow from the shapes alone, and so do the bits. The composite twin (linear and cross_entropy)
// gives the derivatives of backward.
#include <algorithm>
#include <array>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/home.h"
#include "autograd/op_table.h"
#include "autograd/ops/products/gemm_parts.h"
#include "autograd/ops/reduce/class_loss.h"
#include "kernels/executor/dispatch.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/softmax/cross_entropy.cuh"
#include "kernels/softmax/slope_products_device.cuh"
#include "levin/autograd.h"
#include "levin/flops.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::GemmSize;
using kernels::LossTotals;
using kernels::Matrix;
using kernels::SumsOf;

constexpr const char* kOp = "linear_cross_entropy";
constexpr OpInfo kProducts{.name = "linear_cross_entropy"};

// Rows of a chunk: some 64 MiB of logits on the CPU and 256 MiB elsewhere. Each chunk reads the weight and its sums, so
// fewer rows cost time beside the products: 16 MiB took 8 % longer in f32 and 50 % in bf16, for 2048 rows of 256
// numbers and 32,000 classes. A device needs rows for all of its processors.
std::int64_t rows_at_once(const Tensor& x, std::int64_t classes) {
  const bool host = x.device().is_cpu();
  const std::int64_t bytes = std::int64_t{1} << (host ? 26 : 28), least = host ? 128 : 1024, most = host ? 2048 : 4096;
  const std::int64_t rows = bytes / std::max<std::int64_t>(1, classes * static_cast<std::int64_t>(itemsize(x.dtype())));
  return std::clamp(rows / least * least, least, most);
}

// Calls f(first row, x's rows of the chunk, their logits) for each chunk of x [rows, in], in order; once for no rows.
template <class F>
void each_chunk(const Tensor& x, const Tensor& w, const Tensor& b, F&& f) {
  const std::int64_t rows = x.size(0), step = rows_at_once(x, w.size(0));
  for (std::int64_t first = 0; first == 0 || first < rows; first += step) {
    const Tensor part = rows <= step ? x : slice(x, 0, first, std::min(rows, first + step));
    f(first, part, linear(part, w, b));
  }
}
std::int64_t* targets_from(const Classes& c, std::int64_t row) { return ptr<std::int64_t>(c.target.get()) + row; }

// Slopes of 16-bit floats without an exponent for small numbers are multiplied by this power of two on their way
// through memory: a class of 50,000 has a probability that f16 holds with few bits. Weights of classes may be large, so
// there slopes stay as they are.
double slope_scale(DType t, const Classes& c) { return t == DType::f16 && !c.weight.defined() ? 256 : 1; }

// The sum of the rows, in the type of sums: under autocast 16-bit numbers have sums of f32.
Tensor wide_sum(const Tensor& x) {
  if (accumulator(x.dtype()) == x.dtype()) return sum(x, 0);
  const Autocast on(x.dtype());
  return sum(x, 0);
}

// Gradients of x, weight and bias, in the type of sums.
struct Sums {
  std::array<Tensor, 3> of;

  Sums() = default;
  Sums(NeedMask wanted, const Tensor& x, const Tensor& w) {
    const DType wide = accumulator(x.dtype());
    if (wanted[0]) of[0] = empty(x.shape(), x.device(), wide);
    if (wanted[1]) of[1] = empty(w.shape(), x.device(), wide);
    if (wanted[2]) of[2] = empty({w.size(0)}, x.device(), wide);
  }

  [[nodiscard]] bool has(NeedMask wanted) const {
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (wanted[i] && !of[i].defined()) return false;
    }
    return true;
  }

  // `slopes` [rows, classes] are those of x's rows `first` and on, which are `x`.
  void add(std::int64_t first, const Tensor& x, const Tensor& w, const Tensor& slopes) {
    const std::int64_t rows = x.size(0), in = x.size(1), classes = w.size(0);
    const SumsOf sums = first == 0 ? SumsOf::this_product : SumsOf::all_products;
    const auto on_cpu = [&]<class T>(const Cpu& on, T) {
      using A = kernels::Accum<T>;
      const Matrix<T> s = matrix<T>(slopes), turned{s.data, s.col, s.row};
      const kernels::GemmOptions<T> adding{.beta = first == 0 ? 0.0 : 1.0};
      if (of[0].defined())
        kernels::cpu::gemm(on, GemmSize{rows, in, classes}, s, matrix<T>(w), ptr<A>(of[0]) + first * in, in);
      if (of[1].defined())
        kernels::cpu::gemm(on, GemmSize{classes, in, rows}, turned, matrix<T>(x), ptr<A>(of[1]), in, adding);
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T) {
      using A = kernels::Accum<T>;
      const Matrix<T> s = matrix<T>(slopes), turned{s.data, s.col, s.row};
      const auto planned = [&](const GemmSize& size, auto&& product) {
        const kernels::GemmPlan plan = kernels::plan_gemm<T>(size, 1);
        const GemmParts<T> parts(plan, x.device());
        product(plan, parts.get());
      };
      if (of[0].defined())
        planned({rows, in, classes}, [&](const auto& plan, A* parts) {
          kernels::gpu::add_product<true>(on, plan, s, matrix<T>(w), ptr<A>(of[0]) + first * in, SumsOf::this_product,
                                          parts);
        });
      if (of[1].defined())
        planned({classes, in, rows}, [&](const auto& plan, A* parts) {
          kernels::gpu::add_product<false>(on, plan, turned, matrix<T>(x), ptr<A>(of[1]), sums, parts);
        });
      if (of[2].defined()) kernels::gpu::add_columns(on, s.data, ptr<A>(of[2]), rows, classes, sums);
    };
    dispatch(kProducts, x, kFloats, overloaded{on_cpu, on_gpu});
    if (of[2].defined() && !x.device().launches()) {
      const Tensor part = wide_sum(slopes);
      of[2] = first == 0 ? part : of[2] + part;
    }
    if (of[0].defined()) FlopCounter::count("matmul", {2, rows * in, classes});
    if (of[1].defined()) FlopCounter::count("matmul", {2, classes * in, rows});
  }
};

// What forward leaves for backward. Where slopes were wanted and all rows have one factor, `sums` has the gradients but
// for it, until a backward takes them.
struct Losses {
  Tensor loss;  // in the type of sums
  Tensor lse, weight_sum, totals;
  Sums sums;
};
Losses losses_of(const Classes& c, NeedMask wanted, const Tensor& x, const Tensor& w, const Tensor& b) {
  Losses losses;
  const std::int64_t rows = x.size(0), classes = w.size(0);
  const DType wide = accumulator(x.dtype());
  const bool whole = c.reduction != Reduction::none;
  losses.loss = empty(whole ? Shape{} : Shape{rows}, x.device(), wide);
  losses.lse = empty({rows}, x.device(), wide);
  losses.weight_sum = empty({1}, x.device(), wide);
  if (whole) losses.totals = zeros({3}, x.device(), DType::f64);
  if (whole && wanted.any()) losses.sums = Sums(wanted, x, w);
  const kernels::Logits become = whole && wanted.any() ? kernels::Logits::become_slopes : kernels::Logits::stay;
  each_chunk(x, w, b, [&](std::int64_t first, const Tensor& part, const Tensor& logits) {
    const std::int64_t count = part.size(0);
    // losses of the chunk, by the kernel `rows` or `chunk` of the device
    const auto by = [&]<class T>(T, auto&& of_rows, auto&& of_chunk) {
      using A = kernels::Accum<T>;
      const A* const weight = ptr_or_null<const A>(c.weight.get());
      A* const lse = ptr<A>(losses.lse) + first;
      A* const weight_sum = ptr<A>(losses.weight_sum);
      const std::int64_t* const target = targets_from(c, first);
      if (whole)
        of_chunk(ptr<T>(logits), target, weight, reinterpret_cast<LossTotals*>(ptr<double>(losses.totals)),
                 ptr<A>(losses.loss), lse, weight_sum, static_cast<A>(slope_scale(x.dtype(), c)));
      else
        of_rows(ptr<const T>(logits), target, weight, ptr<A>(losses.loss) + first, lse, weight_sum);
    };
    const auto on_cpu = [&]<class T>(const Cpu& on, T type) {
      by(
          type,
          [&](auto... p) {
            kernels::cpu::cross_entropy(on, p..., count, classes, c.ignore_index, c.label_smoothing,
                                        kernels::Reduction::none);
          },
          [&](auto* in, auto* target, auto* weight, auto* totals, auto* loss, auto* lse, auto* sum, auto scale) {
            kernels::cpu::cross_entropy_chunk(on, in, target, weight, totals, loss, lse, sum, count, classes,
                                              c.ignore_index, c.label_smoothing, kernel_reduction(c.reduction), become,
                                              scale);
          });
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T type) {
      const Tensor parts = empty({3 * kernels::gpu::cross_entropy_teams<T>(count, classes)}, x.device(), DType::f64);
      double* const scratch = ptr<double>(parts);
      by(
          type,
          [&](auto... p) {
            kernels::gpu::cross_entropy(on, kOp, p..., scratch, count, classes, c.ignore_index, c.label_smoothing,
                                        kernels::Reduction::none);
          },
          [&](auto* in, auto* target, auto* weight, auto* totals, auto* loss, auto* lse, auto* sum, auto scale) {
            kernels::gpu::cross_entropy_chunk(on, kOp, in, target, weight, totals, loss, lse, sum, scratch, count,
                                              classes, c.ignore_index, c.label_smoothing, kernel_reduction(c.reduction),
                                              become, scale);
          });
    };
    dispatch(kProducts, x, kFloats, overloaded{on_cpu, on_gpu});
    if (become == kernels::Logits::become_slopes) losses.sums.add(first, part, w, logits);
  });
  return losses;
}

// Inputs are matrices: x [rows, in], weight [classes, in]; gy is [rows] for Reduction::none, else [].
struct LinearCrossEntropyBackward {
  static constexpr OpInfo info{.name = "linear_cross_entropy_backward"};
  Classes c;
  NeedMask wanted;  // gradients of x, weight, bias
  Losses losses;
  Tensor place{};  // for the gradient of the weight, during forward only
  SavedInput gy{}, x{}, w{}, b{};

  std::array<Tensor, 3> forward(const Tensor& gy_, const Tensor& x_, const Tensor& w_, const Tensor& b_) {
    gy = gy_, x = x_, w = w_, b = b_;
    const Tensor into = std::exchange(place, Tensor());
    const Tensor g = cast(gy_, accumulator(x_.dtype())).contiguous();
    std::array<Tensor, 3> out;
    const bool scaled = c.reduction != Reduction::none;
    Sums sums = scaled ? std::exchange(losses.sums, Sums()) : sums_by(g, x_, w_, b_);
    if (!sums.has(wanted)) sums = losses_of(c, wanted, x_, w_, b_).sums;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!wanted[i]) continue;
      const Tensor& sum = sums.of[i];
      const bool stays = sum.dtype() == x_.dtype() && !(i == 1 && into.defined());
      out[i] = stays ? sum : detail::place_or_empty(i == 1 ? into : Tensor(), sum.shape(), sum.device(), x_.dtype());
      if (stays && !scaled) continue;
      dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
        using A = kernels::Accum<T>;
        using kernels::cpu::scale_slopes, kernels::gpu::scale_slopes;
        const bool mean = c.reduction == Reduction::mean;
        const A scale = scaled ? static_cast<A>(slope_scale(x_.dtype(), c)) : A(1);
        scale_slopes(on, ptr<const A>(sum), ptr<T>(out[i]), sum.numel(), i == 0 ? x_.size(1) : std::int64_t{1},
                     i == 0 ? ptr<const std::int64_t>(c.target.get()) : nullptr, scaled ? ptr<const A>(g) : nullptr,
                     mean ? ptr<const A>(losses.weight_sum) : nullptr,
                     scaled ? reinterpret_cast<const LossTotals*>(ptr<const double>(losses.totals)) : nullptr,
                     w_.size(0), c.ignore_index, scale);
      });
    }
    return out;
  }
  // The definition in public ops: the logits are functions of the inputs here, which keeps every derivative.
  std::array<Tensor, 3> reference(const std::array<Tensor, 4>& in) const {
    const Tensor slopes = cross_entropy_backward(in[0], linear(in[1], in[2], in[3]), c, losses.lse, losses.weight_sum);
    return {wanted[0] ? matmul(slopes, in[2]) : Tensor(), wanted[1] ? matmul(t(slopes), in[1]) : Tensor(),
            wanted[2] ? sum(slopes, 0) : Tensor()};
  }
  Grads<4> backward(const Tensor& gg0, const Tensor& gg1, const Tensor& gg2, NeedMask need) {
    std::array<Tensor, 3> cotangents{gg0, gg1, gg2};
    for (std::size_t i = 0; i < cotangents.size(); ++i) {
      if (!wanted[i]) cotangents[i] = Tensor();
    }
    return vjp<4>([&](auto& in) { return reference(in); }, {gy.get(), x.get(), w.get(), b.get()}, cotangents, need);
  }

 private:
  // The gradients for a factor g of each row.
  Sums sums_by(const Tensor& g, const Tensor& x_, const Tensor& w_, const Tensor& b_) const {
    Sums sums(wanted, x_, w_);
    each_chunk(x_, w_, b_, [&](std::int64_t first, const Tensor& rows, const Tensor& logits) {
      dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
        using A = kernels::Accum<T>;
        using kernels::cpu::cross_entropy_backward, kernels::gpu::cross_entropy_backward;
        cross_entropy_backward(on, ptr<const A>(g) + first, ptr<const T>(logits), targets_from(c, first),
                               ptr_or_null<const A>(c.weight.get()), ptr<const A>(losses.lse) + first,
                               ptr<const A>(losses.weight_sum), ptr<T>(logits), rows.size(0), w_.size(0),
                               c.ignore_index, c.label_smoothing, kernels::Reduction::none);
      });
      sums.add(first, rows, w_, logits);
    });
    return sums;
  }
};

// -> [rows] for Reduction::none, else a single element.
struct LinearCrossEntropy {
  static constexpr OpInfo info{.name = "linear_cross_entropy", .autocast = AutocastPolicy::lower};
  Classes c;
  DType result;
  NeedMask wanted;  // gradients that there may be a backward for
  Losses losses{};
  SavedInput x{}, w{}, b{};

  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b_) {
    x = x_, w = w_, b = b_;
    losses = losses_of(c, wanted, x_, w_, b_);
    return cast(std::exchange(losses.loss, Tensor()), result);
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    const Tensor place = need[1] ? detail::birth_place(1) : Tensor();
    Losses taken = losses;
    losses.sums = Sums();
    return apply(LinearCrossEntropyBackward{c, need, std::move(taken), place}, gy, x.get(), w.get(), b.get());
  }
};

LEVIN_OP_TABLE(LinearCrossEntropy)
LEVIN_OP_TABLE(LinearCrossEntropyBackward)

}  // namespace

Tensor linear_cross_entropy(const Tensor& input, const Tensor& linear_weight, const Tensor& target,
                            const Tensor& linear_bias, const CrossEntropyOptions& options) {
  check_dtypes_meet(kOp, input, linear_weight);
  check_same_device(kOp, input, linear_weight);
  check_defined(kOp, target);
  if (linear_weight.rank() != 2 || input.rank() == 0 || input.shape().back() != linear_weight.shape()[1]) {
    fail<ShapeError>(kOp, ": input has shape ", input.shape(), " and linear_weight ", linear_weight.shape(),
                     ", expected [..., in] and [classes, in]");
  }
  if (target.shape() != input.shape().removed(input.rank() - 1)) {
    fail<ShapeError>(kOp, ": input has shape ", input.shape(), " and target ", target.shape(),
                     ", expected [..., in] and [...]");
  }
  const std::int64_t classes = linear_weight.shape()[0];
  if (linear_bias.defined()) {
    check_dtypes_meet(kOp, input, linear_bias);
    check_same_device(kOp, input, linear_bias);
    if (linear_bias.shape() != Shape{classes}) {
      fail<ShapeError>(kOp, ": linear_bias has shape ", linear_bias.shape(), ", expected [", classes,
                       "], the rows of linear_weight ", linear_weight.shape());
    }
  }
  check_targets(kOp, input, target, classes, options.weight);
  if (!is_float(input.dtype())) fail_unsupported(LinearCrossEntropy::info, input, kFloats);
  Classes c = checked_classes(kOp, target, input.dtype(), classes, options);
  NeedMask wanted;
  if (grad_mode()) {
    if (records(input)) wanted.set(0);
    if (records(linear_weight)) wanted.set(1);
    if (records(linear_bias)) wanted.set(2);
  }
  const Tensor rows = input.rank() == 2 ? input : reshape(input, {target.numel(), input.shape().back()});
  const Tensor loss =
      apply(LinearCrossEntropy{std::move(c), full_result(input.dtype()), wanted}, rows, linear_weight, linear_bias);
  return options.reduction == Reduction::none && target.rank() != 1 ? reshape(loss, Dims(target.shape().dims())) : loss;
}

}  // namespace levin
