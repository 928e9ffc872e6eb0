// Augmentations of batches in a training module: in the hook after a batch's transfer, and inside of the step.
#include <doctest/doctest.h>

#include <cmath>

#include "levin/augment.h"
#include "tests/device.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

enum class Where { nowhere, hook, step };

struct Augmented : TrainModuleOf<Augmented> {
  Augmented(const nn::Options& options, Where place) : TrainModuleOf(options), where(place) {}
  nn::Conv2d conv{*this, "conv", {.in = 1, .out = 2, .kernel = 3, .padding = 1}};
  nn::Linear fc{*this, "fc", {.in = 2 * 6 * 6, .out = 3}};
  nn::ModuleGenerator draws{*this, "draws"};
  Where where;

  Batch augmented(Batch b) {
    Tensor x = augment::random_horizontal_flip(augment::random_crop(b[0], {.padding = {1, 1}}, draws), draws);
    x = augment::cutout(augment::random_affine(x, {.degrees = 20}, draws), 2, draws);
    const auto [images, labels] = augment::mixup(x, b[1], 0.4, draws);
    b.fields = {images, labels};
    return b;
  }
  Batch on_after_batch_transfer(Batch b) override { return where == Where::hook ? augmented(std::move(b)) : b; }
  StepOutput training_step(const Batch& given, std::int64_t) override {
    const Batch b = where == Where::step ? augmented(given) : given;
    const Tensor scores = fc(flatten(relu(conv(b[0])), 1));
    return neg(mean(sum(b[1] * log_softmax(scores, 1), {1})));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
};

struct Outcome {
  std::vector<float> weights;
  std::int64_t replayed;
};
Outcome run(Device device, Where where, Capture capture = Capture::off) {
  Generator gen(5);
  const Tensor x = randn({12, 1, 6, 6}, gen, Device::cpu());
  const std::vector<std::int64_t> classes{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
  const Tensor labels = one_hot(from_data(classes, {12}, Device::cpu()), 3).to(DType::f32);
  data::DataLoader data(data::tensor_dataset({x, labels}),
                        {.batch_size = 4, .shuffle = true, .generator = Generator(9)});
  Augmented net({.gen = Generator(3), .device = device}, where);
  TrainerOptions options = silent();
  options.max_epochs = 4;
  options.capture = capture;
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  return {weights_of(net), trainer.capture_report().replayed};
}

double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

}  // namespace

TEST_CASE("a hook that augments batches trains the weights of a step that augments them") {
  const Device cpu = Device::cpu();
  const Outcome hook = run(cpu, Where::hook);
  CHECK(hook.weights == run(cpu, Where::step).weights);
  CHECK(hook.weights == run(cpu, Where::hook).weights);
  CHECK(farthest(hook.weights, run(cpu, Where::nowhere).weights) > 0.01);
}

TEST_CASE("on a device captured steps augment anew at each replay, as steps one by one and as the cpu") {
  DEVICE_OR_SKIP();
  const Outcome cpu = run(Device::cpu(), Where::hook);
  for (const Where where : {Where::hook, Where::step}) {
    CAPTURE(int(where));
    const Outcome one_by_one = run(device, where), captured = run(device, where, Capture::step);
    CHECK(one_by_one.replayed == 0);
    CHECK(captured.replayed > 5);
    CHECK(captured.weights == one_by_one.weights);
    CHECK(farthest(captured.weights, cpu.weights) < 1e-4);
  }
}
