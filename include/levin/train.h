// The trainer: one loop over epochs and batches, hooks around it, checkpoints that continue the bit-identical run.
//
//   optim::AdamW opt(net.parameters(), {.lr = 1e-3});
//   Trainer trainer({.max_epochs = 3});
//   trainer.fit(opt, train, [&](const Batch& b) { return cross_entropy(net(b[0]), b[1]); });
//   double acc = trainer.evaluate(test, [&](const Batch& b) { return accuracy(net(b[0]), b[1]); });
//
// The other door takes a TrainModule, which says the step, the optimizer and what happens around them itself.
#pragma once

#include <concepts>
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
#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/optim.h"
#include "levin/serialize.h"
#include "levin/tensor.h"
#include "levin/train/metrics.h"
#include "levin/warning.h"

namespace levin {

class Trainer;

// ---- Hooks
// What a hook may read about the batch at hand.
struct StepInfo {
  std::int64_t epoch = 0;        // index of the epoch, from 0
  std::int64_t batch_idx = 0;    // index of the batch in the epoch, from 0
  std::int64_t global_step = 0;  // completed optimizer steps
  const Batch* batch = nullptr;  // lives during the call
  // Detached; undefined before the forward pass and in evaluation. A captured step writes the next loss to the same memory
  // (and its batch to that of the batch): clone() what is kept.
  Tensor loss;
};
enum class BatchStart : std::uint8_t { proceed, skip_epoch };

// All points at which a module or a callback may act. Callbacks come first, in their order, then the module; only
// on_train_epoch_end of callbacks that act on a finished epoch (checkpoints) follows the module's.
//   fit:   on_fit_start, on_train_start, epochs, on_train_end, on_fit_end
//   epoch: on_train_epoch_start, batches, [validation], on_train_epoch_end
//   batch: on_train_batch_start, training_step, on_before_zero_grad, gradients cleared, on_before_backward, backward,
//          on_after_backward, on_before_optimizer_step, clipping, optimizer step, schedulers, on_train_batch_end
//   validation, test: on_*_start, on_*_epoch_start, per batch [on_*_batch_start, step, on_*_batch_end],
//          on_*_epoch_end, on_*_end
//
// The four between training_step and the optimizer's step belong to the step itself: one that is overridden keeps the step
// from being captured (TrainerOptions::capture).
class LEVIN_API Hooks {
 public:
  virtual ~Hooks() = default;
  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
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
  // What fit, validate or test is about to rethrow; an interrupt too. What it throws itself is lost.
  virtual void on_exception(const std::exception&) {}

 private:
  friend class Trainer;
  // The hooks inside of a step. They can be overridden and not called: a default body that runs says that nobody overrides it.
  virtual void on_before_zero_grad(optim::Optimizer&) { not_provided(); }
  // The loss, detached; times the loss scale where there is one, as are the gradients that on_after_backward sees.
  virtual void on_before_backward(const Tensor& /*loss*/) { not_provided(); }
  virtual void on_after_backward() { not_provided(); }
  virtual void on_before_optimizer_step(optim::Optimizer&) { not_provided(); }  // true gradients, not clipped yet
  static void not_provided() noexcept;
};

// What a callback keeps across a resume.
struct CallbackState {
  Metadata values;
  NamedTensors tensors;
};

// Something that watches or steers a run from outside the module.
class LEVIN_API Callback : public Hooks {
 public:
  // Names the state in a checkpoint; callbacks with state need one of their own. Empty: no state.
  [[nodiscard]] virtual std::string state_key() const { return {}; }
  [[nodiscard]] virtual CallbackState state() const { return {}; }
  // Called before anything else of the run changes. Throw for a state that does not fit: fit then rethrows and changes
  // nothing; callbacks that were given theirs already, and this one, get back what state() told before.
  virtual void load_state(const CallbackState&) {}
  // True: on_train_epoch_end runs after the module's, because it acts on what the module logged there.
  [[nodiscard]] virtual bool after_module() const { return false; }

  // The trainer while attached. Throws StateError outside.
  [[nodiscard]] Trainer& trainer() const;

 private:
  friend class Trainer;
  Trainer* trainer_ = nullptr;
};

// ---- Logging
struct LogOptions {
  bool prog_bar = false;                        // show it in the progress bar
  std::optional<bool> on_step = {};             // a value every log_every_n_steps; default: in training batches
  std::optional<bool> on_epoch = {};            // the batch-size-weighted mean; default: everywhere else
  std::optional<std::int64_t> batch_size = {};  // default: size(0) of the batch's first tensor
};

struct Series {
  std::string name;
  std::vector<double> x, y;  // equally many; points that are not finite interrupt the line
};
struct PlotOptions {
  std::string title{}, x_label{}, y_label{};
};
// A line chart as SVG text; `write_svg_plot` writes it to a file. Throws ConfigError when x and y differ in length.
[[nodiscard]] LEVIN_API std::string svg_plot(std::span<const Series> series, const PlotOptions& options = {});
LEVIN_API void write_svg_plot(const std::string& path, std::span<const Series> series, const PlotOptions& options = {});

// ---- Optimizers and schedules of a run
struct SchedulerConfig {
  std::shared_ptr<optim::Scheduler> scheduler;
  enum class Interval : std::uint8_t { epoch, step } interval = Interval::epoch;
  std::int64_t frequency = 1;  // every so many epochs or optimizer steps
};
struct OptimizerConfig {
  std::shared_ptr<optim::Optimizer> optimizer;
  std::vector<SchedulerConfig> schedulers{};
};

// A module that knows how it is trained. Its parameters are those of the module tree below it.
class LEVIN_API TrainModule : public nn::Module, public Hooks {
 public:
  using Module::Module;
  // The loss of a batch: one element that requires grad. Called in training mode.
  [[nodiscard]] virtual Tensor training_step(const Batch& batch, std::int64_t batch_idx) = 0;
  // Called in eval mode without recording; they log what they find.
  virtual void validation_step(const Batch& batch, std::int64_t batch_idx);
  virtual void test_step(const Batch& batch, std::int64_t batch_idx);
  [[nodiscard]] virtual OptimizerConfig configure_optimizers() = 0;

  [[nodiscard]] Trainer& trainer() const;  // throws StateError outside of a run
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});

 private:
  friend class Trainer;
  // The tree whose mode, buffers and generators are the run's; null for bare tensors.
  [[nodiscard]] virtual nn::Module* tree() { return this; }
  Trainer* trainer_ = nullptr;
};

// ---- Options
// A count of batches or a fraction of them: Portion(1) is one batch, Portion(1.0) all of them.
class LEVIN_API Portion {
 public:
  template <std::integral I>
  Portion(I count) : count_(static_cast<std::int64_t>(count)) {}
  Portion(double fraction) : fraction_(fraction), is_fraction_(true) {}
  // How many of n batches. Throws ConfigError naming `option` when it is out of range or a fraction gives none.
  [[nodiscard]] std::int64_t of(std::int64_t n, std::string_view option) const;

 private:
  std::int64_t count_ = 0;
  double fraction_ = 0;
  bool is_fraction_ = false;
};

enum class ClipAlgorithm : std::uint8_t { norm, value };
// What step-interval schedules do for a step that the loss scale skipped. hold reads the verdict from the device: a wait a step.
enum class OnSkippedStep : std::uint8_t { advance, hold };
// step: the whole step (forward, backward, clipping, optimizer) is recorded once for every shape of batch and replayed.
enum class Capture : std::uint8_t { off, step };

struct TrainerOptions {
  std::vector<std::shared_ptr<Callback>> callbacks{};
  std::optional<std::int64_t> max_epochs{};  // -1: no limit; unset: 1000, or no limit when max_steps is set
  std::int64_t max_steps = -1;               // completed optimizer steps
  std::optional<Portion> limit_train_batches{}, limit_val_batches{}, limit_test_batches{};
  std::int64_t log_every_n_steps = 50;                                // 0: never
  std::optional<double> gradient_clip_val{};                          // unset or 0: off
  std::optional<ClipAlgorithm> gradient_clip_algorithm{};             // default: norm
  std::optional<bool> enable_checkpointing{}, enable_progress_bar{};  // default: true
  // 32-true (also when empty), 64-true, 16-mixed, bf16-mixed, 16-true, bf16-true, 16-o2. "mixed" keeps f32 parameters and runs
  // the steps under autocast; "true" converts the module and floating inputs; 16-o2 does so but for batch norms, and the
  // optimizer works on f32 copies. Read by the constructor.
  std::string precision{};
  std::string amp_level{};                                // the same by Apex' names: O0, O1, O2, O3
  std::optional<optim::GradScalerOptions> grad_scaler{};  // of 16-mixed and 16-o2
  OnSkippedStep lr_on_skipped_step = OnSkippedStep::advance;
  Capture capture = Capture::off;
  bool detect_anomaly = false;
  std::string default_root_dir{};  // default: the current directory
  bool handle_signals = true;
};

struct FitOptions {
  data::DataLoader* train = nullptr;
  data::DataLoader* val = nullptr;
  std::string ckpt_path{};  // a file, or "last"
};
struct StepOptions {
  std::vector<SchedulerConfig> schedulers{};
  std::string ckpt_path{};
};

enum class WeightsOnly : bool { no, yes };

// Note [Interrupts]
// While a stage runs, SIGINT and SIGTERM only set a flag. It is noticed between batches: the run saves `last` where
// checkpointing is on and throws InterruptedError; stop_signal() then tells the number, with which programs exit (128 +
// signal). A second signal exits at once. Trainers of several threads share the flag: one signal stops them all, but
// for those with handle_signals = false.
class LEVIN_API Trainer {
 public:
  // Throws ConfigError for options out of range or in contradiction.
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains until max_epochs, max_steps or a granted stop request. A second fit goes on from the counters (raise
  // options().max_epochs). Throws ConfigError before any work; FormatError, FileError or ConfigError for a checkpoint
  // that can not be resumed, and changes nothing then but what `precision` asks of the module; rethrows what the step
  // throws.
  void fit(TrainModule& module, const FitOptions& loaders);
  // `step` gives the loss of a batch. The module tree is found through the parameters' owner. Logs the loss as
  // "train_loss".
  void fit(optim::Optimizer& optimizer, data::DataLoader& train, Function<Tensor(const Batch&)> step,
           const StepOptions& options = {});

  // One pass in eval mode without recording; the metrics that the module logged.
  Metrics validate(TrainModule& module, data::DataLoader& loader);
  Metrics test(TrainModule& module, data::DataLoader& loader);
  // sum_b f(b) size_b / sum_b size_b over the loader's batches, in eval mode without recording; each module's own mode
  // is restored. The module is the last fit's (throws StateError before one) or the one given.
  [[nodiscard]] double evaluate(data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);
  [[nodiscard]] double evaluate(nn::Module& module, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);

  // Counters. During epoch k current_epoch() is k; afterwards it is the number of completed epochs.
  [[nodiscard]] std::int64_t global_step() const;
  [[nodiscard]] std::int64_t current_epoch() const;
  [[nodiscard]] std::int64_t batch_idx() const;        // -1 before the first batch of an epoch
  [[nodiscard]] std::int64_t total_batch_idx() const;  // batches trained in all epochs
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  [[nodiscard]] bool is_last_batch() const;
  // Optimizer steps of the whole run, at most 2^63 - 1; no value when unlimited. Throws StateError outside of fit.
  [[nodiscard]] std::optional<std::int64_t> estimated_stepping_batches() const;

  // Optimizer steps that did nothing because a gradient was not finite, since the scaler was made. Waits for the device.
  [[nodiscard]] std::int64_t skipped_steps() const;
  // What became of TrainerOptions::capture in the running or last fit. What prevents it is told in a warning as well, and the
  // steps run one by one: a hook of the step that is overridden, a wait for the device (item(), printing), a value of the host
  // that is logged in the step, a device that records nothing, no memory for a record; of more than eight shapes of batch the
  // others run one by one. While steps are replayed, training_step is not called: what it does beside ops on tensors, and what
  // hooks on gradients do, happens once. A step is recorded again after parameters were frozen or thawed, a module changed its
  // mode, clipping was changed, or the optimizer got a state, a group or its first momentum.
  struct CaptureReport {
    std::int64_t recorded = 0;  // graphs: one a shape of batch
    std::int64_t replayed = 0;  // steps
    std::string prevented_by{};
  };
  [[nodiscard]] CaptureReport capture_report() const;

  // Ends the run after this batch; validation and epoch-end hooks still run.
  void request_stop();
  [[nodiscard]] bool stop_requested() const;
  [[nodiscard]] int stop_signal() const;  // 0: none

  // Keeps `value` (one element, detached) for the step's record and the epoch's mean. It stays on its device and is
  // read when a record is written. Throws ShapeError for more than one element, StateError outside of a hook or step,
  // ConfigError for one name with two sets of options.
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  [[nodiscard]] Metrics callback_metrics();  // the newest of each name; waits for the device
  [[nodiscard]] Metrics progress_metrics();  // those logged with prog_bar
  [[nodiscard]] const std::vector<LogRecord>& history() const;

  // The state of the run, or the weights alone, as one safetensors file, written atomically: weights under their own
  // names, the rest under "levin.". Removes what saves that were killed left in the folder (NAME.safetensors.tmp-*),
  // never a file that another process may be writing. Throws FileError, StateError before a fit.
  void save_checkpoint(const std::string& path, WeightsOnly weights = WeightsOnly::no);

  [[nodiscard]] TrainerOptions& options();
  [[nodiscard]] const std::string& resumed_from() const;  // the file that the last fit went on from; empty: none
  [[nodiscard]] nn::Module* module() const;               // the tree of the running or last fit; null for bare tensors
  [[nodiscard]] optim::Optimizer* optimizer() const;

  struct Run;  // internal (train/run.h)

 private:
  friend class TrainModule;
  std::unique_ptr<Run> run_;
};

// ---- Callbacks that come with Levin
struct ModelCheckpointOptions {
  std::string dirpath{};  // default: <default_root_dir>/checkpoints
  // One trigger at most; none: every epoch.
  std::int64_t every_n_train_steps = 0;
  std::int64_t every_n_epochs = 0;
  std::int64_t save_top_k = 1;  // the newest one is kept; -1 keeps all, 0 writes none
  bool save_last = false;       // last.safetensors as well, a copy of the newest
};
// Writes `epoch=E-step=S.safetensors`. Added by default with enable_checkpointing.
class LEVIN_API ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});  // throws ConfigError
  void on_train_batch_end(const StepInfo& info) override;
  void on_train_epoch_end() override;
  void on_fit_start() override;
  [[nodiscard]] bool after_module() const override { return true; }
  [[nodiscard]] std::string state_key() const override { return "ModelCheckpoint"; }
  [[nodiscard]] CallbackState state() const override;
  void load_state(const CallbackState& state) override;
  // The newest `epoch=E-step=S` file that was written whole: without a metric to compare, the newest counts as the
  // best, as in Lightning without `monitor`. Empty before the first, with save_top_k = 0, and when the file resumed
  // from names one that is not there any more.
  [[nodiscard]] const std::string& best_model_path() const { return best_model_path_; }
  // <dirpath>/last.safetensors once this callback has written it; empty without save_last. The file that an interrupt
  // saves has the same name and is the trainer's own.
  [[nodiscard]] const std::string& last_model_path() const { return last_model_path_; }
  [[nodiscard]] std::string directory() const;  // throws StateError while not attached and dirpath is empty

 private:
  void save();
  ModelCheckpointOptions options_;
  std::string best_model_path_, last_model_path_;
  std::int64_t saved_step_ = -1;
};

// On a terminal a bar on stderr, redrawn at most ten times a second; otherwise one line every log_every_n_steps and one
// an epoch. Added by default with enable_progress_bar.
class LEVIN_API ProgressBar : public Callback {
 public:
  ProgressBar();
  ~ProgressBar() override;
  void on_train_epoch_start() override;
  void on_train_batch_end(const StepInfo& info) override;
  void on_train_epoch_end() override;
  void on_exception(const std::exception& error) override;
  [[nodiscard]] bool after_module() const override { return true; }

 private:
  struct Drawing;
  std::unique_ptr<Drawing> drawing_;
};

}  // namespace levin
