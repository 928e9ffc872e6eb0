// Images at the points of a grid. Forward and gradients are fused; the gradients' derivative is that of the composite
// twin in public ops.
#include <array>
#include <cstdint>
#include <type_traits>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/products/image_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/image/grid_sample_volume.cuh"
#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::Accum;
using kernels::GridEdge;
using kernels::GridRule;
using kernels::GridShape;

struct Sampling {
  GridSampleOptions options;
  GridShape shape;
  Shape in, points;  // [N, C, H, W]; [N, H', W']; of volumes [N, C, D, H, W]; [N, D', H', W']
  [[nodiscard]] bool of_volumes() const { return in.rank() == 5; }
  [[nodiscard]] GridRule rule() const { return {static_cast<GridEdge>(options.padding_mode), options.align_corners}; }
  [[nodiscard]] Shape out() const { return points.inserted(1, in[1]); }
};
static_assert(int(GridPadding::border) == int(GridEdge::border) &&
              int(GridPadding::reflection) == int(GridEdge::reflection));

// f with the number of taps along an axis as a type.
template <class F>
void with_taps(GridSampleMode mode, const F& f) {
  switch (mode) {
    case GridSampleMode::nearest: return f(std::integral_constant<int, 1>{});
    case GridSampleMode::bilinear: return f(std::integral_constant<int, 2>{});
    case GridSampleMode::bicubic: return f(std::integral_constant<int, 4>{});
  }
}

// f(taps, true) of volumes, f(taps, false) of images: no kernel of volumes takes 4 taps.
template <class F>
void with_form(const Sampling& at, const F& f) {
  with_taps(at.options.mode, [&]<class Taps>(Taps taps) {
    if constexpr (Taps::value != 4) {
      if (at.of_volumes()) return f(taps, std::true_type{});
    }
    f(taps, std::false_type{});
  });
}

// ---- The composite twin: x [N, C, H, W] at grid [N, H', W', 2], in public ops

struct AxisTwin {
  std::array<Tensor, 4> at{}, weight{};  // i64 in the image, and weights, 0 outside; [N, P]
};
Tensor reflected(const Tensor& s, double size, bool align_corners) {
  const double low = align_corners ? 0 : -0.5, span = align_corners ? size - 1 : size;
  if (span == 0) return s * 0;
  const Tensor far = abs(s - low), turns = floor(far.detach() / span);
  const Tensor rest = far - turns * span, odd = gt(turns - floor(turns / 2) * 2, 0.5);
  return where(odd, span - rest, rest) + low;
}
Tensor placed(const Tensor& s, double size, const GridSampleOptions& o) {
  if (o.padding_mode == GridPadding::zeros) return s;
  const Tensor inner = o.padding_mode == GridPadding::reflection ? reflected(s, size, o.align_corners) : s;
  // A coordinate at the border has no slope there.
  const Tensor within = logical_and(gt(inner.detach(), 0), lt(inner.detach(), size - 1));
  return where(within, inner, clamp(inner.detach(), 0.0, size - 1));
}
// Keys' cubic with a = -0.75, of a pixel at a distance of at most 1, and of 1 to 2. In numbers: nvcc 13.0 loses the
// parentheses of (a + 2) beside a tensor.
Tensor near(const Tensor& x) { return (1.25 * x - 2.25) * x * x + 1; }
Tensor far(const Tensor& x) { return ((-0.75 * x + 3.75) * x - 6) * x + 3; }

AxisTwin axis_twin(const Tensor& coordinate, std::int64_t length, const GridSampleOptions& o) {
  const double size = double(length), half = (o.align_corners ? size - 1 : size) / 2;
  Tensor s = (coordinate + 1) * half - (o.align_corners ? 0 : 0.5);
  const bool cubic = o.mode == GridSampleMode::bicubic;
  if (!cubic) s = placed(s, size, o);
  // The limits of kernels::GridTaps; a NaN is at the lower one.
  const bool turns = cubic && o.padding_mode == GridPadding::reflection;
  const double least = turns ? -(1 << 22) : -8, most = turns ? 1 << 22 : size + 8;
  const Tensor fixed = s.detach(), above = gt(fixed, least);
  s = where(logical_and(above, lt(fixed, most)), s, where(above, clamp(fixed, least, most), full_like(fixed, least)));
  AxisTwin axis;
  const auto tap = [&](std::size_t k, const Tensor& pixel, const Tensor& weight) {
    const Tensor at = cubic ? placed(pixel, size, o) : pixel;
    const Tensor inside = logical_and(ge(at, 0), le(at, size - 1));
    axis.at[k] = cast(clamp(at, 0.0, size - 1), DType::i64);
    axis.weight[k] = where(inside, weight, zeros_like(weight));
  };
  if (o.mode == GridSampleMode::nearest) {
    tap(0, round(s.detach()), ones_like(s.detach()));
    return axis;
  }
  const Tensor first = floor(s.detach()), u = s - first;
  if (!cubic) {
    tap(0, first, 1 - u);
    tap(1, first + 1, u);
    return axis;
  }
  tap(0, first - 1, far(u + 1));
  tap(1, first, near(u));
  tap(2, first + 1, near(1 - u));
  tap(3, first + 2, far(2 - u));
  return axis;
}
Tensor twin(const Tensor& x, const Tensor& grid, const Sampling& at) {
  const GridShape& s = at.shape;
  const int taps = at.options.mode == GridSampleMode::nearest ? 1 : at.options.mode == GridSampleMode::bilinear ? 2 : 4;
  const Tensor points = reshape(grid, {s.images, s.points, at.of_volumes() ? 3 : 2}),
               flat = reshape(x, {s.images, s.channels, s.extent()});
  const AxisTwin across = axis_twin(select(points, 2, 0), s.columns, at.options),
                 down = axis_twin(select(points, 2, 1), s.rows, at.options);
  AxisTwin deep;
  if (at.of_volumes()) deep = axis_twin(select(points, 2, 2), s.slices, at.options);
  Tensor y = zeros({s.images, s.channels, s.points}, x.device(), x.dtype());
  for (std::size_t h = 0; h < (at.of_volumes() ? std::size_t(taps) : 1); ++h) {
    for (std::size_t i = 0; i < std::size_t(taps); ++i) {
      for (std::size_t j = 0; j < std::size_t(taps); ++j) {
        Tensor pixel = down.at[i] * s.columns + across.at[j], weight = down.weight[i] * across.weight[j];
        if (at.of_volumes()) pixel = deep.at[h] * s.plane() + pixel, weight = deep.weight[h] * weight;
        const Tensor seen = gather(flat, 2, expand(unsqueeze(pixel, 1), {s.images, s.channels, s.points}));
        y = y + unsqueeze(weight, 1) * seen;
      }
    }
  }
  return reshape(y, Dims(at.out().dims()));
}

// ---- Ops

struct GridSampleBackward {
  static constexpr OpInfo info{.name = "grid_sample_backward"};
  Sampling at;
  NeedMask wanted;  // of x and the grid
  SavedInput gy{}, x{}, grid{};

  std::array<Tensor, 2> forward(const Tensor& gy_, const Tensor& x_, const Tensor& grid_) {
    gy = gy_, x = x_, grid = grid_;
    const Tensor g = gy_.contiguous(), image = x_.contiguous(), points = grid_.contiguous();
    const bool some = g.numel() > 0, moves = some && at.options.mode != GridSampleMode::nearest;
    Tensor gx, ggrid;
    if (wanted[1]) ggrid = moves ? empty(points.shape(), g.device(), g.dtype()) : zeros_like(points);
    if (wanted[0] && !some) gx = zeros(at.in, g.device(), g.dtype());
    dispatch(info, g, kFloats, [&]<class T>(const auto& on, T) {
      if (!some) return;
      with_form(at, [&]<class Taps, class Volume>(Taps, Volume) {
        if (wanted[1] && moves) {
          const T *const from = ptr<const T>(g), *const of = ptr<const T>(image), *const to = ptr<const T>(points);
          if constexpr (!Volume::value)
            kernels::grid_sample_grid<Taps>(on, from, of, to, ptr<T>(ggrid), at.shape, at.rule());
          else if constexpr (Taps::value == 2)
            kernels::grid_sample_grid_volume<Taps>(on, from, of, to, ptr<T>(ggrid), at.shape, at.rule());
        }
        if (wanted[0]) gx = image_gradient<Taps, Volume, T>(on, g, points);
      });
    });
    if (wanted[0] && !gx.defined()) gx = empty(at.in, g.device(), g.dtype());  // on meta
    return {gx, ggrid};
  }
  Grads<3> backward(const Tensor& ggx, const Tensor& gggrid, NeedMask need) {
    const auto reference = [&](const std::array<Tensor, 3>& in) {
      return vjp<2>([&](const auto& of) { return std::array{twin(of[0], of[1], at)}; }, {in[1], in[2]},
                    std::array{in[0]}, wanted);
    };
    return vjp<3>(reference, {gy.get(), x.get(), grid.get()},
                  std::array{wanted[0] ? ggx : Tensor(), wanted[1] ? gggrid : Tensor()}, need);
  }

 private:
  template <class Taps, class Volume, class T>
  [[nodiscard]] Tensor image_gradient(const Cpu& on, const Tensor& g, const Tensor& points) const {
    Tensor gx = empty(at.in, g.device(), g.dtype());
    const T *const from = ptr<const T>(g), *const to = ptr<const T>(points);
    if constexpr (Volume::value)
      kernels::cpu::grid_sample_image_volume<Taps>(on, from, to, ptr<T>(gx), at.shape, at.rule());
    else
      kernels::cpu::grid_sample_image<Taps>(on, from, to, ptr<T>(gx), at.shape, at.rule());
    return gx;
  }
#if LEVIN_LAUNCHES
  template <class Taps, class Volume, class T>
  [[nodiscard]] Tensor image_gradient(const Gpu& on, const Tensor& g, const Tensor& points) const {
    using A = Accum<T>;
    const GridShape& s = at.shape;
    const std::int64_t taps = Taps::value * Taps::value * (Volume::value ? Taps::value : 1),
                       rows = s.images * s.points * taps, pixels = s.images * s.extent();
    const Tensor index = empty({rows}, g.device(), DType::i64),
                 parts = empty({rows, s.channels}, g.device(), dtype_of<A>);
    const T *const from = ptr<const T>(g), *const to = ptr<const T>(points);
    if constexpr (Volume::value)
      kernels::gpu::grid_sample_volume_parts<Taps>(on, from, to, ptr<std::int64_t>(index), ptr<A>(parts), s, at.rule());
    else
      kernels::gpu::grid_sample_parts<Taps>(on, from, to, ptr<std::int64_t>(index), ptr<A>(parts), s, at.rule());
    const Tensor sums = index_add(zeros({pixels + 1, s.channels}, g.device(), dtype_of<A>), 0, index, parts);
    const Tensor image = reshape(slice(sums, 0, 0, pixels), {s.images, s.extent(), s.channels});
    return reshape(cast(transpose(image, 1, 2), g.dtype()).contiguous(), Dims(at.in.dims()));
  }
#endif
};

struct GridSample {
  static constexpr OpInfo info{.name = "grid_sample", .autocast = AutocastPolicy::widest};
  Sampling at;
  SavedInput x{}, grid{};
  Tensor forward(const Tensor& x_, const Tensor& grid_) {
    x = x_, grid = grid_;
    const Tensor image = x_.contiguous(), points = grid_.contiguous();
    Tensor y = empty(at.out(), image.device(), image.dtype());
    dispatch(info, image, kFloats, [&]<class T>(const auto& on, T) {
      if (y.numel() == 0) return;
      with_form(at, [&]<class Taps, class Volume>(Taps, Volume) {
        const T *const from = ptr<const T>(image), *const to = ptr<const T>(points);
        if constexpr (Volume::value)
          kernels::grid_sample_volume<Taps>(on, from, to, ptr<T>(y), at.shape, at.rule());
        else
          kernels::grid_sample<Taps>(on, from, to, ptr<T>(y), at.shape, at.rule());
      });
    });
    return y;
  }
  Grads<2> backward(const Tensor& gy, NeedMask need) {
    auto [gx, ggrid] = apply(GridSampleBackward{at, need}, gy, x.get(), grid.get());
    return {gx, ggrid};
  }
};

LEVIN_OP_TABLE(GridSample)
LEVIN_OP_TABLE(GridSampleBackward)

// n numbers from -1 to 1 at equal distances: the centers of n pixels, or both ends with align_corners.
Tensor centers(std::int64_t n, AlignCorners align_corners, const Tensor& like) {
  const double end = n <= 1 ? 0 : align_corners == AlignCorners::yes ? 1 : double(n - 1) / double(n);
  return linspace(-end, end, n, like.device(), like.dtype());
}

}  // namespace

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& o) {
  constexpr const char* op = GridSample::info.name;
  check_same_device(op, x, grid);
  check_dtypes_meet(op, x, grid);
  const bool of_volumes = x.rank() == 5;
  if (x.rank() != 4 && !of_volumes)
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, H, W] or [N, C, D, H, W]");
  if (grid.rank() != x.rank() || grid.size(-1) != x.rank() - 2 || grid.size(0) != x.size(0)) {
    fail<ShapeError>(op, ": grid has shape ", grid.shape(), ", expected [", x.size(0),
                     of_volumes ? ", D', H', W', 3]" : ", H', W', 2]");
  }
  if (of_volumes && o.mode == GridSampleMode::bicubic)
    fail<ConfigError>(op, ": mode is bicubic and x a volume, ", x.shape(), "; use bilinear or nearest");
  const std::int64_t slices = of_volumes ? x.size(2) : 1, rows = x.size(-2), columns = x.size(-1);
  if (slices < 1 || rows < 1 || columns < 1 || slices >= kMostExtent || rows >= kMostExtent || columns >= kMostExtent ||
      rows * columns >= kMostExtent || slices * rows * columns >= kMostExtent) {
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected ", of_volumes ? "volumes" : "planes",
                     " of 1 to 2^31 - 1 elements");
  }
  const Shape points = grid.shape().removed(grid.rank() - 1);
  const Sampling at{o, {x.size(0), x.size(1), rows, columns, points.removed(0).numel(), slices}, x.shape(), points};
  return apply(GridSample{at}, x, grid);
}

Tensor affine_grid(const Tensor& theta, const Shape& size, AlignCorners align_corners) {
  constexpr const char* op = "affine_grid";
  check_defined(op, theta);
  if (!is_float(theta.dtype())) fail<UnsupportedError>(op, ": theta is ", theta.dtype(), "; has f32, f64, f16, bf16");
  const bool of_volumes = theta.rank() == 3 && theta.size(1) == 3;
  const std::int64_t axes = of_volumes ? 3 : 2;
  if (theta.rank() != 3 || theta.size(1) != axes || theta.size(2) != axes + 1)
    fail<ShapeError>(op, ": theta has shape ", theta.shape(), ", expected [N, 2, 3] or [N, 3, 4]");
  if (size.rank() != axes + 2 || size[0] != theta.size(0)) {
    fail<ShapeError>(op, ": size is ", size, ", expected [", theta.size(0),
                     of_volumes ? ", C, D, H, W]" : ", C, H, W]");
  }
  const Shape points = size.removed(1).removed(0);  // [H, W] or [D, H, W]
  Tensors parts;                                    // along W, H and D, then 1
  for (std::int64_t d = axes - 1; d >= 0; --d) {
    Shape along = points;
    for (int k = 0; k < points.rank(); ++k) along = along.removed(k).inserted(k, k == d ? points[k] : 1);
    parts.push_back(expand(reshape(centers(points[int(d)], align_corners, theta), Dims(along.dims())), points));
  }
  parts.push_back(ones(points, theta.device(), theta.dtype()));
  const Tensor base = reshape(stack(parts, -1), {points.numel(), axes + 1});
  const Shape grid = points.inserted(0, size[0]).inserted(points.rank() + 1, axes);
  return reshape(matmul(base, transpose(theta, 1, 2)), Dims(grid.dims()));
}

}  // namespace levin
