#include <string>

#include "levin/ops.h"
#include "nn/graph/init.h"

namespace levin::gnn {
namespace {

template <class Conv>
constexpr bool kAttends = std::is_same_v<Conv, GATConv> || std::is_same_v<Conv, GATv2Conv>;

template <class Conv>
const StackOptions<Conv>& checked(const StackOptions<Conv>& o) {
  nn::check_size("Stack", "in", o.in);
  nn::check_size("Stack", "hidden", o.hidden);
  nn::check_at_least("Stack", "layers", o.layers, 1);
  if (o.out) nn::check_size("Stack", "out", *o.out);
  return o;
}

// Options of a layer; the last one gives the stack's output where nothing follows it.
template <class Conv>
typename Conv::Options layer_options(const StackOptions<Conv>& o, std::int64_t in, std::int64_t out, bool last) {
  typename Conv::Options c = o.conv;
  if constexpr (std::is_same_v<Conv, GINConv>) {
    c.mlp.channels = {in, out, out};
    c.mlp.act = o.act;
    c.mlp.act_first = o.act_first;
    c.mlp.norm = o.norm;
  } else {
    c.in = in;
    c.out = out;
  }
  if constexpr (kAttends<Conv>) {
    c.dropout = o.dropout;
    if (last && o.out && !o.jk) c.concat = false;
    if (c.concat) {
      nn::check_at_least("Stack", "heads", c.heads, 1);
      if (out % c.heads != 0)
        fail<ConfigError>("Stack: ", out, " features and ", c.heads,
                          " heads, expected a divisor, because concat gives "
                          "each head its part");
      c.out = out / c.heads;
    }
  }
  return c;
}

}  // namespace

Tensor jumping_knowledge(std::span<const Tensor> xs, Jumping mode) {
  if (xs.empty()) fail<ShapeError>("jumping_knowledge: there are no tensors, expected one of each layer");
  if (mode == Jumping::last) return xs.back();
  if (mode == Jumping::cat) return cat(xs, -1);
  Tensor y = xs[0];
  // The first of equal elements gets the gradient, and NaN wins.
  for (std::size_t i = 1; i < xs.size(); ++i) y = where(logical_or(gt(xs[i], y), ne(xs[i], xs[i])), xs[i], y);
  return y;
}

template <class Conv>
Stack<Conv>::Stack(nn::Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      convs(*this, "convs"),
      norms(*this, "norms"),
      lin(linear_if(options.jk.has_value(), *this, "lin",
                    {options.jk == Jumping::cat ? options.layers * options.hidden : options.hidden,
                     options.out.value_or(options.hidden)})),
      dropout_(*this, "dropout", {.p = options.dropout}) {
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const bool last = i + 1 == options.layers;
    const std::int64_t out = last && !options.jk ? options.out.value_or(options.hidden) : options.hidden;
    convs.add(layer_options<Conv>(options, i == 0 ? options.in : options.hidden, out, last));
    if (options.norm == Norm::batch_norm && (!last || options.jk)) norms.add({.features = options.hidden});
  }
}

template <class Conv>
template <class Apply>
Tensor Stack<Conv>::run(Tensor first, Apply&& apply_conv) const {
  Tensors all;
  Tensor x = std::move(first);
  for (std::int64_t i = 0; i < options.layers; ++i) {
    if (i > 0) x = apply_conv(i, x);
    if (i + 1 == options.layers && !options.jk) break;
    if (options.act && options.act_first) x = options.act(x);
    if (norms.size() > 0) x = norms[i](x);
    if (options.act && !options.act_first) x = options.act(x);
    x = dropout_(x);
    if (options.jk) all.push_back(x);
  }
  return lin ? (*lin)(jumping_knowledge(all, *options.jk)) : x;
}

template <class Conv>
Tensor Stack<Conv>::operator()(const Tensor& x, const Graph& g, const Tensor& edge_weight) const {
  const nn::Call call(*this, x, edge_weight);
  const auto layer = [&](std::int64_t i, const Tensor& h) -> Tensor {
    if constexpr (std::is_same_v<Conv, GCNConv>) {
      return convs[i](h, g, edge_weight);
    } else {
      if (edge_weight.defined())
        fail<ConfigError>("Stack: edge_weight is given, and ", type_name(), " has no use of it");
      return convs[i](h, g);
    }
  };
  return call.gives(run(layer(0, x), layer));
}

template <class Conv>
Tensor Stack<Conv>::operator()(const SparseMatrix& x, const Graph& g,
                               const Tensor& edge_weight) const requires std::same_as<Conv, GCNConv> {
  const nn::Call call(*this, x.value, edge_weight);
  const auto layer = [&](std::int64_t i, const Tensor& h) { return convs[i](h, g, edge_weight); };
  return call.gives(run(convs[0](x, g, edge_weight), layer));
}

template <class Conv>
Tensor Stack<Conv>::operator()(const Tensor& x, std::span<const Block> blocks) const {
  const nn::Call call(*this, x);
  if (static_cast<std::int64_t>(blocks.size()) != options.layers)
    fail<ShapeError>("Stack: there are ", blocks.size(), " blocks, expected ", options.layers, ", one for each layer");
  const auto layer = [&](std::int64_t i, const Tensor& h) { return convs[i](h, blocks[static_cast<std::size_t>(i)]); };
  return call.gives(run(layer(0, x), layer));
}

template class Stack<GCNConv>;
template class Stack<SAGEConv>;
template class Stack<GINConv>;
template class Stack<GATConv>;
template class Stack<GATv2Conv>;

}  // namespace levin::gnn
