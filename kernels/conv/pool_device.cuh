// The kernels of pool.cuh's functions for devices that launch them. gpu::max_pool and the others take the arguments of
// the CPU's and give its bits: a sum takes its elements in the CPU's order, and no kernel has atomics.
//
// Note [Pooling on a GPU]
// A thread makes several neighbours of a row: 16 bytes of outputs, or for gradients of inputs, over whose windows it
// walks in order. Instructions bound pooling of 16-bit numbers, so indices have 32 bits where a plane allows
// it, and windows of the usual sizes are known to the compiler (KnownWindows): their taps are constants, and where rows
// start at multiples of 16 bytes a row's elements come by vectors. A thread of their gradients makes a patch of rows,
// whose windows it reads once. Other windows of results take a thread an output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/conv/pool.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"

namespace levin::kernels::gpu {

// A quotient as a multiplication: a division of 32 bits takes about twenty instructions, of 64 bits a hundred.
struct Multiplied {
  Divider by;
  __device__ __forceinline__ std::int32_t operator()(std::int32_t n, std::int32_t) const {
    return static_cast<std::int32_t>(by.quotient(static_cast<std::uint32_t>(n)));
  }
  __device__ __forceinline__ std::int64_t operator()(std::int64_t n, std::int64_t) const { return by.quotient(n); }
};
template <class Int>
using PoolWindows = WindowsAlong<Int, Multiplied>;

// Whether 32 bits hold the numbers of an axis.
[[nodiscard]] inline bool is_short(const PoolAxis& a) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (a.in > kMost || a.out > kMost || a.kernel > kMost || a.stride > kMost) return false;
  return !a.adaptive || (a.out + 1) * a.in + a.out < 2 * kMost;
}
template <class Int>
[[nodiscard]] PoolWindows<Int> windows_along(const PoolAxis& a) {
  const auto multiplied = [](std::int64_t divisor) { return Multiplied{Divider(std::max<std::int64_t>(1, divisor))}; };
  return {.in = static_cast<Int>(a.in),
          .out = static_cast<Int>(a.out),
          .kernel = static_cast<Int>(a.kernel),
          .stride = static_cast<Int>(a.stride),
          .padding = static_cast<Int>(a.padding),
          .dilation = static_cast<Int>(a.dilation),
          .adaptive = a.adaptive,
          .count_padding = a.count_padding,
          .by_in = multiplied(a.in),
          .by_out = multiplied(a.out),
          .by_stride = multiplied(a.stride)};
}
// f(h, w) with the windows in the narrowest integers that hold them. 32 bits hold all dilated windows of a plane of at
// most 2^30 elements: check_pool_axis. kMayDilate: whether there may be such windows.
template <bool kMayDilate = false, class F>
void with_windows(const PoolAxis& h, const PoolAxis& w, F&& f) {
  if constexpr (kMayDilate) {
    using Windows = Dilated<PoolWindows<std::int32_t>>;
    if (are_dilated(h, w)) return f(Windows{windows_along<std::int32_t>(h)}, Windows{windows_along<std::int32_t>(w)});
  }
  if (is_short(h) && is_short(w)) return f(windows_along<std::int32_t>(h), windows_along<std::int32_t>(w));
  f(windows_along<std::int64_t>(h), windows_along<std::int64_t>(w));
}

// Square windows whose sizes the compiler knows.
template <int kKernel_, int kStride_, int kPadding_>
struct KnownWindows {
  static constexpr int kKernel = kKernel_, kStride = kStride_, kPadding = kPadding_;
  static_assert(kPadding < kKernel && kKernel <= kStride + kPadding);
  // Windows [o, o + seeing(n)) of an axis see its n inputs from o * kStride on, a multiple of kStride of them.
  static constexpr int seeing(int n) { return (n - 1 + kPadding) / kStride + 1; }
  // Whether window o + t sees input e of them.
  static constexpr bool sees(int t, int e) {
    const int begin = t * kStride - kPadding;
    return e >= begin && e < begin + kKernel;
  }
  // The elements that window o + k of axis a counts, at least 1: also where there is no such window.
  template <class W>
  __device__ __forceinline__ static int count(const W& a, int o, int k) {
    int begin = (o + k) * kStride - kPadding;
    const int end = min(begin + kKernel, a.count_padding ? a.in + kPadding : a.in);
    if (k * kStride < kPadding && !a.count_padding) begin = max(begin, 0);
    return max(end - begin, 1);
  }
  static bool are(const PoolAxis& a) {
    return !a.adaptive && is_short(a) && a.kernel == kKernel && a.stride == kStride && a.padding == kPadding &&
           a.dilation == 1;
  }
};
// f(known) with those that windows h and w are, if they are among the usual ones.
template <class F>
bool with_known_windows(const PoolAxis& h, const PoolAxis& w, F&& f) {
  const auto taken = [&]<class Known>(Known known) {
    if (!Known::are(h) || !Known::are(w)) return false;
    f(known);
    return true;
  };
  return taken(KnownWindows<2, 2, 0>{}) || taken(KnownWindows<3, 2, 1>{});
}

// x / count as x * (1 / count), one instruction of the same bits, where count is a power of two.
template <class A>
struct ByCount {
  A divisor, factor;
  bool is_exact;
  __device__ __forceinline__ explicit ByCount(std::int64_t count)
      : divisor(as_divisor<A>(count)), factor(0), is_exact((count & (count - 1)) == 0) {
    using Word = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
    // The exponent of a power of two, turned around.
    constexpr Word kOne = kernels::bit_cast<Word>(A(1));
    if (is_exact) factor = kernels::bit_cast<A>(static_cast<Word>(2 * kOne - kernels::bit_cast<Word>(divisor)));
  }
  __device__ __forceinline__ A of(A x) const { return is_exact ? x * factor : x / divisor; }
};

// Places of [planes, rows, cols] in a grid-stride loop.
struct PoolPlaces {
  std::int64_t places;
  Divider rows, cols;
  // f(u, plane, row, col) for place u.
  template <class Int, class F>
  __device__ __forceinline__ void each(F&& f) const {
    const std::int64_t step = std::int64_t{blockDim.x} * gridDim.x;
    for (std::int64_t u = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; u < places; u += step) {
      const std::int64_t line = cols.quotient(u), plane = rows.quotient(line);
      f(u, plane, static_cast<Int>(line) - static_cast<Int>(plane) * static_cast<Int>(rows.divisor),
        static_cast<Int>(u) - static_cast<Int>(line) * static_cast<Int>(cols.divisor));
    }
  }
};

// ---- Windows of any size.

template <class T, class W>
__global__ void max_pool_windows(const T* x, PoolPlaces at, W h, W w, T* y, std::int32_t* index) {
  using Int = typename W::Place;
  at.each<Int>([=](std::int64_t u, std::int64_t plane, Int i, Int j) {
    const T* in = x + plane * h.in * w.in;
    const Int place = largest_of_window(in, h, w, i, j);
    y[u] = in[place];
    if (index != nullptr) index[u] = static_cast<std::int32_t>(place);
  });
}

template <class T>
__global__ void max_pool_places(const T* x, const std::int32_t* index, PoolPlaces at, std::int64_t plane_size, T* y) {
  at.each<std::int64_t>(
      [=](std::int64_t u, std::int64_t plane, std::int64_t, std::int64_t) { y[u] = x[plane * plane_size + index[u]]; });
}

template <class T, class W>
__global__ void avg_pool_windows(const T* x, PoolPlaces at, W h, W w, T* y) {
  using Int = typename W::Place;
  at.each<Int>([=](std::int64_t u, std::int64_t plane, Int i, Int j) {
    y[u] = average_of_window(x + plane * h.in * w.in, h, w, i, j);
  });
}

// Elements [first, first + V) of a row of n. vectors: those in the row are multiples of kStored, and aligned to them.
template <int kStored, int V, class T, class A>
__device__ __forceinline__ void put_neighbours(T* row, std::int64_t first, std::int64_t n, bool vectors,
                                               const A (&v)[V]) {
  if (vectors) {
#pragma unroll
    for (int k = 0; k < V; k += kStored) {
      if (k > 0 && first + k >= n) return;
      std::conditional_t<std::is_same_v<T, A>, Vec<T, kStored>, Widened<T, kStored>> some;
#pragma unroll
      for (int e = 0; e < kStored; ++e) some[e] = v[k + e];
      if constexpr (std::is_same_v<T, A>)
        store(row + first + k, some);
      else
        store(row + first + k, narrowed(some));
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < V; ++e)
    if (first + e < n) row[first + e] = T(v[e]);
}

// The gradient of V = kVec<T> neighbouring inputs of a row. cols of `at` are such runs.
template <class T, class W>
__global__ void max_pool_inputs(const T* gy, const std::int32_t* index, PoolPlaces at, W h, W w, bool vectors, T* gx) {
  using Int = typename W::Place;
  constexpr int V = kVec<T>;
  at.each<Int>([=](std::int64_t, std::int64_t plane, Int r, Int run) {
    const Int c0 = run * V, last = c0 + V < w.in ? c0 + V - 1 : w.in - 1;
    const auto place = static_cast<std::int32_t>(r * w.in + c0);
    const Int i1 = h.last_window(r), j0 = w.first_window(c0), j1 = w.last_window(last);
    Accum<T> sum[V] = {};
    for (Int i = h.first_window(r); i <= i1; ++i) {
      const std::int64_t line = (plane * h.out + i) * w.out;
      for (Int j = j0; j <= j1; ++j) {
        const std::int32_t of = index[line + j] - place;
        if (of < 0 || of >= V) continue;
        const auto g = Accum<T>(gy[line + j]);
#pragma unroll
        for (int e = 0; e < V; ++e)
          if (of == e) sum[e] += g;
      }
    }
    put_neighbours<V>(gx + (plane * h.in + r) * w.in, c0, w.in, vectors, sum);
  });
}

template <class T, class W>
__global__ void avg_pool_inputs(const T* gy, PoolPlaces at, W h, W w, bool vectors, T* gx) {
  using Int = typename W::Place;
  constexpr int V = kVec<T>;
  at.each<Int>([=](std::int64_t, std::int64_t plane, Int r, Int run) {
    const Int c0 = run * V, last = c0 + V < w.in ? c0 + V - 1 : w.in - 1;
    const Int i1 = h.last_window(r), j0 = w.first_window(c0), j1 = w.last_window(last);
    Accum<T> sum[V] = {};
    for (Int i = h.first_window(r); i <= i1; ++i) {
      const std::int64_t line = (plane * h.out + i) * w.out;
      for (Int j = j0; j <= j1; ++j) {
        const ByCount<Accum<T>> by(std::int64_t{h.count(i)} * w.count(j));
        const Accum<T> share = by.of(Accum<T>(gy[line + j]));
        const Int begin = w.begin(j) - c0, end = w.end(j) - c0;
#pragma unroll
        for (int e = 0; e < V; ++e)
          if (e >= begin && e < end) sum[e] += share;
      }
    }
    put_neighbours<V>(gx + (plane * h.in + r) * w.in, c0, w.in, vectors, sum);
  });
}

// ---- Known windows.

// kMain elements of a row of n from `first` on, a multiple of kMain, with kLeft before them and kRight after them;
// `fill` outside of the row. kVectors: the row's start and length are multiples of kLoad elements. It is a constant for
// the reason that with_vectors (row.cuh) has.
template <bool kVectors, class T, int kLeft, int kMain, int kRight>
struct Neighbours {
  static constexpr int kLoad = kMain < kVec<T> ? kMain : kVec<T>, kCount = kLeft + kMain + kRight;
  using Loaded = Vec<T, kLoad>;
  using Words = Raw<int(sizeof(Loaded))>;
  T left[kLeft + 1];
  Words main[kMain / kLoad];  // a choice between words costs half of one between pairs of 16-bit numbers, or less
  T right[kRight + 1];

  __device__ __forceinline__ void read(const T* row, int first, int n, T fill) {
    const auto one = [=](int c) { return c >= 0 && c < n ? row[c] : fill; };
#pragma unroll
    for (int k = 0; k < kLeft; ++k) left[k] = one(first - kLeft + k);
#pragma unroll
    for (int k = 0; k < kRight; ++k) right[k] = one(first + kMain + k);
#pragma unroll
    for (int k = 0; k < kMain / kLoad; ++k) {
      const int at = first + k * kLoad;
      Loaded v;
#pragma unroll
      for (int e = 0; e < kLoad; ++e) v[e] = kVectors ? fill : one(at + e);
      main[k] = kernels::bit_cast<Words>(v);
      if constexpr (kVectors) {
        if (at < n) main[k] = kernels::bit_cast<Words>(load<kLoad>(row + at));
      }
    }
  }
  // As numbers to compute with; places stay as they are.
  template <class A>
  __device__ __forceinline__ void put_in(A (&to)[kCount]) const {
#pragma unroll
    for (int k = 0; k < kLeft; ++k) to[k] = A(left[k]);
#pragma unroll
    for (int k = 0; k < kRight; ++k) to[kLeft + kMain + k] = A(right[k]);
#pragma unroll
    for (int k = 0; k < kMain / kLoad; ++k) {
      const auto v = kernels::bit_cast<Loaded>(main[k]);
      if constexpr (std::is_same_v<T, A>) {
#pragma unroll
        for (int e = 0; e < kLoad; ++e) to[kLeft + k * kLoad + e] = v[e];
      } else {
        const auto wide = widened(v);
#pragma unroll
        for (int e = 0; e < kLoad; ++e) to[kLeft + k * kLoad + e] = wide[e];
      }
    }
  }
};

// Outputs that a thread makes, and stores at once.
template <class T>
inline constexpr int kPooled = 16 / int(sizeof(T));
template <class T>
inline constexpr int kPooledStored = sizeof(T) == 8 ? 2 : 4;

// The rows that the windows of kPooled outputs see. A window that reaches over the edge has `fill` there.
template <bool kVectors, class T, class Known>
struct SeenRows {
  static constexpr int V = kPooled<T>, K = Known::kKernel, S = Known::kStride, P = Known::kPadding;
  static constexpr int kMain = V * S, kRight = K - S - P > 0 ? K - S - P : 0;
  using Row = Neighbours<kVectors, T, P, kMain, kRight>;
  Row rows[K];

  template <class W>
  __device__ __forceinline__ SeenRows(const T* in, const W& h, const W& w, int i, int run, T fill) {
#pragma unroll
    for (int t = 0; t < K; ++t) {
      const int r = i * S - P + t;
      rows[t].read(in + r * w.in, run * kMain, r >= 0 && r < h.in ? w.in : 0, fill);
    }
  }
};

template <bool kVectors, class T, class Known, class W>
__global__ void max_pool_known(const T* x, PoolPlaces at, W h, W w, T* y, std::int32_t* index) {
  using A = Accum<T>;
  using Seen = SeenRows<kVectors, T, Known>;
  constexpr int V = Seen::V, K = Seen::K, S = Seen::S, P = Seen::P;
  at.each<int>([=](std::int64_t, std::int64_t plane, int i, int run) {
    const Seen seen(x + plane * h.in * w.in, h, w, i, run, T(-std::numeric_limits<A>::infinity()));
    const int r0 = i * S - P, c0 = run * Seen::kMain - P;
    A best[V];
    std::int32_t place[V];
#pragma unroll
    for (int l = 0; l < V; ++l) {
      best[l] = -std::numeric_limits<A>::infinity();
      place[l] = max(r0, 0) * w.in + max(c0 + l * S, 0);
    }
#pragma unroll
    for (int t = 0; t < K; ++t) {
      A tap[Seen::Row::kCount];
      seen.rows[t].put_in(tap);
      const std::int32_t from = (r0 + t) * w.in + c0;
#pragma unroll
      for (int l = 0; l < V; ++l) {
#pragma unroll
        for (int u = 0; u < K; ++u) {
          const A v = tap[l * S + u];
          const bool takes = v > best[l] || v != v;
          best[l] = takes ? v : best[l];
          place[l] = takes ? from + l * S + u : place[l];
        }
      }
    }
    const std::int64_t line = (plane * h.out + i) * w.out;
    put_neighbours<kPooledStored<T>>(y + line, run * V, w.out, kVectors, best);
    if (index != nullptr) put_neighbours<kPooledStored<T>>(index + line, run * V, w.out, kVectors, place);
  });
}

template <bool kVectors, class T, class Known, class W>
__global__ void avg_pool_known(const T* x, PoolPlaces at, W h, W w, T* y) {
  using A = Accum<T>;
  using Seen = SeenRows<kVectors, T, Known>;
  constexpr int V = Seen::V, K = Seen::K, S = Seen::S;
  at.each<int>([=](std::int64_t, std::int64_t plane, int i, int run) {
    const Seen seen(x + plane * h.in * w.in, h, w, i, run, T(A(0)));
    A sum[V] = {};
#pragma unroll
    for (int t = 0; t < K; ++t) {
      A tap[Seen::Row::kCount];
      seen.rows[t].put_in(tap);
#pragma unroll
      for (int l = 0; l < V; ++l) {
#pragma unroll
        for (int u = 0; u < K; ++u) sum[l] += tap[l * S + u];
      }
    }
    const auto rows = A(Known::count(h, i, 0));
#pragma unroll
    for (int l = 0; l < V; ++l) sum[l] /= rows * A(Known::count(w, run * V, l));
    put_neighbours<kPooledStored<T>>(y + (plane * h.out + i) * w.out, run * V, w.out, kVectors, sum);
  });
}

// Rows of the patch of inputs whose gradient a thread makes, V = kVec<T> neighbours of each. Windows that overlap give
// to several patches; of averages each takes a quotient again.
template <class Known>
inline constexpr int kMaxPatch = Known::kStride;
template <class Known>
inline constexpr int kAvgPatch = (Known::kPadding > 0 ? 2 : 1) * Known::kStride;

// What the windows that see patch n hold of `values`; `fill` of windows that are none.
template <bool kVectors, class T, class S, class Known, int kPatch>
struct SeeingRows {
  static constexpr int V = kVec<T>, kMain = V / Known::kStride, kRight = Known::seeing(V) - kMain;
  static constexpr int kRows = Known::seeing(kPatch), kBetween = kPatch / Known::kStride;  // windows between patches
  using Row = Neighbours<kVectors, S, 0, kMain, kRight>;
  Row rows[kRows];

  template <class W>
  __device__ __forceinline__ SeeingRows(const S* values, const W& h, const W& w, int n, int run, S fill) {
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const int i = n * kBetween + t;
      rows[t].read(values + i * w.out, run * kMain, i < h.out ? w.out : 0, fill);
    }
  }
};
// The rows of patch n that are rows of the plane gx.
template <bool kVectors, int kPatch, class T, class W, class A, int V>
__device__ __forceinline__ void put_patch(T* gx, const W& h, const W& w, int n, int run, const A (&sum)[kPatch][V]) {
#pragma unroll
  for (int d = 0; d < kPatch; ++d) {
    const int r = n * kPatch + d;
    if (r < h.in) put_neighbours<V>(gx + r * w.in, run * V, w.in, kVectors, sum[d]);
  }
}

template <bool kVectors, class T, class Known, class W>
__global__ void max_pool_inputs_known(const T* gy, const std::int32_t* index, PoolPlaces at, W h, W w, T* gx) {
  using A = Accum<T>;
  constexpr int kPatch = kMaxPatch<Known>;
  using Seeing = SeeingRows<kVectors, T, T, Known, kPatch>;
  using Places = SeeingRows<kVectors, T, std::int32_t, Known, kPatch>;
  constexpr int V = Seeing::V, kWindows = Seeing::Row::kCount;
  at.each<int>([=](std::int64_t, std::int64_t plane, int n, int run) {
    const std::int64_t outputs = plane * h.out * w.out;
    const Places places(index + outputs, h, w, n, run, -1);
    const Seeing seeing(gy + outputs, h, w, n, run, T(A(0)));
    const std::int32_t place = n * kPatch * w.in + run * V;
    A sum[kPatch][V] = {};
#pragma unroll
    for (int t = 0; t < Seeing::kRows; ++t) {
      A g[kWindows];
      std::int32_t from[kWindows];
      seeing.rows[t].put_in(g);
      places.rows[t].put_in(from);
#pragma unroll
      for (int d = 0; d < kPatch; ++d) {
        if (!Known::sees(t, d)) continue;
#pragma unroll
        for (int q = 0; q < kWindows; ++q) {
          const std::int32_t of = from[q] - (place + d * w.in);
#pragma unroll
          for (int e = 0; e < V; ++e)
            if (Known::sees(q, e) && of == e) sum[d][e] += g[q];
        }
      }
    }
    put_patch<kVectors>(gx + plane * h.in * w.in, h, w, n, run, sum);
  });
}

template <bool kVectors, class T, class Known, class W>
__global__ void avg_pool_inputs_known(const T* gy, PoolPlaces at, W h, W w, T* gx) {
  using A = Accum<T>;
  constexpr int kPatch = kAvgPatch<Known>;
  using Seeing = SeeingRows<kVectors, T, T, Known, kPatch>;
  constexpr int V = Seeing::V, kWindows = Seeing::Row::kCount;
  at.each<int>([=](std::int64_t, std::int64_t plane, int n, int run) {
    const Seeing seeing(gy + plane * h.out * w.out, h, w, n, run, T(A(0)));
    A cols[kWindows], sum[kPatch][V] = {};
#pragma unroll
    for (int q = 0; q < kWindows; ++q) cols[q] = A(Known::count(w, run * Seeing::kMain, q));
#pragma unroll
    for (int t = 0; t < Seeing::kRows; ++t) {
      A g[kWindows];
      seeing.rows[t].put_in(g);
      const auto rows = A(Known::count(h, n * Seeing::kBetween, t));
#pragma unroll
      for (int q = 0; q < kWindows; ++q) {
        const A share = g[q] / (rows * cols[q]);
#pragma unroll
        for (int d = 0; d < kPatch; ++d) {
#pragma unroll
          for (int e = 0; e < V; ++e)
            if (Known::sees(t, d) && Known::sees(q, e)) sum[d][e] += share;
        }
      }
    }
    put_patch<kVectors>(gx + plane * h.in * w.in, h, w, n, run, sum);
  });
}

// ---- Launches.

// launch(grid, places) for [planes, rows, cols], unless that is empty.
template <class F>
void over_places(std::int64_t planes, std::int64_t rows, std::int64_t cols, F&& launch) {
  constexpr std::int64_t kThreads = 256, kMostBlocks = std::int64_t{1} << 30;
  const std::int64_t places = planes * rows * cols;
  if (places == 0) return;
  const auto blocks = static_cast<unsigned>(std::min((places + kThreads - 1) / kThreads, kMostBlocks));
  launch(Grid{.blocks = blocks, .threads = kThreads}, PoolPlaces{places, Divider(rows), Divider(cols)});
}
[[nodiscard]] inline std::int64_t runs_of(std::int64_t n, std::int64_t v) { return (n + v - 1) / v; }
// Whether rows of n elements start at multiples of 16 bytes.
template <class T>
[[nodiscard]] bool rows_aligned(const T* p, std::int64_t n) {
  return aligned16(p) && n % kVec<T> == 0;
}

// f(known, vectors, h, w) where the windows are among the usual ones, with vectors_of(their stride) as a constant.
template <class V, class F>
bool with_known(const PoolAxis& h, const PoolAxis& w, V&& vectors_of, F&& f) {
  return with_known_windows(h, w, [&]<class Known>(Known known) {
    const auto rows = windows_along<std::int32_t>(h), cols = windows_along<std::int32_t>(w);
    if (vectors_of(Known::kStride))
      f(known, std::true_type{}, rows, cols);
    else
      f(known, std::false_type{}, rows, cols);
  });
}

template <class T>
void max_pool(const Gpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y,
              std::int32_t* index) {
  const auto vectors = [&](int) {
    return rows_aligned(x, w.in) && aligned16(y) && aligned16(index) && w.out % kPooledStored<T> == 0;
  };
  const auto known = [&]<class Known, bool kVectors, class W>(Known, std::bool_constant<kVectors>, const W& rows,
                                                              const W& cols) {
    over_places(planes, h.out, runs_of(w.out, kPooled<T>), [&](const Grid& grid, const PoolPlaces& at) {
      on.launch(max_pool_known<kVectors, T, Known, W>, grid, x, at, rows, cols, y, index);
    });
  };
  if (with_known(h, w, vectors, known)) return;
  over_places(planes, h.out, w.out, [&](const Grid& grid, const PoolPlaces& at) {
    with_windows<true>(h, w, [&]<class W>(const W& rows, const W& cols) {
      on.launch(max_pool_windows<T, W>, grid, x, at, rows, cols, y, index);
    });
  });
}
template <class T>
void max_pool_scatter(const Gpu& on, const T* gy, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                      const PoolAxis& w, T* gx) {
  const auto vectors = [&](int stride) {
    return rows_aligned(gx, w.in) && aligned16(gy) && aligned16(index) && w.out % (kVec<T> / stride) == 0;
  };
  const auto known = [&]<class Known, bool kVectors, class W>(Known, std::bool_constant<kVectors>, const W& rows,
                                                              const W& cols) {
    over_places(planes, runs_of(h.in, kMaxPatch<Known>), runs_of(w.in, kVec<T>), [&](const Grid& grid, const auto& at) {
      on.launch(max_pool_inputs_known<kVectors, T, Known, W>, grid, gy, index, at, rows, cols, gx);
    });
  };
  if (with_known(h, w, vectors, known)) return;
  over_places(planes, h.in, runs_of(w.in, kVec<T>), [&](const Grid& grid, const PoolPlaces& at) {
    with_windows(h, w, [&]<class W>(const W& rows, const W& cols) {
      on.launch(max_pool_inputs<T, W>, grid, gy, index, at, rows, cols, rows_aligned(gx, w.in), gx);
    });
  });
}
template <class T>
void max_pool_gather(const Gpu& on, const T* x, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                     const PoolAxis& w, T* y) {
  over_places(planes, h.out, w.out, [&](const Grid& grid, const PoolPlaces& at) {
    on.launch(max_pool_places<T>, grid, x, index, at, h.in * w.in, y);
  });
}
template <class T>
void avg_pool(const Gpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y) {
  const auto vectors = [&](int) { return rows_aligned(x, w.in) && aligned16(y) && w.out % kPooledStored<T> == 0; };
  const auto known = [&]<class Known, bool kVectors, class W>(Known, std::bool_constant<kVectors>, const W& rows,
                                                              const W& cols) {
    over_places(planes, h.out, runs_of(w.out, kPooled<T>), [&](const Grid& grid, const PoolPlaces& at) {
      on.launch(avg_pool_known<kVectors, T, Known, W>, grid, x, at, rows, cols, y);
    });
  };
  if (with_known(h, w, vectors, known)) return;
  over_places(planes, h.out, w.out, [&](const Grid& grid, const PoolPlaces& at) {
    with_windows(h, w, [&]<class W>(const W& rows, const W& cols) {
      on.launch(avg_pool_windows<T, W>, grid, x, at, rows, cols, y);
    });
  });
}
template <class T>
void avg_pool_backward(const Gpu& on, const T* gy, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* gx) {
  const auto vectors = [&](int stride) {
    return rows_aligned(gx, w.in) && aligned16(gy) && w.out % (kVec<T> / stride) == 0;
  };
  const auto known = [&]<class Known, bool kVectors, class W>(Known, std::bool_constant<kVectors>, const W& rows,
                                                              const W& cols) {
    over_places(planes, runs_of(h.in, kAvgPatch<Known>), runs_of(w.in, kVec<T>), [&](const Grid& grid, const auto& at) {
      on.launch(avg_pool_inputs_known<kVectors, T, Known, W>, grid, gy, at, rows, cols, gx);
    });
  };
  if (with_known(h, w, vectors, known)) return;
  over_places(planes, h.in, runs_of(w.in, kVec<T>), [&](const Grid& grid, const PoolPlaces& at) {
    with_windows(h, w, [&]<class W>(const W& rows, const W& cols) {
      on.launch(avg_pool_inputs<T, W>, grid, gy, at, rows, cols, rows_aligned(gx, w.in), gx);
    });
  });
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::avg_pool, gpu::avg_pool;
using cpu::avg_pool_backward, gpu::avg_pool_backward;
using cpu::max_pool, gpu::max_pool;
using cpu::max_pool_gather, gpu::max_pool_gather;
using cpu::max_pool_scatter, gpu::max_pool_scatter;
}  // namespace levin::kernels
