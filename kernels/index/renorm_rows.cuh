// Rows of a table made no longer than a limit, in place.
//
//   renorm_rows(on, T* weight, const int64_t* index, n, rows, cols, RowLimit<Accum<T>>)             cpu
//   renorm_rows(on, T* weight, const K* row, n, rows, cols, RowLimit<Accum<T>>)                     gpu
//
// weight: [rows, cols], contiguous. Each row that is named, once or more often, and whose norm is above the limit is
// multiplied by limit / (norm + 1e-7). The CPU's indices are in [0, rows), in any order; those of a device are sorted,
// and those from `rows` on name nothing.
#ifndef LEVIN_KERNELS_RENORM_ROWS_CUH
#define LEVIN_KERNELS_RENORM_ROWS_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/device/bits.cuh"
#include "kernels/device/block.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"
#include "levin/dtype.h"

namespace levin::kernels {

// (sum |x|^p)^(1/p), or the largest |x| where p is infinite, and its limit.
template <class A>
struct RowLimit {
  A p, most;

  LEVIN_HD A of_one(A x) const {
    x = x < 0 ? -x : x;
    return p == 2 ? x * x : p == 1 || is_largest() ? x : math::pow(x, p);
  }
  LEVIN_HD A joined(A x, A y) const { return !is_largest() ? x + y : x > y || x != x ? x : y; }
  LEVIN_HD A of_row(A sum) const {
    return p == 2 ? std::sqrt(sum) : p == 1 || is_largest() ? sum : math::pow(sum, 1 / p);
  }
  // 1 where the row may stay.
  LEVIN_HD A factor(A sum) const {
    const A norm = of_row(sum);
    return norm > most ? most / (norm + A(1e-7)) : A(1);
  }

 private:
  LEVIN_HD bool is_largest() const { return p > std::numeric_limits<A>::max(); }
};

namespace cpu {

// Each number of index once, in the order of their first places.
inline std::vector<std::int64_t> without_repeats(const std::int64_t* index, std::int64_t n, std::int64_t rows) {
  std::vector<std::uint64_t> seen(static_cast<size_t>((rows + 63) / 64));  // a bit for each row
  std::vector<std::int64_t> once;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t& word = seen[static_cast<size_t>(index[i] / 64)];
    const std::uint64_t bit = std::uint64_t{1} << index[i] % 64;
    if ((word & bit) == 0) once.push_back(index[i]);
    word |= bit;
  }
  return once;
}

template <class T>
void renorm_rows(const Cpu& on, T* weight, const std::int64_t* index, std::int64_t n, std::int64_t rows,
                 std::int64_t cols, RowLimit<Accum<T>> limit) {
  using A = Accum<T>;
  constexpr std::int64_t kLanes = 8;  // sums that do not wait for each other
  const std::vector<std::int64_t> once = without_repeats(index, n, rows);
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(cols, 1));
  on.parallel_for(static_cast<std::int64_t>(once.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* const row = weight + once[static_cast<size_t>(i)] * cols;
      A sum[kLanes] = {};
      std::int64_t j = 0;
      for (; j + kLanes <= cols; j += kLanes)
        for (std::int64_t l = 0; l < kLanes; ++l) sum[l] = limit.joined(sum[l], limit.of_one(A(row[j + l])));
      for (; j < cols; ++j) sum[j % kLanes] = limit.joined(sum[j % kLanes], limit.of_one(A(row[j])));
      for (std::int64_t l = 1; l < kLanes; ++l) sum[0] = limit.joined(sum[0], sum[l]);
      const A factor = limit.factor(sum[0]);
      if (factor == 1) continue;
      for (j = 0; j < cols; ++j) row[j] = T(A(row[j]) * factor);
    }
  });
}

}  // namespace cpu

namespace gpu {

inline constexpr int kRenormThreads = 256;

// A warp for each place of an index; the first of equal ones has work.
template <class T, class K>
__global__ void renorm_rows_kernel(T* weight, const K* row, std::int64_t n, std::int64_t rows, std::int64_t cols,
                                   RowLimit<Accum<T>> limit) {
  using A = Accum<T>;
  const std::int64_t i = std::int64_t{blockIdx.x} * (kRenormThreads / 32) + threadIdx.x / 32;
  if (i >= n || (i > 0 && row[i - 1] == row[i]) || static_cast<std::int64_t>(row[i]) >= rows) return;
  T* const x = weight + static_cast<std::int64_t>(row[i]) * cols;
  const std::int64_t lane = threadIdx.x % 32;
  A sum = 0;
  for (std::int64_t j = lane; j < cols; j += 32) sum = limit.joined(sum, limit.of_one(A(x[j])));
  sum = warp_reduce(sum, [limit](A a, A b) { return limit.joined(a, b); });
  const A factor = limit.factor(sum);
  if (factor == 1) return;
  for (std::int64_t j = lane; j < cols; j += 32) x[j] = T(A(x[j]) * factor);
}

template <class T, class K>
void renorm_rows(const Gpu& on, T* weight, const K* row, std::int64_t n, std::int64_t rows, std::int64_t cols,
                 RowLimit<Accum<T>> limit) {
  on.launch(renorm_rows_kernel<T, K>, Grid{.blocks = blocks_for(n, kRenormThreads / 32), .threads = kRenormThreads},
            weight, row, n, rows, cols, limit);
}

}  // namespace gpu
}  // namespace levin::kernels
#endif
