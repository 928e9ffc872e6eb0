// Convolution. Its input gradient and its weight gradient are ops too. The three are each other's derivatives, so they
// give derivatives of any order:
//   y  = conv(x, w)          gx = input_gradient(gy, w)       gw = weight_gradient(x, gy)
#include "kernels/conv/conv.cuh"

#include "autograd/autocast.h"
#include "autograd/home.h"
#include "autograd/op_table.h"
#include "autograd/ops/products/gemm_parts.h"
#include "autograd/ops/products/image_parts.h"
#include "kernels/conv/conv_channels_last_device.cuh"
#include "kernels/conv/conv_device.cuh"
#include "kernels/conv/conv_library.h"
#include "kernels/executor/dispatch.h"
#include "levin/autograd.h"
#include "levin/flops.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::ConvPass;
using kernels::ConvShape;

// A convolution, and the memory formats of its images and of its weight, which the gradients share.
struct Convolution {
  ConvShape shape;
  MemoryFormat images, weight;
  // As cuDNN requires, one format for all: channels_last where either x or w has it.
  Convolution(const ConvShape& s, const Tensor& x, const Tensor& w)
      : shape(s), images(x.suggest_memory_format()), weight(w.suggest_memory_format()) {
    if (weight == MemoryFormat::channels_last) images = weight;
  }
};

Tensor conv_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Convolution& c);
Tensor conv_input_gradient(const Tensor& gy, const Tensor& w, const Convolution& c);
Tensor conv_weight_gradient(const Tensor& x, const Tensor& gy, const Convolution& c, const Tensor& place = {});
Tensor sum_channels(const Tensor& gy) { return sum(gy, {0, 2, 3}); }

Shape output_shape(const ConvShape& s) { return {s.batch, s.out_channels, s.out_height(), s.out_width()}; }
Shape input_shape(const ConvShape& s) { return {s.batch, s.in_channels, s.height, s.width}; }
Shape weight_shape(const ConvShape& s) { return {s.out_channels, s.group_in(), s.kernel_h, s.kernel_w}; }

// The three passes multiply the same pairs.
void count_flops(const OpInfo& info, const ConvShape& s) {
  FlopCounter::count(info.name, {2, s.batch, s.out_channels, s.pixels(), s.group_in(), s.taps()});
}

// The vendor's library computes the undefined one of x, w and y from the other two. The result is undefined where the
// library is not used.
Tensor by_library([[maybe_unused]] ConvPass pass, [[maybe_unused]] const Convolution& c,
                  [[maybe_unused]] const Tensor& x, [[maybe_unused]] const Tensor& w, [[maybe_unused]] const Tensor& y,
                  [[maybe_unused]] const Tensor& bias = {}) {
#if defined(LEVIN_CUDNN)
  const ConvShape& s = c.shape;
  const Tensor& image = pass == ConvPass::input_gradient ? y : x;
  if (image.device().type() != DeviceType::cuda || s.flops() < kernels::kLibraryConvFlops) return {};
  const auto operand = [&](const Tensor& t, const Shape& shape) {
    return t.defined() ? t.contiguous(c.images) : empty(shape, image.device(), image.dtype(), c.images);
  };
  const Tensor xs = operand(x, input_shape(s)), ws = operand(w, weight_shape(s)), ys = operand(y, output_shape(s));
  const auto call = kernels::library_conv(pass, s, xs, ws, ys, bias.defined() ? bias.contiguous() : bias);
  if (!call || !kernels::lib::cudnn_convolve(*call, Stream::current(image.device()))) return {};
  if (pass == ConvPass::forward) return ys;
  return pass == ConvPass::input_gradient ? xs : ws.contiguous(c.weight);
#else
  return {};
#endif
}

// The format in which our kernels read and write: a device's know both, the CPU's contiguous memory.
MemoryFormat format_of_kernels(const Convolution& c, Device device) {
  return device.is_cpu() ? MemoryFormat::contiguous : c.images;
}

struct ConvForward {
  static constexpr OpInfo info{.name = "conv2d", .autocast = AutocastPolicy::lower};
  Convolution c;
  SavedInput x{}, w{};

  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b_) {
    x = x_;
    w = w_;
    const ConvShape& s = c.shape;
    count_flops(info, s);
    if (Tensor y = by_library(ConvPass::forward, c, x_, w_, {}, b_); y.defined()) return y;
    const MemoryFormat format = format_of_kernels(c, x_.device());
    const Tensor in = x_.contiguous(format), weight = w_.contiguous(format), bias = b_.defined() ? b_.contiguous() : b_;
    Tensor y = empty(output_shape(s), in.device(), in.dtype(), format);
    dispatch(info, in, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::conv_forward(on, s, ptr<const T>(in), ptr<const T>(weight),
                                                     ptr_or_null<const T>(bias), ptr<T>(y));
                        },
                        [&]<class T>(const Gpu& on, T) {
                          const bool last = format == MemoryFormat::channels_last;
                          const kernels::GemmPlan plan =
                              last ? kernels::conv_forward_last_plan<T>(s) : kernels::conv_forward_plan<T>(s);
                          const GemmParts<T> parts(plan, y.device());
                          const auto run = last ? kernels::gpu::conv_forward_last<T> : kernels::gpu::conv_forward<T>;
                          run(on, plan, s, ptr<const T>(in), ptr<const T>(weight), ptr_or_null<const T>(bias),
                              ptr<T>(y), parts.get());
                        }});
    return y.contiguous(c.images);
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    return {need[0] ? conv_input_gradient(gy, w.get(), c) : Tensor(),
            need[1] ? conv_weight_gradient(x.get(), gy, c, detail::birth_place(1)) : Tensor(),
            need[2] ? sum_channels(gy) : Tensor()};
  }
};

struct ConvInputGradient {
  static constexpr OpInfo info{.name = "conv2d_input_gradient", .autocast = AutocastPolicy::lower};
  Convolution c;
  SavedInput gy{}, w{};

  Tensor forward(const Tensor& gy_, const Tensor& w_) {
    gy = gy_;
    w = w_;
    const ConvShape& s = c.shape;
    count_flops(info, s);
    if (Tensor gx = by_library(ConvPass::input_gradient, c, {}, w_, gy_); gx.defined()) return gx;
    const MemoryFormat format = format_of_kernels(c, gy_.device());
    const Tensor g = gy_.contiguous(format), weight = w_.contiguous(format);
    Tensor gx = empty(input_shape(s), g.device(), g.dtype(), format);
    dispatch(info, g, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::conv_input_gradient(on, s, ptr<const T>(g), ptr<const T>(weight), ptr<T>(gx));
                        },
                        [&]<class T>(const Gpu& on, T) {
                          const bool last = format == MemoryFormat::channels_last;
                          const kernels::GemmPlan plan =
                              last ? kernels::conv_input_last_plan<T>(s) : kernels::conv_input_plan<T>(s);
                          const GemmParts<T> parts(plan, gx.device());
                          const auto run =
                              last ? kernels::gpu::conv_input_gradient_last<T> : kernels::gpu::conv_input_gradient<T>;
                          run(on, plan, s, ptr<const T>(g), ptr<const T>(weight), ptr<T>(gx), parts.get());
                        }});
    return gx.contiguous(c.images);
  }
  Grads<2> backward(const Tensor& ggx, NeedMask need) {
    return {need[0] ? conv_forward(ggx, w.get(), {}, c) : Tensor(),
            need[1] ? conv_weight_gradient(ggx, gy.get(), c) : Tensor()};
  }
};

struct ConvWeightGradient {
  static constexpr OpInfo info{.name = "conv2d_weight_gradient", .autocast = AutocastPolicy::lower};
  Convolution c;
  Tensor place{};  // memory for the result, during forward only; undefined: new memory
  SavedInput x{}, gy{};

  Tensor forward(const Tensor& x_, const Tensor& gy_) {
    x = x_;
    gy = gy_;
    const Tensor into = std::exchange(place, Tensor());
    const ConvShape& s = c.shape;
    count_flops(info, s);
    if (Tensor gw = by_library(ConvPass::weight_gradient, c, x_, {}, gy_); gw.defined()) return gw;
    const MemoryFormat format = format_of_kernels(c, x_.device());
    const Tensor in = x_.contiguous(format), g = gy_.contiguous(format);
    Tensor gw =
        into.defined() && into.is_contiguous(format) ? into : empty(weight_shape(s), in.device(), in.dtype(), format);
    dispatch(info, in, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::conv_weight_gradient(on, s, ptr<const T>(in), ptr<const T>(g), ptr<T>(gw));
                        },
                        [&]<class T>(const Gpu& on, T) {
                          const kernels::GemmPlan plan = kernels::conv_weight_plan<T>(s);
                          const GemmParts<T> parts(plan, gw.device());
                          const auto run = format == MemoryFormat::channels_last
                                               ? kernels::gpu::conv_weight_gradient_last<T>
                                               : kernels::gpu::conv_weight_gradient<T>;
                          run(on, plan, s, ptr<const T>(in), ptr<const T>(g), ptr<T>(gw), parts.get());
                        }});
    return gw.contiguous(c.weight);
  }
  Grads<2> backward(const Tensor& ggw, NeedMask need) {
    return {need[0] ? conv_input_gradient(gy.get(), ggw, c) : Tensor(),
            need[1] ? conv_forward(x.get(), ggw, {}, c) : Tensor()};
  }
};

LEVIN_OP_TABLE(ConvForward)
LEVIN_OP_TABLE(ConvInputGradient)
LEVIN_OP_TABLE(ConvWeightGradient)

Tensor conv_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Convolution& c) {
  return apply(ConvForward{c}, x, w, bias);
}
Tensor conv_input_gradient(const Tensor& gy, const Tensor& w, const Convolution& c) {
  return apply(ConvInputGradient{c}, gy, w);
}
Tensor conv_weight_gradient(const Tensor& x, const Tensor& gy, const Convolution& c, const Tensor& place) {
  return apply(ConvWeightGradient{.c = c, .place = place}, x, gy);
}

void check_operands(const char* op, const Tensor& x, const Tensor& w, const Tensor& bias) {
  check_same_device(op, x, w);
  check_dtypes_meet(op, x, w);
  if (bias.defined()) {
    check_same_device(op, x, bias);
    check_dtypes_meet(op, x, bias);
  }
  if (x.rank() != 4) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, H, W]");
  if (w.rank() != 4) fail<ShapeError>(op, ": weight has shape ", w.shape(), ", expected 4 dimensions");
  if (w.shape()[2] < 1 || w.shape()[3] < 1)
    fail<ShapeError>(op, ": weight has shape ", w.shape(), ", expected a kernel of at least 1 by 1");
}

void check_bias(const char* op, const Tensor& bias, std::int64_t channels) {
  if (bias.defined() && bias.shape() != Shape{channels}) {
    fail<ShapeError>(op, ": bias has shape ", bias.shape(), ", expected [", channels, "]");
  }
}

// The shapes of a convolution from x to y; x has in_channels.
ConvShape shape_of(const Shape& x, const Shape& w, const std::array<std::int64_t, 2>& stride,
                   const std::array<std::int64_t, 2>& padding, const std::array<std::int64_t, 2>& dilation,
                   std::int64_t groups) {
  return {.batch = x[0],
          .in_channels = x[1],
          .height = x[2],
          .width = x[3],
          .out_channels = w[0],
          .kernel_h = w[2],
          .kernel_w = w[3],
          .stride_h = stride[0],
          .stride_w = stride[1],
          .padding_h = padding[0],
          .padding_w = padding[1],
          .dilation_h = dilation[0],
          .dilation_w = dilation[1],
          .groups = groups};
}

// As a row of an image. A transposed sequence would pass for one in channels-last memory, and give such a result.
Tensor unflat(const Tensor& t) { return unsqueeze(t.contiguous(), 2); }

// The options of PaddingRule::same as numbers for x, which gets a row or a column at the end where its padding is odd.
Tensor padded_to_same(const char* op, const Tensor& x, const Tensor& weight, ConvOptions& o) {
  std::array<std::int64_t, 2> more{};
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (o.stride[i] != 1 || o.padding[i] != 0) {
      fail<ShapeError>(op, ": stride is ", o.stride[i], " and padding ", o.padding[i], " along dimension ", 2 + d,
                       ", expected 1 and 0 with PaddingRule::same");
    }
    const std::int64_t total = reach_of(weight.shape()[2 + d], o.dilation[i]) - 1;
    o.padding[i] = total / 2;
    more[i] = total % 2;
  }
  o.padding_rule = PaddingRule::given;
  return more[0] + more[1] > 0 ? pad(x, {0, more[1], 0, more[0]}) : x;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& o) {
  check_operands("conv2d", x, weight, bias);
  check_extents("conv2d", "stride", o.stride, 1);
  check_extents("conv2d", "padding", o.padding, 0);
  check_extents("conv2d", "dilation", o.dilation, 1);
  const std::int64_t channels = x.shape()[1], filters = weight.shape()[0];
  if (o.groups < 1 || channels % o.groups != 0 || filters % o.groups != 0) {
    fail<ShapeError>("conv2d: groups is ", o.groups, ", expected a divisor of ", channels, " input and ", filters,
                     " output channels");
  }
  if (weight.shape()[1] != channels / o.groups) {
    fail<ShapeError>("conv2d: weight has shape ", weight.shape(), ", expected [out, ", channels / o.groups,
                     ", kH, kW] for x ", x.shape(), " and ", o.groups, " groups");
  }
  check_bias("conv2d", bias, filters);
  if (o.padding_rule == PaddingRule::same) {
    ConvOptions given = o;
    const Tensor padded = padded_to_same("conv2d", x, weight, given);
    return conv2d(padded, weight, bias, given);
  }
  check_windows("conv2d", x.shape(), {weight.shape()[2], weight.shape()[3]}, o.padding, o.dilation);
  const ConvShape s = shape_of(x.shape(), weight.shape(), o.stride, o.padding, o.dilation, o.groups);
  return conv_forward(x, weight, bias, {s, x, weight});
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions1d& o) {
  if (x.rank() != 3) fail<ShapeError>("conv1d: x has shape ", x.shape(), ", expected [N, C, L]");
  if (weight.rank() != 3)
    fail<ShapeError>("conv1d: weight has shape ", weight.shape(), ", expected [out, in / groups, k]");
  return squeeze(conv2d(unflat(x), unflat(weight), bias,
                        {.stride = {1, o.stride},
                         .padding = {0, o.padding},
                         .dilation = {1, o.dilation},
                         .groups = o.groups,
                         .padding_rule = o.padding_rule}),
                 2);
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions& o) {
  const char* op = "conv_transpose2d";
  check_operands(op, x, weight, bias);
  check_extents(op, "stride", o.stride, 1);
  check_extents(op, "padding", o.padding, 0);
  check_extents(op, "output_padding", o.output_padding, 0);
  check_extents(op, "dilation", o.dilation, 1);
  const std::int64_t channels = x.shape()[1];
  if (weight.shape()[0] != channels) {
    fail<ShapeError>(op, ": weight has shape ", weight.shape(), ", expected [", channels,
                     ", out / groups, kH, kW] for x ", x.shape());
  }
  if (o.groups < 1 || channels % o.groups != 0) {
    fail<ShapeError>(op, ": groups is ", o.groups, ", expected a divisor of the ", channels, " input channels");
  }
  const std::int64_t filters = weight.shape()[1] * o.groups;
  check_bias(op, bias, filters);
  std::array<std::int64_t, 2> size{};
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (o.output_padding[i] >= std::max(o.stride[i], o.dilation[i])) {
      fail<ShapeError>(op, ": output_padding is ", o.output_padding[i], ", expected less than stride ", o.stride[i],
                       " or dilation ", o.dilation[i]);
    }
    const std::int64_t n = x.shape()[2 + d];
    // At most 2^33 each: the sum cannot overflow.
    size[i] = reach_of(n, o.stride[i]) - 2 * o.padding[i] + reach_of(weight.shape()[2 + d], o.dilation[i]) - 1 +
              o.output_padding[i];
    if (n < 1 || size[i] < 1 || size[i] > kMostExtent) {
      fail<ShapeError>(op, ": x of shape ", x.shape(), " gives ", size[i], " pixels along dimension ", 2 + d,
                       ", expected 1 to 2^31");
    }
  }
  (void)padded_extents(op, size, o.padding);
  // The input gradient of the convolution that maps y's shape to x's.
  const ConvShape s =
      shape_of({x.shape()[0], filters, size[0], size[1]}, weight.shape(), o.stride, o.padding, o.dilation, o.groups);
  // An output padding of a stride or more gives a larger x, whose extra elements are zeros.
  const std::int64_t more_h = s.out_height() - x.shape()[2], more_w = s.out_width() - x.shape()[3];
  Tensor y = conv_input_gradient(more_h + more_w > 0 ? pad(x, {0, more_w, 0, more_h}) : x, weight, {s, x, weight});
  return bias.defined() ? y + reshape(bias, {1, filters, 1, 1}) : y;
}

}  // namespace levin
