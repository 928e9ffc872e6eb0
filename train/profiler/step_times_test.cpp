#include <doctest/doctest.h>

#include <string>

#include "levin/train/profiler.h"

using namespace levin;

namespace {

std::int64_t now = 0;
std::int64_t test_clock() noexcept { return now; }
constexpr std::int64_t kMs = 1'000'000;

std::int64_t sum_of(const StepTimes& times) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < kPhases; ++i) sum += times.nanoseconds(static_cast<Phase>(i));
  return sum;
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// One second: `phase` takes 90 %, hooks the rest.
std::string mostly(Phase phase, Device device) {
  StepTimes times(&test_clock);
  times.start();
  times.enter(phase);
  now += 900 * kMs;
  times.enter(Phase::hooks);
  now += 100 * kMs;
  times.stop();
  return times.report(device);
}

}  // namespace

TEST_CASE("every nanosecond of a run is in one phase, and scopes restore the phase before") {
  now = 12345;
  StepTimes times(&test_clock);
  times.start();
  now += 1;  // unexplained
  times.enter(Phase::data);
  now += 10;
  times.enter(Phase::forward);
  now += 100;
  {
    const PhaseScope logging(times, Phase::logging);
    now += 1000;
    const PhaseScope saving(times, Phase::saving);
    now += 10'000;
  }
  CHECK(times.phase() == Phase::forward);
  now += 100'000;
  times.stop();
  now += 7'000'000;  // after the run
  times.enter(Phase::hooks);
  now += 7'000'000;
  times.start();
  now += 2;
  times.stop();
  CHECK(times.nanoseconds(Phase::unexplained) == 3);
  CHECK(times.nanoseconds(Phase::data) == 10);
  CHECK(times.nanoseconds(Phase::forward) == 100'100);
  CHECK(times.nanoseconds(Phase::logging) == 1000);
  CHECK(times.nanoseconds(Phase::saving) == 10'000);
  CHECK(times.nanoseconds(Phase::hooks) == 0);
  CHECK(times.total_nanoseconds() == 111'113);
  CHECK(sum_of(times) == times.total_nanoseconds());
  times.reset();
  CHECK(sum_of(times) == 0);
  CHECK(times.report(Device::cpu()).empty());
}

TEST_CASE("the phases add up to the wall time of the real clock, too") {
  StepTimes times;
  const std::int64_t before = steady_ns();
  times.start();
  const std::int64_t begun = steady_ns();
  for (int i = 0; i < 10'000; ++i) times.enter(static_cast<Phase>(i % static_cast<int>(kPhases)));
  const std::int64_t ended = steady_ns();
  times.stop();
  const std::int64_t after = steady_ns();
  CHECK(sum_of(times) == times.total_nanoseconds());
  CHECK(times.total_nanoseconds() >= ended - begun);
  CHECK(times.total_nanoseconds() <= after - before);
}

TEST_CASE("the report has shares in words, the largest first, and they make up the whole") {
  StepTimes times(&test_clock);
  times.start();
  for (int step = 0; step < 40; ++step) {
    times.enter(Phase::data);
    now += 10 * kMs;
    times.enter(Phase::forward);
    now += 3 * kMs;
    times.enter(Phase::backward);
    now += 4 * kMs;
    times.enter(Phase::optimizer);
    now += 1 * kMs;
    times.count_step();
    times.enter(Phase::hooks);
    now += 1 * kMs;
    times.enter(Phase::unexplained);
    now += 1 * kMs;
  }
  times.stop();
  CHECK(times.report(Device::cpu()) ==
        "Where 0.8 s went, 40 steps of 20 ms:\n"
        "   50.0 %  waiting for data\n"
        "   40.0 %  computing (forward 15.0, backward 20.0, optimizer 5.0)\n"
        "    5.0 %  hooks and callbacks\n"
        "    5.0 %  unexplained\n"
        "Try first, for waiting for data: give the data loader workers (num_workers, prefetch_factor); if they are all "
        "busy, do once and keep what the dataset does for each sample.\n");
  CHECK(holds(times.report(Device::simt()), "40.0 %  launching (forward"));
}

TEST_CASE("the largest share decides the advice, for every phase") {
  CHECK(holds(mostly(Phase::forward, Device::cpu()), "Try first, for computing: "));
  CHECK(holds(mostly(Phase::backward, Device::simt()), "Try first, for launching: the host can not enqueue"));
  CHECK(holds(mostly(Phase::optimizer, Device::simt()), "Capture::step"));
  CHECK(holds(mostly(Phase::data, Device::cpu()), "num_workers"));
  CHECK(holds(mostly(Phase::host_wait, Device::simt()), "item()"));
  CHECK(holds(mostly(Phase::communication, Device::cpu()), "accumulate gradients"));
  CHECK(holds(mostly(Phase::validating, Device::cpu()), "limit_val_batches"));
  CHECK(holds(mostly(Phase::saving, Device::cpu()), "every_n_epochs"));
  CHECK(holds(mostly(Phase::hooks, Device::cpu()), "SimpleProfiler"));
  CHECK(holds(mostly(Phase::logging, Device::cpu()), "log_every_n_steps"));
  CHECK(holds(mostly(Phase::unexplained, Device::cpu()), "TraceProfiler"));
}
