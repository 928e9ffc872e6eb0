// A parallel loop over the elements of a list of arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/executor/cpu.h"
#include "kernels/executor/streaming.h"

namespace levin::kernels {

template <class Item, class Count>
int64_t total_count(std::span<const Item> items, const Count& count) {
  int64_t total = 0;
  for (const Item& item : items) total += count(item);
  return total;
}

// body(item, begin, end) for stretches that cover the elements [0, count(item)) of every item, on all threads in chunks
// of `grain` elements, however short the items are. For work whose elements are independent. `bytes`: what body moves
// for an element.
//
// The items are laid end to end as the first eighth of each, then the second, and so on. A thread, which gets a stretch
// of that, then works on the part of a matrix that its rows of the gradient's product also wrote: memory that another
// core wrote last costs several times as much. Items that do not stay in the cache together lie whole, because memory
// is read faster along.
template <class Item, class Count, class Body>
void parallel_pieces(const Cpu& on, std::span<const Item> items, int64_t grain, int64_t bytes, Count&& count,
                     Body&& body) {
  const int64_t total = total_count(items, count);
  if (total <= grain) {
    for (const Item& item : items) body(item, int64_t{0}, count(item));
    return;
  }
  const int64_t parts = beyond_cache(total * bytes) ? 1 : 8;
  on.parallel_for(total, grain, [&](int64_t begin, int64_t end) {
    int64_t at = 0;
    for (int64_t part = 0; part < parts && at < end; ++part)
      for (const Item& item : items) {
        const int64_t n = count(item), first = n * part / parts, here = n * (part + 1) / parts - first;
        const int64_t from = std::max(begin - at, int64_t{0}), to = std::min(end - at, here);
        if (from < to) body(item, first + from, first + to);
        at += here;
        if (at >= end) break;
      }
  });
}

}  // namespace levin::kernels
