#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>
#include <vector>

#include "data/graph/undirected.h"
#include "data/sampler.h"
#include "levin/data/graph.h"
#include "levin/error.h"

namespace levin::gnn {
namespace {

constexpr std::uint32_t kEdgeTag = 0x53424d45, kMeanTag = 0x4d45414e, kNoiseTag = 0x4e4f4953;  // "SBME", "MEAN", "NOIS"
constexpr std::int64_t kMostNodes = std::int64_t{1} << 30, kMostEdges = kMostNodes - 1;
constexpr std::int64_t kGrain = std::int64_t{1} << 12;

void check(const PlantedPartitionOptions& o) {
  const auto range = [](const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high)
      fail<ConfigError>("planted_partition: ", name, " is ", value, ", expected ", low, " to ", high);
  };
  range("num_nodes", o.num_nodes, 1, kMostNodes);
  range("num_classes", o.num_classes, 1, o.num_nodes);
  range("slots", o.slots, 0, kMostEdges / o.num_nodes);
  range("num_features", o.num_features, 0, std::int64_t{1} << 20);
  if (!(o.homophily >= 0 && o.homophily <= 1))
    fail<ConfigError>("planted_partition: homophily is ", o.homophily, ", expected 0 to 1");
  if (!(o.train >= 0 && o.val >= 0 && o.test >= 0 && o.train + o.val + o.test <= 1 + 1e-9))
    fail<ConfigError>("planted_partition: train, val and test are ", o.train, ", ", o.val, " and ", o.test,
                      ", expected 0 or more, at most 1 together");
}

data::Counter words(std::uint32_t first, std::int64_t i, std::uint32_t tag, std::uint64_t seed) {
  return data::philox({first, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), tag}, seed);
}

// log, cos and sin by additions, multiplications and one division: the C library's functions differ between machines
// in their last bit.
constexpr auto kArtanh = [] {
  std::array<double, 12> c{};
  for (int i = 0; i < 12; ++i) c[static_cast<std::size_t>(i)] = 1.0 / (23 - 2 * i);
  return c;
}();
double log_of(double x) {  // x > 0, normal
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1022;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3fe0000000000000u);  // 0.5 <= m < 1
  if (m < 0.7071067811865476) m *= 2, --exponent;
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (const double c : kArtanh) sum = sum * square + c;
  return 2 * s * sum + exponent * std::numbers::ln2;
}
constexpr auto kFactorials = [] {  // +-1 / k!
  std::array<double, 18> c{1};
  double f = 1;
  for (std::size_t k = 1; k < c.size(); ++k) c[k] = (k / 2 % 2 == 0 ? 1 : -1) / (f *= static_cast<double>(k));
  return c;
}();
// {cos, sin} of 2 pi turns, 0 <= turns < 1.
std::pair<double, double> circle(double turns) {
  const double quarters = turns * 4;
  const int nearest = static_cast<int>(quarters + 0.5);
  const double x = (quarters - nearest) * (std::numbers::pi / 2), square = x * x;  // |x| <= pi / 4
  double cosine = kFactorials[16], sine = kFactorials[17];
  for (std::size_t k = 14; k < 16; k -= 2) {
    cosine = cosine * square + kFactorials[k];
    sine = sine * square + kFactorials[k + 1];
  }
  sine *= x;
  switch (nearest & 3) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

// Four independent normal numbers: Box and Muller, 1958.
std::array<double, 4> normals(const data::Counter& w) {
  const auto unit = [](std::uint32_t word) { return (word + 0.5) * 0x1p-32; };
  std::array<double, 4> out{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double radius = std::sqrt(-2 * log_of(unit(w[pair])));
    const auto [cosine, sine] = circle(unit(w[pair + 1]));
    out[pair] = radius * cosine;
    out[pair + 1] = radius * sine;
  }
  return out;
}

Tensor features(const PlantedPartitionOptions& o) {
  const std::int64_t width = o.num_features;
  const double size = 1 / std::sqrt(static_cast<double>(width));
  std::vector<double> mean(static_cast<std::size_t>(o.num_classes * width));
  for (std::int64_t c = 0; c < o.num_classes; ++c) {
    for (std::int64_t f = 0; f < width; ++f) {
      const std::uint32_t bits =
          data::philox({static_cast<std::uint32_t>(f / 32), static_cast<std::uint32_t>(c), 0, kMeanTag}, o.seed)[0];
      mean[static_cast<std::size_t>(c * width + f)] = (bits >> (f % 32) & 1) != 0 ? size : -size;
    }
  }
  Tensor x = empty({o.num_nodes, width}, Device::cpu());
  float* to = x.mutable_data<float>();
  for_pieces(o.num_nodes, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const double* mu = mean.data() + i % o.num_classes * width;
      for (std::int64_t f = 0; f < width; f += 4) {
        const std::array<double, 4> noise = normals(words(static_cast<std::uint32_t>(f / 4), i, kNoiseTag, o.seed));
        for (std::int64_t k = 0; k < std::min<std::int64_t>(4, width - f); ++k)
          to[i * width + f + k] = static_cast<float>(mu[f + k] + noise[static_cast<std::size_t>(k)]);
      }
    }
  });
  return x;
}

}  // namespace

EdgeList planted_partition_edges(const PlantedPartitionOptions& o) {
  check(o);
  const std::int64_t edges = o.num_nodes * o.slots, classes = o.num_classes;
  EdgeList out{.src = empty({edges}, Device::cpu(), DType::i32),
               .dst = empty({edges}, Device::cpu(), DType::i32),
               .num_src = o.num_nodes,
               .num_dst = o.num_nodes};
  auto *src = out.src.mutable_data<std::int32_t>(), *dst = out.dst.mutable_data<std::int32_t>();
  const auto same = static_cast<std::uint64_t>(std::floor(o.homophily * 0x1p32));
  for_pieces(o.num_nodes, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t s = 0; s < o.slots; ++s) {
        const data::Counter w = words(static_cast<std::uint32_t>(s), i, kEdgeTag, o.seed);
        std::int64_t c = i % classes;
        if (w[0] >= same)
          c = (c + 1 + static_cast<std::int64_t>(data::bounded(w[1], static_cast<std::uint64_t>(classes - 1)))) %
              classes;
        const auto members = static_cast<std::uint64_t>((o.num_nodes - c + classes - 1) / classes);
        const std::uint32_t draw = o.skewed ? static_cast<std::uint32_t>(std::uint64_t{w[2]} * w[2] >> 32) : w[2];
        src[i * o.slots + s] = static_cast<std::int32_t>(i);
        dst[i * o.slots + s] =
            static_cast<std::int32_t>(c + classes * static_cast<std::int64_t>(data::bounded(draw, members)));
      }
    }
  });
  return out;
}

NodeData planted_partition(const PlantedPartitionOptions& o) {
  NodeData out{.name = "planted partition", .graph = undirected_graph(planted_partition_edges(o), o.num_nodes)};
  out.num_classes = o.num_classes;
  for (std::int64_t c = 0; c < o.num_classes; ++c) out.class_names.push_back(text(c));
  out.y = empty({o.num_nodes}, Device::cpu(), DType::i64);
  auto* y = out.y.mutable_data<std::int64_t>();
  for (std::int64_t i = 0; i < o.num_nodes; ++i) y[i] = i % o.num_classes;
  if (o.num_features > 0) out.x = features(o);
  const std::vector<std::int64_t> order = data::permutation(o.num_nodes, o.seed, 0, data::Purpose::split);
  std::size_t at = 0;
  const auto part = [&](double share) {
    const auto n = std::min(order.size() - at, static_cast<std::size_t>(share * static_cast<double>(o.num_nodes)));
    std::vector<std::int64_t> nodes(order.begin() + static_cast<std::ptrdiff_t>(at),
                                    order.begin() + static_cast<std::ptrdiff_t>(at + n));
    at += n;
    std::sort(nodes.begin(), nodes.end());
    return from_data<std::int64_t>(nodes, {static_cast<std::int64_t>(n)}, Device::cpu());
  };
  out.train = part(o.train);
  out.val = part(o.val);
  out.test = part(o.test);
  return out;
}

}  // namespace levin::gnn
