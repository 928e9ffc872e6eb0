// Moves learning rates: schedules that count steps or epochs, and plateau schedules, which watch a metric.
#include "train/callbacks/monitored.h"
#include "train/run/run.h"

namespace levin::train {

void Optimizers::advance(SchedulerConfig::Interval interval) {
  const std::int64_t count =
      interval == SchedulerConfig::Interval::step ? run_.progress.global_step : run_.progress.epoch + 1;
  for (const SchedulerConfig& s : schedulers) {
    if (!s.scheduler->needs_metric() && s.interval == interval && count % s.frequency == 0) s.scheduler->step();
  }
}

void Optimizers::advance_plateaus(SchedulerConfig::Interval interval) {
  if (run_.borrowed.manual) return;
  const std::int64_t count =
      interval == SchedulerConfig::Interval::step ? run_.progress.global_step : run_.progress.epoch + 1;
  for (const SchedulerConfig& s : schedulers) {
    if (!s.scheduler->needs_metric() || s.interval != interval || count % s.frequency != 0) continue;
    const Metrics known = run_.logs.monitored();
    if (const std::optional<double> value = metric(known, s.monitor)) {
      s.scheduler->step(*value);
      continue;
    }
    const std::string what =
        "fit: a plateau schedule monitors \"" + s.monitor + "\", which was not logged; known are: " + names_of(known);
    if (s.strict) fail<ConfigError>(what, "; log it, or set strict = false");
    warn("W-TRAIN-PLATEAU", WarningCategory::runtime, what + "; the learning rate stays");
  }
}

}  // namespace levin::train
