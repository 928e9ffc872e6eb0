// Calls the hooks of callbacks, module and data module: the one place that knows their order.
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

  // While one lives, `now` is the hook or step that runs: messages name it, and it decides what log() may do.
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

  // Callbacks, then the module. Returns whether anybody overrides a hook inside of a step. A step with such a hook can
  // not be captured.
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
    return provided;
  }
  template <class F>
  void call_timed(const train::Hook<F>& which) {  // as the hooks' part of the step-time report
    const PhaseScope phase(times(), Phase::hooks);
    call(which);
  }
  BatchStart batch_start(const StepInfo& info);
  // Callbacks and the module; then, of an epoch's end, callbacks that come after the module; writers of checkpoints
  // last.
  void at_end(train::EndOf what, const StepInfo& info = {});
  // State keys of the writers whose turn in the hook at hand has not come. A file that is written in it names them, and
  // the resumed run calls them first.
  [[nodiscard]] std::vector<std::string> writers_to_come() const;
  void call_writers_due();
  void setup(Stage stage);  // prepare_data, setup of the data module, setup of all
  void teardown(Stage stage, bool quietly);
  void exception(const std::exception& error) noexcept;

  // ---- Who is called
  void collect();                   // the user's callbacks, and those that the options add
  void begin(TrainModule& module);  // of a stage: the trainer's, and those that the module's configure_callbacks adds
  void end();                       // of a stage: the trainer's alone, attached to none
  void attach(Trainer* trainer);    // null: detaches
  [[nodiscard]] const Callback* accumulation_schedule() const;  // that sets accumulate_grad_batches; null: none

  std::vector<std::shared_ptr<Callback>> own;        // the user's and those of options, checkpoints last
  std::vector<std::shared_ptr<Callback>> callbacks;  // the same and the module's, while one is fitted
  std::vector<std::shared_ptr<Callback>> of_fit;     // of the last fit: a checkpoint after it asks these
  const train::HookInfo* now = &train::kOutside;
  std::vector<std::string> writers_due;  // of the file that the run resumes from

 private:
  [[nodiscard]] static std::int64_t default_hooks_run() noexcept;  // by this thread
  [[nodiscard]] StepTimes& times() const;
  void prevent_capture(const train::HookInfo& hook, const Hooks& whose);
  void add_of(TrainModule& module);
  void verify() const;

  Run& run_;
  const TrainerOptions& options_;
  const Borrowed& borrowed_;
  std::optional<std::size_t> writers_from_;  // in the hook at hand the writers from here on are still to come
};

namespace train {
[[nodiscard]] std::string class_of(const Callback& callback);  // for messages
// In a catch block: calls `report` with the error, a std::exception whatever was thrown.
void with_error_in_flight(const Function<void(const std::exception&)>& report);
}  // namespace train
}  // namespace levin
