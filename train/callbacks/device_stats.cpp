#include "levin/device.h"
#include "levin/train.h"

namespace levin {

void DeviceStatsMonitor::setup(Stage stage) {
  if (stage == Stage::fit && trainer().is_global_zero() && trainer().loggers().empty() &&
      trainer().options().fast_dev_run == 0)
    fail<ConfigError>(
        "fit: callbacks holds a DeviceStatsMonitor and the trainer has no logger for it; give .logger, or drop it");
}

void DeviceStatsMonitor::log_stats(const char* hook) {
  const optim::Optimizer* const optimizer = trainer().optimizer();
  const Device there = optimizer->parameters().front().value->device();
  const auto tell = [&](Device device) {
    const MemoryStats stats = memory_stats(device);
    const std::string name = std::string("DeviceStatsMonitor.") + hook + "/" + text(device) + ".memory_";
    trainer().log_dict(Metrics{{name + "in_use", static_cast<double>(stats.in_use)},
                               {name + "peak", static_cast<double>(stats.peak)},
                               {name + "cached", static_cast<double>(stats.cached)}},
                       {.on_step = true, .on_epoch = false});
  };
  tell(there);
  if (options_.cpu && !there.is_cpu()) tell(Device::cpu());
}

// In a window of accumulation the record has what its last batch logs.
BatchStart DeviceStatsMonitor::on_train_batch_start(const StepInfo&) {
  const std::int64_t every = trainer().options().log_every_n_steps;
  step_before_ = trainer().record_step();
  if (every > 0 && (step_before_ + 1) % every == 0) log_stats("on_train_batch_start");
  return BatchStart::proceed;
}

void DeviceStatsMonitor::on_train_batch_end(const StepInfo&) {
  const std::int64_t every = trainer().options().log_every_n_steps, step = trainer().record_step();
  if (every > 0 && step % every == 0 && step != step_before_) log_stats("on_train_batch_end");
}

}  // namespace levin
