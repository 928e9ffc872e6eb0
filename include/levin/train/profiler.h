// Where the time of a run goes: profilers, which measure every action by name, and the step-time report, which is so
// cheap that it is always on.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "levin/device.h"
#include "levin/export.h"
#include "levin/function.h"

namespace levin {

// Nanoseconds of a clock that never goes back.
[[nodiscard]] LEVIN_API std::int64_t steady_ns() noexcept;
using ClockNs = std::int64_t (*)() noexcept;

// Gets the begin and the end of each action: hooks, steps, transfers. Actions may nest and overlap. Called by one
// thread at a time. Times are the host's: on a device that launches kernels an action lasts until its work is enqueued.
class LEVIN_API Profiler {
 public:
  Profiler() = default;
  virtual ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  // Throws StateError for an action that is running.
  virtual void start(std::string_view action) = 0;
  // Throws StateError for an action that is not running.
  virtual void stop(std::string_view action) = 0;
  virtual void finish();  // the end of a run: prints or writes what was measured
};

// An action from construction to destruction. A null profiler is allowed.
class LEVIN_API ProfilerScope {
 public:
  // Inlined also in files that are built for size: a step has a dozen.
  template <std::convertible_to<std::string_view> Action>
  [[gnu::always_inline]] ProfilerScope(Profiler* profiler, const Action& action) : profiler_(profiler) {
    if (profiler_) start(action);
  }
  [[gnu::always_inline]] ~ProfilerScope() {
    if (profiler_) stop();
  }
  ProfilerScope(const ProfilerScope&) = delete;
  ProfilerScope& operator=(const ProfilerScope&) = delete;

 private:
  void start(std::string_view action);
  void stop() noexcept;

  Profiler* profiler_;
  std::optional<std::string> action_;
};

struct SimpleProfilerOptions {
  std::string path{};  // of the report; empty: stderr
  ClockNs clock = &steady_ns;
};
// Reports one line for each action, the longest first: calls, mean and total time, its share of the time since the
// first action began, and how often the host waited for a device in it. Shares of nested actions add up to more than
// the whole.
class LEVIN_API SimpleProfiler : public Profiler {
 public:
  explicit SimpleProfiler(SimpleProfilerOptions options = {});
  ~SimpleProfiler() override;
  void start(std::string_view action) override;
  void stop(std::string_view action) override;
  void finish() override;  // throws FileError
  [[nodiscard]] std::string report() const;

 private:
  struct Actions;
  std::unique_ptr<Actions> actions_;
};

struct TraceProfilerOptions {
  std::string path{};                    // "trace.json"
  std::int64_t max_actions = 1'000'000;  // kept; later ones are dropped, with a warning (W-PROFILER-FULL)
  ClockNs clock = &steady_ns;
};
// Writes a trace in Chrome's format (chrome://tracing, ui.perfetto.dev) when the run ends, whole or not at all. Throws
// ConfigError for an empty path or max_actions below 1.
class LEVIN_API TraceProfiler : public Profiler {
 public:
  explicit TraceProfiler(TraceProfilerOptions options);
  ~TraceProfiler() override;
  void start(std::string_view action) override;
  void stop(std::string_view action) override;
  void finish() override;  // throws FileError; actions that are running end here in the file

 private:
  struct Actions;
  std::unique_ptr<Actions> actions_;
};

// Makes an NVTX range of each action, for Nsight Systems: nsys profile --trace=cuda,nvtx ./program. Throws ConfigError
// in a build without CUDA (-Dcuda=enabled) or without the toolkit's NVTX headers.
class LEVIN_API NvtxProfiler : public Profiler {
 public:
  NvtxProfiler();
  ~NvtxProfiler() override;  // ends running ranges
  void start(std::string_view action) override;
  void stop(std::string_view action) override;

 private:
  struct Ranges;
  std::unique_ptr<Ranges> ranges_;
};

// ---- The step-time report
// What the loop is doing. On a device that launches kernels, forward, backward and optimizer are the time to enqueue
// them; the device's own time appears as host_wait.
enum class Phase : std::uint8_t {
  unexplained,  // no phase was entered
  data,         // waiting for the next batch, and moving it to the device
  forward,
  backward,
  optimizer,
  communication,
  host_wait,
  hooks,
  validating,
  saving,
  logging,
};
inline constexpr std::size_t kPhases = 11;

// A clock that is always in one phase, so the phases add up to the whole. A change of phase reads the clock once and
// adds once; it allocates nothing.
//
//   times.start();
//   times.enter(Phase::forward);
//   ...
//   times.stop();
//   std::string words = times.report(device);
class LEVIN_API StepTimes {
 public:
  explicit StepTimes(ClockNs clock = &steady_ns) : clock_(clock) {}
  // Starts or resumes the clock, in phase unexplained.
  void start() noexcept;
  void stop() noexcept;  // time until the next start does not count
  // Enters a phase and returns the phase before. While stopped, times do not change.
  Phase enter(Phase phase) noexcept;
  void count_step() noexcept;  // counts an optimizer step
  void reset() noexcept;       // sets everything to 0; who is told stays
  // Calls f, which must not throw, with the phase at each change of it and at each counted step.
  void tell(Function<void(Phase)> f) { told_ = std::move(f); }

  [[nodiscard]] std::int64_t nanoseconds(Phase phase) const noexcept;
  [[nodiscard]] std::int64_t total_nanoseconds() const noexcept;  // between starts and stops
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  [[nodiscard]] Phase phase() const noexcept { return phase_; }

  // The phases' shares in words, the largest first, and what to try first for the largest; empty if no time passed. The
  // words depend on whether the device launches kernels. Call it while stopped.
  [[nodiscard]] std::string report(Device device) const;

 private:
  void charge() noexcept;

  ClockNs clock_;
  std::array<std::int64_t, kPhases> spent_{};
  std::int64_t total_ = 0, started_ = 0, entered_ = 0, steps_ = 0;
  Phase phase_ = Phase::unexplained;
  bool running_ = false;
  Function<void(Phase)> told_;
};

// Enters a phase, and at its end the phase before.
class PhaseScope {
 public:
  PhaseScope(StepTimes& times, Phase phase) noexcept : times_(times), before_(times.enter(phase)) {}
  ~PhaseScope() { times_.enter(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  StepTimes& times_;
  Phase before_;
};

}  // namespace levin
