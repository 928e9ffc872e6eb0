#include "autograd/ops/products/image_parts.h"

namespace levin {

void check_extents(const char* op, const char* what, const std::array<std::int64_t, 2>& v, std::int64_t least) {
  for (const std::int64_t n : v) {
    if (n < least || n > kMostExtent) fail<ShapeError>(op, ": ", what, " is ", n, ", expected ", least, " to 2^31");
  }
}

std::int64_t reach_of(std::int64_t n, std::int64_t step) {
  std::int64_t reach = 0;
  return __builtin_mul_overflow(n - 1, step, &reach) || reach > 4 * kMostExtent ? 4 * kMostExtent : reach + 1;
}

std::array<std::int64_t, 2> padded_extents(const char* op, const std::array<std::int64_t, 2>& size,
                                           const std::array<std::int64_t, 2>& padding) {
  const std::array<std::int64_t, 2> padded{size[0] + 2 * padding[0], size[1] + 2 * padding[1]};
  if (padded[0] > kMostExtent || padded[1] > kMostExtent || padded[0] * padded[1] > kMostPadded) {
    fail<ShapeError>(op, ": the padded image is ", padded[0], " by ", padded[1],
                     " pixels, expected at most 2^31 along each and 2^40 in all; lower the padding");
  }
  return padded;
}

void check_windows(const char* op, const Shape& image, const std::array<std::int64_t, 2>& kernel,
                   const std::array<std::int64_t, 2>& padding, const std::array<std::int64_t, 2>& dilation) {
  const int first = image.rank() - 2;
  const std::array<std::int64_t, 2> extents = padded_extents(op, {image[first], image[first + 1]}, padding);
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<std::size_t>(d);
    const std::int64_t padded = extents[i], reach = reach_of(kernel[i], dilation[i]);
    if (reach > padded) {
      fail<ShapeError>(op, ": the kernel reaches over ", reach, " pixels along dimension ", first + d,
                       ", the image of shape ", image, " has ", padded,
                       " with padding; use a smaller kernel or dilation, or pad more");
    }
  }
}

}  // namespace levin
