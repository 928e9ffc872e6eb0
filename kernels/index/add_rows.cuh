// Rows of src added to the rows that their indices name.
//
//   add_to_rows(on, const T* x, const int64_t* index, int64_t m, first, last, const T* src, T* y, inner, int64_t skip)
//     y[r - first, :] = x[r - first, :] + sum over i in order with index[i] == r of src[i, :] for r in [first, last);
//     16-bit sums in f32, rounded once; x may be null (zeros); an index equal to `skip` adds nothing (-1: all add).
//     x, y: [last - first, inner], src: [m, inner], all contiguous; inner >= 1.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_ADD_ROWS_CUH
#define LEVIN_KERNELS_ADD_ROWS_CUH

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/index/group.cuh"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/index/add_rows.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(add_to_rows)
}  // namespace levin::kernels::cpu

#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// body(i, r) for each i in order with index[i] == r in [first, last) other than skip. Positions are listed before they
// are used, because whether the next one is used cannot be predicted; and the CPU is asked for the rows of both a few
// positions ahead, because their order is of no pattern.
template <class T, class F>
[[gnu::always_inline]] inline void each_of_rows(const int64_t* index, int64_t m, int64_t first, int64_t last,
                                                const T* src, const T* y, int64_t inner, int64_t skip, const F& body) {
  constexpr int64_t kListed = 64, kAhead = 4;
  const int64_t head = std::min<int64_t>(inner * int64_t(sizeof(T)), 512);
  int64_t listed[kListed];
  for (int64_t i = 0; i < m;) {
    int64_t n = 0;
    for (; i < m && n < kListed; ++i) {
      listed[n] = i;
      n += int64_t(uint64_t(index[i] - first) < uint64_t(last - first)) & int64_t(index[i] != skip);
    }
    for (int64_t j = 0; j < n; ++j) {
      if (j + kAhead < n) {
        const int64_t next = listed[j + kAhead];
        const char* const a = reinterpret_cast<const char*>(src + next * inner);
        const char* const b = reinterpret_cast<const char*>(y + (index[next] - first) * inner);
        for (int64_t at = 0; at < head; at += 64) __builtin_prefetch(a + at), __builtin_prefetch(b + at, 1);
      }
      body(listed[j], index[listed[j]]);
    }
  }
}

template <class T>
void add_to_rows(const Cpu&, const T* x, const int64_t* index, int64_t m, int64_t first, int64_t last, const T* src,
                 T* y, int64_t inner, int64_t skip) {
  using A = IndexSum<T>;
  const int64_t rows = last - first;
  const auto keep = [=](int64_t row, int64_t n) {
    if (x) {
      std::memcpy(y + row * inner, x + row * inner, size_t(n * inner) * sizeof(T));
    } else {
      std::memset(static_cast<void*>(y + row * inner), 0, size_t(n * inner) * sizeof(T));
    }
  };
  if constexpr (std::is_same_v<A, T>) {
    keep(0, rows);
    each_of_rows(index, m, first, last, src, y, inner, skip, [=](int64_t i, int64_t r) {
      const T* const from = src + i * inner;
      T* const to = y + (r - first) * inner;
      for (int64_t j = 0; j < inner; ++j) to[j] = wrapping_sum(to[j], from[j]);
    });
  } else {
    const lib::Scratch memory(size_t(rows * inner) * sizeof(A));
    A* const sums = memory.as<A>();
    std::vector<uint8_t> has_sum(size_t(rows), 0);
    each_of_rows(index, m, first, last, src, y, inner, skip, [&](int64_t i, int64_t r) {
      const int64_t row = r - first;
      const T* const from = src + i * inner;
      A* const to = sums + row * inner;
      if (has_sum[size_t(row)]) {
        for (int64_t j = 0; j < inner; ++j) to[j] += A(from[j]);
        return;
      }
      has_sum[size_t(row)] = 1;
      if (x) {  // two loops: with the choice inside, the loop is not vector code
        const T* const start = x + row * inner;
        for (int64_t j = 0; j < inner; ++j) to[j] = A(start[j]) + A(from[j]);
      } else {
        for (int64_t j = 0; j < inner; ++j) to[j] = A(0) + A(from[j]);
      }
    });
    for (int64_t row = 0; row < rows;) {
      if (!has_sum[size_t(row)]) {  // rows that get nothing go together
        int64_t n = 1;
        while (row + n < rows && !has_sum[size_t(row + n)]) ++n;
        keep(row, n);
        row += n;
        continue;
      }
      const A* const from = sums + row * inner;
      T* const to = y + row * inner;
      for (int64_t j = 0; j < inner; ++j) to[j] = T(from[j]);
      ++row;
    }
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
