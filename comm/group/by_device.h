// A group whose collectives are those of two: for tensors of the CPU, and of devices.
#pragma once

#include <memory>

#include "levin/comm.h"
#include "levin/device.h"

namespace levin::dist {

// Of the same ranks. Decisions of the host travel on the CPU while gradients travel between devices. Both groups
// compare their collectives in one plan: where one rank calls with a tensor of the CPU and another with one of a
// device, all learn both.
[[nodiscard]] std::shared_ptr<ProcessGroup> group_by_device(std::shared_ptr<ProcessGroup> cpu,
                                                            std::shared_ptr<ProcessGroup> devices, Device device);

}  // namespace levin::dist
