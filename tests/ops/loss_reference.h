// What references of losses share: reductions in plain loops.
#pragma once

#include <span>

#include "levin/ops.h"

namespace levin::testing {

inline Tensor number(double x) { return from_data(std::span<const double>(&x, 1), {}, Device::cpu()); }
inline double total(const Tensor& x) {
  double sum = 0;
  for (const double v : x.to_vector<double>()) sum += v;
  return sum;
}
inline Tensor reduced_reference(const Tensor& loss, Reduction r) {
  if (r == Reduction::none) return loss;
  return number(r == Reduction::sum ? total(loss) : total(loss) / double(loss.numel()));
}

}  // namespace levin::testing
