#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_SPMM_CUH
#define LEVIN_KERNELS_SPMM_CUH
// Products of a sparse matrix in compressed rows (csr.cuh) with dense ones. x: [cols, heads, inner], y: [rows,
// heads, inner], value: [any, heads], contiguous. Entry k of row i stands in column j = col[k] (k itself where col is
// null) and has the values v = value[edge[k], :] (value[k, :] where edge is null, 1 where value is). T: float, double,
// f16, bf16 (sddmm on the CPU float and double: the op widens); sums in Accum<T>, in the order of entries.
// Sizes may be zero.
//
//   spmm(on, CsrView, const T* value, const T* x, T* y, Heads, bool mean)     y[i] = sum over k of v x[j], or / entries
//   spmm_extreme(on, CsrView, const T* value, const T* x, T* y, std::int64_t* arg, Heads, bool largest)
//     y[i] = the largest (smallest) v x[j], arg[i] the first entry that has it; NaN wins. A row without entries: 0, -1.
//   sddmm(on, CsrView, const T* x, const T* z, T* y, Heads)                   y[edge[k], h] = sum of x[i, h] z[j, h]
//     x: [rows, heads, inner], z: [cols, heads, inner], y: [entries, heads]
// On the CPU the op checks crow, col and edge before. On a device the kernels do: what lies outside is reported and
// counts as zero. The gpu functions take the op's name, what to call offsets in errors, and room(bytes) for memory.
#include <algorithm>

#include "kernels/device/block.cuh"
#include "kernels/device/row.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/sparse/csr.cuh"
#include "kernels/sparse/pairs.cuh"
#include "kernels/sparse/short_rows.cuh"
#include "kernels/sparse/tiles.cuh"

#define LEVIN_LEVEL_FILE "kernels/sparse/spmm.cuh"
#include "kernels/executor/each_level.h"
#include "kernels/executor/pick_float.h"

namespace levin::kernels::gpu {

// Terms v x[j] of one row; V columns of one head.
template <int V, class T>
struct Terms : Entries {
  using Element = T;
  static constexpr int kSize = V;
  struct Value {
    Vec<T, V> x;
    T weight;
  };
  const T *value, *x;
  std::int64_t width;
  Divider inner;
  std::int64_t heads;
  std::int64_t column = 0, head = 0;

  Terms(const Gpu& on, const char* op, const CsrView& a_, const T* value_, const T* x_, const Heads& h)
      : Entries(on, op, a_), value(value_), x(x_), width(h.width()), inner(h.inner), heads(h.heads) {}
  __device__ void enter(std::int64_t c) {
    column = c;
    head = value ? inner.quotient(c) : 0;
  }
  __device__ void enter_row(std::int64_t) {}
  template <class At>
  __device__ __forceinline__ Value fetch(const At& at) const {
    return {load<V>(x + offset(at.column, width) + column), value ? value[offset(at.place, heads) + head] : T(1.0f)};
  }
  static __device__ __forceinline__ Accum<T> term(const Value& v, int j) {
    return Accum<T>(v.weight) * Accum<T>(v.x[j]);
  }
};
// The same of a segment, which has neither positions nor values.
template <int V, class T>
struct SegmentTerms : SegmentEntries {
  using Element = T;
  static constexpr int kSize = V;
  using Value = Vec<T, V>;
  const T* x;
  std::int64_t width, column = 0;

  SegmentTerms(const T* x_, std::int64_t width_) : x(x_), width(width_) {}
  __device__ void enter(std::int64_t c) { column = c; }
  __device__ void enter_row(std::int64_t) {}
  template <class At>
  __device__ __forceinline__ Value fetch(const At& at) const {
    return load<V>(x + offset(at.column, width) + column);
  }
  static __device__ __forceinline__ Accum<T> term(const Value& v, int j) { return Accum<T>(v[j]); }
};

template <class Terms>
struct SumOfRow : Terms {
  using T = typename Terms::Element;
  static constexpr int V = Terms::kSize;
  struct State {
    Accum<T> sum[V];
  };
  T* y;
  bool mean;
  SumOfRow(const Terms& terms, T* y_, bool mean_) : Terms(terms), y(y_), mean(mean_) {}
  __device__ State start() const { return State{}; }
  __device__ __forceinline__ void take(State& s, std::int64_t, const typename Terms::Value& v) const {
#pragma unroll
    for (int j = 0; j < V; ++j) s.sum[j] += Terms::term(v, j);
  }
  __device__ void merge(State& s, const State& later) const {
#pragma unroll
    for (int j = 0; j < V; ++j) s.sum[j] += later.sum[j];
  }
  __device__ void finish(std::int64_t row, const State& s, std::int64_t count) const {
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) out[j] = T(mean && count > 0 ? s.sum[j] / Accum<T>(count) : s.sum[j]);
    store(y + row * this->width + this->column, out);
  }
};

template <class Terms>
struct ExtremeOfRow : Terms {
  using T = typename Terms::Element;
  static constexpr int V = Terms::kSize;
  struct State {
    Accum<T> best[V];  // of the terms, or of their negatives for the smallest
    long long at[V];
  };
  T* y;
  std::int64_t* arg;
  Accum<T> sign;
  ExtremeOfRow(const Terms& terms, T* y_, std::int64_t* arg_, bool largest)
      : Terms(terms), y(y_), arg(arg_), sign(largest ? Accum<T>(1) : Accum<T>(-1)) {}
  __device__ State start() const {
    State s;
    for (int j = 0; j < V; ++j) s.best[j] = 0, s.at[j] = -1;
    return s;
  }
  // Entries come in order, but parts of long rows do not.
  static __device__ __forceinline__ void choose(State& s, int j, Accum<T> x, long long at) {
    const bool better = x > s.best[j] || (x != x && s.best[j] == s.best[j]),
               tie = x == s.best[j] || (x != x && s.best[j] != s.best[j]);
    if (at < 0 || (s.at[j] >= 0 && !better && !(tie && at < s.at[j]))) return;
    s.best[j] = x;
    s.at[j] = at;
  }
  __device__ __forceinline__ void take(State& s, std::int64_t e, const typename Terms::Value& v) const {
#pragma unroll
    for (int j = 0; j < V; ++j) choose(s, j, sign * Terms::term(v, j), e);
  }
  __device__ void merge(State& s, const State& later) const {
#pragma unroll
    for (int j = 0; j < V; ++j) choose(s, j, later.best[j], later.at[j]);
  }
  __device__ void finish(std::int64_t row, const State& s, std::int64_t) const {
    for (int j = 0; j < V; ++j) {
      y[row * this->width + this->column + j] = T(s.at[j] < 0 ? s.best[j] : sign * s.best[j]);
      arg[row * this->width + this->column + j] = s.at[j];
    }
  }
};

// f(terms) with 16-byte loads where a head has whole ones.
template <class T, class F>
void with_terms(const Gpu& on, const char* op, const char* offsets, const CsrView& a, const T* value, const T* x,
                const T* y, const Heads& h, F&& f) {
  check_rows(on, offsets, a);
  if (h.width() == 0) return;
  with_vectors<T>(value ? h.inner : h.width(), {x, y}, [&]<int V>(std::integral_constant<int, V>) {
    if (a.col || a.edge || value)
      f(Terms<V, T>(on, op, a, value, x, h));
    else
      f(SegmentTerms<V, T>(x, h.width()));
  });
}
template <class T, class Room>
void spmm(const Gpu& on, const char* op, const char* offsets, const CsrView& a, const T* value, const T* x, T* y,
          const Heads& h, bool mean, const Room& room) {
  with_terms(on, op, offsets, a, value, x, y, h,
             [&](const auto& terms) { reduce_rows(on, a, SumOfRow(terms, y, mean), h.width(), room); });
}
template <class T, class Room>
void spmm_extreme(const Gpu& on, const char* op, const char* offsets, const CsrView& a, const T* value, const T* x,
                  T* y, std::int64_t* arg, const Heads& h, bool largest, const Room& room) {
  with_terms(on, op, offsets, a, value, x, y, h,
             [&](const auto& terms) { reduce_rows(on, a, ExtremeOfRow(terms, y, arg, largest), h.width(), room); });
}

template <class T>
struct DotOfEnds : Ends<T> {
  using Ends<T>::Ends;
  __device__ int weights(std::int64_t, std::int64_t) const { return 0; }
  __device__ __forceinline__ void add(Accum<T>& sum, const Vec<T>& p, const Vec<T>& q, int) const {
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) sum += Accum<T>(p[j]) * Accum<T>(q[j]);
  }
};
template <class T, class Room>
void sddmm(const Gpu& on, const char* op, const char* offsets, const CsrView& a, const T* x, const T* z, T* y,
           const Heads& h, const Room& room) {
  check_rows(on, offsets, a);
  sum_pairs(on, DotOfEnds<T>(on, op, a, x, z, y, h), room);
}

}  // namespace levin::kernels::gpu

namespace levin::kernels::cpu {
LEVIN_PICK_FLOAT(spmm)
LEVIN_PICK_FLOAT(sddmm)

// No level: base code, because it waits for memory.
template <class T>
void spmm_extreme(const Cpu& on, const CsrView& a, const T* value, const T* x, T* y, std::int64_t* arg, const Heads& h,
                  bool largest) {
  using A = Accum<T>;
  const A sign = largest ? A(1) : A(-1);
  each_row_block(on, a, h.width(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t c = 0; c < h.width(); ++c) {
        A best = 0;
        std::int64_t at = -1;
        for (std::int64_t k = a.crow[i]; k < a.crow[i + 1]; ++k) {
          A v = sign * A(x[(a.col ? a.col[k] : k) * h.width() + c]);
          if (value) v *= A(value[(a.edge ? a.edge[k] : k) * h.heads + c / h.inner]);
          if (at < 0 || v > best || (v != v && best == best)) best = v, at = k;
        }
        y[i * h.width() + c] = T(at < 0 ? best : sign * best);
        arg[i * h.width() + c] = at;
      }
  });
}
}  // namespace levin::kernels::cpu
#endif

#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Rows [begin, end) of the columns of a tile; `tile.first` counts in rows of x and y. kByHead: each vector has the
// weight of its head, and `inner` is a multiple of its lanes; otherwise `value` has one weight an entry, `step` apart.
template <bool kByHead, class Tile, class T, class I>
void sum_rows(const Tile& tile, const CsrArrays<I>& a, std::int64_t begin, std::int64_t end, const T* value,
              std::int64_t step, const T* x, T* y, std::int64_t width, std::int64_t inner, bool mean, bool prefetch) {
  using Lanes = typename Tile::Lanes;
  using A = Accum<T>;
  constexpr int kCount = Tile::kCount;
  // Rows of x on their way to the cache: about 8 KiB hide a miss of the last level (measured, 4 to 128 rows ahead).
  constexpr std::int64_t kTileBytes = kCount * Tile::kWidth * std::int64_t{sizeof(T)},
                         kAhead = std::min<std::int64_t>(128, 8192 / kTileBytes), kLine = 64 / sizeof(T);
  std::int64_t head[kCount];
  if constexpr (kByHead)
    for (int n = 0; n < kCount; ++n) head[n] = (tile.first + tile.at(n)) / inner;
  const std::int64_t until = prefetch ? a.entries - kAhead : 0;
  x += tile.first;
  y += tile.first;
  std::int64_t k = a.crow[begin];
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t first = k, last = a.crow[i + 1];
    Lanes sum[kCount] = {};
    for (; k < last; ++k) {
      if (k < until) {
        const T* const next = x + a.column(k + kAhead) * width;
#pragma GCC unroll 8
        for (std::int64_t c = 0; c < kCount * Tile::kWidth; c += kLine) __builtin_prefetch(next + c);
      }
      const T* const from = x + a.column(k) * width;
      const T* const weight = value + a.place(k) * step;
      const A shared = kByHead ? A(0) : A(*weight);
#pragma GCC unroll 8
      for (int n = 0; n < kCount; ++n)
        sum[n] += (kByHead ? A(weight[head[n]]) : shared) * Tile::load(from + tile.at(n));
    }
    if (mean && last > first) {
#pragma GCC unroll 8
      for (int n = 0; n < kCount; ++n) sum[n] /= A(last - first);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kCount; ++n) Tile::store(y + i * width + tile.at(n), sum[n]);
  }
}

template <class T, class I>
void spmm_by(const Cpu& on, const CsrView& view, const T* value, const T* x, T* y, const Heads& of, bool mean) {
  static constexpr T kOne = T(1.0f);
  constexpr std::int64_t kCachedBytes = 1 << 20;
  const CsrArrays<I> a(view);
  // Without values heads do not matter.
  const Heads h = value ? of : Heads{1, of.width()};
  const std::int64_t width = h.width(), step = value ? h.heads : 0;
  const T* const weight = value ? value : &kOne;
  const bool prefetch = view.cols * width * std::int64_t{sizeof(T)} > kCachedBytes;
  each_row_block(on, view, width, [=](std::int64_t begin, std::int64_t end) {
    if (h.heads > 1 && h.inner % kFullLanes<T> == 0) {
      each_column_tile<T>(width, [&]<class Tile>(const Tile& tile) {
        if constexpr (Tile::kWidth == kFullLanes<T>)
          sum_rows<true>(tile, a, begin, end, weight, step, x, y, width, h.inner, mean, prefetch);
      });
    } else {
      for (std::int64_t head = 0; head < h.heads; ++head)
        each_column_tile<T>(h.inner, [&](auto tile) {
          tile.first += head * h.inner;
          sum_rows<false>(tile, a, begin, end, weight + head, step, x, y, width, h.inner, mean, prefetch);
        });
    }
  });
}

template <class T>
void spmm(const Cpu& on, const CsrView& a, const T* value, const T* x, T* y, const Heads& h, bool mean) {
  if (a.col.is_wide)
    spmm_by<T, std::int64_t>(on, a, value, x, y, h, mean);
  else
    spmm_by<T, std::int32_t>(on, a, value, x, y, h, mean);
}

template <class T, class I>
void sddmm_by(const Cpu& on, const CsrView& view, const T* x, const T* z, T* y, const Heads& h) {
  using A = Accum<T>;
  const CsrArrays<I> a(view);
  constexpr std::int64_t kLanes = LEVIN_VECTOR_BYTES / std::int64_t{sizeof(A)};  // sums side by side, in a register
  each_row_block(on, view, h.width(), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t k = a.crow[i]; k < a.crow[i + 1]; ++k)
        for (std::int64_t head = 0; head < h.heads; ++head) {
          const T* const p = x + (i * h.heads + head) * h.inner;
          const T* const q = z + (a.column(k) * h.heads + head) * h.inner;
          A lanes[kLanes] = {}, sum = 0;
          std::int64_t j = 0;
          for (; j + kLanes <= h.inner; j += kLanes)
            for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += A(p[j + l]) * A(q[j + l]);
          for (; j < h.inner; ++j) sum += A(p[j]) * A(q[j]);
          if (h.inner >= kLanes) {
#pragma GCC unroll 8
            for (std::int64_t half = kLanes / 2; half > 0; half /= 2)
              for (std::int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
            sum += lanes[0];
          }
          y[a.place(k) * h.heads + head] = T(sum);
        }
  });
}

template <class T>
void sddmm(const Cpu& on, const CsrView& a, const T* x, const T* z, T* y, const Heads& h) {
  if (a.col.is_wide)
    sddmm_by<T, std::int64_t>(on, a, x, z, y, h);
  else
    sddmm_by<T, std::int32_t>(on, a, x, z, y, h);
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
