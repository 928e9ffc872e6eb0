// Losses: ops of levin/ops.h, which includes this header. Its rules for dtypes, derivatives and errors hold here. Of 16
// bits losses are f32 under Autocast.
#pragma once

#include <cstdint>

#include "levin/tensor.h"

namespace levin {

// What becomes of a loss for each element: it stays, or the mean or the sum is taken.
enum class Reduction : std::uint8_t { none, mean, sum };

struct CrossEntropyOptions {
  Tensor weight{};                   // [C] in the logits' dtype, no gradient; undefined: 1
  std::int64_t ignore_index = -100;  // targets of this value count for nothing
  double label_smoothing = 0;        // this share of each target spreads evenly over all classes; 0 to 1
  Reduction reduction = Reduction::mean;
};

// -weight[t] log_softmax(logits)[t] for each target t: logits [N, C] or [N, C, d...], target i64 [N] or [N, d...].
// Smoothing e makes it (1 - e) of that, and e / C of its sum over all classes. The mean divides by the sum of the
// weights of targets that count: NaN without any. On the CPU a probability that its slope's scale makes subnormal adds
// 0 to the slope. Throws IndexError for a target that is no class.
// A target of the logits' shape and dtype has probabilities, as mixup and distillation give them:
// -sum over c of weight[c] target[c] log_softmax(logits)[c], of (1 - e) target + e / C where e smooths. Its gradient
// reaches the target, too. The mean then divides by N d..., and an ignore_index from 0 on throws ConfigError.
[[nodiscard]] LEVIN_API Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                                             const CrossEntropyOptions& options = {});

// cross_entropy of linear(input, linear_weight, linear_bias): input [..., in], linear_weight [C, in], target i64 [...],
// linear_bias [C] or undefined. The logits of all rows are never in memory at once: rows are taken in chunks, whose
// size follows from the shapes alone. For the reductions mean and sum the gradients are computed in forward, chunk by
// chunk, and backward scales them; for none backward computes the logits again. Gradients are added up in f32 (f64 for
// f64). Higher derivatives hold all logits.
[[nodiscard]] LEVIN_API Tensor linear_cross_entropy(const Tensor& input, const Tensor& linear_weight,
                                                    const Tensor& target, const Tensor& linear_bias = {},
                                                    const CrossEntropyOptions& options = {});

// As in CrossEntropyOptions.
struct NllOptions {
  Tensor weight{};
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
};

// -weight[t] log_probs[t]: cross_entropy of log_softmax's result, with the same shapes.
[[nodiscard]] LEVIN_API Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const NllOptions& options = {});

struct CtcOptions {
  std::int64_t blank = 0;  // the class between labels
  Reduction reduction = Reduction::mean;
  bool zero_infinity = false;  // 0 in place of an infinite loss
};
// -log of the probability that the classes of log_probs [T, N, C], log_softmax's result, spell the target: the sum over
// all paths of T classes that become the target when repeats are merged and blanks removed. targets i64 [N, S], of
// which target_lengths i64 [N] count, or all targets end to end [sum of target_lengths]; input_lengths i64 [N] steps
// of log_probs count. -> [N]; the mean divides each loss by its target's length (at least 1) first. A target that no
// path spells has an infinite loss and no gradient (PyTorch: NaN). The gradient is that of the formula, which is
// PyTorch's after log_softmax, not before. Targets end to end wait for the device. On the CPU lengths and labels out of
// range throw IndexError; on a device lengths count as the nearest possible. Graves et al., "Connectionist temporal
// classification", 2006.
[[nodiscard]] LEVIN_API Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                                        const Tensor& target_lengths, const CtcOptions& options = {});

// (x - target)^2, and |x - target| with derivative 0 at 0. Shapes are equal (PyTorch broadcasts).
[[nodiscard]] LEVIN_API Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
[[nodiscard]] LEVIN_API Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

// d^2 / 2 for d = |x - target| <= delta, delta (d - delta / 2) beyond; delta > 0, shapes are equal. Huber, 1964.
// smooth_l1 is it with delta = beta, divided by beta; l1_loss for beta 0. Girshick, "Fast R-CNN", 2015.
[[nodiscard]] LEVIN_API Tensor huber_loss(const Tensor& x, const Tensor& target, double delta = 1.0,
                                          Reduction reduction = Reduction::mean);
[[nodiscard]] LEVIN_API Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, double beta = 1.0,
                                              Reduction reduction = Reduction::mean);

// -weight (pos_weight target log(sigmoid(x)) + (1 - target) log(1 - sigmoid(x))), without overflow; target has x's
// shape and dtype. weight and pos_weight broadcast to it and may be undefined: 1. The mean divides by the number of
// elements.
[[nodiscard]] LEVIN_API Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                                                const Tensor& weight = {},
                                                                const Tensor& pos_weight = {},
                                                                Reduction reduction = Reduction::mean);

// -weight (target log(x) + (1 - target) log(1 - x)) for probabilities x; a logarithm is -100 at least, and 1e-12 is the
// least x (1 - x) that a gradient divides by. NaN for an x outside of [0, 1] (PyTorch throws).
// binary_cross_entropy_with_logits takes what sigmoid would get, and is exact where x rounds to 0 or 1.
[[nodiscard]] LEVIN_API Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight = {},
                                                    Reduction reduction = Reduction::mean);

// batchmean: the sum divided by x.size(0). LogTarget::yes: target holds logarithms.
enum class KlReduction : std::uint8_t { none, mean, sum, batchmean };
enum class LogTarget : bool { no, yes };

// target (log(target) - x) for x in log space; shapes are equal. Where target is 0 it is 0 for a finite x and NaN for
// an infinite one. With LogTarget::yes a target of -inf gives NaN.
[[nodiscard]] LEVIN_API Tensor kl_div(const Tensor& x, const Tensor& target, KlReduction reduction = KlReduction::mean,
                                      LogTarget log_target = LogTarget::no);

// ---- Losses of distances between vectors, their last dimension. 16-bit numbers are computed in f32.

// Of the cosine c of a and b [..., d]: 1 - c where the target is 1, max(0, c - margin) where it is -1. target [...] of
// any dtype. 1e-12 is added to each squared norm.
[[nodiscard]] LEVIN_API Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                                                     double margin = 0, Reduction reduction = Reduction::mean);

// yes: the negative's distance is that to the anchor or to the positive, the smaller one. Balntas et al., "Learning
// local feature descriptors with triplets", 2016.
enum class SwapAnchor : bool { no, yes };
struct TripletMarginOptions {
  double margin = 1;
  double p = 2;
  double eps = 1e-6;
  SwapAnchor swap = SwapAnchor::no;
  Reduction reduction = Reduction::mean;
};
// max(0, d(anchor, positive) - d(anchor, negative) + margin) for pairwise_distance d; shapes are equal, [..., d].
[[nodiscard]] LEVIN_API Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                                                   const TripletMarginOptions& options = {});

// ---- Margins. A target of 1 and -1 may have any dtype; shapes are equal.

// max(0, -target (a - b) + margin): a is to rank above b where the target is 1.
[[nodiscard]] LEVIN_API Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                                                   double margin = 0, Reduction reduction = Reduction::mean);

// x where the target is 1, max(0, margin - x) where it is -1.
[[nodiscard]] LEVIN_API Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, double margin = 1,
                                                    Reduction reduction = Reduction::mean);

// log(1 + exp(-target x)), without overflow.
[[nodiscard]] LEVIN_API Tensor soft_margin_loss(const Tensor& x, const Tensor& target,
                                                Reduction reduction = Reduction::mean);

struct MultiMarginOptions {
  int p = 1;  // 1 or 2
  double margin = 1;
  Tensor weight{};  // [C] in x's dtype, no gradient; undefined: 1
  Reduction reduction = Reduction::mean;
};
// weight[t] sum over c != t of max(0, margin - x[t] + x[c])^p / C for each target t: x [N, C] or [C], target i64 [N] or
// []. Throws IndexError for a target that is no class.
[[nodiscard]] LEVIN_API Tensor multi_margin_loss(const Tensor& x, const Tensor& target,
                                                 const MultiMarginOptions& options = {});

// Sum over the targets t of x and the classes c that are none of them of max(0, 1 - x[t] + x[c]) / C. x: [N, C] or [C];
// target: i64 of x's shape, classes up to the first negative number. Takes memory for N C^2 numbers. Throws ShapeError;
// IndexError for a target that is no class.
[[nodiscard]] LEVIN_API Tensor multilabel_margin_loss(const Tensor& x, const Tensor& target,
                                                      Reduction reduction = Reduction::mean);

// The mean over the classes, x's last dimension, of binary_cross_entropy_with_logits(x, target, weight).
[[nodiscard]] LEVIN_API Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target,
                                                           const Tensor& weight = {},
                                                           Reduction reduction = Reduction::mean);

// ---- Likelihoods. full adds what does not depend on x.
enum class LossConstant : std::uint8_t { without, full };

enum class RateInput : std::uint8_t { log, rate };
struct PoissonNllOptions {
  RateInput input = RateInput::log;
  LossConstant constant = LossConstant::without;  // Stirling's log(target!), for targets above 1
  double eps = 1e-8;                              // is added to a rate before its logarithm
  Reduction reduction = Reduction::mean;
};
// exp(x) - target x, or x - target log(x + eps) for RateInput::rate; shapes are equal.
[[nodiscard]] LEVIN_API Tensor poisson_nll_loss(const Tensor& x, const Tensor& target,
                                                const PoissonNllOptions& options = {});

struct GaussianNllOptions {
  LossConstant constant = LossConstant::without;  // log(2 pi) / 2
  double eps = 1e-6;                              // a smaller variance counts as eps
  Reduction reduction = Reduction::mean;
};
// (log(v) + (x - target)^2 / v) / 2 for v = max(variance, eps); the variance broadcasts to x's shape. Below eps it has
// no gradient (PyTorch's passes, and a negative variance throws).
[[nodiscard]] LEVIN_API Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& variance,
                                                 const GaussianNllOptions& options = {});

// The share of argmax(logits, 1) == target, a f32 scalar; no gradient. Shapes are cross_entropy's.
[[nodiscard]] LEVIN_API Tensor accuracy(const Tensor& logits, const Tensor& target);

}  // namespace levin
