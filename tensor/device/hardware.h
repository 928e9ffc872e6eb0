// What the hardware of a device that launches kernels can do.
#pragma once

#include "levin/device.h"

namespace levin::detail {

// CUDA's compute capability, ten times the major number plus the minor one: 90 for an H100. simt reports 90 as well.
[[nodiscard]] int compute_capability(Device device);

}  // namespace levin::detail
