// Tuner: what is found by a few steps before, or in the middle of, a training: the largest batch that fits into memory, and the
// learning rate.
//
//   Tuner tuner(trainer);
//   tuner.scale_batch_size(net);         // sets the field "batch_size", which the module's train_loader() reads
//   auto found = tuner.lr_find(net);     // sets the field "lr", which its configure_optimizers() reads
//   found->plot({.suggest = true, .path = "lr.svg"});
//   trainer.fit(net);
//
// A search trains in earnest, by the trainer's own loop and with the module's hooks; the trainer's callbacks and records are off.
// Then it is as if it had not been: weights, buffers, gradients, optimizer, schedules, loss scale, generators, counters, limits,
// loaders' positions and what was logged are put back, also after an error; other members of the module are its own business.
// Tensors wait in a hidden file in default_root_dir (.lr_find_<uuid>.safetensors, .scale_batch_size_<uuid>.safetensors), which is removed; so a search needs no
// memory beyond the training's own. An interrupt ends the search, and the run as it was is saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train/hooks.h"
#include "levin/train/module.h"
#include "levin/train/trainer.h"

namespace levin {

struct LrFindOptions {
  LoaderRefs train{}, val{};          // of Tuner alone; empty: the hooks of data module and module
  DataModule* data_module = nullptr;  // of Tuner alone
  double min_lr = 1e-8, max_lr = 1;
  std::int64_t num_training = 100;   // optimizer steps
  std::string mode = "exponential";  // or "linear": how the rates are spaced
  // Ends the search when the smoothed loss is more than this many times the best so far; nullopt: never. Losses are taken to be
  // above 0.
  std::optional<double> early_stop_threshold = 4.0;
  bool update_attr = true;  // set the field, the rate of live optimizers, and what their schedules start from
  std::string
      attr_name{};  // the field: a tunable or hparam of data module or module; default: "lr", else "learning_rate"
  std::string slope_axis = "lr";  // or "log_lr": against what the slope is taken; lr favours small rates
};

// The rates that were tried and the smoothed losses there. With n = num_training, step k = 0 has min_lr and step k > 0
//   exponential  min_lr (max_lr / min_lr)^((k + 1) / n)      linear  min_lr + (max_lr - min_lr) (k + 1) / n
// The loss is the moving average a = 0.98 a + 0.02 loss over 1 - 0.98^m after m losses. A step that returned none gives NaN.
struct LEVIN_API LrFindResult {
  struct Points {
    std::vector<double> lr, loss;
  };
  struct PlotOptions {
    bool suggest = false;  // a red dot at the suggestion
    std::string path{};    // of the SVG file; empty: none is written
  };
  Points results;
  std::string mode = "exponential", slope_axis = "lr";

  // The rate at which the loss falls most steeply, without the first `skip_begin` and the last `skip_end` points and those that
  // are not finite: the least derivative by second-order differences. Nothing, and a warning, where fewer than 2 are left. In the
  // picture rather take the middle of the steepest descent than the minimum of the loss.
  [[nodiscard]] std::optional<double> suggestion(std::int64_t skip_begin = 10, std::int64_t skip_end = 1) const;
  // Its index in results.
  [[nodiscard]] std::optional<std::size_t> suggested(std::int64_t skip_begin = 10, std::int64_t skip_end = 1) const;
  // The picture as SVG text, with a log axis of rates for mode exponential. Throws FileError.
  std::string plot(const PlotOptions& options) const;
  std::string plot() const { return plot(PlotOptions{}); }
  void write_csv(const std::string& path) const;  // "lr,loss", one line a point; throws FileError
};

struct BatchSizeOptions {
  std::string method = "fit";        // or "validate", "test", "predict": what is tried
  std::string mode = "power";        // or "binsearch"
  std::int64_t steps_per_trial = 3;  // optimizer steps; of the others batches
  std::int64_t init_val = 2;
  std::int64_t max_trials = 25;  // of binsearch those that fit count
  std::string batch_arg_name = "batch_size";
  double margin = 0.05;         // of binsearch: the share of the largest size that is kept free
  std::int64_t max_val = 8192;  // the number of samples in the dataset is a limit as well; both are tried themselves
  LoaderRefs loaders{};         // no loader: a size reaches those of hooks alone; a data module may stand here
  DataModule* data_module = nullptr;  // of Tuner alone; field and hook are looked up here first, then in the module
};

// Bytes that a training step takes, as memory_stats of its device would count them.
struct MemoryPlan {
  std::int64_t parameters = 0;       // and buffers
  std::int64_t gradients = 0;        // of the parameters that got one
  std::int64_t optimizer_state = 0;  // with f32 masters and their gradients; LBFGS keeps its histories elsewhere
  std::int64_t batch = 0;
  std::int64_t activations = 0;  // what lives between forward and backward, beside the above
  std::int64_t peak =
      0;  // the most at one time, in a step behind the first; what kernels take for themselves is not in it
};

// Multiplies the field "lr", else "learning_rate": a batch of twice the size commonly goes with twice the rate. Nothing does so
// by itself. Throws ConfigError.
LEVIN_API void scale_lr(TrainModule& module, double factor);

// Leslie Smith, "Cyclical Learning Rates for Training Neural Networks", 2017.
class LEVIN_API Tuner {
 public:
  explicit Tuner(Trainer& trainer) : trainer_(&trainer) {}

  // Before a fit. Nothing with fast_dev_run, and a warning. Throws ConfigError before any work: min_lr not below max_lr, num_training
  // below 1, a mode or slope_axis that is not known, a threshold that is not above 0, a field that the module has not (with
  // update_attr), another number of optimizers than one, or a LearningRateFinder among the trainer's callbacks; FileError when
  // the state can not be kept; rethrows what the step throws.
  std::optional<LrFindResult> lr_find(TrainModule& module, const LrFindOptions& options = {});

  // The largest batch that the method runs with, set in the field that the module's loader hook reads. A trial sets the field,
  // asks the hook for a loader and runs a few steps; what it kept is given back before the next one.
  //   power      doubles while it fits; then half of what does not. Where init_val does not fit: halves until a size does.
  //   binsearch  doubles while it fits, then halves the gap between the largest size that fits and the smallest that does not, until
  //              they are neighbours; the result is floor(size (1 - margin)), at least 1.
  // A size is planned on meta first (plan_memory): one whose plan exceeds the memory (memory_size) does not fit and is not run. A
  // step that can not be planned is a line of information, and trials alone tell. A trial's steps on meta call the hooks that lie
  // inside of a step, too.
  // Out of memory is OutOfMemoryError (of the device, or of TrainerOptions::memory_limit), std::bad_alloc, and the errors of
  // CUDA's libraries that say so; what else a step throws ends the search. Nothing with fast_dev_run, and a warning. Throws
  // OutOfMemoryError when a single sample does not fit; ConfigError before any work: a method or mode that is not known, a number
  // out of range, a field or hook that neither data module nor module has, loaders that are given, a BatchSizeFinder among the trainer's callbacks.
  // The idea is toma's (Andreas Kirsch, 2020).
  std::optional<std::int64_t> scale_batch_size(TrainModule& module, const BatchSizeOptions& options = {});

  // What a training step of this trainer (its precision, accumulation and clipping) with such a batch takes, found by steps on
  // shapes alone: Device::meta(), no value is read or changed. Module and batch may lie on meta themselves; `as` is then the device
  // whose allocator is counted by, else bytes are exact. Throws ConfigError as fit, UnsupportedError where the step reads values
  // (item()), DeviceError where it uses tensors that are neither parameters nor buffers nor the batch's, and what the step throws.
  MemoryPlan plan_memory(TrainModule& module, const Batch& batch, std::optional<Device> as = {});

 private:
  Trainer* trainer_;
};

// The same search at the start of each fit. Derive from it to search elsewhere, between epochs:
//
//   struct FineTuneLearningRateFinder : LearningRateFinder {
//     using LearningRateFinder::LearningRateFinder;
//     void on_fit_start() override {}
//     void on_train_epoch_start() override {
//       if (trainer().current_epoch() % 5 == 0) lr_find();
//     }
//   };
class LEVIN_API LearningRateFinder : public Callback {
 public:
  explicit LearningRateFinder(
      LrFindOptions options = {});  // throws ConfigError; also for loaders, which are those of the fit
  void on_fit_start() override;
  [[nodiscard]] Kind kind() const override { return Kind::search; }
  // In a hook of fit outside of batches; throws StateError elsewhere.
  void lr_find();
  [[nodiscard]] const std::optional<LrFindResult>& result() const { return result_; }  // of the last search

 private:
  LrFindOptions options_;
  std::optional<LrFindResult> result_;
};

// The same search at the start of each fit, validate (not inside of a fit), test and predict; the stage then runs with new loaders
// of the module's hooks. Derive from it to search elsewhere, between epochs or in some of the stages:
//
//   struct FineTuneBatchSizeFinder : BatchSizeFinder {
//     using BatchSizeFinder::BatchSizeFinder;
//     void on_fit_start() override {}
//     void on_train_epoch_start() override {
//       if (trainer().current_epoch() % 5 == 0) scale_batch_size();
//     }
//   };
class LEVIN_API BatchSizeFinder : public Callback {
 public:
  explicit BatchSizeFinder(BatchSizeOptions options = {});  // throws ConfigError, also for a method
  void on_fit_start() override;
  [[nodiscard]] Kind kind() const override { return Kind::search; }
  void on_validation_start() override;
  void on_test_start() override;
  void on_predict_start() override;
  // In a hook between epochs, or at the start of an evaluation; throws StateError elsewhere, ConfigError where the stage was given
  // its loader as an argument.
  void scale_batch_size();
  // Of the last search, which a checkpoint keeps: a fit that goes on from one has the size again, in the field and in its loaders, and
  // searches no more where an epoch is open.
  [[nodiscard]] std::optional<std::int64_t> optimal_batch_size() const { return size_; }
  [[nodiscard]] std::string state_key() const override;
  [[nodiscard]] CallbackState state() const override;

 private:
  friend class Trainer;
  BatchSizeOptions options_;
  std::optional<std::int64_t> size_;
};

}  // namespace levin
