#include <algorithm>
#include <cmath>
#include <cstddef>

#include "data/graph/undirected.h"
#include "data/random.h"
#include "levin/data/graph.h"
#include "levin/error.h"

namespace levin::gnn {
namespace {

constexpr std::uint32_t kTag = 0x524d4154;  // "RMAT"
constexpr std::int64_t kMostEdges = (std::int64_t{1} << 30) - 1;
constexpr std::int64_t kGrain = std::int64_t{1} << 14;

RmatOptions checked(RmatOptions o) {
  if (o.scale < 1 || o.scale > 30) fail<ConfigError>("rmat: scale is ", o.scale, ", expected 1 to 30");
  if (o.num_edges == -1) o.num_edges = std::min(kMostEdges, std::int64_t{16} << o.scale);
  if (o.num_edges < 0 || o.num_edges > kMostEdges)
    fail<ConfigError>("rmat: num_edges is ", o.num_edges, ", expected 0 to ", kMostEdges, ", or -1");
  if (!(o.a >= 0 && o.b >= 0 && o.c >= 0 && o.a + o.b + o.c <= 1))
    fail<ConfigError>("rmat: a, b and c are ", o.a, ", ", o.b, " and ", o.c,
                      ", expected 0 or more, at most 1 together");
  if (o.scramble != 0 && o.scramble % 2 == 0)
    fail<ConfigError>("rmat: scramble is ", o.scramble, ", expected an odd number, or 0");
  return o;
}

}  // namespace

EdgeList rmat_edges(const RmatOptions& options) {
  const RmatOptions o = checked(options);
  const std::int64_t nodes = std::int64_t{1} << o.scale;
  EdgeList out{.src = empty({o.num_edges}, Device::cpu(), DType::i32),
               .dst = empty({o.num_edges}, Device::cpu(), DType::i32),
               .num_src = nodes,
               .num_dst = nodes};
  auto *src = out.src.mutable_data<std::int32_t>(), *dst = out.dst.mutable_data<std::int32_t>();
  // 2^32 stands for certainty: words are 32 bits, compared as 64.
  const auto threshold = [](double p) { return static_cast<std::uint64_t>(std::floor(p * 0x1p32)); };
  const std::uint64_t a = threshold(o.a), ab = threshold(o.a + o.b), abc = threshold(o.a + o.b + o.c);
  for_pieces(o.num_edges, kGrain,
             [=, scale = o.scale, seed = o.seed, scramble = o.scramble](std::int64_t begin, std::int64_t end) {
               for (std::int64_t e = begin; e < end; ++e) {
                 const auto low = static_cast<std::uint32_t>(e), high = static_cast<std::uint32_t>(e >> 32);
                 std::uint64_t from = 0, to = 0;
                 data::Counter words{};
                 for (int level = 0; level < scale; ++level) {
                   if (level % 4 == 0)
                     words = data::philox({static_cast<std::uint32_t>(level / 4), low, high, kTag}, seed);
                   const std::uint64_t w = words[static_cast<std::size_t>(level % 4)];
                   const bool down = w >= ab, right = (w >= a && w < ab) || w >= abc;
                   from = from << 1 | static_cast<std::uint64_t>(down);
                   to = to << 1 | static_cast<std::uint64_t>(right);
                 }
                 if (scramble != 0) {
                   const auto mask = static_cast<std::uint64_t>(nodes - 1);
                   from = from * scramble & mask;
                   to = to * scramble & mask;
                 }
                 src[e] = static_cast<std::int32_t>(from);
                 dst[e] = static_cast<std::int32_t>(to);
               }
             });
  return out;
}

Graph rmat(const RmatOptions& options) {
  return undirected_graph(rmat_edges(options), std::int64_t{1} << checked(options).scale);
}

}  // namespace levin::gnn
