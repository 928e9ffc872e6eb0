#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "levin/error.h"
#include "levin/generator.h"
#include "levin/graph.h"
#include "levin/ops.h"
#include "levin/sparse.h"
#include "tensor/graph/rows.h"
#include "tests/device.h"

namespace levin::gnn {
namespace {

using Ids = std::vector<std::int64_t>;

template <class I = std::int64_t>
Tensor ids(const Ids& values) {
  const std::vector<I> narrow(values.begin(), values.end());
  return from_data<I>(narrow, {static_cast<std::int64_t>(values.size())}, Device::cpu());
}
Ids list(const Tensor& x) {
  if (x.dtype() == DType::i64) return x.to_vector<std::int64_t>();
  const auto narrow = x.to_vector<std::int32_t>();
  return {narrow.begin(), narrow.end()};
}
// The path 0-1-2-3 in both directions.
EdgeList path() { return {.src = ids({0, 1, 1, 2, 2, 3}), .dst = ids({1, 0, 2, 1, 3, 2}), .num_src = 4, .num_dst = 4}; }

template <class E, class F>
std::string message(const F& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("a graph's edges are grouped by destination and by source, with the positions between them") {
  const Graph g = Graph::from_coo(path());
  CHECK(list(g.csr().crow) == Ids{0, 1, 3, 5, 6});
  CHECK(list(g.csr().col) == Ids{1, 0, 2, 1, 3, 2});
  CHECK(list(g.edge_ids()) == Ids{1, 0, 3, 2, 5, 4});
  CHECK(list(g.csr().t_crow) == Ids{0, 1, 3, 5, 6});
  CHECK(list(g.csr().t_col) == Ids{1, 0, 2, 1, 3, 2});
  CHECK(list(g.csr().t_edge) == Ids{1, 0, 3, 2, 5, 4});
  CHECK(g.csr().col.dtype() == DType::i32);
  CHECK(g.csr().known() != nullptr);
  CHECK(g.csr().known()->longest_row == 2);
  CHECK(g.csr().known()->longest_column == 2);
  CHECK(g.csr().known()->ascending);
  CHECK(list(g.in_degree()) == Ids{1, 2, 2, 1});
  CHECK(list(g.out_degree()) == Ids{1, 2, 2, 1});
  CHECK(g.is_undirected());
  g.validate();
  CHECK(list(g.edges().src) == list(path().src));
  CHECK(list(g.edges().dst) == list(path().dst));
}

TEST_CASE("parallel edges, loops and isolated nodes stay in a graph") {
  const Graph g = Graph::from_coo({.src = ids({0, 0, 2}), .dst = ids({1, 1, 2}), .num_src = 4, .num_dst = 4});
  CHECK(list(g.csr().crow) == Ids{0, 0, 2, 3, 3});
  CHECK(list(g.csr().col) == Ids{0, 0, 2});
  CHECK_FALSE(g.edge_ids().defined());
  CHECK(list(g.in_degree()) == Ids{0, 2, 1, 0});
  CHECK(list(g.out_degree()) == Ids{2, 0, 1, 0});
  CHECK_FALSE(g.is_undirected());
}

TEST_CASE("a graph without edges or nodes is legal") {
  for (const std::int64_t nodes : {3, 0}) {
    const Graph g = Graph::from_coo({.src = ids({}), .dst = ids({}), .num_src = nodes, .num_dst = nodes});
    CHECK(list(g.csr().crow) == Ids(static_cast<std::size_t>(nodes + 1), 0));
    CHECK(g.num_nodes() == nodes);
    CHECK(g.num_edges() == 0);
    CHECK(g.is_undirected());
    g.validate();
    const Csr a{.crow = g.csr().crow, .col = g.csr().col.to(DType::i64), .cols = nodes};
    const Tensor x = empty({nodes, 2}, Device::cpu());
    for (const Reduce reduce : {Reduce::sum, Reduce::mean, Reduce::max, Reduce::min}) {
      CHECK(spmm(a, {}, x, reduce).to_vector<float>() == std::vector<float>(static_cast<std::size_t>(2 * nodes)));
    }
  }
  CHECK(Graph::from_coo({.src = ids({}), .dst = ids({})}).num_nodes() == 0);
}

TEST_CASE("the number of nodes is the largest id and one where none is given") {
  CHECK(Graph::from_coo({.src = ids({0, 5}), .dst = ids({1, 1})}).num_nodes() == 6);
  CHECK(Graph::from_coo({.src = ids({0, 5}), .dst = ids({1, 1}), .num_dst = 9}).num_nodes() == 9);
  const Graph two = Graph::from_coo({.src = ids({0, 5}), .dst = ids({1, 1})}, {.bipartite = true});
  CHECK(two.num_src() == 6);
  CHECK(two.num_dst() == 2);
  CHECK(two.is_bipartite());
  CHECK_FALSE(two.is_undirected());
}

TEST_CASE("1000 random multigraphs give their edges back from both groupings") {
  Generator gen(7);
  std::size_t wrong = 0;
  for (int run = 0; run < 1000; ++run) {
    const bool bipartite = run % 3 == 0;
    const std::int64_t num_src = gen.integer(1, 12), num_dst = bipartite ? gen.integer(1, 12) : num_src;
    const std::int64_t edges = gen.integer(0, 60);
    Ids src, dst;
    for (std::int64_t e = 0; e < edges; ++e) {
      src.push_back(gen.integer(0, num_src));
      dst.push_back(gen.integer(0, num_dst));
    }
    if (run % 4 == 1) std::sort(src.begin(), src.end());
    const bool wide = run % 2 == 0;
    const Graph g = Graph::from_coo({.src = wide ? ids(src) : ids<std::int32_t>(src),
                                     .dst = wide ? ids(dst) : ids<std::int32_t>(dst),
                                     .num_src = num_src,
                                     .num_dst = num_dst},
                                    {.bipartite = bipartite});
    g.validate();  // with the positions of the transpose
    wrong += list(g.edges().src) != src || list(g.edges().dst) != dst;
    // By definition: a stable sort.
    Ids order(src.size());
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int64_t>(e);
    const auto at = [](const Ids& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return std::pair(at(dst, a), at(src, a)) < std::pair(at(dst, b), at(src, b));
    });
    wrong += (g.edge_ids().defined() ? list(g.edge_ids()) : order) != order;
    if (!g.edge_ids().defined()) wrong += !std::is_sorted(order.begin(), order.end());
    Ids by_source(order);
    std::stable_sort(by_source.begin(), by_source.end(), [&](auto a, auto b) { return at(src, a) < at(src, b); });
    for (std::size_t k = 0; k < order.size(); ++k) {
      wrong += at(order, list(g.csr().t_edge)[k]) != by_source[k];
      wrong += list(g.csr().t_col)[k] != at(dst, by_source[k]);
    }
    const Graph again = Graph::from_csr(g.csr(), {.bipartite = bipartite}, {}, {}, g.edge_ids());
    wrong += list(again.edges().src) != src || !again.csr().t_edge.shares_storage(g.csr().t_edge);
    Csr bare = g.csr();
    bare.t_crow = bare.t_col = bare.t_edge = {};
    const Graph built = Graph::from_csr(bare, {.bipartite = bipartite}, {}, {}, g.edge_ids());
    wrong += list(built.csr().t_edge) != list(g.csr().t_edge) || list(built.csr().t_crow) != list(g.csr().t_crow);
  }
  CHECK(wrong == 0);
}

TEST_CASE("edges beyond a bucket of the sort, and i64 indices, are sorted alike") {
  Generator gen(5);
  const std::int64_t num_src = 70000, num_dst = 50000, edges = 600000;
  Ids src, dst;
  for (std::int64_t e = 0; e < edges; ++e) {
    src.push_back(gen.integer(0, num_src));
    dst.push_back(e % 3 == 0 ? 7 : gen.integer(0, num_dst));  // a hub
  }
  const Tensor from = ids(src), to = ids(dst);
  Ids order(src.size());
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int64_t>(e);
  const auto at = [](const Ids& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return std::pair(at(dst, a), at(src, a)) < std::pair(at(dst, b), at(src, b));
  });
  for (const std::int64_t most_narrow : {edges, edges - 1}) {
    const levin::detail::Rows rows =
        levin::detail::rows_of_edges("sort", from, to, num_src, num_dst, true, most_narrow);
    CHECK(rows.csr.col.dtype() == (most_narrow == edges ? DType::i32 : DType::i64));
    CHECK(list(rows.edge_ids) == order);
    CHECK(checked(rows.csr).known()->ascending);
    CHECK(checked(rows.csr).known()->longest_column == rows.csr.known()->longest_column);
    CHECK(checked(rows.csr).known()->longest_row == rows.csr.known()->longest_row);
    const Graph g = Graph::from_csr(rows.csr, {.bipartite = true}, {}, {}, rows.edge_ids);
    CHECK(list(g.edges().src) == src);
    CHECK(list(g.edges().dst) == dst);
  }
}

TEST_CASE("a graph without its transpose has the same degrees and mirror") {
  EdgeList edges = path();
  edges.weight = tensor({1.0f, 1.0f, 2.0f, 2.0f, 3.0f, 3.0f}, Device::cpu());
  const Graph g = Graph::from_coo(edges, {.transposed = false});
  CHECK_FALSE(g.csr().t_crow.defined());
  CHECK(g.csr().known()->longest_column == -1);
  CHECK(list(g.out_degree()) == Ids{1, 2, 2, 1});
  CHECK(g.is_undirected());
  g.validate();
  CHECK_FALSE(Graph::from_csr(Graph::from_coo(path()).csr(), {.transposed = false}).csr().t_crow.defined());
}

TEST_CASE("a graph is undirected where each edge has its mirror of the same weight, as often") {
  const auto undirected = [](const Ids& src, const Ids& dst, const std::vector<float>& weight) {
    EdgeList edges{.src = ids(src), .dst = ids(dst)};
    if (!weight.empty()) edges.weight = from_data<float>(weight, {edges.src.numel()}, Device::cpu());
    return Graph::from_coo(edges).is_undirected();
  };
  CHECK(undirected({0, 1, 2}, {1, 0, 2}, {}));
  CHECK_FALSE(undirected({0, 1, 0}, {1, 0, 1}, {}));
  CHECK(undirected({0, 1}, {1, 0}, {2, 2}));
  CHECK_FALSE(undirected({0, 1}, {1, 0}, {2, 3}));
  CHECK(undirected({0, 0, 1, 1}, {1, 1, 0, 0}, {2, 3, 3, 2}));
  CHECK_FALSE(undirected({0, 0, 1, 1}, {1, 1, 0, 0}, {2, 3, 3, 3}));
  CHECK(undirected({0, 1}, {1, 0}, {NAN, NAN}));
}

TEST_CASE("an edge list that fits no graph is refused with its position") {
  const auto build = [](EdgeList edges, GraphOptions options = {}) {
    return [=] { (void)Graph::from_coo(edges, options); };
  };
  EdgeList bad = path();
  bad.num_src = bad.num_dst = 3;
  CHECK(has(message<IndexError>(build(bad)), "Graph::from_coo: dst[4] is 3, expected 0 to 2"));
  bad = path();
  bad.src = ids({0, 1, -1, 2, 2, 3});
  CHECK(has(message<IndexError>(build(bad)), "src[2] is -1"));
  bad.num_src = bad.num_dst = -1;
  CHECK(has(message<IndexError>(build(bad)), "src[2] is -1"));
  bad = path();
  bad.num_src = 5;
  CHECK(has(message<ConfigError>(build(bad)), "num_src is 5 and num_dst 4"));
  bad.num_src = bad.num_dst = -2;
  CHECK_THROWS_AS(build(bad)(), ConfigError);
  bad.num_src = bad.num_dst = kMaxDim;
  CHECK_THROWS_AS(build(bad)(), ShapeError);
  bad.num_src = bad.num_dst = -1;
  for (const std::int64_t id : {std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()}) {
    bad.dst = ids({1, 0, 2, 1, 3, id});
    CHECK_THROWS_AS(build(bad)(), ShapeError);
  }
  bad = path();
  bad.dst = ids<std::int32_t>({1, 0, 2, 1, 3, 2});
  CHECK(has(message<DTypeError>(build(bad)), "dst is i32 and src i64"));
  bad = path();
  bad.src = empty({6}, Device::cpu());
  CHECK_THROWS_AS(build(bad)(), DTypeError);
  bad = path();
  bad.dst = ids({1, 0});
  CHECK_THROWS_AS(build(bad)(), ShapeError);
  bad.dst = {};
  CHECK_THROWS_AS(build(bad)(), ShapeError);
  bad = path();
  bad.src = empty({6}, Device::meta(), DType::i64);
  CHECK_THROWS_AS(build(bad)(), DeviceError);
  bad = path();
  bad.weight = ids({1, 1, 1, 1, 1, 1});
  CHECK_THROWS_AS(build(bad)(), DTypeError);
  bad.weight = empty({5}, Device::cpu());
  CHECK_THROWS_AS(build(bad)(), ShapeError);
  bad = path();
  bad.attr = empty({6}, Device::cpu());
  CHECK_THROWS_AS(build(bad)(), ShapeError);
}

TEST_CASE("rows that are no graph's are refused with their position") {
  const auto build = [](Csr a, Tensor ids = {}, GraphOptions options = {}) {
    return [=] { (void)Graph::from_csr(a, options, {}, {}, ids); };
  };
  const Csr good{.crow = ids({0, 2, 3}), .col = ids({0, 1, 0}), .cols = 2};
  CHECK(message<Error>(build(good)).empty());
  Csr bad = good;
  bad.col = ids({1, 0, 0});
  CHECK(has(message<IndexError>(build(bad)), "col[1] with its id is not above col[0]"));
  bad.col = ids({0, 2, 0});
  CHECK(has(message<IndexError>(build(bad)), "col[1] is 2, expected 0 to 1"));
  bad = good;
  bad.cols = 3;
  CHECK_THROWS_AS(build(bad)(), ConfigError);
  CHECK(message<Error>(build(bad, {}, {.bipartite = true})).empty());
  bad = good;
  bad.edge = ids({0, 1, 2});
  CHECK_THROWS_AS(build(bad)(), ConfigError);
  CHECK(has(message<IndexError>(build(good, ids({0, 1, 1}))), "edge[2] is 1, which another entry has"));
  CHECK_THROWS_AS(build(good, ids({0, 1, 5}))(), IndexError);
  CHECK_THROWS_AS(build(good, ids({0, 1}))(), ShapeError);
  bad.edge = {};
  bad.col = ids({0, 0, 0});
  CHECK(has(message<IndexError>(build(bad, ids({1, 0, 2}))), "col[1] with its id"));
  CHECK(message<Error>(build(checked(good), ids({2, 1, 0}), {.trusted = true})).empty());
  // A transpose whose equal columns are out of order.
  const Csr twice{.crow = ids({0, 2}),
                  .col = ids({0, 0}),
                  .cols = 1,
                  .t_crow = ids({0, 2}),
                  .t_col = ids({0, 0}),
                  .t_edge = ids({1, 0})};
  CHECK(has(message<IndexError>(build(twice)), "t_col[1] with its position"));
}

TEST_CASE("a graph whose tensors were written through another handle is examined, not believed") {
  const Graph g = Graph::from_coo(path());
  Tensor col = g.csr().col;
  col.mutable_data<std::int32_t>()[0] = 1000;
  CHECK_THROWS_AS((void)g.edges(), IndexError);
  CHECK_THROWS_AS(g.validate(), IndexError);
  CHECK_THROWS_AS((void)g.is_undirected(), IndexError);
}

TEST_CASE("a graph on a device keeps edges, identity and facts") {
  DEVICE_OR_SKIP();
  EdgeList edges = path();
  edges.weight = tensor({1.0f, 1.0f, 2.0f, 2.0f, 3.0f, 4.0f}, Device::cpu());
  edges.attr = reshape(arange(0, 12, 1, Device::cpu()), {6, 2});
  const Graph g = Graph::from_coo(edges), there = g.to(device);
  CHECK(there.device() == device);
  CHECK(there.is_same(g));
  CHECK_FALSE(there.is_same(Graph::from_coo(edges)));
  CHECK(there.csr().known() != nullptr);
  CHECK(there.csr().known()->ascending);
  CHECK(list(there.edges().src) == list(edges.src));
  CHECK(there.edges().attr.device() == device);
  CHECK(list(there.in_degree()) == list(g.in_degree()));
  CHECK(list(there.out_degree()) == list(g.out_degree()));
  CHECK_FALSE(there.is_undirected());
  there.validate();
  EdgeList far = path();
  far.src = far.src.to(device);
  CHECK(has(message<DeviceError>([&] { (void)Graph::from_coo(far); }), "src is on"));
}

}  // namespace
}  // namespace levin::gnn
