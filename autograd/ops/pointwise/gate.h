// A number that a gate lets through, and the gate's derivative: of glu and lstm_cell.
#pragma once

#include <cstdint>

#include "autograd/ops/pointwise/elementary.h"
#include "kernels/device/hardware_math.cuh"

namespace levin::pointwise {

namespace h = kernels::half_math;

// a sigmoid(b)
struct Gate {
  static constexpr std::int64_t kGrain = 16384;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return a * m::sigmoid(b);
  }
  template <class H>
  LEVIN_HD float for_half(float a, float b) const {
    return a * h::sigmoid(b);
  }
};
// g times the derivative of a sigmoid(b) by b; that by a is Gate of g and b.
struct GateSlope {
  static constexpr std::int64_t kGrain = 16384;
  template <class T>
  LEVIN_HD T operator()(T g, T a, T b) const {
    const T s = m::sigmoid(b);
    return g * a * (s * (T(1) - s));
  }
  template <class H>
  LEVIN_HD float for_half(float g, float a, float b) const {
    const float s = h::sigmoid(b);
    return g * a * (s * (1.0f - s));
  }
};

}  // namespace levin::pointwise
