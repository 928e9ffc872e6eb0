// Images of another size. Every mode is a linear map along each axis, so its adjoint is the gradient, and the adjoint
// of that the map again: derivatives of any order.
#include <cmath>
#include <optional>

#include "autograd/op_table.h"
#include "autograd/ops/products/image_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/image/resample_device.cuh"
#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::Accum;
using kernels::Bits;
using kernels::ResampleAxes;
using kernels::ResampleAxis;
using kernels::ResampleKind;
using kernels::cpu::CpuTable;
using kernels::cpu::Direction;

struct Resampling {
  Shape in, out;
  ResampleAxes axes;
  MemoryFormat format;
  [[nodiscard]] std::int64_t planes() const { return in[0] * in[1]; }
};

// What one call passes to the kernels. Sums between two axes are kept in Accum<T>.
template <class T>
void resample(const Cpu& on, const Tensor& x, const Tensor& y, std::int64_t planes, const ResampleAxes& axes,
              Direction direction) {
  using A = Accum<T>;
  const CpuTable<A> d(axes[0], direction), h(axes[1], direction), w(axes[2], direction);
  if (axes[0].copies()) {
    kernels::resample_plane<T, T>(on, ptr<const T>(x), ptr<T>(y), planes * axes[0].in, h.get(), w.get());
    return;
  }
  const std::int64_t plane = h.get().in * w.get().in, sheets = planes * d.get().out;
  const Tensor mid = empty({sheets, plane}, x.device(), dtype_of<A>);
  kernels::resample_axis<T, A>(on, ptr<const T>(x), ptr<A>(mid), planes, plane, d.get());
  kernels::resample_plane<A, T>(on, ptr<const A>(mid), ptr<T>(y), sheets, h.get(), w.get());
}

#if LEVIN_LAUNCHES
template <class A>
struct TableMemory {
  Tensor starts, weights, ranges;
  kernels::gpu::DeviceTable<A> table;
  std::int64_t taps = 1;  // of an output, about

  TableMemory(const Gpu& on, const ResampleAxis& axis, Device device, Direction direction) {
    table = {.in = axis.in, .out = axis.out};
    if (axis.copies()) return;
    const bool adjoint = direction == Direction::adjoint;
    starts = empty({axis.out}, device, DType::i32);
    weights = empty({axis.taps(), axis.out}, device, dtype_of<A>);
    if (adjoint) ranges = empty({2, axis.in}, device, DType::i32);
    table = kernels::gpu::make_table(on, axis, ptr<std::int32_t>(starts), ptr<A>(weights),
                                     ptr_or_null<std::int32_t>(ranges));
    taps = adjoint ? (axis.taps() * axis.out + axis.in - 1) / axis.in : axis.taps();
  }
};

template <class T>
void resample(const Gpu& on, const Tensor& x, const Tensor& y, std::int64_t planes, const ResampleAxes& axes,
              Direction direction) {
  using A = Accum<T>;
  constexpr std::int64_t kMostTaps = 16;  // of one pass over two axes
  const Device device = x.device();
  const TableMemory<A> d(on, axes[0], device, direction), h(on, axes[1], device, direction),
      w(on, axes[2], device, direction);
  const std::int64_t sheets = planes * d.table.out;
  // f(address, element type) of x, or of its sums along the depth.
  Tensor mid;
  const auto with_sheets = [&](const auto& f) {
    if (axes[0].copies()) return f(ptr<const T>(x));
    mid = empty({sheets, h.table.in * w.table.in}, device, dtype_of<A>);
    kernels::resample_axis<T, A>(on, ptr<const T>(x), ptr<A>(mid), planes, h.table.in * w.table.in, d.table);
    f(ptr<const A>(mid));
  };
  with_sheets([&]<class In>(const In* from) {
    if (h.taps * w.taps <= kMostTaps) {
      kernels::resample_plane<In, T>(on, from, ptr<T>(y), sheets, h.table, w.table);
      return;
    }
    const Tensor rows = empty({sheets, h.table.out, w.table.in}, device, dtype_of<A>);
    kernels::resample_axis<In, A>(on, from, ptr<A>(rows), sheets, w.table.in, h.table);
    kernels::resample_axis<A, T>(on, ptr<const A>(rows), ptr<T>(y), sheets * h.table.out, 1, w.table);
  });
}
#endif

bool is_nearest(ResampleKind kind) { return kind == ResampleKind::nearest || kind == ResampleKind::nearest_exact; }

Tensor resampled(const OpInfo& info, const Tensor& x_, const Resampling& at, Direction direction) {
  const Tensor x = x_.contiguous();
  const Shape& shape = direction == Direction::adjoint ? at.in : at.out;
  const Tensor y = empty(shape, x.device(), x.dtype());
  dispatch(info, x, kFloats, [&]<class T>(const auto& on, T) {
    if (y.numel() != 0) resample<T>(on, x, y, at.planes(), at.axes, direction);
  });
  return y.contiguous(at.format);
}

Tensor interpolate_backward(const Tensor& gy, const Resampling& at);

struct Interpolate {
  static constexpr OpInfo info{.name = "interpolate"};
  Resampling at;
  bool nearest;
  Tensor forward(const Tensor& x_) {
    if (!nearest) return resampled(info, x_, at, Direction::forward);
    const Tensor x = x_.contiguous();
    const Tensor y = empty(at.out, x.device(), x.dtype());
    dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
      if (y.numel() != 0) kernels::resample_nearest(on, ptr<const Bits<T>>(x), ptr<Bits<T>>(y), at.planes(), at.axes);
    });
    return y.contiguous(at.format);
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {interpolate_backward(gy, at)}; }
};

struct InterpolateBackward {
  static constexpr OpInfo info{.name = "interpolate_backward"};
  Resampling at;
  Tensor forward(const Tensor& gy) { return resampled(info, gy, at, Direction::adjoint); }
  Grads<1> backward(const Tensor& g, NeedMask) {
    bool nearest = true;
    for (const ResampleAxis& axis : at.axes) nearest = nearest && (axis.copies() || is_nearest(axis.kind));
    return {apply(Interpolate{at, nearest}, g)};
  }
};

LEVIN_OP_TABLE(Interpolate)
LEVIN_OP_TABLE(InterpolateBackward)

Tensor interpolate_backward(const Tensor& gy, const Resampling& at) { return apply(InterpolateBackward{at}, gy); }

ResampleKind kind_of(const InterpolateOptions& o) {
  switch (o.mode) {
    case InterpolateMode::nearest: return ResampleKind::nearest;
    case InterpolateMode::nearest_exact: return ResampleKind::nearest_exact;
    case InterpolateMode::linear:
    case InterpolateMode::bilinear:
    case InterpolateMode::trilinear: return o.antialias ? ResampleKind::linear_aa : ResampleKind::linear;
    case InterpolateMode::bicubic: return o.antialias ? ResampleKind::cubic_aa : ResampleKind::cubic;
    case InterpolateMode::area: return ResampleKind::area;
  }
  return ResampleKind::nearest;
}
// The only rank that a mode takes, or 0.
int rank_of(InterpolateMode mode) {
  switch (mode) {
    case InterpolateMode::linear: return 3;
    case InterpolateMode::bilinear:
    case InterpolateMode::bicubic: return 4;
    case InterpolateMode::trilinear: return 5;
    default: return 0;
  }
}

void check_options(const Tensor& x, const InterpolateOptions& o) {
  constexpr const char* op = Interpolate::info.name;
  check_defined(op, x);
  const int rank = x.rank();
  if (rank < 3 || rank > 5)
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, L], [N, C, H, W] or [N, C, D, H, W]");
  if (const int only = rank_of(o.mode); only != 0 && rank != only)
    fail<ShapeError>(op, ": x has shape ", x.shape(), " of rank ", rank, ", expected rank ", only,
                     " for this mode: linear takes [N, C, L], bilinear and bicubic [N, C, H, W], trilinear "
                     "[N, C, D, H, W]");
  const ResampleKind kind = kind_of(o);
  if (o.align_corners && (is_nearest(kind) || kind == ResampleKind::area))
    fail<ConfigError>(op, ": align_corners is true, expected false for nearest, nearest_exact and area");
  if (o.antialias && o.mode != InterpolateMode::bilinear && o.mode != InterpolateMode::bicubic)
    fail<ConfigError>(op, ": antialias is true, expected false unless the mode is bilinear or bicubic");
  const auto spatial = static_cast<std::size_t>(rank - 2);
  const bool sized = o.size.count() != 0;
  if (sized == !o.scale_factor.empty())
    fail<ConfigError>(op, ": ", sized ? "both size and scale_factor are" : "neither size nor scale_factor is",
                      " given, expected one of them");
  const std::size_t given = sized ? static_cast<std::size_t>(o.size.count()) : o.scale_factor.size();
  if (given != 1 && given != spatial)
    fail<ShapeError>(op, ": ", sized ? "size" : "scale_factor", " has ", given, " numbers, expected 1 or ", spatial,
                     " for x ", x.shape());
  if (o.recompute_scale_factor && sized)
    fail<ConfigError>(op, ": recompute_scale_factor is true, expected false where size is given");
  for (const double s : o.scale_factor) {
    if (!(s > 0) || !std::isfinite(s))
      fail<ConfigError>(op, ": scale_factor is ", s, ", expected a finite number above 0");
  }
}

Resampling resampling_of(const Tensor& x, const InterpolateOptions& o) {
  constexpr const char* op = Interpolate::info.name;
  Resampling at{.in = x.shape(), .out = x.shape(), .axes = {}, .format = x.suggest_memory_format()};
  const int rank = x.rank();
  for (int d = 2; d < rank; ++d) {
    const auto i = static_cast<std::size_t>(d - 2);
    const std::int64_t in = x.shape()[d];
    if (in < 1 || in >= kMostExtent)
      fail<ShapeError>(op, ": dimension ", d, " of x ", x.shape(), " is ", in, ", expected 1 to 2^31 - 1");
    std::optional<double> factor;
    if (!o.scale_factor.empty()) factor = o.scale_factor.size() == 1 ? o.scale_factor[0] : o.scale_factor[i];
    const double wanted =
        factor ? std::floor(double(in) * *factor) : double(o.size.count() == 1 ? o.size[0] : o.size[d - 2]);
    if (!(wanted >= 1 && wanted < double(kMostExtent)))
      fail<ShapeError>(op, ": the size is ", wanted, " along dimension ", d, ", expected 1 to 2^31 - 1; x has shape ",
                       x.shape());
    const auto out = static_cast<std::int64_t>(wanted);
    ResampleAxis axis{.in = in, .out = out, .kind = kind_of(o), .align_corners = o.align_corners};
    if (o.align_corners)
      axis.scale = out > 1 ? double(in - 1) / double(out - 1) : 0.0;
    else if (factor && !o.recompute_scale_factor)
      axis.scale = 1.0 / *factor;
    else
      axis.scale = double(in) / double(out);
    const bool still = axis.scale == 1 || axis.kind == ResampleKind::nearest || axis.kind == ResampleKind::linear ||
                       axis.kind == ResampleKind::area;
    if (in == out && (still || in == 1)) axis.kind = ResampleKind::copy;
    at.axes[static_cast<std::size_t>(d - rank + 3)] = axis;
    at.out = at.out.with(d, out);
  }
  return at;
}

}  // namespace

Tensor interpolate(const Tensor& x, const InterpolateOptions& o) {
  check_options(x, o);
  return apply(Interpolate{resampling_of(x, o), is_nearest(kind_of(o))}, x);
}

}  // namespace levin
