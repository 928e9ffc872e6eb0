// Stores that pass the caches by.
//
// Note [Results larger than the cache]
// A store to a line that is in no cache first reads the line from memory. Where a kernel moves more than the last cache
// holds, the first lines of its result have left the caches before anything can read them again: that read is for
// nothing, and the lines push out what the kernel still reads. Such results are computed in blocks that stay in the
// nearest cache and are written from there by non-temporal stores: a third less traffic for a kernel of one input, a
// quarter less for one of two. Where all fits the cache, the same stores would take three times as long.
//
// Such a store holds its place in the CPU's queue of stores until memory has taken it. Where a block's stores fill the
// queue (64 on Zen 4), the next block's loads wait for memory, too. So a store is as wide as the CPU has, at best a
// whole line, and what is computed first has blocks of about kStreamedBytes: 4 M sums of two f32 numbers take 0.65 ms
// on two cores of Zen 4, and 0.92 with stores of 16 bytes or with blocks of 8 KB.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_STREAMING_CUH
#define LEVIN_KERNELS_STREAMING_CUH

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/executor/cpu.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace levin::kernels {
// memcpy, out of line: for counts below a constant the compiler would write all cases out, at each level.
void copy_few(char* to, const char* from, int64_t bytes);
}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/executor/streaming.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(write_past_caches)
}  // namespace levin::kernels::cpu

namespace levin::kernels {

// Whether what a kernel reads and writes, so many bytes, does not stay in the last cache of this CPU.
[[nodiscard]] bool beyond_cache(int64_t bytes);

inline constexpr int64_t kStreamedBytes = 1024;  // of a block: the note above

// Writes blocks past the caches. Other threads see them after the destructor.
class Streaming {
 public:
  Streaming() = default;
  Streaming(const Streaming&) = delete;
  Streaming& operator=(const Streaming&) = delete;
#if defined(__SSE2__)
  ~Streaming() { _mm_sfence(); }
#else
  ~Streaming() {}
#endif
  static void write(const Cpu& on, void* to, const void* from, int64_t bytes) {
    cpu::write_past_caches(on, static_cast<char*>(to), static_cast<const char*>(from), bytes);
  }
};

}  // namespace levin::kernels
#endif  // LEVIN_KERNELS_STREAMING_CUH
#else   // one level

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
void write_past_caches(const Cpu&, T* to, const T* from, int64_t bytes) {
  static_assert(sizeof(T) == 1);
#if defined(__SSE2__)
  constexpr int64_t kWide = LEVIN_VECTOR_BYTES;
  const auto place = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kWide);
  int64_t i = place == 0 ? 0 : std::min(bytes, kWide - place);
  if (i != 0) copy_few(to, from, i);
  for (; i + kWide <= bytes; i += kWide) {
#if LEVIN_VECTOR_BYTES == 64
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
#elif LEVIN_VECTOR_BYTES == 32
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
#endif
  }
  if (i != bytes) copy_few(to + i, from + i, bytes - i);
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
