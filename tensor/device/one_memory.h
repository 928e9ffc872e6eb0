// Devices whose tensors one loop of the host may read and write together.
#pragma once

#include "levin/device.h"

namespace levin::detail {

// CPU devices have one memory under several names. Ops keep them apart all the same; an optimizer does not need to.
[[nodiscard]] constexpr bool one_memory(Device a, Device b) { return a == b || (a.is_cpu() && b.is_cpu()); }

}  // namespace levin::detail
