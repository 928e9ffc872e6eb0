// A parallel loop over the elements of a list of arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/executor/cpu.h"

namespace levin::kernels {

// body(item, begin, end) for stretches that cover the elements [0, count(item)) of every item, on all threads in chunks
// of `grain` elements, however short the items are. For work whose elements are independent: which stretches an item
// is cut into depends on the counts and the grain alone.
//
// The items are laid end to end as the first eighth of each, then the second, and so on. A thread, which gets a stretch
// of that, then works on the part of a matrix that its rows of the gradient's product also wrote: memory that another
// core wrote last costs several times as much.
template <class Item, class Count, class Body>
void parallel_pieces(const Cpu& on, std::span<const Item> items, int64_t grain, Count&& count, Body&& body) {
  int64_t total = 0;
  for (const Item& item : items) total += count(item);
  if (total <= grain) {
    for (const Item& item : items) body(item, int64_t{0}, count(item));
    return;
  }
  constexpr int64_t kParts = 8;
  on.parallel_for(total, grain, [&](int64_t begin, int64_t end) {
    int64_t at = 0;
    for (int64_t part = 0; part < kParts && at < end; ++part)
      for (const Item& item : items) {
        const int64_t n = count(item), first = n * part / kParts, here = n * (part + 1) / kParts - first;
        const int64_t from = std::max(begin - at, int64_t{0}), to = std::min(end - at, here);
        if (from < to) body(item, first + from, first + to);
        at += here;
        if (at >= end) break;
      }
  });
}

}  // namespace levin::kernels
