// Tuner: what is found by a few steps before, or in the middle of, a training: the learning rate.
//
//   Tuner tuner(trainer);
//   auto found = tuner.lr_find(net, {.train = train});  // sets the field "lr" of the module
//   found->plot({.suggest = true, .path = "lr.svg"});
//   trainer.fit(net, {.train = train});                 // its configure_optimizers reads the new lr
//
// A search trains in earnest, by the trainer's own loop and with the module's hooks; the trainer's callbacks and records are off.
// Then it is as if it had not been: weights, buffers, gradients, optimizer, schedules, loss scale, generators, counters, limits,
// loaders' positions and what was logged are put back, also after an error; other members of the module are its own business.
// Tensors wait in a hidden file in default_root_dir (.lr_find_<uuid>.safetensors), which is removed; so a search needs no
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
  LoaderRefs train{}, val{};  // of Tuner alone; empty: the module's hooks
  double min_lr = 1e-8, max_lr = 1;
  std::int64_t num_training = 100;   // optimizer steps
  std::string mode = "exponential";  // or "linear": how the rates are spaced
  // Ends the search when the smoothed loss is more than this many times the best so far; nullopt: never. Losses are taken to be
  // above 0.
  std::optional<double> early_stop_threshold = 4.0;
  bool update_attr = true;        // set the field, the rate of live optimizers, and what their schedules start from
  std::string attr_name{};        // the field: a tunable or hparam of the module; default: "lr", else "learning_rate"
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

// Leslie Smith, "Cyclical Learning Rates for Training Neural Networks", 2017.
class LEVIN_API Tuner {
 public:
  explicit Tuner(Trainer& trainer) : trainer_(&trainer) {}

  // Before a fit. Nothing with fast_dev_run, and a warning. Throws ConfigError before any work: min_lr not below max_lr, num_training
  // below 1, a mode or slope_axis that is not known, a threshold that is not above 0, a field that the module has not (with
  // update_attr), another number of optimizers than one, or a LearningRateFinder among the trainer's callbacks; FileError when
  // the state can not be kept; rethrows what the step throws.
  std::optional<LrFindResult> lr_find(TrainModule& module, const LrFindOptions& options = {});

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
  // In a hook of fit outside of batches; throws StateError elsewhere.
  void lr_find();
  [[nodiscard]] const std::optional<LrFindResult>& result() const { return result_; }  // of the last search

 private:
  LrFindOptions options_;
  std::optional<LrFindResult> result_;
};

}  // namespace levin
