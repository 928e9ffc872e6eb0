// Hooks: the points of a run at which a module or a callback may act, and in which order they come.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/data.h"
#include "levin/optim.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin {

class Trainer;
struct HookTable;

// The call that runs: fit includes its validations.
enum class Stage : std::uint8_t { fit, validate, test, predict };

// The batch at hand, as hooks of batches see it.
struct StepInfo {
  std::int64_t epoch = 0;           // index of the epoch, from 0
  std::int64_t batch_idx = 0;       // index of the batch in the epoch, from 0
  std::int64_t dataloader_idx = 0;  // index of the loader in an evaluation
  std::int64_t global_step = 0;     // completed optimizer steps
  const Batch* batch = nullptr;     // on the module's device; valid during the call
  // What the step returned, detached: the loss divided by accumulate_grad_batches (with exact weighting sum / weight),
  // and the other outputs. Undefined before the forward pass and in evaluations. A captured step writes the next batch
  // and loss to the same memory: clone() what you keep.
  Tensor loss;
  NamedTensors outputs;
};
// The answer of on_train_batch_start.
enum class BatchStart : std::uint8_t { proceed, skip_epoch };

// What a callback or a module keeps in a checkpoint.
struct CallbackState {
  Metadata values;
  NamedTensors tensors;
};
// A checkpoint that is about to be written, or that was just read: the weights under their own names, and the state of
// the module or callback whose hook is called.
struct CheckpointContent {
  NamedTensors weights;
  CallbackState state;
};

// The order of a fit. Functions marked (m) belong to the module alone, (d) to data module or module.
//
//   configure_callbacks (m)
//   prepare_data                           the data module alone
//   setup
//   configure_model (m)
//   on_load_checkpoint                     the run resumes: the module's, then those of callbacks; then weights load
//   configure_optimizers (m)
//   load_state                             the run resumes; val_loader and train_loader are called before it
//   on_fit_start
//   val_loader (d)
//   on_sanity_check_start                  not if the run resumes
//   |  a validation
//   on_sanity_check_end
//   train_loader (d)
//   on_train_start                         from here on if there is something to train
//   |  on_train_epoch_start
//   |  |  on_before_batch_transfer, transfer_batch_to_device, on_after_batch_transfer (d)
//   |  |  on_train_batch_start
//   |  |  optimizer_step (m)               last batch of a window: calls all of the next nine
//   |  |  |  training_step (m)
//   |  |  |  on_before_zero_grad           first batch of a window
//   |  |  |  optimizer_zero_grad (m)       first batch of a window
//   |  |  |  on_before_backward
//   |  |  |  the backward pass
//   |  |  |  on_after_backward
//   |  |  |  on_before_optimizer_step      last batch of a window
//   |  |  |  configure_gradient_clipping (m)
//   |  |  |  the update
//   |  |  schedules of the learning rate move, those of epochs in the epoch's last batch
//   |  |  on_train_batch_end
//   |  |  a record, a validation, plateau schedules: each if it is due
//   |  on_train_epoch_end
//   on_train_end
//   on_fit_end
//   teardown                               also after an exception, after on_exception
//
// A window is accumulate_grad_batches batches, or what is left of the epoch. Its other batches run from training_step
// to on_after_backward alone. With manual optimization training_step runs alone; manual_backward and
// OptimizerHandle::step call the hooks of backward and step.
//
// The order of a validation; test and predict have their own names in it. Without a batch none is called.
//
//   on_validation_model_zero_grad (m)      in a fit, if no window is open
//   on_validation_model_eval (m)
//   on_validation_start
//   |  on_validation_epoch_start
//   |  |  on_validation_batch_start
//   |  |  validation_step (m)
//   |  |  on_validation_batch_end
//   |  on_validation_epoch_end
//   on_validation_end
//
// At each point the data module comes first, then the callbacks in the order of the list, then the module. Exceptions:
//   on_train_epoch_end of a callback with after_module() comes after the module's;
//   on_train_batch_end, on_train_epoch_end, and on_validation_end of fit's own validations, of a callback with
//   writes_checkpoints() come last of all, so that a file has what all others did;
//   on_exception: callbacks, module, data module.
class LEVIN_API Hooks {
 public:
  virtual ~Hooks() = default;
  // ---- A stage
  virtual void setup(Stage) {}
  virtual void teardown(Stage) {}  // also after an exception

  // ---- A fit
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_sanity_check_start() {}
  virtual void on_sanity_check_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  // skip_epoch ends the epoch: this batch is not trained, no later one is loaded, and no further validation of the
  // epoch runs.
  virtual BatchStart on_train_batch_start(const StepInfo&) { return BatchStart::proceed; }
  virtual void on_train_batch_end(const StepInfo&) {}

  // ---- Evaluations
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_validation_batch_start(const StepInfo&) {}
  virtual void on_validation_batch_end(const StepInfo&) {}
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_test_batch_start(const StepInfo&) {}
  virtual void on_test_batch_end(const StepInfo&) {}
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_predict_batch_start(const StepInfo&) {}
  virtual void on_predict_batch_end(const StepInfo&) {}

  // ---- Checkpoints. What a hook changes in `content` changes the file, or what the run gets from it.

  // Before the weights and this object's state are written. A run that resumes continues after the hook in which the
  // file was written. Callbacks with writes_checkpoints() whose turn had not come are called first, in
  // on_train_batch_end without loss and batch. Others that were still to come in that hook are not called.
  virtual void on_save_checkpoint(CheckpointContent& /*content*/) {}
  // After the file was read, before anything of the run changes and before optimizers are made, so that a module may
  // make the layers that the file has. The file may still be refused, for what hooks made of it or by a load_state.
  virtual void on_load_checkpoint(CheckpointContent& /*content*/) {}
  // Before a stage rethrows the exception, also an interrupt. What this hook throws becomes a warning.
  virtual void on_exception(const std::exception&) {}

 private:
  friend class Trainer;
  friend struct HookTable;
  // ---- Inside a step. An override of one of these four keeps the step from being captured (TrainerOptions::capture).
  // They are private because only the trainer calls them: a default body that runs reports that there is no override.

  // Gradients are those of the step before, unscaled and clipped. An override of this hook or of
  // on_before_optimizer_step has them unscaled and clipped in memory. Without one, an update on a device unscales and
  // clips gradients as it reads them: until they are cleared, other hooks see what backward left.
  virtual void on_before_zero_grad(optim::Optimizer&) { not_provided(); }
  // `loss` is detached. Loss and gradients are multiplied by the loss scale, if there is one, here and in
  // on_after_backward.
  virtual void on_before_backward(const Tensor& /*loss*/) { not_provided(); }
  virtual void on_after_backward() { not_provided(); }
  // Gradients are unscaled and not clipped yet.
  virtual void on_before_optimizer_step(optim::Optimizer&) { not_provided(); }
  static void not_provided() noexcept;
};

// The checkpoints that a callback has saved in a run: ckpt_path = "last" and "best" look there. An interrupt writes
// last.safetensors into the first folder that the run's callbacks name.
struct CheckpointFiles {
  std::string folder{};               // of its files; empty: it has none
  std::string best{};                 // empty: none yet
  bool keeps_best = true;             // false: there never is a best one
  std::vector<std::string> others{};  // files outside of the folder
};

// Watches or steers a run from outside of the module. Add it by TrainerOptions::callbacks or configure_callbacks.
class LEVIN_API Callback : public Hooks {
 public:
  // ---- State in checkpoints

  // The name of the state in a checkpoint. Empty: the callback has none. ConfigError if two callbacks of a run share
  // one.
  [[nodiscard]] virtual std::string state_key() const { return {}; }
  [[nodiscard]] virtual CallbackState state() const { return {}; }
  // Called after the weights were loaded and the optimizers made, before anything else of the run changes. Throw for a
  // state that does not fit: fit then restores the weights and rethrows; this callback, and those called before it, get
  // back what their state() returned.
  virtual void load_state(const CallbackState&) {}
  // True: if a file has no state under state_key(), load_state gets the state under `key`, unless another callback of
  // the run has that key.
  [[nodiscard]] virtual bool takes_state_of(std::string_view /*key*/) const { return false; }
  // ---- What the trainer asks a callback, also outside of runs, when trainer() throws

  // True: on_train_epoch_end runs after the module's, because it acts on what the module logged there.
  [[nodiscard]] virtual bool after_module() const { return false; }
  // True: the callback saves checkpoints in hooks, so its on_train_batch_end, on_validation_end and on_train_epoch_end
  // run last, at any place in the list.
  [[nodiscard]] virtual bool writes_checkpoints() const { return false; }

  // What a callback is, for the trainer's defaults.
  //   progress_bar, summary, checkpoint   the trainer adds none of its own; two progress bars are a ConfigError
  //   timer                               max_time adds none, and max_epochs has no default
  //   search                              runs before the other callbacks; Tuner calls know only Levin's own searches
  enum class Kind : std::uint8_t { other, progress_bar, summary, timer, checkpoint, search };
  [[nodiscard]] virtual Kind kind() const { return Kind::other; }
  // The files of a callback that saves checkpoints. A folder that the trainer chooses is empty while attached() is
  // false. ckpt_path = "best" asks the first callback of Kind::checkpoint; for an earlier run it reads
  // "best_model_path" in that callback's state.
  [[nodiscard]] virtual std::optional<CheckpointFiles> checkpoint_files() const { return {}; }
  // For a callback that changes accumulate_grad_batches in on_fit_start and on_train_epoch_start: its value in an
  // epoch, and the largest of all epochs. 0: the callback does not change it. Read by checks before a run and by a
  // resume inside a window.
  [[nodiscard]] virtual std::int64_t accumulation_at(std::int64_t /*epoch*/) const { return 0; }
  [[nodiscard]] virtual std::int64_t largest_accumulation() const { return 0; }
  // True: fit without a logger is a ConfigError, because nothing would keep what the callback logs.
  [[nodiscard]] virtual bool needs_logger() const { return false; }
  // Shows a line of Trainer::print and returns true; false: the next callback is asked, at last stdout.
  virtual bool print_line(std::string_view /*line*/) { return false; }

  // The trainer, while a stage of it runs. Throws StateError outside of one.
  [[nodiscard]] Trainer& trainer() const;
  [[nodiscard]] bool attached() const { return trainer_ != nullptr; }

 private:
  friend class Trainer;
  Trainer* trainer_ = nullptr;
};

}  // namespace levin
