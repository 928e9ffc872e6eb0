// What the program mnist trains: its models and their training. In a header, because `levin plan` plans them, too.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/digits.h"
#include "examples/mnist_results.h"
#include "examples/training.h"

namespace levin::examples::mnist {

struct Settings : TrainingSettings {
  std::string model = "cnn", capture = "auto", optimizer = "adamw", scheduler = "onecycle", clip_algorithm = "norm",
              limit_val_batches, val_check_interval, overfit_batches, early_stop, find_batch_size, profile;
  std::int64_t check_val_every_n_epoch = 1, swa = 0, memory_limit = 0;
  double clip = 0, ema = 0;
  bool find_lr = false;
  bool validates = false;  // a flag asked for it
};

// ---- Models: images [N, 1, 28, 28] -> logits [N, 10]

struct Classifier : TrainModule {
  Classifier(const Settings& s, const Generator& gen, Device device)
      : TrainModule({.gen = gen.fork("model"), .device = device}), settings(s) {
    tunable("lr", &settings.lr);
    tunable("batch_size", &settings.batch_size);
  }
  Settings settings;         // --find-lr and --find-batch-size set it, too
  std::int64_t batches = 0;  // per epoch; set before a run
  // For --find-batch-size: loaders with batches of settings.batch_size. The search tries validation as well where the
  // run validates.
  Function<std::unique_ptr<data::DataLoader>(const Settings&, data::Split)> loader_of;
  std::unique_ptr<data::DataLoader> train_loader() override {
    return loader_of ? loader_of(settings, data::Split::train) : nullptr;
  }
  std::unique_ptr<data::DataLoader> val_loader() override {
    return loader_of ? loader_of(settings, data::Split::test) : nullptr;
  }

  virtual Tensor operator()(const Tensor& images) const = 0;
  Batch example_input() override { return {.fields = {empty({1, 1, kSide, kSide}, Device::meta())}}; }

  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor loss = cross_entropy((*this)(b[0]), b[1]);
    log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return loss;
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    const Tensor logits = (*this)(b[0]);
    log("val_loss", cross_entropy(logits, b[1]), {.prog_bar = true});
    log("val_accuracy", accuracy(logits, b[1]));
  }
  OptimizerConfig configure_optimizers() override;
};

struct LeNet final : TrainModuleOf<LeNet, Classifier> {
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

struct Mlp final : TrainModuleOf<Mlp, Classifier> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = kSide * kSide, .out = 512}};
  nn::Linear fc2{*this, "fc2", {.in = 512, .out = 512}};
  nn::Linear fc3{*this, "fc3", {.in = 512, .out = kClasses}};
  Tensor operator()(const Tensor& images) const override { return fc3(relu(fc2(relu(fc1(flatten(images, 1)))))); }
};

inline std::unique_ptr<Classifier> make_model(const Settings& s, const Generator& gen, Device device) {
  if (s.model == "cnn") return std::make_unique<LeNet>(s, gen, device);
  return std::make_unique<Mlp>(s, gen, device);
}

// ---- How it is trained

inline std::shared_ptr<optim::Optimizer> make_optimizer(const Settings& s, std::vector<ParamRef> parameters) {
  if (s.optimizer == "sgd")
    return std::make_shared<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = s.lr, .momentum = 0.9});
  if (s.optimizer == "adam")
    return std::make_shared<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = s.lr});
  return std::make_shared<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = s.lr, .weight_decay = 1e-2});
}

// Optimizer steps of all requested epochs, whatever --max-steps and --max-time say: so a run that is cut and resumed
// equals an uninterrupted one.
inline std::int64_t planned_steps(const Settings& s, std::int64_t batches) {
  const std::int64_t steps = batches / s.accumulate + (batches % s.accumulate > 0 ? 1 : 0);
  std::int64_t planned = 0;
  if (__builtin_mul_overflow(s.epochs, steps, &planned))
    fail<ConfigError>("--epochs: ", s.epochs, " epochs of ", steps,
                      " batches are more steps than can be counted; expected ",
                      std::numeric_limits<std::int64_t>::max() / steps, " epochs at most");
  return planned;
}

inline OptimizerConfig Classifier::configure_optimizers() {
  const std::shared_ptr<optim::Optimizer> optimizer = make_optimizer(settings, parameters());
  OptimizerConfig config{.optimizers = {optimizer}};
  const std::int64_t planned = planned_steps(settings, batches);
  if (planned == 0 || settings.scheduler == "constant") return config;
  std::shared_ptr<optim::Scheduler> scheduler;
  if (settings.scheduler == "cosine")
    scheduler = std::make_shared<optim::CosineAnnealingLR>(*optimizer, planned);
  else
    scheduler = std::make_shared<optim::OneCycleLR>(
        *optimizer, optim::OneCycleOptions{.max_lr = settings.lr, .total_steps = planned});
  config.schedulers.push_back({.scheduler = scheduler, .interval = SchedulerConfig::Interval::step});
  return config;
}

}  // namespace levin::examples::mnist
