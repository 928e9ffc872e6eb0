#ifndef LEVIN_KERNELS_SCAN_CUH
#define LEVIN_KERNELS_SCAN_CUH
// Walks along one dimension. x: [outer, n, inner], contiguous.
//
//   arg_extreme<Largest>(on, const T* x, T* values, std::int64_t* indices, outer, n, inner)
//     the largest (smallest) of the n and where it first stands; NaN wins over numbers. values may be null; n >= 1.
//   scan(on, const T* x, const Op& op, outer, n, inner)
//     the results of v at every k, with v = x[0] joined with ... joined with x[k]; the ops stand below.
//   cumsum(on, const T* x, S* y, outer, n, inner)
//     scan by RunningSum; vector code for dense rows of floats.
//   cumprod(on, const T* x, S* y, outer, n, inner)
//     scan by RunningProduct; vector code for dense rows of floats.
//   logcumsumexp(on, const T* x, T* y, outer, n, inner)
//     scan by RunningLogSumExp; vector code for dense rows.
// The gpu functions take one more argument: scratch_of<V>(count) gives room for that many values, asked for at most
// once.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/device/block.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "kernels/math/math.h"
#include "kernels/reduce/extreme_row.cuh"
#include "kernels/reduce/extreme_row_device.cuh"
#include "kernels/reduce/running_log_sums.cuh"
#include "kernels/reduce/running_sums.cuh"
#include "kernels/reduce/scan_rows_device.cuh"
#include "levin/dtype.h"

namespace levin::kernels {

// ---- What a scan joins. join is associative and commutative, and none() leaves the other value as it is.
// each_result(f) calls f(memory, result_of) for each result: memory[place] becomes result_of(value). From kManyRows
// rows on a device is busy although a warp takes a row alone; of fewer, joins one after another are what a scan waits
// for.

// Sums and products of floats are in double, those of integers and bool in 64 bits that wrap around. S: T, or
// std::int64_t for integers and bool.
template <class T>
using Running = std::conditional_t<std::is_integral_v<T>, unsigned long long, double>;

template <class T, class S>
struct RunningSum {
  using Value = Running<T>;
  S* y;
  static constexpr std::int64_t kManyRows = 512;
  LEVIN_HD static Value none() { return Value(0); }
  LEVIN_HD static Value of(T x, std::int64_t) { return Value(x); }
  LEVIN_HD static Value join(Value a, Value b) { return a + b; }
  template <class F>
  LEVIN_HD void each_result(F&& f) const {
    f(y, [](Value v) { return S(v); });
  }
};

template <class T, class S>
struct RunningProduct {
  using Value = Running<T>;
  S* y;
  static constexpr std::int64_t kManyRows = 512;
  LEVIN_HD static Value none() { return Value(1); }
  LEVIN_HD static Value of(T x, std::int64_t) { return Value(x); }
  LEVIN_HD static Value join(Value a, Value b) { return a * b; }
  template <class F>
  LEVIN_HD void each_result(F&& f) const {
    f(y, [](Value v) { return S(v); });
  }
};

// log(e^a + e^b) in double.
template <class T>
struct RunningLogSumExp {
  using Value = double;
  T* y;
  static constexpr std::int64_t kManyRows = 8192;
  LEVIN_HD static Value none() { return math::detail::Limits<double>::inf * -1; }
  LEVIN_HD static Value of(T x, std::int64_t) { return Value(x); }
  LEVIN_HD static Value join(Value a, Value b) { return log_of_sum(a, b); }
  template <class F>
  LEVIN_HD void each_result(F&& f) const {
    f(y, [](Value v) { return T(v); });
  }
};

// The largest (smallest) number and where it last stands; NaN wins over numbers.
template <class T>
struct Standing {
  Compared<T> value;
  long long place;  // -1: none
};
template <bool kLargest, class T>
struct RunningExtreme {
  using Value = Standing<T>;
  T* values;
  std::int64_t* indices;
  static constexpr std::int64_t kManyRows = 512;
  LEVIN_HD static Value none() { return {Compared<T>(0), -1}; }
  LEVIN_HD static Value of(T x, std::int64_t k) { return {static_cast<Compared<T>>(x), k}; }
  LEVIN_HD static Value join(Value a, Value b) {
    if (a.place < 0) return b;
    if (b.place < 0) return a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (a_nan || a.value == b.value) return a.place > b.place ? a : b;
    return (kLargest ? a.value > b.value : a.value < b.value) ? a : b;
  }
  // join(all, of(x, k)) for a k behind all others. Elements seldom take the place, which a branch can foresee; so none
  // waits for the one before it.
  LEVIN_HD static void take(Value& all, T x, std::int64_t k) {
    const auto v = static_cast<Compared<T>>(x);
    if (__builtin_expect(all.place < 0 || (kLargest ? v >= all.value : v <= all.value) || v != v, 0)) all = {v, k};
  }
  template <class F>
  LEVIN_HD void each_result(F&& f) const {
    f(values, [](Value v) { return static_cast<T>(v.value); });
    f(indices, [](Value v) { return std::int64_t{v.place}; });
  }
};

// all becomes all joined with x, the k-th of its row, which stands behind all others.
template <class Op, class T>
LEVIN_HD void join_next(typename Op::Value& all, T x, std::int64_t k) {
  if constexpr (requires { Op::take(all, x, k); })
    Op::take(all, x, k);
  else
    all = Op::join(all, Op::of(x, k));
}
// The results of v at a place.
template <class Op>
LEVIN_HD void put(const Op& op, std::int64_t place, const typename Op::Value& v) {
  op.each_result([&](auto* y, auto result_of) { y[place] = result_of(v); });
}

}  // namespace levin::kernels

namespace levin::kernels::cpu {

namespace scan_detail {
inline constexpr std::int64_t kTile = 256;  // columns walked together
inline constexpr std::int64_t kTaskElements = 32 * 1024;

// Dense rows of a task.
inline std::int64_t rows_at_once(std::int64_t n) {
  constexpr std::int64_t kElements = 8 * 1024;
  return std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, n));
}

template <bool kLargest, class A>
LEVIN_HD bool is_better(A a, A b) {
  return (kLargest ? a > b : a < b) | ((a != a) & (b == b));
}

// body(outer index, first column, columns) over tiles of the columns.
template <class F>
void each_tile(const Cpu& on, std::int64_t outer, std::int64_t n, std::int64_t inner, const F& body) {
  const std::int64_t tiles = (inner + kTile - 1) / kTile;
  const std::int64_t work = std::max<std::int64_t>(1, n * std::min(inner, kTile));
  on.parallel_for(outer * tiles, std::max<std::int64_t>(1, kTaskElements / work),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      const std::int64_t first = t % tiles * kTile;
                      body(t / tiles, first, std::min(kTile, inner - first));
                    }
                  });
}
}  // namespace scan_detail

template <bool kLargest, class T>
void arg_extreme(const Cpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t outer, std::int64_t n,
                 std::int64_t inner) {
  using A = std::conditional_t<std::is_integral_v<T>, T, Accum<T>>;
  scan_detail::each_tile(on, outer, n, inner, [&](std::int64_t o, std::int64_t first, std::int64_t width) {
    A best[scan_detail::kTile];
    std::int64_t at[scan_detail::kTile];
    const T* from = x + o * n * inner + first;
    constexpr bool kByVectors = std::is_same_v<T, float> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
    if (kByVectors && inner == 1) {
      if constexpr (kByVectors) at[0] = extreme_of_row<std::bool_constant<kLargest>>(on, from, n);
    } else if (width == 1) {
      A top = A(from[0]);
      std::int64_t where = 0;
      for (std::int64_t k = 1; k < n; ++k) {
        const A v = A(from[k * inner]);
        if (scan_detail::is_better<kLargest>(v, top)) top = v, where = k;
      }
      at[0] = where;
    } else {
      for (std::int64_t j = 0; j < width; ++j) best[j] = A(from[j]), at[j] = 0;
      for (std::int64_t k = 1; k < n; ++k) {
        const T* row = from + k * inner;
        for (std::int64_t j = 0; j < width; ++j) {
          const A v = A(row[j]);
          const bool better = scan_detail::is_better<kLargest>(v, best[j]);
          best[j] = better ? v : best[j];
          at[j] = better ? k : at[j];
        }
      }
    }
    for (std::int64_t j = 0; j < width; ++j) {
      indices[o * inner + first + j] = at[j];
      if (values) values[o * inner + first + j] = from[at[j] * inner + j];
    }
  });
}

// all becomes all joined with the number at `place`, the k-th of its row, and is put there.
template <class T, class Op>
void scan_step(const T* x, const Op& op, std::int64_t place, std::int64_t k, typename Op::Value& all) {
  join_next<Op>(all, x[place], k);
  put(op, place, all);
}

// The scans of dense rows: of four side by side, because a join waits for the one before it.
template <class T, class Op>
void scan_rows(const T* x, const Op& op, std::int64_t rows, std::int64_t first, std::int64_t n) {
  std::int64_t at = first * n, left = rows;
  for (; left >= 4; left -= 4, at += 4 * n) {
    auto a = Op::none(), b = a, c = a, d = a;  // an array would live in memory
    for (std::int64_t k = 0; k < n; ++k) {
      scan_step(x, op, at + k, k, a);
      scan_step(x, op, at + n + k, k, b);
      scan_step(x, op, at + 2 * n + k, k, c);
      scan_step(x, op, at + 3 * n + k, k, d);
    }
  }
  for (; left > 0; --left, at += n) {
    auto all = Op::none();
    for (std::int64_t k = 0; k < n; ++k) scan_step(x, op, at + k, k, all);
  }
}

template <class T, class Op>
void scan(const Cpu& on, const T* x, const Op& op, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  using Value = typename Op::Value;
  if (inner == 1) {
    on.parallel_for(outer, scan_detail::rows_at_once(n),
                    [=](std::int64_t begin, std::int64_t end) { scan_rows(x, op, end - begin, begin, n); });
    return;
  }
  scan_detail::each_tile(on, outer, n, inner, [&](std::int64_t o, std::int64_t first, std::int64_t width) {
    const std::int64_t start = o * n * inner + first;
    Value all[scan_detail::kTile];
    std::fill_n(all, width, Op::none());
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t row = start + k * inner;
      for (std::int64_t j = 0; j < width; ++j) {
        all[j] = Op::join(all[j], Op::of(x[row + j], k));
        put(op, row + j, all[j]);
      }
    }
  });
}

template <class T, class S>
void cumsum(const Cpu& on, const T* x, S* y, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  if constexpr (std::is_same_v<T, S> &&
                (std::is_same_v<T, float> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>)) {
    if (inner == 1) {
      on.parallel_for(outer, scan_detail::rows_at_once(n), [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t o = begin; o < end; ++o) running_sums(on, x + o * n, y + o * n, n);
      });
      return;
    }
  }
  scan(on, x, RunningSum<T, S>{y}, outer, n, inner);
}

template <class T, class S>
void cumprod(const Cpu& on, const T* x, S* y, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  if constexpr (std::is_same_v<T, S> && (std::is_same_v<T, float> || sizeof(T) == 2)) {
    if (inner == 1) {
      on.parallel_for(outer, scan_detail::rows_at_once(n), [=](std::int64_t begin, std::int64_t end) {
        running_products(on, x + begin * n, y + begin * n, end - begin, n);
      });
      return;
    }
  }
  scan(on, x, RunningProduct<T, S>{y}, outer, n, inner);
}

// gx[k] = h[k] x[0] ... x[k-1] with h[k] = gy[k] + x[k+1] h[k+1]: no quotient, so it holds where elements are 0.
template <class T>
void cumprod_backward(const Cpu& on, const T* gy, const T* x, T* gx, std::int64_t outer, std::int64_t n,
                      std::int64_t inner) {
  using A = Accum<T>;
  // Chains of products run beside each other, of lines that are brought together first: lines that lie a power of two
  // apart would meet in few sets of a cache.
  constexpr std::int64_t kLines = 8;
  const std::int64_t lines = outer * inner, groups = (lines + kLines - 1) / kLines;
  on.parallel_for(groups, std::max<std::int64_t>(1, 2048 / n), [&](std::int64_t begin, std::int64_t end) {
    const lib::Scratch memory(static_cast<std::size_t>(2 * n * kLines) * sizeof(A));
    A *const h = memory.as<A>(), *const factor = h + n * kLines;
    std::fill_n(h, 2 * n * kLines, A(0));  // the last lines may be fewer
    for (std::int64_t group = begin; group < end; ++group) {
      const std::int64_t first = group * kLines, count = std::min(kLines, lines - first);
      std::int64_t at[kLines];
      for (std::int64_t l = 0; l < count; ++l) at[l] = (first + l) / inner * n * inner + (first + l) % inner;
      // (element in memory, its place in a buffer), in the order of memory
      const auto each = [&](const auto& body) {
        if (inner == 1) {
          for (std::int64_t l = 0; l < count; ++l)
            for (std::int64_t k = 0; k < n; ++k) body(at[l] + k, k * kLines + l);
        } else {
          for (std::int64_t k = 0; k < n; ++k)
            for (std::int64_t l = 0; l < count; ++l) body(at[l] + k * inner, k * kLines + l);
        }
      };
      each([&](std::int64_t from, std::int64_t to) {
        h[to] = A(gy[from]);
        factor[to] = A(x[from]);
      });
      A state[kLines] = {};
      for (std::int64_t k = n - 1; k >= 0; --k) {
        A* const sum = h + k * kLines;
        const A* const by = factor + k * kLines;
        for (std::int64_t l = 0; l < kLines; ++l) {
          sum[l] += state[l];
          state[l] = by[l] * sum[l];
        }
      }
      for (std::int64_t l = 0; l < kLines; ++l) state[l] = A(1);
      for (std::int64_t k = 0; k < n; ++k) {
        A* const sum = h + k * kLines;
        const A* const by = factor + k * kLines;
        for (std::int64_t l = 0; l < kLines; ++l) {
          sum[l] *= state[l];
          state[l] *= by[l];
        }
      }
      each([&](std::int64_t to, std::int64_t from) { gx[to] = T(h[from]); });
    }
  });
}

template <class T>
void logcumsumexp(const Cpu& on, const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner) {
  if (inner != 1) return scan(on, x, RunningLogSumExp<T>{y}, outer, n, inner);
  on.parallel_for(outer, scan_detail::rows_at_once(n), [=](std::int64_t begin, std::int64_t end) {
    running_log_sums(on, x + begin * n, y + begin * n, end - begin, n);
  });
}

}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// A block of kWalkThreads threads walks `across` neighbouring lines (outputs of the walk) with `down` threads along n
// each. Threads that are neighbours read neighbours: along n when inner is 1, else along inner. Few and long lines are
// cut into chunks, by the shape alone.
inline constexpr int kWalkThreads = 256;
struct Walk {
  std::int64_t lines, n, inner;
  std::int64_t chunks = 1, per_chunk = 0;
  int across = 1, down = kWalkThreads;

  Walk(std::int64_t outer, std::int64_t n_, std::int64_t inner_, std::int64_t per_thread)
      : lines(outer * inner_), n(n_), inner(inner_) {
    constexpr std::int64_t kBlocks = 132 * 8;  // that run together on an H200
    if (inner > 1) {
      across = 32;
      while (across < kWalkThreads && lines >= kBlocks * across) across *= 2;
    } else {
      while (across < kWalkThreads && (kWalkThreads / across) * per_thread >= 2 * n) across *= 2;
    }
    down = kWalkThreads / across;
    const std::int64_t blocks = (lines + across - 1) / across, least = down * per_thread * 4;
    if (blocks > 0 && blocks < kBlocks / 2) {
      chunks = std::min(kBlocks / blocks, std::max<std::int64_t>(1, n / least));
    }
    per_chunk = (n + chunks - 1) / chunks;
    chunks = per_chunk > 0 ? (n + per_chunk - 1) / per_chunk : 1;
  }
  [[nodiscard]] Grid grid() const {
    const std::int64_t blocks = (lines + across - 1) / across * chunks;
    return {.blocks = static_cast<unsigned>(std::min(blocks, std::int64_t{1} << 30)), .threads = kWalkThreads};
  }

  // The place of the calling thread in block t of the walk.
  struct Place {
    std::int64_t line, chunk, start;  // start: of the line's first element
    int row, column;
    bool inside;
  };
  // Values of one thread each: those of a line stand side by side where its threads do.
  template <class V>
  struct Shared {
    V* first;
    int step;
    __device__ V& operator[](int row) const { return first[row * step]; }
  };
  template <class V>
  __device__ Shared<V> shared(V* scratch, const Place& at) const {
    return inner == 1 ? Shared<V>{scratch + at.column * down, 1} : Shared<V>{scratch + at.column, across};
  }
  __device__ Place place(std::int64_t t) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = inner == 1 ? thread % down : thread / across;
    const int column = inner == 1 ? thread / down : thread % across;
    const std::int64_t chunk = t % chunks, line = t / chunks * across + column;
    const std::int64_t o = inner == 1 ? line : line / inner;
    return {line, chunk, o * n * inner + (line - o * inner), row, column, line < lines};
  }
  __device__ std::int64_t blocks() const { return (lines + across - 1) / across * chunks; }
};

// The best of a chunk of each line. kListed: of those at the places from[line, n] in x's lines (of full_n elements), in
// order. parts: [lines, chunks] places; where it is null, values (may be null) and indices are written.
template <bool kLargest, bool kListed, class T>
__global__ void __launch_bounds__(kWalkThreads)
    walk_extreme(const T* x, Walk walk, std::int64_t full_n, const std::int64_t* from, std::int64_t* parts, T* values,
                 std::int64_t* indices) {
  using A = Compared<T>;
  using Best = Indexed<A>;
  LEVIN_SHARED(Best, scratch, kWalkThreads);
  const Earlier<std::conditional_t<kLargest, Larger, Smaller>> better;
  using Limits = std::numeric_limits<A>;
  constexpr A kLowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  constexpr A kHighest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  for (std::int64_t t = blockIdx.x; t < walk.blocks(); t += gridDim.x) {
    const Walk::Place at = walk.place(t);
    // Loses against every element: its index is the highest.
    Best best{kLargest ? kLowest : kHighest, std::numeric_limits<long long>::max()};
    const std::int64_t o = at.line / walk.inner, start = o * full_n * walk.inner + (at.line - o * walk.inner);
    if (at.inside) {
      const auto place = [&](std::int64_t k) { return kListed ? from[at.line * walk.n + k] : k; };
      const std::int64_t last = (at.chunk + 1) * walk.per_chunk, end = last < walk.n ? last : walk.n;
      std::int64_t k = at.chunk * walk.per_chunk + at.row;
      const std::int64_t step = walk.down * walk.inner;
      const T* next = x + start + k * walk.inner;  // the element k where none are listed
      // Takes the best of N elements from k on. They come in order, so the first of equal ones stays.
      const auto take = [&]<int N>(std::integral_constant<int, N>) {
        T v[N];
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = kListed ? x[start + place(k + j * walk.down) * walk.inner] : next[j * step];
        int taken = -1;  // shorter than a place
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const A wide = static_cast<A>(v[j]), top = best.value;
          // A NaN is neither above nor below.
          if (!(kLargest ? wide <= top : wide >= top) && top == top) best.value = wide, taken = j;
        }
        if (taken >= 0) best.index = place(k + taken * walk.down);
        k += N * walk.down;
        next += N * step;
      };
      if (k < end) best.index = place(k);  // of a thread's elements the first, unless another one is better
      while (k + 3 * walk.down < end) take(std::integral_constant<int, 4>{});
      while (k < end) take(std::integral_constant<int, 1>{});
    }
    const auto mine = walk.shared(scratch, at);
    mine[at.row] = best;
    __syncthreads();
    for (int half = walk.down / 2; half > 0; half /= 2) {
      if (at.row < half) mine[at.row] = better(mine[at.row], mine[at.row + half]);
      __syncthreads();
    }
    if (at.row == 0 && at.inside) {
      const std::int64_t k = mine[0].index;
      if (parts) {
        parts[at.line * walk.chunks + at.chunk] = k;
      } else {
        indices[at.line] = k;
        if (values) values[at.line] = x[start + k * walk.inner];
      }
    }
    __syncthreads();
  }
}

template <bool kLargest, class T, class F>
void arg_extreme(const Gpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t outer, std::int64_t n,
                 std::int64_t inner, F&& scratch_of) {
  const Walk walk(outer, n, inner, 4);
  if (inner == 1 && walk.chunks == 1 && n >= kLeastChunks * kVec<T>)
    return extremes_of_rows<kLargest>(on, x, values, indices, outer, n);
  const std::int64_t* all = nullptr;
  std::int64_t* parts =
      walk.chunks > 1 ? scratch_of.template operator()<std::int64_t>(walk.lines * walk.chunks) : nullptr;
  on.launch(walk_extreme<kLargest, false, T>, walk.grid(), x, walk, n, all, parts, values, indices);
  if (!parts) return;
  Walk join(outer, walk.chunks, inner, 4);
  join.chunks = 1;
  join.per_chunk = join.n;
  std::int64_t* none = nullptr;
  on.launch(walk_extreme<kLargest, true, T>, join.grid(), x, join, n, parts, none, values, indices);
}

// The scan of a chunk of each line. A thread takes kRun elements that follow each other, the threads of a line join
// what stands before them, and the last one's total enters the next tile. kTotals: only totals[line, chunk] is written;
// else totals (null for one chunk) are those of all chunks, and what stands before this one is joined first.
inline constexpr int kRun = 4;
template <bool kTotals, class T, class Op>
__global__ void __launch_bounds__(kWalkThreads) walk_scan(const T* x, Walk walk, typename Op::Value* totals, Op op) {
  using Value = typename Op::Value;
  LEVIN_SHARED(Value, scratch, kWalkThreads);
  for (std::int64_t t = blockIdx.x; t < walk.blocks(); t += gridDim.x) {
    const Walk::Place at = walk.place(t);
    const auto mine = walk.shared(scratch, at);
    // One value a thread of the line, joined in pairs.
    const auto total_of = [&](Value v) {
      mine[at.row] = v;
      __syncthreads();
      for (int half = walk.down / 2; half > 0; half /= 2) {
        if (at.row < half) mine[at.row] = Op::join(mine[at.row], mine[at.row + half]);
        __syncthreads();
      }
      v = mine[0];
      __syncthreads();
      return v;
    };
    const std::int64_t begin = at.chunk * walk.per_chunk, last = begin + walk.per_chunk;
    const std::int64_t end = last < walk.n ? last : walk.n;
    Value before = Op::none();
    if (kTotals || totals) {
      if constexpr (kTotals) {
        const std::int64_t step = walk.down * walk.inner, stop = at.inside ? end : begin;
        std::int64_t k = begin + at.row;
        const T* from = x + at.start + k * walk.inner;
        for (; k + 3 * walk.down < stop; k += 4 * walk.down, from += 4 * step) {
          T four[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) four[j] = from[j * step];
#pragma unroll
          for (int j = 0; j < 4; ++j) join_next<Op>(before, four[j], k + j * walk.down);
        }
        for (; k < stop; k += walk.down, from += step) join_next<Op>(before, *from, k);
      } else if (at.inside) {
        for (std::int64_t c = at.row; c < at.chunk; c += walk.down)
          before = Op::join(before, totals[at.line * walk.chunks + c]);
      }
      before = total_of(before);
    }
    if constexpr (kTotals) {
      if (at.inside && at.row == 0) totals[at.line * walk.chunks + at.chunk] = before;
    } else {
      for (std::int64_t first = begin; first < end; first += std::int64_t{kRun} * walk.down) {
        const std::int64_t k = first + std::int64_t{kRun} * at.row;
        Value run[kRun], all = Op::none();
#pragma unroll
        for (int j = 0; j < kRun; ++j)
          run[j] = at.inside && k + j < end ? Op::of(x[at.start + (k + j) * walk.inner], k + j) : Op::none();
#pragma unroll
        for (int j = 0; j < kRun; ++j) run[j] = all = Op::join(all, run[j]);
        // mine[row] becomes the runs 0 to row, joined.
        mine[at.row] = all;
        __syncthreads();
        for (int apart = 1; apart < walk.down; apart *= 2) {
          const Value left = at.row >= apart ? mine[at.row - apart] : Op::none();
          __syncthreads();
          if (at.row >= apart) mine[at.row] = Op::join(left, mine[at.row]);
          __syncthreads();
        }
        const Value base = at.row > 0 ? Op::join(before, mine[at.row - 1]) : before;
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          if (at.inside && k + j < end) put(op, at.start + (k + j) * walk.inner, Op::join(base, run[j]));
        }
        before = Op::join(before, mine[walk.down - 1]);
        __syncthreads();
      }
    }
  }
}

template <class T, class Op, class F>
void scan(const Gpu& on, const T* x, const Op& op, std::int64_t outer, std::int64_t n, std::int64_t inner,
          F&& scratch_of) {
  using Value = typename Op::Value;
  static_assert(sizeof(Value) % sizeof(std::int64_t) == 0);
  const Walk walk(outer, n, inner, kRun);
  if (inner == 1 && walk.chunks == 1 && scans_rows(x, op, outer, n)) return scan_rows(on, x, op, outer, n);
  Value* totals = nullptr;
  if (walk.chunks > 1) {
    constexpr std::int64_t kWords = sizeof(Value) / sizeof(std::int64_t);
    totals = reinterpret_cast<Value*>(scratch_of.template operator()<std::int64_t>(walk.lines * walk.chunks * kWords));
    on.launch(walk_scan<true, T, Op>, walk.grid(), x, walk, totals, op);
  }
  on.launch(walk_scan<false, T, Op>, walk.grid(), x, walk, totals, op);
}

template <class T, class S, class F>
void cumsum(const Gpu& on, const T* x, S* y, std::int64_t outer, std::int64_t n, std::int64_t inner, F&& scratch_of) {
  scan(on, x, RunningSum<T, S>{y}, outer, n, inner, scratch_of);
}
template <class T, class S, class F>
void cumprod(const Gpu& on, const T* x, S* y, std::int64_t outer, std::int64_t n, std::int64_t inner, F&& scratch_of) {
  scan(on, x, RunningProduct<T, S>{y}, outer, n, inner, scratch_of);
}
template <class T, class F>
void logcumsumexp(const Gpu& on, const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner,
                  F&& scratch_of) {
  scan(on, x, RunningLogSumExp<T>{y}, outer, n, inner, scratch_of);
}

}  // namespace levin::kernels::gpu
#endif
