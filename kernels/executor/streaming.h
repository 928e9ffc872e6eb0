// Stores that pass the caches by.
//
// Note [Results larger than the cache]
// A store to a line that is in no cache first reads the line from memory. Where a kernel moves more than the last cache
// holds, the first lines of its result have left the caches before anything can read them again: that read is for
// nothing, and the lines push out what the kernel still reads. Such results are computed in blocks that stay in the
// nearest cache and are written from there by non-temporal stores: a third less traffic for a kernel of one input, a
// quarter less for one of two. Where all fits the cache, the same stores would take three times as long.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace levin::kernels {

// Whether what a kernel reads and writes, so many bytes, does not stay in the last cache of this CPU.
[[nodiscard]] bool beyond_cache(int64_t bytes);

// Writes blocks past the caches. Other threads see them after the destructor.
class Streaming {
 public:
  Streaming() = default;
  Streaming(const Streaming&) = delete;
  Streaming& operator=(const Streaming&) = delete;
#if defined(__SSE2__)
  ~Streaming() { _mm_sfence(); }
  static void write(void* to, const void* from, int64_t bytes) {
    auto* dst = static_cast<char*>(to);
    const auto* src = static_cast<const char*>(from);
    const auto place = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) % 16);
    const int64_t head = place == 0 ? 0 : bytes < 16 - place ? bytes : 16 - place;
    std::memcpy(dst, src, static_cast<size_t>(head));
    int64_t i = head;
    for (; i + 16 <= bytes; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i)));
    std::memcpy(dst + i, src + i, static_cast<size_t>(bytes - i));
  }
#else
  ~Streaming() {}
  static void write(void* to, const void* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }
#endif
};

}  // namespace levin::kernels
