#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_RANDOM_CUH
#define LEVIN_KERNELS_RANDOM_CUH
// Random numbers into n contiguous elements. `range` is what Generator::reserve(n) gave; how an element finds its
// random words is in Note [Random numbers by element]. The bits are the same for every thread count and level.
//   uniform(on, T* out, n, range, double low, double high)    low + (high - low) u, u in [0, 1); floats. u has 24 bits
//                                              for float, 53 for double, 11 for f16, 8 for bf16: T holds it exactly.
//   normal(on, T* out, n, range, double mean, double std)     mean + std z, floats; f16 and bf16 round the float z
//   randint(on, T* out, n, range, int64_t low, int64_t high)  low <= integer < high, any T; needs low < high
//   dropout(on, const T* x, T* y, n, range, double p)         y = x / (1 - p), or 0 with probability p; floats
//     The backward pass is the same call with gy, gx and the range of the forward pass. y may be x. p == 1 gives 0.
//     The probability is p rounded to a multiple of 2^-32.
//   permutation(on, int64_t* out, n, range)                   0 .. n-1 in random order (Fisher and Yates)
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "levin/dtype.h"
#include "levin/generator.h"

#include "kernels/device/bits.cuh"
#include "kernels/device/draw.cuh"
#include "kernels/device/philox.cuh"
#include "kernels/device/row.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"

namespace levin::kernels {

// The bits of a uniform number that T holds exactly.
template <class T>
inline constexpr int kUnitDigits = std::is_same_v<T, bf16>  ? 8
                                   : std::is_same_v<T, f16> ? 11
                                                            : 24;

// A word is below the threshold with probability p; p = 1 needs one more value than 32 bits have.
struct Chance {
  uint32_t threshold, always;
  LEVIN_HD bool operator()(uint32_t word) const { return (uint32_t(word < threshold) | always) != 0; }
};
inline Chance chance(double p) {
  const double t = std::floor(p * 0x1p32 + 0.5);
  return {t >= 0x1p32 ? 0 : uint32_t(t), t >= 0x1p32 ? 1u : 0u};
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/random/random.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(uniform)
LEVIN_PICK(normal)
LEVIN_PICK(randint)
LEVIN_PICK(drop_elements)
LEVIN_PICK(permutation)

// No double goes to the level's function, or f32 would miss the highest: Note [Levels and types].
template <class T>
void dropout(const Cpu& on, const T* x, T* y, int64_t n, RandomRange range, double p) {
  using A = Accum<T>;
  drop_elements(on, x, y, n, range, chance(p), p < 1 ? A(1 / (1 - p)) : A(0));
}
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// Where a draw's words come from: all that a kernel knows of the generator. Made by the kernel, because in a recorded
// graph the place is in memory; see Note [Random numbers in a recorded graph].
struct Words {
  RandomRange range;
  __device__ explicit Words(RandomRange given) : range(given) {
    if (given.on_device == nullptr) return;
    range.seed += given.on_device[0];
    range.offset += given.on_device[1];
  }
  __device__ PhiloxBlock counter(int64_t b, uint32_t part) const {
    const uint64_t c = range.offset + uint64_t(b);
    return {uint32_t(c), uint32_t(c >> 32), part, 0};
  }
  template <int N>
  __device__ void draw(PhiloxBlock (&counters)[N]) const {
    philox_rounds(counters, uint32_t(range.seed), uint32_t(range.seed >> 32));
  }
  __device__ PhiloxBlock block(int64_t b, uint32_t part) const {
    PhiloxBlock blocks[1] = {counter(b, part)};
    draw(blocks);
    return blocks[0];
  }
};

// The elements of an item: whole blocks of words, and 16 bytes where that is more.
template <class T>
inline constexpr int kDrawn = kVec<T> > 4 ? kVec<T> : 4;
// A thread has 16 elements in items that lie a block's width apart: the keys of a round serve the words of all.
template <class T>
inline constexpr int kDrawnItems = 16 / kDrawn<T>;
inline constexpr int kDrawnByBlock = 16 * kMoveThreads;

// y[first .. first + kDrawn) = v, up to n; in wide stores where all of it is below n and y is aligned to them.
template <class T>
__device__ __forceinline__ void store_drawn(T* y, int64_t first, int64_t n, bool vectors, const T (&v)[kDrawn<T>]) {
  if (vectors) {
#pragma unroll
    for (int k = 0; k < kDrawn<T>; k += kVec<T>) {
      Vec<T> part;
      for (int j = 0; j < kVec<T>; ++j) part[j] = v[k + j];
      store(y + first + k, part);
    }
  } else {
    for (int j = 0; j < kDrawn<T>; ++j) {
      if (first + j < n) y[first + j] = v[j];
    }
  }
}

// F makes four elements of a block of words: `draw(words, low words, T (&v)[4])`; kTwo: it wants the low words.
template <class T, class F>
__global__ void draw_items(F f, RandomRange range, T* y, int64_t n) {
  constexpr int kBlocks = kDrawn<T> / 4, kParts = F::kTwo ? 2 : 1;
  const int64_t begin = int64_t{blockIdx.x} * kDrawnByBlock, own = begin + kDrawn<T> * static_cast<int>(threadIdx.x);
  const bool vectors = begin + kDrawnByBlock <= n && aligned16(y);
  const Words words(range);
  PhiloxBlock w[kDrawnItems<T> * kBlocks * kParts];
#pragma unroll
  for (int b = 0; b < kDrawnItems<T> * kBlocks; ++b) {
    const int64_t first = own + b / kBlocks * kMoveThreads * kDrawn<T>;
#pragma unroll
    for (int part = 0; part < kParts; ++part) w[b * kParts + part] = words.counter(first / 4 + b % kBlocks, part);
  }
  words.draw(w);
#pragma unroll
  for (int k = 0; k < kDrawnItems<T>; ++k) {
    T v[kDrawn<T>];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const PhiloxBlock* const of = w + (k * kBlocks + b) * kParts;
      T four[4];
      f(of[0], of[kParts - 1], four);
      for (int j = 0; j < 4; ++j) v[4 * b + j] = four[j];
    }
    store_drawn(y, own + k * kMoveThreads * kDrawn<T>, n, vectors, v);
  }
}
template <class T, class F>
void draw(const Gpu& on, const F& f, T* y, int64_t n, RandomRange range) {
  on.launch(draw_items<T, F>, Grid{.blocks = blocks_for(n, kDrawnByBlock), .threads = kMoveThreads}, f, range, y, n);
}

template <class T>
struct Uniform {
  using A = Accum<T>;
  static constexpr bool kTwo = std::is_same_v<T, double>;
  A start, end;
  __device__ T number(uint32_t word, uint32_t low) const {
    A u;
    if constexpr (kTwo)
      u = unit_double(word, low);
    else
      u = unit_float<kUnitDigits<T>>(word);
    const A width = end - start;
    const A v = (Rn<A>{start} + Rn<A>{width} * Rn<A>{u}).v;
    return T(v < end ? v : start);
  }
  __device__ void operator()(const PhiloxBlock& w, const PhiloxBlock& l, T (&v)[4]) const {
    v[0] = number(w.x0, l.x0), v[1] = number(w.x1, l.x1), v[2] = number(w.x2, l.x2), v[3] = number(w.x3, l.x3);
  }
};
template <class T>
void uniform(const Gpu& on, T* out, int64_t n, RandomRange range, double low, double high) {
  using A = Accum<T>;
  draw(on, Uniform<T>{A(low), A(high)}, out, n, range);
}

template <class T>
struct Normal {
  using A = Accum<T>;
  static constexpr bool kTwo = std::is_same_v<T, double>;
  A mean, std;
  __device__ T number(A z) const { return T((Rn<A>{mean} + Rn<A>{std} * Rn<A>{z}).v); }
  __device__ void operator()(const PhiloxBlock& w, const PhiloxBlock& l, T (&v)[4]) const {
    Pair<A> a, b;
    if constexpr (kTwo)
      a = normal_pair(w.x0, w.x1, l.x0, l.x1), b = normal_pair(w.x2, w.x3, l.x2, l.x3);
    else
      a = normal_pair(w.x0, w.x1), b = normal_pair(w.x2, w.x3);
    v[0] = number(a.first), v[1] = number(a.second), v[2] = number(b.first), v[3] = number(b.second);
  }
};
template <class T>
void normal(const Gpu& on, T* out, int64_t n, RandomRange range, double mean, double std) {
  using A = Accum<T>;
  draw(on, Normal<T>{A(mean), A(std)}, out, n, range);
}

template <class T>
struct Integer {
  static constexpr bool kTwo = true;
  uint64_t start, width;
  __device__ T number(uint32_t word, uint32_t low) const {
    return T(int64_t(start + (width >> 32 == 0 ? below(uint32_t(width), word, low) : below64(width, word, low))));
  }
  __device__ void operator()(const PhiloxBlock& w, const PhiloxBlock& l, T (&v)[4]) const {
    v[0] = number(w.x0, l.x0), v[1] = number(w.x1, l.x1), v[2] = number(w.x2, l.x2), v[3] = number(w.x3, l.x3);
  }
};
template <class T>
void randint(const Gpu& on, T* out, int64_t n, RandomRange range, int64_t low, int64_t high) {
  draw(on, Integer<T>{uint64_t(low), uint64_t(high) - uint64_t(low)}, out, n, range);
}

// A thread has two items of kDrawn elements, a block's width apart, whose words are drawn together. Blocks of whole
// items in aligned memory go by vectors.
inline constexpr int kDropItems = 2;
template <class T>
inline constexpr int64_t kDropped = int64_t{kDropItems} * kMoveThreads* kDrawn<T>;  // elements of a block

// The mask is drawn again in the backward pass: memory sees x and y alone.
template <class T>
__global__ void dropout_items(const T* x, T* y, int64_t n, RandomRange range, Chance drop, Accum<T> scale) {
  constexpr int V = kVec<T>, kParts = kDrawn<T> / V, kBlocks = kDrawn<T> / 4;
  const int64_t begin = blockIdx.x * kDropped<T>, own = begin + kDrawn<T> * static_cast<int>(threadIdx.x);
  const Words words(range);
  const bool all = drop.always != 0;
  const auto go = [&](auto vectors) {
    Vec<T> in[kDropItems][kParts];
    PhiloxBlock w[kDropItems * kBlocks];
#pragma unroll
    for (int k = 0; k < kDropItems; ++k) {
      const int64_t first = own + k * kMoveThreads * kDrawn<T>;
#pragma unroll
      for (int part = 0; part < kParts; ++part) in[k][part] = read_chunk(x, first + part * V, n, vectors, T(0.0f));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) w[k * kBlocks + b] = words.counter(first / 4 + b, 0);
    }
    words.draw(w);
#pragma unroll
    for (int k = 0; k < kDropItems; ++k) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        auto v = widened(in[k][part]);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const PhiloxBlock& b = w[k * kBlocks + (part * V + j) / 4];
          const int lane = (part * V + j) % 4;
          const uint32_t word = lane == 0 ? b.x0 : lane == 1 ? b.x1 : lane == 2 ? b.x2 : b.x3;
          v[j] = word < drop.threshold || all ? Accum<T>(0) : v[j] * scale;
        }
        write_chunk(y, own + k * kMoveThreads * kDrawn<T> + part * V, n, vectors, narrowed(v));
      }
    }
  };
  if (begin + kDropped<T> <= n && aligned16(x) && aligned16(y))
    go(std::true_type{});
  else
    go(std::false_type{});
}
template <class T>
void dropout(const Gpu& on, const T* x, T* y, int64_t n, RandomRange range, double p) {
  using A = Accum<T>;
  on.launch(dropout_items<T>, Grid{.blocks = blocks_for(n, kDropped<T>), .threads = kMoveThreads}, x, y, n, range,
            chance(p), p < 1 ? A(1 / (1 - p)) : A(0));
}

// Without an array: a lane chosen at run time would put it in memory.
__device__ __forceinline__ uint32_t word_of(const PhiloxBlock& b, int64_t lane) {
  return lane < 2 ? (lane == 0 ? b.x0 : b.x1) : (lane == 2 ? b.x2 : b.x3);
}

// Note [Swaps in parallel]
// Fisher and Yates swap one after another; swaps that share no element may go together, and the result keeps its bits.
// One block takes kSwapThreads swaps at a time, in rounds: each open swap marks its two elements with its number, the
// lowest number stays, and who finds both marks its own has no open swap before it and goes. Elements share marks (a
// table of slots), which delays some swaps by a round and breaks none. The lowest open swap goes in every round.
inline constexpr int kSwapThreads = 1024, kSwapSlots = 4 * kSwapThreads;
template <class I>
__global__ void permute(I* out, int64_t n, RandomRange range) {
  LEVIN_SHARED(unsigned, mark, kSwapSlots);
  const Words words(range);
  for (int64_t i = threadIdx.x; i < n; i += kSwapThreads) out[i] = I(i);
  for (int64_t first = 0; first < n; first += kSwapThreads) {
    const int64_t i = first + threadIdx.x;
    int64_t j = i;
    if (i < n) {
      const PhiloxBlock w = words.block(i / 4, 0), l = words.block(i / 4, 1);
      j = int64_t(below64(uint64_t(i) + 1, word_of(w, i % 4), word_of(l, i % 4)));
    }
    bool open = j != i;
    const unsigned a = unsigned(i % kSwapSlots), b = unsigned(j % kSwapSlots);
    while (true) {
      for (unsigned s = threadIdx.x; s < kSwapSlots; s += kSwapThreads) mark[s] = kSwapThreads;
      if (__syncthreads_or(open) == 0) break;
      if (open) {
        atomicMin(mark + a, threadIdx.x);
        atomicMin(mark + b, threadIdx.x);
      }
      __syncthreads();
      if (open && mark[a] == threadIdx.x && mark[b] == threadIdx.x) {
        const I there = out[j];
        out[j] = out[i];
        out[i] = there;
        open = false;
      }
      __syncthreads();
    }
  }
}
template <class I>
void permutation(const Gpu& on, I* out, int64_t n, RandomRange range) {
  if (n > 0) on.launch(permute<I>, Grid{.threads = kSwapThreads}, out, n, range);
}

}  // namespace levin::kernels::gpu
#endif
#else
// Note [One rounding]: no function of this file may fuse a multiplication and an addition.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#elif defined(__clang__)
#pragma clang fp contract(off)
#endif
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Blocks whose words are made at once; they stay in the first-level cache until they become numbers.
inline constexpr int64_t kTile = 128;

// The words of `count` <= kTile blocks from `counter` on, in order; writes whole vectors, so up to 4 * kTile words.
inline void random_words(uint64_t seed, uint64_t counter, uint32_t part, int64_t count, uint32_t* words) {
  const uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#if LEVIN_X86_LEVELS
  // A block a 64-bit lane: the instruction that multiplies 32-bit halves ignores the upper ones, so they may hold rest.
  // (maskz: the plain _mm512_mul_epu32 makes g++ 12 warn about an uninitialised value in its own header.)
  using Lanes [[gnu::vector_size(LEVIN_VECTOR_BYTES)]] = uint64_t;
  constexpr int64_t lanes = LEVIN_VECTOR_BYTES / 8;
  Lanes c{};
  for (int64_t i = 0; i < lanes; ++i) c[i] = counter + uint64_t(i);
  for (int64_t j = 0; j < count; j += lanes, c += uint64_t(lanes)) {
    Lanes x0 = c, x1 = c >> 32, x2 = Lanes{} + part, x3{};
#pragma GCC unroll 10
    for (uint32_t round = 0; round < 10; ++round) {
#if LEVIN_VECTOR_BYTES == 64
      const Lanes p0 = Lanes(_mm512_maskz_mul_epu32(0xff, __m512i(x0), _mm512_set1_epi64(kPhiloxM0)));
      const Lanes p1 = Lanes(_mm512_maskz_mul_epu32(0xff, __m512i(x2), _mm512_set1_epi64(kPhiloxM1)));
#elif LEVIN_VECTOR_BYTES == 32
      const Lanes p0 = Lanes(_mm256_mul_epu32(__m256i(x0), _mm256_set1_epi64x(kPhiloxM0)));
      const Lanes p1 = Lanes(_mm256_mul_epu32(__m256i(x2), _mm256_set1_epi64x(kPhiloxM1)));
#else
      const Lanes p0 = Lanes(_mm_mul_epu32(__m128i(x0), _mm_set1_epi64x(kPhiloxM0)));
      const Lanes p1 = Lanes(_mm_mul_epu32(__m128i(x2), _mm_set1_epi64x(kPhiloxM1)));
#endif
      x0 = (p1 >> 32) ^ x1 ^ uint64_t(key0 + round * kPhiloxW0);
      x2 = (p0 >> 32) ^ x3 ^ uint64_t(key1 + round * kPhiloxW1);
      x1 = p1;
      x3 = p0;
    }
    const Lanes a = (x0 & 0xffffffffu) | (x1 << 32), b = (x2 & 0xffffffffu) | (x3 << 32);
#if LEVIN_VECTOR_BYTES == 64
    const Lanes first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    const Lanes second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif LEVIN_VECTOR_BYTES == 32
    const Lanes first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Lanes second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
    const Lanes first = __builtin_shufflevector(a, b, 0, 2), second = __builtin_shufflevector(a, b, 1, 3);
#endif
    std::memcpy(words + 4 * j, &first, sizeof first);
    std::memcpy(words + 4 * j + 2 * lanes, &second, sizeof second);
  }
#else
  for (int64_t j = 0; j < count; ++j) {
    const uint64_t c = counter + uint64_t(j);
    const PhiloxBlock w = philox({uint32_t(c), uint32_t(c >> 32), part, 0}, key0, key1);
    words[4 * j] = w.x0, words[4 * j + 1] = w.x1, words[4 * j + 2] = w.x2, words[4 * j + 3] = w.x3;
  }
#endif
}

// Calls body(first element, count, words, low words) for tiles of [0, n) in parallel; kTwo: the low words are wanted.
template <bool kTwo, class Body>
void each_tile(const Cpu& on, int64_t n, RandomRange range, const Body& body) {
  on.parallel_for((n + 3) / 4, 32 * kTile, [&](int64_t first, int64_t last) {
    alignas(64) uint32_t words[4 * kTile], low[kTwo ? 4 * kTile : 1];
    for (int64_t b = first; b < last; b += kTile) {
      const int64_t blocks = std::min(last - b, kTile);
      random_words(range.seed, range.offset + uint64_t(b), 0, blocks, words);
      if constexpr (kTwo) random_words(range.seed, range.offset + uint64_t(b), 1, blocks, low);
      body(4 * b, std::min(n - 4 * b, 4 * blocks), words, kTwo ? low : words);
    }
  });
}

template <class T>
void uniform(const Cpu& on, T* out, int64_t n, RandomRange range, double low, double high) {
  using A = Accum<T>;
  const A start = A(low), end = A(high), width = end - start;
  constexpr bool two = std::is_same_v<T, double>;
  each_tile<two>(on, n, range, [=](int64_t at, int64_t count, const uint32_t* words, const uint32_t* low_words) {
    T* const y = out + at;
    for (int64_t i = 0; i < count; ++i) {
      A u;
      if constexpr (two)
        u = unit_double(words[i], low_words[i]);
      else
        u = unit_float<kUnitDigits<T>>(words[i]);
      const A v = start + width * u;
      y[i] = T(v < end ? v : start);  // the sum may round up to high
    }
  });
}

template <class T>
void normal(const Cpu& on, T* out, int64_t n, RandomRange range, double mean, double std) {
  using A = Accum<T>;
  const A center = A(mean), scale = A(std);
  constexpr bool two = std::is_same_v<T, double>;
  each_tile<two>(on, n, range, [=](int64_t at, int64_t count, const uint32_t* words, const uint32_t* low_words) {
    alignas(64) A z[4 * kTile];
    for (int64_t i = 0; i < (count + 1) / 2; ++i) {
      Pair<A> p;
      if constexpr (two)
        p = normal_pair(words[2 * i], words[2 * i + 1], low_words[2 * i], low_words[2 * i + 1]);
      else
        p = normal_pair(words[2 * i], words[2 * i + 1]);
      z[2 * i] = p.first;
      z[2 * i + 1] = p.second;
    }
    T* const y = out + at;
    for (int64_t i = 0; i < count; ++i) y[i] = T(center + scale * z[i]);
  });
}

template <class T>
void randint(const Cpu& on, T* out, int64_t n, RandomRange range, int64_t low, int64_t high) {
  const uint64_t start = uint64_t(low), width = uint64_t(high) - start;
  each_tile<true>(on, n, range, [=](int64_t at, int64_t count, const uint32_t* words, const uint32_t* low_words) {
    T* const y = out + at;
    if (width >> 32 == 0)  // the same numbers with fewer multiplications
      for (int64_t i = 0; i < count; ++i) y[i] = T(int64_t(start + below(uint32_t(width), words[i], low_words[i])));
    else
      for (int64_t i = 0; i < count; ++i) y[i] = T(int64_t(start + below64(width, words[i], low_words[i])));
  });
}

template <class T>
void drop_elements(const Cpu& on, const T* x, T* y, int64_t n, RandomRange range, Chance drop, Accum<T> scale) {
  using A = Accum<T>;
  each_tile<false>(on, n, range, [=](int64_t at, int64_t count, const uint32_t* words, const uint32_t*) {
    const T* const in = x + at;
    T* const out = y + at;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      const A v = A(in[i]) * scale;
      out[i] = T(drop(words[i]) ? A(0) : v);
    }
  });
}

template <class I>
void permutation(const Cpu&, I* out, int64_t n, RandomRange range) {
  for (int64_t i = 0; i < n; ++i) out[i] = I(i);
  // Element i changes places with one of 0 .. i, chosen by the words of element i.
  alignas(64) uint32_t words[4 * kTile], low[4 * kTile];
  for (int64_t b = 0; 4 * b < n; b += kTile) {
    const int64_t blocks = std::min((n + 3) / 4 - b, kTile);
    random_words(range.seed, range.offset + uint64_t(b), 0, blocks, words);
    random_words(range.seed, range.offset + uint64_t(b), 1, blocks, low);
    for (int64_t i = 4 * b; i < std::min(n, 4 * (b + blocks)); ++i)
      std::swap(out[i], out[below64(uint64_t(i) + 1, words[i - 4 * b], low[i - 4 * b])]);
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#endif
