// How much memory tensors may take on a device.
#pragma once

#include <cstdint>
#include <optional>

#include "levin/device.h"
#include "levin/export.h"

namespace levin {

// Limits tensors of all threads on a device and returns the previous limit: an allocation that would bring
// memory_stats(d).in_use above `bytes` throws OutOfMemoryError with the bytes wanted, in use and allowed; nullopt: what
// the device has. Memory in use stays. What memory_stats does not count (page-locked memory and, on cpu, tensors of at
// most 512 bytes) is not limited. Throws ConfigError for a limit below 0, UnsupportedError for meta, and as
// memory_stats.
LEVIN_API std::optional<std::int64_t> set_memory_limit(Device d, std::optional<std::int64_t> bytes);

// Bytes that tensors may have in use in all: the limit that is set, else on cpu the machine's memory, on other devices
// their free memory and what tensors and the cache hold. Throws as set_memory_limit.
[[nodiscard]] LEVIN_API std::int64_t memory_size(Device d);

// How often this thread has called release_cached_memory (levin/device.h). A trainer warns of such a call in a batch:
// every kernel waits for it, and the next steps ask the system for the same memory again.
[[nodiscard]] LEVIN_API std::int64_t cache_releases() noexcept;

}  // namespace levin
