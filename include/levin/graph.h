// Graphs as tensors: sparse patterns in compressed rows (Csr), and a graph's edges grouped by destination and by source
// (gnn::Graph). Ops on them: levin/sparse.h. Layers: levin/nn/graph.h. Sampling and data sets: levin/data/graph.h.
//
//   gnn::Graph g = gnn::Graph::from_coo({.src = src, .dst = dst, .num_src = n, .num_dst = n});
//   Tensor y = spmm(g.csr(), {}, x, Reduce::mean);   // the mean over the in-neighbours of each node
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "levin/tensor.h"

namespace levin {

struct Csr;

// What an examination of a pattern found. As long as nothing writes into the pattern's tensors, ops that get it examine
// nothing again, on any device.
class LEVIN_API CsrFacts {
 public:
  // Examines a pattern on cpu, with its transpose where it has one. Throws IndexError with the position for offsets
  // that do not rise from 0 to the number of entries, for a column, an edge or a transposed row out of range and for an
  // edge that is given twice; DTypeError, ShapeError and DeviceError for tensors that do not fit each other.
  explicit CsrFacts(const Csr& a);
  // The same facts of `copy`, whose tensors have the same content.
  CsrFacts(const CsrFacts& facts, const Csr& copy);
  // The facts of a pattern that its maker has made legal: nothing is examined. After a wrong promise ops read and write
  // anywhere.
  struct Promise {
    std::int64_t longest_row = 0, longest_column = -1;
    bool ascending = false;
  };
  CsrFacts(const Csr& a, const Promise& promise);
  // Whether the tensors of `a` are the examined ones, unwritten since.
  [[nodiscard]] bool hold(const Csr& a) const;
  std::int64_t longest_row = 0;     // entries of the longest row
  std::int64_t longest_column = 0;  // of the longest column; -1 where the pattern has no transpose
  bool ascending = false;  // whether col ascends in each row, and edge among equal ones; so do t_col and t_edge

 private:
  void keep(const Csr& a);
  std::array<Tensor, 6> parts_{};  // handles keep the memory, so no other tensor gets the same
  std::array<std::uint32_t, 6> version_{};
  std::int64_t cols_ = 0;
};

// The pattern of a sparse matrix [rows, cols]: entries k in [crow[i], crow[i + 1]) belong to row i and stand in column
// col[k]; entries may repeat. Entry k has the value values[edge[k]], or values[k] where edge is undefined. For messages
// along edges rows are destinations and columns are sources. crow is i64; col, edge and their transposed ones are all
// i32 or all i64.
struct LEVIN_API Csr {
  Tensor crow{};  // [rows + 1]
  Tensor col{};   // [E]
  Tensor edge{};  // [E], a permutation; or undefined
  std::int64_t cols = 0;
  // crow, col and edge of the transposed matrix, or undefined.
  Tensor t_crow{}, t_col{}, t_edge{};
  std::shared_ptr<const CsrFacts> facts{};  // of checked(), or null
  [[nodiscard]] std::int64_t rows() const { return crow.numel() - 1; }
  [[nodiscard]] std::int64_t entries() const { return col.numel(); }
  [[nodiscard]] const CsrFacts* known() const { return facts && facts->hold(*this) ? facts.get() : nullptr; }
  // The pattern on `device`, with its facts.
  [[nodiscard]] Csr to(Device device) const;
};
// `a`, a pattern on cpu, with its facts. Throws as CsrFacts does.
[[nodiscard]] LEVIN_API Csr checked(Csr a);

}  // namespace levin

// Learning on graphs. Edge e goes from src[e] to dst[e]; messages flow from source to destination.
namespace levin::gnn {

// A list of edges; the position of an edge in it is the edge's id.
struct EdgeList {
  Tensor src{}, dst{};                      // i64 or i32 [E]
  Tensor weight{};                          // [E] of a float dtype, or undefined
  Tensor attr{};                            // [E, D], or undefined
  std::int64_t num_src = -1, num_dst = -1;  // nodes; -1: the largest id and one, of both sides
};

struct GraphOptions {
  bool bipartite = false;  // sources and destinations are different nodes; otherwise num_src equals num_dst
  bool transposed = true;  // keep the edges by source, too, which backward reads
  bool trusted = false;    // from_csr examines nothing where the pattern's facts are known and say `ascending`
};

// A graph that does not change: multigraphs, self-loops, isolated nodes, no nodes and no edges are legal. Copies share
// the memory.
//
// Edges are kept by destination: in csr() row i has the edges into node i, ascending by source, equal ones by id.
// Tensors with a value for each edge are in the order of csr() where ops work on them, and by id where users give them:
// edge_ids() is the way between.
class LEVIN_API Graph {
 public:
  // The edges of a list, on cpu, by a stable counting sort: O(nodes + edges). Indices of the graph are i32 where nodes
  // and edges are fewer than 2^31, otherwise i64. Throws DTypeError, ShapeError and DeviceError for tensors that do not
  // fit each other, IndexError with the edge for a node out of range, ConfigError for two numbers of nodes without
  // `bipartite`, and ShapeError for more than 2^40 - 1 nodes.
  [[nodiscard]] static Graph from_coo(const EdgeList& edges, GraphOptions options = {});
  // A graph of edges that are sorted by destination, source, id: crow and col of `a`, with the ids of its entries, a
  // permutation, or undefined for 0, 1, ... Keeps the tensors, also those of the transpose, without a copy. Throws as
  // checked(), IndexError with the position for a row whose columns or ids fall, ConfigError for `a` with `edge` and
  // for other numbers of rows and columns without `bipartite`.
  [[nodiscard]] static Graph from_csr(Csr a, GraphOptions options = {}, Tensor weight = {}, Tensor attr = {},
                                      Tensor edge_ids = {});

  [[nodiscard]] std::int64_t num_nodes() const { return num_dst(); }
  [[nodiscard]] std::int64_t num_src() const;
  [[nodiscard]] std::int64_t num_dst() const;
  [[nodiscard]] std::int64_t num_edges() const;
  [[nodiscard]] bool is_bipartite() const;
  [[nodiscard]] Device device() const;
  // The edges by destination, with those by source as the transpose, checked. `edge` is undefined and t_edge holds
  // positions in this order: values [E] beside it are in this order.
  [[nodiscard]] const Csr& csr() const;
  // The id of each edge of csr(): values_in_order = index_select(values_by_id, 0, edge_ids()). Undefined where the
  // edges were given in that order.
  [[nodiscard]] const Tensor& edge_ids() const;
  [[nodiscard]] const Tensor& weight() const;  // by id, or undefined
  [[nodiscard]] const Tensor& attr() const;    // by id, or undefined
  [[nodiscard]] EdgeList edges() const;        // by id, in the graph's index dtype; waits for a device
  [[nodiscard]] Tensor in_degree() const;      // i64 [num_dst]
  [[nodiscard]] Tensor out_degree() const;     // i64 [num_src]
  // Whether the edges with their weights equal their mirror as a multiset: a <- b with weight w as often as b <- a. The
  // answer is kept. False for a bipartite graph. NaN equals NaN.
  [[nodiscard]] bool is_undirected() const;
  // Examines every invariant of the tensors anew, on any device. Throws as from_csr.
  void validate() const;
  [[nodiscard]] Graph to(Device device) const;
  // Equal for two handles on the same graph, also on different devices.
  [[nodiscard]] bool is_same(const Graph& other) const;

 private:
  struct Data;
  explicit Graph(std::shared_ptr<const Data> data);
  std::shared_ptr<const Data> data_;
};

// The edges of one layer in a sampled neighbourhood: the destinations are the first csr.rows() of the csr.cols sources.
struct Block {
  Csr csr{};          // checked
  Tensor edge_ids{};  // the graph's id of each entry, or undefined
};

}  // namespace levin::gnn
