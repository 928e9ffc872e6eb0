// Augmentations of batches. An op takes its numbers as a tensor; the functions that draw make that tensor by one kernel
// and pass it on. All ops are linear in x, and each one's derivative is an op of this file.
#include "levin/augment.h"

#include <cmath>

#include "autograd/op_table.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "autograd/ops/products/image_parts.h"
#include "autograd/random_tape.h"
#include "kernels/executor/dispatch.h"
#include "kernels/image/affine_sample.cuh"
#include "kernels/image/image_draws.cuh"
#include "kernels/image/mix.cuh"
#include "kernels/image/pixels.cuh"
#include "levin/extend.h"

namespace levin::augment {
namespace {

using kernels::Bits;
using kernels::PixelMove;
using kernels::PixelShape;
using Size = std::array<std::int64_t, 2>;

void check_images(const char* op, const Tensor& x) {
  check_defined(op, x);
  if (x.rank() != 4) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, H, W]");
}
Size size_of(const Tensor& x) { return {x.size(2), x.size(3)}; }

// The tensor of an op's numbers.
void check_numbers(const char* op, const char* what, const Tensor& x, const Tensor& t, DType dtype,
                   const Shape& shape) {
  check_same_device(op, x, t);
  if (t.dtype() != dtype) fail<DTypeError>(op, ": ", what, " is ", t.dtype(), ", expected ", dtype);
  if (t.shape() != shape) fail<ShapeError>(op, ": ", what, " has shape ", t.shape(), ", expected ", shape);
  if (t.requires_grad()) fail<UnsupportedError>(op, ": ", what, " requires grad and has no derivative; pass detach()");
}

// ---- Ops

Tensor moved(const OpInfo& info, const Tensor& x_, const Size& size, const PixelMove& move, Scalar fill) {
  const Tensor x = x_.contiguous();
  Tensor y = empty({x.size(0), x.size(1), size[0], size[1]}, x.device(), x.dtype());
  const PixelShape shape{x.size(0), x.size(1), size[0], size[1], x.size(2), x.size(3)};
  dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
    kernels::move_pixels(on, ptr<const Bits<T>>(x), ptr<Bits<T>>(y), shape, move,
                         kernels::bit_cast<Bits<T>>(fill.to<T>()));
  });
  return y;
}
// On meta there is no address.
template <class T>
const T* numbers(const Tensor& t) {
  return t.device().is_meta() ? nullptr : ptr<const T>(t);
}

struct Crop {
  static constexpr OpInfo info{.name = "augment::crop"};
  Size size;
  std::int64_t sign;  // -1: the window of y that x is, its adjoint
  Scalar fill;
  SavedInput offsets{};
  Size given{};
  Tensor forward(const Tensor& x, const Tensor& at) {
    offsets = at;
    given = size_of(x);
    const Tensor dense = at.contiguous();
    return moved(info, x, size, {.kind = PixelMove::Kind::window, .at = numbers<std::int64_t>(dense), .sign = sign},
                 fill);
  }
  Grads<2> backward(const Tensor& gy, Need<2>) { return {apply(Crop{given, -sign, 0}, gy, offsets.get()), Tensor()}; }
};

struct Flip {
  static constexpr OpInfo info{.name = "augment::flip"};
  PixelMove::Kind kind;
  SavedInput which{};
  Tensor forward(const Tensor& x, const Tensor& flags) {
    which = flags;
    const Tensor dense = flags.contiguous();
    return moved(info, x, size_of(x), {.kind = kind, .flags = numbers<bool>(dense)}, 0);
  }
  Grads<2> backward(const Tensor& gy, Need<2>) { return {apply(Flip{kind}, gy, which.get()), Tensor()}; }
};

struct Erase {
  static constexpr OpInfo info{.name = "augment::erase"};
  Scalar fill;
  SavedInput boxes{};
  Tensor forward(const Tensor& x, const Tensor& at) {
    boxes = at;
    const Tensor dense = at.contiguous();
    return moved(info, x, size_of(x), {.kind = PixelMove::Kind::fill, .at = numbers<std::int64_t>(dense)}, fill);
  }
  Grads<2> backward(const Tensor& gy, Need<2>) { return {apply(Erase{0}, gy, boxes.get()), Tensor()}; }
};

struct Paste {
  static constexpr OpInfo info{.name = "augment::paste"};
  std::int64_t shift;
  SavedInput box{};
  Tensor forward(const Tensor& x, const Tensor& at) {
    box = at;
    const Tensor dense = at.contiguous();
    return moved(info, x, size_of(x),
                 {.kind = PixelMove::Kind::paste, .at = numbers<std::int64_t>(dense), .shift = shift}, 0);
  }
  Grads<2> backward(const Tensor& gy, Need<2>) { return {apply(Paste{-shift}, gy, box.get()), Tensor()}; }
};

struct Mix {
  static constexpr OpInfo info{.name = "augment::mix"};
  std::int64_t shift;
  SavedInput weight{};
  Tensor forward(const Tensor& x_, const Tensor& w) {
    weight = w;
    const Tensor x = x_.contiguous(), dense = w.contiguous();
    Tensor y = empty(x.shape(), x.device(), x.dtype());
    const std::int64_t rows = x.size(0), columns = rows == 0 ? 0 : x.numel() / rows;
    dispatch(info, x, kFloats, [&]<class T>(const auto& on, T) {
      kernels::mix_rows<T>(on, ptr<const T>(x), ptr<T>(y), rows, columns, shift, ptr<const float>(dense));
    });
    return y;
  }
  Grads<2> backward(const Tensor& gy, Need<2>) { return {apply(Mix{-shift}, gy, weight.get()), Tensor()}; }
};

kernels::AffineShape affine_shape(const Tensor& x) { return {x.size(0), x.size(1), x.size(2), x.size(3)}; }
Tensor affine_backward(const Tensor& gy, const Tensor& maps, Interpolation how);

inline constexpr Types<float, double, f16, bf16, std::uint8_t> kPixels{};

struct Affine {
  static constexpr OpInfo info{.name = "augment::affine"};
  Interpolation how;
  Scalar fill;
  SavedInput maps{};
  Tensor forward(const Tensor& x_, const Tensor& at) {
    maps = at;
    const Tensor x = x_.contiguous(), dense = at.contiguous();
    Tensor y = empty(x.shape(), x.device(), x.dtype());
    dispatch(info, x, kPixels, [&]<class T>(const auto& on, T) {
      kernels::affine_sample(on, ptr<const T>(x), ptr<T>(y), affine_shape(x), ptr<const float>(dense), how,
                             fill.to<T>());
    });
    return y;
  }
  Grads<2> backward(const Tensor& gy, Need<2>) { return {affine_backward(gy, maps.get(), how), Tensor()}; }
};
struct AffineBackward {
  static constexpr OpInfo info{.name = "augment::affine_backward"};
  Interpolation how;
  SavedInput maps{};
  Tensor forward(const Tensor& gy, const Tensor& at) {
    maps = at;
    const Tensor y = gy.contiguous(), dense = at.contiguous();
    Tensor x = empty(y.shape(), y.device(), y.dtype());
    dispatch(info, y, kFloats, [&]<class T>(const auto& on, T) {
      kernels::affine_adjoint(on, ptr<const T>(y), ptr<T>(x), affine_shape(y), ptr<const float>(dense), how);
    });
    return x;
  }
  Grads<2> backward(const Tensor& g, Need<2>) { return {apply(Affine{how, 0}, g, maps.get()), Tensor()}; }
};
Tensor affine_backward(const Tensor& gy, const Tensor& maps, Interpolation how) {
  return apply(AffineBackward{how}, gy, maps);
}

LEVIN_OP_TABLE(Crop)
LEVIN_OP_TABLE(Flip)
LEVIN_OP_TABLE(Erase)
LEVIN_OP_TABLE(Paste)
LEVIN_OP_TABLE(Mix)
LEVIN_OP_TABLE(Affine)
LEVIN_OP_TABLE(AffineBackward)

// ---- Draws

// `out`, whose elements are T, is what f writes for n images. On meta nothing is drawn.
template <class T, class F>
void draw(const char* op, const Tensor& out, F f, std::int64_t n, Generator& generator) {
  dispatch(OpInfo{.name = op}, out, Types<T>{}, [&](const auto& on, T) {
    f.out = ptr<T>(out);
    kernels::draw_each(on, f, n, levin::detail::reserve_random(generator, 4 * F::kBlocks * n, out.device()));
  });
}

Tensor flipped(const char* op, const Tensor& x, Generator& generator, double p, PixelMove::Kind kind) {
  check_images(op, x);
  if (!(p >= 0 && p <= 1)) fail<ConfigError>(op, ": p is ", p, ", expected a probability in [0, 1]");
  const Tensor which = empty({x.size(0)}, x.device(), DType::b8);
  draw<bool>(op, which, kernels::FlipDraw{kernels::chance(p)}, x.size(0), generator);
  return apply(Flip{kind}, x, which);
}

void check_mix(const char* op, const Tensor& images, const Tensor& labels, double alpha) {
  check_images(op, images);
  check_same_device(op, images, labels);
  if (labels.rank() != 2 || labels.size(0) != images.size(0))
    fail<ShapeError>(op, ": labels have shape ", labels.shape(), ", expected [", images.size(0), ", classes]");
  if (!is_float(labels.dtype()))
    fail<DTypeError>(op, ": labels are ", labels.dtype(),
                     ", expected floats; one_hot(labels, classes).to(DType::f32) makes them");
  if (!(alpha > 0) || !std::isfinite(alpha))
    fail<ConfigError>(op, ": alpha is ", alpha, ", expected a finite number above 0");
}
// The weight and, for cutmix, the box.
Tensor drawn_weight(const char* op, const Tensor& images, double alpha, Generator& generator, const Tensor& box) {
  const Tensor weight = empty({1}, images.device());
  dispatch(OpInfo{.name = op}, weight, Types<float>{}, [&](const auto& on, float) {
    kernels::MixDraw f{.alpha = alpha, .height = images.size(2), .width = images.size(3), .weight = ptr<float>(weight)};
    if (box.defined()) f.box = ptr<std::int64_t>(box);
    kernels::draw_each(on, f, 1,
                       levin::detail::reserve_random(generator, 4 * kernels::MixDraw::kBlocks, images.device()));
  });
  return weight;
}

}  // namespace

Tensor crop(const Tensor& x, const Tensor& offsets, std::array<std::int64_t, 2> size, Scalar fill) {
  constexpr const char* op = Crop::info.name;
  check_images(op, x);
  check_numbers(op, "offsets", x, offsets, DType::i64, {x.size(0), 2});
  check_extents(op, "size", size, 0);
  pointwise::check_scalar(op, x, fill);
  (void)Shape{x.size(0), x.size(1), size[0], size[1]};  // too many elements
  return apply(Crop{size, 1, fill}, x, offsets);
}

Tensor flip(const Tensor& x, const Tensor& which, std::int64_t dim) {
  constexpr const char* op = Flip::info.name;
  check_images(op, x);
  check_numbers(op, "which", x, which, DType::b8, {x.size(0)});
  if (dim != 2 && dim != 3) fail<IndexError>(op, ": dim is ", dim, ", expected 2 (height) or 3 (width)");
  return apply(Flip{dim == 3 ? PixelMove::Kind::mirror_across : PixelMove::Kind::mirror_down}, x, which);
}

Tensor erase(const Tensor& x, const Tensor& boxes, Scalar fill) {
  constexpr const char* op = Erase::info.name;
  check_images(op, x);
  check_numbers(op, "boxes", x, boxes, DType::i64, {x.size(0), 4});
  pointwise::check_scalar(op, x, fill);
  return apply(Erase{fill}, x, boxes);
}

Tensor affine(const Tensor& x, const Tensor& maps, Interpolation interpolation, Scalar fill) {
  constexpr const char* op = Affine::info.name;
  check_images(op, x);
  check_numbers(op, "maps", x, maps, DType::f32, {x.size(0), 2, 3});
  pointwise::check_scalar(op, x, fill);
  return apply(Affine{interpolation, fill}, x, maps);
}

Tensor mix(const Tensor& x, const Tensor& w) {
  constexpr const char* op = Mix::info.name;
  check_defined(op, x);
  if (x.rank() == 0) fail<ShapeError>(op, ": x has shape [], expected [N, ...]");
  check_numbers(op, "w", x, w, DType::f32, {1});
  return apply(Mix{-1}, x, w);
}

Tensor paste(const Tensor& x, const Tensor& box) {
  constexpr const char* op = Paste::info.name;
  check_images(op, x);
  check_numbers(op, "box", x, box, DType::i64, {4});
  return apply(Paste{-1}, x, box);
}

Tensor random_crop(const Tensor& x, const RandomCropOptions& o, Generator& generator) {
  constexpr const char* op = "augment::random_crop";
  check_images(op, x);
  check_extents(op, "size", o.size, 0);
  check_extents(op, "padding", o.padding, 0);
  if ((o.size[0] == 0) != (o.size[1] == 0))
    fail<ConfigError>(op, ": size is {", o.size[0], ", ", o.size[1],
                      "}, expected two numbers above 0, or {0, 0} for the images'");
  pointwise::check_scalar(op, x, o.fill);
  const Size size = o.size[0] == 0 ? size_of(x) : o.size;
  Size room{};
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t n = size_of(x)[d] + 2 * o.padding[d];
    room[d] = n - size[d] + 1;
    if (room[d] < 1)
      fail<ShapeError>(op, ": a window of ", size[d], " pixels along dimension ", d + 2, " of x ", x.shape(),
                       " with padding ", o.padding[d], ", expected at most ", n);
  }
  (void)Shape{x.size(0), x.size(1), size[0], size[1]};  // too many elements
  const bool constant = o.mode == PadMode::constant;
  const Tensor padded = constant ? x : pad(x, {o.padding[1], o.padding[1], o.padding[0], o.padding[0]}, o.mode);
  const Tensor offsets = empty({x.size(0), 2}, x.device(), DType::i64);
  draw<std::int64_t>(op, offsets,
                     kernels::OffsetDraw{constant ? -o.padding[0] : 0, room[0], constant ? -o.padding[1] : 0, room[1]},
                     x.size(0), generator);
  return apply(Crop{size, 1, o.fill}, padded, offsets);
}

Tensor random_horizontal_flip(const Tensor& x, Generator& generator, double p) {
  return flipped("augment::random_horizontal_flip", x, generator, p, PixelMove::Kind::mirror_across);
}
Tensor random_vertical_flip(const Tensor& x, Generator& generator, double p) {
  return flipped("augment::random_vertical_flip", x, generator, p, PixelMove::Kind::mirror_down);
}

Tensor random_affine(const Tensor& x, const RandomAffineOptions& o, Generator& generator) {
  constexpr const char* op = "augment::random_affine";
  check_images(op, x);
  levin::detail::check_affine(op, o);
  if (!is_float(x.dtype()) && x.dtype() != DType::u8)
    fail<UnsupportedError>(op, ": ", x.dtype(), " on ", x.device(), "; has f32, f64, f16, bf16, u8");
  const bool whole = !is_float(x.dtype()) && o.fill == std::floor(o.fill);
  const Scalar fill = whole ? Scalar(static_cast<std::int64_t>(o.fill)) : Scalar(o.fill);
  pointwise::check_scalar(op, x, fill);
  const Tensor maps = empty({x.size(0), 2, 3}, x.device());
  draw<float>(op, maps, kernels::AffineDraw{levin::detail::affine_ranges(o, x.size(2), x.size(3))}, x.size(0),
              generator);
  return apply(Affine{o.interpolation, fill}, x, maps);
}

Tensor cutout(const Tensor& x, std::int64_t size, Generator& generator, Scalar fill) {
  constexpr const char* op = "augment::cutout";
  check_images(op, x);
  if (size < 1 || size > kMostExtent) fail<ConfigError>(op, ": size is ", size, ", expected 1 to 2^31 pixels");
  pointwise::check_scalar(op, x, fill);
  const Tensor boxes = empty({x.size(0), 4}, x.device(), DType::i64);
  draw<std::int64_t>(op, boxes, kernels::BoxDraw{x.size(2), x.size(3), size}, x.size(0), generator);
  return apply(Erase{fill}, x, boxes);
}

Mixed mixup(const Tensor& images, const Tensor& labels, double alpha, Generator& generator) {
  constexpr const char* op = "augment::mixup";
  check_mix(op, images, labels, alpha);
  if (!is_float(images.dtype()))
    fail<UnsupportedError>(op, ": images of ", images.dtype(), "; has f32, f64, f16, bf16");
  const Tensor weight = drawn_weight(op, images, alpha, generator, Tensor());
  return {apply(Mix{-1}, images, weight), apply(Mix{-1}, labels, weight)};
}

Mixed cutmix(const Tensor& images, const Tensor& labels, double alpha, Generator& generator) {
  constexpr const char* op = "augment::cutmix";
  check_mix(op, images, labels, alpha);
  if (images.size(2) == 0 || images.size(3) == 0)
    fail<ShapeError>(op, ": images have shape ", images.shape(), ", expected images with pixels");
  const Tensor box = empty({4}, images.device(), DType::i64);
  const Tensor weight = drawn_weight(op, images, alpha, generator, box);
  return {apply(Paste{-1}, images, box), apply(Mix{-1}, labels, weight)};
}

}  // namespace levin::augment
