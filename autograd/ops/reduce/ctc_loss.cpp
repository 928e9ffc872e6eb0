// Connectionist temporal classification. Source: Graves et al., "Connectionist Temporal Classification", 2006,
// equations 6 to 8, in logarithms. Public ops in a row; 16-bit numbers are widened to f32 first.
#include <algorithm>
#include <limits>

#include "autograd/ops/reduce/loss_parts.h"
#include "levin/ops.h"

namespace levin {
namespace {

constexpr const char* kOp = "ctc_loss";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_integers(const char* name, const Tensor& x, const Tensor& t) {
  check_defined(kOp, t);
  check_same_device(kOp, x, t);
  if (t.dtype() != DType::i64) fail<DTypeError>(kOp, ": ", name, " are ", t.dtype(), ", expected i64");
}
void check_lengths(const char* name, const Tensor& t, std::int64_t most) {
  if (!t.device().is_cpu()) return;
  for (const std::int64_t n : t.contiguous().to_vector<std::int64_t>())
    if (n < 0 || n > most) fail<IndexError>(kOp, ": one of the ", name, " is ", n, ", expected 0 to ", most);
}

void check(const Tensor& x, const Tensor& targets, const Tensor& input_lengths, const Tensor& target_lengths,
           const CtcOptions& o) {
  check_float(kOp, x);
  check_integers("targets", x, targets);
  check_integers("input_lengths", x, input_lengths);
  check_integers("target_lengths", x, target_lengths);
  if (x.rank() != 3 || x.size(0) == 0)
    fail<ShapeError>(kOp, ": log_probs have shape ", x.shape(), ", expected [T, N, C] of one step or more");
  const std::int64_t n = x.size(1), classes = x.size(2);
  if (targets.rank() != 1 && (targets.rank() != 2 || targets.size(0) != n)) {
    fail<ShapeError>(kOp, ": targets have shape ", targets.shape(), " beside log_probs ", x.shape(),
                     ", expected [N, S], or all targets end to end");
  }
  if (input_lengths.shape() != Shape{n} || target_lengths.shape() != Shape{n}) {
    fail<ShapeError>(kOp, ": input_lengths have shape ", input_lengths.shape(), " and target_lengths ",
                     target_lengths.shape(), ", expected ", Shape{n});
  }
  if (o.blank < 0 || o.blank >= classes)
    fail<ConfigError>(kOp, ": blank is ", o.blank, ", expected a class from 0 to ", classes - 1);
  check_lengths("input_lengths", input_lengths, x.size(0));
  check_lengths("target_lengths", target_lengths, targets.rank() == 2 ? targets.size(1) : targets.numel());
}

// Targets end to end as [N, S] for the longest of them.
Tensor padded(const Tensor& targets, const Tensor& lengths) {
  std::int64_t longest = 0, total = 0;
  for (const std::int64_t n : lengths.to(Device::cpu()).to_vector<std::int64_t>()) {
    longest = std::max(longest, n);
    total += n;
  }
  if (total != targets.numel()) {
    fail<ShapeError>(kOp, ": ", targets.numel(), " targets end to end, expected the sum of target_lengths, ", total);
  }
  if (total == 0) return zeros({lengths.numel(), 0}, targets.device(), DType::i64);
  const Tensor begin = unsqueeze(cumsum(lengths, 0) - lengths, 1);
  const Tensor at = clamp(begin + arange(longest, targets.device()), 0, total - 1);
  return reshape(index_select(targets, 0, flatten(at)), {lengths.numel(), longest});
}

// x moved `by` columns to the right along its last dimension, with -inf or false in front.
Tensor moved(const Tensor& x, std::int64_t by) {
  const Tensor front = pad(x, {by, 0}, x.dtype() == DType::b8 ? Scalar(0) : Scalar(-kInfinity));
  return narrow(front, -1, 0, x.size(-1));
}
Tensor sum_of_logs(std::initializer_list<Tensor> x) { return logsumexp(stack(x, -1), {-1}); }

}  // namespace

Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcOptions& o) {
  check(log_probs, targets, input_lengths, target_lengths, o);
  const Device device = log_probs.device();
  const std::int64_t steps = log_probs.size(0), n = log_probs.size(1), classes = log_probs.size(2);
  const Tensor given = targets.rank() == 2 ? targets : padded(targets, target_lengths);
  const std::int64_t longest = given.size(1);
  const Tensor length = unsqueeze(clamp(target_lengths, 0, longest), 1);  // [N, 1]
  const Tensor labels = masked_fill(given, ge(arange(longest, device), length), o.blank);
  if (device.is_cpu()) {
    for (const std::int64_t label : labels.contiguous().to_vector<std::int64_t>())
      if (label < 0 || label >= classes)
        fail<IndexError>(kOp, ": a target is ", label, ", expected a class from 0 to ", classes - 1);
  }

  // The target with a blank around each label, [N, 2 S + 1]. A path may pass over a blank between unequal labels.
  const Tensor blanks = full({n, longest}, o.blank, device, DType::i64);
  const Tensor spelled = cat({flatten(stack({blanks, labels}, -1), 1), full({n, 1}, o.blank, device, DType::i64)}, 1);
  const std::int64_t states = spelled.size(1);
  const Tensor place = arange(states, device);
  Tensor no_skip = ones({n, std::min<std::int64_t>(states, 2)}, device, DType::b8);
  if (states > 2) no_skip = cat({no_skip, eq(narrow(spelled, 1, 2, states - 2), narrow(spelled, 1, 0, states - 2))}, 1);

  const Tensor x = widened(log_probs);
  const Tensors emitted = unbind(gather(x, 2, expand(spelled, {steps, n, states}).contiguous()), 0);
  const Tensor last_step = unsqueeze(clamp(input_lengths, 0, steps), 1);
  // alpha[s]: the logarithm of the probability of all paths that have spelled the target up to its state s.
  Tensor alpha = masked_fill(emitted[0], ge(place, 2), -kInfinity);
  for (std::int64_t t = 1; t < steps; ++t) {
    const Tensor skipped = masked_fill(moved(alpha, 2), no_skip, -kInfinity);
    const Tensor next = sum_of_logs({alpha, moved(alpha, 1), skipped}) + emitted[static_cast<std::size_t>(t)];
    alpha = where(gt(last_step, t), next, alpha);
  }
  // Paths end in the last label or in the blank after it; without steps they spell the empty target alone.
  const Tensor end = gather(alpha, 1, 2 * length);
  const Tensor label_end = masked_fill(gather(alpha, 1, clamp(2 * length - 1, 0, {})), eq(length, 0), -kInfinity);
  Tensor losses = neg(squeeze(sum_of_logs({end, label_end}), {1}));
  const Tensor no_steps = le(input_lengths, 0), no_labels = le(target_lengths, 0);
  losses = masked_fill(masked_fill(losses, no_steps, kInfinity), logical_and(no_steps, no_labels), 0);
  if (o.zero_infinity) losses = masked_fill(losses, eq(losses, kInfinity), 0);
  if (o.reduction == Reduction::mean) losses = losses / cast(clamp(target_lengths, 1, {}), losses.dtype());
  return finished(losses, log_probs, o.reduction);
}

}  // namespace levin
