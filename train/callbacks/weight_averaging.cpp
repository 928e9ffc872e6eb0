#include <algorithm>

#include "levin/train.h"
#include "levin/train/averaging.h"
#include "train/callbacks/state.h"
#include "train/run/run.h"

namespace levin {
namespace {

const std::string kAverage = "averaging_state.", kModule = "averaging_state.module.", kLive = "current_model_state.";
const std::string kLatest = "latest_update_step";
constexpr std::int64_t kUnknown = -1;  // until the counters of the file are the run's

}  // namespace

WeightAveraging::WeightAveraging(WeightAveragingOptions options)
    : options_(std::make_shared<const AveragedModelOptions>(
          AveragedModelOptions{.device = options.device,
                               .avg_fn = std::move(options.avg_fn),
                               .multi_avg_fn = std::move(options.multi_avg_fn),
                               .use_buffers = options.use_buffers})) {}
WeightAveraging::~WeightAveraging() = default;

bool WeightAveraging::should_update(std::optional<std::int64_t> step_idx, std::optional<std::int64_t>) {
  return step_idx.has_value();
}

void WeightAveraging::setup(Stage stage) {
  if (stage != Stage::fit) return;
  (void)train::module_to_average("WeightAveraging", trainer());
  average_.reset();
  latest_update_step_ = asked_step_ = trainer().global_step();
  fitting_ = true;
  finished_ = false;
  if (Trainer::Run::of(trainer()).borrowed.overrides.configure_model)
    warn("W-TRAIN-AVERAGE-MODEL", WarningCategory::possible_user,
         "WeightAveraging: the module overrides configure_model, and a whole second copy of its weights is kept beside "
         "it, which needs as much memory");
}
// Called when the module is as it is trained: its setup comes after this callback's, and then the precision converts
// it.
void WeightAveraging::begin() {
  if (!average_) average_ = std::make_unique<AveragedModel>(*trainer().module(), options_);
}
void WeightAveraging::on_fit_start() {
  begin();
  if (latest_update_step_ == kUnknown) latest_update_step_ = asked_step_ = trainer().global_step();
}
void WeightAveraging::teardown(Stage stage) {
  if (stage == Stage::fit) fitting_ = false;
}

void WeightAveraging::on_train_batch_end(const StepInfo& info) {
  if (info.global_step <= std::max(latest_update_step_, asked_step_)) return;  // inside an accumulation window
  asked_step_ = info.global_step;
  if (!should_update(info.global_step - 1, {})) return;
  average_->update(*trainer().module());
  latest_update_step_ = info.global_step;
}
void WeightAveraging::on_train_epoch_end() {
  if (!trainer().epoch_is_cut()) update_of_epoch();
}
void WeightAveraging::update_of_epoch() {
  if (should_update({}, trainer().current_epoch())) average_->update(*trainer().module());
}

void WeightAveraging::on_validation_epoch_start() {
  if (trainer().nested_evaluation()) return;  // the average is in place already
  if (!fitting_ || finished_ || !average_ || average_->n_averaged() == 0) return;
  swapped_.reset(new AveragedModel::Swap(average_->swap_into(*trainer().module())));
}
void WeightAveraging::on_validation_epoch_end() {
  if (!trainer().nested_evaluation()) swapped_.reset();
}
void WeightAveraging::on_exception(const std::exception&) { swapped_.reset(); }

void WeightAveraging::on_train_end() {
  if (finished_) return;
  if (trainer().epoch_is_cut())
    update_of_epoch();  // after the cut's files are written: a run that resumes does it at the epoch's end
  if (average_->n_averaged() == 0) return;
  average_->copy_to(*trainer().module());
  finished_ = true;
}
// Without a training before it if the run that resumed was at its end.
void WeightAveraging::on_fit_end() { on_train_end(); }

CallbackState WeightAveraging::state() const {
  CallbackState out{.values = {}, .tensors = {{kLatest, train::count_tensor(latest_update_step_)}}};
  if (average_) train::append_below(out.tensors, kAverage, average_->state());
  return out;
}

void WeightAveraging::load_state(const CallbackState& state) {
  if (state.tensors.empty()) return;  // a file without an average: this one begins with its first update
  const std::int64_t latest = train::count_in("WeightAveraging", state.tensors, kLatest);
  average_->load(train::names_below(state.tensors, kAverage));
  latest_update_step_ = latest;
}

// The file's weights become the average, and this callback's state has those of the training. An average that is not
// wider than its weight equals that weight, and is stored once.
void WeightAveraging::on_save_checkpoint(CheckpointContent& content) {
  if (!fitting_ || finished_) {
    if (average_ && average_->n_averaged() > 0)
      warn("I-TRAIN-AVERAGE-SAVED", WarningCategory::info,
           "save_checkpoint: the training is over; the file holds the module's weights, and no average beside them");
    content.state = {};
    return;
  }
  begin();
  NamedTensors& kept = content.state.tensors;
  const NamedTensors own = swapped_ ? swapped_->own_state() : NamedTensors();
  const bool any = average_->n_averaged() > 0;
  for (const auto& [key, average] : average_->state()) {
    if (!key.starts_with("module.")) continue;
    const std::string name = key.substr(7);
    Tensor* const weight = train::find(content.weights, name);
    if (!weight) continue;  // another hook took it out
    const Tensor* const live = train::find(own, name);
    const DType dtype = weight->dtype();
    if (any) {
      kept.emplace_back(kLive + name, live ? *live : *weight);
      *weight = average.dtype() == dtype ? average : average.to(Device::cpu()).to(dtype);  // no memory of the device
    }
    if (!any || average.dtype() == dtype) std::erase_if(kept, [&](const auto& k) { return k.first == kModule + name; });
  }
}

void WeightAveraging::on_load_checkpoint(CheckpointContent& content) {
  if (!fitting_) {
    warn("W-TRAIN-AVERAGE-LOADED", WarningCategory::user,
         "WeightAveraging: a checkpoint is loaded outside of fit; the module gets its weights, which are the average "
         "where one "
         "was kept");
    return;
  }
  begin();
  NamedTensors& kept = content.state.tensors;
  if (!train::find(kept, kLatest)) {
    warn("W-TRAIN-NO-AVERAGE", WarningCategory::user,
         "WeightAveraging: the checkpoint holds no average; average and training both start at its weights");
    latest_update_step_ = kUnknown;
    return;
  }
  for (const auto& [key, average] : average_->state()) {
    if (!key.starts_with("module.") || train::find(kept, kAverage + key)) continue;
    if (const Tensor* weight = train::find(content.weights, key.substr(7))) kept.emplace_back(kAverage + key, *weight);
  }
  for (auto& [name, weight] : content.weights) {
    if (const Tensor* live = train::find(kept, kLive + name)) weight = *live;
  }
  std::erase_if(kept, [&](const auto& k) { return k.first.starts_with(kLive); });
}

EmaWeightAveraging::EmaWeightAveraging(EmaWeightAveragingOptions options)
    : WeightAveraging({.device = options.device, .use_buffers = options.use_buffers, .avg_fn = ema_avg(options.decay)}),
      options_(options) {
  const auto check = [](const char* what, std::int64_t n) {
    if (n < 0) fail<ConfigError>("EmaWeightAveraging: ", what, " is ", n, ", expected 0 or more");
  };
  check("update_every_n_steps", options.update_every_n_steps);
  check("update_starting_at_step", options.update_starting_at_step.value_or(0));
  check("update_starting_at_epoch", options.update_starting_at_epoch.value_or(0));
}

bool EmaWeightAveraging::should_update(std::optional<std::int64_t> step_idx, std::optional<std::int64_t> epoch_idx) {
  if (step_idx)
    return *step_idx >= options_.update_starting_at_step.value_or(0) && options_.update_every_n_steps > 0 &&
           *step_idx % options_.update_every_n_steps == 0;
  return options_.update_starting_at_epoch && *epoch_idx >= *options_.update_starting_at_epoch;
}

}  // namespace levin
