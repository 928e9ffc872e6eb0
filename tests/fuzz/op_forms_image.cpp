// Convolutions, pooling and augmentations.
#include "levin/augment.h"
#include "tests/fuzz/op_forms.h"

namespace levin::fuzz {
namespace {

ConvOptions conv_options(Chooser& c) {
  ConvOptions o;
  if (c.one_in(2)) o = {.stride = c.positive_pair(), .padding = c.pair(), .dilation = c.positive_pair()};
  if (c.one_in(4)) o.groups = c.integer();
  if (c.one_in(6)) o.padding_rule = PaddingRule::same;
  return o;
}

// A volume's values along its axes.
std::array<std::int64_t, 3> triple(Chooser& c) {
  const std::int64_t first = c.integer();
  const std::array<std::int64_t, 2> rest = c.pair();
  return {first, rest[0], rest[1]};
}
std::array<std::int64_t, 3> positive_triple(Chooser& c) {
  if (c.one_in(8)) return triple(c);
  const std::int64_t first = small(c);
  const std::array<std::int64_t, 2> rest = c.positive_pair();
  return {first, rest[0], rest[1]};
}

PoolOptions1d pool_options_1d(Chooser& c) {
  PoolOptions1d o{.kernel = small(c)};
  if (c.one_in(2)) o.stride = c.integer();
  if (c.one_in(3)) o.padding = c.integer();
  o.ceil_mode = c.one_in(3);
  o.count_include_pad = !c.one_in(3);
  return o;
}
PoolOptions3d pool_options_3d(Chooser& c) {
  PoolOptions3d o{.kernel = positive_triple(c)};
  if (c.one_in(2)) o.stride = positive_triple(c);
  if (c.one_in(3)) o.padding = triple(c);
  o.ceil_mode = c.one_in(3);
  o.count_include_pad = !c.one_in(3);
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

// With a dilation, which max pools alone take.
PoolOptions1d with_dilation(Chooser& c, PoolOptions1d o) {
  if (c.one_in(3)) o.dilation = c.one_in(8) ? c.integer() : small(c);
  return o;
}
PoolOptions with_dilation(Chooser& c, PoolOptions o) {
  if (c.one_in(3)) o.dilation = c.positive_pair();
  return o;
}
PoolOptions3d with_dilation(Chooser& c, PoolOptions3d o) {
  if (c.one_in(3)) o.dilation = positive_triple(c);
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

// Sequences and volumes, or any tensor.
Tensor sequences(Chooser& c, Pool& p) {
  return c.one_in(6) ? p.any() : p.of({c.size(), small(c), c.size()}, c.dtype());
}
Tensor volumes(Chooser& c, Pool& p) {
  return c.one_in(6) ? p.any() : p.of({small(c), small(c), c.size(), small(c) + 1, small(c) + 1}, c.dtype());
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
       return Tensors{LEVIN_CALL(max_pool2d, image_and_kernel(c, p, false)[0], with_dilation(c, pool_options(c)))};
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
    {"conv3d",
     [](Chooser& c, Pool& p) {
       if (c.one_in(6)) return Tensors{conv3d(p.any(), p.any(), p.optional())};
       const std::int64_t in = small(c), out = small(c);
       const DType dtype = c.dtype();
       const Tensor x = p.of({small(c), in, c.size() + 1, small(c) + 1, small(c) + 1}, dtype);
       const Tensor w = p.of({out, in, small(c), small(c), small(c)}, dtype);
       ConvOptions3d o;
       if (c.one_in(2)) o = {.stride = positive_triple(c), .padding = triple(c), .dilation = positive_triple(c)};
       if (c.one_in(4)) o.groups = c.integer();
       if (c.one_in(4)) o.padding_rule = PaddingRule::same;
       return Tensors{conv3d(x, w, c.one_in(2) ? p.of({out}, dtype) : p.optional(), o)};
     }},
    {"conv_transpose1d",
     [](Chooser& c, Pool& p) {
       const std::int64_t in = small(c);
       const DType dtype = c.dtype();
       const Tensor x = c.one_in(4) ? p.any() : p.of({c.size(), in, c.size()}, dtype);
       const Tensor w = c.one_in(4) ? p.any() : p.of({in, small(c), small(c)}, dtype);
       ConvTransposeOptions1d o;
       if (c.one_in(2)) o = {.stride = small(c), .padding = c.integer(), .output_padding = c.integer()};
       if (c.one_in(4)) o.dilation = c.integer();
       if (c.one_in(4)) o.groups = c.integer();
       return Tensors{conv_transpose1d(x, w, p.optional(), o)};
     }},
    {"conv_transpose3d",
     [](Chooser& c, Pool& p) {
       if (c.one_in(6)) return Tensors{conv_transpose3d(p.any(), p.any(), p.optional())};
       const std::int64_t in = small(c), out = small(c);
       const DType dtype = c.dtype();
       const Tensor x = p.of({small(c), in, c.size(), small(c), small(c)}, dtype);
       const Tensor w = p.of({in, out, small(c), small(c), small(c)}, dtype);
       ConvTransposeOptions3d o;
       if (c.one_in(2)) o = {.stride = positive_triple(c), .padding = triple(c), .output_padding = triple(c)};
       if (c.one_in(4)) o.dilation = positive_triple(c);
       if (c.one_in(4)) o.groups = c.integer();
       return Tensors{conv_transpose3d(x, w, c.one_in(2) ? p.of({out}, dtype) : p.optional(), o)};
     }},
    {"max_pool1d and avg_pool1d",
     [](Chooser& c, Pool& p) {
       const Tensor x = sequences(c, p);
       const PoolOptions1d o = pool_options_1d(c);
       return Tensors{c.one_in(2) ? max_pool1d(x, with_dilation(c, o)) : avg_pool1d(x, o)};
     }},
    {"adaptive pools of sequences and volumes",
     [](Chooser& c, Pool& p) {
       if (c.one_in(2)) {
         const Tensor x = sequences(c, p);
         const std::int64_t output = c.integer();
         return Tensors{c.one_in(2) ? adaptive_max_pool1d(x, output) : adaptive_avg_pool1d(x, output)};
       }
       const Tensor x = volumes(c, p);
       const std::array<std::int64_t, 3> output = triple(c);
       return Tensors{c.one_in(2) ? adaptive_max_pool3d(x, output) : adaptive_avg_pool3d(x, output)};
     }},
    {"max_pool3d and avg_pool3d",
     [](Chooser& c, Pool& p) {
       const Tensor x = volumes(c, p);
       const PoolOptions3d o = pool_options_3d(c);
       return Tensors{c.one_in(2) ? max_pool3d(x, with_dilation(c, o)) : avg_pool3d(x, o)};
     }},
    {"max_pool2d_with_indices and max_unpool2d",
     [](Chooser& c, Pool& p) {
       const Tensor x = image_and_kernel(c, p, false)[0];
       const PoolOptions o = with_dilation(c, pool_options(c));
       const ValuesIndices y = max_pool2d_with_indices(x, o);
       MaxUnpoolOptions back{.kernel = o.kernel, .stride = o.stride, .padding = o.padding};
       if (c.one_in(2)) back.output_size = std::array{x.size(2), x.size(3)};
       if (c.one_in(4)) back.output_size = c.pair();
       return Tensors{y.values, max_unpool2d(y.values, c.one_in(8) ? p.index() : y.indices, back)};
     }},
    {"pooling of sequences and volumes with indices, and back",
     [](Chooser& c, Pool& p) {
       if (c.one_in(2)) {
         const Tensor x = sequences(c, p);
         const PoolOptions1d o = with_dilation(c, pool_options_1d(c));
         const ValuesIndices y = max_pool1d_with_indices(x, o);
         MaxUnpoolOptions1d back{.kernel = o.kernel, .stride = o.stride, .padding = o.padding};
         if (c.one_in(2)) back.output_size = c.one_in(2) ? x.size(2) : c.integer();
         return Tensors{y.values, max_unpool1d(y.values, c.one_in(8) ? p.index() : y.indices, back)};
       }
       const Tensor x = volumes(c, p);
       const PoolOptions3d o = with_dilation(c, pool_options_3d(c));
       const ValuesIndices y = max_pool3d_with_indices(x, o);
       MaxUnpoolOptions3d back{.kernel = o.kernel, .stride = o.stride, .padding = o.padding};
       if (c.one_in(2)) back.output_size = std::array{x.size(2), x.size(3), x.size(4)};
       if (c.one_in(4)) back.output_size = triple(c);
       return Tensors{y.values, max_unpool3d(y.values, c.one_in(8) ? p.index() : y.indices, back)};
     }},
    {"lp_pool2d",
     [](Chooser& c, Pool& p) {
       const Tensor x = image_and_kernel(c, p, false)[0];
       const double order = c.one_in(2) ? 2 : c.real();
       return Tensors{lp_pool2d(x, order, pool_options(c))};
     }},
    {"pixel_shuffle, pixel_unshuffle and channel_shuffle",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       const std::int64_t n = c.integer();
       if (c.one_in(3)) return Tensors{channel_shuffle(x, n)};
       return Tensors{c.one_in(2) ? pixel_shuffle(x, n) : pixel_unshuffle(x, n)};
     }},
    {"feature_dropout and alpha_dropout",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       const double rate = c.one_in(4) ? c.real() : 0.25;
       Generator g = generator(c);
       return Tensors{c.one_in(2) ? feature_dropout(x, rate, g) : alpha_dropout(x, rate, g)};
     }},
    {"grid_sample",
     [](Chooser& c, Pool& p) {
       const std::int64_t n = c.size();
       const DType dtype = c.dtype();
       const bool of_volumes = c.one_in(3);
       const Shape image{n, small(c), c.size(), c.size()}, points{n, small(c), small(c), of_volumes ? 3 : 2};
       const Tensor x = c.one_in(6) ? p.any() : p.of(of_volumes ? image.inserted(2, c.size()) : image, dtype);
       const Tensor grid = c.one_in(6) ? p.any() : p.of(of_volumes ? points.inserted(1, small(c)) : points, dtype);
       const auto mode = c.choice<GridSampleMode>(3);
       const auto padding = c.choice<GridPadding>(3);
       return Tensors{grid_sample(x, grid, {mode, padding, c.one_in(3)})};
     }},
    {"affine_grid",
     [](Chooser& c, Pool& p) {
       const std::int64_t n = small(c);
       const bool of_volumes = c.one_in(3);
       const Tensor theta = c.one_in(6) ? p.any() : p.of(of_volumes ? Shape{n, 3, 4} : Shape{n, 2, 3}, c.dtype());
       const Shape size{n, small(c), c.size(), c.size()};
       return Tensors{affine_grid(theta, of_volumes ? size.inserted(2, c.size()) : size,
                                  c.one_in(3) ? AlignCorners::yes : AlignCorners::no)};
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
       o.mode = c.choice<PadMode>(4);
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
