// Blocks of pixels as channels and back, and channels of groups in turn: each is one copy of a view.
#include "autograd/autocast.h"
#include "levin/ops.h"

namespace levin {
namespace {

// More than that squared are no channels.
constexpr std::int64_t kMostFactor = std::int64_t{1} << 20;

void check_image(const char* op, const Tensor& x, const char* factor_name, std::int64_t factor) {
  check_defined(op, x);
  if (x.rank() < 3) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [..., C, H, W]");
  if (factor < 1 || factor > kMostFactor)
    fail<ShapeError>(op, ": ", factor_name, " is ", factor, ", expected 1 to 2^20");
}

std::int64_t images_of(const Tensor& x) {
  std::int64_t n = 1;
  for (int d = 0; d + 3 < x.rank(); ++d) n *= x.shape()[d];
  return n;
}

// The leading dimensions of x, then c, h and w.
Dims with_image(const Tensor& x, std::int64_t c, std::int64_t h, std::int64_t w) {
  const int last = x.rank() - 1;
  return Dims(x.shape().with(last - 2, c).with(last - 1, h).with(last, w).dims());
}

}  // namespace

Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor) {
  constexpr const char* op = "pixel_shuffle";
  const std::int64_t r = upscale_factor;
  check_image(op, x, "upscale_factor", r);
  const std::int64_t channels = x.size(-3), h = x.size(-2), w = x.size(-1);
  if (channels % (r * r) != 0) {
    fail<ShapeError>(op, ": x of shape ", x.shape(), " has ", channels, " channels, expected a multiple of ", r * r,
                     " for upscale_factor ", r);
  }
  const Tensor blocks = reshape(x, {images_of(x), channels / (r * r), r, r, h, w});
  return view(permute(blocks, {0, 1, 4, 2, 5, 3}).clone(), with_image(x, channels / (r * r), h * r, w * r));
}

Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor) {
  constexpr const char* op = "pixel_unshuffle";
  const std::int64_t r = downscale_factor;
  check_image(op, x, "downscale_factor", r);
  const std::int64_t channels = x.size(-3), h = x.size(-2), w = x.size(-1);
  if (h % r != 0 || w % r != 0) {
    fail<ShapeError>(op, ": x of shape ", x.shape(), " has images of ", h, " by ", w, ", expected multiples of ", r);
  }
  const Dims shape = with_image(x, channels * r * r, h / r, w / r);
  const Tensor blocks = reshape(x, {images_of(x), channels, h / r, r, w / r, r});
  return view(permute(blocks, {0, 1, 3, 5, 2, 4}).clone(), shape);
}

Tensor channel_shuffle(const Tensor& x, std::int64_t groups) {
  constexpr const char* op = "channel_shuffle";
  check_defined(op, x);
  if (x.rank() < 3) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, ...]");
  const std::int64_t channels = x.size(1);
  if (groups < 1 || channels % groups != 0)
    fail<ShapeError>(op, ": groups is ", groups, ", expected a divisor of the ", channels, " channels");
  std::int64_t pixels = 1;
  for (int d = 2; d < x.rank(); ++d) pixels *= x.shape()[d];
  // Of rank 5: the clone of an image may keep an order other than the row-major one.
  const Tensor parts = reshape(x, {x.size(0), groups, channels / groups, pixels, 1});
  return view(transpose(parts, 1, 2).clone(), Dims(x.shape().dims()));
}

}  // namespace levin
