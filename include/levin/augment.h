// Augmentations of batches of images [N, C, H, W] on any device, for on_after_batch_transfer of a training module or
// for the step itself:
//
//   Batch on_after_batch_transfer(Batch b) override {
//     b.fields[0] = augment::random_horizontal_flip(augment::random_crop(b[0], {.padding = {4, 4}}, gen_), gen_);
//     return b;
//   }
//
// Every image draws numbers of its own. They depend on the generator's state, on the number of images and on the
// options, neither on the device nor on pixels, channels or dtype: a copy of the generator makes the same moves on the
// masks of the images. No number goes by way of the host, so a step that is recorded as a graph draws anew at each
// replay. Draws are not differentiable; all functions are linear in x but for the fill, and have derivatives of any
// order in x. Images of samples on the CPU: levin/data/transforms.h.
//
// Errors, before anything is drawn: ShapeError and DTypeError for other tensors, DeviceError for tensors on several
// devices, ConfigError for options out of range, UnsupportedError for a dtype without a kernel.
#pragma once

#include <array>
#include <cstdint>

#include "levin/generator.h"
#include "levin/image.h"
#include "levin/ops.h"

namespace levin::augment {

// ---- Random

struct RandomCropOptions {
  std::array<std::int64_t, 2> size{0, 0};     // {height, width} of the result; {0, 0}: those of the images
  std::array<std::int64_t, 2> padding{0, 0};  // pixels at {top and bottom, left and right}
  PadMode mode = PadMode::constant;           // the padding: `fill`, or as levin::pad
  Scalar fill = 0;
};
// A window of each padded image, every position as likely: [N, C, size]. Every dtype. torchvision's RandomCrop, with a
// position for each image.
[[nodiscard]] LEVIN_API Tensor random_crop(const Tensor& x, const RandomCropOptions& options, Generator& generator);
// Each image mirrored with probability p, left to right or top to bottom. Every dtype.
[[nodiscard]] LEVIN_API Tensor random_horizontal_flip(const Tensor& x, Generator& generator, double p = 0.5);
[[nodiscard]] LEVIN_API Tensor random_vertical_flip(const Tensor& x, Generator& generator, double p = 0.5);
// Each image turned, moved, scaled and sheared about its center by data::random_affine's formulas. Floats and u8.
[[nodiscard]] LEVIN_API Tensor random_affine(const Tensor& x, const RandomAffineOptions& options, Generator& generator);
// In each image a square of `size` pixels around a random pixel becomes `fill`; for even sizes the pixel is the first
// after the middle. Every dtype. DeVries and Taylor, "Improved regularization of convolutional neural networks with
// cutout", 2017.
[[nodiscard]] LEVIN_API Tensor cutout(const Tensor& x, std::int64_t size, Generator& generator, Scalar fill = 0);

// Images and their labels [N, K], floats: class probabilities, as one_hot(labels, K).to(DType::f32) or soft.
struct Mixed {
  Tensor images, labels;
};
// w x[n] + (1 - w) x[n - 1] for images and labels, where -1 is the last and w is one number of Beta(alpha, alpha),
// alpha > 0, for the batch. Floats. Zhang et al., "mixup: beyond empirical risk minimization", 2018; torchvision's
// MixUp.
[[nodiscard]] LEVIN_API Mixed mixup(const Tensor& images, const Tensor& labels, double alpha, Generator& generator);
// A box of image n - 1 on image n, around a random pixel, sqrt(1 - w) of both sides, w as in mixup; labels are mixed by
// the part of image n that is left. Images of every dtype. Yun et al., "CutMix: regularization strategy to train strong
// classifiers with localizable features", 2019; torchvision's CutMix.
[[nodiscard]] LEVIN_API Mixed cutmix(const Tensor& images, const Tensor& labels, double alpha, Generator& generator);

// ---- With given numbers, on the device of x. Positions may be any numbers; what lies outside of an image is `fill`.

// y[n, c, i, j] = x[n, c, i + top, j + left] with {top, left} = offsets[n]: x of every dtype, offsets i64 [N, 2].
[[nodiscard]] LEVIN_API Tensor crop(const Tensor& x, const Tensor& offsets, std::array<std::int64_t, 2> size,
                                    Scalar fill = 0);
// Image n mirrored along `dim`, 2 or 3, where which[n]: x of every dtype, which bool [N].
[[nodiscard]] LEVIN_API Tensor flip(const Tensor& x, const Tensor& which, std::int64_t dim);
// `fill` in a box of each image: x of every dtype, boxes i64 [N, 4] as top, left, bottom and right, exclusive.
[[nodiscard]] LEVIN_API Tensor erase(const Tensor& x, const Tensor& boxes, Scalar fill = 0);
// y[n, c, i, j] = x[n, c] at the point (a dj + b di + e, c dj + d di + f) from the center of the image, where (dj, di)
// is how far (j, i) lies from it: x floats or u8, maps f32 [N, 2, 3] of {{a, b, e}, {c, d, f}}. maps have no gradient;
// maps that require grad throw UnsupportedError.
[[nodiscard]] LEVIN_API Tensor affine(const Tensor& x, const Tensor& maps, Interpolation interpolation,
                                      Scalar fill = 0);
// w x[n] + (1 - w) x[n - 1], -1 the last: x [N, ...] floats, w f32 [1], without a gradient as above.
[[nodiscard]] LEVIN_API Tensor mix(const Tensor& x, const Tensor& w);
// x[n - 1] inside of a box, the same of all images, else x[n]: x of every dtype, box i64 [4] as in erase.
[[nodiscard]] LEVIN_API Tensor paste(const Tensor& x, const Tensor& box);

}  // namespace levin::augment
