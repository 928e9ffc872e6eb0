// Neighbour sampling: batches of a large graph as small graphs, by hops from seed nodes (Hamilton et al., GraphSAGE,
// 2017).
//
//   gnn::NeighborSampler sampler(pattern, {.fanouts = {15, 10}, .seed = 1});
//   gnn::SampledSubgraph s = sampler.sample(seeds, epoch, batch);
//   Tensor x = index_select(features, 0, s.n_id);
//   for (int l = 0; l < s.hops(); ++l) x = layers[l](s.block(l), x);   // after the last: one row a seed
//
// A sample is a function of (graph, seeds, fanouts, seed, epoch, batch) alone: threads and workers change no bit.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "levin/data.h"
#include "levin/graph.h"

namespace levin::gnn {

// Which edges a sample has.
enum class SubgraphType : std::uint8_t {
  directional,  // those that were drawn
  induced,      // all of the graph's edges between the drawn nodes, each once
};

// The blocks that get the transpose of their pattern, which backward through spmm reads.
enum class Transposes : std::uint8_t {
  none,
  hidden,  // all but block(0), whose sources are inputs and need no gradient
  all,
};

// How neighbours are drawn.
struct NeighborSamplerOptions {
  // In-edges that a node of each hop draws, the seeds' first: k, at most all that it has; -1: all; 0: none.
  std::vector<std::int64_t> fanouts{};
  bool replace = false;  // exactly k draws of a node with in-edges; an edge may come several times
  SubgraphType type = SubgraphType::directional;
  bool disjoint = false;  // each seed grows a tree of its own, in which a node of the graph is another node
  std::uint64_t seed = 0;
  Transposes transposes = Transposes::hidden;
  std::int64_t marker_bytes = std::int64_t{1}
                              << 30;  // limit of the tables of 8 bytes a node, one a thread; then hashes
};

// A sampled neighbourhood. Nodes have local numbers: seeds first, in their order without repeats, then hop by hop as
// they were found. Edges are grouped by destination, ascending; those of a destination are in the graph's order.
struct LEVIN_API SampledSubgraph {
  Tensor n_id{};        // i64 [n], the graph's number of each node
  Tensor src{};         // i32 [E], local (PyG: row)
  Tensor dst{};         // i32 [E], local (PyG: col)
  Tensor e_id{};        // i64 [E], the graph's id of each edge
  Tensor crow{};        // i64 [n + 1]: the edges into node i are [crow[i], crow[i + 1])
  Tensor tree{};        // i32 [n], the position of the seed whose tree has the node; undefined unless disjoint
  Tensor seed_index{};  // i64 [batch_size], the local number of each seed: 0, 1, 2 ... where seeds are distinct
  Tensor input_id{};    // i64 [batch_size], positions of the seeds in a loader's list of inputs; undefined by sample()
  std::vector<std::int64_t> nodes_per_hop{};  // found at each hop, the seeds first: hops() + 1 of them
  std::vector<std::int64_t> edges_per_hop{};  // drawn by each hop: hops() of them; none where induced
  std::vector<std::int64_t> longest_row{};    // of the edges of each hop; of all where induced
  // crow, col and edge of the transpose of each block, three for each; undefined without.
  std::vector<Tensor> transposed{};
  std::vector<std::int64_t> longest_column{};  // of each block, -1 without its transpose
  std::int64_t batch_size = 0;
  bool is_padding = false;  // a batch that makes the number of a rank's batches equal, for no metric
  // Versions of crow and src as they were drawn. Ops examine the blocks of a subgraph that was written since.
  std::array<std::uint32_t, 2> versions{};
  [[nodiscard]] bool is_untouched() const;
  [[nodiscard]] int hops() const { return static_cast<int>(nodes_per_hop.size()) - 1; }
  // What layer `layer` of hops() needs, 0 the one that reads features: the sources are the first nodes up to hop
  // hops() - layer, the destinations those up to one hop less. All are views. The seeds' results are those of whole()
  // unless a layer mixes rows (batch norm). Throws IndexError for another layer, StateError where induced.
  [[nodiscard]] Block block(int layer) const;
  // All edges among all nodes, for each layer alike, without a transpose (with_transpose adds one).
  [[nodiscard]] Block whole() const;
};

// Draws neighbourhoods from a graph on cpu, by several threads at once. The tables of a thread are kept for the next
// call, and no call does work for each node of the graph.
//
// Draw d of node v at hop h in tree t is word d % 4 of philox({d / 4, v, v >> 32 & 0xffffff | h << 24, t}, batch key);
// the batch key is words 0 and 1 of philox({batch, batch >> 32, epoch, 0x42415443}, seed). Without replacement by
// Floyd's method (Bentley and Floyd, CACM 30(9), 1987), each subset equally likely.
class LEVIN_API NeighborSampler {
 public:
  // The in-edges of node i are row i of `graph`, its `edge` their ids. Throws as checked() for a pattern that is not,
  // ShapeError unless the pattern is square, ConfigError for a fanout below -1, for disjoint with induced, and for more
  // than 255 hops.
  NeighborSampler(Csr graph, NeighborSamplerOptions options);
  // Edge ids are those of graph.edges().
  NeighborSampler(const Graph& graph, NeighborSamplerOptions options);
  ~NeighborSampler();
  NeighborSampler(NeighborSampler&&) noexcept;
  NeighborSampler& operator=(NeighborSampler&&) noexcept;

  // Throws IndexError with the position for a seed out of range, ConfigError for more than 2^31 - 1 edges and for an
  // epoch or a batch below 0.
  [[nodiscard]] SampledSubgraph sample(std::span<const std::int64_t> seeds, std::int64_t epoch,
                                       std::int64_t batch) const;
  // The same into `out`, in its memory where nothing else refers to it: then nothing is allocated once the largest
  // sample was seen. After an error `out` is empty.
  void sample_into(std::span<const std::int64_t> seeds, std::int64_t epoch, std::int64_t batch,
                   SampledSubgraph& out) const;
  [[nodiscard]] std::int64_t num_nodes() const;
  [[nodiscard]] const NeighborSamplerOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- Batches of neighbourhoods

// What the nodes of a graph have, and which of them are seeds.
struct NeighborData {
  Tensor x{};            // features [N, ...] of any dtype on cpu, or undefined
  Tensor y{};            // labels [N, ...], or undefined
  Tensor input_nodes{};  // i64 or i32 [S], seeds in this order; bool [N], the true ones ascending; undefined: all
};

// How batches are made. One process of several takes the batches g with g % world == rank.
struct NeighborLoaderOptions {
  // batch_size counts seeds; `generator` orders them if `shuffle` is given, and the sampler's seed draws neighbours. No
  // collate, and a batch_size.
  data::DataLoaderOptions loader{};
  int rank = 0, world = 1;
  // All ranks have equally many batches: missing ones repeat the first with is_padding set. false: surplus ones are
  // dropped.
  bool pad = true;
};

// A batch: the subgraph, the features of its nodes, and the labels of its seeds.
struct NeighborBatch {
  SampledSubgraph graph{};
  Tensor x{};  // [n, ...]
  Tensor y{};  // [nodes_per_hop[0], ...]: row i is of node i, as the rows of the last layer
};

// A loader of neighbourhoods, for a Trainer or a loop:
//
//   gnn::NeighborLoader loader({graph, {.fanouts = {15, 10}, .seed = 1}}, {.x = x, .y = y, .input_nodes = train_mask},
//                              {.loader = {.batch_size = 1024, .shuffle = true, .num_workers = 2}});
//   for (const Batch& batch : loader) {
//     gnn::NeighborBatch b = gnn::unpack(batch);
//     Tensor loss = cross_entropy(net(b.graph, b.x), b.y);
//   }
//
// The draws of a batch are those of sample(seeds, epoch, g), g its position among the batches of all ranks, so neither
// workers nor ranks change a batch. batch.indices are positions in input_nodes. Each worker takes whole batches.
class LEVIN_API NeighborLoader : public data::DataLoader {
 public:
  // Throws as DataLoader; ConfigError for a collate, no batch_size, a rank outside of 0 to world - 1 and more than 6
  // fanouts, ShapeError for x or y without a row for each node and for other masks, IndexError with the position for an
  // input out of range, DTypeError for inputs of another dtype, DeviceError for tensors that are not on cpu.
  NeighborLoader(NeighborSampler sampler, NeighborData data, NeighborLoaderOptions options = {});

 private:
  explicit NeighborLoader(std::pair<data::DatasetRef, data::DataLoaderOptions> made);
};

// What a NeighborLoader put into a batch, on the device where its fields lie. Waits for no device. Throws DataError for
// a batch of another loader.
[[nodiscard]] LEVIN_API NeighborBatch unpack(const data::Batch& batch);

}  // namespace levin::gnn
