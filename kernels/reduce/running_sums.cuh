// Running sums and products of dense rows, joined in double and rounded once:
//
//   running_sums(on, const T* x, T* y, n)             y[k] = x[0] + ... + x[k]; x and y may be the same memory
//   running_products(on, const T* x, T* y, rows, n)   y[r, k] = x[r, 0] ... x[r, k], multiplied in that order
//
// T: float, f16 or bf16. Products keep their order, in which one overflows or vanishes where it must. So rows are
// walked side by side: a product waits for the one before it alone.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_RUNNING_SUMS_CUH
#define LEVIN_KERNELS_RUNNING_SUMS_CUH
#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/executor/cpu.h"
#include "kernels/reduce/row_sums.cuh"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/reduce/running_sums.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(running_sums)
LEVIN_PICK_EVERY(running_products)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

#if LEVIN_VECTOR_BYTES >= 32
typedef double Doubles __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
typedef int64_t DoublePlaces __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
typedef float FewFloats __attribute__((vector_size(LEVIN_VECTOR_BYTES / 2)));
typedef int32_t FewBits __attribute__((vector_size(LEVIN_VECTOR_BYTES / 2)));

[[gnu::always_inline]] inline Doubles doubles_of(FewFloats v) {
#if LEVIN_VECTOR_BYTES == 64
  return Doubles(_mm512_maskz_cvtps_pd(0xff, __m256(v)));
#else
  return Doubles(_mm256_cvtps_pd(__m128(v)));
#endif
}

// v[l] becomes v[0] + ... + v[l].
[[gnu::always_inline]] inline Doubles sums_within(Doubles v) {
  const Doubles zero = {};
#if LEVIN_VECTOR_BYTES == 64
  v += __builtin_shuffle(zero, v, DoublePlaces{0, 8, 9, 10, 11, 12, 13, 14});
  v += __builtin_shuffle(zero, v, DoublePlaces{0, 0, 8, 9, 10, 11, 12, 13});
  v += __builtin_shuffle(zero, v, DoublePlaces{0, 0, 0, 0, 8, 9, 10, 11});
#else
  v += __builtin_shuffle(zero, v, DoublePlaces{0, 4, 5, 6});
  v += __builtin_shuffle(zero, v, DoublePlaces{0, 0, 4, 5});
#endif
  return v;
}

// detail::to_odd of each number.
[[gnu::always_inline]] inline FewBits odd_floats(Doubles v) {
  constexpr int64_t kMagnitude = INT64_MAX;
  const FewFloats nearest = __builtin_convertvector(v, FewFloats);
  const Doubles back = doubles_of(nearest);
  const DoublePlaces is_larger = Doubles(DoublePlaces(back) & kMagnitude) > Doubles(DoublePlaces(v) & kMagnitude);
  const DoublePlaces is_off = back != v;
  const FewBits toward_zero = FewBits(nearest) + __builtin_convertvector(is_larger, FewBits);
  return toward_zero | (__builtin_convertvector(is_off, FewBits) & 1);
}
#endif

// e[k] becomes carry + e[0] + ... + e[k] as detail::to_odd gives it, and `carry` the last sum.
inline void running_tile(float* e, int64_t n, double& carry) {
  int64_t i = 0;
#if LEVIN_VECTOR_BYTES >= 32
  constexpr int64_t lanes = LEVIN_VECTOR_BYTES / int64_t{sizeof(double)};
  Doubles before = Doubles{} + carry;
  for (; i + lanes <= n; i += lanes) {
    FewFloats few;
    std::memcpy(&few, e + i, sizeof few);
    const Doubles v = sums_within(doubles_of(few));
    const FewBits bits = odd_floats(before + v);
    before += Doubles{} + v[lanes - 1];
    std::memcpy(e + i, &bits, sizeof bits);
  }
  carry = before[0];
#endif
  for (; i < n; ++i) {
    carry += double(e[i]);
    e[i] = levin::detail::to_odd(carry);
  }
}

// The same with floats as they are.
inline void running_floats(const float* x, float* y, int64_t n) {
  double carry = 0;
  int64_t i = 0;
#if LEVIN_VECTOR_BYTES >= 32
  constexpr int64_t lanes = LEVIN_VECTOR_BYTES / int64_t{sizeof(double)};
  Doubles before = {};
  for (; i + lanes <= n; i += lanes) {
    FewFloats few;
    std::memcpy(&few, x + i, sizeof few);
    const Doubles v = sums_within(doubles_of(few));
    few = __builtin_convertvector(before + v, FewFloats);
    before += Doubles{} + v[lanes - 1];
    std::memcpy(y + i, &few, sizeof few);
  }
  carry = before[0];
#endif
  for (; i < n; ++i) {
    carry += double(x[i]);
    y[i] = float(carry);
  }
}

template <class T>
void running_sums(const Cpu&, const T* x, T* y, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    running_floats(x, y, n);
  } else {
    constexpr int64_t tile = 512;
    alignas(64) float e[tile];
    double carry = 0;
    for (int64_t b = 0; b < n; b += tile) {
      const int64_t count = std::min(tile, n - b);
      wide_numbers(x + b, count, e);
      running_tile(e, count, carry);
      each_vector<float>(
          count, [ to = y + b, e = &e[0] ]<class V>(V, int64_t i)
                     __attribute__((always_inline)) { put(to + i, load<V>(e + i)); });
    }
  }
}

// y = v rounded once, of `count` numbers; v has room for kRoom.
template <int64_t kRoom, class T>
inline void put_doubles(const double* v, T* y, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    for (int64_t k = 0; k < count; ++k) y[k] = float(v[k]);
  } else {
    alignas(64) float e[kRoom];
#if LEVIN_VECTOR_BYTES >= 32
    constexpr int64_t lanes = LEVIN_VECTOR_BYTES / int64_t{sizeof(double)};
    for (int64_t k = 0; k < kRoom; k += lanes) {
      Doubles d;
      std::memcpy(&d, v + k, sizeof d);
      const FewBits bits = odd_floats(d);
      std::memcpy(e + k, &bits, sizeof bits);
    }
#else
    for (int64_t k = 0; k < count; ++k) e[k] = levin::detail::to_odd(v[k]);
#endif
    each_vector<float>(
        count, [ to = y, from = &e[0] ]<class V>(V, int64_t i)
                   __attribute__((always_inline)) { put(to + i, load<V>(from + i)); });
  }
}

template <class T>
void running_products(const Cpu&, const T* x, T* y, int64_t rows, int64_t n) {
  constexpr int64_t kRows = 4, kStretch = 64;
  for (int64_t r = 0; r < rows; r += kRows, x += kRows * n, y += kRows * n) {
    const int64_t there = std::min(kRows, rows - r);
    alignas(64) double v[kRows][kStretch];
    for (auto& row : v) std::fill(row, row + kStretch, 1.0);
    double a = 1, b = 1, c = 1, d = 1;
    for (int64_t first = 0; first < n; first += kStretch) {
      const int64_t count = std::min(kStretch, n - first);
      for (int64_t j = 0; j < there; ++j)
        for (int64_t k = 0; k < count; ++k) v[j][k] = double(x[j * n + first + k]);
      for (int64_t k = 0; k < count; ++k) {
        v[0][k] = a *= v[0][k];
        v[1][k] = b *= v[1][k];
        v[2][k] = c *= v[2][k];
        v[3][k] = d *= v[3][k];
      }
      for (int64_t j = 0; j < there; ++j) put_doubles<kStretch>(v[j], y + j * n + first, count);
    }
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
