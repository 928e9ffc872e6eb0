#include "levin/train/lr_monitor.h"

#include <algorithm>
#include <vector>

#include "levin/train/trainer.h"

namespace levin {
namespace {

void log_rates(Trainer& trainer, const LearningRateMonitorOptions& options, const LogOptions& how) {
  std::vector<MonitoredOptimizer> optimizers;
  for (const OptimizerHandle& o : trainer.optimizers()) {
    optimizers.push_back({.optimizer = &o.optimizer()});
    for (const SchedulerConfig& s : trainer.schedulers()) {
      if (&s.scheduler->optimizer() == &o.optimizer() && !s.name.empty()) optimizers.back().name = s.name;
    }
  }
  for (const auto& [name, value] : learning_rates(optimizers, options)) trainer.log(name, value, how);
}

}  // namespace

Metrics learning_rates(std::span<const MonitoredOptimizer> optimizers, const LearningRateMonitorOptions& options) {
  Metrics out;
  std::vector<std::string> taken;
  for (const auto& [optimizer, given] : optimizers) {
    if (!optimizer) continue;
    const std::string base = given.empty() ? "lr-" + optimizer->type_name() : given;
    const auto before = std::count(taken.begin(), taken.end(), base);
    taken.push_back(base);
    const std::string name = before == 0 ? base : base + "-" + std::to_string(before);
    for (int g = 0; g < optimizer->groups(); ++g) {
      const std::string group = optimizer->groups() == 1 ? name : name + "/pg" + std::to_string(g + 1);
      out.emplace_back(group, optimizer->lr(g));
      const auto momentum = optimizer->momentum(g), decay = optimizer->weight_decay(g);
      if (options.log_momentum && momentum) out.emplace_back(group + "-momentum", *momentum);
      if (options.log_weight_decay && decay) out.emplace_back(group + "-weight_decay", *decay);
    }
  }
  return out;
}

LearningRateMonitor::LearningRateMonitor(LearningRateMonitorOptions options) : options_(options) {}

void LearningRateMonitor::on_train_epoch_start() {
  if (options_.logging_interval == LoggingInterval::epoch && trainer().batch_idx() < 0)  // else it is logged already
    log_rates(trainer(), options_, {.on_step = false, .on_epoch = true});
}

BatchStart LearningRateMonitor::on_train_batch_start(const StepInfo&) {
  const std::int64_t every = trainer().options().log_every_n_steps;
  const bool due = every > 0 && (trainer().record_step() + 1) % every == 0;
  if (due && options_.logging_interval != LoggingInterval::epoch)
    log_rates(trainer(), options_, {.on_step = true, .on_epoch = false});
  return BatchStart::proceed;
}

}  // namespace levin
