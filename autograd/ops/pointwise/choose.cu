// Ops that choose between their operands, or replace some values.
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/pointwise.h"

namespace levin {
namespace pointwise {
namespace {

// A NaN in either operand is the result.
struct ClampMin {
  static constexpr OpInfo info{.name = "clamp_min", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T x, T low) const {
    return x >= low || x != x ? x : low;
  }
  Tensor backward_a(const Tensor& gy, const Tensor& x, const Tensor& low) const {
    return where(ge(x, low), gy, zeros_like(gy));
  }
  Tensor backward_b(const Tensor& gy, const Tensor& x, const Tensor& low) const {
    return where(lt(x, low), gy, zeros_like(gy));
  }
};
struct ClampMax {
  static constexpr OpInfo info{.name = "clamp_max", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kNumbers;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T x, T high) const {
    return x <= high || x != x ? x : high;
  }
  Tensor backward_a(const Tensor& gy, const Tensor& x, const Tensor& high) const {
    return where(le(x, high), gy, zeros_like(gy));
  }
  Tensor backward_b(const Tensor& gy, const Tensor& x, const Tensor& high) const {
    return where(gt(x, high), gy, zeros_like(gy));
  }
};

// a + weight (b - a), from the nearer end: at 0 and 1 it is that end's number.
struct Lerp {
  static constexpr OpInfo info{.name = "lerp", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::nothing;
  double weight;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    const T apart = b - a;
    return weight < 0.5 ? a + apart * T(weight) : b - apart * T(1 - weight);
  }
  Tensor backward_a(const Tensor& gy) const { return gy * (1 - weight); }
  Tensor backward_b(const Tensor& gy) const { return gy * weight; }
};

struct Copysign {
  static constexpr OpInfo info{.name = "copysign", .autocast = AutocastPolicy::widest};
  static constexpr auto kTypes = kFloats;
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  static constexpr Saves kSaves = Saves::input;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return std::copysign(a, b);
  }
  Tensor backward_a(const Tensor& gy, const Tensor& a, const Tensor& b) const {
    return gy * (sign(a) * copysign(ones_like(b), b));
  }
  Tensor backward_b(const Tensor& gy, const Tensor&, const Tensor&) const { return zeros_like(gy); }
};

struct NanToNum {
  static constexpr OpInfo info{.name = "nan_to_num"};
  static constexpr auto kTypes = kFloats;
  static constexpr Saves kSaves = Saves::input;
  double nan, posinf, neginf;
  template <class T>
  LEVIN_HD T operator()(T x) const {
    const T at_end = x > T(0) ? T(posinf) : T(neginf);
    const T y = std::abs(x) == T(HUGE_VAL) ? at_end : x;
    return x != x ? T(nan) : y;
  }
  Tensor backward(const Tensor& gy, const Tensor& x) const { return where(isfinite(x), gy, zeros_like(gy)); }
};

struct Heaviside {
  static constexpr OpInfo info{.name = "heaviside", .autocast = AutocastPolicy::widest};
  static constexpr std::int64_t kGrain = pointwise::kGrain;
  template <class T>
  LEVIN_HD T operator()(T x, T value) const {
    return x == T(0) ? value : static_cast<T>(x > T(0));
  }
  Tensor forward(const Tensor& x, const Tensor& values) { return map(info, *this, kNumbers, x, values); }
};

LEVIN_OP_TABLE(Binary<Lerp>)
LEVIN_OP_TABLE(Binary<ClampMin>)
LEVIN_OP_TABLE(Binary<ClampMax>)
LEVIN_OP_TABLE(Binary<Copysign>)
LEVIN_OP_TABLE(Unary<NanToNum>)
LEVIN_OP_TABLE(Heaviside)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high) {
  if (!low.defined() && !high.defined()) fail<ConfigError>("clamp: neither low nor high is given");
  const Tensor above = low.defined() ? apply(Binary<ClampMin>{}, x, low) : x;
  return high.defined() ? apply(Binary<ClampMax>{}, above, high) : above;
}
Tensor lerp(const Tensor& a, const Tensor& b, double weight) { return apply(Binary<Lerp>{{weight}}, a, b); }
Tensor copysign(const Tensor& a, const Tensor& b) { return apply(Binary<Copysign>{}, a, b); }
Tensor heaviside(const Tensor& x, const Tensor& values) { return apply(Heaviside{}, x, values); }

Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> posinf, std::optional<double> neginf) {
  const DType t = x.dtype();
  const double largest = t == DType::f64    ? std::numeric_limits<double>::max()
                         : t == DType::f16  ? 65504
                         : t == DType::bf16 ? 0x1.fep127
                                            : double{std::numeric_limits<float>::max()};
  return unary(x, NanToNum{nan, posinf.value_or(largest), neginf.value_or(-largest)});
}

}  // namespace levin
