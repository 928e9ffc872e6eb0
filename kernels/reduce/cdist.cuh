// Distances between rows of two matrices, and the gradient in the rows of the first. All contiguous but gy and y:
//
//   cdist(on, const T* x1, const T* x2, T* y, shape, how)
//     y[b, i, j] = (sum over k of |x1[b, i, k] - x2[b, j, k]|^p)^(1/p)
//   pdist(on, const T* x, T* y, rows, length, how)
//     y[pair (i, j)] = (sum over k of |x[i, k] - x[j, k]|^p)^(1/p), i < j: (0, 1), (0, 2), ..., (1, 2), ...
//   cdist_backward(on, const T* gy, const T* y, const T* x1, const T* x2, T* gx, shape, how)
//     gx[b, i, k] = sum over j of gy[b, i, j] d y[b, i, j] / d x1[b, i, k]
//   pdist_backward(on, const T* gy, const T* y, const T* x, T* gx, rows, length, how)
//     gx[i, k] = sum over j of gy[pair] d y[pair] / d x[i, k], of the pair (i, j) or (j, i)
//   cdist_of_products(on, T* y, const T* squares1, const T* squares2, const T* x1, const T* x2, shape)
//     y from the products of all rows with each other, y[b, i, j] = sum over k of x1[b, i, k] x2[b, j, k] of rows moved
//     by any vector, and from the sums of their squares; p = 2. Near rows are subtracted instead: see kNearRows.
//
// x1: [batches, rows, length], x2: [batches, others, length]; gy and y: element (b, i, j) lies at (b rows others +
// i row_step + j other_step), so that the gradient in x2 is that of the first of (x2, x1). T: float or double. Kinds:
// p = 0 counts the differences that are not 0, p = 1, p = 2, infinity takes the largest, and any other power. A NaN
// among the differences gives NaN. d y is 0 where the difference is; at infinity each largest difference has slope 1 or
// -1. A row's bits do not depend on other rows.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CDIST_CUH
#define LEVIN_KERNELS_CDIST_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "kernels/math/math.h"
#include "levin/dtype.h"

namespace levin::kernels {

enum class DistanceKind : std::uint8_t { count, sum, euclid, largest, power };
struct DistanceRule {
  DistanceKind kind = DistanceKind::euclid;
  double p = 2;
};
struct DistanceShape {
  std::int64_t batches = 0, rows = 0, others = 0, length = 0;
  std::int64_t row_step = 0, other_step = 1;  // of gy and y
};
inline DistanceShape shape_of_pairs(std::int64_t rows, std::int64_t length) {
  return {.batches = 1, .rows = rows, .others = rows, .length = length};
}

// Where the pair (i, j), i < j, stands among those of n rows.
LEVIN_HD std::int64_t place_of_pair(std::int64_t i, std::int64_t j, std::int64_t n) {
  return i * n - i * (i + 1) / 2 + j - i - 1;
}

// |a - b|^2 as |a|^2 + |b|^2 - 2 a b has rounding errors of |a|^2 + |b|^2: a square below so much of these, or NaN,
// is summed from differences. The distance then has at most 1 / (2 kNearRows) times the error of a product.
inline constexpr float kNearRows = 1.0f / 16;

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/reduce/cdist.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(cdist)
LEVIN_PICK(pdist)
LEVIN_PICK(cdist_backward)
LEVIN_PICK(cdist_of_products)
LEVIN_PICK(pdist_backward)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

template <class T>
__device__ __forceinline__ T distance_part(T sum, T d, const DistanceRule& rule) {
  const T size = d < 0 ? -d : d;
  switch (rule.kind) {
    case DistanceKind::count: return d != d ? d : sum + (d != 0 ? T(1) : T(0));
    case DistanceKind::sum: return sum + size;
    case DistanceKind::euclid: return sum + d * d;
    case DistanceKind::largest: return size > sum || size != size ? size : sum;
    case DistanceKind::power: break;
  }
  return sum + math::pow(size, T(rule.p));
}
template <class T>
__device__ __forceinline__ T distance_slope(T d, T y, const DistanceRule& rule) {
  const T size = d < 0 ? -d : d, sign = d > 0 ? T(1) : d < 0 ? T(-1) : d;
  switch (rule.kind) {
    case DistanceKind::count: return d != d ? d : T(0);
    case DistanceKind::sum: return sign;
    case DistanceKind::euclid: return y == 0 ? T(0) : d / y;
    case DistanceKind::largest: return size == y ? sign : d != d ? d : T(0);
    case DistanceKind::power: break;
  }
  return d == 0 || y == 0 ? T(0) : sign * math::pow(size / y, T(rule.p - 1));
}

inline constexpr int kDistanceTile = 16;  // rows and others of a block, and numbers of a row that it holds at once

template <bool kPairs, class T>
__global__ void cdist_tiles(const T* x1, const T* x2, T* y, DistanceShape s, DistanceRule rule, std::int64_t across,
                            std::int64_t down) {
  constexpr int kTile = kDistanceTile;
  LEVIN_SHARED(T, first, kTile * (kTile + 1));
  LEVIN_SHARED(T, second, kTile * (kTile + 1));
  const std::int64_t block = blockIdx.x, line = block / across, batch = line / down;
  const std::int64_t i0 = (line - batch * down) * kTile, j0 = (block - line * across) * kTile;
  if (kPairs && i0 > j0) return;
  const int u = static_cast<int>(threadIdx.x) % kTile, v = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t i = i0 + v, j = j0 + u;
  const T* const a = x1 + batch * s.rows * s.length;
  const T* const b = x2 + batch * s.others * s.length;
  T sum = 0;
  for (std::int64_t k0 = 0; k0 < s.length; k0 += kTile) {
    const std::int64_t k = k0 + u;
    first[v * (kTile + 1) + u] = i < s.rows && k < s.length ? a[i * s.length + k] : T(0);
    second[v * (kTile + 1) + u] = j0 + v < s.others && k < s.length ? b[(j0 + v) * s.length + k] : T(0);
    __syncthreads();
    // Beyond the length both are 0: no difference.
    for (int t = 0; t < kTile; ++t)
      sum = distance_part(sum, first[v * (kTile + 1) + t] - second[u * (kTile + 1) + t], rule);
    __syncthreads();
  }
  if (i >= s.rows || j >= s.others || (kPairs && i >= j)) return;
  if (rule.kind == DistanceKind::euclid) sum = std::sqrt(sum);
  if (rule.kind == DistanceKind::power) sum = math::pow(sum, T(1 / rule.p));
  y[kPairs ? place_of_pair(i, j, s.rows) : (batch * s.rows + i) * s.others + j] = sum;
}
template <bool kPairs, class T>
void launch_tiles(const Gpu& on, const T* x1, const T* x2, T* y, const DistanceShape& s, const DistanceRule& rule) {
  const std::int64_t across = (s.others + kDistanceTile - 1) / kDistanceTile,
                     down = (s.rows + kDistanceTile - 1) / kDistanceTile;
  const Grid grid{.blocks = {static_cast<unsigned>(s.batches * down * across)},
                  .threads = {kDistanceTile * kDistanceTile}};
  on.launch(cdist_tiles<kPairs, T>, grid, x1, x2, y, s, rule, across, down);
}
template <class T>
void cdist(const Gpu& on, const T* x1, const T* x2, T* y, const DistanceShape& s, const DistanceRule& rule) {
  launch_tiles<false>(on, x1, x2, y, s, rule);
}
template <class T>
void pdist(const Gpu& on, const T* x, T* y, std::int64_t rows, std::int64_t length, const DistanceRule& rule) {
  launch_tiles<true>(on, x, x, y, shape_of_pairs(rows, length), rule);
}

template <bool kPairs, class T>
__global__ void cdist_backward_items(const T* gy, const T* y, const T* x1, const T* x2, T* gx, std::int64_t n,
                                     DistanceShape s, DistanceRule rule, Divider length, Divider rows) {
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t row = length.quotient(u), k = u - row * s.length, batch = rows.quotient(row);
  const std::int64_t at = batch * s.rows * s.others + (row - batch * s.rows) * s.row_step;
  const T x = x1[u];
  const T* const other = x2 + batch * s.others * s.length + k;
  T sum = 0;
  for (std::int64_t j = 0; j < s.others; ++j) {
    if (kPairs && j == row) continue;
    const std::int64_t pair = !kPairs   ? at + j * s.other_step
                              : j < row ? place_of_pair(j, row, s.rows)
                                        : place_of_pair(row, j, s.rows);
    sum += gy[pair] * distance_slope(x - other[j * s.length], y[pair], rule);
  }
  gx[u] = sum;
}
template <class T>
void cdist_backward(const Gpu& on, const T* gy, const T* y, const T* x1, const T* x2, T* gx, const DistanceShape& s,
                    const DistanceRule& rule) {
  const std::int64_t n = s.batches * s.rows * s.length;
  on.launch(cdist_backward_items<false, T>, item_grid(n), gy, y, x1, x2, gx, n, s, rule, Divider(s.length),
            Divider(s.rows));
}
template <class T>
void pdist_backward(const Gpu& on, const T* gy, const T* y, const T* x, T* gx, std::int64_t rows, std::int64_t length,
                    const DistanceRule& rule) {
  on.launch(cdist_backward_items<true, T>, item_grid(rows * length), gy, y, x, x, gx, rows * length,
            shape_of_pairs(rows, length), rule, Divider(length), Divider(rows));
}

template <class T>
__global__ void cdist_of_products_items(T* y, const T* squares1, const T* squares2, const T* x1, const T* x2,
                                        std::int64_t n, DistanceShape s, Divider others, Divider rows) {
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t row = others.quotient(u), batch = rows.quotient(row),
                     other = batch * s.others + u - row * s.others;
  const T both = squares1[row] + squares2[other];
  T square = both - 2 * y[u];
  if (!(square >= T(kNearRows) * both)) {
    square = 0;
    for (std::int64_t k = 0; k < s.length; ++k) {
      const T d = x1[row * s.length + k] - x2[other * s.length + k];
      square += d * d;
    }
  }
  y[u] = std::sqrt(square);
}
template <class T>
void cdist_of_products(const Gpu& on, T* y, const T* squares1, const T* squares2, const T* x1, const T* x2,
                       const DistanceShape& s) {
  const std::int64_t n = s.batches * s.rows * s.others;
  on.launch(cdist_of_products_items<T>, item_grid(n), y, squares1, squares2, x1, x2, n, s, Divider(s.others),
            Divider(s.rows));
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::cdist, gpu::cdist;
using cpu::cdist_backward, gpu::cdist_backward;
using cpu::cdist_of_products, gpu::cdist_of_products;
using cpu::pdist, gpu::pdist;
using cpu::pdist_backward, gpu::pdist_backward;
}  // namespace levin::kernels

#endif  // LEVIN_KERNELS_CDIST_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
struct DistanceVector {
  static constexpr int kLanes = LEVIN_VECTOR_BYTES / sizeof(T);
  typedef T Type __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
  static Type load(const T* from) {
    Type v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  static Type all(T x) { return Type{} + x; }
};

// sum and d of one pair of rows a lane.
template <DistanceKind kKind, class T, class V>
[[gnu::always_inline]] inline void add_distance(V& sum, const V& d, T p) {
  constexpr int kLanes = sizeof(V) / sizeof(T);
  const V size = d < 0 ? -d : d;
  if constexpr (kKind == DistanceKind::count) {
    sum = d != d ? d : sum + (d != 0 ? V{} + 1 : V{});
  } else if constexpr (kKind == DistanceKind::sum) {
    sum += size;
  } else if constexpr (kKind == DistanceKind::euclid) {
    sum += d * d;
  } else if constexpr (kKind == DistanceKind::largest) {
    sum = ((size > sum) | (size != size)) ? size : sum;
  } else {
    T of[kLanes];
    std::memcpy(of, &size, sizeof size);
    for (int l = 0; l < kLanes; ++l) of[l] = math::pow(of[l], p);
    V power;
    std::memcpy(&power, of, sizeof power);
    sum += power;
  }
}

inline constexpr int kDistanceRows = 4;               // that share what is loaded of the others
inline constexpr std::int64_t kDistanceTask = 65536;  // differences of one task, about

template <DistanceKind kKind, bool kPairs, class T>
void distances(const Cpu& on, const T* x1, const T* x2, T* y, const DistanceShape& s, double p) {
  using Vector = DistanceVector<T>;
  using V = typename Vector::Type;
  constexpr int kLanes = Vector::kLanes, kVectors = 2, kRows = kDistanceRows;
  constexpr std::int64_t kColumns = kLanes * kVectors;
  const std::int64_t blocks = (s.others + kColumns - 1) / kColumns,
                     grain = std::max<std::int64_t>(
                         1, kDistanceTask / (kColumns * std::max<std::int64_t>(1, s.rows * s.length)));
  // Of a block that is many tasks' worth the rows are cut as well.
  const std::int64_t most = std::max<std::int64_t>(64, kDistanceTask * 4 / (kColumns * (s.length + 1))),
                     parts = (s.rows + most - 1) / most;
  on.parallel_for(s.batches * blocks * parts, grain, [&](std::int64_t begin, std::int64_t end) {
    const lib::Scratch memory(static_cast<std::size_t>(s.length * kColumns) * sizeof(T) + sizeof(V));
    T* const packed = memory.as<T>();  // [length, kColumns]: a column is a row of x2
    std::int64_t there = -1;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t turn = task / parts, first = (task - turn * parts) * most;
      // Of pairs the last block has the most: blocks from both ends in turns give each range of tasks as many.
      const std::int64_t block = kPairs && turn % 2 != 0 ? blocks - 1 - turn / 2 : kPairs ? turn / 2 : turn;
      const std::int64_t batch = block / blocks, j0 = (block - batch * blocks) * kColumns,
                         columns = std::min(kColumns, s.others - j0),
                         last = std::min(kPairs ? j0 + columns - 1 : s.rows, first + most);
      if (kPairs && first >= last) continue;
      if (block != there) {
        const T* const from = x2 + (batch * s.others + j0) * s.length;
        for (std::int64_t c = 0; c < kColumns; ++c) {
          const T* const row = from + std::min(c, columns - 1) * s.length;
          for (std::int64_t k = 0; k < s.length; ++k) packed[k * kColumns + c] = row[k];
        }
        there = block;
      }
      for (std::int64_t i = first; i < last; i += kRows) {
        const T* row[kRows];
        for (int r = 0; r < kRows; ++r)
          row[r] = x1 + (batch * s.rows + std::min<std::int64_t>(i + r, last - 1)) * s.length;
        V sum[kRows][kVectors] = {};
        for (std::int64_t k = 0; k < s.length; ++k) {
          V other[kVectors];
          for (int v = 0; v < kVectors; ++v) other[v] = Vector::load(packed + k * kColumns + v * kLanes);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const V own = Vector::all(row[r][k]);
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) add_distance<kKind, T>(sum[r][v], own - other[v], T(p));
          }
        }
        // Unrolled: sums that a variable indexes lie in memory, and g++ 12 copies them by half vectors, whose bytes the
        // load for a root waits for.
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          if (i + r >= last) continue;
          alignas(V) T of[kColumns];
          for (int v = 0; v < kVectors; ++v) std::memcpy(of + v * kLanes, &sum[r][v], sizeof(V));
          if constexpr (kKind == DistanceKind::euclid)
            for (std::int64_t c = 0; c < kColumns; ++c) of[c] = std::sqrt(of[c]);
          if constexpr (kKind == DistanceKind::power)
            for (std::int64_t c = 0; c < kColumns; ++c) of[c] = math::pow(of[c], T(1 / p));
          T* const to = y + (kPairs ? place_of_pair(i + r, j0, s.rows) : (batch * s.rows + i + r) * s.others + j0);
          const std::int64_t skip = kPairs ? std::max<std::int64_t>(0, i + r + 1 - j0) : 0;
          if (skip == 0 && columns == kColumns)
            std::memcpy(to, of, sizeof of);
          else
            std::memcpy(to + skip, of + skip, static_cast<std::size_t>(columns - skip) * sizeof(T));
        }
      }
    }
  });
}

template <class T>
T squared_distance(const T* a, const T* b, std::int64_t length) {
  using Vector = DistanceVector<T>;
  constexpr int kLanes = Vector::kLanes;
  typename Vector::Type sums[2] = {};
  std::int64_t k = 0;
  for (; k + 2 * kLanes <= length; k += 2 * kLanes) {
    for (int v = 0; v < 2; ++v) {
      const auto d = Vector::load(a + k + v * kLanes) - Vector::load(b + k + v * kLanes);
      sums[v] += d * d;
    }
  }
  sums[0] += sums[1];
  T sum = 0;
  for (; k < length; ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
  for (int l = 0; l < kLanes; ++l) sum += sums[0][l];
  return sum;
}

template <class T>
void cdist_of_products(const Cpu& on, T* y, const T* squares1, const T* squares2, const T* x1, const T* x2,
                       const DistanceShape& s) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t grain = std::max<std::int64_t>(1, kDistanceTask / s.others);
  on.parallel_for(s.batches * s.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t batch = i / s.rows;
      const T own = squares1[i];
      for (std::int64_t first = 0; first < s.others; first += kBlock) {
        const std::int64_t count = std::min(kBlock, s.others - first);
        T* const to = y + i * s.others + first;
        const T* const other = squares2 + batch * s.others + first;
        T square[kBlock];
        int near[kBlock], any = 0;
        for (std::int64_t j = 0; j < count; ++j) {
          const T both = own + other[j];
          square[j] = both - 2 * to[j];
          near[j] = square[j] >= T(kNearRows) * both ? 0 : 1;
          any |= near[j];
        }
        if (any != 0) {
          for (std::int64_t j = 0; j < count; ++j) {
            if (near[j] != 0)
              square[j] = squared_distance(x1 + i * s.length, x2 + (batch * s.others + first + j) * s.length, s.length);
          }
        }
        for (std::int64_t j = 0; j < count; ++j) to[j] = std::sqrt(square[j]);
      }
    }
  });
}

// sum of w times what d adds to the slope; y of the pair.
template <DistanceKind kKind, class T, class V>
[[gnu::always_inline]] inline void add_slope(V& sum, const V& d, T w, T y, T p) {
  constexpr int kLanes = sizeof(V) / sizeof(T);
  if constexpr (kKind == DistanceKind::euclid) {
    sum += w * d;
  } else {
    const V none = {}, one = none + 1, size = d < 0 ? -d : d;
    const V sign = d > 0 ? one : d < 0 ? -one : d;
    if constexpr (kKind == DistanceKind::sum) {
      sum += w * sign;
    } else if constexpr (kKind == DistanceKind::largest) {
      sum += w * (((size == y) | (d != d)) ? sign : none);
    } else {
      T of[kLanes];
      std::memcpy(of, &size, sizeof size);
      for (int l = 0; l < kLanes; ++l) of[l] = math::pow(of[l] / y, p - 1);
      V power;
      std::memcpy(&power, of, sizeof power);
      sum += y == 0 ? none : w * (d == 0 ? none : sign * power);
    }
  }
}

// gy and y of rows i to i + rows - 1 with all others: [others, kDistanceRows]; the last row fills what is left, and a
// row of pairs has 0 for itself.
template <bool kPairs, class T>
void load_pairs(const T* gy, const T* y, T* weight, T* far, std::int64_t at, std::int64_t i, std::int64_t rows,
                const DistanceShape& s) {
  constexpr std::int64_t kRows = kDistanceRows;
  const auto take = [&](std::int64_t j, std::int64_t r, std::int64_t pair) {
    weight[j * kRows + r] = gy[pair];
    far[j * kRows + r] = y[pair];
  };
  if constexpr (!kPairs) {
    for (std::int64_t j = 0; j < s.others; ++j)
      for (std::int64_t r = 0; r < kRows; ++r) take(j, r, at + std::min(r, rows - 1) * s.row_step + j * s.other_step);
  } else {
    // Pairs (j, i), (j, i + 1), ... stand beside each other, and so do (i, j), (i, j + 1), ...
    for (std::int64_t j = 0; j < i; ++j)
      for (std::int64_t r = 0; r < kRows; ++r) take(j, r, place_of_pair(j, i, s.rows) + std::min(r, rows - 1));
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t row = i + std::min(r, rows - 1);
      for (std::int64_t j = i; j < row; ++j) take(j, r, place_of_pair(j, row, s.rows));
      weight[row * kRows + r] = far[row * kRows + r] = 0;
      for (std::int64_t j = row + 1; j < s.rows; ++j) take(j, r, place_of_pair(row, j, s.rows));
    }
  }
}

template <DistanceKind kKind, bool kPairs, class T>
void distance_gradients(const Cpu& on, const T* gy, const T* y, const T* x1, const T* x2, T* gx, const DistanceShape& s,
                        double p) {
  using Vector = DistanceVector<T>;
  using V = typename Vector::Type;
  constexpr int kLanes = Vector::kLanes, kRows = kDistanceRows;
  const std::int64_t groups = (s.rows + kRows - 1) / kRows;
  const std::int64_t grain =
      std::max<std::int64_t>(1, kDistanceTask / (kRows * std::max<std::int64_t>(1, s.others * s.length)));
  on.parallel_for(s.batches * groups, grain, [&](std::int64_t begin, std::int64_t end) {
    const bool is_short = s.length < kLanes;
    const std::int64_t pairs = s.others * kRows;
    const lib::Scratch memory(static_cast<std::size_t>(2 * pairs + (is_short ? s.others * kLanes : 0)) * sizeof(T) +
                              sizeof(V));
    T* const weight = memory.as<T>();  // [others, kRows], and y likewise
    T* const far = weight + pairs;
    T* const packed = far + pairs;  // [others, kLanes]
    std::int64_t there = -1;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t batch = task / groups, i = (task - batch * groups) * kRows,
                         rows = std::min<std::int64_t>(kRows, s.rows - i);
      const T* const others = x2 + batch * s.others * s.length;
      if (is_short && batch != there) {
        for (std::int64_t j = 0; j < s.others; ++j)
          for (std::int64_t k = 0; k < kLanes; ++k)
            packed[j * kLanes + k] = k < s.length ? others[j * s.length + k] : T(0);
        there = batch;
      }
      const std::int64_t at = batch * s.rows * s.others + i * s.row_step;
      load_pairs<kPairs>(gy, y, weight, far, at, i, rows, s);
      if constexpr (kKind == DistanceKind::euclid) {
        for (std::int64_t pair = 0; pair < pairs; ++pair)
          weight[pair] = far[pair] == 0 ? T(0) : weight[pair] / far[pair];
      }
      for (std::int64_t k0 = 0; k0 < s.length; k0 += kLanes) {
        // The last numbers of a row are computed with those before them.
        const std::int64_t k = is_short ? 0 : std::min<std::int64_t>(k0, s.length - kLanes);
        const T* from = is_short ? packed : others + k;
        const std::int64_t step = is_short ? kLanes : s.length;
        V own[kRows], sum[kRows] = {};
        for (int r = 0; r < kRows; ++r) {
          const T* const row = x1 + (batch * s.rows + i + std::min<std::int64_t>(r, rows - 1)) * s.length + k;
          T of[kLanes] = {};
          std::memcpy(of, row, static_cast<std::size_t>(is_short ? s.length : kLanes) * sizeof(T));
          own[r] = Vector::load(of);
        }
        for (std::int64_t j = 0; j < s.others; ++j, from += step) {
          const V other = Vector::load(from);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
            add_slope<kKind, T>(sum[r], own[r] - other, weight[j * kRows + r], far[j * kRows + r], T(p));
        }
        for (std::int64_t r = 0; r < rows; ++r) {
          std::memcpy(gx + (batch * s.rows + i + r) * s.length + k, &sum[r],
                      static_cast<std::size_t>(is_short ? s.length : kLanes) * sizeof(T));
        }
      }
    }
  });
}

template <bool kPairs, class T>
void distances_by(const DistanceRule& rule, const Cpu& on, const T* x1, const T* x2, T* y, const DistanceShape& s) {
  switch (rule.kind) {
    case DistanceKind::count: return distances<DistanceKind::count, kPairs>(on, x1, x2, y, s, rule.p);
    case DistanceKind::sum: return distances<DistanceKind::sum, kPairs>(on, x1, x2, y, s, rule.p);
    case DistanceKind::euclid: return distances<DistanceKind::euclid, kPairs>(on, x1, x2, y, s, rule.p);
    case DistanceKind::largest: return distances<DistanceKind::largest, kPairs>(on, x1, x2, y, s, rule.p);
    case DistanceKind::power: return distances<DistanceKind::power, kPairs>(on, x1, x2, y, s, rule.p);
  }
}
template <class T>
void cdist(const Cpu& on, const T* x1, const T* x2, T* y, const DistanceShape& s, const DistanceRule& rule) {
  distances_by<false>(rule, on, x1, x2, y, s);
}
template <class T>
void pdist(const Cpu& on, const T* x, T* y, std::int64_t rows, std::int64_t length, const DistanceRule& rule) {
  distances_by<true>(rule, on, x, x, y, shape_of_pairs(rows, length));
}
template <bool kPairs, class T>
void gradients_by(const DistanceRule& rule, const Cpu& on, const T* gy, const T* y, const T* x1, const T* x2, T* gx,
                  const DistanceShape& s) {
  switch (rule.kind) {
    case DistanceKind::count: return;  // the op has zeros
    case DistanceKind::sum: return distance_gradients<DistanceKind::sum, kPairs>(on, gy, y, x1, x2, gx, s, rule.p);
    case DistanceKind::euclid:
      return distance_gradients<DistanceKind::euclid, kPairs>(on, gy, y, x1, x2, gx, s, rule.p);
    case DistanceKind::largest:
      return distance_gradients<DistanceKind::largest, kPairs>(on, gy, y, x1, x2, gx, s, rule.p);
    case DistanceKind::power: return distance_gradients<DistanceKind::power, kPairs>(on, gy, y, x1, x2, gx, s, rule.p);
  }
}
template <class T>
void cdist_backward(const Cpu& on, const T* gy, const T* y, const T* x1, const T* x2, T* gx, const DistanceShape& s,
                    const DistanceRule& rule) {
  gradients_by<false>(rule, on, gy, y, x1, x2, gx, s);
}
template <class T>
void pdist_backward(const Cpu& on, const T* gy, const T* y, const T* x, T* gx, std::int64_t rows, std::int64_t length,
                    const DistanceRule& rule) {
  gradients_by<true>(rule, on, gy, y, x, x, gx, shape_of_pairs(rows, length));
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
