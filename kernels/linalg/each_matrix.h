// Work on the matrices of a batch, which have nothing to do with each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/executor/cpu.h"
#include "kernels/lib/scratch.h"

namespace levin::kernels::cpu {

// body(i, memory) for each i in [0, count), false where it failed; the first that did, or -1. `work`: of a body, in
// about ns. memory: Scratch of `bytes`, one for many bodies, because small matrices take less time than a block.
template <class F>
std::int64_t each_matrix(const Cpu& on, std::int64_t count, std::int64_t work, std::int64_t bytes, const F& body) {
  constexpr std::int64_t kTaskWork = 12'000;
  std::atomic<std::int64_t> first{count};
  on.parallel_for(count, std::max<std::int64_t>(1, kTaskWork / std::max<std::int64_t>(1, work)),
                  [&](std::int64_t begin, std::int64_t end) {
                    const lib::Scratch memory(static_cast<std::size_t>(bytes));
                    for (std::int64_t i = begin; i < end; ++i) {
                      if (body(i, memory)) continue;
                      std::int64_t known = first.load();
                      while (i < known && !first.compare_exchange_weak(known, i)) {}
                    }
                  });
  return first < count ? first.load() : -1;
}
// The same for a body(i) without memory.
template <class F>
std::int64_t each_matrix(const Cpu& on, std::int64_t count, std::int64_t work, const F& body) {
  return each_matrix(on, count, work, 0, [&](std::int64_t i, const lib::Scratch&) { return body(i); });
}

}  // namespace levin::kernels::cpu
