// Shared by the tests of channels-last memory: networks of its ops, images, and what a step makes of them.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "examples/resnet.h"
#include "levin/autograd.h"
#include "levin/levin.h"

namespace levin::testing {

inline constexpr MemoryFormat kLast = MemoryFormat::channels_last;

// A stem, a residual block with a projection, max and average pooling: each op that keeps the format, and none other
// before the mean of each channel.
struct LastNet : nn::Module {
  using Module::Module;
  nn::Conv2d conv{*this, "conv", {.in = 3, .out = 8, .kernel = 3, .padding = 1, .bias = false}};
  nn::BatchNorm2d bn{*this, "bn", {.features = 8}};
  examples::ResidualBlock block{*this, "block", 8, 16, 2};
  examples::ResidualBlock same{*this, "same", 16, 16, 1};
  nn::Linear fc{*this, "fc", {.in = 16, .out = 5}};

  [[nodiscard]] Tensor features(const Tensor& x) const {
    const Tensor pooled = max_pool2d(relu(bn(conv(x))), {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}});
    return avg_pool2d(same(block(pooled)), 2);
  }
  Tensor operator()(const Tensor& x) const { return fc(mean(features(x), {2, 3})); }
};

inline Tensor images(Device device, DType dtype = DType::f32) {
  Generator gen(7);
  return randn({4, 3, 16, 12}, gen, Device::cpu()).to(dtype).to(device);
}
inline Tensor classes(Device device) {
  return from_data(std::vector<std::int64_t>{0, 3, 1, 4}, {4}, Device::cpu()).to(device);
}

inline std::vector<double> doubles(const Tensor& t) {
  return t.detach().to(Device::cpu()).to(DType::f64).to_vector<double>();
}
// Within `ulps` roundings of the largest number, for sums in another order.
inline void check_near(const Tensor& got, const Tensor& want, double ulps) {
  REQUIRE(got.shape() == want.shape());
  const std::vector<double> a = doubles(got), b = doubles(want);
  double most = 0;
  for (const double v : b) most = std::max(most, std::abs(v));
  const double eps = got.dtype() == DType::f64 ? 0x1p-53 : got.dtype() == DType::f32 ? 0x1p-24 : 0x1p-8;
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(a[i] - b[i]) <= ulps * eps * most);
  }
}

}  // namespace levin::testing
