// A step between two records costs as much as the same step written by hand.
#include <doctest/doctest.h>

#include "tests/allocations.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

constexpr std::int64_t kFrom = 20, kTo = 40, kBatches = 50;

struct Counting : TrainModuleOf<Counting> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  std::int64_t from = 0, to = 0;
  bool logs = false;
  void at(std::int64_t batch) {
    if (batch == kFrom) from = allocations();
    if (batch == kTo) to = allocations();
  }
  Tensor loss(const Batch& b) const { return squared_error(fc(b[0]), b[1]); }
  StepOutput training_step(const Batch& b, std::int64_t batch_idx) override {
    at(batch_idx);
    Tensor l = loss(b);
    if (logs) log("loss", l, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return l;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

std::int64_t by_hand() {
  Counting net({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = loader(kBatches * 4);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  std::int64_t i = 0;
  for (const Batch& b : data) {
    net.at(i++);
    const Tensor loss = net.loss(b);
    optimizer.zero_grad();
    backward(loss);
    optimizer.step();
  }
  return net.to - net.from;
}
std::int64_t trained(TrainerOptions options, bool logs) {
  Counting net({.gen = Generator(1), .device = Device::cpu()});
  net.logs = logs;
  data::DataLoader data = loader(kBatches * 4);
  options.max_epochs = 1;
  Trainer(options).fit(net, {.train = data});
  return net.to - net.from;
}

}  // namespace

TEST_CASE("between two records the trainer allocates nothing that a loop written by hand does not") {
  if (!counts_allocations()) return skip_allocations();
  const TemporaryFolder dir;
  const std::int64_t hand = by_hand();
  CHECK(hand > 0);
  TrainerOptions options = silent();
  options.log_every_n_steps = 0;
  CHECK(trained(options, false) == hand);

  // The defaults of a Trainer, without its bar, which draws by the clock.
  options = {};
  options.default_root_dir = dir.path();
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  CHECK(trained(options, true) == hand);
}
