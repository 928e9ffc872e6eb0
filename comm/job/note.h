// What a rank is doing, for the watcher's beats: a few stores at a change, no lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace levin::dist {

// The phases of a run that a failure names.
enum class Phase : std::uint8_t {
  rendezvous,
  setup,
  loop,  // of a fit, outside of the phases below
  data,
  forward,
  backward,
  collective,
  optimizer,
  hooks,
  validation,
  save,
  logging,
  exit,
  idle
};
[[nodiscard]] const char* name_of(Phase phase);

// Seconds of the steady clock, for beats and deadlines.
[[nodiscard]] double steady_seconds() noexcept;

// set, set_phase and set_step are called by the thread that trains, enter_wait and leave_wait by the thread that waits
// in the job's collectives, read() by the watcher. Each of the two parts is read as it was written at once.
class Note {
 public:
  struct Copy {
    Phase phase = Phase::idle;
    std::int64_t step = -1;   // optimizer steps completed
    double since = 0;         // steady seconds of the last change of phase or step
    std::uint64_t entry = 0;  // collectives waited in so far, with the running one
    std::uint64_t site = 0;   // of the collective that a thread waits in; 0: none
    double wait_since = 0;    // steady seconds of the last enter_wait or leave_wait
    double waited = 0;        // seconds spent in the waits that have ended
  };
  void set(Phase phase, std::int64_t completed) noexcept;
  void set_phase(Phase phase) noexcept;
  void set_step(std::int64_t completed) noexcept;
  // `entry` counts the collectives that this rank has issued; equal on all ranks for the same collective. `site` is not
  // 0.
  void enter_wait(std::uint64_t entry, std::uint64_t site) noexcept;
  void leave_wait() noexcept;
  [[nodiscard]] Copy read() const noexcept;

 private:
  // One writer each. Odd: a change is under way.
  std::atomic<std::uint32_t> run_sequence_{0}, wait_sequence_{0};
  std::atomic<Phase> phase_{Phase::idle};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<double> since_{steady_seconds()};
  std::atomic<std::uint64_t> entry_{0}, site_{0};
  std::atomic<double> wait_since_{steady_seconds()}, waited_{0};
};

}  // namespace levin::dist
