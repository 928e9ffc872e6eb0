// A run: the parts of a Trainer, and the loop over them. Each part has its own header. run/fit.cpp sets a fit up and
// ends it, run/loop.cpp is the loop, run/step.cpp trains one batch.
#pragma once

#include <memory>
#include <optional>

#include "levin/train.h"
#include "train/checkpoint/files.h"
#include "train/data/stage_loaders.h"
#include "train/data/transfer.h"
#include "train/logs/run_logs.h"
#include "train/optimize/capture.h"
#include "train/optimize/optimizers.h"
#include "train/optimize/precision.h"
#include "train/profiler/instruments.h"
#include "train/run/borrowed.h"
#include "train/run/evaluation.h"
#include "train/run/hook_calls.h"
#include "train/run/progress.h"
#include "train/run/scope.h"
#include "train/run/signals.h"
#include "train/run/stopping.h"
#include "train/run/window.h"

namespace levin {

struct Trainer::Run {
  Run(Trainer& trainer, TrainerOptions options);
  Run(const Run&) = delete;  // parts refer to each other
  Run& operator=(const Run&) = delete;
  [[nodiscard]] static Run& of(const Trainer& trainer) { return *trainer.run_; }

  // ---- A fit (fit.cpp)
  // Trainer::fit. A search of the tuner passes `instead`, which is called in place of the training, after the set-up.
  void fit(TrainModule& module, const FitOptions& options, const Function<void()>& instead = {});
  // The same for a user's call: in copies of this process, where the strategy has them (copies.cpp).
  void fit_in_place(TrainModule& module, const FitOptions& options);
  // Runs a stage in copies of this process, takes over what comes back, and returns what it returned on rank 0.
  std::vector<Metrics> in_copies(const char* call, TrainModule& module, const Function<std::vector<Metrics>()>& stage);
  void check_idle(const char* call) const;        // throws StateError while a stage runs or a checkpoint is written
  void connect();                                 // starts or joins the processes of the run
  void move_to_accelerator(TrainModule& module);  // that strategy or options name; nothing for auto

  // ---- The loop (loop.cpp)
  void train_epochs();              // until a limit is reached or a stop is granted
  void train_epoch();               // from the batch after the last trained one
  void train_batch(StepInfo info);  // the step, and everything up to the next batch
  void follow_batch();              // after on_train_batch_end: the record, a validation, plateau schedules
  void follow_epoch();              // after on_train_epoch_end: means, plateau schedules, the next epoch
  void forward_epoch();             // Trainer::forward_epoch: runs training_step on each batch, and trains nothing
  [[nodiscard]] bool limits_reached() const;
  void agree();            // the ranks' requests to stop and their signals become those of all
  void check_interrupt();  // after a signal it saves the run and throws InterruptedError
  [[nodiscard]] train::WaitsEnd ends_waits() const;  // for the stage's SignalGuard
  // Whether the error ends all ranks at the same place: a signal that they agreed on.
  [[nodiscard]] bool ends_together(const std::exception& error) const;

  // ---- One batch (step.cpp)
  // Calls the transfer hooks, and moves and converts the batch to `device` and the precision's dtype. `recorded`: the
  // steps that may read the batch where a record expects it, or null.
  void to_device(TrainModule& module, Batch& batch, Device device, const train::StepCapture* recorded = nullptr);
  train::StepResult step(const StepInfo& info);      // captured, if TrainerOptions::capture asks for it
  train::StepResult step_now(const StepInfo& info);  // op by op
  void manual_backward(const Tensor& loss);

  [[nodiscard]] StepInfo info(const Batch* batch = nullptr) const;  // of the current batch
  [[nodiscard]] Device device_of(nn::Module* tree) const;           // of the tree's parameters; `device` if it has none

  Trainer& trainer;
  TrainerOptions options, constructed_with;  // constructed_with: options as the constructor left them
  // ---- Parts. A part that refers to another one is declared after it.
  std::shared_ptr<Strategy> strategy;  // never null
  train::Progress progress;
  Borrowed borrowed;
  HookCalls hooks{*this, options, borrowed};
  train::Precision precision;
  train::StageLoaders loaders{*this};
  train::Transfer transfer;
  train::Stopping stop{options, progress, hooks.callbacks};
  train::Window window{options, progress, loaders.batches, borrowed.manual};
  train::Optimizers optimizers{*this};
  std::optional<train::StepCapture> capture;  // during a fit whose options ask for it
  CaptureReport capture_report;
  train::RunLogs logs{*this};
  train::Instruments instruments{*this, options};
  Evaluation evaluation{*this};
  Files files{*this};

  // ---- The current stage
  Device device = Device::cpu();  // of the parameters
  const char* call_name = "";     // for messages: "fit", "validate", "test", "predict", "evaluate"
  bool in_fit = false;
  bool in_batch = false;  // from the transfer of a training batch to its end; progress.batches_done is its index
  bool in_training_step = false;
  bool step_torn = false;  // from the second run of a step's closure until the batch counts
  bool searching = false;  // the stage is a search of the tuner
  bool fitted_in_copies = false;
  bool trial = false;     // a trial of the tuner, which is undone, so it reports and saves nothing
  Tensor seen_loss;       // of the newest step, detached; reused without an allocation if the user kept no copy
  bool planning = false;  // a step on meta (Note [Plans]), without a loss scale, whose value meta does not have

 private:
  // ---- fit.cpp. `has`: what module and data module override. `begins`: false at the end of the fit.
  void begin_fit(TrainModule& module, const FitOptions& options, const Overrides& has, bool manual);
  void attach(TrainModule& module, bool begins);
  [[nodiscard]] bool configure_optimizers();
  void train(std::unique_ptr<train::Incoming>& file);  // from the resume to on_fit_end, around train_epochs
  void clear_gradients();
  // ---- The step: automatic_step and forward_backward in loop.cpp, the others in step.cpp
  struct AutomaticStep;  // one call of automatic_step
  [[nodiscard]] train::StepResult automatic_step(const StepInfo& info);
  [[nodiscard]] Tensor forward_backward(AutomaticStep& step);  // the closure of the optimizer's step; returns the loss
  [[nodiscard]] train::StepResult manual_step(const StepInfo& info);
  [[nodiscard]] StepOutput training_step(TrainModule& module, const Batch& batch, std::int64_t batch_idx);
  [[nodiscard]] NamedTensors detached_outputs(const StepOutput& output) const;  // without the loss
};

}  // namespace levin
