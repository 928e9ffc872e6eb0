// Batches of graphs: joined, taken apart, loaded, and the layers' outputs on them.
#include "levin/data/graph_batch.h"
#include "nn/graph/facts_test.h"
#include "tests/device.h"

namespace levin::gnn {
namespace {

GraphSample sample(std::int64_t nodes, std::int64_t edges, std::int64_t label, Generator& gen, bool weights = false) {
  const Tensor w = weights ? rand({edges}, gen, Device::cpu()) : Tensor();
  const Graph g = nodes > 0 ? random_graph(nodes, edges, gen, w) : graph_of({}, {}, 0, w);
  return {g, randn({nodes, 3}, gen, Device::cpu()), full({}, label, Device::cpu(), DType::i64)};
}

bool same_graph(const Graph& a, const Graph& b) {
  const EdgeList x = a.edges(), y = b.edges();
  const auto same = [](const Tensor& s, const Tensor& t) {
    return s.defined() == t.defined() && (!s.defined() || equal(s, t));
  };
  return a.num_nodes() == b.num_nodes() && same(x.src, y.src) && same(x.dst, y.dst) && same(a.weight(), b.weight()) &&
         same(a.attr(), b.attr()) && same(a.csr().col, b.csr().col) && same(a.csr().t_edge, b.csr().t_edge);
}

TEST_CASE("a batch of the path and a triangle shifts the triangle's nodes behind the path's") {
  const P4 p;
  const GraphSample path{p.graph, p.x, {}},
      triangle{graph_of({0, 1, 1, 2, 2, 0}, {1, 0, 2, 1, 0, 2}, 3), wave({3, 2}, .2), {}};
  const std::vector<GraphSample> both{path, triangle};
  const GraphBatch b = GraphBatch::collate(both);
  CHECK(b.size() == 2);
  CHECK(b.ptr.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 4, 7});
  CHECK(b.batch.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 0, 0, 0, 1, 1, 1});
  CHECK(b.graph.num_edges() == 12);
  const EdgeList list = b.graph.edges();
  CHECK(narrow(list.src, 0, 6, 6).to(DType::i64).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{4, 5, 5, 6, 6, 4});
  CHECK(narrow(list.dst, 0, 6, 6).to(DType::i64).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{5, 4, 6, 5, 4, 6});
  b.graph.validate();
  CHECK(b.x.shape() == Shape{7, 2});
  CHECK(!b.y.defined());
}

TEST_CASE("a batch equals the graph of all edges, and its parts are the samples, also empty ones") {
  Generator gen(41);
  for (const bool weights : {false, true}) {
    std::vector<GraphSample> samples;
    for (const std::int64_t n : {5, 0, 3, 1, 0, 6}) samples.push_back(sample(n, n > 1 ? 3 * n : 0, n, gen, weights));
    const GraphBatch b = GraphBatch::collate(samples);
    const Graph again = Graph::from_coo([&] {
      EdgeList list = b.graph.edges();
      list.weight = b.graph.weight();
      list.num_src = list.num_dst = b.graph.num_nodes();
      return list;
    }());
    CHECK(same_graph(again, b.graph));
    CHECK(b.y.to_vector<std::int64_t>() == std::vector<std::int64_t>{5, 0, 3, 1, 0, 6});
    const std::vector<GraphSample> parts = b.unbatch();
    REQUIRE(parts.size() == samples.size());
    for (std::size_t g = 0; g < parts.size(); ++g) {
      CAPTURE(g);
      CHECK(same_graph(parts[g].graph, samples[g].graph));
      CHECK(equal(parts[g].x, samples[g].x));
      CHECK(equal(parts[g].y, samples[g].y));
    }
  }
  const GraphBatch none = GraphBatch::collate({});
  CHECK(none.size() == 0);
  CHECK(none.graph.num_nodes() == 0);
  CHECK(none.unbatch().empty());
}

TEST_CASE("a graph's output does not depend on the other graphs of its batch") {
  Generator gen(43);
  std::vector<GraphSample> samples{sample(5, 12, 0, gen), sample(4, 9, 1, gen), sample(6, 20, 0, gen)};
  nn::Module root({.gen = gen, .device = Device::cpu()});
  GIN gin(root, "gin", {.in = 3, .hidden = 8, .layers = 3, .jk = Jumping::cat});
  GAT gat(root, "gat", {.in = 3, .hidden = 8, .layers = 2, .conv = {.heads = 2}});
  const GraphBatch all = GraphBatch::collate(samples), one = GraphBatch::collate(std::span(samples).subspan(1, 1));
  const Tensor together = global_pool(gin(all.x, all.graph), all.ptr),
               alone = global_pool(gin(one.x, one.graph), one.ptr);
  check_same(narrow(together, 0, 1, 1), alone, 1e-6);
  check_same(alone, global_pool(gin(samples[1].x, samples[1].graph), one.ptr), 1e-6);
  check_same(narrow(global_pool(gat(all.x, all.graph), all.ptr), 0, 1, 1), global_pool(gat(one.x, one.graph), one.ptr),
             1e-6);
}

TEST_CASE("collate refuses samples that do not fit each other and names the graph") {
  Generator gen(47);
  const GraphSample a = sample(3, 4, 0, gen), weighted = sample(3, 4, 0, gen, true);
  const auto refused = [&](const GraphSample& b, const char* words) {
    const std::vector<GraphSample> both{a, b};
    CHECK_THROWS_WITH_AS((void)GraphBatch::collate(both), doctest::Contains(words), DataError);
  };
  refused({a.graph, {}, a.y}, "graph 1 has none");
  refused({a.graph, randn({3, 4}, gen, Device::cpu()), a.y}, "x of graph 1");
  refused({a.graph, randn({2, 3}, gen, Device::cpu()), a.y}, "expected 3 rows");
  refused({a.graph, a.x, a.y.to(DType::i32)}, "y of graph 1");
  refused(weighted, "weight");
  refused(
      {Graph::from_coo({.src = ids({0}), .dst = ids({0}), .num_src = 3, .num_dst = 2}, {.bipartite = true}), a.x, a.y},
      "bipartite");
}

TEST_CASE("a loader of graphs gives batches of 64, the last one short, for any number of workers") {
  Generator gen(53);
  std::vector<GraphSample> samples;
  for (std::int64_t i = 0; i < 100; ++i) samples.push_back(sample(2 + i % 4, 6, i, gen));
  const data::DatasetRef set = graph_dataset(samples);
  std::vector<std::vector<Tensors>> runs;
  for (const int workers : {0, 2}) {
    data::DataLoader loader(set, {.batch_size = 64, .num_workers = workers});
    runs.emplace_back();
    for (data::Batch& b : loader) runs.back().push_back(b.fields);
  }
  REQUIRE(runs[0].size() == 2);
  REQUIRE(runs[1].size() == 2);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const GraphFields b = GraphFields::of(runs[0][i]), other = GraphFields::of(runs[1][i]);
    const std::int64_t n = i == 0 ? 64 : 36;
    CHECK(b.ptr.numel() == n + 1);
    const GraphBatch direct =
        GraphBatch::collate(std::span(samples).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)));
    CHECK(equal(b.x, direct.x));
    CHECK(equal(b.y, direct.y));
    CHECK(equal(b.block.csr.col, direct.graph.csr().col));
    CHECK(equal(b.block.csr.t_edge, direct.graph.csr().t_edge));
    CHECK(equal(b.batch, other.batch));
    CHECK(equal(b.block.csr.col, other.block.csr.col));
    CHECK(b.block.csr.known() != nullptr);
    first += n;
  }
  CHECK_THROWS_AS((void)GraphFields::of(Tensors{}), DataError);
}

TEST_CASE("a batch of graphs on a device gives the CPU's pools") {
  DEVICE_OR_SKIP();
  Generator gen(59);
  const std::vector<GraphSample> samples{sample(5, 12, 0, gen), sample(0, 0, 1, gen), sample(6, 20, 0, gen)};
  const GraphBatch here = GraphBatch::collate(samples), there = here.to(device);
  nn::Module root({.gen = gen, .device = Device::cpu()}), moved({.gen = gen, .device = device});
  GIN a(root, "gin", {.in = 3, .hidden = 8, .layers = 2}), b(moved, "gin", {.in = 3, .hidden = 8, .layers = 2});
  check_same(global_pool(b(there.x, there.graph), there.ptr), global_pool(a(here.x, here.graph), here.ptr), 1e-5);
  CHECK(same_graph(there.unbatch()[2].graph, samples[2].graph));
}

}  // namespace
}  // namespace levin::gnn
