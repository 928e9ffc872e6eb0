#include "train/capture.h"

#include <algorithm>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/warning.h"
#include "train/run.h"

namespace levin::train {
namespace {

// Parameters and buffers of the run: what a step may write besides tensors that it makes.
Tensors state_of(const Trainer::Run& run) {
  Tensors all;
  if (run.tree) {
    for (const auto& [name, t] : run.tree->state_dict()) all.push_back(t);
  }
  for (const ParamRef& p : run.optimizer->model_parameters()) all.push_back(p.value->detach());
  for (const ParamRef& p : run.optimizer->parameters()) all.push_back(p.value->detach());  // masters
  return all;
}

}  // namespace

StepCapture::StepCapture(Device device) : device_(device) {
  records_.reserve(kShapes);
  if (!device.launches()) prevent("the parameters are on " + text(device) + ", which records no work");
}

void StepCapture::prevent(const std::string& why) {
  if (prevented_by_.empty()) prevented_by_ = why;
}

void StepCapture::prevent_by_hook(const char* hook, const Hooks& whose) {
  const auto* module = dynamic_cast<const nn::Module*>(&whose);
  prevent(std::string(module ? "the module's " : "a callback's ") + hook +
          " is overridden and runs inside of the step");
}

StepCapture::Record* StepCapture::find(const Batch& batch) {
  const auto same = [&](const Record& r) {
    return r.shapes.size() == batch.fields.size() &&
           std::equal(batch.fields.begin(), batch.fields.end(), r.shapes.begin(),
                      [](const Tensor& t, const Shape& s) { return t.shape() == s; }) &&
           std::equal(batch.fields.begin(), batch.fields.end(), r.dtypes.begin(),
                      [](const Tensor& t, DType d) { return t.dtype() == d; });
  };
  const auto it = std::find_if(records_.begin(), records_.end(), same);
  if (it != records_.end()) return &*it;
  if (records_.size() == kShapes) return nullptr;
  Record& made = records_.emplace_back();
  for (const Tensor& t : batch.fields) {
    made.shapes.push_back(t.shape());
    made.dtypes.push_back(t.dtype());
  }
  return &made;
}

Batch StepCapture::admit(Batch batch) {
  if (!prevented_by_.empty()) return batch;
  Record* const record = find(batch);
  if (!record || !record->graph) return batch;
  const NoGrad off;
  for (std::size_t i = 0; i < batch.fields.size(); ++i) copy_(record->inputs[i], batch.fields[i]);
  batch.fields = record->inputs;
  return batch;
}

Tensor StepCapture::step(Trainer::Run& run, const StepInfo& info) {
  if (prevented_by_.empty()) {
    Record* const found = find(*info.batch);
    if (found && found->graph) return replay(run, *found);
    const bool first =
        std::none_of(records_.begin(), records_.end(), [](const Record& r) { return r.graph.has_value(); });
    if (found && found->trained++ >= (first ? kWarmUp : 1) && record(run, info, *found)) return replay(run, *found);
  }
  if (!prevented_by_.empty() && !told_) {
    told_ = true;
    run.capture_report.prevented_by = prevented_by_;
    warn("W-TRAIN-CAPTURE", WarningCategory::user, "fit: the step is not captured and runs op by op: " + prevented_by_);
  }
  return run.step_now(info);
}

bool StepCapture::record(Trainer::Run& run, const StepInfo& info, Record& to) {
  Batch batch = *info.batch;
  for (Tensor& t : batch.fields) t = t.clone();
  StepInfo at = info;
  at.batch = &batch;
  const Tensors state = state_of(run);
  std::vector<std::uint32_t> versions;
  for (const Tensor& t : state) versions.push_back(t.version());
  run.optimizer->prepare_replay();
  run.train_log.begin_recording(device_);
  try {
    to.graph.emplace(Stream::current(device_), [&] { to.loss = run.step_now(at); });
  } catch (const CaptureError& e) { prevent(e.what()); } catch (...) {
    (void)run.train_log.end_recording();
    throw;
  }
  to.logged = run.train_log.end_recording();
  if (!to.graph) {
    run.optimizer->zero_grad();  // they may lie in memory of the record that was given up
    return false;
  }
  to.inputs = batch.fields;
  for (const ParamRef& p : run.optimizer->parameters()) to.gradients.push_back(p.value->grad());
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (state[i].version() != versions[i]) to.written.push_back(state[i].get().storage);
  }
  newest_ = &to;
  ++run.capture_report.recorded;
  return true;
}

Tensor StepCapture::replay(Trainer::Run& run, Record& record) {
  run.optimizer->prepare_replay();
  record.graph->replay();
  ++run.capture_report.replayed;
  run.train_log.replayed(record.logged);
  for (const auto& storage : record.written) storage->wrote("a replayed step");
  if (newest_ != &record) {
    newest_ = &record;
    const std::vector<ParamRef> parameters = run.optimizer->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].value->set_grad(record.gradients[i]);
  }
  return record.loss;
}

}  // namespace levin::train
