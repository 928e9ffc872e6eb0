// A row of a matrix worked on by some lanes of a warp, by a warp or by a block, read from memory once where it fits on
// the chip.
//
// The row is dealt out in chunks of 16 bytes: thread t has chunks t, t + kThreads, ... Who adds what so depends on the
// length alone: a row that lies unaligned, and is then read element by element, has the same sums, bit for bit.
//
// Memory may hold S, a 16-bit type, where the kernel computes as for T = float: chunks are those of T, converted on the
// way from memory and back, so that the result has the bits of a kernel that was given a converted copy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/device/block.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"

namespace levin::kernels::gpu {

// The threads of one row: at most a warp, several of which make a block, or a block.
template <int kThreads>
struct Team {
  static constexpr int kBlock = kThreads <= 32 ? 128 : kThreads;
  static constexpr int kRows = kBlock / kThreads;  // rows a block works on at a time

  static __device__ int rank() { return static_cast<int>(threadIdx.x) % kThreads; }
  static __device__ int row() { return static_cast<int>(threadIdx.x) / kThreads; }

  // All threads of the team call and get the result.
  template <class A, class F>
  static __device__ A reduce(A x, F f) {
    if constexpr (kThreads == 32) {
      return warp_reduce(x, f);
    } else if constexpr (kThreads < 32) {
      // Other teams of the warp may be at another row.
      const unsigned own = ((1u << kThreads) - 1) << (threadIdx.x % 32 / kThreads * kThreads);
#pragma unroll
      for (int lanes = kThreads / 2; lanes > 0; lanes /= 2) x = f(x, __shfl_xor_sync(own, x, lanes));
      return x;
    } else {
      LEVIN_SHARED(A, scratch, kThreads / 32);
      return block_reduce<kThreads>(x, scratch, f);
    }
  }
};

// Rows up to here may take kFewLanes of a warp, each of which then has about four chunks: of one chunk the sums between
// lanes would cost more instructions than the chunk.
inline constexpr std::int64_t kNarrowColumns = 256;
inline constexpr int kFewLanes = 8;
inline constexpr std::int64_t kWarpColumns = 1024;  // longer rows take a block
inline constexpr int kRowThreads = 256;             // of such a block
// Of a block for rows of so few chunks that kRowThreads would have one or two each: a thread's share of the sums
// between threads costs as many instructions as two chunks.
inline constexpr int kShortRowThreads = 128;
inline constexpr std::int64_t kShortRowChunks = 4 * kShortRowThreads;
// A row of which a processor can keep only one or two: as few blocks have to keep enough loads in flight.
inline constexpr std::int64_t kLongColumns = 16384;
inline constexpr int kLongRowThreads = 1024;
inline constexpr std::int64_t kMostKeptBytes =
    200 * 1024;  // of rows kept in a block's shared memory (an H200 has 227 KiB)
inline constexpr std::int64_t kRowBlocks = std::int64_t{1} << 20;

// How rows of `cols` elements are read. `kept`: rows that a team keeps in shared memory at a time.
struct RowPlan {
  bool vectors = false;     // whole chunks, aligned
  bool keeps = false;       // else every pass reads memory
  std::int64_t chunks = 0;  // a row
};
template <class T, int kThreads>
[[nodiscard]] RowPlan plan_rows(std::int64_t cols, int kept, std::initializer_list<const void*> pointers) {
  RowPlan plan{.vectors = cols % kVec<T> == 0, .keeps = false, .chunks = (cols + kVec<T> - 1) / kVec<T>};
  for (const void* p : pointers) plan.vectors = plan.vectors && aligned16(p);
  plan.keeps = plan.chunks * 16 * kept * Team<kThreads>::kRows <= kMostKeptBytes;
  return plan;
}
template <int kThreads>
[[nodiscard]] Grid row_grid(const RowPlan& plan, std::int64_t rows, int kept, std::int64_t most_blocks = kRowBlocks) {
  using Of = Team<kThreads>;
  return {.blocks = static_cast<unsigned>(std::min((rows + Of::kRows - 1) / Of::kRows, most_blocks)),
          .threads = Of::kBlock,
          .shared = plan.keeps && plan.chunks > 0 ? static_cast<unsigned>(plan.chunks * 16 * kept * Of::kRows) : 16u};
}

// f(kThreads as a constant) with the team size for rows of `cols`: kFewest lanes if those are fewer than a warp, a
// warp, or a block of at least kLeast and at most kMost threads.
template <class T, int kMost = kLongRowThreads, int kLeast = kShortRowThreads, int kFewest = 32, class F>
void with_team(std::int64_t cols, F&& f) {
  if constexpr (kFewest < 32) {
    if (cols <= kNarrowColumns) return f(std::integral_constant<int, kFewest>{});
  }
  if (cols <= kWarpColumns) return f(std::integral_constant<int, 32>{});
  if constexpr (sizeof(T) != 8 && kLeast < kRowThreads) {
    if (cols <= kShortRowChunks * kVec<T>) return f(std::integral_constant<int, kLeast>{});
  }
  if constexpr (sizeof(T) != 8 && kMost > kRowThreads) {  // so many threads have too few registers for double
    if (cols > kLongColumns) return f(std::integral_constant<int, kMost>{});
  }
  f(std::integral_constant<int, kRowThreads>{});
}

template <class To, class From, int N>
__device__ __forceinline__ Vec<To, N> converted(const Vec<From, N>& v) {
  if constexpr (std::is_same_v<To, From>) {
    return v;
  } else {
    Vec<To, N> to;
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = To(v[j]);
    return to;
  }
}

// A chunk of a row of n elements from element i on; `fill` past the row's end.
template <class T, class S>
__device__ __forceinline__ Vec<T> read_chunk(const S* row, std::int64_t i, std::int64_t n, bool vectors, T fill) {
  if (vectors) return converted<T>(load<kVec<T>>(row + i));
  Vec<T> v;
#pragma unroll
  for (int j = 0; j < kVec<T>; ++j) v[j] = i + j < n ? T(row[i + j]) : fill;
  return v;
}
template <class T, class S>
__device__ __forceinline__ void write_chunk(S* row, std::int64_t i, std::int64_t n, bool vectors, const Vec<T>& v) {
  if (vectors) return store(row + i, converted<S>(v));
#pragma unroll
  for (int j = 0; j < kVec<T>; ++j)
    if (i + j < n) row[i + j] = S(v[j]);
}

// Elements [i, i + V) of a parameter in the type of the sums, `missing` where there is none.
template <int V, class A>
struct Parameters {
  A v[V];
  __device__ __forceinline__ Parameters(const A* p, std::int64_t i, std::int64_t n, bool vectors, A missing) {
    if (p == nullptr) {
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = missing;
    } else if (vectors) {
      constexpr int N = V < kVec<A> ? V : kVec<A>;
#pragma unroll
      for (int k = 0; k < V; k += N) {
        const Vec<A, N> x = load<N>(p + i + k);
#pragma unroll
        for (int j = 0; j < N; ++j) v[k + j] = x[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = i + j < n ? p[i + j] : missing;
    }
  }
};

// This thread's part of one row. Kept chunks are read by the thread that wrote them: no barrier stands between.
template <class T, int kThreads, class S = T>
struct RowPart {
  using Number = T;
  static constexpr int V = kVec<T>, kTeam = kThreads;
  const S* in;
  std::int64_t n;
  RowPlan plan;
  Vec<T>* kept;  // [chunks] of the row, in shared memory
  T fill;

  __device__ RowPart(const S* in_, std::int64_t n_, const RowPlan& plan_, Vec<T>* kept_, T fill_ = T(0.0f))
      : in(in_), n(n_), plan(plan_), kept(kept_), fill(fill_) {}

  __device__ __forceinline__ Vec<T> read(std::int64_t chunk, bool vectors) const {
    return read_chunk(in, chunk * V, n, vectors, fill);
  }
  __device__ __forceinline__ void keep(std::int64_t chunk, const Vec<T>& v) const {
    if (plan.keeps) kept[chunk] = v;
  }
  __device__ __forceinline__ Vec<T> again(std::int64_t chunk) const {
    return plan.keeps ? kept[chunk] : read(chunk, plan.vectors);
  }
};

// f(chunk) for the chunks of this thread, `kAtOnce` of them in flight.
template <int kThreads, int kAtOnce = 4, class F>
__device__ __forceinline__ void each_chunk(const RowPlan& plan, F&& f) {
#pragma unroll kAtOnce
  for (std::int64_t chunk = Team<kThreads>::rank(); chunk < plan.chunks; chunk += kThreads) f(chunk);
}

// f(whether chunks are whole and aligned), as a constant for 16-bit numbers: where a branch for vectors and one for
// elements join, a vector is taken apart. Two bodies of wider numbers take more registers than they save instructions.
template <class T, class F>
__device__ __forceinline__ void with_vectors(const RowPlan& plan, F&& f) {
  if constexpr (sizeof(T) != 2)
    f(plan.vectors);
  else if (plan.vectors)
    f(std::true_type{});
  else
    f(std::false_type{});
}

// The first pass over one row, or over two of one plan: f(chunk, vectors) for the chunks of this thread, in the order
// of each_chunk. The loads of four vectors (of double: two), or of kAhead a row, stand together, even where there are
// few.
template <class T>
inline constexpr int kChunksAhead = sizeof(T) == 8 ? 2 : 4;
template <class Part, class F>
__device__ __forceinline__ void each_first(const Part& row, F&& f) {
  using T = typename Part::Number;
  constexpr int kThreads = Part::kTeam;
  with_vectors<T>(row.plan, [&](auto vectors) {
    for (std::int64_t from = Team<kThreads>::rank(); from < row.plan.chunks; from += kChunksAhead<T> * kThreads) {
      Vec<T> v[kChunksAhead<T>];
#pragma unroll
      for (int k = 0; k < kChunksAhead<T>; ++k)
        if (from + k * kThreads < row.plan.chunks) v[k] = row.read(from + k * kThreads, vectors);
#pragma unroll
      for (int k = 0; k < kChunksAhead<T>; ++k) {
        if (from + k * kThreads >= row.plan.chunks) break;
        row.keep(from + k * kThreads, v[k]);
        f(from + k * kThreads, v[k]);
      }
    }
  });
}
template <int kAhead, int kThreads, class T, class R, class S, class F>
__device__ __forceinline__ void each_first(const RowPart<T, kThreads, R>& a, const RowPart<T, kThreads, S>& b, F&& f) {
  with_vectors<T>(a.plan, [&](auto vectors) {
    for (std::int64_t from = Team<kThreads>::rank(); from < a.plan.chunks; from += kAhead * kThreads) {
      Vec<T> v[kAhead], w[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (from + k * kThreads >= a.plan.chunks) continue;
        v[k] = a.read(from + k * kThreads, vectors);
        w[k] = b.read(from + k * kThreads, vectors);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (from + k * kThreads >= a.plan.chunks) break;
        a.keep(from + k * kThreads, v[k]);
        b.keep(from + k * kThreads, w[k]);
        f(from + k * kThreads, v[k], w[k]);
      }
    }
  });
}

}  // namespace levin::kernels::gpu
