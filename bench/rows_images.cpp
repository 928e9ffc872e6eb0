// Rows of bench_kernels: augmentations of batches of images, drawn and applied.
#include "bench/rows.h"

namespace levin::bench {

void image_rows(std::vector<Kernel>& k) {
  // [images, channels, side]
  const std::vector<Shape> batches{{8, 3, 8}, {128, 3, 32}, {1024, 3, 32}, {128, 3, 224}};
  using Augmentation = std::function<Tensor(const Tensor& x, const Tensor& labels, Generator& g)>;
  const auto row = [&](const char* name, double passes, Augmentation f) {
    k.push_back({name, Sizes::own, floats(),
                 [=](const Shape& s, DType d) {
                   const Tensor x = random({s[0], s[1], s[2], s[2]}, d), labels = random({s[0], 10});
                   const auto g = std::make_shared<Generator>(3);
                   return Work{[=] { (void)f(x, labels, *g); }, passes * bytes_of(x)};
                 },
                 batches});
  };
  row("random_crop", 2, [](const Tensor& x, const Tensor&, Generator& g) {
    return augment::random_crop(x, {.padding = {4, 4}}, g);
  });
  row("random_flip", 2,
      [](const Tensor& x, const Tensor&, Generator& g) { return augment::random_horizontal_flip(x, g); });
  row("random_affine", 2, [](const Tensor& x, const Tensor&, Generator& g) {
    return augment::random_affine(x, {.degrees = 15, .scale = 0.1, .interpolation = Interpolation::bilinear}, g);
  });
  row("cutout", 2, [](const Tensor& x, const Tensor&, Generator& g) { return augment::cutout(x, 8, g); });
  row("mixup", 3,
      [](const Tensor& x, const Tensor& labels, Generator& g) { return augment::mixup(x, labels, 0.2, g).images; });
  row("cutmix", 2,
      [](const Tensor& x, const Tensor& labels, Generator& g) { return augment::cutmix(x, labels, 1, g).images; });
}

}  // namespace levin::bench
