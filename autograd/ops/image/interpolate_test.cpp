// Interpolation against its definition: a matrix of weights for each dimension, in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/executor/rows_test.h"
#include "kernels/image/resample.cuh"
#include "levin/autograd.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
using Mode = InterpolateMode;

double keys(double x, double a) {
  x = std::abs(x);
  if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * (x * x * x - 5 * x * x + 8 * x - 4) : 0;
}

// Row o: the weights of all inputs in output o.
std::vector<std::vector<double>> weights_of(std::int64_t in, std::int64_t out, double factor,
                                            const InterpolateOptions& o) {
  double step = factor > 0 && !o.recompute_scale_factor ? 1 / factor : double(in) / double(out);
  if (o.align_corners) step = out > 1 ? double(in - 1) / double(out - 1) : 0;
  const double last = double(in - 1);
  std::vector<std::vector<double>> all;
  for (std::int64_t k = 0; k < out; ++k) {
    std::vector<double> w(static_cast<std::size_t>(in), 0.0);
    const auto add = [&](double i, double weight) { w[static_cast<std::size_t>(std::clamp(i, 0.0, last))] += weight; };
    const double at = o.align_corners ? double(k) * step : (double(k) + 0.5) * step - 0.5;
    if (o.mode == Mode::nearest) {
      add(in == out ? double(k) : std::floor(float(k) * float(step)), 1);
    } else if (o.mode == Mode::nearest_exact) {
      add(std::floor((float(k) + 0.5f) * float(step)), 1);
    } else if (o.mode == Mode::area) {
      const std::int64_t begin = k * in / out, end = ((k + 1) * in + out - 1) / out;
      for (std::int64_t i = begin; i < end; ++i) add(double(i), 1 / double(end - begin));
    } else if (o.antialias) {
      double sum = 0;
      for (std::int64_t i = 0; i < in; ++i) {
        const double x = (double(i) + 0.5 - (double(k) + 0.5) * step) / std::max(step, 1.0);
        add(double(i), o.mode == Mode::bicubic ? keys(x, -0.5) : std::max(0.0, 1 - std::abs(x)));
        sum += w[static_cast<std::size_t>(i)];
      }
      for (double& v : w) v /= sum;
    } else if (o.mode == Mode::bicubic) {
      for (double j = std::floor(at) - 1; j <= std::floor(at) + 2; ++j) add(j, keys(at - j, -0.75));
    } else {
      const double s = std::clamp(at, 0.0, last);
      for (std::int64_t i = 0; i < in; ++i) add(double(i), std::max(0.0, 1 - std::abs(s - double(i))));
    }
    all.push_back(w);
  }
  return all;
}

Shape shape_of(const Shape& x, const InterpolateOptions& o) {
  Shape out = x;
  for (int d = 2; d < x.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d - 2);
    const std::int64_t size = o.size.count() == 0
                                  ? std::int64_t(double(x[d]) * o.scale_factor[o.scale_factor.size() == 1 ? 0 : i])
                                  : o.size[o.size.count() == 1 ? 0 : d - 2];
    out = out.with(d, size);
  }
  return out;
}

Tensor reference(const Tensor& x, const InterpolateOptions& o) {
  auto values = x.detach().to_vector<double>();
  Shape shape = x.shape();
  const Shape out = shape_of(shape, o);
  for (int d = 2; d < shape.rank(); ++d) {
    const double factor =
        o.scale_factor.empty() ? 0 : o.scale_factor[o.scale_factor.size() == 1 ? 0 : static_cast<std::size_t>(d - 2)];
    const auto w = weights_of(shape[d], out[d], factor, o);
    std::int64_t outer = 1, inner = 1;
    for (int k = 0; k < d; ++k) outer *= shape[k];
    for (int k = d + 1; k < shape.rank(); ++k) inner *= shape[k];
    std::vector<double> next(static_cast<std::size_t>(outer * out[d] * inner), 0.0);
    for (std::int64_t a = 0; a < outer; ++a)
      for (std::int64_t k = 0; k < out[d]; ++k)
        for (std::int64_t i = 0; i < shape[d]; ++i) {
          const double weight = w[static_cast<std::size_t>(k)][static_cast<std::size_t>(i)];
          if (weight == 0) continue;
          for (std::int64_t b = 0; b < inner; ++b)
            next[static_cast<std::size_t>((a * out[d] + k) * inner + b)] +=
                weight * values[static_cast<std::size_t>((a * shape[d] + i) * inner + b)];
        }
    values = next;
    shape = shape.with(d, out[d]);
  }
  return from_data(values, shape, cpu);
}

struct Sample {
  Shape x;
  InterpolateOptions options;
};
std::vector<Sample> weighted_samples() {
  return {
      {{2, 3, 5}, {.size = 8, .mode = Mode::linear}},
      {{1, 2, 9}, {.size = 4, .mode = Mode::linear, .align_corners = true}},
      {{1, 1, 1}, {.size = 1, .mode = Mode::linear}},
      {{1, 1, 1}, {.size = 3, .mode = Mode::linear, .align_corners = true}},
      {{2, 2, 4, 5}, {.size = {7, 9}, .mode = Mode::bilinear}},
      {{1, 2, 6, 7}, {.size = {3, 10}, .mode = Mode::bilinear}},
      {{1, 2, 6, 7}, {.size = {9, 4}, .mode = Mode::bilinear, .align_corners = true}},
      {{1, 2, 5, 4}, {.scale_factor = {2}, .mode = Mode::bilinear}},
      {{1, 1, 5, 4}, {.scale_factor = {1.7, 0.6}, .mode = Mode::bilinear}},
      {{1, 1, 5, 4}, {.scale_factor = {1.7, 0.6}, .mode = Mode::bilinear, .recompute_scale_factor = true}},
      {{1, 2, 5, 6}, {.size = {5, 6}, .mode = Mode::bilinear}},  // nothing moves
      {{1, 2, 5, 6}, {.size = {8, 6}, .mode = Mode::bilinear}},  // rows alone
      {{1, 2, 5, 6}, {.size = {5, 3}, .mode = Mode::bilinear}},  // columns alone
      {{0, 2, 4, 4}, {.size = 3, .mode = Mode::bilinear}},
      {{2, 0, 4, 4}, {.size = 3, .mode = Mode::bilinear}},
      {{1, 2, 5, 6}, {.size = {9, 11}, .mode = Mode::bicubic}},
      {{1, 1, 9, 8}, {.size = {4, 3}, .mode = Mode::bicubic}},
      {{1, 1, 4, 6}, {.size = {7, 3}, .mode = Mode::bicubic, .align_corners = true}},
      {{1, 1, 2, 3}, {.scale_factor = {2.5}, .mode = Mode::bicubic}},                   // fewer elements than taps
      {{1, 9, 5, 4}, {.size = {9, 7}, .mode = Mode::bilinear, .align_corners = true}},  // eight planes of a thread,
      {{1, 9, 5, 7}, {.size = {9, 5}, .mode = Mode::bicubic, .align_corners = true}},   // with weights of 0 and without
      {{1, 2, 11, 8}, {.size = {4, 3}, .mode = Mode::bilinear, .antialias = true}},
      {{1, 2, 5, 4}, {.size = {7, 9}, .mode = Mode::bilinear, .antialias = true}},
      {{1, 1, 9, 12}, {.size = {4, 2}, .mode = Mode::bicubic, .antialias = true}},
      {{1, 1, 6, 5}, {.scale_factor = {0.7}, .mode = Mode::bicubic, .antialias = true}},
      {{1, 1, 6, 5}, {.size = {4, 7}, .mode = Mode::bicubic, .align_corners = true, .antialias = true}},
      {{2, 2, 3, 4, 3}, {.size = {5, 6, 4}, .mode = Mode::trilinear}},
      {{1, 1, 4, 5, 6}, {.size = {2, 5, 3}, .mode = Mode::trilinear, .align_corners = true}},
      {{1, 2, 7}, {.size = 3, .mode = Mode::area}},
      {{1, 2, 7, 6}, {.size = {3, 8}, .mode = Mode::area}},
      {{1, 1, 4, 5, 6}, {.size = {2, 3, 4}, .mode = Mode::area}},
  };
}
std::vector<Sample> nearest_samples() {
  std::vector<Sample> all;
  for (const Mode mode : {Mode::nearest, Mode::nearest_exact}) {
    all.push_back({{1, 1, 1}, {.size = 1, .mode = mode}});
    all.push_back({{2, 3, 5}, {.size = 8, .mode = mode}});
    all.push_back({{1, 2, 9}, {.scale_factor = {0.4}, .mode = mode}});
    all.push_back({{2, 2, 4, 5}, {.scale_factor = {2}, .mode = mode}});
    all.push_back({{1, 2, 6, 7}, {.size = {3, 10}, .mode = mode}});
    all.push_back({{1, 2, 3, 4}, {.size = {3, 4}, .mode = mode}});
    all.push_back({{0, 2, 4, 4}, {.size = 3, .mode = mode}});
    all.push_back({{1, 2, 3, 4, 5}, {.size = {5, 3, 10}, .mode = mode}});
  }
  return all;
}
void add(OpCase& c, const std::vector<Sample>& samples) {
  for (const Sample& s : samples) {
    c.samples.push_back({.inputs = {real(s.x)},
                         .call = [o = s.options](const Tensors& in) { return Tensors{interpolate(in[0], o)}; },
                         .reference = [o = s.options](const Tensors& in) { return Tensors{reference(in[0], o)}; }});
  }
}

}  // namespace

LEVIN_OP_CASE(interpolate) {
  OpCase c{.ops = {"interpolate", "interpolate_backward"}, .dtypes = kFloatDTypes, .sums = 64};
  add(c, weighted_samples());
  const auto x = [] { return zeros({1, 2, 4, 5}, cpu); };
  const auto refused = [&](const char* what, const Shape& shape, const InterpolateOptions& o, const auto& is,
                           const char* message) {
    c.errors.push_back({what, [=] { (void)interpolate(zeros(shape, cpu), o); }, is, message});
  };
  const Shape image = x().shape();
  refused("rank", {4, 5}, {.size = 3}, throws<ShapeError>, "interpolate: x has shape [4, 5], expected [N, C, L]");
  refused("rank of the mode", image, {.size = 3, .mode = Mode::linear}, throws<ShapeError>,
          "interpolate: x has shape [1, 2, 4, 5] of rank 4, expected rank 3");
  refused("rank of bicubic", {1, 2, 4}, {.size = 3, .mode = Mode::bicubic}, throws<ShapeError>, "expected rank 4");
  refused("empty", {1, 2, 0, 5}, {.size = 3}, throws<ShapeError>,
          "interpolate: dimension 2 of x [1, 2, 0, 5] is 0, expected 1 to 2^31 - 1");
  refused("no size", image, {}, throws<ConfigError>, "interpolate: neither size nor scale_factor is given");
  refused("two sizes", image, {.size = 3, .scale_factor = {2}}, throws<ConfigError>,
          "interpolate: both size and scale_factor are given");
  refused("count", image, {.size = {3, 4, 5}}, throws<ShapeError>, "interpolate: size has 3 numbers, expected 1 or 2");
  refused("count of factors", image, {.scale_factor = {1, 2, 3}}, throws<ShapeError>,
          "interpolate: scale_factor has 3 numbers, expected 1 or 2");
  refused("size 0", image, {.size = {3, 0}}, throws<ShapeError>, "interpolate: the size is 0 along dimension 3");
  refused("small factor", image, {.scale_factor = {0.1}}, throws<ShapeError>,
          "interpolate: the size is 0 along dimension 2");
  refused("large factor", image, {.scale_factor = {1e300}}, throws<ShapeError>,
          "along dimension 2, expected 1 to 2^31");
  refused("factor", image, {.scale_factor = {2, -1}}, throws<ConfigError>, "interpolate: scale_factor is -1");
  refused("NaN", image, {.scale_factor = {NAN}}, throws<ConfigError>, "interpolate: scale_factor is");
  refused("align_corners", image, {.size = 3, .align_corners = true}, throws<ConfigError>,
          "interpolate: align_corners is true, expected false for nearest");
  refused("align_corners of area", image, {.size = 3, .mode = Mode::area, .align_corners = true}, throws<ConfigError>,
          "interpolate: align_corners is true");
  refused("antialias", image, {.size = 3, .antialias = true}, throws<ConfigError>, "interpolate: antialias is true");
  refused("recompute", image, {.size = 3, .recompute_scale_factor = true}, throws<ConfigError>,
          "interpolate: recompute_scale_factor is true");
  refused("elements", {1, 2, 4, 5}, {.size = {1 << 30, 1 << 30}}, throws<ShapeError>, "2^48 elements");
  return c;
}

LEVIN_OP_CASE(interpolate_nearest) {
  OpCase c{.ops = {"interpolate", "interpolate_backward"}, .dtypes = kAllDTypes, .sums = 8};
  add(c, nearest_samples());
  c.errors.push_back({"integers of a weighted mode",
                      [] {
                        (void)interpolate(zeros({1, 1, 4, 4}, cpu, DType::u8), {.size = 3, .mode = Mode::bilinear});
                      },
                      throws<UnsupportedError>, "interpolate: "});
  return c;
}

TEST_CASE("interpolate has PyTorch's numbers") {
  const auto values = [](const Tensor& t) { return t.to(DType::f64).to_vector<double>(); };
  const auto close = [&](const Tensor& y, const std::vector<double>& want) {
    const auto got = values(y);
    REQUIRE(got.size() == want.size());
    for (std::size_t k = 0; k < want.size(); ++k) CHECK(std::abs(got[k] - want[k]) < 2e-6);
  };
  const Tensor x = reshape(arange(4, cpu, DType::f32), {1, 1, 2, 2});
  close(interpolate(x, {.size = {1, 4}, .mode = Mode::bilinear}), {1.0, 1.25, 1.75, 2.0});
  const Tensor row = reshape(tensor({1.f, 4.f, 2.f, 8.f, 5.f, 7.f}, cpu), {1, 1, 1, 6});
  // torch.nn.functional.interpolate of 2.13, of [[[[1, 4, 2, 8, 5, 7]]]].
  close(interpolate(row, {.size = {1, 9}, .mode = Mode::bilinear}),
        {1, 2.5, 3.66666667, 2.33333333, 5, 7.5, 5.5, 6, 7});
  close(interpolate(row, {.size = {1, 4}, .mode = Mode::bilinear, .align_corners = true}), {1, 2.66666667, 7, 7});
  close(interpolate(row, {.scale_factor = {1, 1.6}, .mode = Mode::bilinear}),
        {1, 2.3125, 3.875, 2.625, 3.875, 7.625, 6.3125, 5.375, 6.625});
  close(interpolate(row, {.size = {1, 8}, .mode = Mode::bicubic}),
        {0.784667969, 3.13867188, 3.21337891, 2.51416016, 7.56787109, 6.25683594, 5.39111328, 7.14355469});
  close(interpolate(row, {.size = {1, 4}, .mode = Mode::bicubic, .antialias = true}),
        {2.08252427, 3.18223583, 6.56355283, 6.21359223});
  close(interpolate(row, {.size = {1, 4}, .mode = Mode::bilinear, .antialias = true}),
        {2.125, 3.33333333, 6.33333333, 6.25});
  close(interpolate(row, {.size = {1, 4}, .mode = Mode::area}), {2.5, 3, 6.5, 6});
  close(interpolate(row, {.size = {1, 10}}), {1, 1, 4, 4, 2, 8, 8, 5, 5, 7});
  close(interpolate(row, {.size = {1, 10}, .mode = Mode::nearest_exact}), {1, 1, 4, 2, 2, 8, 8, 5, 7, 7});
}

// Steps of all sizes, by all executors and at every level of the cpu.
TEST_CASE("interpolate is its definition for random sizes, forward and backward, on a device and at every level") {
  std::mt19937 random(5);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + std::int64_t(random() % std::uint32_t(high - low + 1));
  };
  Generator g(6);
  const std::vector<Device> devices = test::all_devices();
  for (int k = 0; k < 120; ++k) {
    InterpolateOptions o{.mode = std::array{Mode::bilinear, Mode::bicubic, Mode::area, Mode::nearest}[random() % 4]};
    const bool linear = o.mode == Mode::bilinear || o.mode == Mode::bicubic;
    o.antialias = linear && pick(0, 1) == 1;
    o.align_corners = linear && pick(0, 2) == 0;
    // A thread of a device takes eight planes.
    const Shape shape{pick(1, 2), pick(1, k % 4 == 0 ? 11 : 3), pick(1, 40), pick(1, 40)};
    if (pick(0, 1) == 1)
      o.scale_factor = {double(pick(1, 30)) / 10 + 1.0 / double(shape[2]), double(pick(1, 30)) / 10 + 1.0};
    else
      o.size = {pick(1, 60), pick(1, 60)};
    if (o.mode == Mode::nearest && (shape_of(shape, o)[2] == 2 * shape[2] || shape_of(shape, o)[3] == 2 * shape[3] ||
                                    shape_of(shape, o)[2] < 1 || shape_of(shape, o)[3] < 1))
      continue;
    CAPTURE(text(shape));
    CAPTURE(text(shape_of(shape, o)));
    CAPTURE(int(o.mode));
    Tensor x = randn(shape, g, cpu, DType::f64);
    const Tensor want = reference(x, o);
    const Tensor seed = randn(want.shape(), g, cpu, DType::f64);
    for (const Device device : devices) {
      CAPTURE(text(device));
      Tensors in{x.to(device).detach()};
      in[0].requires_grad_();
      const Tensors y{interpolate(in[0], o)};
      CHECK(allclose(y[0].to(cpu), want, 1e-10, 1e-11));
      // <seed, W x> = <W^T seed, x>
      const std::array seeds{seed.to(device)};
      const Tensor gx = grad(y, in, seeds)[0].to(cpu);
      CHECK(std::abs(sum(gx * x).item<double>() - sum(seed * want).item<double>()) < 1e-9 * double(want.numel()));
    }
    if (o.mode == Mode::nearest) continue;
    using kernels::ResampleKind;
    const auto kind = o.mode == Mode::area       ? ResampleKind::area
                      : o.mode == Mode::bilinear ? (o.antialias ? ResampleKind::linear_aa : ResampleKind::linear)
                                                 : (o.antialias ? ResampleKind::cubic_aa : ResampleKind::cubic);
    const auto axis = [&](int d) {
      const std::int64_t in = shape[d], out = want.size(d);
      const double step = o.align_corners          ? (out > 1 ? double(in - 1) / double(out - 1) : 0.0)
                          : o.scale_factor.empty() ? double(in) / double(out)
                                                   : 1 / o.scale_factor[static_cast<std::size_t>(d - 2)];
      return kernels::ResampleAxis{in, out, kind, step, o.align_corners};
    };
    const kernels::cpu::CpuTable<float> h(axis(2), kernels::cpu::Direction::forward),
        w(axis(3), kernels::cpu::Direction::forward);
    const Tensor single = x.to(DType::f32);
    for (const kernels::CpuLevel level : kernels::test::levels()) {
      Tensor y = empty(want.shape(), cpu);
      kernels::cpu::resample_plane<float, float>(kernels::Cpu{level}, single.data<float>(), y.mutable_data<float>(),
                                                 shape[0] * shape[1], h.get(), w.get());
      CHECK(allclose(y.to(DType::f64), want, 1e-5, 1e-5));
    }
  }
}

TEST_CASE(
    "interpolate: a NaN or an infinity reaches the outputs in which it has weight alone, on the cpu and on a device") {
  const std::vector<Device> devices = test::all_devices();
  for (const Sample& s : weighted_samples()) {
    if (s.x.numel() == 0) continue;
    for (const double odd : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      auto values = zeros(s.x, cpu, DType::f64).to_vector<double>();
      values[values.size() / 2] = odd;
      const Tensor x = from_data(values, s.x, cpu);
      const auto want = reference(x, s.options).to_vector<double>();
      for (const Device device : devices) {
        CAPTURE(text(s.x));
        CAPTURE(text(device));
        const auto got = interpolate(x.to(device), s.options).to(cpu).to_vector<double>();
        for (std::size_t k = 0; k < want.size(); ++k) {
          CAPTURE(k);
          CHECK(std::isfinite(want[k]) == std::isfinite(got[k]));
        }
      }
    }
  }
}

TEST_CASE("interpolate rounds 16-bit sums once and keeps the memory format, on the cpu and on a device") {
  Generator g(4);
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices) {
    CAPTURE(text(device));
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const Tensor x = randn({1, 2, 5, 6, 7}, g, cpu).to(dtype).to(device);
      const InterpolateOptions o{.size = {7, 4, 9}, .mode = Mode::trilinear};
      // One rounding to the dtype, and those of f32 before it.
      const double half = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
      CHECK(allclose(interpolate(x, o).to(DType::f64), interpolate(x.to(DType::f64), o), half * 1.001, 2e-6));
    }
    const Tensor x = randn({2, 3, 4, 5}, g, cpu).to(device), last = x.contiguous(MemoryFormat::channels_last);
    const InterpolateOptions o{.size = {7, 9}, .mode = Mode::bicubic};
    CHECK(interpolate(last, o).is_contiguous(MemoryFormat::channels_last));
    CHECK(equal(interpolate(last, o), interpolate(x, o)));
  }
}

}  // namespace levin::testing
