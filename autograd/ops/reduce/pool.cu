// Pooling. Once the positions of the maxima are known all of it is linear, so backward and its backward are ops on the
// same windows and give derivatives of any order.
#include "kernels/conv/pool.cuh"

#include <algorithm>

#include "autograd/op_table.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/ops/reduce/pool_parts.h"
#include "kernels/conv/pool_channels_last.cuh"
#include "kernels/conv/pool_device.cuh"
#include "kernels/executor/dispatch.h"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::PoolAxis;

struct Windows {
  Shape in, out;
  PoolAxis h, w;
  MemoryFormat format;  // of all images and indices
  [[nodiscard]] std::int64_t planes() const { return in[0] * in[1]; }
  [[nodiscard]] bool channels_last() const { return format == MemoryFormat::channels_last; }
};

Tensor max_pool_scatter(const Tensor& gy, const Tensor& index, const Windows& at);
Tensor max_pool_gather(const Tensor& x, const Tensor& index, const Windows& at);
Tensor avg_pool(const Tensor& x, const Windows& at);
Tensor avg_pool_backward(const Tensor& gy, const Windows& at);

// kernel(on, x, y) fills the result [out]. An empty one calls no kernel: of rows without columns there may be very
// many.
template <class Kernel>
Tensor fill(const OpInfo& info, const Tensor& x_, const Shape& out, MemoryFormat format, const Kernel& kernel) {
  const Tensor x = x_.contiguous(format);
  Tensor y = empty(out, x.device(), x.dtype(), format);
  dispatch(info, x, kFloats, [&]<class T>(const auto& on, T) {
    if (y.numel() != 0) kernel(on, ptr<const T>(x), ptr<T>(y));
  });
  return y;
}

struct MaxPool {
  static constexpr OpInfo info{.name = "max_pool2d"};
  Windows at;
  Stash index;  // i32 [out], which forward fills; undefined where nobody reads it
  Tensor forward(const Tensor& x_) {
    return fill(info, x_, at.out, at.format, [&](const auto& on, const auto* x, auto* y) {
      auto* const places = index.defined() ? ptr<std::int32_t>(index) : nullptr;
      if (at.channels_last())
        kernels::max_pool_last(on, x, at.in[0], at.in[1], at.h, at.w, y, places);
      else
        kernels::max_pool(on, x, at.planes(), at.h, at.w, y, places);
    });
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {max_pool_scatter(gy, index, at)}; }
};

struct MaxPoolScatter {
  static constexpr OpInfo info{.name = "max_pool2d_backward"};
  Windows at;
  Stash index;
  Tensor forward(const Tensor& gy_) {
    if (gy_.numel() == 0) return zeros(at.in, gy_.device(), gy_.dtype());
    return fill(info, gy_, at.in, at.format, [&](const auto& on, const auto* gy, auto* gx) {
      const auto* const places = ptr<const std::int32_t>(index);
      if (at.channels_last())
        kernels::max_pool_scatter_last(on, gy, places, at.in[0], at.in[1], at.h, at.w, gx);
      else
        kernels::max_pool_scatter(on, gy, places, at.planes(), at.h, at.w, gx);
    });
  }
  Grads<1> backward(const Tensor& ggx, NeedMask) { return {max_pool_gather(ggx, index, at)}; }
};

struct MaxPoolGather {
  static constexpr OpInfo info{.name = "max_pool2d_gather"};
  Windows at;
  Stash index;
  Tensor forward(const Tensor& x_) {
    return fill(info, x_, at.out, at.format, [&](const auto& on, const auto* x, auto* y) {
      const auto* const places = ptr<const std::int32_t>(index);
      if (at.channels_last())
        kernels::max_pool_gather_last(on, x, places, at.in[0], at.in[1], at.h, at.w, y);
      else
        kernels::max_pool_gather(on, x, places, at.planes(), at.h, at.w, y);
    });
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {max_pool_scatter(gy, index, at)}; }
};

struct AvgPool {
  static constexpr OpInfo info{.name = "avg_pool2d"};
  Windows at;
  Tensor forward(const Tensor& x_) {
    return fill(info, x_, at.out, at.format, [&](const auto& on, const auto* x, auto* y) {
      if (at.channels_last())
        kernels::avg_pool_last(on, x, at.in[0], at.in[1], at.h, at.w, y);
      else
        kernels::avg_pool(on, x, at.planes(), at.h, at.w, y);
    });
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {avg_pool_backward(gy, at)}; }
};

struct AvgPoolBackward {
  static constexpr OpInfo info{.name = "avg_pool2d_backward"};
  Windows at;
  Tensor forward(const Tensor& gy_) {
    if (gy_.numel() == 0) return zeros(at.in, gy_.device(), gy_.dtype());
    return fill(info, gy_, at.in, at.format, [&](const auto& on, const auto* gy, auto* gx) {
      if (at.channels_last())
        kernels::avg_pool_backward_last(on, gy, at.in[0], at.in[1], at.h, at.w, gx);
      else
        kernels::avg_pool_backward(on, gy, at.planes(), at.h, at.w, gx);
    });
  }
  Grads<1> backward(const Tensor& ggx, NeedMask) { return {avg_pool(ggx, at)}; }
};

// The place in its volume of what lies at `at` among the volume's pooled planes.
struct PlaceInVolume {
  static constexpr std::int64_t kGrain = 4096;
  const std::int32_t* in_planes;
  std::int64_t pixels;
  double by_plane;  // 1 / the size of a pooled plane
  LEVIN_HD std::int64_t operator()(std::int32_t at, std::int64_t volume) const {
    // Exact: the half keeps the quotient 0.5 / size from any integer; rounding moves it by less than 2^-19 / size.
    const auto slice = static_cast<std::int32_t>((at + 0.5) * by_plane);
    return slice * pixels + in_planes[volume + at];
  }
};
struct PlacesInVolumes {
  static constexpr OpInfo info{.name = "places_in_volumes"};
  std::int64_t pixels;
  // volumes [N, C, 1, 1]: where each volume's planes begin in in_planes.
  Tensor forward(const Tensor& in_planes, const Tensor& in_lines, const Tensor& volumes) {
    Tensor y = empty(in_lines.shape(), in_lines.device(), DType::i64);
    const Tensor dense = in_planes.contiguous();
    dispatch(info, in_lines, Types<std::int32_t>{}, [&]<class T>(const auto& on, T) {
      const PlaceInVolume place{ptr<const T>(dense), pixels, 1.0 / static_cast<double>(in_lines.shape()[3])};
      pointwise::run(on, place, pointwise::Signature<std::int64_t, T, std::int64_t>{}, y, in_lines, volumes);
    });
    return y;
  }
};

LEVIN_OP_TABLE(PlacesInVolumes)
LEVIN_OP_TABLE(MaxPool)
LEVIN_OP_TABLE(MaxPoolScatter)
LEVIN_OP_TABLE(MaxPoolGather)
LEVIN_OP_TABLE(AvgPool)
LEVIN_OP_TABLE(AvgPoolBackward)

Tensor max_pool_scatter(const Tensor& gy, const Tensor& index, const Windows& at) {
  return apply(MaxPoolScatter{at, index}, gy);
}
Tensor max_pool_gather(const Tensor& x, const Tensor& index, const Windows& at) {
  return apply(MaxPoolGather{at, index}, x);
}
ValuesIndices max_pool(const Tensor& x, const Windows& at) {
  const Tensor index = empty(at.out, x.device(), DType::i32, at.format);
  const Tensor y = apply(MaxPool{at, index}, x);
  return {y, index};
}
// The values alone: their places are for a gradient.
Tensor largest(const Tensor& x, const Windows& at) {
  return grad_mode() && records(x) ? max_pool(x, at).values : apply(MaxPool{at, Tensor()}, x);
}
Tensor avg_pool(const Tensor& x, const Windows& at) { return apply(AvgPool{at}, x); }
Tensor avg_pool_backward(const Tensor& gy, const Windows& at) { return apply(AvgPoolBackward{at}, gy); }

void check_image(const char* op, const Tensor& x) {
  if (x.rank() != 4) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, H, W]");
  // Positions in a plane are 32-bit.
  if (x.shape()[2] * x.shape()[3] > std::int64_t{1} << 30)
    fail<ShapeError>(op, ": a plane of x ", x.shape(), " has more than 2^30 elements");
}

PoolAxis axis(const char* op, const Tensor& x, int d, const PoolOptions& o) {
  const auto i = static_cast<std::size_t>(d);
  const std::int64_t kernel = o.kernel[i], stride = o.stride ? (*o.stride)[i] : kernel, padding = o.padding[i],
                     dilation = o.dilation[i], in = x.shape()[2 + d];
  check_pool_axis(op, x.shape(), 2 + d, kernel, stride, padding, dilation);
  const std::int64_t span = pool_span(kernel, dilation), room = in + 2 * padding - span;
  std::int64_t out = (o.ceil_mode ? (room + stride - 1) / stride : room / stride) + 1;
  if (o.ceil_mode && (out - 1) * stride >= in + padding) --out;  // the last window must see something
  return {.in = in,
          .out = out,
          .kernel = span,
          .stride = stride,
          .padding = padding,
          .dilation = kernel == 1 ? 1 : dilation,  // one element has no gap
          .count_padding = o.count_include_pad};
}

Windows windows(const char* op, const Tensor& x, const PoolOptions& o) {
  check_image(op, x);
  const PoolAxis h = axis(op, x, 0, o), w = axis(op, x, 1, o);
  return {x.shape(), {x.shape()[0], x.shape()[1], h.out, w.out}, h, w, x.suggest_memory_format()};
}

Windows adaptive_windows(const char* op, const Tensor& x, std::array<std::int64_t, 2> output) {
  check_image(op, x);
  for (int d = 0; d < 2; ++d) {
    const std::int64_t out = output[static_cast<std::size_t>(d)];
    if (out < 0) fail<ShapeError>(op, ": output is ", out, " along dimension ", 2 + d, ", expected 0 or more");
    if (out > 0 && x.shape()[2 + d] < 1) {
      fail<ShapeError>(op, ": dimension ", 2 + d, " of x ", x.shape(), " is empty, expected 1 or more for ", out,
                       " outputs");
    }
  }
  const PoolAxis h{.in = x.shape()[2], .out = output[0], .adaptive = true},
      w{.in = x.shape()[3], .out = output[1], .adaptive = true};
  return {x.shape(), {x.shape()[0], x.shape()[1], h.out, w.out}, h, w, x.suggest_memory_format()};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const PoolOptions& options) { return largest(x, windows("max_pool2d", x, options)); }
ValuesIndices max_pool2d_places(const Tensor& x, const PoolOptions& options) {
  return max_pool(x, windows("max_pool2d_with_indices", x, options));
}
ValuesIndices max_pool2d_with_indices(const Tensor& x, const PoolOptions& options) {
  const auto [y, index] = max_pool2d_places(x, options);
  return {y, cast(index, DType::i64)};
}
Tensor places_in_volumes(const Tensor& in_planes, const Tensor& in_lines, std::int64_t pixels) {
  const std::int64_t n = in_lines.shape()[0], c = in_lines.shape()[1], all = in_planes.numel();
  const std::int64_t each = all / std::max<std::int64_t>(n * c, 1);
  const Tensor volumes = reshape(arange(0, all, std::max<std::int64_t>(each, 1), in_lines.device()), {n, c, 1, 1});
  return apply(PlacesInVolumes{pixels}, in_planes, in_lines, volumes);
}
Tensor max_pool2d(const Tensor& x, std::int64_t kernel) {
  return max_pool2d(x, PoolOptions{.kernel = {kernel, kernel}});
}
Tensor avg_pool2d(const Tensor& x, const PoolOptions& options) {
  check_no_dilation("avg_pool2d", options.dilation);
  return avg_pool(x, windows("avg_pool2d", x, options));
}
Tensor avg_pool2d(const Tensor& x, std::int64_t kernel) {
  return avg_pool2d(x, PoolOptions{.kernel = {kernel, kernel}});
}
Tensor adaptive_avg_pool2d(const Tensor& x, std::array<std::int64_t, 2> output) {
  return avg_pool(x, adaptive_windows("adaptive_avg_pool2d", x, output));
}
Tensor adaptive_max_pool2d(const Tensor& x, std::array<std::int64_t, 2> output) {
  return largest(x, adaptive_windows("adaptive_max_pool2d", x, output));
}

}  // namespace levin
