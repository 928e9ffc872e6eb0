#include "levin/nn/image_layers.h"

#include <cmath>
#include <vector>

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
  if constexpr (requires { o.dilation; }) check_each(layer, "dilation", o.dilation, 1);
}

// Of one, two or three dimensions, `most` at most.
void check_resize(std::string_view layer, const Dims& size, const std::vector<double>& factors, std::size_t most) {
  const bool sized = size.count() != 0;
  if (sized == !factors.empty())
    fail<ConfigError>(layer, ": ", sized ? "both size and scale_factor are" : "neither size nor scale_factor is",
                      " given, expected one of them");
  const std::size_t given = sized ? static_cast<std::size_t>(size.count()) : factors.size();
  if (given > most)
    fail<ConfigError>(layer, ": ", sized ? "size" : "scale_factor", " has ", given, " numbers, expected at most ",
                      most);
  for (const std::int64_t n : size.span()) check_range(layer, "size", n, 1, kMostWindow - 1);
  for (const double f : factors) {
    if (!(f > 0 && std::isfinite(f)))
      fail<ConfigError>(layer, ": scale_factor is ", f, ", expected a finite number above 0");
  }
}
// interpolate takes sequences and volumes by the nearest element, too.
void check_image(std::string_view layer, const Tensor& x) {
  if (x.rank() != 4) fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected [N, C, H, W]");
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
void check_options(const MaxUnpool1dOptions& o) { check_pool("MaxUnpool1d", o); }
void check_options(const MaxUnpool2dOptions& o) { check_pool("MaxUnpool2d", o); }
void check_options(const MaxUnpool3dOptions& o) { check_pool("MaxUnpool3d", o); }
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

AvgPool1d::AvgPool1d(Module& parent, std::string_view name, Options given) : OpModule(parent, name, given) {
  check_no_dilation("AvgPool1d", options.dilation);
}
AvgPool3d::AvgPool3d(Module& parent, std::string_view name, Options given) : OpModule(parent, name, given) {
  check_no_dilation("AvgPool3d", options.dilation);
}

PoolOptions1d pool_options(const Pool1dOptions& o) {
  return {.kernel = o.kernel,
          .stride = o.stride,
          .padding = o.padding,
          .dilation = o.dilation,
          .ceil_mode = o.ceil_mode,
          .count_include_pad = o.count_include_pad};
}
PoolOptions3d pool_options(const Pool3dOptions& o) {
  PoolOptions3d out{.kernel = o.kernel.array(),
                    .padding = o.padding.array(),
                    .dilation = o.dilation.array(),
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

Tensor MaxUnpool1d::operator()(const Tensor& x, const Tensor& indices, std::optional<std::int64_t> output_size) const {
  const MaxUnpoolOptions1d o{
      .kernel = options.kernel, .stride = options.stride, .padding = options.padding, .output_size = output_size};
  return Call(*this, x, indices).gives(max_unpool1d(x, indices, o));
}
Tensor MaxUnpool3d::operator()(const Tensor& x, const Tensor& indices, std::optional<Size3> output_size) const {
  MaxUnpoolOptions3d o{.kernel = options.kernel.array(), .padding = options.padding.array()};
  if (options.stride) o.stride = options.stride->array();
  if (output_size) o.output_size = output_size->array();
  return Call(*this, x, indices).gives(max_unpool3d(x, indices, o));
}

Tensor LPPool2d::operator()(const Tensor& x) const {
  PoolOptions o{.kernel = options.kernel.array(), .ceil_mode = options.ceil_mode};
  if (options.stride) o.stride = options.stride->array();
  return Call(*this, x).gives(lp_pool2d(x, options.p, o));
}

void check_options(const UpsampleOptions& o) {
  check_resize("Upsample", o.size, o.scale_factor, 3);
  using Mode = InterpolateMode;
  if (o.align_corners && (o.mode == Mode::nearest || o.mode == Mode::nearest_exact || o.mode == Mode::area))
    fail<ConfigError>("Upsample: align_corners is true, expected false for nearest, nearest_exact and area");
  if (o.recompute_scale_factor && o.size.count() != 0)
    fail<ConfigError>("Upsample: recompute_scale_factor is true, expected false where size is given");
}
void check_options(const Upsampling2dOptions& o) { check_resize("Upsampling2d", o.size, o.scale_factor, 2); }

Tensor Upsample::operator()(const Tensor& x) const {
  return Call(*this, x).gives(interpolate(x, {.size = options.size,
                                              .scale_factor = options.scale_factor,
                                              .mode = options.mode,
                                              .align_corners = options.align_corners,
                                              .recompute_scale_factor = options.recompute_scale_factor}));
}
Tensor UpsamplingNearest2d::operator()(const Tensor& x) const {
  const Call call(*this, x);
  check_image("UpsamplingNearest2d", x);
  return call.gives(interpolate(x, {.size = options.size, .scale_factor = options.scale_factor}));
}
Tensor UpsamplingBilinear2d::operator()(const Tensor& x) const {
  return Call(*this, x).gives(interpolate(x, {.size = options.size,
                                              .scale_factor = options.scale_factor,
                                              .mode = InterpolateMode::bilinear,
                                              .align_corners = true}));
}

}  // namespace levin::nn
