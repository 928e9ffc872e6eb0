#include "kernels/executor/copy.h"

#include <cstring>

#include "kernels/executor/streaming.h"

namespace levin::kernels::cpu {

void copy_bytes(const Cpu& on, const void* from, void* to, int64_t bytes) {
  constexpr int64_t kGrain = 256 << 10;
  const bool streams = beyond_cache(2 * bytes);
  on.parallel_for(bytes, kGrain, [&](int64_t begin, int64_t end) {
    auto* const target = static_cast<char*>(to) + begin;
    const auto* const source = static_cast<const char*>(from) + begin;
    if (streams) {
      const Streaming past_caches;
      Streaming::write(target, source, end - begin);
    } else {
      std::memcpy(target, source, static_cast<size_t>(end - begin));
    }
  });
}

}  // namespace levin::kernels::cpu
