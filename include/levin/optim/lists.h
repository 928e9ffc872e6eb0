// What is done to a list of tensors at once: running averages of parameters, and one buffer for many tensors.
#pragma once

#include <cstdint>

#include "levin/tensor.h"

namespace levin::optim {

// averages[i] = decay averages[i] + (1 - decay) values[i]; integers and bools are copied. `decay` is one f64 element on
// the tensors' device and read there, so that a recorded average can change it. Averages are dense, with the shape and
// dtype of the value; f32 averages of 16-bit values are fine. All arithmetic is at least f32, with one rounding. One pass;
// on devices one launch a dtype for 400 tensors. Throws ShapeError, DTypeError, DeviceError for lists that do not fit.
LEVIN_API void ema_update_(const Tensors& averages, const Tensors& values, const Tensor& decay);

// to[i] = from[i], bit for bit. The targets are dense and have shape, dtype and device of what they get; all are on one device.
// On devices one launch for 400 tensors. Throws ShapeError, DTypeError, DeviceError for lists that do not fit.
LEVIN_API void copy_all_(const Tensors& to, const Tensors& from);

// The tensors end to end in one buffer [flat_numel(tensors)] of their dtype, each beginning at a multiple of 16 bytes: so
// all copies move 16 bytes at a time, on devices by one launch for 400 tensors. What is between them is 0.
// Throws DTypeError, DeviceError for tensors that differ, ShapeError for an empty list.
[[nodiscard]] LEVIN_API std::int64_t flat_numel(const Tensors& tensors);
[[nodiscard]] LEVIN_API Tensor flatten(const Tensors& tensors);
LEVIN_API void flatten_into_(Tensor& flat, const Tensors& tensors);          // ShapeError unless flat is such a buffer
LEVIN_API void unflatten_into_(const Tensors& tensors, const Tensor& flat);  // the way back, into dense tensors

}  // namespace levin::optim
