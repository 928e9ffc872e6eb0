#include "levin/autograd.h"
#include "levin/ops.h"
#include "nn/graph/init.h"

namespace levin::gnn {
namespace {

const MLPOptions& checked(const MLPOptions& o) {
  if (o.channels.size() < 2)
    fail<ConfigError>("MLP: channels has ", o.channels.size(), " numbers, expected at least 2, in and out");
  for (const std::int64_t c : o.channels) nn::check_size("MLP", "a number of channels", c);
  nn::check_probability("MLP", "dropout", o.dropout);
  return o;
}

}  // namespace

BatchNorm::BatchNorm(nn::Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(given),
      module(*this, "module",
             {.features = given.features,
              .eps = given.eps,
              .momentum = given.momentum,
              .affine = given.affine,
              .track_running_stats = given.track_running_stats}) {
  if (options.allow_single_element && !options.track_running_stats)
    fail<ConfigError>("BatchNorm: allow_single_element needs track_running_stats, whose statistics it takes");
}

Tensor BatchNorm::operator()(const Tensor& x) const {
  const nn::Call call(*this, x);
  if (x.rank() == 2 && x.size(0) == 1 && is_training()) {
    if (!options.allow_single_element)
      fail<ShapeError>("BatchNorm: x has shape ", x.shape(),
                       ", expected more than one row in training; evaluate, or "
                       "set allow_single_element");
    return call.gives(
        batch_norm_eval(x, module.weight, module.bias, module.running_mean, module.running_var, options.eps));
  }
  return call.gives(module(x));
}

MLP::MLP(nn::Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      lins(*this, "lins"),
      norms(*this, "norms"),
      dropout_(*this, "dropout", {.p = options.dropout}) {
  const std::vector<std::int64_t>& c = options.channels;
  for (std::size_t i = 0; i + 1 < c.size(); ++i) {
    lins.add({.in = c[i], .out = c[i + 1], .bias = options.bias});
    const bool plain = options.plain_last && i + 2 == c.size();
    if (options.norm == Norm::batch_norm && !plain) norms.add({.features = c[i + 1]});
  }
}

Tensor MLP::operator()(const Tensor& x) const {
  const nn::Call call(*this, x);
  Tensor y = x;
  for (std::int64_t i = 0; i < lins.size(); ++i) {
    y = lins[i](y);
    if (options.plain_last && i + 1 == lins.size()) break;
    if (options.act && options.act_first) y = options.act(y);
    if (norms.size() > 0) y = norms[i](y);
    if (options.act && !options.act_first) y = options.act(y);
    y = dropout_(y);
  }
  return call.gives(y);
}

GINConvBase::GINConvBase(nn::Module& parent, std::string_view name, double eps, bool train_eps)
    : Module(parent, name),
      trained_eps_(train_eps ? nn::Parameter(*this, "eps", {1}, nn::constant_value(eps)) : nn::Parameter()),
      fixed_eps_(train_eps ? nn::Buffer() : nn::Buffer(*this, "eps", full({1}, eps, device(), dtype()))) {}

const Tensor& GINConvBase::eps() const {
  if (trained_eps_.defined()) return trained_eps_;
  return fixed_eps_;
}

Tensor GINConvBase::aggregate(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
  const Tensor y = spmm(on.csr(), {}, x_src);
  if (!x_dst.defined()) return y;
  return y + x_dst * (eps() + 1);
}

GINConv::GINConv(nn::Module& parent, std::string_view name, Options given)
    : GINConvBase(parent, name, given.eps, given.train_eps), options(given), mlp(*this, "nn", given.mlp) {}

Tensor GINConv::operator()(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
  const nn::Call call(*this, x_src, x_dst);
  return call.gives(mlp(aggregate(x_src, x_dst, on)));
}

}  // namespace levin::gnn
