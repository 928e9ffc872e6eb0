// Layer and RMS norm of a residual stream: the addition and the norm as one op. On devices one kernel reads both
// operands and writes sum and norm, and one kernel makes the gradients of both operands. The CPU adds, then normalises.
#include <tuple>

#include "autograd/op_table.h"
#include "autograd/ops/reduce/norm_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/norm/norm.cuh"
#include "kernels/norm/residual_norm_device.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::Accum;
using namespace norm_parts;

template <bool kCentered>
struct AddNormBackward {
  static constexpr OpInfo info{.name = kCentered ? "add_layer_norm_backward" : "add_rms_norm_backward"};
  NeedMask wanted;
  DType parameter_dtype;
  std::array<Tensor, 2> places{};  // of the gradients of weight and bias, during forward only (birth_place)
  double eps;
  Stash mean, rstd;
  SavedInput gh{}, gy{}, h{}, w{};
  bool has_gw = false, has_gb = false;

  // Gradients of x, r, weight and bias.
  std::array<Tensor, 4> forward(const Tensor& gh_, const Tensor& gy_, const Tensor& h_, const Tensor& w_) {
    gh = gh_, gy = gy_, h = h_, w = w_;
    const std::int64_t rows = h_.size(0), cols = h_.size(1);
    const Tensor weight = widened(w_, h_), stream = gh_.contiguous(), g = gy_.contiguous(), in = h_.contiguous();
    auto [gw_place, gb_place] = std::exchange(places, {});
    Tensor gw = wanted[2] && w_.defined() ? gradient_of(cols, h_, std::move(gw_place)) : Tensor();
    Tensor gb = wanted[3] ? gradient_of(cols, h_, std::move(gb_place)) : Tensor();
    // A device's kernel makes both; the CPU's makes the norm's own part.
    const bool by_parts = h_.device().is_cpu();
    Tensor gx = by_parts || wanted[0] ? empty_like(in) : Tensor();
    Tensor gr = !by_parts && wanted[1] ? empty_like(g) : Tensor();
    const auto on_cpu = [&]<class T>(const Cpu& on, T) {
      using A = Accum<T>;
      const Tensor of_y = cast(g, h_.dtype());
      if constexpr (kCentered) {
        kernels::cpu::layer_norm_backward(on, ptr<const T>(of_y), ptr<const T>(in), ptr_or_null<const A>(weight),
                                          ptr<const A>(mean), ptr<const A>(rstd), ptr<T>(gx), ptr_or_null<A>(gw),
                                          ptr_or_null<A>(gb), rows, cols);
      } else {
        kernels::cpu::rms_norm_backward(on, ptr<const T>(of_y), ptr<const T>(in), ptr_or_null<const A>(weight),
                                        ptr<const A>(rstd), ptr<T>(gx), ptr_or_null<A>(gw), rows, cols);
      }
      gx = gx + stream;
      gr = cast(gx, g.dtype());
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T) {
      using A = Accum<T>;
      const bool sums = gw.defined() || gb.defined();
      const Tensor parts =
          empty({sums ? kernels::gpu::norm_rows_scratch<T>(rows, cols) : 0}, h_.device(), rstd.dtype());
      dispatch_stored<T>(info, g, [&]<class R>(R) {
        kernels::gpu::launch_add_norm_rows_backward<kCentered>(
            on, ptr<const T>(stream), ptr<const R>(g), ptr<const T>(in), ptr_or_null<const A>(weight),
            kCentered ? ptr<const A>(mean) : nullptr, ptr<const A>(rstd), ptr_or_null<T>(gx), ptr_or_null<R>(gr),
            ptr_or_null<A>(gw), ptr_or_null<A>(gb), rows, cols, ptr<A>(parts));
      });
    };
    dispatch(info, h_, kFloats, overloaded{on_cpu, on_gpu});
    has_gw = gw.defined(), has_gb = gb.defined();
    return {wanted[0] ? gx : Tensor(), wanted[1] ? gr : Tensor(), narrowed(gw, parameter_dtype),
            narrowed(gb, parameter_dtype)};
  }
  // The gradients as functions of gh, gy, h and w, in public ops.
  std::array<Tensor, 4> reference(const std::array<Tensor, 4>& in) const {
    const DType t = wide(in[2].dtype());
    const Tensor g = cast(in[1], t), x = cast(in[2], t);
    const auto mean_of = [](const Tensor& v) { return levin::mean(v, 1, KeepDim::yes); };
    const Tensor d = kCentered ? x - mean_of(x) : x;
    const Tensor r = rsqrt(mean_of(d * d) + eps), n = d * r;
    const Tensor u = in[3].defined() ? g * cast(in[3], t) : g;
    Tensor gx = u - n * mean_of(u * n);
    if (kCentered) gx = gx - mean_of(u);
    gx = cast(gx * r, in[2].dtype()) + in[0];
    return {gx, cast(gx, in[1].dtype()), cast_like(sum(g * n, 0), in[3]),
            kCentered ? cast(sum(g, 0), parameter_dtype) : Tensor()};
  }
  Grads<4> backward(const Tensor& ggx, const Tensor& ggr, const Tensor& ggw, const Tensor& ggb, NeedMask need) {
    return vjp<4>([&](auto& in) { return reference(in); }, {gh.get(), gy.get(), h.get(), w.get()},
                  std::array{wanted[0] ? ggx : Tensor(), wanted[1] ? ggr : Tensor(), has_gw ? ggw : Tensor(),
                             has_gb ? ggb : Tensor()},
                  need);
  }
};

template <bool kCentered>
struct AddNormForward {
  static constexpr OpInfo info{.name = kCentered ? "add_layer_norm" : "add_rms_norm"};
  double eps;
  SavedInput w{};
  SavedOutput h{};
  Stash mean{}, rstd{};
  DType parameter_dtype = DType::f32;

  std::array<Tensor, 2> forward(const Tensor& x_, const Tensor& r_, const Tensor& w_, const Tensor& b_) {
    const std::int64_t rows = x_.size(0), cols = x_.size(1);
    const Tensor weight = widened(w_, x_), bias = widened(b_, x_);
    const Tensor x = x_.contiguous(), r = r_.contiguous();
    // A device's kernel adds and normalises in one pass; the CPU's has the sum's dtype.
    const bool by_parts = x.device().is_cpu();
    const Tensor out = by_parts ? x + cast(r, x.dtype()) : empty_like(x);
    Tensor y = empty_like(by_parts ? out : r);
    mean = empty({kCentered ? rows : 0}, x.device(), wide(x.dtype()));
    rstd = empty({rows}, x.device(), wide(x.dtype()));
    parameter_dtype = parameters_of(x_, w_, b_);
    const auto on_cpu = [&]<class T>(const Cpu& on, T) {
      using A = Accum<T>;
      const T* const in = ptr<const T>(out);
      const A* const scale = ptr_or_null<const A>(weight);
      if constexpr (kCentered)
        kernels::cpu::layer_norm(on, in, scale, ptr_or_null<const A>(bias), ptr<T>(y), ptr<A>(mean), ptr<A>(rstd), rows,
                                 cols, eps);
      else
        kernels::cpu::rms_norm(on, in, scale, ptr<T>(y), ptr<A>(rstd), rows, cols, eps);
      y = cast(y, r.dtype());
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T) {
      using A = Accum<T>;
      dispatch_stored<T>(info, r, [&]<class R>(R) {
        kernels::gpu::launch_add_norm_rows<kCentered>(
            on, ptr<const T>(x), ptr<const R>(r), ptr_or_null<const A>(weight), ptr_or_null<const A>(bias), ptr<T>(out),
            ptr<R>(y), kCentered ? ptr<A>(mean) : nullptr, ptr<A>(rstd), rows, cols, eps);
      });
    };
    dispatch(info, x, kFloats, overloaded{on_cpu, on_gpu});
    h = out;
    w = w_;
    return {out, y};
  }
  auto saved_outputs() { return std::tie(h); }
  Grads<4> backward(const Tensor& gh, const Tensor& gy, NeedMask need) {
    return apply(AddNormBackward<kCentered>{need, parameter_dtype, parameter_places(2), eps, mean, rstd}, gh, gy,
                 h.get(), w.get());
  }
};

template <bool kCentered>
AddNorm add_norm(const Tensor& x, const Tensor& r, const Tensor& w, const Tensor& b, double eps) {
  const char* const op = AddNormForward<kCentered>::info.name;
  check_same_device(op, x, r);
  if (x.shape() != r.shape()) fail<ShapeError>(op, ": r has shape ", r.shape(), ", expected x's ", x.shape());
  const bool narrower = x.dtype() == DType::f32 && (r.dtype() == DType::f16 || r.dtype() == DType::bf16);
  if (r.dtype() != x.dtype() && !narrower)
    fail<DTypeError>(op, ": r is ", r.dtype(), " and x ", x.dtype(), ", expected one dtype, or f16 or bf16 beside f32");
  const Rows rows = rows_of(op, x, w, b, eps);
  if (rows.cols == 1) {  // the gradient's terms cancel, which the norm's own op minds
    const Tensor h = x + cast(r, x.dtype());
    return {h, cast(kCentered ? layer_norm(h, w, b, eps) : rms_norm(h, w, eps), r.dtype())};
  }
  const std::array<Tensor, 2> made =
      apply(AddNormForward<kCentered>{eps}, rows.of(x), rows.of(r), Rows::flat(w), Rows::flat(b));
  const auto whole = [&](const Tensor& t) { return t.shape() == x.shape() ? t : reshape(t, Dims(x.shape().dims())); };
  return {whole(made[0]), whole(made[1])};
}

LEVIN_OP_TABLE(AddNormForward<true>)
LEVIN_OP_TABLE(AddNormForward<false>)
LEVIN_OP_TABLE(AddNormBackward<true>)
LEVIN_OP_TABLE(AddNormBackward<false>)

}  // namespace

AddNorm add_layer_norm(const Tensor& x, const Tensor& r, const Tensor& weight, const Tensor& bias, double eps) {
  return add_norm<true>(x, r, weight, bias, eps);
}
AddNorm add_rms_norm(const Tensor& x, const Tensor& r, const Tensor& weight, std::optional<double> eps) {
  return add_norm<false>(x, r, weight, {}, rms_eps(x, eps));
}

}  // namespace levin
