#include <algorithm>
#include <array>
#include <string>

#include "levin/train/profiler.h"
#include "tensor/text/number_text.h"

namespace levin {
namespace {

constexpr std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }
static_assert(index(Phase::logging) + 1 == kPhases);

// What the report says of one or more phases, and the first thing to try if they are the largest share.
struct Group {
  const char* words;
  Phase first, last;
  const char* advice;
};
using Groups = std::array<Group, 9>;

Groups groups(bool launches) {
  const Group computing =
      launches ? Group{"launching", Phase::forward, Phase::optimizer,
                       "the host can not enqueue as fast as the device computes; capture = Capture::step replays a "
                       "step as one, and a larger batch gives each launch more to do"}
               : Group{"computing", Phase::forward, Phase::optimizer,
                       "that is what a run is for; a larger batch is faster until samples per second stop growing, and "
                       "a device that launches kernels is the next step"};
  return {{
      computing,
      {"waiting for data", Phase::data, Phase::data,
       "give the data loader workers (num_workers, prefetch_factor); if they are all busy, do once and keep what the "
       "dataset does for each sample"},
      {"host waits", Phase::host_wait, Phase::host_wait,
       "the host waits for the device; if item() or printing in a step does it, log the tensor instead, if it is the "
       "model's own work, try precision = \"bf16-mixed\""},
      {"communicating", Phase::communication, Phase::communication,
       "let the ranks meet less often: accumulate gradients over more batches, or take larger ones"},
      {"validating", Phase::validating, Phase::validating,
       "validate less often, or on fewer batches (limit_val_batches)"},
      {"saving", Phase::saving, Phase::saving,
       "save less often (every_n_epochs, every_n_train_steps), or to a faster disk"},
      {"hooks and callbacks", Phase::hooks, Phase::hooks, "a SimpleProfiler names the hook that takes the time"},
      {"logging", Phase::logging, Phase::logging, "write fewer records: raise log_every_n_steps"},
      {"unexplained", Phase::unexplained, Phase::unexplained,
       "a TraceProfiler shows between which actions the time passes"},
  }};
}

}  // namespace

void StepTimes::start() noexcept {
  if (running_) return;
  running_ = true;
  phase_ = Phase::unexplained;
  started_ = entered_ = clock_();
  if (told_) told_(phase_);
}

void StepTimes::stop() noexcept {
  if (!running_) return;
  charge();
  phase_ = Phase::unexplained;
  total_ += entered_ - started_;
  running_ = false;
}

// The time since the last change belongs to the current phase.
void StepTimes::charge() noexcept {
  const std::int64_t now = clock_();
  spent_[index(phase_)] += now - entered_;
  entered_ = now;
}

Phase StepTimes::enter(Phase phase) noexcept {
  const Phase before = phase_;
  if (phase == before) return before;  // saves a reading of the clock
  if (running_) charge();
  phase_ = phase;
  if (told_) told_(phase);
  return before;
}

void StepTimes::count_step() noexcept {
  ++steps_;
  if (told_) told_(phase_);
}

void StepTimes::reset() noexcept {
  StepTimes fresh(clock_);
  fresh.told_ = std::move(told_);
  *this = std::move(fresh);
}

std::int64_t StepTimes::nanoseconds(Phase phase) const noexcept { return spent_[index(phase)]; }
std::int64_t StepTimes::total_nanoseconds() const noexcept { return total_; }

std::string StepTimes::report(Device device) const {
  if (total_ <= 0) return {};
  const auto share = [&](std::int64_t ns) { return 100 * static_cast<double>(ns) / static_cast<double>(total_); };
  const auto spent = [&](const Group& g) {
    if (!g.words) return std::int64_t{0};  // reported
    std::int64_t sum = 0;
    for (std::size_t p = index(g.first); p <= index(g.last); ++p) sum += spent_[p];
    return sum;
  };
  Groups left = groups(device.launches());
  const double seconds = static_cast<double>(total_) / 1e9;
  std::string out = "Where " + detail::general(seconds, 4) + " s went";
  if (steps_ > 0)
    out += ", " + text(steps_) + " steps of " + detail::general(1e3 * seconds / static_cast<double>(steps_), 4) + " ms";
  out += ":\n";
  std::string advice;
  while (true) {  // the largest of those left, the first of equals
    Group& g = *std::max_element(left.begin(), left.end(),
                                 [&](const Group& a, const Group& b) { return spent(a) < spent(b); });
    if (spent(g) <= 0) return out + advice;
    if (advice.empty()) advice = std::string("Try first, for ") + g.words + ": " + g.advice + ".\n";
    out += "  " + detail::fixed(share(spent(g)), 1, 5) + " %  " + g.words;
    const auto part = [&](Phase phase) { return detail::fixed(share(nanoseconds(phase)), 1); };
    if (g.first != g.last)
      out += " (forward " + part(Phase::forward) + ", backward " + part(Phase::backward) + ", optimizer " +
             part(Phase::optimizer) + ")";
    out += '\n';
    g.words = nullptr;
  }
}

}  // namespace levin
