// What augmentations draw: the numbers' distributions, the same on every device, anew at each replay of a graph.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "levin/augment.h"
#include "levin/autograd.h"
#include "levin/data/transforms.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/ops/harness.h"
#include "tests/skip.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
std::vector<double> values(const Tensor& t) { return t.to(cpu).to(DType::f64).to_vector<double>(); }
// 0, 1, 2 and on: shows what moved where.
Tensor counted(const Shape& s, DType dtype = DType::f32) {
  std::vector<double> v(static_cast<std::size_t>(s.numel()));
  std::iota(v.begin(), v.end(), 0.);
  return from_data(v, s, cpu).to(dtype);
}

using Random = std::function<Tensors(const Tensor& x, const Tensor& labels, Generator& g)>;
const std::vector<std::pair<std::string, Random>>& all_random() {
  static const std::vector<std::pair<std::string, Random>> all{
      {"random_crop",
       [](const Tensor& x, const Tensor&, Generator& g) {
         return Tensors{augment::random_crop(x, {.padding = {2, 3}}, g),
                        augment::random_crop(x, {.size = {3, 4}, .padding = {1, 1}, .mode = PadMode::reflect}, g)};
       }},
      {"flips",
       [](const Tensor& x, const Tensor&, Generator& g) {
         return Tensors{augment::random_horizontal_flip(x, g), augment::random_vertical_flip(x, g, 0.25)};
       }},
      {"random_affine",
       [](const Tensor& x, const Tensor&, Generator& g) {
         return Tensors{augment::random_affine(
                            x, {.degrees = 30, .translate = {0.2, 0.1}, .scale = 0.3, .shear_x = 5, .shear_y = 5}, g),
                        augment::random_affine(x, {.degrees = 180, .interpolation = Interpolation::bilinear}, g)};
       }},
      {"cutout", [](const Tensor& x, const Tensor&, Generator& g) { return Tensors{augment::cutout(x, 3, g, 9)}; }},
      {"mixup",
       [](const Tensor& x, const Tensor& labels, Generator& g) {
         const auto [a, b] = augment::mixup(x, labels, 0.3, g);
         return Tensors{a, b};
       }},
      {"cutmix",
       [](const Tensor& x, const Tensor& labels, Generator& g) {
         const auto [a, b] = augment::cutmix(x, labels, 1, g);
         return Tensors{a, b};
       }},
  };
  return all;
}

template <class E, class F>
void refused(const F& f, const char* message) {
  CHECK_THROWS_WITH_AS((void)f(), doctest::Contains(message), E);
}

}  // namespace

TEST_CASE("each image is cropped, mirrored and cut by numbers of its own, each place about as often") {
  Generator g(1);
  constexpr int kImages = 3000;
  const Tensor x = expand(counted({1, 2, 3, 3}) + 1, {kImages, 2, 3, 3});
  const auto kinds = [](const Tensor& y) {
    std::map<std::vector<double>, int> seen;
    const std::vector<double> all = values(y);
    const std::size_t each = all.size() / kImages;
    for (std::size_t n = 0; n < kImages; ++n) ++seen[{all.begin() + n * each, all.begin() + (n + 1) * each}];
    return seen;
  };
  const auto evenly = [](const std::map<std::vector<double>, int>& seen, std::size_t places) {
    CHECK(seen.size() == places);
    const double share = double(kImages) / double(places);
    for (const auto& [image, count] : seen) CHECK(std::abs(count - share) < 5 * std::sqrt(share));
  };
  evenly(kinds(augment::random_crop(x, {.padding = {1, 2}}, g)), 15);
  evenly(kinds(augment::random_crop(x, {.size = {2, 1}}, g)), 6);
  evenly(kinds(augment::random_horizontal_flip(x, g)), 2);
  evenly(kinds(augment::cutout(x, 3, g)), 9);
  const auto rarely = kinds(augment::random_vertical_flip(x, g, 0.1));
  CHECK(rarely.size() == 2);
  CHECK(std::abs(std::min(rarely.begin()->second, rarely.rbegin()->second) - 300) < 5 * std::sqrt(270.));
  // Half of a turn, or none.
  evenly(kinds(augment::random_crop(x, {}, g)), 1);
  CHECK(same_bits(augment::random_affine(x, {.degrees = {180, 180}}, g), flip(x, {2, 3})));
  // Moves by whole pixels: a third of three pixels each way.
  CHECK(kinds(augment::random_affine(x, {.translate = {0.34, 0.34}}, g)).size() == 9);
}

TEST_CASE("a random affine map is the one of data::random_affine") {
  const Tensor x = randn({1, 3, 8, 9}, *std::make_unique<Generator>(1), cpu);
  for (const Interpolation how : {Interpolation::nearest, Interpolation::bilinear}) {
    for (const double degrees : {30., -100., 200.}) {
      const RandomAffineOptions o{.degrees = {degrees, degrees},
                                  .scale = {1.3, 1.3},
                                  .shear_x = {12, 12},
                                  .shear_y = {-7, -7},
                                  .interpolation = how,
                                  .fill = 0.5};
      Generator a(1), b(1);
      const Tensor batched = augment::random_affine(x, o, a), sample = data::random_affine(o)({squeeze(x, 0)}, b)[0];
      CHECK(allclose(squeeze(batched, 0), sample, 1e-4, 1e-4));
    }
  }
}

TEST_CASE("mixup's weight has the Beta distribution, and cutmix's labels the area that is left") {
  Generator g(2);
  constexpr int kDraws = 2000;
  const Tensor labels = one_hot(tensor<std::int64_t>({0, 1}, cpu), 2).to(DType::f32);
  for (const double alpha : {0.1, 0.5, 1.0, 4.0}) {
    CAPTURE(alpha);
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const Tensor x = tensor({1.f, 0.f}, cpu);
      const auto [images, mixed] = augment::mixup(reshape(x, {2, 1, 1, 1}), labels, alpha, g);
      const double w = values(images)[0];
      REQUIRE((w >= 0 && w <= 1));
      CHECK(values(images)[1] == doctest::Approx(1 - w));
      CHECK(values(mixed)[0] == doctest::Approx(w));
      CHECK(values(mixed)[1] == doctest::Approx(1 - w));
      sum += w, squares += (w - 0.5) * (w - 0.5);
    }
    const double variance = 1 / (4 * (2 * alpha + 1)), deviation = std::sqrt(variance / kDraws);
    CHECK(std::abs(sum / kDraws - 0.5) < 5 * deviation);
    // (w - 1/2)^2 lies in 0 .. 1/4, so its own deviation is at most 1/8.
    CHECK(std::abs(squares / kDraws - variance) < 5 * 0.125 / std::sqrt(kDraws));
  }
  double left = 0;
  for (int i = 0; i < kDraws; ++i) {
    const Tensor x = stack(Tensors{zeros({1, 6, 8}, cpu), ones({1, 6, 8}, cpu)}, 0);
    const auto [images, mixed] = augment::cutmix(x, labels, 1, g);
    const auto pixels = values(images);
    const double kept = 1 - std::accumulate(pixels.begin(), pixels.begin() + 48, 0.) / 48;
    CHECK(values(mixed)[0] == doctest::Approx(kept));
    for (std::size_t k = 0; k < 48; ++k) CHECK(pixels[k] + pixels[48 + k] == 1);
    left += kept;
  }
  // Beta(1, 1) is uniform; boxes are cut off at borders and by whole pixels, so more than half is left.
  CHECK((left / kDraws > 0.5 && left / kDraws < 0.8));
}

TEST_CASE("augmentations of a copied generator move images and masks alike, in every dtype") {
  Generator a(5);
  Generator b = a;
  const Tensor x = counted({4, 3, 6, 7}, DType::f64);
  for (const DType dtype : {DType::u8, DType::f16, DType::i64}) {
    const auto moved = [&](const Tensor& t, Generator& g) {
      return augment::cutout(augment::random_horizontal_flip(augment::random_crop(t, {.padding = {2, 2}}, g), g), 2, g);
    };
    const Tensor small = x - floor(x / 100) * 100;  // whole numbers that each dtype holds
    CHECK(values(moved(small, a)) == values(moved(slice(small, 1, 0, 3).to(dtype), b)));
  }
}

TEST_CASE("on a device augmentations draw and give the bits of the cpu") {
  DEVICE_OR_SKIP();
  for (const auto& [name, f] : all_random()) {
    CAPTURE(name);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Generator on_cpu(7), on_device(7);
      const Tensor x = randn({5, 3, 8, 9}, *std::make_unique<Generator>(1), cpu).to(dtype),
                   labels = one_hot(arange(5, cpu), 5).to(DType::f32);
      const Tensors want = f(x, labels, on_cpu), got = f(x.to(device), labels.to(device), on_device);
      for (std::size_t k = 0; k < want.size(); ++k) {
        if (name == "random_affine" || name == "mixup")  // sums may be fused
          CHECK(allclose(got[k].to(cpu).to(DType::f32), want[k].to(DType::f32), 1e-2, 1e-5));
        else
          CHECK(same_bits(got[k], want[k]));
      }
      CHECK(on_cpu.state().offset == on_device.state().offset);
    }
  }
}

TEST_CASE("on a device augmentations draw in a replayed graph what they draw when called, with their gradients") {
  DEVICE_OR_SKIP();
  Tensor x = randn({5, 3, 8, 9}, *std::make_unique<Generator>(1), device);
  x.requires_grad_();
  const Tensor labels = one_hot(arange(5, device), 5).to(DType::f32);
  for (const auto& [name, f] : all_random()) {
    CAPTURE(name);
    const auto step = [&](Generator& g) {
      Tensors out = f(x, labels, g);
      const Tensors seeds{out[0] * 1.0};
      out.push_back(grad(Tensors{sum(out[0] * out[0])}, Tensors{x})[0]);
      return out;
    };
    Generator called(3), drawn(3);
    Tensors got;
    Graph graph(Stream::current(device), [&] { got = step(drawn); });
    std::set<std::vector<double>> seen;
    for (int i = 0; i < 3; ++i) {
      const Tensors want = step(called);
      graph.replay();
      for (std::size_t k = 0; k < want.size(); ++k) CHECK(values(got[k]) == values(want[k]));
      seen.insert(values(got[0]));
    }
    CHECK(seen.size() == 3);
  }
}

TEST_CASE("a checkpointed region repeats its augmentations") {
  Tensor x = randn({4, 1, 6, 6}, *std::make_unique<Generator>(1), cpu);
  x.requires_grad_();
  const auto region = [](Generator& g) {
    return [&g](std::span<const Tensor> in) {
      return Tensors{augment::random_crop(in[0] * in[0], {.padding = {3, 3}}, g)};
    };
  };
  Generator a(1), b(1);
  const Tensor kept = checkpoint(region(a), Tensors{x})[0], plain = region(b)(Tensors{x})[0];
  CHECK(same_bits(kept, plain));
  CHECK(same_bits(grad(Tensors{sum(kept)}, Tensors{x})[0], grad(Tensors{sum(plain)}, Tensors{x})[0]));
}

TEST_CASE("random augmentations refuse what they cannot take before they draw") {
  Generator g(1);
  const Tensor x = zeros({2, 3, 4, 5}, cpu), labels = zeros({2, 3}, cpu), flat = zeros({2, 3}, cpu);
  refused<ShapeError>([&] { return augment::random_crop(flat, {}, g); }, "augment::random_crop: x has shape [2, 3]");
  refused<ShapeError>(
      [&] {
        return augment::random_crop(x, {.size = {5, 5}}, g);
      },
      "a window of 5 pixels along dimension 2");
  refused<ConfigError>([&] { return augment::random_crop(x, {.size = {5, 0}}, g); }, "size is {5, 0}");
  refused<ShapeError>([&] { return augment::random_crop(x, {.padding = {-1, 0}}, g); }, "padding is -1");
  refused<ShapeError>(
      [&] {
        return augment::random_crop(x, {.padding = {4, 0}, .mode = PadMode::reflect}, g);
      },
      "pad:");
  refused<DTypeError>([&] { return augment::random_crop(x.to(DType::u8), {.fill = 0.5}, g); }, "augment::random_crop");
  refused<ConfigError>([&] { return augment::random_vertical_flip(x, g, -0.1); },
                       "augment::random_vertical_flip: p is -0.1");
  refused<ConfigError>([&] { return augment::random_affine(x, {.scale = 2}, g); },
                       "augment::random_affine: scale is -1 to 3");
  refused<UnsupportedError>([&] { return augment::random_affine(x.to(DType::i64), {}, g); },
                            "augment::random_affine: i64 on cpu");
  refused<ConfigError>([&] { return augment::cutout(x, 0, g); }, "augment::cutout: size is 0");
  refused<ConfigError>([&] { return augment::mixup(x, labels, 0, g); }, "augment::mixup: alpha is 0");
  refused<UnsupportedError>([&] { return augment::mixup(x.to(DType::u8), labels, 1, g); },
                            "augment::mixup: images of u8");
  refused<ShapeError>([&] { return augment::mixup(x, zeros({2}, cpu), 1, g); },
                      "labels have shape [2], expected [2, classes]");
  refused<DTypeError>(
      [&] {
        return augment::cutmix(x, zeros({2, 3}, cpu, DType::i64), 1, g);
      },
      "labels are i64, expected floats");
  refused<ShapeError>(
      [&] {
        return augment::cutmix(zeros({2, 3, 0, 4}, cpu), labels, 1, g);
      },
      "expected images with pixels");
  CHECK(g.state().offset == 0);
  // u8 images take a whole fill.
  CHECK(values(augment::random_affine(zeros({1, 1, 1, 1}, cpu, DType::u8), {.scale = {1, 1}, .fill = 200}, g)) ==
        std::vector<double>{0});
}

}  // namespace levin::testing
