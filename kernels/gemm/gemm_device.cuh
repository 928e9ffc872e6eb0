// Matrix products on devices that launch kernels: C[i, j] = sum over kk of A[i, kk] B[kk, j], plus a bias.
//
//   plan_gemm<T>({m, n, k}, batches)                how the work is cut; from sizes alone, so the bits are too
//   launch_gemm(on, plan, a, b, batch, target)      one product for each batch; T: float, double, f16, bf16
//
// A and B are operands: matrices of lines along k, the rows of A and the columns of B. An operand is a struct with
//   using Element = T;             its elements
//   static constexpr bool kAlongK  whether kVec<T> elements that lie together follow k or follow the lines
//   const T* p                     moved by the batch's offset before use
//   get(line, k)                   those elements from (line, k) on, zeros outside of the matrix
//   put(shared, line, k)           the same into 16 aligned bytes of shared memory, perhaps asynchronously
// so that a convolution multiplies the image through its windows without writing them out (conv_device.cuh). A target
// says where the sums go, and its epilogue what to do with them on the way: Plain, RowSums, or as in
// gemm_gelu_device.cuh.
//
// Note [Two products]
// f16 and bf16 run on tensor cores: tiles of 128 x 128 (8 warps of 64 x 32) or 64 x 64 (4 warps of 32 x 32), 32 deep,
// four of them in flight by cp.async; rows of a tile are 16 bytes longer than its data, which keeps ldmatrix free of
// bank conflicts; sums in f32. float and double run on plain fma: 256 threads of 8 x 8 or 4 x 4 sums, tiles 16 deep in
// two stages, the next one waiting in registers. Large tiles are taken where they fill the device.
//
// Note [Long sums are split]
// Few tiles and a long k (a weight gradient) leave most of the device idle: k is cut into `splits` parts, and each
// writes its sums to workspace [splits, batches, m, n] in Accum<T>. The block that comes last to a tile adds its parts
// in order (Note [The last block]). A second kernel adds them, with the same bits, where one block would take too long,
// for more than kMostJoined parts, and where an operand's own indices leave no registers for it (kJoins).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/device/last_block.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_hopper.h"

namespace levin::kernels {

struct GemmPlan {
  int64_t m = 0, n = 0, k = 0, batches = 1;
  int tile = 64;       // rows and columns of C a block
  int64_t splits = 1;  // parts of k
  int64_t part = 0;    // the length of a part, a multiple of the depth of a tile
  int64_t row_tiles = 0, col_tiles = 0;
  bool joins = false;  // the last block of a tile adds the parts
  // How many Accum<T> launch_gemm needs in Target::partial; with sums of A's rows, [splits, batches, m] more.
  [[nodiscard]] LEVIN_HD int64_t workspace(bool row_sums = false) const {
    return splits > 1 ? splits * batches * m * (n + (row_sums ? 1 : 0)) : 0;
  }
};

template <class T>
inline constexpr bool kOnTensorCores = sizeof(T) == 2;
template <class T>
inline constexpr int kTileDepth = kOnTensorCores<T> ? 32 : 16;

// More parts of a tile are added by a second kernel.
inline constexpr int64_t kMostJoined = 16;

// The plan with tiles of a given size and at most `splits` parts.
template <class T>
[[nodiscard]] GemmPlan plan_gemm_as(GemmSize size, int64_t batches, int tile, int64_t splits) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  GemmPlan plan{.m = size.m, .n = size.n, .k = size.k, .batches = batches, .tile = tile};
  plan.row_tiles = up(size.m, tile);
  plan.col_tiles = up(size.n, tile);
  plan.part = std::max<int64_t>(1, up(up(size.k, splits), kTileDepth<T>)) * kTileDepth<T>;
  plan.splits = std::max<int64_t>(1, up(size.k, plan.part));
  plan.joins = plan.splits > 1 && plan.splits <= kMostJoined &&
               plan.row_tiles * plan.col_tiles * batches <= levin::detail::kTickets;
  return plan;
}
template <class T>
[[nodiscard]] GemmPlan plan_gemm(GemmSize size, int64_t batches) {
  constexpr int64_t kProcessors = 132;  // of an H200; a constant, since the bits of a result depend on it
  constexpr int64_t kShortest = 256;    // a shorter part of k does not repay its second pass
  const auto tiles = [&](int64_t tile) { return (size.m + tile - 1) / tile * ((size.n + tile - 1) / tile) * batches; };
  const int tile = !std::is_same_v<T, double> && tiles(128) >= kProcessors ? 128 : 64;
  const int64_t count = std::max<int64_t>(1, tiles(tile));
  const int64_t wanted = count >= kProcessors ? 1 : 2 * kProcessors / count;
  return plan_gemm_as<T>(size, batches, tile, std::clamp<int64_t>(size.k / kShortest, 1, wanted));
}

}  // namespace levin::kernels

namespace levin::kernels::gpu {

template <class T>
using Chunk = Vec<T, kVec<T>>;
template <class T>
__device__ __forceinline__ Chunk<T> no_elements() {
  Chunk<T> zeros;
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) zeros[e] = T(0.0f);
  return zeros;
}

// A matrix in memory: element (line, k) is p[line * line_step + k * k_step].
template <class T, bool kAlongK_>
struct Lines {
  using Element = T;
  static constexpr bool kAlongK = kAlongK_;
  const T* p;
  int64_t line_step, k_step;
  int64_t lines, depth;
  bool vectors;  // chunks are 16 aligned bytes, in every batch

  __device__ __forceinline__ int64_t room(int64_t line, int64_t k) const {
    if (line >= lines || k >= depth) return 0;
    return kAlongK ? depth - k : lines - line;
  }
  __device__ __forceinline__ Chunk<T> get(int64_t line, int64_t k) const {
    const int64_t left = room(line, k);
    const T* const from = p + line * line_step + k * k_step;
    if (vectors && left >= kVec<T>) return load<kVec<T>>(from);
    Chunk<T> to = no_elements<T>();
    const int64_t step = kAlongK ? k_step : line_step;
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      if (e < left) to[e] = from[e * step];
    }
    return to;
  }
  __device__ __forceinline__ void put(T* shared, int64_t line, int64_t k) const {
    const int64_t left = room(line, k);
    if (vectors && (left >= kVec<T> || left == 0)) {
      cp_async_16(shared, left == 0 ? p : p + line * line_step + k * k_step, left != 0);
    } else {
      store(shared, get(line, k));
    }
  }
};

// What an element is made of its sum with biases, for the place it goes to.
struct Plain {
  template <class F>
  __device__ __forceinline__ F operator()(F sum, int64_t) const {
    return sum;
  }
};

// Besides the product, sums [batches, m]: each row of A added up.
template <class T>
struct RowSums : Plain {
  T* sums = nullptr;
};
template <class E>
inline constexpr bool kSumsRows = false;
template <class T>
inline constexpr bool kSumsRows<RowSums<T>> = true;

// Where sums go. Element (i, j) of batch b is y[b's offset + i * row_step + j], or, for a convolution, column j is
// pixel j % width of image j / width and the images lie image_step apart.
template <class T, class Epilogue = Plain>
struct Target {
  T* y;
  int64_t row_step;
  const T* col_bias = nullptr;  // [n] or null
  const T* row_bias = nullptr;  // [batches, m] or null
  bool images = false;
  Divider width{};
  int64_t image_step = 0;
  Accum<T>* partial = nullptr;  // GemmPlan::workspace() numbers, unless that is 0
  Epilogue epilogue{};
  unsigned* tickets = nullptr;  // set by launch_gemm

  __device__ __forceinline__ int64_t place(int64_t i, int64_t j) const {
    if (!images) return i * row_step + j;
    const int64_t image = width.quotient(j);
    return i * row_step + image * image_step + (j - image * static_cast<int64_t>(width.divisor));
  }
  __device__ __forceinline__ void finish(const GemmPlan& plan, int64_t b, int64_t offset, int64_t i, int64_t j,
                                         Accum<T> sum) const {
    if (col_bias) sum += Accum<T>(col_bias[j]);
    if (row_bias) sum += Accum<T>(row_bias[b * plan.m + i]);
    const int64_t at = offset + place(i, j);
    y[at] = T(epilogue(sum, at));
  }
  // Where the sum of a part of k waits.
  __device__ __forceinline__ Accum<T>& part(const GemmPlan& plan, int64_t split, int64_t b, int64_t i,
                                            int64_t j) const {
    return partial[((split * plan.batches + b) * plan.m + i) * plan.n + j];
  }
  __device__ __forceinline__ Accum<T>& row_part(const GemmPlan& plan, int64_t split, int64_t b, int64_t i) const {
    return partial[plan.workspace() + (split * plan.batches + b) * plan.m + i];
  }
};

template <class X>
inline constexpr bool kIsLines = false;
template <class T, bool kAlongK>
inline constexpr bool kIsLines<Lines<T, kAlongK>> = true;
// Whether a product of these operands can join parts in the last block.
template <class A, class B>
inline constexpr bool kJoins = kIsLines<A> && (kIsLines<B> || sizeof(typename B::Element) < 8);

// A tile from its parts, by the block that came last. Loops keep a few sums at a time: the products before them need
// the registers.
template <class T, class E, class Tile>
__device__ __forceinline__ void join_tile(const GemmPlan& plan, const Tile& tile, int64_t offset,
                                          const Target<T, E>& to) {
  using F = Accum<T>;
  constexpr int kAtOnce = 4;
  const int threads = int(blockDim.x), down = threads / plan.tile;  // rows of the tile that the block reads together
  const int64_t j = tile.col + int(threadIdx.x) % plan.tile;
#pragma unroll 1
  for (int first = int(threadIdx.x) / plan.tile; first < plan.tile; first += down * kAtOnce) {
    F sums[kAtOnce] = {};
    const auto each = [&](auto&& f) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t i = tile.row + first + u * down;
        if (first + u * down < plan.tile && i < plan.m && j < plan.n) f(i, sums[u]);
      }
    };
#pragma unroll 2
    for (int64_t s = 0; s < plan.splits; ++s)
      each([&](int64_t i, F& sum) { sum += to.part(plan, s, tile.batch, i, j); });
    each([&](int64_t i, F& sum) { to.finish(plan, tile.batch, offset, i, j, sum); });
  }
  if constexpr (kSumsRows<E>) {
    if (tile.col != 0) return;
    for (int64_t i = tile.row + threadIdx.x; i < tile.row + plan.tile && i < plan.m; i += threads) {
      F sum = 0;
      for (int64_t s = 0; s < plan.splits; ++s) sum += to.row_part(plan, s, tile.batch, i);
      to.epilogue.sums[tile.batch * plan.m + i] = T(sum);
    }
  }
}

// Puts what a block has summed where the target says. each(f) calls f(i, j, sum) for the sums of this thread in its
// tile, each_row(f) calls f(i, sum) for its sums of A's rows, which the blocks of the first columns have.
template <bool kMayJoin, class T, class E, class Tile, class Each, class EachRow>
__device__ __forceinline__ void put_tile(const GemmPlan& plan, const Tile& tile, int64_t offset, const Target<T, E>& to,
                                         Each&& each, EachRow&& each_row) {
  using F = Accum<T>;
  const bool has_rows = kSumsRows<E> && tile.col == 0;
  const bool whole = plan.splits == 1;
  each([&](int64_t i, int64_t j, F& sum) {
    if (i >= plan.m || j >= plan.n) return;
    if (whole)
      to.finish(plan, tile.batch, offset, i, j, sum);
    else
      to.part(plan, tile.split, tile.batch, i, j) = sum;
  });
  if constexpr (kSumsRows<E>) {
    if (has_rows) {
      each_row([&](int64_t i, F& sum) {
        if (i >= plan.m) return;
        if (whole)
          to.epilogue.sums[tile.batch * plan.m + i] = T(sum);
        else
          to.row_part(plan, tile.split, tile.batch, i) = sum;
      });
    }
  }
  if constexpr (kMayJoin) {
    const int64_t number = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
    if (plan.joins && is_last_block(to.tickets + number, static_cast<unsigned>(plan.splits)))
      join_tile(plan, tile, offset, to);
  }
}

// The tile of a block. Blocks that follow each other share columns of B for eight row tiles, which L2 then holds.
struct TileOf {
  int64_t batch, split, row, col, k0, k1;
  bool any;
  __device__ explicit TileOf(const GemmPlan& plan) {
    const int64_t tiles = plan.row_tiles * plan.col_tiles;
    int64_t at = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
    batch = at / tiles;
    any = batch < plan.batches;
    at -= batch * tiles;
    const int64_t band = 8 * plan.col_tiles, first = at / band * 8;
    const int64_t rows = plan.row_tiles - first < 8 ? plan.row_tiles - first : 8;
    at %= band;
    row = (first + at % rows) * plan.tile;
    col = at / rows * plan.tile;
    split = blockIdx.z;
    k0 = split * plan.part;
    k1 = k0 + plan.part < plan.k ? k0 + plan.part : plan.k;
  }
};

// ---- float and double

// Chunk c of thread t of a tile [kTile lines, kDepth]: where it begins.
template <bool kAlongK, int kTile, int kDepth, int kSize>
struct ChunkAt {
  int line, k;
  __device__ __forceinline__ explicit ChunkAt(int id) {
    constexpr int kRow = (kAlongK ? kDepth : kTile) / kSize;
    const int inner = id % kRow * kSize, outer = id / kRow;
    line = kAlongK ? outer : inner;
    k = kAlongK ? inner : outer;
  }
};

// A thread's chunks into a stage [kDepth][kTile + kVec<T>].
template <bool kAlongK, class T, int kTile, int kChunks>
__device__ __forceinline__ void keep_chunks(T* stage, const Chunk<T> (&chunks)[kChunks]) {
  constexpr int kPitch = kTile + kVec<T>;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const ChunkAt<kAlongK, kTile, kTileDepth<T>, kVec<T>> in(int(threadIdx.x) + c * 256);
    if constexpr (kAlongK) {
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) stage[(in.k + e) * kPitch + in.line] = chunks[c][e];
    } else {
      store(stage + in.k * kPitch + in.line, chunks[c]);
    }
  }
}

// Blocks of 256 threads, grid: tiles in x and y, splits in z. One block a multiprocessor is asked for: left alone,
// ptxas aims at more and spills.
template <class T, int kTile, class A, class B, class E>
__global__ void __launch_bounds__(256, 1) gemm_by_threads(GemmPlan plan, A a, B b, Strided<3> batch, Target<T, E> to) {
  constexpr int kDepth = kTileDepth<T>, kSize = kVec<T>, kPitch = kTile + kSize, kEach = kTile / 16;
  constexpr int kChunks = kTile * kDepth / kSize / 256, kStage = kDepth * kPitch;
  LEVIN_SHARED(T, tiles, 4 * kStage);  // [2 stages][A, B][kDepth][kPitch]
  const TileOf tile(plan);
  if (!tile.any) return;
  int64_t offset[3];
  batch.offsets(tile.batch, offset);
  a.p += offset[0];
  b.p += offset[1];
  const int thread = int(threadIdx.x), tx = thread % 16, ty = thread / 16;

  Chunk<T> next_a[kChunks], next_b[kChunks];
  const auto fetch = [&](int64_t k) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const ChunkAt<A::kAlongK, kTile, kDepth, kSize> in_a(thread + c * 256);
      const ChunkAt<B::kAlongK, kTile, kDepth, kSize> in_b(thread + c * 256);
      next_a[c] = a.get(tile.row + in_a.line, k + in_a.k);
      next_b[c] = b.get(tile.col + in_b.line, k + in_b.k);
    }
  };
  // A thread's rows: kSize neighbours of every 16 * kSize.
  const auto line_of = [](int r, int t) { return r / kSize * (16 * kSize) + t * kSize + r % kSize; };

  T sums[kEach][kEach] = {};
  [[maybe_unused]] T row_sums[kEach] = {};
  if (tile.k0 < tile.k1) fetch(tile.k0);
  int turn = 0;
  for (int64_t k = tile.k0; k < tile.k1; k += kDepth, turn ^= 1) {
    T* const stage_a = tiles + turn * 2 * kStage;
    T* const stage_b = stage_a + kStage;
    keep_chunks<A::kAlongK, T, kTile>(stage_a, next_a);
    keep_chunks<B::kAlongK, T, kTile>(stage_b, next_b);
    // The stage before was read by all when they came here, so the next turn may write it.
    __syncthreads();
    if (k + kDepth < tile.k1) fetch(k + kDepth);
#pragma unroll
    for (int kk = 0; kk < kDepth; ++kk) {
      T va[kEach], vb[kEach];
#pragma unroll
      for (int r = 0; r < kEach; r += kSize) {
        const Chunk<T> ca = load<kSize>(stage_a + kk * kPitch + line_of(r, ty));
        const Chunk<T> cb = load<kSize>(stage_b + kk * kPitch + line_of(r, tx));
#pragma unroll
        for (int e = 0; e < kSize; ++e) {
          va[r + e] = ca[e];
          vb[r + e] = cb[e];
        }
      }
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int c = 0; c < kEach; ++c) sums[r][c] += va[r] * vb[c];
        if constexpr (kSumsRows<E>) row_sums[r] += va[r];
      }
    }
  }
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
#pragma unroll
      for (int c = 0; c < kEach; ++c) f(tile.row + line_of(r, ty), tile.col + line_of(c, tx), sums[r][c]);
    }
  };
  const auto each_row = [&](auto&& f) {
    if constexpr (kSumsRows<E>) {
      if (tx != 0) return;
#pragma unroll
      for (int r = 0; r < kEach; ++r) f(tile.row + line_of(r, ty), row_sums[r]);
    }
  };
  put_tile<kJoins<A, B>>(plan, tile, offset[2], to, each, each_row);
}

// ---- f16 and bf16

inline constexpr int kMmaStages = 4;
template <bool kAlongK, int kTile>
inline constexpr int kMmaPitch = (kAlongK ? kTileDepth<f16> : kTile) + 8;
template <bool kAlongK, int kTile>
inline constexpr int kMmaNumbers = (kAlongK ? kTile : kTileDepth<f16>)*kMmaPitch<kAlongK, kTile>;
template <class A, class B, int kTile>
inline constexpr unsigned kMmaBytes = kMmaStages * 2 *
                                      (kMmaNumbers<A::kAlongK, kTile> + kMmaNumbers<B::kAlongK, kTile>);
template <int kTile>
inline constexpr int kMmaThreads = kTile == 128 ? 256 : 128;

// Two neighbours of a fragment.
template <class T>
__device__ __forceinline__ uint32_t packed(float low, float high) {
  return rounded_pair<T>(low, high);
}
// Fragments of 16 lines each, from `line` on, and of 16 of k, from where this lane's address begins.
template <bool kAlongK, int kPitch, class T, int kCount>
__device__ __forceinline__ void load_fragments(uint32_t (&to)[kCount][4], const T* tile, int line, int k) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kAlongK)
      ldmatrix_x4(to[i], tile + (line + i * 16) * kPitch + k);
    else
      ldmatrix_x4_trans(to[i], tile + k * kPitch + line + i * 16);
  }
}

// The same grid; kMmaThreads<kTile> threads, kMmaBytes of dynamic shared memory.
template <class T, int kTile, class A, class B, class E>
__global__ void __launch_bounds__(kMmaThreads<kTile>, 1)
    gemm_by_warps(GemmPlan plan, A a, B b, Strided<3> batch, Target<T, E> to) {
  constexpr int kDepth = kTileDepth<T>, kThreads = kMmaThreads<kTile>, kWarpCols = kTile == 128 ? 4 : 2;
  constexpr int kRows = kTile == 128 ? 64 : 32, kCols = 32;  // of a warp
  constexpr int kPitchA = kMmaPitch<A::kAlongK, kTile>, kPitchB = kMmaPitch<B::kAlongK, kTile>;
  constexpr int kNumbersA = kMmaNumbers<A::kAlongK, kTile>, kStage = kNumbersA + kMmaNumbers<B::kAlongK, kTile>;
  LEVIN_SHARED_DYNAMIC(T, tiles);
  const TileOf tile(plan);
  if (!tile.any) return;
  int64_t offset[3];
  batch.offsets(tile.batch, offset);
  a.p += offset[0];
  b.p += offset[1];
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int row0 = warp / kWarpCols * kRows, col0 = warp % kWarpCols * kCols;

  const auto fetch = [&](int stage, int64_t k) {
    T* const to_a = tiles + stage * kStage;
    T* const to_b = to_a + kNumbersA;
#pragma unroll
    for (int c = 0; c < kTile * kDepth / 8 / kThreads; ++c) {
      const ChunkAt<A::kAlongK, kTile, kDepth, 8> in_a(thread + c * kThreads);
      const ChunkAt<B::kAlongK, kTile, kDepth, 8> in_b(thread + c * kThreads);
      a.put(to_a + (A::kAlongK ? in_a.line * kPitchA + in_a.k : in_a.k * kPitchA + in_a.line), tile.row + in_a.line,
            k + in_a.k);
      b.put(to_b + (B::kAlongK ? in_b.line * kPitchB + in_b.k : in_b.k * kPitchB + in_b.line), tile.col + in_b.line,
            k + in_b.k);
    }
  };
  // Element (line, k) of the 8 x 8 matrix that ldmatrix reads by this lane, within 16 lines and 16 of k: for A its
  // order is (0, 0), (8, 0), (0, 8), (8, 8); for two neighbours of B (0, 0), (0, 8), (8, 0), (8, 8).
  const int in = lane % 8, matrix = lane / 8, low = matrix % 2 * 8, high = matrix / 2 * 8;
  const int place_a = A::kAlongK ? (low + in) * kPitchA + high : (high + in) * kPitchA + low;
  const int place_b = B::kAlongK ? (high + in) * kPitchB + low : (low + in) * kPitchB + high;

  float sums[kRows / 16][kCols / 8][4] = {};
  [[maybe_unused]] float row_sums[kRows / 16][4] = {};  // of a product with ones: all columns are equal
  const int steps = int((tile.k1 - tile.k0 + kDepth - 1) / kDepth);
#pragma unroll
  for (int s = 0; s < kMmaStages - 1; ++s) {
    if (s < steps) fetch(s, tile.k0 + s * kDepth);
    cp_async_commit();
  }
  for (int s = 0; s < steps; ++s) {
    cp_async_wait<kMmaStages - 2>();
    // All have read the stage before this one, which is filled again now.
    __syncthreads();
    if (s + kMmaStages - 1 < steps)
      fetch((s + kMmaStages - 1) % kMmaStages, tile.k0 + int64_t{s + kMmaStages - 1} * kDepth);
    cp_async_commit();
    const T* const tile_a = tiles + s % kMmaStages * kStage;
    const T* const tile_b = tile_a + kNumbersA;
#pragma unroll
    for (int kk = 0; kk < kDepth; kk += 16) {
      uint32_t fa[kRows / 16][4], fb[kCols / 16][4];
      load_fragments<A::kAlongK, kPitchA>(fa, tile_a + place_a, row0, kk);
      load_fragments<B::kAlongK, kPitchB>(fb, tile_b + place_b, col0, kk);
#pragma unroll
      for (int r = 0; r < kRows / 16; ++r) {
#pragma unroll
        for (int c = 0; c < kCols / 8; ++c) {
          const uint32_t half[2] = {fb[c / 2][c % 2 * 2], fb[c / 2][c % 2 * 2 + 1]};
          mma_m16n8k16<T>(sums[r][c], fa[r], half, sums[r][c]);
        }
        if constexpr (kSumsRows<E>) {
          const uint32_t ones = packed<T>(1.0f, 1.0f), of_ones[2] = {ones, ones};
          mma_m16n8k16<T>(row_sums[r], fa[r], of_ones, row_sums[r]);
        }
      }
    }
  }
  cp_async_wait<0>();
  const auto row_of = [&](int r, int e) { return tile.row + row0 + r * 16 + lane / 4 + e / 2 * 8; };
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int r = 0; r < kRows / 16; ++r) {
#pragma unroll
      for (int c = 0; c < kCols / 8; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) f(row_of(r, e), tile.col + col0 + c * 8 + lane % 4 * 2 + e % 2, sums[r][c][e]);
      }
    }
  };
  const auto each_row = [&](auto&& f) {
    if constexpr (kSumsRows<E>) {
      if (col0 != 0 || lane % 4 != 0) return;
#pragma unroll
      for (int r = 0; r < kRows / 16; ++r) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) f(row_of(r, e), row_sums[r][e]);
      }
    }
  };
  put_tile<kJoins<A, B>>(plan, tile, offset[2], to, each, each_row);
}

// ---- Parts of k

// C from its parts, added in order, and the sums of A's rows; one element a thread in a grid-stride loop.
template <class T, class E>
__global__ void add_parts(GemmPlan plan, Strided<3> batch, Target<T, E> to, Divider rows, Divider cols) {
  const int64_t numbers = plan.batches * plan.m * plan.n;
  for (int64_t u = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; u < numbers; u += int64_t{blockDim.x} * gridDim.x) {
    const int64_t line = cols.quotient(u), b = rows.quotient(line);
    Accum<T> sum = 0;
    for (int64_t s = 0; s < plan.splits; ++s) sum += to.partial[s * numbers + u];
    int64_t offset[3];
    batch.offsets(b, offset);
    to.finish(plan, b, offset[2], line - b * plan.m, u - line * plan.n, sum);
  }
  if constexpr (kSumsRows<E>) {
    const int64_t lines = plan.batches * plan.m;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < lines; i += int64_t{blockDim.x} * gridDim.x) {
      Accum<T> sum = 0;
      for (int64_t s = 0; s < plan.splits; ++s) sum += to.partial[plan.workspace() + s * lines + i];
      to.epilogue.sums[i] = T(sum);
    }
  }
}

// ---- Launch

template <int kTile, class T, class A, class B, class E>
void launch_tiles(const Gpu& on, const Grid& blocks, const GemmPlan& plan, const A& a, const B& b,
                  const Strided<3>& batch, const Target<T, E>& to) {
  Grid grid = blocks;
  if constexpr (kOnTensorCores<T>) {
    grid.threads = kMmaThreads<kTile>;
    grid.shared = kMmaBytes<A, B, kTile>;
    on.launch(gemm_by_warps<T, kTile, A, B, E>, grid, plan, a, b, batch, to);
  } else {
    grid.threads = 256;
    on.launch(gemm_by_threads<T, kTile, A, B, E>, grid, plan, a, b, batch, to);
  }
}

template <class T, class A, class B, class E>
void launch_gemm(const Gpu& on, GemmPlan plan, const A& a, const B& b, const Strided<3>& batch, Target<T, E> to) {
  plan.joins = plan.joins && kJoins<A, B>;
  if (plan.joins) to.tickets = on.tickets();
  const int64_t tiles = plan.row_tiles * plan.col_tiles * plan.batches;
  if (tiles == 0) return;
  constexpr int64_t kAcross = int64_t{1} << 30;
  const Grid grid{.blocks = dim3(static_cast<unsigned>(std::min(tiles, kAcross)), blocks_for(tiles, kAcross),
                                 static_cast<unsigned>(plan.splits))};
  if constexpr (std::is_same_v<T, double>) {
    launch_tiles<64>(on, grid, plan, a, b, batch, to);
  } else if (plan.tile == 128) {
    launch_tiles<128>(on, grid, plan, a, b, batch, to);
  } else {
    launch_tiles<64>(on, grid, plan, a, b, batch, to);
  }
  if (plan.splits == 1 || plan.joins) return;
  const int64_t numbers = plan.batches * plan.m * plan.n;
  on.launch(add_parts<T, E>,
            Grid{.blocks = static_cast<unsigned>(std::min<int64_t>((numbers + 255) / 256, 132 * 8)), .threads = 256},
            plan, batch, to, Divider(plan.m), Divider(plan.n));
}

// A matrix as an operand. `line` is the stride of its lines, `k` the one along them; `steps` are the offsets of its
// batches.
template <bool kAlongK, class T>
[[nodiscard]] Lines<T, kAlongK> lines_of(const T* p, int64_t line, int64_t k, int64_t lines, int64_t depth,
                                         std::span<const int64_t> steps = {}) {
  const int64_t inner = kAlongK ? k : line, outer = kAlongK ? line : k;
  bool vectors = inner == 1 && outer % kVec<T> == 0 && aligned16(p);
  for (const int64_t step : steps) vectors = vectors && step % kVec<T> == 0;
  return {p, line, k, lines, depth, vectors};
}
// Calls f with that operand, its chunks along the one of its two strides that is 1.
template <class T, class F>
void with_lines(const T* p, int64_t line, int64_t k, int64_t lines, int64_t depth, std::span<const int64_t> steps,
                F&& f) {
  if (k == 1 || (line != 1 && depth >= lines))
    f(lines_of<true>(p, line, k, lines, depth, steps));
  else
    f(lines_of<false>(p, line, k, lines, depth, steps));
}

// The contract of cpu::gemm_batched without alpha and beta. A single product of 16-bit numbers that fills a device of
// compute capability 9.0 goes to gemm_hopper_device.cuh there, and has other bits than elsewhere. `to` has y, its row
// step and biases. `partial` is set by the caller where the plan has a workspace.
template <class T>
void gemm_batched(const Gpu& on, const GemmPlan& plan, std::span<const BatchDim> dims, Matrix<T> a, Matrix<T> b,
                  const Target<T>& to) {
  if (plan.m * plan.n * plan.batches == 0) return;
  if constexpr (kOnTensorCores<T>) {
    const bool single = plan.batches == 1 && plan.splits == 1 && plan.tile == 128 && !to.row_bias;
    if (single &&
        hopper_made(hopper_product<T>({plan.m, plan.n, plan.k}, a, b, to.y, to.row_step, to.col_bias), on.stream))
      return;
  }
  Strided<3> batch;
  batch.rank = std::max(1, int(dims.size()));
  int64_t a_steps[kMaxRank] = {}, b_steps[kMaxRank] = {};
  for (size_t d = 0; d < dims.size(); ++d) {
    batch.sizes[d] = Divider(dims[d].size);
    batch.steps[0][d] = a_steps[d] = dims[d].a;
    batch.steps[1][d] = b_steps[d] = dims[d].b;
    batch.steps[2][d] = dims[d].c;
  }
  with_lines(a.data, a.row, a.col, plan.m, plan.k, {a_steps, dims.size()}, [&](const auto& left) {
    with_lines(b.data, b.col, b.row, plan.n, plan.k, {b_steps, dims.size()},
               [&](const auto& right) { launch_gemm(on, plan, left, right, batch, to); });
  });
}

// Instantiated in gemm_batched.cu.
#define LEVIN_GEMM_BATCHED_OF(EXTERN, T)                                                                             \
  EXTERN template void gemm_batched<T>(const Gpu&, const GemmPlan&, std::span<const BatchDim>, Matrix<T>, Matrix<T>, \
                                       const Target<T>&);
#define LEVIN_GEMM_BATCHED(EXTERN)      \
  LEVIN_GEMM_BATCHED_OF(EXTERN, float)  \
  LEVIN_GEMM_BATCHED_OF(EXTERN, double) \
  LEVIN_GEMM_BATCHED_OF(EXTERN, f16)    \
  LEVIN_GEMM_BATCHED_OF(EXTERN, bf16)
LEVIN_GEMM_BATCHED(extern)

// y = a b, dense [m, n], and sums [m]: the rows of a added up.
template <class T>
void gemm_with_row_sums(const Gpu& on, const GemmPlan& plan, Matrix<T> a, Matrix<T> b, T* y, T* sums,
                        Accum<T>* partial) {
  Strided<3> single;
  single.rank = 1;
  Target<T, RowSums<T>> to{.y = y, .row_step = plan.n, .partial = partial};
  to.epilogue.sums = sums;
  with_lines(a.data, a.row, a.col, plan.m, plan.k, {}, [&](const auto& left) {
    with_lines(b.data, b.col, b.row, plan.n, plan.k, {},
               [&](const auto& right) { launch_gemm(on, plan, left, right, single, to); });
  });
}

}  // namespace levin::kernels::gpu
