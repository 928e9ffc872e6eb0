#include "levin/nn/layers.h"
#include "nn/conv_parts.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

const ConvTranspose2dOptions& checked(const ConvTranspose2dOptions& o) {
  check_each("ConvTranspose2d", "output_padding", o.output_padding, 0);
  return checked_conv("ConvTranspose2d", o);
}

template <class O>
WindowOptions window_options(const O& o) {
  return {o.kernel.array(), o.stride.array(), o.padding.array(), o.dilation.array()};
}

}  // namespace

Conv1d::Conv1d(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked_conv("Conv1d", given)),
      weight(*this, "weight", weight_shape(options.out, options.in, options.groups, options.kernel),
             uniform_by_fan(fan_in(weight_shape(options.out, options.in, options.groups, options.kernel)))),
      bias(options.bias ? Parameter(*this, "bias", {options.out}, uniform_by_fan(fan_in(weight.shape())))
                        : Parameter()) {}

Tensor Conv1d::operator()(const Tensor& x) const {
  const Call call(*this, x);
  ConvOptions1d o{.stride = options.stride, .dilation = options.dilation, .groups = options.groups};
  if (options.padding_mode != PadMode::constant)
    return call.gives(conv1d(with_border(x, "Conv1d", options), weight, bias, o));
  o.padding = options.padding;
  o.padding_rule = options.padding_rule;
  return call.gives(conv1d(x, weight, bias, o));
}

Conv2d::Conv2d(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked_conv("Conv2d", given)),
      weight(*this, "weight", weight_shape(options.out, options.in, options.groups, options.kernel),
             uniform_by_fan(fan_in(weight_shape(options.out, options.in, options.groups, options.kernel)))),
      bias(options.bias ? Parameter(*this, "bias", {options.out}, uniform_by_fan(fan_in(weight.shape())))
                        : Parameter()) {}

Tensor Conv2d::operator()(const Tensor& x) const {
  const Call call(*this, x);
  ConvOptions o{.stride = options.stride.array(), .dilation = options.dilation.array(), .groups = options.groups};
  if (options.padding_mode != PadMode::constant)
    return call.gives(conv2d(with_border(x, "Conv2d", options), weight, bias, o));
  o.padding = options.padding.array();
  o.padding_rule = options.padding_rule;
  return call.gives(conv2d(x, weight, bias, o));
}

ConvTranspose2d::ConvTranspose2d(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(*this, "weight", weight_shape(options.in, options.out, options.groups, options.kernel),
             uniform_by_fan(fan_in(weight_shape(options.in, options.out, options.groups, options.kernel)))),
      bias(options.bias ? Parameter(*this, "bias", {options.out}, uniform_by_fan(fan_in(weight.shape())))
                        : Parameter()) {}

Tensor ConvTranspose2d::operator()(const Tensor& x) const {
  const Call call(*this, x);
  return call.gives(conv_transpose2d(x, weight, bias,
                                     {.stride = options.stride.array(),
                                      .padding = options.padding.array(),
                                      .output_padding = options.output_padding.array(),
                                      .dilation = options.dilation.array(),
                                      .groups = options.groups}));
}

void check_options(const LeakyReLUOptions& o) {
  if (!std::isfinite(o.negative_slope))
    fail<ConfigError>("LeakyReLU: negative_slope is ", o.negative_slope, ", expected a finite number");
}
void check_options(const ELUOptions& o) {
  if (!std::isfinite(o.alpha)) fail<ConfigError>("ELU: alpha is ", o.alpha, ", expected a finite number");
}
void check_options(const SoftplusOptions& o) {
  if (!(o.beta > 0 && std::isfinite(o.beta)))
    fail<ConfigError>("Softplus: beta is ", o.beta, ", expected a positive number");
  if (std::isnan(o.threshold)) fail<ConfigError>("Softplus: threshold is ", o.threshold, ", expected a number");
}
void check_options(const SoftmaxOptions& o) { check_range("Softmax", "dim", o.dim, -kMaxRank, kMaxRank - 1); }
void check_options(const FlattenOptions& o) {
  check_range("Flatten", "begin", o.begin, -kMaxRank, kMaxRank - 1);
  check_range("Flatten", "end", o.end, -kMaxRank, kMaxRank - 1);
}
void check_options(const PairwiseDistanceOptions& o) {
  if (!(o.p > 0)) fail<ConfigError>("PairwiseDistance: p is ", o.p, ", expected a number above 0");
}
void check_options(const Pool2dOptions& o) {
  check_each("Pool2d", "kernel", o.kernel, 1);
  if (o.stride) check_each("Pool2d", "stride", *o.stride, 1);
  check_each("Pool2d", "padding", o.padding, 0);
  check_each("Pool2d", "dilation", o.dilation, 1);
  for (std::size_t d = 0; d < 2; ++d) {
    if (o.padding.array()[d] > o.kernel.array()[d] / 2)
      fail<ConfigError>("Pool2d: padding is ", o.padding.array()[d], ", expected at most half the kernel ",
                        o.kernel.array()[d]);
  }
}
void check_options(const AdaptivePool2dOptions& o) {
  for (const std::int64_t v : o.output.array()) check_range("AdaptivePool2d", "output", v, 0, kMostSize);
}
void check_options(const UnfoldOptions& o) { check_windows("Unfold", o); }
void check_options(const FoldOptions& o) {
  check_windows("Fold", o);
  for (const std::int64_t v : o.output.array()) check_range("Fold", "output", v, 1, kMostSize);
}

Tensor PairwiseDistance::operator()(const Tensor& a, const Tensor& b) const {
  const KeepDim keep = options.keepdim ? KeepDim::yes : KeepDim::no;
  return Call(*this, a, b).gives(pairwise_distance(a, b, options.p, options.eps, keep));
}
Tensor Unfold::operator()(const Tensor& x) const { return Call(*this, x).gives(im2col(x, window_options(options))); }
Tensor Fold::operator()(const Tensor& columns) const {
  return Call(*this, columns).gives(col2im(columns, options.output.array(), window_options(options)));
}

AvgPool2d::AvgPool2d(Module& parent, std::string_view name, Options given) : OpModule(parent, name, given) {
  check_no_dilation("AvgPool2d", options.dilation);
}

PoolOptions pool_options(const Pool2dOptions& o) {
  PoolOptions out{.kernel = o.kernel.array(),
                  .padding = o.padding.array(),
                  .dilation = o.dilation.array(),
                  .ceil_mode = o.ceil_mode,
                  .count_include_pad = o.count_include_pad};
  if (o.stride) out.stride = o.stride->array();
  return out;
}

}  // namespace levin::nn
