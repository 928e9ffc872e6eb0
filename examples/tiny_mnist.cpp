// A convolutional network learns handwritten digits, in less than a minute: ./run tiny_mnist
#include <levin/levin.h>

#include <cstdio>

#include "examples/digits.h"  // finds MNIST, or downloads it
using namespace levin;

struct Net : TrainModuleOf<Net> {
  using TrainModuleOf::TrainModuleOf;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 16, .kernel = 3, .padding = 1}};
  nn::Conv2d conv2{*this, "conv2", {.in = 16, .out = 32, .kernel = 3, .padding = 1}};
  nn::Linear fc{*this, "fc", {.in = 32 * 7 * 7, .out = 10}};

  Tensor operator()(const Tensor& images) const {  // [N, 1, 28, 28] -> [N, 10]
    Tensor x = max_pool2d(relu(conv1(images)), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    return fc(flatten(x, 1));
  }
  StepOutput training_step(const Batch& batch, std::int64_t) override {
    Tensor loss = cross_entropy((*this)(batch[0]), batch[1]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 2e-3})}};
  }
};

int main() {
  Generator gen(1);
  examples::Digits digits = examples::find_digits("", gen.fork("digits"));
  std::puts(digits.said.c_str());
  data::DataLoader train(digits.train,
                         {.batch_size = 64, .shuffle = true, .num_workers = 1, .generator = gen.fork("order")});
  data::DataLoader test(digits.test, {.batch_size = 1000});

  Net net({.gen = gen.fork("net"), .device = Device::cpu()});
  Trainer trainer(TrainerOptions::from_env({.logger = false, .max_epochs = 2, .enable_checkpointing = false}));
  trainer.fit(net, {.train = train});
  const double right = trainer.evaluate(net, test, [&](const Batch& b) { return accuracy(net(b[0]), b[1]); });
  std::printf("test accuracy %.2f %%\n", 100 * right);
}
