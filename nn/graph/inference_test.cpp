// Layer by layer over all nodes equals the whole graph at once.
#include "levin/nn/graph_inference.h"

#include <algorithm>

#include "nn/graph/facts_test.h"
#include "tests/device.h"

namespace levin::gnn {
namespace {

constexpr std::int64_t kNodes = 23;

// A multigraph with loops; nodes 21 and 22 are isolated.
struct Large {
  Generator gen{11};
  Tensor weight = rand({90}, gen, Device::cpu()) + 0.5;
  Graph graph = [this] {
    const EdgeList e = random_graph(kNodes - 2, 90, gen).edges();
    return Graph::from_coo({.src = e.src, .dst = e.dst, .weight = weight, .num_src = kNodes, .num_dst = kNodes});
  }();
  Tensor x = wave({kNodes, 3}, .3);
};

// Batch norms whose statistics are not the first ones.
template <class Net>
void used_and_evaluating(Net& net, const Graph& g, const Tensor& x) {
  const NoGrad off;
  (void)net(x, g);
  net.eval();
}

template <class Net>
void check_net(Net& net, const Large& l, const Tensor& edge_weight = {}) {
  used_and_evaluating(net, l.graph, l.x);
  const Tensor whole = net(l.x, l.graph, edge_weight);
  for (const std::int64_t batch_size : {1, 7, 23, 1000}) {
    CAPTURE(batch_size);
    const Tensor y = layerwise_inference(net, l.graph, l.x, {.batch_size = batch_size}, edge_weight);
    check_same(y, whole, 1e-12);
    CHECK(!y.requires_grad());
  }
}

TEST_CASE("layer by layer a stack gives the output of the whole graph for any batch size") {
  const Large l;
  for (const std::optional<Jumping> jk :
       {std::optional<Jumping>(), std::optional(Jumping::cat), std::optional(Jumping::max)}) {
    Root root;
    GraphSAGE sage(root, "sage",
                   {.in = 3, .hidden = 4, .layers = 3, .out = 2, .dropout = .5, .norm = Norm::batch_norm, .jk = jk});
    check_net(sage, l);
    GIN gin(root, "gin",
            {.in = 3,
             .hidden = 4,
             .layers = 2,
             .out = 2,
             .dropout = .5,
             .act_first = true,
             .norm = Norm::batch_norm,
             .jk = jk});
    check_net(gin, l);
    GAT gat(root, "gat", {.in = 3, .hidden = 4, .layers = 2, .out = 2, .dropout = .5, .jk = jk, .conv = {.heads = 2}});
    check_net(gat, l);
    GATv2 v2(root, "v2", {.in = 3, .hidden = 4, .layers = 2, .out = 2, .jk = jk, .conv = {.heads = 2}});
    check_net(v2, l);
    GCN gcn(root, "gcn", {.in = 3, .hidden = 5, .layers = 3, .out = 2, .dropout = .5, .jk = jk});
    check_net(gcn, l);
    check_net(gcn, l, wave({90}, .4) + 1);
    GCN plain(root, "plain", {.in = 3, .hidden = 5, .layers = 2, .out = 2, .jk = jk, .conv = {.normalize = false}});
    check_net(plain, l);
    check_net(plain, l, wave({90}, .4));
  }
}

TEST_CASE("layer by layer functions give the output of the whole graph, also of attributes of edges") {
  const Large l;
  Root root;
  SAGEConv sage(root, "sage", {.in = 3, .out = 5, .aggr = Reduce::max});
  GCNConv weighted(root, "weighted", {.in = 5, .out = 2, .normalize = false});
  const std::vector<BlockLayer> layers{[&](const Tensor& x, const Block& on) { return relu(sage(x, on)); },
                                       [&](const Tensor& x, const Block& on) {
                                         return weighted(x, on,
                                                         index_select(l.graph.weight(), 0, on.edge_ids).to(DType::f64));
                                       }};
  const Tensor whole = weighted(relu(sage(l.x, l.graph)), l.graph, l.weight.to(DType::f64));
  for (const std::int64_t batch_size : {1, 7, 23})
    check_same(layerwise_inference(layers, l.graph, l.x, {.batch_size = batch_size}), whole, 1e-12);
}

TEST_CASE("a block of layer-wise inference has its destinations first, then their other in-neighbours as they occur") {
  const Large l;
  const Csr& a = l.graph.csr();
  // The same edges as i32 and ids, and as i64 without ids.
  const Graph wide = Graph::from_csr({.crow = a.crow, .col = a.col.to(DType::i64), .cols = a.cols});
  REQUIRE(a.col.dtype() == DType::i32);
  REQUIRE(wide.csr().col.dtype() == DType::i64);
  const Tensor nodes = arange(kNodes, Device::cpu());
  for (const Graph* g : {&l.graph, &wide}) {
    const EdgeList e = g->edges();
    const auto src = e.src.to(DType::i64).to_vector<std::int64_t>(),
               dst = e.dst.to(DType::i64).to_vector<std::int64_t>();
    std::vector<std::int64_t> seen, of_edges;
    const BlockLayer layer = [&](const Tensor& x, const Block& on) {
      const auto id = x.to_vector<std::int64_t>(), edge = on.edge_ids.to_vector<std::int64_t>();
      const auto crow = on.csr.crow.to_vector<std::int64_t>();
      const auto col = on.csr.col.to(DType::i64).to_vector<std::int64_t>();
      const auto rows = static_cast<std::size_t>(on.csr.rows());
      REQUIRE(on.csr.known());
      CHECK(on.csr.known()->longest_row == CsrFacts(on.csr).longest_row);
      CHECK(on.csr.col.dtype() == g->csr().col.dtype());
      CHECK(on.csr.cols == x.size(0));
      std::vector<std::int64_t> expected;
      for (std::size_t i = 0; i < rows; ++i) expected.push_back(static_cast<std::int64_t>(seen.size() + i));
      for (std::size_t i = 0; i < rows; ++i)
        for (auto k = static_cast<std::size_t>(crow[i]); k < static_cast<std::size_t>(crow[i + 1]); ++k) {
          const auto at = static_cast<std::size_t>(edge[k]);
          CHECK(dst[at] == id[i]);
          CHECK(src[at] == id[static_cast<std::size_t>(col[k])]);
          if (std::find(expected.begin(), expected.end(), src[at]) == expected.end()) expected.push_back(src[at]);
        }
      CHECK(id == expected);
      seen.insert(seen.end(), id.begin(), id.begin() + static_cast<std::ptrdiff_t>(rows));
      of_edges.insert(of_edges.end(), edge.begin(), edge.end());
      return narrow(x, 0, 0, on.csr.rows());
    };
    CHECK(equal(layerwise_inference({&layer, 1}, *g, nodes, {.batch_size = 5}), nodes));
    std::sort(of_edges.begin(), of_edges.end());
    CHECK(of_edges == arange(90, Device::cpu()).to_vector<std::int64_t>());
  }
}

TEST_CASE("layer-wise inference takes a graph without edges and one without nodes") {
  Root root;
  GraphSAGE sage(root, "sage", {.in = 3, .hidden = 4, .layers = 2, .out = 2, .jk = Jumping::cat});
  GAT gat(root, "gat", {.in = 3, .hidden = 4, .layers = 2, .out = 2});
  GCN gcn(root, "gcn", {.in = 3, .hidden = 4, .layers = 2, .out = 2});
  for (nn::Module* m :
       {static_cast<nn::Module*>(&sage), static_cast<nn::Module*>(&gat), static_cast<nn::Module*>(&gcn)})
    m->eval();
  for (const std::int64_t nodes : {0, 5}) {
    CAPTURE(nodes);
    const Graph g = graph_of({}, {}, nodes);
    const Tensor x = wave({nodes, 3}, .3);
    check_same(layerwise_inference(sage, g, x, {.batch_size = 2}), sage(x, g), 1e-12);
    check_same(layerwise_inference(gat, g, x, {.batch_size = 2}), gat(x, g), 1e-12);
    check_same(layerwise_inference(gcn, g, x, {.batch_size = 2}), gcn(x, g), 1e-12);
  }
}

TEST_CASE("layer-wise inference refuses what it cannot evaluate") {
  const Large l;
  Root root;
  GraphSAGE sage(root, "sage", {.in = 3, .hidden = 4, .layers = 2, .out = 2});
  CHECK_THROWS_WITH_AS((void)layerwise_inference(sage, l.graph, l.x), doctest::Contains("eval()"), StateError);
  sage.eval();
  CHECK_THROWS_AS((void)layerwise_inference(sage, l.graph, l.x, {.batch_size = 0}), ConfigError);
  CHECK_THROWS_AS((void)layerwise_inference(sage, l.graph, l.x, {}, l.weight), ConfigError);
  CHECK_THROWS_AS((void)layerwise_inference(sage, l.graph, wave({kNodes - 1, 3}, .3)), ShapeError);
  CHECK_THROWS_AS((void)layerwise_inference(sage, l.graph, wave({kNodes, 4}, .3)), ShapeError);
  const Graph pairs =
      Graph::from_coo({.src = ids({0}), .dst = ids({1}), .num_src = 2, .num_dst = 3}, {.bipartite = true});
  CHECK_THROWS_WITH_AS((void)layerwise_inference(sage, pairs, l.x), doctest::Contains("bipartite"), ShapeError);
  GCN plain(root, "plain", {.in = 3, .hidden = 5, .layers = 1, .conv = {.normalize = false}});
  plain.eval();
  CHECK_THROWS_AS((void)layerwise_inference(plain, l.graph, l.x, {}, wave({89}, .4)), ShapeError);
  CHECK_THROWS_AS((void)layerwise_inference(plain, l.graph, l.x, {}, ids({1})), ShapeError);
  CHECK_THROWS_AS((void)layerwise_inference(plain, l.graph, l.x, {}, arange(90, Device::cpu())), DTypeError);

  const auto run = [&](const BlockLayer& layer) {
    return layerwise_inference({&layer, 1}, l.graph, l.x, {.batch_size = 7});
  };
  CHECK_THROWS_AS((void)layerwise_inference(std::span<const BlockLayer>(), l.graph, l.x), ConfigError);
  CHECK_THROWS_WITH_AS((void)run({}), doctest::Contains("layer 0 is empty"), ConfigError);
  CHECK_THROWS_WITH_AS((void)run([](const Tensor&, const Block&) { return Tensor(); }), doctest::Contains("undefined"),
                       ShapeError);
  CHECK_THROWS_AS((void)run([](const Tensor& x, const Block&) { return x; }), ShapeError);
  CHECK_THROWS_AS((void)run([](const Tensor& x, const Block&) { return sum(x); }), ShapeError);
  std::int64_t calls = 0;
  CHECK_THROWS_WITH_AS((void)run([&](const Tensor&, const Block& on) {
                         return zeros({on.csr.rows(), ++calls}, Device::cpu());
                       }),
                       doctest::Contains("as for other blocks"), ShapeError);
  CHECK_THROWS_AS((void)run([&](const Tensor&, const Block& on) {
                    return zeros({on.csr.rows()}, Device::cpu(), ++calls % 2 == 0 ? DType::f32 : DType::f64);
                  }),
                  DTypeError);
}

TEST_CASE("layer-wise inference computes on a device and gives a tensor on cpu") {
  DEVICE_OR_SKIP();
  const Large l;
  const Tensor x = l.x.to(DType::f32);
  Generator seed(1);
  struct Net : nn::Module {
    explicit Net(nn::Options o) : Module(std::move(o)) {}
    GraphSAGE sage{*this, "sage", {.in = 3, .hidden = 4, .layers = 2, .out = 2, .norm = Norm::batch_norm}};
    GIN gin{*this, "gin", {.in = 3, .hidden = 4, .layers = 2, .out = 2, .jk = Jumping::cat}};
    GAT gat{*this, "gat", {.in = 3, .hidden = 4, .layers = 2, .out = 2, .conv = {.heads = 2}}};
    GCN gcn{*this, "gcn", {.in = 3, .hidden = 4, .layers = 2, .out = 2}};
  };
  Net here({.gen = seed, .device = Device::cpu()}), there({.gen = seed, .device = device});
  here.eval();
  there.eval();
  const auto check = [&](const auto& a, const auto& b) {
    for (const std::int64_t batch_size : {7, 23}) {
      const Tensor y = layerwise_inference(b, l.graph, x, {.batch_size = batch_size});
      CHECK(y.device().is_cpu());
      check_same(y, a(x, l.graph), 1e-5);
    }
  };
  check(here.sage, there.sage);
  check(here.gin, there.gin);
  check(here.gat, there.gat);
  check(here.gcn, there.gcn);
  const BlockLayer layer = [&](const Tensor& h, const Block& on) {
    CHECK(h.device() == device);
    CHECK(on.csr.col.device() == device);
    CHECK(on.edge_ids.device().is_cpu());
    return there.sage.convs[0](h, on);
  };
  check_same(layerwise_inference({&layer, 1}, l.graph, x, {.batch_size = 7, .device = device}),
             here.sage.convs[0](x, l.graph), 1e-5);
  CHECK_THROWS_AS((void)layerwise_inference(there.sage, l.graph.to(device), x), DeviceError);
  CHECK_THROWS_AS((void)layerwise_inference(there.sage, l.graph, x.to(device)), DeviceError);
}

}  // namespace
}  // namespace levin::gnn
