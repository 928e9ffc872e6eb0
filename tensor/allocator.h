// The host allocator: 64-byte aligned blocks, kept for reuse by size class, so that a steady step allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "levin/device.h"

namespace levin::detail {

// A block of at least `bytes`. Throws OutOfMemoryError with bytes wanted, in use and cached; tries once more after
// giving the cache back. Thread-safe.
[[nodiscard]] std::byte* host_allocate(std::size_t bytes);
void host_release(std::byte* block, std::size_t bytes) noexcept;  // `bytes` as given to host_allocate

// Throws OutOfMemoryError for an allocation that set_memory_limit forbids.
[[noreturn]] void refuse_beyond_limit(std::size_t bytes, Device on, std::int64_t in_use, std::int64_t limit);

// The meta device's ledger: counted, never allocated.
void meta_add(std::size_t bytes) noexcept;
void meta_remove(std::size_t bytes) noexcept;

}  // namespace levin::detail
