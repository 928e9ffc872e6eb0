// A piece of memory that the ranks of one host share.
//
// Note [Shared memory of ranks]
//
// Rank 0 makes a file without a name (memfd), and the others open it as /proc/<process>/fd/<number>. No name exists at
// any time, so a process that is killed leaves nothing behind: the system frees the memory with its last mapping.
//
// A flag is a counter that one rank raises and others wait for. Who waits sleeps in the system (futex) after a few
// microseconds. A sleep is bounded: it ends to look for an abort, and a flag's owner may have been killed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/job/rendezvous.h"
#include "levin/function.h"

namespace levin::dist {

struct alignas(64) Flag {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

class Segment {
 public:
  // `bytes` beside the segment's own head, 4096-byte aligned, zero. Throws CommError, on all ranks.
  Segment(Rendezvous& ranks, std::size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  [[nodiscard]] std::byte* data() const { return memory_ + kHead; }

  // Ends the waits of all ranks; the first reason counts.
  void abort(std::string_view reason) noexcept;
  [[nodiscard]] bool aborted() const noexcept;
  [[nodiscard]] std::string reason() const;

  static void raise(Flag& flag, std::uint32_t value) noexcept;
  static void wake(Flag& flag) noexcept;  // without a change of the value
  // Whether flag - value, as a signed number, is at least 0 within `seconds`.
  [[nodiscard]] static bool reached(const Flag& flag, std::uint32_t value) noexcept {
    return static_cast<std::int32_t>(flag.value.load(std::memory_order_acquire) - value) >= 0;
  }
  static void sleep(Flag& flag, std::uint32_t value, double seconds) noexcept;

 private:
  static constexpr std::size_t kHead = 4096;
  struct Head;
  [[nodiscard]] Head& head() const;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace levin::dist
