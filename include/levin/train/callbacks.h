// Callbacks that come with Levin; early stopping and checkpoints are in early_stopping.h and model_checkpoint.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/train/hooks.h"
#include "levin/train/options.h"

namespace levin {

// Asks the run to stop once it has trained for `duration`: looked at before the first batch and after each batch (or epoch). The
// time of a run that was resumed counts. TrainerOptions::max_time makes one.
class LEVIN_API Timer : public Callback {
 public:
  enum class Interval : std::uint8_t { step, epoch };
  explicit Timer(Duration duration, Interval interval = Interval::step);
  ~Timer() override;
  [[nodiscard]] double time_elapsed() const;  // seconds of training
  [[nodiscard]] double time_remaining() const;
  void on_fit_start() override;
  void on_train_start() override;
  void on_train_end() override;
  void on_train_batch_end(const StepInfo& info) override;
  void on_train_epoch_end() override;
  void on_exception(const std::exception& error) override;
  [[nodiscard]] std::string state_key() const override { return "Timer"; }
  [[nodiscard]] CallbackState state() const override;
  void load_state(const CallbackState& state) override;

 private:
  void check();
  struct Clock;
  std::unique_ptr<Clock> clock_;
  double limit_;
  Interval interval_;
  double before_ = 0;  // elapsed in runs before this one
};

// accumulate_grad_batches by epoch: {{0, 8}, {4, 4}, {8, 1}} is 8 in epochs 0 to 3, 4 in 4 to 7, then 1. Epochs before the first key
// have 1. Throws ConfigError for an empty list, an epoch below 0 or given twice, a factor below 1.
class LEVIN_API GradientAccumulationScheduler : public Callback {
 public:
  explicit GradientAccumulationScheduler(std::vector<std::pair<std::int64_t, std::int64_t>> scheduling);
  void on_train_epoch_start() override;
  [[nodiscard]] std::int64_t factor(std::int64_t epoch) const;

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> scheduling_;  // by epoch
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
