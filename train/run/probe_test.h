// A module of one weight that notes the calls of the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/run/fixture_test.h"

namespace levin::test {

using Words = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

// One weight, which starts at 1; the loss of a batch is the mean of w x.
struct Probe : TrainModuleOf<Probe> {
  using TrainModuleOf::TrainModuleOf;
  nn::Parameter w{*this, "w", ones({1}, Device::cpu())};
  double lr = 0.1;
  std::int64_t skip_at = -1;
  Words words;              // hooks of a step
  Numbers validated_after;  // batches trained when validations began, without sanity checks
  Numbers stepped_after;    // batches of the epoch, the current one included, when the optimizer stepped
  Numbers cleared_at;       // batch_idx when gradients were cleared
  Numbers samples;          // indices of trained samples
  std::int64_t validation_batches = 0, backwards = 0, epoch_ends = 0;
  bool note_words = false;

  void note(const char* word) {
    if (note_words) words.emplace_back(word);
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    note("training_step");
    for (const std::int64_t i : b.indices) samples.push_back(i);
    return mean(b[0] * w);
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    ++validation_batches;
    log("val_loss", mean(b[0] * w));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = lr})}};
  }
  BatchStart on_train_batch_start(const StepInfo& info) override {
    note("on_train_batch_start");
    return info.batch_idx == skip_at ? BatchStart::skip_epoch : BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo&) override { note("on_train_batch_end"); }
  void on_train_epoch_end() override { ++epoch_ends; }
  void on_validation_start() override {
    if (!trainer().sanity_checking()) validated_after.push_back(trainer().total_batch_idx());
  }
  void on_before_zero_grad(optim::Optimizer&) override { note("on_before_zero_grad"); }
  void optimizer_zero_grad(std::int64_t, std::int64_t batch_idx, optim::Optimizer& o) override {
    note("optimizer_zero_grad");
    cleared_at.push_back(batch_idx);
    o.zero_grad();
  }
  void on_before_backward(const Tensor&) override { note("on_before_backward"); }
  void on_after_backward() override {
    note("on_after_backward");
    ++backwards;
  }
  void on_before_optimizer_step(optim::Optimizer&) override {
    note("on_before_optimizer_step");
    stepped_after.push_back(trainer().batch_idx() + 1);
  }
  void configure_gradient_clipping(optim::Optimizer& o, std::optional<double> value,
                                   std::optional<ClipAlgorithm> algorithm) override {
    note("configure_gradient_clipping");
    clip_gradients(o, value, algorithm);
  }
  void optimizer_step(std::int64_t, std::int64_t, OptimizerHandle& o, const Function<Tensor()>& closure) override {
    (void)o.step(closure);
    note("optimizer_step");
  }
};

// Two layers, each with an optimizer of its own; the module steps both in each batch.
struct TwoSteps : TrainModuleOf<TwoSteps> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear a{*this, "a", {.in = 1, .out = 1}}, b{*this, "b", {.in = 1, .out = 1}};
  [[nodiscard]] bool automatic_optimization() const override { return false; }
  OptimizerConfig configure_optimizers() override {
    OptimizerConfig config;
    for (nn::Linear* half : {&a, &b})
      config.optimizers.push_back(std::make_shared<optim::SGD>(half->parameters(), optim::SGDOptions{.lr = 0.1}));
    return config;
  }
  StepOutput training_step(const Batch& batch, std::int64_t) override {
    manual_backward(mean(a(batch[0]) + b(batch[0])));
    for (OptimizerHandle& o : optimizers()) o.step();
    return {};
  }
};

struct Ran {
  std::unique_ptr<Probe> module;
  std::int64_t steps = 0, epochs = 0;
  std::vector<LogRecord> history;
  double w = 0;
};

// x of sample i is i + 1, so the gradient differs between batches.
inline data::DataLoader ramp(std::int64_t batches, std::int64_t batch_size = 1, bool shuffle = false) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < batches * batch_size; ++i) x.push_back(static_cast<float>(i + 1));
  return data::DataLoader(data::tensor_dataset({from_data<float>(x, {batches * batch_size, 1}, Device::cpu())}),
                          {.batch_size = batch_size, .shuffle = shuffle, .generator = Generator(4)});
}

inline Ran run(TrainerOptions options, std::int64_t batches, std::int64_t val_batches = 0,
               const Function<void(Probe&)>& change = {}) {
  Ran ran{.module = std::make_unique<Probe>(nn::Options{.gen = Generator(1), .device = Device::cpu()}), .history = {}};
  if (change) change(*ran.module);
  data::DataLoader train = ramp(batches), val = ramp(std::max<std::int64_t>(1, val_batches));
  Trainer trainer(std::move(options));
  trainer.fit(*ran.module, {.train = train, .val = val_batches > 0 ? &val : nullptr});
  ran.steps = trainer.global_step();
  ran.epochs = trainer.current_epoch();
  ran.history = trainer.history();
  ran.w = ran.module->w.item();
  return ran;
}

inline TrainerOptions epochs(std::int64_t n) {
  TrainerOptions options = silent();
  options.max_epochs = n;
  return options;
}
inline std::string refused(const TrainerOptions& options, std::int64_t batches = 10, std::int64_t val_batches = 4) {
  try {
    (void)run(options, batches, val_batches);
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}
inline bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace levin::test
