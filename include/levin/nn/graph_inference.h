// Outputs of graph layers for all nodes of a graph that is larger than a device's memory. Hamilton et al., 2017, and
// PyTorch Geometric's BasicGNN.inference evaluate in this order.
//
//   net.eval();
//   Tensor y = gnn::layerwise_inference(net, graph, x, {.batch_size = 4096});   // x, y and the graph on cpu
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "levin/function.h"
#include "levin/nn/graph.h"

namespace levin::gnn {

// A layer, with what stands between it and the next one: x [sources, ...] -> [destinations, ...] of the block.
//
//   gnn::BlockLayer first = [&](const Tensor& x, const gnn::Block& on) { return relu(net.conv1(x, on)); };
using BlockLayer = Function<Tensor(const Tensor& x, const Block& on)>;

// How the nodes are shared out.
struct LayerwiseOptions {
  std::int64_t batch_size = 8192;  // destinations of a block, which has all their in-neighbours, too
  std::optional<Device> device{};  // where the layers compute; default: cpu, and for a stack its parameters' device
};

// The output [N, ...] of a sequence of layers for all nodes, on cpu: a layer sees x [N, ...], or the output of the
// layer before, for all nodes before the next layer starts. The values are those of the layers on the whole graph, to
// rounding. The device holds the sources, edges and outputs of one block; cpu holds two layers' outputs. Each layer
// computes each node once, in O(N + E), whereas a sampled neighbourhood of all hops repeats nodes.
//
// Layer calls get the destinations begin .. begin + batch_size in this order: those nodes are the first sources, then
// come their other in-neighbours by first occurrence. `on` lies on the device, without a transpose, but on.edge_ids
// (i64) on cpu, where the values of edges are: index_select(graph.weight(), 0, on.edge_ids).to(device). Nothing is
// recorded for backward. Waits for the device once a block. A graph without nodes gets one call with an empty block.
//
// The layers must not depend on other rows: call eval() first. Throws ConfigError for no layers, an empty one and a
// batch_size below 1; DeviceError for a graph or x on another device than cpu; ShapeError for a bipartite graph, x of
// another number of rows and a layer that returns other rows than its destinations or a shape that changes from block
// to block; DTypeError for a dtype that changes; and what layers throw.
[[nodiscard]] LEVIN_API Tensor layerwise_inference(std::span<const BlockLayer> layers, const Graph& graph,
                                                   const Tensor& x, const LayerwiseOptions& options = {});

// The output of a stack: net(x, graph), or net(x, graph, edge_weight) for GCN, whose coefficients are those of the
// whole graph. With jk cpu holds the outputs of all layers. Throws StateError for a stack in training, ConfigError for
// edge_weight without use, and as above.
template <class Conv>
[[nodiscard]] LEVIN_API Tensor layerwise_inference(const Stack<Conv>& net, const Graph& graph, const Tensor& x,
                                                   const LayerwiseOptions& options = {},
                                                   const Tensor& edge_weight = {});

}  // namespace levin::gnn
