// A group whose collectives are those of two: for tensors of the CPU, and of devices.
#pragma once

#include <memory>
#include <string>

#include "comm/job/rendezvous.h"
#include "levin/comm.h"
#include "levin/device.h"

namespace levin::dist {

// Decisions of the host travel on the CPU, by `cpu_backend` (make_cpu_group), while gradients travel between devices by
// NCCL. Both groups, and both parts of a part, compare their collectives in one plan: where one rank calls with a
// tensor of the CPU and another with one of a device, all learn both.
[[nodiscard]] std::shared_ptr<ProcessGroup> group_by_device(std::shared_ptr<Rendezvous> ranks, std::string cpu_backend,
                                                            Device device);

}  // namespace levin::dist
