// Adafactor on devices that launch kernels; the contract of AdafactorRule in adafactor.cuh. The rule's own lr is not
// read, but numbers[0], in the device's memory. Where *found_inf is not 0, nothing changes.
#pragma once

#include "kernels/executor/gpu.h"
#include "kernels/update/adafactor.cuh"

namespace levin::kernels {

// The update of one parameter, and its step counted up; T float, double, f16 or bf16. A matrix takes five launches, a
// vector three.
template <class T>
void adafactor_on_device(const Gpu& on, const AdafactorRule& rule, const Slot<T>& slot, const AdafactorLines& lines,
                         const double* numbers, const float* found_inf);

}  // namespace levin::kernels
