#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

struct Window {
  std::int64_t r0, r1, c0, c1, count;
};
using WindowAt = std::function<Window(std::int64_t i, std::int64_t j)>;

Tensor pooled(const Tensor& x, std::int64_t oh, std::int64_t ow, bool largest, const WindowAt& window) {
  const auto v = x.detach().to_vector<double>();
  std::vector<double> out;
  for (std::int64_t p = 0; p < x.size(0) * x.size(1); ++p) {
    for (std::int64_t i = 0; i < oh; ++i) {
      for (std::int64_t j = 0; j < ow; ++j) {
        const Window w = window(i, j);
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::int64_t r = w.r0; r < w.r1; ++r) {
          for (std::int64_t c = w.c0; c < w.c1; ++c) {
            const double e = v[static_cast<std::size_t>((p * x.size(2) + r) * x.size(3) + c)];
            most = std::max(most, e);
            sum += e;
          }
        }
        out.push_back(largest ? most : sum / double(w.count));
      }
    }
  }
  return from_data(out, {x.size(0), x.size(1), oh, ow}, cpu);
}

WindowAt strided(const Shape& x, const PoolOptions& o) {
  return [x, o](std::int64_t i, std::int64_t j) {
    const auto stride = o.stride.value_or(o.kernel);
    std::int64_t r0 = i * stride[0] - o.padding[0], c0 = j * stride[1] - o.padding[1];
    const std::int64_t r1 = std::min(r0 + o.kernel[0], x[2] + o.padding[0]),
                       c1 = std::min(c0 + o.kernel[1], x[3] + o.padding[1]);
    const std::int64_t with_padding = (r1 - r0) * (c1 - c0);
    Window w{std::max<std::int64_t>(r0, 0), std::min(r1, x[2]), std::max<std::int64_t>(c0, 0), std::min(c1, x[3]), 0};
    w.count = o.count_include_pad ? with_padding : (w.r1 - w.r0) * (w.c1 - w.c0);
    return w;
  };
}
WindowAt adaptive(const Shape& x, std::int64_t oh, std::int64_t ow) {
  return [=](std::int64_t i, std::int64_t j) {
    Window w{i * x[2] / oh, ((i + 1) * x[2] + oh - 1) / oh, j * x[3] / ow, ((j + 1) * x[3] + ow - 1) / ow, 0};
    w.count = (w.r1 - w.r0) * (w.c1 - w.c0);
    return w;
  };
}

struct PoolSample {
  Shape x;
  PoolOptions options;
  std::int64_t oh, ow;
};
const std::vector<PoolSample>& pool_samples() {
  static const std::vector<PoolSample> samples{
      {{1, 1, 1, 1}, {.kernel = {1, 1}}, 1, 1},
      {{1, 2, 4, 4}, {}, 2, 2},
      {{1, 1, 5, 7}, {}, 2, 3},
      {{1, 1, 5, 4}, {.kernel = {3, 2}, .stride = {{2, 1}}, .padding = {1, 1}}, 3, 5},
      {{1, 2, 5, 3}, {.kernel = {2, 2}, .stride = {{2, 2}}, .ceil_mode = true}, 3, 2},
      {{2, 1, 4, 4}, {.kernel = {3, 3}, .stride = {{1, 1}}, .padding = {1, 1}, .count_include_pad = false}, 4, 4},
      {{0, 2, 4, 4}, {}, 2, 2},
      {{3, 5, 28, 30}, {}, 14, 15},
      // Rows of several vectors of windows, and windows that lie far apart.
      {{2, 3, 20, 37}, {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}}, 10, 19},
      {{1, 2, 19, 35}, {.kernel = {3, 5}, .stride = {{1, 1}}, .padding = {1, 2}, .count_include_pad = false}, 19, 35},
      {{1, 1, 9, 50}, {.kernel = {2, 3}, .stride = {{2, 3}}}, 4, 16},
      {{1, 2, 9, 34}, {.kernel = {3, 3}, .stride = {{2, 2}}, .ceil_mode = true}, 4, 17},
      {{1, 1, 2, 2}, {.kernel = {1, 1}, .stride = {{1, 1 << 30}}}, 2, 1},
  };
  return samples;
}
// Of max pooling alone.
const std::vector<PoolSample>& dilated_samples() {
  static const std::vector<PoolSample> samples{
      {{1, 1, 3, 3}, {.stride = {{1, 1}}, .dilation = {2, 2}}, 1, 1},
      {{1, 2, 5, 7}, {.kernel = {2, 3}, .stride = {{1, 2}}, .dilation = {3, 1}}, 2, 3},
      {{2, 1, 7, 6}, {.kernel = {3, 2}, .stride = {{2, 1}}, .padding = {1, 1}, .dilation = {2, 3}}, 3, 5},
      {{1, 1, 6, 8}, {.stride = {{2, 3}}, .padding = {0, 1}, .dilation = {2, 2}, .ceil_mode = true}, 3, 3},
      {{1, 2, 4, 6}, {.kernel = {1, 2}, .dilation = {5, 2}}, 4, 2},
      // Each axis is as long as its dilation: some windows see one element.
      {{1, 1, 3, 4}, {.stride = {{1, 1}}, .padding = {1, 1}, .dilation = {3, 4}}, 2, 2},
      {{0, 2, 4, 4}, {.dilation = {2, 2}}, 1, 1},
      // Rows of several vectors of windows, and windows that lie far apart.
      {{1, 2, 20, 37}, {.kernel = {3, 3}, .stride = {{1, 1}}, .padding = {1, 1}, .dilation = {2, 2}}, 18, 35},
      {{1, 2, 11, 40}, {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}, .dilation = {1, 3}}, 6, 18},
      {{1, 1, 9, 60}, {.kernel = {2, 3}, .stride = {{1, 3}}, .dilation = {4, 2}}, 5, 19},
  };
  return samples;
}

// f(row, col) for the elements of window (i, j) of a plane, in order.
void each_tap(const Shape& x, const PoolOptions& o, std::int64_t i, std::int64_t j,
              const std::function<void(std::int64_t row, std::int64_t col)>& f) {
  const auto stride = o.stride.value_or(o.kernel);
  for (std::int64_t a = 0; a < o.kernel[0]; ++a) {
    for (std::int64_t b = 0; b < o.kernel[1]; ++b) {
      const std::int64_t r = i * stride[0] - o.padding[0] + a * o.dilation[0],
                         c = j * stride[1] - o.padding[1] + b * o.dilation[1];
      if (r >= 0 && r < x[2] && c >= 0 && c < x[3]) f(r, c);
    }
  }
}
// The place in x's plane of the largest element of each window.
std::vector<std::int64_t> places_by_taps(const Tensor& x, const PoolOptions& o, std::int64_t oh, std::int64_t ow) {
  const auto v = x.detach().to(DType::f64).to_vector<double>();
  const std::int64_t pixels = x.size(2) * x.size(3);
  std::vector<std::int64_t> places;
  for (std::int64_t p = 0; p < x.size(0) * x.size(1); ++p) {
    for (std::int64_t i = 0; i < oh; ++i) {
      for (std::int64_t j = 0; j < ow; ++j) {
        std::int64_t best = -1;
        each_tap(x.shape(), o, i, j, [&](std::int64_t row, std::int64_t col) {
          const std::int64_t at = row * x.size(3) + col;
          const auto of = [&](std::int64_t place) { return v[static_cast<std::size_t>(p * pixels + place)]; };
          if (best < 0 || of(at) > of(best) || std::isnan(of(at))) best = at;
        });
        places.push_back(best);
      }
    }
  }
  return places;
}
Tensor taken(const Tensor& x, const std::vector<std::int64_t>& places, std::int64_t oh, std::int64_t ow) {
  const auto v = x.detach().to(DType::f64).to_vector<double>();
  const std::int64_t pixels = x.size(2) * x.size(3), outputs = oh * ow;
  std::vector<double> y;
  for (std::size_t k = 0; k < places.size(); ++k)
    y.push_back(v[static_cast<std::size_t>(std::int64_t(k) / outputs * pixels + places[k])]);
  return from_data(y, {x.size(0), x.size(1), oh, ow}, cpu);
}

}  // namespace

LEVIN_OP_CASE(max_pool2d) {
  OpCase c{.ops = {"max_pool2d", "max_pool2d_backward"}, .dtypes = kFloatDTypes};
  for (const PoolSample& s : pool_samples()) {
    c.samples.push_back(
        {.inputs = {real(s.x)},
         .call = [s](const Tensors& in) { return Tensors{max_pool2d(in[0], s.options)}; },
         .reference =
             [s](const Tensors& in) { return Tensors{pooled(in[0], s.oh, s.ow, true, strided(s.x, s.options))}; }});
  }
  for (const PoolSample& s : dilated_samples()) {
    c.samples.push_back({.inputs = {real(s.x)},
                         .call = [s](const Tensors& in) { return Tensors{max_pool2d(in[0], s.options)}; },
                         .reference =
                             [s](const Tensors& in) {
                               return Tensors{taken(in[0], places_by_taps(in[0], s.options, s.oh, s.ow), s.oh, s.ow)};
                             }});
  }
  c.samples.push_back({.inputs = {real({1, 2, 5, 3})},
                       .call =
                           [](const Tensors& in) {
                             return Tensors{adaptive_max_pool2d(in[0], {3, 2})};
                           },
                       .reference =
                           [](const Tensors& in) {
                             return Tensors{pooled(in[0], 3, 2, true, adaptive({1, 2, 5, 3}, 3, 2))};
                           }});
  c.errors.push_back({"rank",
                      [] {
                        (void)max_pool2d(zeros({3, 3}, cpu), 2);
                      },
                      throws<ShapeError>, "max_pool2d: x has shape [3, 3]"});
  c.errors.push_back({"kernel",
                      [] {
                        (void)max_pool2d(zeros({1, 1, 3, 3}, cpu), 4);
                      },
                      throws<ShapeError>, "max_pool2d: the kernel is 4"});
  c.errors.push_back({"padding",
                      [] {
                        (void)max_pool2d(zeros({1, 1, 3, 3}, cpu), {.padding = {2, 0}});
                      },
                      throws<ShapeError>, "max_pool2d: padding is 2"});
  c.errors.push_back({"empty but for padding",
                      [] {
                        (void)max_pool2d(zeros({1, 1, 0, 4}, cpu), {.padding = {1, 1}});
                      },
                      throws<ShapeError>, "max_pool2d: dimension 2 of x [1, 1, 0, 4] is empty"});
  c.errors.push_back({"stride",
                      [] {
                        (void)max_pool2d(zeros({1, 1, 3, 3}, cpu), {.stride = {{0, 1}}});
                      },
                      throws<ShapeError>, "max_pool2d: stride is 0"});
  const auto refused = [&](const char* what, const Shape& x, const PoolOptions& o, const char* message) {
    c.errors.push_back({what, [=] { (void)max_pool2d(zeros(x, cpu), o); }, throws<ShapeError>, message});
  };
  refused("no dilation", {1, 1, 3, 3}, {.dilation = {1, 0}}, "max_pool2d: dilation is 0, expected 1 to 2^30");
  refused("negative dilation", {1, 1, 3, 3}, {.dilation = {-2, 1}}, "max_pool2d: dilation is -2");
  refused("large dilation", {1, 1, 3, 3}, {.dilation = {1, std::int64_t{1} << 62}}, "max_pool2d: dilation is 46116860");
  refused("dilated kernel", {1, 1, 3, 3}, {.dilation = {3, 1}},
          "max_pool2d: the kernel is 2 along dimension 2, or 4 with dilation 3, x of shape [1, 1, 3, 3] has 3");
  refused("padding of a dilated kernel", {1, 1, 9, 9}, {.kernel = {3, 3}, .padding = {2, 0}, .dilation = {2, 2}},
          "max_pool2d: padding is 2, expected 0 to half the kernel 3");
  refused("a window of padding", {1, 1, 4, 2}, {.padding = {1, 1}, .dilation = {1, 3}},
          "max_pool2d: dimension 3 of x [1, 1, 4, 2] has 2 elements, expected the dilation 3 or more");
  return c;
}

LEVIN_OP_CASE(avg_pool2d) {
  OpCase c{.ops = {"avg_pool2d", "avg_pool2d_backward"}, .dtypes = kFloatDTypes, .sums = 9};
  for (const PoolSample& s : pool_samples()) {
    c.samples.push_back(
        {.inputs = {real(s.x)},
         .call = [s](const Tensors& in) { return Tensors{avg_pool2d(in[0], s.options)}; },
         .reference =
             [s](const Tensors& in) { return Tensors{pooled(in[0], s.oh, s.ow, false, strided(s.x, s.options))}; }});
  }
  for (const auto& [h, w] : {std::pair{3, 2}, {7, 4}}) {
    c.samples.push_back({.inputs = {real({1, 2, 5, 3})},
                         .call =
                             [h = h, w = w](const Tensors& in) {
                               return Tensors{adaptive_avg_pool2d(in[0], {h, w})};
                             },
                         .reference =
                             [h = h, w = w](const Tensors& in) {
                               return Tensors{pooled(in[0], h, w, false, adaptive({1, 2, 5, 3}, h, w))};
                             }});
  }
  c.errors.push_back({"rank",
                      [] {
                        (void)avg_pool2d(zeros({3, 3}, cpu), 2);
                      },
                      throws<ShapeError>, "avg_pool2d: x has shape [3, 3]"});
  c.errors.push_back({"dilation",
                      [] {
                        (void)avg_pool2d(zeros({1, 1, 3, 3}, cpu), {.dilation = {1, 2}});
                      },
                      throws<ConfigError>, "avg_pool2d: dilation is 2, expected 1: only max pools have one"});
  c.errors.push_back({"adaptive",
                      [] {
                        (void)adaptive_avg_pool2d(zeros({1, 1, 0, 3}, cpu), {2, 2});
                      },
                      throws<ShapeError>, "adaptive_avg_pool2d: dimension 2 of x [1, 1, 0, 3] is empty"});
  return c;
}

// Sums of whole planes have an order of their own where the plane is contiguous.
LEVIN_OP_CASE(avg_pool2d_to_one_pixel) {
  OpCase c{
      .ops = {"avg_pool2d", "avg_pool2d_backward"}, .dtypes = kFloatDTypes, .sums = 15, .layout_changes_sums = true};
  for (const Shape& s : {Shape{1, 1, 1, 1}, {1, 2, 5, 3}, {0, 2, 3, 3}, {2, 3, 9, 8}}) {
    c.samples.push_back(
        {.inputs = {real(s)},
         .call =
             [](const Tensors& in) {
               return Tensors{adaptive_avg_pool2d(in[0], {1, 1})};
             },
         .reference = [s](const Tensors& in) { return Tensors{pooled(in[0], 1, 1, false, adaptive(s, 1, 1))}; }});
  }
  c.errors.push_back({"rank",
                      [] {
                        (void)adaptive_avg_pool2d(zeros({3, 3}, cpu), {1, 1});
                      },
                      throws<ShapeError>, "adaptive_avg_pool2d: x has shape [3, 3]"});
  return c;
}

LEVIN_OP_CASE(max_pool2d_gather) {
  // The gather runs when the backward is differentiated.
  OpCase c{.ops = {"max_pool2d_gather", "max_pool2d_backward"}, .dtypes = kFloatDTypes};
  for (const Shape& x : {Shape{1, 1, 1, 1}, Shape{1, 1, 4, 4}, Shape{0, 1, 4, 4}}) {
    c.samples.push_back(
        {.inputs = {real(x), real(x)},
         .call =
             [](const Tensors& in) {
               // d/dg <d max_pool(v) / dv . g, u>: the part of u that flows through the gather.
               const GradMode on(true);
               Tensor v = in[0].detach();
               if (in[0].device().is_meta()) return Tensors{max_pool2d(in[1], {.kernel = {1, 1}})};
               v.requires_grad_();
               const std::int64_t k = v.size(2) > 1 ? 2 : 1;
               const Tensor y = max_pool2d(v, k);
               Tensor g = ones_like(y.detach());
               g.requires_grad_();
               const Tensor gv = grad(std::span(&y, 1), std::span(&v, 1), std::span(&g, 1), {.create_graph = true})[0];
               const Tensor u = in[1].clone();  // grad would take ones for an undefined seed
               const Tensor result =
                   grad(std::span(&gv, 1), std::span(&g, 1), std::span(&u, 1), {.create_graph = true})[0];
               return Tensors{k == 2 ? repeat_interleave(repeat_interleave(result, 2, 2), 2, 3) : result};
             },
         .reference =
             [](const Tensors& in) {
               const auto v = in[0].to_vector<double>(), u = in[1].to_vector<double>();
               const std::int64_t n = in[0].size(2), k = n > 1 ? 2 : 1;
               std::vector<double> out(v.size());
               for (std::int64_t r = 0; r < (in[0].numel() ? n : 0); ++r) {
                 for (std::int64_t c2 = 0; c2 < n; ++c2) {
                   std::int64_t best = (r / k * k) * n + c2 / k * k;
                   for (std::int64_t a = 0; a < k; ++a) {
                     for (std::int64_t b = 0; b < k; ++b) {
                       const std::int64_t at = (r / k * k + a) * n + c2 / k * k + b;
                       if (v[static_cast<std::size_t>(at)] > v[static_cast<std::size_t>(best)]) best = at;
                     }
                   }
                   out[static_cast<std::size_t>(r * n + c2)] = u[static_cast<std::size_t>(best)];
                 }
               }
               return Tensors{from_data(out, in[0].shape(), cpu)};
             },
         .gradcheck = false});
  }
  c.errors.push_back(
      {"rank", [] { (void)max_pool2d(zeros({3}, cpu), 2); }, throws<ShapeError>, "max_pool2d: x has shape [3]"});
  return c;
}

TEST_CASE("averages of many planes are those of each plane, to the bit") {
  Generator generator(5);
  const Tensor x = randn({1, 21, 9, 7}, generator, cpu);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::array<std::int64_t, 2> size : {std::array<std::int64_t, 2>{1, 1}, {4, 3}}) {
      const Tensor all = adaptive_avg_pool2d(x.to(dtype), size);
      Tensors each;
      for (std::int64_t c = 0; c < 21; ++c) each.push_back(adaptive_avg_pool2d(narrow(x.to(dtype), 1, c, 1), size));
      CHECK(equal(all, cat(each, 1)));
    }
  }
}

TEST_CASE("max pooling keeps the first of equal values, and a NaN") {
  Tensor x = tensor({1.0, 1.0, 1.0, 1.0}, cpu);
  Tensor image = reshape(x, {1, 1, 2, 2}).detach();
  image.requires_grad_();
  backward(sum(max_pool2d(image, 2)));
  CHECK(image.grad().to_vector<double>() == std::vector<double>{1, 0, 0, 0});
  const Tensor nan = reshape(tensor({1.0, std::nan(""), 3.0, 2.0}, cpu), {1, 1, 2, 2});
  CHECK(std::isnan(max_pool2d(nan, 2).item()));
}

TEST_CASE("adaptive pooling to rows without columns does no work, however many they are") {
  Tensor x = ones({1, 1, 3, 3}, cpu);
  x.requires_grad_();
  for (Tensor (*f)(const Tensor&, std::array<std::int64_t, 2>) : {&adaptive_avg_pool2d, &adaptive_max_pool2d}) {
    const Tensor y = f(x, {std::int64_t{1} << 40, 0});  // hours of empty rows
    CHECK(y.numel() == 0);
    CHECK(equal(grad(Tensors{sum(y)}, Tensors{x})[0], zeros({1, 1, 3, 3}, cpu)));
  }
}

namespace {

// Few different numbers, so that windows have equals; some of them special. `offset` elements stand before them in
// their memory.
Tensor drawn(const Shape& shape, DType dtype, unsigned seed, bool specials, std::int64_t offset, Device device) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::mt19937 random(seed);
  std::vector<double> v(static_cast<std::size_t>(shape.numel() + offset));
  for (double& e : v) {
    e = double(random() % 9) / 4 - 1;
    if (const unsigned k = random() % 40; specials && k < 4) e = std::array{std::nan(""), kInf, -kInf, -0.0}[k];
  }
  const Tensor line = from_data(v, {shape.numel() + offset}, cpu).to(dtype).to(device);
  return reshape(narrow(line, 0, offset, shape.numel()), Dims(shape.dims()));
}

// Zeros with their signs; one NaN is as good as another.
bool same_numbers(const Tensor& a, const Tensor& b) {
  const auto x = a.to(cpu).to(DType::f64).to_vector<double>(), y = b.to(cpu).to(DType::f64).to_vector<double>();
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](double p, double q) {
    return std::isnan(p) ? std::isnan(q) : p == q && std::signbit(p) == std::signbit(q);
  });
}

}  // namespace

TEST_CASE("dilated max pooling takes what a plain loop takes, and its gradient goes there, special numbers included") {
  for (const PoolSample& s : dilated_samples()) {
    const PoolOptions& o = s.options;
    CAPTURE(&s - dilated_samples().data());
    for (const DType dtype : kFloatDTypes) {
      CAPTURE(text(dtype));
      for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        CAPTURE(int(format));
        for (const bool specials : {false, true}) {
          Tensor x = drawn(s.x, dtype, 3, specials, 0, cpu).contiguous(format);
          const auto places = places_by_taps(x, o, s.oh, s.ow);
          const auto [y, at] = max_pool2d_with_indices(x, o);
          CHECK(same_numbers(y, taken(x, places, s.oh, s.ow)));
          CHECK(same_numbers(max_pool2d(x, o), y));  // which has no places
          CHECK(at.contiguous().to_vector<std::int64_t>() == places);
          x = x.detach();
          x.requires_grad_();
          const Tensor z = max_pool2d(x, o), gz = drawn(z.shape(), dtype, 4, false, 0, cpu);
          std::vector<double> gx(static_cast<std::size_t>(x.numel()));
          const auto g = gz.to(DType::f64).to_vector<double>();
          for (std::size_t k = 0; k < places.size(); ++k)
            gx[std::size_t(std::int64_t(k) / (s.oh * s.ow) * s.x[2] * s.x[3] + places[k])] += g[k];  // exact
          const Tensor got = grad(std::array{z}, std::array{x}, std::array{gz})[0];
          CHECK(equal(got.to(DType::f64).contiguous(), from_data(gx, s.x, cpu)));
        }
      }
    }
  }
}

TEST_CASE("of -inf alone dilated max pooling gives the place of a window's first element, as PyTorch does") {
  // F.max_pool2d(torch.full((1, 1, 3, 4), -math.inf), 2, 1, 1, 2, return_indices=True)[1]
  const PoolOptions o{.stride = {{1, 1}}, .padding = {1, 1}, .dilation = {2, 2}};
  const Tensor x = full({1, 1, 3, 4}, -std::numeric_limits<double>::infinity(), cpu);
  CHECK(max_pool2d_with_indices(x, o).indices.to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{5, 4, 5, 6, 1, 0, 1, 2, 5, 4, 5, 6});
}

TEST_CASE("pooling on a device has the numbers of the cpu: windows of any size, rows of any width, special numbers") {
  DEVICE_OR_SKIP();
  const PoolOptions options[] = {
      {},
      {.ceil_mode = true},
      {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}},
      {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}, .ceil_mode = true, .count_include_pad = false},
      {.kernel = {3, 3}, .stride = {{2, 2}}},
      {.kernel = {3, 3}, .stride = {{1, 1}}, .padding = {1, 1}},
      {.kernel = {2, 3}, .stride = {{3, 1}}, .padding = {1, 0}, .ceil_mode = true},
      // The first has the span, stride and padding of usual windows.
      {.stride = {{2, 2}}, .padding = {1, 1}, .dilation = {2, 2}},
      {.kernel = {2, 3}, .stride = {{1, 2}}, .padding = {1, 1}, .dilation = {2, 2}},
      {.kernel = {3, 2}, .stride = {{2, 1}}, .padding = {1, 1}, .dilation = {1, 3}, .ceil_mode = true},
  };
  // Rows of whole vectors, of other widths, and of one element; rows and columns that no window sees.
  const Shape shapes[] = {{2, 2, 6, 32}, {1, 2, 9, 64}, {1, 3, 7, 31}, {1, 2, 5, 18},
                          {2, 3, 5, 3},  {1, 2, 3, 16}, {2, 2, 5, 8},  {1, 2, 7, 24}};
  for (const Shape& shape : shapes) {
    for (const PoolOptions& o : options) {
      for (const std::int64_t offset : {0, 1}) {
        CAPTURE(text(shape));
        CAPTURE(&o - options);
        for (const DType dtype : kFloatDTypes) {
          CAPTURE(text(dtype));
          for (const bool specials : {false, true}) {
            const Tensor x = drawn(shape, dtype, 1, specials, offset, cpu);
            const Tensor there = drawn(shape, dtype, 1, specials, offset, device);
            const ValuesIndices want = max_pool2d_with_indices(x, o), got = max_pool2d_with_indices(there, o);
            CHECK(same_numbers(got.values, want.values));
            CHECK(same_numbers(got.indices, want.indices));
            for (const Tensor& values : {max_pool2d(x, o), max_pool2d(there, o)})  // which have no places
              CHECK(same_numbers(values, want.values));
            const bool has_mean = o.dilation == std::array<std::int64_t, 2>{1, 1};
            if (has_mean) CHECK(same_numbers(avg_pool2d(there, o), avg_pool2d(x, o)));
            const auto gradient = [&](const Tensor& in, bool largest) {
              Tensor leaf = in.detach();
              leaf.requires_grad_();
              const Tensor y = largest ? max_pool2d(leaf, o) : avg_pool2d(leaf, o);
              const Tensor gy = drawn(y.shape(), dtype, 2, specials, offset, in.device());
              return grad(std::span(&y, 1), std::span(&leaf, 1), std::span(&gy, 1))[0];
            };
            CHECK(same_numbers(gradient(there, true), gradient(x, true)));
            if (has_mean) CHECK(same_numbers(gradient(there, false), gradient(x, false)));
          }
        }
      }
    }
  }
}

}  // namespace levin::testing
