#include <algorithm>
#include <cmath>
#include <vector>

#include "levin/data/readers.h"

namespace levin::data {
namespace {

constexpr std::int64_t kMostSide = 1 << 20;
constexpr int kBits = 22;  // of a weight: 8 of a pixel and a sign fill an int

// The pixels [first, first + count) of a line, with their weights, that make one pixel of the result.
struct Window {
  std::int64_t first = 0, count = 0;
  std::size_t weights = 0;  // where they begin in Filter::weights
};
struct Filter {
  std::vector<Window> windows;
  std::vector<int> weights;
};

// A triangle over each result pixel's centre, as wide as two pixels of the larger side.
Filter filter_of(std::int64_t from, std::int64_t to) {
  Filter filter;
  const double scale = static_cast<double>(from) / static_cast<double>(to), reach = std::max(scale, 1.);
  const double narrow = 1 / reach;  // a product of reciprocals rounds as in Pillow
  std::vector<double> exact;
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(static_cast<std::int64_t>(centre - reach + 0.5), 0);
    const auto last = std::min<std::int64_t>(static_cast<std::int64_t>(centre + reach + 0.5), from);
    double sum = 0;
    exact.clear();
    for (std::int64_t k = first; k < last; ++k) {
      exact.push_back(std::max(0., 1 - std::abs((static_cast<double>(k) + 0.5 - centre) * narrow)));
      sum += exact.back();
    }
    filter.windows.push_back({first, last - first, filter.weights.size()});
    for (const double w : exact) filter.weights.push_back(static_cast<int>(std::lround(w * (1 / sum) * (1 << kBits))));
  }
  return filter;
}

std::uint8_t rounded(int sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

// Lines of `from` pixels become lines of `to`. Pixel k of line i, channel c, begins at i * line + k * step + c.
struct Lines {
  std::int64_t count, line, step;
};
void resize_lines(const std::uint8_t* in, Lines from, std::uint8_t* out, Lines to, std::int64_t channels,
                  const Filter& filter) {
  for (std::int64_t i = 0; i < from.count; ++i) {
    for (std::size_t k = 0; k < filter.windows.size(); ++k) {
      const Window& window = filter.windows[k];
      const int* weights = filter.weights.data() + window.weights;
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::uint8_t* at = in + i * from.line + window.first * from.step + c;
        int sum = 1 << (kBits - 1);
        for (std::int64_t j = 0; j < window.count; ++j) sum += at[j * from.step] * weights[j];
        out[i * to.line + static_cast<std::int64_t>(k) * to.step + c] = rounded(sum);
      }
    }
  }
}

}  // namespace

Tensor resize_image(const Tensor& image, ImageSize size) {
  if (image.dtype() != DType::u8 || !image.device().is_cpu()) {
    fail<DTypeError>("resize_image: the picture is ", text(image), ", expected u8 on cpu");
  }
  const bool grey = image.rank() == 2, rgb = image.rank() == 3 && image.size(2) == 3;
  if (!(grey || rgb) || image.numel() == 0) {
    fail<ShapeError>("resize_image: the image has shape ", image.shape(), ", expected [H, W] or [H, W, 3], not empty");
  }
  if (std::min(size.height, size.width) < 1 || std::max(size.height, size.width) > kMostSide) {
    fail<ConfigError>("resize_image: the size is ", size.height, " x ", size.width, ", expected sides from 1 to ",
                      kMostSide);
  }
  const std::int64_t height = image.size(0), width = image.size(1), channels = grey ? 1 : 3;
  const auto shape = [&](std::int64_t h, std::int64_t w) { return grey ? Shape{h, w} : Shape{h, w, 3}; };
  Tensor x = image.detach().contiguous();
  if (size.width != width) {
    Tensor wide = empty(shape(height, size.width), Device::cpu(), DType::u8);
    resize_lines(x.data<std::uint8_t>(), {height, width * channels, channels}, wide.mutable_data<std::uint8_t>(),
                 {height, size.width * channels, channels}, channels, filter_of(width, size.width));
    x = wide;
  }
  if (size.height != height) {  // the lines are the columns
    const std::int64_t row = size.width * channels;
    Tensor high = empty(shape(size.height, size.width), Device::cpu(), DType::u8);
    resize_lines(x.data<std::uint8_t>(), {size.width, channels, row}, high.mutable_data<std::uint8_t>(),
                 {size.width, channels, row}, channels, filter_of(height, size.height));
    x = high;
  }
  return x;
}

}  // namespace levin::data
