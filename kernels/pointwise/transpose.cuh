// Copies whose source is dense along another dimension than the result: transposes of the innermost dimensions, of
// every element size. A plan of two operands, the result and the source, collapsed.
//
//   transpose(on, const PointwisePlan& plan)   whether the plan is such a copy of some size, which then is done
//
// Note [Squares of a transpose]
// The work is cut into strips of kStrip rows of the result. A strip is crossed by squares of one cache line a side, so
// each line of the source is read once and each line of the result is written once, whatever their distance: rows that
// lie a power of two apart fall into few sets of a cache, and nothing that a later square needs waits there.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_TRANSPOSE_CUH
#define LEVIN_KERNELS_TRANSPOSE_CUH

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/pointwise/pointwise.cuh"

#define LEVIN_LEVEL_FILE "kernels/pointwise/transpose.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(transpose_strip)

inline constexpr int64_t kStripBytes = 256;  // of the source, along its dense dimension

inline bool transpose(const Cpu& on, const PointwisePlan& plan) {
  if (plan.rank < 2 || plan.operands != 2 || plan.numel < 256) return false;
  const auto last = static_cast<size_t>(plan.rank - 1);
  const int64_t width = plan.width[0];
  // A source that repeats along the result's rows is no transpose: rows are filled.
  if (plan.steps[0][last] != width || plan.steps[1][last] == 0) return false;
  size_t dense = last;  // the dimension along which the source is dense
  for (size_t d = 0; d < last; ++d) {
    if (plan.steps[1][d] == width) dense = d;
  }
  if (dense == last || plan.sizes[dense] < 8 || plan.sizes[last] < 8) return false;
  const int64_t strip = kStripBytes / width, strips = (plan.sizes[dense] + strip - 1) / strip;
  const int64_t tasks = plan.numel / plan.sizes[dense] / plan.sizes[last] * strips;
  const int64_t grain = std::max<int64_t>(1, 32768 / (strip * plan.sizes[last]));
  on.parallel_for(tasks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % strips * strip;
      char* to = plan.data[0] + first * plan.steps[0][dense];
      const char* from = plan.data[1] + first * width;
      int64_t rest = task / strips;
      for (size_t d = last; d-- > 0;) {
        if (d == dense) continue;
        const int64_t i = rest % plan.sizes[d];
        rest /= plan.sizes[d];
        to += i * plan.steps[0][d];
        from += i * plan.steps[1][d];
      }
      const int64_t rows = std::min(strip, plan.sizes[dense] - first);
      const auto run = [&]<class U>(U) {
        transpose_strip<U>(on, reinterpret_cast<const U*>(from), plan.steps[1][last] / width, reinterpret_cast<U*>(to),
                           plan.steps[0][dense] / width, rows, plan.sizes[last]);
      };
      if (width == 8) run(double{});
      if (width == 4) run(float{});
      if (width == 2) run(uint16_t{});
      if (width == 1) run(uint8_t{});
    }
  });
  return true;
}
}  // namespace levin::kernels::cpu

#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// to[i * ld_to + j] = from[j * ld_from + i] for i, j < 8, of elements of 2 bytes: interleaving row i with row i + 4
// three times exchanges rows and columns.
template <class U>
[[gnu::always_inline]] inline void transpose_eight(const U* from, int64_t ld_from, U* to, int64_t ld_to) {
  typedef U Eight __attribute__((vector_size(8 * sizeof(U))));
  Eight rows[8], next[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) __builtin_memcpy(&rows[i], from + i * ld_from, sizeof(Eight));
#pragma GCC unroll 3
  for (int round = 0; round < 3; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * ld_to, &rows[i], sizeof(Eight));
}

// Base code is small where it is for the oldest machines alone.
inline constexpr int kUnrolled = LEVIN_X86_LEVELS && LEVIN_VECTOR_BYTES == 16 ? 1 : 4;

// to[i * ld_to + j] = from[j * ld_from + i] for i < rows, j < cols. Elements of 2 bytes and more go through registers.
template <class U>
void transpose_strip(const Cpu&, const U* from, int64_t ld_from, U* to, int64_t ld_to, int64_t rows, int64_t cols) {
  constexpr int64_t kLine = 64 / int64_t{sizeof(U)};
  const int64_t whole_rows = rows / kLine * kLine, whole_cols = cols / kLine * kLine;
  for (int64_t j = 0; j < whole_cols; j += kLine) {
    for (int64_t i = 0; i < whole_rows; i += kLine) {
      const U* const source = from + j * ld_from + i;
      U* const result = to + i * ld_to + j;
      if constexpr (sizeof(U) >= 4) {
        constexpr int64_t kSide = kLanes<U>;
#pragma GCC unroll kUnrolled
        for (int64_t a = 0; a < kLine; a += kSide)
#pragma GCC unroll kUnrolled
          for (int64_t b = 0; b < kLine; b += kSide)
            transpose_square<U>(source + b * ld_from + a, ld_from, result + a * ld_to + b, ld_to);
      } else if constexpr (sizeof(U) == 2) {
        for (int64_t a = 0; a < kLine; a += 8)
          for (int64_t b = 0; b < kLine; b += 8)
            transpose_eight(source + b * ld_from + a, ld_from, result + a * ld_to + b, ld_to);
      } else {
        U square[kLine * kLine];
        for (int64_t b = 0; b < kLine; ++b) __builtin_memcpy(square + b * kLine, source + b * ld_from, 64);
        for (int64_t a = 0; a < kLine; ++a)
          for (int64_t b = 0; b < kLine; ++b) result[a * ld_to + b] = square[b * kLine + a];
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = i < whole_rows ? whole_cols : 0;
    for (int64_t j = first; j < cols; ++j) to[i * ld_to + j] = from[j * ld_from + i];
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
