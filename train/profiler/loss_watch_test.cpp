// A loss that is no number is reported once, whether anything is logged or not.
#include <doctest/doctest.h>

#include <limits>

#include "tests/device.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// The loss is not finite in the batches from `from` to `to`, counted over the run.
struct Breaks : TrainModuleOf<Breaks, Probe> {
  using TrainModuleOf::TrainModuleOf;
  std::int64_t from = 0, to = 0, batch = 0;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const bool broken = batch >= from && batch < to;
    ++batch;
    return mean(b[0] * w) * (broken ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  }
  OptimizerConfig configure_optimizers() override {  // weights stay
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0})}};
  }
};

// The warning of a run of `batches` in which nothing is logged.
std::vector<std::string> told(std::int64_t from, std::int64_t to, std::int64_t batches, Device device = Device::cpu(),
                              std::int64_t n = 1) {
  Breaks module({.gen = Generator(1), .device = Device::cpu()});
  module.from = from;
  module.to = to;
  module.nn::Module::to(device);
  struct Mends : Callback {  // a NaN gradient times a rate of 0 is NaN
    void on_before_optimizer_step(optim::Optimizer& o) override { o.zero_grad(); }
  };
  data::DataLoader data = ramp(batches);
  TrainerOptions options = epochs(n);
  options.callbacks = {std::make_shared<Mends>()};
  const Warnings warnings;
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  std::vector<std::string> out;
  for (const Warning& w : warnings.all()) {
    if (w.id == "W-TRAIN-NAN") out.push_back(w.text);
  }
  return out;
}

}  // namespace

TEST_CASE("a loss that is NaN for ten batches is reported once, where nothing is logged") {
  CHECK(told(0, 0, 30).empty());
  CHECK(told(5, 14, 30).empty());  // nine in a row, then it is a number again
  const auto many = told(5, 100, 30, Device::cpu(), 2);
  REQUIRE(many.size() == 1);
  CHECK(contains(many.front(), "the loss is nan at step 14, and was not finite since step 5"));
}

TEST_CASE("a training that ends with a loss that is no number says so, however short it was") {
  const auto last = told(2, 3, 3);
  REQUIRE(last.size() == 1);
  CHECK(contains(last.front(), "the loss is nan at step 2;"));
}

TEST_CASE("a loss on a device is looked at at the end of each epoch, and no wait is added to a batch") {
  DEVICE_OR_SKIP();
  CHECK(told(0, 100, 12, device, 2).size() == 1);
  CHECK(told(0, 3, 12, device).empty());
}
