// A graph with features, labels and splits in one file, which all processes of a machine share through the page cache:
// their memory counts once.
//
//   gnn::save_graph("products.graph", nodes);                          // once
//   gnn::NodeData shared = gnn::attach_graph("products.graph");        // in each process: no copy, no pass over it
//   gnn::NeighborLoader loader({shared.graph, {.fanouts = {15, 10}}}, {.x = shared.x, .y = shared.y});
#pragma once

#include <string>

#include "levin/data/graph.h"

namespace levin::gnn {

// Writes a graph on cpu with what its nodes have. `path` then holds all or what it held before. Throws FileError where
// the system refuses, DataError for features, y and parts that do not fit the graph, StateError for a pattern that was
// written after it was checked. Bytes: data/store/layout.h.
LEVIN_API void save_graph(const std::string& path, const NodeData& nodes);
// The graph of such a file as read-only views. Compares every tensor with its hash and examines the pattern: the cost
// of reading the file. Throws FileError, FormatError for other content, IndexError for a pattern that is not legal. A
// file that another program cuts short while it is mapped ends the process by SIGBUS: replace it by renaming.
[[nodiscard]] LEVIN_API NodeData open_graph(const std::string& path);
// The same in constant time: nothing but the file's header and the shapes of its tensors is examined. For a file that
// open_graph or save_graph of the same job vouches for: a damaged one makes ops read anywhere.
[[nodiscard]] LEVIN_API NodeData attach_graph(const std::string& path);

}  // namespace levin::gnn
