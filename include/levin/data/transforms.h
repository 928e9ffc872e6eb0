// Changes of samples on the CPU, for data::transform and image_dataset. Names and formulas are those of torchvision's
// transforms.v2 where it has the transform.
//
//   auto [images, labels] = data::load_mnist(dir, data::Split::train);
//   DatasetRef train = data::image_dataset(unsqueeze(images, 1), labels,
//                                          {data::random_crop({.padding = {4, 4}}), data::random_horizontal_flip(),
//                                           data::normalize({data::kMnistNormalization})});
//
// A transform of Levin's reads one field of the sample: an image [C, H, W], u8 in 0 .. 255 or f32 in 0 .. 1, unless its
// comment says otherwise. The other fields stay as they are. All its randomness are draws for the host from the
// sample's generator. The number of these draws depends on the transform alone, neither on pixels nor on what was drawn
// before, so a change of one transform's range changes no other transform's numbers.
//
// A transform throws ConfigError for options out of range where it is made. A sample that it cannot take is an
// IndexError (no such field), a DTypeError or a ShapeError.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/data.h"
#include "levin/image.h"

namespace levin::data {

// A function of a sample and the sample's generator: one of those below, several by compose(), or any callable
// Sample(Sample, Generator&). Several threads call it at once.
class LEVIN_API Transform {
 public:
  class Step;  // data/transforms/step.h

  // A transform of your own.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Transform> &&
           std::is_invocable_r_v<Sample, std::decay_t<F>&, Sample, Generator&>) Transform(F&& f)
      : Transform(Function<Sample(Sample, Generator&)>(std::forward<F>(f))) {}
  // Throws ConfigError for an empty function.
  Transform(Function<Sample(Sample, Generator&)> f);  // NOLINT: a callable is a transform
  explicit Transform(std::shared_ptr<const Step> step);
  [[nodiscard]] Sample operator()(Sample sample, Generator& rng) const;
  // The transforms that this one applies, one after the other.
  [[nodiscard]] const std::vector<std::shared_ptr<const Step>>& steps() const { return steps_; }

 private:
  friend LEVIN_API Transform compose(const std::vector<Transform>& transforms);
  Transform() = default;
  std::vector<std::shared_ptr<const Step>> steps_;
};

// All of them, one after the other; none: the sample as it is.
[[nodiscard]] LEVIN_API Transform compose(const std::vector<Transform>& transforms);

// Images u8 [N, C, H, W] and labels u8 [N], as {transformed image, label i64}: the samples of
// transform(tensor_dataset({images, labels as i64}), compose(transforms)) with the same bits. Where all transforms are
// Levin's, a batch is written without a tensor a sample, several times as fast. Then transforms that cannot take the
// images throw at once. Throws DTypeError, DataError and ShapeError for other tensors.
[[nodiscard]] LEVIN_API DatasetRef image_dataset(Tensor images, Tensor labels,
                                                 const std::vector<Transform>& transforms);

// ---- Values

// u8 to f32 x / 255 (PyTorch multiplies by 1 / 255, which differs in the last bit); f32 stays.
[[nodiscard]] LEVIN_API Transform to_float(std::size_t field = 0);
// (x - mean) / std of f32, with one pair for all channels or one for each; u8 is converted as by to_float first, with
// the bits of image_dataset. Throws ConfigError for no pair and unless std > 0.
[[nodiscard]] LEVIN_API Transform normalize(std::vector<Normalization> channels, std::size_t field = 0);
// A label u8, i32 or i64 [] as f32 [classes]: 1 at the label, 0 elsewhere. Throws IndexError for a label outside of
// 0 .. classes - 1.
[[nodiscard]] LEVIN_API Transform one_hot(std::int64_t classes, std::size_t field = 1);

// ---- Geometry

// What lies outside of an image. constant: `fill`; edge: the last pixel; reflect: the image mirrored at the last pixel,
// which is not repeated (padding below the image's size); symmetric: with the last pixel repeated (padding up to the
// size).
enum class PaddingMode : std::uint8_t { constant, edge, reflect, symmetric };

struct RandomCropOptions {
  std::array<std::int64_t, 2> size{0, 0};     // {height, width} of the result; {0, 0}: those of the image
  std::array<std::int64_t, 2> padding{0, 0};  // pixels at {top and bottom, left and right}
  PaddingMode mode = PaddingMode::constant;
  double fill = 0;  // a pixel, in the image's range: 0 .. 255 for u8
};
// A window of the padded image, each position as likely. 2 draws, also where there is one position, where PyTorch draws
// nothing; pad_if_needed is not offered.
[[nodiscard]] LEVIN_API Transform random_crop(RandomCropOptions options = {}, std::size_t field = 0);
// Mirrors the image left to right with probability p. 1 draw.
[[nodiscard]] LEVIN_API Transform random_horizontal_flip(double p = 0.5, std::size_t field = 0);
// Mirrors the image top to bottom with probability p. 1 draw.
[[nodiscard]] LEVIN_API Transform random_vertical_flip(double p = 0.5, std::size_t field = 0);

// The image turned, moved, scaled and sheared about its center, of the same size. 6 draws. Pixels are interpolated
// between those of the image and `fill` outside; bilinear u8 is rounded to the nearest. PyTorch draws the numbers in
// this order, too; its bilinear border counts the part of the image twice (pytorch/vision issue 6517), so pixels less
// than one pixel from the border of the image differ unless its fill is None and this one 0.
[[nodiscard]] LEVIN_API Transform random_affine(RandomAffineOptions options, std::size_t field = 0);
struct RandomRotationOptions {
  Spread degrees = 0;  // counter-clockwise
  Interpolation interpolation = Interpolation::nearest;
  double fill = 0;
};
// The image turned about its center, of the same size: random_affine by the negative angle. 6 draws. PyTorch's expand
// and center are not offered.
[[nodiscard]] LEVIN_API Transform random_rotation(RandomRotationOptions options, std::size_t field = 0);

// A square of `size` pixels around a random pixel becomes `fill`; the part outside of the image is cut off. For even
// sizes the pixel is the first after the middle. 2 draws. DeVries and Taylor, "Improved regularization of convolutional
// neural networks with cutout", 2017.
[[nodiscard]] LEVIN_API Transform cutout(std::int64_t size, double fill = 0, std::size_t field = 0);

// ---- Color

struct ColorJitterOptions {
  Spread brightness = 0, contrast = 0, saturation = 0;  // factors up to 1e30; lower ends below 0 become 0
  Spread hue = 0;                                       // turns of the color circle, within -0.5 to 0.5
};
// Brightness, contrast, saturation and hue changed in a random order, for 1 or 3 (RGB) channels. 5 draws.
//   brightness f: f x;  contrast f: f x + (1 - f) m, m the mean of the grey image;  saturation f: f x + (1 - f) grey;
//   hue h: h is added to the hue of HSV;  grey = 0.2989 R + 0.587 G + 0.114 B
// Each result is limited to 0 .. 1, or 0 .. 255 and rounded down for u8. Saturation and hue leave 1 channel as it is.
// m is summed in f64, so a u8 pixel may differ from PyTorch's by 1.
[[nodiscard]] LEVIN_API Transform color_jitter(ColorJitterOptions options, std::size_t field = 0);

}  // namespace levin::data
