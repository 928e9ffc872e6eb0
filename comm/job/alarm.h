// What ends all waits of a job: the first cause of a failure, as the store decided it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levin/function.h"

namespace levin::dist {

// The cause that every survivor reports.
struct Verdict {
  enum class Kind : std::uint8_t { none, lost, silent, stuck, failed, mismatch, aborted };
  Kind kind = Kind::none;
  int rank = -1;                  // whose fault it is; -1: of no single rank
  std::string text;               // the whole message: rank, host, phase, step, entry, seconds, what to do
  std::int64_t newest_step = -1;  // the largest number of completed optimizer steps of the survivors; -1: unknown
  int writer = -1;                // the lowest surviving rank that has completed newest_step; -1: unknown
};
[[nodiscard]] const char* name_of(Verdict::Kind kind);

// Raised once, by the watcher or by a group; read by every wait. A wait that may block registers what wakes it.
class Alarm {
 public:
  [[nodiscard]] bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  // Stores the first verdict and calls all wakers; later ones are ignored. From any thread.
  void raise(Verdict verdict) noexcept;
  [[nodiscard]] Verdict verdict() const;  // after raised()
  // Throws CommError with the verdict's text if raised.
  void check() const;
  // `wake` is called at most once, from the thread that raises, and at once if the alarm is raised already. It returns
  // soon; it may lock a mutex that no caller of add() or remove() holds. remove() returns when no call of it is under
  // way, except within that call.
  std::uint64_t add(Function<void()> wake);
  void remove(std::uint64_t id) noexcept;

 private:
  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  std::condition_variable called_;
  Verdict verdict_;
  std::uint64_t next_ = 1, calling_ = 0;
  std::thread::id caller_;
  std::vector<std::pair<std::uint64_t, Function<void()>>> wakers_;
};

}  // namespace levin::dist
