#include "levin/autograd.h"
#include "levin/ops.h"
#include "nn/graph/init.h"
#include "nn/graph/loops.h"

namespace levin::gnn {
namespace {

DType wide(DType a, DType b) { return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32; }

void check_weights(const char* op, const Tensor& w, std::int64_t edges, Device device) {
  if (w.rank() != 1 || w.size(0) != edges)
    fail<ShapeError>(op, ": edge_weight has shape ", w.shape(), ", expected [", edges, "], one for each edge");
  if (!is_float(w.dtype())) fail<DTypeError>(op, ": edge_weight is ", w.dtype(), ", expected a float");
  if (w.device() != device)
    fail<DeviceError>(op, ": edge_weight is on ", w.device(), ", expected ", device, ", where the graph is");
}

// Weights of the edges by id: those given, else the graph's, else undefined.
Tensor weights_of(const char* op, const Graph& g, const Tensor& given) {
  const Tensor& w = given.defined() ? given : g.weight();
  if (w.defined()) check_weights(op, w, g.num_edges(), g.device());
  return w;
}

// The weight of each node's loop: of its last own loop in the order of `a`, else `fill`.
Tensor loop_weights(const Csr& a, std::int64_t loops, const Tensor& w, double fill) {
  const Device device = a.crow.device();
  const std::int64_t entries = a.entries();
  const Tensor row = gather_csr(arange(a.rows(), device), a);
  // Counted from 1, in f64, which holds every position; 0: none.
  const Tensor place =
      where(eq(a.col.to(DType::i64), row), arange(entries, device) + 1, zeros({}, device, DType::i64)).to(DType::f64);
  const Tensor last = narrow(segment_reduce(place, a, Reduce::max), 0, 0, loops).to(DType::i64);
  return index_select(cat({full({1}, fill, device, w.dtype()), w}), 0, last);
}

// The weights of the pattern with loops.
Tensor looped_weights(const Csr& a, const Looped& looped, const Tensor& w, double fill, DType dtype) {
  const Device device = a.crow.device();
  const bool takes_own = w.defined() && looped.replaced.defined();
  const Tensor loops = takes_own ? loop_weights(a, looped.loops, w, fill) : full({looped.loops}, fill, device, dtype);
  const Tensor edges = w.defined() ? w : ones({a.entries()}, device, dtype);
  const Tensor all = index_select(cat({edges, loops}), 0, looped.origin);
  return looped.replaced.defined() ? masked_fill(all, looped.replaced, 0) : all;
}

// w_e c_s c_d.
Tensor coefficients(const Csr& a, const Tensor& w) {
  const Tensor degree = segment_reduce(w, a), none = le(degree, 0);
  const Tensor c = masked_fill(rsqrt(masked_fill(degree, none, 1)), none, 0);
  return gather_sources(a, c) * w * gather_csr(c, a);
}

SparseMatrix normalised(const Csr& a, const std::optional<Looped>& looped, const Tensor& in_order_weight,
                        const GcnNormOptions& o) {
  const DType dtype = wide(o.dtype, in_order_weight.defined() ? in_order_weight.dtype() : o.dtype);
  const Tensor w = in_order_weight.defined() ? in_order_weight.to(dtype) : Tensor();
  SparseMatrix out{looped ? looped->csr : a, {}};
  const double fill = o.improved ? 2 : 1;
  const Tensor weights = looped        ? looped_weights(a, *looped, w, fill, dtype)
                         : w.defined() ? w
                                       : ones({a.entries()}, a.crow.device(), dtype);
  out.value = coefficients(out.csr, weights).to(o.dtype);
  return out;
}

std::optional<Looped> loops_of(const Graph& g, const GcnNormOptions& o) {
  if (!o.add_self_loops) return std::nullopt;
  return with_self_loops(g.csr());
}

void check_square(const char* op, const Graph& g) {
  if (g.num_src() != g.num_dst())
    fail<ShapeError>(op, ": the graph has ", g.num_src(), " sources and ", g.num_dst(),
                     " destinations, expected as many; bipartite graphs have no symmetric normalisation");
}

const GCNConvOptions& checked(const GCNConvOptions& o) {
  nn::check_size("GCNConv", "in", o.in);
  nn::check_size("GCNConv", "out", o.out);
  if (!o.normalize && o.add_self_loops.value_or(false))
    fail<ConfigError>(
        "GCNConv: add_self_loops is true and normalize is false, expected both; add the loops to the edges");
  return o;
}

}  // namespace

SparseMatrix gcn_norm(const Graph& g, const GcnNormOptions& options, const Tensor& edge_weight) {
  if (!is_float(options.dtype)) fail<DTypeError>("gcn_norm: dtype is ", options.dtype, ", expected a float");
  check_square("gcn_norm", g);
  const Tensor w = weights_of("gcn_norm", g, edge_weight);
  return normalised(g.csr(), loops_of(g, options), w.defined() ? in_order(g, w) : w, options);
}

GCNConv::GCNConv(nn::Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      lin(*this, "lin", {.in = options.in, .out = options.out, .bias = false}),
      bias(options.bias ? nn::Parameter(*this, "bias", {options.out}, nn::constant_value(0)) : nn::Parameter()),
      memo_(std::make_shared<detail::GraphMemo>()) {
  start_glorot(lin);
}

SparseMatrix GCNConv::matrix(const Adj& on, const Tensor& edge_weight) const {
  const Graph* g = on.graph();
  if (!g) {
    if (options.normalize || !edge_weight.defined())
      fail<ConfigError>(
          "GCNConv: a block needs edge_weight and normalize = false, because a sample has no degrees; "
          "give coefficients of gcn_norm, or a graph of the sampled edges");
    check_weights("GCNConv", edge_weight, on.csr().entries(), on.csr().crow.device());
    return {on.csr(), edge_weight.to(dtype())};
  }
  if (options.cached) {
    const std::lock_guard lock(memo_->mutex);
    if (memo_->graph && !memo_->graph->is_same(*g))
      fail<StateError>(
          "GCNConv: the graph is another one than that of the first call, which cached = true keeps; "
          "construct the layer with cached = false");
  }
  const Tensor w = weights_of("GCNConv", *g, edge_weight);
  const GcnNormOptions norm{options.improved, options.add_self_loops.value_or(true), dtype()};
  const bool trained = w.defined() && w.requires_grad() && grad_mode();
  if (!options.normalize) {
    const auto given = [&] { return SparseMatrix{g->csr(), w.defined() ? in_order(*g, w).to(dtype()) : w}; };
    return trained ? given() : *remembered<SparseMatrix>(*memo_, *g, w, dtype(), given);
  }
  if (trained) {
    check_square("GCNConv", *g);
    const auto loops =
        remembered<std::optional<Looped>>(*memo_, *g, Tensor(), dtype(), [&] { return loops_of(*g, norm); });
    return normalised(g->csr(), *loops, in_order(*g, w), norm);
  }
  return *remembered<SparseMatrix>(*memo_, *g, w, dtype(), [&] {
    const NoGrad off;
    return gcn_norm(*g, norm, w);
  });
}

Tensor GCNConv::operator()(const Tensor& x, const Adj& on, const Tensor& edge_weight) const {
  const nn::Call call(*this, x, edge_weight);
  const SparseMatrix a = matrix(on, edge_weight);
  // The product with the graph at the smaller width; of a block first, because it has few destinations.
  const bool first = options.in <= options.out || a.csr.rows() < a.csr.cols;
  const Tensor y = first ? lin(spmm(a.csr, a.value, x)) : spmm(a.csr, a.value, lin(x));
  return call.gives(bias.defined() ? y + bias : y);
}

Tensor GCNConv::operator()(const SparseMatrix& x, const Adj& on, const Tensor& edge_weight) const {
  const nn::Call call(*this, x.value, edge_weight);
  const SparseMatrix a = matrix(on, edge_weight);
  const Tensor y = spmm(a.csr, a.value, spmm(x.csr, x.value, t(lin.weight)));
  return call.gives(bias.defined() ? y + bias : y);
}

}  // namespace levin::gnn
