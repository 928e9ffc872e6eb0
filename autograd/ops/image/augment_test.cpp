// Augmentations with given numbers against their definitions in plain loops.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "levin/augment.h"
#include "tests/device.h"
#include "tests/ops/harness.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
using Place = std::array<std::int64_t, 4>;

// y[n, c, i, j] = f(a function that reads x[n, c, i, j], or `fill` outside of x; the place), in f64.
using Read = std::function<double(std::int64_t n, std::int64_t c, std::int64_t i, std::int64_t j)>;
Tensor each_pixel(const Tensor& x, std::array<std::int64_t, 2> size, double fill,
                  const std::function<double(const Read&, const Place&)>& f) {
  const auto from = x.detach().to_vector<double>();
  const Shape in = x.shape(), out{in[0], in[1], size[0], size[1]};
  const Read read = [&](std::int64_t n, std::int64_t c, std::int64_t i, std::int64_t j) {
    if (i < 0 || j < 0 || i >= in[2] || j >= in[3]) return fill;
    return from[static_cast<std::size_t>(((n * in[1] + c) * in[2] + i) * in[3] + j)];
  };
  std::vector<double> to;
  for (std::int64_t n = 0; n < out[0]; ++n)
    for (std::int64_t c = 0; c < out[1]; ++c)
      for (std::int64_t i = 0; i < out[2]; ++i)
        for (std::int64_t j = 0; j < out[3]; ++j) to.push_back(f(read, {n, c, i, j}));
  return from_data(to, out, cpu);
}
std::array<std::int64_t, 2> size_of(const Tensor& x) { return {x.size(2), x.size(3)}; }
std::int64_t number(const Tensor& t, std::int64_t i) {
  return t.to_vector<std::int64_t>()[static_cast<std::size_t>(i)];
}

Tensor positions(std::vector<std::int64_t> values, const Shape& shape) { return from_data(values, shape, cpu); }
Tensor ramp(std::int64_t n, std::int64_t step, std::int64_t from = 0) {  // n numbers that go round
  std::vector<std::int64_t> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(from + i * step % 7);
  return positions(v, {n});
}
constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();

const std::vector<Shape>& image_shapes() {
  static const std::vector<Shape> shapes{{1, 1, 1, 1}, {2, 3, 4, 5}, {0, 3, 4, 4},  {3, 0, 2, 2},
                                         {2, 1, 0, 3}, {4, 1, 1, 9}, {3, 2, 13, 17}};
  return shapes;
}

// Dyadic numbers, so that points in f32 are exact.
Tensor dyadic_maps(std::int64_t n) {
  const float kinds[][6] = {{0.75f, -0.25f, 0.5f, 0.25f, 0.75f, -0.75f},
                            {1, 0, 0, 0, 1, 0},
                            {0, 1, 0.25f, -1, 0, 0},
                            {2, 0.5f, -1, -0.5f, 2, 0.125f},
                            {0.5f, 0.5f, 0, 0.5f, 0.5f, 0},  // no inverse
                            {0, 0, 0.5f, 0, 0, 0.25f},
                            {NAN, 0, 0, 0, 1, 0},
                            {1e30f, 0, 0, 0, 1e-30f, 0}};
  std::vector<float> v;
  for (std::int64_t i = 0; i < n; ++i) v.insert(v.end(), kinds[i % 8], kinds[i % 8] + 6);
  return from_data(v, {n, 2, 3}, cpu);
}
Tensor affine_reference(const Tensor& x, const Tensor& maps, Interpolation how, double fill) {
  const auto m = maps.to_vector<float>();
  const auto all = x.detach().to_vector<double>();
  // Integers are rounded.
  const bool whole = std::all_of(all.begin(), all.end(), [](double v) { return v == std::floor(v); });
  return each_pixel(x, size_of(x), fill, [&](const Read& read, const Place& p) {
    const float* const a = m.data() + 6 * p[0];
    const double cx = double(x.size(3) - 1) / 2, cy = double(x.size(2) - 1) / 2, dj = double(p[3]) - cx,
                 di = double(p[2]) - cy;
    const double sx = a[0] * dj + a[1] * di + a[2] + cx, sy = a[3] * dj + a[4] * di + a[5] + cy;
    if (!(std::abs(sx) < 1e6 && std::abs(sy) < 1e6)) return fill;
    const auto at = [&](double r, double s) {
      return read(p[0], p[1], static_cast<std::int64_t>(r), static_cast<std::int64_t>(s));
    };
    if (how == Interpolation::nearest) return at(std::nearbyint(sy), std::nearbyint(sx));
    const double s = std::floor(sx), r = std::floor(sy), u = sx - s, v = sy - r;
    const double value =
        (1 - v) * ((1 - u) * at(r, s) + u * at(r, s + 1)) + v * ((1 - u) * at(r + 1, s) + u * at(r + 1, s + 1));
    return whole ? std::nearbyint(value) : value;
  });
}

void refuse_numbers(OpCase& c, const std::string& op, const std::string& what, DType dtype, const Shape& shape,
                    const std::function<void(const Tensor&)>& call) {
  const DType other = dtype == DType::i64 ? DType::i32 : DType::i64;
  c.errors.push_back({what + " of another dtype", [=] { call(zeros(shape, cpu, other)); }, throws<DTypeError>,
                      op + ": " + what + " is " + std::string(name(other))});
  c.errors.push_back({what + " of another shape", [=] { call(zeros(shape.inserted(0, 1), cpu, dtype)); },
                      throws<ShapeError>, op + ": " + what + " has shape"});
  c.errors.push_back(
      {what + " on another device", [=] { call(zeros(shape, Device::meta(), dtype)); }, throws<DeviceError>, op});
}
Tensor image() { return zeros({2, 3, 4, 5}, cpu); }

}  // namespace

LEVIN_OP_CASE(augment_crop) {
  OpCase c{.ops = {"augment::crop"}, .dtypes = kAllDTypes, .no_single = "an image has several numbers"};
  const auto add = [&](const Shape& s, std::array<std::int64_t, 2> size, const Tensor& at, int fill) {
    c.samples.push_back(
        {.inputs = {real(s), fixed(at)},
         .call = [=](const Tensors& in) { return Tensors{augment::crop(in[0], in[1], size, fill)}; },
         .reference =
             [=](const Tensors& in) {
               return Tensors{each_pixel(in[0], size, fill, [&](const Read& read, const Place& p) {
                 const std::int64_t top = std::clamp<std::int64_t>(number(in[1], 2 * p[0]), -1000, 1000),
                                    left = std::clamp<std::int64_t>(number(in[1], 2 * p[0] + 1), -1000, 1000);
                 return read(p[0], p[1], p[2] + top, p[3] + left);
               })};
             }});
  };
  for (const Shape& s : image_shapes()) {
    const Tensor at = reshape(ramp(2 * s[0], 3, -3), {s[0], 2});
    add(s, {s[2], s[3]}, at, 1);
    add(s, {3, 4}, at, 0);
    add(s, {0, 2}, at, 0);
  }
  add({2, 1, 3, 3}, {3, 3}, positions({kEnd, 0, 0, -kEnd - 1}, {2, 2}), 1);
  add({2, 2, 4, 4}, {7, 21}, positions({-2, -9, 1, 2}, {2, 2}), 1);
  refuse_numbers(c, "augment::crop", "offsets", DType::i64, {2, 2}, [](const Tensor& t) {
    (void)augment::crop(image(), t, {2, 2});
  });
  c.errors.push_back({"rank",
                      [] {
                        (void)augment::crop(zeros({3, 4}, cpu), zeros({3, 2}, cpu, DType::i64), {1, 1});
                      },
                      throws<ShapeError>, "augment::crop: x has shape [3, 4], expected [N, C, H, W]"});
  c.errors.push_back({"size",
                      [] {
                        (void)augment::crop(image(), zeros({2, 2}, cpu, DType::i64), {-1, 1});
                      },
                      throws<ShapeError>, "augment::crop: size is -1"});
  c.errors.push_back({"fill",
                      [] {
                        (void)augment::crop(image().to(DType::u8), zeros({2, 2}, cpu, DType::i64), {1, 1}, 0.5);
                      },
                      throws<DTypeError>, "augment::crop"});
  return c;
}

LEVIN_OP_CASE(augment_flip) {
  OpCase c{.ops = {"augment::flip"}, .dtypes = kAllDTypes};
  for (const Shape& s : image_shapes()) {
    std::vector<bool> flags;
    for (std::int64_t i = 0; i < s[0]; ++i) flags.push_back(i % 2 == 0);
    Tensor which = empty({s[0]}, cpu, DType::b8);
    std::copy(flags.begin(), flags.end(), which.mutable_data<bool>());
    for (const int dim : {2, 3})
      c.samples.push_back({.inputs = {real(s), fixed(which)},
                           .call = [=](const Tensors& in) { return Tensors{augment::flip(in[0], in[1], dim)}; },
                           .reference =
                               [=](const Tensors& in) {
                                 return Tensors{
                                     each_pixel(in[0], size_of(in[0]), 0, [&](const Read& read, const Place& p) {
                                       const bool turned = p[0] % 2 == 0;
                                       return read(p[0], p[1], turned && dim == 2 ? s[2] - 1 - p[2] : p[2],
                                                   turned && dim == 3 ? s[3] - 1 - p[3] : p[3]);
                                     })};
                               }});
  }
  refuse_numbers(c, "augment::flip", "which", DType::b8, {2},
                 [](const Tensor& t) { (void)augment::flip(image(), t, 3); });
  c.errors.push_back({"dim", [] { (void)augment::flip(image(), zeros({2}, cpu, DType::b8), 1); }, throws<IndexError>,
                      "augment::flip: dim is 1, expected 2 (height) or 3 (width)"});
  return c;
}

LEVIN_OP_CASE(augment_erase) {
  OpCase c{.ops = {"augment::erase"}, .dtypes = kAllDTypes, .no_single = "an image has several numbers"};
  const auto add = [&](const Shape& s, const Tensor& boxes, int fill) {
    c.samples.push_back({.inputs = {real(s), fixed(boxes)},
                         .call = [=](const Tensors& in) { return Tensors{augment::erase(in[0], in[1], fill)}; },
                         .reference =
                             [=](const Tensors& in) {
                               return Tensors{
                                   each_pixel(in[0], size_of(in[0]), 0, [&](const Read& read, const Place& p) {
                                     const auto b = [&](std::int64_t k) { return number(in[1], 4 * p[0] + k); };
                                     const bool inside = p[2] >= b(0) && p[3] >= b(1) && p[2] < b(2) && p[3] < b(3);
                                     return inside ? double(fill) : read(p[0], p[1], p[2], p[3]);
                                   })};
                             }});
  };
  for (const Shape& s : image_shapes()) add(s, reshape(ramp(4 * s[0], 2, -1), {s[0], 4}), 1);
  add({3, 2, 4, 6}, positions({1, 2, 3, 5, -kEnd, -kEnd, kEnd, kEnd, 3, 3, 1, 1}, {3, 4}), 0);
  refuse_numbers(c, "augment::erase", "boxes", DType::i64, {2, 4},
                 [](const Tensor& t) { (void)augment::erase(image(), t); });
  return c;
}

LEVIN_OP_CASE(augment_paste) {
  OpCase c{.ops = {"augment::paste"}, .dtypes = kAllDTypes, .no_single = "an image has several numbers"};
  for (const Shape& s : image_shapes()) {
    for (const Place& box : {Place{0, 0, 2, 3}, Place{1, -5, 100, 1}, Place{2, 2, 2, 5}})
      c.samples.push_back(
          {.inputs = {real(s), fixed(positions({box.begin(), box.end()}, {4}))},
           .call = [](const Tensors& in) { return Tensors{augment::paste(in[0], in[1])}; },
           .reference =
               [=](const Tensors& in) {
                 return Tensors{each_pixel(in[0], size_of(in[0]), 0, [&](const Read& read, const Place& p) {
                   const bool inside = p[2] >= box[0] && p[3] >= box[1] && p[2] < box[2] && p[3] < box[3];
                   return read(inside ? (p[0] + s[0] - 1) % s[0] : p[0], p[1], p[2], p[3]);
                 })};
               }});
  }
  refuse_numbers(c, "augment::paste", "box", DType::i64, {4},
                 [](const Tensor& t) { (void)augment::paste(image(), t); });
  return c;
}

LEVIN_OP_CASE(augment_mix) {
  OpCase c{.ops = {"augment::mix"}, .dtypes = kFloatDTypes, .sums = 2};
  for (const Shape& s :
       {Shape{1}, Shape{0, 3}, Shape{4}, Shape{3, 5}, Shape{2, 0}, Shape{3, 2, 5, 7}, Shape{5, 1300}}) {
    for (const float w : {0.f, 0.25f, 1.f})
      c.samples.push_back({.inputs = {real(s), fixed(from_data(std::vector<float>{w}, {1}, cpu))},
                           .call = [](const Tensors& in) { return Tensors{augment::mix(in[0], in[1])}; },
                           .reference =
                               [w](const Tensors& in) {
                                 const auto x = in[0].detach().to_vector<double>();
                                 std::vector<double> y(x.size());
                                 const std::size_t row = x.empty() ? 1 : x.size() / std::size_t(in[0].size(0));
                                 for (std::size_t i = 0; i < x.size(); ++i)
                                   y[i] = w * x[i] + (1 - w) * x[(i + x.size() - row) % x.size()];
                                 return Tensors{from_data(y, in[0].shape(), cpu)};
                               }});
  }
  refuse_numbers(c, "augment::mix", "w", DType::f32, {1}, [](const Tensor& t) { (void)augment::mix(image(), t); });
  c.errors.push_back({"no rows", [] { (void)augment::mix(zeros({}, cpu), zeros({1}, cpu)); }, throws<ShapeError>,
                      "augment::mix: x has shape []"});
  c.errors.push_back({"w that requires grad",
                      [] {
                        Tensor w = zeros({1}, cpu);
                        w.requires_grad_();
                        (void)augment::mix(image(), w);
                      },
                      throws<UnsupportedError>, "augment::mix: w requires grad and has no derivative"});
  return c;
}

LEVIN_OP_CASE(augment_affine) {
  OpCase c{.ops = {"augment::affine", "augment::affine_backward"},
           .dtypes = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8},
           .sums = 16,
           .no_single = "an image has several numbers"};
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{2, 3, 4, 5}, Shape{0, 3, 4, 4}, Shape{8, 2, 6, 6}, Shape{8, 5, 3, 8},
                         Shape{2, 1, 0, 3}}) {
    for (const Interpolation how : {Interpolation::nearest, Interpolation::bilinear}) {
      for (const int fill : {0, 1})
        c.samples.push_back(
            {.inputs = {real(s), fixed(dyadic_maps(s[0]))},
             .call = [=](const Tensors& in) { return Tensors{augment::affine(in[0], in[1], how, fill)}; },
             .reference = [=](const Tensors& in) { return Tensors{affine_reference(in[0], in[1], how, fill)}; }});
    }
  }
  refuse_numbers(c, "augment::affine", "maps", DType::f32, {2, 2, 3},
                 [](const Tensor& t) { (void)augment::affine(image(), t, Interpolation::nearest); });
  return c;
}

TEST_CASE("the gradient of an affine map is its transpose for random maps, with the same bits on a device") {
  Generator g(1);
  const std::vector<Device> devices = test::all_devices();
  for (const double size : {0.3, 1.0, 3.0}) {
    for (const Interpolation how : {Interpolation::nearest, Interpolation::bilinear}) {
      CAPTURE(size);
      const Tensor maps = randn({6, 2, 3}, g, cpu) * size, x = randn({6, 1, 7, 9}, g, cpu, DType::f64),
                   y = randn({6, 1, 7, 9}, g, cpu, DType::f64);
      std::vector<Tensor> gradients;
      for (const Device device : devices) {
        Tensor from = x.to(device).detach();
        from.requires_grad_();
        const Tensors out{augment::affine(from, maps.to(device), how)}, in{from}, seed{y.to(device)};
        const Tensor gx = grad(out, in, seed)[0].detach();
        // <A x, y> = <x, A' y>.
        const double left = sum(out[0].detach() * seed[0]).item<double>(),
                     right = sum(from.detach() * gx).item<double>();
        CHECK(left == doctest::Approx(right).epsilon(1e-10));
        gradients.push_back(gx.to(cpu));
      }
      for (const Tensor& gx : gradients) CHECK(same_bits(gx, gradients[0]));
    }
  }
}

}  // namespace levin::testing
