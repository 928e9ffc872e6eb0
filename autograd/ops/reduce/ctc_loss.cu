// Connectionist temporal classification. Source: Graves et al., "Connectionist Temporal Classification", 2006,
// equations 6 to 16, in logarithms. 16-bit numbers are widened to f32 first.
#include <algorithm>
#include <array>
#include <limits>

#include "autograd/op_table.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/reduce/ctc_paths.cuh"
#include "levin/autograd.h"
#include "levin/extend.h"
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

// ---- The sums over paths, of log_p [T, N, 2 S + 1], the logarithms of a text's probabilities at each step

// x moved `by` columns to the right along its last dimension, with -inf in front.
Tensor moved(const Tensor& x, std::int64_t by) { return narrow(pad(x, {by, 0}, -kInfinity), -1, 0, x.size(-1)); }
Tensor sum_of_logs(std::initializer_list<Tensor> x) { return logsumexp(stack(x, -1), {-1}); }

// The composite twin, in public ops.
Tensor twin(const Tensor& log_p, const Tensor& spelled, const Tensor& input_lengths, const Tensor& target_lengths) {
  const Device device = log_p.device();
  const std::int64_t steps = log_p.size(0), n = log_p.size(1), states = log_p.size(2);
  const Tensor length = unsqueeze(clamp(target_lengths, 0, states / 2), 1);  // [N, 1]
  const Tensor last_step = unsqueeze(clamp(input_lengths, 0, steps), 1);
  // A path may pass over a blank between unequal labels.
  Tensor no_skip = ones({n, std::min<std::int64_t>(states, 2)}, device, DType::b8);
  if (states > 2) no_skip = cat({no_skip, eq(narrow(spelled, 1, 2, states - 2), narrow(spelled, 1, 0, states - 2))}, 1);
  const Tensors emitted = unbind(log_p, 0);
  // alpha[s]: the logarithm of the probability of all paths that have spelled the target up to its state s.
  Tensor alpha = masked_fill(emitted[0], ge(arange(states, device), 2), -kInfinity);
  for (std::int64_t t = 1; t < steps; ++t) {
    const Tensor skipped = masked_fill(moved(alpha, 2), no_skip, -kInfinity);
    const Tensor next = sum_of_logs({alpha, moved(alpha, 1), skipped}) + emitted[static_cast<std::size_t>(t)];
    alpha = where(gt(last_step, t), next, alpha);
  }
  // Paths end in the last label or in the blank after it; without steps they spell the empty target alone.
  const Tensor end = gather(alpha, 1, 2 * length);
  const Tensor label_end = masked_fill(gather(alpha, 1, clamp(2 * length - 1, 0, {})), eq(length, 0), -kInfinity);
  const Tensor losses = neg(squeeze(sum_of_logs({end, label_end}), {1}));
  const Tensor no_steps = le(input_lengths, 0), no_labels = le(target_lengths, 0);
  return masked_fill(masked_fill(losses, no_steps, kInfinity), logical_and(no_steps, no_labels), 0);
}

// What the kernels read of a batch of texts.
struct Texts {
  SavedInput spelled{}, input_lengths{}, target_lengths{};

  void save(const Tensor& spelled_, const Tensor& inputs, const Tensor& targets) {
    spelled = spelled_.contiguous(), input_lengths = inputs.contiguous(), target_lengths = targets.contiguous();
  }
  [[nodiscard]] kernels::CtcTexts of(const Tensor& log_p) const {
    return {.spelled = ptr<const std::int64_t>(spelled.get()),
            .input_lengths = ptr<const std::int64_t>(input_lengths.get()),
            .target_lengths = ptr<const std::int64_t>(target_lengths.get()),
            .steps = log_p.size(0),
            .texts = log_p.size(1),
            .states = log_p.size(2)};
  }
};

struct CtcPathsBackward {
  static constexpr OpInfo info{.name = "ctc_paths_backward"};
  Stash alpha, losses;
  Texts texts{};
  SavedInput gy{}, log_p{};

  Tensor forward(const Tensor& gy_, const Tensor& log_p_, const Tensor& spelled, const Tensor& input_lengths,
                 const Tensor& target_lengths) {
    gy = gy_, log_p = log_p_;
    texts.save(spelled, input_lengths, target_lengths);
    const Tensor g = gy_.contiguous(), x = log_p_.contiguous(), gx = empty_like(x);
    dispatch(info, x, kWideFloats, [&]<class T>(const auto& on, T) {
      if (gx.numel() == 0) return;
      const kernels::CtcTexts of = texts.of(x);
      const Tensor room = x.device().launches() ? empty({2, of.texts, of.states}, x.device(), x.dtype()) : Tensor();
      kernels::ctc_paths_backward(on, ptr<const T>(g), ptr<const T>(x), of, ptr<const T>(alpha), ptr<const T>(losses),
                                  ptr_or_null<T>(room), ptr<T>(gx));
    });
    return gx;
  }
  Grads<5> backward(const Tensor& ggx, NeedMask need) {
    const Tensor spelled = texts.spelled.get(), inputs = texts.input_lengths.get();
    const Tensor targets = texts.target_lengths.get();
    const auto reference = [&](const std::array<Tensor, 2>& in) {
      return vjp<1>([&](const auto& of) { return twin(of[0], spelled, inputs, targets); }, {in[1]}, std::array{in[0]},
                    NeedMask(1));
    };
    auto [g_gy, g_log_p] = vjp<2>(reference, {gy.get(), log_p.get()}, std::array{ggx}, need);
    return {g_gy, g_log_p};
  }
};
LEVIN_OP_TABLE(CtcPathsBackward)

struct CtcPaths {
  static constexpr OpInfo info{.name = "ctc_paths"};
  Texts texts{};
  SavedInput log_p{};
  Stash alpha{}, losses{};

  Tensor forward(const Tensor& log_p_, const Tensor& spelled, const Tensor& input_lengths,
                 const Tensor& target_lengths) {
    log_p = log_p_;
    texts.save(spelled, input_lengths, target_lengths);
    const Tensor x = log_p_.contiguous(), y = empty({x.size(1)}, x.device(), x.dtype());
    alpha = empty_like(x), losses = y.detach();
    dispatch(info, x, kWideFloats, [&]<class T>(const auto& on, T) {
      if (y.numel() > 0) kernels::ctc_paths(on, ptr<const T>(x), texts.of(x), ptr<T>(alpha), ptr<T>(y));
    });
    return y;
  }
  Grads<4> backward(const Tensor& gy, Need<4>) {
    return {apply(CtcPathsBackward{alpha, losses}, gy, log_p.get(), texts.spelled.get(), texts.input_lengths.get(),
                  texts.target_lengths.get())};
  }
};
LEVIN_OP_TABLE(CtcPaths)

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

  // The target with a blank around each label, [N, 2 S + 1].
  const Tensor blanks = full({n, longest}, o.blank, device, DType::i64);
  const Tensor spelled = cat({flatten(stack({blanks, labels}, -1), 1), full({n, 1}, o.blank, device, DType::i64)}, 1);
  const Tensor at = expand(spelled, {steps, n, spelled.size(1)}).contiguous();
  Tensor losses = apply(CtcPaths{}, gather(widened(log_probs), 2, at), spelled, input_lengths, target_lengths);
  if (o.zero_infinity) losses = masked_fill(losses, eq(losses, kInfinity), 0);
  if (o.reduction == Reduction::mean) losses = losses / cast(clamp(target_lengths, 1, {}), losses.dtype());
  return finished(losses, log_probs, o.reduction);
}

}  // namespace levin
