#include "kernels/lib/image_layout.h"

namespace levin::kernels {

ImageLayout image_layout(const Tensor& t) {
  if (t.rank() != 4 || t.is_contiguous()) return ImageLayout::channels_first;
  const Shape& s = t.shape();
  const Strides& at = t.strides();
  const bool last = at[1] == 1 && at[3] == s[1] && at[2] == s[3] * s[1] && at[0] == s[2] * s[3] * s[1];
  return last ? ImageLayout::channels_last : ImageLayout::channels_first;
}

Tensor empty_image(const Shape& shape, ImageLayout layout, Device device, DType dtype) {
  if (layout == ImageLayout::channels_first) return empty(shape, device, dtype);
  const Tensor memory = empty({shape[0], shape[2], shape[3], shape[1]}, device, dtype);
  const Strides& at = memory.strides();
  return as_strided(memory, shape, {at[0], at[3], at[1], at[2]}, 0);
}

}  // namespace levin::kernels
