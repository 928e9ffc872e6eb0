#include "kernels/conv/winograd.cuh"

#include <cmath>
#include <limits>
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
                int64_t pad_w) {
  return {.batch = batch,
          .in_channels = in,
          .height = height,
          .width = width,
          .out_channels = out,
          .kernel_h = kernel,
          .kernel_w = kernel,
          .padding_h = pad_h,
          .padding_w = pad_w};
}

// Channels around and between whole vectors and panels of every level, extents around whole tiles, images in blocks and
// blocks in images, fewer pixels than a vector, rows of tiles that are cut, padding from none to more than the kernel.
const ConvShape kShapes[] = {
    shape(2, 32, 64, 14, 14, 5, 2, 2), shape(3, 16, 17, 13, 15, 5, 0, 1), shape(2, 33, 16, 9, 11, 5, 3, 4),
    shape(1, 65, 35, 7, 6, 5, 4, 0),   shape(2, 1, 3, 5, 5, 5, 0, 0),     shape(2, 20, 31, 17, 18, 3, 1, 1),
    shape(3, 47, 48, 8, 9, 3, 0, 2),   shape(1, 16, 65, 3, 30, 3, 2, 0),  shape(1, 18, 16, 1, 1, 3, 4, 4),
    shape(1, 40, 33, 4, 130, 3, 1, 1), shape(1, 64, 24, 70, 5, 3, 3, 1),  shape(9, 17, 16, 4, 4, 3, 1, 1),
};

struct Data {
  std::vector<float> x, w, b, gy;
  explicit Data(const ConvShape& s)
      : x(numbers<float>(s.batch * s.in_channels * s.height * s.width, 1, 1)),
        w(numbers<float>(s.out_channels * s.in_channels * s.taps(), 1, 2)),
        b(numbers<float>(s.out_channels, 1, 3)),
        gy(numbers<float>(s.batch * s.out_channels * s.pixels(), 1, 4)) {}
};

// The bound of Note [Error of Winograd] for numbers in [-1, 1): 256 * 2^-24 * sqrt(terms) for 5x5, 128 for 3x3.
double worst(const std::vector<float>& got, const std::vector<double>& want, int64_t kernel, int64_t terms) {
  const double bound = (kernel == 5 ? 256 : 128) * 0x1p-24 * std::sqrt(double(terms));
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
      CHECK(worst(got, y, s.kernel_h, s.in_channels * s.taps()) <= 1);
      cpu::winograd_forward(on, s, d.x.data(), d.w.data(), d.b.data(), got.data());
      std::vector<double> shifted = y;
      for (size_t i = 0; i < y.size(); ++i) shifted[i] += double(d.b[i / size_t(s.pixels()) % d.b.size()]);
      CHECK(worst(got, shifted, s.kernel_h, s.in_channels * s.taps()) <= 1);
      got.assign(gx.size(), nan);
      cpu::winograd_input_gradient(on, s, d.gy.data(), d.w.data(), got.data());
      CHECK(worst(got, gx, s.kernel_h, s.out_channels * s.taps()) <= 1);
      got.assign(gw.size(), nan);
      cpu::winograd_weight_gradient(on, s, d.x.data(), d.gy.data(), got.data());
      CHECK(worst(got, gw, s.kernel_h, s.batch * s.pixels()) <= 1);
    }
  }
}

TEST_CASE("Winograd convolution has the same bits on one, two and three threads") {
  for (const ConvShape& s : {shape(9, 32, 64, 14, 14, 5, 2, 2), shape(2, 35, 17, 37, 41, 3, 1, 1)}) {
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

  const ConvShape small = shape(4, 16, 16, 14, 14, 5, 2, 2);
  REQUIRE(winograd_forward_pays(small));
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

TEST_CASE("NaN in an image reaches the pixels that see it, and at most the rest of their tiles") {
  const ConvShape s = shape(2, 16, 16, 20, 20, 5, 2, 2);
  Data d(s);
  d.x[size_t((16 + 3) * 400 + 9 * 20 + 10)] = std::numeric_limits<float>::quiet_NaN();  // image 1, row 9, column 10
  for (const CpuLevel level : levels()) {
    std::vector<float> y(d.gy.size());
    cpu::winograd_forward(Cpu{level}, s, d.x.data(), d.w.data(), d.b.data(), y.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const int64_t n = int64_t(i) / 6400, row = int64_t(i) / 20 % 20, col = int64_t(i) % 20;
      const bool sees = n == 1 && std::abs(row - 9) <= 2 && std::abs(col - 10) <= 2;
      const bool near = n == 1 && std::abs(row - 9) <= 5 && std::abs(col - 10) <= 5;
      if (sees) CHECK(std::isnan(y[i]));
      if (!near) CHECK(std::isfinite(y[i]));
    }
  }
}
