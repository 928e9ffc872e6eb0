#include "kernels/conv/winograd.cuh"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/conv/conv.cuh"
#include "kernels/conv/conv_products_test.h"
#include "kernels/executor/rows_test.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::test;

namespace {

ConvShape shape(int64_t batch, int64_t in, int64_t out, int64_t height, int64_t width, int64_t kernel, int64_t pad_h,
                int64_t pad_w, int64_t stride = 1) {
  return {.batch = batch,
          .in_channels = in,
          .height = height,
          .width = width,
          .out_channels = out,
          .kernel_h = kernel,
          .kernel_w = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .padding_h = pad_h,
          .padding_w = pad_w};
}

// Kernels of one row.
ConvShape rows(int64_t batch, int64_t in, int64_t out, int64_t height, int64_t width, int64_t kernel, int64_t pad_h,
               int64_t pad_w) {
  ConvShape s = shape(batch, in, out, height, width, kernel, pad_h, pad_w);
  s.kernel_h = 1;
  return s;
}

// Channels around and between whole vectors and panels of every level, extents around whole tiles, images in blocks and
// blocks in images, fewer pixels than a vector, rows of tiles that are cut, padding from none to more than the kernel.
// Of stride 2: in channels of whole vectors and a part of a panel, even and odd extents, one output, images in several
// blocks of rows and rows in several blocks, padding to more than the kernel.
const ConvShape kShapes[] = {
    shape(2, 32, 64, 14, 14, 5, 2, 2),    shape(3, 16, 17, 13, 15, 5, 0, 1),   shape(2, 33, 16, 9, 11, 5, 3, 4),
    shape(1, 65, 35, 7, 6, 5, 4, 0),      shape(2, 1, 3, 5, 5, 5, 0, 0),       shape(2, 20, 31, 17, 18, 3, 1, 1),
    shape(3, 47, 48, 8, 9, 3, 0, 2),      shape(1, 16, 65, 3, 30, 3, 2, 0),    shape(1, 18, 16, 1, 1, 3, 4, 4),
    shape(1, 40, 33, 4, 130, 3, 1, 1),    shape(1, 64, 24, 70, 5, 3, 3, 1),    shape(9, 17, 16, 4, 4, 3, 1, 1),
    shape(2, 16, 17, 14, 28, 4, 1, 1, 2), shape(1, 16, 16, 5, 61, 4, 3, 5, 2), shape(3, 48, 35, 9, 12, 4, 1, 0, 2),
    shape(18, 16, 18, 4, 4, 4, 0, 2, 2),  shape(2, 16, 40, 1, 1, 4, 2, 2, 2),  shape(1, 32, 20, 62, 66, 4, 1, 1, 2),
    shape(1, 16, 33, 6, 170, 4, 1, 2, 2), rows(3, 33, 17, 1, 70, 3, 0, 1),     rows(2, 16, 65, 1, 9, 5, 0, 4),
    rows(1, 20, 40, 5, 13, 3, 1, 0),      rows(5, 47, 16, 1, 4, 5, 0, 2),      rows(1, 16, 48, 1, 1200, 5, 0, 0),
};

struct Data {
  std::vector<float> x, w, b, gy;
  explicit Data(const ConvShape& s)
      : x(numbers<float>(s.batch * s.in_channels * s.height * s.width, 1, 1)),
        w(numbers<float>(s.out_channels * s.in_channels * s.taps(), 1, 2)),
        b(numbers<float>(s.out_channels, 1, 3)),
        gy(numbers<float>(s.batch * s.out_channels * s.pixels(), 1, 4)) {}
};

// The bound of Note [Error of Winograd] for numbers in [-1, 1): 128 * 2^-24 * sqrt(terms) for three columns, 256 for
// more.
double worst(const std::vector<float>& got, const std::vector<double>& want, int64_t kernel, int64_t terms) {
  const double bound = (kernel == 3 ? 128 : 256) * 0x1p-24 * std::sqrt(double(terms));
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i)
    most = std::max(most, std::isfinite(got[i]) ? std::abs(double(got[i]) - want[i]) / bound : 1e30);
  return most;
}

}  // namespace

TEST_CASE("Winograd convolution and its gradients are the sums of their products at every level") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ConvShape& s : kShapes) {
    CAPTURE(s.in_channels);
    CAPTURE(s.out_channels);
    CAPTURE(s.height);
    CAPTURE(s.width);
    CAPTURE(s.kernel_h);
    CAPTURE(s.stride_h);
    if (s.stride_h == 2) {
      REQUIRE(s.kernel_h == 4);
      REQUIRE(s.in_channels % 16 == 0);
      REQUIRE(s.height + s.padding_h <= 2 * s.out_height() + 2);
      REQUIRE(s.width + s.padding_w <= 2 * s.out_width() + 2);
    }
    const Data d(s);
    std::vector<double> y(d.gy.size()), gx(d.x.size()), gw(d.w.size());
    each_product(s, [&](size_t ix, size_t iw, size_t iy) {
      y[iy] += double(d.x[ix]) * double(d.w[iw]);
      gx[ix] += double(d.gy[iy]) * double(d.w[iw]);
      gw[iw] += double(d.x[ix]) * double(d.gy[iy]);
    });
    for (const CpuLevel level : levels()) {
      CAPTURE(name(level));
      const Cpu on{level};
      std::vector<float> got(y.size(), nan);
      cpu::winograd_forward(on, s, d.x.data(), d.w.data(), static_cast<const float*>(nullptr), got.data());
      CHECK(worst(got, y, s.kernel_w, s.in_channels * s.taps()) <= 1);
      cpu::winograd_forward(on, s, d.x.data(), d.w.data(), d.b.data(), got.data());
      std::vector<double> shifted = y;
      for (size_t i = 0; i < y.size(); ++i) shifted[i] += double(d.b[i / size_t(s.pixels()) % d.b.size()]);
      CHECK(worst(got, shifted, s.kernel_w, s.in_channels * s.taps()) <= 1);
      got.assign(gx.size(), nan);
      cpu::winograd_input_gradient(on, s, d.gy.data(), d.w.data(), got.data());
      CHECK(worst(got, gx, s.kernel_w, s.out_channels * s.taps()) <= 1);
      got.assign(gw.size(), nan);
      cpu::winograd_weight_gradient(on, s, d.x.data(), d.gy.data(), got.data());
      CHECK(worst(got, gw, s.kernel_w, s.batch * s.pixels()) <= 1);
    }
  }
}

TEST_CASE("Winograd convolution has the same bits on one, two and three threads") {
  for (const ConvShape& s :
       {shape(9, 32, 64, 14, 14, 5, 2, 2), shape(2, 35, 17, 37, 41, 3, 1, 1), shape(9, 32, 64, 28, 28, 4, 1, 1, 2),
        shape(1, 32, 20, 62, 66, 4, 1, 1, 2), rows(3, 32, 40, 1, 700, 5, 0, 2)}) {
    const Data d(s);
    for (const CpuLevel level : levels()) {
      const Cpu on{level};
      std::vector<float> out(d.gy.size() + d.x.size() + d.w.size());
      same_bits(out, [&] {
        cpu::winograd_forward(on, s, d.x.data(), d.w.data(), d.b.data(), out.data());
        cpu::winograd_input_gradient(on, s, d.gy.data(), d.w.data(), out.data() + d.gy.size());
        cpu::winograd_weight_gradient(on, s, d.x.data(), d.gy.data(), out.data() + d.gy.size() + d.x.size());
      });
    }
  }
}

TEST_CASE("convolution goes the way of Winograd where that pays") {
  const ConvShape s = shape(64, 32, 64, 14, 14, 5, 2, 2);
  CHECK(winograd_forward_pays(s));
  CHECK(winograd_input_pays(s));
  CHECK(winograd_weight_pays(s));
  CHECK_FALSE(winograd_forward_pays(shape(64, 1, 32, 28, 28, 5, 2, 2)));
  CHECK_FALSE(winograd_forward_pays(shape(1, 32, 64, 14, 14, 5, 2, 2)));
  CHECK_FALSE(winograd_forward_pays(shape(64, 32, 64, 14, 14, 7, 3, 3)));
  CHECK_FALSE(winograd_forward_pays(shape(64, 32, 64, 5, 5, 5, 0, 0)));
  CHECK_FALSE(winograd_forward_pays(shape(0, 32, 64, 14, 14, 5, 2, 2)));
  ConvShape strided = s, dilated = s, grouped = s;
  strided.stride_w = 2, dilated.dilation_h = 2, grouped.groups = 2;
  CHECK_FALSE(winograd_forward_pays(strided));
  CHECK_FALSE(winograd_input_pays(dilated));
  CHECK_FALSE(winograd_weight_pays(grouped));

  strided.stride_h = 2;
  CHECK_FALSE(winograd_forward_pays(strided));
  CHECK(winograd_forward_pays(shape(8, 64, 64, 28, 28, 4, 1, 1, 2)));
  CHECK(winograd_weight_pays(shape(32, 64, 64, 28, 28, 4, 1, 1, 2)));
  CHECK_FALSE(winograd_weight_pays(shape(8, 64, 64, 28, 28, 4, 1, 1, 2)));
  CHECK_FALSE(winograd_input_pays(shape(8, 64, 64, 28, 28, 3, 1, 1, 2)));
  CHECK_FALSE(winograd_input_pays(shape(64, 64, 64, 12, 12, 4, 1, 1, 2)));  // tiles of 10 x 10 for 7 x 7
  CHECK_FALSE(winograd_forward_pays(shape(8, 60, 64, 28, 28, 4, 1, 1, 2)));
  CHECK(winograd_input_pays(shape(8, 60, 64, 28, 28, 4, 1, 1, 2)));
  CHECK_FALSE(winograd_forward_pays(shape(8, 512, 512, 28, 28, 4, 1, 1, 2)));
  CHECK(winograd_input_pays(shape(8, 64, 64, 26, 26, 4, 0, 0, 2)));
  CHECK_FALSE(winograd_input_pays(shape(8, 64, 64, 27, 26, 4, 0, 0, 2)));  // no output sees the last row
  CHECK_FALSE(winograd_weight_pays(shape(32, 128, 64, 28, 28, 4, 1, 1, 2)));
  CHECK(winograd_weight_pays(rows(16, 256, 256, 1, 512, 5, 0, 2)));
  CHECK_FALSE(winograd_weight_pays(rows(16, 512, 256, 1, 512, 5, 0, 2)));
  CHECK(winograd_input_pays(rows(16, 64, 64, 1, 512, 3, 0, 1)));
  CHECK(winograd_input_pays(rows(16, 16, 64, 1, 512, 5, 0, 2)));
  CHECK_FALSE(winograd_input_pays(rows(16, 16, 64, 1, 512, 3, 0, 1)));
  CHECK(winograd_forward_pays(rows(16, 64, 64, 1, 511, 3, 0, 1)));
  CHECK(winograd_input_pays(rows(16, 64, 64, 1, 511, 3, 0, 0)));
  CHECK_FALSE(winograd_forward_pays(rows(64, 64, 64, 1, 5, 3, 0, 1)));
  CHECK_FALSE(winograd_forward_pays(rows(16, 64, 64, 1, 512, 7, 0, 3)));
  ConvShape turned = rows(16, 64, 64, 512, 1, 5, 0, 0);
  std::swap(turned.kernel_h, turned.kernel_w);
  CHECK_FALSE(winograd_forward_pays(turned));

  for (const ConvShape& small :
       {shape(4, 16, 16, 14, 14, 5, 2, 2), shape(32, 16, 16, 28, 28, 4, 1, 1, 2), rows(4, 16, 16, 1, 96, 5, 0, 2)}) {
    CAPTURE(small.stride_h);
    REQUIRE(winograd_weight_pays(small));
    const Data d(small);
    std::vector<float> a(d.gy.size()), b(d.gy.size()), ga(d.x.size()), gb(d.x.size()), wa(d.w.size()), wb(d.w.size());
    const Cpu on{cpu_level()};
    cpu::conv_forward(on, small, d.x.data(), d.w.data(), d.b.data(), a.data());
    cpu::winograd_forward(on, small, d.x.data(), d.w.data(), d.b.data(), b.data());
    CHECK(a == b);
    cpu::conv_input_gradient(on, small, d.gy.data(), d.w.data(), ga.data());
    cpu::winograd_input_gradient(on, small, d.gy.data(), d.w.data(), gb.data());
    CHECK(ga == gb);
    cpu::conv_weight_gradient(on, small, d.x.data(), d.gy.data(), wa.data());
    cpu::winograd_weight_gradient(on, small, d.x.data(), d.gy.data(), wb.data());
    CHECK(wa == wb);
  }
}

TEST_CASE(
    "bf16 takes Winograd in the input gradient of stride 2, and pairs, if the CPU has them, for its rest and rows") {
  for (const ConvShape& s : {shape(32, 16, 16, 28, 28, 4, 1, 1, 2), rows(16, 32, 32, 1, 96, 5, 0, 2)}) {
    const auto narrow = [](const std::vector<float>& from) { return std::vector<bf16>(from.begin(), from.end()); };
    const Data d(s);
    const std::vector<bf16> x = narrow(d.x), w = narrow(d.w), gy = narrow(d.gy);
    const auto run = [&](Bf16Products by) {
      Cpu on{cpu_level()};
      on.bf16_products = by;
      std::vector<std::vector<bf16>> out{gy, x, w};
      cpu::conv_forward(on, s, x.data(), w.data(), static_cast<const bf16*>(nullptr), out[0].data());
      cpu::conv_input_gradient(on, s, gy.data(), w.data(), out[1].data());
      cpu::conv_weight_gradient(on, s, x.data(), gy.data(), out[2].data());
      return out;
    };
    const auto same = [](const std::vector<bf16>& a, const std::vector<bf16>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), [](bf16 p, bf16 q) { return p.bits == q.bits; });
    };
    const auto in_f32 = run(Bf16Products::f32);
    const std::vector<float> wide_gy(gy.begin(), gy.end()), wide_w(w.begin(), w.end());
    std::vector<float> gx(x.size());
    cpu::winograd_input_gradient(Cpu{cpu_level()}, s, wide_gy.data(), wide_w.data(), gx.data());
    CHECK(same(in_f32[1], narrow(gx)));
    if (!cpu_runs(Bf16Products::pairs)) return;
    const auto by_pairs = run(Bf16Products::pairs);
    CHECK_FALSE(same(by_pairs[0], in_f32[0]));
    CHECK(same(by_pairs[1], in_f32[1]) == (s.stride_h == 2));
    CHECK_FALSE(same(by_pairs[2], in_f32[2]));
  }
}

TEST_CASE("NaN in an image reaches the pixels that see it, and at most the rest of their tiles") {
  const auto checked = [](const std::vector<float>& y, int64_t side, int64_t channels, int64_t at, int64_t seen0,
                          int64_t seen1, int64_t near) {
    const int64_t plane = side * side;
    for (size_t i = 0; i < y.size(); ++i) {
      const int64_t n = int64_t(i) / (channels * plane), row = int64_t(i) / side % side - at,
                    col = int64_t(i) % side - at;
      const bool sees = n == 1 && row >= seen0 && row <= seen1 && col >= seen0 && col <= seen1;
      const bool reached =
          n == 1 && row >= seen0 - near && row <= seen1 + near && col >= seen0 - near && col <= seen1 + near;
      if (sees) CHECK(std::isnan(y[i]));
      if (!reached) CHECK(std::isfinite(y[i]));
    }
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const ConvShape s = shape(2, 16, 16, 20, 20, 5, 2, 2), half = shape(2, 16, 16, 40, 40, 4, 1, 1, 2);
  Data d(s), e(half);
  d.x[size_t((16 + 3) * 400 + 9 * 20 + 9)] = nan;     // image 1, pixel (9, 9)
  e.x[size_t((16 + 3) * 1600 + 18 * 40 + 18)] = nan;  // image 1, pixel (18, 18), which outputs 8 and 9 see
  e.gy[size_t((16 + 3) * 400 + 9 * 20 + 9)] = nan;    // image 1, pixel (9, 9), which sees pixels 17 to 20
  for (const CpuLevel level : levels()) {
    std::vector<float> y(d.gy.size()), gx(e.x.size());
    cpu::winograd_forward(Cpu{level}, s, d.x.data(), d.w.data(), d.b.data(), y.data());
    checked(y, 20, 16, 9, -2, 2, 3);
    cpu::winograd_forward(Cpu{level}, half, e.x.data(), e.w.data(), e.b.data(), y.data());
    checked(y, 20, 16, 9, -1, 0, 4);
    cpu::winograd_input_gradient(Cpu{level}, half, e.gy.data(), e.w.data(), gx.data());
    checked(gx, 40, 16, 18, -1, 2, 8);
  }
}
