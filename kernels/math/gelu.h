// GELU of one number and its derivative, for pointwise ops and for the epilogues of products. Hendrycks & Gimpel,
// "Gaussian Error Linear Units", 2016.
#pragma once

#include "kernels/executor/hd.h"
#include "kernels/math/math.h"

namespace levin::kernels {

// x * Phi(x).
struct GeluErf {
  template <class T>
  LEVIN_HD static T value(T x) {
    return x * math::normal_cdf(x);
  }
  template <class T>
  LEVIN_HD static T slope(T x) {
    return math::normal_cdf(x) + x * math::normal_pdf(x);
  }
};

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the approximation of the same paper.
struct GeluTanh {
  static constexpr double kScale = 0.79788456080286535588 /* sqrt(2/pi) */, kCubic = 0.044715;
  template <class T>
  LEVIN_HD static T value(T x) {
    // (1 + tanh z) / 2 = sigmoid(2 z)
    return x * math::sigmoid(T(2 * kScale) * (x + T(kCubic) * x * x * x));
  }
  template <class T>
  LEVIN_HD static T slope(T x) {
    const T s = math::sigmoid(T(2 * kScale) * (x + T(kCubic) * x * x * x));
    return s + x * s * (T(1) - s) * T(2 * kScale) * (T(1) + T(3 * kCubic) * x * x);
  }
};

}  // namespace levin::kernels
