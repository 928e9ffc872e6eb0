#include "train/run/hook_calls.h"

#include <cxxabi.h>

#include <algorithm>
#include <set>
#include <typeinfo>

#include "tensor/text/type_name.h"
#include "train/run/run.h"

namespace levin {
namespace {
thread_local std::int64_t defaults_run = 0;
}

void Hooks::not_provided() noexcept { ++defaults_run; }
std::int64_t Trainer::HookCalls::default_hooks_run() noexcept { return defaults_run; }

bool Trainer::HookCalls::same_called() const {
  return called_.size() == callbacks.size() + 1 && called_.back() == borrowed_.active &&
         std::equal(callbacks.begin(), callbacks.end(), called_.begin(),
                    [](const auto& c, const Hooks* called) { return c.get() == called; });
}
void Trainer::HookCalls::remember(const train::HookInfo& which, bool provided) {
  if (!same_called()) {
    called_.clear();
    idle_.clear();
    for (const auto& c : callbacks) called_.push_back(c.get());
    called_.push_back(borrowed_.active);
  }
  const auto at = std::find(idle_.begin(), idle_.end(), &which);
  if (provided && at != idle_.end()) idle_.erase(at);
  if (!provided && at == idle_.end()) idle_.push_back(&which);
}
bool Trainer::HookCalls::is_idle(const train::HookInfo& which) const {
  return same_called() && std::find(idle_.begin(), idle_.end(), &which) != idle_.end();
}

Trainer& Callback::trainer() const {
  if (!trainer_) fail<StateError>("Callback: trainer() needs a run; call it inside a hook");
  return *trainer_;
}

// Every hook runs, also after one that returned skip_epoch, so the counters of callbacks stay in step.
BatchStart Trainer::HookCalls::batch_start(const StepInfo& info) {
  run_.instruments.times.enter(Phase::hooks);
  BatchStart answer = BatchStart::proceed;
  const train::HookInfo& start = train::hooks::on_train_batch_start;
  const ProfilerScope profiled(options_.profiler.get(), start.name);
  const Inside in(*this, start);
  const auto ask = [&](Hooks& h) {
    if (h.on_train_batch_start(info) == BatchStart::skip_epoch) answer = BatchStart::skip_epoch;
  };
  for (const auto& c : callbacks) ask(*c);
  ask(*borrowed_.active);
  return answer;
}

namespace {
using train::Due;
using train::EndOf;
constexpr const train::HookInfo* kEnds[] = {&train::hooks::on_train_batch_end, &train::hooks::on_validation_end,
                                            &train::hooks::on_train_epoch_end};

void call_one(Hooks& h, EndOf what, const StepInfo& info) {
  switch (what) {
    case EndOf::batch: return h.on_train_batch_end(info);
    case EndOf::validation: return h.on_validation_end();
    case EndOf::epoch: return h.on_train_epoch_end();
  }
}
}  // namespace

void Trainer::HookCalls::at_end(EndOf what, const StepInfo& step_info) {
  std::optional<PhaseScope> phase;  // the end of a batch is in this phase already, a validation has its own
  if (what == EndOf::epoch) phase.emplace(run_.instruments.times, Phase::hooks);
  const train::HookInfo& end = *kEnds[static_cast<std::size_t>(what)];
  const ProfilerScope profiled(options_.profiler.get(), end.name);
  const Inside in(*this, end);
  const train::Restore listed(writers_from_, std::optional<std::size_t>(0));
  const auto is_late = [&](const Callback& c) {
    return c.writes_checkpoints() || (what == EndOf::epoch && c.after_module());
  };
  for (const auto& c : callbacks) {
    if (!is_late(*c)) call_one(*c, what, step_info);
  }
  call_one(*borrowed_.active, what, step_info);
  if (borrowed_.manual) run_.optimizers.move_scale(train::Optimizers::BatchEnds::yes);  // files have the moved scale
  for (std::size_t i = 0; i < callbacks.size(); ++i) {
    if (!is_late(*callbacks[i])) continue;
    if (callbacks[i]->writes_checkpoints()) writers_from_ = i + 1;
    call_one(*callbacks[i], what, step_info);
  }
}

std::vector<std::string> Trainer::HookCalls::writers_to_come() const {
  std::vector<std::string> keys;
  const bool listed = writers_from_ && run_.progress.due != Due::nothing;
  for (std::size_t i = listed ? *writers_from_ : callbacks.size(); i < callbacks.size(); ++i) {
    if (callbacks[i]->writes_checkpoints()) keys.push_back(callbacks[i]->state_key());
  }
  return keys;
}

void Trainer::HookCalls::call_writers_due() {
  if (writers_due.empty()) return;
  const std::vector<std::string> keys = std::exchange(writers_due, {});
  const EndOf what = train::row_of(run_.progress.due).written_in.value_or(EndOf::epoch);
  const train::Restore running(run_.evaluation.validating, what == EndOf::validation);
  for (const auto& c : callbacks) {
    const std::string key = c->state_key();
    if (!key.empty() && std::find(keys.begin(), keys.end(), key) != keys.end()) call_one(*c, what, run_.info());
  }
}

void Trainer::HookCalls::setup(Stage stage) {
  if (borrowed_.data_module) {
    const RankInfo at = run_.strategy->ranks();
    if ((borrowed_.data_module->prepare_data_per_node() ? at.local_rank : at.rank) == 0) {
      const ProfilerScope profiled(options_.profiler.get(), "prepare_data");
      const std::span<const std::byte> bytes = borrowed_.data_module->bytes();
      const std::vector<std::byte> before(bytes.begin(), bytes.end());
      borrowed_.data_module->prepare_data();
      if (!std::equal(bytes.begin(), bytes.end(), before.begin()))
        warn("W-DATA-PREPARE", WarningCategory::possible_user,
             std::string(run_.call_name) +
                 ": prepare_data changed the data module; in a run of several processes the others do not see that; "
                 "store it in setup");
    }
    run_.strategy->barrier();  // the other ranks wait for the data
    const ProfilerScope profiled(options_.profiler.get(), "setup_data");
    borrowed_.data_module->setup(stage);
  }
  call(train::hooks::setup, stage);
}

// A second error would hide the first one, so it becomes a warning: here, in exception() and in teardown().
void train::with_error_in_flight(const Function<void(const std::exception&)>& report) {
  try {
    throw;
  } catch (const std::exception& error) { report(error); } catch (...) {
    report(std::runtime_error("what was thrown is no std::exception"));
  }
}

void Trainer::HookCalls::exception(const std::exception& error) noexcept {
  const Inside in(*this, train::hooks::on_exception);
  const auto one = [&](auto& h) {
    try {
      h.on_exception(error);
    } catch (const std::exception& second) {
      try {
        warn("W-TRAIN-EXCEPTION", WarningCategory::runtime,
             std::string("on_exception threw as well: ") + second.what());
      } catch (...) {}  // no memory for the text
    } catch (...) {}    // no std::exception, and the first error is reported anyway
  };
  for (const auto& c : callbacks) one(*c);
  if (borrowed_.active) one(*borrowed_.active);
  if (borrowed_.data_module) one(*borrowed_.data_module);
}

void Trainer::HookCalls::teardown(Stage stage, bool quietly) {
  const ProfilerScope profiled(options_.profiler.get(), train::hooks::teardown.name);
  const Inside in(*this, train::hooks::teardown);
  const auto one = [&](auto& h) {
    try {
      h.teardown(stage);
    } catch (const std::exception& second) {
      if (!quietly) throw;
      warn("W-TRAIN-TEARDOWN", WarningCategory::runtime, std::string("teardown threw as well: ") + second.what());
    }
  };
  if (borrowed_.data_module) one(*borrowed_.data_module);
  for (const auto& c : callbacks) one(*c);
  if (borrowed_.active) one(*borrowed_.active);
}

StepTimes& Trainer::HookCalls::times() const { return run_.instruments.times; }
void Trainer::HookCalls::prevent_capture(const train::HookInfo& hook, const Hooks& whose) {
  if (run_.capture) run_.capture->prevent_by_hook(hook.name, whose);
}

void Trainer::HookCalls::begin(TrainModule& m) {
  called_.clear();  // another object may have the address of an earlier one
  callbacks = own;
  add_of(m);
  attach(&run_.trainer);
}
void Trainer::HookCalls::end() {
  attach(nullptr);  // the module's as well
  callbacks = own;
}
Trainer::HookCalls::Attached::Attached(std::vector<std::shared_ptr<Callback>> callbacks, Trainer& trainer)
    : callbacks_(std::move(callbacks)) {
  before_.reserve(callbacks_.size());
  for (const auto& c : callbacks_) before_.push_back(std::exchange(c->trainer_, &trainer));
}
Trainer::HookCalls::Attached::~Attached() {
  for (std::size_t i = 0; i < before_.size(); ++i) callbacks_[i]->trainer_ = before_[i];
}

void Trainer::HookCalls::attach(Trainer* t) {
  for (const auto& c : callbacks) c->trainer_ = t;
}

namespace {

std::int64_t count_of(const std::vector<std::shared_ptr<Callback>>& callbacks, Callback::Kind kind) {
  return std::count_if(callbacks.begin(), callbacks.end(), [&](const auto& c) { return c->kind() == kind; });
}

// Searches come first, so the others see their result. Writers of checkpoints come last, so they save the work of the
// others.
void order(std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::stable_partition(callbacks.begin(), callbacks.end(),
                        [](const auto& c) { return c->kind() == Callback::Kind::search; });
  std::stable_partition(callbacks.begin(), callbacks.end(), [](const auto& c) { return !c->writes_checkpoints(); });
}

// Whether `type` is `base` or derives from it. C++ answers that for objects alone; the platform's ABI does for a
// type_info.
bool derives(const std::type_info& type, const std::type_info& base) {
  if (type == base) return true;
  if (const auto* one = dynamic_cast<const abi::__si_class_type_info*>(&type)) return derives(*one->__base_type, base);
  const auto* several = dynamic_cast<const abi::__vmi_class_type_info*>(&type);
  for (unsigned i = 0; several && i < several->__base_count; ++i) {
    if (derives(*several->__base_info[i].__base_type, base)) return true;
  }
  return false;
}

}  // namespace

std::string train::class_of(const Callback& callback) { return detail::type_name(typeid(callback)); }

const Callback* Trainer::HookCalls::accumulation_schedule() const {
  for (const auto& c : callbacks) {
    if (c->largest_accumulation() > 0) return c.get();
  }
  return nullptr;
}

void Trainer::HookCalls::verify() const {
  std::set<std::string> keys;
  for (const auto& c : callbacks) {
    const std::string key = c->state_key();
    if (!key.empty() && !keys.insert(key).second)
      fail<ConfigError>("Trainer: two callbacks have the state key \"", key, "\"; give each its own");
  }
  const std::int64_t bars = count_of(callbacks, Callback::Kind::progress_bar);
  const bool checkpoints = std::any_of(callbacks.begin(), callbacks.end(), [](const auto& c) {
    return c->kind() == Callback::Kind::checkpoint || c->checkpoint_files();
  });
  if (bars > 1) fail<ConfigError>("Trainer: callbacks holds ", bars, " progress bars, expected one at most");
  if (bars > 0 && !options_.enable_progress_bar.value_or(true))
    fail<ConfigError>("Trainer: enable_progress_bar is false and callbacks holds a ProgressBar; drop one of them");
  if (checkpoints && !options_.enable_checkpointing.value_or(true))
    fail<ConfigError>(
        "Trainer: enable_checkpointing is false and callbacks holds a checkpoint callback; drop one of them");
  if (accumulation_schedule() && options_.accumulate_grad_batches != 1)
    fail<ConfigError>("Trainer: accumulate_grad_batches is ", options_.accumulate_grad_batches,
                      " and callbacks holds a ", train::class_of(*accumulation_schedule()),
                      ", which sets it; drop one of them");
}

void Trainer::HookCalls::collect() {
  for (const auto& c : options_.callbacks) {
    if (!c) fail<ConfigError>("Trainer: callbacks holds a null pointer; leave it out");
  }
  callbacks = options_.callbacks;
  verify();
  if (options_.enable_progress_bar.value_or(true) && count_of(callbacks, Callback::Kind::progress_bar) == 0)
    callbacks.push_back(std::make_shared<ProgressBar>());
  if (options_.enable_model_summary.value_or(true) && count_of(callbacks, Callback::Kind::summary) == 0)
    callbacks.push_back(std::make_shared<ModelSummary>());
  if (options_.max_time) {
    if (count_of(callbacks, Callback::Kind::timer) > 0)
      warn("I-TRAIN-TIMER", WarningCategory::info,
           "Trainer: max_time is ignored, because callbacks holds a Timer of its own");
    else
      callbacks.push_back(std::make_shared<Timer>(*options_.max_time));
  }
  if (run_.files.enabled() && count_of(callbacks, Callback::Kind::checkpoint) == 0)
    callbacks.push_back(std::make_shared<ModelCheckpoint>());
  order(callbacks);
  own = callbacks;
}

void Trainer::HookCalls::drop_screens() {
  const auto draws = [](const auto& c) {
    return c->kind() == Callback::Kind::progress_bar || c->kind() == Callback::Kind::summary;
  };
  std::erase_if(own, draws);
  std::erase_if(callbacks, draws);
}

// A callback of the module replaces callbacks of the trainer of the same class or a base class of it. It replaces no
// other callback of the module.
void Trainer::HookCalls::add_of(TrainModule& module) {
  const std::vector<std::shared_ptr<Callback>> added = module.configure_callbacks();
  std::string replaced;
  for (const std::shared_ptr<Callback>& c : added) {
    if (!c) fail<ConfigError>(run_.call_name, ": configure_callbacks returned a null pointer; leave it out");
    const Callback& by = *c;
    std::erase_if(callbacks, [&](const std::shared_ptr<Callback>& known) {
      const Callback& k = *known;
      const bool out = derives(typeid(by), typeid(k));
      if (out) replaced += (replaced.empty() ? "" : ", ") + (k.state_key().empty() ? "a callback" : k.state_key());
      return out;
    });
  }
  callbacks.insert(callbacks.end(), added.begin(), added.end());
  order(callbacks);
  if (!replaced.empty())
    warn("I-TRAIN-CALLBACKS", WarningCategory::info,
         std::string(run_.call_name) + ": the module's configure_callbacks replaces of the trainer's: " + replaced);
  verify();
}

}  // namespace levin
