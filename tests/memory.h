// For tests of functions that must not need memory.
#pragma once

#include <malloc.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>

namespace levin::test {

// After this call every allocation of this process fails: for a child that was forked for it. It has no effect under
// AddressSanitizer, which has an allocator of its own.
inline void use_up_memory() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_AS, &none);
  for (std::size_t bytes = std::size_t{1} << 26; bytes >= 16; bytes /= 2) {
    for (bool more = true; more;) {
      void* volatile kept = std::malloc(bytes);  // volatile: the compiler may omit an unused allocation
      more = kept != nullptr;
    }
  }
}

}  // namespace levin::test
