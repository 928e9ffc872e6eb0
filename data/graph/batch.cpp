#include <cstring>
#include <limits>
#include <utility>

#include "levin/data/graph_batch.h"
#include "levin/error.h"

namespace levin::gnn {
namespace {

const std::byte* bytes_of(const Tensor& x) {
  return x.get().storage->data + static_cast<std::size_t>(x.offset()) * itemsize(x.dtype());
}
std::byte* room_of(Tensor& x) { return x.get().storage->data; }
std::size_t size_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()) * itemsize(x.dtype()); }

// Rows begin to end of x, with memory of their own.
Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t end) {
  if (!x.defined()) return x;
  const Tensor dense = x.contiguous();
  Tensor out = empty(x.shape().with(0, end - begin), Device::cpu(), x.dtype());
  const std::size_t bytes = size_of(out);
  const std::size_t row = x.size(0) > 0 ? size_of(dense) / static_cast<std::size_t>(x.size(0)) : 0;
  if (bytes > 0) std::memcpy(room_of(out), bytes_of(dense) + static_cast<std::size_t>(begin) * row, bytes);
  return out;
}

// The tensors `of` each sample end to end along dimension 0, or stacked; undefined where no sample has one.
template <class Of>
Tensor joined(const char* what, std::span<const GraphSample> samples, bool stacked, Of&& of) {
  if (samples.empty() || !of(samples[0]).defined()) {
    for (std::size_t g = 0; g < samples.size(); ++g)
      if (of(samples[g]).defined())
        fail<DataError>("GraphBatch::collate: graph ", g, " has ", what, " and graph 0 has none, expected all or none");
    return {};
  }
  const Tensor& first = of(samples[0]);
  std::int64_t length = 0;
  for (std::size_t g = 0; g < samples.size(); ++g) {
    const Tensor& t = of(samples[g]);
    if (!t.defined())
      fail<DataError>("GraphBatch::collate: graph 0 has ", what, " and graph ", g, " has none, expected all or none");
    if (!t.device().is_cpu())
      fail<DeviceError>("GraphBatch::collate: ", what, " of graph ", g, " is on ", t.device(), ", expected cpu");
    const bool fits =
        t.dtype() == first.dtype() && t.rank() == first.rank() &&
        (stacked ? t.shape() == first.shape() : t.rank() > 0 && t.shape().with(0, 0) == first.shape().with(0, 0));
    if (!fits)
      fail<DataError>("GraphBatch::collate: ", what, " of graph ", g, " is ", t.dtype(), " ", t.shape(),
                      ", that of graph 0 ", first.dtype(), " ", first.shape(),
                      "; expected one dtype and one size of a row");
    length += stacked ? 1 : t.size(0);
  }
  Tensor out =
      empty(stacked ? first.shape().inserted(0, length) : first.shape().with(0, length), Device::cpu(), first.dtype());
  std::byte* to = room_of(out);
  for (const GraphSample& s : samples) {
    const Tensor dense = of(s).detach().contiguous();
    if (const std::size_t bytes = size_of(dense); bytes > 0) {
      std::memcpy(to, bytes_of(dense), bytes);
      to += bytes;
    }
  }
  return out;
}

// Numbers of a part, at their place in the whole, plus `shift`.
template <class I>
void append(I*& to, const Tensor& part, std::int64_t shift) {
  const auto copy = [&]<class P>(const P* from) {
    for (std::int64_t k = 0; k < part.numel(); ++k) *to++ = static_cast<I>(from[k] + shift);
  };
  part.dtype() == DType::i32 ? copy(part.data<std::int32_t>()) : copy(part.data<std::int64_t>());
}

template <class I>
Graph joined_graph(std::span<const GraphSample> samples, std::int64_t nodes, std::int64_t edges, Tensor weight,
                   Tensor attr) {
  const auto positions = [&](std::int64_t n, DType dtype) { return empty({n}, Device::cpu(), dtype); };
  bool transposed = true, named = false;
  for (const GraphSample& s : samples) {
    transposed = transposed && s.graph.csr().t_crow.defined();
    named = named || s.graph.edge_ids().defined();
  }
  Csr a{.crow = positions(nodes + 1, DType::i64), .col = positions(edges, dtype_of<I>), .cols = nodes};
  Tensor ids = named ? positions(edges, dtype_of<I>) : Tensor();
  auto* crow = a.crow.mutable_data<std::int64_t>();
  I *col = a.col.mutable_data<I>(), *id = named ? ids.mutable_data<I>() : nullptr, *t_col = nullptr, *t_edge = nullptr;
  std::int64_t* t_crow = nullptr;
  *crow++ = 0;
  if (transposed) {
    a.t_crow = positions(nodes + 1, DType::i64);
    a.t_col = positions(edges, dtype_of<I>);
    a.t_edge = positions(edges, dtype_of<I>);
    t_crow = a.t_crow.mutable_data<std::int64_t>();
    t_col = a.t_col.mutable_data<I>();
    t_edge = a.t_edge.mutable_data<I>();
    *t_crow++ = 0;
  }
  std::int64_t node = 0, edge = 0;
  for (const GraphSample& s : samples) {
    const Csr& part = s.graph.csr();
    const std::int64_t n = part.rows(), e = part.entries();
    const auto* offsets = part.crow.data<std::int64_t>();
    for (std::int64_t i = 1; i <= n; ++i) *crow++ = edge + offsets[i];
    append(col, part.col, node);
    if (named) {
      if (s.graph.edge_ids().defined())
        append(id, s.graph.edge_ids(), edge);
      else
        for (std::int64_t k = 0; k < e; ++k) *id++ = static_cast<I>(edge + k);
    }
    if (transposed) {
      const auto* t_offsets = part.t_crow.data<std::int64_t>();
      for (std::int64_t i = 1; i <= n; ++i) *t_crow++ = edge + t_offsets[i];
      append(t_col, part.t_col, node);
      append(t_edge, part.t_edge, edge);
    }
    node += n;
    edge += e;
  }
  return Graph::from_csr(std::move(a), {.transposed = transposed}, std::move(weight), std::move(attr), std::move(ids));
}

// Rows `begin` to `end` of positions, minus `shift`.
template <class I>
Tensor part_of(const Tensor& whole, std::int64_t begin, std::int64_t end, std::int64_t shift) {
  if (!whole.defined()) return whole;
  Tensor out = rows(whole, begin, end);
  I* at = out.mutable_data<I>();
  for (std::int64_t k = 0; k < out.numel(); ++k) at[k] = static_cast<I>(at[k] - shift);
  return out;
}

template <class I>
Graph part_of(const Graph& whole, std::int64_t begin, std::int64_t end) {
  const Csr& a = whole.csr();
  const auto* crow = a.crow.data<std::int64_t>();
  const std::int64_t first = crow[begin], last = crow[end];
  Csr part{.crow = part_of<std::int64_t>(a.crow, begin, end + 1, first),
           .col = part_of<I>(a.col, first, last, begin),
           .cols = end - begin,
           .t_crow = part_of<std::int64_t>(a.t_crow, begin, a.t_crow.defined() ? end + 1 : 0, first),
           .t_col = part_of<I>(a.t_col, first, last, begin),
           .t_edge = part_of<I>(a.t_edge, first, last, first)};
  const auto of_edges = [&](const Tensor& t) { return rows(t, first, last); };
  return Graph::from_csr(std::move(part), {.transposed = a.t_crow.defined()}, of_edges(whole.weight()),
                         of_edges(whole.attr()), part_of<I>(whole.edge_ids(), first, last, first));
}

constexpr std::size_t kFields = 9;

Tensors fields_of(const GraphBatch& b) {
  const auto given = [](const Tensor& t) { return t.defined() ? t : empty({0}, Device::cpu()); };
  const Csr& a = b.graph.csr();
  return {a.crow, a.col, a.t_crow, a.t_col, a.t_edge, b.ptr, b.batch, given(b.x), given(b.y)};
}

class GraphDataset final : public data::Dataset {
 public:
  explicit GraphDataset(std::vector<GraphSample> samples) : samples_(std::move(samples)) {
    (void)GraphBatch::collate(samples_);
    for (GraphSample& s : samples_) {
      const Csr& a = s.graph.csr();
      s.graph = Graph::from_csr(a, {}, {}, {}, s.graph.edge_ids());
    }
  }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  [[nodiscard]] data::Sample get(std::int64_t index, Generator&) const override {
    return fields_of(GraphBatch::collate(std::span(&at(index), 1)));
  }
  [[nodiscard]] Tensors gather(std::span<const std::int64_t> indices, const data::EpochRandom&) const override {
    std::vector<GraphSample> chosen;
    chosen.reserve(indices.size());
    for (const std::int64_t i : indices) chosen.push_back(at(i));
    return fields_of(GraphBatch::collate(chosen));
  }

 private:
  [[nodiscard]] const GraphSample& at(std::int64_t i) const {
    if (i < 0 || i >= size()) fail<IndexError>("graph_dataset: index is ", i, ", expected 0 to ", size() - 1);
    return samples_[static_cast<std::size_t>(i)];
  }
  std::vector<GraphSample> samples_;
};

}  // namespace

GraphBatch GraphBatch::collate(std::span<const GraphSample> samples) {
  std::int64_t nodes = 0, edges = 0;
  for (std::size_t g = 0; g < samples.size(); ++g) {
    const GraphSample& s = samples[g];
    if (s.graph.is_bipartite())
      fail<DataError>("GraphBatch::collate: graph ", g, " is bipartite, expected one set of nodes");
    if (!s.graph.device().is_cpu())
      fail<DeviceError>("GraphBatch::collate: graph ", g, " is on ", s.graph.device(),
                        ", expected cpu; move the batch");
    if (s.x.defined() && (s.x.rank() == 0 || s.x.size(0) != s.graph.num_nodes()))
      fail<DataError>("GraphBatch::collate: x of graph ", g, " has shape ", s.x.shape(), ", expected ",
                      s.graph.num_nodes(), " rows, one for each node");
    nodes += s.graph.num_nodes();
    edges += s.graph.num_edges();
  }
  Tensor x = joined("x", samples, false, [](const GraphSample& s) -> const Tensor& { return s.x; });
  Tensor y = joined("y", samples, true, [](const GraphSample& s) -> const Tensor& { return s.y; });
  Tensor weight =
      joined("weight", samples, false, [](const GraphSample& s) -> const Tensor& { return s.graph.weight(); });
  Tensor attr = joined("attr", samples, false, [](const GraphSample& s) -> const Tensor& { return s.graph.attr(); });
  Tensor ptr = empty({static_cast<std::int64_t>(samples.size()) + 1}, Device::cpu(), DType::i64);
  Tensor batch = empty({nodes}, Device::cpu(), DType::i64);
  auto *at = ptr.mutable_data<std::int64_t>(), *graph_of = batch.mutable_data<std::int64_t>();
  at[0] = 0;
  for (std::size_t g = 0; g < samples.size(); ++g) {
    at[g + 1] = at[g] + samples[g].graph.num_nodes();
    for (std::int64_t i = at[g]; i < at[g + 1]; ++i) graph_of[i] = static_cast<std::int64_t>(g);
  }
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  Graph graph = nodes <= most && edges <= most
                    ? joined_graph<std::int32_t>(samples, nodes, edges, std::move(weight), std::move(attr))
                    : joined_graph<std::int64_t>(samples, nodes, edges, std::move(weight), std::move(attr));
  return {std::move(graph), std::move(x), std::move(y), std::move(ptr), std::move(batch)};
}

std::vector<GraphSample> GraphBatch::unbatch() const {
  const GraphBatch here = to(Device::cpu());
  const auto* at = here.ptr.data<std::int64_t>();
  std::vector<GraphSample> samples;
  for (std::int64_t g = 0; g < size(); ++g) {
    Graph part = here.graph.csr().col.dtype() == DType::i32 ? part_of<std::int32_t>(here.graph, at[g], at[g + 1])
                                                            : part_of<std::int64_t>(here.graph, at[g], at[g + 1]);
    Tensor label = rows(here.y, g, g + 1);
    if (label.defined()) {
      Tensor single = empty(label.shape().removed(0), Device::cpu(), label.dtype());
      if (const std::size_t bytes = size_of(single); bytes > 0) std::memcpy(room_of(single), bytes_of(label), bytes);
      label = single;
    }
    samples.push_back({std::move(part), rows(here.x, at[g], at[g + 1]), label});
  }
  return samples;
}

GraphBatch GraphBatch::to(Device device) const {
  const auto moved = [&](const Tensor& t) { return t.defined() ? t.to(device) : t; };
  return {graph.to(device), moved(x), moved(y), moved(ptr), moved(batch)};
}

data::DatasetRef graph_dataset(std::vector<GraphSample> samples) {
  return std::make_shared<GraphDataset>(std::move(samples));
}

GraphFields GraphFields::of(std::span<const Tensor> fields) {
  if (fields.size() != kFields)
    fail<DataError>("GraphFields::of: there are ", fields.size(), " fields, expected the ", kFields,
                    " of graph_dataset");
  Csr a{.crow = fields[0],
        .col = fields[1],
        .cols = fields[0].numel() - 1,
        .t_crow = fields[2],
        .t_col = fields[3],
        .t_edge = fields[4]};
  if (a.crow.device().is_cpu()) a = checked(std::move(a));
  return {{std::move(a), {}}, fields[5], fields[6], fields[7], fields[8]};
}

}  // namespace levin::gnn
