// Trainer: one loop over epochs and batches, hooks around it, checkpoints that continue the bit-identical run.
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

// Loaders that outlive the call: none, one, or several; or a data module in their place.
class LEVIN_API LoaderRefs {
 public:
  LoaderRefs() = default;
  LoaderRefs(data::DataLoader& one) : all_{&one} {}
  LoaderRefs(DataModule& data_module) : data_module_(&data_module) {}
  LoaderRefs(data::DataLoader* one);  // null: none
  LoaderRefs(std::initializer_list<data::DataLoader*> all);
  [[nodiscard]] const std::vector<data::DataLoader*>& all() const { return all_; }
  [[nodiscard]] DataModule* data_module() const { return data_module_; }
  [[nodiscard]] bool empty() const { return all_.empty(); }

 private:
  std::vector<data::DataLoader*> all_;
  DataModule* data_module_ = nullptr;
};

// Where train or val is empty a hook is asked: the data module's, else the module's (train_loader). Loaders and a data module
// together are a ConfigError. The data module outlives the call.
struct FitOptions {
  LoaderRefs train{};
  LoaderRefs val{};
  DataModule* data_module = nullptr;
  // A file, "last" (the newest whole one, see ModelCheckpointOptions::dirpath) or "best" (ModelCheckpoint::best_model_path, of this
  // trainer or of the run that wrote "last").
  std::string ckpt_path{};
};
// Of validate and test. With a ckpt_path the weights in that file are loaded first, by the module's on_load_checkpoint where it
// changes them, converted where it has another float precision, and nothing else of it: they stay in the module. It may be a checkpoint or hold weights alone; names as in
// FitOptions.
struct EvaluationOptions {
  DataModule* data_module = nullptr;
  std::string ckpt_path{};
  bool verbose = true;  // print the results as a table, to stderr
};
struct PredictOptions {
  DataModule* data_module = nullptr;
  std::string ckpt_path{};
  bool return_predictions =
      true;  // false: hooks alone see them, as "prediction" in StepInfo::outputs; the result is empty
};
struct StepOptions {
  std::vector<SchedulerConfig> schedulers{};
  std::string ckpt_path{};
};

enum class WeightsOnly : bool { no, yes };
enum class SyncGrad : bool { no, yes };
enum class KeepStop : bool { no, yes };

// Parameters of all other optimizers do not require gradients while it lives; afterwards all flags are what they were. Nothing with one optimizer.
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

// A group of an optimizer's parameters and its numbers, as they are at the call. OptimizerHandle::optimizer() sets
// them.
struct ParamGroup {
  optim::Parameters parameters;
  double lr = 0;
  std::optional<double> momentum{}, weight_decay{};  // empty where the optimizer has none
};

// An optimizer of a running fit, with the run's precision: steps go through its loss scale and are counted.
class LEVIN_API OptimizerHandle {
 public:
  // The closure (forward, backward), where one is given, and the update. Every call counts in global_step() with manual
  // optimization. Returns what the closure returned. The loss scale is one for all optimizers and may change after each step: where
  // one steps between the backward passes of another's window, part of that window was scaled by another number. Step all of them
  // where a window ends.
  void step();
  Tensor step(const Function<Tensor()>& closure);
  void zero_grad(optim::SetToNone set_to_none = optim::SetToNone::yes);
  [[nodiscard]] optim::Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] std::vector<ParamGroup> param_groups() const;
  // For a step that trains this optimizer's part of the model alone. Parameters that were frozen stay so, those of two
  // optimizers go with this one. `sync_grad` = no also keeps gradients from being reduced over ranks. Throws StateError while
  // another one lives.
  [[nodiscard]] ToggledModel toggle_model(SyncGrad sync_grad = SyncGrad::yes);

 private:
  friend class Trainer;
  OptimizerHandle(Trainer* trainer, optim::Optimizer* optimizer) : trainer_(trainer), optimizer_(optimizer) {}
  Trainer* trainer_;
  optim::Optimizer* optimizer_;
};

// Note [Interrupts]
// While a stage runs, SIGINT, SIGTERM, SIGHUP and SIGUSR1 only set a flag. It is noticed between batches and behind the
// stage's last hook: a fit that has trained something saves last.safetensors where checkpointing is on
// (last-v1.safetensors and so on where another run has written that), and the stage throws InterruptedError;
// stop_signal() then tells the number, with which programs exit (128 + signal). A second signal exits at once. Trainers of several
// threads share the flag: one signal stops them all, but for those with handle_signals = false. A signal that the
// process ignores when the stage begins (nohup, a script's background job) stays ignored; SIGHUP and SIGUSR1 are left
// to a handler that the program has for them. SIGXFSZ is ignored meanwhile where it would end the process, so that a
// file beyond the limit of its size is a FileError.
//
// Note [What a trainer borrows]
// Modules, optimizers, data modules and loaders are the caller's. A trainer remembers the module, optimizer and data module of its last
// fit for save_checkpoint, evaluate, validate and test without a module, module() and optimizer(). Where module or optimizer are gone by
// then, these throw StateError, or give null; a data module and bare tensors that a fit was given must live as long.
class LEVIN_API Trainer {
 public:
  // Throws ConfigError for options out of range or in contradiction.
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains until max_epochs, max_steps, max_time or a granted stop request. A second fit goes on from the counters (raise
  // options().max_epochs). Throws ConfigError before any work; FormatError, FileError or ConfigError for a checkpoint
  // that can not be resumed, and changes nothing then but what `precision` asks of the module; rethrows what the step
  // throws. A checkpoint of another float precision is converted, with an info line (I-CKPT-CONVERTED), but for the state of an
  // optimizer whose parameters would be f16 without f32 masters. A file that was written as its run was about to end ends this run
  // at the same place, with the hooks that were still to come.
  void fit(TrainModule& module, const FitOptions& loaders = {});
  void fit(TrainModule& module, DataModule& data_module) { fit(module, {.train = data_module}); }
  // `step` gives the loss of a batch. The module tree is found through the parameters' owner. Logs the loss as
  // "train_loss".
  void fit(optim::Optimizer& optimizer, data::DataLoader& train, Function<Tensor(const Batch&)> step,
           const StepOptions& options = {});

  // One pass over each loader in eval mode without recording; the metrics that the module logged, loader by loader: of several,
  // names end in "/dataloader_idx_0" and so on. Without loaders a hook is asked (test_loader), the data module's first. Throws
  // ConfigError where nobody has a loader; FileError, FormatError or ConfigError for a file that can not be loaded, and changes
  // nothing then.
  std::vector<Metrics> validate(TrainModule& module, const LoaderRefs& loaders = {},
                                const EvaluationOptions& options = {});
  std::vector<Metrics> test(TrainModule& module, const LoaderRefs& loaders = {}, const EvaluationOptions& options = {});
  // What predict_step gave for each batch, loader by loader.
  std::vector<Tensors> predict(TrainModule& module, const LoaderRefs& loaders = {}, const PredictOptions& options = {});
  // The same with the module of the last call, which lives still, and where neither loaders nor data module are given with its data
  // module. Without a ckpt_path the best checkpoint of the last fit is loaded, and a warning says so. Throws StateError when no
  // module is known, and in a hook.
  std::vector<Metrics> validate(const LoaderRefs& loaders = {}, const EvaluationOptions& options = {});
  std::vector<Metrics> test(const LoaderRefs& loaders = {}, const EvaluationOptions& options = {});
  std::vector<Tensors> predict(const LoaderRefs& loaders = {}, const PredictOptions& options = {});
  // sum_b f(b) size_b / sum_b size_b over the loader's batches, in eval mode without recording; each module's own mode
  // is restored. size_b is that of the first field's first dimension, as log() weighs, and a TrainModule's transfer hooks are
  // called, so that validate gives the same. The module is the last fit's (throws StateError before one, and where it is gone) or the
  // one given.
  [[nodiscard]] double evaluate(data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);
  [[nodiscard]] double evaluate(nn::Module& module, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);

  // Counters. During epoch k current_epoch() is k; afterwards it is the number of completed epochs.
  [[nodiscard]] std::int64_t global_step() const;
  [[nodiscard]] std::int64_t current_epoch() const;
  [[nodiscard]] std::int64_t batch_idx() const;          // -1 before the first batch of an epoch
  [[nodiscard]] std::int64_t total_batch_idx() const;    // batches trained in all epochs
  [[nodiscard]] std::int64_t batches_per_epoch() const;  // 0 until the training loader is there
  // `step` of the next LogRecord of training: the index of the optimizer step, with manual optimization of the batch.
  [[nodiscard]] std::int64_t record_step() const;
  // In on_train_epoch_end and behind it: max_steps ended the run in the middle of this epoch. A run that goes on, from a file or in a
  // second fit, trains the rest of it and calls on_train_epoch_end again, so what belongs once to an epoch is left for then: early
  // stopping makes no check, an average takes its update of the epoch in on_train_end, and what was logged in on_train_epoch_end is
  // in no checkpoint. A stop that was granted (request_stop, max_time) closes its epoch instead: a run that goes on begins the next.
  [[nodiscard]] bool epoch_is_cut() const;
  [[nodiscard]] bool is_last_batch() const;  // in the last batch of the epoch, from its start to its end
  // Optimizer steps of the whole run, at most 2^63 - 1; no value when unlimited. Throws StateError outside of fit, and while
  // an accumulation schedule is active.
  [[nodiscard]] std::optional<std::int64_t> estimated_stepping_batches() const;
  [[nodiscard]] std::int64_t max_epochs() const;  // -1: no limit
  // For callbacks at the end of a fit: one more epoch in which training_step is called on each batch without recording, to
  // re-estimate statistics. Nothing is trained, logged or counted but the epoch (an open one stays open), no hook is called.
  // Modules keep their modes. Throws StateError outside of fit.
  void forward_epoch();
  // What the run is doing: its stage, and whether that is the sanity check or a validation inside fit.
  [[nodiscard]] bool sanity_checking() const;
  [[nodiscard]] bool validating() const;  // by fit itself: neither the sanity check nor one that a hook calls
  [[nodiscard]] std::int64_t evaluation_batches() const;  // that the loader at hand will give to the evaluation
  [[nodiscard]] bool validation_enabled() const;          // in fit: there are loaders, a step and a limit above 0
  [[nodiscard]] bool nested_evaluation() const;           // in an evaluation that a hook of another one called
  // True when the checks of a finished epoch (early stopping, checkpoints) belong to its end, not to the end of a validation:
  // val_check_interval is the fraction 1.0 and check_val_every_n_epoch is 1.
  [[nodiscard]] bool validates_once_an_epoch() const;

  // Optimizer steps that did nothing because a gradient was not finite, since the scaler was made. Waits for the device.
  [[nodiscard]] std::int64_t skipped_steps() const;
  // What became of TrainerOptions::capture in the running or last fit. What prevents it is told in a warning as well, and the
  // steps run one by one: a hook of the step that is overridden, accumulation, manual optimization, a wait for the device
  // (item(), printing), a value of the host that is logged in the step, a device that records nothing, no memory for a record; of
  // more than eight shapes of batch the others run one by one. While steps are replayed, training_step is not called: what it does
  // beside ops on tensors, and what hooks on gradients do, happens once. A step is recorded again after parameters were frozen or
  // thawed, a module changed its mode, clipping was changed, or the optimizer got a state, a group or its first momentum.
  struct CaptureReport {
    std::int64_t recorded = 0;  // graphs: one a shape of batch
    std::int64_t replayed = 0;  // steps
    std::string prevented_by{};
  };
  [[nodiscard]] CaptureReport capture_report() const;

  // Where the time of the last fit went, in words: waiting for data, forward, backward and so on, with shares of the whole, and what
  // to try first. Printed at the end of a fit with the progress bar.
  [[nodiscard]] const std::string& step_time_report() const;
  [[nodiscard]] const StepTimes& step_times() const;
  // Every host wait of the running or last fit, by place.
  [[nodiscard]] const SyncLedger& sync_report() const;

  // Copies between host and device that training batches of the running or last fit made, from their transfer to the end of the
  // optimizer's step; a replayed step's are not among them. More to the device than a batch has tensors is warned of.
  struct CopyReport {
    std::int64_t batches = 0;
    CopyCounts newest{}, all{};  // of the newest batch, of all
  };
  [[nodiscard]] const CopyReport& copy_report() const;

  // Ends the run after this batch, once min_epochs and min_steps are met; one validation and the epoch-end hooks still run.
  // A checkpoint keeps the request, and `why`: a run that goes on from it ends where this one does, unless its max_epochs or max_steps
  // is larger; then it trains on, and an info line (I-CKPT-STOPPED) tells why its run was stopped. `keep` = no is for callbacks that
  // ask again by themselves, as Timer, whose limit may be another one by then.
  void request_stop(KeepStop keep = KeepStop::yes, std::string_view why = {});
  [[nodiscard]] bool stop_requested() const;
  [[nodiscard]] int stop_signal() const;  // 0: none

  // Keeps `value` (one element, detached, as f64) for the step's record and the epoch's mean. It stays on its device and is
  // read when a record is written: of every log_every_n_steps-th step, of each finished epoch, of each evaluation, and where
  // on_step asks for it of each batch of one, at the number of the batch since the loader's first. With both, records have
  // "name_step" and "name_epoch". Steps and hooks of batches may log, hooks of epochs and the starts of stages for the epoch
  // only, others not. Throws ShapeError for more than one element, StateError in a hook that may not log, ConfigError for one
  // name with two sets of options in a hook, for on_step = on_epoch = false, for a name that holds "/dataloader_idx_".
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  // The newest batch's value for steps, what compute() says for the epoch, after which the metric is reset. By reference: it may
  // be updated before or after, and may be gone when the run ends. Throws ConfigError for one in training and in evaluation.
  void log(std::string_view name, const Metric& metric, const LogOptions& options = {});
  // Warns, and takes the number as a double.
  template <std::integral I>
  void log(std::string_view name, I value, const LogOptions& options = {}) {
    TrainModule::warn_of_integral(name);
    log(name, static_cast<double>(value), options);
  }
  // Each under its name, with the same options.
  void log_dict(const NamedTensors& values, const LogOptions& options = {});
  void log_dict(const Metrics& values, const LogOptions& options = {});
  // A line on stdout, above the progress bar where one is drawn.
  void print(std::string_view line) const;
  [[nodiscard]] Metrics callback_metrics();  // the newest of each name; waits for the device
  [[nodiscard]] Metrics progress_metrics();  // those logged with prog_bar
  [[nodiscard]] const std::vector<LogRecord>& history() const;

  // The state of the run, or the weights alone, as one safetensors file, written atomically: weights under their own
  // names, the rest under "levin.". In the middle of a batch the file holds what its forward pass did to buffers, random numbers and
  // metrics, and the run that goes on from it trains that batch again: a warning (W-CKPT-WINDOW) says so. Removes what saves that were killed left in the folder (NAME.safetensors.tmp-*),
  // never a file that another process may be writing. In a trial of a search, which is taken back, nothing is written, with a
  // warning. Throws FileError, StateError before a fit.
  void save_checkpoint(const std::string& path, WeightsOnly weights = WeightsOnly::no);

  // What may be changed between two calls, such as max_epochs before a second fit. Those that the constructor reads
  // (callbacks, logger, fast_dev_run, max_time, overfit_batches, enable_*, barebones, precision, amp_level,
  // grad_scaler) can not be: the next stage, or the next epoch, throws ConfigError.
  [[nodiscard]] TrainerOptions& options();
  [[nodiscard]] const std::string& resumed_from() const;  // the file that the last fit went on from; empty: none
  [[nodiscard]] nn::Module* module() const;               // the tree of the running or last fit; null for bare tensors
  [[nodiscard]] optim::Optimizer* optimizer() const;      // the first one
  [[nodiscard]] std::span<OptimizerHandle> optimizers();  // throws StateError outside of fit
  [[nodiscard]] std::vector<SchedulerConfig>&
  schedulers();  // of the running fit; a callback may replace them between steps
  [[nodiscard]] data::DataLoader* train_loader() const;  // of the running fit; null until a hook was asked
  [[nodiscard]] DataModule* data_module() const;         // of the running stage; null: none
  [[nodiscard]] const std::vector<std::shared_ptr<Callback>>& callbacks() const;
  [[nodiscard]] const std::vector<std::shared_ptr<Logger>>& loggers() const;  // none in a dev run

  struct Run;  // internal (train/run/run.h)

 private:
  friend class TrainModule;
  friend class OptimizerHandle;
  friend class Tuner;
  friend class LearningRateFinder;
  friend class BatchSizeFinder;
  friend class ModelSummary;
  friend class ModelCheckpoint;
  friend class WeightAveraging;
  std::unique_ptr<Run> run_;
};

}  // namespace levin
