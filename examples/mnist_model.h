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

struct LeNet final : TrainModuleOf<LeNet, DigitClassifier> {
  using TrainModuleOf::TrainModuleOf;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 32, .kernel = 5, .padding = 2}};
  nn::Conv2d conv2{*this, "conv2", {.in = 32, .out = 64, .kernel = 5, .padding = 2}};
  nn::Linear fc1{*this, "fc1", {.in = 64 * 7 * 7, .out = 256}};
  nn::Linear fc2{*this, "fc2", {.in = 256, .out = kClasses}};
  Tensor operator()(const Tensor& images) const override {
    Tensor x = max_pool2d(relu(conv1(images)), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    return fc2(relu(fc1(flatten(x, 1))));
  }
};

struct Mlp final : TrainModuleOf<Mlp, DigitClassifier> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = kSide * kSide, .out = 512}};
  nn::Linear fc2{*this, "fc2", {.in = 512, .out = 512}};
  nn::Linear fc3{*this, "fc3", {.in = 512, .out = kClasses}};
  Tensor operator()(const Tensor& images) const override { return fc3(relu(fc2(relu(fc1(flatten(images, 1)))))); }
};

inline std::unique_ptr<Classifier> make_model(const ClassifierSettings& s, const Generator& gen, Device device) {
  if (s.model == "cnn") return std::make_unique<LeNet>(s, gen, device);
  return std::make_unique<Mlp>(s, gen, device);
}

}  // namespace levin::examples::mnist
