// Checks of ops that write to a tensor they are given.
#pragma once

#include "levin/tensor.h"

namespace levin {

// Throws AutogradError where x requires grad and grad mode is on or where x may not be written, ShapeError where x is
// expanded.
void check_in_place(const char* op, const Tensor& x);

}  // namespace levin
