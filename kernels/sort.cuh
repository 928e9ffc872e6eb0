#ifndef LEVIN_KERNELS_SORT_CUH
#define LEVIN_KERNELS_SORT_CUH
// Sorting along one dimension. x: [outer, n, inner], contiguous, n < 2^32. Stable; NaN counts as the largest value and
// -0 as equal to 0.
//
//   sort(on, const T* x, T* values, int64_t* indices, outer, n, inner, bool descending)
//     values, indices: as x.
//   topk(on, const T* x, T* values, int64_t* indices, outer, n, inner, k, bool largest)
//     values, indices: [outer, k, inner], the first k of the sorted order.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cpu.h"
#include "levin/dtype.h"

namespace levin::kernels::cpu {

namespace sort_detail {

template <class T>
using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// An unsigned number that orders as the value does.
template <class T>
Key<T> key_of(T x) {
  if constexpr (std::is_integral_v<T>) {
    if constexpr (std::is_signed_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<U>(static_cast<U>(x) ^ (U{1} << (8 * sizeof(T) - 1)));
    } else {
      return x;
    }
  } else {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(T) - 1));
    constexpr int kMantissa = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : std::is_same_v<T, bf16> ? 7 : 10;
    constexpr U kInfinity = static_cast<U>(static_cast<U>(kSign - 1) >> kMantissa << kMantissa);
    const U bits = std::bit_cast<U>(x);
    const U magnitude = static_cast<U>(bits & static_cast<U>(~kSign));
    if (magnitude > kInfinity) return std::numeric_limits<U>::max();
    if (magnitude == 0) return kSign;
    return static_cast<U>(bits & kSign ? ~bits : bits | kSign);
  }
}

template <class K>
struct Item {
  K key;
  uint32_t at;
  friend bool operator<(const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.at < b.at; }
};

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

// body(items of one line, index of its first element) for every line.
template <class T, class F>
void each_line(const Cpu& on, const T* x, int64_t outer, int64_t n, int64_t inner, bool descending, const F& body) {
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, n));
  on.parallel_for(outer * inner, grain, [&](int64_t begin, int64_t end) {
    std::vector<Item<Key<T>>> items, spare;
    for (int64_t line = begin; line < end; ++line) {
      const T* from = x + line / inner * n * inner + line % inner;
      items.resize(static_cast<size_t>(n));
      for (int64_t k = 0; k < n; ++k) {
        const Key<T> key = key_of(from[k * inner]);
        items[static_cast<size_t>(k)] = {descending ? static_cast<Key<T>>(~key) : key, static_cast<uint32_t>(k)};
      }
      body(items, spare, line, from);
    }
  });
}

template <class T, class K>
void write(const std::vector<Item<K>>& items, const T* from, T* values, int64_t* indices, int64_t line, int64_t count,
           int64_t inner) {
  const int64_t to = line / inner * count * inner + line % inner;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t at = items[static_cast<size_t>(k)].at;
    values[to + k * inner] = from[at * inner];
    indices[to + k * inner] = at;
  }
}

// The first k of the order where k is small: a heap of the best so far, its worst on top, which few elements beat.
template <class T>
void few(const Cpu& on, const T* x, T* values, int64_t* indices, int64_t outer, int64_t n, int64_t inner, int64_t k,
         bool descending) {
  on.parallel_for(outer * inner, std::max<int64_t>(1, 16 * 1024 / n), [&](int64_t begin, int64_t end) {
    std::vector<Item<Key<T>>> best;
    for (int64_t line = begin; line < end; ++line) {
      const T* from = x + line / inner * n * inner + line % inner;
      const auto item = [&](int64_t i) {
        const Key<T> key = key_of(from[i * inner]);
        return Item<Key<T>>{descending ? static_cast<Key<T>>(~key) : key, static_cast<uint32_t>(i)};
      };
      best.clear();
      for (int64_t i = 0; i < k; ++i) best.push_back(item(i));
      std::make_heap(best.begin(), best.end());
      for (int64_t i = k; i < n; ++i) {
        const Item<Key<T>> next = item(i);
        if (next.key >= best.front().key) continue;  // equal keys: the earlier one stays
        std::pop_heap(best.begin(), best.end());
        best.back() = next;
        std::push_heap(best.begin(), best.end());
      }
      std::sort_heap(best.begin(), best.end());
      write(best, from, values, indices, line, k, inner);
    }
  });
}

}  // namespace sort_detail

template <class T>
void sort(const Cpu& on, const T* x, T* values, int64_t* indices, int64_t outer, int64_t n, int64_t inner,
          bool descending) {
  // Below this a comparison sort is quicker than clearing the counts of a radix sort.
  constexpr size_t kRadixFrom = sizeof(T) == 8 ? 4096 : 1024;
  if (n == 0) return;
  sort_detail::each_line(on, x, outer, n, inner, descending,
                         [&](auto& items, auto& spare, int64_t line, const T* from) {
                           if (items.size() >= kRadixFrom) {
                             sort_detail::radix_sort(items, spare);
                           } else {
                             std::sort(items.begin(), items.end());
                           }
                           sort_detail::write(items, from, values, indices, line, n, inner);
                         });
}

template <class T>
void topk(const Cpu& on, const T* x, T* values, int64_t* indices, int64_t outer, int64_t n, int64_t inner, int64_t k,
          bool largest) {
  if (k == 0) return;
  if (k <= n / 16) {
    sort_detail::few(on, x, values, indices, outer, n, inner, k, largest);
    return;
  }
  sort_detail::each_line(on, x, outer, n, inner, largest, [&](auto& items, auto&, int64_t line, const T* from) {
    if (k < n) std::nth_element(items.begin(), items.begin() + k, items.end());
    std::sort(items.begin(), items.begin() + k);
    sort_detail::write(items, from, values, indices, line, k, inner);
  });
}

}  // namespace levin::kernels::cpu
#endif
