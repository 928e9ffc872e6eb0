// What a rank is doing, for the watcher's beats: two stores at a change, no lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace levin::dist {

// The phases of a run that a failure names.
enum class Phase : std::uint8_t {
  rendezvous,
  setup,
  data,
  forward,
  backward,
  collective,
  optimizer,
  validation,
  save,
  exit,
  idle
};
[[nodiscard]] const char* name_of(Phase phase);

// Written by the thread that trains (and by the group's thread for `waiting`), read by the watcher. A reader takes a
// consistent copy by reading `sequence` before and after.
class Note {
 public:
  struct Copy {
    Phase phase = Phase::idle;
    std::int64_t step = -1;   // optimizer steps completed
    std::uint64_t entry = 0;  // collectives issued
    std::uint64_t site = 0;   // of the collective that a thread waits in; 0: none
    double since = 0;         // steady seconds of the last change
  };
  void set_phase(Phase phase) noexcept;
  void set_step(std::int64_t completed) noexcept;
  void enter_wait(std::uint64_t entry, std::uint64_t site) noexcept;
  void leave_wait() noexcept;
  [[nodiscard]] Copy read() const noexcept;

 private:
  std::atomic<std::uint32_t> sequence_{0};
  std::atomic<std::uint8_t> phase_{static_cast<std::uint8_t>(Phase::idle)};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::uint64_t> entry_{0}, site_{0};
  std::atomic<double> since_{0};
};

}  // namespace levin::dist
