// LearningRateMonitor: logs the learning rates of a run.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "levin/optim.h"
#include "levin/train/hooks.h"
#include "levin/train/records.h"

namespace levin {

// When rates are logged.
//   step    with each record of steps, the rate of that step
//   epoch   with each record of epochs, the rate at the epoch's start
//   none    by the optimizer's schedule: with epochs for Interval::epoch, with steps for Interval::step, with both
//           without a schedule
enum class LoggingInterval : std::uint8_t { none, step, epoch };

struct LearningRateMonitorOptions {
  LoggingInterval logging_interval = LoggingInterval::none;
  bool log_momentum = false;      // also the momentum of optimizers that have one: Optimizer::momentum
  bool log_weight_decay = false;  // also the weight decay of optimizers that have one
};

// An optimizer and the name of its rate; empty: "lr-" and its type. An optimizer that is not shown takes its name too.
struct MonitoredOptimizer {
  const optim::Optimizer* optimizer = nullptr;
  std::string name{};
  bool shown = true;
};
// The rates by name, "lr-AdamW". A name that is taken gets "-1", "-2", ...; each of several groups gets "/pg1", "/pg2",
// ... "-momentum" and "-weight_decay" come last: "lr-SGD/pg2-momentum".
[[nodiscard]] LEVIN_API Metrics learning_rates(std::span<const MonitoredOptimizer> optimizers,
                                               const LearningRateMonitorOptions& options = {});

// Logs the rates of all optimizers of a run under the names of learning_rates(); SchedulerConfig::name replaces
// "lr-..." for its optimizer. fit throws ConfigError without a logger.
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
