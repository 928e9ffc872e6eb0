// The optimizers of a fit: handles, schedules, the loss scale of their gradients, clipping, toggling.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/train.h"

namespace levin::train {

class Optimizers {
 public:
  explicit Optimizers(Trainer::Run& run) : run_(run) {}

  [[nodiscard]] optim::Optimizer& front() const { return *all.front(); }
  [[nodiscard]] std::vector<ParamRef> model_parameters() const;  // of all optimizers, each once
  [[nodiscard]] optim::GradScaler* scaler() const;               // null: no loss scale, or a plan on meta
  [[nodiscard]] Tensor scaled(const Tensor& loss) const;         // the loss for backward: times the loss scale

  // ---- Of a step
  // Runs the closure, unscales the gradients, divides them by the window's weight, calls the hooks, clips the
  // gradients, and updates. Returns the closure's loss. Without a loss scale all of that runs within the optimizer's
  // own call, because LBFGS runs the closure again. See Note [Gradients between backward and update].
  Tensor step(optim::Optimizer& optimizer, const Function<Tensor()>& closure);
  // TrainModule::clip_gradients. Throws ConfigError for a value other than gradient_clip_val.
  void clip(optim::Optimizer& optimizer, std::optional<double> value, std::optional<ClipAlgorithm> algorithm);
  void forget_scaling();  // of a step that an exception ended
  enum class BatchEnds : bool { no, yes };
  // Moves the loss scale if an optimizer has stepped since the last move. Within a batch it waits for optimizers whose
  // gradients were clipped and which have not stepped; such gradients do not outlive the batch.
  void move_scale(BatchEnds batch_ends);
  void forget_gradients(const optim::Optimizer& of);  // which were cleared
  // Steps that the loss scale has skipped, those included after which it has not moved. Waits for the device.
  [[nodiscard]] std::int64_t skipped_steps() const;
  // Until untoggle, parameters of the other optimizers require no gradients. Does nothing with one optimizer. Throws
  // StateError while an optimizer is toggled; `call` is for the message.
  void toggle(const optim::Optimizer& only, const char* call);
  void untoggle() noexcept;
  [[nodiscard]] const optim::Optimizer* toggled() const { return toggled_; }

  // ---- Schedules
  void advance(SchedulerConfig::Interval interval);  // those that count steps or epochs
  // Those that watch a metric. Throws ConfigError for a metric that was not logged, if the schedule is strict.
  void advance_plateaus(SchedulerConfig::Interval interval);
  // Whether the loss scale skipped the last step and lr_on_skipped_step is hold. Reads from the device if it is.
  [[nodiscard]] bool held_by_skipped_step();

  void begin_fit();  // forgets the state of the fit before
  std::vector<std::shared_ptr<optim::Optimizer>> all;
  std::vector<OptimizerHandle> handles;
  std::vector<SchedulerConfig> schedulers;
  SyncGrad sync_grad = SyncGrad::yes;  // of a manual backward, as toggle_model says
  std::int64_t skipped_seen = 0;       // steps that the loss scale has skipped, as the host last read

 private:
  void unscale_once(optim::Optimizer& of, const Tensor& divisor = {});
  void look_for_gradients(optim::Optimizer& of);
  void prepare(optim::Optimizer& of);
  [[nodiscard]] bool fuses(const optim::Optimizer& of) const;
  void call_idle_hook(optim::Optimizer& of);
  void log_skipped_steps();
  Trainer::Run& run_;
  std::vector<const optim::Optimizer*> unscaled_;     // since their last step
  std::vector<const optim::Optimizer*> stepped_;      // since the loss scale moved
  std::vector<const optim::Optimizer*> looked_at_;    // whose gradients were checked in this fit
  const optim::GradScaler* norm_known_by_ = nullptr;  // has the norm of the gradients to clip; null: none has
  const optim::Optimizer* toggled_ = nullptr;
  std::vector<std::pair<Tensor*, bool>> flags_before_toggle_;  // requires_grad of parameters of all optimizers
};

}  // namespace levin::train
