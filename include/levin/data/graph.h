// Graphs to learn from: citation graphs (Planetoid), collections of small graphs (TU), Zachary's karate club, and
// generated ones up to 10^8 edges.
//
//   gnn::NodeData cora = gnn::planetoid("datasets", "cora");
//   Tensor x = gnn::row_normalize(cora.x);
//   Tensor y = nll_loss(index_select(net(cora.graph, x), 0, cora.train), index_select(cora.y, 0, cora.train));
//
// Readers check a file before they return anything of it, and throw FileError for one that is absent or cannot be read,
// FormatError with file, position, actual and expected value for other content than expected. All tensors are on cpu.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/graph.h"

namespace levin::gnn {

// ---- One graph whose nodes have labels

// A matrix of features that are mostly 0: row i is node i.
struct SparseFeatures {
  Csr csr{};        // checked, ascending; undefined tensors where there is no such matrix
  Tensor values{};  // f32 [entries]
  [[nodiscard]] bool defined() const { return values.defined(); }
};
// A graph with features and classes of its nodes, and a split of them.
struct NodeData {
  std::string name{};
  Graph graph;
  Tensor x{};                     // f32 [N, F], or undefined
  SparseFeatures sparse_x{};      // instead of x, where the options ask for it
  Tensor y{};                     // i64 [N], 0 to num_classes - 1
  Tensor train{}, val{}, test{};  // i64, nodes
  std::int64_t num_classes = 0;
  std::vector<std::string> class_names{};  // by class; "0", "1", ... where the data set names none
};

// Which nodes are for training, validation and test.
enum class NodeSplit : std::uint8_t {
  files,   // those of the files: for Planetoid the public split
  full,    // val and test of the files, train all others (Chen et al., FastGCN, 2018)
  random,  // `train_per_class` of each class, or all where it has fewer; of the rest `num_val`, then `num_test`
};
struct PlanetoidOptions {
  NodeSplit split = NodeSplit::files;
  std::int64_t train_per_class = 20, num_val = 500, num_test = 1000;  // for NodeSplit::random
  std::uint64_t seed = 0;                                             // for NodeSplit::random
  bool sparse_features = false;                                       // sparse_x instead of x
  std::int64_t dense_bytes = std::int64_t{4} << 30;                   // the largest x that is made of a sparse one
};
// The arrays `dir`/`name`/*.npy (`dir`/*.npy where the name is empty): edge_index i64 or i32 [2, E], sources then
// destinations; y i64 or i32 [N]; features as x, a float dtype, [N, F], or x_data, x_indices, x_indptr and x_shape
// (scipy.sparse.csr_matrix), or none of them, and then x is undefined. Splits are {train,val,test}_{idx,mask}.npy:
// distinct nodes i64 or i32, or bool [N]. Loops are removed and edges coalesced by destination, directions are kept.
//
// Throws FormatError also for an infinity or NaN among the features, for columns that do not ascend in a row and for a
// node twice in a part of the split, ConfigError for a random split of more nodes than there are, OutOfMemoryError for
// a dense x beyond `dense_bytes`. Yang, Cohen, Salakhutdinov: "Revisiting semi-supervised learning with graph
// embeddings", 2016.
[[nodiscard]] LEVIN_API NodeData planetoid(const std::string& dir, const std::string& name,
                                           const PlanetoidOptions& options = {});
// Zachary's karate club: 34 nodes, 156 edges, x the identity, four communities as classes (modularity clustering,
// as in PyTorch Geometric), one node of each for training; val and test are the others and all nodes. W. Zachary: "An
// information flow model for conflict and fission in small groups", 1977.
[[nodiscard]] LEVIN_API NodeData karate_club();

// How row_normalize scales a row.
enum class RowNorm : std::uint8_t {
  pyg,  // x - min(x), of the whole matrix, then each row / max(sum, 1): torch_geometric.transforms.NormalizeFeatures
  l1,   // each row / its sum; rows whose sum is 0 become 0 (Kipf and Welling, 2017)
};
// x [N, F] of a float dtype on cpu, its rows scaled; sums in f64. Throws DTypeError, ShapeError and DeviceError for
// other tensors.
[[nodiscard]] LEVIN_API Tensor row_normalize(const Tensor& x, RowNorm norm = RowNorm::pyg);
// The same matrix with other values. Throws ConfigError for RowNorm::pyg where the least value is negative, which would
// fill the zeros.
[[nodiscard]] LEVIN_API SparseFeatures row_normalize(const SparseFeatures& x, RowNorm norm = RowNorm::pyg);
// f32 [N, max_degree + 1]: 1 in the column of the node's number of out-edges. Throws IndexError for a larger degree,
// with the node. torch_geometric.transforms.OneHotDegree.
[[nodiscard]] LEVIN_API Tensor one_hot_degree(const Graph& graph, std::int64_t max_degree);

// ---- Many small graphs with a label each

struct GraphSample {
  Graph graph;  // with attr where the edges have attributes
  Tensor x{};   // f32 [N, F], or undefined
  Tensor y{};   // i64 []
};
struct GraphSamples {
  std::string name{};
  std::vector<GraphSample> graphs{};
  std::int64_t num_classes = 0, num_features = 0;
  std::vector<std::int64_t> class_labels{};  // the label in the files of each class, ascending
};
// Features of nodes that have no labels and no attributes that are used.
enum class TuFeatures : std::uint8_t {
  degree,  // one_hot_degree, with the largest degree of all graphs
  ones,    // a column of 1
  none,    // x is undefined
};
struct TuOptions {
  bool use_node_attr = false;  // x = [attributes, one-hot labels]; otherwise the labels alone
  bool use_edge_attr = false;  // the same for the edges' attr
  TuFeatures features = TuFeatures::degree;
  std::int64_t feature_bytes = std::int64_t{4} << 30;  // the largest size of all x, and of all attr
};
// Graphs in the TU format, `dir`/`name`/`name`_A.txt and so on (`dir`/`name`_A.txt where that folder is absent): A,
// graph_indicator and graph_labels; optional node_labels, node_attributes, edge_labels and edge_attributes. A graph has
// the nodes that graph_indicator gives it and exists where graph_labels has a line for it, also without nodes or edges.
// Labels of graphs become 0, 1, ... in ascending order, a column of labels of nodes or edges is one-hot from its least
// to its largest value. Loops are removed, edges coalesced with the sums of their attributes. The format:
// https://chrsmrrs.github.io/datasets/docs/format
//
// Throws FormatError for text that is no number, an infinity or NaN, numbers of columns or lines that differ, a node
// out of range, an edge between two graphs, an indicator that falls; OutOfMemoryError for features beyond
// `feature_bytes`.
[[nodiscard]] LEVIN_API GraphSamples tu(const std::string& dir, const std::string& name, const TuOptions& options = {});
// A part of a cross-validation: graphs, i64.
struct Fold {
  Tensor train{}, test{};
};
// The ten folds of `dir`/10fold_idx/{train,test}_idx-K.txt, K = 1 to 10: one graph a line, from 0. Throws FormatError
// for a graph out of range or given twice in a fold.
[[nodiscard]] LEVIN_API std::vector<Fold> tu_folds(const std::string& dir, std::int64_t num_graphs);

// ---- Generated graphs: functions of their options alone, the same bits for any number of threads

// R-MAT, a graph with hubs for measurements: each edge descends `scale` levels of the adjacency matrix's quadrants.
// Chakrabarti, Zhan, Faloutsos: "R-MAT: a recursive model for graph mining", 2004.
struct RmatOptions {
  int scale = 16;                       // 2^scale nodes, 1 to 30
  std::int64_t num_edges = -1;          // drawn; -1: 16 a node; at most 2^30 - 1
  double a = 0.57, b = 0.19, c = 0.19;  // of the quadrants (0, 0), (0, 1), (1, 0) of (source, destination)
  std::uint64_t scramble = 0;           // odd: ids times it modulo 2^scale, so that hubs are not the first ids
  std::uint64_t seed = 1;
};
// The edges as drawn, with loops and repeats, i32: level l of edge e takes word l % 4 of philox({l / 4, e, e >> 32,
// 0x524d4154}, seed). Throws ConfigError for options out of range.
[[nodiscard]] LEVIN_API EdgeList rmat_edges(const RmatOptions& options);
// Without loops, mirrored and coalesced.
[[nodiscard]] LEVIN_API Graph rmat(const RmatOptions& options);

// A planted partition ("stochastic block model"), for accuracy at any size: classes show in the edges, and faintly in
// the features. Node i has class i % classes and draws `slots` edges, each to its own class with probability
// `homophily`, otherwise to a random other one. Defaults make the instance SBM-1M.
struct PlantedPartitionOptions {
  std::int64_t num_nodes = std::int64_t{1} << 20;  // num_classes to 2^30
  std::int64_t num_classes = 16;
  std::int64_t slots = 12;  // edges that a node draws
  double homophily = 0.6;
  bool skewed = true;                          // degrees by a power law (exponent about 3), otherwise flat
  std::int64_t num_features = 64;              // 0: x is undefined
  double train = 0.1, val = 0.02, test = 0.5;  // parts of the nodes, random
  std::uint64_t seed = 1;
};
// The edges as drawn, with loops and repeats, i32: edge i * slots + s is slot s of node i, from words 0 to 2 of
// philox({s, i, i >> 32, 0x53424d45}, seed). Throws ConfigError for options out of range.
[[nodiscard]] LEVIN_API EdgeList planted_partition_edges(const PlantedPartitionOptions& options);
// The graph without loops, mirrored and coalesced, with features x[i] = mean of the class + normal noise of deviation
// 1, where the mean's entries are 1 or -1 over sqrt(num_features).
[[nodiscard]] LEVIN_API NodeData planted_partition(const PlantedPartitionOptions& options = {});

}  // namespace levin::gnn
