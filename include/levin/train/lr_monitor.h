// Logs what schedules do to the optimizers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "levin/optim.h"
#include "levin/train/hooks.h"
#include "levin/train/records.h"

namespace levin {

// step: with each record of steps, the rate that the step of the record uses. epoch: with each epoch's record, the rate at
// its start. none: as the rate moves, with each epoch for an optimizer whose schedule has Interval::epoch, with each
// record of steps for Interval::step, with both for an optimizer without a schedule.
enum class LoggingInterval : std::uint8_t { none, step, epoch };

struct LearningRateMonitorOptions {
  LoggingInterval logging_interval = LoggingInterval::none;
  bool log_momentum = false;      // SGD's and RMSprop's momentum, Adam's beta1; nothing where there is none
  bool log_weight_decay = false;  // nothing where there is none
};

// An optimizer and how its rate is called; empty: "lr-" and its type. One that is not shown takes its name all the
// same.
struct MonitoredOptimizer {
  const optim::Optimizer* optimizer = nullptr;
  std::string name{};
  bool shown = true;
};
// "lr-AdamW"; a name that was taken already gets "-1", "-2", ...; an optimizer of several groups gives "/pg1", "/pg2", ... one
// each. Behind these "-momentum" and "-weight_decay": "lr-SGD/pg2-momentum".
[[nodiscard]] LEVIN_API Metrics learning_rates(std::span<const MonitoredOptimizer> optimizers,
                                               const LearningRateMonitorOptions& options = {});

// Logs the rates of all optimizers of a run under these names; SchedulerConfig::name names that of its optimizer.
class LEVIN_API LearningRateMonitor : public Callback {
 public:
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {});
  void on_train_epoch_start() override;
  BatchStart on_train_batch_start(const StepInfo& info) override;
  [[nodiscard]] bool needs_logger() const override { return true; }

 private:
  void log_rates(LoggingInterval at);
  LearningRateMonitorOptions options_;
};

}  // namespace levin
