// The gradients of outputs that a backward pass begins with. `what` is the caller's name, for errors.
#pragma once

#include "levin/tensor.h"

namespace levin::detail {

// Ones, for an output of one element; throws AutogradError for others.
[[nodiscard]] Tensor ones_seed(const Tensor& out, const char* what);

// The same for a backward pass that no caller sees the seed of. On a device that launches kernels it is kept, one for
// each stream and dtype, so a step fills none. A leaf copies a gradient that others hold, too, and a seed that an op's
// backward has written serves no further pass. While a graph is recorded none is made to stay: its memory and its fill
// would be the graph's.
[[nodiscard]] Tensor kept_seed(const Tensor& out, const char* what);

// Throws ShapeError, DTypeError or DeviceError for a seed that does not fit the output.
void check_seed(const char* what, const Tensor& out, const Tensor& seed);

}  // namespace levin::detail
