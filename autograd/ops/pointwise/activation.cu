// Activations. Each backward is one fused pass, gy * f'(x). `slope` of tensors, in public ops, defines that pass and
// gives its derivative.
#include <cmath>

#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/ops/pointwise/relu.h"
#include "autograd/ops/products/backward_parts.h"
#include "kernels/device/hardware_math.cuh"
#include "kernels/math/gelu.h"
#include "kernels/math/math.h"

namespace levin {
namespace pointwise {
namespace {

namespace m = kernels::math;
namespace h = kernels::half_math;

// What every activation declares; `backward` is the fused op.
#define LEVIN_ACTIVATION(Type, op_name, policy, saves)                \
  static constexpr OpInfo info{.name = op_name, .autocast = policy};  \
  static constexpr OpInfo backward_info{.name = op_name "_backward"}; \
  static constexpr auto kTypes = kFloats;                             \
  static constexpr Saves kSaves = saves;                              \
  static constexpr std::int64_t kGrain = 16384;                       \
  Tensor backward(const Tensor& gy, const Tensor& s) const { return apply(UnaryBackward<Type>{*this}, gy, s); }
constexpr AutocastPolicy keep = AutocastPolicy::keep, full = AutocastPolicy::full;

// 1 where the condition holds, else 0, in x's dtype. A step has no derivative of its own.
Tensor step(const Tensor& condition, const Tensor& x) { return cast(condition, x.dtype()); }

struct Relu {
  LEVIN_ACTIVATION(Relu, "relu", keep, Saves::output)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return x < T(0) ? T(0) : x;  // NaN stays NaN
  }
  template <class T>
  LEVIN_HD T slope(T y) const {
    return y > T(0) ? T(1) : T(0);
  }
  Tensor slope(const Tensor& y) const { return step(gt(y, 0), y); }
};

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

// alpha (e^x - 1) below 0. Clevert et al., 2015.
struct Elu {
  LEVIN_ACTIVATION(Elu, "elu", keep, Saves::input)
  double alpha = 1;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    const T low = T(alpha) * m::expm1(x < T(0) ? x : T(0));
    return x > T(0) || x != x ? x : low;
  }
  template <class H>
  LEVIN_HD float for_half(float x) const {
    const float low = float(alpha) * h::expm1_nonpositive(x);
    return x > 0 ? x : low;  // NaN passes through low
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    const T low = T(alpha) * m::exp(x < T(0) ? x : T(0));
    return x > T(0) ? T(1) : low;
  }
  template <class H>
  LEVIN_HD float slope_for_half(float x) const {
    const float low = float(alpha) * h::exp(x < 0 ? x : 0.0f);
    return x > 0 ? 1.0f : low;
  }
  Tensor slope(const Tensor& x) const { return where(gt(x, 0), ones_like(x), exp(clamp(x, {}, 0)) * alpha); }
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
#undef LEVIN_ACTIVATION

#define LEVIN_LIST(Type)      \
  LEVIN_OP_TABLE(Unary<Type>) \
  LEVIN_OP_TABLE(UnaryBackward<Type>)
LEVIN_LIST(Relu)
LEVIN_LIST(Tanh)
LEVIN_LIST(Sigmoid)
LEVIN_LIST(Gelu)
LEVIN_LIST(GeluTanh)
LEVIN_LIST(Silu)
LEVIN_LIST(LogSigmoid)
LEVIN_LIST(LeakyRelu)
LEVIN_LIST(Elu)
LEVIN_LIST(Softplus)
#undef LEVIN_LIST

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor relu(const Tensor& x) { return unary<Relu>(x); }
Tensor relu_backward(const Tensor& gy, const Tensor& y) { return Relu{}.backward(gy, y); }
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
Tensor softplus(const Tensor& x, double beta, double threshold) {
  if (!(beta > 0)) fail<ConfigError>("softplus: beta is ", beta, ", expected more than 0");
  return unary(x, Softplus{beta, threshold});
}

}  // namespace levin
