// Layers on sequences [N, C, L] and volumes [N, C, D, H, W], and more of those on images: names, defaults and states
// are PyTorch's. Constructors throw ConfigError for options out of range; calls throw what their op throws.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "levin/nn/layers.h"

namespace levin::nn {

// A size along depth, height and width: one number for all, or {d, h, w}.
class Size3 {
 public:
  constexpr Size3(std::int64_t all) : dhw_{all, all, all} {}
  constexpr Size3(std::int64_t d, std::int64_t h, std::int64_t w) : dhw_{d, h, w} {}
  [[nodiscard]] constexpr const std::array<std::int64_t, 3>& array() const { return dhw_; }

 private:
  std::array<std::int64_t, 3> dhw_;
};

// ---- Convolution. Weights and biases start as those of Conv2d (levin/nn/layers.h).

struct Conv3dOptions {
  std::int64_t in = 0, out = 0;
  Size3 kernel = 0;
  Size3 stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  PaddingRule padding_rule = PaddingRule::given;  // as in Conv1dOptions
  PadMode padding_mode = PadMode::constant;
};
// conv3d: [N, in, D, H, W] -> [N, out, D', H', W'], each size as L' of Conv1d. weight [out, in / groups, kD, kH, kW],
// bias [out].
class LEVIN_API Conv3d : public Module {
 public:
  using Options = Conv3dOptions;
  Conv3d(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

struct ConvTranspose1dOptions {
  std::int64_t in = 0, out = 0, kernel = 0;
  std::int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
  bool bias = true;
};
// conv_transpose1d: [N, in, L] -> [N, out, L'], L' as H' of ConvTranspose2d. weight [in, out / groups, kernel], bias
// [out].
class LEVIN_API ConvTranspose1d : public Module {
 public:
  using Options = ConvTranspose1dOptions;
  ConvTranspose1d(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

struct ConvTranspose3dOptions {
  std::int64_t in = 0, out = 0;
  Size3 kernel = 0;
  Size3 stride = 1, padding = 0, output_padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};
// conv_transpose3d: [N, in, D, H, W] -> [N, out, D', H', W'], each size as H' of ConvTranspose2d. weight
// [in, out / groups, kD, kH, kW], bias [out].
class LEVIN_API ConvTranspose3d : public Module {
 public:
  using Options = ConvTranspose3dOptions;
  ConvTranspose3d(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

// ---- Pooling

struct Pool1dOptions {
  std::int64_t kernel = 2;
  std::optional<std::int64_t> stride{};  // default: the kernel
  std::int64_t padding = 0;              // at most half the kernel
  std::int64_t dilation = 1;             // max pooling
  bool ceil_mode = false;                // as in PoolOptions
  bool count_include_pad = true;         // average pooling
};
LEVIN_API void check_options(const Pool1dOptions& options);                        // throws ConfigError
[[nodiscard]] LEVIN_API PoolOptions1d pool_options(const Pool1dOptions& options);  // as the ops take them
// max_pool1d and avg_pool1d: [N, C, L] -> [N, C, L'].
class MaxPool1d : public OpModule<Pool1dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(max_pool1d(x, pool_options(options))); }
  // max_pool1d_with_indices, for MaxUnpool1d.
  [[nodiscard]] ValuesIndices with_indices(const Tensor& x) const {
    const Call call(*this, x);
    ValuesIndices y = max_pool1d_with_indices(x, pool_options(options));
    call.gave(y.values, y.indices);
    return y;
  }
};
class AvgPool1d : public OpModule<Pool1dOptions> {
 public:
  LEVIN_API AvgPool1d(Module& parent, std::string_view name, Options given = {});  // ConfigError for a dilation
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(avg_pool1d(x, pool_options(options))); }
};

struct Pool3dOptions {  // as Pool1dOptions
  Size3 kernel = 2;
  std::optional<Size3> stride{};
  Size3 padding = 0;
  Size3 dilation = 1;
  bool ceil_mode = false;
  bool count_include_pad = true;
};
LEVIN_API void check_options(const Pool3dOptions& options);                        // throws ConfigError
[[nodiscard]] LEVIN_API PoolOptions3d pool_options(const Pool3dOptions& options);  // as the ops take them
// max_pool3d and avg_pool3d: [N, C, D, H, W] -> [N, C, D', H', W'].
class MaxPool3d : public OpModule<Pool3dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(max_pool3d(x, pool_options(options))); }
  // max_pool3d_with_indices, for MaxUnpool3d.
  [[nodiscard]] ValuesIndices with_indices(const Tensor& x) const {
    const Call call(*this, x);
    ValuesIndices y = max_pool3d_with_indices(x, pool_options(options));
    call.gave(y.values, y.indices);
    return y;
  }
};
class AvgPool3d : public OpModule<Pool3dOptions> {
 public:
  LEVIN_API AvgPool3d(Module& parent, std::string_view name, Options given = {});  // ConfigError for a dilation
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(avg_pool3d(x, pool_options(options))); }
};

struct AdaptivePool1dOptions {
  std::int64_t output = 1;
};
LEVIN_API void check_options(const AdaptivePool1dOptions& options);  // throws ConfigError
// adaptive_avg_pool1d and adaptive_max_pool1d: [N, C, L] -> [N, C, output].
class AdaptiveAvgPool1d : public OpModule<AdaptivePool1dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(adaptive_avg_pool1d(x, options.output)); }
};
class AdaptiveMaxPool1d : public OpModule<AdaptivePool1dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(adaptive_max_pool1d(x, options.output)); }
};

struct AdaptivePool3dOptions {
  Size3 output = 1;
};
LEVIN_API void check_options(const AdaptivePool3dOptions& options);  // throws ConfigError
// adaptive_avg_pool3d and adaptive_max_pool3d: [N, C, D, H, W] -> [N, C, output].
class AdaptiveAvgPool3d : public OpModule<AdaptivePool3dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const {
    return Call(*this, x).gives(adaptive_avg_pool3d(x, options.output.array()));
  }
};
class AdaptiveMaxPool3d : public OpModule<AdaptivePool3dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const {
    return Call(*this, x).gives(adaptive_max_pool3d(x, options.output.array()));
  }
};

struct MaxUnpool2dOptions {
  Size2 kernel = 2;
  std::optional<Size2> stride{};  // default: the kernel
  Size2 padding = 0;
};
LEVIN_API void check_options(const MaxUnpool2dOptions& options);  // throws ConfigError
// max_unpool2d of what MaxPool2d::with_indices gave: [N, C, H, W] -> [N, C, output_size], see MaxUnpoolOptions.
class LEVIN_API MaxUnpool2d : public OpModule<MaxUnpool2dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x, const Tensor& indices, std::optional<Size2> output_size = {}) const;
};

struct MaxUnpool1dOptions {
  std::int64_t kernel = 2;
  std::optional<std::int64_t> stride{};  // default: the kernel
  std::int64_t padding = 0;
};
LEVIN_API void check_options(const MaxUnpool1dOptions& options);  // throws ConfigError
// max_unpool1d of what MaxPool1d::with_indices gave: [N, C, L] -> [N, C, output_size].
class LEVIN_API MaxUnpool1d : public OpModule<MaxUnpool1dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x, const Tensor& indices, std::optional<std::int64_t> output_size = {}) const;
};

struct MaxUnpool3dOptions {
  Size3 kernel = 2;
  std::optional<Size3> stride{};  // default: the kernel
  Size3 padding = 0;
};
LEVIN_API void check_options(const MaxUnpool3dOptions& options);  // throws ConfigError
// max_unpool3d of what MaxPool3d::with_indices gave: [N, C, D, H, W] -> [N, C, output_size].
class LEVIN_API MaxUnpool3d : public OpModule<MaxUnpool3dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x, const Tensor& indices, std::optional<Size3> output_size = {}) const;
};

struct LPPool2dOptions {
  double p = 2;
  Size2 kernel = 2;
  std::optional<Size2> stride{};  // default: the kernel
  bool ceil_mode = false;         // as in PoolOptions
};
LEVIN_API void check_options(const LPPool2dOptions& options);  // throws ConfigError
// lp_pool2d: [N, C, H, W] -> [N, C, H', W'].
class LEVIN_API LPPool2d : public OpModule<LPPool2dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const;
};

// ---- Pixels and channels: pixel_shuffle, pixel_unshuffle and channel_shuffle. The number must be given.

struct PixelShuffleOptions {
  std::int64_t upscale_factor = 0;
};
LEVIN_API void check_options(const PixelShuffleOptions& options);  // throws ConfigError
class PixelShuffle : public OpModule<PixelShuffleOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(pixel_shuffle(x, options.upscale_factor)); }
};
struct PixelUnshuffleOptions {
  std::int64_t downscale_factor = 0;
};
LEVIN_API void check_options(const PixelUnshuffleOptions& options);  // throws ConfigError
class PixelUnshuffle : public OpModule<PixelUnshuffleOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const {
    return Call(*this, x).gives(pixel_unshuffle(x, options.downscale_factor));
  }
};
struct ChannelShuffleOptions {
  std::int64_t groups = 0;
};
LEVIN_API void check_options(const ChannelShuffleOptions& options);  // throws ConfigError
class ChannelShuffle : public OpModule<ChannelShuffleOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(channel_shuffle(x, options.groups)); }
};

// ---- Other sizes

struct UpsampleOptions {  // as in InterpolateOptions: size or scale_factor must be given
  Dims size{};
  std::vector<double> scale_factor{};
  InterpolateMode mode = InterpolateMode::nearest;
  bool align_corners = false;
  bool recompute_scale_factor = false;
};
LEVIN_API void check_options(const UpsampleOptions& options);  // throws ConfigError
// interpolate: [N, C, L], [N, C, H, W] or [N, C, D, H, W] to another size.
class LEVIN_API Upsample : public OpModule<UpsampleOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const;
};
struct Upsampling2dOptions {
  Dims size{};  // {H, W}, or one number for both
  std::vector<double> scale_factor{};
};
LEVIN_API void check_options(const Upsampling2dOptions& options);  // throws ConfigError
// interpolate by the nearest element, and bilinear with align_corners: [N, C, H, W] -> [N, C, H', W'].
class LEVIN_API UpsamplingNearest2d : public OpModule<Upsampling2dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const;
};
class LEVIN_API UpsamplingBilinear2d : public OpModule<Upsampling2dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const;
};

}  // namespace levin::nn
