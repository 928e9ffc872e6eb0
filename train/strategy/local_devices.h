// The devices of strategies of one process.
#pragma once

#include <string>
#include <vector>

#include "levin/train/options.h"

namespace levin::train {

// Throws ConfigError `op: ...` for a device that is listed twice, and for meta.
void check_local_devices(const char* op, const std::vector<Device>& devices);
// `listed`, or else the CUDA devices that the options name. Throws ConfigError for several nodes, on the CPU without a
// list, for a list beside TrainerOptions::devices, and for CUDA devices that are not there.
[[nodiscard]] std::vector<Device> local_devices(const std::string& strategy, const std::vector<Device>& listed,
                                                const TrainerOptions& options);
[[nodiscard]] std::string words(const std::vector<Device>& devices);  // "cpu, cpu:1"

}  // namespace levin::train
