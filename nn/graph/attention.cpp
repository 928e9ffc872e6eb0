#include <limits>

#include "levin/ops.h"
#include "nn/graph/init.h"
#include "nn/graph/loops.h"

namespace levin::gnn {
namespace {

// The edges of a layer with attention.
struct Edges {
  Csr csr{};
  Tensor replaced{};  // of Looped
};

Edges edges_of(const Csr& a, bool add_self_loops) {
  if (!add_self_loops) return {.csr = a};
  Looped looped = with_self_loops(a);
  return {std::move(looped.csr), std::move(looped.replaced)};
}
std::shared_ptr<const Edges> edges_of(const Adj& on, bool add_self_loops, detail::GraphMemo& memo) {
  if (const Graph* g = on.graph())
    return remembered<Edges>(memo, *g, Tensor(), DType::f32, [&] { return edges_of(g->csr(), add_self_loops); });
  return std::make_shared<const Edges>(edges_of(on.csr(), add_self_loops));
}

template <class Options>
const Options& checked(const char* layer, const Options& o) {
  nn::check_size(layer, "in.src", o.in.src);
  nn::check_size(layer, "in.dst", o.in.dst);
  nn::check_size(layer, "out", o.out);
  nn::check_size(layer, "heads", o.heads);
  nn::check_size(layer, "heads * out", o.heads * o.out);
  nn::check_probability(layer, "dropout", o.dropout);
  return o;
}

template <class Options>
std::int64_t outputs(const Options& o) {
  return o.concat ? o.heads * o.out : o.out;
}
template <class Options>
nn::Parameter bias_of(const Options& o, nn::Module& owner) {
  return o.bias ? nn::Parameter(owner, "bias", {outputs(o)}, nn::constant_value(0)) : nn::Parameter();
}

Tensor by_heads(const Tensor& x, std::int64_t heads, std::int64_t width) {
  return reshape(x, {x.size(0), heads, width});
}

// Attention of scores [E, H], and what follows it: dropout, the weighted sum, heads as one, residual and bias.
template <class Layer>
AttentionResult attended(const Layer& layer, const Edges& e, Tensor scores, const Tensor& h, const Tensor& x_dst,
                         bool drops, Generator& generator) {
  const auto& o = layer.options;
  if (e.replaced.defined())
    scores = masked_fill(scores, unsqueeze(e.replaced, 1), -std::numeric_limits<double>::infinity());
  AttentionResult r{.csr = e.csr, .alpha = segment_softmax(scores, e.csr)};
  if (drops && o.dropout > 0) r.alpha = dropout(r.alpha, o.dropout, generator);
  const Tensor y = spmm(e.csr, r.alpha, h);  // [N, H, C]
  r.y = o.concat || o.heads == 1 ? reshape(y, {y.size(0), o.heads * o.out}) : mean(y, {1});
  if (layer.res && x_dst.defined()) r.y = r.y + (*layer.res)(x_dst);
  if (layer.bias.defined()) r.y = r.y + layer.bias;
  return r;
}

}  // namespace

// ---- GAT

GATConv::GATConv(nn::Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked("GATConv", given)),
      lin(linear_if(!options.in.pair, *this, "lin", {options.in.src, options.heads * options.out, false})),
      lin_src(linear_if(options.in.pair, *this, "lin_src", {options.in.src, options.heads * options.out, false})),
      lin_dst(linear_if(options.in.pair, *this, "lin_dst", {options.in.dst, options.heads * options.out, false})),
      att_src(*this, "att_src", {1, options.heads, options.out}, glorot()),
      att_dst(*this, "att_dst", {1, options.heads, options.out}, glorot()),
      res(linear_if(options.residual, *this, "res", {options.in.dst, outputs(options), false})),
      bias(bias_of(options, *this)),
      generator_(*this, "generator"),
      memo_(std::make_shared<detail::GraphMemo>()) {
  for (std::optional<nn::Linear>* layer : {&lin, &lin_src, &lin_dst, &res})
    if (*layer) start_glorot(**layer);
}

AttentionResult GATConv::attend_heads(const Tensor& h_src, const Tensor& h_dst, const Tensor& x_dst,
                                      const Adj& on) const {
  const auto e = edges_of(on, options.add_self_loops, *memo_);
  const Tensor u = sum(h_src * att_src, {2});
  const Tensor scores = h_dst.defined() ? edge_scores(e->csr, u, sum(h_dst * att_dst, {2}), options.negative_slope)
                                        : leaky_relu(gather_sources(e->csr, u), options.negative_slope);
  return attended(*this, *e, scores, h_src, x_dst, is_training(), generator_);
}

AttentionResult GATConv::attend(const Tensor& x, const Adj& on) const {
  const nn::Call call(*this, x);
  const Tensor x_dst = on.destinations(x);
  const std::int64_t heads = options.heads, width = options.out;
  const Tensor h = by_heads(lin ? (*lin)(x) : (*lin_src)(x), heads, width);
  const Tensor h_dst = lin ? on.destinations(h) : by_heads((*lin_dst)(x_dst), heads, width);
  AttentionResult r = attend_heads(h, h_dst, x_dst, on);
  call.gave(r.y);
  return r;
}

AttentionResult GATConv::attend(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
  const nn::Call call(*this, x_src, x_dst);
  const std::int64_t heads = options.heads, width = options.out;
  const Tensor h = by_heads((lin ? *lin : *lin_src)(x_src), heads, width);
  const Tensor h_dst = x_dst.defined() ? by_heads((lin ? *lin : *lin_dst)(x_dst), heads, width) : Tensor();
  AttentionResult r = attend_heads(h, h_dst, x_dst, on);
  call.gave(r.y);
  return r;
}

// ---- GATv2

GATv2Conv::GATv2Conv(nn::Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked("GATv2Conv", given)),
      lin_l(*this, "lin_l", {.in = options.in.src, .out = options.heads * options.out, .bias = options.bias}),
      lin_r(linear_if(!options.share_weights, *this, "lin_r",
                      {options.in.dst, options.heads * options.out, options.bias})),
      att(*this, "att", {1, options.heads, options.out}, glorot()),
      res(linear_if(options.residual, *this, "res", {options.in.dst, outputs(options), false})),
      bias(bias_of(options, *this)),
      generator_(*this, "generator"),
      memo_(std::make_shared<detail::GraphMemo>()) {
  if (options.share_weights && options.in.src != options.in.dst)
    fail<ConfigError>("GATv2Conv: share_weights is true with in {", options.in.src, ", ", options.in.dst,
                      "}, expected one width for both sides");
  start_glorot(lin_l);
  for (std::optional<nn::Linear>* layer : {&lin_r, &res})
    if (*layer) start_glorot(**layer);
}

AttentionResult GATv2Conv::attend(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
  const nn::Call call(*this, x_src, x_dst);
  const std::int64_t heads = options.heads, width = options.out;
  const auto e = edges_of(on, options.add_self_loops, *memo_);
  const Tensor l = by_heads(lin_l(x_src), heads, width);
  const bool same = !lin_r && x_src.impl() == x_dst.impl();
  const Tensor r = same ? l : by_heads((lin_r ? *lin_r : lin_l)(x_dst), heads, width);
  const Tensor scores = gatv2_scores(e->csr, l, r, reshape(att, {heads, width}), options.negative_slope);
  AttentionResult out = attended(*this, *e, scores, l, x_dst, is_training(), generator_);
  call.gave(out.y);
  return out;
}

}  // namespace levin::gnn
