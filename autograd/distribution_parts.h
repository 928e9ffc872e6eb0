// What distributions share: checks of their parameters, shapes of samples, and the edge of their support.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "autograd/autocast.h"
#include "levin/autograd.h"
#include "levin/distributions.h"

namespace levin::distributions {

// The common shape of parameters, which are floats of one dtype and device.
inline Shape common(const char* op, const Tensor& a) {
  check_float(op, a);
  return a.shape();
}
inline Shape common(const char* op, const Tensor& a, const Tensor& b) {
  check_float(op, a);
  check_dtypes_meet(op, a, b);
  check_same_device(op, a, b);
  return broadcast_shapes(op, a.shape(), b.shape());
}
inline Shape joined(const Shape& front, const Shape& back) {
  std::vector<std::int64_t> sizes(front.begin(), front.end());
  sizes.insert(sizes.end(), back.begin(), back.end());
  return Shape(std::span<const std::int64_t>(sizes));
}

template <class D>
Tensor detached(const D& d, Generator& generator, const Shape& shape) {
  const NoGrad off;
  return d.rsample(generator, shape).detach();
}

// The logarithm of no density.
inline Tensor least_log(const Tensor& like) {
  return full({}, -std::numeric_limits<double>::infinity(), like.device(), like.dtype());
}
// The log density inside of the support, least_log outside. A density whose gradient would be NaN outside is computed
// of another value there.
inline Tensor inside(const Tensor& log_density, const Tensor& is_inside) {
  return where(is_inside, log_density, least_log(log_density));
}
inline Tensor unless(const Tensor& log_density, const Tensor& is_outside) {
  return where(is_outside, least_log(log_density), log_density);
}

}  // namespace levin::distributions
