#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_SEGMENT_CUH
#define LEVIN_KERNELS_SEGMENT_CUH
// Segments: entries k in [crow[i], crow[i + 1]) of x: [entries, width], contiguous. Only crow, rows and entries of the
// CsrView are read. Their sums and extremes are spmm without columns and values. T: float, double, f16, bf16 (on the
// CPU float and double: the op widens); sums in Accum<T>. Sizes may be zero.
//
//   segment_softmax(on, CsrView, const T* x, T* y, width)
//     y[k] = exp(x[k] - top) / sum of those of the segment, top: its maximum, per column; all -inf: 0, a NaN: NaN
//   segment_softmax_backward(on, CsrView, const T* gy, const T* y, T* gx, width)
//     gx[k] = y[k] (gy[k] - sum of y gy over the segment)
//   gather_csr(on, CsrView, const U* x, U* y, width)                 y[k] = x[i];  x: [rows, width], U: as wide as T
// The gpu functions take what to call offsets in errors, and room(bytes) for memory.
#include <cstring>
#include <limits>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"
#include "kernels/softmax/softmax.cuh"
#include "kernels/sparse/csr.cuh"
#include "kernels/sparse/short_rows.cuh"
#include "kernels/sparse/tiles.cuh"

#define LEVIN_LEVEL_FILE "kernels/sparse/segment.cuh"
#include "kernels/executor/each_level.h"
#include "kernels/executor/pick_float.h"

namespace levin::kernels::gpu {

// top and 1 / sum of each segment and column, as floats or doubles.
template <int V, class T>
struct ExpSumOfRow : SegmentEntries {
  static constexpr int kSize = V;
  using A = Accum<T>;
  using Value = Vec<T, V>;
  struct State {
    A top[V], sum[V];
  };
  const T* x;
  A *top, *scale;
  int64_t width, column = 0;
  __device__ void enter(int64_t c) { column = c; }
  __device__ void enter_row(int64_t) {}
  __device__ State start() const {
    State s;
    for (int j = 0; j < V; ++j) s.top[j] = lowest<A>(), s.sum[j] = 0;
    return s;
  }
  template <class At>
  __device__ __forceinline__ Value fetch(const At& at) const {
    return load<V>(x + offset(at.column, width) + column);
  }
  __device__ __forceinline__ void take(State& s, int64_t, const Value& v) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const A value = A(v[j]), most = Larger{}(s.top[j], value), from = most == lowest<A>() ? A(0) : most;
      if (most != s.top[j]) s.sum[j] *= exp_of<T>(s.top[j] - from);
      s.sum[j] += exp_of<T>(value - from);
      s.top[j] = most;
    }
  }
  __device__ void merge(State& s, const State& later) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const A most = Larger{}(s.top[j], later.top[j]), from = most == lowest<A>() ? A(0) : most;
      s.sum[j] = s.sum[j] * exp_of<T>(s.top[j] - from) + later.sum[j] * exp_of<T>(later.top[j] - from);
      s.top[j] = most;
    }
  }
  __device__ void finish(int64_t row, const State& s, int64_t) const {
    for (int j = 0; j < V; ++j) {
      top[row * width + column + j] = s.top[j] == lowest<A>() ? A(0) : s.top[j];
      scale[row * width + column + j] = s.sum[j] == 0 ? A(0) : 1 / s.sum[j];
    }
  }
};
// The sum of y gy of each segment and column.
template <int V, class T>
struct DotOfRow : SegmentEntries {
  static constexpr int kSize = V;
  using A = Accum<T>;
  struct Value {
    Vec<T, V> gy, y;
  };
  struct State {
    A sum[V];
  };
  const T *gy, *y;
  A* dot;
  int64_t width, column = 0;
  __device__ void enter(int64_t c) { column = c; }
  __device__ void enter_row(int64_t) {}
  __device__ State start() const { return State{}; }
  template <class At>
  __device__ __forceinline__ Value fetch(const At& at) const {
    const int64_t from = offset(at.column, width) + column;
    return {load<V>(gy + from), load<V>(y + from)};
  }
  __device__ __forceinline__ void take(State& s, int64_t, const Value& v) const {
#pragma unroll
    for (int j = 0; j < V; ++j) s.sum[j] += A(v.gy[j]) * A(v.y[j]);
  }
  __device__ void merge(State& s, const State& later) const {
#pragma unroll
    for (int j = 0; j < V; ++j) s.sum[j] += later.sum[j];
  }
  __device__ void finish(int64_t row, const State& s, int64_t) const {
    for (int j = 0; j < V; ++j) dot[row * width + column + j] = s.sum[j];
  }
};

template <int V, class T>
struct ExpOfEntry : SegmentEntries {
  static constexpr int kSize = V;
  const T* x;
  const Accum<T>*top, *scale;
  T* y;
  int64_t width, column = 0;
  __device__ void enter(int64_t c) { column = c; }
  __device__ void operator()(int64_t e, int64_t row) const {
    Vec<T, V> v = load<V>(x + e * width + column);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int64_t at = row * width + column + j;
      v[j] = T(exp_of<T>(Accum<T>(v[j]) - top[at]) * scale[at]);
    }
    store(y + e * width + column, v);
  }
};
template <int V, class T>
struct SlopeOfEntry : SegmentEntries {
  static constexpr int kSize = V;
  const T *gy, *y;
  const Accum<T>* dot;
  T* gx;
  int64_t width, column = 0;
  __device__ void enter(int64_t c) { column = c; }
  __device__ void operator()(int64_t e, int64_t row) const {
    const Vec<T, V> g = load<V>(gy + e * width + column), v = load<V>(y + e * width + column);
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j)
      out[j] = T(slope_of<T, false>(Accum<T>(g[j]), Accum<T>(v[j]), dot[row * width + column + j]));
    store(gx + e * width + column, out);
  }
};
template <int V, class U>
struct CopyOfRow : SegmentEntries {
  static constexpr int kSize = V;
  const U* x;
  U* y;
  int64_t width, column = 0;
  __device__ void enter(int64_t c) { column = c; }
  __device__ void operator()(int64_t e, int64_t row) const {
    store(y + e * width + column, load<V>(x + row * width + column));
  }
};

template <class T, class Room>
void segment_softmax(const Gpu& on, const char* offsets, const CsrView& a, const T* x, T* y, int64_t width,
                     const Room& room) {
  using A = Accum<T>;
  check_rows(on, offsets, a);
  if (a.rows * width == 0) return;
  A* const top = static_cast<A*>(room(2 * a.rows * width * int64_t{sizeof(A)}));
  with_vectors<T>(width, {x, y}, [&]<int V>(std::integral_constant<int, V>) {
    reduce_rows(on, a, ExpSumOfRow<V, T>{{}, x, top, top + a.rows * width, width}, width, room);
    map_entries(on, a, ExpOfEntry<V, T>{{}, x, top, top + a.rows * width, y, width}, width, room);
  });
}
template <class T, class Room>
void segment_softmax_backward(const Gpu& on, const char* offsets, const CsrView& a, const T* gy, const T* y, T* gx,
                              int64_t width, const Room& room) {
  using A = Accum<T>;
  check_rows(on, offsets, a);
  if (a.rows * width == 0) return;
  A* const dot = static_cast<A*>(room(a.rows * width * int64_t{sizeof(A)}));
  with_vectors<T>(width, {gy, y, gx}, [&]<int V>(std::integral_constant<int, V>) {
    reduce_rows(on, a, DotOfRow<V, T>{{}, gy, y, dot, width}, width, room);
    map_entries(on, a, SlopeOfEntry<V, T>{{}, gy, y, dot, gx, width}, width, room);
  });
}
template <class U, class Room>
void gather_csr(const Gpu& on, const char* offsets, const CsrView& a, const U* x, U* y, int64_t width,
                const Room& room) {
  check_rows(on, offsets, a);
  with_vectors<U>(width, {x, y}, [&]<int V>(std::integral_constant<int, V>) {
    map_entries(on, a, CopyOfRow<V, U>{{}, x, y, width}, width, room);
  });
}

}  // namespace levin::kernels::gpu

namespace levin::kernels::cpu {
LEVIN_PICK_FLOAT(segment_softmax)
LEVIN_PICK_FLOAT(segment_softmax_backward)

template <class U>
void gather_csr(const Cpu& on, const CsrView& a, const U* x, U* y, int64_t width) {
  each_row_block(on, a, width, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t k = a.crow[i]; k < a.crow[i + 1]; ++k)
        std::memcpy(y + k * width, x + i * width, static_cast<size_t>(width) * sizeof(U));
  });
}
}  // namespace levin::kernels::cpu
#endif

#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Rows are worked on in groups of about so many elements, which lie in the first-level cache.
inline constexpr int64_t kGroupElements = 4096;

// y = x less the largest of its segment, or y = y / the sum of its segment; of the columns of a tile.
template <class Tile, class T>
void shift_segments(const Tile& tile, const int64_t* crow, int64_t begin, int64_t end, const T* x, T* y,
                    int64_t width) {
  using Lanes = typename Tile::Lanes;
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  x += tile.first;
  y += tile.first;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = crow[i], last = crow[i + 1];
    Lanes top[Tile::kCount];
#pragma GCC unroll 8
    for (int n = 0; n < Tile::kCount; ++n) top[n] = Lanes{} + kLowest;
    for (int64_t k = first; k < last; ++k) {
#pragma GCC unroll 8
      for (int n = 0; n < Tile::kCount; ++n) {
        const Lanes v = Tile::load(x + k * width + tile.at(n));
        top[n] = v > top[n] ? v : top[n];
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < Tile::kCount; ++n) top[n] = top[n] == kLowest ? Lanes{} : top[n];
    for (int64_t k = first; k < last; ++k) {
#pragma GCC unroll 8
      for (int n = 0; n < Tile::kCount; ++n)
        Tile::store(y + k * width + tile.at(n), Tile::load(x + k * width + tile.at(n)) - top[n]);
    }
  }
}
template <class Tile, class T>
void scale_segments(const Tile& tile, const int64_t* crow, int64_t begin, int64_t end, T* y, int64_t width) {
  using Lanes = typename Tile::Lanes;
  y += tile.first;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = crow[i], last = crow[i + 1];
    Lanes sum[Tile::kCount] = {};
    for (int64_t k = first; k < last; ++k) {
#pragma GCC unroll 8
      for (int n = 0; n < Tile::kCount; ++n) sum[n] += Tile::load(y + k * width + tile.at(n));
    }
#pragma GCC unroll 8
    for (int n = 0; n < Tile::kCount; ++n) sum[n] = sum[n] == 0 ? Lanes{} : 1 / sum[n];
    for (int64_t k = first; k < last; ++k) {
      Lanes v[Tile::kCount];
#pragma GCC unroll 8
      for (int n = 0; n < Tile::kCount; ++n) v[n] = Tile::load(y + k * width + tile.at(n)) * sum[n];
#pragma GCC unroll 8
      for (int n = 0; n < Tile::kCount; ++n) Tile::store(y + k * width + tile.at(n), v[n]);
    }
  }
}

// f(first row, last row) for groups of the rows [begin, end).
template <class F>
void each_row_group(const int64_t* crow, int64_t begin, int64_t end, int64_t width, const F& f) {
  while (begin < end) {
    int64_t last = begin + 1;
    while (last < end && (crow[last + 1] - crow[begin]) * width <= kGroupElements) ++last;
    f(begin, last);
    begin = last;
  }
}

template <class T>
void segment_softmax(const Cpu& on, const CsrView& s, const T* x, T* y, int64_t width) {
  if (width == 0) return;
  const int64_t* const crow = s.crow;
  each_row_block(on, s, width, [=](int64_t begin, int64_t end) {
    each_row_group(crow, begin, end, width, [=](int64_t first, int64_t last) {
      each_column_tile<T>(width, [&](const auto& tile) { shift_segments(tile, crow, first, last, x, y, width); });
      T* const e = y + crow[first] * width;
      const int64_t n = (crow[last] - crow[first]) * width;
      for (int64_t j = 0; j < n; ++j) e[j] = math::exp_nonpositive(e[j]);
      each_column_tile<T>(width, [&](const auto& tile) { scale_segments(tile, crow, first, last, y, width); });
    });
  });
}

template <class Tile, class T>
void slope_segments(const Tile& tile, const int64_t* crow, int64_t begin, int64_t end, const T* gy, const T* y, T* gx,
                    int64_t width) {
  using Lanes = typename Tile::Lanes;
  gy += tile.first;
  y += tile.first;
  gx += tile.first;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = crow[i], last = crow[i + 1];
    Lanes dot[Tile::kCount] = {};
    for (int64_t k = first; k < last; ++k) {
#pragma GCC unroll 8
      for (int n = 0; n < Tile::kCount; ++n)
        dot[n] += Tile::load(gy + k * width + tile.at(n)) * Tile::load(y + k * width + tile.at(n));
    }
    for (int64_t k = first; k < last; ++k) {
#pragma GCC unroll 8
      for (int n = 0; n < Tile::kCount; ++n) {
        const int64_t at = k * width + tile.at(n);
        Tile::store(gx + at, (Tile::load(gy + at) - dot[n]) * Tile::load(y + at));
      }
    }
  }
}

template <class T>
void segment_softmax_backward(const Cpu& on, const CsrView& s, const T* gy, const T* y, T* gx, int64_t width) {
  const int64_t* const crow = s.crow;
  each_row_block(on, s, width, [=](int64_t begin, int64_t end) {
    each_row_group(crow, begin, end, width, [=](int64_t first, int64_t last) {
      each_column_tile<T>(width, [&](const auto& tile) { slope_segments(tile, crow, first, last, gy, y, gx, width); });
    });
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
