// Trainer: trains a module over epochs and batches, calls hooks around each, and writes checkpoints from which a run
// resumes with the same bits.
//
//   Trainer trainer({.max_epochs = 3, .gradient_clip_val = 1.0});
//   trainer.fit(net, {.train = train, .val = val});  // net is a TrainModule (levin/train/module.h)
//   trainer.test(net, test);
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/data.h"
#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/optim.h"
#include "levin/sync.h"
#include "levin/tensor.h"
#include "levin/train/hooks.h"
#include "levin/train/metric.h"
#include "levin/train/module.h"
#include "levin/train/options.h"
#include "levin/train/records.h"

namespace levin {

class DataModule;

// Loaders that outlive the call: none, one or several, or a data module in their place.
class LEVIN_API LoaderRefs {
 public:
  LoaderRefs() = default;
  LoaderRefs(data::DataLoader& one) : all_{&one} {}
  LoaderRefs(DataModule& data_module) : data_module_(&data_module) {}
  LoaderRefs(data::DataLoader* one);                         // null: none
  LoaderRefs(std::initializer_list<data::DataLoader*> all);  // throws ConfigError for a null pointer
  [[nodiscard]] const std::vector<data::DataLoader*>& all() const { return all_; }
  [[nodiscard]] DataModule* data_module() const { return data_module_; }
  [[nodiscard]] bool empty() const { return all_.empty(); }  // no loader; there may be a data module

 private:
  std::vector<data::DataLoader*> all_;
  DataModule* data_module_ = nullptr;
};

// ---- Options of a call

// A loader that is not given comes from a hook (train_loader, val_loader): of the data module, else of the module.
// Loaders and a data module in one call are a ConfigError. The data module outlives the call.
struct FitOptions {
  LoaderRefs train{};                 // several are combined (data::combine)
  LoaderRefs val{};                   // several are validated one after the other
  DataModule* data_module = nullptr;  // may also be given as `train`
  // The checkpoint that the run resumes from. Empty: none. A path, or
  //   "last"  the newest whole file: ModelCheckpointOptions::dirpath says where; also of default_root_dir the
  //           rescue-*.safetensors that survivors of a lost rank write, and hpc_ckpt files (Note [Requeue]); if none, a
  //           new run and a warning
  //   "best"  ModelCheckpoint::best_model_path of this trainer, else of the run that wrote "last"; ConfigError if none
  //   "hpc"   the newest whole hpc_ckpt file of a requeued job (Note [Requeue]); ConfigError if none
  std::string ckpt_path{};
};
// Of validate and test.
struct EvaluationOptions {
  DataModule* data_module = nullptr;
  // The file whose weights the module gets before the evaluation, and keeps: a checkpoint, or weights alone; named as
  // in FitOptions. The module's on_load_checkpoint may change the weights. Another float precision is converted.
  // Nothing else of the file is read. In a hook it must be empty (StateError).
  std::string ckpt_path{};
  bool verbose = true;  // print the results as a table on stderr; in a hook none is printed
};
struct PredictOptions {
  DataModule* data_module = nullptr;
  std::string ckpt_path{};  // as in EvaluationOptions
  // False: predict returns nothing, which saves memory; hooks see each result as "prediction" in StepInfo::outputs.
  bool return_predictions = true;
};
// Of the fit that is given an optimizer.
struct StepOptions {
  std::vector<SchedulerConfig> schedulers{};
  std::string ckpt_path{};  // as in FitOptions
};

enum class WeightsOnly : bool { no, yes };
enum class KeepStop : bool { no, yes };

// ---- Optimizers of a running fit

// While it lives, the parameters of all other optimizers require no gradient; after it all flags are as before. With
// one optimizer it does nothing.
class LEVIN_API ToggledModel {
 public:
  ToggledModel(ToggledModel&&) noexcept;
  ToggledModel& operator=(ToggledModel&&) = delete;
  ~ToggledModel();

 private:
  friend class OptimizerHandle;
  struct State;
  explicit ToggledModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A copy of the numbers of one parameter group. OptimizerHandle::optimizer() has the functions that set them.
struct ParamGroup {
  optim::Parameters parameters;
  double lr = 0;
  std::optional<double> momentum{}, weight_decay{};  // unset: the optimizer has none
};

// An optimizer of a running fit. Steps through it use the run's loss scale and count in Trainer::global_step().
class LEVIN_API OptimizerHandle {
 public:
  // Runs the closure (forward and backward) if there is one, then updates the parameters. Returns what the closure
  // returned. With manual optimization each call adds 1 to global_step().
  // One loss scale serves all optimizers. It moves at the first manual_backward or forward_backward after a step, or
  // where the batch ends: gradients of an optimizer that has not stepped by then are of the old scale. Step all
  // optimizers where the accumulation ends. Under a loss scale a second step without a backward pass between throws
  // StateError.
  void step();
  Tensor step(const Function<Tensor()>& closure);
  void zero_grad(optim::SetToNone set_to_none = optim::SetToNone::yes);
  [[nodiscard]] optim::Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] std::vector<ParamGroup> param_groups() const;
  // For a step that trains this optimizer's part of the model alone. Frozen parameters stay frozen; a parameter of
  // several optimizers counts as this one's. `sync_grad` = no also keeps gradients from being reduced over ranks.
  // Throws StateError while another optimizer is toggled.
  [[nodiscard]] ToggledModel toggle_model(SyncGrad sync_grad = SyncGrad::yes);

 private:
  friend class Trainer;
  OptimizerHandle(Trainer* trainer, optim::Optimizer* optimizer) : trainer_(trainer), optimizer_(optimizer) {}
  Trainer* trainer_;
  optim::Optimizer* optimizer_;
};

// Note [Interrupts]
// While a stage runs, SIGINT, SIGTERM, SIGHUP and SIGUSR1 only set a flag. The trainer reads the flag between batches
// and after the stage's last hook. Then
//   1. a fit that has trained something and has checkpointing on saves last.safetensors (last-v1.safetensors and so on
//      if another run wrote a file of that name);
//   2. the stage throws InterruptedError; stop_signal() returns the number, and programs exit with 128 + number.
// A second signal exits at once. Trainers of several threads share the flag: one signal stops them all, except those
// with handle_signals = false. A signal that the process ignores when the stage begins (nohup, a script's background
// job) stays ignored; a program's own handler of SIGHUP or SIGUSR1 stays. SIGXFSZ is ignored for the stage if it would
// end the process, so that a file beyond its size limit is a FileError.
// With several ranks a signal of any rank is one of all: they agree on it after each batch, and at the end of an
// evaluation. It ends no wait for data.
//
// Note [Requeue]
// A job of SLURM has a time limit, before which SLURM sends a signal to the tasks that srun has started, if the batch
// script asks for it (#SBATCH --signal=USR1@90; dist::SlurmScript does). At TrainerOptions::requeue_signal, between two
// batches,
//   1. a fit that has trained something saves hpc_ckpt_N.safetensors in default_root_dir, where N is 1 above the
//      highest there; if that fails the job ends without a requeue;
//   2. all ranks ignore SIGTERM from here on, and rank 0 calls `scontrol requeue` (dist::requeue_job), upon which SLURM
//      sends SIGTERM to all tasks at once, and SIGKILL to those that live longer than its KillWait;
//   3. the stage throws InterruptedError, as after other signals.
// When the job starts again, the first fit of a Trainer that has no ckpt_path resumes the newest whole hpc_ckpt file,
// with an info line (I-CKPT-HPC). Outside of a SLURM task the signal is an ordinary one. The folder belongs to one job:
// another job in the same default_root_dir would resume this one's file.
//
// Note [What a trainer borrows]
// Modules, optimizers, data modules and loaders are the caller's. After a fit the trainer still refers to its module,
// optimizer and data module, for save_checkpoint, module(), optimizer(), evaluate, and validate and test without a
// module. If the module or the optimizer is destroyed by then, these throw StateError or return null. The trainer does
// not see that a data module or a bare tensor is destroyed, so both must outlive these calls.
class LEVIN_API Trainer {
 public:
  // Throws ConfigError for an option out of range, or two that exclude each other.
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // ---- Train

  // Trains until max_epochs, max_steps, max_time or a stop request ends the run. A second fit continues at the counters
  // of the first: raise options().max_epochs before it. The order of hooks is in levin/train/hooks.h.
  //   ConfigError                         before any work: a missing step, optimizer or loader, options in conflict
  //   FileError, FormatError, ConfigError ckpt_path cannot be resumed; then only the module's dtype may have changed
  //   InterruptedError                    a signal (Note [Interrupts])
  //   StateError                          called in a hook or step of this trainer
  // and what a hook, a step or a loader throws.
  // A checkpoint of another float precision is converted, with an info line (I-CKPT-CONVERTED). The exception is the
  // state of an optimizer whose parameters would be f16 without f32 masters: ConfigError. A run that resumes a file
  // written at the end of its training calls the hooks that were still to come, and ends at the same place.
  void fit(TrainModule& module, const FitOptions& loaders = {});
  void fit(TrainModule& module, DataModule& data_module) { fit(module, {.train = data_module}); }
  // The same for an optimizer and a function from a batch to its loss, which is logged as "train_loss". The module is
  // the tree that the optimizer's parameters belong to; ConfigError if they belong to two.
  void fit(optim::Optimizer& optimizer, data::DataLoader& train, Function<Tensor(const Batch&)> step,
           const StepOptions& options = {});

  // ---- Evaluate: one pass over each loader, in eval mode and without recording. After it each submodule has its own
  // mode again.

  // Return what the module logged, one entry a loader; with several loaders names end in "/dataloader_idx_0" and so on.
  // Without loaders the hook (val_loader, test_loader) of the data module is asked, else that of the module. Throw
  // ConfigError if there is no loader or no step; FileError, FormatError or ConfigError for a file that cannot be
  // loaded, which changes nothing.
  std::vector<Metrics> validate(TrainModule& module, const LoaderRefs& loaders = {},
                                const EvaluationOptions& options = {});
  std::vector<Metrics> test(TrainModule& module, const LoaderRefs& loaders = {}, const EvaluationOptions& options = {});
  // Returns what predict_step returned for each batch, one entry a loader, in the order of batches, also from a loader
  // without in_order. With several ranks every rank gets all: rows of samples in the order and batches of one process,
  // else the tensors of batches in the order of batches and ranks.
  std::vector<Tensors> predict(TrainModule& module, const LoaderRefs& loaders = {}, const PredictOptions& options = {});
  // The same for the module of the last call; without loaders and data module, for its data module too. Without a
  // ckpt_path the best checkpoint of the last fit is loaded, with a warning. Throw StateError before a call with a
  // module, after the module was destroyed, and in a hook.
  std::vector<Metrics> validate(const LoaderRefs& loaders = {}, const EvaluationOptions& options = {});
  std::vector<Metrics> test(const LoaderRefs& loaders = {}, const EvaluationOptions& options = {});
  std::vector<Tensors> predict(const LoaderRefs& loaders = {}, const PredictOptions& options = {});
  // The mean of f over the loader: sum_b f(b) size_b / sum_b size_b, where size_b is size(0) of the batch's first
  // field, over all ranks. log() weighs alike and a TrainModule's transfer hooks are called, so validate returns the
  // same number. Without `module`: that of the last fit. Throw StateError before a fit and after its module was
  // destroyed, ShapeError if f returns anything but one element, DataError for a loader without batches.
  [[nodiscard]] double evaluate(data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);
  [[nodiscard]] double evaluate(nn::Module& module, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);

  // ---- Counters. They start at 0 unless noted, keep their values after a fit, and are stored in checkpoints.

  // Completed epochs: k in epoch k, the number of epochs after the last.
  [[nodiscard]] std::int64_t current_epoch() const;
  // Completed optimizer steps; with manual optimization every OptimizerHandle::step counts.
  [[nodiscard]] std::int64_t global_step() const;
  // Index of the batch in its epoch; -1 before the first batch of an epoch.
  [[nodiscard]] std::int64_t batch_idx() const;
  [[nodiscard]] std::int64_t total_batch_idx() const;  // batches trained in all epochs
  // Batches of an epoch, as limit_train_batches leaves them; 0 until the training loader is known, -1 while its streams
  // have no known end.
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  // True in the last batch of an epoch, from its first hook to its last.
  [[nodiscard]] bool is_last_batch() const;
  // `step` of the next LogRecord of training: global_step(), or with manual optimization total_batch_idx().
  [[nodiscard]] std::int64_t record_step() const;
  [[nodiscard]] std::int64_t max_epochs() const;  // the limit in force; -1: none
  // Optimizer steps of the whole run, at most 2^63 - 1; no value if nothing limits them, or epochs alone and the loader
  // has no length. Asks train_loader if the loader is not known yet. Throws StateError outside of fit, and while a
  // callback schedules accumulate_grad_batches.
  [[nodiscard]] std::optional<std::int64_t> estimated_stepping_batches() const;

  // ---- Ranks, known from the first stage on

  [[nodiscard]] int global_rank() const;  // of this process among all, 0 .. world_size() - 1
  [[nodiscard]] int local_rank() const;   // among those of this node
  [[nodiscard]] int node_rank() const;
  [[nodiscard]] int world_size() const;  // processes of the run
  [[nodiscard]] bool is_global_zero() const { return global_rank() == 0; }
  // How processes and devices share the work, for collectives of your own: every rank must call them.
  [[nodiscard]] Strategy& strategy() const;

  // ---- What the trainer is doing

  // True in on_train_epoch_end and after it if max_steps ended the run within this epoch. A run that resumes, from a
  // file or in a second fit, trains the rest of the epoch and calls on_train_epoch_end again. So leave what belongs
  // once to an epoch for then: early stopping makes no check, an average takes its update of the epoch in on_train_end,
  // and no checkpoint has what was logged in on_train_epoch_end. A stop request or max_time closes the epoch instead: a
  // run that resumes begins the next one.
  [[nodiscard]] bool epoch_is_cut() const;
  [[nodiscard]] bool sanity_checking() const;
  // In a validation that fit itself runs: neither the sanity check nor one that a hook calls.
  [[nodiscard]] bool validating() const;
  [[nodiscard]] bool nested_evaluation() const;   // in an evaluation that a hook of another evaluation called
  [[nodiscard]] bool validation_enabled() const;  // in a fit that has a validation loader, a step and a limit above 0
  // True if val_check_interval is the fraction 1.0 and check_val_every_n_epoch is 1. Then checks of a finished epoch
  // (early stopping, checkpoints) belong to its end, else to the end of a validation.
  [[nodiscard]] bool validates_once_an_epoch() const;
  // Batches that the evaluation takes from the loader at hand; -1: all of streams without a length.
  [[nodiscard]] std::int64_t evaluation_batches() const;

  // ---- End a run

  // Ends the run after this batch, once min_epochs and min_steps are met; one more validation and the hooks of the
  // epoch's end still run. `why` names the reason in messages. A checkpoint keeps the request: a run that resumes from
  // it ends where this one does. If its max_epochs or max_steps is larger it trains on, and an info line
  // (I-CKPT-STOPPED) reports `why`. `keep` = no is for callbacks that ask again by themselves under a limit that may
  // change, as Timer does.
  void request_stop(KeepStop keep = KeepStop::yes, std::string_view why = {});
  [[nodiscard]] bool stop_requested() const;
  // The signal that stopped a stage, which fit sets back to 0.
  [[nodiscard]] int stop_signal() const;

  // ---- Log. A module calls its own log(), which forwards to these.

  // Keeps `value` (one element, detached, as f64) for the step's record and the epoch's mean. The value stays on its
  // device until a record is written: every log_every_n_steps-th step, each epoch, each evaluation. With on_step an
  // evaluation writes one record a batch, whose step counts that loader's batches. With on_step and on_epoch the
  // records have "name_step" and "name_epoch". Steps and hooks of batches may log, but not those of predict. Hooks of
  // epochs and on_train_start, on_validation_start and on_test_start may log for the epoch only. Throws StateError in
  // any other hook, ShapeError for more than one element, ConfigError
  //   for one name with two sets of options in one hook;
  //   for on_step = false with on_epoch = false, and for on_step = true in a hook of epochs;
  //   for a name that contains "/dataloader_idx_", unless add_dataloader_idx is false.
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  // Records of steps have the newest batch's value, those of epochs compute(), after which the metric is reset. The
  // metric is logged by reference: update it before or after. It may be destroyed before the run ends. Throws
  // ConfigError for one metric in training and in evaluation.
  void log(std::string_view name, const Metric& metric, const LogOptions& options = {});
  // Logs the integer as a double, with a warning (W-LOG-INTEGRAL).
  template <std::integral I>
  void log(std::string_view name, I value, const LogOptions& options = {}) {
    TrainModule::warn_of_integral(name);
    log(name, static_cast<double>(value), options);
  }
  // Logs each value under its name, all with the same options.
  void log_dict(const NamedTensors& values, const LogOptions& options = {});
  void log_dict(const Metrics& values, const LogOptions& options = {});
  // Prints a line on stdout, above the progress bar if there is one; in rank 0 alone.
  void print(std::string_view line) const;
  // The newest value of each name; empty before the first log(). Waits for the device. With several ranks values of
  // ended epochs and evaluations are those of all ranks, those of an open epoch this rank's.
  [[nodiscard]] Metrics callback_metrics();
  [[nodiscard]] Metrics progress_metrics();  // the same of values logged with prog_bar
  // Every record of this trainer, in order.
  [[nodiscard]] const std::vector<LogRecord>& history() const;

  // ---- Reports of the running or last fit; empty before the first

  // Where the time went, in words: the share of waiting for data, forward, backward and so on, and what to try first.
  // Set when fit ends, and printed on stderr if enable_progress_bar is on.
  [[nodiscard]] const std::string& step_time_report() const;
  [[nodiscard]] const StepTimes& step_times() const;  // the same as numbers
  // Every wait of the host for a device, by place in the program.
  [[nodiscard]] const SyncLedger& sync_report() const;
  // Copies between host and device that training batches made, from their transfer to the end of the optimizer's step,
  // without those of a replayed step. More copies to the device than the batch has tensors cause a warning.
  struct CopyReport {
    std::int64_t batches = 0;
    CopyCounts newest{}, all{};  // of the newest batch, of all
  };
  [[nodiscard]] const CopyReport& copy_report() const;
  // What became of TrainerOptions::capture, which says what a replay leaves out.
  struct CaptureReport {
    std::int64_t recorded = 0;   // graphs, one for each shape of batch
    std::int64_t replayed = 0;   // steps
    std::string prevented_by{};  // why steps run op by op, also printed as a warning; empty: nothing prevents it
  };
  [[nodiscard]] CaptureReport capture_report() const;
  // Optimizer steps that the loss scale skipped because a gradient was not finite, over all fits; 0 without a loss
  // scale. Waits for the device.
  [[nodiscard]] std::int64_t skipped_steps() const;

  // ---- Checkpoints

  // Writes the state of the run, or the weights alone, atomically as one safetensors file: weights under their names,
  // the rest under "levin."; as NAME.levin a folder, to which each rank writes its part (StateDictType). Removes what
  // killed saves left in that folder (NAME.safetensors.tmp-*), nothing that another process may be writing. All ranks
  // call it, and an error of one is that of all; in on_exception rank 0 writes what it has. Throws FileError;
  // StateError before a fit and after its module or optimizer was destroyed. In the middle of a batch the file has what
  // the forward pass did to buffers, random numbers and metrics, and a run that resumes trains that batch again: a
  // warning (W-CKPT-WINDOW) says so. In a tuner's trial nothing is written, with a warning (W-CKPT-TRIAL).
  void save_checkpoint(const std::string& path, WeightsOnly weights = WeightsOnly::no);
  [[nodiscard]] const std::string& resumed_from() const;  // the file that the last fit resumed; empty: none

  // ---- The parts of a run

  // May be changed between two calls, max_epochs before a second fit say. The next stage or epoch throws ConfigError if
  // one was changed that only the constructor reads: callbacks, logger, devices, num_nodes, strategy, plugins,
  // fast_dev_run, max_time, overfit_batches, enable_checkpointing, enable_progress_bar, enable_model_summary,
  // barebones, precision, amp_level, grad_scaler.
  [[nodiscard]] TrainerOptions& options();
  // The module tree of the running or last fit. Null before a fit, for bare tensors, and after it was destroyed.
  [[nodiscard]] nn::Module* module() const;
  [[nodiscard]] optim::Optimizer* optimizer() const;      // the first one; null as module()
  [[nodiscard]] std::span<OptimizerHandle> optimizers();  // throws StateError outside of fit
  // Of the running or last fit. A callback may replace them between steps.
  [[nodiscard]] std::vector<SchedulerConfig>& schedulers();
  [[nodiscard]] data::DataLoader* train_loader() const;  // of the running fit; null until it is known
  [[nodiscard]] DataModule* data_module() const;         // of the running stage; null: none
  // The user's callbacks and those that the trainer adds; while a module runs, also the module's.
  [[nodiscard]] const std::vector<std::shared_ptr<Callback>>& callbacks() const;
  [[nodiscard]] const std::vector<std::shared_ptr<Logger>>& loggers() const;  // none with fast_dev_run

  // For callbacks at the end of a fit: runs training_step on each batch of one more epoch, to re-estimate statistics.
  // The epoch counts in current_epoch(), except while another is open; nothing else is trained, logged or counted, and
  // no hook is called. Modules keep modes. Throws StateError outside of fit, ConfigError for an endless epoch.
  void forward_epoch();

  struct Run;  // internal, with its parts (train/run/run.h)
  class Borrowed;
  class Evaluation;
  class Files;
  class HookCalls;

 private:
  std::unique_ptr<Run> run_;
};

}  // namespace levin
