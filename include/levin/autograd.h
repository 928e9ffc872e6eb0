// Reverse-mode differentiation: modes, backward, grad, checkpointing, numerical checks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "levin/extend.h"
#include "levin/function.h"
#include "levin/generator.h"
#include "levin/tensor.h"

namespace levin {

// Switches the recording of ops on or off for this thread while the guard lives. Each thread has its own mode, on at
// first. A data loader's threads load the batches of a loop under the modes of the thread that began the loop.
class LEVIN_API GradMode {
 public:
  explicit GradMode(bool on);  // throws StateError when switching on under InferenceMode
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_;
};
// GradMode(false): torch.no_grad.
class NoGrad : GradMode {
 public:
  NoGrad() : GradMode(false) {}
};
// No recording, and switching it on inside throws: torch.inference_mode, without special tensors.
class LEVIN_API InferenceMode {
 public:
  InferenceMode();
  ~InferenceMode();
  InferenceMode(const InferenceMode&) = delete;
  InferenceMode& operator=(const InferenceMode&) = delete;

 private:
  bool grad_before_, inference_before_;
};
// Whether this thread records ops.
[[nodiscard]] LEVIN_API bool grad_mode();

// Which parameters the step before cast under Autocast. The guard that gets the plan casts them together, at the first
// cast, where they lie on a device that launches kernels: one launch instead of one each. Their gradients are cast
// together, too, so they are complete at the end of backward. The values are those of single casts. A plan serves the
// steps of one model, one at a time, and keeps its parameters alive; an inner guard does not use it.
class LEVIN_API CastPlan {
 public:
  CastPlan();
  ~CastPlan();
  CastPlan(const CastPlan&) = delete;
  CastPlan& operator=(const CastPlan&) = delete;

 private:
  friend class detail::CastCache;
  Tensors parameters_[2];  // of steps that record nothing, and of those that record
};

// While the guard lives, ops of this thread take their floating inputs by their policy (OpInfo::autocast):
// - products of matrices, convolutions, attention and recurrent cells in `dtype` (f16 or bf16; DTypeError otherwise);
// - functions that lose digits in 16 bits (exp, log, pow, sums, softmax, norms, losses) in f32;
// - ops of several tensors in the widest dtype among them, the rest as they are.
// f64 and integers never change. Casts are ops: f32 parameters get f32 gradients. A parameter is cast once until the
// outermost guard ends or the parameter is written. Backward runs each op in the dtype of its forward, so call it after
// the guard. Works on every device. Micikevicius et al., "Mixed Precision Training", 2018.
//
//   Tensor loss = [&] { const Autocast on(DType::bf16); return cross_entropy(net(x), y); }();
//   backward(loss);
// With a plan (CastPlan) the parameters of a model are cast together.
class LEVIN_API Autocast {
 public:
  explicit Autocast(DType dtype);
  Autocast(DType dtype, CastPlan& plan);
  [[nodiscard]] static Autocast off() { return Autocast(); }  // switches autocast off for an inner scope
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  Autocast();
  Autocast(DType dtype, CastPlan* plan);
  std::unique_ptr<detail::CastCache> own_;  // of the outermost guard
  detail::CastCache* before_;
  DType dtype_before_;
};
// The dtype of the innermost guard; f32 where autocast is off.
[[nodiscard]] LEVIN_API DType autocast_dtype();

// While the guard lives, the first op of this thread whose result holds a NaN, forward or backward, throws
// AutogradError with the op's name and the shapes of its inputs. Slow: every result is read.
class LEVIN_API AnomalyMode {
 public:
  AnomalyMode();
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

 private:
  bool before_;
};

struct BackwardOptions {
  bool retain_graph = false;  // keep the saved tensors, for another backward
  bool create_graph = false;  // record the backward itself; implies retain_graph
};

// Adds d loss / d leaf to the gradient of every leaf that requires grad. `seed` is d out / d loss, needed unless loss
// has one element. Throws AutogradError when loss does not require grad or its graph was freed.
LEVIN_API void backward(const Tensor& loss, BackwardOptions options = {});
LEVIN_API void backward(const Tensor& loss, const Tensor& seed, BackwardOptions options = {});

struct GradOptions {
  bool retain_graph = false;  // as in BackwardOptions
  bool create_graph = false;
  bool allow_unused = false;  // an input that outputs do not depend on gives an undefined tensor instead of an error
};
// sum_i seeds[i] . d outputs[i] / d inputs, one tensor an input; leaves are not touched. An output without a seed
// (seeds empty, or that one undefined) must have one element; its seed is 1. Throws AutogradError when an output or an
// input does not require grad, a seed is missing, or an input is unused; ShapeError, DTypeError or DeviceError for a
// seed unlike its output.
[[nodiscard]] LEVIN_API Tensors grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                                     std::span<const Tensor> seeds = {}, GradOptions options = {});
[[nodiscard]] inline Tensors grad(const Tensor& output, std::span<const Tensor> inputs, GradOptions options = {}) {
  return grad(std::span(&output, 1), inputs, {}, options);
}

namespace detail {
// Gradients of roots with respect to graph edges; the engine behind backward, grad, vjp and checkpoint. With empty
// `targets` gradients go into the leaves. Results are undefined where nothing flows.
LEVIN_API Tensors run_backward(std::span<const Edge> roots, Tensors seeds, std::span<const Edge> targets,
                               bool retain_graph, bool create_graph);
LEVIN_API Tensor recorded_alias(const Tensor& x);  // the same values, a node of its own; see Note [vjp]
}  // namespace detail

// Note [vjp]
// The derivative of a composite: fn(inputs) rebuilt from public ops, pulled back along the cotangents. The inputs are
// replaced by aliases with nodes of their own, so that a path from one input to another is not followed. With grad mode
// on the result keeps its history, which makes fused ops differentiable to any order.
template <int N, class F, std::size_t K>
Grads<N> vjp(F&& fn, const std::array<Tensor, std::size_t(N)>& inputs, const std::array<Tensor, K>& cotangents,
             NeedMask need) {
  const bool create_graph = grad_mode();
  GradMode on(true);
  std::array<Tensor, std::size_t(N)> in = inputs;
  std::array<Edge, std::size_t(N)> targets;
  for (std::size_t i = 0; i < std::size_t(N); ++i) {
    if (!inputs[i].defined() || !need[i]) continue;
    in[i] = detail::recorded_alias(create_graph ? inputs[i] : inputs[i].detach());
    targets[i] = edge_of(in[i]);
  }
  auto out = fn(in);
  std::array<Edge, K> roots;
  Tensors seeds;
  if constexpr (std::is_same_v<decltype(out), Tensor>) {
    roots[0] = edge_of(out);
  } else {
    for (std::size_t k = 0; k < K; ++k) roots[k] = out[k].defined() ? edge_of(out[k]) : Edge{};
  }
  for (const Tensor& c : cotangents) seeds.push_back(c);
  Tensors grads = detail::run_backward(roots, std::move(seeds), targets, create_graph, create_graph);
  Grads<N> result;
  for (std::size_t i = 0; i < std::size_t(N); ++i) result[i] = std::move(grads[i]);
  return result;
}

// remove() takes the hook off its leaf. The leaf owns the hook: the handle may be dropped, and may outlive the leaf.
class LEVIN_API HookHandle {
 public:
  HookHandle() = default;
  HookHandle(std::shared_ptr<void> hook) : hook_(std::move(hook)) {}
  void remove();

 private:
  std::weak_ptr<void> hook_;
};
// Calls `hook` each time this leaf's gradient is complete in a backward, after the last contribution was added, with
// the tensor that grad() holds: the hook may write to it in place. A gradient of rows is dense then. Throws
// AutogradError on a non-leaf.
LEVIN_API HookHandle on_gradient_complete(const Tensor& leaf, Function<void(const Tensor& gradient)> hook);

// x, whose gradient passes through `hook`: each backward calls it once, with the whole gradient of the result, and goes
// on with what it returns, or with the gradient itself for an undefined tensor. Use the result in place of x
// (Tensor.register_hook, which marks x itself). With create_graph the hook's ops are recorded. Throws ConfigError for
// an empty hook; backward throws ShapeError, DTypeError or DeviceError for a tensor unlike the gradient.
[[nodiscard]] LEVIN_API Tensor hook_gradient(const Tensor& x, Function<Tensor(const Tensor& gradient)> hook);

// Runs fn(inputs) and keeps nothing but the inputs; backward runs fn again, with the same random numbers, for the rest.
// Differentiable to any order; parameters that fn captures get their gradients as usual. fn must be a pure function of
// its inputs, its captures and its generators. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
[[nodiscard]] LEVIN_API Tensors checkpoint(Function<Tensors(std::span<const Tensor>)> fn,
                                           std::span<const Tensor> inputs);
template <class F>
[[nodiscard]] Tensor checkpoint(F fn, const Tensor& x) {
  Tensors out = checkpoint(Function<Tensors(std::span<const Tensor>)>(
                               [f = std::move(fn)](std::span<const Tensor> in) { return Tensors{f(in[0])}; }),
                           std::span(&x, 1));
  return std::move(out[0]);
}

struct JvpOptions {
  bool create_graph = false;  // keep the history of outputs and tangents, towards inputs that require grad
};
struct JvpResult {
  Tensors outputs;   // fn(inputs)
  Tensors tangents;  // of each output: sum_i d output / d inputs[i] . tangents[i]
};
// The derivative of fn at `inputs` along `tangents`, one for each input, by two passes of backward
// (torch.autograd.functional.jvp): fn need not know forward-mode rules. An undefined tangent is 0, and so is that of an
// output that does not depend on the inputs. Inputs are floats. Throws AutogradError for another number of tangents,
// and for no inputs; ShapeError, DTypeError or DeviceError for a tangent unlike its input.
[[nodiscard]] LEVIN_API JvpResult jvp(const Function<Tensors(std::span<const Tensor>)>& fn,
                                      std::span<const Tensor> inputs, std::span<const Tensor> tangents,
                                      JvpOptions options = {});

// Values agree when |numeric - analytic| <= atol + rtol |numeric|.
struct GradcheckOptions {
  double eps = 1e-6;  // step of the central difference
  double atol = 1e-5;
  double rtol = 1e-3;
};
struct GradcheckResult {
  bool ok = true;
  std::string message;  // the first mismatch: input, element, numeric and analytic value
  explicit operator bool() const { return ok; }
};
using GradcheckFn = Function<Tensors(std::span<const Tensor>)>;
// Compares analytic with central-difference gradients of fn at inputs that require grad. Throws DTypeError unless they
// are f64: finite differences mean nothing in less.
[[nodiscard]] LEVIN_API GradcheckResult gradcheck(const GradcheckFn& fn, std::span<const Tensor> inputs,
                                                  GradcheckOptions options = {});
// The same for the derivatives of fn's gradient, with respect to the inputs and to random cotangents of `generator`.
[[nodiscard]] LEVIN_API GradcheckResult gradgradcheck(const GradcheckFn& fn, std::span<const Tensor> inputs,
                                                      Generator& generator, GradcheckOptions options = {});

}  // namespace levin
