// Reader of Planetoid's arrays from any files: tests pass damaged bytes in memory.
#pragma once

#include "data/graph/files.h"
#include "levin/data/graph.h"

namespace levin::gnn {

[[nodiscard]] NodeData read_planetoid(const Files& files, const std::string& name, const PlanetoidOptions& options);

// The edges without loops and repeats, by destination. `list` is checked.
[[nodiscard]] Graph simple_graph(const char* op, const EdgeList& list);
[[nodiscard]] std::vector<std::string> numbered_classes(std::int64_t classes);

}  // namespace levin::gnn
