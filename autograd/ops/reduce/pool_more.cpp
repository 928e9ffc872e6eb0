// Pooling of sequences and volumes by that of images, its inverse, and pooling by a norm.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "autograd/autocast.h"
#include "autograd/ops/reduce/pool_parts.h"
#include "levin/ops.h"

namespace levin {
namespace {

using Size2 = std::array<std::int64_t, 2>;
using Size3 = std::array<std::int64_t, 3>;

void check_rank(const char* op, const Tensor& x, int rank, const char* shape) {
  check_defined(op, x);
  if (x.rank() != rank) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected ", shape);
}

// pool of x [N, C, L] as images of one row. A transposed sequence would pass for an image in channels-last memory.
template <class Pool>
Tensor by_rows(const char* op, const Tensor& x, const Pool& pool) {
  check_rank(op, x, 3, "[N, C, L]");
  return squeeze(pool(unsqueeze(x.contiguous(), 2)), 2);
}

template <class Pool>
Tensor pooled_1d(const char* op, const Tensor& x, const PoolOptions1d& o, const Pool& pool) {
  check_rank(op, x, 3, "[N, C, L]");
  const std::int64_t stride = o.stride.value_or(o.kernel);
  check_pool_axis(op, x.shape(), 2, o.kernel, stride, o.padding, o.dilation);
  return by_rows(op, x, [&](const Tensor& rows) {
    return pool(rows, PoolOptions{.kernel = {1, o.kernel},
                                  .stride = Size2{1, stride},
                                  .padding = {0, o.padding},
                                  .dilation = {1, o.dilation},
                                  .ceil_mode = o.ceil_mode,
                                  .count_include_pad = o.count_include_pad});
  });
}

// plane of each slice [N, C * D, H, W], then line along the depth [N, C, D, H' * W'].
template <class Plane, class Line>
Tensor by_planes(const Tensor& x, const Plane& plane, const Line& line) {
  const std::int64_t n = x.size(0), c = x.size(1), d = x.size(2);
  const Tensor y = plane(reshape(x.contiguous(), {n, c * d, x.size(3), x.size(4)}));
  const std::int64_t h = y.size(2), w = y.size(3);
  const Tensor z = line(reshape(y, {n, c, d, h * w}));
  return reshape(z, {n, c, z.size(2), h, w});
}

template <class Pool>
Tensor pooled_3d(const char* op, const Tensor& x, const PoolOptions3d& o, const Pool& pool) {
  check_rank(op, x, 5, "[N, C, D, H, W]");
  const Size3 stride = o.stride.value_or(o.kernel);
  for (std::size_t i = 0; i < 3; ++i)
    check_pool_axis(op, x.shape(), 2 + static_cast<int>(i), o.kernel[i], stride[i], o.padding[i], o.dilation[i]);
  const auto along = [&](Size2 kernel, Size2 strides, Size2 padding, Size2 dilation) {
    return [=, &o, &pool](const Tensor& t) {
      return pool(t, PoolOptions{.kernel = kernel,
                                 .stride = strides,
                                 .padding = padding,
                                 .dilation = dilation,
                                 .ceil_mode = o.ceil_mode,
                                 .count_include_pad = o.count_include_pad});
    };
  };
  return by_planes(x,
                   along({o.kernel[1], o.kernel[2]}, {stride[1], stride[2]}, {o.padding[1], o.padding[2]},
                         {o.dilation[1], o.dilation[2]}),
                   along({o.kernel[0], 1}, {stride[0], 1}, {o.padding[0], 0}, {o.dilation[0], 1}));
}

template <class Pool>
Tensor adaptive_3d(const char* op, const Tensor& x, const Size3& output, const Pool& pool) {
  check_rank(op, x, 5, "[N, C, D, H, W]");
  for (std::size_t i = 0; i < 3; ++i) {
    const int d = 2 + static_cast<int>(i);
    if (output[i] < 0) fail<ShapeError>(op, ": output is ", output[i], " along dimension ", d, ", expected 0 or more");
    if (output[i] > 0 && x.shape()[d] < 1) {
      fail<ShapeError>(op, ": dimension ", d, " of x ", x.shape(), " is empty, expected 1 or more for ", output[i],
                       " outputs");
    }
  }
  (void)Shape{x.size(0), x.size(1), output[0], output[1], output[2]};  // too many elements
  return by_planes(
      x,
      [&](const Tensor& t) {
        return pool(t, Size2{output[1], output[2]});
      },
      [&](const Tensor& t) {
        return pool(t, Size2{output[0], t.size(3)});
      });
}

// x at the places `indices` of zeros [N, C, ...]. `shape` names x's for an error; no sizes: those that pooling by such
// windows has by default.
using Sizes = std::span<const std::int64_t>;
Tensor unpooled(const char* op, const Tensor& x, const Tensor& indices, const char* shape, Sizes kernel, Sizes stride,
                Sizes padding, Sizes sizes) {
  check_rank(op, x, 2 + static_cast<int>(kernel.size()), shape);
  check_same_device(op, x, indices);
  if (indices.dtype() != DType::i64) fail<DTypeError>(op, ": indices are ", indices.dtype(), ", expected i64");
  if (indices.shape() != x.shape())
    fail<ShapeError>(op, ": indices have shape ", indices.shape(), ", expected that of x, ", x.shape());
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  Shape out{x.size(0), x.size(1)};
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    const int d = 2 + static_cast<int>(i);
    const std::int64_t in = x.shape()[d];
    if (kernel[i] < 1 || kernel[i] > kMost) fail<ShapeError>(op, ": kernel is ", kernel[i], ", expected 1 to 2^30");
    if (stride[i] < 1 || stride[i] > kMost) fail<ShapeError>(op, ": stride is ", stride[i], ", expected 1 to 2^30");
    if (padding[i] < 0 || padding[i] > kMost) fail<ShapeError>(op, ": padding is ", padding[i], ", expected 0 to 2^30");
    if (in > kMost) fail<ShapeError>(op, ": dimension ", d, " of x ", x.shape(), " has more than 2^30 elements");
    const std::int64_t usual = (in - 1) * stride[i] - 2 * padding[i] + kernel[i];
    const std::int64_t size = sizes.empty() ? usual : sizes[i];
    if (size < 1 || size <= usual - stride[i] || size >= usual + stride[i]) {
      fail<ShapeError>(op, ": output_size is ", size, " along dimension ", d, ", expected 1 or more, and within ",
                       stride[i] - 1, " of ", usual);
    }
    out = out.inserted(d, size);
  }
  // The CPU's scatter writes the zeros of a row just before what replaces them. Of a device's large results all have
  // one sequence of zeros, which scatter reads from the cache.
  constexpr std::int64_t kLarge = std::int64_t{1} << 19;
  const std::int64_t extent = out.removed(0).removed(0).numel();
  const bool of_one = x.device().is_cpu(), of_row = of_one || out.numel() > kLarge;
  const Shape own{of_row ? 1 : out[0], of_row ? 1 : out[1], of_one ? 1 : extent};
  const Tensor flat = expand(zeros(own, x.device(), x.dtype()), {out[0], out[1], extent});
  return reshape(scatter(flat, 2, flatten(indices, 2), flatten(x, 2)), Dims(out.dims()));
}

constexpr auto kLargest = [](const Tensor& x, const PoolOptions& o) { return max_pool2d(x, o); };
constexpr auto kMean = [](const Tensor& x, const PoolOptions& o) { return avg_pool2d(x, o); };

}  // namespace

void check_pool_axis(const char* op, const Shape& x, int d, std::int64_t kernel, std::int64_t stride,
                     std::int64_t padding, std::int64_t dilation) {
  const std::int64_t in = x[d];
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (kernel < 1 || kernel > kMost) fail<ShapeError>(op, ": kernel is ", kernel, ", expected 1 to 2^30");
  if (stride < 1 || stride > kMost) fail<ShapeError>(op, ": stride is ", stride, ", expected 1 to 2^30");
  if (dilation < 1 || dilation > kMost) fail<ShapeError>(op, ": dilation is ", dilation, ", expected 1 to 2^30");
  if (padding < 0 || padding > kernel / 2)
    fail<ShapeError>(op, ": padding is ", padding, ", expected 0 to half the kernel ", kernel);
  // With padding a window may contain no element.
  if (in < 1) fail<ShapeError>(op, ": dimension ", d, " of x ", x, " is empty, expected 1 or more");
  const std::int64_t span = pool_span(kernel, dilation);
  if (in + 2 * padding < span) {
    if (dilation == 1) {
      fail<ShapeError>(op, ": the kernel is ", kernel, " along dimension ", d, ", x of shape ", x, " has ",
                       in + 2 * padding, " with padding; use a smaller kernel or pad more");
    }
    fail<ShapeError>(op, ": the kernel is ", kernel, " along dimension ", d, ", or ", span, " with dilation ", dilation,
                     ", x of shape ", x, " has ", in + 2 * padding,
                     " with padding; use a smaller kernel or dilation, or pad more");
  }
  if (span > kMost) {
    fail<ShapeError>(op, ": the kernel is ", kernel, " along dimension ", d, ", or ", span, " with dilation ", dilation,
                     ", expected 2^30 at most; use a smaller kernel or dilation");
  }
  // The one window of 2 elements that lie on either side of x.
  if (padding > 0 && in < dilation) {
    fail<ShapeError>(op, ": dimension ", d, " of x ", x, " has ", in, " elements, expected the dilation ", dilation,
                     " or more: a window would see padding alone; use a smaller dilation");
  }
}

void check_no_dilation(const char* op, std::span<const std::int64_t> dilation) {
  for (const std::int64_t n : dilation) {
    if (n != 1)
      fail<ConfigError>(op, ": dilation is ", n, ", expected 1: only max pools have one; take the windows of im2col");
  }
}

Tensor max_pool1d(const Tensor& x, const PoolOptions1d& o) { return pooled_1d("max_pool1d", x, o, kLargest); }
Tensor max_pool1d(const Tensor& x, std::int64_t kernel) { return max_pool1d(x, PoolOptions1d{.kernel = kernel}); }
Tensor avg_pool1d(const Tensor& x, const PoolOptions1d& o) {
  check_no_dilation("avg_pool1d", {&o.dilation, 1});
  return pooled_1d("avg_pool1d", x, o, kMean);
}
Tensor avg_pool1d(const Tensor& x, std::int64_t kernel) { return avg_pool1d(x, PoolOptions1d{.kernel = kernel}); }
Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t output) {
  return by_rows("adaptive_avg_pool1d", x, [&](const Tensor& rows) { return adaptive_avg_pool2d(rows, {1, output}); });
}
Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t output) {
  return by_rows("adaptive_max_pool1d", x, [&](const Tensor& rows) { return adaptive_max_pool2d(rows, {1, output}); });
}

Tensor max_pool3d(const Tensor& x, const PoolOptions3d& o) { return pooled_3d("max_pool3d", x, o, kLargest); }
Tensor max_pool3d(const Tensor& x, std::int64_t kernel) {
  return max_pool3d(x, PoolOptions3d{.kernel = {kernel, kernel, kernel}});
}
Tensor avg_pool3d(const Tensor& x, const PoolOptions3d& o) {
  check_no_dilation("avg_pool3d", o.dilation);
  return pooled_3d("avg_pool3d", x, o, kMean);
}
Tensor avg_pool3d(const Tensor& x, std::int64_t kernel) {
  return avg_pool3d(x, PoolOptions3d{.kernel = {kernel, kernel, kernel}});
}
Tensor adaptive_avg_pool3d(const Tensor& x, std::array<std::int64_t, 3> output) {
  return adaptive_3d("adaptive_avg_pool3d", x, output, adaptive_avg_pool2d);
}
Tensor adaptive_max_pool3d(const Tensor& x, std::array<std::int64_t, 3> output) {
  return adaptive_3d("adaptive_max_pool3d", x, output, adaptive_max_pool2d);
}

ValuesIndices max_pool1d_with_indices(const Tensor& x, const PoolOptions1d& o) {
  Tensor places;
  const Tensor y = pooled_1d("max_pool1d_with_indices", x, o, [&](const Tensor& rows, const PoolOptions& along) {
    auto [values, at] = max_pool2d_with_indices(rows, along);
    places = squeeze(at, 2);
    return values;
  });
  return {y, places};
}

ValuesIndices max_pool3d_with_indices(const Tensor& x, const PoolOptions3d& o) {
  // Places in planes of x, then in lines of these planes along the depth.
  std::array<Tensor, 2> places;
  std::size_t pass = 0;
  const Tensor y = pooled_3d("max_pool3d_with_indices", x, o, [&](const Tensor& t, const PoolOptions& along) {
    auto [values, at] = max_pool2d_places(t, along);
    places[pass++] = at;
    return values;
  });
  const Tensor at = places_in_volumes(places[0], places[1], x.size(3) * x.size(4));
  return {y, reshape(at, Dims(y.shape().dims()))};
}

Tensor max_unpool1d(const Tensor& x, const Tensor& indices, const MaxUnpoolOptions1d& o) {
  const std::int64_t stride = o.stride.value_or(o.kernel);
  return unpooled("max_unpool1d", x, indices, "[N, C, L]", {&o.kernel, 1}, {&stride, 1}, {&o.padding, 1},
                  o.output_size ? std::span(&*o.output_size, 1) : Sizes());
}
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, const MaxUnpoolOptions& o) {
  return unpooled("max_unpool2d", x, indices, "[N, C, H, W]", o.kernel, o.stride ? *o.stride : o.kernel, o.padding,
                  o.output_size ? Sizes(*o.output_size) : Sizes());
}
Tensor max_unpool3d(const Tensor& x, const Tensor& indices, const MaxUnpoolOptions3d& o) {
  return unpooled("max_unpool3d", x, indices, "[N, C, D, H, W]", o.kernel, o.stride ? *o.stride : o.kernel, o.padding,
                  o.output_size ? Sizes(*o.output_size) : Sizes());
}

Tensor lp_pool2d(const Tensor& x_, double p, const PoolOptions& o) {
  constexpr const char* op = "lp_pool2d";
  check_float(op, x_);
  if (!(p > 0 && std::isfinite(p))) fail<ConfigError>(op, ": p is ", p, ", expected a number above 0");
  if (o.padding != Size2{0, 0}) {
    fail<ConfigError>(op, ": padding is ", o.padding[0], " and ", o.padding[1],
                      ", expected 0; put zeros around x with pad");
  }
  check_no_dilation(op, o.dilation);
  const bool of_16_bits = x_.dtype() == DType::f16 || x_.dtype() == DType::bf16;
  const Tensor x = of_16_bits ? cast(x_, DType::f32) : x_;
  const Tensor means = avg_pool2d(p == 2 ? square(x) : pow(x, p), o);
  const Tensor sums = means * (static_cast<double>(o.kernel[0]) * static_cast<double>(o.kernel[1]));
  // The root's derivative is infinite at 0.
  const Tensor zero = eq(sums, 0);
  const Tensor apart = masked_fill(sums, zero, 1);
  const Tensor y = masked_fill(p == 2 ? sqrt(apart) : pow(apart, 1 / p), zero, 0);
  return of_16_bits ? cast(y, x_.dtype()) : y;
}

}  // namespace levin
