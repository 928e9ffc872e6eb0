#include "levin/nn/image_layers.h"

#include "nn/conv_parts.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

template <class O>
const O& checked_transpose(std::string_view layer, const O& o) {
  check_each(layer, "output_padding", o.output_padding, 0);
  return checked_conv(layer, o);
}

// The weight of a convolution, from a to b channels of its dimensions 0 and 1.
template <class O>
Parameter weight_of(Module& layer, std::int64_t a, std::int64_t b, const O& o) {
  const Shape shape = weight_shape(a, b, o.groups, o.kernel);
  return {layer, "weight", shape, uniform_by_fan(fan_in(shape))};
}
template <class O>
Parameter bias_of(Module& layer, const O& o, const Parameter& weight) {
  return o.bias ? Parameter(layer, "bias", {o.out}, uniform_by_fan(fan_in(weight.shape()))) : Parameter();
}

template <class O>
void check_pool(std::string_view layer, const O& o) {
  check_each(layer, "kernel", o.kernel, 1);
  if (o.stride) check_each(layer, "stride", *o.stride, 1);
  if constexpr (requires { o.padding; }) {
    check_each(layer, "padding", o.padding, 0);
    const auto kernel = numbers(o.kernel), padding = numbers(o.padding);
    for (std::size_t i = 0; i < kernel.size(); ++i) {
      if (padding[i] > kernel[i] / 2)
        fail<ConfigError>(layer, ": padding is ", padding[i], ", expected at most half the kernel ", kernel[i]);
    }
  }
}

}  // namespace

Conv3d::Conv3d(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked_conv("Conv3d", given)),
      weight(weight_of(*this, options.out, options.in, options)),
      bias(bias_of(*this, options, weight)) {}

Tensor Conv3d::operator()(const Tensor& x) const {
  const Call call(*this, x);
  ConvOptions3d o{.stride = options.stride.array(), .dilation = options.dilation.array(), .groups = options.groups};
  if (options.padding_mode != PadMode::constant)
    return call.gives(conv3d(with_border(x, "Conv3d", options), weight, bias, o));
  o.padding = options.padding.array();
  o.padding_rule = options.padding_rule;
  return call.gives(conv3d(x, weight, bias, o));
}

ConvTranspose1d::ConvTranspose1d(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked_transpose("ConvTranspose1d", given)),
      weight(weight_of(*this, options.in, options.out, options)),
      bias(bias_of(*this, options, weight)) {}

Tensor ConvTranspose1d::operator()(const Tensor& x) const {
  return Call(*this, x).gives(conv_transpose1d(x, weight, bias,
                                               {.stride = options.stride,
                                                .padding = options.padding,
                                                .output_padding = options.output_padding,
                                                .dilation = options.dilation,
                                                .groups = options.groups}));
}

ConvTranspose3d::ConvTranspose3d(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked_transpose("ConvTranspose3d", given)),
      weight(weight_of(*this, options.in, options.out, options)),
      bias(bias_of(*this, options, weight)) {}

Tensor ConvTranspose3d::operator()(const Tensor& x) const {
  return Call(*this, x).gives(conv_transpose3d(x, weight, bias,
                                               {.stride = options.stride.array(),
                                                .padding = options.padding.array(),
                                                .output_padding = options.output_padding.array(),
                                                .dilation = options.dilation.array(),
                                                .groups = options.groups}));
}

void check_options(const Pool1dOptions& o) { check_pool("Pool1d", o); }
void check_options(const Pool3dOptions& o) { check_pool("Pool3d", o); }
void check_options(const AdaptivePool1dOptions& o) { check_range("AdaptivePool1d", "output", o.output, 0, kMostSize); }
void check_options(const AdaptivePool3dOptions& o) {
  for (const std::int64_t v : o.output.array()) check_range("AdaptivePool3d", "output", v, 0, kMostSize);
}
void check_options(const MaxUnpool2dOptions& o) { check_pool("MaxUnpool2d", o); }
void check_options(const LPPool2dOptions& o) {
  check_pool("LPPool2d", o);
  if (!(o.p > 0 && std::isfinite(o.p))) fail<ConfigError>("LPPool2d: p is ", o.p, ", expected a number above 0");
}
void check_options(const PixelShuffleOptions& o) {
  check_range("PixelShuffle", "upscale_factor", o.upscale_factor, 1, 1 << 20);
}
void check_options(const PixelUnshuffleOptions& o) {
  check_range("PixelUnshuffle", "downscale_factor", o.downscale_factor, 1, 1 << 20);
}
void check_options(const ChannelShuffleOptions& o) { check_range("ChannelShuffle", "groups", o.groups, 1, kMostSize); }

PoolOptions1d pool_options(const Pool1dOptions& o) {
  return {.kernel = o.kernel,
          .stride = o.stride,
          .padding = o.padding,
          .ceil_mode = o.ceil_mode,
          .count_include_pad = o.count_include_pad};
}
PoolOptions3d pool_options(const Pool3dOptions& o) {
  PoolOptions3d out{.kernel = o.kernel.array(),
                    .padding = o.padding.array(),
                    .ceil_mode = o.ceil_mode,
                    .count_include_pad = o.count_include_pad};
  if (o.stride) out.stride = o.stride->array();
  return out;
}

Tensor MaxUnpool2d::operator()(const Tensor& x, const Tensor& indices, std::optional<Size2> output_size) const {
  MaxUnpoolOptions o{.kernel = options.kernel.array(), .padding = options.padding.array()};
  if (options.stride) o.stride = options.stride->array();
  if (output_size) o.output_size = output_size->array();
  return Call(*this, x, indices).gives(max_unpool2d(x, indices, o));
}

Tensor LPPool2d::operator()(const Tensor& x) const {
  PoolOptions o{.kernel = options.kernel.array(), .ceil_mode = options.ceil_mode};
  if (options.stride) o.stride = options.stride->array();
  return Call(*this, x).gives(lp_pool2d(x, options.p, o));
}

}  // namespace levin::nn
