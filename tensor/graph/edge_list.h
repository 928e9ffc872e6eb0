// Checks of edge lists.
#pragma once

#include <cstdint>
#include <utility>

#include "levin/graph.h"

namespace levin::gnn::detail {

// The number of edges. Throws ShapeError, DTypeError and DeviceError `op: ...` for tensors that do not fit each other.
std::int64_t check_edges(const char* op, const EdgeList& edges);
// The numbers of source and destination nodes of a checked, contiguous list. Throws ConfigError, ShapeError, and
// IndexError for a negative node where the number is taken from the edges.
std::pair<std::int64_t, std::int64_t> count_nodes(const char* op, const EdgeList& edges, bool bipartite);

}  // namespace levin::gnn::detail
