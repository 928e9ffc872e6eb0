#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data/graph/draws.h"
#include "data/graph/graph_fixture_test.h"
#include "data/graph/local_ids.h"
#include "data/sampler.h"
#include "levin/data/graph.h"
#include "levin/data/neighbor.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "levin/sparse.h"
#include "tests/allocations.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::gnn;
using namespace levin::gnn::testing;

namespace {

using Ints = std::vector<std::int64_t>;
Ints values(const Tensor& t) { return t.to(DType::i64).to_vector<std::int64_t>(); }

const Ints kSeeds{33, 0};
NeighborSamplerOptions options(Ints fanouts) { return {.fanouts = std::move(fanouts), .seed = 42}; }

// All of a sample, for comparing two.
Ints content(const SampledSubgraph& s) {
  Ints all;
  for (const Tensor& t : {s.n_id, s.src, s.dst, s.e_id, s.crow, s.seed_index, s.tree}) {
    if (t.defined()) {
      const Ints v = values(t);
      all.insert(all.end(), v.begin(), v.end());
    }
    all.push_back(-7);
  }
  for (const Ints& v : {s.nodes_per_hop, s.edges_per_hop, s.longest_row, s.longest_column})
    all.insert(all.end(), v.begin(), v.end());
  for (const Tensor& t : s.transposed) {
    if (!t.defined()) continue;
    const Ints v = values(t);
    all.insert(all.end(), v.begin(), v.end());
  }
  return all;
}

}  // namespace

TEST_CASE("the sampler's random words are Philox4x32-10 by its published answers") {
  CHECK(data::philox({0, 0, 0, 0}, 0) == data::Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(data::philox({~0u, ~0u, ~0u, ~0u}, ~std::uint64_t{0}) ==
        data::Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  const data::Counter key = data::philox({0, 0, 0, 0x42415443}, 42);
  CHECK(key[0] == 0x094b42ad);
  CHECK(key[1] == 0xd90d72d0);
  using data::permutation;
  CHECK(permutation(10, 42, 0, data::Purpose::shuffle) == Ints{0, 6, 9, 4, 5, 7, 2, 3, 1, 8});
  CHECK(permutation(10, 42, 1, data::Purpose::shuffle) == Ints{0, 9, 1, 2, 8, 3, 6, 7, 5, 4});
}

TEST_CASE("a sample of the karate club has the published nodes and edges") {
  const NeighborSampler sampler(karate(), options({3, 2}));
  const SampledSubgraph s = sampler.sample(kSeeds, 0, 0);
  CHECK(values(s.n_id) == Ints{33, 0, 9, 18, 26, 17, 19, 31, 2, 32, 29, 1, 25});
  CHECK(values(s.src) == Ints{2, 3, 4, 5, 6, 7, 8, 0, 9, 0, 10, 0, 1, 11, 1, 0, 12, 9});
  CHECK(values(s.dst) == Ints{0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7});
  CHECK(values(s.e_id) == Ints{62, 83, 105, 80, 84, 121, 30, 140, 131, 144, 114, 149, 12, 21, 13, 145, 103, 137});
  CHECK(values(s.crow) == Ints{0, 3, 6, 8, 10, 12, 14, 16, 18, 18, 18, 18, 18, 18});
  CHECK(s.nodes_per_hop == Ints{2, 6, 5});
  CHECK(s.edges_per_hop == Ints{6, 12});
  CHECK(values(s.seed_index) == Ints{0, 1});
  CHECK(s.batch_size == 2);
  CHECK_FALSE(s.tree.defined());
  const SampledSubgraph next = sampler.sample(kSeeds, 0, 1);
  CHECK(next.nodes_per_hop == Ints{2, 6, 7});
  CHECK(next.edges_per_hop == Ints{6, 11});
}

TEST_CASE("what is written into a graph or a sample after it was made is found, not trusted") {
  Csr graph = karate();
  const NeighborSampler sampler(graph, options({3, 2}));
  SampledSubgraph s = sampler.sample(kSeeds, 0, 0);
  CHECK(s.block(0).csr.known() != nullptr);
  CHECK(s.whole().csr.known() != nullptr);
  s.src.mutable_data<std::int32_t>()[0] = -1;
  CHECK(s.block(0).csr.known() == nullptr);
  CHECK(s.whole().csr.known() == nullptr);
  if (graph.col.dtype() == DType::i32)
    graph.col.mutable_data<std::int32_t>()[0] = 1;
  else
    graph.col.mutable_data<std::int64_t>()[0] = 1;
  CHECK_THROWS_AS((void)sampler.sample(kSeeds, 0, 0), StateError);
}

TEST_CASE("a sampler of a Graph gives the ids of the graph's edges") {
  const SampledSubgraph s = NeighborSampler(karate_club().graph, options({3, 2})).sample(kSeeds, 0, 0);
  CHECK(values(s.e_id) == Ints{62, 83, 105, 80, 84, 121, 30, 140, 131, 144, 114, 149, 12, 21, 13, 145, 103, 137});
}

TEST_CASE("samples of the planted partition with a million nodes have the published sums") {
  if (!test::runs_everything()) return test::skip("takes seconds: ./run test --all");
  const gnn::Graph graph = planted_partition({.num_features = 0}).graph;
  CHECK(graph.num_edges() == 25'161'986);
  Ints order = data::permutation(1 << 20, 42, 0, data::Purpose::shuffle);
  order.resize(1024);
  CHECK(Ints(order.begin(), order.begin() + 5) == Ints{969399, 577110, 493172, 878671, 979595});
  const auto weighted = [](const Ints& v) {
    std::uint64_t sum = 0;
    for (std::size_t k = 0; k < v.size(); ++k) sum += (k + 1) * static_cast<std::uint64_t>(v[k]);
    return sum;
  };
  SampledSubgraph s = NeighborSampler(graph, options({15, 10, 5})).sample(order, 0, 0);
  CHECK(s.nodes_per_hop == Ints{1024, 15127, 130613, 387395});
  CHECK(s.edges_per_hop == Ints{15335, 151270, 653065});
  CHECK(weighted(values(s.n_id)) == 70100274464054385u);
  CHECK(weighted(values(s.src)) == 96593983040037906u);
  s = NeighborSampler(graph, options({25, 10})).sample(order, 0, 0);
  CHECK(s.n_id.numel() == 198048);
  CHECK(weighted(values(s.n_id)) == 9061141401286623u);
  CHECK(weighted(values(s.src)) == 3233367030533695u);
}

TEST_CASE("a sample with replacement, a disjoint and an induced one have the published content") {
  NeighborSamplerOptions o = options({3, 2});
  o.replace = true;
  const SampledSubgraph again = NeighborSampler(karate(), o).sample(kSeeds, 0, 0);
  CHECK(values(again.n_id) == Ints{33, 0, 9, 19, 26, 17, 21, 29, 1});
  CHECK(values(again.e_id) == Ints{62, 86, 105, 80, 89, 89, 140, 140, 13, 145, 114, 149, 21, 21, 14, 23});
  o = options({3, 2});
  o.disjoint = true;
  const SampledSubgraph trees = NeighborSampler(karate(), o).sample(kSeeds, 0, 0);
  CHECK(values(trees.n_id) == Ints{33, 0, 9, 18, 26, 5, 12, 19, 2, 32, 29, 6, 10, 3, 1, 33});
  CHECK(values(trees.tree) == Ints{0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1});
  o = options({3, 2});
  o.type = SubgraphType::induced;
  const SampledSubgraph induced = NeighborSampler(karate(), o).sample(kSeeds, 0, 0);
  CHECK(values(induced.n_id) == Ints{33, 0, 9, 18, 26, 17, 19, 31, 2, 32, 29, 1, 25});
  CHECK(induced.src.numel() == 44);
  CHECK(induced.edges_per_hop.empty());
  CHECK_THROWS_WITH_AS((void)induced.block(0), doctest::Contains("use whole()"), StateError);
  CHECK(induced.whole().csr.known()->longest_row == checked(induced.whole().csr).known()->longest_row);
}

TEST_CASE("seeds without in-edges, fanout 0, more hops than the graph has, and no seeds give empty hops") {
  const Csr star = pattern_of({{0, 1}, {1, 2}, {2, 1}}, 4);
  const auto sample = [&](const Ints& seeds, const Ints& fanouts, bool replace = false) {
    NeighborSamplerOptions o = options(fanouts);
    o.replace = replace;
    return NeighborSampler(star, o).sample(seeds, 0, 0);
  };
  for (const bool replace : {false, true}) {
    const SampledSubgraph alone = sample({3}, {2, 2}, replace);
    CHECK(values(alone.n_id) == Ints{3});
    CHECK(alone.nodes_per_hop == Ints{1, 0, 0});
    CHECK(alone.edges_per_hop == Ints{0, 0});
    CHECK(values(alone.block(1).csr.crow) == Ints{0, 0});
  }
  CHECK(sample({1}, {0, 2}).nodes_per_hop == Ints{1, 0, 0});
  const SampledSubgraph all = sample({1}, {-1, -1});
  CHECK(values(all.n_id) == Ints{1, 0, 2});
  CHECK(values(all.src) == Ints{1, 2, 0});
  CHECK(values(all.dst) == Ints{0, 0, 2});
  CHECK(values(all.e_id) == Ints{0, 2, 1});
  CHECK(sample({1}, {-1, -1, -1, -1}).nodes_per_hop == Ints{1, 2, 0, 0, 0});
  const SampledSubgraph none = sample({}, {2, 2});
  CHECK(none.nodes_per_hop == Ints{0, 0, 0});
  CHECK(none.n_id.numel() == 0);
  CHECK(values(none.crow) == Ints{0});
  const SampledSubgraph no_hops = sample({2, 1}, {});
  CHECK(values(no_hops.n_id) == Ints{2, 1});
  CHECK(values(no_hops.crow) == Ints{0, 0, 0});
  CHECK_THROWS_AS((void)no_hops.block(0), IndexError);
  CHECK(
      NeighborSampler({.crow = list(Ints{0}), .col = list(Ints{}), .cols = 0}, options({2})).sample({}, 0, 0).hops() ==
      1);
}

TEST_CASE("equal seeds share a node, and each seed knows its number") {
  const NeighborSampler sampler(karate(), options({3, 2}));
  const SampledSubgraph s = sampler.sample(Ints{33, 0, 33, 5, 0}, 0, 0);
  CHECK(s.nodes_per_hop[0] == 3);
  CHECK(values(s.seed_index) == Ints{0, 1, 0, 2, 1});
  CHECK(s.batch_size == 5);
  NeighborSamplerOptions o = options({3, 2});
  o.disjoint = true;
  const SampledSubgraph trees = NeighborSampler(karate(), o).sample(Ints{33, 0, 33}, 0, 0);
  CHECK(trees.nodes_per_hop[0] == 3);
  CHECK(values(trees.seed_index) == Ints{0, 1, 2});
}

TEST_CASE("wrong seeds, patterns and options of a sampler are refused by name") {
  const NeighborSampler sampler(karate(), options({3, 2}));
  CHECK_THROWS_WITH_AS((void)sampler.sample(Ints{1, 34}, 0, 0), doctest::Contains("seed 1 is 34, expected 0 to 33"),
                       IndexError);
  CHECK_THROWS_AS((void)sampler.sample(Ints{-1}, 0, 0), IndexError);
  CHECK_THROWS_AS((void)sampler.sample(kSeeds, -1, 0), ConfigError);
  CHECK_THROWS_AS((void)sampler.sample(kSeeds, 0, -1), ConfigError);
  CHECK_THROWS_WITH_AS(NeighborSampler(karate(), options({3, -2})), doctest::Contains("fanout 1 is -2"), ConfigError);
  NeighborSamplerOptions o = options({3});
  o.disjoint = true;
  o.type = SubgraphType::induced;
  CHECK_THROWS_AS(NeighborSampler(karate(), o), ConfigError);
  CHECK_THROWS_AS(NeighborSampler(karate(), options(Ints(256, 1))), ConfigError);
  Csr bad = karate();
  bad.cols = 33;
  CHECK_THROWS_AS(NeighborSampler(bad, options({3})), IndexError);
  bad.cols = 35;
  CHECK_THROWS_AS(NeighborSampler(bad, options({3})), ShapeError);
  CHECK(sampler.sample(kSeeds, 0, 0).n_id.numel() == 13);  // a refused call leaves the sampler usable
}

TEST_CASE("samples of random multigraphs keep the invariants of neighbour sampling") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Generator gen(seed);
    const int nodes = 1 + static_cast<int>(gen.integer(0, 80)), count = static_cast<int>(gen.integer(0, 1500));
    const auto edges = random_edges(seed + 1000, nodes, count);
    const Csr graph = pattern_of(edges, nodes);
    NeighborSamplerOptions o{.fanouts = {}, .seed = seed};
    for (int h = 0; h < 3; ++h) o.fanouts.push_back(gen.integer(-1, h == 0 ? 100 : 6));
    o.replace = seed % 3 == 1;
    o.disjoint = seed % 4 == 2;
    o.transposes = Transposes::all;
    if (seed % 2) o.marker_bytes = 0;
    const NeighborSampler sampler(graph, o);
    Ints seeds;
    for (int i = 0; i < 5; ++i) seeds.push_back(gen.integer(0, nodes));
    const SampledSubgraph s = sampler.sample(seeds, 3, 17);
    const Ints n_id = values(s.n_id), src = values(s.src), dst = values(s.dst), e_id = values(s.e_id);
    Ints degree(static_cast<std::size_t>(nodes));
    for (const auto& [from, to] : edges) ++degree[static_cast<std::size_t>(to)];
    CHECK(std::is_sorted(dst.begin(), dst.end()));
    bool same = true;
    for (std::size_t e = 0; e < e_id.size(); ++e) {
      const auto& edge = edges[static_cast<std::size_t>(e_id[e])];
      same = same && n_id[static_cast<std::size_t>(src[e])] == edge.first &&
             n_id[static_cast<std::size_t>(dst[e])] == edge.second;
    }
    CHECK(same);
    if (!o.disjoint) CHECK(std::set<std::int64_t>(n_id.begin(), n_id.end()).size() == n_id.size());
    if (!o.disjoint && !o.replace) CHECK(std::set<std::int64_t>(e_id.begin(), e_id.end()).size() == e_id.size());
    std::set<std::int64_t> sources(src.begin(), src.end());
    for (std::int64_t i = s.nodes_per_hop[0]; i < s.n_id.numel(); ++i) CHECK(sources.contains(i));
    // Picks of each node, by its hop.
    const Ints crow = values(s.crow);
    std::size_t node = 0;
    for (std::size_t h = 0; h < s.nodes_per_hop.size(); ++h) {
      for (std::int64_t i = 0; i < s.nodes_per_hop[h]; ++i, ++node) {
        const std::int64_t all = degree[static_cast<std::size_t>(n_id[node])];
        const std::int64_t k = h < o.fanouts.size() ? o.fanouts[h] : 0;
        const std::int64_t expected = k < 0 ? all : o.replace && all > 0 ? k : std::min(k, all);
        CHECK(crow[node + 1] - crow[node] == expected);
      }
    }
    for (int l = 0; l < s.hops(); ++l) {
      const Block b = s.block(l);
      REQUIRE(b.csr.known() != nullptr);
      const CsrFacts found(b.csr);  // examines the transpose, too
      CHECK(found.longest_row == b.csr.known()->longest_row);
      CHECK(found.longest_column == b.csr.known()->longest_column);
    }
  }
}

TEST_CASE("picks of many in-edges are distinct, ascending and the same by bits and by list") {
  DrawMemory memory;
  for (const std::int64_t k : {1, 4, 63, 64, 65, 200, 1000}) {
    for (const std::int64_t degree : {k, k + 1, 2 * k, 70 * k, 5000 * k}) {
      Ints picks(static_cast<std::size_t>(k));
      const DrawKey key{.batch_key = 9, .node = 77, .hop = 1};
      draws::pick(key, k, degree, 10, false, memory, picks.data());
      CAPTURE(k);
      CAPTURE(degree);
      CHECK(std::adjacent_find(picks.begin(), picks.end(), std::greater_equal<>()) == picks.end());
      CHECK(picks.front() >= 10);
      CHECK(picks.back() < 10 + degree);
      if (k == degree) continue;
      // Floyd's method as it is written down.
      std::vector<std::uint32_t> words(static_cast<std::size_t>(k + 3));
      draws::fill(key, words.data(), k);
      std::set<std::int64_t> taken;
      for (std::int64_t d = 0; d < k; ++d) {
        const std::int64_t j = degree - k + d;
        const auto t = static_cast<std::int64_t>(
            data::bounded(words[static_cast<std::size_t>(d)], static_cast<std::uint64_t>(j) + 1));
        if (!taken.insert(10 + t).second) taken.insert(10 + j);
      }
      CHECK(Ints(taken.begin(), taken.end()) == picks);
    }
  }
}

TEST_CASE("each in-edge of a node is drawn equally often") {
  NeighborSampler sampler(karate(), {.fanouts = {5}, .seed = 7});
  std::map<std::int64_t, int> seen;
  constexpr int kBatches = 6000;
  for (int b = 0; b < kBatches; ++b) {
    for (const std::int64_t e : values(sampler.sample(Ints{33}, 0, b).e_id)) ++seen[e];
  }
  CHECK(seen.size() == 17);
  const double expected = kBatches * 5 / 17.0;
  double chi = 0;
  for (const auto& [edge, count] : seen) {
    CHECK(count / double(kBatches) == doctest::Approx(.294).epsilon(.068));  // +- .02
    chi += (count - expected) * (count - expected) / expected;
  }
  chi *= 16.0 / 12;  // (n - 1) / (n - k): the picks of a batch differ
  CHECK(chi < 32);
  CHECK(chi == doctest::Approx(19.8).epsilon(.005));  // the published run
}

TEST_CASE("a sample is the same by marker and by hash, in reused memory, for i64 columns and from several threads") {
  const auto edges = random_edges(5, 500, 6000);
  const Csr graph = pattern_of(edges, 500);
  Csr wide = graph;
  wide.col = graph.col.to(DType::i64);
  wide.edge = graph.edge.to(DType::i64);
  NeighborSamplerOptions hashed = options({7, 5, 3});
  hashed.marker_bytes = 0;
  const NeighborSampler a(graph, options({7, 5, 3})), b(graph, hashed), c(wide, options({7, 5, 3}));
  Ints seeds(20);
  std::iota(seeds.begin(), seeds.end(), std::int64_t{100});
  std::vector<Ints> expected;
  SampledSubgraph reused;
  for (int batch = 0; batch < 8; ++batch) {
    expected.push_back(content(a.sample(seeds, 2, batch)));
    a.sample_into(seeds, 2, batch, reused);
    CHECK(content(reused) == expected.back());
    CHECK(content(b.sample(seeds, 2, batch)) == expected.back());
    CHECK(content(c.sample(seeds, 2, batch)) == expected.back());
  }
  CHECK(expected[0] != expected[1]);
  std::vector<int> equal(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int batch = 0; batch < 8; ++batch)
        equal[t] += content(a.sample(seeds, 2, batch)) == expected[static_cast<std::size_t>(batch)];
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(equal == std::vector<int>{8, 8, 8, 8});
}

TEST_CASE("sampling into the memory of an earlier sample allocates nothing, and leaves views of it alone") {
  const Csr graph = pattern_of(random_edges(6, 3000, 60000), 3000);
  const NeighborSampler sampler(graph, options({10, 5}));
  Ints seeds(64);
  std::iota(seeds.begin(), seeds.end(), std::int64_t{0});
  SampledSubgraph s;
  for (int batch = 0; batch < 20; ++batch) sampler.sample_into(seeds, 0, batch, s);
  const Block kept = s.block(0);
  const Ints before = values(kept.csr.col);
  sampler.sample_into(seeds, 0, 0, s);
  CHECK(values(kept.csr.col) == before);
  if (!test::counts_allocations()) return test::skip_allocations();
  for (int batch = 0; batch < 20; ++batch) sampler.sample_into(seeds, 0, batch, s);
  const std::int64_t count = test::allocations();
  for (int batch = 0; batch < 20; ++batch) sampler.sample_into(seeds, 0, batch, s);
  CHECK(test::allocations() - count == 0);
}

TEST_CASE("the tables of local numbers start anew when their stamps are used up") {
  const auto check = [](auto ids) {
    ids.start();
    ids.reserve(10);
    CHECK(ids.number(3, 0) == 0);
    CHECK(ids.number(3, 1) == 0);
    CHECK(ids.find(4) == -1);
    ids.set_stamp(~0u);
    ids.start();  // stamp 1 again
    ids.reserve(10);
    CHECK(ids.find(3) == -1);
    CHECK(ids.number(3, 5) == 5);
  };
  check(Marker(10));
  check(Hash());
}

TEST_CASE("a network on trimmed blocks gives the seeds the values of a network on the whole sample") {
  NeighborSamplerOptions o = options({3, 2});
  o.transposes = Transposes::all;
  const SampledSubgraph s = NeighborSampler(karate(), o).sample(kSeeds, 0, 0);
  Generator gen(1);
  const Tensor features = rand({34, 6}, gen, Device::cpu(), DType::f64);
  const Tensor weight = rand({6, 6}, gen, Device::cpu(), DType::f64);
  const auto layer = [&](const Block& b, const Tensor& x) {
    return relu(matmul(spmm(b.csr, {}, x, Reduce::mean), weight) + slice(x, 0, 0, b.csr.rows()));
  };
  const Tensor input = index_select(features, 0, s.n_id);
  Tensor trimmed = input, whole = input;
  for (int l = 0; l < 2; ++l) {
    trimmed = layer(s.block(l), trimmed);
    whole = layer(s.whole(), whole);
  }
  CHECK(trimmed.shape() == Shape{2, 6});
  CHECK(trimmed.to_vector<double>() == slice(whole, 0, 0, 2).contiguous().to_vector<double>());
}
