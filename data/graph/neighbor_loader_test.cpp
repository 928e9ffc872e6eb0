#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "data/graph/graph_fixture_test.h"
#include "data/sampler.h"
#include "levin/data/neighbor.h"
#include "levin/error.h"

using namespace levin;
using namespace levin::gnn;
using namespace levin::gnn::testing;

namespace {

using Ints = std::vector<std::int64_t>;
Ints values(const Tensor& t) { return t.to(DType::i64).to_vector<std::int64_t>(); }

constexpr int kNodes = 300;
Csr graph() { return pattern_of(random_edges(3, kNodes, 4000), kNodes); }
// Row i of the features is {i, -i}; its label is i.
NeighborData node_data() {
  std::vector<float> x;
  std::vector<std::int64_t> y;
  for (int i = 0; i < kNodes; ++i) {
    x.push_back(static_cast<float>(i));
    x.push_back(-static_cast<float>(i));
    y.push_back(i);
  }
  return {.x = from_data<float>(x, {kNodes, 2}, Device::cpu()), .y = list(y)};
}
NeighborSampler sampler(bool disjoint = false) {
  return {graph(), {.fanouts = {5, 3}, .disjoint = disjoint, .seed = 11, .transposes = Transposes::all}};
}
Ints content(const NeighborBatch& b) {
  Ints all;
  const SampledSubgraph& g = b.graph;
  for (const Tensor& t : {g.n_id, g.src, g.dst, g.e_id, g.crow, g.tree, g.seed_index, g.input_id, b.x, b.y}) {
    if (t.defined()) {
      const Ints v = values(t);
      all.insert(all.end(), v.begin(), v.end());
    }
    all.push_back(-7);
  }
  for (const Ints& v : {g.nodes_per_hop, g.edges_per_hop, g.longest_row, g.longest_column})
    all.insert(all.end(), v.begin(), v.end());
  all.push_back(g.is_padding);
  all.push_back(g.batch_size);
  for (int l = 0; l < g.hops(); ++l) {
    const Csr csr = g.block(l).csr;
    REQUIRE(csr.known() != nullptr);
    CHECK(CsrFacts(csr).longest_column == csr.known()->longest_column);
    const Ints v = values(csr.t_edge);
    all.insert(all.end(), v.begin(), v.end());
  }
  return all;
}

}  // namespace

TEST_CASE("a neighbour loader gives the samples of the sampler, with features and labels, for any number of workers") {
  for (const bool disjoint : {false, true}) {
    std::vector<Ints> expected;
    for (const int workers : {0, 1, 2, 4}) {
      NeighborLoader loader(
          sampler(disjoint), node_data(),
          {.loader = {.batch_size = 64, .shuffle = true, .num_workers = workers, .generator = Generator(42)}});
      CHECK(loader.size() == 5);
      CHECK(loader.shuffles());
      std::vector<Ints> batches;
      for (int epoch = 0; epoch < 2; ++epoch) {
        const Ints order = data::permutation(kNodes, 42, epoch, data::Purpose::shuffle);
        std::int64_t position = 0;
        for (const Batch& batch : loader) {
          const NeighborBatch b = unpack(batch);
          const Ints seeds(order.begin() + position, order.begin() + std::min<std::int64_t>(kNodes, position + 64));
          CHECK(values(b.graph.input_id) == seeds);
          const SampledSubgraph s = sampler(disjoint).sample(seeds, epoch, batch.position);
          CHECK(values(b.graph.n_id) == values(s.n_id));
          CHECK(values(b.graph.e_id) == values(s.e_id));
          CHECK(b.graph.batch_size == static_cast<std::int64_t>(seeds.size()));
          CHECK(values(b.y) == Ints(seeds));
          CHECK(b.x.shape() == Shape{b.graph.n_id.numel(), 2});
          for (std::int64_t i = 0; i < b.x.size(0); ++i)
            CHECK(b.x.data<float>()[2 * i + 1] == -static_cast<float>(b.graph.n_id.data<std::int64_t>()[i]));
          CHECK_FALSE(b.graph.is_padding);
          batches.push_back(content(b));
          position += batch.size();
        }
        CHECK(position == kNodes);
      }
      if (workers == 0) expected = batches;
      CHECK(batches == expected);
    }
  }
}

TEST_CASE("a neighbour loader takes masks, lists of nodes, and no inputs") {
  const auto seeds_of = [](const Tensor& inputs) {
    NeighborData d = node_data();
    d.input_nodes = inputs;
    Ints seeds;
    NeighborLoader loader(sampler(), d, {.loader = {.batch_size = 2}});
    for (const Batch& batch : loader) {
      const NeighborBatch b = unpack(batch);
      const Ints y = values(b.y);
      seeds.insert(seeds.end(), y.begin(), y.end());
    }
    return seeds;
  };
  Tensor mask = empty({kNodes}, Device::cpu(), DType::b8);
  std::fill_n(mask.mutable_data<bool>(), kNodes, false);
  for (const int i : {299, 4, 17}) mask.mutable_data<bool>()[i] = true;
  CHECK(seeds_of(mask) == Ints{4, 17, 299});
  CHECK(seeds_of(list(Ints{9, 2, 5})) == Ints{9, 2, 5});
  CHECK(seeds_of(list(std::vector<std::int32_t>{9, 2, 5})) == Ints{9, 2, 5});
  CHECK(seeds_of(list(Ints{})).empty());
  NeighborLoader none(sampler(), {.input_nodes = list(Ints{})}, {.loader = {.batch_size = 4}});
  CHECK(none.size() == 0);
  NeighborLoader bare(sampler(), {}, {.loader = {.batch_size = 128, .drop_last = true}});
  std::int64_t batches = 0;
  for (const Batch& batch : bare) {
    const NeighborBatch b = unpack(batch);
    CHECK_FALSE(b.x.defined());
    CHECK_FALSE(b.y.defined());
    ++batches;
  }
  CHECK(batches == 2);
}

TEST_CASE("the batches of all ranks are those of one process, and padding repeats the first") {
  const auto batches_of = [](int rank, int world, bool pad) {
    NeighborLoader loader(sampler(), node_data(),
                          {.loader = {.batch_size = 40, .shuffle = true, .num_workers = 2, .generator = Generator(5)},
                           .rank = rank,
                           .world = world,
                           .pad = pad});
    std::vector<std::pair<Ints, bool>> all;
    for (const Batch& batch : loader) {
      NeighborBatch b = unpack(batch);
      const bool padding = std::exchange(b.graph.is_padding, false);
      all.emplace_back(content(b), padding);
    }
    CHECK(static_cast<std::int64_t>(all.size()) == loader.size());
    return all;
  };
  const auto one = batches_of(0, 1, true);
  REQUIRE(one.size() == 8);
  for (const int world : {2, 3, 5}) {
    for (const bool pad : {true, false}) {
      const std::size_t each = (8 + (pad ? static_cast<std::size_t>(world) - 1 : 0)) / static_cast<std::size_t>(world);
      for (int rank = 0; rank < world; ++rank) {
        const auto mine = batches_of(rank, world, pad);
        REQUIRE(mine.size() == each);
        for (std::size_t k = 0; k < each; ++k) {
          const std::size_t g = k * static_cast<std::size_t>(world) + static_cast<std::size_t>(rank);
          CHECK(mine[k].first == one[g % 8].first);
          CHECK(mine[k].second == (g >= 8));
        }
      }
    }
  }
}

TEST_CASE("an unpacked batch may be kept while the loop goes on") {
  NeighborLoader loader(sampler(), node_data(), {.loader = {.batch_size = 50, .num_workers = 2}});
  std::vector<NeighborBatch> kept;
  std::vector<Ints> before;
  for (const Batch& batch : loader) {
    kept.push_back(unpack(batch));
    before.push_back(content(kept.back()));
  }
  for (std::size_t i = 0; i < kept.size(); ++i) CHECK(content(kept[i]) == before[i]);
}

TEST_CASE("an error of a sampling worker reaches the loop with its type, in the place of its batch") {
  for (const int workers : {0, 2}) {
    NeighborLoader loader({graph(), {.fanouts = {1'000'000'000, 5}, .replace = true}}, {},
                          {.loader = {.batch_size = 8, .num_workers = workers}});
    CHECK_THROWS_WITH_AS(([&] {
                           for (const Batch& batch : loader) (void)batch;
                         }()),
                         doctest::Contains("expected at most 2^31 - 1 together"), ConfigError);
  }
}

TEST_CASE("wrong data and options of a neighbour loader are refused by name") {
  const auto refuse = [](NeighborData d, NeighborLoaderOptions o) { (void)NeighborLoader(sampler(), d, std::move(o)); };
  const NeighborLoaderOptions fine{.loader = {.batch_size = 8}};
  CHECK_THROWS_AS(refuse({.x = empty({7, 2}, Device::cpu())}, fine), ShapeError);
  CHECK_THROWS_AS(refuse({.y = empty({}, Device::cpu())}, fine), ShapeError);
  CHECK_THROWS_AS(refuse({.x = empty({kNodes, 2}, Device::meta())}, fine), DeviceError);
  CHECK_THROWS_WITH_AS(refuse({.input_nodes = list(Ints{1, 300})}, fine),
                       doctest::Contains("input_nodes[1] is 300, expected 0 to 299"), IndexError);
  CHECK_THROWS_AS(refuse({.input_nodes = empty({7}, Device::cpu(), DType::b8)}, fine), ShapeError);
  CHECK_THROWS_AS(refuse({.input_nodes = empty({2, 2}, Device::cpu(), DType::i64)}, fine), ShapeError);
  CHECK_THROWS_AS(refuse({.input_nodes = empty({7}, Device::cpu())}, fine), DTypeError);
  CHECK_THROWS_AS(refuse({}, {.loader = {.batch_size = 0}}), ConfigError);
  CHECK_THROWS_AS(refuse({}, {.loader = {.batch_size = {}}}), ConfigError);
  CHECK_THROWS_AS(refuse({}, {.loader = {.batch_size = 8}, .rank = 2, .world = 2}), ConfigError);
  CHECK_THROWS_AS(refuse({}, {.loader = {.batch_size = 0}, .world = 2}), ConfigError);
  CHECK_THROWS_AS(NeighborLoader({graph(), {.fanouts = Ints(7, 1)}}, {}, fine), ConfigError);
  CHECK_THROWS_AS((void)unpack(Batch{}), DataError);
  CHECK_THROWS_AS((void)unpack(Batch{.fields = {Tensor(), Tensor(), Tensor(), Tensor(), Tensor()}}), DataError);
  NeighborLoader loader(sampler(), node_data(), fine);
  Generator gen(1);
  CHECK_THROWS_AS((void)loader.dataset()->get(0, gen), StateError);
  CHECK_THROWS_AS((void)loader.dataset()->gather(Ints{0}, data::EpochRandom(gen, 0)), StateError);
}
