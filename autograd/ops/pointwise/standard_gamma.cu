// Draws of the gamma distribution, differentiable in the concentration.
#include "autograd/autocast.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/random_tape.h"
#include "kernels/math/gamma_slope.h"
#include "kernels/random/standard_gamma.cuh"
#include "levin/distributions.h"

namespace levin::distributions {
namespace {

// For both executors.
using kernels::cpu::standard_gamma;
using kernels::gpu::standard_gamma;

// g dy/da, where y is the draw or its logarithm.
struct GammaSlope {
  static constexpr std::int64_t kGrain = 512;
  bool logs;
  template <class T>
  LEVIN_HD T operator()(T g, T a, T y) const {
    const double x = logs ? kernels::math::exp(double(y)) : double(y);
    const double slope = kernels::math::gamma_log_slope<T>(a, x, logs ? double(y) : kernels::math::log(x));
    return g * T(logs ? slope : slope * x);
  }
};

// Its derivative in a needs the second derivative of the incomplete gamma function in a, for which there is no formula
// as short: the gradient is differentiable in gy alone.
struct StandardGammaBackward {
  static constexpr OpInfo info{.name = "standard_gamma_backward", .autocast = AutocastPolicy::full};
  Logarithm logarithm;
  SavedInput a{}, y{};

  Tensor forward(const Tensor& gy, const Tensor& a_, const Tensor& y_) {
    a = a_;
    y = y_;
    Tensor ga = empty(a_.shape(), a_.device(), a_.dtype());
    dispatch(info, a_, kFloats, [&]<class T>(const auto& on, T) {
      pointwise::run(on, GammaSlope{logarithm == Logarithm::yes}, pointwise::Signature<T, T, T, T>{}, ga, gy, a_, y_);
    });
    return ga;
  }
  Grads<3> backward(const Tensor& gg, NeedMask need) {
    if (need[1] || need[2])
      fail<AutogradError>(info.name, ": the gradient of a gamma draw has no derivative in the concentration; call ",
                          "backward without create_graph, or detach the draw");
    return {apply(StandardGammaBackward{logarithm}, gg, a.get(), y.get())};
  }
};

struct StandardGamma {
  static constexpr OpInfo info{.name = "standard_gamma", .autocast = AutocastPolicy::full};
  RandomRange range;
  Logarithm logarithm;
  SavedInput a{};
  SavedOutput y{};

  Tensor forward(const Tensor& a_) {
    a = a_;
    const Tensor dense = a_.contiguous();
    Tensor out = empty(dense.shape(), dense.device(), dense.dtype());
    dispatch(info, dense, kFloats, [&]<class T>(const auto& on, T) {
      standard_gamma(on, ptr<const T>(dense), ptr<T>(out), out.numel(), range, logarithm == Logarithm::yes);
    });
    y = out;
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, NeedMask) {
    return {apply(StandardGammaBackward{logarithm}, gy, a.get(), y.get())};
  }
};

LEVIN_OP_TABLE(StandardGamma)
LEVIN_OP_TABLE(StandardGammaBackward)

}  // namespace

Tensor standard_gamma(const Tensor& concentration, Generator& generator, Logarithm logarithm) {
  check_float(StandardGamma::info.name, concentration);  // before the generator moves on
  // A block of words for each element, not for four.
  const RandomRange range = concentration.device().is_meta()
                                ? RandomRange{}
                                : detail::reserve_random(generator, 4 * concentration.numel(), concentration.device());
  return apply(StandardGamma{range, logarithm}, concentration);
}

}  // namespace levin::distributions
