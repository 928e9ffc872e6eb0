#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "data/graph/graph_data_test.h"
#include "data/graph/planetoid.h"
#include "levin/data/graph.h"
#include "levin/error.h"
#include "levin/graph_edges.h"
#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/datasets.h"
#include "tests/skip.h"
#include "tests/temporary.h"

namespace levin::gnn {
namespace {

using namespace testing;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

template <class T>
std::string npy(const std::vector<T>& values, const Shape& shape) {
  static const test::TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  save_npy(path, from_data<T>(values, shape, Device::cpu()));
  return read_file(path, 1 << 20);
}
std::string mask(const Ids& values) {
  Tensor t = from_data<std::int64_t>(values, {static_cast<std::int64_t>(values.size())}, Device::cpu()).to(DType::b8);
  static const test::TemporaryFolder folder;
  save_npy(folder / "a.npy", t);
  return read_file(folder / "a.npy", 1 << 20);
}
std::string list(const Ids& values) { return npy<std::int64_t>(values, {static_cast<std::int64_t>(values.size())}); }

// Four nodes, a loop at 2, the edge 0 -> 1 twice.
Contents small() {
  return {{"edge_index.npy", npy<std::int64_t>({2, 1, 0, 0, 3, 2, 0, 1, 1, 0}, {2, 5})},
          {"y.npy", list({0, 1, 1, 2})},
          {"x_data.npy", npy<float>({1, 1, 2, 2, 4}, {5})},
          {"x_indices.npy", npy<std::int32_t>({0, 2, 1, 0, 1}, {5})},
          {"x_indptr.npy", npy<std::int32_t>({0, 2, 3, 3, 5}, {5})},
          {"x_shape.npy", list({4, 3})},
          {"train_idx.npy", list({3, 0})},
          {"val_mask.npy", mask({0, 1, 0, 0})},
          {"test_idx.npy", list({2})}};
}
NodeData read(const Contents& c, const PlanetoidOptions& o = {}) { return read_planetoid(in_memory(c), "small", o); }

// Row i of D^-1/2 (A + I) D^-1/2: its columns and values.
struct Propagation {
  std::vector<std::vector<std::pair<std::size_t, double>>> rows;
  explicit Propagation(const Graph& g) {
    const Csr& a = g.csr();
    const Ids crow = numbers(a.crow), col = numbers(a.col);
    const auto scale = [&](std::size_t i) { return 1 / std::sqrt(static_cast<double>(crow[i + 1] - crow[i] + 1)); };
    for (std::size_t i = 0; i + 1 < crow.size(); ++i) {
      rows.emplace_back();
      rows[i].emplace_back(i, scale(i) * scale(i));
      for (auto k = static_cast<std::size_t>(crow[i]); k < static_cast<std::size_t>(crow[i + 1]); ++k) {
        const auto j = static_cast<std::size_t>(col[k]);
        rows[i].emplace_back(j, scale(i) * scale(j));
      }
    }
  }
  std::array<double, 3> sums() const {  // entries, sum, sum of squares
    std::array<double, 3> s{};
    for (const auto& row : rows) {
      for (const auto& [j, v] : row) s[0] += 1, s[1] += v, s[2] += v * v;
    }
    return s;
  }
  std::vector<std::vector<double>> times(const std::vector<std::vector<double>>& x) const {
    std::vector<std::vector<double>> y(rows.size(), std::vector<double>(x[0].size()));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const auto& [j, v] : rows[i]) {
        for (std::size_t f = 0; f < y[i].size(); ++f) y[i][f] += v * x[j][f];
      }
    }
    return y;
  }
};

TEST_CASE("Cora has the published numbers of nodes, edges, features and classes") {
  const std::string dir = test::real_data("cora");
  if (dir.empty()) return test::skip("no Cora: set LEVIN_DATA to a folder with cora/");
  const NodeData d = planetoid(dir, "");
  CHECK(d.name == "cora");
  CHECK(d.graph.num_nodes() == 2708);
  CHECK(d.graph.num_edges() == 10556);
  CHECK(d.graph.is_undirected());
  CHECK(d.x.shape() == Shape{2708, 1433});
  const Ids degree = numbers(d.graph.in_degree()), y = numbers(d.y);
  CHECK(*std::max_element(degree.begin(), degree.end()) == 168);
  CHECK(degree[1358] == 168);
  CHECK(std::count(degree.begin(), degree.end(), 0) == 0);
  const Ids sizes{351, 217, 418, 818, 426, 298, 180};
  for (std::size_t c = 0; c < 7; ++c) CHECK(std::count(y.begin(), y.end(), c) == sizes[c]);
  CHECK(d.class_names[3] == "Neural_Networks");
  CHECK(d.num_classes == 7);
  const EdgeList edges = d.graph.edges();
  const Ids src = numbers(edges.src), dst = numbers(edges.dst);
  double same = 0;
  for (std::size_t e = 0; e < src.size(); ++e)
    same += y[static_cast<std::size_t>(src[e])] == y[static_cast<std::size_t>(dst[e])];
  CHECK(same / 10556 == doctest::Approx(.809966).epsilon(1e-6));
  CHECK(d.train.numel() == 140);
  CHECK(numbers(d.val).front() == 140);
  CHECK(d.val.numel() == 500);
  CHECK(numbers(d.test).front() == 1708);
  CHECK(numbers(d.test).back() == 2707);
  for (std::int64_t c = 0; c < 7; ++c) {
    const Ids train = numbers(d.train);
    CHECK(std::count_if(train.begin(), train.end(), [&](auto i) { return y[static_cast<std::size_t>(i)] == c; }) == 20);
  }

  const NodeData s = planetoid(dir, "", {.split = NodeSplit::full, .sparse_features = true});
  CHECK(s.sparse_x.csr.entries() == 49216);
  CHECK_FALSE(s.x.defined());
  CHECK(s.train.numel() == 1208);
  const Tensor x = row_normalize(d.x), values = row_normalize(s.sparse_x).values;
  double sum = 0, sparse_sum = 0;
  for (const float v : x.to_vector<float>()) sum += double{v};
  for (const float v : values.to_vector<float>()) sparse_sum += double{v};
  CHECK(sum == doctest::Approx(2708).epsilon(1e-6));
  CHECK(sparse_sum == doctest::Approx(2708).epsilon(1e-6));
  CHECK(row_normalize(d.x, RowNorm::l1).to_vector<float>() == x.to_vector<float>());

  const Propagation a(d.graph);
  CHECK(a.sums()[0] == 13264);
  CHECK(a.sums()[1] == doctest::Approx(2505.339271).epsilon(1e-9));
  CHECK(a.sums()[2] == doctest::Approx(619.186278).epsilon(1e-9));
  double trace = 0;
  for (std::size_t i = 0; i < a.rows.size(); ++i) trace += a.rows[i][0].second;
  CHECK(trace == doctest::Approx(745.558974).epsilon(1e-9));

  // Two layers with given weights.
  std::vector<std::vector<double>> h(2708, std::vector<double>(16));
  const Ids crow = numbers(s.sparse_x.csr.crow), col = numbers(s.sparse_x.csr.col);
  const Floats value = values.to_vector<float>();
  for (std::size_t i = 0; i < 2708; ++i) {
    for (auto k = static_cast<std::size_t>(crow[i]); k < static_cast<std::size_t>(crow[i + 1]); ++k) {
      for (std::int64_t f = 0; f < 16; ++f)
        h[i][static_cast<std::size_t>(f)] += double{value[k]} * static_cast<double>((7 * col[k] + 3 * f) % 11 - 5) / 10;
    }
  }
  h = a.times(h);
  std::vector<std::vector<double>> out(2708, std::vector<double>(7));
  for (std::size_t i = 0; i < 2708; ++i) {
    for (std::int64_t c = 0; c < 7; ++c) {
      for (std::int64_t k = 0; k < 16; ++k)
        out[i][static_cast<std::size_t>(c)] +=
            std::max(0.0, h[i][static_cast<std::size_t>(k)]) * static_cast<double>((5 * k + 2 * c) % 7 - 3) / 5;
    }
  }
  out = a.times(out);
  const double z[] = {-.054079, -.011607, .027042, -.012823, -.002618, -.032008, .086093};
  for (std::size_t c = 0; c < 7; ++c) CHECK(std::abs(out[0][c] - z[c]) < 1e-6);
  double square = 0, loss = 0;
  for (const auto& row : out) {
    for (const double v : row) square += v * v;
  }
  CHECK(std::sqrt(square) == doctest::Approx(8.007266).epsilon(1e-6));
  for (const std::int64_t i : numbers(d.train)) {
    const auto& row = out[static_cast<std::size_t>(i)];
    double total = 0;
    for (const double v : row) total += std::exp(v);
    loss += (std::log(total) - row[static_cast<std::size_t>(y[static_cast<std::size_t>(i)])]) / 140;
  }
  CHECK(loss == doctest::Approx(1.940246).epsilon(1e-6));
}

TEST_CASE("PubMed reads without features") {
  const std::string dir = test::real_data("pubmed");
  if (dir.empty()) return test::skip("no PubMed: set LEVIN_DATA to a folder with pubmed/");
  const NodeData d = planetoid(dir, "");
  CHECK(d.graph.num_nodes() == 19717);
  CHECK(d.graph.num_edges() == 88648);
  CHECK(d.graph.csr().known()->longest_row == 171);
  CHECK_FALSE(d.x.defined());
  CHECK_FALSE(d.sparse_x.defined());
  CHECK(d.train.numel() == 60);
  CHECK(d.class_names[1] == "Diabetes Mellitus Type 1");
}

TEST_CASE("the karate club is the published one") {
  const NodeData d = karate_club();
  CHECK(d.graph.num_nodes() == 34);
  CHECK(d.graph.num_edges() == 156);
  CHECK(d.graph.is_undirected());
  const Ids degree = numbers(d.graph.in_degree()), y = numbers(d.y);
  CHECK(degree[0] == 16);
  CHECK(degree[33] == 17);
  CHECK(degree[32] == 12);
  for (const auto& [c, size] : {std::pair{0, 13}, {1, 12}, {2, 4}, {3, 5}})
    CHECK(std::count(y.begin(), y.end(), c) == size);
  const Ids train = numbers(d.train);
  CHECK(train == Ids{8, 0, 24, 4});
  for (std::int64_t c = 0; c < 4; ++c) CHECK(y[static_cast<std::size_t>(train[static_cast<std::size_t>(c)])] == c);
  CHECK(d.val.numel() == 30);
  CHECK(d.test.numel() == 34);
  const Ids src = numbers(d.graph.edges().src);
  CHECK(std::is_sorted(src.begin(), src.end()));
  const Propagation a(d.graph);
  CHECK(a.sums()[1] == doctest::Approx(30.702051).epsilon(1e-7));
  CHECK(a.sums()[2] == doctest::Approx(5.875742).epsilon(1e-6));
  CHECK(a.rows[0][1].second == doctest::Approx(.076696).epsilon(1e-5));
  CHECK(d.x.to_vector<float>()[35] == 1);
  const std::string dir = test::real_data("karate");
  if (dir.empty()) return test::skip("no karate club to compare: set LEVIN_DATA to a folder with karate/");
  CHECK(numbers(load_npy(dir + "/y.npy")) == y);
  const Ids index = numbers(load_npy(dir + "/edge_index.npy"));
  Ids own = src;
  for (const std::int64_t i : numbers(d.graph.edges().dst)) own.push_back(i);
  CHECK(own == index);
}

TEST_CASE("Planetoid's arrays become a graph without loops and repeats, features and a split") {
  const NodeData d = read(small());
  CHECK(d.graph.num_nodes() == 4);
  CHECK(numbers(d.graph.csr().crow) == Ids{0, 2, 3, 3, 3});
  CHECK(numbers(d.graph.csr().col) == Ids{1, 3, 0});
  d.graph.validate();
  CHECK(d.x.to_vector<float>() == Floats{1, 0, 1, 0, 2, 0, 0, 0, 0, 2, 4, 0});
  CHECK(numbers(d.train) == Ids{3, 0});
  CHECK(numbers(d.val) == Ids{1});
  CHECK(numbers(d.test) == Ids{2});
  CHECK(d.num_classes == 3);
  CHECK(d.class_names == std::vector<std::string>{"0", "1", "2"});
  const NodeData s = read(small(), {.split = NodeSplit::full, .sparse_features = true});
  CHECK(numbers(s.train) == Ids{0, 3});
  CHECK(s.sparse_x.csr.known() != nullptr);
  CHECK(s.sparse_x.csr.known()->longest_row == 2);
  // The same matrix from a dense file.
  Contents dense = small();
  dense["x.npy"] = npy<double>({1, 0, 1, 0, 2, 0, 0, 0, 0, 2, 4, 0}, {4, 3});
  CHECK(read(dense).x.to_vector<float>() == d.x.to_vector<float>());
  const NodeData t = read(dense, {.sparse_features = true});
  CHECK(numbers(t.sparse_x.csr.col) == numbers(s.sparse_x.csr.col));
  CHECK(t.sparse_x.values.to_vector<float>() == s.sparse_x.values.to_vector<float>());
}

TEST_CASE("a random split has the wanted nodes of each class, then others") {
  Contents c = small();
  Ids y;
  for (std::int64_t i = 0; i < 300; ++i) y.push_back(i % 100 == 0 ? 2 : i % 2);
  c = {{"y.npy", list(y)}, {"edge_index.npy", npy<std::int64_t>({}, {2, 0})}};
  const PlanetoidOptions o{
      .split = NodeSplit::random, .train_per_class = 20, .num_val = 100, .num_test = 150, .seed = 4};
  const NodeData d = read(c, o), again = read(c, o);
  CHECK(numbers(d.train) == numbers(again.train));
  std::vector<int> uses(300), classes(3);
  for (const Tensor& part : {d.train, d.val, d.test}) {
    for (const std::int64_t i : numbers(part)) ++uses[static_cast<std::size_t>(i)];
  }
  for (const std::int64_t i : numbers(d.train)) ++classes[static_cast<std::size_t>(y[static_cast<std::size_t>(i)])];
  CHECK(classes == std::vector<int>{20, 20, 3});  // the third class has three
  CHECK(*std::max_element(uses.begin(), uses.end()) == 1);
  CHECK(d.val.numel() == 100);
  CHECK(d.test.numel() == 150);
  PlanetoidOptions other = o;
  other.seed = 5;
  CHECK(numbers(read(c, other).train) != numbers(d.train));
  other.num_test = 158;
  CHECK_THROWS_AS((void)read(c, other), ConfigError);
  other.num_test = -1;
  CHECK_THROWS_AS((void)read(c, other), ConfigError);
}

TEST_CASE("damaged arrays of Planetoid are refused with file and position") {
  const auto refused = [](const std::string& file, const std::string& content, const std::string& part) {
    Contents c = small();
    c[file] = content;
    const std::string said = message<FormatError>([&] { (void)read(c); });
    CAPTURE(said);
    CHECK(said.find(file) == 0);
    CHECK(has(said, part));
  };
  refused("edge_index.npy", npy<std::int64_t>({0, 1, 4, 0}, {2, 2}), "element 2 is 4, expected 0 to 3");
  refused("edge_index.npy", npy<std::int64_t>({0, -1, 1, 0}, {2, 2}), "element 1 is -1");
  refused("edge_index.npy", npy<std::int64_t>({0, 1, 2}, {3}), "has shape [3], expected [2, E]");
  refused("edge_index.npy", npy<float>({0, 1}, {2, 1}), "is f32, expected i64 or i32");
  refused("edge_index.npy", small()["edge_index.npy"].substr(0, 150), "bytes");
  refused("y.npy", list({0, 1, -1, 2}), "element 2 is -1");
  refused("y.npy", list({0, 1, 1 << 16, 2}), "element 2 is 65536");
  refused("x_data.npy", npy<float>({1, 1, NAN, 2, 4}, {5}), "element 2, is nan (f32)");
  refused("x_data.npy", npy<std::int64_t>({1, 1, 1, 2, 4}, {5}), "is i64, expected a float dtype");
  refused("x_data.npy", npy<float>({1, 1}, {2}), "has shape [2], expected [5]");
  refused("x_data.npy", npy<double>({1, 1, 1e300, 2, 4}, {5}), "element 2, is inf (f64)");
  refused("x_indices.npy", list({0, 3, 1, 0, 1}), "element 1 is 3, expected 0 to 2");
  refused("x_indices.npy", list({2, 0, 1, 0, 1}), "element 1 is 0 after 2 in row 0");
  refused("x_indptr.npy", list({0, 3, 2, 3, 5}), "element 2 is 2, expected 3 to 5");
  refused("x_indptr.npy", list({0, 2, 3, 3, 4}), "element 4 is 4, expected 5");
  refused("x_indptr.npy", list({0, 2, 3, 5}), "has shape [4]");
  refused("x_shape.npy", list({5, 3}), "says 5 rows, expected 4");
  refused("x_shape.npy", list({4, -3}), "says -3 columns");
  refused("x.npy", npy<float>({1, 2, 3}, {3, 1}), "has shape [3, 1], expected [4, F]");
  refused("x.npy", npy<float>({1, 2, INFINITY, 4}, {4, 1}), "element 2, row 2, column 0, is inf");
  refused("train_idx.npy", list({3, 0, 3}), "element 2 is 3, which an earlier one is");
  refused("test_idx.npy", list({4}), "element 0 is 4, expected 0 to 3");
  refused("val_mask.npy", list({0, 1, 0, 0}), "is i64, expected bool");
  refused("val_mask.npy", mask({0, 1, 0}), "has shape [3]");
  for (const std::string file :
       {"edge_index.npy", "y.npy", "x_indices.npy", "x_indptr.npy", "x_shape.npy", "train_idx.npy", "val_mask.npy"}) {
    Contents c = small();
    c.erase(file);
    CHECK_THROWS_AS((void)read(c), FileError);
  }
  Contents wide = small();
  wide["x_shape.npy"] = list({4, std::int64_t{1} << 40});
  CHECK_THROWS_AS((void)read(wide), OutOfMemoryError);
  CHECK(read(wide, {.sparse_features = true}).sparse_x.csr.col.dtype() == DType::i64);
  CHECK_THROWS_AS((void)planetoid("/nowhere", "cora"), FileError);
}

TEST_CASE("any damage of Planetoid's arrays is read or refused by a typed error") {
  const Contents good = small();
  for (const auto& [file, content] : good) {
    Contents c = good;
    const auto reads = [&, name = file](levin::detail::Source& source) {
      std::string& bytes = c[name];
      bytes.resize(static_cast<std::size_t>(source.size()));
      source.read(0, bytes.data(), bytes.size());
      (void)read(c, {.dense_bytes = 1 << 10});
    };
    std::size_t untyped = 0;
    for (std::size_t bit = 0; bit < content.size() * 8; ++bit) {
      std::string bad = content;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      levin::detail::MemorySource source("damaged", std::as_bytes(std::span<const char>(bad)));
      try {
        reads(source);
      } catch (const Error&) {
      } catch (...) { ++untyped; }
    }
    CHECK(untyped == 0);
  }
}

TEST_CASE("row_normalize scales rows as PyG and as Kipf did") {
  const Tensor x = from_data<float>(Floats{1, 3, 0, 0, 0.25f, 0.25f}, {3, 2}, Device::cpu());
  CHECK(row_normalize(x).to_vector<float>() == Floats{.25f, .75f, 0, 0, .25f, .25f});
  CHECK(row_normalize(x, RowNorm::l1).to_vector<float>() == Floats{.25f, .75f, 0, 0, .5f, .5f});
  const Tensor high = from_data<float>(Floats{2, 5, 3, 6}, {2, 2}, Device::cpu());
  CHECK(row_normalize(high).to_vector<float>() == Floats{0, 1, .2f, .8f});
  CHECK(row_normalize(high.to(DType::f64)).dtype() == DType::f64);
  CHECK_THROWS_AS((void)row_normalize(high.to(DType::i64)), DTypeError);
  CHECK_THROWS_AS((void)row_normalize(as_strided(high, {4}, Strides{{1}}, 0)), ShapeError);
  SparseFeatures s = read(small(), {.sparse_features = true}).sparse_x;
  CHECK(row_normalize(s).values.to_vector<float>() == Floats{.5f, .5f, 1, 2 / 6.f, 4 / 6.f});
  s.values = from_data<float>(Floats{1, -1, 2, 2, 4}, {5}, Device::cpu());
  CHECK_THROWS_AS((void)row_normalize(s), ConfigError);
  CHECK(row_normalize(s, RowNorm::l1).values.to_vector<float>()[0] == 0);
  CHECK_THROWS_AS((void)row_normalize(SparseFeatures{}), ShapeError);
  // A matrix without zeros loses its least value, as the dense one does.
  const SparseFeatures full{.csr = {.crow = tensor<std::int64_t>({0, 2, 4}, Device::cpu()),
                                    .col = tensor<std::int64_t>({0, 1, 0, 1}, Device::cpu()),
                                    .cols = 2},
                            .values = from_data<float>(Floats{2, 5, 3, 6}, {4}, Device::cpu())};
  CHECK(row_normalize(full).values.to_vector<float>() == row_normalize(high).to_vector<float>());
}

TEST_CASE("one_hot_degree counts out-edges") {
  const Graph g = Graph::from_coo(
      {.src = tensor<std::int64_t>({0, 0, 2}, Device::cpu()), .dst = tensor<std::int64_t>({1, 2, 1}, Device::cpu())});
  CHECK(one_hot_degree(g, 2).to_vector<float>() == Floats{0, 0, 1, 1, 0, 0, 0, 1, 0});
  CHECK(has(message<IndexError>([&] { (void)one_hot_degree(g, 1); }), "node 0 has 2 out-edges, expected at most 1"));
  CHECK_THROWS_AS((void)one_hot_degree(g, -1), ConfigError);
}

}  // namespace
}  // namespace levin::gnn
