// Values of a module's parameters for a copy of the module on another device of the process.
#pragma once

#include "levin/tensor.h"

namespace levin::detail {

// The values on `device`, without history: on a CPU device the same memory under the device's name, from or to another
// device one copy for each dtype. Values that are there already are returned as they are; undefined ones stay.
[[nodiscard]] Tensors values_on(Device device, const Tensors& values);

}  // namespace levin::detail
