// Lists of tensors in one pass: running averages of parameters, and one buffer for many tensors.
#pragma once

#include <cstdint>

#include "levin/tensor.h"

namespace levin::optim {

// averages[i] = decay averages[i] + (1 - decay) values[i]; integers and bools are copied. `decay` is one f64 element on
// the tensors' device and is read there, so that a recorded average can change it. Averages are dense, with the shape
// and dtype of their value; averages of 16-bit values may be f32. Arithmetic is f32 or f64, with one rounding. On
// devices one launch for 384 tensors of a dtype. Throws ShapeError, DTypeError, DeviceError for lists that do not fit.
LEVIN_API void ema_update_(const Tensors& averages, const Tensors& values, const Tensor& decay);

// to[i] = from[i], bit for bit. Targets are dense and have the shape and dtype of their source; all tensors are on one
// device. On devices one launch for 384 tensors. Throws ShapeError, DTypeError, DeviceError for lists that do not fit.
LEVIN_API void copy_all_(const Tensors& to, const Tensors& from);

// The tensors in one buffer [flat_numel(tensors)] of their dtype, each at a multiple of 16 bytes with zeros between: so
// copies move 16 bytes at a time, on devices by one launch for 384 tensors. Throws DTypeError, DeviceError for tensors
// that differ, ShapeError for an empty list and for a flat tensor of another size.
[[nodiscard]] LEVIN_API std::int64_t flat_numel(const Tensors& tensors);
[[nodiscard]] LEVIN_API Tensor flatten(const Tensors& tensors);
LEVIN_API void flatten_into_(Tensor& flat, const Tensors& tensors);
LEVIN_API void unflatten_into_(const Tensors& tensors, const Tensor& flat);  // into dense tensors

}  // namespace levin::optim
