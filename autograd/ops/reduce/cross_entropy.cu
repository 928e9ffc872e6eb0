// Losses over class indices: cross-entropy in one pass over the logits, negative log likelihood, accuracy.
#include <array>
#include <limits>
#include <string>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/reduce/class_loss.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/softmax/cross_entropy.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

// d loss / d logits [rows, cols] = g (s softmax(x) - q): q is the share of each class in a row's target, s its sum.
struct CrossEntropyBackward {
  static constexpr OpInfo info{.name = "cross_entropy_backward"};
  Classes c;
  Stash lse, weight_sum;
  SavedInput gy{}, x{};

  Tensor forward(const Tensor& gy_, const Tensor& x_) {
    gy = gy_;
    x = x_;
    Tensor gx = empty(x_.shape(), x_.device(), x_.dtype());
    const Tensor g = cast(gy_, accumulator(x_.dtype())).contiguous(), logits = x_.contiguous();
    dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
      using kernels::cpu::cross_entropy_backward, kernels::gpu::cross_entropy_backward;
      using A = kernels::Accum<T>;
      cross_entropy_backward(on, ptr<const A>(g), ptr<const T>(logits), ptr<const std::int64_t>(c.target.get()),
                             ptr_or_null<const A>(c.weight.get()), ptr<const A>(lse), ptr<const A>(weight_sum),
                             ptr<T>(gx), x_.shape()[0], x_.shape()[1], c.ignore_index, c.label_smoothing,
                             kernel_reduction(c.reduction));
    });
    return gx;
  }
  Tensor reference(const Tensor& gy_, const Tensor& x_) const {
    const std::int64_t rows = x_.shape()[0], cols = x_.shape()[1];
    const DType wide = accumulator(x_.dtype());
    const Tensor g = cast(gy_, wide), logits = cast(x_, wide);
    const Tensor& target = c.target.get();
    const Tensor ignored = eq(target, c.ignore_index);
    Tensor q = cast(one_hot(masked_fill(target, ignored, 0), cols), wide) * (1 - c.label_smoothing) +
               c.label_smoothing / static_cast<double>(cols);
    if (c.weight.defined()) {
      // The smooth part weighs each class by the class's weight, the sharp part by the target's weight: both are q's
      // columns.
      q = q * c.weight.get();
    }
    q = masked_fill(q, unsqueeze(ignored, 1), 0);
    const Tensor slope = sum(q, 1, KeepDim::yes) * softmax(logits, 1) - q;
    if (c.reduction == Reduction::none) return cast(reshape(g, {rows, 1}) * slope, x_.dtype());
    return cast((c.reduction == Reduction::mean ? g / reshape(weight_sum, {}) : g) * slope, x_.dtype());
  }
  Grads<2> backward(const Tensor& gg, NeedMask need) {
    return vjp<2>([&](auto& in) { return reference(in[0], in[1]); }, std::array{gy.get(), x.get()}, std::array{gg},
                  need);
  }
};

// logits [rows, cols] -> [rows] for Reduction::none, else a single element. Losses are few beside logits, so the
// kernels give and take losses in the type of the sums, whatever dtype the result has.
struct CrossEntropy {
  static constexpr OpInfo info{.name = "cross_entropy", .autocast = AutocastPolicy::full_result};
  Classes c;
  DType result;
  SavedInput x{};
  Stash lse{}, weight_sum{};

  Tensor forward(const Tensor& x_) {
    const std::int64_t rows = x_.shape()[0], cols = x_.shape()[1];
    const DType wide = accumulator(x_.dtype());
    const Tensor out = empty(c.reduction == Reduction::none ? Shape{rows} : Shape{}, x_.device(), wide);
    lse = empty({rows}, x_.device(), wide);
    weight_sum = empty({1}, x_.device(), wide);
    const Tensor logits = x_.contiguous();
    const std::int64_t* const target = ptr<const std::int64_t>(c.target.get());
    const kernels::Reduction reduction = kernel_reduction(c.reduction);
    const auto on_cpu = [&]<class T>(const Cpu& on, T) {
      using A = kernels::Accum<T>;
      kernels::cpu::cross_entropy(on, ptr<const T>(logits), target, ptr_or_null<const A>(c.weight.get()), ptr<A>(out),
                                  ptr<A>(lse), ptr<A>(weight_sum), rows, cols, c.ignore_index, c.label_smoothing,
                                  reduction);
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T) {
      using A = kernels::Accum<T>;
      const Tensor parts = empty({3 * kernels::gpu::cross_entropy_teams<T>(rows, cols)}, x_.device(), DType::f64);
      kernels::gpu::cross_entropy(on, info.name, ptr<const T>(logits), target, ptr_or_null<const A>(c.weight.get()),
                                  ptr<A>(out), ptr<A>(lse), ptr<A>(weight_sum), ptr<double>(parts), rows, cols,
                                  c.ignore_index, c.label_smoothing, reduction);
    };
    dispatch(info, x_, kFloats, overloaded{on_cpu, on_gpu});
    x = x_;
    return cast(out, result);
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {cross_entropy_backward(gy, x.get(), c, lse, weight_sum)}; }
};

LEVIN_OP_TABLE(CrossEntropy)
LEVIN_OP_TABLE(CrossEntropyBackward)

// target's shape is x's without dimension 1.
void check_classes(const char* op, const Tensor& x, const Tensor& target, const Tensor& weight) {
  if (x.rank() < 2 || target.shape() != x.shape().removed(1)) {
    fail<ShapeError>(op, ": the input has shape ", x.shape(), " and target ", target.shape(),
                     ", expected [N, C] and [N], or [N, C, d...] and [N, d...]");
  }
  check_targets(op, x, target, x.shape()[1], weight);
}
// [N, C, d...] as rows of classes [N * d..., C].
Tensor class_rows(const Tensor& x) {
  if (x.rank() == 2) return x;
  std::array<std::int64_t, kMaxRank> order{};
  order[0] = 0;
  for (int d = 2; d < x.rank(); ++d) order[static_cast<std::size_t>(d - 1)] = d;
  order[static_cast<std::size_t>(x.rank() - 1)] = 1;
  const Tensor last = permute(x, Dims(std::span<const std::int64_t>(order.data(), static_cast<std::size_t>(x.rank()))));
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < last.rank(); ++d) rows *= last.shape()[d];
  return reshape(last, {rows, x.shape()[1]});
}
Tensor dense(const Tensor& t) { return t.defined() ? t.detach().contiguous() : t; }

void check_smoothing(const char* op, double share) {
  if (!(share >= 0 && share <= 1))
    fail<ConfigError>(op, ": label_smoothing is ", share, ", expected a value in [0, 1]");
}

}  // namespace

void check_targets(const char* op, const Tensor& x, const Tensor& target, std::int64_t classes, const Tensor& weight) {
  if (target.dtype() != DType::i64) {
    fail<DTypeError>(op, ": target is ", target.dtype(), ", expected class indices of i64");
  }
  check_same_device(op, x, target);
  check_class_weight(op, x, classes, weight);
}

void check_class_weight(const char* op, const Tensor& x, std::int64_t classes, const Tensor& weight) {
  if (!weight.defined()) return;
  check_dtypes_meet(op, x, weight);
  check_same_device(op, x, weight);
  if (weight.shape() != Shape{classes}) {
    fail<ShapeError>(op, ": weight has shape ", weight.shape(), ", expected [", classes, "], one for each class");
  }
}

void check_range(const char* op, const Tensor& target, std::int64_t classes, std::optional<std::int64_t> ignore_index) {
  if (!target.device().is_cpu()) return;
  const std::int64_t* t = ptr<std::int64_t>(target);
  const std::int64_t no_class = std::numeric_limits<std::int64_t>::min();
  const std::int64_t bad =
      kernels::cpu::first_bad_target(Cpu{}, t, target.numel(), classes, ignore_index.value_or(no_class));
  if (bad < 0) return;
  const std::string or_ignored = ignore_index ? " or ignore_index " + std::to_string(*ignore_index) : "";
  fail<IndexError>(op, ": target ", t[bad], " at position ", bad, " is not a class, expected 0 to ", classes - 1,
                   or_ignored);
}

Classes checked_classes(const char* op, const Tensor& target, DType dtype, std::int64_t classes,
                        const CrossEntropyOptions& options) {
  check_smoothing(op, options.label_smoothing);
  Classes c{
      .ignore_index = options.ignore_index, .label_smoothing = options.label_smoothing, .reduction = options.reduction};
  c.target = reshape(dense(target), {target.numel()});
  if (options.weight.defined()) c.weight = cast(dense(options.weight), accumulator(dtype));
  check_range(op, c.target.get(), classes, c.ignore_index);
  return c;
}

Tensor cross_entropy_backward(const Tensor& gy, const Tensor& x, const Classes& classes, const Tensor& lse,
                              const Tensor& weight_sum) {
  return apply(CrossEntropyBackward{classes, lse, weight_sum}, gy, x);
}

// The target is a distribution over the classes. Many small numbers: 16-bit numbers are added in f32.
static Tensor soft_cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
  constexpr const char* op = "cross_entropy";
  check_float(op, logits);
  check_dtypes_meet(op, logits, target);
  check_same_device(op, logits, target);
  if (logits.rank() < 2 || target.shape() != logits.shape()) {
    fail<ShapeError>(op, ": the input has shape ", logits.shape(), " and the target ", target.shape(), " of ",
                     target.dtype(), ", expected probabilities of the input's shape, or classes in i64");
  }
  check_smoothing(op, options.label_smoothing);
  if (options.ignore_index >= 0)
    fail<ConfigError>(op, ": ignore_index is ", options.ignore_index, ", which probabilities can not equal");
  const std::int64_t classes = logits.shape()[1];
  check_class_weight(op, logits, classes, options.weight);
  const DType wide = accumulator(logits.dtype());
  Tensor shares = cast(target, wide);
  if (options.label_smoothing > 0)
    shares = shares * (1 - options.label_smoothing) + options.label_smoothing / static_cast<double>(classes);
  if (options.weight.defined()) {
    std::array<std::int64_t, kMaxRank> sizes{};
    sizes.fill(1);
    sizes[1] = classes;
    shares = shares * reshape(cast(dense(options.weight), wide),
                              Dims(std::span(sizes.data(), static_cast<std::size_t>(logits.rank()))));
  }
  const Tensor losses = neg(sum(log_softmax(cast(logits, wide), 1) * shares, {1}));
  return cast(reduced(losses, options.reduction), full_result(logits.dtype()));
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
  if (target.defined() && is_float(target.dtype())) return soft_cross_entropy(logits, target, options);
  check_float("cross_entropy", logits);
  check_defined("cross_entropy", target);
  check_classes("cross_entropy", logits, target, options.weight);
  Classes c = checked_classes("cross_entropy", target, logits.dtype(), logits.shape()[1], options);
  const Tensor loss = apply(CrossEntropy{std::move(c), full_result(logits.dtype())}, class_rows(logits));
  return options.reduction == Reduction::none && target.rank() != 1 ? reshape(loss, Dims(target.shape().dims())) : loss;
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const NllOptions& options) {
  check_classes("nll_loss", log_probs, target, options.weight);
  check_float("nll_loss", log_probs);
  const Tensor t = reshape(dense(target), {target.numel()});
  check_range("nll_loss", t, log_probs.shape()[1], options.ignore_index);
  const Tensor ignored = eq(t, options.ignore_index);
  const Tensor index = masked_fill(t, ignored, 0);
  Tensor picked = masked_fill(squeeze(gather(class_rows(log_probs), 1, unsqueeze(index, 1)), 1), ignored, 0);
  const DType full = full_result(log_probs.dtype());
  if (options.reduction == Reduction::none) {
    picked = cast(picked, full);
    if (options.weight.defined()) picked = picked * cast(index_select(dense(options.weight), 0, index), full);
    return reshape(neg(picked), Dims(target.shape().dims()));
  }
  // Many small numbers: 16-bit numbers are added in f32.
  const DType wide = accumulator(log_probs.dtype());
  picked = cast(picked, wide);
  Tensor share = cast(logical_not(ignored), wide);
  if (options.weight.defined()) share = share * cast(index_select(dense(options.weight), 0, index), wide);
  const Tensor total = neg(sum(picked * share));
  return cast(options.reduction == Reduction::mean ? total / sum(share) : total, full);
}

Tensor accuracy(const Tensor& logits, const Tensor& target) {
  check_classes("accuracy", logits, target, {});
  check_float("accuracy", logits);
  return mean(cast(eq(argmax(logits.detach(), 1), target), DType::f32));
}

}  // namespace levin
