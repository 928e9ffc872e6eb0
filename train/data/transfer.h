// Moves a batch to a device.
#pragma once

#include "levin/data.h"

namespace levin::train {

// Returns the batch with all fields on `device`. Copies to a device that launches kernels do not wait.
[[nodiscard]] Batch move_batch(Batch batch, Device device);

}  // namespace levin::train
