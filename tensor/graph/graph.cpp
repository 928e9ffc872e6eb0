// gnn::Graph: edges grouped by destination and by source.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "levin/graph.h"
#include "tensor/graph/edge_list.h"
#include "tensor/graph/rows.h"

namespace levin::gnn {
namespace {

// What copies of a graph on all devices share.
struct Identity {
  std::atomic<int> undirected{-1};  // -1: not asked yet
};

std::int64_t largest(const char* op, const char* name, const Tensor& t) {
  std::int64_t most = -1;
  const auto scan = [&]<class S>(S) {
    const S* at = t.data<S>();
    for (std::int64_t e = 0; e < t.numel(); ++e) {
      if (at[e] < 0)
        fail<IndexError>(op, ": ", name, "[", e, "] is ", std::int64_t{at[e]}, ", expected a node, 0 or more");
      most = std::max<std::int64_t>(most, at[e]);
    }
  };
  t.dtype() == DType::i32 ? scan(std::int32_t{}) : scan(std::int64_t{});
  return std::min(most, kMaxDim);  // beyond it the graph is refused, and 1 more must not overflow
}

Tensor offsets_to_degrees(const Tensor& offsets) {
  const Tensor host = offsets.to(Device::cpu());
  const auto* at = host.data<std::int64_t>();
  Tensor degrees = empty({host.numel() - 1}, Device::cpu(), DType::i64);
  auto* out = degrees.mutable_data<std::int64_t>();
  for (std::int64_t i = 0; i < degrees.numel(); ++i) out[i] = at[i + 1] - at[i];
  return degrees.to(offsets.device());
}

// The pattern on cpu, known to be legal also where a handle on its tensors was written through.
Csr on_host(const Csr& a) {
  Csr host = a.to(Device::cpu());
  return host.known() ? host : checked(std::move(host));
}

// Of a legal pattern and ids of any content.
template <class I>
EdgeList by_id(const Csr& a, const Tensor& ids) {
  const std::int64_t edges = a.entries();
  EdgeList out{.src = empty({edges}, Device::cpu(), dtype_of<I>), .dst = empty({edges}, Device::cpu(), dtype_of<I>)};
  const auto* crow = a.crow.data<std::int64_t>();
  const I *col = a.col.data<I>(), *id = ids.defined() ? ids.data<I>() : nullptr;
  I *src = out.src.mutable_data<I>(), *dst = out.dst.mutable_data<I>();
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    for (std::int64_t k = crow[i]; k < crow[i + 1]; ++k) {
      const auto e = id ? std::int64_t{id[k]} : k;
      if (e < 0 || e >= edges)
        fail<IndexError>("Graph::edges: edge_ids[", k, "] is ", e, ", expected 0 to ", edges - 1);
      src[e] = col[k];
      dst[e] = static_cast<I>(i);
    }
  }
  return out;
}

std::vector<double> as_doubles(const Tensor& x) {
  const Tensor host = x.detach().to(Device::cpu()).contiguous();
  std::vector<double> out(static_cast<std::size_t>(x.numel()));
  const auto copy = [&]<class T>(T) {
    const T* at = host.data<T>();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(at[i]);
  };
  switch (x.dtype()) {
    case DType::f64: copy(double{}); break;
    case DType::f16: copy(f16{}); break;
    case DType::bf16: copy(bf16{}); break;
    default: copy(float{});
  }
  return out;
}

// Whether runs of equal edges a <- b have the weights of b <- a. Both sides of the pattern are equal.
template <class I>
bool weights_mirrored(const Csr& a, const Tensor& ids, const std::vector<double>& weight) {
  const auto* crow = a.crow.data<std::int64_t>();
  const I *col = a.col.data<I>(), *t_edge = a.t_edge.data<I>(), *id = ids.defined() ? ids.data<I>() : nullptr;
  const auto weight_of = [&](std::int64_t k) {
    return weight.at(static_cast<std::size_t>(id ? std::int64_t{id[k]} : k));
  };
  const auto less = [](double x, double y) { return x < y || (!std::isnan(x) && std::isnan(y)); };
  const auto equal = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  std::vector<double> to, from;
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    for (std::int64_t k = crow[i], end = k; k < crow[i + 1]; k = end) {
      to.clear();
      from.clear();
      for (; end < crow[i + 1] && col[end] == col[k]; ++end) {
        to.push_back(weight_of(end));
        from.push_back(weight_of(t_edge[end]));
      }
      std::sort(to.begin(), to.end(), less);
      std::sort(from.begin(), from.end(), less);
      if (!std::equal(to.begin(), to.end(), from.begin(), equal)) return false;
    }
  }
  return true;
}

template <class T>
bool same_values(const Tensor& x, const Tensor& y) {
  return std::equal(x.data<T>(), x.data<T>() + x.numel(), y.data<T>());
}

// `a` on cpu, with its ids: the pattern, checked. `op` begins the messages.
Csr examined(const char* op, Csr a, const Tensor& ids) {
  a = checked(std::move(a));
  if (ids.defined()) {
    Csr named = a;
    named.edge = ids;
    named.t_crow = named.t_col = named.t_edge = {};
    (void)CsrFacts(named);  // a permutation
  }
  const auto refuse = [&](const char* index, const char* name, std::int64_t k) {
    if (k >= 0)
      fail<IndexError>(op, ": ", index, "[", k, "] with its ", name, " is not above ", index, "[", k - 1,
                       "] of the same row; expected columns that ascend, equal ones by ", name,
                       "; build with from_coo");
  };
  refuse("col", "id", levin::detail::first_descent(a.crow, a.col, ids));
  if (a.t_crow.defined()) refuse("t_col", "position", levin::detail::first_descent(a.t_crow, a.t_col, a.t_edge));
  return a;
}

}  // namespace

namespace detail {

std::int64_t check_edges(const char* op, const EdgeList& edges) {
  const auto check = [&](const char* name, const Tensor& t) {
    if (t.device() != Device::cpu())
      fail<DeviceError>(op, ": ", name, " is on ", t.device(),
                        ", expected cpu; call to(Device::cpu()), and to(device) on the result");
  };
  if (!edges.src.defined() || !edges.dst.defined())
    fail<ShapeError>(op, ": ", edges.src.defined() ? "dst" : "src",
                     " is undefined, expected [E]; for no edges give empty({0}, ...)");
  const Tensor &src = edges.src, &dst = edges.dst;
  if (src.dtype() != DType::i64 && src.dtype() != DType::i32)
    fail<DTypeError>(op, ": src is ", src.dtype(), ", expected i64 or i32");
  if (dst.dtype() != src.dtype())
    fail<DTypeError>(op, ": dst is ", dst.dtype(), " and src ", src.dtype(), ", expected one dtype");
  check("src", src);
  check("dst", dst);
  if (src.rank() != 1 || dst.shape() != src.shape())
    fail<ShapeError>(op, ": src has shape ", src.shape(), " and dst ", dst.shape(), ", expected [E] for both");
  if (edges.weight.defined()) {
    const Tensor& w = edges.weight;
    if (!is_float(w.dtype())) fail<DTypeError>(op, ": weight is ", w.dtype(), ", expected a float dtype");
    check("weight", w);
    if (w.shape() != src.shape())
      fail<ShapeError>(op, ": weight has shape ", w.shape(), ", expected ", src.shape(), ", one an edge");
  }
  if (edges.attr.defined()) {
    check("attr", edges.attr);
    if (edges.attr.rank() != 2 || edges.attr.size(0) != src.numel())
      fail<ShapeError>(op, ": attr has shape ", edges.attr.shape(), ", expected [", src.numel(), ", D], a row an edge");
  }
  return src.numel();
}

std::pair<std::int64_t, std::int64_t> count_nodes(const char* op, const EdgeList& edges, bool bipartite) {
  std::int64_t num_src = edges.num_src, num_dst = edges.num_dst;
  for (const std::int64_t n : {num_src, num_dst}) {
    if (n < -1)
      fail<ConfigError>(op, ": the number of nodes is ", n, ", expected 0 or more, or -1 to take it from the edges");
  }
  if (!bipartite) {
    if (num_src >= 0 && num_dst >= 0 && num_src != num_dst)
      fail<ConfigError>(op, ": num_src is ", num_src, " and num_dst ", num_dst,
                        ", expected one number of nodes; set `bipartite` where they are different nodes");
    num_src = num_dst = std::max(num_src, num_dst);
    if (num_src < 0) num_src = num_dst = 1 + std::max(largest(op, "src", edges.src), largest(op, "dst", edges.dst));
  } else {
    if (num_src < 0) num_src = 1 + largest(op, "src", edges.src);
    if (num_dst < 0) num_dst = 1 + largest(op, "dst", edges.dst);
  }
  for (const std::int64_t n : {num_src, num_dst}) {
    if (n >= kMaxDim) fail<ShapeError>(op, ": the graph has ", n, " nodes, expected at most ", kMaxDim - 1);
  }
  return {num_src, num_dst};
}

}  // namespace detail

struct Graph::Data {
  Csr csr{};
  Tensor ids{}, weight{}, attr{};
  bool bipartite = false;
  std::shared_ptr<Identity> identity{};
};

Graph::Graph(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

Graph Graph::from_coo(const EdgeList& edges, GraphOptions options) {
  constexpr const char* kOp = "Graph::from_coo";
  detail::check_edges(kOp, edges);
  const EdgeList list{
      .src = edges.src.contiguous(), .dst = edges.dst.contiguous(), .num_src = edges.num_src, .num_dst = edges.num_dst};
  const auto [num_src, num_dst] = detail::count_nodes(kOp, list, options.bipartite);
  levin::detail::Rows rows =
      levin::detail::rows_of_edges(kOp, list.src, list.dst, num_src, num_dst, options.transposed);
  return Graph(std::make_shared<const Data>(Data{std::move(rows.csr), std::move(rows.edge_ids), edges.weight,
                                                 edges.attr, options.bipartite, std::make_shared<Identity>()}));
}

Graph Graph::from_csr(Csr a, GraphOptions options, Tensor weight, Tensor attr, Tensor edge_ids) {
  constexpr const char* kOp = "Graph::from_csr";
  if (a.edge.defined())
    fail<ConfigError>(kOp, ": the pattern has `edge`, expected none; give the ids of its entries as edge_ids");
  if (const CsrFacts* facts = a.known(); !facts || !facts->ascending || !options.trusted)
    a = examined(kOp, std::move(a), edge_ids);
  if (!options.bipartite && a.rows() != a.cols)
    fail<ConfigError>(kOp, ": the pattern has ", a.rows(), " rows and ", a.cols,
                      " columns, expected one number of nodes; set `bipartite` where they are different nodes");
  const EdgeList list{.src = a.col, .dst = a.col, .weight = weight, .attr = attr};
  detail::check_edges(kOp, list);
  if (edge_ids.defined() && (edge_ids.dtype() != a.col.dtype() || edge_ids.shape() != a.col.shape() ||
                             !edge_ids.is_contiguous() || edge_ids.device() != a.col.device()))
    fail<ShapeError>(kOp, ": edge_ids is ", text(edge_ids), ", expected ", a.col.dtype(), " ", a.col.shape(),
                     ", contiguous and on ", a.col.device());
  if (!options.transposed) {
    if (a.t_crow.defined()) {
      const std::int64_t longest = a.facts->longest_row;
      a.t_crow = a.t_col = a.t_edge = {};
      a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{.longest_row = longest, .ascending = true});
    }
  } else if (!a.t_crow.defined()) {
    a = levin::detail::with_columns(std::move(a));
  }
  return Graph(std::make_shared<const Data>(Data{std::move(a), std::move(edge_ids), std::move(weight), std::move(attr),
                                                 options.bipartite, std::make_shared<Identity>()}));
}

std::int64_t Graph::num_src() const { return data_->csr.cols; }
std::int64_t Graph::num_dst() const { return data_->csr.rows(); }
std::int64_t Graph::num_edges() const { return data_->csr.entries(); }
bool Graph::is_bipartite() const { return data_->bipartite; }
Device Graph::device() const { return data_->csr.crow.device(); }
const Csr& Graph::csr() const { return data_->csr; }
const Tensor& Graph::edge_ids() const { return data_->ids; }
const Tensor& Graph::weight() const { return data_->weight; }
const Tensor& Graph::attr() const { return data_->attr; }
bool Graph::is_same(const Graph& other) const { return data_->identity == other.data_->identity; }

EdgeList Graph::edges() const {
  const Csr a = on_host(data_->csr);
  const Tensor ids = data_->ids.defined() ? data_->ids.to(Device::cpu()) : Tensor();
  const EdgeList list = a.col.dtype() == DType::i32 ? by_id<std::int32_t>(a, ids) : by_id<std::int64_t>(a, ids);
  return {.src = list.src.to(device()),
          .dst = list.dst.to(device()),
          .weight = weight(),
          .attr = attr(),
          .num_src = num_src(),
          .num_dst = num_dst()};
}

Tensor Graph::in_degree() const { return offsets_to_degrees(data_->csr.crow); }
Tensor Graph::out_degree() const {
  const Csr& a = data_->csr;
  if (a.t_crow.defined()) return offsets_to_degrees(a.t_crow);
  const Tensor host = on_host(a).col;
  Tensor degrees = empty({a.cols}, Device::cpu(), DType::i64);
  auto* out = degrees.mutable_data<std::int64_t>();
  std::fill_n(out, a.cols, 0);
  const auto count = [&]<class I>(I) {
    const I* col = host.data<I>();
    for (std::int64_t k = 0; k < host.numel(); ++k) ++out[col[k]];
  };
  host.dtype() == DType::i32 ? count(std::int32_t{}) : count(std::int64_t{});
  return degrees.to(device());
}

bool Graph::is_undirected() const {
  std::atomic<int>& answer = data_->identity->undirected;
  if (const int kept = answer.load(std::memory_order_relaxed); kept >= 0) return kept != 0;
  const auto find = [&] {
    if (data_->bipartite) return false;
    Csr a = on_host(data_->csr);
    if (!a.t_crow.defined()) a = levin::detail::with_columns(std::move(a));
    const bool narrow = a.col.dtype() == DType::i32;
    if (!same_values<std::int64_t>(a.crow, a.t_crow) ||
        !(narrow ? same_values<std::int32_t>(a.col, a.t_col) : same_values<std::int64_t>(a.col, a.t_col)))
      return false;
    if (!data_->weight.defined()) return true;
    const std::vector<double> weights = as_doubles(data_->weight);
    const Tensor ids = data_->ids.defined() ? data_->ids.to(Device::cpu()) : Tensor();
    return narrow ? weights_mirrored<std::int32_t>(a, ids, weights) : weights_mirrored<std::int64_t>(a, ids, weights);
  };
  const bool found = find();
  answer.store(found ? 1 : 0, std::memory_order_relaxed);
  return found;
}

void Graph::validate() const {
  (void)examined("Graph::validate", data_->csr.to(Device::cpu()),
                 data_->ids.defined() ? data_->ids.to(Device::cpu()) : Tensor());
}

Graph Graph::to(Device device) const {
  if (device == this->device()) return *this;
  const auto moved = [&](const Tensor& t) { return t.defined() ? t.to(device) : t; };
  return Graph(std::make_shared<const Data>(Data{data_->csr.to(device), moved(data_->ids), moved(data_->weight),
                                                 moved(data_->attr), data_->bipartite, data_->identity}));
}

}  // namespace levin::gnn
