#include <algorithm>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run.h"

namespace levin {

Batch Trainer::Run::to_device(const Batch& batch) {
  Batch moved = precision.inputs(batch, device);
  return capture ? capture->admit(std::move(moved)) : moved;
}

Tensor Trainer::Run::step(const StepInfo& info) {
  const Tensor loss = capture ? capture->step(*this, info) : step_now(info);
  ++global_step;
  return loss;
}

// Reads top to bottom. Gradients are cleared behind the forward pass, so that what the step before left can be looked at until
// then. The optimizer calls the closure: once, or as often as it likes (LBFGS). With a loss scale a step whose gradients are
// not finite is skipped on the device; the host does not know.
Tensor Trainer::Run::step_now(const StepInfo& info) {
  optim::GradScaler* const scaler = precision.scaler() && precision.scaler()->enabled() ? precision.scaler() : nullptr;
  if (scaler) scaler->forget();  // what an exception left open
  const auto closure = [&] {
    const Tensor loss = precision.run([&] { return active->training_step(*info.batch, info.batch_idx); });
    if (!loss.defined() || loss.numel() != 1)
      fail<ShapeError>("fit: the training step returned ", loss.defined() ? text(loss) : "an undefined tensor",
                       ", expected the loss as one element");
    call_in_step("on_before_zero_grad", &Hooks::on_before_zero_grad, *optimizer);
    optimizer->zero_grad();
    const Tensor scaled = scaler ? loss.to(DType::f32) * scaler->scale(loss.device()) : loss;
    call_in_step("on_before_backward", &Hooks::on_before_backward, scaled.detach());
    backward(scaled);
    call_in_step("on_after_backward", &Hooks::on_after_backward);
    if (scaler)
      scaler->unscale_(*optimizer);
    else
      optimizer->gather_gradients();
    const bool touched = call_in_step("on_before_optimizer_step", &Hooks::on_before_optimizer_step, *optimizer);
    clip_gradients(touched ? nullptr : scaler);
    return loss;
  };
  if (!scaler) return optimizer->step(closure).detach();
  const Tensor loss = closure();
  scaler->step(*optimizer);
  scaler->update();
  trainer.log("amp/skipped_steps", scaler->skipped(), {.on_step = true, .on_epoch = false});
  return loss.detach();
}

void Trainer::Run::clip_gradients(const optim::GradScaler* knows_norm) {
  const double limit = options.gradient_clip_val.value_or(0);
  if (limit <= 0) return;
  if (options.gradient_clip_algorithm.value_or(ClipAlgorithm::norm) == ClipAlgorithm::norm) {
    const optim::Parameters parameters = optimizer->parameters();
    const bool any =
        std::any_of(parameters.begin(), parameters.end(), [](const ParamRef& p) { return p.value->grad().defined(); });
    if (!any) return;
    if (knows_norm)
      optim::clip_grads_with_norm_(parameters, limit, knows_norm->grad_norm(*optimizer));
    else
      optim::clip_grad_norm_(parameters, limit);
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
