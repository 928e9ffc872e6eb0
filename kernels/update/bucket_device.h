// Lists of tensors as one buffer, and running averages of lists, on devices that launch kernels; bucket_device.cu.
#pragma once

#include <span>

#include "kernels/executor/copy.h"
#include "kernels/executor/gpu.h"
#include "kernels/update/average.cuh"

namespace levin::kernels {

// One launch for SlotTable::kMost copies between addresses that are multiples of 16, which move 16 bytes at a time; the
// others get launches of their own.
void copy_on_device(const Gpu& on, std::span<const Copy> copies);

// to = *decay to + (1 - *decay) from, in To's arithmetic (float for 16 bits), rounded once. From is To, or of 16 bits
// and To float.
template <class From, class To>
void average_on_device(const Gpu& on, std::span<const Average<From, To>> averages, const double* decay);

}  // namespace levin::kernels
