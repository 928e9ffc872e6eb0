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
Tensor reference(const Tensor& x, const Tensor& grid, const GridSampleOptions& o) {
  const auto from = x.detach().to_vector<double>(), points = grid.detach().to_vector<double>();
  const Shape out{x.size(0), x.size(1), grid.size(1), grid.size(2)};
  const std::int64_t rows = x.size(2), columns = x.size(3), count = grid.size(1) * grid.size(2);
  std::vector<double> y;
  for (std::int64_t plane = 0; plane < x.size(0) * x.size(1); ++plane) {
    for (std::int64_t p = 0; p < count; ++p) {
      const auto g = static_cast<std::size_t>(2 * (plane / x.size(1) * count + p));
      double sum = 0;
      for (const Tap& r : taps_of(points[g + 1], rows, o))
        for (const Tap& c : taps_of(points[g], columns, o))
          if (r.at >= 0 && c.at >= 0 && r.at < double(rows) && c.at < double(columns))
            sum += r.weight * c.weight *
                   from[static_cast<std::size_t>((plane * rows + std::int64_t(r.at)) * columns + std::int64_t(c.at))];
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
  const auto add = [&](const Shape& x, const Shape& grid, const GridSampleOptions& o, double reach) {
    // The value does not move with the grid where the nearest pixel counts.
    c.samples.push_back(
        {.inputs = {real(x), o.mode == Mode::nearest ? constant(grid, -reach, reach) : real(grid, -reach, reach)},
         .call = [=](const Tensors& in) { return Tensors{grid_sample(in[0], in[1], o)}; },
         .reference = [=](const Tensors& in) { return Tensors{reference(in[0], in[1], o)}; }});
  };
  for (const GridSampleOptions& o : all_options()) {
    add({2, 3, 4, 5}, {2, 3, 2, 2}, o, 1.3);
    add({1, 1, 5, 3}, {1, 2, 8, 2}, o, 2.5);  // far outside
  }
  for (const Padding padding : {Padding::border, Padding::reflection})
    add({1, 2, 4, 5}, {1, 3, 4, 2}, {Mode::bicubic, padding, false}, 8);
  add({1, 2, 9, 7}, {1, 10, 9, 2}, {}, 1.1);  // more than a block of points
  add({1, 1, 6, 6}, {1, 1, 1, 2}, {}, 0.5);
  add({0, 2, 4, 4}, {0, 3, 3, 2}, {}, 1);
  add({2, 0, 4, 4}, {2, 3, 3, 2}, {}, 1);
  add({2, 2, 4, 4}, {2, 0, 3, 2}, {}, 1);
  const auto refused = [&](const char* what, const Shape& x, const Shape& grid, const char* message) {
    c.errors.push_back(
        {what, [=] { (void)grid_sample(zeros(x, cpu), zeros(grid, cpu)); }, throws<ShapeError>, message});
  };
  refused("rank of x", {3, 4, 5}, {1, 2, 2, 2}, "grid_sample: x has shape [3, 4, 5], expected [N, C, H, W]");
  refused("rank of the grid", {1, 3, 4, 5}, {1, 2, 2},
          "grid_sample: grid has shape [1, 2, 2], expected [1, H', W', 2]");
  refused("coordinates", {1, 3, 4, 5}, {1, 2, 2, 3}, "grid_sample: grid has shape [1, 2, 2, 3]");
  refused("batch", {2, 3, 4, 5}, {1, 2, 2, 2}, "expected [2, H', W', 2]");
  refused("empty", {1, 3, 0, 5}, {1, 2, 2, 2}, "grid_sample: x has shape [1, 3, 0, 5], expected planes of 1 to");
  c.errors.push_back({"dtypes",
                      [] {
                        (void)grid_sample(zeros({1, 1, 2, 2}, cpu), zeros({1, 1, 1, 2}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "grid_sample: "});
  return c;
}

TEST_CASE("grid_sample: points that are not finite or far away lie outside or at the border, on all devices") {
  std::vector<Device> devices{cpu};
  if (const auto found = test::launching_device()) devices.push_back(*found);
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

TEST_CASE("grid_sample of an affine grid on a device: the identity gives the image, a half turn its mirror image") {
  Generator g(3);
  std::vector<Device> devices{cpu};
  if (const auto found = test::launching_device()) devices.push_back(*found);
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
  CHECK_THROWS_AS((void)affine_grid(theta, {2, 1, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(theta, {1, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(zeros({1, 3, 3}, cpu), {1, 1, 2, 2}), ShapeError);
  CHECK_THROWS_AS((void)affine_grid(zeros({1, 2, 3}, cpu, DType::i64), {1, 1, 2, 2}), UnsupportedError);
}

}  // namespace levin::testing
