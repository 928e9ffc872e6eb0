#include "levin/autograd.h"
#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

const BatchNormOptions& checked(const BatchNormOptions& o) {
  check_at_least("BatchNorm", "features", o.features, 1);
  if (o.momentum && !(*o.momentum >= 0 && *o.momentum <= 1)) {
    fail<ConfigError>("BatchNorm: momentum is ", *o.momentum,
                      ", expected 0 to 1, or none for the average over batches");
  }
  return o;
}

const GroupNormOptions& checked(const GroupNormOptions& o) {
  check_at_least("GroupNorm", "groups", o.groups, 1);
  check_at_least("GroupNorm", "features", o.features, 1);
  if (o.features % o.groups != 0) {
    fail<ConfigError>("GroupNorm: groups is ", o.groups, ", expected a divisor of features ", o.features);
  }
  return o;
}

const RMSNormOptions& checked(const RMSNormOptions& o) {
  check_at_least("RMSNorm", "features", o.features, 1);
  return o;
}

const InstanceNorm2dOptions& checked(const InstanceNorm2dOptions& o) {
  check_at_least("InstanceNorm2d", "features", o.features, 1);
  return o;
}

const LayerNormOptions& checked(const LayerNormOptions& o) {
  if (o.shape.count() == 0) fail<ConfigError>("LayerNorm: shape is empty, expected the last dimensions of x");
  return o;
}

// An absent scale is 1, an absent shift 0.
Tensor or_constant(const Module& m, const Tensor& parameter, const Shape& shape, double value) {
  return parameter.defined() ? parameter : full(shape, value, m.device(), m.dtype());
}

}  // namespace

// ---- Batch norm

BatchNorm::BatchNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(options.affine ? Parameter(*this, "weight", {options.features}, constant_value(1)) : Parameter()),
      bias(options.affine ? Parameter(*this, "bias", {options.features}, constant_value(0)) : Parameter()),
      running_mean(options.track_running_stats
                       ? Buffer(*this, "running_mean", zeros({options.features}, device(), dtype()))
                       : Buffer()),
      running_var(options.track_running_stats
                      ? Buffer(*this, "running_var", ones({options.features}, device(), dtype()))
                      : Buffer()),
      num_batches_tracked(options.track_running_stats
                              ? Buffer(*this, "num_batches_tracked", zeros({}, device(), DType::i64))
                              : Buffer()) {}

Tensor BatchNorm::normalise(const Tensor& x) const {
  if (x.size(1) != options.features) {
    fail<ShapeError>("BatchNorm: x has shape ", x.shape(), ", expected ", options.features, " channels in dimension 1");
  }
  const Tensor w = or_constant(*this, weight, {options.features}, 1),
               b = or_constant(*this, bias, {options.features}, 0);
  if (!is_training() && options.track_running_stats) {
    return batch_norm_eval(x, w, b, running_mean, running_var, options.eps);
  }
  const BatchNormResult r = batch_norm_train(x, w, b, options.eps);
  if (is_training() && options.track_running_stats) {
    NoGrad off;
    copy_(num_batches_tracked, num_batches_tracked + 1);
    const auto follow = [&](Tensor& running, const Tensor& now) {
      const Tensor statistic = now.to(running.dtype());
      if (options.momentum) {
        mul_(running, 1 - *options.momentum);
        add_(running, statistic, *options.momentum);
      } else {
        // The count stays on the device: no wait, and a captured step keeps counting.
        copy_(running, running + (statistic - running) / num_batches_tracked.to(running.dtype()));
      }
    };
    follow(running_mean, r.mean);
    follow(running_var, r.var);
  }
  return r.y;
}

Tensor BatchNorm1d::operator()(const Tensor& x) const {
  if (x.rank() != 2 && x.rank() != 3) {
    fail<ShapeError>("BatchNorm1d: x has shape ", x.shape(), ", expected [N, C] or [N, C, L]");
  }
  return normalise(x);
}
Tensor BatchNorm2d::operator()(const Tensor& x) const {
  if (x.rank() != 4) fail<ShapeError>("BatchNorm2d: x has shape ", x.shape(), ", expected [N, C, H, W]");
  return normalise(x);
}

// ---- The others

LayerNorm::LayerNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(options.affine ? Parameter(*this, "weight", Shape(options.shape.span()), constant_value(1)) : Parameter()),
      bias(options.affine && options.bias ? Parameter(*this, "bias", Shape(options.shape.span()), constant_value(0))
                                          : Parameter()) {}
Tensor LayerNorm::operator()(const Tensor& x) const {
  const Shape shape(options.shape.span());
  return layer_norm(x, or_constant(*this, weight, shape, 1), or_constant(*this, bias, shape, 0), options.eps);
}

RMSNorm::RMSNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name), options(checked(given)), weight(*this, "weight", {options.features}, constant_value(1)) {}
Tensor RMSNorm::operator()(const Tensor& x) const { return rms_norm(x, weight, options.eps); }

GroupNorm::GroupNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(options.affine ? Parameter(*this, "weight", {options.features}, constant_value(1)) : Parameter()),
      bias(options.affine ? Parameter(*this, "bias", {options.features}, constant_value(0)) : Parameter()) {}
Tensor GroupNorm::operator()(const Tensor& x) const {
  const Shape shape{options.features};
  return group_norm(x, options.groups, or_constant(*this, weight, shape, 1), or_constant(*this, bias, shape, 0),
                    options.eps);
}

InstanceNorm2d::InstanceNorm2d(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(options.affine ? Parameter(*this, "weight", {options.features}, constant_value(1)) : Parameter()),
      bias(options.affine ? Parameter(*this, "bias", {options.features}, constant_value(0)) : Parameter()) {}
Tensor InstanceNorm2d::operator()(const Tensor& x) const {
  if (x.rank() != 4) fail<ShapeError>("InstanceNorm2d: x has shape ", x.shape(), ", expected [N, C, H, W]");
  const Shape shape{options.features};
  return group_norm(x, options.features, or_constant(*this, weight, shape, 1), or_constant(*this, bias, shape, 0),
                    options.eps);
}

}  // namespace levin::nn
