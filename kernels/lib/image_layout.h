// How the memory of images and filters lies.
#pragma once

#include <cstdint>

#include "levin/tensor.h"

namespace levin::kernels {

// The vendor's library is fastest with channels last, in 16 bits above all.
enum class ImageLayout : std::uint8_t { channels_first, channels_last };
// channels_last where t [N, C, H, W] has that layout and not channels_first as well.
[[nodiscard]] ImageLayout image_layout(const Tensor& t);
// A new tensor [a, b, c, d] in that layout.
[[nodiscard]] Tensor empty_image(const Shape& shape, ImageLayout layout, Device device, DType dtype);

}  // namespace levin::kernels
