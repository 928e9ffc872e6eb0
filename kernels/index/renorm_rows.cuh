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
#include <type_traits>
#include <vector>

#include "kernels/device/bits.cuh"
#include "kernels/device/block.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"
#include "levin/dtype.h"

namespace levin::kernels {

// (sum |x|^p)^(1/p), or the largest |x| where p is infinite, and its limit.
enum class RowNorm : std::uint8_t { one, two, largest, other };
template <class A>
struct RowLimit {
  A p, most;
  RowNorm norm;

  RowLimit(A p_, A most_)
      : p(p_),
        most(most_),
        norm(p_ == 1                              ? RowNorm::one
             : p_ == 2                            ? RowNorm::two
             : p_ > std::numeric_limits<A>::max() ? RowNorm::largest
                                                  : RowNorm::other) {}
  template <RowNorm kNorm>
  LEVIN_HD A of_one(A x) const {
    x = x < 0 ? -x : x;
    return kNorm == RowNorm::two ? x * x : kNorm == RowNorm::other ? math::pow(x, p) : x;
  }
  template <RowNorm kNorm>
  LEVIN_HD A joined(A x, A y) const {
    return kNorm != RowNorm::largest ? x + y : x > y || x != x ? x : y;
  }
  // 1 where the row may stay.
  template <RowNorm kNorm>
  LEVIN_HD A factor(A sum) const {
    const A length = kNorm == RowNorm::two ? std::sqrt(sum) : kNorm == RowNorm::other ? math::pow(sum, 1 / p) : sum;
    return length > most ? most / (length + A(1e-7)) : A(1);
  }
};
// f of the norm as a constant.
template <class F>
LEVIN_HD void with_norm(RowNorm norm, F&& f) {
  if (norm == RowNorm::two) return f(std::integral_constant<RowNorm, RowNorm::two>());
  if (norm == RowNorm::one) return f(std::integral_constant<RowNorm, RowNorm::one>());
  if (norm == RowNorm::largest) return f(std::integral_constant<RowNorm, RowNorm::largest>());
  f(std::integral_constant<RowNorm, RowNorm::other>());
}

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

template <RowNorm kNorm, class T>
void renorm_row(T* row, std::int64_t cols, const RowLimit<Accum<T>>& limit) {
  using A = Accum<T>;
  constexpr std::int64_t kLanes = 16;  // sums that do not wait for each other
  A sum[kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= cols; j += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l)
      sum[l] = limit.template joined<kNorm>(sum[l], limit.template of_one<kNorm>(A(row[j + l])));
  for (std::int64_t l = 0; j < cols; ++j, ++l)
    sum[l] = limit.template joined<kNorm>(sum[l], limit.template of_one<kNorm>(A(row[j])));
  for (std::int64_t l = 1; l < kLanes; ++l) sum[0] = limit.template joined<kNorm>(sum[0], sum[l]);
  const A factor = limit.template factor<kNorm>(sum[0]);
  if (factor == 1) return;
  for (j = 0; j < cols; ++j) row[j] = T(A(row[j]) * factor);
}
template <class T>
void renorm_rows(const Cpu& on, T* weight, const std::int64_t* index, std::int64_t n, std::int64_t rows,
                 std::int64_t cols, const RowLimit<Accum<T>>& limit) {
  const std::vector<std::int64_t> once = without_repeats(index, n, rows);
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(cols, 1));
  with_norm(limit.norm, [&]<class N>(N) {
    on.parallel_for(static_cast<std::int64_t>(once.size()), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        renorm_row<N::value>(weight + once[static_cast<size_t>(i)] * cols, cols, limit);
    });
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
  A factor = 1;
  with_norm(limit.norm, [&]<class N>(N) {
    A sum = 0;
    for (std::int64_t j = lane; j < cols; j += 32)
      sum = limit.template joined<N::value>(sum, limit.template of_one<N::value>(A(x[j])));
    sum = warp_reduce(sum, [limit](A a, A b) { return limit.template joined<N::value>(a, b); });
    factor = limit.template factor<N::value>(sum);
  });
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
