// Memory that may not be touched for a while: AddressSanitizer reports an access. Other builds do nothing.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) && !defined(LEVIN_SIMT_ASAN)
#define LEVIN_SIMT_ASAN 1
#endif
#if defined(LEVIN_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace levin::simt {

inline void poison_memory([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(LEVIN_SIMT_ASAN)
  __asan_poison_memory_region(p, bytes);
#endif
}
inline void unpoison_memory([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(LEVIN_SIMT_ASAN)
  __asan_unpoison_memory_region(p, bytes);
#endif
}

[[nodiscard]] inline bool is_poisoned([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(LEVIN_SIMT_ASAN)
  return __asan_region_is_poisoned(const_cast<void*>(p), bytes) != nullptr;
#else
  return false;
#endif
}

}  // namespace levin::simt
