// Lists of edges, changed: loops removed and added, parallel edges joined, directions mirrored. Each function returns a
// list of its own, on cpu, with the maps between the ids of both lists. Weights and attributes follow their edges,
// without a gradient; sums of floats are made in f64, in the order of the ids.
//
// All throw as Graph::from_coo for a list that fits no graph. The result names its numbers of nodes.
#pragma once

#include <cstdint>
#include <optional>

#include "levin/graph.h"

namespace levin::gnn {

struct ChangedEdges {
  EdgeList edges{};
  Tensor old_id{};  // i64, one a new edge: the id in the given list, the first of joined edges; -1 for an added loop
  Tensor new_id{};  // i64, one a given edge: the id in `edges`; -1 for a removed one
};

// How values of several edges become one. mean throws DTypeError for integers and bools, sum for bools.
enum class EdgeReduce : std::uint8_t { sum, mean, min, max, first };
enum class EdgeOrder : std::uint8_t {
  by_dst,  // by destination, then source: the order of Graph::csr()
  by_src,  // by source, then destination
};

// Values of added loops.
struct LoopFill {
  double weight = 1;
  // Attributes: the reduction of those of the edges that arrive at the node, 0 where none does; nullopt: `value`.
  std::optional<EdgeReduce> attr = EdgeReduce::mean;
  double value = 0;
};

// The edges from a node to another, in their order. torch_geometric.utils.remove_self_loops.
[[nodiscard]] LEVIN_API ChangedEdges remove_self_loops(const EdgeList& edges);
// The edges, then a loop for each node i < min(num_src, num_dst), also where the node has one. A list without weights
// gets weights of 1, f32, where fill.weight is not 1. torch_geometric.utils.add_self_loops.
[[nodiscard]] LEVIN_API ChangedEdges add_self_loops(const EdgeList& edges, LoopFill fill = {});
// The edges without loops, then one loop for each node i < min(num_src, num_dst): the last one that the node has, with
// its weight and attributes, else one of `fill`. In a list without weights all loops weigh fill.weight.
// torch_geometric.utils.add_remaining_self_loops.
[[nodiscard]] LEVIN_API ChangedEdges add_remaining_self_loops(const EdgeList& edges, LoopFill fill = {});
// One edge for all edges of the same source and destination, sorted. Throws ConfigError for a list with weights or
// attributes and no `reduce`. torch_geometric.utils.coalesce.
[[nodiscard]] LEVIN_API ChangedEdges coalesce(const EdgeList& edges, std::optional<EdgeReduce> reduce = {},
                                              EdgeOrder order = EdgeOrder::by_dst);
// The edges and their mirrors, coalesced by destination. Loops are not mirrored, so `sum` does not double them; an edge
// that is there in both directions is joined with its mirror. Throws ConfigError as coalesce does, and for two numbers
// of nodes. torch_geometric.utils.to_undirected, which mirrors loops.
[[nodiscard]] LEVIN_API ChangedEdges to_undirected(const EdgeList& edges, std::optional<EdgeReduce> reduce = {});

}  // namespace levin::gnn
