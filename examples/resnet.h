// Residual networks for pictures of 32 x 32: He et al., "Deep Residual Learning for Image Recognition", 2016, section
// 4.2, with projections where the shape changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "levin/levin.h"

namespace levin::examples {

// Two convolutions beside a shortcut: a 1 x 1 convolution where the shape changes.
struct ResidualBlock final : nn::Module {
  ResidualBlock(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t out, std::int64_t stride)
      : Module(parent, name),
        conv1(*this, "conv1", {.in = in, .out = out, .kernel = 3, .stride = stride, .padding = 1, .bias = false}),
        bn1(*this, "bn1", {.features = out}),
        conv2(*this, "conv2", {.in = out, .out = out, .kernel = 3, .padding = 1, .bias = false}),
        bn2(*this, "bn2", {.features = out}) {
    if (in == out && stride == 1) return;
    shortcut = std::make_unique<nn::Conv2d>(
        *this, "shortcut", nn::Conv2dOptions{.in = in, .out = out, .kernel = 1, .stride = stride, .bias = false});
    shortcut_bn = std::make_unique<nn::BatchNorm2d>(*this, "shortcut_bn", nn::BatchNormOptions{.features = out});
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  std::unique_ptr<nn::Conv2d> shortcut;
  std::unique_ptr<nn::BatchNorm2d> shortcut_bn;
  Tensor operator()(const Tensor& x) const {
    const Tensor y = conv2(bn1.relu(conv1(x)));
    return bn2.relu(y, shortcut ? (*shortcut_bn)((*shortcut)(x)) : x);
  }
};

// The first convolution.
struct ResNetStem final : nn::Module {
  using Module::Module;
  nn::Conv2d conv{*this, "conv", {.in = 3, .out = 16, .kernel = 3, .padding = 1, .bias = false}};
  nn::BatchNorm2d bn{*this, "bn", {.features = 16}};
  Tensor operator()(const Tensor& pictures) const { return bn.relu(conv(pictures)); }
};

// The mean of each channel, and a linear map to the classes.
struct ResNetHead final : nn::Linear {
  using Linear::Linear;
  Tensor operator()(const Tensor& x) const { return Linear::operator()(mean(x, {2, 3})); }
};

// Appends the layers that make logits [N, classes] of pictures [N, 3, 32, 32]: 6 n + 2 layers with weights, n =
// blocks_a_stage of the widths 16, 32 and 64.
inline void add_resnet(nn::Sequential& net, std::int64_t blocks_a_stage, std::int64_t classes) {
  net.add<ResNetStem>();
  std::int64_t in = 16;
  for (std::int64_t stage = 0; stage < 3; ++stage) {
    for (std::int64_t k = 0; k < blocks_a_stage; ++k) {
      const std::int64_t out = std::int64_t{16} << stage;
      net.add<ResidualBlock>(in, out, std::int64_t{stage > 0 && k == 0 ? 2 : 1});
      in = out;
    }
  }
  net.add<ResNetHead>({.in = 64, .out = classes});
}

}  // namespace levin::examples
