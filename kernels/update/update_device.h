// Optimizer updates, gradient norms and clipping on devices that launch kernels; update_device.cu.
#pragma once

#include <span>

#include "kernels/executor/gpu.h"
#include "kernels/update/update.cuh"

namespace levin::kernels {

// Enqueues one update of every slot, a launch for SlotTable::kMost slots (update_device.cuh) at a time, and counts the
// steps up. Slots and `numbers` {lr, momentum or beta1} lie on the device; the rule's own lr and momentum are not read.
// Where *found_inf, on the device too, is not 0, nothing changes; null is as 0. A gradient is multiplied by factors[0],
// then by factors[1], as it is read, and is rounded after each product as if it were written (16 bits: once, so
// factors[0] is 1 for them); null is as {1, 1}. R is one of the rules of update.cuh, T float, double, f16 or bf16; a
// Slot<float> with `half` has a gradient of that type.
template <class R, class T>
void update_on_device(const Gpu& on, const R& rule, std::span<const Slot<T>> slots, const double* numbers,
                      const float* found_inf = nullptr, const double* factors = nullptr);

// The factors of an update that reads gradients as backward left them: 1 / scale and
// min(1, max_norm / (norm + 1e-6)), or 1 where max_norm is below 0. A NaN norm gives NaN.
struct Factors {
  double* at = nullptr;  // [2] on the device; null: they are not wanted
  double max_norm = -1;
};

// Gradients of all dtypes; p and g of a slot are its gradient, n its elements.
struct GradientSlots {
  std::span<const Slot<float>> single;
  std::span<const Slot<double>> wide;
  std::span<const Slot<f16>> half;
  std::span<const Slot<bf16>> brain;
};
// *norm = the p-norm of all elements together; p = inf is the largest magnitude. A fixed order of sums, in double. The
// factors are those of a scale of 1.
void gradient_norm(const Gpu& on, const GradientSlots& gradients, double p, double* norm, const Factors& factors = {});
// g *= min(1, max_norm / (*norm + 1e-6)), without the host: norm is read on the device. A NaN norm spreads.
void scale_to_norm(const Gpu& on, const GradientSlots& gradients, double max_norm, const double* norm);
// g *= 1 / *by, formed in double; `by` is read on the device.
void divide_gradients(const Gpu& on, const GradientSlots& gradients, const double* by);
// g = value, rounded once; also for the states of an optimizer.
void fill_gradients(const Gpu& on, const GradientSlots& gradients, double value);
// g = clamp(g, -limit, limit)
void clamp_gradients(const Gpu& on, const GradientSlots& gradients, double limit);

}  // namespace levin::kernels
