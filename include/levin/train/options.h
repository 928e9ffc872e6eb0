// What a Trainer is told: limits, intervals, precision, clipping.
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

namespace levin {

// A count of batches or a fraction of them: Portion(1) is one batch, Portion(1.0) all of them.
class LEVIN_API Portion {
 public:
  template <std::integral I>
  Portion(I count) : count_(static_cast<std::int64_t>(count)) {}
  Portion(double fraction);  // above 1 an integral value is a count
  [[nodiscard]] bool is_fraction() const { return is_fraction_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] double fraction() const { return fraction_; }
  // How many of n batches: min(count, n) or floor(n fraction). Throws ConfigError naming `option` when it is out of range or a
  // fraction above 0 gives none.
  [[nodiscard]] std::int64_t of(std::int64_t n, std::string_view option) const;
  [[nodiscard]] bool is_zero() const { return is_fraction_ ? fraction_ == 0 : count_ == 0; }
  friend bool operator==(const Portion&, const Portion&) = default;  // 1 and 1.0 differ

 private:
  std::int64_t count_ = 0;
  double fraction_ = 0;
  bool is_fraction_ = false;
};

// A length of time: of std::chrono, as "DD:HH:MM:SS" (two digits in the last three, as "00:12:00:00"), or by its parts.
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

// When validation is due: after so many batches, a fraction of the epoch's, or so much time.
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

// Where records go: true, and unset, is a TensorBoardLogger in default_root_dir, false none.
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

enum class MatmulPrecision : std::uint8_t { highest, high };
enum class ClipAlgorithm : std::uint8_t { norm, value };
// What a batch counts in a window of accumulation. per_batch: its loss is divided by accumulate_grad_batches, also in a short last
// window and whatever the batch's size. exact: training_step gives a sum and its weight (StepOutput::sum), and the gradients of the
// window are divided once by the sum of its weights, so that ragged windows equal one large batch. Gradients are then sums
// until the window closes, which the hooks around backward see, and f16 has to hold; with a loss scale the division is part of
// unscaling. Not captured.
enum class AccumulateWeighting : std::uint8_t { per_batch, exact };
// What step-interval schedules do for a step that the loss scale skipped. hold reads the verdict from the device: a wait a step.
enum class OnSkippedStep : std::uint8_t { advance, hold };
// step: the whole step (forward, backward, clipping, optimizer) is recorded once for every shape of batch and replayed.
enum class Capture : std::uint8_t { off, step };

// The callbacks of a run, a vector of them. One whose class has a public member with the name of a hook and another
// signature, which would hide the hook instead of overriding it, does not compile where it is added under its own type.
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

// Whether an op may have another result the second time. None does: all of Levin's kernels give the same bits for the same input, and
// of cuDNN's engines only those are taken that do so, too. The three values mean the same.
enum class Deterministic : std::uint8_t { off, on, warn };

struct TrainerOptions {
  // Where the module is trained: auto (also when empty) leaves it where it is; cpu, cuda or its alias gpu, simt in
  // builds that have it. A stage moves a module that is elsewhere to that device, behind setup and configure_model, and
  // it stays there. An optimizer that exists already (the short door) keeps its parameters where they are: ConfigError
  // where that is elsewhere. tpu, ipu and hpu are known names of devices that this library has no code for.
  std::string accelerator{};
  LoggerChoice logger{};
  Callbacks callbacks{};

  // ---- Limits. -1: none. What ends a run first counts; a minimum holds back stop requests, never a maximum.
  int fast_dev_run = 0;                      // N batches of everything, once; no files are written; true is 1
  std::optional<std::int64_t> max_epochs{};  // unset: 1000, or no limit when max_steps or max_time is set
  std::optional<std::int64_t> min_epochs{};
  std::int64_t max_steps = -1;  // completed optimizer steps
  std::optional<std::int64_t> min_steps{};
  std::optional<Duration> max_time{};  // of training
  // Unset: all. 0 switches the loop off.
  std::optional<Portion> limit_train_batches{}, limit_val_batches{}, limit_test_batches{}, limit_predict_batches{};
  std::optional<Portion>
      overfit_batches{};  // sets the limits of training and validation; loaders that shuffle are read in sequence

  // ---- Validation
  std::optional<ValidationInterval> val_check_interval{};  // unset: 1.0, at the end of each epoch
  std::optional<std::int64_t> check_val_every_n_epoch{1};  // nullopt: batches are counted over all epochs
  std::optional<std::int64_t> num_sanity_val_steps{};      // batches before training starts: unset 2, -1 all, 0 off

  std::int64_t log_every_n_steps = 50;       // 0: never
  std::int64_t accumulate_grad_batches = 1;  // batches an optimizer step; the loss of each is divided by it
  AccumulateWeighting accumulate_weighting = AccumulateWeighting::per_batch;
  std::optional<double> gradient_clip_val{};                                                  // unset, 0 or less: off
  std::optional<ClipAlgorithm> gradient_clip_algorithm{};                                     // default: norm
  std::optional<bool> enable_checkpointing{}, enable_progress_bar{}, enable_model_summary{};  // default: true
  // Nothing but training: no checkpoints, logger, progress bar, summary, sanity check, dev run, anomaly mode or profiler, and log() keeps
  // nothing. One of them switched on beside it is a ConfigError.
  bool barebones = false;
  Deterministic deterministic = Deterministic::on;
  // Where the vendor's library computes an op in a build with CUDA: true takes the fastest of its first engines, timed at the
  // first call of a shape, so that two processes may differ in the last bits; false the one that its heuristic names first.
  // Unset: as the process has it, which is the first.
  std::optional<bool> benchmark{};
  // Of f32 products on a GPU: highest computes in f32, high may round to TF32 (levin/engines.h) for the length of a fit. Unset:
  // as the process has it, which is highest.
  std::optional<MatmulPrecision> float32_matmul_precision{};
  bool inference_mode = true;  // of evaluations; false: NoGrad, which can be left inside
  // Loaders that hooks make are made anew before an epoch when the last ones are so many epochs old; 0: once a fit.
  std::int64_t reload_dataloaders_every_n_epochs = 0;
  // 32-true (also when empty), 64-true, 16-mixed, bf16-mixed, 16-true, bf16-true, 16-o2. "mixed" keeps f32 parameters and runs
  // the steps under autocast; "true" converts the module and floating inputs; 16-o2 does so but for batch norms, and the
  // optimizer works on f32 copies. Read by the constructor.
  std::string precision{};
  std::string amp_level{};  // the same by Apex' names: O0, O1, O2, O3 (its scale_loss: TrainModule::manual_backward)
  std::optional<optim::GradScalerOptions> grad_scaler{};  // of 16-mixed and 16-o2
  OnSkippedStep lr_on_skipped_step = OnSkippedStep::advance;
  // Told of every hook, step and transfer; a SimpleProfiler or a TraceProfiler, one's own, or none.
  std::shared_ptr<Profiler> profiler{};
  Capture capture = Capture::off;
  // Host waits for a device (item(), copies to the host, ...) that a training batch may make; the next one is a StateError. Unset:
  // they are counted, see Trainer::sync_report. The trainer's own, for records, the progress bar, checkpoints and validation,
  // are counted and not charged. The environment's LEVIN_SYNC_CHECK (off, count, warn, forbid) speaks where this is unset.
  std::optional<std::int64_t> sync_budget{};
  bool detect_anomaly = false;
  std::string default_root_dir{};      // default: the current directory
  bool enable_autolog_hparams = true;  // the module's hparams go to the loggers when a fit starts
  // Bytes that tensors may have in use on the module's device while a stage runs (set_memory_limit): beyond it allocations
  // throw OutOfMemoryError. Unset: what the device has.
  std::optional<std::int64_t> memory_limit{};
  bool handle_signals = true;

  // `options` with what the environment says for those that have their default: LEVIN_TRAINER_MAX_EPOCHS=3,
  // LEVIN_TRAINER_LIMIT_VAL_BATCHES=0.25, LEVIN_TRAINER_PROFILER=simple. Names are those above in capitals; lists of objects have no
  // text. Throws ConfigError for a value that the option does not have and for an option that can not be told so; a
  // LEVIN_TRAINER_ name that is none is warned of (W-TRAIN-ENV).
  [[nodiscard]] static TrainerOptions from_env(TrainerOptions options);
  // From a trainer's flags as text, older spellings among them, each of which is told as deprecated (W-TRAIN-LEGACY-NAME):
  // gpus, tpu_cores, nb_gpu_nodes, distributed_backend, amp_level, use_amp, plugins, and accelerator = "ddp". Throws ConfigError for
  // a name that is none, a value that the option does not have, and for what this library has not (devices, num_nodes,
  // strategy of more than one process), saying so.
  [[nodiscard]] static TrainerOptions from_legacy(const Metadata& flags);
};

}  // namespace levin
