// Sums by index on devices, in a fixed order without atomics on floats: positions are sorted by where they go, and the
// positions of one destination, a run, are added in their order. The host decides nothing by values: a graph records
// all.
//
// Note [Long runs]
// The sum of a run adds one element after another. To save one thread the million steps of a run of a million,
// kRunChunk neighbours in sorted order that belong to one run are summed first, in parallel, and count as one step.
// Where chunks begin depends on the sorted order alone, and so do the bits of the result.
//
//   Grouping(n, bound)          n keys below `bound`; the key `bound` belongs nowhere. bytes() of scratch memory.
//   sort_by_key<K>(on, grouping, key_of, scratch)   K: uint32_t, or uint64_t when grouping.is_wide()
//   sum_rows(...), sum_elements(...)                see below
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/device/bits.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/hd.h"

namespace levin::kernels {

// a + b; integers wrap around.
template <class T>
LEVIN_HD T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return static_cast<T>(a + b);
  }
}
// What sums by index are computed in.
template <class T>
using IndexSum = std::conditional_t<std::is_integral_v<T>, T, Accum<T>>;

namespace gpu {

// ---- Sorting: least significant digit first, 8 bits a digit, stable.

inline constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
inline constexpr int kGroupThreads = 256, kGroupWarps = kGroupThreads / 32, kGroupRounds = 8;
static_assert(kDigits == kGroupThreads);
inline constexpr std::int64_t kGroupTile = kGroupThreads * kGroupRounds;

struct Grouping {
  std::int64_t n, bound, tiles;
  Grouping(std::int64_t n_, std::int64_t bound_) : n(n_), bound(bound_), tiles((n_ + kGroupTile - 1) / kGroupTile) {}
  [[nodiscard]] bool is_wide() const { return (static_cast<std::uint64_t>(std::max(n, bound)) >> 32) != 0; }
  [[nodiscard]] std::int64_t bytes() const {
    return (4 * n + kDigits * tiles + kDigits) * std::int64_t{is_wide() ? 8 : 4};
  }
};

// Positions in the order of their keys.
template <class K>
struct KeyOrder {
  const K *key, *at;
  std::int64_t n;
};

// A pass reads keys and positions from the pass before, the first one calls key_of(position).
template <class K, class F>
struct FirstKeys {
  F key_of;
  __device__ K key(std::int64_t i) const { return static_cast<K>(key_of(i)); }
  __device__ K at(std::int64_t i) const { return static_cast<K>(i); }
};
template <class K>
struct SortedKeys {
  const K *keys, *positions;
  __device__ K key(std::int64_t i) const { return keys[i]; }
  __device__ K at(std::int64_t i) const { return positions[i]; }
};

// counts[digit, tile]: how often the digit stands in the tile.
template <class K, class In>
__global__ void count_digits(In in, std::int64_t n, int shift, std::int64_t tiles, K* counts) {
  LEVIN_SHARED(unsigned, count, kDigits);
  count[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kGroupRounds; ++r) {
    const std::int64_t i = std::int64_t{blockIdx.x} * kGroupTile + r * kGroupThreads + threadIdx.x;
    if (i < n) atomicAdd(count + (in.key(i) >> shift) % kDigits, 1u);
  }
  __syncthreads();
  counts[threadIdx.x * tiles + blockIdx.x] = count[threadIdx.x];
}

// A warp a digit: its counts become the sums of those before them in its row, totals[digit] that of the row.
template <class K>
__global__ void sum_digits(K* counts, K* totals, std::int64_t tiles) {
  const unsigned lane = threadIdx.x % 32, digit = blockIdx.x * kGroupWarps + threadIdx.x / 32;
  K* const row = counts + digit * tiles;
  K before = 0;
  for (std::int64_t first = 0; first < tiles; first += 32) {
    const std::int64_t i = first + lane;
    const K own = i < tiles ? row[i] : K(0), sum = warp_scan(own);
    if (i < tiles) row[i] = before + sum - own;
    before += __shfl_sync(kAllLanes, sum, 31);
  }
  if (lane == 0) totals[digit] = before;
}

// Each tile to its places. A warp has kGroupRounds rows of 32 items that follow each other, so that ranks are stable.
template <class K, class In>
__global__ void place_digits(In in, std::int64_t n, int shift, std::int64_t tiles, const K* counts, const K* totals,
                             K* key, K* at) {
  LEVIN_SHARED(unsigned, count, kDigits* kGroupWarps);
  LEVIN_SHARED(K, start, kDigits * kGroupWarps);
  LEVIN_SHARED(K, scratch, kGroupWarps);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int w = 0; w < kGroupWarps; ++w) count[w * kDigits + threadIdx.x] = 0;
  __syncthreads();

  const std::int64_t first = std::int64_t{blockIdx.x} * kGroupTile + warp * (32 * kGroupRounds) + lane;
  K own[kGroupRounds];
  unsigned rank[kGroupRounds];
#pragma unroll
  for (int r = 0; r < kGroupRounds; ++r) {
    const bool valid = first + r * 32 < n;
    own[r] = valid ? in.key(first + r * 32) : K(0);
    const unsigned digit = valid ? unsigned((own[r] >> shift) % kDigits) : unsigned{kDigits};
    const unsigned peers = __match_any_sync(kAllLanes, digit), below = peers & ((1u << lane) - 1);
    unsigned* const mine = count + warp * kDigits + digit;
    const unsigned before = valid ? *mine : 0;
    __syncwarp();
    if (valid && below == 0) *mine = before + unsigned(__popc(peers));
    __syncwarp();
    rank[r] = before + unsigned(__popc(below));
  }
  __syncthreads();

  const K total = totals[threadIdx.x];
  K next = block_scan<kGroupThreads>(total, scratch) - total + counts[threadIdx.x * tiles + blockIdx.x];
  for (int w = 0; w < kGroupWarps; ++w) {
    start[w * kDigits + threadIdx.x] = next;
    next += count[w * kDigits + threadIdx.x];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kGroupRounds; ++r) {
    if (first + r * 32 >= n) continue;
    const K to = start[warp * kDigits + (own[r] >> shift) % kDigits] + rank[r];
    key[to] = own[r];
    at[to] = in.at(first + r * 32);
  }
}

// key_of(i) gives the key of position i on the device, at most grouping.bound.
template <class K, class F>
[[nodiscard]] KeyOrder<K> sort_by_key(const Gpu& on, const Grouping& grouping, const F& key_of, void* scratch) {
  const std::int64_t n = grouping.n, tiles = grouping.tiles;
  K* from = static_cast<K*>(scratch);
  K* to = from + 2 * n;
  K *const counts = from + 4 * n, *const totals = counts + kDigits * tiles;
  const Grid all{.blocks = blocks_for(tiles, 1), .threads = kGroupThreads};
  const auto pass = [&](const auto& in, int shift) {
    using In = std::remove_cvref_t<decltype(in)>;
    on.launch(count_digits<K, In>, all, in, n, shift, tiles, counts);
    on.launch(sum_digits<K>, Grid{.blocks = tiles == 0 ? 0u : kDigits / kGroupWarps, .threads = kGroupThreads}, counts,
              totals, tiles);
    on.launch(place_digits<K, In>, all, in, n, shift, tiles, counts, totals, to, to + n);
    std::swap(from, to);
  };
  pass(FirstKeys<K, F>{key_of}, 0);
  const int bits = std::bit_width(static_cast<std::uint64_t>(grouping.bound));
  for (int shift = kDigitBits; shift < bits; shift += kDigitBits) pass(SortedKeys<K>{from, from + n}, shift);
  return {from, from + n, n};
}

// ---- Sums of runs

inline constexpr std::int64_t kRunChunk = 128;  // see Note [Long runs]

// The sum of chunk c, column by column: partial[o, c, inner], of the chunks that lie in one run.
// A thread has V columns of src [outer, n, inner].
template <int V, class T, class K>
__global__ void sum_chunks(KeyOrder<K> in, const T* src, IndexSum<T>* partial, std::int64_t items, Divider columns,
                           Divider chunks) {
  const std::int64_t u = own_item();
  if (u >= items) return;
  const std::int64_t t = columns.quotient(u), column = (u - t * std::int64_t(columns.divisor)) * V,
                     o = chunks.quotient(t), first = (t - o * std::int64_t(chunks.divisor)) * kRunChunk,
                     inner = std::int64_t(columns.divisor) * V;
  if (in.key[first] != in.key[first + kRunChunk - 1]) return;
  IndexSum<T> sum[V] = {};
  const T* const from = src + o * in.n * inner + column;
#pragma unroll 4
  for (std::int64_t i = first; i < first + kRunChunk; ++i) {
    const Vec<T, V> x = load<V>(from + std::int64_t(in.at[i]) * inner);
    for (int j = 0; j < V; ++j) sum[j] = wrapping_sum(sum[j], IndexSum<T>(x[j]));
  }
  for (int j = 0; j < V; ++j) partial[t * inner + column + j] = sum[j];
}

// sum += the positions [first, last) of the sorted order, which are of one run.
template <int V, class T, class K>
__device__ __forceinline__ void add_run(IndexSum<T> (&sum)[V], std::int64_t first, std::int64_t last, const K* at,
                                        const T* from, const IndexSum<T>* partial, std::int64_t inner) {
  const auto add = [&](std::int64_t begin, std::int64_t end) {
#pragma unroll 4
    for (std::int64_t i = begin; i < end; ++i) {
      const Vec<T, V> x = load<V>(from + std::int64_t(at[i]) * inner);
      for (int j = 0; j < V; ++j) sum[j] = wrapping_sum(sum[j], IndexSum<T>(x[j]));
    }
  };
  const std::int64_t c = (first + kRunChunk - 1) / kRunChunk, end = last / kRunChunk;
  if (c >= end) return add(first, last);
  add(first, c * kRunChunk);
#pragma unroll 4
  for (std::int64_t k = c; k < end; ++k) {
    for (int j = 0; j < V; ++j) sum[j] = wrapping_sum(sum[j], partial[k * inner + j]);
  }
  add(end * kRunChunk, last);
}

// begin[r]: the first place in sorted order whose key is r or more, for r <= rows.
template <class K, class B>
__global__ void find_runs(KeyOrder<K> in, B* begin, std::int64_t rows) {
  const std::int64_t r = own_item();
  if (r > rows) return;
  std::int64_t low = 0, high = in.n;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (std::int64_t(in.key[middle]) < r)
      low = middle + 1;
    else
      high = middle;
  }
  begin[r] = B(low);
}

template <int V, class T, class K>
__global__ void sum_row_items(const K* at, const K* begin, const T* x, const T* src, const IndexSum<T>* partial, T* y,
                              std::int64_t items, Divider columns, Divider rows, std::int64_t n, std::int64_t skip) {
  const std::int64_t u = own_item();
  if (u >= items) return;
  const std::int64_t t = columns.quotient(u), column = (u - t * std::int64_t(columns.divisor)) * V,
                     o = rows.quotient(t), r = t - o * std::int64_t(rows.divisor),
                     inner = std::int64_t(columns.divisor) * V;
  IndexSum<T> sum[V] = {};
  if (x) {
    const Vec<T, V> start = load<V>(x + u * V);
    for (int j = 0; j < V; ++j) sum[j] = IndexSum<T>(start[j]);
  }
  if (r != skip) {
    add_run<V, T, K>(sum, begin[r], begin[r + 1], at, src + o * n * inner + column,
                     partial + o * (n / kRunChunk) * inner + column, inner);
  }
  Vec<T, V> out;
  for (int j = 0; j < V; ++j) out[j] = T(sum[j]);
  store(y + u * V, out);
}

// Elements of IndexSum<T> that `partial` of sum_rows and sum_elements needs.
[[nodiscard]] inline std::int64_t partial_sums(std::int64_t outer, std::int64_t n, std::int64_t inner) {
  return outer * (n / kRunChunk) * inner;
}

// y[o, r, :] = x[o, r, :] + the src[o, i, :] of the positions i with the key r, in order; but nothing for r == skip.
// x, y: [outer, rows, inner], src: [outer, n, inner], contiguous; x may be null (zeros). begin: [rows + 1].
template <class T, class K>
void sum_rows(const Gpu& on, const KeyOrder<K>& in, const T* x, const T* src, T* y, std::int64_t outer,
              std::int64_t rows, std::int64_t inner, std::int64_t skip, IndexSum<T>* partial, K* begin) {
  if (outer * rows * inner == 0) return;
  on.launch(find_runs<K, K>, item_grid(rows + 1), in, begin, rows);
  const auto launch = [&]<int V>(std::integral_constant<int, V>) {
    const Divider columns(inner / V);
    const std::int64_t chunks = in.n / kRunChunk;
    if (chunks > 0) {
      const std::int64_t items = outer * chunks * (inner / V);
      on.launch(sum_chunks<V, T, K>, item_grid(items), in, src, partial, items, columns, Divider(chunks));
    }
    const std::int64_t items = outer * rows * (inner / V);
    on.launch(sum_row_items<V, T, K>, item_grid(items), in.at, begin, x, src, partial, y, items, columns, Divider(rows),
              in.n, skip);
  };
  if (inner % kVec<T> == 0 && aligned16(x) && aligned16(src) && aligned16(y))
    launch(std::integral_constant<int, kVec<T>>{});
  else
    launch(std::integral_constant<int, 1>{});
}

// The thread at the head of a run sums it.
template <class T, class K>
__global__ void sum_element_runs(KeyOrder<K> in, const T* src, const IndexSum<T>* partial, T* y, std::int64_t bound) {
  const std::int64_t i = own_item();
  if (i >= in.n) return;
  const K key = in.key[i];
  if (std::int64_t(key) == bound || (i > 0 && in.key[i - 1] == key)) return;
  std::int64_t low = i, step = 1;
  while (low + step < in.n && in.key[low + step] == key) low += step, step *= 2;
  std::int64_t high = min(static_cast<long long>(in.n), static_cast<long long>(low + step));
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (in.key[middle] == key)
      low = middle;
    else
      high = middle;
  }
  IndexSum<T> sum[1] = {IndexSum<T>(y[key])};
  add_run<1, T, K>(sum, i, high, in.at, src, partial, 1);
  y[key] = T(sum[0]);
}

// y[key] += the src[i] of the positions i with that key, in order; keys of `bound` are left out. src: [n].
template <class T, class K>
void sum_elements(const Gpu& on, const KeyOrder<K>& in, const T* src, T* y, std::int64_t bound, IndexSum<T>* partial) {
  const std::int64_t chunks = in.n / kRunChunk;
  if (chunks > 0)
    on.launch(sum_chunks<1, T, K>, item_grid(chunks), in, src, partial, chunks, Divider(1), Divider(chunks));
  on.launch(sum_element_runs<T, K>, item_grid(in.n), in, src, partial, y, bound);
}

}  // namespace gpu
}  // namespace levin::kernels
