// The host allocator: 64-byte aligned blocks, kept for reuse by size class, so that a steady step allocates nothing.
#pragma once

#include <cstddef>

#include "levin/device.h"

namespace levin::detail {

// A block of at least `bytes`. Throws OutOfMemoryError with bytes wanted, in use and cached; tries once more after
// giving the cache back. Thread-safe.
[[nodiscard]] std::byte* host_allocate(std::size_t bytes);
void host_release(std::byte* block, std::size_t bytes) noexcept;  // `bytes` as given to host_allocate

// The meta device's ledger: counted, never allocated.
void meta_add(std::size_t bytes) noexcept;
void meta_remove(std::size_t bytes) noexcept;

}  // namespace levin::detail
