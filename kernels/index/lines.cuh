// Scatters along one dimension on devices, where a block has whole lines. x, y: [outer, n, inner], index and src:
// [outer, k, inner], contiguous. A line is the n elements of y, and the k of src, at one place of outer and inner.
//
//   LineTiles(outer, n, k, inner).fits(bytes of an element)      whether a block's shared memory holds a line
//   add_lines(on, range, LineTiles, const T* x, index, const T* src, T* y)     y = x; y[o, index[i], c] += src[i]
//   write_lines(on, range, LineTiles, const U* x, index, const U* src, U* y)   the same with =, the last i wins
//
// Note [Scatters within lines]
// No index leads out of its line. So a block reads the indices of its lines once, and links the positions that name one
// element to a list in shared memory: what was linked last is its head. The order of a list depends on the threads, the
// order of the sum does not. An element of up to four positions has them sorted in registers, up to kLineRun it looks
// for the next higher one each time, and both add in the order of positions. The positions of a longer list are added
// by a warp: lane l takes every 32nd position from l on in their order, and the 32 sums are added pair by pair. How
// positions are counted follows from the shapes, and so do the bits.
// Where inner is 1 a tile is lines that follow each other, otherwise neighbours in inner.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/hd.h"
#include "kernels/index/group.cuh"

namespace levin::kernels::gpu {

inline constexpr std::int64_t kLongestLine = 8192;  // of n and k
inline constexpr unsigned kNoPosition = 0xffff, kLineRun = 16, kLineAhead = 4;

struct LineTiles {
  std::int64_t n, k, inner, lines;  // lines: of all
  std::int64_t together = 1;        // of a tile
  unsigned shift = 0;               // `together` as a power of two, where inner is not 1
  Divider across, per_line;         // tiles side by side in inner; positions of a line

  LineTiles(std::int64_t outer, std::int64_t n_, std::int64_t k_, std::int64_t inner_)
      : n(n_), k(k_), inner(inner_), lines(outer * inner_), per_line(std::max<std::int64_t>(1, k_)) {
    // Enough for the threads of a block, and neighbours in inner that fill 32 bytes or more of memory.
    const std::int64_t longest = std::max({n, k, std::int64_t{1}}), worth = 1024 / longest;
    if (inner == 1) {
      together = std::clamp<std::int64_t>(worth, 1, std::max<std::int64_t>(1, outer));
    } else {
      const auto up =
          static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(inner, std::int64_t{1}))));
      while (together < up && together < std::max<std::int64_t>(worth, 8)) together *= 2, ++shift;
    }
    across = Divider(std::max<std::int64_t>(1, (inner + together - 1) / together));
  }
  [[nodiscard]] std::int64_t count() const {
    return inner == 1 ? (lines + together - 1) / together : lines / inner * std::int64_t(across.divisor);
  }
  // Of one list head for each element of y, and the value and the next position for each one of src.
  [[nodiscard]] std::int64_t shared(std::int64_t element) const { return 4 * places(n) + (2 + element) * places(k); }
  // Even, so that what follows an array in shared memory is aligned.
  [[nodiscard]] __host__ __device__ std::int64_t places(std::int64_t of_line) const {
    return (of_line * together + 1) / 2 * 2;
  }
  [[nodiscard]] bool fits(std::int64_t element) const {
    return lines * n * k > 0 && std::max(n, k) * together <= kLongestLine && shared(element) <= 96 * 1024;
  }
  [[nodiscard]] Grid grid(std::int64_t element) const {
    return {.blocks = blocks_for(count(), 1),
            .threads = std::max(n, k) * together > 2048 ? 1024u : 256u,
            .shared = static_cast<unsigned>(shared(element))};
  }
};

// The lines of a block. Positions of src, and elements of y, are counted line by line where inner is 1, otherwise side
// by side.
struct OwnLines {
  std::int64_t n, inner, first_x, first_i;     // the tile's first element of x and y, and of index and src
  unsigned elements, positions, shift, there;  // there: lines of those side by side
  Divider per_line;
  __device__ explicit OwnLines(const LineTiles& t) : n(t.n), inner(t.inner), shift(t.shift), per_line(t.per_line) {
    std::int64_t lines = t.together;
    if (inner == 1) {
      const std::int64_t line = std::int64_t{blockIdx.x} * t.together;
      lines = min(t.together, t.lines - line);
      first_x = line * n;
      first_i = line * t.k;
      there = 1;
    } else {
      const std::int64_t o = t.across.quotient(blockIdx.x),
                         c = (blockIdx.x - o * std::int64_t(t.across.divisor)) * t.together;
      first_x = o * n * inner + c;
      first_i = o * t.k * inner + c;
      there = unsigned(min(t.together, inner - c));
    }
    elements = unsigned(lines * n);
    positions = unsigned(lines * t.k);
  }
  __device__ bool holds(unsigned at) const { return (at & ((1u << shift) - 1)) < there; }
  // How far the element or position `at` is from the tile's first.
  __device__ std::int64_t offset(unsigned at) const {
    return shift == 0 ? at : (at >> shift) * inner + (at & ((1u << shift) - 1));
  }
  // The element that the index of position i names.
  __device__ unsigned element(unsigned i, std::int64_t index) const {
    return inner == 1 ? unsigned(per_line.quotient(i)) * unsigned(n) + unsigned(index)
                      : (unsigned(index) << shift) + (i & ((1u << shift) - 1));
  }
};

// Brings the values of src to shared memory and calls named(position, element) for every index in its range.
template <class T, class F>
__device__ __forceinline__ void each_position(const IndexRange& range, const OwnLines& own, const std::int64_t* index,
                                              const T* src, T* values, const F& named) {
  for (unsigned first = threadIdx.x; first < own.positions; first += kLineAhead * blockDim.x) {
    std::int64_t at[kLineAhead];
    T value[kLineAhead];
    bool is_there[kLineAhead];
#pragma unroll
    for (unsigned a = 0; a < kLineAhead; ++a) {
      const unsigned i = first + a * blockDim.x;
      is_there[a] = i < own.positions && own.holds(i);
      if (!is_there[a]) continue;
      at[a] = index[own.first_i + own.offset(i)];
      value[a] = src[own.first_i + own.offset(i)];
    }
#pragma unroll
    for (unsigned a = 0; a < kLineAhead; ++a) {
      const unsigned i = first + a * blockDim.x;
      if (!is_there[a] || !range.holds(at[a])) continue;
      values[i] = value[a];
      named(i, own.element(i, at[a]));
    }
  }
}

template <class T>
__global__ __launch_bounds__(1024) void add_line_tiles(IndexRange range, LineTiles tiles, const T* x,
                                                       const std::int64_t* index, const T* src, T* y) {
  using Sum = IndexSum<T>;
  LEVIN_SHARED_DYNAMIC(unsigned, head);
  const OwnLines own(tiles);
  T* const values = reinterpret_cast<T*>(head + tiles.places(tiles.n));
  auto* const next = reinterpret_cast<std::uint16_t*>(values + tiles.places(tiles.k));
  for (unsigned j = threadIdx.x; j < own.elements; j += blockDim.x) head[j] = kNoPosition;
  __syncthreads();
  each_position(range, own, index, src, values,
                [&](unsigned i, unsigned j) { next[i] = std::uint16_t(atomicExch(head + j, i)); });
  __syncthreads();

  const unsigned lane = threadIdx.x % 32;
  for (unsigned j = threadIdx.x; j - lane < own.elements; j += blockDim.x) {
    const bool is_there = j < own.elements && own.holds(j);
    Sum sum = 0;
    unsigned at[4], rest = is_there ? head[j] : kNoPosition, count = 0;
    if (is_there) sum = Sum(x[own.first_x + own.offset(j)]);
#pragma unroll
    for (unsigned& p : at) {
      p = rest;
      if (rest != kNoPosition) rest = next[rest];
    }
    if (rest == kNoPosition) {
      const auto order = [&](int a, int b) {
        const unsigned low = min(at[a], at[b]), high = max(at[a], at[b]);
        at[a] = low;
        at[b] = high;
      };
      order(0, 1), order(2, 3), order(0, 2), order(1, 3), order(1, 2);
#pragma unroll
      for (const unsigned p : at)
        if (p != kNoPosition) sum = wrapping_sum(sum, Sum(values[p]));
    } else {
      count = 4;
      for (; rest != kNoPosition && count <= kLineRun; rest = next[rest]) ++count;
    }
    if (count > 0 && count <= kLineRun) {
      unsigned from = 0;
      for (unsigned r = 0; r < count; ++r) {
        unsigned lowest = kNoPosition;
        for (unsigned p = head[j]; p != kNoPosition; p = next[p])
          if (p >= from && p < lowest) lowest = p;
        sum = wrapping_sum(sum, Sum(values[lowest]));
        from = lowest + 1;
      }
    }
    for (unsigned many = __ballot_sync(kAllLanes, count > kLineRun); many != 0; many &= many - 1) {
      const int of = __ffs(int(many)) - 1;
      const unsigned wanted = j - lane + unsigned(of);
      std::conditional_t<sizeof(Sum) == 1, unsigned, Sum> part = 0;
      for (unsigned i = lane; i < own.positions; i += 32) {
        if (!own.holds(i)) continue;
        const std::int64_t named = index[own.first_i + own.offset(i)];
        const bool is_inside = std::uint64_t(named) < std::uint64_t(range.bound);
        if (is_inside && own.element(i, named) == wanted) part = wrapping_sum(part, decltype(part)(values[i]));
      }
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) part = wrapping_sum(part, from_lane_xor(part, lanes));
      if (int(lane) == of) sum = wrapping_sum(sum, Sum(part));
    }
    if (is_there) y[own.first_x + own.offset(j)] = T(sum);
  }
}

template <class U>
__global__ __launch_bounds__(1024) void write_line_tiles(IndexRange range, LineTiles tiles, const U* x,
                                                         const std::int64_t* index, const U* src, U* y) {
  LEVIN_SHARED_DYNAMIC(unsigned, last);
  const OwnLines own(tiles);
  U* const values = reinterpret_cast<U*>(last + tiles.places(tiles.n));
  for (unsigned j = threadIdx.x; j < own.elements; j += blockDim.x) last[j] = 0;
  __syncthreads();
  each_position(range, own, index, src, values, [&](unsigned i, unsigned j) { atomicMax(last + j, i + 1); });
  __syncthreads();
  for (unsigned j = threadIdx.x; j < own.elements; j += blockDim.x) {
    if (!own.holds(j)) continue;
    const std::int64_t at = own.first_x + own.offset(j);
    y[at] = last[j] == 0 ? x[at] : values[last[j] - 1];
  }
}

template <class T>
void add_lines(const Gpu& on, const IndexRange& range, const LineTiles& tiles, const T* x, const std::int64_t* index,
               const T* src, T* y) {
  on.launch(add_line_tiles<T>, tiles.grid(sizeof(T)), range, tiles, x, index, src, y);
}
template <class U>
void write_lines(const Gpu& on, const IndexRange& range, const LineTiles& tiles, const U* x, const std::int64_t* index,
                 const U* src, U* y) {
  on.launch(write_line_tiles<U>, tiles.grid(sizeof(U)), range, tiles, x, index, src, y);
}

}  // namespace levin::kernels::gpu
