// GELU of one number and its derivative, for pointwise ops and for the epilogues of products. Hendrycks & Gimpel,
// "Gaussian Error Linear Units", 2016.
//
// Note [No subnormal results]
// The tail of GELU passes through the subnormal numbers: near x = -13 in the form of the error function, near x = -10
// in that of the hyperbolic tangent. A CPU may take 150 cycles for an instruction that reads one. A product with a GELU
// of widely spread numbers meets one at every few steps. So in code of the host results below the least normal number
// are 0. GPUs compute with subnormal numbers at full speed and keep them.
#pragma once

#include <limits>

#include "kernels/device/hardware_math.cuh"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"

namespace levin::kernels {

// y, or 0 where a CPU would have a subnormal number.
template <class T>
LEVIN_HD T without_subnormals(T y) {
#if !defined(__CUDA_ARCH__)
  constexpr T kLeast = std::numeric_limits<T>::min();
  return y < kLeast && y > -kLeast ? y * T(0) : y;  // with its sign
#else
  return y;
#endif
}

// x * Phi(x).
struct GeluErf {
  template <class T>
  LEVIN_HD static T value(T x) {
    return without_subnormals(x * math::normal_cdf(x));
  }
  template <class T>
  LEVIN_HD static T slope(T x) {
    return without_subnormals(math::normal_cdf(x) + x * math::normal_pdf(x));
  }
  // For results of 16 bits on devices.
  LEVIN_HD static float half_value(float x) { return x * half_math::normal_cdf(x); }
  LEVIN_HD static float half_slope(float x) { return half_math::normal_cdf(x) + x * half_math::normal_pdf(x); }
};

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the approximation of the same paper.
struct GeluTanh {
  static constexpr double kScale = 0.79788456080286535588 /* sqrt(2/pi) */, kCubic = 0.044715;
  template <class T>
  LEVIN_HD static T value(T x) {
    // (1 + tanh z) / 2 = sigmoid(2 z)
    return without_subnormals(x * math::sigmoid(T(2 * kScale) * (x + T(kCubic) * x * x * x)));
  }
  template <class T>
  LEVIN_HD static T slope(T x) {
    const T s = math::sigmoid(T(2 * kScale) * (x + T(kCubic) * x * x * x));
    return without_subnormals(s + x * s * (T(1) - s) * T(2 * kScale) * (T(1) + T(3 * kCubic) * x * x));
  }
  LEVIN_HD static float half_value(float x) { return x * half_sigmoid(x, x * x); }
  LEVIN_HD static float half_slope(float x) {
    const float z = x * x, s = half_sigmoid(x, z), more = s - s * s;
    return s + x * (float(2 * kScale) + float(6 * kScale * kCubic) * z) * more;
  }

 private:
  // sigmoid(2 kScale (x + kCubic x z)), z = x^2.
  LEVIN_HD static float half_sigmoid(float x, float z) {
    constexpr double kFactor = -2 * kScale * math::detail::kLog2E;
    return unit::reciprocal(1 + unit::exp2(x * (float(kFactor) + float(kFactor * kCubic) * z)));
  }
};

}  // namespace levin::kernels
