#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "levin/data/transforms.h"
#include "levin/ops.h"
#include "tests/allocations.h"
#include "tests/ops/harness.h"

namespace levin::data {
namespace {

const Device cpu = Device::cpu();

// 3 x 4 x 5 pixels; the numbers below are torchvision 0.29's results for this image.
Tensor picture(std::int64_t channels = 3) {
  Tensor x = empty({channels, 4, 5}, cpu, DType::u8);
  std::uint8_t* p = x.mutable_data<std::uint8_t>();
  for (std::int64_t i = 0; i < x.numel(); ++i) p[i] = static_cast<std::uint8_t>(i * 37 + i * i * 11);
  return x;
}

// clang-format off
const std::vector<int> kBright{0, 67, 165, 255, 95, 255, 148, 42, 255, 255, 255, 255, 255, 50, 159, 255, 112, 255,
    187, 92, 28, 255, 255, 19, 78, 168, 255, 81, 255, 117, 2, 255, 224, 201, 210, 249, 255, 61, 193, 255, 190, 56,
    255, 238, 196, 184, 204, 254, 255, 89, 232, 47, 252, 128, 36, 255, 255, 255, 255, 36};
const std::vector<int> kContrast{54, 83, 125, 180, 95, 177, 118, 72, 194, 174, 168, 176, 196, 76, 123, 183, 102,
    189, 135, 94, 66, 206, 204, 63, 88, 126, 178, 89, 167, 105, 56, 173, 150, 141, 144, 161, 191, 81, 137, 207, 136,
    78, 188, 156, 138, 134, 142, 164, 198, 93, 154, 75, 162, 110, 70, 197, 184, 184, 197, 70};
const std::vector<int> kGreyContrast{0, 0, 105, 255, 20, 251, 85, 0, 255, 245, 228, 248, 255, 0, 98, 255, 41, 255,
    132, 17};
const std::vector<int> kSaturation{0, 0, 55, 255, 67, 244, 61, 6, 249, 255, 255, 217, 255, 0, 106, 227, 8, 255, 124,
    0, 15, 255, 255, 0, 46, 101, 231, 54, 174, 61, 0, 210, 143, 171, 167, 166, 255, 0, 131, 255, 212, 0, 232, 226,
    189, 122, 129, 255, 255, 27, 229, 0, 177, 82, 0, 255, 239, 255, 255, 0};
const std::vector<int> kHue{136, 40, 118, 210, 140, 199, 106, 182, 240, 153, 190, 34, 236, 36, 26, 238, 97, 224,
    238, 26, 0, 218, 120, 93, 56, 204, 146, 30, 191, 200, 63, 202, 232, 66, 150, 178, 80, 88, 134, 249, 129, 252,
    250, 14, 111, 120, 206, 180, 188, 64, 2, 63, 160, 144, 87, 190, 228, 44, 222, 254};
const std::vector<int> kHueBack{115, 252, 250, 14, 103, 120, 206, 165, 188, 64, 2, 80, 160, 144, 99, 184, 228, 44,
    211, 254, 136, 40, 130, 210, 140, 191, 106, 182, 240, 139, 190, 34, 234, 36, 26, 238, 112, 224, 238, 26, 0, 197,
    118, 113, 56, 204, 136, 30, 196, 200, 82, 202, 236, 55, 150, 178, 80, 106, 134, 226};
const std::vector<float> kFloatContrast{0.000000f, 0.012510f, 0.424274f, 0.965451f, 0.130157f, 0.930157f, 0.353686f,
    0.000000f, 1.000000f, 0.906627f, 0.847804f, 0.918392f, 1.000000f, 0.000000f, 0.400745f, 0.988980f, 0.200745f,
    1.000000f, 0.518392f, 0.118392f, 0.000000f, 1.000000f, 1.000000f, 0.000000f, 0.059569f, 0.436039f, 0.941921f,
    0.071333f, 0.836039f, 0.224274f, 0.000000f, 0.894863f, 0.671333f, 0.577216f, 0.612510f, 0.777216f, 1.000000f,
    0.000000f, 0.541921f, 1.000000f, 0.530157f, 0.000000f, 1.000000f, 0.730157f, 0.553686f, 0.506627f, 0.588980f,
    0.800745f, 1.000000f, 0.106627f, 0.706627f, 0.000000f, 0.788980f, 0.271333f, 0.000000f, 1.000000f, 1.000000f,
    1.000000f, 1.000000f, 0.000000f};
const std::vector<float> kFloatSaturation{0.074787f, 0.514439f, 0.707960f, 0.495125f, 0.269843f, 0.642057f,
    0.589312f, 0.210324f, 0.841343f, 0.554780f, 0.434597f, 0.733082f, 0.785436f, 0.332720f, 0.477498f, 0.788658f,
    0.594747f, 0.585819f, 0.564445f, 0.549226f, 0.098317f, 0.754439f, 0.863254f, 0.264537f, 0.255726f, 0.543233f,
    0.706959f, 0.243266f, 0.789579f, 0.418309f, 0.213421f, 0.728376f, 0.696025f, 0.459778f, 0.519851f, 0.746305f,
    0.768864f, 0.374055f, 0.569151f, 0.770402f, 0.234787f, 0.505027f, 0.830313f, 0.448066f, 0.354549f, 0.557351f,
    0.636371f, 0.389148f, 0.850755f, 0.394780f, 0.406362f, 0.535435f, 0.719554f, 0.398602f, 0.373969f, 0.816893f,
    0.754747f, 0.576408f, 0.686798f, 0.502167f};
const std::vector<float> kFloatHue{0.533333f, 0.156863f, 0.767059f, 0.820392f, 0.549020f, 0.583529f, 0.494118f,
    0.713726f, 0.941176f, 0.279216f, 0.745098f, 0.133333f, 0.765490f, 0.276078f, 0.101961f, 0.933333f, 0.730980f,
    0.878431f, 0.933333f, 0.101961f, 0.000000f, 0.354510f, 0.462745f, 0.823529f, 0.219608f, 0.800000f, 0.415686f,
    0.117647f, 0.869020f, 0.784314f, 0.691765f, 0.792157f, 0.925490f, 0.141176f, 0.544314f, 0.792157f, 0.313726f,
    0.768628f, 0.525490f, 0.437647f, 0.185098f, 0.988235f, 0.980392f, 0.054902f, 0.238431f, 0.470588f, 0.807843f,
    0.346666f, 0.737255f, 0.250980f, 0.007843f, 0.644706f, 0.627451f, 0.564706f, 0.588235f, 0.698039f, 0.894118f,
    0.172549f, 0.622745f, 0.996078f};
const std::vector<int> kNearest{204, 106, 48, 118, 118, 202, 106, 30, 30, 210, 80, 236, 236, 36, 232, 224, 224, 134,
    36, 114, 120, 206, 252, 250, 250, 198, 206, 58, 58, 14, 228, 160, 160, 144, 188, 44, 44, 138, 144, 150, 132,
    146, 40, 222, 222, 34, 146, 182, 182, 170, 216, 180, 180, 92, 240, 216, 216, 238, 92, 26};
const std::vector<int> kNearestFar{9, 9, 0, 9, 9, 9, 214, 106, 118, 9, 9, 224, 36, 68, 9, 9, 9, 66, 9, 9, 9, 9, 20,
    9, 9, 9, 178, 206, 250, 9, 9, 44, 144, 56, 9, 9, 9, 254, 9, 9, 9, 9, 136, 9, 9, 9, 238, 146, 222, 9, 9, 216, 92,
    140, 9, 9, 9, 26, 9, 9};
const std::vector<int> kBilinear{201, 117, 75, 99, 128, 188, 148, 76, 110, 216, 144, 215, 170, 131, 188, 126, 210,
    123, 75, 121, 110, 172, 215, 229, 114, 117, 189, 107, 115, 103, 209, 162, 146, 158, 141, 102, 71, 130, 154, 143,
    135, 126, 115, 192, 158, 105, 105, 168, 203, 205, 128, 144, 164, 165, 138, 172, 213, 179, 88, 32};
const std::vector<float> kFloatBilinear{0.000000f, 0.126453f, 0.489462f, 0.571094f, 0.152818f, 0.013412f, 0.505627f,
    0.574333f, 0.180095f, 0.362499f, 0.093370f, 0.399802f, 0.806996f, 0.794402f, 0.027011f, 0.228148f, 0.614461f,
    0.723283f, 0.097114f, 0.000000f, 0.000000f, 0.021822f, 0.233907f, 0.316606f, 0.265213f, 0.033853f, 0.804520f,
    0.531482f, 0.563488f, 0.660375f, 0.521052f, 0.818567f, 0.704343f, 0.307274f, 0.009346f, 0.141878f, 0.095038f,
    0.624293f, 0.164396f, 0.000000f, 0.000000f, 0.124471f, 0.541865f, 0.174874f, 0.039054f, 0.023413f, 0.833304f,
    0.822370f, 0.408547f, 0.503077f, 0.287664f, 0.534291f, 0.388550f, 0.834620f, 0.029982f, 0.199807f, 0.502101f,
    0.829074f, 0.173793f, 0.000000f};
const std::vector<int> kRotation{12, 66, 162, 177, 103, 70, 81, 69, 160, 132, 190, 169, 225, 105, 88, 119, 165, 156,
    139, 44, 68, 188, 129, 80, 47, 108, 197, 83, 165, 125, 82, 184, 164, 138, 195, 25, 164, 142, 63, 73, 31, 108,
    197, 158, 49, 118, 132, 191, 170, 35, 135, 84, 156, 150, 73, 111, 169, 206, 169, 65};
const std::vector<int> kEdge{0, 0, 0, 48, 118, 210, 68, 68, 68, 0, 0, 0, 48, 118, 210, 68, 68, 68, 0, 0, 0, 48, 118,
    210, 68, 68, 68, 0, 0, 0, 48, 118, 210, 68, 68, 68, 204, 204, 204, 106, 30, 232, 200, 200, 200, 190, 190, 190,
    202, 236, 36, 114, 114, 114, 214, 214, 214, 80, 224, 134, 66, 66, 66, 214, 214, 214, 80, 224, 134, 66, 66, 66,
    214, 214, 214, 80, 224, 134, 66, 66, 66, 214, 214, 214, 80, 224, 134, 66, 66, 66};
const std::vector<int> kReflect{224, 80, 214, 80, 224, 134, 66, 134, 224, 236, 202, 190, 202, 236, 36, 114, 36, 236,
    30, 106, 204, 106, 30, 232, 200, 232, 30, 118, 48, 0, 48, 118, 210, 68, 210, 118, 30, 106, 204, 106, 30, 232,
    200, 232, 30, 236, 202, 190, 202, 236, 36, 114, 36, 236, 224, 80, 214, 80, 224, 134, 66, 134, 224, 236, 202,
    190, 202, 236, 36, 114, 36, 236, 30, 106, 204, 106, 30, 232, 200, 232, 30, 118, 48, 0, 48, 118, 210, 68, 210,
    118};
const std::vector<int> kSymmetric{202, 190, 190, 202, 236, 36, 114, 114, 36, 106, 204, 204, 106, 30, 232, 200, 200,
    232, 48, 0, 0, 48, 118, 210, 68, 68, 210, 48, 0, 0, 48, 118, 210, 68, 68, 210, 106, 204, 204, 106, 30, 232, 200,
    200, 232, 202, 190, 190, 202, 236, 36, 114, 114, 36, 80, 214, 214, 80, 224, 134, 66, 66, 134, 80, 214, 214, 80,
    224, 134, 66, 66, 134, 202, 190, 190, 202, 236, 36, 114, 114, 36, 106, 204, 204, 106, 30, 232, 200, 200, 232};
// clang-format on

Tensor apply(const Transform& t, const Tensor& image, std::uint64_t seed = 1) {
  Generator rng(seed);
  return t({image}, rng)[0];
}
// As numbers, whatever the dtype.
std::vector<double> values(const Tensor& x) { return x.to(DType::f64).to_vector<double>(); }
std::vector<double> numbers(const auto& v) { return {v.begin(), v.end()}; }
double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}
bool same(const Tensor& a, const Tensor& b) { return levin::testing::same_bits(a, b); }
constexpr Spread exactly(double x) { return {x, x}; }

}  // namespace

TEST_CASE("transforms of color give torchvision's numbers") {
  const struct {
    ColorJitterOptions options;
    const std::vector<int>& want;
    std::int64_t channels = 3;
  } pictures[] = {
      {{.brightness = exactly(1.4)}, kBright},
      {{.contrast = exactly(0.6)}, kContrast},
      {{.contrast = exactly(1.7)}, kGreyContrast, 1},
      {{.saturation = exactly(1.7)}, kSaturation},
      {{.hue = exactly(0.2)}, kHue},
      {{.hue = exactly(-0.45)}, kHueBack},
  };
  for (std::size_t i = 0; i < std::size(pictures); ++i) {
    CAPTURE(i);
    // One step of 255 where a sum of floats lies at a whole number.
    const auto got = values(apply(color_jitter(pictures[i].options), picture(pictures[i].channels)));
    const auto want = numbers(pictures[i].want);
    CHECK(farthest(got, want) <= 1);
    int differ = 0;
    for (std::size_t k = 0; k < got.size(); ++k) differ += got[k] != want[k];
    CHECK(differ <= 2);
  }
  const Tensor x = apply(to_float(), picture());
  CHECK(farthest(values(apply(color_jitter({.contrast = exactly(1.5)}), x)), numbers(kFloatContrast)) < 2e-6);
  CHECK(farthest(values(apply(color_jitter({.saturation = exactly(0.3)}), x)), numbers(kFloatSaturation)) < 2e-6);
  CHECK(farthest(values(apply(color_jitter({.hue = exactly(0.3)}), x)), numbers(kFloatHue)) < 2e-6);
  // One channel has neither saturation nor hue.
  CHECK(same(apply(color_jitter({.saturation = exactly(1.7), .hue = exactly(0.2)}), picture(1)), picture(1)));
}

TEST_CASE("transforms of geometry give torchvision's numbers") {
  const RandomAffineOptions turned{
      .degrees = exactly(30), .scale = exactly(1.3), .shear_x = exactly(10), .shear_y = exactly(5), .fill = 9};
  CHECK(values(apply(random_affine(turned), picture())) == numbers(kNearest));
  CHECK(values(apply(random_affine({.degrees = exactly(60), .scale = exactly(0.6), .fill = 9}), picture())) ==
        numbers(kNearestFar));
  RandomAffineOptions smooth = turned;
  smooth.interpolation = Interpolation::bilinear;
  smooth.fill = 0;
  CHECK(farthest(values(apply(random_affine(smooth), picture())), numbers(kBilinear)) <= 1);
  const RandomAffineOptions other{.degrees = exactly(-70),
                                  .scale = exactly(0.8),
                                  .shear_y = exactly(-20),
                                  .interpolation = Interpolation::bilinear};
  CHECK(farthest(values(apply(random_affine(other), apply(to_float(), picture()))), numbers(kFloatBilinear)) < 3e-6);
  CHECK(farthest(values(apply(random_rotation({.degrees = exactly(20), .interpolation = Interpolation::bilinear}),
                              picture())),
                 numbers(kRotation)) <= 1);
  const std::pair<PaddingMode, const std::vector<int>*> modes[] = {
      {PaddingMode::edge, &kEdge}, {PaddingMode::reflect, &kReflect}, {PaddingMode::symmetric, &kSymmetric}};
  for (const auto& [mode, want] : modes)
    CHECK(values(apply(random_crop({.size = {10, 9}, .padding = {3, 2}, .mode = mode}), picture(1))) == numbers(*want));
}

TEST_CASE("a rotation by quarter turns moves pixels, and a bilinear border is interpolated with the fill") {
  // Square, so that pixels meet pixels.
  Tensor x = empty({1, 3, 3}, cpu);
  for (int i = 0; i < 9; ++i) x.mutable_data<float>()[i] = static_cast<float>(i + 1);
  for (const Interpolation how : {Interpolation::nearest, Interpolation::bilinear}) {
    const auto turned = values(apply(random_rotation({.degrees = exactly(90), .interpolation = how}), x));
    CHECK(farthest(turned, {3, 6, 9, 2, 5, 8, 1, 4, 7}) < 1e-5);
  }
  // Scaled by a half about the center, each result pixel is two image pixels apart; outside lies the fill.
  const auto small = values(apply(random_affine({.scale = exactly(0.5), .fill = 7}), x));
  CHECK(small == std::vector<double>{7, 7, 7, 7, 5, 7, 7, 7, 7});
  const auto half = values(
      apply(random_affine({.scale = exactly(2. / 3), .interpolation = Interpolation::bilinear, .fill = 100}), x));
  // The corner sees (-0.5, -0.5): a quarter of pixel 1 and three of the fill.
  CHECK(half[0] == doctest::Approx(0.25 * 1 + 0.75 * 100));
  CHECK(half[4] == doctest::Approx(5));
}

TEST_CASE("a random crop takes each window of the padded image about as often, and draws move by whole pixels") {
  Tensor x = empty({1, 2, 3}, cpu, DType::u8);
  for (int i = 0; i < 6; ++i) x.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i + 1);
  const Transform crop = random_crop({.padding = {1, 2}, .fill = 50});
  std::map<std::vector<double>, int> seen;
  Generator rng(5);
  constexpr int kDraws = 3000;
  for (int i = 0; i < kDraws; ++i) ++seen[values(crop({x}, rng)[0])];
  // 3 rows by 5 columns of windows, the outermost four of which hold the fill and one corner.
  CHECK(seen.size() == 15);
  for (const auto& [window, count] : seen) CHECK(std::abs(count - kDraws / 15) < 5 * std::sqrt(kDraws / 15.));
  CHECK(seen.contains({50, 50, 50, 50, 50, 1}));
  CHECK(seen.contains({1, 2, 3, 4, 5, 6}));
  CHECK(seen.contains({6, 50, 50, 50, 50, 50}));
  // Moves of an affine map: at most half of the height, a third of the width.
  seen.clear();
  const Transform move = random_affine({.translate = {0.5, 0.34}, .fill = 50});
  for (int i = 0; i < 500; ++i) ++seen[values(move({x}, rng)[0])];
  CHECK(seen.size() == 9);
  CHECK(seen.contains({50, 50, 50, 50, 1, 2}));
  CHECK(seen.contains({2, 3, 50, 5, 6, 50}));
}

TEST_CASE("flips mirror with their probability, and cutout fills a square around each pixel") {
  const Tensor x = picture();
  CHECK(same(apply(random_horizontal_flip(1), x), flip(x, {2})));
  CHECK(same(apply(random_vertical_flip(1), x), flip(x, {1})));
  CHECK(same(apply(random_horizontal_flip(1), apply(to_float(), x)), flip(apply(to_float(), x), {2})));
  CHECK(same(apply(random_horizontal_flip(0), x), x));
  const Tensor wide = reshape(arange(2 * 3 * 21, cpu, DType::u8), {2, 3, 21});
  CHECK(same(apply(random_horizontal_flip(1), wide), flip(wide, {2})));
  Generator rng(2);
  int flipped = 0;
  for (int i = 0; i < 1000; ++i) flipped += !same(random_vertical_flip(0.3)({x}, rng)[0], x);
  CHECK(std::abs(flipped - 300) < 5 * std::sqrt(210.));
  // Squares of 3 around each of the 20 pixels, cut off at the border.
  std::set<std::vector<double>> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(values(cutout(3, 200)({zeros({2, 4, 5}, cpu, DType::u8)}, rng)[0]));
  CHECK(seen.size() == 20);
  for (const auto& v : seen) {
    const auto filled = std::count(v.begin(), v.end(), 200.);
    CHECK((filled == 8 || filled == 12 || filled == 18));  // in two channels: corners, sides, inside
    CHECK(filled + std::count(v.begin(), v.end(), 0.) == 40);
    CHECK(std::equal(v.begin(), v.begin() + 20, v.begin() + 20));
  }
  CHECK(values(apply(cutout(9), ones({1, 2, 2}, cpu))) == std::vector<double>(4, 0));
}

TEST_CASE("to_float, normalize and one_hot have the bits of image_dataset and their formulas") {
  const Tensor images = unsqueeze(picture(), 0), labels = tensor<std::uint8_t>({7}, cpu);
  const std::vector<Normalization> channels{{0.1f, 0.5f}, {0.2f, 0.3f}, {0.7f, 2.f}};
  Generator rng(1);
  CHECK(same(apply(normalize(channels), picture()), image_dataset(images, labels, channels)->get(0, rng)[0]));
  CHECK(same(apply(to_float(), picture()), image_dataset(images, labels)->get(0, rng)[0]));
  CHECK(same(apply(compose({to_float(), normalize(channels)}), picture()), apply(normalize(channels), picture())));
  CHECK(same(apply(compose({}), picture()), picture()));
  for (const DType dtype : {DType::u8, DType::i32, DType::i64}) {
    const Sample s = one_hot(4)({picture(), full({}, 2, cpu, dtype)}, rng);
    CHECK(values(s[1]) == std::vector<double>{0, 0, 1, 0});
    CHECK(s[1].dtype() == DType::f32);
  }
}

TEST_CASE("the number of a transform's draws depends neither on pixels nor on what it draws") {
  const std::pair<Transform, std::uint64_t> all[] = {
      {random_crop({.padding = {1, 1}}), 2},
      {random_crop({}), 2},
      {random_horizontal_flip(0), 1},
      {random_horizontal_flip(), 1},
      {random_vertical_flip(1), 1},
      {random_affine({}), 6},
      {random_affine({.degrees = 30, .translate = {0.1, 0.2}, .scale = 0.5, .shear_x = 3, .shear_y = 4}), 6},
      {random_rotation({.degrees = 30}), 6},
      {cutout(2), 2},
      {color_jitter({}), 5},
      {color_jitter({.brightness = 0.5, .contrast = 0.5, .saturation = 0.5, .hue = 0.5}), 5},
      {normalize({{0.f, 1.f}}), 0},
      {to_float(), 0},
  };
  for (const auto& [t, draws] : all) {
    for (const Tensor& x : {picture(), zeros({1, 2, 2}, cpu), full({3, 7, 7}, 255, cpu, DType::u8)}) {
      Generator rng(3);
      (void)t({x}, rng);
      CHECK(rng.state().offset == draws);
    }
  }
}

TEST_CASE("color jitter draws its factors in their ranges and changes the order of its four steps") {
  // Brightness and contrast in two orders give two images.
  const Transform two = color_jitter({.brightness = exactly(0.5), .contrast = exactly(3)});
  std::set<std::vector<double>> seen;
  Generator rng(1);
  for (int i = 0; i < 50; ++i) seen.insert(values(two({picture()}, rng)[0]));
  CHECK(seen.size() == 2);
  const Transform bright = color_jitter({.brightness = 0.25});
  double least = 2, most = 0;
  for (int i = 0; i < 500; ++i) {
    const double f = values(bright({full({1, 1, 1}, 0.5, cpu)}, rng)[0])[0] / 0.5;
    least = std::min(least, f), most = std::max(most, f);
  }
  CHECK((least >= 0.75 && least < 0.77 && most > 1.23 && most <= 1.25));
  // Below 0 there is no factor: about two of three draws of brightness 2 lie above 1 ... and none below 0.
  for (int i = 0; i < 100; ++i)
    CHECK(values(color_jitter({.brightness = 2})({full({1, 1, 1}, 0.5, cpu)}, rng)[0])[0] >= 0);
}

TEST_CASE("a dataset of transformed images has the bits of its samples, with any number of workers") {
  constexpr std::int64_t kImages = 37;
  Tensor images = empty({kImages, 3, 9, 11}, cpu, DType::u8), labels = empty({kImages}, cpu, DType::u8),
         wide = empty({kImages}, cpu, DType::i64);
  for (std::int64_t i = 0; i < images.numel(); ++i)
    images.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 2654435761 >> 13);
  for (std::int64_t i = 0; i < kImages; ++i) {
    labels.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % 10);
    wide.mutable_data<std::int64_t>()[i] = i % 10;
  }
  const Transform mine([](Sample s, Generator& rng) {
    s[0] = s[0] * rng.uniform();
    return s;
  });
  const std::vector<Transform> lists[] = {
      {},
      {normalize({{0.5f, 0.25f}})},
      {random_crop({.padding = {2, 3}}), random_horizontal_flip(), normalize({{0.5f, 0.25f}})},
      {random_crop({.size = {7, 5}, .padding = {2, 3}, .mode = PaddingMode::reflect}), one_hot(10),
       color_jitter({.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}), to_float(),
       random_affine({.degrees = 20, .interpolation = Interpolation::bilinear}), cutout(3), random_vertical_flip(),
       normalize({{0.1f, 1.f}, {0.2f, 2.f}, {0.3f, 3.f}})},
      {compose({random_horizontal_flip(), to_float()}), mine, one_hot(10)},
  };
  for (const std::vector<Transform>& list : lists) {
    CAPTURE(list.size());
    const DatasetRef rows = image_dataset(images, labels, list),
                     samples = transform(tensor_dataset({images, wide}), compose(list));
    CHECK(rows->size() == kImages);
    for (const int workers : {0, 1, 3}) {
      const DataLoaderOptions o{.batch_size = 8, .shuffle = true, .num_workers = workers, .generator = Generator(4)};
      DataLoader a(rows, o), b(samples, o);
      for (int epoch = 0; epoch < 2; ++epoch) {
        auto other = b.begin();
        for (const Batch& batch : a) {
          REQUIRE(batch.fields.size() == 2);
          for (std::size_t f = 0; f < 2; ++f) CHECK(same(batch[f], (*other)[f]));
          ++other;
        }
      }
    }
    Generator one(9), two(9);
    for (std::size_t f = 0; f < 2; ++f) CHECK(same(rows->get(5, one)[f], samples->get(5, two)[f]));
  }
}

TEST_CASE("a batch of transformed images allocates nothing in the steady state") {
  if (!levin::test::counts_allocations()) return levin::test::skip_allocations();
  const DatasetRef images = image_dataset(
      zeros({240, 3, 9, 11}, cpu, DType::u8), zeros({240}, cpu, DType::u8),
      {random_crop({.padding = {2, 3}}), random_horizontal_flip(), color_jitter({.brightness = 0.4, .hue = 0.1}),
       normalize({{0.5f, 0.25f}}), random_affine({.degrees = 20}), cutout(3), one_hot(4)});
  DataLoader loader(images, {.batch_size = 4, .shuffle = true, .generator = Generator(1)});
  std::int64_t before = 0, n = 0;
  for (const Batch& b : loader) {
    if (++n == 30) before = levin::test::allocations();
    if (n == 60) CHECK(levin::test::allocations() - before == 0);
    REQUIRE(b.size() == 4);
  }
  CHECK(n == 60);
}

TEST_CASE("transforms refuse options, samples and datasets that they cannot take, by name") {
  Generator rng(1);
  const Tensor x = picture();
  CHECK_THROWS_WITH_AS(random_crop({.size = {3, 0}}), doctest::Contains("random_crop: size is {3, 0}"), ConfigError);
  CHECK_THROWS_WITH_AS(random_crop({.padding = {-1, 0}}), doctest::Contains("random_crop: padding is -1"), ConfigError);
  CHECK_THROWS_WITH_AS(random_crop({.fill = NAN}), doctest::Contains("random_crop: fill is"), ConfigError);
  CHECK_THROWS_WITH_AS(random_horizontal_flip(1.5), doctest::Contains("random_horizontal_flip: p is 1.5"), ConfigError);
  CHECK_THROWS_WITH_AS(random_affine({.scale = 1}), doctest::Contains("random_affine: scale is 0 to 2"), ConfigError);
  CHECK_THROWS_WITH_AS(random_affine({.shear_x = 90}), doctest::Contains("random_affine: shear_x"), ConfigError);
  CHECK_THROWS_WITH_AS(random_affine({.degrees = {3, 2}}), doctest::Contains("degrees is 3 to 2"), ConfigError);
  CHECK_THROWS_WITH_AS(random_affine({.translate = {0, 1.5}}), doctest::Contains("translate is 1.5"), ConfigError);
  CHECK_THROWS_WITH_AS(random_rotation({.degrees = NAN}), doctest::Contains("random_rotation: degrees"), ConfigError);
  CHECK_THROWS_WITH_AS(cutout(0), doctest::Contains("cutout: size is 0"), ConfigError);
  CHECK_THROWS_WITH_AS(color_jitter({.hue = 0.6}), doctest::Contains("color_jitter: hue is -0.6 to 0.6"), ConfigError);
  CHECK_THROWS_WITH_AS(color_jitter({.contrast = {2, 1}}), doctest::Contains("color_jitter: contrast is 2 to 1"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(normalize({}), doctest::Contains("normalize: no channels"), ConfigError);
  CHECK_THROWS_WITH_AS(normalize({{0.f, 0.f}}), doctest::Contains("normalize: std is 0"), ConfigError);
  CHECK_THROWS_WITH_AS(one_hot(0), doctest::Contains("one_hot: classes is 0"), ConfigError);
  CHECK_THROWS_AS(Transform(Function<Sample(Sample, Generator&)>()), ConfigError);

  const auto use = [&](const Transform& t, const Sample& s) { (void)t(s, rng); };
  CHECK_THROWS_WITH_AS(use(cutout(2, 0, 3), {x}), doctest::Contains("cutout: field is 3, the sample has 1"),
                       IndexError);
  CHECK_THROWS_WITH_AS(use(cutout(2), {Tensor()}), doctest::Contains("cutout: field 0 is an undefined"), DataError);
  CHECK_THROWS_WITH_AS(use(cutout(2), {x.to(DType::i64)}), doctest::Contains("cutout: field 0 is i64"), DTypeError);
  CHECK_THROWS_WITH_AS(use(cutout(2), {zeros({2, 2}, cpu)}), doctest::Contains("expected an image [C, H, W]"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(use(cutout(2), {zeros({2, 0, 2}, cpu)}), doctest::Contains("with pixels"), ShapeError);
  CHECK_THROWS_WITH_AS(use(cutout(2), {zeros({2, 2, 2}, Device::meta())}), doctest::Contains("is on meta"),
                       DeviceError);
  CHECK_THROWS_WITH_AS(use(random_crop({.size = {5, 5}}), {x}), doctest::Contains("a window of 5 pixels"), ShapeError);
  CHECK_THROWS_WITH_AS(use(random_crop({.padding = {4, 0}, .mode = PaddingMode::reflect}), {x}),
                       doctest::Contains("padding 4 mirrors dimension 1"), ShapeError);
  CHECK_NOTHROW(use(random_crop({.padding = {4, 5}, .mode = PaddingMode::symmetric}), {x}));
  CHECK_THROWS_WITH_AS(use(random_crop({.padding = {4, 6}, .mode = PaddingMode::symmetric}), {x}),
                       doctest::Contains("padding 6 mirrors dimension 2"), ShapeError);
  CHECK_THROWS_WITH_AS(use(color_jitter({}), {zeros({2, 3, 3}, cpu)}), doctest::Contains("expected 1 or 3 channels"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(use(normalize({{0.f, 1.f}, {0.f, 1.f}}), {x}), doctest::Contains("2 channels are normalized"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(use(one_hot(3, 0), {full({}, 3, cpu, DType::i64)}), doctest::Contains("the label is 3"),
                       IndexError);
  CHECK_THROWS_WITH_AS(use(one_hot(3, 0), {full({}, -1, cpu, DType::i32)}), doctest::Contains("the label is -1"),
                       IndexError);
  CHECK_THROWS_AS(use(one_hot(3, 0), {zeros({2}, cpu, DType::i64)}), ShapeError);
  CHECK_THROWS_AS(use(one_hot(3, 0), {zeros({}, cpu)}), DTypeError);

  const Tensor images = zeros({2, 3, 4, 4}, cpu, DType::u8), labels = zeros({2}, cpu, DType::u8);
  CHECK_THROWS_WITH_AS(image_dataset(images, labels, {random_crop({.size = {9, 9}})}), doctest::Contains("random_crop"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(image_dataset(images, labels, {to_float(2)}), doctest::Contains("for field 2"), IndexError);
  CHECK_THROWS_AS(image_dataset(images.to(DType::f32), labels, {to_float()}), DTypeError);
  CHECK_THROWS_AS(image_dataset(zeros({2, 4, 4}, cpu, DType::u8), labels, {to_float()}), ShapeError);
  CHECK_THROWS_AS(image_dataset(images, zeros({3}, cpu, DType::u8), {to_float()}), DataError);
  const DatasetRef small = image_dataset(images, labels, {one_hot(2)});
  CHECK_THROWS_AS((void)small->get(2, rng), IndexError);
  // Labels are known when they are read.
  const DatasetRef bad = image_dataset(images, full({2}, 7, cpu, DType::u8), {one_hot(2)});
  const std::vector<std::int64_t> both{0, 1};
  CHECK_THROWS_WITH_AS((void)bad->gather(both, EpochRandom(rng, 3)), doctest::Contains("loading sample 0 of epoch 3"),
                       IndexError);
}

}  // namespace levin::data
