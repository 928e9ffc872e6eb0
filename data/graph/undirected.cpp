#include "data/graph/undirected.h"

#include <tbb/blocked_range.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace levin::gnn {
namespace {

// Note [Sorting pairs]
// A pair (row, column) is the key row << 32 | column, and equal keys are one edge, so that no sort needs to be stable.
// The keys are cut into buckets of consecutive rows, few enough to write to all at once (kMostBuckets). A bucket, which
// mostly fits a core's cache, is sorted by the digits of its keys and loses its repeats; then its rows are counted.
constexpr std::int64_t kKeysPerBucket = std::int64_t{1} << 15;
constexpr std::int64_t kMostBuckets = 2048;
constexpr std::int64_t kPairsPerBlock = std::int64_t{1} << 18;
constexpr int kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

int bits_of(std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))); }

// Sorts n keys below 2^bits; `other` has room for n. Returns where the sorted keys lie, one of the two.
std::uint64_t* sort_keys(std::uint64_t* keys, std::uint64_t* other, std::size_t n, int bits) {
  if (n < 64) {
    std::sort(keys, keys + n);
    return keys;
  }
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    std::array<std::size_t, kDigits> at{};
    for (std::size_t i = 0; i < n; ++i) ++at[keys[i] >> shift & (kDigits - 1)];
    std::size_t sum = 0;
    for (std::size_t& a : at) sum += std::exchange(a, sum);
    for (std::size_t i = 0; i < n; ++i) other[at[keys[i] >> shift & (kDigits - 1)]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

}  // namespace

void for_pieces(std::int64_t n, std::int64_t grain, const Function<void(std::int64_t, std::int64_t)>& f) {
  const std::int64_t pieces = (n + grain - 1) / grain;
  tbb::parallel_for(std::int64_t{0}, pieces, [&](std::int64_t p) { f(p * grain, std::min(n, (p + 1) * grain)); });
}

Graph undirected_graph(const EdgeList& edges, std::int64_t nodes) {
  const std::int64_t pairs = edges.src.numel();
  const auto *src = edges.src.data<std::int32_t>(), *dst = edges.dst.data<std::int32_t>();
  const int node_bits = bits_of(std::max<std::int64_t>(nodes - 1, 1));
  const std::int64_t wanted = std::clamp<std::int64_t>(2 * pairs / kKeysPerBucket, 1, kMostBuckets);
  const int shift = std::max(0, node_bits - bits_of(wanted) + 1);  // 2^shift rows a bucket
  const auto buckets = static_cast<std::size_t>((std::max<std::int64_t>(nodes, 1) - 1) >> shift) + 1;
  const auto blocks = static_cast<std::size_t>((pairs + kPairsPerBlock - 1) / kPairsPerBlock);

  // Keys of each block in each bucket, then their places.
  std::vector<std::size_t> place(blocks * buckets);
  const auto each_key = [&](std::size_t block, auto f) {
    const auto begin = static_cast<std::int64_t>(block) * kPairsPerBlock, end = std::min(pairs, begin + kPairsPerBlock);
    for (std::int64_t e = begin; e < end; ++e) {
      const auto a = static_cast<std::uint64_t>(src[e]), b = static_cast<std::uint64_t>(dst[e]);
      if (a == b) continue;
      f(b >> shift, b << 32 | a);
      f(a >> shift, a << 32 | b);
    }
  };
  tbb::parallel_for(std::size_t{0}, blocks, [&](std::size_t block) {
    each_key(block, [&](std::uint64_t bucket, std::uint64_t) { ++place[block * buckets + bucket]; });
  });
  std::vector<std::size_t> start(buckets + 1);
  std::size_t sum = 0;
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    start[bucket] = sum;
    for (std::size_t block = 0; block < blocks; ++block) sum += std::exchange(place[block * buckets + bucket], sum);
  }
  start[buckets] = sum;
  // Tensors, because a vector would write all zeros first.
  Tensor memory = empty({2, static_cast<std::int64_t>(sum)}, Device::cpu(), DType::i64);
  auto* keys = reinterpret_cast<std::uint64_t*>(memory.mutable_data<std::int64_t>());
  auto* other = keys + sum;
  tbb::parallel_for(std::size_t{0}, blocks, [&](std::size_t block) {
    each_key(block, [&](std::uint64_t bucket, std::uint64_t key) { keys[place[block * buckets + bucket]++] = key; });
  });

  // Sorted, without repeats.
  std::vector<std::uint64_t*> sorted(buckets);
  std::vector<std::int64_t> entry(buckets + 1);
  tbb::parallel_for(std::size_t{0}, buckets, [&](std::size_t bucket) {
    const std::size_t n = start[bucket + 1] - start[bucket];
    std::uint64_t *at = keys + start[bucket], *to = other + start[bucket];
    // Row within the bucket and column, close together: fewer digits.
    const std::uint64_t base = static_cast<std::uint64_t>(bucket) << shift;
    for (std::size_t i = 0; i < n; ++i) at[i] = ((at[i] >> 32) - base) << node_bits | (at[i] & 0xffffffffu);
    sorted[bucket] = sort_keys(at, to, n, shift + node_bits);
    entry[bucket + 1] = std::unique(sorted[bucket], sorted[bucket] + n) - sorted[bucket];
  });
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) entry[bucket + 1] += entry[bucket];
  const std::int64_t entries = entry[buckets];

  Csr a{.crow = empty({nodes + 1}, Device::cpu(), DType::i64),
        .col = empty({entries}, Device::cpu(), DType::i32),
        .cols = nodes};
  auto* crow = a.crow.mutable_data<std::int64_t>();
  auto* col = a.col.mutable_data<std::int32_t>();
  crow[nodes] = entries;
  std::vector<std::int64_t> longest(buckets);
  tbb::parallel_for(std::size_t{0}, buckets, [&](std::size_t bucket) {
    const std::int64_t begin = static_cast<std::int64_t>(bucket) << shift;
    const std::int64_t end = std::min(nodes, begin + (std::int64_t{1} << shift));
    const std::uint64_t* key = sorted[bucket];
    const std::int64_t count = entry[bucket + 1] - entry[bucket], mask = (std::int64_t{1} << node_bits) - 1;
    std::int64_t k = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = k;
      crow[i] = entry[bucket] + k;
      for (; k < count && static_cast<std::int64_t>(key[k] >> node_bits) == i - begin; ++k)
        col[entry[bucket] + k] = static_cast<std::int32_t>(static_cast<std::int64_t>(key[k]) & mask);
      longest[bucket] = std::max(longest[bucket], k - first);
    }
  });
  memory = {};

  // The transpose is the graph itself. The mirror of entry (i, j), met in order, is the next entry of row j.
  Tensor mirror = empty({entries}, Device::cpu(), DType::i32), cursors = a.crow.clone();
  auto* t_edge = mirror.mutable_data<std::int32_t>();
  auto* at = cursors.mutable_data<std::int64_t>();
  const auto parts = entries < kKeysPerBucket ? 1 : static_cast<std::int64_t>(tbb::info::default_concurrency());
  const auto cut = [&](std::int64_t part) {  // a row after about part / parts of the entries
    return part == parts ? nodes : std::lower_bound(crow, crow + nodes, entries / parts * part) - crow;
  };
  tbb::parallel_for(std::int64_t{0}, parts, [&](std::int64_t part) {
    const auto low = static_cast<std::uint64_t>(cut(part)), rows = static_cast<std::uint64_t>(cut(part + 1)) - low;
    for (std::int64_t k = 0; k < entries; ++k) {
      const auto j = static_cast<std::uint64_t>(col[k]);
      if (j - low < rows) t_edge[at[j]++] = static_cast<std::int32_t>(k);
    }
  });
  a.t_crow = a.crow;
  a.t_col = a.col;
  a.t_edge = mirror;
  const std::int64_t most = longest.empty() ? 0 : *std::max_element(longest.begin(), longest.end());
  a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{most, most, true});
  return Graph::from_csr(std::move(a), {.trusted = true});
}

}  // namespace levin::gnn
