#ifndef LEVIN_KERNELS_NONZERO_CUH
#define LEVIN_KERNELS_NONZERO_CUH
// Where a tensor is not zero. x: n elements, contiguous. In two steps, because the size of the result depends on
// values:
//
//   count_nonzero(on, ...)    how many elements are not zero before each chunk, and in all
//   nonzero(on, ...)          their coordinates, y: [count, rank], in row-major order
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/device/bits.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"
#include "levin/shape.h"

namespace levin::kernels {

template <class T>
LEVIN_HD bool is_nonzero(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x != T(0);
  } else {
    return static_cast<Accum<T>>(x) != 0;
  }
}

namespace cpu {

inline constexpr std::int64_t kNonzeroChunk = 64 * 1024;

// How many of x's n elements are not zero before each chunk of kNonzeroChunk, and in all (the last entry).
template <class T>
std::vector<std::int64_t> count_nonzero(const Cpu& on, const T* x, std::int64_t n) {
  const std::int64_t chunks = (n + kNonzeroChunk - 1) / kNonzeroChunk;
  std::vector<std::int64_t> before(static_cast<size_t>(chunks + 1));
  on.parallel_for(n, kNonzeroChunk, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t count = 0;
    for (std::int64_t i = begin; i < end; ++i) count += is_nonzero(x[i]);
    before[static_cast<size_t>(begin / kNonzeroChunk + 1)] = count;
  });
  for (size_t c = 1; c < before.size(); ++c) before[c] += before[c - 1];
  return before;
}

// y: [before.back(), rank], the coordinates of the elements that are not zero, in row-major order.
template <class T>
void nonzero(const Cpu& on, const T* x, const std::vector<std::int64_t>& before, std::int64_t* y, const Shape& shape) {
  const int rank = shape.rank();
  on.parallel_for(shape.numel(), kNonzeroChunk, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t* to = y + before[static_cast<size_t>(begin / kNonzeroChunk)] * rank;
    for (std::int64_t i = begin; i < end; ++i) {
      if (!is_nonzero(x[i])) continue;
      std::int64_t rest = i;
      for (int d = rank - 1; d >= 0; --d) {
        to[d] = rest % shape[d];
        rest /= shape[d];
      }
      to += rank;
    }
  });
}

}  // namespace cpu

namespace gpu {

// A block's chunk: each of its warps has kRounds rows of 32 elements that follow each other.
inline constexpr int kNonzeroThreads = 256, kRounds = 8;
inline constexpr std::int64_t kNonzeroTile = kNonzeroThreads * kRounds;
[[nodiscard]] inline std::int64_t nonzero_tiles(std::int64_t n) { return (n + kNonzeroTile - 1) / kNonzeroTile; }

// The first element of the calling lane; its others are 32 apart.
__device__ __forceinline__ std::int64_t tile_item() {
  return std::int64_t{blockIdx.x} * kNonzeroTile + threadIdx.x / 32 * (32 * kRounds) + threadIdx.x % 32;
}
// Bits of the lanes whose element of each round is not zero; the warp's count is returned.
template <class T>
__device__ __forceinline__ int find_nonzero(const T* x, std::int64_t n, unsigned (&found)[kRounds]) {
  int count = 0;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const std::int64_t i = tile_item() + r * 32;
    found[r] = __ballot_sync(kAllLanes, i < n && is_nonzero(x[i]));
    count += __popc(found[r]);
  }
  return count;
}

template <class T>
__global__ void count_tiles(const T* x, std::int64_t n, std::int64_t* counts) {
  LEVIN_SHARED(int, scratch, kNonzeroThreads / 32);
  unsigned found[kRounds];
  const int count = find_nonzero(x, n, found);
  const int sum = block_sum<kNonzeroThreads>(threadIdx.x % 32 == 0 ? count : 0, scratch);
  if (threadIdx.x == 0) counts[blockIdx.x] = sum;
}

// One block: counts[i] becomes the sum of those before it, and counts[n] that of all.
inline constexpr int kCountThreads = 1024;
template <class = void>
__global__ void sum_counts(std::int64_t* counts, std::int64_t n) {
  LEVIN_SHARED(long long, scratch, kCountThreads / 32);
  LEVIN_SHARED(long long, last, 1);
  long long before = 0;
  for (std::int64_t first = 0; first < n; first += kCountThreads) {
    const std::int64_t i = first + threadIdx.x;
    const long long own = i < n ? counts[i] : 0;
    const long long sum = block_scan<kCountThreads>(own, scratch);
    if (i < n) counts[i] = before + sum - own;
    if (threadIdx.x == kCountThreads - 1) last[0] = sum;
    __syncthreads();
    before += last[0];
  }
  if (threadIdx.x == 0) counts[n] = before;
}

// counts: [nonzero_tiles(n) + 1]; the last one is the count of all.
template <class T>
void count_nonzero(const Gpu& on, const T* x, std::int64_t n, std::int64_t* counts) {
  const std::int64_t tiles = nonzero_tiles(n);
  on.launch(count_tiles<T>, Grid{.blocks = blocks_for(tiles, 1), .threads = kNonzeroThreads}, x, n, counts);
  on.launch(sum_counts<>, Grid{.threads = kCountThreads}, counts, tiles);
}

struct Sizes {
  int rank;
  Divider size[kMaxRank];
};
template <class T>
__global__ void write_nonzero(const T* x, std::int64_t n, const std::int64_t* before, std::int64_t* y, Sizes shape) {
  LEVIN_SHARED(int, scratch, kNonzeroThreads / 32);
  unsigned found[kRounds];
  const int count = find_nonzero(x, n, found);
  const unsigned lane = threadIdx.x % 32;
  // What the warps before this one found: every thread of a warp gets the sum up to its first lane.
  const int sum = block_scan<kNonzeroThreads>(lane == 0 ? count : 0, scratch);
  std::int64_t row = before[blockIdx.x] + sum - count;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (found[r] >> lane & 1u) {
      std::int64_t* to = y + (row + __popc(found[r] & ((1u << lane) - 1))) * shape.rank;
      std::int64_t rest = tile_item() + r * 32;
      for (int d = shape.rank - 1; d >= 0; --d) {
        const std::int64_t q = shape.size[d].quotient(rest);
        to[d] = rest - q * std::int64_t(shape.size[d].divisor);
        rest = q;
      }
    }
    row += __popc(found[r]);
  }
}

// before: what count_nonzero gave.
template <class T>
void nonzero(const Gpu& on, const T* x, const std::int64_t* before, std::int64_t* y, const Shape& shape) {
  if (shape.numel() == 0) return;
  Sizes sizes{shape.rank(), {}};
  for (int d = 0; d < shape.rank(); ++d) sizes.size[d] = Divider(shape[d]);
  const std::int64_t n = shape.numel();
  on.launch(write_nonzero<T>, Grid{.blocks = blocks_for(nonzero_tiles(n), 1), .threads = kNonzeroThreads}, x, n, before,
            y, sizes);
}

}  // namespace gpu
}  // namespace levin::kernels
#endif
