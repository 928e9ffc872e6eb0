// The shape of a convolution, and how its kernels cut work into blocks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace levin::kernels {

struct ConvShape {
  int64_t batch = 0, in_channels = 0, height = 0, width = 0, out_channels = 0;
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t padding_h = 0, padding_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;

  [[nodiscard]] int64_t out_height() const {
    return extent(height + 2 * padding_h - dilation_h * (kernel_h - 1) - 1, stride_h);
  }
  [[nodiscard]] int64_t out_width() const {
    return extent(width + 2 * padding_w - dilation_w * (kernel_w - 1) - 1, stride_w);
  }
  [[nodiscard]] int64_t pixels() const { return out_height() * out_width(); }
  [[nodiscard]] int64_t group_in() const { return in_channels / groups; }
  [[nodiscard]] int64_t group_out() const { return out_channels / groups; }
  [[nodiscard]] int64_t taps() const { return kernel_h * kernel_w; }  // of one channel
  // A plain matrix product: pixels see themselves alone.
  [[nodiscard]] bool pointwise() const {
    return taps() == 1 && stride_h == 1 && stride_w == 1 && padding_h == 0 && padding_w == 0;
  }
  // A product over every stride-th pixel.
  [[nodiscard]] bool strided_pointwise() const {
    return taps() == 1 && padding_h == 0 && padding_w == 0 && (stride_h > 1 || stride_w > 1);
  }
  // The convolution of stride 1 over the pixels that this one sees.
  [[nodiscard]] ConvShape of_seen_pixels() const {
    ConvShape seen = *this;
    seen.height = out_height();
    seen.width = out_width();
    seen.stride_h = seen.stride_w = 1;
    return seen;
  }
  [[nodiscard]] double flops() const {
    return 2.0 * double(batch) * double(out_channels) * double(pixels()) * double(group_in()) * double(taps());
  }

 private:
  static int64_t extent(int64_t room, int64_t stride) { return room < 0 ? 0 : room / stride + 1; }
};

// `count` blocks, all but the last of `size`: as equal as can be, where nobody chooses another size.
struct EvenBlocks {
  int64_t total, count, size;
  EvenBlocks(int64_t all, int64_t most)
      : total(all), count(std::max<int64_t>(1, (all + most - 1) / most)), size((all + count - 1) / count) {
    count = std::max<int64_t>(1, (total + size - (size > 0)) / std::max<int64_t>(1, size));
  }
  [[nodiscard]] int64_t begin(int64_t i) const { return std::min(total, i * size); }
  [[nodiscard]] int64_t end(int64_t i) const { return std::min(total, (i + 1) * size); }
};

}  // namespace levin::kernels
