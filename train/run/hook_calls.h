// Calls a hook of callbacks, module and data module, and is the one place that knows their order among each other. The
// order of the hooks is the loop's (run/loop.cpp, evaluation.cpp, fit.cpp); levin/train/hooks.h lists it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/train.h"
#include "train/run/borrowed.h"
#include "train/run/hook.h"
#include "train/run/resume_point.h"

namespace levin {

class Trainer::HookCalls {
 public:
  HookCalls(Run& run, const TrainerOptions& options, const Borrowed& borrowed)
      : run_(run), options_(options), borrowed_(borrowed) {}

  // Sets `now`, the hook or step that runs, for a scope. Messages name it, and it decides what log() may do.
  class Inside {
   public:
    Inside(HookCalls& hooks, const train::HookInfo& now) : hooks_(hooks), before_(std::exchange(hooks.now, &now)) {}
    ~Inside() { hooks_.now = before_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    HookCalls& hooks_;
    const train::HookInfo* before_;
  };

  // Attaches callbacks to the trainer for a scope.
  class Attached {
   public:
    Attached(std::vector<std::shared_ptr<Callback>> callbacks, Trainer& trainer);
    ~Attached();
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;

   private:
    std::vector<std::shared_ptr<Callback>> callbacks_;  // a copy: a callback may begin another fit
    std::vector<Trainer*> before_;
  };

  // Calls the hook of the callbacks, then of the module. For a hook inside of a step it returns whether any of them
  // overrides the hook; such a step cannot be captured.
  template <class F, class... A>
  bool call(const train::Hook<F>& which, A&&... args) {
    bool provided = false;
    const ProfilerScope profiled(options_.profiler.get(), which.name);
    const Inside in(*this, which);
    const auto one = [&](Hooks& h) {
      const std::int64_t defaults = which.in_step ? default_hooks_run() : 0;
      (h.*which.function)(args...);
      if (!which.in_step || default_hooks_run() != defaults) return;
      provided = true;
      prevent_capture(which, h);
    };
    for (const auto& c : callbacks) one(*c);
    if (borrowed_.active) one(*borrowed_.active);
    if (which.in_step) remember(which, provided);
    return provided;
  }
  // Whether a hook inside of a step was called with the callbacks and the module at hand, and none of them overrides
  // it. An object has its override or not for its life, so the next call will find the same.
  [[nodiscard]] bool is_idle(const train::HookInfo& which) const;
  template <class F>
  void call_timed(const train::Hook<F>& which) {  // the step-time report counts it to the hooks
    const PhaseScope phase(times(), Phase::hooks);
    call(which);
  }
  BatchStart batch_start(const StepInfo& info);  // on_train_batch_start; skip_epoch if any returns it
  // The end of a batch, of a validation or of an epoch. Callbacks run first, then the module. At an epoch's end
  // callbacks with after_module come next. Writers of checkpoints come last.
  void at_end(train::EndOf what, const StepInfo& info = {});
  // State keys of the writers that the current hook has still to call. A file that is written in it has these keys, and
  // the resumed run calls these writers first, by call_writers_due.
  [[nodiscard]] std::vector<std::string> writers_to_come() const;
  void call_writers_due();
  void setup(Stage stage);                   // prepare_data and setup of the data module, then setup of the others
  void teardown(Stage stage, bool quietly);  // quietly: an error is a warning
  void exception(const std::exception& error) noexcept;  // on_exception; an error there is a warning

  // ---- The callbacks
  void drop_screens();              // progress bars and summaries
  void collect();                   // the user's, and those that the options add. Throws ConfigError
  void begin(TrainModule& module);  // of a stage: adds those of configure_callbacks, and attaches all to the trainer
  void end();                       // of a stage: detaches all, and drops those of the module
  void attach(Trainer* trainer);    // null: detaches
  // The callbacks that a checkpoint asks: those at hand in a fit, those of the last fit after it.
  [[nodiscard]] const std::vector<std::shared_ptr<Callback>>& of_last_fit(bool in_fit) const {
    return in_fit ? callbacks : of_fit;
  }
  [[nodiscard]] const Callback* accumulation_schedule() const;  // sets accumulate_grad_batches; null: none

  std::vector<std::shared_ptr<Callback>> own;        // the user's and those of the options, writers of checkpoints last
  std::vector<std::shared_ptr<Callback>> callbacks;  // during a stage these and the module's
  std::vector<std::shared_ptr<Callback>> of_fit;     // of the last fit, which a checkpoint after it asks
  const train::HookInfo* now = &train::kOutside;     // the hook or step that runs
  std::vector<std::string> writers_due;              // writers_to_come of the file that the run resumes from

 private:
  [[nodiscard]] static std::int64_t default_hooks_run() noexcept;  // by this thread
  [[nodiscard]] StepTimes& times() const;
  void prevent_capture(const train::HookInfo& hook, const Hooks& whose);
  void remember(const train::HookInfo& which, bool provided);
  [[nodiscard]] bool same_called() const;
  void add_of(TrainModule& module);
  void verify() const;

  Run& run_;
  const TrainerOptions& options_;
  const Borrowed& borrowed_;
  std::vector<const Hooks*> called_;          // whose hooks inside of steps were called last
  std::vector<const train::HookInfo*> idle_;  // those hooks that none of them overrides
  std::optional<std::size_t> writers_from_;   // index of the first callback that at_end has still to call as a writer
};

namespace train {
[[nodiscard]] std::string class_of(const Callback& callback);  // for messages
// In a catch block: calls `report` with the error, or with a std::runtime_error if it is no std::exception.
void with_error_in_flight(const Function<void(const std::exception&)>& report);
}  // namespace train
}  // namespace levin
