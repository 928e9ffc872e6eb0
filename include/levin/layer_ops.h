// The ops that layers are made of: convolution, pooling, windows, normalisation, softmax, dropout, attention. They are
// ops of levin/ops.h, which includes this header. Its rules for dtypes, derivatives and errors hold here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "levin/generator.h"
#include "levin/tensor.h"

namespace levin {

// ---- Convolution and pooling over [N, C, L] (1d), [N, C, H, W] (2d) and [N, C, D, H, W] (3d); PyTorch also takes them
// without N.

// The zeros around the image of a convolution. given: `padding` on both sides. same: as many as give the result the
// size of x, dilation (kernel - 1) along an axis, of an odd number the larger half at the end; PyTorch's
// padding="same". It needs stride 1 and padding 0 (ShapeError).
enum class PaddingRule : std::uint8_t { given, same };

struct ConvOptions {
  std::array<std::int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};  // along height and width
  std::int64_t groups = 1;  // divides the channels: out / groups outputs see in / groups inputs each
  PaddingRule padding_rule = PaddingRule::given;
};

// y[n, o, p, q] = bias[o] + sum over c, i, j of weight[o, c, i, j] x[n, c, p sH - padH + i dH, q sW - padW + j dW], x
// being 0 in the padding: x [N, in, H, W] -> [N, out, H', W'], H' = (H + 2 padH - dH (kH - 1) - 1) / sH + 1, W'
// likewise. weight [out, in / groups, kH, kW], bias [out] or undefined. At least one window must fit (ShapeError).
//
// On the CPU convolutions with dilation and groups 1, in f32, f16 or bf16 with 16 channels or more on both sides, come
// from Winograd's algorithm in f32 where the image is large enough for it to pay: the result and both gradients of a
// 3x3, 5x5, 1x3 or 1x5 kernel of stride 1, and of a 4x4 kernel of stride 2. (bf16 takes sums term by term where the CPU
// multiplies pairs of bf16 faster.) For values in [-1, 1) and sums of n products the error stays below
// 128 * 2^-24 * sqrt(n) for kernels of 3 columns and below 256 * 2^-24 * sqrt(n) for others, where a sum term by term
// has about 18 * 2^-24 * sqrt(n): less than rounding the inputs to 10 mantissa bits (TF32) costs. A NaN or infinity of
// the image reaches up to 4 pixels further than term by term, 8 in an input gradient of stride 2, and values within a
// factor of 10^4 of the largest float may overflow. Other shapes, and f64, are summed term by term. conv1d and the
// transposed convolutions are such results and input gradients.
[[nodiscard]] LEVIN_API Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvOptions& options = {});

struct ConvOptions1d {
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  PaddingRule padding_rule = PaddingRule::given;
};

// conv2d of images of height 1: x [N, in, L], weight [out, in / groups, k], bias [out] or undefined -> [N, out, L'].
[[nodiscard]] LEVIN_API Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvOptions1d& options = {});

struct ConvOptions3d {
  std::array<std::int64_t, 3> stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};  // along depth, height and width
  std::int64_t groups = 1;
  PaddingRule padding_rule = PaddingRule::given;
};

// The formula of conv2d with a third axis, depth: x [N, in, D, H, W], weight [out, in / groups, kD, kH, kW], bias [out]
// or undefined -> [N, out, D', H', W']. It is one conv2d of N D' images, whose channels are the slices that a window
// sees: kD copies of x are in memory. ShapeError for an empty D, H or W.
[[nodiscard]] LEVIN_API Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvOptions3d& options = {});

struct ConvTransposeOptions {
  // output_padding: rows and columns more at the end, fewer than the stride or the dilation.
  std::array<std::int64_t, 2> stride{1, 1}, padding{0, 0}, output_padding{0, 0}, dilation{1, 1};
  std::int64_t groups = 1;
};

// The transpose of conv2d as a linear map, plus bias: x [N, in, H, W] -> [N, out, H', W'],
// H' = (H - 1) sH - 2 padH + dH (kH - 1) + output_paddingH + 1, W' likewise. weight [in, out / groups, kH, kW], bias
// [out] or undefined.
[[nodiscard]] LEVIN_API Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                                const ConvTransposeOptions& options = {});

struct ConvTransposeOptions1d {
  std::int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
};
struct ConvTransposeOptions3d {
  std::array<std::int64_t, 3> stride{1, 1, 1}, padding{0, 0, 0}, output_padding{0, 0, 0}, dilation{1, 1, 1};
  std::int64_t groups = 1;
};

// The same of conv1d and conv3d: x [N, in, L], weight [in, out / groups, k] -> [N, out, L'], and x [N, in, D, H, W],
// weight [in, out / groups, kD, kH, kW] -> [N, out, D', H', W']. In 16 bits the 3d one rounds each slice before it adds
// the slices.
[[nodiscard]] LEVIN_API Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                                const ConvTransposeOptions1d& options = {});
[[nodiscard]] LEVIN_API Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                                const ConvTransposeOptions3d& options = {});

struct PoolOptions {
  std::array<std::int64_t, 2> kernel{2, 2};
  std::optional<std::array<std::int64_t, 2>> stride = {};  // default: the kernel
  std::array<std::int64_t, 2> padding{0, 0};               // at most half the kernel
  std::array<std::int64_t, 2> dilation{1, 1};              // max pooling: from an element of a window to the next
  bool ceil_mode = false;                                  // a last window that reaches over the end counts too
  bool count_include_pad = true;                           // average pooling: padding counts as zeros
};

// The largest element of each window, the first of equal ones, NaN winning and padding never; or the mean. x [N, C, H,
// W] -> [N, C, H', W'], H' = (H + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded up with ceil_mode. A
// kernel alone: that size and stride. ShapeError for an empty H or W, for more than 2^30 pixels, and for a window that
// sees padding alone (of 2 elements with padding, where H is dilation - 1). ConfigError for a mean with a dilation.
[[nodiscard]] LEVIN_API Tensor max_pool2d(const Tensor& x, const PoolOptions& options);
[[nodiscard]] LEVIN_API Tensor max_pool2d(const Tensor& x, std::int64_t kernel);
[[nodiscard]] LEVIN_API Tensor avg_pool2d(const Tensor& x, const PoolOptions& options);
[[nodiscard]] LEVIN_API Tensor avg_pool2d(const Tensor& x, std::int64_t kernel);

// The same to [N, C, output]: along H, output i is that of pixels floor(i H / H') to ceil((i + 1) H / H') - 1, along W
// likewise.
[[nodiscard]] LEVIN_API Tensor adaptive_avg_pool2d(const Tensor& x, std::array<std::int64_t, 2> output);
[[nodiscard]] LEVIN_API Tensor adaptive_max_pool2d(const Tensor& x, std::array<std::int64_t, 2> output);

struct PoolOptions1d {  // as PoolOptions
  std::int64_t kernel = 2;
  std::optional<std::int64_t> stride = {};
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  bool ceil_mode = false;
  bool count_include_pad = true;
};
struct PoolOptions3d {  // as PoolOptions, along depth, height and width
  std::array<std::int64_t, 3> kernel{2, 2, 2};
  std::optional<std::array<std::int64_t, 3>> stride = {};
  std::array<std::int64_t, 3> padding{0, 0, 0};
  std::array<std::int64_t, 3> dilation{1, 1, 1};
  bool ceil_mode = false;
  bool count_include_pad = true;
};

// The same of x [N, C, L] and of x [N, C, D, H, W]. A window of a volume is pooled along height and width, then along
// depth: in 16 bits a mean is rounded twice.
[[nodiscard]] LEVIN_API Tensor max_pool1d(const Tensor& x, const PoolOptions1d& options);
[[nodiscard]] LEVIN_API Tensor max_pool1d(const Tensor& x, std::int64_t kernel);
[[nodiscard]] LEVIN_API Tensor avg_pool1d(const Tensor& x, const PoolOptions1d& options);
[[nodiscard]] LEVIN_API Tensor avg_pool1d(const Tensor& x, std::int64_t kernel);
[[nodiscard]] LEVIN_API Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t output);
[[nodiscard]] LEVIN_API Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t output);
[[nodiscard]] LEVIN_API Tensor max_pool3d(const Tensor& x, const PoolOptions3d& options);
[[nodiscard]] LEVIN_API Tensor max_pool3d(const Tensor& x, std::int64_t kernel);
[[nodiscard]] LEVIN_API Tensor avg_pool3d(const Tensor& x, const PoolOptions3d& options);
[[nodiscard]] LEVIN_API Tensor avg_pool3d(const Tensor& x, std::int64_t kernel);
[[nodiscard]] LEVIN_API Tensor adaptive_avg_pool3d(const Tensor& x, std::array<std::int64_t, 3> output);
[[nodiscard]] LEVIN_API Tensor adaptive_max_pool3d(const Tensor& x, std::array<std::int64_t, 3> output);

// max_pool2d, and i64 of its shape: where each element stands in its plane of x, row * W + column. PyTorch's
// max_pool2d(return_indices=True).
[[nodiscard]] LEVIN_API ValuesIndices max_pool2d_with_indices(const Tensor& x, const PoolOptions& options);

// The same of max_pool1d and max_pool3d: where each element stands in its sequence, and in its volume of x,
// (slice * H + row) * W + column.
[[nodiscard]] LEVIN_API ValuesIndices max_pool1d_with_indices(const Tensor& x, const PoolOptions1d& options);
[[nodiscard]] LEVIN_API ValuesIndices max_pool3d_with_indices(const Tensor& x, const PoolOptions3d& options);

struct MaxUnpoolOptions {
  std::array<std::int64_t, 2> kernel{2, 2};
  std::optional<std::array<std::int64_t, 2>> stride = {};  // default: the kernel
  std::array<std::int64_t, 2> padding{0, 0};
  // The images' size before they were pooled. Default: (H - 1) stride - 2 padding + kernel; another one differs from
  // that by less than the stride.
  std::optional<std::array<std::int64_t, 2>> output_size = {};
};

// The elements of x [N, C, H, W] at the places `indices`, i64 of x's shape, of planes [N, C, H', W'] of zeros; every
// dtype. Of equal places the last one wins and gets the gradient (PyTorch: each gets it). IndexError for a place
// outside of the plane.
[[nodiscard]] LEVIN_API Tensor max_unpool2d(const Tensor& x, const Tensor& indices, const MaxUnpoolOptions& options);

struct MaxUnpoolOptions1d {  // as MaxUnpoolOptions
  std::int64_t kernel = 2;
  std::optional<std::int64_t> stride = {};
  std::int64_t padding = 0;
  std::optional<std::int64_t> output_size = {};
};
struct MaxUnpoolOptions3d {  // as MaxUnpoolOptions, along depth, height and width
  std::array<std::int64_t, 3> kernel{2, 2, 2};
  std::optional<std::array<std::int64_t, 3>> stride = {};
  std::array<std::int64_t, 3> padding{0, 0, 0};
  std::optional<std::array<std::int64_t, 3>> output_size = {};
};

// The same of x [N, C, L] to sequences [N, C, L'], and of x [N, C, D, H, W] to volumes [N, C, D', H', W'].
[[nodiscard]] LEVIN_API Tensor max_unpool1d(const Tensor& x, const Tensor& indices, const MaxUnpoolOptions1d& options);
[[nodiscard]] LEVIN_API Tensor max_unpool3d(const Tensor& x, const Tensor& indices, const MaxUnpoolOptions3d& options);

// (sum of x^p)^(1/p) over each window; p in (0, inf). A window that ceil_mode cut off has the mean of the x^p that it
// sees, times the elements of the kernel, in place of the sum. NaN where the sum is negative, except for p = 1; the
// derivative is 0 where the sum is 0. Computes 16-bit numbers in f32. Throws ConfigError for another p, a padding or a
// dilation.
[[nodiscard]] LEVIN_API Tensor lp_pool2d(const Tensor& x, double p, const PoolOptions& options);

// ---- Pixels and channels change places; copies of every dtype.

// x [..., C r^2, H, W] -> [..., C, H r, W r], r = upscale_factor from 1 on: y[c, h r + i, w r + j] = x[c r^2 + i r + j,
// h, w]. pixel_unshuffle is the inverse: [..., C, H r, W r] -> [..., C r^2, H, W]. Shi et al., 2016.
[[nodiscard]] LEVIN_API Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor);
[[nodiscard]] LEVIN_API Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor);

// x [N, C, ...]: the first channel of each group, then the second of each, and so on: y[n, k groups + g] = x[n, g C /
// groups + k]. `groups` divides C. Zhang et al., 2017.
[[nodiscard]] LEVIN_API Tensor channel_shuffle(const Tensor& x, std::int64_t groups);

// ---- Windows of images as columns: PyTorch's F.unfold and F.fold. Along each axis there are
// (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1 windows; L is their number, pH * pW. Limits are
// conv2d's: options up to 2^31, padded images up to 2^31 along an axis and 2^40 pixels; at least one window must fit.

struct WindowOptions {
  std::array<std::int64_t, 2> kernel{0, 0};  // must be given
  std::array<std::int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
};

// x [N, C, H, W] -> [N, C * kH * kW, L], or [C, H, W] -> [C * kH * kW, L]; every dtype. Zero outside of the image:
//   y[n, (c * kH + i) * kW + j, p * pW + q] = x[n, c, p * sH - padH + i * dH, q * sW - padW + j * dW]
// So matmul(view(weight, {out, -1}), im2col(x, windows)) is conv2d with its pixels in one dimension.
[[nodiscard]] LEVIN_API Tensor im2col(const Tensor& x, const WindowOptions& options);

// The adjoint of im2col: columns [N, C * kH * kW, L] -> [N, C, H, W], or [C * kH * kW, L] -> [C, H, W], for size =
// {H, W}. A pixel is the sum of what all windows have for it, 0 where there is none; what lies in the padding is
// dropped. Throws ShapeError when C or L is not what size and options make.
[[nodiscard]] LEVIN_API Tensor col2im(const Tensor& columns, std::array<std::int64_t, 2> size,
                                      const WindowOptions& options);

// ---- Images of another size

enum class InterpolateMode : std::uint8_t { nearest, nearest_exact, linear, bilinear, trilinear, bicubic, area };

struct InterpolateOptions {
  // One of them: the result's {L}, {H, W} or {D, H, W}, or factors of x's; one number is that of all dimensions.
  Dims size{};
  std::vector<double> scale_factor{};
  InterpolateMode mode = InterpolateMode::nearest;
  bool align_corners = false;           // linear modes and bicubic: the corner pixels' centers meet, not their edges
  bool recompute_scale_factor = false;  // coordinates by in / out, as with size, not by scale_factor
  bool antialias = false;               // bilinear and bicubic: a window as wide as the pixels of a smaller result
};

// x [N, C, L], [N, C, H, W] or [N, C, D, H, W] with another size: floor(in * scale_factor) where that is given.
// The result has x's memory format. Along each dimension output o is at s = (o + 1/2) step - 1/2 of x, where step is
// 1 / scale_factor, without it in / out; with align_corners s = o (in - 1) / (out - 1):
//   nearest         x[floor(o step)], computed in f32; step counts as 1 or 1/2 where out is in or 2 in. Every dtype
//   nearest_exact   x[floor((o + 1/2) step)], computed in f32. Every dtype
//   linear          between the two neighbours of s, which is at least 0 without align_corners, and o where out is in;
//                   linear is for rank 3, bilinear for 4, trilinear for 5. Floats, like all that follow
//   bicubic         the four neighbours of s, those outside of x being the edge, by Keys' cubic convolution, a = -3/4;
//                   for rank 4. Keys, 1981
//   area            the mean of elements floor(o in / out) to ceil((o + 1) in / out) - 1
// antialias widens the kernel by step where that is above 1, takes a = -1/2, and divides by the sum of the weights that
// lie inside of x. An element of weight 0 is not read, so its NaN does not spread; PyTorch multiplies it. PyTorch also
// takes u8 in bilinear and bicubic. Throws ShapeError for another rank, an empty
// dimension of x or the result, and a wrong count of sizes; ConfigError for a scale_factor that is not finite and above
// 0, both or neither of size and scale_factor, and options that the mode does not take.
[[nodiscard]] LEVIN_API Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

enum class GridSampleMode : std::uint8_t { bilinear, nearest, bicubic };
enum class GridPadding : std::uint8_t { zeros, border, reflection };

struct GridSampleOptions {
  GridSampleMode mode = GridSampleMode::bilinear;
  GridPadding padding_mode = GridPadding::zeros;  // of pixels outside of x
  bool align_corners = false;                     // -1 and 1 are the centers of the corner pixels, not their edges
};

// x [N, C, H, W] at the points of grid [N, H', W', 2] -> [N, C, H', W'], both of one dtype, floats. A point is (column,
// row), from -1 to 1 over the image: column s = ((g + 1) W - 1) / 2, with align_corners (g + 1) (W - 1) / 2; the row
// likewise of H. nearest rounds half to even; bicubic takes the 4 x 4 neighbours by Keys' convolution, a = -3/4.
// padding_mode moves a point that lies outside of x, for bicubic its neighbours, to the border, or reflects it at the
// edges; zeros counts what lies outside as 0. A NaN lies outside, or with border and reflection at the first pixel.
// Volumes likewise: x [N, C, D, H, W], grid [N, D', H', W', 3] of (column, row, slice) -> [N, C, D', H', W']; bilinear
// takes 8 neighbours, and bicubic is a ConfigError.
// Derivatives in x and the grid; the grid's is 0 for nearest and beyond the border. Sums need no atomics, so they
// repeat bit for bit. Throws ShapeError for other shapes and planes or volumes that are empty or have 2^31 elements.
[[nodiscard]] LEVIN_API Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});

enum class AlignCorners : bool { no, yes };

// The grid of affine maps: theta [N, 2, 3], floats, and size {N, C, H, W} -> [N, H, W, 2] of (theta (x, y, 1)^T), where
// x and y are the centers of the pixels from -1 to 1, with align_corners both ends, as grid_sample counts. Of volumes:
// theta [N, 3, 4] and size {N, C, D, H, W} -> [N, D, H, W, 3] of (theta (x, y, z, 1)^T). Throws ShapeError for other
// shapes.
[[nodiscard]] LEVIN_API Tensor affine_grid(const Tensor& theta, const Shape& size,
                                           AlignCorners align_corners = AlignCorners::no);

// ---- Normalisation. Statistics are f32 for 16-bit floats. weight and bias have x's dtype or f32, both the same, and
// may be undefined: 1 and 0. Throws ConfigError unless eps >= 0.

// y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions: those of weight, or of bias; the last one
// without both. var divides by n. Ba et al., 2016.
[[nodiscard]] LEVIN_API Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);

// y = x / sqrt(mean(x^2) + eps) * weight over the last dimensions: those of weight, or the last one. Without an eps it
// is the machine epsilon of the dtype in which the mean is computed: 2^-52 for x of f64, otherwise 2^-23. Zhang &
// Sennrich, 2019.
[[nodiscard]] LEVIN_API Tensor rms_norm(const Tensor& x, const Tensor& weight, std::optional<double> eps = {});

// A residual stream and its norm: sum = x + r, normed = layer_norm(sum, weight, bias), or rms_norm(sum, weight). On
// devices one pass each way where two ops take two; the values are those of two ops. x and r have one shape, and one
// dtype or f16 or bf16 r beside f32 x: sum has x's dtype, normed r's. So under autocast a block of a transformer keeps
// its stream in f32, and the products on both sides of the norm meet 16 bits. Throws ShapeError and DTypeError for
// other x and r.
struct AddNorm {
  Tensor sum, normed;
};
[[nodiscard]] LEVIN_API AddNorm add_layer_norm(const Tensor& x, const Tensor& r, const Tensor& weight,
                                               const Tensor& bias, double eps = 1e-5);
[[nodiscard]] LEVIN_API AddNorm add_rms_norm(const Tensor& x, const Tensor& r, const Tensor& weight,
                                             std::optional<double> eps = {});

// The formula of layer_norm with mean and var of each sample and group of C / groups neighbouring channels; x
// [N, C, ...], weight and bias [C]. Wu & He, 2018.
[[nodiscard]] LEVIN_API Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight,
                                          const Tensor& bias, double eps = 1e-5);

struct BatchNormResult {
  Tensor y;
  Tensor mean, var;  // of this batch [C], f32 or f64: var with n - 1; for running statistics, no gradient
};

// The formula of layer_norm with mean and var of each channel over the batch; x [N, C, ...], weight and bias [C].
// Throws ShapeError for fewer than two values a channel. Ioffe & Szegedy, 2015.
[[nodiscard]] LEVIN_API BatchNormResult batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                         double eps = 1e-5);

// What batch norm keeps of the batches of a training, written in place: mean and var [C] of one floating dtype, dense,
// and count, i64 [].
struct RunningStatistics {
  Tensor mean, var, count;
  std::optional<double> momentum = 0.1;  // none: the average over batches
};
// y of batch_norm_train. Besides, count grows by 1, and mean and var move to the batch's statistics:
//   running += (batch - running) * momentum,   without momentum * 1 / count
// On a device the form with momentum takes no launch of its own, where mean and var are f32 (f64 for x of f64). Throws
// ShapeError, DTypeError, DeviceError and ConfigError for running statistics that do not fit x or a momentum outside of
// [0, 1].
[[nodiscard]] LEVIN_API Tensor batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                const RunningStatistics& running, double eps = 1e-5);

// y with the given statistics [C] in place of the batch's. They get no gradient. Their dtype is that of weight and
// bias.
[[nodiscard]] LEVIN_API Tensor batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                               const Tensor& running_mean, const Tensor& running_var,
                                               double eps = 1e-5);

// relu(batch_norm_train(x, weight, bias, running, eps) + residual), and the same with batch_norm_eval, rounded once.
// With running statistics of 16 bits the parts are ops of their own.
// residual has x's shape and dtype, or is undefined: relu alone. On devices one launch for the statistics and one for
// all that follows; the backward reads the sign of the result. Throws what the parts throw, and ShapeError, DTypeError
// and DeviceError for a residual that does not fit x. He et al., "Deep Residual Learning", 2016.
[[nodiscard]] LEVIN_API Tensor batch_norm_relu_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                     const RunningStatistics& running, const Tensor& residual = {},
                                                     double eps = 1e-5);
[[nodiscard]] LEVIN_API Tensor batch_norm_relu_eval(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                    const Tensor& running_mean, const Tensor& running_var,
                                                    const Tensor& residual = {}, double eps = 1e-5);

// ---- Softmax: of 16 bits f32 under Autocast. Losses stand in levin/losses.h.

// exp(x) / sum(exp(x)) along dim, and its logarithm, without overflow. -inf alone along dim gives NaN. Rank 0 has dim
// 0.
[[nodiscard]] LEVIN_API Tensor softmax(const Tensor& x, std::int64_t dim);
[[nodiscard]] LEVIN_API Tensor log_softmax(const Tensor& x, std::int64_t dim);

// A drawn category of each line along dim: softmax((logits + g) / tau, dim) with g = -log(-log u), u of U(0, 1). `hard`
// gives 1 at the largest element and 0 elsewhere, with the derivative of the softmax. Computes 16-bit numbers in f32.
// Throws ConfigError unless tau is above 0. Jang et al., "Categorical Reparameterization with Gumbel-Softmax", 2017.
struct GumbelSoftmaxOptions {
  double tau = 1;
  bool hard = false;
  std::int64_t dim = -1;
};
[[nodiscard]] LEVIN_API Tensor gumbel_softmax(const Tensor& logits, Generator& generator,
                                              const GumbelSoftmaxOptions& options = {});

// ---- Dropout, attention

// For training: elements become 0 with probability p, the others are divided by 1 - p. The mask follows x's memory.
// 0 <= p <= 1; x itself for p = 0. Srivastava et al., 2014.
[[nodiscard]] LEVIN_API Tensor dropout(const Tensor& x, double p, Generator& generator);

// The same of whole channels: x [N, C, ...], each x[n, c] becomes 0 or is divided by 1 - p as a whole. PyTorch's
// dropout1d, dropout2d and dropout3d. Tompson et al., 2015.
[[nodiscard]] LEVIN_API Tensor feature_dropout(const Tensor& x, double p, Generator& generator);

// For training with SELU: elements become its limit -1.7581 with probability p, then all are scaled and shifted such
// that mean 0 and variance 1 stay. 0 <= p <= 1; zeros for p = 1. Klambauer et al., 2017.
[[nodiscard]] LEVIN_API Tensor alpha_dropout(const Tensor& x, double p, Generator& generator);

// yes: row i of L sees columns 0 to i of S.
enum class Causal : bool { no, yes };

struct AttentionOptions {
  Tensor mask{};  // bool (true takes part) or q's dtype (added), broadcast to [..., L, S]; or undefined
  Causal causal = Causal::no;
  std::optional<double> scale = {};  // default 1 / sqrt(E)
  double dropout_p = 0;              // of the softmax's elements
  Generator* generator = nullptr;    // needed when dropout_p > 0
  bool enable_gqa = false;           // k and v may have fewer heads than q
};

// softmax(q k^T * scale + mask) v; q [..., L, E], k [..., S, E], v [..., S, Ev] -> [..., L, Ev]; leading dimensions
// broadcast. A row that may look at nothing gives 0. Vaswani et al., 2017. Without mask and dropout, on devices of 16
// bits and E and Ev up to 128, the L x S weights are never in memory as a whole (Dao et al., 2022).
// enable_gqa: of q [..., heads, L, E] each group of heads / H heads beside each other sees one head of k [..., H, S, E]
// and v [..., H, S, Ev], without a copy of it; H divides heads (ShapeError). Ainslie et al., "GQA", 2023.
[[nodiscard]] LEVIN_API Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                            const AttentionOptions& options = {});

// What scaled_dot_product_attention multiplies v with, dropout included: [..., L, S], in memory as a whole.
[[nodiscard]] LEVIN_API Tensor attention_weights(const Tensor& q, const Tensor& k,
                                                 const AttentionOptions& options = {});

enum class RotaryPairs : std::uint8_t { halves, interleaved };
struct RotaryOptions {
  double base = 10000;                      // of the angles, above 0
  RotaryPairs pairs = RotaryPairs::halves;  // halves: Llama, GPT-NeoX; interleaved: GPT-J
  std::optional<std::int64_t> dim = {};     // even, at most D; elements from there on stay. Default D
};
// Rotates pairs of elements of x [..., T, D] by angles that grow with the position. For i < dim / 2 the pair
// (a, b) = (x[i], x[i + dim / 2]), or (x[2 i], x[2 i + 1]) of interleaved pairs, becomes
//   (a cos t - b sin t, b cos t + a sin t),   t = position * base^(-2 i / dim).
// positions i64 broadcasts to [..., T]: [T], or [B, 1, T] for x [B, heads, T, D]. Products of rotated queries and keys
// depend on differences of positions alone. Angles are computed in f64, 16-bit x in f32. Throws ShapeError, DTypeError
// for positions that are not i64, ConfigError. Su et al., "RoFormer", 2021.
[[nodiscard]] LEVIN_API Tensor rotary_embedding(const Tensor& x, const Tensor& positions,
                                                const RotaryOptions& options = {});

// The same in two parts: the table of all layers of a model is computed once a step. cos and sin [..., T, dim / 2] have
// the shape of the positions and one dimension more; f32, or f64 for `dtype` f64.
struct RotaryTable {
  Tensor cos, sin;
};
[[nodiscard]] LEVIN_API RotaryTable rotary_table(const Tensor& positions, std::int64_t dim, double base = 10000,
                                                 DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor apply_rotary(const Tensor& x, const RotaryTable& table,
                                            RotaryPairs pairs = RotaryPairs::halves);

// One step of an LSTM's state from its gates [..., 4 hidden], sums of products and biases that stand in PyTorch's order
// i, f, g, o, and its state c [..., hidden]:
//   c' = sigmoid(f) c + sigmoid(i) tanh(g),   h = sigmoid(o) tanh(c').
// nn::LSTMCell calls it. Throws ShapeError. Hochreiter and Schmidhuber, 1997; Gers et al., 2000.
struct LstmCellState {
  Tensor h, c;
};
[[nodiscard]] LEVIN_API LstmCellState lstm_cell(const Tensor& gates, const Tensor& c);

// A layer of an LSTM over a sequence x [L, N, in], L of 1 or more, from a state of [N, hidden]:
//   h, c = lstm_cell(x[t] ih^T + h hh^T + bias, c),   y[t] = h
// for t = 0 to L - 1, or from L - 1 down to 0 where `reverse`. ih [4 hidden, in], hh [4 hidden, hidden], bias
// [4 hidden] or undefined. y [L, N, hidden], and the c of the last step [N, hidden]. The gradients of the weights are
// products over all steps at once. nn::LSTM calls it. Throws ShapeError, DTypeError, DeviceError.
struct LstmWeights {
  Tensor ih, hh, bias;
};
struct LstmLayerOutput {
  Tensor y, c;
};
[[nodiscard]] LEVIN_API LstmLayerOutput lstm_layer(const Tensor& x, const LstmCellState& state, const LstmWeights& w,
                                                   bool reverse = false);

}  // namespace levin
