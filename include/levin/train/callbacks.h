// Callbacks: Timer, GradientAccumulationScheduler, ProgressBar, DeviceStatsMonitor. Others are in early_stopping.h,
// model_checkpoint.h, lr_monitor.h, summary.h, averaging.h and tuner.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/train/hooks.h"
#include "levin/train/options.h"

namespace levin {

// Requests a stop when the run has trained for `duration`, checked before the first batch and after each batch or
// epoch. Checkpoints keep the elapsed time, which a run that resumes adds to. TrainerOptions::max_time adds a Timer.
// Of several ranks the clock of rank 0 counts. The constructor throws ConfigError for a duration below 0.
class LEVIN_API Timer : public Callback {
 public:
  enum class Interval : std::uint8_t { step, epoch };
  explicit Timer(Duration duration, Interval interval = Interval::step);
  ~Timer() override;
  [[nodiscard]] double time_elapsed() const;    // seconds of training
  [[nodiscard]] double time_remaining() const;  // seconds, 0 or more
  void on_fit_start() override;
  void on_train_start() override;
  void on_train_end() override;
  void on_train_batch_end(const StepInfo& info) override;
  void on_train_epoch_end() override;
  void on_exception(const std::exception& error) override;
  [[nodiscard]] Kind kind() const override { return Kind::timer; }
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

// Sets accumulate_grad_batches by epoch: {{0, 8}, {4, 4}, {8, 1}} is 8 in epochs 0 to 3, 4 in epochs 4 to 7, then 1;
// before the first key it is 1. It keeps no state, and TrainerOptions has 1 again after the fit. Throws ConfigError for
// an empty list, an epoch below 0 or given twice, a factor below 1; fit throws it with manual optimization, and for a
// factor above 1 with LBFGS.
class LEVIN_API GradientAccumulationScheduler : public Callback {
 public:
  explicit GradientAccumulationScheduler(std::vector<std::pair<std::int64_t, std::int64_t>> scheduling);
  void on_fit_start() override;
  void on_train_epoch_start() override;
  void teardown(Stage stage) override;
  [[nodiscard]] std::int64_t accumulation_at(std::int64_t epoch) const override;
  [[nodiscard]] std::int64_t largest_accumulation() const override;

 private:
  void apply();
  std::vector<std::pair<std::int64_t, std::int64_t>> scheduling_;  // by epoch
};

struct ProgressBarOptions {
  std::int64_t refresh_rate = 1;             // batches between two redraws; 0: nothing is drawn
  std::optional<bool> terminal{};            // false: lines in place of a bar; unset: whether stderr is a terminal
  std::optional<std::int64_t> columns{};     // width; unset: that of the terminal, without a limit if it has none
  Function<void(std::string_view)> write{};  // unset: writes to stderr
  ClockNs clock = &steady_ns;
};
// Draws a bar on stderr, if that is a terminal:
//
//   Epoch 2: [#########...............] 120/300 [00:12<00:18, 9.9 batches/s, v_num=3, train_loss=0.250]
//   Validation DataLoader 0: [######..................] 12/50 [00:00<00:02, 15.1 batches/s]
//
// v_num is the first logger's version, of a name the last four characters. Values logged with prog_bar follow, with
// three significant digits, padded to five characters. A loader of unknown length has no total. The bar is redrawn
// every refresh_rate batches, at most ten times a second, and for the last batch; only then are metrics read from the
// device. A narrow terminal drops in this order the bar's cells, v_num, the rate, the times, the metrics. Warnings are
// printed above the bar. Without a terminal it prints a line every log_every_n_steps steps and one an epoch. Added by
// default (enable_progress_bar). The constructor throws ConfigError for a refresh_rate below 0 and for less than 2
// columns.
class LEVIN_API ProgressBar : public Callback {
 public:
  explicit ProgressBar(ProgressBarOptions options = {});
  ~ProgressBar() override;
  void print(std::string_view line);  // prints a line on stdout, above the bar
  void on_sanity_check_start() override;
  void on_train_epoch_start() override;
  void on_train_batch_end(const StepInfo& info) override;
  void on_train_epoch_end() override;
  void on_validation_start() override;
  void on_validation_batch_end(const StepInfo& info) override;
  void on_validation_end() override;
  void on_test_start() override;
  void on_test_batch_end(const StepInfo& info) override;
  void on_test_end() override;
  void on_predict_start() override;
  void on_predict_batch_end(const StepInfo& info) override;
  void on_predict_end() override;
  void on_exception(const std::exception& error) override;
  [[nodiscard]] bool after_module() const override { return true; }
  [[nodiscard]] Kind kind() const override { return Kind::progress_bar; }
  bool print_line(std::string_view line) override;

 private:
  struct Drawing;
  std::unique_ptr<Drawing> drawing_;
};

struct DeviceStatsMonitorOptions {
  bool cpu = false;  // for a module on another device: also the host's memory
};
// Logs with each record of steps the bytes that tensors use on the module's device (memory_stats), before and after the
// batch: "DeviceStatsMonitor.on_train_batch_end/cuda:0.memory_in_use", and likewise memory_peak and memory_cached. fit
// throws ConfigError without a logger.
class LEVIN_API DeviceStatsMonitor : public Callback {
 public:
  explicit DeviceStatsMonitor(DeviceStatsMonitorOptions options = {}) : options_(options) {}
  void setup(Stage stage) override;
  BatchStart on_train_batch_start(const StepInfo& info) override;
  void on_train_batch_end(const StepInfo& info) override;

 private:
  void log_stats(const char* hook);
  DeviceStatsMonitorOptions options_;
  std::int64_t step_before_ = 0;  // record_step() when the batch began
};

}  // namespace levin
