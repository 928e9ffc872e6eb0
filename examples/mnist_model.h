// The models of the program mnist, in a header because `levin plan` plans them, too.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/classifier.h"
#include "examples/digits.h"
#include "examples/mnist_results.h"

namespace levin::examples::mnist {

// Images [N, 1, 28, 28] -> logits [N, 10].
struct DigitClassifier : Classifier {
  using Classifier::Classifier;
  Batch example_input() override { return {.fields = {empty({1, 1, kSide, kSide}, Device::meta())}}; }
};

// A convolution, ReLU, and the largest of each 2 x 2 pixels.
struct ConvPool final : nn::Conv2d {
  using Conv2d::Conv2d;
  Tensor operator()(const Tensor& x) const { return max_pool2d(relu(Conv2d::operator()(x)), 2); }
};

// ReLU of a linear map of all numbers of a sample.
struct LinearReLU final : nn::Linear {
  using Linear::Linear;
  Tensor operator()(const Tensor& x) const { return relu(Linear::operator()(flatten(x, 1))); }
};

struct LeNet final : TrainModuleOf<LeNet, DigitClassifier> {
  LeNet(const ClassifierSettings& s, const Generator& gen, Device device) : TrainModuleOf(s, gen, device) {
    net.add<ConvPool>({.in = 1, .out = 32, .kernel = 5, .padding = 2});
    net.add<ConvPool>({.in = 32, .out = 64, .kernel = 5, .padding = 2});
    net.add<LinearReLU>({.in = 64 * 7 * 7, .out = 256});
    net.add<nn::Linear>({.in = 256, .out = kClasses});
  }
};

struct Mlp final : TrainModuleOf<Mlp, DigitClassifier> {
  Mlp(const ClassifierSettings& s, const Generator& gen, Device device) : TrainModuleOf(s, gen, device) {
    net.add<LinearReLU>({.in = kSide * kSide, .out = 512});
    net.add<LinearReLU>({.in = 512, .out = 512});
    net.add<nn::Linear>({.in = 512, .out = kClasses});
  }
};

inline std::unique_ptr<Classifier> make_model(const ClassifierSettings& s, const Generator& gen, Device device) {
  if (s.model == "cnn") return std::make_unique<LeNet>(s, gen, device);
  return std::make_unique<Mlp>(s, gen, device);
}

}  // namespace levin::examples::mnist
