// Batch norm, and batch norm that ends in relu. The result has x's dtype.
#include "autograd/op_table.h"
#include "autograd/ops/pointwise/relu.h"
#include "autograd/ops/reduce/channel_parts.h"
#include "autograd/ops/reduce/norm_backward.h"
#include "autograd/ops/reduce/running_statistics.h"
#include "kernels/executor/dispatch.h"
#include "kernels/norm/channel_norm.cuh"
#include "kernels/norm/channel_norm_device.cuh"
#include "kernels/norm/norm_library.h"
#include "levin/autograd.h"
#include "levin/engines.h"
#include "levin/ops.h"

namespace levin {
namespace {

using namespace norm_parts;

#if defined(LEVIN_CUDNN)
bool by_library(const kernels::BatchNormTensors& t, double eps) {
  const auto call = kernels::library_batch_norm(t, eps);
  return call && kernels::lib::cudnn_batch_norm(*call, Stream::current(t.x.device()));
}
bool may_go_to_library(const Tensor& x) {
  return x.device().type() == DeviceType::cuda && x.rank() == 4 &&
         engine_choice(EngineFamily::batch_norm) != EngineChoice::own;
}
#endif

#if LEVIN_LAUNCHES
// The kernels' form. It counts the batch where an average needs the count, just before the kernels that read it.
template <class A>
kernels::gpu::Running<A> counted_on_device(const RunningStatistics* r) {
  if (!r) return {};
  if (!r->momentum) {
    Tensor count = r->count;
    copy_(count, count + 1);
  }
  const double momentum = r->momentum.value_or(0);
  return {ptr<A>(r->mean), ptr<A>(r->var), ptr<std::int64_t>(r->count), A(1 - momentum), A(momentum), !r->momentum};
}
#endif

// Batch norm in training by the vendor's library; the result is undefined where our kernels compute the call.
// Parameters are f32 here.
Tensor library_forward([[maybe_unused]] const Tensor& x, [[maybe_unused]] const Tensor& w,
                       [[maybe_unused]] const Tensor& b, [[maybe_unused]] double eps,
                       [[maybe_unused]] const Tensor& mean, [[maybe_unused]] const Tensor& rstd,
                       [[maybe_unused]] const Tensor& unbiased, [[maybe_unused]] const RunningStatistics* running) {
#if defined(LEVIN_CUDNN)
  if (!may_go_to_library(x)) return {};
  const Tensor y = empty_like(x);
  if (!by_library({.x = x.contiguous(x.suggest_memory_format()), .y = y, .w = w, .mean = mean, .rstd = rstd, .b = b},
                  eps))
    return {};
  const std::int64_t c = x.size(1);
  kernels::gpu::unbiased_variance(Gpu{Stream::current(x.device())}, ptr<const float>(mean), ptr<const float>(rstd), eps,
                                  x.numel() / c, ptr<float>(unbiased), counted_on_device<float>(running), c);
  return y;
#else
  return {};
#endif
}
std::array<Tensor, 3> library_backward([[maybe_unused]] const Tensor& gy, [[maybe_unused]] const Tensor& x,
                                       [[maybe_unused]] const Tensor& w, [[maybe_unused]] const Tensor& mean,
                                       [[maybe_unused]] const Tensor& rstd) {
#if defined(LEVIN_CUDNN)
  if (!may_go_to_library(x)) return {};
  const MemoryFormat format = x.suggest_memory_format();
  const std::array<Tensor, 3> g{empty_like(x), empty_like(mean), empty_like(mean)};
  const kernels::BatchNormTensors t{.x = x.contiguous(format),
                                    .y = gy.contiguous(format),
                                    .w = w,
                                    .mean = mean,
                                    .rstd = rstd,
                                    .gx = g[0],
                                    .gw = g[1],
                                    .gb = g[2]};
  return by_library(t, 0) ? g : std::array<Tensor, 3>{};
#else
  return {};
#endif
}

// Training uses statistics of the batch. Evaluation uses given statistics, which have no gradient.
struct BatchNormBackward : NormBackward<BatchNormBackward> {
  static constexpr OpInfo info{.name = "batch_norm_backward"};
  double eps;
  Stash mean, rstd;                      // training
  SavedInput running_mean, running_var;  // evaluation; undefined in training
  SavedInput y{};                        // batch_norm_relu's result, detached; undefined without relu

  [[nodiscard]] bool training() const { return !running_mean.defined(); }
  static MemoryFormat format_of(const Tensor& x) { return x.suggest_memory_format(); }

  std::array<Tensor, 3> forward(const Tensor& gy_, const Tensor& x_, const Tensor& w_) {
    if (training() && !y.defined()) {
      std::array<Tensor, 3> g = library_backward(gy_, x_, widened(w_, x_), mean, rstd);
      if (g[0].defined()) {  // all three, so that a gradient's bits do not depend on which others are wanted
        for (std::size_t k = 0; k < g.size(); ++k)
          if (!wanted[k]) g[k] = {};
        return kept(gy_, x_, w_, g);
      }
    }
    return y.defined() && x_.device().is_cpu() ? by_kernels(gy_, relu_backward(gy_, y.get()), x_, w_)
                                               : by_kernels(gy_, gy_, x_, w_);
  }

  std::array<Tensor, 3> reference(const std::array<Tensor, 3>& in) const {
    const DType t = wide(in[1].dtype());
    const Sizes z = sizes_of(in[1]);
    const Tensor gy_ = y.defined() ? relu_backward(in[0], y.get()) : in[0];
    const Tensor g = reshape(cast(gy_, t), {z.n, z.c, z.s}), v = reshape(cast(in[1], t), {z.n, z.c, z.s});
    const auto mean_of = [](const Tensor& m) { return levin::mean(m, {0, 2}, KeepDim::yes); };
    const Tensor d = v - (training() ? mean_of(v) : per_channel(running_mean.get(), t));
    const Tensor r = rsqrt((training() ? mean_of(d * d) : per_channel(running_var.get(), t)) + eps), h = d * r;
    const Tensor u = in[2].defined() ? g * per_channel(in[2], t) : g;
    const Tensor gx = training() ? (u - mean_of(u) - h * mean_of(u * h)) * r : u * r;
    return {cast(reshape(gx, Dims(in[1].shape().dims())), in[1].dtype()), cast_like(sum(g * h, {0, 2}), in[2]),
            cast(sum(g, {0, 2}), parameter_dtype)};
  }

 private:
  // `given` is saved. `g` is what the kernels read: on the CPU relu's part is done.
  std::array<Tensor, 3> by_kernels(const Tensor& given, const Tensor& g, const Tensor& x_, const Tensor& w_) {
    const MemoryFormat format = format_of(x_);
    const Sizes z = format == MemoryFormat::contiguous ? sizes_of(x_) : sizes_in_memory(x_);
    const Tensor m = widened(running_mean.get(), x_), v = widened(running_var.get(), x_);
    const auto on_cpu = [&]<class T>(const Cpu& on, const GradientPointers<T>& p) {
      using A = Accum<T>;
      if (training()) {
        kernels::cpu::batch_norm_backward(on, p.gy, p.x, p.w, ptr<const A>(mean), ptr<const A>(rstd), p.gx, p.gw, p.gb,
                                          z.n, z.c, z.s);
      } else {
        kernels::cpu::batch_norm_eval_backward(on, p.gy, p.x, p.w, ptr<const A>(m), ptr<const A>(v), p.gx, p.gw, p.gb,
                                               z.n, z.c, z.s, eps);
      }
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, const GradientPointers<T>& p) {
      using A = Accum<T>;
      const ChannelScratch<T> scratch(x_, z.n, z.c, z.s, z.c);
      const T* const result = ptr_or_null<const T>(y.get());
      if (training()) {
        kernels::gpu::batch_norm_backward<T>(on, p.gy, p.x, result, p.w, ptr<const A>(mean), ptr<const A>(rstd), p.gx,
                                             p.gw, p.gb, scratch.plan, scratch.parts(), scratch.coefficients());
      } else {
        const Tensor r = empty_like(v);
        kernels::gpu::batch_norm_eval_backward<T>(on, p.gy, p.x, result, p.w, ptr<const A>(m), ptr<const A>(v), p.gx,
                                                  p.gw, p.gb, scratch.plan, eps, scratch.parts(),
                                                  scratch.coefficients(), ptr<A>(r));
      }
    };
    std::array<Tensor, 3> made = gradients(g, x_, w_, overloaded{on_cpu, on_gpu});
    gy = given;
    return made;
  }
};

// What batch norm and batch norm with relu share.
struct BatchNormForward {
  double eps;
  SavedInput running_mean{}, running_var{};  // defined: evaluation
  // Training, during forward only: where the batch's statistics go, or what follows them.
  Tensor* batch_mean = nullptr;
  Tensor* batch_var = nullptr;
  const RunningStatistics* running = nullptr;
  SavedInput x{}, w{};
  Stash mean{}, rstd{};
  DType parameter_dtype = DType::f32;

  [[nodiscard]] bool training() const { return !running_mean.defined(); }

  // A residual comes with Rectify::yes alone.
  Tensor values(const OpInfo& info, const Tensor& x_, const Tensor& w_, const Tensor& b_, kernels::Rectify rectify,
                const Tensor& residual) {
    const Tensor weight = widened(w_, x_), bias = widened(b_, x_);
    parameter_dtype = running_mean.defined() ? running_mean.get().dtype() : parameters_of(x_, w_, b_);
    Tensor y, unbiased;
    if (training()) {
      mean = empty({x_.size(1)}, x_.device(), wide(x_.dtype()));
      rstd = empty_like(mean);
      unbiased = empty_like(mean);
      if (rectify == kernels::Rectify::no) y = library_forward(x_, weight, bias, eps, mean, rstd, unbiased, running);
    }
    if (!y.defined()) y = by_kernels(info, x_, weight, bias, unbiased, rectify, residual);
    if (batch_mean) {
      *batch_mean = mean.clone();
      *batch_var = unbiased;
    }
    if (running) {
      for (const Tensor& t : {running->mean, running->var, running->count}) t.get().storage->wrote("batch_norm");
    }
    batch_mean = batch_var = nullptr;
    running = nullptr;
    x = x_;
    w = w_;
    return y;
  }

 private:
  Tensor by_kernels(const OpInfo& info, const Tensor& x_, const Tensor& weight, const Tensor& bias, Tensor unbiased,
                    kernels::Rectify rectify, const Tensor& residual) const {
    const MemoryFormat format = x_.suggest_memory_format();
    const Tensor in = x_.contiguous(format), more = residual.defined() ? residual.contiguous(format) : Tensor();
    const Sizes z = sizes_in_memory(in);
    Tensor y = empty_like(in);
    const Tensor m = widened(running_mean.get(), in), v = widened(running_var.get(), in);
    const auto on_cpu = [&]<class T>(const Cpu& on, T) {
      using A = Accum<T>;
      const T* px = ptr<T>(in);
      const A *pw = ptr_or_null<A>(weight), *pb = ptr_or_null<A>(bias);
      const kernels::Last<T> last{rectify, ptr_or_null<const T>(more)};
      if (training() && running) {
        const std::int64_t count = ++*ptr<std::int64_t>(running->count);
        kernels::cpu::batch_norm_train(on, px, pw, pb, ptr<T>(y), ptr<A>(mean), ptr<A>(rstd), ptr<A>(running->mean),
                                       ptr<A>(running->var), z.n, z.c, z.s,
                                       running->momentum.value_or(1 / static_cast<double>(count)), eps, last);
      } else if (training()) {
        // With a momentum of 1 the running variance equals this batch's, with n - 1.
        Tensor spare = zeros({z.c}, in.device(), unbiased.dtype());
        fill_(unbiased, 0);
        kernels::cpu::batch_norm_train(on, px, pw, pb, ptr<T>(y), ptr<A>(mean), ptr<A>(rstd), ptr<A>(spare),
                                       ptr<A>(unbiased), z.n, z.c, z.s, 1.0, eps, last);
      } else {
        kernels::cpu::batch_norm_eval(on, px, pw, pb, static_cast<const A*>(ptr<A>(m)),
                                      static_cast<const A*>(ptr<A>(v)), ptr<T>(y), z.n, z.c, z.s, eps, last);
      }
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T) {
      using A = Accum<T>;
      const T* px = ptr<T>(in);
      const A *pw = ptr_or_null<A>(weight), *pb = ptr_or_null<A>(bias);
      const kernels::Last<T> last{rectify, ptr_or_null<const T>(more)};
      const ChannelScratch<T> scratch(in, z.n, z.c, z.s, z.c);
      if (training()) {
        kernels::gpu::batch_norm_train(on, px, pw, pb, ptr<T>(y), ptr<A>(mean), ptr<A>(rstd), ptr<A>(unbiased),
                                       counted_on_device<A>(running), last, scratch.plan, eps, scratch.parts(),
                                       scratch.coefficients());
      } else {
        kernels::gpu::batch_norm_eval(on, px, pw, pb, ptr<const A>(m), ptr<const A>(v), ptr<T>(y), last, scratch.plan,
                                      eps, scratch.coefficients());
      }
    };
    dispatch(info, in, kFloats, overloaded{on_cpu, on_gpu});
    return y;
  }
};

struct BatchNorm : BatchNormForward {
  static constexpr OpInfo info{.name = "batch_norm"};

  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b_) {
    return values(info, x_, w_, b_, kernels::Rectify::no, {});
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    return apply(
        BatchNormBackward{{need, parameter_dtype, parameter_places()}, eps, mean, rstd, running_mean, running_var}, gy,
        x.get(), w.get());
  }
};

// relu(batch norm of x + r); without r the sum is left out.
struct BatchNormRelu : BatchNormForward {
  static constexpr OpInfo info{.name = "batch_norm_relu"};
  bool has_residual = false;
  SavedOutput y{};

  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b_, const Tensor& r_) {
    has_residual = r_.defined();
    const Tensor out = values(info, x_, w_, b_, kernels::Rectify::yes, r_);
    y = out;
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<4> backward(const Tensor& gy, NeedMask need) {
    BatchNormBackward op{{need, parameter_dtype, parameter_places()}, eps, mean, rstd, running_mean, running_var};
    Tensor g = gy;
    if (has_residual)
      g = relu_backward(gy, y.get());  // the gradient of r, from which the others follow
    else
      op.y = y.get().detach();
    Grads<3> of_norm{};
    if (need[0] || need[1] || need[2]) of_norm = apply(std::move(op), g, x.get(), w.get());
    return {of_norm[0], of_norm[1], of_norm[2], need[3] && has_residual ? g : Tensor()};
  }
};
LEVIN_OP_TABLE(BatchNorm)
LEVIN_OP_TABLE(BatchNormBackward)
LEVIN_OP_TABLE(BatchNormRelu)

void check_values(const char* op, const Tensor& x) {
  const Sizes z = sizes_of(x);
  if (z.c > 0 && z.n * z.s < 2) {
    fail<ShapeError>(op, ": x of shape ", x.shape(), " has ", z.n * z.s, " values a channel, expected 2 or more");
  }
}
void check_running(const char* op, const Tensor& x, const RunningStatistics& running) {
  const auto check = [&](const char* what, const Tensor& t) {
    check_same_device(op, x, t);
    if (t.shape() != Shape{x.size(1)} || !t.is_contiguous())
      fail<ShapeError>(op, ": ", what, " is ", t, ", expected a dense tensor of shape [", x.size(1), "]");
    if (!is_float(t.dtype()) || t.dtype() != running.mean.dtype())
      fail<DTypeError>(op, ": ", what, " is ", t.dtype(), ", expected one floating dtype for running mean and var");
  };
  check("running mean", running.mean);
  check("running var", running.var);
  check_same_device(op, x, running.count);
  if (running.count.dtype() != DType::i64 || running.count.numel() != 1)
    fail<DTypeError>(op, ": the count of batches is ", running.count, ", expected one i64 element");
  if (running.momentum && !(*running.momentum >= 0 && *running.momentum <= 1))
    fail<ConfigError>(op, ": momentum is ", *running.momentum, ", expected 0 to 1, or none for the average");
}
// Whether running statistics are moved by the kernels of batch norm.
bool kernels_follow(const Tensor& x, const RunningStatistics& running) {
  return running.mean.dtype() == wide(x.dtype()) && x.size(1) > 0;
}
void check_evaluation(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& running_mean, const Tensor& running_var, double eps) {
  check_channels(op, x, weight, bias, eps);
  for (const Tensor* t : {&running_mean, &running_var}) {
    (void)t->get();
    check_parameter(op, "a running statistic", x, *t, {x.shape()[1]});
    check_alike(op, weight, *t);
    check_alike(op, bias, *t);
  }
  check_alike(op, running_mean, running_var);
}
void check_residual(const char* op, const Tensor& x, const Tensor& residual) {
  if (!residual.defined()) return;
  check_same_device(op, x, residual);
  check_same_dtype(op, x, residual);
  if (residual.shape() != x.shape())
    fail<ShapeError>(op, ": the residual has shape ", residual.shape(), ", expected that of x ", x.shape());
}

}  // namespace

BatchNormResult batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_channels("batch_norm_train", x, weight, bias, eps);
  check_values("batch_norm_train", x);
  BatchNormResult result;
  result.y = apply(BatchNorm{{.eps = eps, .batch_mean = &result.mean, .batch_var = &result.var}}, x, weight, bias);
  return result;
}

void follow_batch(const RunningStatistics& running, const Tensor& mean, const Tensor& var) {
  const NoGrad off;
  Tensor counted = running.count;
  copy_(counted, running.count + 1);
  const auto follow = [&](Tensor now, const Tensor& batch) {
    const Tensor statistic = batch.to(now.dtype());
    if (running.momentum) {
      mul_(now, 1 - *running.momentum);
      add_(now, statistic, *running.momentum);
    } else {
      // The count stays on the device: no wait, and a captured step counts, too.
      copy_(now, now + (statistic - now) / running.count.to(now.dtype()));
    }
  };
  follow(running.mean, mean);
  follow(running.var, var);
}

Tensor batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias, const RunningStatistics& running,
                        double eps) {
  constexpr const char* op = "batch_norm_train";
  check_channels(op, x, weight, bias, eps);
  check_running(op, x, running);
  check_values(op, x);
  if (!kernels_follow(x, running)) {
    const BatchNormResult r = batch_norm_train(x, weight, bias, eps);
    follow_batch(running, r.mean, r.var);
    return r.y;
  }
  return apply(BatchNorm{{.eps = eps, .running = &running}}, x, weight, bias);
}

Tensor batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, double eps) {
  check_evaluation("batch_norm_eval", x, weight, bias, running_mean, running_var, eps);
  BatchNorm op{{.eps = eps}};
  op.running_mean = running_mean.detach().contiguous();
  op.running_var = running_var.detach().contiguous();
  return apply(std::move(op), x, weight, bias);
}

Tensor batch_norm_relu_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const RunningStatistics& running, const Tensor& residual, double eps) {
  constexpr const char* op = "batch_norm_relu_train";
  check_channels(op, x, weight, bias, eps);
  check_residual(op, x, residual);
  check_running(op, x, running);
  check_values(op, x);
  if (!kernels_follow(x, running)) {
    const Tensor y = batch_norm_train(x, weight, bias, running, eps);
    return relu(residual.defined() ? y + residual : y);
  }
  return apply(BatchNormRelu{{.eps = eps, .running = &running}}, x, weight, bias, residual);
}

Tensor batch_norm_relu_eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                            const Tensor& running_var, const Tensor& residual, double eps) {
  constexpr const char* op = "batch_norm_relu_eval";
  check_evaluation(op, x, weight, bias, running_mean, running_var, eps);
  check_residual(op, x, residual);
  BatchNormRelu fused{{.eps = eps}};
  fused.running_mean = running_mean.detach().contiguous();
  fused.running_var = running_var.detach().contiguous();
  return apply(std::move(fused), x, weight, bias, residual);
}

}  // namespace levin
