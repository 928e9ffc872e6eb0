#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run.h"

namespace levin {

// Reads top to bottom; runs eagerly. Gradients are cleared behind the forward pass, so that what the step before left
// can be looked at until then. The optimizer calls the closure: once, or as often as it likes (LBFGS).
Tensor Trainer::Run::step(const StepInfo& info) {
  const Tensor first = optimizer->step([&] {
    const Tensor loss = active->training_step(*info.batch, info.batch_idx);
    if (!loss.defined() || loss.numel() != 1)
      fail<ShapeError>("fit: the training step returned ", loss.defined() ? text(loss) : "an undefined tensor",
                       ", expected the loss as one element");
    call(&Hooks::on_before_zero_grad, *optimizer);
    optimizer->zero_grad();
    call(&Hooks::on_before_backward, loss.detach());
    backward(loss);
    call(&Hooks::on_after_backward);
    call(&Hooks::on_before_optimizer_step, *optimizer);
    clip_gradients();
    return loss;
  });
  ++global_step;
  return first.detach();
}

void Trainer::Run::clip_gradients() {
  const double limit = options.gradient_clip_val.value_or(0);
  if (limit <= 0) return;
  if (options.gradient_clip_algorithm.value_or(ClipAlgorithm::norm) == ClipAlgorithm::norm) {
    optim::clip_grad_norm_(optimizer->parameters(), limit);
  } else {
    optim::clip_grad_value_(optimizer->parameters(), limit);
  }
}

void Trainer::Run::advance_schedulers(SchedulerConfig::Interval interval) {
  const std::int64_t count = interval == SchedulerConfig::Interval::step ? global_step : epoch + 1;
  for (const SchedulerConfig& s : schedulers) {
    if (s.interval == interval && count % s.frequency == 0) s.scheduler->step();
  }
}

}  // namespace levin
