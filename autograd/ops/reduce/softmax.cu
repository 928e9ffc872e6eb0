// Softmax and its logarithm along any dimension. The backwards are fused; `reference` in public ops gives their
// derivatives. Where the result is f32 and x has 16 bits, device kernels convert as they read x and write its gradient;
// the CPU converts in a pass of its own.
#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/softmax/softmax.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

struct SoftmaxName {
  static constexpr OpInfo info{.name = "softmax", .autocast = AutocastPolicy::full_result};
  static constexpr OpInfo backward_info{.name = "softmax_backward"};
};
struct LogSoftmaxName {
  static constexpr OpInfo info{.name = "log_softmax", .autocast = AutocastPolicy::full_result};
  static constexpr OpInfo backward_info{.name = "log_softmax_backward"};
};

// gx = y (gy - sum(gy y)); for the logarithm gx = gy - exp(y) sum(gy).
template <class Name>
struct SoftmaxBackward {
  static constexpr OpInfo info = Name::backward_info;
  static constexpr bool kLog = std::is_same_v<Name, LogSoftmaxName>;
  int dim;
  DType from;  // x's
  SavedInput gy{}, y{};

  Tensor forward(const Tensor& gy_, const Tensor& y_) {
    gy = gy_;
    y = y_;
    const Tensor gx = empty(y_.shape(), y_.device(), y_.device().is_cpu() ? y_.dtype() : from);
    const auto call = [&]<class T, class S>(const auto& on, T, S) {
      using kernels::cpu::log_softmax_backward, kernels::cpu::softmax_backward;
      using kernels::gpu::log_softmax_backward, kernels::gpu::softmax_backward;
      const Tensor g = gy_.contiguous(), out = y_.contiguous();
      const AlongDim l(y_.shape(), dim);
      const T *pg = ptr<T>(g), *py = ptr<T>(out);
      if constexpr (kLog)
        log_softmax_backward(on, pg, py, ptr<S>(gx), l.outer, l.n, l.inner);
      else
        softmax_backward(on, pg, py, ptr<S>(gx), l.outer, l.n, l.inner);
    };
    dispatch(info, y_, kFloats,
             overloaded{
                 [&]<class T>(const Cpu& on, T t) { call(on, t, t); },
                 [&]<class T>(const Gpu& on, T t) { dispatch_stored<T>(info, gx, [&](auto s) { call(on, t, s); }); }});
    return cast(gx, from);
  }
  static Tensor reference(const Tensor& g, const Tensor& y, int dim) {
    if (y.rank() == 0) return kLog ? g - exp(y) * g : y * (g - g * y);
    if constexpr (kLog)
      return g - exp(y) * sum(g, dim, KeepDim::yes);
    else
      return y * (g - sum(g * y, dim, KeepDim::yes));
  }
  Grads<2> backward(const Tensor& gg, NeedMask need) {
    return vjp<2>([&](auto& in) { return cast(reference(in[0], in[1], dim), from); }, std::array{gy.get(), y.get()},
                  std::array{gg}, need);
  }
};

template <class Name>
struct Softmax {
  static constexpr OpInfo info = Name::info;
  int dim;
  DType result;
  DType from = DType::f32;  // x's
  SavedOutput y{};

  Tensor forward(const Tensor& x) {
    from = x.dtype();
    Tensor out = empty(x.shape(), x.device(), result);
    const Tensor in = x.device().is_cpu() ? cast(x, result) : x;
    const auto call = [&]<class T, class S>(const auto& on, T, S) {
      using kernels::cpu::log_softmax, kernels::cpu::softmax;
      using kernels::gpu::log_softmax, kernels::gpu::softmax;
      const Tensor dense = in.contiguous();
      const AlongDim l(x.shape(), dim);
      const S* px = ptr<S>(dense);
      if constexpr (std::is_same_v<Name, LogSoftmaxName>)
        log_softmax(on, px, ptr<T>(out), l.outer, l.n, l.inner);
      else
        softmax(on, px, ptr<T>(out), l.outer, l.n, l.inner);
    };
    dispatch(info, out, kFloats,
             overloaded{
                 [&]<class T>(const Cpu& on, T t) { call(on, t, t); },
                 [&]<class T>(const Gpu& on, T t) { dispatch_stored<T>(info, in, [&](auto s) { call(on, t, s); }); }});
    y = out;
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {apply(SoftmaxBackward<Name>{dim, from}, gy, y.get())}; }
};

LEVIN_OP_TABLE(Softmax<SoftmaxName>)
LEVIN_OP_TABLE(Softmax<LogSoftmaxName>)
LEVIN_OP_TABLE(SoftmaxBackward<SoftmaxName>)
LEVIN_OP_TABLE(SoftmaxBackward<LogSoftmaxName>)

// Stands for a uniform number of 0: half the distance of those of f64.
constexpr double kLeastUniform = 0x1p-54;

// A single element has the dimensions 0 and -1, as in PyTorch.
int softmax_dim(const char* op, const Tensor& x, std::int64_t dim) {
  return wrap_dim(op, dim, x.rank() == 0 ? 1 : x.rank());
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) {
  return apply(Softmax<SoftmaxName>{softmax_dim("softmax", x, dim), full_result(x.dtype())}, x);
}
Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  return apply(Softmax<LogSoftmaxName>{softmax_dim("log_softmax", x, dim), full_result(x.dtype())}, x);
}

Tensor gumbel_softmax(const Tensor& logits, Generator& generator, const GumbelSoftmaxOptions& o) {
  constexpr const char* op = "gumbel_softmax";
  check_float(op, logits);
  const int dim = softmax_dim(op, logits, o.dim);
  if (!(o.tau > 0)) fail<ConfigError>(op, ": tau is ", o.tau, ", expected a number above 0");
  const Tensor wide = widened(logits);
  // u of 0 would give -inf, and a line of these alone NaN.
  const Tensor u = clamp(rand(wide.shape(), generator, wide.device(), wide.dtype()), kLeastUniform, {});
  const Tensor soft = softmax((wide - log(neg(log(u)))) / o.tau, dim);
  if (!o.hard) return finished(soft, logits);
  const Tensor flat = soft.detach(), place = argmax(flat, dim, KeepDim::yes);
  const Tensor chosen = scatter(zeros_like(flat), dim, place, ones_like(flat));
  return finished(chosen + (soft - flat), logits);  // the difference is 0, so that the values are those of `chosen`
}

}  // namespace levin
