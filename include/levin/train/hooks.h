// The points of a run at which a module or a callback may act.
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

// What a run is about: one of the four calls.
enum class Stage : std::uint8_t { fit, validate, test, predict };

// What a hook may read about the batch at hand.
struct StepInfo {
  std::int64_t epoch = 0;           // index of the epoch, from 0
  std::int64_t batch_idx = 0;       // index of the batch in the epoch, from 0
  std::int64_t dataloader_idx = 0;  // of several loaders of an evaluation
  std::int64_t global_step = 0;     // completed optimizer steps
  const Batch* batch = nullptr;     // lives during the call
  // What the step returned, detached: its loss divided by accumulate_grad_batches, and whatever else it gave. Undefined
  // before the forward pass and in evaluation. A captured step writes the next loss to the same memory (and its batch
  // to that of the batch): clone() what is kept.
  Tensor loss;
  NamedTensors outputs;
};
enum class BatchStart : std::uint8_t { proceed, skip_epoch };

// What a callback or a module keeps in a checkpoint.
struct CallbackState {
  Metadata values;
  NamedTensors tensors;
};
// A checkpoint as it is written or was read, for those who want to change it: the weights under their own names, and
// the state of the one who is asked.
struct CheckpointContent {
  NamedTensors weights;
  CallbackState state;
};

// Callbacks come first, in their order, then the module; only on_train_epoch_end of callbacks that act on a finished
// epoch (early stopping) follows the module's. Those that write checkpoints come last of all in on_train_batch_end,
// on_validation_end and on_train_epoch_end, so that a file holds what everybody did there.
//   fit:   setup, configure_model, [on_load_checkpoint of the module, then of callbacks; weights], configure_optimizers,
//          [load_state], on_fit_start, [sanity check: on_sanity_check_start, validation, on_sanity_check_end], on_train_start,
//          epochs, on_train_end, on_fit_end, teardown
//   epoch: on_train_epoch_start, batches, on_train_epoch_end
//   batch: on_train_batch_start, training_step, [on_before_zero_grad, gradients cleared], on_before_backward, backward,
//          on_after_backward, [on_before_optimizer_step, clipping, optimizer step, schedulers], on_train_batch_end,
//          [validation]
//   validation, test, predict: [on_validation_model_zero_grad], on_*_model_eval, on_*_start, on_*_epoch_start,
//          per batch [on_*_batch_start, step, on_*_batch_end], on_*_epoch_end, on_*_end; none of these without a batch
// In brackets: where it is due. configure_callbacks comes before all, in each of the four calls. With accumulation
// gradients are cleared in the first batch of a window, and the optimizer steps
// in the last.
//
// The four between training_step and the optimizer's step belong to the step itself: one that is overridden keeps the
// step from being captured (TrainerOptions::capture).
class LEVIN_API Hooks {
 public:
  virtual ~Hooks() = default;
  virtual void setup(Stage) {}
  virtual void teardown(Stage) {}  // also after an exception
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_sanity_check_start() {}
  virtual void on_sanity_check_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  // skip_epoch: this batch is not trained, no later one is loaded, and no validation runs in this epoch.
  virtual BatchStart on_train_batch_start(const StepInfo&) { return BatchStart::proceed; }
  virtual void on_train_batch_end(const StepInfo&) {}
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
  // The weights and this object's state, about to be written; just read, before anything of the run changes and before
  // optimizers are made, so that a module may change its layers to what the file has; the file may still be refused,
  // because of what the hooks made of it or by a load_state. What is changed in `content` is what the file, or the run,
  // gets. A run goes on behind the hook in which the file was written: writers of checkpoints whose turn had not come
  // are called first (on_train_batch_end without loss and batch); what others behind one that writes before its turn
  // (Callback::writes_checkpoints) do in the hook of the same name is not done again.
  virtual void on_save_checkpoint(CheckpointContent& /*content*/) {}
  virtual void on_load_checkpoint(CheckpointContent& /*content*/) {}
  // What fit, validate, test or predict is about to rethrow; an interrupt too. What it throws itself is lost.
  virtual void on_exception(const std::exception&) {}

 private:
  friend class Trainer;
  friend struct HookTable;
  // The hooks inside of a step. They can be overridden and not called: a default body that runs says that nobody
  // overrides it.
  virtual void on_before_zero_grad(optim::Optimizer&) { not_provided(); }
  // The loss, detached; times the loss scale where there is one, as are the gradients that on_after_backward sees.
  virtual void on_before_backward(const Tensor& /*loss*/) { not_provided(); }
  virtual void on_after_backward() { not_provided(); }
  virtual void on_before_optimizer_step(optim::Optimizer&) { not_provided(); }  // true gradients, not clipped yet
  static void not_provided() noexcept;
};

// What a callback has saved in a run: where ckpt_path "last" and "best" look. The first folder of a run's callbacks is
// also where an interrupt leaves last.safetensors.
struct CheckpointFiles {
  std::string folder{};               // of its files; empty: it has none
  std::string best{};                 // empty: none yet
  bool keeps_best = true;             // false: there never is a best one
  std::vector<std::string> others{};  // files outside of the folder
};

// Something that watches or steers a run from outside the module.
class LEVIN_API Callback : public Hooks {
 public:
  // Names the state in a checkpoint; callbacks with state need one of their own. Empty: no state.
  [[nodiscard]] virtual std::string state_key() const { return {}; }
  [[nodiscard]] virtual CallbackState state() const { return {}; }
  // Called when module, weights and optimizers are there, and before anything else of the run changes. Throw for a
  // state that does not fit: fit then rethrows and puts the weights back; callbacks that were given theirs already, and
  // this one, get back what state() told before.
  virtual void load_state(const CallbackState&) {}
  // True: load_state may be given what a file has under `key` where it has nothing under state_key() and no other
  // callback of the run has that key.
  [[nodiscard]] virtual bool takes_state_of(std::string_view /*key*/) const { return false; }
  // True: on_train_epoch_end runs after the module's, because it acts on what the module logged there.
  [[nodiscard]] virtual bool after_module() const { return false; }
  // True: it saves checkpoints in hooks, so on_train_batch_end, on_validation_end and on_train_epoch_end run after the
  // module's and after those of other callbacks, whatever its place in the list.
  [[nodiscard]] virtual bool writes_checkpoints() const { return false; }

  // What the trainer asks of callbacks of any class, also outside of runs, where trainer() throws. It adds a progress
  // bar, a summary, a timer (max_time) and checkpoints where no callback is of that kind. A run has one progress bar at
  // most. With a timer max_epochs has no default. A search runs first, so that the others see the run that it leads to;
  // the tuner's calls know Levin's own searches alone.
  enum class Kind : std::uint8_t { other, progress_bar, summary, timer, checkpoint, search };
  [[nodiscard]] virtual Kind kind() const { return Kind::other; }
  // The files of one that saves checkpoints; a folder that the trainer decides is empty while attached() is false.
  // "best" asks the first callback of Kind::checkpoint; of an earlier run it is what its state has under
  // "best_model_path".
  [[nodiscard]] virtual std::optional<CheckpointFiles> checkpoint_files() const { return {}; }
  // accumulate_grad_batches in an epoch, and the largest of all epochs, of a callback that sets TrainerOptions in
  // on_fit_start and on_train_epoch_start; 0: it does not. Checks before a run and a resume inside of a window ask
  // both.
  [[nodiscard]] virtual std::int64_t accumulation_at(std::int64_t /*epoch*/) const { return 0; }
  [[nodiscard]] virtual std::int64_t largest_accumulation() const { return 0; }
  // True: fit without a logger is a ConfigError, because what the callback logs would be nowhere.
  [[nodiscard]] virtual bool needs_logger() const { return false; }
  // Shows a line of Trainer::print; false: this callback has no place for it, and the next one is asked.
  virtual bool print_line(std::string_view /*line*/) { return false; }

  // The trainer while attached. Throws StateError outside.
  [[nodiscard]] Trainer& trainer() const;
  [[nodiscard]] bool attached() const { return trainer_ != nullptr; }

 private:
  friend class Trainer;
  Trainer* trainer_ = nullptr;
};

}  // namespace levin
