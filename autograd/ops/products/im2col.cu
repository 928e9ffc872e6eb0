// Windows of images as columns, and their sums back into images: linear ops, each the other's derivative.
#include "kernels/conv/im2col.cuh"

#include "autograd/op_table.h"
#include "autograd/ops/products/image_parts.h"
#include "kernels/executor/dispatch.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::Bits;
using kernels::WindowShape;

// Both sides of the ops, [N, C, H, W] and [N, C * kH * kW, L]. `at` holds the planes of all images.
struct Columns {
  std::int64_t batch, channels;
  WindowShape at;
  [[nodiscard]] Shape image() const { return {batch, channels, at.h.size, at.w.size}; }
  [[nodiscard]] Shape columns() const { return {batch, channels * at.taps(), at.places()}; }
};

Tensor sum_of_columns(const Tensor& columns, const Columns& s);

struct Im2col {
  static constexpr OpInfo info{.name = "im2col"};
  Columns shape;
  Tensor forward(const Tensor& x_) {
    const Tensor x = x_.contiguous();
    Tensor y = empty(shape.columns(), x.device(), x.dtype());
    dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
      kernels::im2col(on, ptr<const Bits<T>>(x), ptr<Bits<T>>(y), shape.at);
    });
    return y;
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {sum_of_columns(gy, shape)}; }
};

struct Col2im {
  static constexpr OpInfo info{.name = "col2im"};
  Columns shape;
  Tensor forward(const Tensor& columns) {
    const Tensor y = columns.contiguous();
    Tensor x = empty(shape.image(), y.device(), y.dtype());
    dispatch(info, y, kFloats,
             [&]<class T>(const auto& on, T) { kernels::col2im<T>(on, ptr<const T>(y), ptr<T>(x), shape.at); });
    return x;
  }
  Grads<1> backward(const Tensor& gx, NeedMask) { return {apply(Im2col{shape}, gx)}; }
};

LEVIN_OP_TABLE(Im2col)
LEVIN_OP_TABLE(Col2im)

Tensor sum_of_columns(const Tensor& columns, const Columns& s) { return apply(Col2im{s}, columns); }

// The windows along both axes of images whose last two dimensions equal those of `image`.
WindowShape windows_of(const char* op, const Shape& image, const WindowOptions& o) {
  check_extents(op, "kernel", o.kernel, 1);
  check_extents(op, "stride", o.stride, 1);
  check_extents(op, "padding", o.padding, 0);
  check_extents(op, "dilation", o.dilation, 1);
  check_windows(op, image, o.kernel, o.padding, o.dilation);
  const int rank = image.rank();
  return {1,
          {image[rank - 2], o.kernel[0], o.stride[0], o.padding[0], o.dilation[0]},
          {image[rank - 1], o.kernel[1], o.stride[1], o.padding[1], o.dilation[1]}};
}

Columns columns_of(std::int64_t batch, std::int64_t channels, WindowShape at) {
  // Refuses shapes with too many elements before products of sizes can overflow.
  (void)Shape{batch, channels, at.h.kernel, at.w.kernel, at.h.windows, at.w.windows};
  at.planes = batch * channels;
  return {batch, channels, at};
}

}  // namespace

Tensor im2col(const Tensor& x, const WindowOptions& o) {
  const bool batched = x.rank() == 4;
  if (!batched && x.rank() != 3) {
    fail<ShapeError>("im2col: x has shape ", x.shape(), ", expected [N, C, H, W] or [C, H, W]");
  }
  const WindowShape windows = windows_of("im2col", x.shape(), o);
  const Tensor images = batched ? x : unsqueeze(x, 0);
  const Tensor y = apply(Im2col{columns_of(images.shape()[0], images.shape()[1], windows)}, images);
  return batched ? y : squeeze(y, 0);
}

Tensor col2im(const Tensor& columns, std::array<std::int64_t, 2> size, const WindowOptions& o) {
  const bool batched = columns.rank() == 3;
  const Shape& shape = columns.shape();
  if (!batched && columns.rank() != 2) {
    fail<ShapeError>("col2im: columns have shape ", shape, ", expected [N, C * kH * kW, L] or [C * kH * kW, L]");
  }
  check_extents("col2im", "size", size, 0);
  const WindowShape windows = windows_of("col2im", {size[0], size[1]}, o);
  const std::int64_t rows = shape[shape.rank() - 2], taps = windows.taps();
  if (rows % taps != 0 || shape.back() != windows.places()) {
    fail<ShapeError>("col2im: columns have shape ", shape, ", expected ", windows.places(), " columns, a multiple of ",
                     taps, " elements long");
  }
  const Tensor y = batched ? columns : unsqueeze(columns, 0);
  const Tensor x = sum_of_columns(y, columns_of(y.shape()[0], rows / taps, windows));
  return batched ? x : squeeze(x, 0);
}

}  // namespace levin
