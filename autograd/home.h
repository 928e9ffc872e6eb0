// Homes: memory in which gradients of leaves are born and stay.
#pragma once

#include "levin/tensor.h"

namespace levin {

// Note [Gradient homes]
//
// A strategy of several processes reduces gradients in large flat buffers. Copying each gradient there costs a tenth of
// a small step, so a leaf can have a home: a dense tensor like the leaf, mostly a part of such a buffer, in which its
// gradient lies.
//
// - The engine offers the home to the op whose backward makes the leaf's only gradient of this backward pass, and the
//   op writes there (birth_place). Gradients that come otherwise are copied.
// - A gradient that lies in its home is added to in place. With create_graph it has a history, so a sum is a new
//   tensor; move_gradient_home brings the gradient back.
// - set_grad({}) clears the gradient and keeps the home, at no cost. The next backward pass overwrites the memory, also
//   under handles that grad() gave before.
// - set_grad(t) takes t, outside of the home.
//
// A process without homes pays one load of a counter for each backward pass.

// Throws AutogradError for a tensor that is no leaf, and ShapeError, DTypeError, DeviceError for a home that is not
// dense and like it. An undefined home: the leaf has none again, and its gradient stays where it is.
void set_gradient_home(const Tensor& leaf, Tensor home);
// A gradient that is set moves to the leaf's home, with its values and without its history. Returns whether it had to
// be copied. Does nothing without a gradient or a home.
bool move_gradient_home(const Tensor& leaf);

namespace detail {
// For ops' backward functions: the memory for the gradient of input i, or an undefined tensor, which means that the op
// allocates. Dense, and of the input's shape, dtype and device; its contents are arbitrary. A second call for the same
// input returns an undefined tensor.
[[nodiscard]] Tensor birth_place(std::size_t input);
// `place` where it is defined, else new memory.
[[nodiscard]] Tensor place_or_empty(const Tensor& place, const Shape& shape, Device device, DType dtype);
}  // namespace detail

}  // namespace levin
