#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_ROW_SUMS_CUH
#define LEVIN_KERNELS_ROW_SUMS_CUH
// Sums and maxima over contiguous elements inside a kernel, with the vectors of its level written out: a compiler may
// not reorder a floating-point sum by itself. The order depends on the length (and the level) alone. Numbers of 16 bits
// become floats in registers.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/reduce/row_sums.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class A>
struct RowVector {
  typedef A Type __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
  static constexpr int64_t lanes = LEVIN_VECTOR_BYTES / int64_t{sizeof(A)};
};

typedef uint32_t FloatBits __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
typedef uint16_t HalfBits __attribute__((vector_size(LEVIN_VECTOR_BYTES / 2)));

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

// Whether instructions convert a whole V of numbers of 16 bits at once.
template <class V>
inline constexpr bool kConvertsWhole = LEVIN_VECTOR_BYTES >= 32 && sizeof(V) == LEVIN_VECTOR_BYTES;

// The V, a vector or a single number, at p. Numbers of 16 bits are widened.
template <class V, class T>
[[gnu::always_inline]] inline V load(const T* p) {
  if constexpr (kIsHalf<T> && std::is_same_v<V, float>) {
    return float(*p);
  } else if constexpr (kIsHalf<T> && kConvertsWhole<V>) {
    // (maskz: the plain forms make g++ 12 warn about an uninitialised value in its own header.)
#if LEVIN_VECTOR_BYTES == 64
    __m256i narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    if constexpr (std::is_same_v<T, f16>) return V(_mm512_maskz_cvtph_ps(0xffff, narrow));
    return V(FloatBits(_mm512_maskz_cvtepu16_epi32(0xffff, narrow)) << 16);
#elif LEVIN_VECTOR_BYTES == 32
    __m128i narrow;
    std::memcpy(&narrow, p, sizeof narrow);
    if constexpr (std::is_same_v<T, f16>) return V(_mm256_cvtph_ps(narrow));
    return V(FloatBits(_mm256_cvtepu16_epi32(narrow)) << 16);
#endif
  } else if constexpr (kIsHalf<T>) {
    V v{};
    for (int l = 0; l < int(sizeof v / sizeof v[0]); ++l) v[l] = float(p[l]);
    return v;
  } else {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
}

// Writes v, a vector or a single number, to p, rounded once.
template <class T, class V>
[[gnu::always_inline]] inline void put(T* p, V v) {
  if constexpr (kIsHalf<T> && std::is_same_v<V, float>) {
    *p = T(v);
  } else if constexpr (kIsHalf<T> && kConvertsWhole<V>) {
#if LEVIN_VECTOR_BYTES >= 32
    if constexpr (std::is_same_v<T, f16>) {
#if LEVIN_VECTOR_BYTES == 64
      const __m256i narrow = _mm512_maskz_cvtps_ph(0xffff, __m512(v), _MM_FROUND_TO_NEAREST_INT);
#else
      const __m128i narrow = _mm256_cvtps_ph(__m256(v), _MM_FROUND_TO_NEAREST_INT);
#endif
      std::memcpy(static_cast<void*>(p), &narrow, sizeof narrow);
    } else {
      const FloatBits u = FloatBits(v), top = u >> 16;
      const FloatBits rounded = (u + 0x7fff + (top & 1)) >> 16;
      const HalfBits narrow = __builtin_convertvector((u & 0x7fffffff) > 0x7f800000 ? top | 0x40 : rounded, HalfBits);
      std::memcpy(static_cast<void*>(p), &narrow, sizeof narrow);
    }
#endif
  } else if constexpr (kIsHalf<T>) {
    for (int l = 0; l < int(sizeof v / sizeof v[0]); ++l) p[l] = T(v[l]);
  } else {
    std::memcpy(p, &v, sizeof v);
  }
}

// Calls at(V{}, i) for places 0 to n: V is a vector, or A for the last elements.
template <class A, class At>
[[gnu::always_inline]] inline void each_vector(int64_t n, const At& at) {
  using V = typename RowVector<A>::Type;
  constexpr int64_t lanes = RowVector<A>::lanes;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) at(V{}, i);
  for (; i < n; ++i) {
    at(A{}, i);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // compilers would vectorise these few elements, too
  }
}

// n numbers in the type of the sums: where they lie, or in `room`.
template <class T>
const Accum<T>* wide_numbers(const T* x, int64_t n, [[maybe_unused]] Accum<T>* room) {
  if constexpr (kIsHalf<T>) {
    each_vector<float>(
        n, [=]<class V>(V, int64_t i) __attribute__((always_inline)) { put(room + i, load<V>(x + i)); });
    return room;
  } else {
    return x;
  }
}

template <class A, int kSums>
struct Sums {
  A s[kSums];
};

// The sum of a vector's lanes, by halves and in registers.
template <int kBytes, class A, class V>
[[gnu::always_inline]] inline A lane_sum(V v) {
  if constexpr (kBytes == sizeof(A)) {
    return v[0];
  } else {
    typedef A Half __attribute__((vector_size(kBytes / 2)));
    Half parts[2];
    static_assert(sizeof parts == sizeof v);
    std::memcpy(parts, &v, sizeof v);
    return lane_sum<kBytes / 2, A>(parts[0] + parts[1]);
  }
}

// Sums over i of term(V{}, i), which returns Sums<V, kSums> of the V at i: V is a vector, or A for the last elements.
template <int kSums, class A, class Term>
[[gnu::always_inline]] inline Sums<A, kSums> sum_terms(int64_t n, const Term& term) {
  using V = typename RowVector<A>::Type;
  constexpr int64_t lanes = RowVector<A>::lanes;
  constexpr int unroll = kSums == 1 ? 4 : 2;  // independent sums hide the latency of addition
  V total[kSums][unroll] = {};
  int64_t i = 0;
  for (; i + unroll * lanes <= n; i += unroll * lanes) {
#pragma GCC unroll 4
    for (int u = 0; u < unroll; ++u) {
      const Sums<V, kSums> t = term(V{}, i + u * lanes);
#pragma GCC unroll 4
      for (int k = 0; k < kSums; ++k) total[k][u] += t.s[k];
    }
  }
  for (; i + lanes <= n; i += lanes) {
    const Sums<V, kSums> t = term(V{}, i);
    for (int k = 0; k < kSums; ++k) total[k][0] += t.s[k];
  }
  Sums<A, kSums> sum = {};
  for (; i < n; ++i) {
    const Sums<A, kSums> t = term(A{}, i);
    for (int k = 0; k < kSums; ++k) sum.s[k] += t.s[k];
  }
  for (int k = 0; k < kSums; ++k) {
    V v = total[k][0];
    for (int u = 1; u < unroll; ++u) v += total[k][u];
    sum.s[k] += lane_sum<LEVIN_VECTOR_BYTES, A>(v);
  }
  return sum;
}

template <class T>
Accum<T> row_sum(const T* x, int64_t n) {
  return sum_terms<1, Accum<T>>(
             n, [=]<class V>(V, int64_t i) __attribute__((always_inline)) { return Sums<V, 1>{{load<V>(x + i)}}; })
      .s[0];
}

template <class T>
Accum<T> row_dot(const T* x, const T* y, int64_t n) {
  return sum_terms<1, Accum<T>>(
             n, [=]<class V>(V, int64_t i)
                    __attribute__((always_inline)) { return Sums<V, 1>{{load<V>(x + i) * load<V>(y + i)}}; })
      .s[0];
}

// -inf for n = 0; NaN elements are passed over.
template <class T>
Accum<T> row_max(const T* x, int64_t n) {
  using A = Accum<T>;
  using V = typename RowVector<A>::Type;
  constexpr int64_t lanes = RowVector<A>::lanes;
  A top = -std::numeric_limits<A>::infinity();
  int64_t i = 0;
  if (n >= lanes) {
    V a = V{} + top, b = a, c = a, d = a;
    const auto raise = [](V & m, V v) __attribute__((always_inline)) { m = v > m ? v : m; };
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      raise(a, load<V>(x + i));
      raise(b, load<V>(x + i + lanes));
      raise(c, load<V>(x + i + 2 * lanes));
      raise(d, load<V>(x + i + 3 * lanes));
    }
    for (; i + lanes <= n; i += lanes) raise(a, load<V>(x + i));
    raise(a, b);
    raise(c, d);
    raise(a, c);
    for (int64_t j = 0; j < lanes; ++j) top = a[j] > top ? a[j] : top;
  }
  for (; i < n; ++i) top = A(x[i]) > top ? A(x[i]) : top;
  return top;
}

// Room for a row in the type that sums are made in; none where that is the row's own type.
template <class T>
class WideRow {
 public:
  using A = Accum<T>;
  explicit WideRow(int64_t cols) : room_(kIsHalf<T> ? size_t(cols) * sizeof(A) : 0) {}
  const A* read(const T* x, int64_t cols) const { return wide_numbers(x, cols, room_.as<A>()); }
  // Where numbers that become y are computed.
  A* under(T* y) const {
    if constexpr (kIsHalf<T>)
      return room_.as<A>();
    else
      return y;
  }

 private:
  lib::Scratch room_;
};

// Rows a task takes, so that it has some ten microseconds of work.
inline int64_t rows_at_once(int64_t cols) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, cols)); }

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
