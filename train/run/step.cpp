// One batch: moves it to the device, runs the module's step, and returns the result. The automatic step is in loop.cpp.
#include "levin/autograd.h"
#include "levin/ops.h"
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

// ---- Accumulation

void train::Window::add(const StepOutput& output) {
  const NoGrad off;
  weight = weight.defined() ? weight + output.weight() : output.weight();
}
Tensor train::Window::divisor() const {
  const NoGrad off;
  return weight + eq(weight, 0.0).to(DType::f64);
}
Tensor train::Window::share(const StepOutput& output) const {
  const Tensor& loss = output.loss();
  if (!loss.defined()) return loss;
  if (loss.numel() != 1)
    fail<ShapeError>("fit: the training step returned ", text(loss), ", expected the loss as one element");
  if (!weighs_exactly()) {
    const std::int64_t size = options_.accumulate_grad_batches;
    return size > 1 ? loss / static_cast<double>(size) : loss;
  }
  if (!output.weight().defined())
    fail<ConfigError>(
        "fit: accumulate_weighting is exact and training_step returned a loss without its weight; return "
        "StepOutput::sum(sum, weight), or use per_batch");
  return output.summed();
}

// ---- The batch

// A hook of the data module replaces that of the module. A hook that neither overrides is not called: precision.inputs
// does the same in place, and moving a Batch through a hook costs time in each step.
void Trainer::Run::to_device(TrainModule& module, Batch& batch, Device where, const train::StepCapture* recorded) {
  const ProfilerScope profiled(instruments.profiler(), "batch_to_device");
  DataModule* const data = borrowed.data_module;
  const DataOverrides& theirs = borrowed.data_overrides;
  const Overrides own = module.overrides();
  if (theirs.on_before_batch_transfer)
    batch = data->on_before_batch_transfer(std::move(batch));
  else if (own.on_before_batch_transfer)
    batch = module.on_before_batch_transfer(std::move(batch));
  if (theirs.transfer_batch_to_device)
    batch = data->transfer_batch_to_device(std::move(batch), where);
  else if (own.transfer_batch_to_device)
    batch = module.transfer_batch_to_device(std::move(batch), where);
  if (where.launches()) {
    const bool changes = theirs.on_after_batch_transfer || own.on_after_batch_transfer;
    transfer.move(batch, where, recorded && !changes ? recorded->inputs_of(batch) : nullptr);
  }
  precision.inputs(batch, where);
  if (theirs.on_after_batch_transfer)
    batch = data->on_after_batch_transfer(std::move(batch));
  else if (own.on_after_batch_transfer)
    batch = module.on_after_batch_transfer(std::move(batch));
}

StepInfo Trainer::Run::info(const Batch* batch) const {
  return {.epoch = progress.epoch,
          .batch_idx = progress.batches_done,
          .dataloader_idx = 0,
          .global_step = progress.global_step,
          .batch = batch,
          .loss = {},
          .outputs = {}};
}

// ---- The step

train::StepResult Trainer::Run::step(const StepInfo& at) {
  const Restore inside(in_training_step, true);
  window.batch_torn = true;
  instruments.times.enter(Phase::forward);
  return capture ? capture->step(*this, at) : step_now(at);
}

train::StepResult Trainer::Run::step_now(const StepInfo& at) {
  return borrowed.manual ? manual_step(at) : automatic_step(at);
}

StepOutput Trainer::Run::training_step(TrainModule& module, const Batch& batch, std::int64_t batch_idx) {
  const ProfilerScope profiled(instruments.profiler(), "training_step");
  const HookCalls::Inside in(hooks, train::hooks::training_step);
  return precision.run([&] { return module.training_step(batch, batch_idx); });
}

NamedTensors Trainer::Run::detached_outputs(const StepOutput& output) const {
  NamedTensors outputs;
  for (const auto& [name, t] : output.outputs()) {
    if (name != "loss") outputs.emplace_back(name, precision.output(t.detach()));
  }
  return outputs;
}

train::StepResult Trainer::Run::manual_step(const StepInfo& at) {
  strategy->begin_step();
  const StepOutput output = training_step(*borrowed.active, *at.batch, at.batch_idx);
  optimizers.move_scale(train::Optimizers::BatchEnds::no);
  train::StepResult result;
  if (output.loss().defined()) result.loss = precision.output(output.loss().detach());
  result.outputs = detached_outputs(output);
  return result;
}

void Trainer::Run::manual_backward(const Tensor& loss) {
  if (!borrowed.manual)
    fail<StateError>("manual_backward: the module optimizes automatically; let automatic_optimization() return false");
  if (!in_training_step) fail<StateError>("manual_backward: called outside of training_step");
  if (!loss.defined() || loss.numel() != 1)
    fail<ShapeError>("manual_backward: the loss is ", loss.defined() ? text(loss) : "undefined",
                     ", expected one element");
  const Autocast off = Autocast::off();  // backward is not run under it
  optimizers.move_scale(train::Optimizers::BatchEnds::no);
  const Tensor scaled = optimizers.scaled(loss);
  window.gradients_torn = true;
  const PhaseScope phase(instruments.times, Phase::backward);
  hooks.call(train::hooks::on_before_backward, scaled.detach());
  strategy->backward(scaled, optimizers.sync_grad);
  hooks.call(train::hooks::on_after_backward);
}

}  // namespace levin
