// What the hardware of a device that launches kernels can do.
#pragma once

#include "levin/device.h"

namespace levin::detail {

// CUDA's compute capability, ten times the major number and the minor one: 90 for an H100. simt stands for that one.
[[nodiscard]] int compute_capability(Device device);

}  // namespace levin::detail
