#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_NORM_CUH
#define LEVIN_KERNELS_NORM_CUH
// Layer and RMS norm. T: type of x, y and their gradients (float, double, f16, bf16); W: type of the
// parameters and running statistics, T or float; A = Accum<T>: sums and saved statistics. All tensors contiguous. Every
// sum has a fixed order for any number of threads. w and b may be null (1 and 0); gx, gw, gb may be null (not
// wanted; what is wanted is overwritten, not added to). Sizes may be zero. Pass typed null pointers. On devices x and
// gx may have 16 bits where y and gy are float: the bits are those of a float kernel between conversions.
//
// Over the last dimension, x, y, gy, gx: [rows, cols]; w, b, gw, gb: [cols]; mean, rstd: [rows]:
//   layer_norm(on, const T* x, const W* w, const W* b, T* y, A* mean, A* rstd, rows, cols, double eps)
//     y = (x - mean) * rstd * w + b,  rstd = 1 / sqrt(variance + eps), biased variance
//   layer_norm_backward(on, const T* gy, const T* x, const W* w, const A* mean, const A* rstd, T* gx, W* gw, W* gb,
//                       rows, cols)
//   rms_norm(on, const T* x, const W* w, T* y, A* rstd, rows, cols, double eps)     y = x / sqrt(mean(x^2) + eps) * w
//   rms_norm_backward(on, const T* gy, const T* x, const W* w, const A* rstd, T* gx, W* gw, rows, cols)
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/device/row.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "kernels/math/math.h"
#include "kernels/reduce/row_sums.cuh"

#define LEVIN_LEVEL_FILE "kernels/norm/norm.cuh"
#include "kernels/executor/each_level.h"

#include "kernels/executor/pick_halves.h"

namespace levin::kernels::gpu {

// y = (x - mean) * rstd * w + b for row r, of which this thread has a part (RowPart); RMS norm has no mean. The row is
// read once where it fits on the chip, and the variance is taken around the mean.
template <bool kCentered, int kThreads, class Part, class A, class Y>
__device__ __forceinline__ void norm_row(const Part& row, const A* w, const A* b, Y* y, A* mean, A* rstd,
                                         std::int64_t r, std::int64_t cols, A eps, const RowPlan& plan) {
  using T = typename Part::Number;
  using Of = Team<kThreads>;
  constexpr int V = kVec<T>;
  A own = 0, mu = 0;
  each_first(row, [&](std::int64_t, const Vec<T>& chunk) {
    const auto v = widened(chunk);
#pragma unroll
    for (int j = 0; j < V; ++j) own += kCentered ? v[j] : v[j] * v[j];
  });
  if constexpr (kCentered) {
    mu = Of::reduce(own, Plus{}) / A(cols);
    own = 0;
    each_chunk<kThreads>(plan, [&](std::int64_t c) {
      const auto v = widened(row.again(c));
      const int count = plan.vectors ? V : static_cast<int>(cols - c * V);
      if (count >= V) {
#pragma unroll
        for (int j = 0; j < V; ++j) own += (v[j] - mu) * (v[j] - mu);
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) own += j < count ? (v[j] - mu) * (v[j] - mu) : A(0);
      }
    });
  }
  const A scale = math::rsqrt(Of::reduce(own, Plus{}) / A(cols) + eps);
  if (Of::rank() == 0) {
    if constexpr (kCentered) mean[r] = mu;
    rstd[r] = scale;
  }
  each_chunk<kThreads>(plan, [&](std::int64_t c) {
    const Parameters<V, A> weight(w, c * V, cols, plan.vectors, A(1)), bias(b, c * V, cols, plan.vectors, A(0));
    auto v = widened(row.again(c));
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = (v[j] - mu) * scale * weight.v[j] + bias.v[j];
    write_chunk(y, c * V, cols, plan.vectors, narrowed(v));
  });
}
template <bool kCentered, class T, class S, int kThreads>
__global__ __launch_bounds__(Team<kThreads>::kBlock) void norm_rows(const S* x, const Accum<T>* w, const Accum<T>* b,
                                                                    T* y, Accum<T>* mean, Accum<T>* rstd,
                                                                    std::int64_t rows, std::int64_t cols, Accum<T> eps,
                                                                    RowPlan plan) {
  using Of = Team<kThreads>;
  LEVIN_SHARED_DYNAMIC(Vec<T>, shared);
  for (std::int64_t r = std::int64_t{blockIdx.x} * Of::kRows + Of::row(); r < rows;
       r += std::int64_t{gridDim.x} * Of::kRows) {
    const RowPart<T, kThreads, S> row(x + r * cols, cols, plan, shared + Of::row() * plan.chunks);
    norm_row<kCentered, kThreads>(row, w, b, y + r * cols, mean, rstd, r, cols, eps, plan);
  }
}

template <class A>
struct Pair {
  A a, b;
};
template <class A>
__device__ __forceinline__ Pair<A> from_lane_xor(Pair<A> x, int lanes) {
  return {from_lane_xor(x.a, lanes), from_lane_xor(x.b, lanes)};
}
struct PlusPair {
  template <class A>
  __device__ __forceinline__ Pair<A> operator()(Pair<A> x, Pair<A> y) const {
    return {x.a + y.a, x.b + y.b};
  }
};

// Note [Column sums beside row sums]
// The backward of a row norm reduces along rows for gx and along columns for gw and gb, from the same inputs. A fixed
// number of blocks goes over the rows; each keeps its column sums in shared memory, where a column belongs to one
// thread (of a warp, which has sums of its own), so nothing waits; in the end each block leaves one row of sums in
// `parts`, and norm_columns adds these in their order. Only columns too many for shared memory are summed in `parts`
// itself.
//
// A row of sums is [2, V / N, chunks, N] for gw and gb, N numbers being 16 bytes: a warp's accesses then lie together.
template <class T>
struct ColumnSums {
  using A = Accum<T>;
  static constexpr int V = kVec<T>, N = kVec<A>, kPieces = V / N;
  static __host__ __device__ std::int64_t size(std::int64_t chunks) { return 2 * V * chunks; }
  static __device__ std::int64_t place(std::int64_t chunks, int which, std::int64_t column) {
    const std::int64_t chunk = column / V;
    const int j = static_cast<int>(column - chunk * V);
    return ((which * kPieces + j / N) * chunks + chunk) * N + j % N;
  }
  static __device__ __forceinline__ void add(A* sums, std::int64_t chunks, std::int64_t chunk, int which,
                                             const A (&x)[V]) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      A* const p = sums + ((which * kPieces + k) * chunks + chunk) * N;
      Vec<A> s = load<N>(p);
#pragma unroll
      for (int j = 0; j < N; ++j) s[j] += x[k * N + j];
      store(p, s);
    }
  }
};
struct BackwardPlan {
  RowPlan rows;
  bool sums = false;         // gw or gb is wanted
  bool sums_inside = false;  // in shared memory
  unsigned blocks = 0, shared = 16;
};
// Chunks of each row that norm_rows_backward has in flight, and its blocks that share a processor. A row of float that
// a warp takes has many chunks, and its shared memory lets few blocks work at once: a thread has up to 128 registers,
// for four chunks. Else it has up to 85. More chunks of double would not fit.
template <class T, int kThreads>
inline constexpr bool kFewBlocks = std::is_same_v<T, float>&& kThreads == 32;
template <class T, int kThreads>
inline constexpr int kNormAhead = kFewBlocks<T, kThreads> ? 4
                                  : sizeof(T) == 8        ? 1
                                                          : 2;
template <class T, int kThreads>
inline constexpr int kNormBlocks = (kFewBlocks<T, kThreads> ? 512 : 768) / Team<kThreads>::kBlock;
template <class T, int kThreads>
inline constexpr int kNormBound = sizeof(T) == 8 ? 0 : kNormBlocks<T, kThreads>;  // of double ptxas would spill
inline constexpr std::int64_t kMultiprocessors = 132;  // of an H200; elsewhere the work is dealt out less evenly
template <class T, int kThreads>
[[nodiscard]] BackwardPlan plan_backward(std::int64_t rows, std::int64_t cols, bool sums,
                                         std::initializer_list<const void*> pointers) {
  using Of = Team<kThreads>;
  BackwardPlan plan{.rows = plan_rows<T, kThreads>(cols, 2, pointers), .sums = sums};
  const std::int64_t kept = plan.rows.chunks * 16 * 2 * Of::kRows,
                     parts = ColumnSums<T>::size(plan.rows.chunks) * std::int64_t{sizeof(Accum<T>)} * Of::kRows;
  plan.sums_inside = sums && parts <= kMostKeptBytes;
  if (plan.sums_inside) plan.rows.keeps = kept + parts <= kMostKeptBytes;
  const std::int64_t shared = (plan.rows.keeps ? kept : 0) + (plan.sums_inside ? parts : 0);
  plan.shared = static_cast<unsigned>(std::max<std::int64_t>(shared, 16));
  // All blocks work at once: those of a second wave would work alone.
  const std::int64_t at_once = std::clamp<std::int64_t>(kMostKeptBytes / plan.shared, 1, kNormBlocks<T, kThreads>);
  plan.blocks = static_cast<unsigned>(std::min((rows + Of::kRows - 1) / Of::kRows, kMultiprocessors * at_once));
  return plan;
}

// Where a row's gradient goes: to memory that may be null.
template <class T, class S>
struct PlainGradient {
  using Of = T;  // the type of y's gradient
  S* gx;
  __device__ __forceinline__ bool wanted() const { return gx != nullptr; }
  struct More {};  // what put() adds, read from memory
  __device__ __forceinline__ More more(std::int64_t, std::int64_t, std::int64_t, bool) const { return {}; }
  __device__ __forceinline__ void put(std::int64_t row, std::int64_t i, std::int64_t cols, bool vectors,
                                      const Vec<T>& v, More) const {
    write_chunk(gx + row * cols, i, cols, vectors, v);
  }
};
// To x and r, of which the norm's input is the sum, with the sum's own gradient gh. Either may be null.
template <class X, class R>
struct SumGradient {
  using Of = R;
  const X* gh;
  X* gx;
  R* gr;
  __device__ __forceinline__ bool wanted() const { return gx != nullptr || gr != nullptr; }
  using More = Vec<X>;
  __device__ __forceinline__ More more(std::int64_t row, std::int64_t i, std::int64_t cols, bool vectors) const {
    return read_chunk<X>(gh + row * cols, i, cols, vectors, X(0.0f));
  }
  __device__ __forceinline__ void put(std::int64_t row, std::int64_t i, std::int64_t cols, bool vectors, Vec<X> v,
                                      const More& also) const {
    auto sum = widened(v);
    const auto more = widened(also);
#pragma unroll
    for (int j = 0; j < kVec<X>; ++j) sum[j] += more[j];
    v = narrowed(sum);
    if (gx != nullptr) write_chunk(gx + row * cols, i, cols, vectors, v);
    if (gr != nullptr) write_chunk(gr + row * cols, i, cols, vectors, v);
  }
};

// With h = (x - mean) rstd and u = gy w: gx = rstd (u - mean(u) - h mean(u h)), gw = sum gy h, gb = sum gy.
template <bool kCentered, class T, class S, int kThreads, class Gradient>
__global__ __launch_bounds__(Team<kThreads>::kBlock, kNormBound<T, kThreads>) void norm_rows_backward(
    const typename Gradient::Of* gy, const S* x, const Accum<T>* w, const Accum<T>* mean, const Accum<T>* rstd,
    Gradient gx, Accum<T>* parts, std::int64_t rows, std::int64_t cols, BackwardPlan plan) {
  using A = Accum<T>;
  using Of = Team<kThreads>;
  using Columns = ColumnSums<T>;
  constexpr int V = kVec<T>;
  LEVIN_SHARED_DYNAMIC(Vec<T>, shared);
  const std::int64_t chunks = plan.rows.chunks, size = Columns::size(chunks);
  A* const inside = reinterpret_cast<A*>(shared + (plan.rows.keeps ? 2 * Of::kRows * chunks : 0));
  A* const outside = parts + blockIdx.x * size;
  A* const own = plan.sums_inside ? inside + Of::row() * size : outside;
  if (plan.sums) {
    A zero[V] = {};
    each_chunk<kThreads>(plan.rows, [&](std::int64_t c) {
      for (int which = 0; which < 2; ++which)
#pragma unroll
        for (int k = 0; k < Columns::kPieces; ++k) {
          Vec<A> none;
          for (int j = 0; j < Columns::N; ++j) none[j] = zero[j];
          store(own + ((which * Columns::kPieces + k) * chunks + c) * Columns::N, none);
        }
    });
  }
  for (std::int64_t r = std::int64_t{blockIdx.x} * Of::kRows + Of::row(); r < rows;
       r += std::int64_t{gridDim.x} * Of::kRows) {
    Vec<T>* const kept = shared + 2 * Of::row() * chunks;
    const RowPart<T, kThreads, typename Gradient::Of> g(gy + r * cols, cols, plan.rows, kept);
    const RowPart<T, kThreads, S> in(x + r * cols, cols, plan.rows, kept + chunks);
    const A mu = kCentered ? mean[r] : A(0), scale = rstd[r];
    Pair<A> sum{0, 0};
    constexpr int kAhead = kNormAhead<T, kThreads>;
    each_first<kAhead>(g, in, [&](std::int64_t c, const Vec<T>& slope_chunk, const Vec<T>& chunk) {
      const auto a = widened(slope_chunk), b = widened(chunk);
      const Parameters<V, A> weight(w, c * V, cols, plan.rows.vectors, A(1));
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const A u = a[j] * weight.v[j];
        sum.a += u;
        sum.b += u * (b[j] - mu);
      }
    });
    sum = Of::reduce(sum, PlusPair{});
    const A shift = kCentered ? sum.a / A(cols) : A(0), slope = sum.b * scale * scale / A(cols);
    const auto last = [&](std::int64_t c, const typename Gradient::More& more) {
      const auto a = widened(g.again(c)), b = widened(in.again(c));
      if (plan.sums) {
        A of_w[V], of_b[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
          of_b[j] = a[j];
          of_w[j] = a[j] * ((b[j] - mu) * scale);
        }
        Columns::add(own, chunks, c, 0, of_w);
        Columns::add(own, chunks, c, 1, of_b);
      }
      if (!gx.wanted()) return;
      const Parameters<V, A> weight(w, c * V, cols, plan.rows.vectors, A(1));
      Widened<T, V> v;
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = (a[j] * weight.v[j] - shift - (b[j] - mu) * slope) * scale;
      gx.put(r, c * V, cols, plan.rows.vectors, narrowed(v), more);
    };
    if constexpr (std::is_empty_v<typename Gradient::More>) {
      each_chunk<kThreads>(plan.rows, [&](std::int64_t c) { last(c, {}); });
    } else {
      // What is read stands together before the sums of columns are stored: the compiler moves no load above a store.
      constexpr int kMoreAhead = kThreads == 32 ? kAhead : 1;
      for (std::int64_t from = Of::rank(); from < chunks; from += kMoreAhead * kThreads) {
        typename Gradient::More more[kMoreAhead] = {};
#pragma unroll
        for (int k = 0; k < kMoreAhead; ++k) {
          const std::int64_t c = from + k * kThreads;
          if (gx.wanted() && c < chunks) more[k] = gx.more(r, c * V, cols, plan.rows.vectors);
        }
#pragma unroll
        for (int k = 0; k < kMoreAhead; ++k)
          if (from + k * kThreads < chunks) last(from + k * kThreads, more[k]);
      }
    }
  }
  if (!plan.sums_inside) return;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < size; i += Of::kBlock) {
    A all = inside[i];
    for (int team = 1; team < Of::kRows; ++team) all += inside[team * size + i];
    outside[i] = all;
  }
}

// gw or gb (blockIdx.y) from one row of sums a block. 32 columns a block; warp k adds the parts k, k + 32, ...
inline constexpr int kFinishThreads = 1024;
template <class T>
__global__ __launch_bounds__(kFinishThreads) void norm_columns(const Accum<T>* parts, std::int64_t count,
                                                               std::int64_t cols, Accum<T>* gw, Accum<T>* gb) {
  using A = Accum<T>;
  LEVIN_SHARED(A, scratch, kFinishThreads);
  const int which = static_cast<int>(blockIdx.y);
  A* const out = which == 0 ? gw : gb;
  if (out == nullptr) return;
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x % 32, chunks = (cols + kVec<T> - 1) / kVec<T>,
                     size = ColumnSums<T>::size(chunks);
  A own = 0;
  if (column < cols) {
    const A* const p = parts + ColumnSums<T>::place(chunks, which, column);
#pragma unroll 4
    for (std::int64_t k = threadIdx.x / 32; k < count; k += kFinishThreads / 32) own += p[k * size];
  }
  scratch[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x >= 32 || column >= cols) return;
  A all = scratch[threadIdx.x];
  for (int k = 1; k < kFinishThreads / 32; ++k) all += scratch[k * 32 + threadIdx.x];
  out[column] = all;
}

template <bool kCentered, class T, class S>
void launch_norm_rows(const Gpu& on, const S* x, const Accum<T>* w, const Accum<T>* b, T* y, Accum<T>* mean,
                      Accum<T>* rstd, std::int64_t rows, std::int64_t cols, double eps) {
  with_team<T, kLongRowThreads, kShortRowThreads, kFewLanes>(
      cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
        const RowPlan plan = plan_rows<T, kThreads>(cols, 1, {x, y, w, b});
        on.launch(norm_rows<kCentered, T, S, kThreads>, row_grid<kThreads>(plan, rows, 1), x, w, b, y, mean, rstd, rows,
                  cols, static_cast<Accum<T>>(eps), plan);
      });
}
// Elements of the type of the sums that norm_rows_backward needs for gw and gb.
template <class T>
[[nodiscard]] std::int64_t norm_rows_scratch(std::int64_t rows, std::int64_t cols) {
  std::int64_t n = 0;
  with_team<T, kRowThreads, kRowThreads>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    const BackwardPlan plan = plan_backward<T, kThreads>(rows, cols, true, {});
    n = plan.blocks * ColumnSums<T>::size(plan.rows.chunks);
  });
  return n;
}
template <bool kCentered, class T, class S>
void launch_norm_rows_backward(const Gpu& on, const T* gy, const S* x, const Accum<T>* w, const Accum<T>* mean,
                               const Accum<T>* rstd, S* gx, Accum<T>* gw, Accum<T>* gb, std::int64_t rows,
                               std::int64_t cols, Accum<T>* scratch) {
  with_team<T, kRowThreads, kRowThreads>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    const bool sums = gw != nullptr || gb != nullptr;
    const BackwardPlan plan = plan_backward<T, kThreads>(rows, cols, sums, {gy, x, gx, w});
    on.launch(norm_rows_backward<kCentered, T, S, kThreads, PlainGradient<T, S>>,
              Grid{.blocks = plan.blocks, .threads = Team<kThreads>::kBlock, .shared = plan.shared}, gy, x, w, mean,
              rstd, PlainGradient<T, S>{gx}, scratch, rows, cols, plan);
    if (!sums) return;
    on.launch(norm_columns<T>, Grid{.blocks = {blocks_for(cols, 32), 2, 1}, .threads = kFinishThreads}, scratch,
              std::int64_t{plan.blocks}, cols, gw, gb);
  });
}

}  // namespace levin::kernels::gpu

namespace levin::kernels::cpu {
LEVIN_PICK_HALVES(layer_norm)
LEVIN_PICK_HALVES(layer_norm_backward)
LEVIN_PICK_HALVES(rms_norm)
LEVIN_PICK_HALVES(rms_norm_backward)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Parameters in the type of the sums; `missing` where there are none, so that the loops need no second form.
template <class A, class W>
std::vector<A> widened(const W* w, std::int64_t n, A missing) {
  std::vector<A> out(size_t(n), missing);
  if (w != nullptr)
    for (std::int64_t i = 0; i < n; ++i) out[size_t(i)] = A(w[i]);
  return out;
}

template <class W, class A>
void store(W* to, const A* from, std::int64_t n) {
  if (to != nullptr)
    for (std::int64_t i = 0; i < n; ++i) to[i] = W(from[i]);
}

// Adds `width` numbers of each of `count` parts in the order of the parts.
template <class A>
void combine(const Cpu& on, const A* parts, std::int64_t count, std::int64_t width, A* total) {
  on.parallel_for(width, std::max<std::int64_t>(64, 65536 / std::max<std::int64_t>(1, count)),
                  [=](std::int64_t begin, std::int64_t end) {
                    std::fill(total + begin, total + end, A(0));
                    for (std::int64_t p = 0; p < count; ++p) {
                      const A* const part = parts + p * width;
                      for (std::int64_t i = begin; i < end; ++i) total[i] += part[i];
                    }
                  });
}

// Rows of a partial column sum: at most 64 parts, and 16 rows or more in each of many, so that their memory stays small
// beside the rows; depends on the shape alone.
inline std::int64_t rows_of_part(std::int64_t rows, std::int64_t cols) {
  const std::int64_t parts = std::clamp<std::int64_t>(rows / 16, 8, 64);
  return std::max(rows_at_once(cols), (rows + parts - 1) / parts);
}

template <class A>
LEVIN_HD A reciprocal_root(A variance, double eps) {
  return 1 / std::sqrt(variance + A(eps));
}

// Mean of a row and the sum of squares of what is left without it.
template <class A>
struct Moments {
  A mean, square;
};

// One pass over the row, from a first guess of the mean: sum((x - mean)^2) = sum((x - guess)^2) - n (mean - guess)^2. A
// guess that is off by more than the spread of the row would lose digits in that difference, and costs a second pass.
template <class T>
Moments<Accum<T>> moments(const T* x, std::int64_t n) {
  using A = Accum<T>;
  const std::int64_t some = std::min<std::int64_t>(n, RowVector<A>::lanes);
  const A guess = row_sum(x, some) / A(some);
  const Sums<A, 2> s = sum_terms<2, A>(
      n, [=]<class V>(V, std::int64_t i) __attribute__((always_inline)) {
        const V d = load<V>(x + i) - guess;
        return Sums<V, 2>{{d, d * d}};
      });
  const A shift = s.s[0] / A(n), mean = guess + shift, lost = s.s[0] * shift;
  if (lost <= s.s[1] / 2) return {mean, s.s[1] - lost};
  return {mean, sum_terms<1, A>(
                    n,
                    [=]<class V>(V, std::int64_t i) __attribute__((always_inline)) {
                      const V d = load<V>(x + i) - mean;
                      return Sums<V, 1>{{d * d}};
                    })
                    .s[0]};
}

// ---- Over the last dimension. RMS norm is layer norm with a mean of zero: kCentered says which.

// Parameters where they lie when they have the type of the sums, else `widened`.
template <class A>
class WideParameters {
 public:
  template <class W>
  WideParameters(const W* w, std::int64_t n, A missing) {
    if constexpr (std::is_same_v<A, W>) {
      if (w != nullptr) {
        data_ = w;
        return;
      }
    }
    copy_ = widened(w, n, missing);
    data_ = copy_.data();
  }
  [[nodiscard]] const A* data() const { return data_; }

 private:
  std::vector<A> copy_;
  const A* data_ = nullptr;
};

template <bool kCentered, class T, class W>
void norm_rows(const Cpu& on, const T* x, const W* w, const W* b, T* y, Accum<T>* mean, Accum<T>* rstd,
               std::int64_t rows, std::int64_t cols, double eps) {
  using A = Accum<T>;
  const bool plain = w == nullptr && b == nullptr;
  const WideParameters<A> weight(w, plain ? 0 : cols, A(1)), bias(b, plain ? 0 : cols, A(0));
  const A *const wide_w = weight.data(), *const wide_b = bias.data();
  on.parallel_for(rows, rows_at_once(cols), [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* const in = x + r * cols;
      const auto [m, square] = kCentered ? moments(in, cols) : Moments<A>{A(0), row_dot(in, in, cols)};
      const A mu = m, scale = reciprocal_root(square / A(cols), eps);
      T* const out = y + r * cols;
      if (plain) {
        each_vector<A>(
            cols, [=]<class V>(V, std::int64_t i)
                      __attribute__((always_inline)) { put(out + i, (load<V>(in + i) - mu) * scale); });
      } else {
        each_vector<A>(
            cols, [=]<class V>(V, std::int64_t i) __attribute__((always_inline)) {
              put(out + i, (load<V>(in + i) - mu) * scale * load<V>(wide_w + i) + load<V>(wide_b + i));
            });
      }
      if constexpr (kCentered) mean[r] = mu;
      rstd[r] = scale;
    }
  });
}

// The sums of u = g w and u (x - mean) along a row, which gx needs.
template <class T, class A>
Sums<A, 2> slope_sums(const T* g, const T* x, const A* w, A mean, std::int64_t n) {
  return sum_terms<2, A>(
      n, [=]<class V>(V, std::int64_t i) __attribute__((always_inline)) {
        const V u = load<V>(g + i) * load<V>(w + i);
        return Sums<V, 2>{{u, u * (load<V>(x + i) - mean)}};
      });
}
template <class T, class A>
void slope_row(const T* g, const T* x, const A* w, A mean, A scale, A shift, A slope, T* gx, std::int64_t n) {
  each_vector<A>(
      n, [=]<class V>(V, std::int64_t i) __attribute__((always_inline)) {
        put(gx + i, (load<V>(g + i) * load<V>(w + i) - shift - (load<V>(x + i) - mean) * slope) * scale);
      });
}
template <class T, class A>
void add_columns(const T* g, const T* x, A mean, A scale, A* sum_w, A* sum_b, std::int64_t n) {
  if constexpr (kIsHalf<T>) {
    each_vector<A>(
        n, [=]<class V>(V, std::int64_t i) __attribute__((always_inline)) {
          const V u = load<V>(g + i);
          put(sum_w + i, load<V>(sum_w + i) + u * ((load<V>(x + i) - mean) * scale));
          put(sum_b + i, load<V>(sum_b + i) + u);
        });
  } else {  // which the compiler's own loop does a twentieth faster
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      sum_w[i] += g[i] * ((x[i] - mean) * scale);
      sum_b[i] += g[i];
    }
  }
}

// Note [Long rows]
// Sums of columns for each part of the rows would be as large as the rows themselves where rows are few and long. Such
// rows go in groups that stay in the cache: first the sums along the rows of a group, in pieces; then each task takes a
// piece of the columns of all rows of the group and adds to the columns' sums in the order of the rows.
inline constexpr std::int64_t kLongRow = 32768, kPieceOfRow = 4096, kGroupBytes = std::int64_t{4} << 20;

template <bool kCentered, class T, class W>
void long_rows_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                        T* gx, W* gw, W* gb, std::int64_t rows, std::int64_t cols) {
  using A = Accum<T>;
  const WideParameters<A> weight(w, cols, A(1));
  const A* const wide_w = weight.data();
  const bool sums = gw != nullptr || gb != nullptr;
  const std::int64_t pieces = (cols + kPieceOfRow - 1) / kPieceOfRow,
                     at_once = std::max<std::int64_t>(1, kGroupBytes / (2 * cols * std::int64_t{sizeof(T)}));
  const lib::Scratch along(size_t(at_once * pieces) * sizeof(Sums<A, 2>)),
      down(size_t(sums ? 2 * cols : 0) * sizeof(A));
  auto* const parts = along.as<Sums<A, 2>>();
  A *const sum_w = down.as<A>(), *const sum_b = sum_w + (sums ? cols : 0);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t n = std::min(at_once, rows - first);
    if (gx != nullptr) {
      on.parallel_for(n * pieces, 2, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t r = first + task / pieces, c = task % pieces * kPieceOfRow,
                             count = std::min(kPieceOfRow, cols - c);
          parts[task] = slope_sums(gy + r * cols + c, x + r * cols + c, wide_w + c, kCentered ? mean[r] : A(0), count);
        }
      });
    }
    for (std::int64_t i = 0; gx != nullptr && i < n; ++i) {
      Sums<A, 2>& whole = parts[i * pieces];
      for (std::int64_t k = 1; k < pieces; ++k) {
        whole.s[0] += parts[i * pieces + k].s[0];
        whole.s[1] += parts[i * pieces + k].s[1];
      }
    }
    on.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t c = piece * kPieceOfRow, count = std::min(kPieceOfRow, cols - c);
        if (sums && first == 0) {
          std::fill_n(sum_w + c, count, A(0));
          std::fill_n(sum_b + c, count, A(0));
        }
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t r = first + i;
          const T *const g = gy + r * cols + c, *const in = x + r * cols + c;
          const A mu = kCentered ? mean[r] : A(0), scale = rstd[r];
          if (sums) add_columns(g, in, mu, scale, sum_w + c, sum_b + c, count);
          if (gx == nullptr) continue;
          const Sums<A, 2>& s = parts[i * pieces];
          slope_row(g, in, wide_w + c, mu, scale, kCentered ? s.s[0] / A(cols) : A(0), s.s[1] * scale * scale / A(cols),
                    gx + r * cols + c, count);
        }
        if (sums && first + n == rows) {
          store(gw == nullptr ? gw : gw + c, sum_w + c, count);
          store(gb == nullptr ? gb : gb + c, sum_b + c, count);
        }
      }
    });
  }
}

// With h = (x - mean) rstd and u = gy w: gx = rstd (u - mean(u) - h mean(u h)), gw = sum gy h, gb = sum gy.
template <bool kCentered, class T, class W>
void norm_rows_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                        T* gx, W* gw, W* gb, std::int64_t rows, std::int64_t cols) {
  using A = Accum<T>;
  if (cols >= kLongRow && rows > 0)
    return long_rows_backward<kCentered>(on, gy, x, w, mean, rstd, gx, gw, gb, rows, cols);
  const WideParameters<A> weight(w, cols, A(1));
  const A* const wide_w = weight.data();
  const bool sums = gw != nullptr || gb != nullptr;
  const std::int64_t grain = rows_of_part(rows, cols), count = (rows + grain - 1) / grain;
  const lib::Scratch memory(size_t(sums ? (count + 1) * 2 * cols : 0) * sizeof(A));
  A* const parts = memory.as<A>();
  on.parallel_for(rows, grain, [&](std::int64_t first, std::int64_t last) {
    A* const part_w = sums ? parts + first / grain * 2 * cols : nullptr;
    A* const part_b = part_w + (sums ? cols : 0);
    if (sums) std::fill_n(part_w, 2 * cols, A(0));
    for (std::int64_t r = first; r < last; ++r) {
      const T *const g = gy + r * cols, *const in = x + r * cols;
      const A mu = kCentered ? mean[r] : A(0), scale = rstd[r];
      if (sums) add_columns(g, in, mu, scale, part_w, part_b, cols);
      if (gx == nullptr) continue;
      const Sums<A, 2> s = slope_sums(g, in, wide_w, mu, cols);
      slope_row(g, in, wide_w, mu, scale, kCentered ? s.s[0] / A(cols) : A(0), s.s[1] * scale * scale / A(cols),
                gx + r * cols, cols);
    }
  });
  if (!sums) return;
  A* const total = parts + count * 2 * cols;
  combine(on, parts, count, 2 * cols, total);
  store(gw, total, cols);
  store(gb, total + cols, cols);
}

template <class T, class W>
void layer_norm(const Cpu& on, const T* x, const W* w, const W* b, T* y, Accum<T>* mean, Accum<T>* rstd,
                std::int64_t rows, std::int64_t cols, double eps) {
  norm_rows<true>(on, x, w, b, y, mean, rstd, rows, cols, eps);
}
template <class T, class W>
void layer_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                         T* gx, W* gw, W* gb, std::int64_t rows, std::int64_t cols) {
  norm_rows_backward<true>(on, gy, x, w, mean, rstd, gx, gw, gb, rows, cols);
}
template <class T, class W>
void rms_norm(const Cpu& on, const T* x, const W* w, T* y, Accum<T>* rstd, std::int64_t rows, std::int64_t cols,
              double eps) {
  norm_rows<false>(on, x, w, static_cast<const W*>(nullptr), y, static_cast<Accum<T>*>(nullptr), rstd, rows, cols, eps);
}
template <class T, class W>
void rms_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* rstd, T* gx, W* gw,
                       std::int64_t rows, std::int64_t cols) {
  norm_rows_backward<false>(on, gy, x, w, static_cast<const Accum<T>*>(nullptr), rstd, gx, gw, static_cast<W*>(nullptr),
                            rows, cols);
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
