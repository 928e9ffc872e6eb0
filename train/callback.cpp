#include <set>

#include "train/run.h"

namespace levin {
namespace {
thread_local std::int64_t defaults_run = 0;
}

void Hooks::not_provided() noexcept { ++defaults_run; }
std::int64_t Trainer::Run::default_hooks_run() noexcept { return defaults_run; }

Trainer& Callback::trainer() const {
  if (!trainer_) fail<StateError>("Callback: trainer() needs a run; call it inside a hook");
  return *trainer_;
}

Trainer& TrainModule::trainer() const {
  if (!trainer_) fail<StateError>("TrainModule: trainer() needs a run; call it inside a hook or a step");
  return *trainer_;
}

void TrainModule::validation_step(const Batch&, std::int64_t) {
  const bool called_by_name = trainer_ && !trainer_->run_->in_fit;
  fail<ConfigError>(called_by_name
                        ? "validate: the module has no validation_step; override it"
                        : "fit: a validation loader was given and the module has no validation_step; override it or "
                          "leave out .val");
}
void TrainModule::test_step(const Batch&, std::int64_t) {
  fail<ConfigError>("test: the module has no test_step; override it");
}

void TrainModule::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  if (trainer_) return trainer_->log(name, value, options);
  warn("W-TRAIN-LOG", WarningCategory::user, "log: the module is not attached to a trainer; the value is ignored");
}
void TrainModule::log(std::string_view name, double value, const LogOptions& options) {
  if (trainer_) return trainer_->log(name, value, options);
  warn("W-TRAIN-LOG", WarningCategory::user, "log: the module is not attached to a trainer; the value is ignored");
}

// Every hook runs, also when an earlier one asked to skip: counters of callbacks stay in step.
BatchStart Trainer::Run::call_batch_start(const StepInfo& info) {
  BatchStart answer = BatchStart::proceed;
  const auto ask = [&](Hooks& h) {
    if (h.on_train_batch_start(info) == BatchStart::skip_epoch) answer = BatchStart::skip_epoch;
  };
  for (const auto& c : callbacks) ask(*c);
  ask(*active);
  return answer;
}

void Trainer::Run::call_epoch_end() {
  for (const auto& c : callbacks) {
    if (!c->after_module()) c->on_train_epoch_end();
  }
  active->on_train_epoch_end();
  for (const auto& c : callbacks) {
    if (c->after_module()) c->on_train_epoch_end();
  }
}

// The first error is the one to report: what a hook throws now would hide it.
void Trainer::Run::call_exception(const std::exception& error) noexcept {
  const auto tell = [&](Hooks& h) {
    try {
      h.on_exception(error);
    } catch (const std::exception& second) {
      try {
        warn("W-TRAIN-EXCEPTION", WarningCategory::runtime,
             std::string("on_exception threw as well: ") + second.what());
      } catch (...) {}  // no memory for the text
    } catch (...) {}    // not ours to name; the first error is on its way
  };
  for (const auto& c : callbacks) tell(*c);
  if (active) tell(*active);
}

void Trainer::Run::verify_callbacks() {
  int bars = 0, checkpoints = 0;
  std::set<std::string> keys;
  for (const auto& c : options.callbacks) {
    if (!c) fail<ConfigError>("Trainer: callbacks holds a null pointer; leave it out");
    bars += dynamic_cast<ProgressBar*>(c.get()) != nullptr;
    checkpoints += dynamic_cast<ModelCheckpoint*>(c.get()) != nullptr;
    const std::string key = c->state_key();
    if (!key.empty() && !keys.insert(key).second)
      fail<ConfigError>("Trainer: two callbacks have the state key \"", key, "\"; give each its own");
  }
  if (bars > 1) fail<ConfigError>("Trainer: callbacks holds ", bars, " progress bars, expected one at most");
  if (bars > 0 && !options.enable_progress_bar.value_or(true))
    fail<ConfigError>("Trainer: enable_progress_bar is false and callbacks holds a ProgressBar; drop one of them");
  if (checkpoints > 0 && !checkpointing())
    fail<ConfigError>("Trainer: enable_checkpointing is false and callbacks holds a ModelCheckpoint; drop one of them");

  for (const auto& c : options.callbacks) {
    if (!dynamic_cast<ModelCheckpoint*>(c.get())) callbacks.push_back(c);
  }
  if (bars == 0 && options.enable_progress_bar.value_or(true)) callbacks.push_back(std::make_shared<ProgressBar>());
  for (const auto& c : options.callbacks) {
    if (dynamic_cast<ModelCheckpoint*>(c.get())) callbacks.push_back(c);
  }
  if (checkpoints == 0 && checkpointing()) callbacks.push_back(std::make_shared<ModelCheckpoint>());
}

}  // namespace levin
