// Matrices by columns, and sums over them: what factorisations of dense matrices share.
//
// A column has `pitch_of(rows)` numbers, of which those behind its rows are 0 (or finite, where a factor of 0 meets
// them), so that loops run over whole vectors alone: from the vector that holds `from` to the one that holds `to` - 1.
// Columns are an odd number of cache lines apart and so lie in different sets of a cache.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_COLUMNS_CUH
#define LEVIN_KERNELS_COLUMNS_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/reduce/row_sums.cuh"

namespace levin::kernels::cpu {

template <class T>
struct Columns {
  T* data;
  int64_t pitch;
  T* operator[](int64_t c) const { return data + c * pitch; }
};

template <class T>
int64_t pitch_of(int64_t rows) {
  constexpr int64_t kLine = 64 / int64_t{sizeof(T)};
  return ((rows + kLine - 1) / kLine | 1) * kLine;
}

}  // namespace levin::kernels::cpu

#define LEVIN_LEVEL_FILE "kernels/linalg/columns.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// The first number of the vector that holds number i; the first behind those that hold the numbers before i.
template <class T>
int64_t vector_of(int64_t i) {
  return i / kLanes<T> * kLanes<T>;
}
template <class T>
int64_t vectors_before(int64_t i) {
  return vector_of<T>(i + kLanes<T> - 1);
}

template <class T>
[[gnu::always_inline]] inline Vector<T> vector_at(const T* at) {
  return load<Vector<T>>(at);
}

// sums[n] = the sum of the lanes of x[n], together: 4 vectors take half as many steps as one by one.
template <class T, int N>
[[gnu::always_inline]] inline void sum_each(const Vector<T> (&x)[N], T* sums) {
  if constexpr (N == 4 && kLanes<T> >= 4) {
    constexpr auto kLane = std::make_integer_sequence<int, kLanes<T>>();
    const auto both = [&](const Vector<T>& a, const Vector<T>& b) __attribute__((always_inline)) {
      return interleaved<T, 0>(a, b, kLane) + interleaved<T, kLanes<T> / 2>(a, b, kLane);
    };
    const Vector<T> even = both(x[0], x[2]), odd = both(x[1], x[3]);
    Vector<T> all = both(even, odd);  // lanes 0, 1, 2, 3, 0, 1, ...
    T lanes[kLanes<T>];
    __builtin_memcpy(lanes, &all, sizeof all);
#pragma GCC unroll 4
    for (int half = kLanes<T> / 2; half >= 4; half /= 2)
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    __builtin_memcpy(sums, lanes, 4 * sizeof(T));
  } else {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[n] = lane_sum<LEVIN_VECTOR_BYTES, T>(x[n]);
  }
}

template <class T>
T dot(const T* x, const T* y, int64_t from, int64_t to) {
  constexpr int64_t L = kLanes<T>;
  Vector<T> sum[2] = {};
  int64_t i = vector_of<T>(from);
  for (; i + 2 * L <= to; i += 2 * L) {
    sum[0] += vector_at(x + i) * vector_at(y + i);
    sum[1] += vector_at(x + i + L) * vector_at(y + i + L);
  }
  for (; i < to; i += L) sum[0] += vector_at(x + i) * vector_at(y + i);
  sum[0] += sum[1];
  return lane_sum<LEVIN_VECTOR_BYTES, T>(sum[0]);
}

// y += factor * x.
template <class T>
void add_to(T* y, T factor, const T* x, int64_t from, int64_t to) {
  for (int64_t i = vector_of<T>(from); i < to; i += kLanes<T>) put(y + i, vector_at(y + i) + vector_at(x + i) * factor);
}
template <class T>
void scale(T* x, T factor, int64_t from, int64_t to) {
  for (int64_t i = vector_of<T>(from); i < to; i += kLanes<T>) put(x + i, vector_at(x + i) * factor);
}

// rows_of_columns() of the rows [first, last).
template <class T>
void put_strip(Columns<const T> from, const int64_t* order, T factor, T* to, int64_t ld, int64_t first, int64_t last,
               int64_t count) {
  constexpr int64_t kSide = kLanes<T>;
  alignas(64) T square[kSide * kSide] = {}, turned[kSide * kSide];
  for (int64_t j = 0; j < count; j += kSide) {
    const int64_t width = std::min(kSide, count - j);
    for (int64_t i = first; i < last; i += kSide) {
      for (int64_t c = 0; c < width; ++c)
        put(square + c * kSide, vector_at(from[order ? order[j + c] : j + c] + i) * factor);
      const int64_t height = std::min(kSide, last - i);
      if (width == kSide && height == kSide) {
        transpose_square<T>(square, kSide, to + i * ld + j, ld);
        continue;
      }
      transpose_square<T>(square, kSide, turned, kSide);
      for (int64_t r = 0; r < height; ++r)
        std::memcpy(to + (i + r) * ld + j, turned + r * kSide, size_t(width) * sizeof(T));
    }
  }
}

// to[i * ld + j] = factor * from[order[j]][i] for i < rows, j < count; order null: j.
template <class T>
void rows_of_columns(const Cpu& on, Columns<const T> from, const int64_t* order, T factor, T* to, int64_t ld,
                     int64_t rows, int64_t count) {
  constexpr int64_t kRows = 64, kTaskNumbers = 64 * 1024;
  if (rows * count <= 4 * kLanes<T>) {  // far fewer than a square has
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < count; ++j) to[i * ld + j] = factor * from[order ? order[j] : j][i];
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kTaskNumbers / (kRows * count)) * kRows;
  on.parallel_for(rows, grain,
                  [&](int64_t begin, int64_t end) { put_strip(from, order, factor, to, ld, begin, end, count); });
}

// to[c][r] = factor * from[r * ld + c] for c < count, r < rows, with 0 behind the rows.
template <class T>
void columns_of_rows(const T* from, int64_t ld, T factor, Columns<T> to, int64_t rows, int64_t count) {
  constexpr int64_t kSide = kLanes<T>;
  for (int64_t i = 0; i < to.pitch; i += kSide) {
    const int64_t height = std::clamp<int64_t>(rows - i, 0, kSide);
    for (int64_t j = 0; j < count; j += kSide) {
      alignas(64) T square[kSide * kSide] = {}, turned[kSide * kSide];
      const int64_t width = std::min(kSide, count - j);
      for (int64_t r = 0; r < height; ++r)
        std::memcpy(square + r * kSide, from + (i + r) * ld + j, size_t(width) * sizeof(T));
      transpose_square<T>(square, kSide, turned, kSide);
      for (int64_t c = 0; c < width; ++c) put(to[j + c] + i, vector_at(turned + c * kSide) * factor);
    }
  }
}

// How large the numbers of a matrix are.
template <class T>
struct Extent {
  T most = 0, odd = 0;  // the largest; 0 where all are finite, else NaN

  void add(const T* x, int64_t n) {
    constexpr int64_t L = kLanes<T>;
    Vector<T> largest = {}, not_finite = {};
    int64_t i = 0;
    for (; i + L <= n; i += L) {
      const Vector<T> v = vector_at(x + i), size = v < 0 ? -v : v;
      largest = size > largest ? size : largest;
      not_finite += v - v;
    }
    for (int64_t l = 0; l < L; ++l) most = std::max(most, T(largest[l]));
    odd += lane_sum<LEVIN_VECTOR_BYTES, T>(not_finite);
    for (; i < n; ++i) {
      most = std::max(most, std::abs(x[i]));
      odd += x[i] - x[i];
    }
  }
  bool is_finite() const { return odd == 0; }
  // The power of two that brings the largest into [1, 2); 1 where all are 0.
  T factor() const {
    // The reciprocal of every factor is finite and normal.
    constexpr int kMost = std::numeric_limits<T>::max_exponent - 2;
    return most == 0 ? T(1) : std::ldexp(T(1), std::clamp(-std::ilogb(most), -kMost, kMost));
  }
};

// The numbers of d in ascending, or descending, order: order[i] is the place of number i.
template <class T>
void sort_places(const T* d, int64_t* order, int64_t n, bool ascending) {
  std::iota(order, order + n, int64_t{0});
  std::sort(order, order + n, [&](int64_t i, int64_t j) {
    if (d[i] != d[j]) return ascending ? d[i] < d[j] : d[i] > d[j];
    return i < j;
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
