#include "kernels/conv/conv.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/conv/conv_products_test.h"
#include "kernels/executor/rows_test.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::test;

namespace {

// A result against the f64 sum, within (terms + 4) * eps / 2 * (sum of absolute values) and one rounding.
struct Expected {
  std::vector<double> sum, abs, terms;
  explicit Expected(size_t n) : sum(n), abs(n), terms(n) {}
  void add(int64_t at, double x) { sum[size_t(at)] += x, abs[size_t(at)] += std::abs(x), terms[size_t(at)] += 1; }
  template <class T>
  double worst(const std::vector<T>& got) const {
    double most = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const double bound = (terms[i] + 4) * kEps<Accum<T>> * abs[i] + kEps<T> * std::abs(sum[i]) +
                           (sizeof(T) == 2 ? 0x1p-25 : 0x1p-1000);
      most = std::max(most, std::isfinite(double(got[i])) ? std::abs(double(got[i]) - sum[i]) / bound : 1e30);
    }
    return most;
  }
};

// Every level, and at the highest every way that this CPU multiplies bf16.
std::vector<Cpu> ways() {
  std::vector<Cpu> all;
  for (const CpuLevel level : levels()) all.push_back(Cpu{level});
  for (const Bf16Products by : {Bf16Products::f32, Bf16Products::pairs, Bf16Products::tiles}) {
    if (cpu_level() == CpuLevel::v4 && by != cpu_bf16_products() && cpu_runs(by)) all.push_back({cpu_level(), by});
  }
  return all;
}

template <class T>
void check(const ConvShape& s, const Cpu& on) {
  CAPTURE(name(on.level));
  CAPTURE(int(on.bf16_products));
  CAPTURE(s.batch);
  CAPTURE(s.in_channels);
  CAPTURE(s.out_channels);
  CAPTURE(s.height);
  CAPTURE(s.width);
  CAPTURE(s.kernel_h);
  CAPTURE(s.kernel_w);
  CAPTURE(s.stride_w);
  CAPTURE(s.padding_w);
  CAPTURE(s.groups);
  const int64_t nx = s.batch * s.in_channels * s.height * s.width, ny = s.batch * s.out_channels * s.pixels(),
                nw = s.out_channels * s.group_in() * s.taps();
  const auto x = numbers<T>(nx, 1, 1), w = numbers<T>(nw, 1, 2), b = numbers<T>(s.out_channels, 1, 3),
             gy = numbers<T>(ny, 1, 4);
  const T nan = T(std::numeric_limits<float>::quiet_NaN());
  std::vector<T> y(size_t(ny), nan), y_plain = y, gx(size_t(nx), nan), gw(size_t(nw), nan);
  cpu::conv_forward(on, s, x.data(), w.data(), b.data(), y.data());
  cpu::conv_forward(on, s, x.data(), w.data(), static_cast<const T*>(nullptr), y_plain.data());
  cpu::conv_input_gradient(on, s, gy.data(), w.data(), gx.data());
  cpu::conv_weight_gradient(on, s, x.data(), gy.data(), gw.data());
  Expected to_y(y.size()), to_gx(gx.size()), to_gw(gw.size());
  each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) {
    const double xv = double(x[size_t(ix)]), wv = double(w[size_t(iw)]), gv = double(gy[size_t(iy)]);
    to_y.add(iy, xv * wv);
    to_gx.add(ix, gv * wv);
    to_gw.add(iw, xv * gv);
  });
  CHECK(to_y.worst(y_plain) <= 1);
  CHECK(to_gx.worst(gx) <= 1);
  CHECK(to_gw.worst(gw) <= 1);
  for (int64_t i = 0; i < ny; ++i) {
    const int64_t o = i / s.pixels() % s.out_channels;
    to_y.add(i, double(b[size_t(o)]));
  }
  CHECK(to_y.worst(y) <= 1);
}

const ConvShape kShapes[] = {
    {.batch = 2,
     .in_channels = 1,
     .height = 28,
     .width = 28,
     .out_channels = 32,
     .kernel_h = 5,
     .kernel_w = 5,
     .padding_h = 2,
     .padding_w = 2},
    {.batch = 3,
     .in_channels = 32,
     .height = 14,
     .width = 14,
     .out_channels = 17,
     .kernel_h = 5,
     .kernel_w = 5,
     .padding_h = 2,
     .padding_w = 2},
    {.batch = 2,
     .in_channels = 3,
     .height = 9,
     .width = 11,
     .out_channels = 5,
     .kernel_h = 3,
     .kernel_w = 3,
     .stride_h = 2,
     .stride_w = 2,
     .padding_h = 1,
     .padding_w = 1},
    {.batch = 1,
     .in_channels = 4,
     .height = 17,
     .width = 23,
     .out_channels = 6,
     .kernel_h = 2,
     .kernel_w = 3,
     .stride_h = 1,
     .stride_w = 3,
     .padding_h = 0,
     .padding_w = 4,
     .dilation_h = 3,
     .dilation_w = 2,
     .groups = 2},
    {.batch = 2,
     .in_channels = 6,
     .height = 8,
     .width = 7,
     .out_channels = 6,
     .kernel_h = 3,
     .kernel_w = 3,
     .padding_h = 1,
     .padding_w = 1,
     .groups = 6},
    {.batch = 2, .in_channels = 20, .height = 6, .width = 7, .out_channels = 33},
    {.batch = 2,
     .in_channels = 4,
     .height = 6,
     .width = 7,
     .out_channels = 8,
     .stride_h = 2,
     .stride_w = 2,
     .groups = 2},
    {.batch = 1,
     .in_channels = 2,
     .height = 1,
     .width = 2500,
     .out_channels = 3,
     .kernel_h = 1,
     .kernel_w = 7,
     .stride_w = 2,
     .padding_w = 3},
    {.batch = 1,
     .in_channels = 70,
     .height = 40,
     .width = 33,
     .out_channels = 20,
     .kernel_h = 3,
     .kernel_w = 3,
     .padding_h = 1,
     .padding_w = 1},
    {.batch = 1, .in_channels = 256, .height = 3, .width = 3, .out_channels = 9, .kernel_h = 2, .kernel_w = 2},
    {.batch = 1, .in_channels = 1, .height = 5, .width = 5, .out_channels = 1, .kernel_h = 5, .kernel_w = 5},
    {.batch = 1,
     .in_channels = 2,
     .height = 2,
     .width = 2,
     .out_channels = 2,
     .kernel_h = 2,
     .kernel_w = 2,
     .stride_h = 3,
     .stride_w = 3,
     .padding_h = 5,
     .padding_w = 5},  // most taps see padding alone
    {.batch = 1,
     .in_channels = 2,
     .height = 8,
     .width = 8,
     .out_channels = 2,
     .kernel_h = 2,
     .kernel_w = 2,
     .stride_h = 5,
     .stride_w = 5},  // rows and columns that no tap sees
    {.batch = 1,
     .in_channels = 32,
     .height = 28,
     .width = 28,
     .out_channels = 3,
     .kernel_h = 4,
     .kernel_w = 4,
     .stride_h = 2,
     .stride_w = 2,
     .padding_h = 1,
     .padding_w = 1},  // blocks of 8 and of 6 rows of pixels
    {.batch = 37,
     .in_channels = 5,
     .height = 9,
     .width = 8,
     .out_channels = 7,
     .kernel_h = 3,
     .kernel_w = 3,
     .stride_h = 2,
     .stride_w = 2,
     .padding_h = 1,
     .padding_w = 1},  // several images in a product of the input gradient
};

}  // namespace

TEST_CASE("convolution and its gradients are the sums of their products at every level and dtype") {
  for (const Cpu& on : ways())
    for (const ConvShape& s : kShapes) {
      check<float>(s, on);
      check<double>(s, on);
      check<f16>(s, on);
      check<bf16>(s, on);
    }
}

TEST_CASE("convolution agrees with its sum for random strides, paddings, dilations and groups") {
  std::mt19937 gen(11);
  const auto pick = [&](int64_t low, int64_t high) { return low + int64_t(gen() % uint32_t(high - low + 1)); };
  for (int i = 0; i < 150; ++i) {
    ConvShape s{.batch = pick(1, 3), .groups = pick(1, 3)};
    s.in_channels = s.groups * pick(1, 5), s.out_channels = s.groups * pick(1, 20);
    s.height = pick(1, 20), s.width = pick(1, 40);
    s.kernel_h = pick(1, 4), s.kernel_w = pick(1, 5);
    s.stride_h = pick(1, 3), s.stride_w = pick(1, 4);
    s.padding_h = pick(0, 3), s.padding_w = pick(0, 4);
    s.dilation_h = pick(1, 2), s.dilation_w = pick(1, 3);
    const std::vector<Cpu> all = ways();
    const Cpu& on = all[size_t(i) % all.size()];
    check<float>(s, on);
    check<double>(s, on);
    check<bf16>(s, on);
  }
}

TEST_CASE("a convolution of single channels agrees with its sum at every length of a row") {
  std::mt19937 gen(12);
  const auto pick = [&](int64_t low, int64_t high) { return low + int64_t(gen() % uint32_t(high - low + 1)); };
  const std::vector<Cpu> all = ways();
  for (int64_t width = 1; width <= 70; ++width) {
    ConvShape s{.batch = pick(1, 3), .groups = pick(2, 3)};
    s.in_channels = s.groups, s.out_channels = s.groups * pick(1, 5);
    s.height = pick(1, 9), s.width = width;
    s.kernel_h = pick(1, 3), s.kernel_w = pick(1, 4);
    const bool plain = width % 2 != 0;
    s.stride_h = plain ? 1 : pick(1, 3), s.stride_w = plain ? 1 : pick(1, 3);
    s.padding_h = pick(0, 3), s.padding_w = pick(0, 4);
    s.dilation_h = pick(1, 2), s.dilation_w = pick(1, 2);
    if (plain && width % 3 == 0) s.out_channels = s.groups;
    const Cpu& on = all[size_t(width) % all.size()];
    check<float>(s, on);
    check<double>(s, on);
    check<bf16>(s, on);
  }
  // Several blocks of rows.
  for (const int64_t stride : {1, 2}) {
    const ConvShape tall{.batch = 5,
                         .in_channels = 2,
                         .height = 300,
                         .width = 61,
                         .out_channels = 2,
                         .kernel_h = 3,
                         .kernel_w = 3,
                         .stride_h = stride,
                         .stride_w = stride,
                         .padding_h = 1,
                         .padding_w = 1,
                         .groups = 2};
    for (const Cpu& on : all) check<float>(tall, on);
  }
}

TEST_CASE("convolution of nothing writes zeros where there is something to write") {
  for (const CpuLevel level : levels()) {
    const Cpu on{level};
    std::vector<float> data(100, 1.0f), out(100, 7.0f);
    ConvShape none{.batch = 0, .in_channels = 2, .height = 3, .width = 3, .out_channels = 2};
    cpu::conv_forward(on, none, data.data(), data.data(), data.data(), out.data());
    CHECK(out[0] == 7);
    cpu::conv_weight_gradient(on, none, data.data(), data.data(), out.data());
    CHECK(out[0] == 0);
    CHECK(out[4] == 7);
    ConvShape small{
        .batch = 1, .in_channels = 1, .height = 2, .width = 2, .out_channels = 1, .kernel_h = 3, .kernel_w = 3};
    CHECK(small.pixels() == 0);
    std::fill(out.begin(), out.end(), 7.0f);
    cpu::conv_input_gradient(on, small, data.data(), data.data(), out.data());
    CHECK(out[3] == 0);
    CHECK(out[4] == 7);
    ConvShape no_channels{
        .batch = 1, .in_channels = 0, .height = 4, .width = 4, .out_channels = 2, .kernel_h = 3, .kernel_w = 3};
    cpu::conv_forward(on, no_channels, data.data(), data.data(), data.data(), out.data());
    for (size_t i = 0; i < 8; ++i) CHECK(out[i] == 1);
  }
}

TEST_CASE_TEMPLATE("convolution has the same bits on one, two and three threads", T, float, bf16) {
  for (const Cpu& on : ways())
    for (const ConvShape& s : {kShapes[0], kShapes[1], kShapes[8], kShapes[std::size(kShapes) - 1]}) {
      const int64_t nx = s.batch * s.in_channels * s.height * s.width, ny = s.batch * s.out_channels * s.pixels(),
                    nw = s.out_channels * s.group_in() * s.taps();
      const auto x = numbers<T>(nx, 1, 1), w = numbers<T>(nw, 1, 2), gy = numbers<T>(ny, 1, 4);
      std::vector<T> all[3];
      for (int threads = 1; threads <= 3; ++threads) {
        const Threads guard(threads);
        std::vector<T>& out = all[threads - 1];
        out.resize(size_t(ny + nx + nw));
        cpu::conv_forward(on, s, x.data(), w.data(), static_cast<const T*>(nullptr), out.data());
        cpu::conv_input_gradient(on, s, gy.data(), w.data(), out.data() + ny);
        cpu::conv_weight_gradient(on, s, x.data(), gy.data(), out.data() + ny + nx);
      }
      CHECK(std::memcmp(all[0].data(), all[1].data(), all[0].size() * sizeof(T)) == 0);
      CHECK(std::memcmp(all[0].data(), all[2].data(), all[0].size() * sizeof(T)) == 0);
    }
}

TEST_CASE_TEMPLATE("NaN in an image reaches the pixels that see it and no others", T, float, bf16) {
  const T nan = T(std::numeric_limits<float>::quiet_NaN());
  for (const Cpu& on : ways()) {
    const ConvShape s{.batch = 2,
                      .in_channels = 2,
                      .height = 10,
                      .width = 10,
                      .out_channels = 3,
                      .kernel_h = 3,
                      .kernel_w = 3,
                      .padding_h = 1,
                      .padding_w = 1};
    std::vector<T> x(400, T(1.0f)), w(54, T(0.0f)), y(600);
    x[200 + 4 * 10 + 9] = nan;  // image 1, channel 0, row 4, column 9
    cpu::conv_forward(on, s, x.data(), w.data(), static_cast<const T*>(nullptr), y.data());
    for (int64_t i = 0; i < 600; ++i) {
      const int64_t n = i / 300, row = i / 10 % 10, col = i % 10;
      CHECK(std::isnan(float(y[size_t(i)])) == (n == 1 && row >= 3 && row <= 5 && col >= 8));
    }
  }
}
