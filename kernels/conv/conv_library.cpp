#include "kernels/conv/conv_library.h"

#include <algorithm>
#include <limits>

#include "kernels/lib/library_operand.h"

namespace levin::kernels {
namespace {

std::optional<LibraryConv::Operand> operand(const Tensor& t, const Shape& shape) {
  LibraryConv::Operand o{bytes_of(t), {}, {}};
  if (t.shape() != shape || !aligned16(o.data)) return {};
  for (int d = 0; d < 4; ++d) {
    const auto i = static_cast<std::size_t>(d);
    o.sizes[i] = shape[d];
    o.strides[i] = t.strides()[d];
  }
  const auto [least, most] = std::minmax_element(o.sizes.begin(), o.sizes.end());
  if (*least < 1 || *most > std::numeric_limits<std::int32_t>::max()) return {};
  return o;
}

}  // namespace

std::optional<LibraryConv> library_conv(ConvPass pass, const ConvShape& s, const Tensor& x, const Tensor& w,
                                        const Tensor& y, const Tensor& bias) {
  const DType dtype = x.dtype();
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) return {};
  if (w.dtype() != dtype || y.dtype() != dtype || s.flops() < kLibraryConvFlops) return {};
  const auto xs = operand(x, {s.batch, s.in_channels, s.height, s.width}),
             ws = operand(w, {s.out_channels, s.group_in(), s.kernel_h, s.kernel_w}),
             ys = operand(y, {s.batch, s.out_channels, s.out_height(), s.out_width()});
  if (!xs || !ws || !ys) return {};
  if (bias.defined() && (!bias.is_contiguous() || !aligned16(bytes_of(bias)))) return {};
  return LibraryConv{.pass = pass,
                     .dtype = dtype,
                     .x = *xs,
                     .w = *ws,
                     .y = *ys,
                     .bias = bias.defined() ? bytes_of(bias) : nullptr,
                     .stride = {s.stride_h, s.stride_w},
                     .padding = {s.padding_h, s.padding_w},
                     .dilation = {s.dilation_h, s.dilation_w}};
}

LibraryCallText said(const LibraryConv& c) {
  const bool last = c.x.strides[1] == 1 && c.x.sizes[1] > 1;
  std::string with = sizes_text("x", c.x.sizes) + ", " + sizes_text("w", c.w.sizes) + " and " +
                     sizes_text("y", c.y.sizes) + " in " + name(c.dtype) + ", channels " + (last ? "last" : "first");
  if (c.pass == ConvPass::input_gradient) return {"conv2d_input_gradient", std::move(with)};
  return {c.pass == ConvPass::forward ? "conv2d" : "conv2d_weight_gradient", std::move(with)};
}

}  // namespace levin::kernels
