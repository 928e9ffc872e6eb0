// The definition of a convolution for tests: every product that it adds.
#pragma once

#include <cstdint>

#include "kernels/conv/conv_shape.h"

namespace levin::kernels::test {

// Calls f(x index, w index, y index) for every product of the sum that is y; all three results are sums of such
// products.
template <class F>
void each_product(const ConvShape& s, F&& f) {
  const int64_t gin = s.group_in(), gout = s.group_out();
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.out_channels; ++o)
      for (int64_t p = 0; p < s.out_height(); ++p)
        for (int64_t q = 0; q < s.out_width(); ++q)
          for (int64_t c = 0; c < gin; ++c)
            for (int64_t i = 0; i < s.kernel_h; ++i)
              for (int64_t j = 0; j < s.kernel_w; ++j) {
                const int64_t row = p * s.stride_h - s.padding_h + i * s.dilation_h;
                const int64_t col = q * s.stride_w - s.padding_w + j * s.dilation_w;
                if (row < 0 || row >= s.height || col < 0 || col >= s.width) continue;
                f(((n * s.in_channels + o / gout * gin + c) * s.height + row) * s.width + col,
                  ((o * gin + c) * s.kernel_h + i) * s.kernel_w + j,
                  ((n * s.out_channels + o) * s.out_height() + p) * s.out_width() + q);
              }
}

}  // namespace levin::kernels::test
