// Layer, RMS and group norm. Where the result is f32 and x has 16 bits, device kernels convert as they read x and write
// its gradient; the CPU converts in a pass of its own.
#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/reduce/channel_parts.h"
#include "autograd/ops/reduce/norm_backward.h"
#include "kernels/executor/dispatch.h"
#include "kernels/norm/channel_norm.cuh"
#include "kernels/norm/channel_norm_device.cuh"
#include "kernels/norm/norm.cuh"
#include "levin/ops.h"

namespace levin {
namespace {

using namespace norm_parts;

// What a forward kernel reads and fills. S is the type of x as in GradientPointers.
template <class T, class S = T>
struct ValuePointers {
  const S* x;
  const Accum<T>*w, *b;
  T* y;
  Accum<T>*mean, *rstd;
};

// What layer, RMS and group norm share: the forward that saves x, weight and the statistics.
template <class Self>
struct NormForward {
  double eps;
  DType result;
  SavedInput x{}, w{};
  Stash mean{}, rstd{};
  DType parameter_dtype = DType::f32;

  // kernel(on, ValuePointers) fills y and the statistics.
  template <class Kernel>
  Tensor values(const Tensor& x_, const Tensor& w_, const Tensor& b_, const Shape& means, const Shape& rstds,
                const Kernel& kernel) {
    const Tensor weight = widened(w_, x_), bias = widened(b_, x_);
    const Tensor in = (x_.device().is_cpu() ? cast(x_, result) : x_).contiguous();
    Tensor y = empty_like(in, result);
    mean = empty(means, in.device(), wide(in.dtype()));
    rstd = empty(rstds, in.device(), wide(in.dtype()));
    parameter_dtype = parameters_of(x_, w_, b_);
    const auto call = [&]<class T, class S>(const auto& on, T, S) {
      using A = Accum<T>;
      kernel(on, ValuePointers<T, S>{ptr<S>(in), ptr_or_null<A>(weight), ptr_or_null<A>(bias), ptr<T>(y), ptr<A>(mean),
                                     ptr<A>(rstd)});
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T t) {
      dispatch_stored<T>(Self::info, in, [&](auto s) { call(on, t, s); });
    };
    dispatch(Self::info, y, kFloats, overloaded{[&]<class T>(const Cpu& on, T t) { call(on, t, t); }, on_gpu});
    x = x_;
    w = w_;
    return y;
  }
};

// ---- Over the last dimension of [rows, cols]: layer norm (centered) and RMS norm.

template <bool kCentered>
struct RowNormBackward : NormBackward<RowNormBackward<kCentered>> {
  static constexpr OpInfo info{.name = kCentered ? "layer_norm_backward" : "rms_norm_backward"};
  double eps;
  Stash mean, rstd;

  std::array<Tensor, 3> forward(const Tensor& gy_, const Tensor& x_, const Tensor& w_) {
    const std::int64_t rows = x_.size(0), cols = x_.size(1);
    const auto on_cpu = [&]<class T>(const Cpu& on, const GradientPointers<T>& p) {
      using A = Accum<T>;
      if constexpr (kCentered) {
        kernels::cpu::layer_norm_backward(on, p.gy, p.x, p.w, ptr<const A>(mean), ptr<const A>(rstd), p.gx, p.gw, p.gb,
                                          rows, cols);
      } else {
        kernels::cpu::rms_norm_backward(on, p.gy, p.x, p.w, ptr<const A>(rstd), p.gx, p.gw, rows, cols);
      }
    };
    const auto on_gpu = [&]<class T, class S>(const Gpu& on, const GradientPointers<T, S>& p) {
      using A = Accum<T>;
      const bool sums = p.gw != nullptr || p.gb != nullptr;
      const Tensor parts =
          empty({sums ? kernels::gpu::norm_rows_scratch<T>(rows, cols) : 0}, x_.device(), wide(x_.dtype()));
      kernels::gpu::launch_norm_rows_backward<kCentered>(on, p.gy, p.x, p.w, kCentered ? ptr<const A>(mean) : nullptr,
                                                         ptr<const A>(rstd), p.gx, p.gw, p.gb, rows, cols,
                                                         ptr<A>(parts));
    };
    std::array<Tensor, 3> g = this->gradients(gy_, x_, w_, overloaded{on_cpu, on_gpu});
    if (cols == 1 && g[0].defined()) g[0] = of_one(g[0], gy_, w_);
    return g;
  }
  // gx over one element, where the terms that a kernel subtracts nearly cancel. Layer norm is constant there; of RMS
  // norm u (1 - h^2) rstd = u eps rstd^3 is left.
  [[nodiscard]] Tensor of_one(const Tensor& gx, const Tensor& gy, const Tensor& w) const {
    if (kCentered) return gx * 0;  // NaN stays
    const Tensor g = cast(gy, rstd.dtype()), u = w.defined() ? g * cast(w, rstd.dtype()) : g;
    return cast(u * reshape(rstd * rstd * rstd * eps, {rstd.numel(), 1}), gx.dtype());
  }

  std::array<Tensor, 3> reference(const std::array<Tensor, 3>& in) const {
    const DType t = wide(in[1].dtype());
    const Tensor g = cast(in[0], t), x = cast(in[1], t);
    const Tensor d = kCentered ? x - mean_of(x) : x;
    const Tensor r = rsqrt(mean_of(d * d) + eps), h = d * r;
    const Tensor u = in[2].defined() ? g * cast(in[2], t) : g;
    Tensor gx = u - h * mean_of(u * h);
    if (kCentered) gx = gx - mean_of(u);
    return {cast(gx * r, in[1].dtype()), cast_like(sum(g * h, 0), in[2]),
            kCentered ? cast(sum(g, 0), this->parameter_dtype) : Tensor()};
  }
  static Tensor mean_of(const Tensor& t) { return levin::mean(t, 1, KeepDim::yes); }
};

template <bool kCentered>
struct RowNorm : NormForward<RowNorm<kCentered>> {
  static constexpr OpInfo info{.name = kCentered ? "layer_norm" : "rms_norm", .autocast = AutocastPolicy::full_result};

  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b_) {
    const std::int64_t rows = x_.size(0), cols = x_.size(1);
    const double e = this->eps;
    const auto on_cpu = [&]<class T>(const Cpu& on, const ValuePointers<T>& p) {
      if constexpr (kCentered)
        kernels::cpu::layer_norm(on, p.x, p.w, p.b, p.y, p.mean, p.rstd, rows, cols, e);
      else
        kernels::cpu::rms_norm(on, p.x, p.w, p.y, p.rstd, rows, cols, e);
    };
    const auto on_gpu = [&]<class T, class S>(const Gpu& on, const ValuePointers<T, S>& p) {
      kernels::gpu::launch_norm_rows<kCentered>(on, p.x, p.w, p.b, p.y, p.mean, p.rstd, rows, cols, e);
    };
    return this->values(x_, w_, b_, {kCentered ? rows : 0}, {rows}, overloaded{on_cpu, on_gpu});
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    return apply(
        RowNormBackward<kCentered>{
            {need, this->parameter_dtype, parameter_places()}, this->eps, this->mean, this->rstd},
        gy, this->x.get(), this->w.get());
  }
};

template <bool kCentered>
Tensor row_norm(const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  const char* op = RowNorm<kCentered>::info.name;
  const Rows rows = rows_of(op, x, w, b, eps);
  const Tensor y = apply(RowNorm<kCentered>{{eps, full_result(x.dtype())}}, rows.of(x), Rows::flat(w), Rows::flat(b));
  return y.shape() == x.shape() ? y : reshape(y, Dims(x.shape().dims()));
}

LEVIN_OP_TABLE(RowNorm<true>)
LEVIN_OP_TABLE(RowNorm<false>)
LEVIN_OP_TABLE(RowNormBackward<true>)
LEVIN_OP_TABLE(RowNormBackward<false>)

// ---- Per group of channels of [n, c, s].

struct GroupNormBackward : NormBackward<GroupNormBackward> {
  static constexpr OpInfo info{.name = "group_norm_backward"};
  std::int64_t groups;
  double eps;
  Stash mean, rstd;

  std::array<Tensor, 3> forward(const Tensor& gy_, const Tensor& x_, const Tensor& w_) {
    const Sizes z = sizes_of(x_);
    const auto on_cpu = [&]<class T>(const Cpu& on, const GradientPointers<T>& p) {
      using A = Accum<T>;
      kernels::cpu::group_norm_backward(on, p.gy, p.x, p.w, ptr<const A>(mean), ptr<const A>(rstd), p.gx, p.gw, p.gb,
                                        z.n, z.c, z.s, groups);
    };
    const auto on_gpu = [&]<class T, class S>(const Gpu& on, const GradientPointers<T, S>& p) {
      using A = Accum<T>;
      const ChannelScratch<T> scratch(x_, 1, z.n * z.c, z.s, z.n * z.c);
      kernels::gpu::group_norm_backward(on, p.gy, p.x, p.w, ptr<const A>(mean), ptr<const A>(rstd), p.gx, p.gw, p.gb,
                                        z.n, z.c, z.s, groups, scratch.plan, scratch.parts(), scratch.coefficients());
    };
    std::array<Tensor, 3> g = gradients(gy_, x_, w_, overloaded{on_cpu, on_gpu});
    if (z.c / groups * z.s == 1 && g[0].defined())
      g[0] = g[0] * 0;  // constant; else the rounding of u - mean(u) is left
    return g;
  }

  std::array<Tensor, 3> reference(const std::array<Tensor, 3>& in) const {
    const DType t = wide(in[1].dtype());
    const Sizes z = sizes_of(in[1]);
    const auto grouped = [&](const Tensor& v) { return reshape(v, {z.n, groups, z.c / groups * z.s}); };
    const auto channels = [&](const Tensor& v) { return reshape(v, {z.n, z.c, z.s}); };
    const Tensor g = channels(cast(in[0], t)), v = grouped(cast(in[1], t));
    const Tensor d = v - levin::mean(v, 2, KeepDim::yes);
    const Tensor r = rsqrt(levin::mean(d * d, 2, KeepDim::yes) + eps), h = d * r;
    const Tensor u = grouped(in[2].defined() ? g * per_channel(in[2], t) : g);
    const Tensor gx = (u - levin::mean(u, 2, KeepDim::yes) - h * levin::mean(u * h, 2, KeepDim::yes)) * r;
    return {cast(reshape(gx, Dims(in[1].shape().dims())), in[1].dtype()),
            cast_like(sum(g * channels(h), {0, 2}), in[2]), cast(sum(g, {0, 2}), parameter_dtype)};
  }
};

struct GroupNorm : NormForward<GroupNorm> {
  static constexpr OpInfo info{.name = "group_norm", .autocast = AutocastPolicy::full_result};
  std::int64_t groups;

  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b_) {
    const Sizes z = sizes_of(x_);
    const auto on_cpu = [&]<class T>(const Cpu& on, const ValuePointers<T>& p) {
      kernels::cpu::group_norm(on, p.x, p.w, p.b, p.y, p.mean, p.rstd, z.n, z.c, z.s, groups, eps);
    };
    const auto on_gpu = [&]<class T, class S>(const Gpu& on, const ValuePointers<T, S>& p) {
      const ChannelScratch<T> scratch(x_, 1, z.n * groups, z.c / groups * z.s, z.n * z.c);
      kernels::gpu::group_norm(on, p.x, p.w, p.b, p.y, p.mean, p.rstd, z.n, z.c, z.s, groups, scratch.plan, eps,
                               scratch.parts(), scratch.coefficients());
    };
    return values(x_, w_, b_, {z.n, groups}, {z.n, groups}, overloaded{on_cpu, on_gpu});
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    return apply(GroupNormBackward{{need, parameter_dtype, parameter_places()}, groups, eps, mean, rstd}, gy, x.get(),
                 w.get());
  }
};

LEVIN_OP_TABLE(GroupNorm)
LEVIN_OP_TABLE(GroupNormBackward)

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return row_norm<true>(x, weight, bias, eps);
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, std::optional<double> eps) {
  return row_norm<false>(x, weight, {}, rms_eps(x, eps));
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, double eps) {
  check_channels("group_norm", x, weight, bias, eps);
  if (groups < 1 || x.shape()[1] % groups != 0) {
    fail<ShapeError>("group_norm: ", groups, " groups are asked for, expected a divisor of the ", x.shape()[1],
                     " channels");
  }
  return apply(GroupNorm{{eps, full_result(x.dtype())}, groups}, x, weight, bias);
}

}  // namespace levin
