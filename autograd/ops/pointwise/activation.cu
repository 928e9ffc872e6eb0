// Activations. Each backward is one fused pass, gy * f'(x). `slope` of tensors, in public ops, defines that pass and
// gives its derivative.
#include <cmath>

#include "autograd/ops/pointwise/activation.h"
#include "autograd/ops/pointwise/gate.h"
#include "autograd/ops/products/backward_parts.h"
#include "kernels/device/hardware_math.cuh"
#include "kernels/math/gelu.h"

namespace levin {
namespace pointwise {
namespace {

struct Tanh {
  LEVIN_ACTIVATION(Tanh, "tanh", keep, Saves::output)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return m::tanh(x);
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    return h::tanh<H>(x);
  }
  template <class T>
  LEVIN_HD T slope(T y) const {
    return T(1) - y * y;
  }
  Tensor slope(const Tensor& y) const { return 1 - y * y; }
};

struct Sigmoid {
  LEVIN_ACTIVATION(Sigmoid, "sigmoid", keep, Saves::output)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return m::sigmoid(x);
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    return h::sigmoid(x);
  }
  template <class T>
  LEVIN_HD T slope(T y) const {
    return y * (T(1) - y);
  }
  Tensor slope(const Tensor& y) const { return y * (1 - y); }
};

// Values and slopes come from kernels/math/gelu.h, which products use too.
struct Gelu {
  LEVIN_ACTIVATION(Gelu, "gelu", keep, Saves::input)
  static constexpr double kRootHalf = 0.70710678118654752440;       // sqrt(1/2)
  static constexpr double kDensityAtZero = 0.39894228040143267794;  // of N(0, 1): 1 / sqrt(2 pi)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return kernels::GeluErf::value(x);
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    return kernels::GeluErf::half_value(x);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    return kernels::GeluErf::slope(x);
  }
  template <class H>
  LEVIN_HD float slope_for_half(float x) const {
    return kernels::GeluErf::half_slope(x);
  }
  Tensor slope(const Tensor& x) const {
    return erf(x * kRootHalf) * 0.5 + 0.5 + x * exp(x * x * -0.5) * kDensityAtZero;
  }
};

struct GeluTanh {
  LEVIN_ACTIVATION(GeluTanh, "gelu_tanh", keep, Saves::input)
  static constexpr double kScale = kernels::GeluTanh::kScale, kCubic = kernels::GeluTanh::kCubic;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return kernels::GeluTanh::value(x);
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    return kernels::GeluTanh::half_value(x);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    return kernels::GeluTanh::slope(x);
  }
  template <class H>
  LEVIN_HD float slope_for_half(float x) const {
    return kernels::GeluTanh::half_slope(x);
  }
  Tensor slope(const Tensor& x) const {
    const Tensor s = sigmoid((x + x * x * x * kCubic) * (2 * kScale));
    return s + x * s * (1 - s) * ((x * x * (3 * kCubic) + 1) * (2 * kScale));
  }
};

// x * sigmoid(x). Elfwing et al., 2017.
struct Silu {
  LEVIN_ACTIVATION(Silu, "silu", keep, Saves::input)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return x * m::sigmoid(x);
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    return x * h::sigmoid(x);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    const T s = m::sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
  template <class H>
  LEVIN_HD float slope_for_half(float x) const {
    const float s = h::sigmoid(x);
    return s + x * (s - s * s);
  }
  Tensor slope(const Tensor& x) const {
    const Tensor s = sigmoid(x);
    return s * (x * (1 - s) + 1);
  }
};

struct LogSigmoid {
  LEVIN_ACTIVATION(LogSigmoid, "logsigmoid", full, Saves::input)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return -m::softplus(-x);
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    return -h::softplus(-x);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    return m::sigmoid(-x);
  }
  template <class H>
  LEVIN_HD float slope_for_half(float x) const {
    return h::sigmoid(-x);
  }
  Tensor slope(const Tensor& x) const { return sigmoid(neg(x)); }
};

struct LeakyRelu {
  LEVIN_ACTIVATION(LeakyRelu, "leaky_relu", keep, Saves::input)
  double negative_slope = 0.01;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return x > T(0) ? x : x * T(negative_slope);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    return x > T(0) ? T(1) : T(negative_slope);
  }
  Tensor slope(const Tensor& x) const { return step(gt(x, 0), x) * (1 - negative_slope) + negative_slope; }
};

// scale x, and scale alpha (e^(rate x) - 1) below 0: elu, selu and celu. Clevert et al., 2015.
struct Elu {
  LEVIN_ACTIVATION(Elu, "elu", keep, Saves::input)
  double alpha = 1, scale = 1, rate = 1;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    const T low = T(scale * alpha) * m::expm1(x < T(0) ? x * T(rate) : T(0));
    return x > T(0) || x != x ? x * T(scale) : low;
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    const float low = float(scale * alpha) * h::expm1_nonpositive(x * float(rate));
    return x > 0 ? x * float(scale) : low;  // NaN passes through low
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    const T low = T(scale * alpha * rate) * m::exp(x > T(0) ? T(0) : x * T(rate));
    return x > T(0) ? T(scale) : low;  // NaN passes through low
  }
  template <class H>
  LEVIN_HD float slope_for_half(float x) const {
    const float low = float(scale * alpha * rate) * h::exp(x > 0 ? 0.0f : x * float(rate));
    return x > 0 ? float(scale) : low;
  }
  Tensor slope(const Tensor& x) const {
    const Tensor low = exp(clamp(x, std::nullopt, 0) * rate) * (scale * alpha * rate);
    return where(gt(x, 0), full_like(x, scale), low);
  }
};

// log(1 + e^(beta x)) / beta, and x itself where beta x is above the threshold.
struct Softplus {
  LEVIN_ACTIVATION(Softplus, "softplus", full, Saves::input)
  double beta = 1, threshold = 20;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    const T z = x * T(beta);
    const T y = m::softplus(z) * T(1 / beta);
    return z > T(threshold) ? x : y;
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    const float z = x * float(beta);
    return z > float(threshold) ? x : h::softplus(z) * float(1 / beta);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    const T z = x * T(beta);
    const T s = m::sigmoid(z);
    return z > T(threshold) ? T(1) : s;
  }
  template <class H>
  LEVIN_HD float slope_for_half(float x) const {
    const float z = x * float(beta);
    return z > float(threshold) ? 1.0f : h::sigmoid(z);
  }
  Tensor slope(const Tensor& x) const { return where(gt(x * beta, threshold), ones_like(x), sigmoid(x * beta)); }
};
// x tanh(softplus(x)) = x n / (n + 2) with n = e^x (e^x + 2). Misra, 2019.
struct Mish {
  LEVIN_ACTIVATION(Mish, "mish", keep, Saves::input)
  static constexpr double kEnd = 20;  // above, the quotient is 1 in f64
  template <class T>
  LEVIN_HD T operator()(T x) const {
    const T e = m::exp(x > T(kEnd) ? T(kEnd) : x), n = e * (e + T(2));
    return x * (n / (n + T(2)));
  }
  // 1 - tanh^2 = 4 (1 + e^x)^2 / (n + 2)^2.
  template <class T>
  LEVIN_HD T slope(T x) const {
    const T e = m::exp(x > T(kEnd) ? T(kEnd) : x), n = e * (e + T(2)), q = T(1) / (n + T(2));
    const T y = q * (n + x * (T(4) * e * (T(1) + e) * q));
    return x > T(kEnd) ? T(1) : y;
  }
  Tensor slope(const Tensor& x) const {
    const Tensor t = tanh(softplus(x));
    return t + x * sigmoid(x) * (1 - t * t);
  }
};

Tensor half_of(const Tensor& x, int dim, int which) {
  const std::int64_t size = x.shape()[dim] / 2;
  return narrow(x, dim, which * size, size);
}
// The gradients of both halves, in one tensor.
struct GluBackward {
  static constexpr OpInfo info{.name = "glu_backward"};
  int dim;
  SavedInput gy{}, x{};

  Tensor forward(const Tensor& gy_, const Tensor& x_) {
    gy = gy_, x = x_;
    const Tensor gx = empty_like(x_), a = half_of(x_, dim, 0), b = half_of(x_, dim, 1);
    dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
      run(on, Gate{}, Signature<T, T, T>{}, half_of(gx, dim, 0), gy_, b);
      run(on, GateSlope{}, Signature<T, T, T, T>{}, half_of(gx, dim, 1), gy_, a, b);
    });
    return gx;
  }
  // The composite twin, in public ops.
  [[nodiscard]] Tensor twin(const Tensor& g, const Tensor& in) const {
    const Tensor s = sigmoid(half_of(in, dim, 1));
    return cat({g * s, g * half_of(in, dim, 0) * (s * (1 - s))}, dim);
  }
  Grads<2> backward(const Tensor& ggx, NeedMask need) {
    return vjp<2>([&](const auto& in) { return twin(in[0], in[1]); }, {gy.get(), x.get()}, std::array{ggx}, need);
  }
};
struct Glu {
  static constexpr OpInfo info{.name = "glu"};
  int dim;
  SavedInput x{};

  Tensor forward(const Tensor& x_) {
    x = x_;
    return map(info, Gate{}, kFloats, half_of(x_, dim, 0), half_of(x_, dim, 1));
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {apply(GluBackward{dim}, gy, x.get())}; }
};

LEVIN_OP_TABLE(Glu)
LEVIN_OP_TABLE(GluBackward)
LEVIN_LIST(Tanh)
LEVIN_LIST(Sigmoid)
LEVIN_LIST(Gelu)
LEVIN_LIST(GeluTanh)
LEVIN_LIST(Silu)
LEVIN_LIST(LogSigmoid)
LEVIN_LIST(LeakyRelu)
LEVIN_LIST(Elu)
LEVIN_LIST(Softplus)
LEVIN_LIST(Mish)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor tanh(const Tensor& x) { return unary<Tanh>(x); }
Tensor sigmoid(const Tensor& x) { return unary<Sigmoid>(x); }
Tensor gelu(const Tensor& x, GeluForm form) { return form == GeluForm::erf ? unary<Gelu>(x) : unary<GeluTanh>(x); }
Tensor gelu_backward(const Tensor& gy, const Tensor& x, GeluForm form) {
  return form == GeluForm::erf ? Gelu{}.backward(gy, x) : GeluTanh{}.backward(gy, x);
}
Tensor silu(const Tensor& x) { return unary<Silu>(x); }
Tensor logsigmoid(const Tensor& x) { return unary<LogSigmoid>(x); }
Tensor leaky_relu(const Tensor& x, double negative_slope) { return unary(x, LeakyRelu{negative_slope}); }
Tensor elu(const Tensor& x, double alpha) { return unary(x, Elu{alpha}); }
Tensor celu(const Tensor& x, double alpha) {
  if (alpha == 0) fail<ConfigError>("celu: alpha is 0, expected another number");
  return unary(x, Elu{.alpha = alpha, .rate = 1 / alpha});
}
Tensor selu(const Tensor& x) {
  return unary(x, Elu{.alpha = 1.6732632423543772848170429916717, .scale = 1.0507009873554804934193349852946});
}
Tensor mish(const Tensor& x) { return unary<Mish>(x); }
Tensor glu(const Tensor& x, std::int64_t dim) {
  const std::int64_t size = x.size(dim);
  if (size % 2 != 0) fail<ShapeError>("glu: x has ", size, " elements along dim ", dim, ", expected an even number");
  return apply(Glu{wrap_dim(Glu::info.name, dim, x.rank())}, x);
}
Tensor softplus(const Tensor& x, double beta, double threshold) {
  if (!(beta > 0)) fail<ConfigError>("softplus: beta is ", beta, ", expected more than 0");
  return unary(x, Softplus{beta, threshold});
}

}  // namespace levin
