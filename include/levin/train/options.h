// TrainerOptions: how long a Trainer trains, when it validates, how it computes, and what it writes.
//
//   Trainer trainer({.max_epochs = 10, .precision = "bf16-mixed"});
//   Trainer trainer(TrainerOptions::from_env({.max_epochs = 10}));  // LEVIN_TRAINER_PRECISION=bf16-mixed
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/export.h"
#include "levin/optim.h"
#include "levin/serialize.h"
#include "levin/train/check_hooks.h"
#include "levin/train/hooks.h"
#include "levin/train/loggers.h"
#include "levin/train/profiler.h"
#include "levin/train/strategy_choice.h"

namespace levin {

// A count of batches or a fraction of them: 1 is one batch, 1.0 is all batches.
class LEVIN_API Portion {
 public:
  template <std::integral I>
  Portion(I count) : count_(static_cast<std::int64_t>(count)) {}
  Portion(double fraction);  // a number above 1 without a fraction, such as 3.0, is a count
  [[nodiscard]] bool is_fraction() const { return is_fraction_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] double fraction() const { return fraction_; }
  // How many of n batches: min(count, n) or floor(n fraction). Throws ConfigError, which names `option`, for a count
  // below 0, a fraction outside of [0, 1], and a fraction above 0 that gives no batch.
  [[nodiscard]] std::int64_t of(std::int64_t n, std::string_view option) const;
  [[nodiscard]] bool is_zero() const { return is_fraction_ ? fraction_ == 0 : count_ == 0; }
  friend bool operator==(const Portion&, const Portion&) = default;  // 1 and 1.0 differ

 private:
  std::int64_t count_ = 0;
  double fraction_ = 0;
  bool is_fraction_ = false;
};

// A length of time: std::chrono::minutes(5), "00:12:00:00" (DD:HH:MM:SS, the last three of two digits), or a sum of
// parts, Duration::Parts{.hours = 1, .minutes = 30}.
class LEVIN_API Duration {
 public:
  struct Parts {
    double weeks = 0, days = 0, hours = 0, minutes = 0, seconds = 0, milliseconds = 0;
  };
  template <class D>
  requires requires(D d) {
    d.count();
    D::period::den;
  }
  Duration(D d)
      : seconds_(static_cast<double>(d.count()) * static_cast<double>(D::period::num) /
                 static_cast<double>(D::period::den)) {}
  Duration(const Parts& parts);
  Duration(std::string_view text);  // throws ConfigError for another form
  Duration(const char* text) : Duration(std::string_view(text)) {}
  Duration(const std::string& text) : Duration(std::string_view(text)) {}
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
};

// When a validation is due: after a count of batches (100), a fraction of the epoch's batches (0.25), or a Duration.
class LEVIN_API ValidationInterval {
 public:
  template <std::integral I>
  ValidationInterval(I batches) : portion_(batches) {}
  ValidationInterval(double fraction) : portion_(fraction) {}
  ValidationInterval(Portion portion) : portion_(portion) {}
  template <class D>
  requires std::constructible_from<Duration, D> ValidationInterval(const D& duration) : time_(Duration(duration)) {}
  [[nodiscard]] const Portion& portion() const { return portion_; }
  [[nodiscard]] const std::optional<Duration>& time() const { return time_; }

 private:
  Portion portion_{1.0};
  std::optional<Duration> time_;
};

// Where records go: one logger or several; true and unset are a TensorBoardLogger in default_root_dir, false is none.
class LEVIN_API LoggerChoice {
 public:
  LoggerChoice() = default;
  LoggerChoice(bool on) : by_default_(on), chosen_(true) {}
  LoggerChoice(std::vector<std::shared_ptr<Logger>> loggers)
      : loggers_(std::move(loggers)), by_default_(false), chosen_(true) {}
  template <std::derived_from<Logger> L>
  LoggerChoice(std::shared_ptr<L> one) : loggers_{std::move(one)}, by_default_(false), chosen_(true) {}
  [[nodiscard]] bool by_default() const { return by_default_; }
  [[nodiscard]] bool chosen() const { return chosen_; }  // false: unset
  [[nodiscard]] const std::vector<std::shared_ptr<Logger>>& loggers() const { return loggers_; }

 private:
  std::vector<std::shared_ptr<Logger>> loggers_;
  bool by_default_ = true, chosen_ = false;
};

// How f32 matrix products compute on a GPU: highest in f32; high may round inputs to TF32, which is faster.
enum class MatmulPrecision : std::uint8_t { highest, high };
// How gradients are clipped to gradient_clip_val.
//   norm    one factor for all gradients, so that their common norm is at most the limit
//   value   each element is clamped to [-limit, limit]
enum class ClipAlgorithm : std::uint8_t { norm, value };
// How the batches of an accumulation window add up.
//   per_batch   the loss of each batch is divided by accumulate_grad_batches, for any size of batch, and also in a last
//               window of fewer batches
//   exact       training_step returns a sum and its weight (StepOutput::sum), and the window's gradients are divided
//               once, by the sum of its weights: windows of batches of different sizes equal one large batch
// With exact, gradients are sums until the window closes: hooks around backward see sums, and f16 must be able to hold
// them. A loss scale is divided out in the same pass. ConfigError with manual optimization, and for a step without a
// weight. Such steps are not captured.
enum class AccumulateWeighting : std::uint8_t { per_batch, exact };
// Whether schedules with Interval::step also move for a step that the loss scale skipped (advance) or not (hold). hold
// reads from the device at each step, and so waits for it.
enum class OnSkippedStep : std::uint8_t { advance, hold };
// What is recorded as a Graph and replayed. step: the whole step (forward, backward, clipping, optimizer), once for
// each shape of batch.
enum class Capture : std::uint8_t { off, step };

// The callbacks of a run. A class with a public member that has a hook's name and another signature, which hides the
// hook instead of overriding it, does not compile if it is added under its own type.
class LEVIN_API Callbacks : public std::vector<std::shared_ptr<Callback>> {
 public:
  Callbacks() = default;
  Callbacks(std::vector<std::shared_ptr<Callback>> all) : vector(std::move(all)) {}
  template <std::derived_from<Callback>... C>
  requires(sizeof...(C) > 0) Callbacks(std::shared_ptr<C>... all) { (push_back(std::move(all)), ...); }
  template <std::derived_from<Callback> C>
  void push_back(std::shared_ptr<C> one) {
    detail::check_hooks<C>();
    vector::push_back(std::move(one));
  }
};

// Known from PyTorch; the three values mean the same. In a process every op gives the same bits for the same input:
// Levin's kernels do, and of cuDNN's engines only those are used that do. Between two processes
// TrainerOptions::benchmark may choose another of these engines.
enum class Deterministic : std::uint8_t { off, on, warn };

// The constructor of Trainer throws ConfigError for a value out of range and for options that exclude each other.
struct TrainerOptions {
  // ---- Device, loggers, callbacks

  // Where the module is trained: "auto" (also empty) leaves it where it is; "cpu"; "cuda", also called "gpu"; "simt" in
  // builds that have it. A stage moves the module there after setup and configure_model, and it stays there.
  // ConfigError for a device that is not there (tpu, ipu and hpu never are), and for a fit of an optimizer whose
  // parameters are elsewhere, because they cannot move.
  std::string accelerator{};
  // Devices of each node, and nodes: levin/train/strategy_choice.h. On the CPU a device is a process.
  DeviceChoice devices{};
  NodeCount num_nodes{};
  // How they share the work; by name ("ddp") or as an object with options of its own (levin/train/strategy.h).
  // ConfigError for an unknown name, which lists all, and for one that does not fit devices and accelerator.
  StrategyChoice strategy{};
  // Batch norms take their statistics over the batches of all ranks. A warning with one rank.
  bool sync_batchnorm = false;
  // With several ranks each reads its part of the data: loaders over a Dataset get the sampler of their rank
  // (data::distributed_sampler), which for training repeats samples until all ranks have equally many. false: every
  // rank reads what its loader gives.
  bool use_distributed_sampler = true;
  Plugins plugins{};
  // Where records go. Unset: a TensorBoardLogger that writes to <default_root_dir>/levin_logs/version_N.
  LoggerChoice logger{};
  Callbacks callbacks{};

  // ---- Length of a run. The first limit that is reached ends it; -1 is no limit. A minimum delays a stop request, of
  // early stopping or max_time, never a limit. ConfigError for a minimum above its maximum.

  // N batches of training, validation, test and prediction each, one epoch, without loggers, checkpoints, sanity check
  // and stops: to see that a program runs. Replaces the intervals of validation and the limits below, except for those
  // that overfit_batches sets. 0: off.
  int fast_dev_run = 0;
  std::optional<std::int64_t> max_epochs{};  // unset: 1000, or no limit if max_steps, max_time or a Timer is there
  std::optional<std::int64_t> min_epochs{};  // unset: 0, or 1 if min_steps is above 0
  std::int64_t max_steps = -1;               // optimizer steps
  std::optional<std::int64_t> min_steps{};   // optimizer steps
  std::optional<Duration> max_time{};        // time of training; ignored, with an info line, if callbacks has a Timer
  // Batches an epoch, or the fraction of them. Unset: all. 0: the loop runs no batch and calls none of its hooks;
  // without training batches a fit validates in its sanity check alone. A loader over streams that declare no size
  // takes a count or 1.0, else ConfigError. Streams that never end (IterableDataset::endless) need a count, for
  // training also max_steps or max_time.
  std::optional<Portion> limit_train_batches{}, limit_val_batches{}, limit_test_batches{}, limit_predict_batches{};
  // Trains and validates on the same few batches, to see that a model can learn them: sets limit_train_batches and
  // limit_val_batches. Loaders that shuffle are read in sequence, with a warning. Unset or 0: off.
  std::optional<Portion> overfit_batches{};

  // ---- Validation in a fit

  // Unset: 1.0, at the end of each epoch. ConfigError for a count above the batches of an epoch, for a fraction with
  // check_val_every_n_epoch = nullopt, and for one below 1.0 of a training loader without a length.
  std::optional<ValidationInterval> val_check_interval{};
  // Epochs between two that validate. nullopt: val_check_interval counts batches over all epochs.
  std::optional<std::int64_t> check_val_every_n_epoch{1};
  // Batches of each validation loader that run before training, to find errors of the validation early; they leave no
  // trace in the run. Unset: 2. -1: all. 0: off. A run that resumes has no such check.
  std::optional<std::int64_t> num_sanity_val_steps{};

  // ---- Records, gradients, output

  std::int64_t log_every_n_steps = 50;  // optimizer steps, with manual optimization batches; 0: no records of steps
  // Batches of one optimizer step, for an effective batch that does not fit into memory. ConfigError above 1 with
  // manual optimization and with LBFGS, and with a GradientAccumulationScheduler. Such steps are not captured.
  std::int64_t accumulate_grad_batches = 1;
  AccumulateWeighting accumulate_weighting = AccumulateWeighting::per_batch;
  // The largest norm, or absolute value, of gradients before an optimizer step. Unset, 0 and less: off. ConfigError
  // with manual optimization, where the module calls clip_gradients. On a device an update clips by the norm as it
  // reads gradients, and those in memory stay as they are, unless a hook looks at them: Hooks::on_before_zero_grad.
  std::optional<double> gradient_clip_val{};
  std::optional<ClipAlgorithm> gradient_clip_algorithm{};  // unset: norm
  // Add a ModelCheckpoint, ProgressBar, ModelSummary with its defaults if callbacks has none. Unset: true. ConfigError
  // for enable_checkpointing or enable_progress_bar = false with such a callback.
  std::optional<bool> enable_checkpointing{}, enable_progress_bar{}, enable_model_summary{};
  // Training alone, for measurements: no checkpoints, loggers, progress bar, summary, sanity check, dev run, anomaly
  // mode or profiler, and log() keeps nothing. ConfigError if one of these is switched on too.
  bool barebones = false;

  // ---- How ops compute. benchmark and float32_matmul_precision hold for the length of a fit.

  Deterministic deterministic = Deterministic::on;
  // For ops that the vendor's library computes, in a build with CUDA. true: the fastest of the library's first engines,
  // timed at the first call of a shape, so two processes may differ in the last bits. false: the engine that the
  // library's heuristic names first; products always have that one. Unset: the setting of the process
  // (levin/engines.h), which starts as false.
  std::optional<bool> benchmark{};
  // Unset: the setting of the process (levin/engines.h), which starts as highest.
  std::optional<MatmulPrecision> float32_matmul_precision{};

  // ---- Evaluations and loaders

  // Evaluations run in InferenceMode, in which recording cannot be switched on again (StateError). false: under NoGrad,
  // in which it can.
  bool inference_mode = true;
  // Epochs after which train_loader and val_loader are called for a new loader, for data that changes. 0: once a fit.
  std::int64_t reload_dataloaders_every_n_epochs = 0;

  // ---- Precision

  // The dtype of the module, and how steps compute. Case does not matter.
  //   32-true      f32 throughout; also when empty
  //   64-true      the module and floating inputs are converted to f64
  //   16-mixed     f32 parameters, steps under autocast to f16, a loss scale; on the CPU it becomes bf16-mixed
  //   bf16-mixed   f32 parameters, steps under autocast to bf16
  //   16-true      the module and floating inputs are converted to f16
  //   bf16-true    the module and floating inputs are converted to bf16
  //   16-o2        as 16-true, but batch norms stay f32; f32 masters and a loss scale
  // A mode of your own is a plug-in: levin/train/precision_plugin.h.
  std::string precision{};
  // The same by Apex' names: O0 32-true, O1 16-mixed, O2 16-o2, O3 16-true. ConfigError if `precision` says another.
  std::string amp_level{};
  std::optional<optim::GradScalerOptions> grad_scaler{};  // the loss scale; ConfigError for a precision without one
  // Whether schedules move for a step that the loss scale skipped.
  OnSkippedStep lr_on_skipped_step = OnSkippedStep::advance;

  // ---- Speed and debugging

  // Measures every hook, step and transfer: a SimpleProfiler, a TraceProfiler, or a profiler of your own. Null: none.
  std::shared_ptr<Profiler> profiler{};
  // Replays steps on a device that launches kernels, without the host's cost of each op. Steps run op by op, with a
  // warning, if
  //   a hook inside of the step is overridden (on_before_zero_grad, on_before_backward, on_after_backward,
  //   on_before_optimizer_step), gradients accumulate, or the module optimizes manually;
  //   the step waits for the device (item(), printing) or logs a number of the host;
  //   the device records nothing, or has no memory for the record;
  //   the batch's shape is none of the first eight.
  // A replay calls neither training_step nor hooks on gradients: what they do apart from ops on tensors happens when
  // the step is recorded. It is recorded again after parameters were frozen or thawed, a module changed its mode,
  // clipping changed, or the optimizer got a state, a group or its first momentum.
  Capture capture = Capture::off;
  // Waits of the host for a device (item(), copies to the host, ...) that a training batch may make; the next one is a
  // StateError. Unset: waits are only counted, see Trainer::sync_report; the environment's LEVIN_SYNC_CHECK (off,
  // count, warn, forbid) can say otherwise. The trainer's own waits, for records, the progress bar, checkpoints and
  // validations, are counted and not charged.
  std::optional<std::int64_t> sync_budget{};
  bool detect_anomaly = false;  // checks every result, to find the op that makes the first NaN; slow

  // ---- Surroundings

  std::string default_root_dir{};      // where loggers, checkpoints and the tuner write; empty: the current directory
  bool enable_autolog_hparams = true;  // a fit passes the hparams of module and data module to the loggers
  // Bytes that tensors may use on the module's device while a stage runs (set_memory_limit); beyond, allocations throw
  // OutOfMemoryError. Unset: what the device has.
  std::optional<std::int64_t> memory_limit{};
  bool handle_signals = true;  // signals end a stage in order, see Note [Interrupts]; false: as the program has them
  // In a task of a SLURM job: the signal at which the run is saved and its job goes back into the queue, see Note
  // [Requeue]. Empty: none. ConfigError for a text that is not the name of a signal.
  std::string requeue_signal = "SIGUSR1";

  // ---- Options as text

  // Returns `options` with values from the environment for options that have their default: LEVIN_TRAINER_ and the
  // option's name in capitals, LEVIN_TRAINER_MAX_EPOCHS=3, LEVIN_TRAINER_LIMIT_VAL_BATCHES=0.25,
  // LEVIN_TRAINER_PROFILER=simple. Throws ConfigError for a value that the option does not have, and for callbacks,
  // grad_scaler and plugins, which have no text. Warns of an unknown name (W-TRAIN-ENV).
  [[nodiscard]] static TrainerOptions from_env(TrainerOptions options);
  // Reads a trainer's flags as text, older spellings among them, each with a deprecation warning (W-TRAIN-LEGACY-NAME):
  // gpus, tpu_cores, xla_dist, nb_gpu_nodes, distributed_backend, amp_level, use_amp, plugins = "pipe", and
  // accelerator = "ddp". Throws ConfigError for an unknown name, for a value that the option does not have, and for
  // what Levin does not have.
  [[nodiscard]] static TrainerOptions from_legacy(const Metadata& flags);
};

}  // namespace levin
