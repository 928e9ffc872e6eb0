// Reductions of rows, and passes over entries, where no row is long.
//
// Note [Short rows]
// Where the pattern was examined and its longest row is at most kShortRow entries, as in citation graphs, molecules
// and sampled neighbourhoods, a group of lanes takes a row from begin to end: one kernel, without cuts, partial sums,
// checks of rows or of positions. A group is [entry lanes, column lanes]. Column lanes cover 16 bytes each, up to a
// warp's 32; wider rows are several tiles. Entry lanes fill up narrow groups, so that an average row has about four
// entries a lane and the longest not many more; they combine pair by pair. Neighbouring lanes have neighbouring
// entries, so narrow rows are read in whole lines. The shape of a group follows from rows, entries, width and longest
// row alone, and so do the bits. A warp that has one row and no entry lanes reads the columns of 32 entries at once
// and hands them round. Lanes by width: Yang, Buluc, Owens, "Design Principles for Sparse Matrix Multiplication on the
// GPU", 2018.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/device/block.cuh"
#include "kernels/sparse/csr.cuh"

namespace levin::kernels::gpu {

inline constexpr std::int64_t kShortRow = 512;

// Which row, columns and entries a lane has. columns: of a row, kSize elements each.
struct RowGroups {
  int column_shift = 0, entry_shift = 0;  // lanes, as powers of two
  std::int64_t rows, columns;
  Divider tiles;

  // Whether positions are known, fit into 32 bits with a row's length beyond the last, and no row is long.
  [[nodiscard]] static bool takes(const CsrView& a, std::int64_t width) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 8 * kShortRow;
    return a.longest_row >= 0 && a.longest_row <= kShortRow && std::max({a.entries, a.cols, a.rows, width}) <= kMost;
  }
  RowGroups(const CsrView& a, std::int64_t columns_) : rows(a.rows), columns(columns_) {
    const auto shift_of = [](std::int64_t n) {
      return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
    };
    column_shift = std::min(5, shift_of(columns));
    const std::int64_t wanted = std::max({a.entries / a.rows / 4, a.longest_row / 32, std::int64_t{1}});
    entry_shift = std::min(5 - column_shift, shift_of(wanted));
    tiles = Divider((columns + column_lanes() - 1) / column_lanes());
  }
  [[nodiscard]] __host__ __device__ int column_lanes() const { return 1 << column_shift; }
  [[nodiscard]] __host__ __device__ int entry_lanes() const { return 1 << entry_shift; }
  [[nodiscard]] __host__ __device__ int lanes() const { return 1 << (column_shift + entry_shift); }
  [[nodiscard]] Grid grid() const {
    return item_grid(rows * static_cast<std::int64_t>(tiles.divisor) * std::int64_t{lanes()});
  }
};
struct OwnRow {
  std::int64_t row, column;
  int first = 0, last = 0;  // entries of the row; none past the last row
  int entry_lane;
  bool is_there;  // this lane has a column
  __device__ OwnRow(const RowGroups& g, const std::int64_t* crow) {
    const std::int64_t group = own_item() >> (g.column_shift + g.entry_shift);
    const int lane = int(threadIdx.x) & (g.lanes() - 1);
    row = g.tiles.quotient(group);
    column = ((group - row * std::int64_t(g.tiles.divisor)) << g.column_shift) + (lane & (g.column_lanes() - 1));
    entry_lane = lane >> g.column_shift;
    is_there = row < g.rows && column < g.columns;
    if (row >= g.rows) return;
    first = int(crow[row]);
    last = int(crow[row + 1]);
  }
};

// As kAhead: known positions take fewer registers.
template <class Rule>
inline constexpr int kAheadKnown = 4 * sizeof(typename Rule::Value) + sizeof(typename Rule::State) > 160 ? 2 : 4;

// Rules are those of reduce_pieces. Without launch bounds, for which ptxas would spill registers to fit in one block
// more.
template <class Rule>
__global__ void reduce_short_rows(const std::int64_t* crow, RowGroups groups, Rule rule) {
  const OwnRow own(groups, crow);
  auto state = rule.start();
  if (own.is_there) {
    rule.enter(own.column * Rule::kSize);
    rule.enter_row(own.row);
    const int step = groups.entry_lanes();
    for (int e = own.first + own.entry_lane; e < own.last; e += kAheadKnown<Rule> * step) {
      typename Rule::Value v[kAheadKnown<Rule>];
#pragma unroll
      for (int k = 0; k < kAheadKnown<Rule>; ++k)
        if (e + k * step < own.last) v[k] = rule.fetch(rule.known(unsigned(e + k * step)));
#pragma unroll
      for (int k = 0; k < kAheadKnown<Rule>; ++k)
        if (e + k * step < own.last) rule.take(state, e + k * step, v[k]);
    }
  }
  for (int lanes = groups.column_lanes(); lanes < groups.lanes(); lanes *= 2)
    rule.merge(state, state_from_lane_xor(state, lanes));
  if (own.is_there && own.entry_lane == 0) rule.finish(own.row, state, own.last - own.first);
}

// A warp has a row and 32 columns of it.
template <class Rule>
__global__ void reduce_short_wide_rows(const std::int64_t* crow, RowGroups groups, Rule rule) {
  const OwnRow own(groups, crow);
  const int lane = int(threadIdx.x) % 32;
  auto state = rule.start();
  if (own.is_there) {
    rule.enter(own.column * Rule::kSize);
    rule.enter_row(own.row);
  }
  for (int e = own.first; e < own.last; e += 32) {
    ShortEntryAt mine{0, 0};
    if (e + lane < own.last) mine = rule.known(unsigned(e + lane));
    const int n = min(own.last - e, 32);
    for (int k = 0; k < n; k += kAheadKnown<Rule>) {
      typename Rule::Value v[kAheadKnown<Rule>];
#pragma unroll
      for (int i = 0; i < kAheadKnown<Rule>; ++i) {
        const ShortEntryAt at{__shfl_sync(kAllLanes, mine.column, k + i), __shfl_sync(kAllLanes, mine.place, k + i)};
        if (k + i < n && own.is_there) v[i] = rule.fetch(at);
      }
#pragma unroll
      for (int i = 0; i < kAheadKnown<Rule>; ++i)
        if (k + i < n && own.is_there) rule.take(state, e + k + i, v[i]);
    }
  }
  if (own.is_there) rule.finish(own.row, state, own.last - own.first);
}

// Reduces the rows of a. width: columns in all, a multiple of Rule::kSize. room(bytes) gives device memory.
template <class Rule, class Room>
void reduce_rows(const Gpu& on, const CsrView& a, const Rule& rule, std::int64_t width, const Room& room) {
  const std::int64_t columns = width / Rule::kSize;
  if (a.rows == 0 || columns == 0) return;
  if (!RowGroups::takes(a, width)) return reduce_by_pieces(on, a, rule, width, room);
  const RowGroups groups(a, columns);
  on.launch(groups.column_shift == 5 ? reduce_short_wide_rows<Rule> : reduce_short_rows<Rule>, groups.grid(), a.crow,
            groups, rule);
}

// rule.enter(first column); rule(entry, row) for every entry and V columns, as map_groups.
template <class Rule>
__global__ void map_short_rows(const std::int64_t* crow, RowGroups groups, Rule rule) {
  const OwnRow own(groups, crow);
  if (!own.is_there) return;
  rule.enter(own.column * Rule::kSize);
#pragma unroll 2
  for (int e = own.first + own.entry_lane; e < own.last; e += groups.entry_lanes()) rule(e, own.row);
  rule.report();
}
template <class Rule, class Room>
void map_entries(const Gpu& on, const CsrView& a, const Rule& rule, std::int64_t width, const Room& room) {
  const std::int64_t columns = width / Rule::kSize;
  if (a.rows == 0 || a.entries * columns == 0) return;
  if (!RowGroups::takes(a, width)) return map_by_groups(on, a, rule, width, room);
  const RowGroups groups(a, columns);
  on.launch(map_short_rows<Rule>, groups.grid(), a.crow, groups, rule);
}

}  // namespace levin::kernels::gpu
