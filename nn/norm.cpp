#include "autograd/ops/reduce/running_statistics.h"
#include "levin/autograd.h"
#include "levin/nn/layers.h"
#include "nn/options.h"
#include "nn/sync_batch_norm.h"

namespace levin::nn {
namespace {

const BatchNormOptions& checked(const BatchNormOptions& o) {
  check_size("BatchNorm", "features", o.features);
  check_eps("BatchNorm", o.eps);
  if (o.momentum && !(*o.momentum >= 0 && *o.momentum <= 1)) {
    fail<ConfigError>("BatchNorm: momentum is ", *o.momentum,
                      ", expected 0 to 1, or none for the average over batches");
  }
  return o;
}

const GroupNormOptions& checked(const GroupNormOptions& o) {
  check_at_least("GroupNorm", "groups", o.groups, 1);
  check_size("GroupNorm", "features", o.features);
  check_eps("GroupNorm", o.eps);
  if (o.features % o.groups != 0) {
    fail<ConfigError>("GroupNorm: groups is ", o.groups, ", expected a divisor of features ", o.features);
  }
  return o;
}

const RMSNormOptions& checked(const RMSNormOptions& o) {
  check_size("RMSNorm", "features", o.features);
  if (o.eps) check_eps("RMSNorm", *o.eps);
  return o;
}

const InstanceNormOptions& checked(const InstanceNormOptions& o) {
  check_size("InstanceNorm", "features", o.features);
  check_eps("InstanceNorm", o.eps);
  return o;
}

const LayerNormOptions& checked(const LayerNormOptions& o) {
  if (o.shape.count() == 0) fail<ConfigError>("LayerNorm: shape is empty, expected the last dimensions of x");
  if (o.shape.count() > kMaxRank)
    fail<ConfigError>("LayerNorm: shape has ", o.shape.count(), " dimensions, expected at most ", kMaxRank);
  for (const std::int64_t size : o.shape.span()) check_size("LayerNorm", "a size of shape", size);
  check_eps("LayerNorm", o.eps);
  return o;
}

// The ops cannot check this for a layer without parameters.
void check_channels(const char* layer, const Tensor& x, std::int64_t features) {
  if (x.rank() < 2 || x.size(1) != features) {
    fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected ", features, " channels in dimension 1");
  }
}

}  // namespace

// ---- Batch norm

BatchNorm::BatchNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      momentum(options.momentum),
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

void BatchNorm::reset_running_stats() {
  if (!options.track_running_stats) return;
  fill_(running_mean, 0);
  fill_(running_var, 1);
  fill_(num_batches_tracked, 0);
}

Tensor BatchNorm::normalise(const Tensor& x) const {
  const Call call(*this, x);
  check_channels("BatchNorm", x, options.features);
  if (!is_training() && options.track_running_stats) {
    return call.gives(batch_norm_eval(x, weight, bias, running_mean, running_var, options.eps));
  }
  const RunningStatistics running{running_mean, running_var, num_batches_tracked, momentum};
  const bool follows = is_training() && options.track_running_stats;
  if (is_training() && sync_group && sync_group->size() > 1) {
    const BatchNormResult r = sync_batch_norm(x, weight, bias, options.eps, sync_group);
    if (follows) follow_batch(running, r.mean, r.var);
    return call.gives(r.y);
  }
  return call.gives(follows ? batch_norm_train(x, weight, bias, running, options.eps)
                            : batch_norm_train(x, weight, bias, options.eps).y);
}

Tensor BatchNorm::normalise_relu(const Tensor& x, const Tensor& residual) const {
  const bool of_all_ranks = is_training() && sync_group && sync_group->size() > 1;
  // Under Autocast the sum of two dtypes has the wider one.
  const bool of_two_dtypes = residual.defined() && residual.dtype() != x.dtype();
  if (!options.track_running_stats || of_all_ranks || of_two_dtypes) {
    const Tensor y = normalise(x);
    return levin::relu(residual.defined() ? y + residual : y);
  }
  const Call call(*this, x, residual);
  check_channels("BatchNorm", x, options.features);
  if (!is_training() && options.track_running_stats)
    return call.gives(batch_norm_relu_eval(x, weight, bias, running_mean, running_var, residual, options.eps));
  return call.gives(batch_norm_relu_train(x, weight, bias, {running_mean, running_var, num_batches_tracked, momentum},
                                          residual, options.eps));
}

namespace {
void check_lists(const BatchNorm1d& norm, const Tensor& x) {
  if (x.rank() == 2 || x.rank() == 3) return;
  const Call call(norm, x);
  fail<ShapeError>("BatchNorm1d: x has shape ", x.shape(), ", expected [N, C] or [N, C, L]");
}
void check_images(const BatchNorm2d& norm, const Tensor& x) {
  if (x.rank() == 4) return;
  const Call call(norm, x);
  fail<ShapeError>("BatchNorm2d: x has shape ", x.shape(), ", expected [N, C, H, W]");
}
void check_volumes(const BatchNorm3d& norm, const Tensor& x) {
  if (x.rank() == 5) return;
  const Call call(norm, x);
  fail<ShapeError>("BatchNorm3d: x has shape ", x.shape(), ", expected [N, C, D, H, W]");
}
}  // namespace

Tensor BatchNorm1d::operator()(const Tensor& x) const {
  check_lists(*this, x);
  return normalise(x);
}
Tensor BatchNorm1d::relu(const Tensor& x, const Tensor& residual) const {
  check_lists(*this, x);
  return normalise_relu(x, residual);
}
Tensor BatchNorm2d::operator()(const Tensor& x) const {
  check_images(*this, x);
  return normalise(x);
}
Tensor BatchNorm2d::relu(const Tensor& x, const Tensor& residual) const {
  check_images(*this, x);
  return normalise_relu(x, residual);
}
Tensor BatchNorm3d::operator()(const Tensor& x) const {
  check_volumes(*this, x);
  return normalise(x);
}
Tensor BatchNorm3d::relu(const Tensor& x, const Tensor& residual) const {
  check_volumes(*this, x);
  return normalise_relu(x, residual);
}

// ---- The others

LayerNorm::LayerNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(options.affine ? Parameter(*this, "weight", Shape(options.shape.span()), constant_value(1)) : Parameter()),
      bias(options.affine && options.bias ? Parameter(*this, "bias", Shape(options.shape.span()), constant_value(0))
                                          : Parameter()) {}
namespace {
// The op normalises over the dimensions of its weight.
Tensor weight_of(const LayerNorm& norm) {
  if (norm.weight.defined()) return norm.weight;
  return ones(Shape(norm.options.shape.span()), norm.device(), norm.dtype());
}
}  // namespace
Tensor LayerNorm::operator()(const Tensor& x) const {
  const Call call(*this, x);
  return call.gives(layer_norm(x, weight_of(*this), bias, options.eps));
}
AddNorm LayerNorm::operator()(const Tensor& x, const Tensor& r) const {
  const Call call(*this, x, r);
  const AddNorm y = add_layer_norm(x, r, weight_of(*this), bias, options.eps);
  call.gave(y.sum, y.normed);
  return y;
}

RMSNorm::RMSNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name), options(checked(given)), weight(*this, "weight", {options.features}, constant_value(1)) {}
Tensor RMSNorm::operator()(const Tensor& x) const { return Call(*this, x).gives(rms_norm(x, weight, options.eps)); }
AddNorm RMSNorm::operator()(const Tensor& x, const Tensor& r) const {
  const Call call(*this, x, r);
  const AddNorm y = add_rms_norm(x, r, weight, options.eps);
  call.gave(y.sum, y.normed);
  return y;
}

GroupNorm::GroupNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(options.affine ? Parameter(*this, "weight", {options.features}, constant_value(1)) : Parameter()),
      bias(options.affine ? Parameter(*this, "bias", {options.features}, constant_value(0)) : Parameter()) {}
Tensor GroupNorm::operator()(const Tensor& x) const {
  const Call call(*this, x);
  check_channels("GroupNorm", x, options.features);
  return call.gives(group_norm(x, options.groups, weight, bias, options.eps));
}

InstanceNorm::InstanceNorm(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(options.affine ? Parameter(*this, "weight", {options.features}, constant_value(1)) : Parameter()),
      bias(options.affine ? Parameter(*this, "bias", {options.features}, constant_value(0)) : Parameter()) {}
Tensor InstanceNorm::normalise(const Tensor& x, const char* layer, int rank, const char* shape) const {
  const Call call(*this, x);
  if (x.rank() != rank) fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected ", shape);
  check_channels(layer, x, options.features);
  return call.gives(group_norm(x, options.features, weight, bias, options.eps));
}
Tensor InstanceNorm1d::operator()(const Tensor& x) const { return normalise(x, "InstanceNorm1d", 3, "[N, C, L]"); }
Tensor InstanceNorm2d::operator()(const Tensor& x) const { return normalise(x, "InstanceNorm2d", 4, "[N, C, H, W]"); }
Tensor InstanceNorm3d::operator()(const Tensor& x) const {
  return normalise(x, "InstanceNorm3d", 5, "[N, C, D, H, W]");
}

}  // namespace levin::nn
