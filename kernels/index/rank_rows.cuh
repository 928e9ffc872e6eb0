#ifndef LEVIN_KERNELS_RANK_ROWS_CUH
#define LEVIN_KERNELS_RANK_ROWS_CUH
// Ranks of rows. x: [n, columns], contiguous, n < 2^32, columns >= 1.
//
//   cpu::rank_rows(on, const T* x, std::int64_t* ranks, n, columns)
//     ranks: [n], how many different rows stand before each one in lexicographic order. -0 is equal to 0. A NaN is the
//     largest and equals nothing: of two in a column the one of the earlier row comes first.
//
// Devices sort columns instead: Note [Ranks by sorts of columns] in autograd/ops/index/unique.cu.
//
// Note [Ordering rows]
// A run of rows that are equal so far is ordered by the next 8 bytes of each row, as one number. Runs of equal numbers
// are ordered by the 8 bytes that follow, and so on. So a comparison is one of two numbers, wide rows that soon differ
// are not read to their ends, and 8 bytes that are the same in a whole run cost one pass and no sort.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/index/sort.cuh"
#include "kernels/index/sort_keys.cuh"

namespace levin::kernels::cpu {

namespace rank_detail {
using kernels::sort_detail::Item;
using Items = std::vector<Item<uint64_t>>;

// order[begin, end): rows that are equal before `column`.
struct Run {
  size_t begin, end;
  std::int64_t column;
};

template <class T>
struct Rows {
  static constexpr std::int64_t kKeyed = 8 / std::int64_t{sizeof(T)};  // columns of a key
  const T* x;
  std::int64_t columns;
  uint32_t* order;
  uint8_t* begins;  // of each place in `order`: 1 where its row differs from the row before

  // The columns of a key, as a number that orders as they do. Nothing after a NaN counts.
  [[nodiscard]] uint64_t key(uint32_t row, std::int64_t column) const {
    const T* const from = x + row * columns;
    const std::int64_t end = std::min(columns, column + kKeyed);
    uint64_t all = 0;
    for (std::int64_t c = column; c < end; ++c) {
      if constexpr (kKeyed > 1) all <<= 8 * sizeof(T);
      all |= kernels::sort_detail::key_of(from[c]);
      if constexpr (kKeyed > 1 && !std::is_integral_v<T>) {
        if (from[c] != from[c]) return all << (8 * std::int64_t{sizeof(T)} * (end - 1 - c));
      }
    }
    return all;
  }
  [[nodiscard]] bool has_nan(uint32_t row, std::int64_t column) const {
    if constexpr (!std::is_integral_v<T>) {
      const T* const from = x + row * columns;
      const std::int64_t end = std::min(columns, column + kKeyed);
      for (std::int64_t c = column; c < end; ++c) {
        if (from[c] != from[c]) return true;
      }
    }
    return false;
  }

  // Orders a run by its next key, and adds the runs that are equal in it to `rest`.
  void order_run(Run run, Items& items, Items& spare, std::vector<Run>& rest) const {
    items.resize(run.end - run.begin);
    std::int64_t column = run.column;
    uint64_t differs = 0;
    for (; column < columns; column += kKeyed) {
      for (size_t i = 0; i < items.size(); ++i) {
        const uint32_t row = order[run.begin + i];
        items[i] = {key(row, column), row};
        differs |= items[i].key ^ items[0].key;
      }
      if (differs != 0 || has_nan(items[0].at, column)) break;
    }
    if (column >= columns) return;  // the rows are equal
    if (differs != 0) sort_detail::in_order(items, spare);
    for (size_t i = 0, end = 0; i < items.size(); i = end) {
      for (end = i + 1; end < items.size() && items[end].key == items[i].key; ++end) {}
      const Run equal{run.begin + i, run.begin + end, column + kKeyed};
      begins[equal.begin] = 1;
      if (end - i == 1) continue;
      if (has_nan(items[i].at, column)) {
        std::fill(begins + equal.begin, begins + equal.end, uint8_t{1});
      } else if (equal.column < columns) {
        rest.push_back(equal);
      }
    }
    for (size_t i = 0; i < items.size(); ++i) order[run.begin + i] = items[i].at;
  }
};

}  // namespace rank_detail

template <class T>
void rank_rows(const Cpu& on, const T* x, std::int64_t* ranks, std::int64_t n, std::int64_t columns) {
  if (n == 0) return;
  const auto count = static_cast<size_t>(n);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::vector<uint8_t> begins(count);
  begins[0] = 1;
  const rank_detail::Rows<T> rows{x, columns, order.data(), begins.data()};
  std::vector<rank_detail::Run> runs;
  {
    rank_detail::Items items, spare;
    rows.order_run({0, count, 0}, items, spare, runs);
  }
  // The others are apart from each other: each thread orders some of them to the end.
  const auto parts = static_cast<std::int64_t>(runs.size());
  on.parallel_for(parts, std::max<std::int64_t>(1, 1024 * parts / n), [&](std::int64_t begin, std::int64_t end) {
    rank_detail::Items items, spare;
    std::vector<rank_detail::Run> rest;
    for (std::int64_t r = begin; r < end; ++r) {
      rest.push_back(runs[static_cast<size_t>(r)]);
      while (!rest.empty()) {
        const rank_detail::Run run = rest.back();
        rest.pop_back();
        rows.order_run(run, items, spare, rest);
      }
    }
  });
  std::int64_t rank = -1;
  for (size_t k = 0; k < count; ++k) {
    rank += begins[k];
    ranks[order[k]] = rank;
  }
}

}  // namespace levin::kernels::cpu
#endif
