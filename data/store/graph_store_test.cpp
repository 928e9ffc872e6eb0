#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "levin/data/graph_store.h"
#include "levin/data/neighbor.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "levin/serialize.h"
#include "levin/sparse.h"
#include "tests/temporary.h"

using namespace levin;
using namespace levin::gnn;

namespace {

std::vector<std::int64_t> values(const Tensor& t) { return t.to(DType::i64).to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("a graph in a file is the graph that was saved, opened or attached, and read-only") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "graph";
  for (const NodeData& saved : {karate_club(), planted_partition({.num_nodes = 2000, .num_features = 8})}) {
    save_graph(path, saved);
    const std::vector<std::int64_t> seeds{3, 30, 7};
    const NeighborSamplerOptions options{.fanouts = {4, 3}, .seed = 5};
    const SampledSubgraph expected = NeighborSampler(saved.graph, options).sample(seeds, 1, 2);
    for (const NodeData& found : {open_graph(path), attach_graph(path)}) {
      CHECK(found.name == saved.name);
      CHECK(found.num_classes == saved.num_classes);
      CHECK(values(found.graph.csr().crow) == values(saved.graph.csr().crow));
      CHECK(values(found.graph.csr().col) == values(saved.graph.csr().col));
      CHECK(found.graph.csr().t_crow.defined() == saved.graph.csr().t_crow.defined());
      CHECK_NOTHROW(found.graph.validate());
      CHECK(found.graph.csr().known()->longest_row == saved.graph.csr().known()->longest_row);
      CHECK(values(found.y) == values(saved.y));
      CHECK(values(found.train) == values(saved.train));
      CHECK(values(found.test) == values(saved.test));
      CHECK(found.x.to_vector<float>() == saved.x.to_vector<float>());
      const SampledSubgraph s = NeighborSampler(found.graph, options).sample(seeds, 1, 2);
      CHECK(values(s.n_id) == values(expected.n_id));
      CHECK(values(s.e_id) == values(expected.e_id));
      Tensor x = found.x;
      CHECK_THROWS_AS(fill_(x, 0), StateError);
    }
  }
}

TEST_CASE("a graph file keeps sparse features, with their transpose, and names of classes") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "graph";
  NodeData saved = karate_club();
  const std::int64_t n = saved.graph.num_nodes();
  saved.x = {};
  saved.class_names = {"Mr. Hi", "", "Officer", "another"};
  saved.class_names.resize(static_cast<std::size_t>(saved.num_classes), "more");
  const Tensor rows = arange(0, n + 1, 1, Device::cpu()), one_each = arange(0, n, 1, Device::cpu());
  saved.sparse_x = {.csr = checked(with_transpose({.crow = rows, .col = one_each, .cols = n})),
                    .values = arange(0, n, 1, Device::cpu()).to(DType::f32)};
  save_graph(path, saved);
  for (const NodeData& found : {open_graph(path), attach_graph(path)}) {
    CHECK(found.class_names == saved.class_names);
    CHECK_FALSE(found.x.defined());
    REQUIRE(found.sparse_x.defined());
    CHECK(found.sparse_x.values.to_vector<float>() == saved.sparse_x.values.to_vector<float>());
    CHECK(values(found.sparse_x.csr.col) == values(one_each));
    CHECK(values(found.sparse_x.csr.t_edge) == values(saved.sparse_x.csr.t_edge));
    REQUIRE(found.sparse_x.csr.known());
    CHECK(found.sparse_x.csr.known()->longest_column == 1);
    const Tensor dense = eye(n, n, Device::cpu());
    CHECK(spmm(found.sparse_x.csr, found.sparse_x.values, dense).to_vector<float>() ==
          spmm(saved.sparse_x.csr, saved.sparse_x.values, dense).to_vector<float>());
  }
}

TEST_CASE("a damaged graph file, another store and an absent file are refused by name") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "graph";
  save_graph(path, karate_club());
  const std::string good = read_file(path, 1 << 20);
  // One byte of each page: header and table, then a section.
  for (std::size_t at = 4; at < good.size(); at += 4096) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(good[at] ^ 1));
    file.close();
    const bool is_data = at > 4096;
    if (is_data)
      CHECK_THROWS_WITH_AS((void)open_graph(path), doctest::Contains("damaged"), FormatError);
    else
      CHECK_THROWS_AS((void)open_graph(path), FormatError);
    std::ofstream(path, std::ios::binary) << good;
  }
  CHECK_NOTHROW((void)open_graph(path));
  std::filesystem::resize_file(path, good.size() - 1);
  CHECK_THROWS_AS((void)attach_graph(path), FormatError);
  CHECK_THROWS_AS((void)open_graph(folder / "absent"), FileError);
  NodeData sparse = karate_club();
  sparse.x = {};
  sparse.sparse_x = {.csr = checked(with_transpose(
                         {.crow = arange(0, 4, 1, Device::cpu()), .col = arange(0, 3, 1, Device::cpu()), .cols = 3})),
                     .values = ones({3}, Device::cpu())};
  CHECK_THROWS_WITH_AS(save_graph(path, sparse), "save_graph: sparse_x has 3 rows, expected 34, one a node", DataError);
}

TEST_CASE("features, classes and parts that do not fit the graph are refused before a file is written") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "graph";
  const auto refuses = [&](auto&& change, const char* what) {
    NodeData nodes = karate_club();
    change(nodes);
    CHECK_THROWS_WITH_AS(save_graph(path, nodes), doctest::Contains(what), DataError);
    CHECK_FALSE(std::filesystem::exists(path));
  };
  refuses([](NodeData& n) { n.x = empty({33, 2}, Device::cpu()); }, "x is f32 [33, 2], expected floats [34, F]");
  refuses([](NodeData& n) { n.y = n.y.to(DType::i32); }, "y is i32 [34], expected i64");
  refuses([](NodeData& n) { n.num_classes = 3; }, "expected 0 to 2");
  refuses([](NodeData& n) { n.num_classes = -1; }, "num_classes is -1");
  refuses([](NodeData& n) { n.train = tensor<std::int64_t>({34}, Device::cpu()); }, "train[0] is 34, expected 0 to 33");
}
