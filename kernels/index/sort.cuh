#ifndef LEVIN_KERNELS_SORT_CUH
#define LEVIN_KERNELS_SORT_CUH
// Sorting along one dimension. x: [outer, n, inner], contiguous, n < 2^32. Stable; NaN counts as the largest value and
// -0 as equal to 0.
//
//   sort(on, const T* x, T* values, std::int64_t* indices, outer, n, inner, bool descending)
//     values, indices: as x.
//   topk(on, const T* x, T* values, std::int64_t* indices, outer, n, inner, k, bool largest)
//     values, indices: [outer, k, inner], the first k of the sorted order.
//   cpu::kth_places(on, const T* x, std::int64_t* indices, outer, n, inner, ks, bool first_nan)
//     indices: [outer, ks, inner], those at `ks` of the sorted order; of a line with NaN, where first_nan, its first
//     NaN.
// The gpu functions take one more argument: scratch(bytes) gives room, asked for at most twice.
//
// Note [Sorting on a GPU]
// Items are a key and a place, all different, so that every sort of them is stable. A block sorts a tile of kOrderTile
// items in shared memory by a bitonic network, or several short lines beside each other; longer lines are merged from
// sorted runs, two by two: each block makes one tile of a merged run, whose borders in both runs it finds by bisection,
// and its threads find theirs in shared memory. For a small k only the first k of every tile enter the next round.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/index/sort_keys.cuh"
#include "levin/dtype.h"

namespace levin::kernels::cpu {

namespace sort_detail {
using namespace kernels::sort_detail;

// Least significant digit first, 11 bits a digit; a digit that is the same everywhere costs no pass.
template <class K>
void radix_sort(std::vector<Item<K>>& items, std::vector<Item<K>>& spare) {
  constexpr int kBits = 11, kDigits = (8 * int{sizeof(K)} + kBits - 1) / kBits;
  constexpr size_t kBuckets = size_t{1} << kBits;
  std::vector<uint32_t> counts(kBuckets * kDigits);
  const auto digit = [](K key, int d) { return static_cast<size_t>(key >> (d * kBits)) & (kBuckets - 1); };
  for (const Item<K>& item : items)
    for (int d = 0; d < kDigits; ++d) ++counts[static_cast<size_t>(d) * kBuckets + digit(item.key, d)];
  spare.resize(items.size());
  for (int d = 0; d < kDigits; ++d) {
    uint32_t* count = counts.data() + static_cast<size_t>(d) * kBuckets;
    if (count[digit(items[0].key, d)] == items.size()) continue;
    uint32_t begin = 0;
    for (size_t b = 0; b < kBuckets; ++b) {
      const uint32_t n = count[b];
      count[b] = begin;
      begin += n;
    }
    for (const Item<K>& item : items) spare[count[digit(item.key, d)]++] = item;
    items.swap(spare);
  }
}

// In ascending order. Below the limit a comparison sort is quicker than clearing the counts of a radix sort.
template <class K>
void in_order(std::vector<Item<K>>& items, std::vector<Item<K>>& spare) {
  constexpr size_t kRadixFrom = sizeof(K) == 8 ? 4096 : 1024;
  if (items.size() >= kRadixFrom) {
    radix_sort(items, spare);
  } else {
    std::sort(items.begin(), items.end());
  }
}

// Lines of a task.
inline std::int64_t lines_at_once(std::int64_t n) {
  return std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, n));
}

// body(items of one line, index of its first element) for every line.
template <class T, class F>
void each_line(const Cpu& on, const T* x, std::int64_t outer, std::int64_t n, std::int64_t inner, bool descending,
               const F& body) {
  on.parallel_for(outer * inner, lines_at_once(n), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Item<Key<T>>> items, spare;
    for (std::int64_t line = begin; line < end; ++line) {
      const T* from = x + line / inner * n * inner + line % inner;
      items.resize(static_cast<size_t>(n));
      for (std::int64_t k = 0; k < n; ++k) {
        const Key<T> key = key_of(from[k * inner]);
        items[static_cast<size_t>(k)] = {descending ? static_cast<Key<T>>(~key) : key, static_cast<uint32_t>(k)};
      }
      body(items, spare, line, from);
    }
  });
}

template <class T, class K>
void write(const std::vector<Item<K>>& items, const T* from, T* values, std::int64_t* indices, std::int64_t line,
           std::int64_t count, std::int64_t inner) {
  const std::int64_t to = line / inner * count * inner + line % inner;
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t at = items[static_cast<size_t>(k)].at;
    values[to + k * inner] = from[at * inner];
    indices[to + k * inner] = at;
  }
}

// The first k of the order where k is small: a heap of the best so far, its worst on top, which few elements beat. So
// most blocks of a dense line are passed over as a whole.
template <class T>
void few(const Cpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t outer, std::int64_t n,
         std::int64_t inner, std::int64_t k, bool descending) {
  constexpr std::int64_t kBlock = 64;
  on.parallel_for(outer * inner, std::max<std::int64_t>(1, 8 * 1024 / n), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Item<Key<T>>> best;
    Key<T> keys[kBlock];
    for (std::int64_t line = begin; line < end; ++line) {
      const T* from = x + line / inner * n * inner + line % inner;
      const auto item = [&](std::int64_t i) {
        const Key<T> key = key_of(from[i * inner]);
        return Item<Key<T>>{descending ? static_cast<Key<T>>(~key) : key, static_cast<uint32_t>(i)};
      };
      best.clear();
      for (std::int64_t i = 0; i < k; ++i) best.push_back(item(i));
      std::make_heap(best.begin(), best.end());
      const auto offer = [&](const Item<Key<T>>& next) {
        if (next.key >= best.front().key) return;  // equal keys: the earlier one stays
        std::pop_heap(best.begin(), best.end());
        best.back() = next;
        std::push_heap(best.begin(), best.end());
      };
      if (inner == 1) {
        for (std::int64_t i = k; i < n; i += kBlock) {
          const std::int64_t count = std::min(kBlock, n - i);
          if (!keys_below(on, from + i, count, descending, best.front().key, keys)) continue;
          for (std::int64_t j = 0; j < count; ++j) offer({keys[j], static_cast<uint32_t>(i + j)});
        }
      } else {
        for (std::int64_t i = k; i < n; ++i) offer(item(i));
      }
      std::sort_heap(best.begin(), best.end());
      write(best, from, values, indices, line, k, inner);
    }
  });
}

// The place of a line's first NaN, or n.
template <class T>
std::int64_t place_of_nan([[maybe_unused]] const T* from, std::int64_t n, [[maybe_unused]] std::int64_t inner) {
  if constexpr (!std::is_integral_v<T>) {
    for (std::int64_t i = 0; i < n; ++i)
      if (!(from[i * inner] == from[i * inner])) return i;
  }
  return n;
}

// The key at place k of the sorted order of n keys, which change places. A partition has no branch on what it compares:
// a processor would mispredict half of them.
template <class K>
K kth_key(K* keys, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kFew = 32;
  constexpr int kTurns = 64;  // then pivots are bad, and nth_element bounds the time
  const auto partition = [&](const auto& is_before) {
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const K key = keys[i];
      keys[i] = keys[before];
      keys[before] = key;
      before += is_before(key);
    }
    return before;
  };
  const auto drop = [&](std::int64_t before) { keys += before, n -= before, k -= before; };
  for (int turn = 0; n > kFew && turn < kTurns; ++turn) {
    const K a = keys[n / 4], b = keys[n / 2], c = keys[n / 4 * 3];
    const K pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    const std::int64_t less = partition([=](K key) { return key < pivot; });
    if (k < less) {
      n = less;
      continue;
    }
    drop(less);
    if (less > 0) continue;
    const std::int64_t same = partition([=](K key) { return key == pivot; });
    if (k < same) return pivot;
    drop(same);
  }
  std::nth_element(keys, keys + k, keys + n);
  return keys[k];
}

// The place of the element at place k of the sorted order, whose key is `key`: equal ones stand in their order.
template <class K>
std::int64_t place_of(const std::vector<K>& keys, K key, std::int64_t k) {
  for (const K other : keys) k -= other < key;
  std::int64_t at = 0;
  for (;; ++at)
    if (keys[static_cast<size_t>(at)] == key && k-- == 0) return at;
}

}  // namespace sort_detail

template <class T>
void sort(const Cpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t outer, std::int64_t n,
          std::int64_t inner, bool descending) {
  if (n == 0) return;
  sort_detail::each_line(on, x, outer, n, inner, descending,
                         [&](auto& items, auto& spare, std::int64_t line, const T* from) {
                           sort_detail::in_order(items, spare);
                           sort_detail::write(items, from, values, indices, line, n, inner);
                         });
}

template <class T>
void topk(const Cpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t outer, std::int64_t n,
          std::int64_t inner, std::int64_t k, bool largest) {
  if (k == 0) return;
  if (k <= n / 16) {
    sort_detail::few(on, x, values, indices, outer, n, inner, k, largest);
    return;
  }
  sort_detail::each_line(on, x, outer, n, inner, largest, [&](auto& items, auto&, std::int64_t line, const T* from) {
    if (k < n) std::nth_element(items.begin(), items.begin() + k, items.end());
    std::sort(items.begin(), items.begin() + k);
    sort_detail::write(items, from, values, indices, line, k, inner);
  });
}

template <class T>
void kth_places(const Cpu& on, const T* x, std::int64_t* indices, std::int64_t outer, std::int64_t n,
                std::int64_t inner, std::span<const std::int64_t> ks, bool first_nan) {
  using namespace sort_detail;
  const auto count = static_cast<std::int64_t>(ks.size());
  const auto results_of = [=](std::int64_t line) { return indices + line / inner * count * inner + line % inner; };
  const auto put_nan = [=](const T* from, std::int64_t* to) {
    const std::int64_t at = first_nan ? place_of_nan(from, n, inner) : n;
    for (std::int64_t j = 0; j < count && at < n; ++j) to[j * inner] = at;
    return at < n;
  };
  // A quantile lies between two elements. More places are a sort.
  constexpr std::int64_t kMostSelected = 2;
  if (count > kMostSelected) {
    return each_line(on, x, outer, n, inner, false, [&](auto& items, auto& spare, std::int64_t line, const T* from) {
      std::int64_t* const to = results_of(line);
      if (put_nan(from, to)) return;
      in_order(items, spare);
      for (std::int64_t j = 0; j < count; ++j)
        to[j * inner] = items[static_cast<size_t>(ks[static_cast<size_t>(j)])].at;
    });
  }
  on.parallel_for(outer * inner, lines_at_once(n), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Key<T>> keys(static_cast<size_t>(n)), room;
    for (std::int64_t line = begin; line < end; ++line) {
      const T* const from = x + line / inner * n * inner + line % inner;
      std::int64_t* const to = results_of(line);
      if (put_nan(from, to)) continue;
      for (std::int64_t i = 0; i < n; ++i) keys[static_cast<size_t>(i)] = key_of(from[i * inner]);
      for (std::int64_t j = 0; j < count; ++j) {
        const std::int64_t k = ks[static_cast<size_t>(j)];
        if (j > 0 && k == ks[static_cast<size_t>(j - 1)]) {
          to[j * inner] = to[(j - 1) * inner];
          continue;
        }
        room = keys;
        to[j * inner] = place_of(keys, kth_key(room.data(), n, k), k);
      }
    }
  });
}

}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

inline constexpr int kOrderTile = 2048, kOrderThreads = 256, kOrderRun = kOrderTile / kOrderThreads;

template <class T>
using SortItem = sort_detail::Item<sort_detail::Key<T>>;

// Lines of x, and where the results go.
template <class T>
struct SortLines {
  const T* x;
  T* values;
  std::int64_t* indices;
  std::int64_t n, inner, count;  // the first `count` of each line's order are written
  bool descending;
  Divider per_inner = Divider(inner);

  // One of them: its elements are x[k * inner], its results stand at to[k * inner].
  struct Line {
    const T* x;
    T* values;
    std::int64_t* indices;
    std::int64_t inner;
    bool descending;
    __device__ SortItem<T> item(std::int64_t k) const {
      const auto key = sort_detail::key_of(x[k * inner]);
      return {descending ? static_cast<sort_detail::Key<T>>(~key) : key, static_cast<std::uint32_t>(k)};
    }
    __device__ void put(std::int64_t k, std::uint32_t at) const {
      values[k * inner] = x[at * inner];
      indices[k * inner] = at;
    }
  };
  __device__ Line line(std::int64_t l) const {
    const std::int64_t o = per_inner.quotient(l), rest = l - o * inner, to = o * count * inner + rest;
    return {x + o * n * inner + rest, values + to, indices + to, inner, descending};
  }
  // After every item.
  __device__ static SortItem<T> last() { return {std::numeric_limits<sort_detail::Key<T>>::max(), 0xffffffffu}; }
};

// Sorts each `size` of `total` shared items, both powers of two; all threads of the block call.
template <class I>
__device__ void sort_shared(I* items, int size, int total) {
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < total / 2; pair += static_cast<int>(blockDim.x)) {
        const int low = 2 * pair - (pair & (apart - 1)), high = low + apart;
        const bool up = (low & (size - 1) & run) == 0;
        const I a = items[low], b = items[high];
        if ((b < a) == up) {
          items[low] = b;
          items[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Sorts tiles of at most kOrderTile items. from: [lines, m] items, null for those of x. The first `keep` of every tile
// go to `to`, [lines, tiles * keep] (the last tile may give fewer); where it is null, results are written and tiles is
// 1. size: the power of two that a tile is filled up to; a block has the same tile of `together` lines (a power of
// two).
template <class T>
__global__ void __launch_bounds__(kOrderThreads)
    sort_tiles(SortLines<T> lines, std::int64_t count, std::int64_t m, const SortItem<T>* from, int size, int together,
               std::int64_t keep, SortItem<T>* to, std::int64_t to_m) {
  LEVIN_SHARED(SortItem<T>, items, kOrderTile);
  const std::int64_t tiles = (m + kOrderTile - 1) / kOrderTile, groups = (count + together - 1) / together;
  const int total = size * together, threads = static_cast<int>(blockDim.x);
  for (std::int64_t t = blockIdx.x; t < groups * tiles; t += gridDim.x) {
    const std::int64_t group = t / tiles, tile = t - group * tiles, first = tile * kOrderTile;
    const int own = static_cast<int>(m - first < kOrderTile ? m - first : kOrderTile);
    const int given = static_cast<int>(keep < own ? keep : own);
    // Neighbouring threads take neighbours in memory.
    for (int i = static_cast<int>(threadIdx.x); i < total; i += threads) {
      const int slot = lines.inner == 1 ? i / size : i % together, k = lines.inner == 1 ? i % size : i / together;
      const std::int64_t l = group * together + slot;
      SortItem<T> item = lines.last();
      if (k < own && l < count) item = from ? from[l * m + first + k] : lines.line(l).item(first + k);
      items[slot * size + k] = item;
    }
    __syncthreads();
    sort_shared(items, size, total);
    for (int i = static_cast<int>(threadIdx.x); i < total; i += threads) {
      const int slot = lines.inner == 1 ? i / size : i % together, k = lines.inner == 1 ? i % size : i / together;
      const std::int64_t l = group * together + slot;
      if (k >= given || l >= count) continue;
      const SortItem<T> item = items[slot * size + k];
      if (to) {
        to[l * to_m + tile * keep + k] = item;
      } else {
        lines.line(l).put(k, item.at);
      }
    }
    __syncthreads();
  }
}

// How many of the first `i` items of two merged runs a (of na) and b (of nb) come from a.
template <class I, class N>
__device__ N merge_border(const I* a, N na, const I* b, N nb, N i) {
  N low = i > nb ? i - nb : N(0), high = i < na ? i : na;
  while (low < high) {
    const N middle = (low + high) / 2;
    if (b[i - 1 - middle] < a[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Merges neighbouring sorted runs of `run` items (a multiple of kOrderTile) of each line. A block makes a tile. Results
// are written where `to` is null.
template <class T>
__global__ void __launch_bounds__(kOrderThreads)
    sort_merge(SortLines<T> lines, std::int64_t count, const SortItem<T>* from, std::int64_t run, SortItem<T>* to) {
  using I = SortItem<T>;
  LEVIN_SHARED(I, items, kOrderTile);
  const std::int64_t n = lines.n, wanted = to ? n : lines.count;
  const std::int64_t tiles = (wanted + kOrderTile - 1) / kOrderTile;
  for (std::int64_t t = blockIdx.x; t < count * tiles; t += gridDim.x) {
    const std::int64_t l = t / tiles, first = (t - l * tiles) * kOrderTile;
    const std::int64_t base = first / (2 * run) * (2 * run), middle = base + run < n ? base + run : n;
    const std::int64_t end = base + 2 * run < n ? base + 2 * run : n;
    const I *a = from + l * n + base, *b = from + l * n + middle;
    const std::int64_t na = middle - base, nb = end - middle;
    const std::int64_t i0 = first - base, i1 = i0 + kOrderTile < na + nb ? i0 + kOrderTile : na + nb;
    const std::int64_t a0 = merge_border(a, na, b, nb, i0), a1 = merge_border(a, na, b, nb, i1);
    const int from_a = static_cast<int>(a1 - a0), own = static_cast<int>(i1 - i0), from_b = own - from_a;
    for (int i = static_cast<int>(threadIdx.x); i < own; i += kOrderThreads) {
      items[i] = i < from_a ? a[a0 + i] : b[i0 - a0 + (i - from_a)];
    }
    __syncthreads();
    const int start = static_cast<int>(threadIdx.x) * kOrderRun;
    I merged[kOrderRun];
    if (start < own) {
      int in_a = merge_border(items, from_a, items + from_a, from_b, start), in_b = from_a + start - in_a;
#pragma unroll
      for (int j = 0; j < kOrderRun; ++j) {
        const bool has_a = in_a < from_a, has_b = in_b < own;
        if (!has_a && !has_b) break;
        const bool take_a = !has_b || (has_a && items[in_a] < items[in_b]);
        merged[j] = items[take_a ? in_a++ : in_b++];
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kOrderRun; ++j) {
      if (start + j < own) items[start + j] = merged[j];
    }
    __syncthreads();
    const auto line = lines.line(l);
    for (int i = static_cast<int>(threadIdx.x); i < own; i += kOrderThreads) {
      if (to) {
        to[l * n + first + i] = items[i];
      } else if (first + i < lines.count) {
        line.put(first + i, items[i].at);
      }
    }
    __syncthreads();
  }
}

namespace sort_detail {
using namespace kernels::sort_detail;

inline Grid grid(std::int64_t blocks, unsigned threads = kOrderThreads) {
  return {.blocks = static_cast<unsigned>(std::min(blocks, std::int64_t{1} << 30)), .threads = threads};
}

template <class T>
void tiles(const Gpu& on, const SortLines<T>& lines, std::int64_t count, std::int64_t m, const SortItem<T>* from,
           std::int64_t keep, SortItem<T>* to, std::int64_t to_m) {
  int size = 2;
  while (size < kOrderTile && size < m) size *= 2;
  // Short lines share a block: it then has work for its threads, as long as all processors have blocks.
  constexpr std::int64_t kBlocks = 132 * 4;
  constexpr int kWorth = 256;
  int together = 1;
  while (together < count && 2 * together * size <= kOrderTile &&
         (2 * together * size <= kWorth || 2 * together * kBlocks <= count))
    together *= 2;
  const auto threads = static_cast<unsigned>(std::clamp(size * together / 2, 32, kOrderThreads));
  on.launch(sort_tiles<T>, grid((count + together - 1) / together * ((m + kOrderTile - 1) / kOrderTile), threads),
            lines, count, m, from, size, together, keep, to, to_m);
}

// The first lines.count of the order, of which kOrderTile hold two times at least: tiles shrink until one is left.
template <class T, class F>
void few(const Gpu& on, const SortLines<T>& lines, std::int64_t count, F&& scratch) {
  const std::int64_t k = lines.count;
  // Every tile gives k items, the last one what it has, up to k.
  const auto left = [k](std::int64_t m) { return m / kOrderTile * k + std::min(k, m % kOrderTile); };
  const auto bytes = [count](std::int64_t m) { return count * m * std::int64_t{sizeof(SortItem<T>)}; };
  std::int64_t m = lines.n;
  const SortItem<T>* from = nullptr;
  SortItem<T>* room[2] = {nullptr, nullptr};
  for (int round = 0; m > kOrderTile; ++round) {
    const std::int64_t next = left(m);
    SortItem<T>*& to = room[round % 2];
    if (!to) to = reinterpret_cast<SortItem<T>*>(scratch(bytes(next)));
    tiles(on, lines, count, m, from, k, to, next);
    from = to;
    m = next;
  }
  tiles<T>(on, lines, count, m, from, k, nullptr, 0);
}

template <class T, class F>
void all(const Gpu& on, const SortLines<T>& lines, std::int64_t count, F&& scratch) {
  const std::int64_t n = lines.n;
  if (n <= kOrderTile) return tiles<T>(on, lines, count, n, nullptr, lines.count, nullptr, 0);
  const std::int64_t bytes = count * n * std::int64_t{sizeof(SortItem<T>)};
  auto* from = reinterpret_cast<SortItem<T>*>(scratch(bytes));
  SortItem<T>* to = n > 2 * kOrderTile ? reinterpret_cast<SortItem<T>*>(scratch(bytes)) : nullptr;
  tiles<T>(on, lines, count, n, nullptr, kOrderTile, from, n);
  for (std::int64_t run = kOrderTile; run < n; run *= 2) {
    const bool last = 2 * run >= n;
    const std::int64_t blocks = count * (((last ? lines.count : n) + kOrderTile - 1) / kOrderTile);
    on.launch(sort_merge<T>, grid(blocks), lines, count, from, run, last ? nullptr : to);
    std::swap(from, to);
  }
}

}  // namespace sort_detail

template <class T, class F>
void sort(const Gpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t outer, std::int64_t n,
          std::int64_t inner, bool descending, F&& scratch) {
  if (n == 0 || outer * inner == 0) return;
  sort_detail::all(on, SortLines<T>{x, values, indices, n, inner, n, descending}, outer * inner, scratch);
}

template <class T, class F>
void topk(const Gpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t outer, std::int64_t n,
          std::int64_t inner, std::int64_t k, bool largest, F&& scratch) {
  if (k == 0 || outer * inner == 0) return;
  const SortLines<T> lines{x, values, indices, n, inner, k, largest};
  return k <= kOrderTile / 4 ? sort_detail::few(on, lines, outer * inner, scratch)
                             : sort_detail::all(on, lines, outer * inner, scratch);
}

}  // namespace levin::kernels::gpu
#endif
