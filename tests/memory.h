// For tests of what must not need memory.
#pragma once

#include <malloc.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>

namespace levin::test {

// From here on every allocation of this process fails: for a child that was forked for it. Useless under
// AddressSanitizer, which has an allocator of its own.
inline void use_up_memory() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_AS, &none);
  for (std::size_t bytes = std::size_t{1} << 26; bytes >= 16; bytes /= 2) {
    for (bool more = true; more;) {
      void* volatile kept = std::malloc(bytes);  // volatile: an allocation that nobody uses may be left out
      more = kept != nullptr;
    }
  }
}

}  // namespace levin::test
