// Copies of permuted tensors on devices that launch kernels: out = x over a common shape where neighbours in out are
// not neighbours in x. Element by element one of the two would move whole sectors of memory for single elements.
//
//   transposed<To, From>(on, plan, To* out, const From* x)   whether it has done it; plan: out and x, collapsed. To and
//       From are one type, or f32, f16 and bf16; x may be expanded, neither need be aligned.
//
// Note [Two sides of a transpose]
// Dimensions whose elements lie together in x, innermost first, are side a, those that lie together in out are side b,
// until each fills a tile or they would meet; the others count batches. So an element (b, a) is x[x_of(b) + a] and
// out[out_of(a) + b], for any permutation. A block moves a tile [kSide, kSide] through shared memory: it reads along
// a and writes along b, 16 bytes a thread and access where the addresses allow, else neighbouring elements by
// neighbouring threads. Where rows begin is computed once a tile, by multiplications (Divider).
//
// Chunk c (16 bytes) of row b lies in place c ^ (b / elements a chunk) % 8: eight threads that gather columns of
// eight chunks of rows then read from different banks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/device/strided.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/pointwise/pointwise.cuh"

namespace levin::kernels::gpu {

struct TransposePlan {
  Strided<1> x_of, out_of;  // where b begins in x, and a in out
  Strided<2> batch;         // steps in out and in x
  std::int64_t a = 1, b = 1, batches = 1;
  Divider a_tiles, b_tiles;
  bool x_vectors = false, out_vectors = false;
};

// Rows and columns of a tile, and threads: each has four vectors in flight.
template <class To>
inline constexpr int kTransposeSide = sizeof(To) == 1   ? 128
                                      : sizeof(To) == 8 ? 32
                                                        : 64;
template <class To>
inline constexpr int kTransposeThreads = kTransposeSide<To>* kTransposeSide<To>* int(sizeof(To)) / 64;

// Threads that shall share a processor: as many as the registers of their vectors allow.
template <class To, class From>
inline constexpr int kTransposeAtOnce = sizeof(To) == 1                        ? 512
                                        : sizeof(To) == 2 && sizeof(From) == 2 ? 1280
                                                                               : 1024;

// How many elements are read at a time: 16 bytes of the wider type.
template <class To, class From>
inline constexpr int kTransposeRead = kVec<From> < kVec<To> ? kVec<From> : kVec<To>;

// Grid: x and y count batches, tiles along a, tiles along b, the last fastest.
template <class To, class From>
__global__ void __launch_bounds__(kTransposeThreads<To>, kTransposeAtOnce<To, From> / kTransposeThreads<To>)
    transpose(TransposePlan plan, To* out, const From* x) {
  constexpr int kSide = kTransposeSide<To>, kThreads = kTransposeThreads<To>, kSize = kVec<To>,
                kRead = kTransposeRead<To, From>;
  LEVIN_SHARED(To, tile, kSide * kSide);
  LEVIN_SHARED(std::int64_t, x_at, kSide);
  LEVIN_SHARED(std::int64_t, out_at, kSide);
  const std::int64_t block = std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const std::int64_t q = plan.b_tiles.quotient(block), batch = plan.a_tiles.quotient(q);
  if (batch >= plan.batches) return;
  const std::int64_t b0 = (block - q * std::int64_t(plan.b_tiles.divisor)) * kSide;
  const std::int64_t a0 = (q - batch * std::int64_t(plan.a_tiles.divisor)) * kSide;
  const int as = int(min(std::int64_t{kSide}, plan.a - a0)), bs = int(min(std::int64_t{kSide}, plan.b - b0));
  const bool whole = as == kSide && bs == kSide;
  std::int64_t offset[2];
  plan.batch.offsets(batch, offset);
  out += offset[0] + b0;
  x += offset[1] + a0;

  const int thread = int(threadIdx.x);
  for (int i = thread; i < 2 * kSide; i += kThreads) {
    std::int64_t at[1] = {0};
    if (i < kSide) {
      if (i < bs) plan.x_of.offsets(b0 + i, at);
      x_at[i] = at[0];
    } else {
      if (i - kSide < as) plan.out_of.offsets(a0 + i - kSide, at);
      out_at[i - kSide] = at[0];
    }
  }
  __syncthreads();

  // Unsigned: signed numbers would take three instructions for each division by a power of two.
  const auto place = [](unsigned b, unsigned a) { return b * kSide + (a / kSize ^ b / kSize % 8) * kSize + a % kSize; };
  if (plan.x_vectors) {
    constexpr unsigned kAcross = kSide / kRead, kEach = kSide * kAcross / kThreads;
    static_assert(kSize % kRead == 0);
    Vec<From, kRead> in[kEach];
#pragma unroll
    for (unsigned k = 0; k < kEach; ++k) {
      const unsigned id = threadIdx.x + k * kThreads;
      const int b = int(id / kAcross), a = int(id % kAcross * kRead);
      if (whole || (b < bs && a + kRead <= as)) {
        in[k] = load_streaming<kRead>(x + x_at[b] + a);
      } else {
        for (int e = 0; e < kRead; ++e) in[k][e] = b < bs && a + e < as ? x[x_at[b] + a + e] : From{};
      }
    }
#pragma unroll
    for (unsigned k = 0; k < kEach; ++k) {
      const unsigned id = threadIdx.x + k * kThreads;
      const int b = int(id / kAcross), a = int(id % kAcross * kRead);
      Vec<To, kRead> as_to;
#pragma unroll
      for (int e = 0; e < kRead; ++e) as_to[e] = To(Wide<From>(in[k][e]));
      store(tile + place(b, a), as_to);
    }
  } else {
#pragma unroll 4
    for (int id = thread; id < kSide * kSide; id += kThreads) {
      const int b = id / kSide, a = id % kSide;
      if (b < bs && a < as) tile[place(b, a)] = To(Wide<From>(x[x_at[b] + a]));
    }
  }
  __syncthreads();

  if (plan.out_vectors) {
    constexpr unsigned kAcross = kSide / kSize, kEach = kSide * kAcross / kThreads;
#pragma unroll
    for (unsigned k = 0; k < kEach; ++k) {
      // Of a warp 8 threads are neighbours along b, 4 along a.
      const unsigned id = threadIdx.x + k * kThreads, rest = id / 32;
      const int b = int((id % 8 + rest % (kAcross / 8) * 8) * kSize), a = int(id / 8 % 4 + rest / (kAcross / 8) * 4);
      if (!whole && (a >= as || b >= bs)) continue;
      Vec<To> v;
      if (whole || b + kSize <= bs) {
        const To* const column = tile + place(b, a);
#pragma unroll
        for (int e = 0; e < kSize; ++e) v[e] = column[e * kSide];
        store_streaming(out + out_at[a] + b, v);
      } else {
        for (int e = 0; b + e < bs; ++e) out[out_at[a] + b + e] = tile[place(b + e, a)];
      }
    }
  } else {
#pragma unroll 4
    for (int id = thread; id < kSide * kSide; id += kThreads) {
      const int a = id / kSide, b = id % kSide;
      if (a < as && b < bs) out[out_at[a] + b] = tile[place(b, a)];
    }
  }
}

// Whether a tiled copy of `plan` pays, and how it is cut. `read` and `write` are the elements of an access.
[[nodiscard]] inline bool plan_transpose(const PointwisePlan& plan, int side, int read, int write, TransposePlan& to) {
  enum Side : std::uint8_t { kBatch, kA, kB };
  const int rank = plan.rank;
  Side of[kMaxRank] = {};
  const auto step = [&](int operand, int d) {
    const auto k = static_cast<std::size_t>(operand);
    return plan.steps[k][static_cast<std::size_t>(d)] / plan.width[k];
  };
  const auto size = [&](int d) { return plan.sizes[static_cast<std::size_t>(d)]; };
  // The dimension that continues `length` elements of x (operand 1) or out (operand 0).
  const auto next = [&](int operand, std::int64_t length) {
    for (int d = 0; d < rank; ++d)
      if (of[d] == kBatch && step(operand, d) == length) return d;
    return -1;
  };
  int order[2][kMaxRank], count[2] = {0, 0};  // of the dimensions of b and of a, innermost first
  std::int64_t length[2] = {1, 1};
  bool open[2] = {true, true};
  while (open[0] || open[1]) {
    const int k = open[1] && (length[1] <= length[0] || !open[0]) ? 1 : 0;  // the shorter side grows
    const int d = length[k] < side ? next(k, length[k]) : -1;
    // Elements of x that serve many of out are found in caches; a tile would not help.
    if (d < 0 || step(1, d) == 0) {
      open[k] = false;
      continue;
    }
    of[d] = k == 1 ? kA : kB;
    order[k][count[k]++] = d;
    length[k] *= size(d);
  }
  // Less than a sector of 32 bytes together: the caches join what a warp reads.
  if (length[0] < 2 * write || length[1] < 2 * write) return false;

  to.b = length[0];
  to.a = length[1];
  to.a_tiles = Divider((to.a + side - 1) / side);
  to.b_tiles = Divider((to.b + side - 1) / side);
  const auto fill = [&](Strided<1>& at, int k) {
    at.rank = count[k];
    for (int i = 0; i < count[k]; ++i) {
      const int d = order[k][count[k] - 1 - i];
      at.sizes[i] = Divider(size(d));
      at.steps[0][i] = step(1 - k, d);
    }
  };
  fill(to.x_of, 0);
  fill(to.out_of, 1);
  to.batch.rank = 0;
  for (int d = 0; d < rank; ++d) {
    if (of[d] != kBatch) continue;
    to.batch.sizes[to.batch.rank] = Divider(size(d));
    to.batch.steps[0][to.batch.rank] = step(0, d);
    to.batch.steps[1][to.batch.rank++] = step(1, d);
    to.batches *= size(d);
  }
  to.batch.rank = std::max(1, to.batch.rank);
  const auto aligned = [&](int operand, int elements, Side along) {
    const auto k = static_cast<std::size_t>(operand);
    if (reinterpret_cast<std::uintptr_t>(plan.data[k]) % (std::size_t(elements) * plan.width[k]) != 0) return false;
    for (int d = 0; d < rank; ++d)
      if (of[d] != along && step(operand, d) % elements != 0) return false;
    return true;
  };
  to.x_vectors = aligned(1, read, kA);
  to.out_vectors = aligned(0, write, kB);
  return true;
}

template <class To, class From>
bool transposed(const Gpu& on, const PointwisePlan& plan, To* out, const From* x) {
  TransposePlan cut;
  constexpr int kSide = kTransposeSide<To>;
  if (plan.numel == 0 || !plan_transpose(plan, kSide, kTransposeRead<To, From>, kVec<To>, cut)) return false;
  const std::int64_t blocks = cut.batches * std::int64_t(cut.a_tiles.divisor) * std::int64_t(cut.b_tiles.divisor);
  constexpr std::int64_t kAcross = std::int64_t{1} << 30;
  on.launch(transpose<To, From>,
            Grid{.blocks = dim3(static_cast<unsigned>(std::min(blocks, kAcross)), blocks_for(blocks, kAcross)),
                 .threads = kTransposeThreads<To>},
            cut, out, x);
  return true;
}

}  // namespace levin::kernels::gpu
