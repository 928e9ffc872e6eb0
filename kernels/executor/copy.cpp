#include "kernels/executor/copy.h"

#include <cstring>

#include "kernels/executor/pieces.h"
#include "kernels/executor/streaming.cuh"

namespace levin::kernels::cpu {

void copy_list(const Cpu& on, std::span<const Copy> copies) {
  constexpr int64_t kGrain = 256 << 10;
  const auto count = [](const Copy& c) { return c.n; };
  const bool streams = beyond_cache(2 * total_count(copies, count));
  parallel_pieces(on, copies, kGrain, 2, count, [&](const Copy& c, int64_t begin, int64_t end) {
    if (begin == end) return;
    if (streams) {
      const Streaming all_seen;
      Streaming::write(on, c.to + begin, c.from + begin, end - begin);
    } else {
      std::memcpy(c.to + begin, c.from + begin, static_cast<size_t>(end - begin));
    }
    if (end == c.n && c.gap > 0) std::memset(c.to + end, 0, static_cast<size_t>(c.gap));
  });
}

void copy_bytes(const Cpu& on, const void* from, void* to, int64_t bytes) {
  const Copy all[] = {{static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes}};
  copy_list(on, all);
}

}  // namespace levin::kernels::cpu
