#include "levin/train/lr_monitor.h"

#include <algorithm>
#include <vector>

#include "levin/train/trainer.h"

namespace levin {
Metrics learning_rates(std::span<const MonitoredOptimizer> optimizers, const LearningRateMonitorOptions& options) {
  Metrics out;
  std::vector<std::string> taken;
  for (const auto& [optimizer, given, shown] : optimizers) {
    if (!optimizer) continue;
    const std::string base = given.empty() ? "lr-" + optimizer->type_name() : given;
    const auto before = std::count(taken.begin(), taken.end(), base);
    taken.push_back(base);
    const std::string name = before == 0 ? base : base + "-" + std::to_string(before);
    for (int g = 0; shown && g < optimizer->groups(); ++g) {
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

// Logs the rates that move `at`: after steps, or with epochs.
void LearningRateMonitor::log_rates(LoggingInterval at) {
  using Interval = SchedulerConfig::Interval;
  const bool steps = at == LoggingInterval::step;
  const bool asked = options_.logging_interval == at, by_schedule = options_.logging_interval == LoggingInterval::none;
  if (!asked && !by_schedule) return;
  std::vector<MonitoredOptimizer> optimizers;
  for (const OptimizerHandle& o : trainer().optimizers()) {
    optimizers.push_back({.optimizer = &o.optimizer()});
    bool scheduled = false, moves = false;
    for (const SchedulerConfig& s : trainer().schedulers()) {
      if (&s.scheduler->optimizer() != &o.optimizer()) continue;
      scheduled = true;
      moves |= (s.interval == Interval::step) == steps;
      if (!s.name.empty()) optimizers.back().name = s.name;
    }
    optimizers.back().shown = asked || !scheduled || moves;
  }
  for (const auto& [name, value] : learning_rates(optimizers, options_))
    trainer().log(name, value, {.on_step = steps, .on_epoch = !steps});
}

void LearningRateMonitor::on_train_epoch_start() {
  if (trainer().batch_idx() < 0) log_rates(LoggingInterval::epoch);  // else an earlier run logged it
}

BatchStart LearningRateMonitor::on_train_batch_start(const StepInfo&) {
  const std::int64_t every = trainer().options().log_every_n_steps;
  if (every > 0 && (trainer().record_step() + 1) % every == 0) log_rates(LoggingInterval::step);
  return BatchStart::proceed;
}

}  // namespace levin
