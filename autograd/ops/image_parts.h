// What ops on images share that can go to the vendor's library.
#pragma once

#include "kernels/image_layout.h"
#include "levin/ops.h"

namespace levin {

// t, or a copy whose memory lies as the others' of a call.
inline Tensor laid_out(const Tensor& t, kernels::ImageLayout layout) {
  if (layout == kernels::ImageLayout::channels_first || kernels::image_layout(t) == layout) return t.contiguous();
  return permute(permute(t, {0, 2, 3, 1}).contiguous(), {0, 3, 1, 2});
}

}  // namespace levin
