// Copies between global and shared memory: TMA's boxes of matrices (PTX ISA, "cp.async.bulk.tensor"), and bytes in a
// row ("cp.async.bulk", "cp.reduce.async.bulk").
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/simt/async.h"
#include "kernels/simt/poison.h"
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

void Async::load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, unsigned ranks, Site at) {
  enter();
  range_of(to, 1, "tma_load", at);
  const TiledMatrix matrix = map_of(map, box, to, "tma_load", at);
  Copy copy{.what = "tma_load",
            .range = range_of(to, box_bytes(matrix), "tma_load", at),
            .at = at,
            .map = matrix,
            .box = box};
  if (ranks == 0) return start_load(std::move(copy), barrier, *this);
  range_of(&barrier, sizeof barrier, "tma_load", at);
  for (int rank = 0; ranks >> rank != 0; ++rank) {
    if ((ranks >> rank & 1u) == 0) continue;
    Async& other = peer(rank, "tma_load", at);
    other.start_load(copy, *reinterpret_cast<const Barrier*>(same_place(&barrier, other)), *this);
  }
}

void Async::load_bytes(void* to, const void* from, std::size_t bytes, Barrier& barrier, Site at) {
  enter();
  const Range range = linear_range(to, from, bytes, "bulk_load", at);
  start_load(
      {.what = "bulk_load", .range = range, .at = at, .global = static_cast<std::byte*>(const_cast<void*>(from))},
      barrier, *this);
}

// A copy into this block's memory, which a thread of `from` issues.
void Async::start_load(Copy copy, const Barrier& barrier, Async& from) {
  BarrierState& state = state_of(barrier, from, copy.what, copy.at);
  const Range range = copy.range;
  check(range, true, from.clock(), copy.what, copy.at);
  for (std::size_t i = 0; unfenced_ != 0 && !copy.is_store_remote() && i < threads_.size(); ++i) {
    for (const Range& written : threads_[i].unfenced) {
      if (!written.meets(range)) continue;
      engine_.fail_thread(std::string(copy.what) + " overwrites byte " + text(std::max(written.begin, range.begin)) +
                              ", which was written without a fence_async_shared since",
                          copy.at);
    }
  }
  const int swizzle = copy.is_linear() || copy.is_store_remote() ? -1 : int(copy.map.swizzle);
  record({range, state.agent, std::uint32_t(state.phase + 1), true, copy.what, copy.at, swizzle});
  poison(range);
  state.landing.push_back({state.phase, range, copy.source});
  copy.loads = true;
  copy.thread = index_;
  copy.barrier = int(barrier.word & 0xffffffffu);
  copy.phase = state.phase;
  copies_.push_back(std::move(copy));
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
  check_swizzle(range, int(matrix.swizzle), "tma_store", at);
  start_store({.what = "tma_store", .range = range, .at = at, .map = matrix, .box = box});
}

void Async::store_bytes(void* to, const void* from, std::size_t bytes, BulkStore how, Site at) {
  enter();
  const char* const what = how == BulkStore::add_f32 ? "bulk_reduce_add" : "bulk_store";
  const Range range = linear_range(from, to, bytes, what, at);
  start_store({.what = what,
               .range = range,
               .at = at,
               .global = static_cast<std::byte*>(to),
               .adds = how == BulkStore::add_f32});
}

void Async::start_store(Copy copy) {
  const Range range = copy.range;
  check(range, false, clock(), copy.what, copy.at);
  check_views(range, copy.what, copy.at);
  AsyncThread& thread = self();
  check_turn(copy.what, copy.at);
  if (thread.bulk_agent < 0) thread.bulk_agent = add_agent();
  record({range, thread.bulk_agent, std::uint32_t(thread.bulk_groups + 1), false, copy.what, copy.at});
  thread.unread.resize(std::size_t(thread.bulk_groups) + 1);
  thread.unwritten.resize(std::size_t(thread.bulk_groups) + 1);
  ++thread.unread.back();
  ++thread.unwritten.back();
  ++thread.bulk_open;
  thread.bulk_at = copy.at;
  thread.bulk_what = copy.what;
  copy.thread = index_;
  copy.group = thread.bulk_groups;
  copy.source = {shared_ + range.begin, shared_ + range.end};
  copies_.push_back(std::move(copy));
  if (completion_ != Completion::early) return;
  advance(int(copies_.size()) - 1, false);
  advance(int(copies_.size()) - 1, false);
}

Range Async::linear_range(const void* shared, const void* global, std::size_t bytes, const char* what, Site at) {
  if (bytes == 0 || bytes % kPiece != 0) {
    engine_.fail_thread(std::string(what) + " of " + text(bytes) + " bytes, expected a multiple of 16 above 0", at);
  }
  check_aligned(shared, kPiece, at);
  check_aligned(global, kPiece, at);
  if (is_poisoned(global, bytes)) {
    engine_.fail_thread(std::string(what) + ": not all of the " + text(bytes) + " bytes of global memory are there",
                        at);
  }
  return range_of(shared, bytes, what, at);
}

int Copy::parts() const {
  if (is_store_remote()) return 1;
  return is_linear() ? int((range.end - range.begin) / kPiece) : map.box_rows;
}

void Async::move_parts(const Copy& copy, int first, int last) {
  if (copy.is_store_remote()) return;  // its Landing has the bytes
  copy.is_linear() ? move_bytes(copy, first, last) : move_rows(copy, first, last);
}

void Async::move_bytes(const Copy& copy, int first, int last) {
  // Subnormal numbers count as 0 (PTX ISA, "cp.reduce.async.bulk").
  const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
  const std::size_t begin = std::size_t(first) * kPiece, bytes = std::size_t(last - first) * kPiece;
  std::byte* const global = copy.global + begin;
  if (copy.loads || copy.adds) levin::detail::ledger_read(global, bytes);
  if (!copy.loads) levin::detail::ledger_write(global, bytes);
  if (copy.loads) {
    std::copy(global, global + bytes, view_.begin() + std::ptrdiff_t(copy.range.begin + begin));
  } else if (!copy.adds) {
    std::copy(copy.source.begin() + std::ptrdiff_t(begin), copy.source.begin() + std::ptrdiff_t(begin + bytes), global);
  } else {
    for (std::size_t i = 0; i < bytes; i += sizeof(float)) {
      float sum, term;
      std::memcpy(&sum, global + i, sizeof sum);
      std::memcpy(&term, &copy.source[begin + i], sizeof term);
      sum = flushed(flushed(sum) + flushed(term));
      std::memcpy(global + i, &sum, sizeof sum);
    }
  }
}

// Rows first..last of the box, between the matrix and the async view or from the source as it was read.
void Async::move_rows(const Copy& copy, int first, int last) {
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

// A step of a copy: some parts of a load, or the reading and then the writing of a store.
void Async::advance(int index, bool in_parts) {
  Copy& copy = copies_[std::size_t(index)];
  if (copy.loads) {
    const int parts = copy.parts();
    const int last = in_parts && copy.parts_done == 0 && parts > 1 ? parts / 2 : parts;
    move_parts(copy, copy.parts_done, last);
    BarrierState& state = barriers_[std::size_t(copy.barrier)];
    count_bytes(state,
                -std::int64_t((copy.range.end - copy.range.begin) / std::size_t(parts)) * (last - copy.parts_done));
    copy.parts_done = last;
    if (last == parts) copies_.erase(copies_.begin() + index);
    return try_phase(state);
  }
  AsyncThread& thread = threads_[std::size_t(copy.thread)];
  if (!copy.was_read) {
    copy.was_read = true;
    --thread.unread[std::size_t(copy.group)];
    if (!std::equal(copy.source.begin(), copy.source.end(), shared_ + copy.range.begin)) {
      fail_block(std::string("the bytes of a ") + copy.what + ", issued at " + site_text(copy.at) +
                 ", were written before bulk_wait_read covered it");
    }
  } else {
    move_parts(copy, 0, copy.parts());
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

// ---- Turns

void Async::wait_turn(const int* counter, int value, Site at) {
  enter();
  const AsyncThread& thread = self();
  if (thread.bulk_open != 0 || thread.bulk_done < thread.bulk_groups) {
    engine_.fail_thread(std::string("wait_turn while a ") + thread.bulk_what + ", " + site_text(thread.bulk_at) +
                            ", may be on its way to memory",
                        at);
  }
  const int count = __atomic_load_n(counter, __ATOMIC_ACQUIRE);
  if (count > value) {
    engine_.fail_thread("wait_turn for " + text(value) + " of a counter that is at " + text(count), at);
  }
  park({Condition::Kind::counter, 0, value, counter}, "wait_turn", at);
  engine_.yield();
}

void Async::pass_turn(int* counter, Site at) {
  enter();
  AsyncThread& thread = self();
  if (thread.turn != counter) engine_.fail_thread("pass_turn of a counter that the thread has not waited for", at);
  if (thread.bulk_open != 0 || thread.bulk_done < thread.bulk_groups) {
    engine_.fail_thread(std::string("pass_turn before a bulk_wait, not bulk_wait_read, has covered the ") +
                            thread.bulk_what + ", " + site_text(thread.bulk_at) + ": memory may not have its sums",
                        at);
  }
  thread.turn = nullptr;
  __atomic_fetch_add(counter, 1, __ATOMIC_RELEASE);
  for (Async* const block : cluster_.blocks) block->wake();
  engine_.yield();
}

void Async::fence_global() {
  enter();
  self().turn_fenced = true;
  engine_.yield();
}

// What another thread's copies have written is not there for those of a thread that has just got its turn.
void Async::check_turn(const char* what, Site at) {
  if (self().turn == nullptr || self().turn_fenced) return;
  engine_.fail_thread(std::string(what) + " in a turn without a fence_async_global since wait_turn", at);
}

// ---- The calls of hopper.h

void tma_load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, Site at) {
  in_kernel("tma_load").async(at).load(to, map, box, barrier, 0, at);
}
void tma_store(const kernels::TensorMap& map, BoxAt box, const void* from, Site at) {
  in_kernel("tma_store").async(at).store(map, box, from, at);
}
void bulk_load(void* to, const void* from, unsigned bytes, Barrier& barrier, Site at) {
  in_kernel("bulk_load").async(at).load_bytes(to, from, bytes, barrier, at);
}
void bulk_store(void* to, const void* from, unsigned bytes, BulkStore how, Site at) {
  in_kernel("bulk_store").async(at).store_bytes(to, from, bytes, how, at);
}
void wait_turn(const int* counter, int value, Site at) {
  in_kernel("wait_turn").async(at).wait_turn(counter, value, at);
}
void pass_turn(int* counter, Site at) { in_kernel("pass_turn").async(at).pass_turn(counter, at); }
void fence_async_global(Site at) { in_kernel("fence_async_global").async(at).fence_global(); }
void bulk_commit(Site at) { in_kernel("bulk_commit").async(at).commit_bulk(at); }
void bulk_wait(int groups_left, bool read, Site at) {
  in_kernel("bulk_wait").async(at).wait_bulk(groups_left, read, at);
}

}  // namespace levin::simt
