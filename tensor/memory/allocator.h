// The host allocator: 64-byte aligned blocks, kept for reuse by size class. A step in its steady state allocates
// nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "levin/device.h"

namespace levin::detail {

// A block of at least `bytes`. Returns the cache to the system and tries again before it throws OutOfMemoryError
// (refuse). Thread-safe.
[[nodiscard]] std::byte* host_allocate(std::size_t bytes);
void host_release(std::byte* block, std::size_t bytes) noexcept;  // `bytes` as given to host_allocate

// What an allocator holds when it refuses a request.
struct Holds {
  std::size_t in_use = 0, cached = 0;
  std::size_t tensors = 0;
  std::array<std::size_t, 5> largest{};  // bytes of the largest tensors in descending order, padded with 0
  void add(std::size_t bytes, std::size_t count = 1) noexcept;  // `count` tensors in use, of `bytes` each
};
// Throws OutOfMemoryError with the bytes wanted, in use and cached, and the largest live tensors; for a device that
// set_memory_limit made smaller also with the limit.
[[noreturn]] void refuse(std::size_t bytes, std::string_view on, const Holds& now, std::optional<std::int64_t> limit);

// The ledger of the meta device: it counts and never allocates.
void meta_add(std::size_t bytes) noexcept;
void meta_remove(std::size_t bytes) noexcept;

// On cpu a tensor of up to this size lies after its Storage in one system allocation: glibc's per-thread cache is
// cheaper than a free list here. memory_stats does not count such tensors.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kInlineBytes = 0;
#else
inline constexpr std::size_t kInlineBytes = 512;
#endif

// A ledger for a plan. While it lives, it counts what the calling thread's tensors on meta would take on `as`, whose
// allocator rounds sizes up. A tensor that is released while the plan lives must have been made while the plan lived.
// Plans do not nest.
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
