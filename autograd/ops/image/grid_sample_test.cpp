// Sampling at the points of a grid against its definition in plain loops over f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "levin/autograd.h"
#include "tests/device.h"
#include "tests/ops/harness.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
using Mode = GridSampleMode;
using Padding = GridPadding;

// Into the image, by one reflection after another.
double inside(double s, double size, const GridSampleOptions& o) {
  const double low = o.align_corners ? 0 : -0.5, high = o.align_corners ? size - 1 : size - 0.5;
  if (o.padding_mode == Padding::reflection) {
    if (low == high) return 0;
    while (s < low || s > high) s = s < low ? 2 * low - s : 2 * high - s;
  }
  return std::clamp(s, 0.0, size - 1);
}
double keys(double x) {
  constexpr double a = -0.75;
  x = std::abs(x);
  if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * (x * x * x - 5 * x * x + 8 * x - 4) : 0;
}
struct Tap {
  double at, weight;
};
std::vector<Tap> taps_of(double g, std::int64_t length, const GridSampleOptions& o) {
  const double size = double(length);
  double s = o.align_corners ? (g + 1) * (size - 1) / 2 : ((g + 1) * size - 1) / 2;
  const bool moves = o.padding_mode != Padding::zeros;
  std::vector<Tap> taps;
  if (o.mode == Mode::bicubic) {
    for (double k = std::floor(s) - 1; k <= std::floor(s) + 2; ++k)
      taps.push_back({moves ? inside(k, size, o) : k, keys(s - k)});
    return taps;
  }
  if (moves) s = inside(s, size, o);
  if (o.mode == Mode::nearest) return {{std::nearbyint(s), 1}};
  return {{std::floor(s), 1 - (s - std::floor(s))}, {std::floor(s) + 1, s - std::floor(s)}};
}
// Of images [N, C, H, W] and of volumes [N, C, D, H, W], an image being a volume of one slice.
Tensor reference(const Tensor& x, const Tensor& grid, const GridSampleOptions& o) {
  const auto from = x.detach().to_vector<double>(), points = grid.detach().to_vector<double>();
  const bool of_volumes = x.rank() == 5;
  const Shape out = grid.shape().removed(grid.rank() - 1).inserted(1, x.size(1));
  const std::int64_t axes = x.rank() - 2, slices = of_volumes ? x.size(2) : 1, rows = x.size(-2), columns = x.size(-1),
                     count = out.removed(0).removed(0).numel();
  std::vector<double> y;
  for (std::int64_t plane = 0; plane < x.size(0) * x.size(1); ++plane) {
    for (std::int64_t p = 0; p < count; ++p) {
      const auto g = static_cast<std::size_t>(axes * (plane / x.size(1) * count + p));
      double sum = 0;
      for (const Tap& d : of_volumes ? taps_of(points[g + 2], slices, o) : std::vector<Tap>{{0, 1}})
        for (const Tap& r : taps_of(points[g + 1], rows, o))
          for (const Tap& c : taps_of(points[g], columns, o))
            if (d.at >= 0 && r.at >= 0 && c.at >= 0 && d.at < double(slices) && r.at < double(rows) &&
                c.at < double(columns))
              sum += d.weight * r.weight * c.weight *
                     from[static_cast<std::size_t>(((plane * slices + std::int64_t(d.at)) * rows + std::int64_t(r.at)) *
                                                       columns +
                                                   std::int64_t(c.at))];
      y.push_back(sum);
    }
  }
  return from_data(y, out, cpu);
}
std::vector<GridSampleOptions> all_options() {
  std::vector<GridSampleOptions> all;
  for (const Mode mode : {Mode::bilinear, Mode::nearest, Mode::bicubic})
    for (const Padding padding : {Padding::zeros, Padding::border, Padding::reflection})
      for (const bool align_corners : {false, true}) all.push_back({mode, padding, align_corners});
  return all;
}

}  // namespace

LEVIN_OP_CASE(grid_sample) {
  OpCase c{.ops = {"grid_sample", "grid_sample_backward"},
           .dtypes = kFloatDTypes,
           .sums = 100,
           .no_single = "a point has two numbers"};
  const auto add = [&](const Shape& x, const Shape& grid, const GridSampleOptions& o, double reach,
                       bool gradcheck = true) {
    // The value does not move with the grid where the nearest pixel counts.
    c.samples.push_back(
        {.inputs = {real(x), o.mode == Mode::nearest ? constant(grid, -reach, reach) : real(grid, -reach, reach)},
         .call = [=](const Tensors& in) { return Tensors{grid_sample(in[0], in[1], o)}; },
         .reference = [=](const Tensors& in) { return Tensors{reference(in[0], in[1], o)}; },
         .gradcheck = gradcheck});
  };
  for (const GridSampleOptions& o : all_options()) {
    add({2, 3, 4, 5}, {2, 3, 2, 2}, o, 1.3);
    add({1, 1, 5, 3}, {1, 2, 8, 2}, o, 2.5);  // far outside
    if (o.mode == Mode::bicubic) continue;
    add({1, 2, 2, 3, 2}, {1, 1, 2, 1, 3}, o, 1.3);
    add({2, 1, 3, 5, 2}, {2, 2, 2, 3, 3}, o, 2.5, false);
  }
  for (const Padding padding : {Padding::border, Padding::reflection})
    add({1, 2, 4, 5}, {1, 3, 4, 2}, {Mode::bicubic, padding, false}, 8);
  add({1, 2, 9, 7}, {1, 10, 9, 2}, {}, 1.1);  // more than a block of points
  add({1, 1, 6, 6}, {1, 1, 1, 2}, {}, 0.5);
  add({0, 2, 4, 4}, {0, 3, 3, 2}, {}, 1);
  add({2, 0, 4, 4}, {2, 3, 3, 2}, {}, 1);
  add({2, 2, 4, 4}, {2, 0, 3, 2}, {}, 1);
  add({1, 2, 4, 9, 7}, {1, 5, 2, 9, 3}, {}, 1.1, false);
  add({0, 2, 4, 4, 4}, {0, 3, 3, 1, 3}, {}, 1);
  add({2, 0, 4, 4, 4}, {2, 3, 3, 1, 3}, {}, 1);
  add({2, 2, 4, 4, 4}, {2, 3, 0, 1, 3}, {}, 1);
  const auto refused = [&](const char* what, const Shape& x, const Shape& grid, const char* message) {
    c.errors.push_back(
        {what, [=] { (void)grid_sample(zeros(x, cpu), zeros(grid, cpu)); }, throws<ShapeError>, message});
  };
  refused("rank of x", {3, 4, 5}, {1, 2, 2, 2}, "grid_sample: x has shape [3, 4, 5], expected [N, C, H, W] or [N");
  refused("rank of the grid", {1, 3, 4, 5}, {1, 2, 2},
          "grid_sample: grid has shape [1, 2, 2], expected [1, H', W', 2]");
  refused("coordinates", {1, 3, 4, 5}, {1, 2, 2, 3}, "grid_sample: grid has shape [1, 2, 2, 3]");
  refused("batch", {2, 3, 4, 5}, {1, 2, 2, 2}, "expected [2, H', W', 2]");
  refused("empty", {1, 3, 0, 5}, {1, 2, 2, 2}, "grid_sample: x has shape [1, 3, 0, 5], expected planes of 1 to");
  refused("rank of a volume's grid", {1, 3, 4, 5, 2}, {1, 2, 2, 3},
          "grid_sample: grid has shape [1, 2, 2, 3], expected [1, D', H', W', 3]");
  refused("coordinates of a volume", {1, 3, 4, 5, 2}, {1, 2, 2, 2, 2}, "grid_sample: grid has shape [1, 2, 2, 2, 2]");
  refused("an empty volume", {1, 3, 0, 5, 2}, {1, 2, 2, 2, 3}, "expected volumes of 1 to 2^31 - 1 elements");
  c.errors.push_back({"bicubic volume",
                      [] {
                        const GridSampleOptions o{.mode = Mode::bicubic};
                        (void)grid_sample(zeros({1, 1, 2, 2, 2}, cpu), zeros({1, 1, 1, 1, 3}, cpu), o);
                      },
                      throws<ConfigError>, "grid_sample: mode is bicubic and x a volume, [1, 1, 2, 2, 2]"});
  c.errors.push_back({"dtypes",
                      [] {
                        (void)grid_sample(zeros({1, 1, 2, 2}, cpu), zeros({1, 1, 1, 2}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "grid_sample: "});
  return c;
}

TEST_CASE("grid_sample: points that are not finite or far away lie outside or at the border, on all devices") {
  const std::vector<Device> devices = test::all_devices();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = reshape(arange(1, 7, 1, cpu, DType::f32), {1, 1, 2, 3});
  const Tensor grid = reshape(tensor({nan, 0.f, -inf, 0.f, 1e30f, 1e30f, -1e30f, -1e30f, 0.f, nan}, cpu), {1, 1, 5, 2});
  for (const Device device : devices) {
    for (const GridSampleOptions& o : all_options()) {
      CAPTURE(text(device));
      CAPTURE(int(o.mode));
      CAPTURE(int(o.padding_mode));
      Tensors in{x.to(device).detach(), grid.to(device).detach()};
      for (Tensor& t : in) t.requires_grad_();
      const Tensor y = grid_sample(in[0], in[1], o);
      const auto v = y.detach().to(cpu).to_vector<float>();
      if (o.padding_mode == Padding::zeros) CHECK(v == std::vector<float>(5, 0.f));
      if (o.padding_mode == Padding::border && o.mode != Mode::bicubic) {
        CHECK(v[2] == 6);
        CHECK(v[3] == 1);
      }
      for (const float value : v) CHECK(std::isfinite(value));
      for (const Tensor& g : grad(sum(y), in))
        for (const float value : g.to(cpu).to_vector<float>()) CHECK(std::isfinite(value));
    }
  }
}

TEST_CASE("grid_sample: points of volumes that are not finite or far away lie outside or at the border") {
  const std::vector<Device> devices = test::all_devices();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = reshape(arange(1, 13, 1, cpu, DType::f32), {1, 1, 2, 2, 3});
  const Tensor grid =
      reshape(tensor({nan, 0.f, 0.f, 0.f, 0.f, -inf, 1e30f, 1e30f, 1e30f, -1e30f, -1e30f, -1e30f, 0.f, 0.f, nan}, cpu),
              {1, 1, 1, 5, 3});
  for (const Device device : devices) {
    for (const GridSampleOptions& o : all_options()) {
      if (o.mode == Mode::bicubic) continue;
      CAPTURE(text(device));
      CAPTURE(int(o.mode));
      CAPTURE(int(o.padding_mode));
      Tensors in{x.to(device).detach(), grid.to(device).detach()};
      for (Tensor& t : in) t.requires_grad_();
      const Tensor y = grid_sample(in[0], in[1], o);
      const auto v = y.detach().to(cpu).to_vector<float>();
      if (o.padding_mode == Padding::zeros) CHECK(v == std::vector<float>(5, 0.f));
      if (o.padding_mode == Padding::border) {
        CHECK(v[2] == 12);
        CHECK(v[3] == 1);
      }
      for (const float value : v) CHECK(std::isfinite(value));
      for (const Tensor& g : grad(sum(y), in))
        for (const float value : g.to(cpu).to_vector<float>()) CHECK(std::isfinite(value));
    }
  }
}

TEST_CASE("grid_sample of a volume has PyTorch's values and gradients, for f32 too") {
  struct Case {
    GridSampleOptions options;
    std::vector<double> y, gx, ggrid;
  };
  // F.grid_sample(x, grid, mode, padding_mode, align_corners) and its gradients for the seed
  const Case cases[] = {
      {{Mode::bilinear, Padding::zeros, false},
       {0.026598425913039, 0.0079308011716964, 0, 0.066258660321402, 0.28379468795121, 0.00072840583129796, 0,
        -0.14025361592583},
       {0, -0.00975, 0, 0.049875, 0, 0.055125, 0, 0, 0.504,  0.147375,  0.216,  0.077625,
        0, 0.014625, 0, 0.249375, 0, 0.275625, 0, 0, -0.756, -0.082125, -0.324, 0.037125},
       {0.51621275780664, 1.7883156043564, 0.44343734001531, 0.011396987374582, -0.0078902220285571, -0.034190962123747,
        0, 0, 0, 0.2645872580449, -0.070714394789922, 0.30270793917387}},
      {{Mode::bilinear, Padding::zeros, true},
       {0.081836602662445, 0.28915966425223, -0.065398878339611, 0.18389485613035, 0.197810127958, -0.010714437158935,
        0.039899614707577, -0.17872035278555},
       {0, -0.324, 0.108875,  0.112625, 0.028625,  0.063875, 0.133,   0.147,   0.41925,  0.28575,  0.10575,  0.08925,
        0, 0.486,  -0.131625, 0.433125, -0.025875, 0.228375, 0.03325, 0.03675, -0.60775, -0.02725, -0.14725, 0.08225},
       {0.22675954411838, 0.9577180960343, -0.68775398354045, 0.084786477775175, -0.26372107538402, -0.095384787497072,
        0.01387220381548, -0.27711987331358, 0.15835421332205, -0.071121495410718, -0.17852743689664,
        0.33410633293683}},
      {{Mode::bilinear, Padding::border, false},
       {0.029553806570043, 0.40670775239469, -0.46638476504354, 0.11043110053567, 0.3153274310569, 0.037354145194767,
        0.29190564396472, -0.23375602654305},
       {0, -0.5, 0, 0.083125, 0, 0.091875, 0.9,   1.1,   0.56,  0.175625,  0.24,  0.099375,
        0, 0.75, 0, 0.415625, 0, 0.459375, 0.225, 0.275, -0.84, -0.031875, -0.36, 0.106875},
       {0.57356973089627, 1.9870173381738, 0, 0, -0, 0, 0.19817434022115, 0, 0, 0, -0.11785732464987,
        0.50451323195645}},
      {{Mode::bilinear, Padding::border, true},
       {0.081836602662445, 0.40161064479476, -0.46713484528294, 0.18389485613035, 0.197810127958, -0.014881162720743,
        0.28499724791126, -0.17872035278555},
       {0, -0.45, 0.108875,  0.098625, 0.028625,  0.063875, 0.95,   1.05,   0.41925,  0.28575,  0.10575,  0.08925,
        0, 0.675, -0.131625, 0.454125, -0.025875, 0.228375, 0.2375, 0.2625, -0.60775, -0.02725, -0.14725, 0.08225},
       {0.22675954411838, 0.9577180960343, -0.68775398354045, 0, -0.3662792713667, 0, 0.099087170110575, 0, 0,
        -0.071121495410718, -0.17852743689664, 0.33410633293683}},
      {{Mode::bilinear, Padding::reflection, false},
       {0.029553806570043, 0.40670775239469, 0.21075301121182, 0.11043110053567, 0.3153274310569, 0.037354145194767,
        0.025951895851867, -0.23375602654305},
       {0.432,    0.028,   0.288, 0.435125, 0,        0.091875, 0.108,    0.132, 0.632, 0.263625, 0.24,
        0.099375, 0.108,   0.882, 0.072,    0.503625, 0,        0.459375, 0.027, 0.033, -0.822,   -0.0098750000000001,
        -0.36,    0.106875},
       {0.57356973089627, 1.9870173381738, 0, -0, -0, -0, 0.14693157478722, -0.27637119005429, 1.0520012801554, 0,
        -0.11785732464987, 0.50451323195645}},
      {{Mode::bilinear, Padding::reflection, true},
       {0.081836602662445, 0.22194778901817, 0.16416416926227, 0.18389485613035, 0.197810127958, 0.089261329527998,
        0.02213446787611, -0.17872035278555},
       {0.211,     -0.051,   0.475375, 0.522125, 0.028625,  0.063875, 0.124,    0.066,
        0.61775,   0.49725,  0.10575,  0.08925,  0.11575,   0.55425,  -0.033,   0.5355,
        -0.025875, 0.228375, 0.04675,  0.15825,  -0.556375, 0.041375, -0.14725, 0.08225},
       {0.22675954411838, 0.9577180960343, -0.68775398354045, 0.1237668399215, -0.37704831055335, -0.33346289008904,
        0.056461464259771, -0.33696798717142, 0.4367312810002, -0.071121495410718, -0.17852743689664,
        0.33410633293683}},
      {{Mode::nearest, Padding::zeros, false},
       {-0.20988200891993, 0, 0, -0.28578065937117, 0.49682055056638, 0, 0, -0.20222191142457},
       {0, 0, 0, 0, 0, 0.25, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1.25, 0, 0, -1.5, 0, 0, 0},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{Mode::nearest, Padding::zeros, true},
       {-0.20988200891993, 0.40670775239469, 0, 0.35573667639542, 0.49682055056638, 0.037354145194767, 0,
        -0.48499893396034},
       {0, -0.5, 0, 0.25, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0.75, 0, 1.25, 0, 0, 0, 0, -1.5, 0, 0, 0},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{Mode::nearest, Padding::border, false},
       {-0.20988200891993, 0.40670775239469, -0.45288332073435, -0.28578065937117, 0.49682055056638, 0.037354145194767,
        0.41625677292702, -0.20222191142457},
       {0, -0.5, 0, 0, 0, 0.25, 0, 2, 1, 0, 0, 0, 0, 0.75, 0, 0, 0, 1.25, 0, 0.5, -1.5, 0, 0, 0},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{Mode::nearest, Padding::border, true},
       {-0.20988200891993, 0.40670775239469, -0.45288332073435, 0.35573667639542, 0.49682055056638, 0.037354145194767,
        0.41625677292702, -0.48499893396034},
       {0, -0.5, 0, 0.25, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0.75, 0, 1.25, 0, 0, 0, 0.5, -1.5, 0, 0, 0},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{Mode::nearest, Padding::reflection, false},
       {-0.20988200891993, 0.40670775239469, 0.40670775239469, -0.28578065937117, 0.49682055056638, 0.037354145194767,
        0.037354145194767, -0.20222191142457},
       {0, 1.5, 0, 0, 0, 0.25, 0, 0, 1, 0, 0, 0, 0, 1.25, 0, 0, 0, 1.25, 0, 0, -1.5, 0, 0, 0},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{Mode::nearest, Padding::reflection, true},
       {-0.20988200891993, 0.40670775239469, 0.35573667639542, 0.35573667639542, 0.49682055056638, 0.037354145194767,
        -0.48499893396034, -0.48499893396034},
       {0, -0.5, 0, 2.25, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0.75, 0, 1.75, 0, 0, 0, 0, -1.5, 0, 0, 0},
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
  };
  std::vector<double> wave;
  for (int i = 0; i < 24; ++i) wave.push_back(0.5 * std::sin(0.7 * i + 0.25));
  const std::vector<double> points{-0.3, 0.2, 0.6, 1.2, -0.9, -1.4, 0.05, -1.6, 2.3, 0.9, 0.35, -0.2},
      seed{1, -0.5, 2, 0.25, -1.5, 0.75, 0.5, 1.25};
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double most = dtype == DType::f64 ? 1e-12 : 1e-5;
    for (const Case& c : cases) {
      CAPTURE(int(c.options.mode));
      CAPTURE(int(c.options.padding_mode));
      CAPTURE(c.options.align_corners);
      Tensor x = from_data(wave, Shape{1, 2, 2, 3, 2}, cpu).to(dtype).detach(),
             grid = from_data(points, Shape{1, 1, 2, 2, 3}, cpu).to(dtype).detach();
      x.requires_grad_();
      grid.requires_grad_();
      const Tensor y = grid_sample(x, grid, c.options);
      const Tensors g = levin::grad(Tensors{y}, Tensors{x, grid}, Tensors{from_data(seed, y.shape(), cpu).to(dtype)});
      const std::pair<Tensor, const std::vector<double>*> all[] = {{y, &c.y}, {g[0], &c.gx}, {g[1], &c.ggrid}};
      for (const auto& [t, want] : all) {
        const auto got = t.detach().to(DType::f64).to_vector<double>();
        REQUIRE(got.size() == want->size());
        std::int64_t wrong = 0;
        for (std::size_t i = 0; i < got.size(); ++i) wrong += !(std::abs(got[i] - (*want)[i]) < most);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("grid_sample of f32 has the values and gradients of f64 at points inside, at the edges and far outside") {
  // 16 columns and 9 rows: f32 computes the coordinates of these points exactly, so both types see the same pixels.
  std::vector<double> points;
  for (const double column : {-1e6, -1.5, -1.125, -1.0, -0.9375, -0.25, 0.0, 0.34375, 0.9375, 1.0, 1.0625, 3.0, 1e6})
    for (const double row : {-9.0, -1.0, -0.875, 0.0, 0.40625, 0.75, 1.0, 1.125, 40.0})
      points.insert(points.end(), {column, row});
  const auto count = std::int64_t(points.size() / 2);
  for (const Padding padding : {Padding::zeros, Padding::border}) {
    for (const bool corners : {false, true}) {
      const std::int64_t columns = corners ? 17 : 16, rows = corners ? 9 : 8;
      const GridSampleOptions o{.padding_mode = padding, .align_corners = corners};
      std::vector<std::vector<double>> found[2];
      for (const DType dtype : {DType::f64, DType::f32}) {
        Tensor x = reshape(sin(arange(2 * rows * columns, cpu).to(DType::f64) * 1.7), {1, 2, rows, columns}).to(dtype);
        Tensor grid = from_data(points, Shape{1, count, 1, 2}, cpu).to(dtype);
        x.requires_grad_(), grid.requires_grad_();
        const Tensor y = grid_sample(x, grid, o);
        backward(sum(y * cos(arange(y.numel(), cpu).to(dtype)).reshape(Dims(y.shape().dims()))));
        auto& all = found[dtype == DType::f32 ? 1 : 0];
        for (const Tensor& t : {y.detach(), x.grad(), grid.grad()}) all.push_back(t.to(DType::f64).to_vector<double>());
      }
      for (std::size_t k = 0; k < 3; ++k) {
        CAPTURE(k);
        std::int64_t wrong = 0;
        for (std::size_t i = 0; i < found[0][k].size(); ++i)
          wrong += !(std::abs(found[0][k][i] - found[1][k][i]) <= 1e-5 * (1 + std::abs(found[0][k][i])));
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("grid_sample's gradients of 1 to 40 channels are those of each channel alone, with any number of threads") {
  const int before = num_threads();
  // Few points, and more than pixels.
  for (const std::int64_t points : {5, 700}) {
    for (const bool volumes : {false, true}) {
      Generator gen(3);
      const Shape place = volumes ? Shape{1, 1, points} : Shape{1, points};
      const Shape pixels = volumes ? Shape{5, 6, 7} : Shape{14, 15};
      Shape at = place.inserted(0, 2);
      at = at.inserted(at.rank(), volumes ? 3 : 2);
      const Tensor grid = randn(at, gen, cpu);
      for (const std::int64_t channels : {1, 2, 3, 4, 5, 8, 40}) {
        const Shape in = pixels.inserted(0, channels).inserted(0, 2), out = place.inserted(0, channels).inserted(0, 2);
        const Tensor x = randn(in, gen, cpu), gy = randn(out, gen, cpu);
        const auto gradients = [&](const Tensor& of, const Tensor& g) {
          Tensor image = of.detach(), to = grid.detach();
          image.requires_grad_(), to.requires_grad_();
          return grad(Tensors{sum(grid_sample(image, to) * g)}, Tensors{image, to});
        };
        set_num_threads(1);
        const Tensors one = gradients(x, gy);
        set_num_threads(3);
        const Tensors many = gradients(x, gy);
        set_num_threads(before);
        CHECK(equal(one[0], many[0]));
        CHECK(equal(one[1], many[1]));
        for (std::int64_t c = 0; c < channels; ++c) {
          const Tensor alone = gradients(narrow(x, 1, c, 1), narrow(gy, 1, c, 1))[0];
          CHECK(allclose(narrow(one[0], 1, c, 1), alone, 1e-5, 1e-5));
        }
      }
    }
  }
}

TEST_CASE("grid_sample of an affine grid on a device: the identity gives the image, a half turn its mirror image") {
  Generator g(3);
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices) {
    for (const AlignCorners align : {AlignCorners::no, AlignCorners::yes}) {
      const Tensor x = randn({2, 3, 5, 4}, g, cpu, DType::f64).to(device);
      const GridSampleOptions o{.align_corners = align == AlignCorners::yes};
      const auto turned = [&](double c) {
        const Tensor theta = reshape(tensor({c, 0.0, 0.0, 0.0, c, 0.0, c, 0.0, 0.0, 0.0, c, 0.0}, cpu), {2, 2, 3});
        return grid_sample(x, affine_grid(theta.to(device), x.shape(), align), o);
      };
      CHECK(allclose(turned(1), x, 1e-12, 1e-12));
      CHECK(allclose(turned(-1), flip(x, {2, 3}), 1e-12, 1e-12));
      const Tensor v = randn({1, 2, 3, 5, 4}, g, cpu, DType::f64).to(device);
      const auto turned_volume = [&](double c) {
        const Tensor theta = reshape(tensor({c, 0.0, 0.0, 0.0, 0.0, c, 0.0, 0.0, 0.0, 0.0, c, 0.0}, cpu), {1, 3, 4});
        return grid_sample(v, affine_grid(theta.to(device), v.shape(), align), o);
      };
      CHECK(allclose(turned_volume(1), v, 1e-12, 1e-12));
      CHECK(allclose(turned_volume(-1), flip(v, {2, 3, 4}), 1e-12, 1e-12));
    }
  }
}

TEST_CASE("affine_grid has PyTorch's points and a gradient, and refuses other shapes") {
  Tensor theta = reshape(tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, cpu), {1, 2, 3});
  theta.requires_grad_();
  const auto close = [](const Tensor& t, const std::vector<double>& want) {
    const auto got = t.detach().to_vector<double>();
    REQUIRE(got.size() == want.size());
    for (std::size_t k = 0; k < want.size(); ++k) CHECK(std::abs(got[k] - want[k]) < 1e-12);
  };
  const Tensor grid = affine_grid(theta, {1, 1, 1, 2});
  close(grid, {2.5, 4, 3.5, 8});
  close(affine_grid(theta, {1, 1, 2, 2}, AlignCorners::yes), {0, -3, 2, 5, 4, 7, 6, 15});
  backward(sum(grid * from_data(std::vector<double>{1, 2, 3, 4}, {1, 1, 2, 2}, cpu)));
  close(theta.grad(), {1, 0, 4, 1, 0, 6});
  Tensor solid = reshape(tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, -1.0, 0.5, 0.0, 2.0}, cpu), {1, 3, 4});
  solid.requires_grad_();
  const Tensor volume = affine_grid(solid, {1, 1, 1, 2, 2});
  close(volume, {2.5, 2.5, 2.25, 3.5, 7.5, 1.25, 4.5, 8.5, 2.75, 5.5, 13.5, 1.75});
  close(affine_grid(solid, {1, 1, 2, 1, 2}, AlignCorners::yes), {0, -4, 3, 2, 6, 1, 6, 10, 3, 8, 20, 1});
  backward(sum(volume * reshape(cast(arange(1, 13, 1, cpu), DType::f64), {1, 1, 2, 2, 3})));
  close(solid.grad(), {3, 6, 0, 22, 3, 6, 0, 26, 3, 6, 0, 30});
  CHECK_THROWS_AS((void)affine_grid(theta, {2, 1, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(theta, {1, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(zeros({1, 3, 3}, cpu), {1, 1, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(zeros({1, 3, 4}, cpu), {1, 1, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(zeros({1, 3, 4}, cpu), {2, 1, 2, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(zeros({1, 2, 3}, cpu), {1, 1, 2, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(zeros({1, 2, 3}, cpu, DType::i64), {1, 1, 2, 2}), UnsupportedError);
}

}  // namespace levin::testing
