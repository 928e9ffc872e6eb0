// Leaves whose memory is of another dtype for a while.
#pragma once

#include "levin/tensor.h"

namespace levin {

// The leaf's elements are of `dtype` from here on, and so are its gradients; one that it has is converted. Tensor,
// storage, hooks and edges of graphs stay. The caller gives the storage memory of that dtype, and restores both before
// it runs the backward pass of a graph that was recorded before. Throws AutogradError for the result of an op,
// DTypeError unless dtype is floating.
void set_leaf_dtype(const Tensor& leaf, DType dtype);

}  // namespace levin
