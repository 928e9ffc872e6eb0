// Readers of the TU format from any files: tests pass damaged text in memory.
#pragma once

#include <string>
#include <vector>

#include "data/graph/files.h"
#include "levin/data/graph.h"

namespace levin::gnn {

[[nodiscard]] GraphSamples read_tu(const Files& files, const std::string& name, const TuOptions& options);
[[nodiscard]] std::vector<Fold> read_folds(const Files& files, std::int64_t num_graphs);

}  // namespace levin::gnn
