// Collectives between GPUs, by NCCL.
#pragma once

#include <memory>

#include "comm/job/rendezvous.h"
#include "levin/comm.h"
#include "levin/device.h"

namespace levin::dist {

// The group of all ranks, each with a device of its own. Throws ConfigError where NCCL cannot be loaded, DeviceError
// where the device is not there, CommError where the ranks cannot be connected.
[[nodiscard]] std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Rendezvous> ranks, Device device);

// The CUDA device of a rank: that of the index, and for -1 the only one that this process sees, or that with the number
// of the rank on its host. Throws UnsupportedError in a build without CUDA, DeviceError where there is no device for
// the rank.
[[nodiscard]] Device nccl_device(int local_rank, int index = -1);

}  // namespace levin::dist
