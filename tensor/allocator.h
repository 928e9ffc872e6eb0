// The host allocator: 64-byte aligned blocks, kept for reuse by size class, so that a steady step allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "levin/device.h"

namespace levin::detail {

// A block of at least `bytes`. Throws OutOfMemoryError (refuse) after one more try with the cache given back. Thread-safe.
[[nodiscard]] std::byte* host_allocate(std::size_t bytes);
void host_release(std::byte* block, std::size_t bytes) noexcept;  // `bytes` as given to host_allocate

// What an allocator holds when it has to refuse.
struct Holds {
  std::size_t in_use = 0, cached = 0;
  std::size_t tensors = 0;
  std::array<std::size_t, 5> largest{};  // their bytes, from the largest; 0 where there are no more
  void add(std::size_t bytes, std::size_t count = 1) noexcept;  // tensors in use
};
// Throws OutOfMemoryError with bytes wanted, in use, cached and the largest live tensors; of a device that set_memory_limit
// made smaller also the limit.
[[noreturn]] void refuse(std::size_t bytes, std::string_view on, const Holds& now, std::optional<std::int64_t> limit);

// The meta device's ledger: counted, never allocated.
void meta_add(std::size_t bytes) noexcept;
void meta_remove(std::size_t bytes) noexcept;

// On cpu a tensor of up to this size lies behind its Storage in one system allocation: glibc's per-thread cache makes it
// cheaper than any list of ours. Such tensors are not in memory_stats.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kInlineBytes = 0;
#else
inline constexpr std::size_t kInlineBytes = 512;
#endif

// A ledger for a plan: what the tensors on meta that the calling thread makes while it lives would take on `as`, whose
// allocator rounds sizes up. One that is released meanwhile must have been made meanwhile, too. They do not nest.
class PlannedMemory {
 public:
  explicit PlannedMemory(Device as);
  ~PlannedMemory();
  PlannedMemory(const PlannedMemory&) = delete;
  PlannedMemory& operator=(const PlannedMemory&) = delete;
  [[nodiscard]] std::int64_t in_use() const { return in_use_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  [[nodiscard]] std::int64_t size_of(std::size_t bytes) const;  // of one tensor
  void count(std::size_t bytes, int sign) noexcept;

 private:
  Device as_;
  std::int64_t in_use_ = 0, peak_ = 0;
};

}  // namespace levin::detail
