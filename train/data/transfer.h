// The way of a batch to a device.
#pragma once

#include "levin/data.h"

namespace levin::train {

// The fields on `device`; copies do not wait where they need not.
[[nodiscard]] Batch move_batch(Batch batch, Device device);

}  // namespace levin::train
