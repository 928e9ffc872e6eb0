// The strategies that Levin has, by name.
#pragma once

#include <span>

#include "levin/train/strategy.h"

namespace levin::train {

struct NamedStrategy {
  const char* name;
  std::shared_ptr<Strategy> (*make)();
  const char* description;
};
[[nodiscard]] std::span<const NamedStrategy> named_strategies();

// Whether devices and num_nodes ask for more than one process.
[[nodiscard]] bool asks_for_processes(const TrainerOptions& options);

// Whether ranks have a CUDA device each: where the accelerator says so, or where it leaves the choice, devices is a
// list and this machine has CUDA devices.
[[nodiscard]] bool ranks_have_cuda(const TrainerOptions& options);

}  // namespace levin::train
