#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "data/graph/graph_data_test.h"
#include "data/graph/tu.h"
#include "levin/data/graph.h"
#include "levin/error.h"
#include "levin/graph_edges.h"
#include "tests/datasets.h"
#include "tests/skip.h"

namespace levin::gnn {
namespace {

using namespace testing;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

// Graph 1: nodes 1 to 3, the edge 1 -> 2 twice and a loop; graph 2: a node alone; graph 3: no node; graph 4: an edge.
// The last lines have no end.
Contents small() {
  return {{"S_A.txt", "1, 2\n2, 1\n1, 2\n3, 3\n2, 3\n5, 6"},
          {"S_graph_indicator.txt", "1\n1\n1\n2\n4\n4\n"},
          {"S_graph_labels.txt", "7\n-1\n7\n2"},
          {"S_node_labels.txt", "3\n5\n3\n4\n3\n3"},
          {"S_node_attributes.txt", "1.5, -2\n0, 1e1\n1,1\n2,2\n3,3\n4, 4\n"},
          {"S_edge_labels.txt", "0\n1\n1\n0\n0\n1\n"},
          {"S_edge_attributes.txt", "1\n2\n4\n8\n16\n32"}};
}
GraphSamples read(const Contents& c, const TuOptions& o = {}) { return read_tu(in_memory(c), "S", o); }

TEST_CASE("graphs of the TU format keep nodes without edges, graphs without nodes and a last line without end") {
  const GraphSamples s = read(small());
  REQUIRE(s.graphs.size() == 4);
  CHECK(s.class_labels == Ids{-1, 2, 7});
  CHECK(s.num_classes == 3);
  CHECK(s.num_features == 3);
  Ids nodes, edges, y;
  for (const GraphSample& g : s.graphs) {
    g.graph.validate();
    CHECK(g.graph.csr().known() != nullptr);
    nodes.push_back(g.graph.num_nodes());
    edges.push_back(g.graph.num_edges());
    y.push_back(g.y.item<std::int64_t>());
    CHECK(g.y.shape() == Shape{});
    CHECK(g.x.shape() == Shape{g.graph.num_nodes(), 3});
  }
  CHECK(nodes == Ids{3, 1, 0, 2});
  CHECK(edges == Ids{3, 0, 0, 1});
  CHECK(y == Ids{2, 0, 2, 1});
  const Graph& g = s.graphs[0].graph;
  CHECK(numbers(g.edges().src) == Ids{1, 0, 1});
  CHECK(numbers(g.edges().dst) == Ids{0, 1, 2});
  CHECK(g.attr().to_vector<float>() == Floats{0, 1, 1, 1, 1, 0});  // labels 0 and 1 of the joined edges are added
  CHECK(s.graphs[0].x.to_vector<float>() == Floats{1, 0, 0, 0, 0, 1, 1, 0, 0});
  CHECK(s.graphs[1].x.to_vector<float>() == Floats{0, 1, 0});
  CHECK(numbers(s.graphs[3].graph.edges().src) == Ids{0});
  CHECK(numbers(s.graphs[3].graph.csr().t_crow) == Ids{0, 1, 1});
  CHECK(s.graphs[3].graph.csr().known()->longest_row == 1);
}

TEST_CASE("attributes of nodes and edges stand before the one-hot labels") {
  const GraphSamples s = read(small(), {.use_node_attr = true, .use_edge_attr = true});
  CHECK(s.num_features == 5);
  CHECK(s.graphs[0].x.to_vector<float>() == Floats{1.5, -2, 1, 0, 0, 0, 10, 0, 0, 1, 1, 1, 1, 0, 0});
  CHECK(s.graphs[0].graph.attr().to_vector<float>() == Floats{2, 0, 1, 5, 1, 1, 16, 1, 0});
}

TEST_CASE("nodes without labels get their degree, a one or nothing") {
  Contents c = small();
  c.erase("S_node_labels.txt");
  const GraphSamples degree = read(c);
  CHECK(degree.num_features == 3);
  CHECK(degree.graphs[0].x.to_vector<float>() == one_hot_degree(degree.graphs[0].graph, 2).to_vector<float>());
  CHECK(degree.graphs[3].x.to_vector<float>() == Floats{0, 1, 0, 1, 0, 0});
  CHECK(read(c, {.features = TuFeatures::ones}).graphs[0].x.to_vector<float>() == Floats{1, 1, 1});
  CHECK_FALSE(read(c, {.features = TuFeatures::none}).graphs[0].x.defined());
  c.erase("S_edge_labels.txt");
  CHECK_FALSE(read(c).graphs[0].graph.attr().defined());
}

TEST_CASE("each graph of a TU set is what from_coo makes of its lines") {
  const GraphSamples s = read(small());
  const EdgeList lines{.src = tensor<std::int64_t>({0, 1, 0, 2, 1}, Device::cpu()),
                       .dst = tensor<std::int64_t>({1, 0, 1, 2, 2}, Device::cpu()),
                       .num_src = 3};
  const Graph expected = Graph::from_coo(coalesce(remove_self_loops(lines).edges).edges);
  const Csr &a = s.graphs[0].graph.csr(), &b = expected.csr();
  for (const auto part : {&Csr::crow, &Csr::col, &Csr::t_crow, &Csr::t_col, &Csr::t_edge})
    CHECK(numbers(a.*part) == numbers(b.*part));
  CHECK_FALSE(s.graphs[0].graph.edge_ids().defined());
}

TEST_CASE("lines may end in CR LF, columns be separated by spaces, and numbers have a plus") {
  Contents c = small();
  c["S_A.txt"] = "1 2\r\n2\t1\r\n+1 ,2\r\n3,3\r\n2, 3\r\n5 6 \r\n\r\n \n";
  CHECK(read(c).graphs[0].graph.num_edges() == 3);
}

TEST_CASE("damaged TU files are refused with file and line") {
  const auto refused = [](const std::string& file, const std::string& content, const std::string& part) {
    Contents c = small();
    c[file] = content;
    const std::string said =
        message<FormatError>([&] { (void)read(c, {.use_node_attr = true, .use_edge_attr = true}); });
    CAPTURE(said);
    CHECK(said.find(file) == 0);
    CHECK(has(said, part));
  };
  refused("S_A.txt", "1, 2\n2, 7\n", "line 2, column 2 is 7, expected 1 to 6");
  refused("S_A.txt", "0, 2\n", "line 1, column 1 is 0");
  refused("S_A.txt", "1, 4\n", "line 1 joins node 1 of graph 1 and node 4 of graph 2");
  refused("S_A.txt", "1, 2, 3\n", "line 1 has 3 columns, expected 2");
  refused("S_A.txt", "1, 2\n3\n", "line 2 has 1 columns, expected 2");
  refused("S_A.txt", "1, 2\n\n2, 1\n", "line 2 is empty");
  refused("S_A.txt", "1, 2,\n", "line 1 ends in a comma");
  refused("S_A.txt", "1, x\n", "line 1, column 2 begins with 'x', expected an integer");
  refused("S_A.txt", "1, 2.5\n", "line 1, column 2 begins with '2.5'");
  refused("S_A.txt", "1, 99999999999999999999\n", "line 1, column 2");
  refused("S_A.txt", std::string("1, 2\0", 5), "line 1, column 2");
  refused("S_graph_indicator.txt", "1\n1\n2\n1\n4\n4\n", "line 4 is 1 after 2");
  refused("S_graph_indicator.txt", "0\n", "line 1 is 0, expected 1 to 4");
  refused("S_graph_indicator.txt", "1\n5\n", "line 2 is 5");
  refused("S_graph_labels.txt", "", "has no line");
  refused("S_graph_labels.txt", "1 2\n", "line 1 has 2 columns, expected 1");
  refused("S_node_labels.txt", "1\n2\n", "has 2 lines, expected 6, one a node");
  refused("S_node_labels.txt", "1\n1\n1\n1\n70000\n1\n", "line 5, column 1 is 70000 and the least is 1");
  refused("S_node_labels.txt", "-9223372036854775808\n1\n1\n1\n9223372036854775807\n1\n", "line 5, column 1");
  refused("S_node_attributes.txt", "1,2\n1,nan\n1,2\n1,2\n1,2\n1,2",
          "line 2, column 2 begins with 'nan', expected a finite f32");
  refused("S_node_attributes.txt", "1e39\n1\n1\n1\n1\n1", "line 1, column 1 begins with '1e39'");
  refused("S_edge_labels.txt", "1\n", "has 1 lines, expected 6, one a line of _A.txt");
  refused("S_edge_attributes.txt", "inf\n1\n1\n1\n1\n1", "line 1, column 1 begins with 'inf'");
  for (const std::string file : {"S_A.txt", "S_graph_indicator.txt", "S_graph_labels.txt"}) {
    Contents c = small();
    c.erase(file);
    CHECK(has(message<FileError>([&] { (void)read(c); }), "memory: has no " + file));
  }
  CHECK_THROWS_AS((void)read(small(), {.feature_bytes = 16}), OutOfMemoryError);
  CHECK_THROWS_AS((void)read(small(), {.feature_bytes = -1}), ConfigError);
  CHECK_THROWS_AS((void)tu("/nowhere", "MUTAG"), FileError);
}

TEST_CASE("ten folds are read from ten pairs of files") {
  Contents c;
  for (int k = 1; k <= 10; ++k) {
    c["10fold_idx/train_idx-" + std::to_string(k) + ".txt"] = "0\n2\n";
    c["10fold_idx/test_idx-" + std::to_string(k) + ".txt"] = "1";
  }
  const auto folds = read_folds(in_memory(c), 4);
  REQUIRE(folds.size() == 10);
  CHECK(numbers(folds[9].train) == Ids{0, 2});
  CHECK(numbers(folds[9].test) == Ids{1});
  CHECK(has(message<FormatError>([&] { (void)read_folds(in_memory(c), 2); }), "line 2 is 2, expected 0 to 1"));
  c["10fold_idx/test_idx-3.txt"] = "1\n2";
  CHECK(has(message<FormatError>([&] { (void)read_folds(in_memory(c), 4); }),
            "test_idx-3.txt: line 2 is 2, which the fold has"));
  c.erase("10fold_idx/test_idx-3.txt");
  CHECK_THROWS_AS((void)read_folds(in_memory(c), 4), FileError);
}

TEST_CASE("MUTAG has the published numbers of graphs, nodes, edges and classes") {
  const std::string dir = test::real_data("mutag");
  if (dir.empty()) return test::skip("no MUTAG: set LEVIN_DATA to a folder with mutag/");
  const GraphSamples s = tu(dir, "MUTAG");
  REQUIRE(s.graphs.size() == 188);
  CHECK(s.num_features == 7);
  CHECK(s.class_labels == Ids{-1, 1});
  std::int64_t nodes = 0, edges = 0, ones = 0;
  bool undirected = true;
  double sum = 0;
  for (const GraphSample& g : s.graphs) {
    nodes += g.graph.num_nodes();
    edges += g.graph.num_edges();
    ones += g.y.item<std::int64_t>();
    undirected = undirected && g.graph.is_undirected();
    for (const float v : g.x.to_vector<float>()) sum += double{v};
    g.graph.validate();
  }
  CHECK(nodes == 3371);
  CHECK(edges == 7442);
  CHECK(ones == 125);
  CHECK(undirected);
  CHECK(sum == 3371);
  const auto folds = tu_folds(dir, 188);
  std::vector<int> tested(188);
  for (const Fold& f : folds) {
    CHECK(f.train.numel() + f.test.numel() == 188);
    CHECK(f.test.numel() == 18);
    for (const std::int64_t g : numbers(f.test)) ++tested[static_cast<std::size_t>(g)];
  }
  CHECK(std::count(tested.begin(), tested.end(), 1) == 180);
}

}  // namespace
}  // namespace levin::gnn
