// The draws of one node: which of its in-edges a sample takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "data/random.h"

namespace levin::gnn {

// Where a node draws: the words of its stream, NeighborSampler has the formula.
struct DrawKey {
  std::uint64_t batch_key = 0;
  std::uint64_t node = 0;
  std::uint32_t hop = 0, tree = 0;
};

// Memory of the draws, kept by a thread.
struct DrawMemory {
  std::vector<std::uint32_t> words;
  std::vector<std::uint64_t> seen;
};

namespace draws {

constexpr std::int64_t kFew = 64;  // picks whose order is kept by comparing with all before

inline void fill(const DrawKey& key, std::uint32_t* words, std::int64_t count) {
  const std::uint32_t high = (static_cast<std::uint32_t>(key.node >> 32) & 0xffffffu) | key.hop << 24;
  for (std::int64_t d = 0; d < count; d += 4) {
    const data::Counter block = data::philox(
        {static_cast<std::uint32_t>(d >> 2), static_cast<std::uint32_t>(key.node), high, key.tree}, key.batch_key);
    for (std::int64_t i = 0; i < 4; ++i) words[d + i] = block[static_cast<std::size_t>(i)];
  }
}

// Floyd's picks in ascending order. Pick d is drawn from 0 .. j with j = degree - k + d; where it is taken already,
// j is the pick, which exceeds all before.
inline void few_distinct(const std::uint32_t* words, std::int64_t k, std::int64_t degree, std::int64_t first,
                         std::int64_t* out) {
  std::array<std::uint32_t, kFew> sorted;
  for (std::int64_t d = 0; d < k; ++d) {
    const auto j = static_cast<std::uint32_t>(degree - k + d);
    const auto t = static_cast<std::uint32_t>(data::bounded(words[d], std::uint64_t{j} + 1));
    std::int64_t below = 0;
    bool taken = false;
    for (std::int64_t i = 0; i < d; ++i) {
      below += sorted[static_cast<std::size_t>(i)] < t;
      taken |= sorted[static_cast<std::size_t>(i)] == t;
    }
    if (taken) {
      sorted[static_cast<std::size_t>(d)] = j;
      continue;
    }
    for (std::int64_t i = d; i > below; --i)
      sorted[static_cast<std::size_t>(i)] = sorted[static_cast<std::size_t>(i - 1)];
    sorted[static_cast<std::size_t>(below)] = t;
  }
  for (std::int64_t d = 0; d < k; ++d) out[d] = first + sorted[static_cast<std::size_t>(d)];
}

// The same for many picks: a bit for each in-edge where they are not too many, else a sorted list.
inline void many_distinct(DrawMemory& memory, std::int64_t k, std::int64_t degree, std::int64_t first,
                          std::int64_t* out) {
  constexpr std::int64_t kEdgesAPick = 1024;
  if (degree / kEdgesAPick <= k) {
    std::vector<std::uint64_t>& bits = memory.seen;
    bits.assign(static_cast<std::size_t>(degree / 64 + 1), 0);
    for (std::int64_t d = 0; d < k; ++d) {
      const auto j = static_cast<std::uint64_t>(degree - k + d);
      std::uint64_t t = data::bounded(memory.words[static_cast<std::size_t>(d)], j + 1);
      if (bits[t / 64] >> (t % 64) & 1) t = j;
      bits[t / 64] |= std::uint64_t{1} << (t % 64);
    }
    for (std::size_t w = 0; w < bits.size(); ++w) {
      for (std::uint64_t left = bits[w]; left != 0; left &= left - 1)
        *out++ = first + static_cast<std::int64_t>(w * 64 + static_cast<std::size_t>(__builtin_ctzll(left)));
    }
    return;
  }
  for (std::int64_t d = 0; d < k; ++d) {
    const std::int64_t j = degree - k + d;
    const std::int64_t t = first + static_cast<std::int64_t>(data::bounded(memory.words[static_cast<std::size_t>(d)],
                                                                           static_cast<std::uint64_t>(j) + 1));
    std::int64_t* const at = std::lower_bound(out, out + d, t);
    if (at != out + d && *at == t) {
      out[d] = first + j;
      continue;
    }
    std::move_backward(at, out + d, out + d + 1);
    *at = t;
  }
}

// k of the in-edges first .. first + degree - 1, ascending, into out[0 .. k). k <= degree unless `replace`.
inline void pick(const DrawKey& key, std::int64_t k, std::int64_t degree, std::int64_t first, bool replace,
                 DrawMemory& memory, std::int64_t* out) {
  if (k == degree && !replace) {
    for (std::int64_t d = 0; d < k; ++d) out[d] = first + d;
    return;
  }
  std::array<std::uint32_t, kFew> few;
  std::uint32_t* words = few.data();
  if (k > kFew) {
    memory.words.resize(static_cast<std::size_t>(k + 3));
    words = memory.words.data();
  }
  fill(key, words, k);
  if (replace) {
    for (std::int64_t d = 0; d < k; ++d)
      out[d] = first + static_cast<std::int64_t>(data::bounded(words[d], static_cast<std::uint64_t>(degree)));
    std::sort(out, out + k);
  } else if (k <= kFew) {
    few_distinct(words, k, degree, first, out);
  } else {
    many_distinct(memory, k, degree, first, out);
  }
}

}  // namespace draws
}  // namespace levin::gnn
