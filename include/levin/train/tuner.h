// Tuner: searches by a few steps, before or within a training, for the largest batch that fits into memory and for the
// learning rate.
//
//   Tuner tuner(trainer);
//   tuner.scale_batch_size(net);         // sets the field "batch_size", which the module's train_loader() reads
//   auto found = tuner.lr_find(net);     // sets the field "lr", which its configure_optimizers() reads
//   found->plot({.suggest = true, .path = "lr.svg"});
//   trainer.fit(net);
//
// A search trains by the trainer's own loop and with the module's hooks, without the trainer's callbacks and records.
// After it, also after an error, everything is restored: weights, buffers, gradients, optimizer, schedules, loss scale,
// generators, counters, limits, positions of loaders, and logged values; other members of the module are the module's
// own business. Tensors are kept in a hidden file in default_root_dir, which is removed (.lr_find_<uuid>.safetensors,
// .scale_batch_size_<uuid>.safetensors), so a search needs no memory beyond that of the training. An interrupt ends the
// search and saves the run as it was before.
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
  LoaderRefs train{}, val{};          // for Tuner alone; empty: the hooks of data module and module
  DataModule* data_module = nullptr;  // for Tuner alone
  double min_lr = 1e-8, max_lr = 1;
  std::int64_t num_training = 100;   // optimizer steps
  std::string mode = "exponential";  // or "linear": how the rates are spaced
  // Ends the search when the smoothed loss exceeds this multiple of the best so far; losses are assumed to be above 0.
  // nullopt: never.
  std::optional<double> early_stop_threshold = 4.0;
  bool update_attr = true;  // sets the field, and in a fit the optimizers' rate and the start of their schedules
  // The field to set: a tunable or hparam of data module or module. Empty: "lr", else "learning_rate".
  std::string attr_name{};
  std::string slope_axis = "lr";  // or "log_lr": the axis of the slope; "lr" favours small rates
};

// The rates that were tried, and the smoothed losses. With n = num_training, step k = 0 has min_lr and step k > 0
//   exponential  min_lr (max_lr / min_lr)^((k + 1) / n)      linear  min_lr + (max_lr - min_lr) (k + 1) / n
// The smoothed loss is a / (1 - 0.98^m) after m losses, with a = 0.98 a + 0.02 loss. A step without a loss gives NaN.
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

  // The rate at which the loss falls most steeply (the least derivative, by second-order differences), without the
  // first `skip_begin` and the last `skip_end` points and those that are not finite. Nothing, and a warning, if fewer
  // than 2 points are left. When you read the picture, take the middle of the steepest descent, not the minimum of the
  // loss.
  [[nodiscard]] std::optional<double> suggestion(std::int64_t skip_begin = 10, std::int64_t skip_end = 1) const;
  // The suggestion's index in results.
  [[nodiscard]] std::optional<std::size_t> suggested(std::int64_t skip_begin = 10, std::int64_t skip_end = 1) const;
  // The picture as SVG text; the axis of rates is logarithmic for mode exponential. Throws FileError.
  std::string plot(const PlotOptions& options) const;
  std::string plot() const { return plot(PlotOptions{}); }
  void write_csv(const std::string& path) const;  // "lr,loss", one line a point; throws FileError
};

struct BatchSizeOptions {
  std::string method = "fit";                 // the stage to try: or "validate", "test", "predict"
  std::string mode = "power";                 // or "binsearch"
  std::int64_t steps_per_trial = 3;           // optimizer steps of a fit, batches of the other stages
  std::int64_t init_val = 2;                  // the first size
  std::int64_t max_trials = 25;               // with binsearch only sizes that fit count
  std::string batch_arg_name = "batch_size";  // the field to set
  double margin = 0.05;                       // of binsearch: the share of the largest size that stays free
  std::int64_t max_val = 8192;        // the largest size to try, or the dataset's number of samples if that is less
  LoaderRefs loaders{};               // a data module; ConfigError for a loader, which has its size already
  DataModule* data_module = nullptr;  // for Tuner alone; has field and hook if it can, else the module
};

// Bytes that a training step takes, counted as memory_stats of its device counts them.
struct MemoryPlan {
  std::int64_t parameters = 0;       // and buffers
  std::int64_t gradients = 0;        // of the parameters that have one
  std::int64_t optimizer_state = 0;  // with f32 masters and their gradients; without the histories of LBFGS
  std::int64_t batch = 0;
  std::int64_t activations = 0;  // everything else that lives between forward and backward
  // The most at one time in a step after the first, without memory that kernels take for themselves.
  std::int64_t peak = 0;
};

// Multiplies the field "lr", else "learning_rate", for a batch size that was scaled: twice the batch commonly has twice
// the rate. No search does so by itself. Throws ConfigError if the module has neither field.
LEVIN_API void scale_lr(TrainModule& module, double factor);

// Runs searches with a trainer before a fit. With fast_dev_run they do nothing and warn.
class LEVIN_API Tuner {
 public:
  explicit Tuner(Trainer& trainer) : trainer_(&trainer) {}

  // The learning-rate range test: trains num_training steps at rising rates, and sets the field to the rate of the
  // steepest descent. Throws ConfigError before any work, for min_lr not below max_lr, num_training below 1, an unknown
  // mode or slope_axis, a threshold not above 0, an unknown field (with update_attr), another number of optimizers than
  // one, and a LearningRateFinder among the trainer's callbacks; FileError if the state cannot be kept; and what the
  // step throws. Of several ranks all set the rate that rank 0's losses suggest. Leslie Smith, "Cyclical Learning Rates
  // for Training Neural Networks", 2017.
  std::optional<LrFindResult> lr_find(TrainModule& module, const LrFindOptions& options = {});

  // Finds the largest batch that the method runs with, and sets the field that the module's loader hook reads. A trial
  // sets the field, asks the hook for a loader and runs a few steps; its memory is released before the next trial.
  //   power      doubles the size until it does not fit, and takes half of that. If init_val does not fit, it halves.
  //   binsearch  doubles likewise, then halves the gap between the largest size that fits and the smallest that does
  //              not, until they are neighbours; the result is floor(size (1 - margin)), at least 1.
  // plan_memory plans each size first, and a size whose plan exceeds the memory (memory_size) is not run. If a step
  // cannot be planned, an info line says so and only trials decide. Planned steps call the hooks inside a step too. A
  // size does not fit if the trial throws OutOfMemoryError (of the device, or of TrainerOptions::memory_limit),
  // std::bad_alloc, or an error of CUDA's libraries that reports it; any other exception ends the search. Throws
  // OutOfMemoryError if a single sample does not fit; ConfigError before any work, for an unknown method or mode, a
  // number out of range, a field or hook that neither data module nor module has, given loaders, a strategy of
  // processes, and a BatchSizeFinder among the trainer's callbacks. The idea is toma's (Andreas Kirsch, 2020).
  std::optional<std::int64_t> scale_batch_size(TrainModule& module, const BatchSizeOptions& options = {});

  // The memory of a training step with this batch, under the trainer's precision, accumulation and clipping. Found by
  // steps on Device::meta(), on shapes alone: no value is read or changed. Module and batch may be on meta themselves.
  // `as`: the device whose allocator's sizes count; unset: that of the module, on meta exact bytes. Throws ConfigError
  // as fit does, UnsupportedError if the step reads values (item()), DeviceError if it uses tensors that are neither
  // parameters, buffers nor the batch's, and what the step throws.
  MemoryPlan plan_memory(TrainModule& module, const Batch& batch, std::optional<Device> as = {});

 private:
  Trainer* trainer_;
};

// Runs lr_find at the start of each fit. Derive from it to search at other times, between epochs:
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
  explicit LearningRateFinder(LrFindOptions options = {});  // throws ConfigError, also for loaders: the fit has its own
  void on_fit_start() override;
  [[nodiscard]] Kind kind() const override { return Kind::search; }
  // Call it in a hook of fit outside of batches; throws StateError elsewhere.
  void lr_find();
  [[nodiscard]] const std::optional<LrFindResult>& result() const { return result_; }  // of the last search

 private:
  LrFindOptions options_;
  std::optional<LrFindResult> result_;
};

// Runs scale_batch_size at the start of each fit, validate (not inside a fit), test and predict, which then runs with
// new loaders of the module's hooks. Derive from it to search at other times, between epochs or in some of the stages:
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
  explicit BatchSizeFinder(BatchSizeOptions options = {});  // throws ConfigError, also for a given method
  void on_fit_start() override;
  [[nodiscard]] Kind kind() const override { return Kind::search; }
  void on_validation_start() override;
  void on_test_start() override;
  void on_predict_start() override;
  // Call it in a hook between epochs, or at the start of an evaluation. Throws StateError elsewhere, and ConfigError if
  // the stage was given its loader as an argument.
  void scale_batch_size();
  // The size that the last search found. Checkpoints keep it: a fit that resumes sets it in the field and makes its
  // loaders with it, and searches again only if no epoch is open.
  [[nodiscard]] std::optional<std::int64_t> optimal_batch_size() const { return size_; }
  [[nodiscard]] std::string state_key() const override;
  [[nodiscard]] CallbackState state() const override;

 private:
  friend class Trainer;
  BatchSizeOptions options_;
  std::optional<std::int64_t> size_;
};

}  // namespace levin
