// Rows of bench_kernels: augmentations of batches of images, drawn and applied; images of another size.
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
  // [images, channels, side, the result's side]
  const std::vector<Shape> sizes{{8, 64, 56, 112}, {8, 64, 7, 14}, {128, 3, 256, 224}};
  const auto resize = [&](const std::string& name, const InterpolateOptions& given) {
    const auto options = [given](const Shape& s) {
      InterpolateOptions o = given;
      o.size = s[3];
      return o;
    };
    k.push_back(
        {name, Sizes::own, floats(),
         [=](const Shape& s, DType d) {
           const Tensor x = random({s[0], s[1], s[2], s[2]}, d);
           return Work{[=] { (void)interpolate(x, options(s)); }, bytes_of(x) + bytes_of(interpolate(x, options(s)))};
         },
         sizes});
    k.push_back({name + "_backward", Sizes::own, floats(),
                 [=](const Shape& s, DType d) {
                   const double more = double(s[3] * s[3]) / double(s[2] * s[2]);
                   return backward_of(
                       {random({s[0], s[1], s[2], s[2]}, d)},
                       [=](const Tensors& in) { return interpolate(in[0], options(s)); }, 1 + more);
                 },
                 sizes});
  };
  k.push_back(
      {"grid_sample", Sizes::own, floats(),
       [](const Shape& s, DType d) {
         const Tensor x = random({s[0], s[1], s[2], s[2]}, d), grid = clamp(random({s[0], s[2], s[2], 2}, d), -1, 1);
         return Work{[=] { (void)grid_sample(x, grid); }, 2 * bytes_of(x) + bytes_of(grid)};
       },
       batches});
  k.push_back({"grid_sample_backward", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random({s[0], s[1], s[2], s[2]}, d), clamp(random({s[0], s[2], s[2], 2}, d), -1, 1)},
                     [](const Tensors& in) { return grid_sample(in[0], in[1]); }, 3);
               },
               batches});
  const std::vector<Shape> volumes{{1, 1, 4}, {2, 3, 16}, {2, 8, 48}};
  k.push_back({"grid_sample_volume",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = random({s[0], s[1], s[2], s[2], s[2]}, d),
                              grid = clamp(random({s[0], s[2], s[2], s[2], 3}, d), -1, 1);
                 return Work{[=] { (void)grid_sample(x, grid); }, 2 * bytes_of(x) + bytes_of(grid)};
               },
               volumes});
  k.push_back({"grid_sample_volume_backward",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random({s[0], s[1], s[2], s[2], s[2]}, d), clamp(random({s[0], s[2], s[2], s[2], 3}, d), -1, 1)},
                     [](const Tensors& in) { return grid_sample(in[0], in[1]); }, 3);
               },
               volumes});
  resize("interpolate_nearest", {});
  resize("interpolate_bilinear", {.mode = InterpolateMode::bilinear});
  resize("interpolate_bicubic", {.mode = InterpolateMode::bicubic});
  resize("interpolate_antialias", {.mode = InterpolateMode::bilinear, .antialias = true});
}

}  // namespace levin::bench
