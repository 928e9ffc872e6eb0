// What the program cifar trains, and what the training does to a batch.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/classifier.h"
#include "examples/resnet.h"
#include "levin/augment.h"

namespace levin::examples::cifar {

inline constexpr std::int64_t kSide = 32, kClasses = 10;

struct Settings : ClassifierSettings {
  bool crop = true, flip = true, cutout = true, mixup = false;  // of --augment
};

struct ResNetClassifier final : TrainModuleOf<ResNetClassifier, Classifier> {
  ResNetClassifier(const ClassifierSettings& s, bool mixup, const Generator& gen, Device device)
      : TrainModuleOf(s, gen, device), mixes(mixup) {
    add_resnet(net, s.model == "resnet20" ? 3 : 1, kClasses);
  }
  const bool mixes;
  nn::ModuleGenerator mixing{*this, "mixing"};

  Batch example_input() override { return {.fields = {empty({1, 3, kSide, kSide}, Device::meta())}}; }
  Batch on_after_batch_transfer(Batch b) override {
    if (!mixes || !is_training()) return b;
    const augment::Mixed mixed = augment::mixup(b[0], one_hot(b[1], kClasses).to(b[0].dtype()), 0.2, mixing);
    b.fields = {mixed.images, mixed.labels};
    return b;
  }
  // Mixed labels are probabilities [N, classes].
  [[nodiscard]] Tensor criterion(const Tensor& logits, const Batch& b) const override {
    if (b[1].rank() == 1) return Classifier::criterion(logits, b);
    const double smoothing = settings.label_smoothing;
    const Tensor target = b[1] * (1 - smoothing) + smoothing / kClasses;
    return -mean(sum(target.to(DType::f32) * log_softmax(logits, 1).to(DType::f32), {1}));
  }
};

}  // namespace levin::examples::cifar
