// TMA: boxes of matrices between global and shared memory (PTX ISA, "cp.async.bulk.tensor").
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/simt/async.h"
#include "levin/error.h"
#include "tensor/device/launch_ledger.h"

namespace levin::simt {

using kernels::Swizzle;
using kernels::TiledMatrix;

namespace {

constexpr std::size_t kElement = 2, kPiece = 16;  // bytes; of a piece that a swizzle moves as one

std::size_t row_bytes(const TiledMatrix& map) { return std::size_t(map.box_columns) * kElement; }
std::size_t box_bytes(const TiledMatrix& map) { return row_bytes(map) * std::size_t(map.box_rows); }
// What the box must be aligned to in shared memory: the swizzle's pattern, at least TMA's 128.
std::size_t alignment_of(Swizzle swizzle) {
  constexpr std::size_t kAlignments[] = {128, 256, 512, 1024};
  return kAlignments[int(swizzle)];
}

}  // namespace

TiledMatrix Async::map_of(const kernels::TensorMap& map, const BoxAt& box, const void* shared, const char* what,
                          Site at) {
  const auto known = kernels::decoded(map);
  if (!known) engine_.fail_thread(std::string(what) + ": the map is not one of tensor_map", at);
  if (known->is_of_heads() != box.of_heads) {
    engine_.fail_thread(std::string(what) + " of " + (box.of_heads ? "4" : "2") + " coordinates, and the map has " +
                            (box.of_heads ? "2" : "4"),
                        at);
  }
  const unsigned address = window_address(shared);
  if (address % alignment_of(known->swizzle) != 0) {
    engine_.fail_thread(std::string(what) + ": misaligned address: the box is at " +
                            text(address % alignment_of(known->swizzle)) + " bytes above a multiple of " +
                            text(alignment_of(known->swizzle)),
                        at);
  }
  return *known;
}

void Async::load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, Site at) {
  enter();
  BarrierState& state = state_of(barrier, "tma_load", at);
  const Range whole = range_of(to, 1, "tma_load", at);
  const TiledMatrix matrix = map_of(map, box, to, "tma_load", at);
  const Range range = range_of(shared_ + whole.begin, box_bytes(matrix), "tma_load", at);
  check(range, true, clock(), "tma_load", at);
  for (const AsyncThread& thread : threads_) {
    for (const Range& written : thread.unfenced) {
      if (written.meets(range)) {
        engine_.fail_thread("tma_load overwrites byte " + text(std::max(written.begin, range.begin)) +
                                ", which was written without a fence_async_shared since",
                            at);
      }
    }
  }
  record({range, state.agent, std::uint32_t(state.phase + 1), true, "tma_load", at, int(matrix.swizzle)});
  poison(range);
  state.landing.push_back({state.phase, range});
  const int number = int(barrier.word & 0xffffffffu);
  copies_.push_back({.loads = true,
                     .thread = index_,
                     .map = matrix,
                     .box = box,
                     .range = range,
                     .at = at,
                     .barrier = number,
                     .phase = state.phase});
  if (completion_ == Completion::early) advance(int(copies_.size()) - 1, false);
}

void Async::store(const kernels::TensorMap& map, BoxAt box, const void* from, Site at) {
  enter();
  const TiledMatrix matrix = map_of(map, box, from, "tma_store", at);
  const Range range = range_of(from, box_bytes(matrix), "tma_store", at);
  if (box.x < 0 || box.y < 0 || box.of.head < 0 || box.of.batch < 0) {
    engine_.fail_thread("tma_store at element " + text(box.x) + " of row " + text(box.y) + " of head " +
                            text(box.of.head) + " of batch " + text(box.of.batch) + ": expected none below 0",
                        at);
  }
  check(range, false, clock(), "tma_store", at);
  check_views(range, "tma_store", at);
  check_swizzle(range, int(matrix.swizzle), "tma_store", at);
  AsyncThread& thread = self();
  if (thread.bulk_agent < 0) thread.bulk_agent = add_agent();
  record({range, thread.bulk_agent, std::uint32_t(thread.bulk_groups + 1), false, "tma_store", at});
  thread.unread.resize(std::size_t(thread.bulk_groups) + 1);
  thread.unwritten.resize(std::size_t(thread.bulk_groups) + 1);
  ++thread.unread.back();
  ++thread.unwritten.back();
  ++thread.bulk_open;
  thread.bulk_at = at;
  copies_.push_back({.loads = false,
                     .thread = index_,
                     .map = matrix,
                     .box = box,
                     .range = range,
                     .at = at,
                     .group = thread.bulk_groups,
                     .source = {shared_ + range.begin, shared_ + range.end}});
  if (completion_ != Completion::early) return;
  advance(int(copies_.size()) - 1, false);
  advance(int(copies_.size()) - 1, false);
}

// Rows first..last of the box, between the matrix and the async view or from the source as it was read.
void Async::move_rows(Copy& copy, int first, int last) {
  const TiledMatrix& m = copy.map;
  const std::size_t base = reinterpret_cast<std::uintptr_t>(shared_) % kPage + copy.range.begin;
  const auto [head, batch] = copy.box.of;
  const bool is_there =
      !m.is_of_heads() || (head >= 0 && head < m.heads.count && batch >= 0 && batch < m.batches.count);
  auto* const data = static_cast<std::byte*>(const_cast<void*>(m.data)) +
                     (is_there ? head * m.heads.bytes + batch * m.batches.bytes : 0);
  const std::int64_t left = std::max<std::int64_t>(0, copy.box.x);
  const std::int64_t right =
      is_there ? std::min<std::int64_t>(m.columns, std::int64_t{copy.box.x} + m.box_columns) : left;
  for (int r = first; r < last; ++r) {
    const std::int64_t row = std::int64_t{copy.box.y} + r;
    if (row >= 0 && row < m.rows && left < right) {
      const auto* const from = data + row * m.row_bytes + left * std::int64_t(kElement);
      const std::size_t count = std::size_t(right - left) * kElement;
      copy.loads ? levin::detail::ledger_read(from, count) : levin::detail::ledger_write(from, count);
    }
    for (int c = 0; c < m.box_columns; ++c) {
      const std::int64_t column = std::int64_t{copy.box.x} + c;
      const std::size_t place = swizzled(base + std::size_t(r) * row_bytes(m) + std::size_t(c) * kElement, m.swizzle) -
                                base;  // within the box
      const bool inside = row >= 0 && row < m.rows && column >= left && column < right;
      std::byte* const global = data + (inside ? row * m.row_bytes + column * std::int64_t(kElement) : 0);
      if (copy.loads) {
        std::byte* const to = &view_[copy.range.begin + place];
        if (inside) {
          std::copy(global, global + kElement, to);
        } else {
          std::fill(to, to + kElement, std::byte{0});
        }
      } else if (inside) {
        std::copy(&copy.source[place], &copy.source[place] + kElement, global);
      }
    }
  }
}

// A step of a copy: some rows of a load, or the reading and then the writing of a store.
void Async::advance(int index, bool in_parts) {
  Copy& copy = copies_[std::size_t(index)];
  if (copy.loads) {
    const int rows = copy.map.box_rows;
    const int last = in_parts && copy.rows_done == 0 && rows > 1 ? rows / 2 : rows;
    move_rows(copy, copy.rows_done, last);
    BarrierState& state = barriers_[std::size_t(copy.barrier)];
    count_bytes(state, -std::int64_t(row_bytes(copy.map)) * (last - copy.rows_done));
    copy.rows_done = last;
    if (last == rows) copies_.erase(copies_.begin() + index);
    return try_phase(state);
  }
  AsyncThread& thread = threads_[std::size_t(copy.thread)];
  if (!copy.was_read) {
    copy.was_read = true;
    --thread.unread[std::size_t(copy.group)];
    if (!std::equal(copy.source.begin(), copy.source.end(), shared_ + copy.range.begin)) {
      fail_block("the bytes of a tma_store, issued at " + site_text(copy.at) +
                 ", were written before bulk_wait_read covered it");
    }
  } else {
    move_rows(copy, 0, copy.map.box_rows);
    --thread.unwritten[std::size_t(copy.group)];
    copies_.erase(copies_.begin() + index);
  }
  wake();
}

void Async::commit_bulk(Site) {
  enter();
  AsyncThread& thread = self();
  if (thread.bulk_agent < 0) thread.bulk_agent = add_agent();
  ++thread.bulk_groups;
  thread.bulk_open = 0;
  thread.unread.resize(std::size_t(thread.bulk_groups));
  thread.unwritten.resize(std::size_t(thread.bulk_groups));
  engine_.yield();
}

void Async::wait_bulk(int left, bool read, Site at) {
  enter();
  const int target = std::max(0, self().bulk_groups - left);
  park({read ? Condition::Kind::bulk_read : Condition::Kind::bulk_done, index_, target},
       read ? "bulk_wait_read" : "bulk_wait", at);
}

// ---- The calls of hopper.h

void tma_load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, Site at) {
  in_kernel("tma_load").async(at).load(to, map, box, barrier, at);
}
void tma_store(const kernels::TensorMap& map, BoxAt box, const void* from, Site at) {
  in_kernel("tma_store").async(at).store(map, box, from, at);
}
void bulk_commit(Site at) { in_kernel("bulk_commit").async(at).commit_bulk(at); }
void bulk_wait(int groups_left, bool read, Site at) {
  in_kernel("bulk_wait").async(at).wait_bulk(groups_left, read, at);
}

}  // namespace levin::simt
