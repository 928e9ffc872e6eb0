#include "train/run/stopping.h"

#include <algorithm>
#include <utility>

namespace levin::train {

void Stopping::start_fit() {
  requested = kept = wait_reported = false;
  by.clear();
  signal = agreed_signal = 0;
}

void Stopping::request(KeepStop keep, std::string why) {
  if (!std::exchange(requested, true)) requested_at = progress_.global_step;
  by = std::move(why);
  if (keep == KeepStop::yes) kept = true;
}

std::int64_t Stopping::max_epochs() const {
  if (options_.max_epochs) return *options_.max_epochs;
  const bool timed = std::any_of(callbacks_.begin(), callbacks_.end(),
                                 [](const auto& c) { return c->kind() == Callback::Kind::timer; });
  return options_.max_steps >= 0 || timed ? -1 : 1000;
}
std::int64_t Stopping::min_epochs() const {
  return options_.min_epochs.value_or(options_.min_steps.value_or(0) > 0 ? 1 : 0);
}

void Stopping::report_wait() {
  if (!requested || granted() || std::exchange(wait_reported, true)) return;
  warn("I-TRAIN-MINIMUM", WarningCategory::info,
       "fit: a stop was asked for after " + text(requested_at) + " steps; training goes on to min_epochs = " +
           text(min_epochs()) + " and min_steps = " + text(options_.min_steps.value_or(0)));
}

}  // namespace levin::train
