#include "train/optimize/capture.h"

#include <algorithm>
#include <numeric>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/warning.h"
#include "train/run/run.h"

namespace levin::train {
namespace {

// The model's parameters, and their masters if the optimizer has some.
std::vector<ParamRef> with_masters(const Trainer::Run& run) {
  std::vector<ParamRef> all = run.optimizers.front().model_parameters();
  for (ParamRef& p : run.optimizers.front().parameters()) all.push_back(std::move(p));
  return all;
}
// Parameters and buffers of the run: the tensors that a step may write, besides those that it makes.
Tensors state_of(const Trainer::Run& run) {
  Tensors all;
  if (run.borrowed.tree) {
    for (const auto& [name, t] : run.borrowed.tree->state_dict()) all.push_back(t);
  }
  for (const ParamRef& p : with_masters(run)) all.push_back(p.value->detach());
  return all;
}

// The dimensions from the outermost in memory to the innermost.
std::vector<std::int64_t> order_of(const Tensor& t) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(t.rank()));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return t.strides()[static_cast<int>(a)] > t.strides()[static_cast<int>(b)];
  });
  return order;
}
// The strides of a copy that keeps the layout: those of t where they are a permutation of row-major ones, else
// row-major.
Strides kept_layout(const Tensor& t) {
  if (!t.is_contiguous() && permute(t.detach(), Dims(std::span<const std::int64_t>(order_of(t)))).is_contiguous())
    return t.strides();
  return contiguous_strides(t.shape());
}
// A copy in new memory, in the layout of kept_layout.
Tensor copy_in_layout(const Tensor& t) {
  const std::vector<std::int64_t> order = order_of(t);
  const Tensor in_order = permute(t, Dims(std::span<const std::int64_t>(order)));
  if (t.is_contiguous() || !in_order.is_contiguous()) return t.clone();
  std::vector<std::int64_t> back(order.size());
  for (std::size_t d = 0; d < order.size(); ++d)
    back[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
  return permute(in_order.clone(), Dims(std::span<const std::int64_t>(back)));
}

}  // namespace

StepCapture::StepCapture(const Trainer::Run& run) : device_(run.device) {
  records_.reserve(kShapes);
  const Overrides& has = run.borrowed.overrides;
  if (!device_.launches())
    prevent("the parameters are on " + text(device_) + ", which records no work");
  else if (const std::string why = run.strategy->prevents_capture(); !why.empty())
    prevent(why);
  else if (run.borrowed.manual)
    prevent("the module optimizes manually");
  else if (run.options.accumulate_grad_batches > 1)
    prevent("accumulate_grad_batches is " + text(run.options.accumulate_grad_batches) +
            ", and a record is one whole step");
  else if (!run.optimizers.front().reads_device_numbers())
    prevent(run.optimizers.front().type_name() + " does not say that its steps can be replayed (reads_device_numbers)");
  else if (run.window.weighs_exactly())
    prevent("accumulate_weighting is exact, and a record would keep a weight that the host told");
  else if (has.optimizer_step || has.optimizer_zero_grad || has.configure_gradient_clipping)
    prevent(std::string("the module's ") +
            (has.optimizer_step        ? "optimizer_step"
             : has.optimizer_zero_grad ? "optimizer_zero_grad"
                                       : "configure_gradient_clipping") +
            " is overridden and runs inside of the step");
}

void StepCapture::prevent(const std::string& why) {
  if (prevented_by_.empty()) prevented_by_ = why;
}

void StepCapture::prevent_by_hook(const char* hook, const Hooks& whose) {
  const auto* module = dynamic_cast<const nn::Module*>(&whose);
  prevent(std::string(module ? "the module's " : "a callback's ") + hook +
          " is overridden and runs inside of the step");
}

bool StepCapture::Record::fits(const Batch& batch) const {
  return samples == batch.size() && shapes.size() == batch.fields.size() &&
         std::equal(batch.fields.begin(), batch.fields.end(), shapes.begin(),
                    [](const Tensor& t, const Shape& s) { return t.defined() && t.shape() == s; }) &&
         std::equal(batch.fields.begin(), batch.fields.end(), dtypes.begin(),
                    [](const Tensor& t, DType d) { return t.dtype() == d; });
}
bool StepCapture::Record::laid_out(const Batch& batch) const {
  return std::equal(batch.fields.begin(), batch.fields.end(), layouts.begin(), [](const Tensor& t, const Strides& s) {
    const Strides now = kept_layout(t);
    return std::equal(now.steps.begin(), now.steps.begin() + t.rank(), s.steps.begin());
  });
}
const Tensors* StepCapture::inputs_of(const Batch& batch) const {
  if (!prevented_by_.empty()) return nullptr;
  const auto there = [](const Tensor& t) { return t.defined() && t.device().is_cpu() && !t.requires_grad(); };
  // A field that travels keeps its memory format.
  const auto takes = [](const Tensor& input, const Tensor& field) {
    return input.is_contiguous(field.suggest_memory_format());
  };
  const auto it = std::find_if(records_.begin(), records_.end(), [&](const Record& r) {
    return r.graph && r.fits(batch) && std::all_of(batch.fields.begin(), batch.fields.end(), there) &&
           std::equal(r.inputs.begin(), r.inputs.end(), batch.fields.begin(), takes);
  });
  return it == records_.end() ? nullptr : &it->inputs;
}

StepCapture::Record* StepCapture::find(const Batch& batch) {
  const auto it = std::find_if(records_.begin(), records_.end(),
                               [&](const Record& r) { return r.fits(batch) && r.laid_out(batch); });
  if (it != records_.end()) return &*it;
  if (std::any_of(batch.fields.begin(), batch.fields.end(), [](const Tensor& t) { return !t.defined(); })) {
    prevent("a field of the batch is undefined");
    return nullptr;
  }
  if (records_.size() == kShapes) {
    prevented_by_shapes_ = true;
    return nullptr;
  }
  Record& made = records_.emplace_back();
  made.samples = batch.size();
  for (const Tensor& t : batch.fields) {
    made.shapes.push_back(t.shape());
    made.layouts.push_back(kept_layout(t));
    made.dtypes.push_back(t.dtype());
  }
  return &made;
}

void StepCapture::admit(Batch& batch) {
  if (!prevented_by_.empty()) return;
  Record* const record = find(batch);
  if (!record || !record->graph) return;
  const NoGrad off;
  for (std::size_t i = 0; i < batch.fields.size(); ++i) {
    if (!batch.fields[i].shares_storage(record->inputs[i])) copy_(record->inputs[i], batch.fields[i]);
  }
  batch.fields = record->inputs;
}

bool StepCapture::changed(Trainer::Run& run) {
  if (modules_.empty() && run.borrowed.tree)
    run.borrowed.tree->visit([&](const std::string&, const nn::Module& m) { modules_.push_back(&m); });
  now_.layout = run.optimizers.front().layout();
  now_.clip = run.options.gradient_clip_val.value_or(0);
  now_.algorithm = run.options.gradient_clip_algorithm.value_or(ClipAlgorithm::norm);
  now_.flags.clear();
  for (int g = 0; g < run.optimizers.front().groups(); ++g) {
    for (const ParamRef& p : run.optimizers.front().parameters(g)) now_.flags.push_back(p.value->requires_grad());
  }
  for (const nn::Module* m : modules_) now_.flags.push_back(m->is_training());
  if (now_ == stamp_) return false;
  std::swap(now_, stamp_);
  return true;
}

void StepCapture::tell(Trainer::Run& run) {
  if (told_ || (prevented_by_.empty() && !prevented_by_shapes_)) return;
  told_ = true;
  const std::string& why = run.capture_report.prevented_by =
      prevented_by_.empty() ? "batches have more than " + text(kShapes) + " shapes" : prevented_by_;
  warn("W-TRAIN-CAPTURE", WarningCategory::user,
       (prevented_by_.empty() ? "fit: some steps are not captured and run op by op: "
                              : "fit: the step is not captured and runs op by op: ") +
           why);
}

StepResult StepCapture::step(Trainer::Run& run, const StepInfo& info) {
  if (run.options.accumulate_grad_batches > 1) prevent("gradients are accumulated over several batches");
  if (prevented_by_.empty()) {
    if (changed(run)) records_.clear();
    Record* const found = find(*info.batch);
    if (found && found->graph) return replay(run, *found);
    if (found && found->trained++ >= (recorded_ ? 1 : kWarmUp) && record(run, info, *found)) return replay(run, *found);
  }
  newest_ = nullptr;  // the gradients are those of this step
  const StepResult result = run.step_now(info);
  tell(run);
  return result;
}

bool StepCapture::record(Trainer::Run& run, const StepInfo& info, Record& to) {
  Batch batch = *info.batch;
  for (Tensor& t : batch.fields) t = copy_in_layout(t);
  StepInfo at = info;
  at.batch = &batch;
  const Tensors state = state_of(run);
  std::vector<std::uint32_t> versions;
  for (const Tensor& t : state) versions.push_back(t.version());
  run.optimizers.front().prepare_replay();
  run.logs.train.begin_recording(device_);
  try {
    to.graph.emplace(Stream::current(device_), [&] { to.result = run.step_now(at); });
  } catch (const CaptureError& e) { prevent(e.what()); } catch (const OutOfMemoryError& e) {
    prevent(e.what());
    records_.clear();
    (void)run.logs.train.end_recording();
    run.optimizers.front().zero_grad();
    return false;
  } catch (...) {
    (void)run.logs.train.end_recording();
    run.optimizers.front().zero_grad();  // gradients may lie in memory of the failed record
    throw;
  }
  to.logged = run.logs.train.end_recording();
  if (!to.graph) {
    run.optimizers.front().zero_grad();
    return false;
  }
  recorded_ = true;
  to.inputs = batch.fields;
  for (const ParamRef& p : with_masters(run)) {
    to.rows.push_back(row_grad(*p.value));
    to.gradients.push_back(to.rows.back().rows.defined() ? Tensor() : p.value->grad());
  }
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (state[i].version() != versions[i]) to.written.push_back(state[i].get().storage);
  }
  newest_ = &to;
  ++run.capture_report.recorded;
  return true;
}

StepResult StepCapture::replay(Trainer::Run& run, Record& record) {
  run.optimizers.front().prepare_replay();
  record.graph->replay();
  ++run.capture_report.replayed;
  run.logs.train.replayed(record.logged);
  for (const auto& storage : record.written) storage->wrote("a replayed step");
  if (newest_ != &record) {
    newest_ = &record;
    const std::vector<ParamRef> parameters = with_masters(run);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Tensor& parameter = *parameters[i].value;
      if (record.rows[i].rows.defined())
        set_row_grad(parameter, record.rows[i]);
      else if (record.gradients[i].defined() || has_grad(parameter))
        parameter.set_grad(record.gradients[i]);
    }
  }
  return record.result;
}

}  // namespace levin::train
