// The passes of a Muon step on devices that launch kernels; the contract of MuonRule in update.cuh. The rule's own lr
// and momentum are not read, but numbers {lr, momentum}, in the device's memory. Where *found_inf is not 0, nothing but
// x changes.
#pragma once

#include <cstdint>

#include "kernels/executor/gpu.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/update/update.cuh"

namespace levin::kernels {

// x = the direction; T float, double, f16 or bf16.
template <class T>
void muon_direction_on_device(const Gpu& on, const MuonRule& rule, const Slot<T>& slot, bf16* x, const double* numbers,
                              const float* found_inf);
// x /= max(norm, eps), norm rounded to bf16.
void muon_scale_on_device(const Gpu& on, bf16* x, std::int64_t n, const double* norm, double eps);
// y = a b, dense.
void muon_product_on_device(const Gpu& on, const GemmSize& size, Matrix<bf16> a, Matrix<bf16> b, bf16* y);
// y = a x + b y, rounded once.
void muon_combine_on_device(const Gpu& on, bf16* y, const bf16* x, std::int64_t n, float a, float b);
// p from x; counts the slot's steps up.
template <class T>
void muon_apply_on_device(const Gpu& on, const MuonRule& rule, const Slot<T>& slot, const bf16* x,
                          const double* numbers, const float* found_inf);

}  // namespace levin::kernels
