// Convolutions, pooling and augmentations.
#include "levin/augment.h"
#include "tests/fuzz/op_forms.h"

namespace levin::fuzz {
namespace {

ConvOptions conv_options(Chooser& c) {
  ConvOptions o;
  if (c.one_in(2)) o = {.stride = c.positive_pair(), .padding = c.pair(), .dilation = c.positive_pair()};
  if (c.one_in(4)) o.groups = c.integer();
  return o;
}

PoolOptions pool_options(Chooser& c) {
  PoolOptions o{.kernel = c.positive_pair()};
  if (c.one_in(2)) o.stride = c.positive_pair();
  if (c.one_in(3)) o.padding = c.pair();
  o.ceil_mode = c.one_in(3);
  o.count_include_pad = !c.one_in(3);
  return o;
}

WindowOptions window_options(Chooser& c) {
  WindowOptions o{.kernel = c.positive_pair()};
  if (c.one_in(2)) o.stride = c.positive_pair();
  if (c.one_in(2)) o.padding = c.pair();
  if (c.one_in(3)) o.dilation = c.positive_pair();
  return o;
}

InterpolateOptions interpolate_options(Chooser& c) {
  InterpolateOptions o;
  if (c.one_in(2)) {
    o.size = c.one_in(2) ? c.dims() : Dims(small(c));
  } else {
    o.scale_factor = {c.one_in(4) ? c.real() : 0.5 * double(small(c))};
    if (c.one_in(3)) o.scale_factor.push_back(0.4 * double(small(c)));
  }
  o.mode = c.choice<InterpolateMode>(7);
  o.align_corners = c.one_in(4);
  o.antialias = c.one_in(4);
  o.recompute_scale_factor = c.one_in(6);
  return o;
}

// An image and a kernel that fits it, or any two tensors.
Tensors image_and_kernel(Chooser& c, Pool& p, bool transposed) {
  if (c.one_in(4)) return {p.any(), p.any(), p.optional()};
  const std::int64_t in = small(c), out = small(c);
  const DType dtype = c.dtype();
  const Tensor x = p.of({c.size(), in, c.size() + 2, c.size() + 2}, dtype);
  const Tensor w = p.of(transposed ? Shape{in, out, small(c), small(c)} : Shape{out, in, small(c), small(c)}, dtype);
  return {x, w, c.one_in(2) ? p.of({out}, dtype) : p.optional()};
}

// Images, or any tensor; one number or a row of numbers for each image.
Tensor images(Chooser& c, Pool& p) {
  return c.one_in(6) ? p.any() : p.of({c.size(), small(c), c.size(), c.size()}, c.dtype());
}

Tensor numbers(Chooser& c, Pool& p, const Tensor& x, const Shape& each, DType dtype) {
  return c.one_in(6) ? p.any() : p.of(each.inserted(0, x.size(0)), dtype);
}

Generator generator(Chooser& c) { return Generator(c.byte()); }

RandomAffineOptions affine_options(Chooser& c) {
  RandomAffineOptions o{.degrees = c.real()};
  if (c.one_in(2)) o.translate = {c.real(), 0.5};
  if (c.one_in(2)) o.scale = {0.5, c.real()};
  if (c.one_in(2)) o.shear_x = c.real();
  o.interpolation = c.choice<Interpolation>(2);
  if (c.one_in(3)) o.fill = c.real();
  return o;
}

constexpr Form kForms[] = {
    // Images
    {"conv2d",
     [](Chooser& c, Pool& p) {
       const Tensors in = image_and_kernel(c, p, false);
       return Tensors{conv2d(in[0], in[1], in[2], conv_options(c))};
     }},
    {"conv1d",
     [](Chooser& c, Pool& p) {
       const std::int64_t channels = small(c);
       const Tensor x = c.one_in(4) ? p.any() : p.of({c.size(), channels, c.size() + 2}, DType::f32);
       const Tensor w = c.one_in(4) ? p.any() : p.of({small(c), channels, small(c)}, DType::f32);
       const ConvOptions1d o{.stride = small(c), .padding = c.integer(), .dilation = small(c)};
       return Tensors{conv1d(x, w, p.optional(), o)};
     }},
    {"conv_transpose2d",
     [](Chooser& c, Pool& p) {
       const Tensors in = image_and_kernel(c, p, true);
       ConvTransposeOptions o;
       if (c.one_in(2)) o = {.stride = c.positive_pair(), .padding = c.pair(), .output_padding = c.pair()};
       if (c.one_in(4)) o.dilation = c.positive_pair();
       if (c.one_in(4)) o.groups = c.integer();
       return Tensors{conv_transpose2d(in[0], in[1], in[2], o)};
     }},
    {"max_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(max_pool2d, image_and_kernel(c, p, false)[0], pool_options(c))};
     }},
    {"avg_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(avg_pool2d, image_and_kernel(c, p, false)[0], pool_options(c))};
     }},
    {"adaptive_avg_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(adaptive_avg_pool2d, image_and_kernel(c, p, false)[0], c.pair())};
     }},
    {"adaptive_max_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(adaptive_max_pool2d, image_and_kernel(c, p, false)[0], c.pair())};
     }},
    {"im2col",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(im2col, image_and_kernel(c, p, false)[0], window_options(c))};
     }},
    {"col2im of im2col",
     [](Chooser& c, Pool& p) {
       const Tensor x = image_and_kernel(c, p, false)[0];
       const WindowOptions o = window_options(c);
       const Tensor columns = c.one_in(4) ? p.any() : im2col(x, o);
       return Tensors{col2im(columns, c.one_in(4) ? c.pair() : std::array{x.size(-2), x.size(-1)}, o)};
     }},
    {"interpolate",
     [](Chooser& c, Pool& p) {
       const std::size_t axes = 1 + c.below(3);
       Shape shape{c.size(), small(c)};
       for (std::size_t d = 0; d < axes; ++d) shape = shape.inserted(shape.rank(), c.size());
       const Tensor x = c.one_in(6) ? p.any() : p.of(shape, c.dtype());
       return Tensors{interpolate(x, interpolate_options(c))};
     }},
    {"grid_sample",
     [](Chooser& c, Pool& p) {
       const std::int64_t n = c.size();
       const DType dtype = c.dtype();
       const Tensor x = c.one_in(6) ? p.any() : p.of({n, small(c), c.size(), c.size()}, dtype);
       const Tensor grid = c.one_in(6) ? p.any() : p.of({n, small(c), small(c), 2}, dtype);
       const auto mode = c.choice<GridSampleMode>(3);
       const auto padding = c.choice<GridPadding>(3);
       return Tensors{grid_sample(x, grid, {mode, padding, c.one_in(3)})};
     }},
    {"affine_grid",
     [](Chooser& c, Pool& p) {
       const std::int64_t n = small(c);
       const Tensor theta = c.one_in(6) ? p.any() : p.of({n, 2, 3}, c.dtype());
       const Shape size{n, small(c), c.size(), c.size()};
       return Tensors{affine_grid(theta, size, c.one_in(3) ? AlignCorners::yes : AlignCorners::no)};
     }},
    // Augmentations
    {"augment::crop",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), at = numbers(c, p, x, {2}, DType::i64);
       const std::array<std::int64_t, 2> size = c.positive_pair();
       return Tensors{augment::crop(x, at, size, c.scalar())};
     }},
    {"augment::flip",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), which = numbers(c, p, x, {}, DType::b8);
       return Tensors{augment::flip(x, which, c.one_in(8) ? c.integer() : 2 + std::int64_t(c.below(2)))};
     }},
    {"augment::erase",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), boxes = numbers(c, p, x, {4}, DType::i64);
       return Tensors{augment::erase(x, boxes, c.scalar())};
     }},
    {"augment::affine",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), maps = numbers(c, p, x, {2, 3}, DType::f32).detach();
       const auto how = c.choice<Interpolation>(2);
       return Tensors{augment::affine(x, maps, how, c.scalar())};
     }},
    {"augment::mix",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{augment::mix(x, c.one_in(6) ? p.any() : p.of({1}, DType::f32).detach())};
     }},
    {"augment::paste",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       return Tensors{augment::paste(x, c.one_in(6) ? p.any() : p.of({4}, DType::i64))};
     }},
    {"augment::random_crop",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       augment::RandomCropOptions o{.padding = c.pair()};
       if (c.one_in(2)) o.size = c.positive_pair();
       o.mode = c.choice<PadMode>(3);
       if (c.one_in(4)) o.fill = c.scalar();
       Generator g = generator(c);
       return Tensors{augment::random_crop(x, o, g)};
     }},
    {"augment flips and cutout",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       Generator g = generator(c);
       if (c.one_in(2)) return Tensors{augment::cutout(x, c.integer(), g)};
       return Tensors{augment::random_vertical_flip(augment::random_horizontal_flip(x, g), g, c.real())};
     }},
    {"augment::random_affine",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       const RandomAffineOptions o = affine_options(c);
       Generator g = generator(c);
       return Tensors{augment::random_affine(x, o, g)};
     }},
    {"augment::mixup and cutmix",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       const Tensor labels = c.one_in(6) ? p.any() : p.of({x.size(0), c.size()}, DType::f32);
       Generator g = generator(c);
       const double alpha = c.one_in(3) ? c.real() : 0.4;
       const auto [a, b] = c.one_in(2) ? augment::mixup(x, labels, alpha, g) : augment::cutmix(x, labels, alpha, g);
       return Tensors{a, b};
     }},
};

}  // namespace

std::span<const Form> image_forms() { return kForms; }

}  // namespace levin::fuzz
