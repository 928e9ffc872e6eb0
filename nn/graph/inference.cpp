#include "levin/nn/graph_inference.h"

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "nn/graph/loops.h"

namespace levin::gnn {
namespace {

constexpr const char* kOp = "layerwise_inference";

// A block whose sources are `nodes`, i64 [sources].
struct Part {
  Block on{};
  Tensor nodes{};
};

// Consecutive rows of a square pattern on cpu as blocks.
class Parts {
 public:
  virtual ~Parts() = default;
  virtual Part rows(std::int64_t begin, std::int64_t count) = 0;
};

template <class Index>
class PartsOf : public Parts {
 public:
  PartsOf(const Csr& a, const Tensor& edge_ids)
      : a_(a), edge_ids_(edge_ids), place_(static_cast<std::size_t>(a.cols), Index{-1}) {}

  Part rows(std::int64_t begin, std::int64_t count) override {
    const auto* crow = a_.crow.data<std::int64_t>() + begin;
    const std::int64_t first = crow[0], edges = crow[count] - first;
    nodes_.clear();
    for (std::int64_t i = 0; i < count; ++i) add(begin + i);
    Tensor offsets = empty({count + 1}, Device::cpu(), DType::i64), col = empty({edges}, Device::cpu(), a_.col.dtype());
    auto* offset = offsets.mutable_data<std::int64_t>();
    std::int64_t longest = 0;
    offset[0] = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      offset[i + 1] = crow[i + 1] - first;
      longest = std::max(longest, offset[i + 1] - offset[i]);
    }
    const auto* from = a_.col.data<Index>() + first;
    auto* to = col.mutable_data<Index>();
    for (std::int64_t k = 0; k < edges; ++k) {
      const auto node = static_cast<std::int64_t>(from[k]);
      if (place_[static_cast<std::size_t>(node)] < 0) add(node);
      to[k] = place_[static_cast<std::size_t>(node)];
    }
    const auto sources = static_cast<std::int64_t>(nodes_.size());
    for (const std::int64_t node : nodes_) place_[static_cast<std::size_t>(node)] = Index{-1};
    Part part{.nodes = from_data(nodes_, {sources}, Device::cpu())};
    part.on.csr = {.crow = offsets, .col = col, .cols = sources};
    // Rows of a checked pattern under new names: legal, and not ascending.
    part.on.csr.facts = std::make_shared<const CsrFacts>(part.on.csr, CsrFacts::Promise{.longest_row = longest});
    part.on.edge_ids = edge_ids_.defined() ? narrow(edge_ids_, 0, first, edges).to(DType::i64)
                                           : arange(first, first + edges, 1, Device::cpu());
    return part;
  }

 private:
  void add(std::int64_t node) {
    place_[static_cast<std::size_t>(node)] = static_cast<Index>(nodes_.size());
    nodes_.push_back(node);
  }
  const Csr& a_;
  const Tensor& edge_ids_;
  std::vector<Index> place_;  // of each node among the block's sources; -1: none
  std::vector<std::int64_t> nodes_;
};

std::unique_ptr<Parts> parts_of(const Csr& a, const Tensor& edge_ids) {
  if (a.col.dtype() == DType::i32) return std::make_unique<PartsOf<std::int32_t>>(a, edge_ids);
  return std::make_unique<PartsOf<std::int64_t>>(a, edge_ids);
}

// Outputs of blocks, one below the other, on cpu.
class Rows {
 public:
  Rows(std::string what, std::int64_t rows) : what_(std::move(what)), rows_(rows) {}
  void put(const Tensor& y, std::int64_t begin, std::int64_t count) {
    if (!y.defined()) fail<ShapeError>(kOp, ": ", what_, " returned an undefined tensor, expected ", count, " rows");
    if (y.rank() < 1 || y.size(0) != count)
      fail<ShapeError>(kOp, ": ", what_, " returned shape ", y.shape(), ", expected ", count,
                       " rows, one for each destination");
    if (!all_.defined()) {
      std::vector<std::int64_t> sizes(y.shape().dims().begin(), y.shape().dims().end());
      sizes[0] = rows_;
      all_ = empty(Shape(sizes), Device::cpu(), y.dtype());
    }
    if (y.dtype() != all_.dtype())
      fail<DTypeError>(kOp, ": ", what_, " returned ", y.dtype(), ", expected ", all_.dtype(), " as for other blocks");
    Tensor place = narrow(all_, 0, begin, count);
    if (y.shape() != place.shape())
      fail<ShapeError>(kOp, ": ", what_, " returned shape ", y.shape(), ", expected ", place.shape(),
                       " as for other blocks");
    copy_(place, y.to(Device::cpu()));
  }
  [[nodiscard]] Tensor all() const { return all_; }

 private:
  std::string what_;
  std::int64_t rows_;
  Tensor all_;
};

// body(begin, count) for all rows in blocks; once where there are none, for the output's shape.
template <class Body>
void for_blocks(std::int64_t rows, std::int64_t batch_size, Body&& body) {
  std::int64_t begin = 0;
  do {
    const std::int64_t count = std::min(batch_size, rows - begin);
    body(begin, count);
    begin += count;
  } while (begin < rows);
}

Tensor one_layer(const std::string& what, const BlockLayer& layer, const Csr& a, const Tensor& edge_ids,
                 const Tensor& x, std::int64_t batch_size, Device device) {
  if (!a.known()) (void)CsrFacts(a);  // it was written after its graph was made
  const std::unique_ptr<Parts> parts = parts_of(a, edge_ids);
  Rows out(what, a.rows());
  for_blocks(a.rows(), batch_size, [&](std::int64_t begin, std::int64_t count) {
    Part part = parts->rows(begin, count);
    part.on.csr = part.on.csr.to(device);
    out.put(layer(index_select(x, 0, part.nodes).to(device), part.on), begin, count);
  });
  return out.all();
}

void check(const Graph& g, const Tensor& x, const LayerwiseOptions& o) {
  if (o.batch_size < 1) fail<ConfigError>(kOp, ": batch_size is ", o.batch_size, ", expected 1 or more");
  if (!g.device().is_cpu())
    fail<DeviceError>(kOp, ": the graph is on ", g.device(), ", expected cpu; call the layers with the whole graph");
  if (!x.device().is_cpu()) fail<DeviceError>(kOp, ": x is on ", x.device(), ", expected cpu, where the graph is");
  if (g.is_bipartite())
    fail<ShapeError>(kOp, ": the graph is bipartite, expected one whose destinations are its sources");
  if (x.rank() < 1 || x.size(0) != g.num_nodes())
    fail<ShapeError>(kOp, ": x has shape ", x.shape(), ", expected ", g.num_nodes(), " rows, one for each node");
}

// The pattern and values of the layers GCN of a stack, which has the same ones for all; value is undefined for ones.
SparseMatrix matrix_of(const GCN& net, const Graph& g, const Tensor& edge_weight) {
  const GCNConvOptions& o = net.options.conv;
  const DType dtype = net.dtype();
  if (o.normalize) return gcn_norm(g, {o.improved, o.add_self_loops.value_or(true), dtype}, edge_weight);
  const Tensor& w = edge_weight.defined() ? edge_weight : g.weight();
  if (!w.defined()) return {g.csr(), {}};
  if (w.rank() != 1 || w.size(0) != g.num_edges())
    fail<ShapeError>(kOp, ": edge_weight has shape ", w.shape(), ", expected [", g.num_edges(), "], one for each edge");
  if (!is_float(w.dtype())) fail<DTypeError>(kOp, ": edge_weight is ", w.dtype(), ", expected a float");
  if (!w.device().is_cpu())
    fail<DeviceError>(kOp, ": edge_weight is on ", w.device(), ", expected cpu, where the graph is");
  return {g.csr(), in_order(g, w).to(dtype)};
}

}  // namespace

Tensor layerwise_inference(std::span<const BlockLayer> layers, const Graph& graph, const Tensor& x,
                           const LayerwiseOptions& options) {
  if (layers.empty()) fail<ConfigError>(kOp, ": there are no layers, expected at least one");
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (!layers[i]) fail<ConfigError>(kOp, ": layer ", i, " is empty, expected a function");
  check(graph, x, options);
  const NoGrad off;
  Tensor h = x.detach();
  for (std::size_t i = 0; i < layers.size(); ++i)
    h = one_layer("layer " + std::to_string(i), layers[i], graph.csr(), graph.edge_ids(), h, options.batch_size,
                  options.device.value_or(Device::cpu()));
  return h;
}

template <class Conv>
Tensor layerwise_inference(const Stack<Conv>& net, const Graph& graph, const Tensor& x, const LayerwiseOptions& options,
                           const Tensor& edge_weight) {
  constexpr bool kIsGcn = std::is_same_v<Conv, GCNConv>;
  if (net.is_training()) fail<StateError>(kOp, ": the stack is in training, expected evaluation; call eval()");
  check(graph, x, options);
  if (!kIsGcn && edge_weight.defined())
    fail<ConfigError>(kOp, ": edge_weight is given, and the stack has no use of it");
  const NoGrad off;
  const Device device = options.device.value_or(net.device());
  const auto& o = net.options;
  SparseMatrix matrix{graph.csr(), {}};
  if constexpr (kIsGcn) matrix = matrix_of(net, graph, edge_weight);
  Tensors outputs;
  Tensor h = x.detach();
  for (std::int64_t i = 0; i < o.layers; ++i) {
    const bool plain = i + 1 == o.layers && !o.jk;
    const BlockLayer layer = [&](const Tensor& in, const Block& on) {
      Tensor y;
      if constexpr (kIsGcn) {
        const Conv& conv = net.convs[i];
        const Tensor value = matrix.value.defined() ? index_select(matrix.value, 0, on.edge_ids).to(device) : Tensor();
        y = conv.lin(spmm(on.csr, value, in));
        if (conv.bias.defined()) y = y + conv.bias;
      } else {
        y = net.convs[i](in, on);
      }
      if (plain) return y;
      if (o.act && o.act_first) y = o.act(y);
      if (net.norms.size() > 0) y = net.norms[i](y);
      if (o.act && !o.act_first) y = o.act(y);
      return y;
    };
    // Positions are the ids: no layer but GCN reads them.
    h = one_layer("layer " + std::to_string(i), layer, matrix.csr, Tensor(), h, options.batch_size, device);
    if (o.jk) outputs.push_back(h);
  }
  if (!net.lin) return h;
  Rows out("lin", graph.num_nodes());
  for_blocks(graph.num_nodes(), options.batch_size, [&](std::int64_t begin, std::int64_t count) {
    Tensors xs;
    for (const Tensor& all : outputs) xs.push_back(narrow(all, 0, begin, count).to(device));
    out.put((*net.lin)(jumping_knowledge(xs, *o.jk)), begin, count);
  });
  return out.all();
}

#define LEVIN_STACK(Conv)                                                                        \
  template LEVIN_API Tensor layerwise_inference(const Stack<Conv>&, const Graph&, const Tensor&, \
                                                const LayerwiseOptions&, const Tensor&);
LEVIN_STACK(GCNConv)
LEVIN_STACK(SAGEConv)
LEVIN_STACK(GINConv)
LEVIN_STACK(GATConv)
LEVIN_STACK(GATv2Conv)
#undef LEVIN_STACK

}  // namespace levin::gnn
