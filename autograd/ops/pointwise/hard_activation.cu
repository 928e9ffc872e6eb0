// Activations without exponential functions.
#include <array>
#include <cmath>
#include <span>

#include "autograd/ops/pointwise/activation.h"

namespace levin {
namespace pointwise {
namespace {

struct Hardtanh {
  LEVIN_ACTIVATION(Hardtanh, "hardtanh", keep, Saves::input)
  double low = -1, high = 1;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    x = x < T(low) ? T(low) : x;
    return x > T(high) ? T(high) : x;
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    return x > T(low) && x < T(high) ? T(1) : T(0);
  }
  Tensor slope(const Tensor& x) const { return step(logical_and(gt(x, low), lt(x, high)), x); }
};

// x / 6 + 1/2 within 0 and 1. Courbariaux et al., 2015.
struct Hardsigmoid {
  LEVIN_ACTIVATION(Hardsigmoid, "hardsigmoid", keep, Saves::input)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    T y = x + T(3);
    y = y < T(0) ? T(0) : y;
    return (y > T(6) ? T(6) : y) * T(1. / 6);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    return x > T(-3) && x < T(3) ? T(1. / 6) : T(0);
  }
  Tensor slope(const Tensor& x) const { return step(logical_and(gt(x, -3), lt(x, 3)), x) * (1. / 6); }
};

// x hardsigmoid(x). Howard et al., 2019.
struct Hardswish {
  LEVIN_ACTIVATION(Hardswish, "hardswish", keep, Saves::input)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return x * Hardsigmoid{}(x);
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    const T middle = x * T(1. / 3) + T(0.5), low = x <= T(-3) ? T(0) : middle;
    return x >= T(3) ? T(1) : low;
  }
  Tensor slope(const Tensor& x) const {
    return where(logical_or(le(x, -3), ge(x, 3)), step(gt(x, 0), x), x * (1. / 3) + 0.5);
  }
};

struct Softsign {
  LEVIN_ACTIVATION(Softsign, "softsign", keep, Saves::input)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return x / (T(1) + std::abs(x));
  }
  template <class T>
  LEVIN_HD T slope(T x) const {
    const T q = T(1) / (T(1) + std::abs(x));
    return q * q;
  }
  Tensor slope(const Tensor& x) const { return square(reciprocal(abs(x) + 1)); }
};

// w broadcasts to x. He et al., 2015.
struct PRelu {
  static constexpr OpInfo info{.name = "prelu", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T x, T w) const {
    return x > T(0) ? x : w * x;
  }
  Tensor backward_a(const Tensor& gy, const Tensor& x, const Tensor& w) const { return where(gt(x, 0), gy, gy * w); }
  Tensor backward_b(const Tensor& gy, const Tensor& x, const Tensor&) const {
    return where(gt(x, 0), zeros_like(gy), gy * x);
  }
};

LEVIN_LIST(Hardtanh)
LEVIN_LIST(Hardsigmoid)
LEVIN_LIST(Hardswish)
LEVIN_LIST(Softsign)
LEVIN_OP_TABLE(Binary<PRelu>)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor hardtanh(const Tensor& x, double low, double high) {
  if (!(low <= high)) fail<ConfigError>("hardtanh: low is ", low, ", expected at most high, ", high);
  return unary(x, Hardtanh{low, high});
}
Tensor relu6(const Tensor& x) { return hardtanh(x, 0, 6); }
Tensor hardsigmoid(const Tensor& x) { return unary<Hardsigmoid>(x); }
Tensor hardswish(const Tensor& x) { return unary<Hardswish>(x); }
Tensor softsign(const Tensor& x) { return unary<Softsign>(x); }

Tensor prelu(const Tensor& x, const Tensor& weight) {
  const std::int64_t channels = x.rank() > 1 ? x.size(1) : 1;
  if (weight.rank() > 1 || (weight.numel() != 1 && weight.numel() != channels)) {
    fail<ShapeError>("prelu: weight has shape ", weight.shape(), " for x of shape ", x.shape(), ", expected [1] or [",
                     channels, "], a number for each channel");
  }
  // [channels, 1, ...], which broadcasts to x; one number has no dimension.
  std::array<std::int64_t, kMaxRank> sizes;
  sizes.fill(1);
  sizes[0] = weight.numel();
  const auto rank = static_cast<std::size_t>(x.rank() > 1 ? x.rank() - 1 : 0);
  return apply(Binary<PRelu>{}, x, view(weight, Dims(std::span<const std::int64_t>(sizes).first(rank))));
}

}  // namespace levin
