// Convolutions of volumes [N, C, D, H, W] and transposed ones of sequences [N, C, L], by those of images.
#include <algorithm>

#include "autograd/autocast.h"
#include "autograd/ops/products/image_parts.h"
#include "levin/ops.h"

namespace levin {
namespace {

using Size3 = std::array<std::int64_t, 3>;

void check_operands(const char* op, const Tensor& x, const Tensor& w, const Tensor& bias, const char* weight) {
  check_same_device(op, x, w);
  check_dtypes_meet(op, x, w);
  if (bias.defined()) {
    check_same_device(op, x, bias);
    check_dtypes_meet(op, x, bias);
  }
  if (x.rank() != 5) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, D, H, W]");
  if (w.rank() != 5) fail<ShapeError>(op, ": weight has shape ", w.shape(), ", expected ", weight);
  for (int d = 2; d < 5; ++d) {
    if (w.shape()[d] < 1)
      fail<ShapeError>(op, ": weight has shape ", w.shape(), ", expected a kernel of at least 1 by 1 by 1");
    if (x.shape()[d] < 1) fail<ShapeError>(op, ": dimension ", d, " of x ", x.shape(), " is empty, expected 1 or more");
  }
}

void check_bias(const char* op, const Tensor& bias, std::int64_t channels) {
  if (bias.defined() && bias.shape() != Shape{channels})
    fail<ShapeError>(op, ": bias has shape ", bias.shape(), ", expected [", channels, "]");
}

void check_extents_3d(const char* op, const char* what, const Size3& v, std::int64_t least) {
  for (const std::int64_t n : v) check_extents(op, what, std::array{n, n}, least);
}

// Dimension 1 and 2 of [N, D, C, H, W] or [N, C, D, H, W] change places.
Tensor swapped(const Tensor& x) { return transpose(x, 1, 2); }

// The windows along the depth of x as channels: [N, C, D, H, W] -> [N * windows, C * kernel, H, W].
Tensor slices(const Tensor& x, std::int64_t windows, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
              std::int64_t dilation) {
  const std::int64_t n = x.size(0), c = x.size(1), h = x.size(3), w = x.size(4);
  if (kernel == 1 && padding == 0) {
    const Tensor kept = stride == 1 ? x : slice(x, 2, 0, (windows - 1) * stride + 1, stride);
    return reshape(swapped(kept), {n * windows, c, h, w});
  }
  const Tensor columns =
      im2col(reshape(x, {n, c, x.size(2), h * w}),
             {.kernel = {kernel, 1}, .stride = {stride, 1}, .padding = {padding, 0}, .dilation = {dilation, 1}});
  return reshape(swapped(reshape(columns, {n, c * kernel, windows, h, w})), {n * windows, c * kernel, h, w});
}

}  // namespace

Tensor conv3d(const Tensor& x_, const Tensor& weight, const Tensor& bias, const ConvOptions3d& given) {
  constexpr const char* op = "conv3d";
  check_operands(op, x_, weight, bias, "[out, in / groups, kD, kH, kW]");
  check_extents_3d(op, "stride", given.stride, 1);
  check_extents_3d(op, "padding", given.padding, 0);
  check_extents_3d(op, "dilation", given.dilation, 1);
  const std::int64_t channels = x_.size(1), filters = weight.size(0);
  if (given.groups < 1 || channels % given.groups != 0 || filters % given.groups != 0) {
    fail<ShapeError>(op, ": groups is ", given.groups, ", expected a divisor of ", channels, " input and ", filters,
                     " output channels");
  }
  if (weight.size(1) != channels / given.groups) {
    fail<ShapeError>(op, ": weight has shape ", weight.shape(), ", expected [out, ", channels / given.groups,
                     ", kD, kH, kW] for x ", x_.shape(), " and ", given.groups, " groups");
  }
  check_bias(op, bias, filters);
  ConvOptions3d o = given;
  Size3 more{}, size{};
  for (std::size_t i = 0; i < 3; ++i) {
    const int d = 2 + static_cast<int>(i);
    const std::int64_t reach = reach_of(weight.shape()[d], o.dilation[i]);
    if (o.padding_rule == PaddingRule::same) {
      if (o.stride[i] != 1 || o.padding[i] != 0) {
        fail<ShapeError>(op, ": stride is ", o.stride[i], " and padding ", o.padding[i], " along dimension ", d,
                         ", expected 1 and 0 with PaddingRule::same");
      }
      o.padding[i] = (reach - 1) / 2;
      more[i] = (reach - 1) % 2;
    }
    const std::int64_t padded = x_.shape()[d] + more[i] + 2 * o.padding[i];
    if (padded > kMostExtent) {
      fail<ShapeError>(op, ": x of shape ", x_.shape(), " has ", padded, " elements along dimension ", d,
                       " with padding, expected at most 2^31");
    }
    if (reach > padded) {
      fail<ShapeError>(op, ": the kernel reaches over ", reach, " elements along dimension ", d, ", x of shape ",
                       x_.shape(), " has ", padded, " with padding; use a smaller kernel or dilation, or pad more");
    }
    size[i] = (padded - reach) / o.stride[i] + 1;
  }
  const Tensor x = more[0] + more[1] + more[2] > 0 ? pad(x_, {0, more[2], 0, more[1], 0, more[0]}) : x_.contiguous();
  const Tensor planes = slices(x, size[0], weight.size(2), o.stride[0], o.padding[0], o.dilation[0]);
  const Tensor w =
      reshape(weight.contiguous(), {filters, weight.size(1) * weight.size(2), weight.size(3), weight.size(4)});
  const Tensor y = conv2d(planes, w, bias,
                          {.stride = {o.stride[1], o.stride[2]},
                           .padding = {o.padding[1], o.padding[2]},
                           .dilation = {o.dilation[1], o.dilation[2]},
                           .groups = o.groups});
  return swapped(reshape(y, {x.size(0), size[0], filters, size[1], size[2]})).contiguous();
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions1d& o) {
  constexpr const char* op = "conv_transpose1d";
  check_defined(op, x, weight);
  if (x.rank() != 3) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, L]");
  if (weight.rank() != 3)
    fail<ShapeError>(op, ": weight has shape ", weight.shape(), ", expected [in, out / groups, k]");
  const auto row = [](const Tensor& t) { return unsqueeze(t.contiguous(), 2); };
  return squeeze(conv_transpose2d(row(x), row(weight), bias,
                                  {.stride = {1, o.stride},
                                   .padding = {0, o.padding},
                                   .output_padding = {0, o.output_padding},
                                   .dilation = {1, o.dilation},
                                   .groups = o.groups}),
                 2);
}

Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions3d& o) {
  constexpr const char* op = "conv_transpose3d";
  check_operands(op, x, weight, bias, "[in, out / groups, kD, kH, kW]");
  check_extents_3d(op, "stride", o.stride, 1);
  check_extents_3d(op, "padding", o.padding, 0);
  check_extents_3d(op, "output_padding", o.output_padding, 0);
  check_extents_3d(op, "dilation", o.dilation, 1);
  const std::int64_t n = x.size(0), channels = x.size(1), depth = x.size(2), kernel = weight.size(2);
  if (weight.size(0) != channels) {
    fail<ShapeError>(op, ": weight has shape ", weight.shape(), ", expected [", channels,
                     ", out / groups, kD, kH, kW] for x ", x.shape());
  }
  if (o.groups < 1 || channels % o.groups != 0)
    fail<ShapeError>(op, ": groups is ", o.groups, ", expected a divisor of the ", channels, " input channels");
  const std::int64_t filters = weight.size(1) * o.groups;
  check_bias(op, bias, filters);
  Size3 size{};
  for (std::size_t i = 0; i < 3; ++i) {
    const int d = 2 + static_cast<int>(i);
    if (o.output_padding[i] >= std::max(o.stride[i], o.dilation[i])) {
      fail<ShapeError>(op, ": output_padding is ", o.output_padding[i], ", expected less than stride ", o.stride[i],
                       " or dilation ", o.dilation[i]);
    }
    size[i] = reach_of(x.shape()[d], o.stride[i]) - 2 * o.padding[i] + reach_of(weight.shape()[d], o.dilation[i]) - 1 +
              o.output_padding[i];
    if (size[i] < 1 || size[i] > kMostExtent) {
      fail<ShapeError>(op, ": x of shape ", x.shape(), " gives ", size[i], " elements along dimension ", d,
                       ", expected 1 to 2^31");
    }
  }
  // Each slice gives the kernel's slices, which are added where they meet along the depth.
  const Tensor planes = reshape(swapped(x.contiguous()), {n * depth, channels, x.size(3), x.size(4)});
  const Tensor w = reshape(weight.contiguous(), {channels, weight.size(1) * kernel, weight.size(3), weight.size(4)});
  const Tensor z = conv_transpose2d(planes, w, {},
                                    {.stride = {o.stride[1], o.stride[2]},
                                     .padding = {o.padding[1], o.padding[2]},
                                     .output_padding = {o.output_padding[1], o.output_padding[2]},
                                     .dilation = {o.dilation[1], o.dilation[2]},
                                     .groups = o.groups});
  Tensor parts = swapped(reshape(z, {n, depth, filters * kernel, size[1], size[2]}));
  // An output padding of a stride or more gives more windows than slices; they are zeros.
  const std::int64_t more = o.output_padding[0] / o.stride[0];
  if (more > 0) parts = pad(parts, {0, 0, 0, 0, 0, more});
  const Tensor columns = reshape(parts, {n, filters * kernel, (depth + more) * size[1] * size[2]});
  const Tensor y = col2im(columns, {size[0], size[1] * size[2]},
                          {.kernel = {kernel, 1},
                           .stride = {o.stride[0], 1},
                           .padding = {o.padding[0], 0},
                           .dilation = {o.dilation[0], 1}});
  const Tensor volume = reshape(y, {n, filters, size[0], size[1], size[2]});
  // Under Autocast a bias of f32 beside 16 bits must not widen the result.
  return bias.defined() ? volume + reshape(cast(bias, volume.dtype()), {filters, 1, 1, 1}) : volume;
}

}  // namespace levin
