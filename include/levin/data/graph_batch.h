// Batches of small graphs: one graph whose parts do not touch.
//
//   gnn::GraphBatch b = gnn::GraphBatch::collate(samples);
//   Tensor logits = head(gnn::global_pool(net(b.x, b.graph), b.ptr));
//
// A loader of graphs, whose batches move to a device as any others do:
//
//   data::DataLoader loader(gnn::graph_dataset(samples), {.batch_size = 32, .shuffle = true});
//   for (const data::Batch& fields : loader) {
//     const gnn::GraphFields b = gnn::GraphFields::of(fields.fields);
//     Tensor logits = head(gnn::global_pool(net(b.x, b.block), b.ptr));
//   }
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "levin/data.h"
#include "levin/data/graph.h"
#include "levin/graph.h"

namespace levin::gnn {

// The union of graphs: the nodes of graph g are ptr[g] .. ptr[g + 1), its edges follow those of the graphs before it,
// also by id. Graphs without nodes and without edges stay in the batch.
struct LEVIN_API GraphBatch {
  Graph graph;
  Tensor x{};      // [N, ...], or undefined
  Tensor y{};      // one a graph: [B, ...], or undefined
  Tensor ptr{};    // i64 [B + 1]
  Tensor batch{};  // i64 [N], the graph of each node
  [[nodiscard]] std::int64_t size() const { return ptr.numel() - 1; }

  // Edges are joined in their order, without a sort; y are stacked. Throws DataError for bipartite graphs, and with the
  // number of the graph where x, y, weights or attributes are there for some graphs only or differ in dtype or in size,
  // or x has other rows than the graph has nodes; DeviceError for tensors that are not on cpu.
  [[nodiscard]] static GraphBatch collate(std::span<const GraphSample> samples);
  // The samples, on cpu, with memory of their own.
  [[nodiscard]] std::vector<GraphSample> unbatch() const;
  [[nodiscard]] GraphBatch to(Device device) const;
};

// Samples as a dataset whose batches are joined graphs: sample i is a batch of one. Weights and attributes of edges are
// left out. Throws as collate at once for samples that do not fit each other.
[[nodiscard]] LEVIN_API data::DatasetRef graph_dataset(std::vector<GraphSample> samples);
// What a batch of graph_dataset holds.
struct LEVIN_API GraphFields {
  Block block{};    // all nodes are sources and destinations
  Tensor ptr{};     // i64 [B + 1]
  Tensor batch{};   // i64 [N]
  Tensor x{}, y{};  // as in GraphBatch; empty tensors [0] where samples have none
  // On cpu the pattern is checked. Throws DataError for another number of fields.
  [[nodiscard]] static GraphFields of(std::span<const Tensor> fields);
};

}  // namespace levin::gnn
