// Margins between scores, and likelihoods of counts and of normal distributions: public ops in a row. 16-bit numbers
// are widened to f32 first.
#include <cmath>
#include <numbers>

#include "autograd/ops/reduce/class_loss.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "levin/ops.h"

namespace levin {
namespace {

Tensor positive_part(const Tensor& x) { return clamp(x, 0, {}); }

// A target of 1 and -1 may have any dtype.
void check_signs(const char* op, const Tensor& x, const Tensor& target) {
  check_float(op, x);
  check_defined(op, target);
  check_equal_shapes(op, "x", x, "target", target);
}

}  // namespace

Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin, Reduction reduction) {
  constexpr const char* op = "margin_ranking_loss";
  check_float(op, a);
  check_dtypes_meet(op, a, b);
  check_equal_shapes(op, "a", a, "b", b);
  check_defined(op, target);
  check_equal_shapes(op, "a", a, "target", target);
  const Tensor x = widened(a);
  return finished(positive_part(cast(target, x.dtype()) * (widened(b) - x) + margin), a, reduction);
}

Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, double margin, Reduction reduction) {
  check_signs("hinge_embedding_loss", x, target);
  const Tensor wide = widened(x);
  const Tensor alike = masked_fill(wide, eq(target, -1), 0);
  return finished(alike + masked_fill(positive_part(margin - wide), eq(target, 1), 0), x, reduction);
}

Tensor soft_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_signs("soft_margin_loss", x, target);
  const Tensor wide = widened(x);
  return finished(softplus(neg(cast(target, wide.dtype()) * wide), 1, INFINITY), x, reduction);
}

Tensor multi_margin_loss(const Tensor& x, const Tensor& target, const MultiMarginOptions& o) {
  constexpr const char* op = "multi_margin_loss";
  check_float(op, x);
  check_defined(op, target);
  if (o.p != 1 && o.p != 2) fail<ConfigError>(op, ": p is ", o.p, ", expected 1 or 2");
  if (x.rank() < 1 || x.rank() > 2 || target.shape() != x.shape().removed(x.rank() - 1)) {
    fail<ShapeError>(op, ": x has shape ", x.shape(), " and target ", target.shape(),
                     ", expected [N, C] and [N], or [C] and []");
  }
  const std::int64_t classes = x.shape().back();
  check_targets(op, x, target, classes, o.weight);
  const Tensor index = unsqueeze(target.detach().contiguous(), -1), wide = widened(x);
  check_range(op, index, classes);
  const Tensor right = eq(arange(classes, x.device()), index);
  Tensor short_of = relu(wide - gather(wide, -1, index) + o.margin);  // at the margin the gradient is 0
  if (o.p == 2) short_of = square(short_of);
  Tensor losses = sum(masked_fill(short_of, right, 0), {-1}) / static_cast<double>(classes);
  if (o.weight.defined()) {
    const Tensor weights = index_select(widened(o.weight.detach()), 0, reshape(index, {target.numel()}));
    losses = losses * reshape(weights, Dims(target.shape().dims()));
  }
  return finished(losses, x, o.reduction);
}

Tensor multilabel_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  constexpr const char* op = "multilabel_margin_loss";
  check_float(op, x);
  check_defined(op, target);
  if (x.rank() < 1 || x.rank() > 2 || target.shape() != x.shape()) {
    fail<ShapeError>(op, ": x has shape ", x.shape(), " and target ", target.shape(),
                     ", expected [N, C] or [C] for both");
  }
  const std::int64_t classes = x.shape().back();
  check_targets(op, x, target, classes, {});
  const Tensor ends = cumsum(cast(lt(target.detach(), 0), DType::i64), -1);
  const Tensor is_behind = gt(ends, 0), index = masked_fill(target.detach().contiguous(), is_behind, 0);
  if (classes > 0) check_range(op, index, classes);
  // [..., targets, classes]: a class counts against a target that is there if it is no target itself.
  const Tensor wide = widened(x), listed = cast(logical_not(is_behind), wide.dtype());
  const Tensor is_target = gt(scatter_add(zeros_like(wide), -1, index, listed), 0);
  const Tensor short_of = relu(unsqueeze(wide, -2) - unsqueeze(gather(wide, -1, index), -1) + 1);
  const Tensor does_not_count = logical_or(unsqueeze(is_target, -2), unsqueeze(is_behind, -1));
  return finished(sum(masked_fill(short_of, does_not_count, 0), {-2, -1}) / static_cast<double>(classes), x, reduction);
}

Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target, const Tensor& weight, Reduction reduction) {
  constexpr const char* op = "multilabel_soft_margin_loss";
  check_float(op, x);
  check_pair(op, x, target);
  check_loss_weight(op, "weight", x, weight);
  if (x.rank() == 0) fail<ShapeError>(op, ": x is a single element, expected classes along its last dimension");
  const Tensor wide = widened(x), labels = widened(target), weights = weight.defined() ? widened(weight) : weight;
  return finished(mean(binary_cross_entropy_with_logits(wide, labels, weights, {}, Reduction::none), {-1}), x,
                  reduction);
}

Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, const PoissonNllOptions& o) {
  constexpr const char* op = "poisson_nll_loss";
  check_float(op, x);
  check_pair(op, x, target);
  const Tensor rate = widened(x), count = widened(target);
  Tensor losses = o.input == RateInput::log ? exp(rate) - count * rate : rate - count * log(rate + o.eps);
  if (o.constant == LossConstant::full) {
    // log(count!) by Stirling, which is 0 for 0 and 1. There the logarithm is taken of 1, so no NaN enters a gradient.
    const Tensor few = le(count, 1), many = masked_fill(count, few, 1);
    const Tensor stirling = many * log(many) - many + 0.5 * log(2 * std::numbers::pi * many);
    losses = losses + masked_fill(stirling, few, 0);
  }
  return finished(losses, x, o.reduction);
}

Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& variance, const GaussianNllOptions& o) {
  constexpr const char* op = "gaussian_nll_loss";
  check_float(op, x);
  check_pair(op, x, target);
  check_defined(op, variance);
  check_loss_weight(op, "the variance", x, variance);
  if (!(o.eps > 0)) fail<ConfigError>(op, ": eps is ", o.eps, ", expected a positive number");
  const Tensor spread = clamp(widened(variance), o.eps, {});
  Tensor losses = 0.5 * (log(spread) + square(widened(x) - widened(target)) / spread);
  if (o.constant == LossConstant::full) losses = losses + 0.5 * std::log(2 * std::numbers::pi);
  return finished(losses, x, o.reduction);
}

}  // namespace levin
