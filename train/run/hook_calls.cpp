#include <cxxabi.h>

#include <algorithm>
#include <set>
#include <typeinfo>

#include "tensor/type_name.h"
#include "train/run/run.h"

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

// Every hook runs, also when an earlier one asked to skip: counters of callbacks stay in step.
BatchStart Trainer::Run::call_batch_start(const StepInfo& info) {
  BatchStart answer = BatchStart::proceed;
  const train::HookInfo& start = train::hooks::on_train_batch_start;
  const ProfilerScope profiled(options.profiler.get(), start.name);
  const InHook in(*this, start);
  const auto ask = [&](Hooks& h) {
    if (h.on_train_batch_start(info) == BatchStart::skip_epoch) answer = BatchStart::skip_epoch;
  };
  for (const auto& c : callbacks) ask(*c);
  ask(*active);
  return answer;
}

namespace {
using EndOf = Trainer::Run::EndOf;
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

// Callbacks, then the module; behind it those that ask for it at the end of an epoch, and in any case the writers of checkpoints.
void Trainer::Run::call_at_end(EndOf what, const StepInfo& step_info) {
  const train::HookInfo& end = *kEnds[static_cast<std::size_t>(what)];
  const ProfilerScope profiled(options.profiler.get(), end.name);
  const InHook in(*this, end);
  const train::Restore told(writers_from, std::optional<std::size_t>(0));
  const auto is_late = [&](const Callback& c) {
    return c.writes_checkpoints() || (what == EndOf::epoch && c.after_module());
  };
  for (const auto& c : callbacks) {
    if (!is_late(*c)) call_one(*c, what, step_info);
  }
  call_one(*active, what, step_info);
  for (std::size_t i = 0; i < callbacks.size(); ++i) {
    if (!is_late(*callbacks[i])) continue;
    if (callbacks[i]->writes_checkpoints()) writers_from = i + 1;
    call_one(*callbacks[i], what, step_info);
  }
}

std::vector<std::string> Trainer::Run::writers_to_come() const {
  std::vector<std::string> keys;
  const bool told = writers_from && due != Due::nothing;
  for (std::size_t i = told ? *writers_from : callbacks.size(); i < callbacks.size(); ++i) {
    if (callbacks[i]->writes_checkpoints()) keys.push_back(callbacks[i]->state_key());
  }
  return keys;
}

void Trainer::Run::call_writers_due() {
  const std::vector<std::string> keys = std::exchange(writers_due, {});
  const EndOf what = due == Due::record ? EndOf::batch : due == Due::plateaus ? EndOf::validation : EndOf::epoch;
  const train::Restore running(validating, what == EndOf::validation);
  for (const auto& c : callbacks) {
    const std::string key = c->state_key();
    if (!key.empty() && std::find(keys.begin(), keys.end(), key) != keys.end()) call_one(*c, what, info());
  }
}

// The first error is the one to report: what a hook throws now would hide it.
void Trainer::Run::with_error_in_flight(const Function<void(const std::exception&)>& tell) {
  try {
    throw;
  } catch (const std::exception& error) { tell(error); } catch (...) {
    tell(std::runtime_error("what was thrown is no std::exception"));
  }
}

void Trainer::Run::call_exception(const std::exception& error) noexcept {
  const InHook in(*this, train::hooks::on_exception);
  const auto tell = [&](auto& h) {
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
  if (data_module) tell(*data_module);
}

// The first error is the one to report here, too.
void Trainer::Run::call_teardown(Stage stage, bool quietly) {
  const ProfilerScope profiled(options.profiler.get(), train::hooks::teardown.name);
  const InHook in(*this, train::hooks::teardown);
  const auto one = [&](auto& h) {
    try {
      h.teardown(stage);
    } catch (const std::exception& second) {
      if (!quietly) throw;
      warn("W-TRAIN-TEARDOWN", WarningCategory::runtime, std::string("teardown threw as well: ") + second.what());
    }
  };
  if (data_module) one(*data_module);
  for (const auto& c : callbacks) one(*c);
  if (active) one(*active);
}

void Trainer::Run::attach_callbacks(Trainer* t) {
  for (const auto& c : callbacks) c->trainer_ = t;
}

namespace {

std::int64_t count_of(const std::vector<std::shared_ptr<Callback>>& callbacks, Callback::Kind kind) {
  return std::count_if(callbacks.begin(), callbacks.end(), [&](const auto& c) { return c->kind() == kind; });
}

// Searches come first: the others see the run that they lead to. Checkpoints come last: what they save is what the others have done.
void order(std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::stable_partition(callbacks.begin(), callbacks.end(),
                        [](const auto& c) { return c->kind() == Callback::Kind::search; });
  std::stable_partition(callbacks.begin(), callbacks.end(), [](const auto& c) { return !c->writes_checkpoints(); });
}

// Whether objects of `type` are of class `base` as well. The language asks an object, not a type_info; the platform's ABI knows.
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

const Callback* Trainer::Run::accumulation_schedule() const {
  for (const auto& c : callbacks) {
    if (c->largest_accumulation() > 0) return c.get();
  }
  return nullptr;
}

void Trainer::Run::verify_callbacks() const {
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
  if (bars > 0 && !options.enable_progress_bar.value_or(true))
    fail<ConfigError>("Trainer: enable_progress_bar is false and callbacks holds a ProgressBar; drop one of them");
  if (checkpoints && !options.enable_checkpointing.value_or(true))
    fail<ConfigError>(
        "Trainer: enable_checkpointing is false and callbacks holds a checkpoint callback; drop one of them");
  if (accumulation_schedule() && options.accumulate_grad_batches != 1)
    fail<ConfigError>("Trainer: accumulate_grad_batches is ", options.accumulate_grad_batches,
                      " and callbacks holds a ", train::class_of(*accumulation_schedule()),
                      ", which sets it; drop one of them");
}

void Trainer::Run::collect_callbacks() {
  for (const auto& c : options.callbacks) {
    if (!c) fail<ConfigError>("Trainer: callbacks holds a null pointer; leave it out");
  }
  callbacks = options.callbacks;
  verify_callbacks();
  if (options.enable_progress_bar.value_or(true) && count_of(callbacks, Callback::Kind::progress_bar) == 0)
    callbacks.push_back(std::make_shared<ProgressBar>());
  if (options.enable_model_summary.value_or(true) && count_of(callbacks, Callback::Kind::summary) == 0)
    callbacks.push_back(std::make_shared<ModelSummary>());
  if (options.max_time) {
    if (count_of(callbacks, Callback::Kind::timer) > 0)
      warn("I-TRAIN-TIMER", WarningCategory::info,
           "Trainer: max_time is ignored, because callbacks holds a Timer of its own");
    else
      callbacks.push_back(std::make_shared<Timer>(*options.max_time));
  }
  if (checkpointing() && count_of(callbacks, Callback::Kind::checkpoint) == 0)
    callbacks.push_back(std::make_shared<ModelCheckpoint>());
  order(callbacks);
  own_callbacks = callbacks;
}

// One replaces those of the trainer that are of its class or of one that it derives from, never another of the module's.
void Trainer::Run::add_callbacks_of(TrainModule& module) {
  const std::vector<std::shared_ptr<Callback>> added = module.configure_callbacks();
  std::string replaced;
  for (const std::shared_ptr<Callback>& c : added) {
    if (!c) fail<ConfigError>(call_name, ": configure_callbacks returned a null pointer; leave it out");
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
         std::string(call_name) + ": the module's configure_callbacks replaces of the trainer's: " + replaced);
  verify_callbacks();
}

}  // namespace levin
