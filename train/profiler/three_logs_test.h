// A module for tests of the costs of a step besides its arithmetic.
#pragma once

#include <cstdint>
#include <memory>

#include "train/run/fixture_test.h"

namespace levin::test {

// Logs three scalars a batch, and calls a function of the test with the loss.
struct ThreeLogs : TrainModuleOf<ThreeLogs> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  Function<void(const Tensor& loss)> also;
  bool scheduled = false;  // AdamW with an lr of each step
  StepOutput training_step(const Batch& b, std::int64_t) override {
    Tensor loss = squared_error(fc(b[0]), b[1]);
    for (const char* name : {"a", "b", "c"}) log(name, loss);
    if (also) also(loss);
    return loss;
  }
  OptimizerConfig configure_optimizers() override {
    if (scheduled) {
      auto adamw = std::make_shared<optim::AdamW>(parameters());
      auto one_cycle =
          std::make_shared<optim::OneCycleLR>(*adamw, optim::OneCycleOptions{.max_lr = 0.1, .total_steps = 100});
      return {.optimizers = {adamw},
              .schedulers = {{.scheduler = one_cycle, .interval = SchedulerConfig::Interval::step}}};
    }
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

}  // namespace levin::test
