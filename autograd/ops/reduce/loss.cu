// Losses between two tensors. The elementwise part is one fused pass in each direction. Its derivatives, and the sum or
// mean over it, are public ops.
#include <cmath>

#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/device/hardware_math.cuh"
#include "kernels/math/math.h"

namespace levin {
namespace pointwise {
namespace {

namespace m = kernels::math;
namespace h = kernels::half_math;

// f(x - target), an even function of the difference d. F has the value, the slope, and the slope in public ops.
struct Square {
  static constexpr OpInfo info{.name = "mse_loss", .autocast = AutocastPolicy::full};
  static constexpr OpInfo backward_info{.name = "mse_loss_backward"};
  template <class T>
  LEVIN_HD T value(T d) const {
    return d * d;
  }
  template <class T>
  LEVIN_HD T slope(T d) const {
    return d + d;
  }
  Tensor slope(const Tensor& d) const { return d * 2; }
};

struct Absolute {
  static constexpr OpInfo info{.name = "l1_loss", .autocast = AutocastPolicy::full};
  static constexpr OpInfo backward_info{.name = "l1_loss_backward"};
  template <class T>
  LEVIN_HD T value(T d) const {
    return d < T(0) ? -d : d;
  }
  template <class T>
  LEVIN_HD T slope(T d) const {
    return d > T(0) ? T(1) : d < T(0) ? T(-1) : d;  // 0 at 0, NaN stays NaN
  }
  Tensor slope(const Tensor& d) const { return sign(d); }
};

// d^2 / 2 where |d| <= delta, delta (|d| - delta / 2) beyond, all times scale. Huber, 1964. Smooth L1 is the same with
// the scale 1 / delta (Girshick, "Fast R-CNN", 2015).
enum class HuberForm : std::uint8_t { huber, smooth_l1 };
template <HuberForm form>
struct Huber {
  static constexpr bool kSmooth = form == HuberForm::smooth_l1;
  static constexpr OpInfo info{.name = kSmooth ? "smooth_l1_loss" : "huber_loss", .autocast = AutocastPolicy::full};
  static constexpr OpInfo backward_info{.name = kSmooth ? "smooth_l1_loss_backward" : "huber_loss_backward"};
  double delta, scale;
  template <class T>
  LEVIN_HD T value(T d) const {
    const T a = d < T(0) ? -d : d, e = T(delta), s = T(scale);
    return a <= e ? T(0.5) * s * d * d : s * e * (a - T(0.5) * e);
  }
  template <class T>
  LEVIN_HD T slope(T d) const {
    const T e = T(delta);
    return T(scale) * (d > e ? e : d < -e ? -e : d);
  }
  Tensor slope(const Tensor& d) const { return clamp(d, -delta, delta) * scale; }
};

template <class F>
struct Difference {
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  F f;
  template <class T>
  LEVIN_HD T operator()(T x, T target) const {
    return f.value(x - target);
  }
};
// g f'(x - target)
template <class F>
struct DifferenceSlope {
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  F f;
  template <class T>
  LEVIN_HD T operator()(T g, T x, T target) const {
    return g * f.slope(x - target);
  }
};

template <class F>
struct DifferenceLossBackward {
  static constexpr OpInfo info = F::backward_info;
  F f;
  SavedInput gy{}, x{}, target{};
  Tensor forward(const Tensor& g, const Tensor& a, const Tensor& b) {
    gy = g, x = a, target = b;
    Tensor out = empty_like(a);
    dispatch(info, a, kFloats, [&]<class T>(const auto& on, T) {
      run(on, DifferenceSlope<F>{f}, Signature<T, T, T, T>{}, out, g, a, b);
    });
    return out;
  }
  Grads<3> backward(const Tensor& gg, NeedMask need) {
    return vjp<3>([&](auto& in) { return in[0] * f.slope(in[1] - in[2]); }, std::array{gy.get(), x.get(), target.get()},
                  std::array{gg}, need);
  }
};

// y = f(x - target), elementwise; both have one shape.
template <class F>
struct DifferenceLoss {
  static constexpr OpInfo info = F::info;
  F f;
  SavedInput x{}, target{};
  Tensor forward(const Tensor& a, const Tensor& b) {
    x = a, target = b;
    Tensor out = empty_like(a);
    dispatch(info, a, kFloats,
             [&]<class T>(const auto& on, T) { run(on, Difference<F>{f}, Signature<T, T, T>{}, out, a, b); });
    return out;
  }
  Grads<2> backward(const Tensor& gy, NeedMask need) {
    Grads<2> g;
    const Tensor gx = apply(DifferenceLossBackward<F>{f}, gy, x.get(), target.get());
    if (need[1]) g[1] = neg(gx);
    if (need[0]) g[0] = gx;
    return g;
  }
};

// max(x, 0) - x target + log(1 + exp(-|x|)): no exponential of a large number.
struct BceValue {
  static constexpr std::int64_t kGrain = 16384;
  template <class T>
  LEVIN_HD T operator()(T x, T target) const {
    return of(x, target, m::softplus(x < T(0) ? x : -x));
  }
  template <class H>
  LEVIN_HD float for_half(float x, float target) const {
    return of(x, target, h::softplus(-std::abs(x)));
  }
  template <class T>
  LEVIN_HD static T of(T x, T target, T rest) {
    // |x| times the probability of the class that x denies; an infinite x that denies no class costs 0.
    const T denied = x < T(0) ? target : T(1) - target;
    return (denied == T(0) ? T(0) : denied * std::abs(x)) + rest;
  }
};
struct BceSlope {
  static constexpr std::int64_t kGrain = 16384;
  template <class T>
  LEVIN_HD T operator()(T g, T x, T target) const {
    return g * (m::sigmoid(x) - target);
  }
};

struct BceBackward {
  static constexpr OpInfo info{.name = "binary_cross_entropy_with_logits_backward"};
  SavedInput gy{}, x{}, target{};
  Tensor forward(const Tensor& g, const Tensor& a, const Tensor& b) {
    gy = g, x = a, target = b;
    Tensor out = empty_like(a);
    dispatch(info, a, kFloats,
             [&]<class T>(const auto& on, T) { run(on, BceSlope{}, Signature<T, T, T, T>{}, out, g, a, b); });
    return out;
  }
  Grads<3> backward(const Tensor& gg, NeedMask need) {
    return vjp<3>([](auto& in) { return in[0] * (sigmoid(in[1]) - in[2]); },
                  std::array{gy.get(), x.get(), target.get()}, std::array{gg}, need);
  }
};

struct Bce {
  static constexpr OpInfo info{.name = "binary_cross_entropy_with_logits", .autocast = AutocastPolicy::full};
  SavedInput x{}, target{};
  Tensor forward(const Tensor& a, const Tensor& b) {
    x = a, target = b;
    Tensor out = empty_like(a);
    dispatch(info, a, kFloats,
             [&]<class T>(const auto& on, T) { run(on, BceValue{}, Signature<T, T, T>{}, out, a, b); });
    return out;
  }
  Grads<2> backward(const Tensor& gy, NeedMask need) {
    Grads<2> g;
    if (need[0]) g[0] = apply(BceBackward{}, gy, x.get(), target.get());
    if (need[1]) g[1] = neg(gy * x.get());
    return g;
  }
};

// -(target log(x) + (1 - target) log(1 - x)); a logarithm is -100 at least.
struct ProbabilityValue {
  static constexpr std::int64_t kGrain = 16384;
  template <class T>
  LEVIN_HD T operator()(T x, T target) const {
    return of(target, m::log(x), m::log1p(-x));
  }
  template <class H>
  LEVIN_HD float for_half(float x, float target) const {
    return of(target, h::log(x), h::log1p(-x));
  }
  template <class T>
  LEVIN_HD static T of(T target, T yes, T no) {
    const T least = T(-100);
    return (target - T(1)) * (no < least ? least : no) - target * (yes < least ? least : yes);
  }
};
struct ProbabilitySlope {
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  template <class T>
  LEVIN_HD T operator()(T g, T x, T target) const {
    const T spread = (T(1) - x) * x, least = T(kLeastSpread);
    return g * (x - target) / (spread < least ? least : spread);
  }
  static constexpr double kLeastSpread = 1e-12;
};

struct ProbabilityLossBackward {
  static constexpr OpInfo info{.name = "binary_cross_entropy_backward"};
  SavedInput gy{}, x{}, target{};
  Tensor forward(const Tensor& g, const Tensor& a, const Tensor& b) {
    gy = g, x = a, target = b;
    Tensor out = empty_like(a);
    dispatch(info, a, kFloats,
             [&]<class T>(const auto& on, T) { run(on, ProbabilitySlope{}, Signature<T, T, T, T>{}, out, g, a, b); });
    return out;
  }
  Grads<3> backward(const Tensor& gg, NeedMask need) {
    return vjp<3>(
        [](auto& in) {
          return in[0] * (in[1] - in[2]) / clamp((1 - in[1]) * in[1], ProbabilitySlope::kLeastSpread, {});
        },
        std::array{gy.get(), x.get(), target.get()}, std::array{gg}, need);
  }
};

struct ProbabilityLoss {
  static constexpr OpInfo info{.name = "binary_cross_entropy", .autocast = AutocastPolicy::full};
  SavedInput x{}, target{};
  Tensor forward(const Tensor& a, const Tensor& b) {
    x = a, target = b;
    Tensor out = empty_like(a);
    dispatch(info, a, kFloats,
             [&]<class T>(const auto& on, T) { run(on, ProbabilityValue{}, Signature<T, T, T>{}, out, a, b); });
    return out;
  }
  Grads<2> backward(const Tensor& gy, NeedMask need) {
    Grads<2> g;
    if (need[0]) g[0] = apply(ProbabilityLossBackward{}, gy, x.get(), target.get());
    if (need[1]) g[1] = gy * (clamp(log1p(neg(x.get())), -100, {}) - clamp(log(x.get()), -100, {}));
    return g;
  }
};

LEVIN_OP_TABLE(DifferenceLoss<Square>)
LEVIN_OP_TABLE(DifferenceLossBackward<Square>)
LEVIN_OP_TABLE(DifferenceLoss<Absolute>)
LEVIN_OP_TABLE(DifferenceLossBackward<Absolute>)
LEVIN_OP_TABLE(DifferenceLoss<Huber<HuberForm::huber>>)
LEVIN_OP_TABLE(DifferenceLossBackward<Huber<HuberForm::huber>>)
LEVIN_OP_TABLE(DifferenceLoss<Huber<HuberForm::smooth_l1>>)
LEVIN_OP_TABLE(DifferenceLossBackward<Huber<HuberForm::smooth_l1>>)
LEVIN_OP_TABLE(ProbabilityLoss)
LEVIN_OP_TABLE(ProbabilityLossBackward)
LEVIN_OP_TABLE(Bce)
LEVIN_OP_TABLE(BceBackward)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_pair("mse_loss", x, target);
  return reduced(apply(DifferenceLoss<Square>{}, x, target), reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_pair("l1_loss", x, target);
  return reduced(apply(DifferenceLoss<Absolute>{}, x, target), reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, double delta, Reduction reduction) {
  check_pair("huber_loss", x, target);
  if (!(delta > 0)) fail<ConfigError>("huber_loss: delta is ", delta, ", expected a positive number");
  return reduced(apply(DifferenceLoss<Huber<HuberForm::huber>>{{delta, 1}}, x, target), reduction);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, double beta, Reduction reduction) {
  check_pair("smooth_l1_loss", x, target);
  if (!(beta >= 0)) fail<ConfigError>("smooth_l1_loss: beta is ", beta, ", expected 0 or more");
  if (beta == 0) return l1_loss(x, target, reduction);
  return reduced(apply(DifferenceLoss<Huber<HuberForm::smooth_l1>>{{beta, 1 / beta}}, x, target), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target, const Tensor& weight,
                                        const Tensor& pos_weight, Reduction reduction) {
  constexpr const char* op = "binary_cross_entropy_with_logits";
  check_pair(op, x, target);
  check_loss_weight(op, "weight", x, weight);
  check_loss_weight(op, "pos_weight", x, pos_weight);
  Tensor loss;
  if (pos_weight.defined()) {
    // p t log(1 + exp(-x)) + (1 - t) log(1 + exp(x)): nothing cancels, neither here nor in gradients. 0 times infinity
    // is 0.
    if (!is_float(x.dtype())) fail_unsupported(Bce::info, x, kFloats);
    const auto part = [](const Tensor& share, const Tensor& log) {
      return share * masked_fill(log, logical_and(eq(share, 0), isinf(log)), 0);
    };
    loss = part(pos_weight * target, softplus(neg(x), 1, INFINITY)) + part(1 - target, softplus(x, 1, INFINITY));
  } else {
    loss = apply(Bce{}, x, target);
  }
  return reduced(weight.defined() ? loss * weight : loss, reduction);
}

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight, Reduction reduction) {
  check_pair("binary_cross_entropy", x, target);
  check_loss_weight("binary_cross_entropy", "weight", x, weight);
  const Tensor loss = apply(ProbabilityLoss{}, x, target);
  return reduced(weight.defined() ? loss * weight : loss, reduction);
}

Tensor kl_div(const Tensor& x, const Tensor& target, KlReduction reduction, LogTarget log_target) {
  check_pair("kl_div", x, target);
  check_float("kl_div", x);
  if (reduction == KlReduction::batchmean && x.rank() == 0)
    fail<ShapeError>("kl_div: x is a single element, batchmean needs a first dimension");
  Tensor loss;
  if (log_target == LogTarget::yes) {
    loss = exp(target) * (target - x);
  } else {
    // t log t - t x, and 0 where t is 0. There the logarithm is taken of 1, so no NaN enters a gradient.
    const Tensor zero = eq(target, 0);
    loss = target * log(masked_fill(target, zero, 1)) - target * x;
  }
  switch (reduction) {
    case KlReduction::none: return loss;
    case KlReduction::mean: return mean(loss);
    case KlReduction::sum: return sum(loss);
    case KlReduction::batchmean: return sum(loss) / static_cast<double>(x.shape()[0]);
  }
  return loss;
}

}  // namespace levin
