// Callbacks that come with Levin; early stopping and checkpoints are in early_stopping.h and model_checkpoint.h.
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

// accumulate_grad_batches by epoch: {{0, 8}, {4, 4}, {8, 1}} is 8 in epochs 0 to 3, 4 in 4 to 7, then 1. Epochs before the first key
// have 1. Throws ConfigError for an empty list, an epoch below 0 or given twice, a factor below 1; fit does so with manual optimization, and
// for a factor above 1 with LBFGS. It keeps no state: a run that goes on asks it for its epoch. TrainerOptions has its 1 back when the
// fit ends.
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
  std::optional<bool> terminal{};            // unset: whether stderr is one; false: lines, no bar
  std::optional<std::int64_t> columns{};     // of the terminal; unset: as it says, and no limit where it says nothing
  Function<void(std::string_view)> write{};  // unset: to stderr
  ClockNs clock = &steady_ns;
};
// On a terminal a bar on stderr:
//
//   Epoch 2: [#########...............] 120/300 [00:12<00:18, 9.9 batches/s, v_num=3, train_loss=0.250]
//   Validation DataLoader 0: [######..................] 12/50 [00:00<00:02, 15.1 batches/s]
//
// with v_num, the first logger's version (of a name its last four characters), and what was logged with prog_bar; numbers have
// three significant digits, filled up to five characters. It is redrawn every refresh_rate batches, at most ten times a second,
// and for the last batch; metrics are read from the device for that alone, at most ten times a second. Without a known length
// there is no total. On a narrow terminal metrics stay longest: the bar's cells go first, then v_num, then the rate,
// then the times. Warnings and notes are printed above the bar. Where there is no terminal: one line every
// log_every_n_steps and one an epoch. Added by default with enable_progress_bar. The constructor throws ConfigError for
// a refresh_rate below 0 and for less than 2 columns.
class LEVIN_API ProgressBar : public Callback {
 public:
  explicit ProgressBar(ProgressBarOptions options = {});
  ~ProgressBar() override;
  void print(std::string_view line);  // on stdout, above the bar: Trainer::print
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
  bool cpu = false;  // the host's memory as well, where the module is on another device
};
// Logs with each record of steps how much memory tensors have on the module's device, before the batch and after it, in bytes:
// "DeviceStatsMonitor.on_train_batch_end/cuda:0.memory_in_use", and likewise memory_peak and memory_cached (memory_stats).
// Throws ConfigError at the start of a fit without a logger.
class LEVIN_API DeviceStatsMonitor : public Callback {
 public:
  explicit DeviceStatsMonitor(DeviceStatsMonitorOptions options = {}) : options_(options) {}
  void setup(Stage stage) override;
  BatchStart on_train_batch_start(const StepInfo& info) override;
  void on_train_batch_end(const StepInfo& info) override;

 private:
  void log_stats(const char* hook);
  DeviceStatsMonitorOptions options_;
};

}  // namespace levin
