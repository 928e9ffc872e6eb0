#include <doctest/doctest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "data/graph/graph_data_test.h"
#include "data/graph/undirected.h"
#include "levin/data/graph.h"
#include "levin/error.h"
#include "levin/generator.h"
#include "levin/graph_edges.h"
#include "levin/serialize.h"

namespace levin::gnn {
namespace {

using namespace testing;
using Ids = std::vector<std::int64_t>;

std::string pairs(const EdgeList& edges, std::size_t count) {
  const Ids src = numbers(edges.src), dst = numbers(edges.dst);
  std::string out;
  for (std::size_t e = 0; e < count; ++e) out += (e ? " " : "") + std::to_string(src[e]) + "-" + std::to_string(dst[e]);
  return out;
}
std::string hash_of(const Graph& g) {
  const Csr& a = g.csr();
  return content_hash("", a.crow) + content_hash("", a.col) + content_hash("", a.t_edge);
}

TEST_CASE("R-MAT draws the edges that its definition names") {
  CHECK(pairs(rmat_edges({.scale = 4}), 8) == "4-3 0-0 0-1 2-0 1-1 0-12 8-8 4-4");
  const EdgeList raw = rmat_edges({.scale = 10});
  CHECK(raw.src.numel() == 16 << 10);
  const Ids src = numbers(raw.src), dst = numbers(raw.dst);
  CHECK(std::inner_product(src.begin(), src.end(), dst.begin(), 0, std::plus<>(), std::equal_to<>()) == 142);
  CHECK(coalesce(raw).edges.src.numel() == 12071);
  const Graph g = rmat({.scale = 10});
  CHECK(g.num_edges() == 21040);
  const Ids degree = numbers(g.in_degree());
  CHECK(*std::max_element(degree.begin(), degree.end()) == 479);
  CHECK(std::count(degree.begin(), degree.end(), 0) == 147);
  CHECK(g.csr().known()->longest_row == 479);
  CHECK(g.csr().known()->longest_column == 479);
}

TEST_CASE("scrambled ids of R-MAT are the same graph") {
  const Graph g = rmat({.scale = 8}), scrambled = rmat({.scale = 8, .scramble = 77});
  Ids a = numbers(g.in_degree()), b = numbers(scrambled.in_degree());
  CHECK(a[0] == b[0]);
  CHECK(a[3] == b[3 * 77 % 256]);
  CHECK(a != b);
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  CHECK(a == b);
}

TEST_CASE("a planted partition draws the edges that its definition names") {
  const PlantedPartitionOptions small{.num_nodes = 12, .num_classes = 3, .slots = 2, .homophily = 0.7, .seed = 5};
  CHECK(pairs(planted_partition_edges(small), 24) ==
        "0-2 0-0 1-1 1-1 2-2 2-5 3-10 3-4 4-1 4-2 5-8 5-8 6-5 6-0 7-7 7-10 8-3 8-5 9-0 9-2 10-5 10-1 11-2 11-11");
}

TEST_CASE("features of a planted partition are a mean of the class and normal noise") {
  const NodeData d = planted_partition({.num_nodes = 4096});
  const auto x = d.x.to_vector<float>();
  // The first noise numbers at seed 1, and the signs of the first mean.
  const double noise[] = {.516329, .953153, -.007937, .236719};
  const double mean[] = {-1, -1, -1, 1, 1, -1, 1, -1};
  for (std::size_t f = 0; f < 4; ++f) CHECK(x[f] == doctest::Approx(noise[f] + mean[f] / 8).epsilon(1e-5));
  std::vector<double> sum(8), square(1);
  for (std::size_t i = 0; i < 4096; i += 16) {
    for (std::size_t f = 0; f < 8; ++f) sum[f] += x[i * 64 + f] / 256;
  }
  for (std::size_t f = 0; f < 8; ++f)
    CHECK(std::abs(sum[f] - mean[f] / 8) < 5.0 / 16);  // 5 deviations of a mean of 256
  for (const float v : x) square[0] += double{v} * double{v} / static_cast<double>(x.size());
  CHECK(square[0] == doctest::Approx(1 + 1.0 / 64).epsilon(0.02));
  CHECK(numbers(d.y)[17] == 1);
  CHECK(d.class_names[3] == "3");
  CHECK(d.train.numel() == 409);
  CHECK(d.val.numel() == 81);
  CHECK(d.test.numel() == 2048);
  Ids parts;
  for (const Tensor& part : {d.train, d.val, d.test}) {
    for (const std::int64_t i : numbers(part)) parts.push_back(i);
  }
  std::sort(parts.begin(), parts.end());
  CHECK(std::adjacent_find(parts.begin(), parts.end()) == parts.end());
}

TEST_CASE("the instances of a million nodes have the published numbers of edges") {
  const auto check = [](double homophily, std::int64_t edges, std::int64_t least, std::int64_t most) {
    const Graph g = planted_partition({.homophily = homophily, .num_features = 0}).graph;
    const Ids degree = numbers(g.in_degree());
    CHECK(g.num_edges() == edges);
    if (least > 0) CHECK(*std::min_element(degree.begin(), degree.end()) == least);
    CHECK(*std::max_element(degree.begin(), degree.end()) == most);
  };
  check(0.6, 25161986, 12, 3248);
}

TEST_CASE("pairs become the graph that functions of edge lists make of them") {
  Generator gen(11);
  for (int run = 0; run < 40; ++run) {
    const std::int64_t nodes = run == 0 ? 1 : gen.integer(1, run % 2 ? 40 : 3000);
    const std::int64_t count = run % 5 == 0 ? 0 : gen.integer(0, run % 4 == 3 ? 200000 : 300);
    std::vector<std::int32_t> src, dst;
    for (std::int64_t e = 0; e < count; ++e) {
      src.push_back(static_cast<std::int32_t>(gen.integer(0, nodes)));
      dst.push_back(static_cast<std::int32_t>(gen.integer(0, nodes)));
    }
    const EdgeList edges{.src = from_data<std::int32_t>(src, {count}, Device::cpu()),
                         .dst = from_data<std::int32_t>(dst, {count}, Device::cpu()),
                         .num_src = nodes,
                         .num_dst = nodes};
    const Graph g = undirected_graph(edges, nodes);
    const Graph expected = Graph::from_coo(to_undirected(remove_self_loops(edges).edges).edges);
    CHECK(hash_of(g) == hash_of(expected));
    CHECK(g.csr().known()->longest_row == expected.csr().known()->longest_row);
    g.validate();
  }
}

TEST_CASE("generated graphs have the same bits on one thread") {
  const auto both = [] {
    return hash_of(rmat({.scale = 13})) + content_hash("", planted_partition({.num_nodes = 9000}).x);
  };
  const std::string many = both();
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  CHECK(both() == many);
}

TEST_CASE("generators refuse options out of range") {
  CHECK_THROWS_AS((void)rmat_edges({.scale = 0}), ConfigError);
  CHECK_THROWS_AS((void)rmat_edges({.scale = 31}), ConfigError);
  CHECK_THROWS_AS((void)rmat_edges({.num_edges = std::int64_t{1} << 30}), ConfigError);
  CHECK_THROWS_AS((void)rmat_edges({.num_edges = -2}), ConfigError);
  CHECK_THROWS_AS((void)rmat_edges({.a = 0.9, .b = 0.2}), ConfigError);
  CHECK_THROWS_AS((void)rmat_edges({.a = NAN}), ConfigError);
  CHECK_THROWS_AS((void)rmat_edges({.scramble = 4}), ConfigError);
  CHECK(rmat({.scale = 2, .num_edges = 0}).num_edges() == 0);
  const auto sbm = [](PlantedPartitionOptions o) { (void)planted_partition(o); };
  CHECK_THROWS_AS(sbm({.num_nodes = 3}), ConfigError);  // fewer than classes
  CHECK_THROWS_AS(sbm({.num_nodes = 0, .num_classes = 0}), ConfigError);
  CHECK_THROWS_AS(sbm({.slots = -1}), ConfigError);
  CHECK_THROWS_AS(sbm({.slots = 1 << 20}), ConfigError);
  CHECK_THROWS_AS(sbm({.homophily = 1.5}), ConfigError);
  CHECK_THROWS_AS(sbm({.num_features = -1}), ConfigError);
  CHECK_THROWS_AS(sbm({.train = 0.6, .test = 0.6}), ConfigError);
  const NodeData one = planted_partition({.num_nodes = 1, .num_classes = 1, .num_features = 0});
  CHECK(one.graph.num_edges() == 0);
  CHECK_FALSE(one.x.defined());
}

}  // namespace
}  // namespace levin::gnn
