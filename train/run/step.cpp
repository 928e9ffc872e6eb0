// One batch: forward, backward, and where a window of accumulation closes the optimizer's step.
#include <algorithm>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/callbacks/monitored.h"
#include "train/run/run.h"

namespace levin {

using train::Restore;

StepOutput::StepOutput(NamedTensors outputs) : outputs_(std::move(outputs)) {
  for (const auto& [name, t] : outputs_) {
    if (name == "loss") loss_ = t;
  }
  if (!loss_.defined())
    fail<ConfigError>("training_step: ", outputs_.size(),
                      " outputs without a \"loss\"; name one so, or return {} for a batch that gives no gradient");
}

StepOutput StepOutput::sum(const Tensor& sum, const Tensor& weight) {
  if (sum.numel() != 1 || weight.numel() != 1)
    fail<ShapeError>("StepOutput: the sum is ", text(sum), " and its weight ", text(weight),
                     ", expected one element each");
  if (sum.device() != weight.device())
    fail<DeviceError>("StepOutput: the sum is on ", sum.device(), " and its weight on ", weight.device(),
                      "; move the weight with to(device)");
  StepOutput output;
  output.sum_ = sum;
  {
    const NoGrad off;
    output.weight_ = reshape(weight, Dims(std::initializer_list<std::int64_t>{})).to(DType::f64).clone();
  }
  output.loss_ = sum / output.weight_.to(sum.dtype());
  return output;
}
StepOutput StepOutput::sum(const Tensor& sum, double weight) {
  return StepOutput::sum(sum, full({}, weight, sum.device(), DType::f64));
}

void Trainer::Run::weigh(const StepOutput& output) {
  const NoGrad off;
  window_weight = window_weight.defined() ? window_weight + output.weight() : output.weight();
}
Tensor Trainer::Run::window_divisor() const {
  const NoGrad off;
  return window_weight + eq(window_weight, 0.0).to(DType::f64);
}

Batch train::move_batch(Batch batch, Device device) {
  for (Tensor& t : batch.fields) {
    if (t.defined() && t.device() != device) t = t.to(device, device.launches() ? NonBlocking::yes : NonBlocking::no);
  }
  return batch;
}

train::StepResult Trainer::Run::step(const StepInfo& info) {
  const Restore inside(in_training_step, true);
  batch_torn = true;
  times.enter(Phase::forward);
  return capture ? capture->step(*this, info) : step_now(info);
}

train::StepResult Trainer::Run::step_now(const StepInfo& info) {
  return manual ? manual_step(info) : automatic_step(info);
}

namespace {

// What a batch adds to the loss of its window: with exact weighting a sum, which the window's weight divides in the end.
Tensor sum_of(const StepOutput& output) {
  if (!output.weight().defined())
    fail<ConfigError>(
        "fit: accumulate_weighting is exact and training_step returned a loss without its weight; return "
        "StepOutput::sum(sum, weight), or use per_batch");
  return output.summed();
}
Tensor share_of(const StepOutput& output, std::int64_t window) {
  return window > 1 && output.loss().defined() ? output.loss() / static_cast<double>(window) : output.loss();
}

}  // namespace

// Reads top to bottom. Gradients are cleared behind the forward pass of a window's first batch, so that what the step before left
// can be looked at until then. The optimizer calls the closure: once, or as often as it likes (LBFGS). With a loss scale a step
// whose gradients are not finite is skipped on the device; the host does not know.
train::StepResult Trainer::Run::automatic_step(const StepInfo& info) {
  const bool opens = window_opens(), closes = window_closes();
  if (opens) forget_scaling();  // what an exception left open
  train::StepResult result;
  bool ran = false;
  const Function<Tensor()> closure = [&] {
    ran = true;
    times.enter(Phase::forward);
    const StepOutput output = training_step(info);
    if (output.loss().defined() && output.loss().numel() != 1)
      fail<ShapeError>("fit: the training step returned ", text(output.loss()), ", expected the loss as one element");
    const bool exact = weighs_exactly() && output.loss().defined();
    const Tensor loss = exact ? sum_of(output) : share_of(output, options.accumulate_grad_batches);
    if (opens) {
      window_weight = Tensor();
      call(train::hooks::on_before_zero_grad, optimizer());
      active->optimizer_zero_grad(info.epoch, info.batch_idx, optimizer());
    }
    result = {};
    if (!loss.defined()) {
      warn("W-TRAIN-NO-LOSS", WarningCategory::user,
           "fit: training_step returned nothing; such batches add no gradient");
      return Tensor();
    }
    const Tensor scaled = scaler() ? loss.to(DType::f32) * scaler()->scale(loss.device()) : loss;
    detail::detach_into(seen_loss, precision.output(exact ? output.loss() : loss));
    times.enter(Phase::backward);
    gradients_torn = true;
    call(train::hooks::on_before_backward, scaler() || exact ? scaled.detach() : seen_loss);
    {
      const ProfilerScope profiled(options.profiler.get(), "backward");
      backward(scaled);
    }
    call(train::hooks::on_after_backward);
    if (exact) weigh(output);
    result.loss = seen_loss;
    for (const auto& [name, t] : output.outputs()) {
      if (name != "loss") result.outputs.emplace_back(name, precision.output(t.detach()));
    }
    times.enter(Phase::optimizer);
    return exact ? output.loss() : loss;
  };
  if (!closes) {
    (void)closure();
    return result;
  }
  const ProfilerScope profiled(options.profiler.get(), "optimizer_step");
  active->optimizer_step(info.epoch, info.batch_idx, handles.front(), closure);
  if (!ran)
    fail<StateError>(
        "fit: the module's optimizer_step did not run the closure, which holds forward and backward; call it, or "
        "optimizer.step(closure)");
  return result;
}

StepOutput Trainer::Run::training_step(const StepInfo& info) {
  const ProfilerScope profiled(options.profiler.get(), "training_step");
  const InHook in(*this, train::hooks::training_step);
  return precision.run([&] { return active->training_step(*info.batch, info.batch_idx); });
}

train::StepResult Trainer::Run::manual_step(const StepInfo& info) {
  const StepOutput output = training_step(info);
  train::StepResult result;
  if (output.loss().defined()) result.loss = precision.output(output.loss().detach());
  for (const auto& [name, t] : output.outputs()) {
    if (name != "loss") result.outputs.emplace_back(name, precision.output(t.detach()));
  }
  return result;
}

void Trainer::Run::advance_schedulers(SchedulerConfig::Interval interval) {
  const std::int64_t count = interval == SchedulerConfig::Interval::step ? global_step : epoch + 1;
  for (const SchedulerConfig& s : schedulers) {
    if (!s.scheduler->needs_metric() && s.interval == interval && count % s.frequency == 0) s.scheduler->step();
  }
}

void Trainer::Run::advance_plateaus(SchedulerConfig::Interval interval) {
  if (manual) return;
  const std::int64_t count = interval == SchedulerConfig::Interval::step ? global_step : epoch + 1;
  for (const SchedulerConfig& s : schedulers) {
    if (!s.scheduler->needs_metric() || s.interval != interval || count % s.frequency != 0) continue;
    const Metrics known = trainer.callback_metrics();
    if (const std::optional<double> value = train::metric(known, s.monitor)) {
      s.scheduler->step(*value);
      continue;
    }
    const std::string what = "fit: a plateau schedule monitors \"" + s.monitor +
                             "\", which was not logged; known are: " + train::names_of(known);
    if (s.strict) fail<ConfigError>(what, "; log it, or set strict = false");
    warn("W-TRAIN-PLATEAU", WarningCategory::runtime, what + "; the learning rate stays");
  }
}

}  // namespace levin
