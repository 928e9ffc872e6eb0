// A short busy wait before a thread sleeps.
#pragma once

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace levin::dist {

// 200 pauses are some microseconds. Longer, with fewer cores than ranks, keeps the rank that is waited for from running
// (20,000 pauses: 474 us for 1 KiB between four ranks on two cores, instead of 8).
inline constexpr int kPauses = 200;

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#endif
}

// Whether `ready` became true meanwhile.
template <class Ready>
bool spin_until(const Ready& ready) {
  for (int i = 0; i < kPauses; ++i) {
    if (ready()) return true;
    pause();
  }
  return ready();
}

}  // namespace levin::dist
