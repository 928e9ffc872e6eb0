#include <doctest/doctest.h>

#include <random>

#include "kernels/conv/im2col.cuh"
#include "kernels/executor/rows_test.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

std::int64_t windows_along(int d, std::int64_t size, const WindowOptions& o) {
  const auto i = static_cast<std::size_t>(d);
  return (size + 2 * o.padding[i] - o.dilation[i] * (o.kernel[i] - 1) - 1) / o.stride[i] + 1;
}

// Calls f(index in x, index in the columns) for every matching pair; x [..., H, W] has `planes` planes.
template <class F>
void for_each_pair(std::int64_t planes, std::int64_t height, std::int64_t width, const WindowOptions& o, F&& f) {
  const std::int64_t ph = windows_along(0, height, o), pw = windows_along(1, width, o);
  std::size_t at = 0;
  for (std::int64_t tap = 0; tap < planes * o.kernel[0] * o.kernel[1]; ++tap) {
    const std::int64_t j = tap % o.kernel[1], i = tap / o.kernel[1] % o.kernel[0],
                       plane = tap / (o.kernel[0] * o.kernel[1]);
    for (std::int64_t place = 0; place < ph * pw; ++place, ++at) {
      const std::int64_t r = place / pw * o.stride[0] - o.padding[0] + i * o.dilation[0],
                         c = place % pw * o.stride[1] - o.padding[1] + j * o.dilation[1];
      if (r < 0 || r >= height || c < 0 || c >= width) continue;
      f(static_cast<std::size_t>((plane * height + r) * width + c), at);
    }
  }
}

// The definitions, in plain loops over f64.
Shape columns_shape(const Shape& x, const WindowOptions& o) {
  const int first = x.rank() - 3;
  const std::int64_t rows = x[first] * o.kernel[0] * o.kernel[1],
                     places = windows_along(0, x[first + 1], o) * windows_along(1, x[first + 2], o);
  return first == 0 ? Shape{rows, places} : Shape{x[0], rows, places};
}
Tensor columns_reference(const Tensor& x, const WindowOptions& o) {
  const Shape shape = columns_shape(x.shape(), o);
  const auto from = x.detach().to_vector<double>();
  std::vector<double> to(static_cast<std::size_t>(shape.numel()));
  const std::int64_t height = x.size(-2), width = x.size(-1);
  if (x.numel() > 0) {
    for_each_pair(x.numel() / (height * width), height, width, o,
                  [&](std::size_t pixel, std::size_t at) { to[at] = from[pixel]; });
  }
  return from_data(to, shape, cpu);
}
Tensor image_reference(const Tensor& columns, const Shape& image, const WindowOptions& o) {
  const auto from = columns.detach().to_vector<double>();
  std::vector<double> to(static_cast<std::size_t>(image.numel()));
  const std::int64_t height = image[image.rank() - 2], width = image.back();
  if (image.numel() > 0) {
    for_each_pair(image.numel() / (height * width), height, width, o,
                  [&](std::size_t pixel, std::size_t at) { to[pixel] += from[at]; });
  }
  return from_data(to, image, cpu);
}

// The composite twin: views of a padded image, and one copy.
Tensor by_views(const Tensor& x, const WindowOptions& o) {
  const auto reach = [&](std::size_t i) { return o.dilation[i] * (o.kernel[i] - 1) + 1; };
  Tensor u = pad(x, {o.padding[1], o.padding[1], o.padding[0], o.padding[0]});
  u = unfold(unfold(u, 2, reach(0), o.stride[0]), 3, reach(1), o.stride[1]);  // [N, C, pH, pW, reach, reach]
  u = slice(slice(u, 4, 0, u.size(4), o.dilation[0]), 5, 0, u.size(5), o.dilation[1]);
  const Shape columns = columns_shape(x.shape(), o);
  return reshape(permute(u, {0, 1, 4, 5, 2, 3}), {columns[0], columns[1], columns[2]});
}

struct Sample {
  Shape x;
  WindowOptions options;
};
const std::vector<Sample>& window_samples() {
  static const std::vector<Sample> samples{
      {{1, 1, 1, 1}, {.kernel = {1, 1}}},
      {{2, 2, 3, 4}, {.kernel = {2, 3}}},
      {{2, 4, 3}, {.kernel = {3, 1}, .padding = {1, 0}}},                       // no batch
      {{1, 2, 4, 5}, {.kernel = {4, 5}}},                                       // one window
      {{1, 1, 5, 4}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 2}}},  //
      {{1, 2, 4, 6}, {.kernel = {2, 3}, .stride = {2, 3}}},                     // patches
      {{1, 1, 7, 8}, {.kernel = {2, 3}, .stride = {3, 1}, .padding = {0, 1}, .dilation = {2, 3}}},
      {{1, 1, 6, 9}, {.kernel = {3, 2}, .stride = {2, 4}, .padding = {2, 3}, .dilation = {2, 6}}},  // common divisors
      {{1, 1, 5, 5}, {.kernel = {1, 2}, .stride = {3, 4}}},   // pixels that no window sees
      {{1, 2, 2, 2}, {.kernel = {1, 1}, .padding = {2, 1}}},  // windows that see no pixel
      {{0, 2, 4, 4}, {.kernel = {3, 3}}},
      {{2, 0, 4, 4}, {.kernel = {3, 3}}},
      {{1, 2, 0, 3}, {.kernel = {2, 2}, .padding = {1, 0}}},
      {{2, 3, 17, 13}, {.kernel = {3, 3}, .stride = {1, 2}, .padding = {1, 1}}},
      {{1, 1, 3, 2600}, {.kernel = {2, 5}, .padding = {1, 7}, .dilation = {1, 3}}},  // more than a piece of a row
      {{3, 5, 40, 36}, {.kernel = {5, 5}, .padding = {2, 2}}},
  };
  return samples;
}

Tensor image() { return zeros({1, 2, 5, 5}, cpu); }
constexpr std::int64_t kFar = std::int64_t{1} << 31;

}  // namespace

LEVIN_OP_CASE(im2col) {
  OpCase c{.ops = {"im2col", "col2im"}, .dtypes = kAllDTypes};
  for (const Sample& s : window_samples()) {
    c.samples.push_back(
        {.inputs = {real(s.x)},
         .call = [o = s.options](const Tensors& in) { return Tensors{im2col(in[0], o)}; },
         .reference = [o = s.options](const Tensors& in) { return Tensors{columns_reference(in[0], o)}; }});
  }
  const auto refused = [&](const char* what, const Tensor& x, const WindowOptions& o, const char* message) {
    c.errors.push_back({what, [=] { (void)im2col(x, o); }, throws<ShapeError>, message});
  };
  refused("rank", zeros({3, 3}, cpu), {.kernel = {1, 1}}, "im2col: x has shape [3, 3], expected [N, C, H, W]");
  refused("no kernel", image(), {}, "im2col: kernel is 0, expected 1 to 2^31");
  refused("kernel", image(), {.kernel = {3, 6}}, "im2col: the kernel reaches over 6 pixels along dimension 3");
  refused("kernel without a batch", zeros({2, 5, 5}, cpu), {.kernel = {3, 6}},
          "im2col: the kernel reaches over 6 pixels along dimension 2");
  refused("dilation", image(), {.kernel = {3, 3}, .padding = {1, 1}, .dilation = {4, 1}},
          "im2col: the kernel reaches over 9 pixels along dimension 2, the image of shape [1, 2, 5, 5] has 7");
  refused("no dilation", image(), {.kernel = {3, 3}, .dilation = {1, 0}}, "im2col: dilation is 0");
  refused("stride", image(), {.kernel = {3, 3}, .stride = {0, 1}}, "im2col: stride is 0");
  refused("padding", image(), {.kernel = {3, 3}, .padding = {0, -1}}, "im2col: padding is -1");
  refused("huge kernel", image(), {.kernel = {kFar + 1, 3}}, "im2col: kernel is 2147483649");
  refused("padded image", image(), {.kernel = {3, 3}, .stride = {kFar, kFar}, .padding = {kFar, kFar}},
          "im2col: the padded image is");
  refused("elements", image(), {.kernel = {1 << 19, 1 << 19}, .padding = {(1 << 19) - 8, (1 << 19) - 8}},
          "multiply to more than 2^48 elements");
  return c;
}

LEVIN_OP_CASE(col2im) {
  OpCase c{.ops = {"col2im", "im2col"}, .dtypes = kFloatDTypes, .sums = 25};
  for (const Sample& s : window_samples()) {
    c.samples.push_back(
        {.inputs = {real(columns_shape(s.x, s.options))},
         .call =
             [s](const Tensors& in) {
               return Tensors{col2im(in[0], {s.x[s.x.rank() - 2], s.x.back()}, s.options)};
             },
         .reference = [s](const Tensors& in) { return Tensors{image_reference(in[0], s.x, s.options)}; }});
  }
  const auto refused = [&](const char* what, const Shape& columns, std::array<std::int64_t, 2> size,
                           const WindowOptions& o, const char* message) {
    c.errors.push_back({what, [=] { (void)col2im(zeros(columns, cpu), size, o); }, throws<ShapeError>, message});
  };
  refused("rank", {1, 1, 18, 9}, {5, 5}, {.kernel = {3, 3}},
          "col2im: columns have shape [1, 1, 18, 9], expected [N, C * kH * kW, L]");
  refused("channels", {1, 17, 9}, {5, 5}, {.kernel = {3, 3}},
          "col2im: columns have shape [1, 17, 9], expected 9 columns, a multiple of 9 elements long");
  refused("windows", {1, 18, 8}, {5, 5}, {.kernel = {3, 3}}, "col2im: columns have shape [1, 18, 8], expected 9 col");
  refused("windows without a batch", {18, 9}, {5, 6}, {.kernel = {3, 3}}, "col2im: columns have shape [18, 9]");
  refused("size", {1, 18, 9}, {-5, 5}, {.kernel = {3, 3}}, "col2im: size is -5");
  refused("kernel", {1, 18, 9}, {5, 2}, {.kernel = {3, 3}},
          "col2im: the kernel reaches over 3 pixels along dimension 1, the image of shape [5, 2] has 2");
  refused("no kernel", {1, 18, 9}, {5, 5}, {}, "col2im: kernel is 0");
  refused("stride", {1, 18, 9}, {5, 5}, {.kernel = {3, 3}, .stride = {1, -2}}, "col2im: stride is -2");
  refused("padding", {1, 18, 9}, {5, 5}, {.kernel = {3, 3}, .padding = {-1, 0}}, "col2im: padding is -1");
  refused("dilation", {1, 18, 9}, {5, 5}, {.kernel = {3, 3}, .dilation = {1, 0}}, "col2im: dilation is 0");
  return c;
}

// Small integers: every order of their sums has the same bits.
Tensor whole(const Shape& shape, Generator& g, DType dtype = DType::f32) {
  return round(randn(shape, g, cpu)).to(dtype);
}

TEST_CASE("im2col and its gradient have the bits of the views of a padded image that they stand for") {
  Generator g(1);
  for (const Sample& s : window_samples()) {
    if (s.x.rank() != 4 || s.x.numel() == 0) continue;
    CAPTURE(text(s.x));
    Tensors x{whole(s.x, g)};
    x[0].requires_grad_();
    const Tensors mine{im2col(x[0], s.options)}, views{by_views(x[0], s.options)};
    CHECK(equal(mine[0], views[0]));
    const std::array seed{whole(mine[0].shape(), g)};
    CHECK(equal(grad(mine, x, seed)[0], grad(views, x, seed)[0]));
  }
}

// Strides and dilations with and without common divisors, windows that see no pixel, pixels that no window sees.
TEST_CASE("im2col and col2im are their definitions for random windows, on a device and at every level of the cpu") {
  std::mt19937 random(5);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + std::int64_t(random() % std::uint32_t(high - low + 1));
  };
  const auto both = [&](std::int64_t low, std::int64_t high) { return std::array{pick(low, high), pick(low, high)}; };
  Generator g(6);
  const std::vector<Device> devices = test::all_devices();
  int checked = 0;
  while (checked < 150) {
    const WindowOptions o{.kernel = both(1, 4), .stride = both(1, 6), .padding = both(0, 5), .dilation = both(1, 6)};
    const Shape shape{pick(1, 2), pick(1, 3), pick(1, 12), pick(1, 12)};
    const auto fits = [&](int d) {
      const auto i = static_cast<std::size_t>(d);
      return shape[2 + d] + 2 * o.padding[i] > o.dilation[i] * (o.kernel[i] - 1);
    };
    if (!fits(0) || !fits(1)) continue;
    ++checked;
    CAPTURE(text(shape));
    CAPTURE(text(Shape{o.kernel[0], o.kernel[1], o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.dilation[0],
                       o.dilation[1]}));
    const Tensor x = whole(shape, g), y = whole(columns_shape(shape, o), g);
    const Tensor columns = columns_reference(x.to(DType::f64), o).to(DType::f32);
    const Tensor image = image_reference(y.to(DType::f64), shape, o).to(DType::f32);
    for (const Device device : devices) {
      CAPTURE(text(device));
      CHECK(equal(im2col(x.to(device), o).to(cpu), columns));
      CHECK(equal(col2im(y.to(device), {shape[2], shape[3]}, o).to(cpu), image));
    }
    const kernels::WindowShape s{shape[0] * shape[1],
                                 {shape[2], o.kernel[0], o.stride[0], o.padding[0], o.dilation[0]},
                                 {shape[3], o.kernel[1], o.stride[1], o.padding[1], o.dilation[1]}};
    for (const kernels::CpuLevel level : kernels::test::levels()) {
      Tensor sums = empty(shape, cpu);
      kernels::cpu::col2im<float>(kernels::Cpu{level}, y.data<float>(), sums.mutable_data<float>(), s);
      CHECK(equal(sums, image));
    }
  }
}

TEST_CASE("a matrix product with im2col is conv2d, forward and backward, on the cpu and on a device") {
  struct Case {
    Shape x, w;
    ConvOptions o;
  };
  Generator g(2);
  const std::vector<Device> devices = test::all_devices();
  for (const Case& c : {Case{{2, 3, 8, 7}, {4, 3, 3, 3}, {.padding = {1, 1}}},
                        Case{{1, 2, 9, 11}, {3, 2, 2, 4}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}}},
                        Case{{3, 2, 6, 6}, {5, 2, 6, 6}, {}}, Case{{2, 4, 5, 5}, {2, 4, 1, 1}, {.stride = {2, 2}}}}) {
    const Tensor image = whole(c.x, g), filter = whole(c.w, g);
    const Tensor seed = whole(conv2d(image, filter, {}, c.o).shape(), g);
    for (const Device device : devices) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        CAPTURE(text(c.x));
        CAPTURE(text(device));
        CAPTURE(text(dtype));
        Tensors in{image.to(dtype).to(device).detach(), filter.to(dtype).to(device).detach()};
        for (Tensor& t : in) t.requires_grad_();
        const Tensor columns = im2col(
            in[0],
            {.kernel = {c.w[2], c.w[3]}, .stride = c.o.stride, .padding = c.o.padding, .dilation = c.o.dilation});
        const Tensors product{view(matmul(reshape(in[1], {c.w[0], -1}), columns),
                                   {seed.size(0), seed.size(1), seed.size(2), seed.size(3)})};
        const Tensors conv{conv2d(in[0], in[1], {}, c.o)};
        CHECK(equal(product[0], conv[0]));
        const std::array seeds{seed.to(dtype).to(device)};
        const Tensors got = grad(product, in, seeds), want = grad(conv, in, seeds);
        for (std::size_t k = 0; k < want.size(); ++k) CHECK(equal(got[k], want[k]));
      }
    }
  }
}

TEST_CASE("col2im of im2col multiplies each pixel by the number of windows that see it") {
  Generator g(3);
  const WindowOptions o{.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}};
  const Tensor x = whole({2, 2, 6, 5}, g), seen = col2im(im2col(ones({1, 1, 6, 5}, cpu), o), {6, 5}, o);
  CHECK(equal(col2im(im2col(x, o), {6, 5}, o), x * seen));
  // Rows {-1, 0, 1}, {1, 2, 3}, {3, 4, 5}; columns {0, 2}, {1, 3}, {2, 4}.
  CHECK(equal(seen, view(outer(tensor({1.f, 2.f, 1.f, 2.f, 1.f, 1.f}, cpu), tensor({1.f, 1.f, 2.f, 1.f, 1.f}, cpu)),
                         {1, 1, 6, 5})));
}

TEST_CASE("16-bit sums of col2im are rounded once, and a device has the bits of the cpu") {
  Generator g(4);
  const std::vector<Device> devices = test::all_devices();
  const WindowOptions o{.kernel = {5, 7}, .stride = {1, 2}, .padding = {2, 3}};
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const Tensor columns = randn(columns_shape({2, 3, 9, 11}, o), g, cpu).to(dtype);
    const Tensor once = col2im(columns.to(DType::f32), {9, 11}, o).to(dtype);
    for (const Device device : devices) {
      CAPTURE(text(dtype));
      CAPTURE(text(device));
      CHECK(equal(col2im(columns.to(device), {9, 11}, o).to(cpu), once));
    }
  }
}

TEST_CASE("strides, dilations and paddings up to the limit cost nothing where one window fits or one tap is") {
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices) {
    CAPTURE(text(device));
    const Tensor x = reshape(arange(12, device, DType::f32), {1, 1, 3, 4});
    const WindowOptions far{.kernel = {1, 3}, .stride = {kFar, kFar}, .dilation = {kFar, 1}};
    const Tensor y = im2col(x, far);
    CHECK(y.to_vector<float>() == std::vector<float>{0, 1, 2});
    CHECK(col2im(y, {3, 4}, far).to_vector<float>() == std::vector<float>{0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    // 2^31 padded pixels: the last window lies at the end of what 32 bits can index.
    const std::int64_t width = 4, beside = kFar / 2 - width / 2;
    const WindowOptions wide{.kernel = {1, 2}, .stride = {1, beside}, .padding = {0, beside}, .dilation = {1, beside}};
    const Tensor z = im2col(x, wide);  // windows see {-beside, 0} and {0, beside}
    CHECK(z.shape() == Shape{1, 2, 6});
    CHECK(transpose(reshape(z, {2, 3, 2}), 1, 2).contiguous().to_vector<float>() ==
          std::vector<float>{0, 0, 0, 0, 4, 8, 0, 4, 8, 0, 0, 0});
    CHECK(col2im(z, {3, 4}, wide).to_vector<float>() == std::vector<float>{0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0});
  }
}

}  // namespace levin::testing
