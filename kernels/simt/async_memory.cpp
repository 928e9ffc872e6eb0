// Shared memory as threads and the async proxy see it, and which accesses come after which: Notes [Two views of shared
// memory] and [Race clocks].
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/simt/async.h"
#include "kernels/simt/poison.h"
#include "levin/error.h"

namespace levin::simt {

std::uint32_t Clock::of(int agent) const { return std::size_t(agent) < known.size() ? known[std::size_t(agent)] : 0; }
void Clock::know(int agent, std::uint32_t value) {
  if (std::size_t(agent) >= known.size()) known.resize(std::size_t(agent) + 1);
  known[std::size_t(agent)] = std::max(known[std::size_t(agent)], value);
}
void Clock::join(const Clock& other) {
  if (known.size() < other.known.size()) known.resize(other.known.size());
  for (std::size_t i = 0; i < other.known.size(); ++i) known[i] = std::max(known[i], other.known[i]);
}

std::size_t swizzled(std::size_t address, kernels::Swizzle swizzle) {
  constexpr std::size_t kMasks[] = {0, 1, 3, 7};
  return address ^ ((address >> 7 & kMasks[int(swizzle)]) << 4);
}

void Async::advance_clock(int warp) {
  Clock& clock = clocks_[std::size_t(warp)];
  clock.know(writes_of(warp), clock.of(writes_of(warp)) + 1);
  if (cluster_.kinds == 3) clock.know(past_of(warp), clock.of(past_of(warp)) + 1);
}

void Async::release(Clock& to) {
  to.join(clock());
  advance_clock(warp_);
}

void Async::release_weakly(Clock& to) {
  const std::vector<std::uint32_t>& known = clock().known;
  for (std::size_t agent = 0; agent < known.size(); ++agent) {
    if (known[agent] != 0 && !cluster_.is_write(int(agent))) to.know(int(agent), known[agent]);
  }
  advance_clock(warp_);
}

unsigned Async::window_address(const void* p) const {
  const auto base = reinterpret_cast<std::uintptr_t>(shared_) / kPage * kPage;
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p) - base);
}

Range Async::range_of(const void* p, std::size_t bytes, const char* what, Site at) {
  const auto begin = reinterpret_cast<std::uintptr_t>(shared_), from = reinterpret_cast<std::uintptr_t>(p);
  const std::size_t size = view_.size();
  if (from < begin || from >= begin + size) {
    engine_.fail_thread(std::string(what) + ": the address is not in the block's dynamic shared memory", at);
  }
  const std::size_t first = from - begin;
  if (first + bytes > size) {
    engine_.fail_thread(std::string(what) + ": the range ends " + text(first + bytes - size) +
                            " bytes beyond the block's shared memory",
                        at);
  }
  return {first, first + bytes};
}

void Async::check(Range range, bool writes, const Clock& clock, const char* what, Site at) {
  for (std::size_t page = range.begin / kPage; page * kPage < range.end; ++page) {
    for (const Access& before : pages_[page]) {
      if (!before.range.meets(range) || (!writes && !before.writes) || clock.of(before.agent) >= before.value) continue;
      engine_.fail_thread(std::string("race: ") + what + (writes ? " writes" : " reads") + " shared memory at byte " +
                              text(std::max(before.range.begin, range.begin)) + ", which " + before.what + ", " +
                              site_text(before.at) + ", " + (before.writes ? "writes" : "reads") +
                              " and which nothing orders before it",
                          at);
    }
  }
}

void Async::record(const Access& access) {
  for (std::size_t page = access.range.begin / kPage; page * kPage < access.range.end; ++page) {
    std::vector<Access>& list = pages_[page];
    Access part = access;
    part.range = {std::max(access.range.begin, page * kPage), std::min(access.range.end, (page + 1) * kPage)};
    // What a write covers came before it: check() has said so.
    std::erase_if(list, [&](const Access& a) {
      return part.range.holds(a.range) && (part.writes || (!a.writes && a.agent == part.agent));
    });
    list.push_back(part);
  }
}

void Async::will_write(void* to, std::size_t bytes, const char* what, Site at) {
  enter();
  const Range range = range_of(to, bytes, what, at);
  check_aligned(to, bytes, at);
  check(range, true, clock(), what, at);
  record({range, writes_of(warp_), clock().of(writes_of(warp_)), true, what, at});
  self().unfenced.push_back(range);
  ++unfenced_;
}

// The thread's writes reach the async view, and count as made now.
void Async::fence() {
  enter();
  for (const Range& range : self().unfenced) {
    std::copy(shared_ + range.begin, shared_ + range.end, view_.begin() + std::ptrdiff_t(range.begin));
    for (Access& a : pages_[range.begin / kPage]) {
      if (a.writes && a.agent == writes_of(warp_) && range.holds(a.range)) a.value = clock().of(writes_of(warp_));
    }
  }
  unfenced_ -= self().unfenced.size();
  self().unfenced.clear();
  engine_.yield();
}

void Async::check_views(Range range, const char* what, Site at) {
  for (std::size_t i = 0; unfenced_ != 0 && i < threads_.size(); ++i) {
    for (const Range& written : threads_[i].unfenced) {
      if (!written.meets(range)) continue;
      engine_.fail_thread(std::string(what) + " reads byte " + text(std::max(written.begin, range.begin)) +
                              ", which thread " + text(i) + " wrote without a fence_async_shared of its own since",
                          at);
    }
  }
  const auto word = [](const std::byte* p) {
    std::uint64_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return bytes;
  };
  std::size_t i = range.begin;
  while (i + 8 <= range.end && word(shared_ + i) == word(&view_[i])) i += 8;
  while (i < range.end && shared_[i] == view_[i]) ++i;
  if (i == range.end) return;
  engine_.fail_thread(std::string(what) + " reads byte " + text(i) +
                          ", which was written by a plain store; use store_shared and fence_async_shared",
                      at);
}

void Async::check_swizzle(Range range, int swizzle, const char* what, Site at) {
  constexpr const char* kNames[] = {"none", "32 bytes", "64 bytes", "128 bytes"};
  for (std::size_t page = range.begin / kPage; page * kPage < range.end; ++page) {
    for (const Access& a : pages_[page]) {
      if (!a.writes || !a.range.meets(range) || a.swizzle < 0 || a.swizzle == swizzle) continue;
      engine_.fail_thread(std::string(what) + ": swizzle " + kNames[swizzle] + ", and " + a.what + ", " +
                              site_text(a.at) + ", wrote the bytes with swizzle " + kNames[a.swizzle],
                          at);
    }
  }
}

// Threads see NaN from here to the first wait for the copy.
void Async::poison(Range range) {
  unpoison_memory(shared_ + range.begin, range.end - range.begin);
  std::fill(shared_ + range.begin, shared_ + range.end, std::byte{0xff});
  poison_memory(shared_ + range.begin, range.end - range.begin);
}
void Async::land(const Landing& landing) {
  const Range range = landing.range;
  unpoison_memory(shared_ + range.begin, range.end - range.begin);
  if (landing.bytes.empty())
    std::copy(view_.begin() + long(range.begin), view_.begin() + long(range.end), shared_ + range.begin);
  else
    std::copy(landing.bytes.begin(), landing.bytes.end(), shared_ + range.begin);
}

void Async::abandon() {
  unpoison_memory(shared_, view_.size());
  for (AsyncThread& thread : threads_) {
    for (const Registers& array : thread.arrays) {
      if (array.in_flight) unpoison_memory(array.p, std::size_t(array.count) * 4);
    }
    thread.arrays.clear();
  }
}

}  // namespace levin::simt
