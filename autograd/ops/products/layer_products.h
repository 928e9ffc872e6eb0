// Products of layers on devices that do more than multiply: the work before or after a product costs no pass of its
// own. Matrices are x [rows, in], W [out, in] and gy [rows, out]; results are dense and allocated by the caller. Each
// function returns false where no such product would pay (Note [Who multiplies]); the results then hold nothing.
#pragma once

#include "levin/ops.h"
#include "tensor/device/runtime.h"

namespace levin {

#if LEVIN_LAUNCHES
// z = x W^T + b, h = gelu(z); b and z may be undefined. Returns true where it computed them.
[[nodiscard]] bool gelu_layer_on_device(GeluForm form, const Tensor& x, const Tensor& w, const Tensor& b,
                                        const Tensor& z, const Tensor& h);
// dz = (gy W) * gelu'(z). Returns true where it computed it.
[[nodiscard]] bool gelu_slope_on_device(GeluForm form, const Tensor& gy, const Tensor& w, const Tensor& z,
                                        const Tensor& dz);
// gw = gy^T x, gb = the sum of gy's rows. Returns true where it computed them.
[[nodiscard]] bool linear_parameters_on_device(const Tensor& gy, const Tensor& x, const Tensor& gw, const Tensor& gb);
#else
inline bool gelu_layer_on_device(GeluForm, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}
inline bool gelu_slope_on_device(GeluForm, const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }
inline bool linear_parameters_on_device(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }
#endif

}  // namespace levin
