// Compressed rows: entries k in [crow[i], crow[i + 1]) belong to row i. How kernels walk them, on CPU and on devices.
//
// Note [The path through compressed rows]
// Rows are cut neither by their number nor by entries alone: a hub would be one thread's, and so would a million empty
// rows. A path steps over all entries of a row and then over the row's end, so it has entries + rows steps; row i
// begins at step crow[i] + i. Work is cut into equal pieces of the path (Merrill, Garland, "Merge-based parallel sparse
// matrix-vector multiplication", 2016). On a device a row that crosses a cut leaves a partial result in every piece and
// a second kernel combines them in order; where cuts lie follows from rows, entries and width alone, and so do the
// bits. A pattern whose rows are known to be short needs neither cuts nor a second kernel: Note [Short rows].
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"

namespace levin::kernels {

// Positions of 4 or 8 bytes each, or none.
struct Positions {
  const void* at = nullptr;
  bool is_wide = true;
  LEVIN_HD explicit operator bool() const { return at != nullptr; }
  LEVIN_HD std::int64_t operator[](std::int64_t k) const {
    return is_wide ? static_cast<const std::int64_t*>(at)[k] : static_cast<const std::int32_t*>(at)[k];
  }
};

// A sparse pattern as kernels take it. No col: entry k stands in column k. No edge: its value is value[k, :].
// longest_row: its entries where the pattern was examined, and no kernel checks it again; -1 where it was not.
struct CsrView {
  const std::int64_t* crow;
  Positions col, edge;  // of one width
  std::int64_t rows, cols, entries, longest_row = -1;
};

// The same for loops on the CPU, I: the type of positions.
template <class I>
struct CsrArrays {
  const std::int64_t* crow;
  const I *col, *edge;
  std::int64_t rows, entries;
  explicit CsrArrays(const CsrView& a)
      : crow(a.crow),
        col(static_cast<const I*>(a.col.at)),
        edge(static_cast<const I*>(a.edge.at)),
        rows(a.rows),
        entries(a.entries) {}
  [[nodiscard]] std::int64_t column(std::int64_t k) const { return col ? std::int64_t{col[k]} : k; }
  [[nodiscard]] std::int64_t place(std::int64_t k) const { return edge ? std::int64_t{edge[k]} : k; }
};

namespace cpu {

// body(first row, last row) over all rows, in parallel, about kPathTask elements at a time; `width`: of a row of the
// tensors. A row is one thread's.
template <class F>
void each_row_block(const Cpu& on, const CsrView& a, std::int64_t width, const F& body) {
  constexpr std::int64_t kPathTask = 32 * 1024;
  const auto row_from = [&](std::int64_t step) {
    std::int64_t low = 0, high = a.rows;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (a.crow[middle] + middle < step)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  on.parallel_for(a.entries + a.rows, std::max<std::int64_t>(1, kPathTask / std::max<std::int64_t>(1, width)),
                  [&](std::int64_t begin, std::int64_t end) {
                    const std::int64_t first = row_from(begin), last = row_from(end);
                    if (first < last) body(first, last);
                  });
}

}  // namespace cpu

namespace gpu {

// The last row that begins at or before `entry`, of those in [low, high].
__device__ __forceinline__ std::int64_t row_of(const std::int64_t* crow, std::int64_t entry, std::int64_t low,
                                               std::int64_t high) {
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (crow[middle] <= entry)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// crow made safe for a kernel: positions stay in [0, entries] for any contents, and the contents are checked once.
struct CsrRows {
  const std::int64_t* crow;
  std::int64_t rows, entries;
  __device__ std::int64_t start(std::int64_t row) const { return crow[row] + row; }
  __device__ std::int64_t clamped(std::int64_t entry, std::int64_t low) const {
    return entry < low ? low : entry > entries ? entries : entry;
  }
};

// Elements before row `at` of a tensor whose rows have `width`. Positions of 32 bits belong to widths below 2^32.
__device__ __forceinline__ std::int64_t offset(std::int64_t at, std::int64_t width) { return at * width; }
__device__ __forceinline__ std::int64_t offset(std::uint32_t at, std::int64_t width) {
  return static_cast<std::int64_t>(std::uint64_t{at} * static_cast<std::uint32_t>(width));
}

// Where entry e stands: its column j, and the place of its value.
struct EntryAt {
  std::int64_t column, place;
};
// The same where all positions are known to be right and below 2^32.
struct ShortEntryAt {
  std::uint32_t column, place;
};
// A position below 2^32, by one load for both widths.
__device__ __forceinline__ std::uint32_t low_word(const Positions& p, std::uint32_t k) {
  return static_cast<const std::uint32_t*>(p.at)[std::size_t{k} << (p.is_wide ? 1 : 0)];
}
struct Entries {
  using At = EntryAt;
  static constexpr bool kReadsRow = false;
  CsrView a;
  IndexRange cols, places;
  std::int64_t wrong = -1;  // an entry that has a position outside
  Entries(const Gpu& on, const char* op, const CsrView& a_)
      : a(a_), cols(on, op, a_.cols), places(on, op, a_.entries) {}
  // Whether both positions are right. Otherwise the kernel skips the entry, and calls report() at its end: code that
  // reports within a loop of several loads takes half of the registers.
  __device__ __forceinline__ bool find(std::int64_t e, EntryAt& at) {
    at.column = a.col ? a.col[e] : e;
    at.place = a.edge ? a.edge[e] : e;
    const bool is_right = static_cast<std::uint64_t>(at.column) < static_cast<std::uint64_t>(cols.bound) &&
                          static_cast<std::uint64_t>(at.place) < static_cast<std::uint64_t>(places.bound);
    if (!is_right) wrong = e;
    return is_right;
  }
  __device__ void report() const {
    if (wrong < 0) return;
    if (a.col) (void)cols.holds(a.col[wrong]);
    if (a.edge) (void)places.holds(a.edge[wrong]);
  }
  __device__ __forceinline__ ShortEntryAt known(std::uint32_t e) const {
    return {a.col ? low_word(a.col, e) : e, a.edge ? low_word(a.edge, e) : e};
  }
};
// Segments: entry e stands in row e. At: what find gives where there are fewer entries than 2^32.
struct SegmentEntries {
  using At = ShortEntryAt;
  static constexpr bool kReadsRow = false;
  template <class At>
  __device__ __forceinline__ bool find(std::int64_t e, At& at) {
    at.column = at.place = static_cast<decltype(at.place)>(e);
    return true;
  }
  __device__ void report() const {}
  __device__ __forceinline__ ShortEntryAt known(std::uint32_t e) const { return {e, e}; }
};

template <class = void>
__global__ void check_rows(CsrRows a, IndexRange range) {
  const std::int64_t r = own_item();
  if (r > a.rows) return;
  const std::int64_t at = a.crow[r], from = r == 0 ? 0 : a.crow[r - 1];
  if (at < from || (r == 0 && at != 0) || (r == a.rows && at != a.entries))
    report_index(range.slot, range.op, at, range.bound);
}
// Reports offsets that do not rise from 0 to the number of entries, as an index of `what`.
inline void check_rows(const Gpu& on, const char* what, const CsrView& a) {
  if (a.rows == 0 || a.longest_row >= 0) return;
  on.launch(check_rows<>, item_grid(a.rows + 1), CsrRows{a.crow, a.rows, a.entries},
            IndexRange(on, what, a.entries + 1));
}

// ---- Reductions of rows

inline constexpr std::int64_t kLongRow = 64;  // pieces of one row that a thread still combines alone
inline constexpr int kLongGroup = 32;         // cuts that a block looks at for longer ones: a lane of each warp has one
inline constexpr std::int64_t kWantedPieces = 8192;

// Pieces of the path. Narrow rows take small ones, so that the memory of a warp's pieces stays in the cache.
struct PathPieces {
  std::int64_t length, count, steps;
  PathPieces(const CsrRows& a, std::int64_t length_)
      : length(length_), count((a.rows + a.entries + length - 1) / length), steps(a.rows + a.entries) {}
  // Of one thread a column.
  [[nodiscard]] static PathPieces of_threads(const CsrRows& a, std::int64_t width) {
    const std::int64_t longest = width >= 32  ? 512
                                 : width >= 8 ? 128
                                              : 32,
                       wanted = (a.rows + a.entries) / kWantedPieces;
    const std::int64_t length = std::int64_t{1} << (std::bit_width(static_cast<std::uint64_t>(wanted + 1)) - 1);
    return {a, std::clamp<std::int64_t>(length, 16, longest)};
  }
};

// cut[c]: the row of step c * length.
template <class = void>
__global__ void find_cuts(CsrRows a, PathPieces pieces, std::int64_t* cut) {
  const std::int64_t c = own_item();
  if (c > pieces.count) return;
  const std::int64_t step = c == pieces.count ? pieces.steps : c * pieces.length;
  std::int64_t low = 0, high = a.rows;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (a.start(middle) <= step)
      low = middle;
    else
      high = middle - 1;
  }
  cut[c] = low;
}

// A Rule says what a reduction of V columns is: enter(first column), enter_row(row), State start(), Value fetch(EntryAt
// or ShortEntryAt), take(state, entry, value), merge(state, of other entries), finish(row, state, entries of the row);
// as Entries do, find(entry, at), report() and known(entry). kReadsRow: what take does depends on enter_row.

// Entries that a thread has on their way at a time: fewer where they and the state take many registers.
template <class Rule>
inline constexpr int kAhead = 4 * sizeof(typename Rule::Value) + sizeof(typename Rule::State) >= 160 ? 2 : 4;

// Takes the entries [first, last).
template <class Rule>
__device__ __forceinline__ void take_entries(Rule& rule, typename Rule::State& state, std::int64_t first,
                                             std::int64_t last) {
  for (std::int64_t e = first; e < last; e += kAhead<Rule>) {
    typename Rule::Value v[kAhead<Rule>];
    bool is_there[kAhead<Rule>];
#pragma unroll
    for (int k = 0; k < kAhead<Rule>; ++k) {
      EntryAt at;
      is_there[k] = e + k < last && rule.find(e + k, at);
      if (is_there[k]) v[k] = rule.fetch(at);
    }
#pragma unroll
    for (int k = 0; k < kAhead<Rule>; ++k)
      if (is_there[k]) rule.take(state, e + k, v[k]);
  }
}

// part [count, 2, columns]: what a piece has of the row it begins within, and of the row it ends within.
template <class Rule>
__global__ void reduce_pieces(CsrRows a, PathPieces pieces, const std::int64_t* cut, Rule rule,
                              typename Rule::State* part, std::int64_t items, Divider columns) {
  const std::int64_t u = own_item();
  if (u >= items) return;
  const std::int64_t c = columns.quotient(u), width = std::int64_t(columns.divisor), column = u - c * width,
                     step = c * pieces.length;
  rule.enter(column * Rule::kSize);
  std::int64_t row = cut[c];
  const std::int64_t last = cut[c + 1];
  bool is_inside = step > a.start(row);
  std::int64_t e = a.clamped(step - row, 0);
  const std::int64_t until = a.clamped(min(step + pieces.length, pieces.steps) - last, e);
  auto state = rule.start();
  for (; row < last; ++row) {
    const std::int64_t stop = a.clamped(a.crow[row + 1], e);
    rule.enter_row(row);
    take_entries(rule, state, e, stop);
    if (is_inside)
      part[2 * c * width + column] = state;
    else
      rule.finish(row, state, stop - a.crow[row]);
    is_inside = false;
    state = rule.start();
    e = stop;
  }
  if (e < until) rule.enter_row(row);
  take_entries(rule, state, e, until);
  if (e < until || is_inside) part[(2 * c + (is_inside ? 0 : 1)) * width + column] = state;
  rule.report();
}

// A value from another lane, word by word.
template <class State>
__device__ __forceinline__ State state_from_lane_xor(const State& state, int lanes) {
  static_assert(sizeof(State) % 4 == 0);
  struct Words {
    unsigned data[sizeof(State) / 4];
  };
  Words words = __builtin_bit_cast(Words, state);
#pragma unroll
  for (unsigned& word : words.data) word = __shfl_xor_sync(kAllLanes, word, lanes);
  return __builtin_bit_cast(State, words);
}

inline constexpr int kPathThreads = 256;
// Entries that a thread of a tile brings to shared memory, and of a chunk. A free place after each chunk keeps chunks
// that neighbouring threads sum in banks of their own.
template <class Rule>
inline constexpr int kPathChunk = sizeof(typename Rule::Value) <= 16 ? 8 : 4;
template <class Rule>
inline constexpr int kPathEntries = sizeof(typename Rule::Value) <= 4 ? 16 : kPathChunk<Rule>;
template <class Rule>
inline constexpr int kPathChunks = kPathThreads* kPathEntries<Rule> / kPathChunk<Rule>;
template <class Rule>
inline constexpr int kPathValues = kPathChunks<Rule>*(kPathChunk<Rule> + 1);
template <class Rule>
__device__ constexpr unsigned place_in_tile(unsigned e) {
  return e + e / kPathChunk<Rule>;
}
template <class Rule>
inline constexpr bool kHasPathTiles =
    !Rule::kReadsRow &&
    kPathValues<Rule> * sizeof(typename Rule::Value) + kPathChunks<Rule> * sizeof(typename Rule::State) <= 48 * 1024;
// Columns of a row in a tile: their blocks read the same lines.
inline constexpr std::int64_t kPathTileWidth = 8, kPathTileColumns = 4;

// As reduce_pieces, a block for a piece and column: Note [Narrow rows].
template <class Rule>
__global__ __launch_bounds__(kPathThreads) void reduce_tiles(CsrRows a, PathPieces pieces, const std::int64_t* cut,
                                                             Rule rule, typename Rule::State* part, Divider columns) {
  using Value = typename Rule::Value;
  using State = typename Rule::State;
  constexpr unsigned kChunk = kPathChunk<Rule>, kManyChunks = 32;
  LEVIN_SHARED(Value, values, kPathValues<Rule>);
  LEVIN_SHARED(State, sums, kPathChunks<Rule>);
  const unsigned thread = threadIdx.x, lane = thread % 32;
  const std::int64_t c = columns.quotient(blockIdx.x), width = std::int64_t(columns.divisor),
                     column = blockIdx.x - c * width, step = c * pieces.length;
  rule.enter(column * Rule::kSize);
  const std::int64_t row = cut[c];
  const unsigned rows = unsigned(max(std::int64_t{0}, cut[c + 1] - row));  // that end in the tile
  const bool is_inside = step > a.start(row);
  const std::int64_t first = a.clamped(step - row, 0),
                     until = a.clamped(min(step + pieces.length, pieces.steps) - row - rows, first);
  const unsigned count = unsigned(min(until - first, pieces.length));

  // Past the last entry threads bring and sum it again, which nothing reads: a test an entry costs more.
  if (count > 0) {
    constexpr unsigned kEntries = kPathEntries<Rule>;
    Value own[kEntries];
#pragma unroll
    for (unsigned k = 0; k < kEntries; ++k) {
      typename Rule::At at;
      own[k] = Value{};
      if (rule.find(first + min(thread + k * kPathThreads, count - 1), at)) own[k] = rule.fetch(at);
    }
#pragma unroll
    for (unsigned k = 0; k < kEntries; ++k)
      values[place_in_tile<Rule>(thread) + place_in_tile<Rule>(k * kPathThreads)] = own[k];
  }
  __syncthreads();
  for (unsigned chunk = thread; chunk * kChunk < count; chunk += kPathThreads) {
    auto sum = rule.start();
#pragma unroll
    for (unsigned k = 0; k < kChunk; ++k) rule.take(sum, first + chunk * kChunk + k, values[chunk * (kChunk + 1) + k]);
    sums[chunk] = sum;
  }
  __syncthreads();

  // Row `rows` is the one that the tile ends within. bound(i): where row i begins in the tile.
  const auto bound = [&](unsigned i) {
    if (i == 0 || i > rows) return i == 0 ? 0 : count;
    const std::int64_t at = a.crow[row + i] - first;
    return at < 0 ? 0 : at > count ? count : unsigned(at);
  };
  const auto take = [&](State& state, unsigned begin, unsigned end) {
    for (unsigned e = begin; e < end; ++e) rule.take(state, first + e, values[place_in_tile<Rule>(e)]);
  };
  for (unsigned i = thread; i - lane <= rows; i += kPathThreads) {
    const unsigned begin = i <= rows ? bound(i) : 0, end = i <= rows ? max(begin, bound(i + 1)) : 0;
    const unsigned head = (begin + kChunk - 1) / kChunk, tail = max(head, end / kChunk), chunks = tail - head;
    auto state = rule.start();
    take(state, begin, chunks > 0 ? head * kChunk : end);
    if (chunks <= kManyChunks)
      for (unsigned k = head; k < tail; ++k) rule.merge(state, sums[k]);
    for (unsigned many = __ballot_sync(kAllLanes, chunks > kManyChunks); many != 0; many &= many - 1) {
      const int of = __ffs(int(many)) - 1;
      const unsigned from = __shfl_sync(kAllLanes, head, of), to = __shfl_sync(kAllLanes, tail, of);
      auto sum = rule.start();
      for (unsigned k = from + lane; k < to; k += 32) rule.merge(sum, sums[k]);
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) rule.merge(sum, state_from_lane_xor(sum, lanes));
      if (int(lane) == of) rule.merge(state, sum);
    }
    if (chunks > 0) take(state, tail * kChunk, end);
    const bool is_cut = i == 0 && is_inside;
    if (i < rows && !is_cut) rule.finish(row + i, state, end - begin);
    if (i <= rows && (is_cut || (i == rows && begin < end))) part[(2 * c + (is_cut ? 0 : 1)) * width + column] = state;
  }
  rule.report();
}

// The row that crosses cut c and ends in the piece after it: its pieces are [first, c].
struct CutRow {
  std::int64_t row = -1, first = 0, count = 0;
  __device__ CutRow(const CsrRows& a, const PathPieces& pieces, const std::int64_t* cut, std::int64_t c) {
    const std::int64_t r = cut[c];
    if (c == 0 || r >= a.rows || a.start(r) >= c * pieces.length) return;
    const std::int64_t end = a.crow[r + 1] + r;  // the step over the row's end
    if (end < c * pieces.length || end >= (c + 1) * pieces.length) return;
    row = r;
    first = a.start(r) < 0 ? 0 : a.start(r) / pieces.length;
    count = a.crow[r + 1] - a.crow[r];
  }
  // Which part of the row its piece p is.
  __device__ std::int64_t part(std::int64_t p) const { return 2 * p + (p == first ? 1 : 0); }
};

template <class Rule>
__global__ void combine_rows(CsrRows a, PathPieces pieces, const std::int64_t* cut, Rule rule,
                             const typename Rule::State* part, std::int64_t items, Divider columns) {
  const std::int64_t u = own_item();
  if (u >= items) return;
  const std::int64_t c = columns.quotient(u), width = std::int64_t(columns.divisor), column = u - c * width;
  const CutRow of(a, pieces, cut, c);
  if (of.row < 0 || c - of.first > kLongRow) return;
  rule.enter(column * Rule::kSize);
  auto state = part[of.part(of.first) * width + column];
#pragma unroll 4
  for (std::int64_t p = of.first + 1; p <= c; ++p) rule.merge(state, part[of.part(p) * width + column]);
  rule.finish(of.row, state, of.count);
}

// Rows of more pieces: a block for one, its threads [parts, lanes], each with every `parts`-th piece of its column.
template <class Rule>
__global__ __launch_bounds__(kMoveThreads) void combine_long_rows(CsrRows a, PathPieces pieces, const std::int64_t* cut,
                                                                  Rule rule, const typename Rule::State* part,
                                                                  std::int64_t width, int lanes) {
  using State = typename Rule::State;
  LEVIN_SHARED(State, shared, kMoveThreads);
  const int lane = int(threadIdx.x) % lanes, own = int(threadIdx.x) / lanes, parts = kMoveThreads / lanes;
  // Each warp finds all cuts of the block that end such a row: its lanes look at one each.
  const std::int64_t looked_at = std::int64_t{blockIdx.x} * kLongGroup + int(threadIdx.x) % 32;
  bool is_long = false;
  if (looked_at < pieces.count) {
    const CutRow of(a, pieces, cut, looked_at);
    is_long = of.row >= 0 && looked_at - of.first > kLongRow;
  }
  for (unsigned found = __ballot_sync(kAllLanes, is_long); found != 0; found &= found - 1) {
    const std::int64_t c = std::int64_t{blockIdx.x} * kLongGroup + __ffs(int(found)) - 1;
    const CutRow of(a, pieces, cut, c);
    for (std::int64_t first = 0; first < width; first += lanes) {
      const std::int64_t column = first + lane;
      if (column < width && of.first + own <= c) {
        rule.enter(column * Rule::kSize);
        auto state = part[of.part(of.first + own) * width + column];
#pragma unroll 4
        for (std::int64_t p = of.first + own + parts; p <= c; p += parts)
          rule.merge(state, part[of.part(p) * width + column]);
        shared[threadIdx.x] = state;
      }
      __syncthreads();
      if (column < width && own == 0) {
        auto state = shared[lane];
        for (int p = 1; p < parts && of.first + p <= c; ++p) rule.merge(state, shared[p * lanes + lane]);
        rule.finish(of.row, state, of.count);
      }
      __syncthreads();
    }
  }
}

// Reduces the rows of a by pieces of the path. width: columns in all, a multiple of Rule::kSize. room(bytes) gives
// device memory.
template <class Rule, class Room>
void reduce_by_pieces(const Gpu& on, const CsrView& view, const Rule& rule, std::int64_t width, const Room& room) {
  using State = typename Rule::State;
  const std::int64_t columns = width / Rule::kSize;
  if (view.rows == 0 || columns == 0) return;
  const CsrRows a{view.crow, view.rows, view.entries};
  bool by_tiles = false;
  if constexpr (kHasPathTiles<Rule>)
    by_tiles = width <= kPathTileWidth && columns <= kPathTileColumns && a.entries >> 32 == 0;
  const PathPieces pieces =
      by_tiles ? PathPieces(a, kPathThreads * kPathEntries<Rule>) : PathPieces::of_threads(a, width);
  auto* const cut = static_cast<std::int64_t*>(room((pieces.count + 1) * 8));
  auto* const part = static_cast<State*>(room(pieces.count * 2 * columns * std::int64_t{sizeof(State)}));
  on.launch(find_cuts<>, item_grid(pieces.count + 1), a, pieces, cut);
  const std::int64_t items = pieces.count * columns;
  if constexpr (kHasPathTiles<Rule>) {
    if (by_tiles)
      on.launch(reduce_tiles<Rule>, Grid{.blocks = blocks_for(items, 1), .threads = kPathThreads}, a, pieces, cut, rule,
                part, Divider(columns));
  }
  if (!by_tiles) on.launch(reduce_pieces<Rule>, item_grid(items), a, pieces, cut, rule, part, items, Divider(columns));
  if (pieces.count == 1) return;
  on.launch(combine_rows<Rule>, item_grid(items), a, pieces, cut, rule, part, items, Divider(columns));
  // A row of n entries crosses at most n / length + 1 cuts.
  if (pieces.count <= kLongRow || (view.longest_row >= 0 && view.longest_row / pieces.length + 1 <= kLongRow)) return;
  const int lanes = static_cast<int>(std::min<std::uint64_t>(32, std::bit_ceil(static_cast<std::uint64_t>(columns))));
  on.launch(combine_long_rows<Rule>, Grid{.blocks = blocks_for(pieces.count, kLongGroup), .threads = kMoveThreads}, a,
            pieces, cut, rule, part, columns, lanes);
}

// ---- Entries with their rows

inline constexpr int kEntryGroup = 16;  // neighbours that one item takes

// row[g]: of entry g * kEntryGroup.
template <class = void>
__global__ void find_group_rows(CsrRows a, std::int64_t* row, std::int64_t groups) {
  const std::int64_t g = own_item();
  if (g >= groups) return;
  const std::int64_t e = g * kEntryGroup;
  row[g] = row_of(a.crow, e < a.entries ? e : a.entries - 1, 0, a.rows - 1);
}

// rule.enter(first column); rule(entry, row) for every entry and V columns; rule.report().
template <class Rule>
__global__ void map_groups(CsrRows a, const std::int64_t* group_row, Rule rule, std::int64_t items, Divider columns) {
  const std::int64_t u = own_item();
  if (u >= items) return;
  const std::int64_t g = columns.quotient(u), first = g * kEntryGroup;
  rule.enter((u - g * std::int64_t(columns.divisor)) * Rule::kSize);
  std::int64_t row = group_row[g];
#pragma unroll 4
  for (int k = 0; k < kEntryGroup; ++k) {
    if (first + k >= a.entries) break;
    if (a.crow[row + 1] <= first + k) row = row_of(a.crow, first + k, row, group_row[g + 1]);
    rule(first + k, row);
  }
  rule.report();
}
// The rows of groups of entries; entries and rows are not 0.
template <class Room>
[[nodiscard]] const std::int64_t* group_rows(const Gpu& on, const CsrView& view, const Room& room) {
  const std::int64_t groups = (view.entries + kEntryGroup - 1) / kEntryGroup + 1;
  auto* const row = static_cast<std::int64_t*>(room(groups * 8));
  on.launch(find_group_rows<>, item_grid(groups), CsrRows{view.crow, view.rows, view.entries}, row, groups);
  return row;
}
template <class Rule, class Room>
void map_by_groups(const Gpu& on, const CsrView& view, const Rule& rule, std::int64_t width, const Room& room) {
  const std::int64_t columns = width / Rule::kSize, groups = (view.entries + kEntryGroup - 1) / kEntryGroup;
  if (view.rows == 0 || groups * columns == 0) return;
  on.launch(map_groups<Rule>, item_grid(groups * columns), CsrRows{view.crow, view.rows, view.entries},
            group_rows(on, view, room), rule, groups * columns, Divider(columns));
}

// f(V as a constant): 16 bytes where the width, or the piece of it that stays together, and the addresses allow it.
template <class T, class F>
void with_vectors(std::int64_t width, std::initializer_list<const void*> pointers, F&& f) {
  bool vectors = width % kVec<T> == 0;
  for (const void* p : pointers) vectors = vectors && aligned16(p);
  if (vectors)
    f(std::integral_constant<int, kVec<T>>{});
  else
    f(std::integral_constant<int, 1>{});
}

}  // namespace gpu
}  // namespace levin::kernels
