#include <algorithm>

#include "levin/train.h"

namespace levin {

GradientAccumulationScheduler::GradientAccumulationScheduler(
    std::vector<std::pair<std::int64_t, std::int64_t>> scheduling)
    : scheduling_(std::move(scheduling)) {
  if (scheduling_.empty()) fail<ConfigError>("GradientAccumulationScheduler: no epochs; give {{epoch, batches}, ...}");
  std::sort(scheduling_.begin(), scheduling_.end());
  for (std::size_t i = 0; i < scheduling_.size(); ++i) {
    const auto& [epoch, batches] = scheduling_[i];
    if (epoch < 0 || batches < 1)
      fail<ConfigError>("GradientAccumulationScheduler: epoch ", epoch, " has ", batches,
                        " batches, expected an epoch of 0 or more and 1 batch or more");
    if (i > 0 && scheduling_[i - 1].first == epoch)
      fail<ConfigError>("GradientAccumulationScheduler: epoch ", epoch, " is given twice");
  }
}

std::int64_t GradientAccumulationScheduler::accumulation_at(std::int64_t epoch) const {
  std::int64_t now = 1;
  for (const auto& [from, batches] : scheduling_) {
    if (from <= epoch) now = batches;
  }
  return now;
}

std::int64_t GradientAccumulationScheduler::largest_accumulation() const {
  std::int64_t most = 1;
  for (const auto& [from, batches] : scheduling_) most = std::max(most, batches);
  return most;
}

void GradientAccumulationScheduler::apply() {
  trainer().options().accumulate_grad_batches = accumulation_at(trainer().current_epoch());
}
// Before the first epoch starts: a run that resumes inside a window may be saved or cut before that.
void GradientAccumulationScheduler::on_fit_start() { apply(); }
void GradientAccumulationScheduler::on_train_epoch_start() { apply(); }
void GradientAccumulationScheduler::teardown(Stage stage) {
  if (stage == Stage::fit) trainer().options().accumulate_grad_batches = 1;
}

}  // namespace levin
