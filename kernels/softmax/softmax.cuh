#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_SOFTMAX_CUH
#define LEVIN_KERNELS_SOFTMAX_CUH
// Softmax and log-softmax. T: float, double, f16, bf16; sums in Accum<T>. Sizes may be zero. Rows
// and columns run in parallel, and no sum depends on the number of threads.
//
// [outer, dim, inner], all tensors contiguous, x and y may be the same memory, so may gy and gx:
//   softmax(on, const T* x, T* y, outer, dim, inner)                    y = exp(x - max) / sum(exp(x - max)) over dim
//   log_softmax(on, const T* x, T* y, outer, dim, inner)                y = x - max - log(sum(exp(x - max)))
//   softmax_backward(on, const T* gy, const T* y, T* gx, outer, dim, inner)       gx = y * (gy - sum(gy * y))
//   log_softmax_backward(on, const T* gy, const T* y, T* gx, outer, dim, inner)   gx = gy - exp(y) * sum(gy)
// A row whose maximum is -inf or NaN gives NaN, as in PyTorch. On devices x and gx may have 16 bits where y and gy are
// float: the bits are those of a float kernel between conversions.
// [rows, cols] with x_stride and y_stride elements between the starts of rows:
//   softmax_rows(on, const T* x, x_stride, T* y, y_stride, rows, cols)
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/device/hardware_math.cuh"
#include "kernels/device/row.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"
#include "kernels/reduce/row_sums.cuh"

#define LEVIN_LEVEL_FILE "kernels/softmax/softmax.cuh"
#include "kernels/executor/each_level.h"

#include "kernels/executor/pick_halves.h"

namespace levin::kernels::gpu {

// exp(x) as exactly as T needs it.
template <class T>
__device__ __forceinline__ Accum<T> exp_of(Accum<T> x) {
  if constexpr (std::is_same_v<T, double>)
    return ::exp(x);
  else if constexpr (std::is_same_v<T, float>)
    return ::expf(x);
  else
    return half_math::exp(x);
}
template <class A>
__device__ __forceinline__ A lowest() {
  return -std::numeric_limits<A>::infinity();
}

// The largest of the numbers seen so far and the sum of exp(x - largest), in one pass. -inf adds nothing, NaN and +inf
// make the sum NaN. Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class T>
struct ExpSum {
  using A = Accum<T>;
  A top = lowest<A>(), sum = 0;

  template <int V>
  __device__ __forceinline__ void add(const Vec<T, V>& chunk) {
    const auto v = widened(chunk);
    A most = top;
#pragma unroll
    for (int j = 0; j < V; ++j) most = Larger{}(most, v[j]);
    const A from = most == lowest<A>() ? A(0) : most;
    // A branch is dearer than the exponential of a 16-bit number.
    if (sizeof(T) == 2 || most != top) sum *= exp_of<T>(top - from);
#pragma unroll
    for (int j = 0; j < V; ++j) sum += exp_of<T>(v[j] - from);
    top = most;
  }
  // This part of the sum, below another maximum.
  __device__ __forceinline__ A below(A most) const { return sum * exp_of<T>(top - most); }
  template <class Of>
  __device__ __forceinline__ ExpSum over() const {
    ExpSum all;
    all.top = Of::reduce(top, Larger{});
    all.sum = Of::reduce(below(all.top), Plus{});
    return all;
  }
};

// The results of x, and of (gy, y), once the sums are known.
template <class T, bool kLog>
struct SoftmaxOf {
  using A = Accum<T>;
  A top, last;
  __device__ explicit SoftmaxOf(const ExpSum<T>& s) : top(s.top), last(kLog ? A(::log(s.sum)) : A(1) / s.sum) {}
  __device__ __forceinline__ A operator()(A x) const { return kLog ? (x - top) - last : exp_of<T>(x - top) * last; }
};
template <class T, bool kLog>
__device__ __forceinline__ Accum<T> slope_term(Accum<T> gy, Accum<T> y) {
  return kLog ? gy : gy * y;
}
template <class T, bool kLog>
__device__ __forceinline__ Accum<T> slope_of(Accum<T> gy, Accum<T> y, Accum<T> sum) {
  return kLog ? gy - exp_of<T>(y) * sum : (gy - sum) * y;
}

// [rows, cols]: a team a row, which is read once where it fits into shared memory.
// In f64 ptxas aims at more blocks at once than the registers allow, and spills: there the bound is one block.
template <class T, class S, int kThreads, bool kLog>
__global__ __launch_bounds__(Team<kThreads>::kBlock,
                             std::is_same_v<T, double> ? 1 : 0) void softmax_rows(const S* x, T* y, int64_t rows,
                                                                                  int64_t cols, RowPlan plan) {
  using Of = Team<kThreads>;
  LEVIN_SHARED_DYNAMIC(Vec<T>, shared);
  for (int64_t r = int64_t{blockIdx.x} * Of::kRows + Of::row(); r < rows; r += int64_t{gridDim.x} * Of::kRows) {
    const RowPart<T, kThreads, S> row(x + r * cols, cols, plan, shared + Of::row() * plan.chunks, T(lowest<float>()));
    ExpSum<T> own;
    each_first(row, [&](int64_t, const Vec<T>& v) { own.add(v); });
    const SoftmaxOf<T, kLog> f(own.template over<Of>());
    each_chunk<kThreads, kChunksAhead<T>>(plan, [&](int64_t c) {
      auto v = widened(row.again(c));
#pragma unroll
      for (int j = 0; j < kVec<T>; ++j) v[j] = f(v[j]);
      write_chunk(y + r * cols, c * kVec<T>, cols, plan.vectors, narrowed(v));
    });
  }
}
template <class T, class S, int kThreads, bool kLog>
__global__ __launch_bounds__(Team<kThreads>::kBlock) void softmax_rows_backward(const T* gy, const T* y, S* gx,
                                                                                int64_t rows, int64_t cols,
                                                                                RowPlan plan) {
  using Of = Team<kThreads>;
  LEVIN_SHARED_DYNAMIC(Vec<T>, shared);
  for (int64_t r = int64_t{blockIdx.x} * Of::kRows + Of::row(); r < rows; r += int64_t{gridDim.x} * Of::kRows) {
    Vec<T>* const kept = shared + 2 * Of::row() * plan.chunks;
    const RowPart<T, kThreads> g(gy + r * cols, cols, plan, kept), out(y + r * cols, cols, plan, kept + plan.chunks);
    Accum<T> own = 0;
    each_first<kChunksAhead<T> / 2>(g, out, [&](int64_t, const Vec<T>& slopes, const Vec<T>& values) {
      const auto a = widened(slopes), b = widened(values);
#pragma unroll
      for (int j = 0; j < kVec<T>; ++j) own += slope_term<T, kLog>(a[j], b[j]);
    });
    const Accum<T> sum = Of::reduce(own, Plus{});
    each_chunk<kThreads>(plan, [&](int64_t c) {
      const auto a = widened(g.again(c)), b = widened(out.again(c));
      Widened<T, kVec<T>> v;
#pragma unroll
      for (int j = 0; j < kVec<T>; ++j) v[j] = slope_of<T, kLog>(a[j], b[j], sum);
      write_chunk(gx + r * cols, c * kVec<T>, cols, plan.vectors, narrowed(v));
    });
  }
}

// [outer, dim, inner]: a block has 32 neighbouring columns, and each of its 8 warps an eighth of their elements. The
// second pass finds a short column in the caches.
inline constexpr int kTileColumns = 32, kTileParts = 8, kTileThreads = kTileColumns * kTileParts;
struct ColumnTiles {
  int64_t dim, inner, in_row, count;  // in_row: tiles side by side; count: in all
  ColumnTiles(int64_t outer, int64_t d, int64_t i)
      : dim(d), inner(i), in_row((i + kTileColumns - 1) / kTileColumns), count(outer * in_row) {}
  [[nodiscard]] Grid grid() const {
    return {.blocks = static_cast<unsigned>(std::min(count, kRowBlocks)), .threads = kTileThreads};
  }
  // f(offset of element 0 of this thread's column, whether there is such a column, its part)
  template <class F>
  __device__ void each(F&& f) const {
    const int column = static_cast<int>(threadIdx.x) % kTileColumns,
              part = static_cast<int>(threadIdx.x) / kTileColumns;
    for (int64_t t = blockIdx.x; t < count; t += gridDim.x) {
      const int64_t o = t / in_row, j = (t - o * in_row) * kTileColumns + column;
      f(o * dim * inner + j, j < inner, part);
    }
  }
};
// The sum (or what f makes of two) of the parts of each column; `scratch` is the block's, [kTileThreads].
template <class A, class F>
__device__ __forceinline__ A combine_parts(A x, A* scratch, F f) {
  scratch[threadIdx.x] = x;
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x) % kTileColumns;
  A all = scratch[column];
#pragma unroll
  for (int p = 1; p < kTileParts; ++p) all = f(all, scratch[p * kTileColumns + column]);
  __syncthreads();
  return all;
}
template <class T, class S, bool kLog>
__global__ __launch_bounds__(kTileThreads) void softmax_columns(const S* x, T* y, ColumnTiles tiles) {
  LEVIN_SHARED(Accum<T>, scratch, kTileThreads);
  tiles.each([&](int64_t at, bool inside, int part) {
    ExpSum<T> own;
    for (int64_t d = part; inside && d < tiles.dim; d += kTileParts) {
      Vec<T, 1> v;
      v[0] = T(x[at + d * tiles.inner]);
      own.add(v);
    }
    ExpSum<T> all;
    all.top = combine_parts(own.top, scratch, Larger{});
    all.sum = combine_parts(own.below(all.top), scratch, Plus{});
    const SoftmaxOf<T, kLog> f(all);
    for (int64_t d = part; inside && d < tiles.dim; d += kTileParts)
      y[at + d * tiles.inner] = T(f(Accum<T>(T(x[at + d * tiles.inner]))));
  });
}
template <class T, class S, bool kLog>
__global__ __launch_bounds__(kTileThreads) void softmax_columns_backward(const T* gy, const T* y, S* gx,
                                                                         ColumnTiles tiles) {
  LEVIN_SHARED(Accum<T>, scratch, kTileThreads);
  tiles.each([&](int64_t at, bool inside, int part) {
    Accum<T> own = 0;
    for (int64_t d = part; inside && d < tiles.dim; d += kTileParts)
      own += slope_term<T, kLog>(Accum<T>(gy[at + d * tiles.inner]), Accum<T>(y[at + d * tiles.inner]));
    const Accum<T> sum = combine_parts(own, scratch, Plus{});
    for (int64_t d = part; inside && d < tiles.dim; d += kTileParts) {
      const int64_t i = at + d * tiles.inner;
      gx[i] = S(T(slope_of<T, kLog>(Accum<T>(gy[i]), Accum<T>(y[i]), sum)));
    }
  });
}

template <bool kLog, class T, class S>
void launch_softmax(const Gpu& on, const S* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  if (inner != 1) {
    const ColumnTiles tiles(outer, dim, inner);
    return on.launch(softmax_columns<T, S, kLog>, tiles.grid(), x, y, tiles);
  }
  with_team<T, kLongRowThreads, kShortRowThreads, kFewLanes>(
      dim, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
        const RowPlan plan = plan_rows<T, kThreads>(dim, 1, {x, y});
        on.launch(softmax_rows<T, S, kThreads, kLog>, row_grid<kThreads>(plan, outer, 1), x, y, outer, dim, plan);
      });
}
template <bool kLog, class T, class S>
void launch_softmax_backward(const Gpu& on, const T* gy, const T* y, S* gx, int64_t outer, int64_t dim, int64_t inner) {
  if (inner != 1) {
    const ColumnTiles tiles(outer, dim, inner);
    return on.launch(softmax_columns_backward<T, S, kLog>, tiles.grid(), gy, y, gx, tiles);
  }
  with_team<T, kLongRowThreads, kRowThreads, kFewLanes>(dim, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    const RowPlan plan = plan_rows<T, kThreads>(dim, 2, {gy, y, gx});
    on.launch(softmax_rows_backward<T, S, kThreads, kLog>, row_grid<kThreads>(plan, outer, 2), gy, y, gx, outer, dim,
              plan);
  });
}

template <class T, class S>
void softmax(const Gpu& on, const S* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  launch_softmax<false>(on, x, y, outer, dim, inner);
}
template <class T, class S>
void log_softmax(const Gpu& on, const S* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  launch_softmax<true>(on, x, y, outer, dim, inner);
}
template <class T, class S>
void softmax_backward(const Gpu& on, const T* gy, const T* y, S* gx, int64_t outer, int64_t dim, int64_t inner) {
  launch_softmax_backward<false>(on, gy, y, gx, outer, dim, inner);
}
template <class T, class S>
void log_softmax_backward(const Gpu& on, const T* gy, const T* y, S* gx, int64_t outer, int64_t dim, int64_t inner) {
  launch_softmax_backward<true>(on, gy, y, gx, outer, dim, inner);
}

}  // namespace levin::kernels::gpu

namespace levin::kernels::cpu {
LEVIN_PICK_HALVES(softmax)
LEVIN_PICK_HALVES(softmax_rows)
LEVIN_PICK_HALVES(log_softmax)
LEVIN_PICK_HALVES(softmax_backward)
LEVIN_PICK_HALVES(log_softmax_backward)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// ---- Rows: passes over a row that the caches hold. Terms of 16-bit rows that take exp pass through a small buffer:
// exp is a function of single numbers, which the compiler vectorises.

inline constexpr int64_t kExpTile = 512;

// room: for n numbers in the type of the sums, y itself where that is T.
template <class T, class A>
void softmax_row(const T* x, T* y, A* room, int64_t n) {
  const A top = row_max(x, n);
  const int64_t tile = kIsHalf<T> ? kExpTile : n;
  A sum = 0;
  for (int64_t b = 0; b < n; b += tile) {
    const int64_t count = std::min(tile, n - b);
    A* const e = room + b;
    const A* const in = wide_numbers(x + b, count, e);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) e[i] = math::exp_nonpositive(in[i] - top);
    sum += row_sum(e, count);
  }
  const A scale = 1 / sum;
  each_vector<A>(
      n, [=]<class V>(V, int64_t i) __attribute__((always_inline)) { put(y + i, load<V>(room + i) * scale); });
}

// sum(exp(x - top))
template <class T, class A>
A sum_of_exp(const T* x, A top, int64_t n) {
  alignas(64) A e[kExpTile];
  A sum = 0;
  for (int64_t b = 0; b < n; b += kExpTile) {
    const int64_t count = std::min(kExpTile, n - b);
    const A* const in = wide_numbers(x + b, count, e);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) e[i] = math::exp_nonpositive(in[i] - top);
    sum += row_sum(e, count);
  }
  return sum;
}

template <class T>
void log_softmax_row(const T* x, T* y, int64_t n) {
  using A = Accum<T>;
  const A top = row_max(x, n);
  const A log = math::log(sum_of_exp(x, top, n));
  each_vector<A>(
      n, [=]<class V>(V, int64_t i) __attribute__((always_inline)) { put(y + i, (load<V>(x + i) - top) - log); });
}

template <bool kLog, class T>
void softmax_backward_row(const T* gy, const T* y, T* gx, int64_t n) {
  using A = Accum<T>;
  if constexpr (!kLog) {
    const A sum = row_dot(gy, y, n);
    each_vector<A>(
        n, [=]<class V>(V, int64_t i)
               __attribute__((always_inline)) { put(gx + i, (load<V>(gy + i) - sum) * load<V>(y + i)); });
  } else if constexpr (kIsHalf<T>) {
    const A sum = row_sum(gy, n);
    alignas(64) A e[kExpTile];
    for (int64_t b = 0; b < n; b += kExpTile) {
      const int64_t count = std::min(kExpTile, n - b);
      wide_numbers(y + b, count, e);
      for (int64_t i = 0; i < count; ++i) e[i] = math::exp_nonpositive(e[i]);
      each_vector<A>(
          count, [ =, e = &e[0] ]<class V>(V, int64_t i)
                     __attribute__((always_inline)) { put(gx + b + i, load<V>(gy + b + i) - load<V>(e + i) * sum); });
    }
  } else {
    const A sum = row_sum(gy, n);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) gx[i] = gy[i] - math::exp_nonpositive(y[i]) * sum;
  }
}

template <class T>
void softmax_rows(const Cpu& on, const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t cols) {
  on.parallel_for(rows, rows_at_once(cols), [=](int64_t first, int64_t last) {
    const WideRow<T> wide(cols);
    for (int64_t r = first; r < last; ++r)
      softmax_row(x + r * x_stride, y + r * y_stride, wide.under(y + r * y_stride), cols);
  });
}

// ---- An inner dimension: columns of a tile side by side, each walked along dim.

inline constexpr int64_t kColumns = 128;

// body(offset of the tile's first element, columns): its element [d, j] is at offset + d * inner + j.
template <class Body>
void each_column_tile(const Cpu& on, int64_t outer, int64_t dim, int64_t inner, const Body& body) {
  const int64_t tiles = (inner + kColumns - 1) / kColumns;
  on.parallel_for(outer * tiles, rows_at_once(dim * std::min(inner, kColumns)), [=](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t j = t % tiles * kColumns;
      body(t / tiles * dim * inner + j, std::min(kColumns, inner - j));
    }
  });
}

// top = max and sum = sum(exp(x - top)) of each column.
template <class T>
void column_sums(const T* x, int64_t dim, int64_t inner, int64_t columns, Accum<T>* top, Accum<T>* sum) {
  using A = Accum<T>;
  for (int64_t j = 0; j < columns; ++j) top[j] = -std::numeric_limits<A>::infinity(), sum[j] = 0;
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t j = 0; j < columns; ++j) {
      const A v = A(x[d * inner + j]);
      top[j] = v > top[j] ? v : top[j];
    }
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t j = 0; j < columns; ++j) sum[j] += math::exp_nonpositive(A(x[d * inner + j]) - top[j]);
}

template <bool kLog, class T>
void softmax_along(const Cpu& on, const T* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  using A = Accum<T>;
  if (inner == 1) {
    if constexpr (!kLog) return softmax_rows(on, x, dim, y, dim, outer, dim);
    return on.parallel_for(outer, rows_at_once(dim), [=](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) log_softmax_row(x + r * dim, y + r * dim, dim);
    });
  }
  each_column_tile(on, outer, dim, inner, [=](int64_t at, int64_t columns) {
    A top[kColumns], last[kColumns];
    const T* const in = x + at;
    T* const out = y + at;
    column_sums(in, dim, inner, columns, top, last);
    for (int64_t j = 0; j < columns; ++j) last[j] = kLog ? math::log(last[j]) : 1 / last[j];
    for (int64_t d = 0; d < dim; ++d)
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) {
        const A below = A(in[d * inner + j]) - top[j];
        out[d * inner + j] = T(kLog ? below - last[j] : math::exp_nonpositive(below) * last[j]);
      }
  });
}

template <bool kLog, class T>
void softmax_backward_along(const Cpu& on, const T* gy, const T* y, T* gx, int64_t outer, int64_t dim, int64_t inner) {
  using A = Accum<T>;
  if (inner == 1) {
    return on.parallel_for(outer, rows_at_once(dim), [=](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) softmax_backward_row<kLog>(gy + r * dim, y + r * dim, gx + r * dim, dim);
    });
  }
  each_column_tile(on, outer, dim, inner, [=](int64_t at, int64_t columns) {
    A sum[kColumns];
    for (int64_t j = 0; j < columns; ++j) sum[j] = 0;
    const T *const g = gy + at, *const p = y + at;
    T* const out = gx + at;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t j = 0; j < columns; ++j)
        sum[j] += kLog ? A(g[d * inner + j]) : A(g[d * inner + j]) * A(p[d * inner + j]);
    for (int64_t d = 0; d < dim; ++d)
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) {
        const A slope = A(g[d * inner + j]), of = A(p[d * inner + j]);
        out[d * inner + j] = T(kLog ? slope - math::exp_nonpositive(of) * sum[j] : (slope - sum[j]) * of);
      }
  });
}

template <class T>
void softmax(const Cpu& on, const T* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  softmax_along<false>(on, x, y, outer, dim, inner);
}
template <class T>
void log_softmax(const Cpu& on, const T* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  softmax_along<true>(on, x, y, outer, dim, inner);
}
template <class T>
void softmax_backward(const Cpu& on, const T* gy, const T* y, T* gx, int64_t outer, int64_t dim, int64_t inner) {
  softmax_backward_along<false>(on, gy, y, gx, outer, dim, inner);
}
template <class T>
void log_softmax_backward(const Cpu& on, const T* gy, const T* y, T* gx, int64_t outer, int64_t dim, int64_t inner) {
  softmax_backward_along<true>(on, gy, y, gx, outer, dim, inner);
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
