// A run: the parts of a Trainer, and the loop over them. Each part has its own header. run/fit.cpp sets a fit up and
// takes it down, run/loop.cpp is the loop, run/step.cpp one step.
#pragma once

#include <memory>
#include <optional>

#include "levin/train.h"
#include "train/checkpoint/files.h"
#include "train/data/stage_loaders.h"
#include "train/logs/run_logs.h"
#include "train/optimize/capture.h"
#include "train/optimize/optimizers.h"
#include "train/optimize/precision.h"
#include "train/profiler/instruments.h"
#include "train/run/borrowed.h"
#include "train/run/evaluation.h"
#include "train/run/hook_calls.h"
#include "train/run/progress.h"
#include "train/run/ranks.h"
#include "train/run/scope.h"
#include "train/run/stopping.h"
#include "train/run/window.h"

namespace levin {

struct Trainer::Run {
  Run(Trainer& trainer, TrainerOptions options);
  [[nodiscard]] static Run& of(const Trainer& trainer) { return *trainer.run_; }

  // ---- A fit (fit.cpp). `instead` is called in place of the training, with everything set up for it: a search of the
  // tuner.
  void fit(TrainModule& module, const FitOptions& options, const Function<void()>& instead = {});
  void check_idle(const char* call) const;        // throws StateError while a stage runs
  void move_to_accelerator(TrainModule& module);  // where the options name one

  // ---- The loop (loop.cpp)
  void train_epochs();
  void train_epoch();
  void train_batch(StepInfo info);
  void follow_batch();   // what follows on_train_batch_end
  void follow_epoch();   // what follows on_train_epoch_end
  void forward_epoch();  // an epoch of forward passes, in which nothing is trained
  [[nodiscard]] bool limits_reached() const;
  void check_interrupt();  // saves and throws InterruptedError when a signal came

  // ---- One batch (step.cpp)
  void to_device(TrainModule& module, Batch& batch, Device device);  // as steps read it: device, dtype
  train::StepResult step(const StepInfo& info);                      // captured, where the options say so
  train::StepResult step_now(const StepInfo& info);                  // op by op
  void manual_backward(const Tensor& loss);

  [[nodiscard]] StepInfo info(const Batch* batch = nullptr) const;
  [[nodiscard]] Device device_of(nn::Module* tree) const;  // of its parameters; the run's for a tree without any

  Trainer& trainer;
  TrainerOptions options, constructed_with;  // constructed_with: options as the constructor left them
  // ---- Parts
  train::Progress progress;
  Borrowed borrowed;
  HookCalls hooks{*this, options, borrowed};
  train::Precision precision;
  train::StageLoaders loaders{*this};
  train::Stopping stop{options, progress, hooks.callbacks};
  train::Window window{options, progress, loaders.batches, borrowed.manual};
  train::Optimizers optimizers{*this};
  std::optional<train::StepCapture> capture;  // while fit runs, where it is asked for
  CaptureReport capture_report;
  train::RunLogs logs{*this};
  train::Instruments instruments{*this, options};
  Evaluation evaluation{*this};
  Files files{*this};
  train::Ranks ranks;

  // ---- Of the stage at hand
  Device device = Device::cpu();  // the parameters'
  const char* call_name = "";     // the call under way, for messages: "fit", "validate", "test", "evaluate"
  bool in_fit = false;
  bool in_batch = false;  // from its transfer to its end: progress.batches_done is its index
  bool in_training_step = false;
  bool searching = false;  // the stage is there for the tuner
  bool trial = false;      // of the tuner: what happens is taken back, so nothing is reported or saved
  Tensor seen_loss;        // of the newest step, detached: its handle is used again where nobody kept it
  bool planning = false;   // a step on meta (Note [Plans]): without the loss scale, which has values

 private:
  void begin_fit(TrainModule& module, const FitOptions& options, const Overrides& has);
  void attach(TrainModule& module, bool begins);
  [[nodiscard]] bool configure_optimizers();
  void train(std::unique_ptr<train::Incoming>& file);
  void clear_gradients();
  [[nodiscard]] train::StepResult automatic_step(const StepInfo& info);
  [[nodiscard]] train::StepResult manual_step(const StepInfo& info);
  [[nodiscard]] StepOutput training_step(const StepInfo& info);
  [[nodiscard]] NamedTensors detached_outputs(const StepOutput& output) const;  // without the loss
};

}  // namespace levin
