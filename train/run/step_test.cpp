// One batch and one window: order, accumulation, clipping, schedules.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/device.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

TEST_CASE("a module sees one batch in the documented order, from its start to its end") {
  std::optional<HookHandle> hook;
  const Ran ran = run(epochs(1), 1, 0, [&](Probe& p) {
    p.note_words = true;
    hook.emplace(on_gradient_complete(p.w, [&p](const Tensor&) { p.note("backward"); }));
  });
  CHECK(ran.module->words == Words{"on_train_batch_start", "training_step", "on_before_zero_grad",
                                   "optimizer_zero_grad", "on_before_backward", "backward", "on_after_backward",
                                   "on_before_optimizer_step", "configure_gradient_clipping", "optimizer_step",
                                   "on_train_batch_end"});
}

TEST_CASE("validation inside of an accumulation window leaves the training as it is") {
  TrainerOptions options = epochs(1);
  options.accumulate_grad_batches = 4;
  const double without = run(options, 8).w;
  options.val_check_interval = 2;
  const Ran ran = run(options, 8, 1);
  CHECK(ran.module->validated_after == Numbers{2, 4, 6, 8});
  CHECK(ran.w == without);
}

TEST_CASE("the optimizer steps when a window of accumulation closes, at the epoch's last batch at the latest") {
  const auto steps = [](std::int64_t k) {
    TrainerOptions options = epochs(1);
    options.accumulate_grad_batches = k;
    return run(options, 10).module->stepped_after;
  };
  CHECK(steps(4) == Numbers{4, 8, 10});
  CHECK(steps(3) == Numbers{3, 6, 9, 10});
  CHECK(steps(1) == Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  TrainerOptions options = epochs(1);
  options.accumulate_grad_batches = 3;
  CHECK(run(options, 7).module->cleared_at == Numbers{0, 3, 6});
  // x is 1 to 10: the gradient of the last window of 4 is (9 + 10) / 4.
  options.accumulate_grad_batches = 4;
  const Ran ran = run(options, 10);
  CHECK(ran.w ==
        doctest::Approx(1 - 0.1 * ((1 + 2 + 3 + 4) / 4.0 + (5 + 6 + 7 + 8) / 4.0 + (9 + 10) / 4.0)).epsilon(1e-6));
}

TEST_CASE("a schedule of accumulation changes the window by epoch") {
  const auto total = [](const std::vector<std::pair<std::int64_t, std::int64_t>>& scheduling, std::int64_t batches,
                        std::int64_t n) {
    TrainerOptions options = epochs(n);
    options.callbacks = {std::make_shared<GradientAccumulationScheduler>(scheduling)};
    return run(options, batches).steps;
  };
  CHECK(total({{1, 2}, {3, 4}}, 10, 4) == 10 + 5 + 5 + 3);
  CHECK(total({{0, 8}, {4, 4}, {8, 1}}, 16, 9) == 4 * 2 + 4 * 4 + 16);
  const GradientAccumulationScheduler s({{0, 8}, {4, 4}, {8, 1}});
  for (const auto& [epoch, factor] : {std::pair{0, 8}, {3, 8}, {4, 4}, {7, 4}, {8, 1}, {100, 1}})
    CHECK(s.accumulation_at(epoch) == factor);
  using S = GradientAccumulationScheduler;
  CHECK_THROWS_AS(S({}), ConfigError);
  CHECK_THROWS_AS(S({{-1, 2}}), ConfigError);
  CHECK_THROWS_AS(S({{0, 0}}), ConfigError);
  CHECK_THROWS_AS(S({{1, 2}, {1, 3}}), ConfigError);
  TrainerOptions options = epochs(1);
  options.accumulate_grad_batches = 2;
  options.callbacks = {std::make_shared<S>(std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 2}})};
  CHECK(contains(refused(options), "GradientAccumulationScheduler"));
}

TEST_CASE("four batches of 8 accumulated are one batch of 32") {
  const auto trained = [](std::int64_t batch_size, std::int64_t window) {
    Generator gen(3);
    Net net({.gen = gen, .device = Device::cpu()});
    net.drop.train(false);
    optim::SGD opt(net.parameters(), {.lr = 0.05});
    data::DataLoader data(points(320), {.batch_size = batch_size});
    TrainerOptions options = epochs(1);
    options.accumulate_grad_batches = window;
    Trainer trainer(options);
    trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net.fc2(tanh(net.fc1(b[0]))), b[1]); });
    CHECK(trainer.global_step() == 10);
    return weights_of(net);
  };
  const std::vector<float> one = trained(32, 1), four = trained(8, 4);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(four[i] == doctest::Approx(one[i]).epsilon(1e-6));
}

TEST_CASE("skip_epoch drops the batch, the rest of the epoch, its validation and the open window") {
  TrainerOptions options = epochs(2);
  const Ran ran = run(options, 10, 2, [](Probe& p) { p.skip_at = 5; });
  CHECK(ran.steps == 10);
  CHECK(ran.module->validation_batches == 0);
  CHECK(ran.module->epoch_ends == 2);
  CHECK(run(options, 10, 0, [](Probe& p) { p.skip_at = 0; }).epochs == 2);
  options.accumulate_grad_batches = 4;
  const Ran open = run(options, 10, 0, [](Probe& p) { p.skip_at = 5; });
  CHECK(open.steps == 2);
  CHECK_FALSE(open.module->w.grad().defined());
}

TEST_CASE("clipping happens where a window closes, and refuses a value other than the trainer's") {
  struct Clips : TrainModuleOf<Clips, Probe> {
    using TrainModuleOf::TrainModuleOf;
    double value = 0.5;
    int calls = 0;
    void configure_gradient_clipping(optim::Optimizer& o, std::optional<double>,
                                     std::optional<ClipAlgorithm>) override {
      ++calls;
      clip_gradients(o, value, ClipAlgorithm::norm);
    }
  };
  const auto fit = [](Clips& module, std::optional<double> flag) {
    data::DataLoader data = ramp(8);
    TrainerOptions options = epochs(1);
    options.accumulate_grad_batches = 4;
    options.gradient_clip_val = flag;
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
  };
  Clips module({.gen = Generator(1), .device = Device::cpu()});
  fit(module, std::nullopt);
  CHECK(module.calls == 2);
  CHECK(module.w.item() == doctest::Approx(1 - 2 * 0.1 * 0.5).epsilon(1e-5));
  module.value = 0.1;
  CHECK_THROWS_WITH_AS(fit(module, 0.5), doctest::Contains("gradient_clip_val is 0.1 and the trainer was told 0.5"),
                       ConfigError);
}

TEST_CASE("a step that returns nothing adds no gradient, and the step that is due happens all the same") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NO-LOSS"};
  struct Sometimes : TrainModuleOf<Sometimes, Probe> {
    using TrainModuleOf::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t batch_idx) override {
      if (batch_idx % 2 == 1) return {};
      return NamedTensors{{"loss", mean(b[0] * w)}, {"seen", b[0]}};
    }
  };
  struct Watch : Callback {
    Numbers with_loss;
    std::vector<std::string> outputs;
    void on_train_batch_end(const StepInfo& info) override {
      if (info.loss.defined()) with_loss.push_back(info.batch_idx);
      for (const auto& [name, t] : info.outputs) outputs.push_back(name);
    }
  };
  const auto watch = std::make_shared<Watch>();
  Sometimes module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(4);
  TrainerOptions options = epochs(1);
  options.accumulate_grad_batches = 2;
  options.callbacks = {watch};
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  CHECK(trainer.global_step() == 2);
  CHECK(watch->with_loss == Numbers{0, 2});
  CHECK(watch->outputs == std::vector<std::string>{"seen", "seen"});
  CHECK(module.w.item() == doctest::Approx(1 - 0.1 * (1 / 2.0 + 3 / 2.0)).epsilon(1e-6));
  CHECK_THROWS_AS((StepOutput(NamedTensors{{"lost", ones({}, Device::cpu())}})), ConfigError);
}

TEST_CASE("an optimizer_step that does not run the closure is an error") {
  struct Forgets : TrainModuleOf<Forgets, Probe> {
    using TrainModuleOf::TrainModuleOf;
    void optimizer_step(std::int64_t, std::int64_t, OptimizerHandle&, const Function<Tensor()>&) override {}
  };
  Forgets module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(2);
  Trainer trainer(epochs(1));
  CHECK_THROWS_WITH_AS(trainer.fit(module, {.train = data}), doctest::Contains("did not run the closure"), StateError);
}

TEST_CASE("a module that is derived further and does not name itself is refused") {
  struct Unnamed : Probe {
    using Probe::Probe;
  };
  Unnamed module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(2);
  Trainer trainer(epochs(1));
  CHECK_THROWS_WITH_AS(trainer.fit(module, {.train = data}), doctest::Contains("TrainModuleOf<Unnamed, Base>"),
                       ConfigError);
}

TEST_CASE("a plateau schedule moves by the metric that it monitors, and a missing one is an error") {
  struct Plateaus : TrainModuleOf<Plateaus, Probe> {
    using TrainModuleOf::TrainModuleOf;
    SchedulerConfig config;
    OptimizerConfig configure_optimizers() override {
      auto sgd = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.0});
      config.scheduler = std::make_shared<optim::ReduceLROnPlateau>(*sgd, optim::PlateauOptions{.patience = 0});
      return {.optimizers = {sgd}, .schedulers = {config}};
    }
  };
  Plateaus module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(2), val = ramp(1);
  Trainer trainer(epochs(3));
  CHECK_THROWS_WITH_AS(trainer.fit(module, {.train = data, .val = val}), doctest::Contains("needs a metric"),
                       ConfigError);
  module.config.monitor = "nothing";
  CHECK_THROWS_WITH_AS(trainer.fit(module, {.train = data, .val = val}), doctest::Contains("known are: val_loss"),
                       ConfigError);
  module.config.monitor = "val_loss";
  Trainer again(epochs(3));
  again.fit(module, {.train = data, .val = val});
  CHECK(again.schedulers().front().scheduler->steps() == 3);
}

TEST_CASE("after its first step a run takes no more memory from the system: steps 2 to 100 live on what was freed") {
  struct Wide : TrainModuleOf<Wide> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc1{*this, "fc1", {.in = 2, .out = 256}};
    nn::Linear fc2{*this, "fc2", {.in = 256, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      Tensor loss = squared_error(fc2(tanh(fc1(b[0]))), b[1]);
      log("loss", loss, {.on_step = true, .on_epoch = true});
      return loss;
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
    }
  };
  // The allocator's memory from the system, in use and kept. An allocator that keeps no blocks (simt, builds with
  // AddressSanitizer) has only memory in use, which must not grow.
  struct Held : Callback {
    Device device;
    std::vector<std::int64_t> at, peaks;
    explicit Held(Device d) : device(d) {}
    void on_train_batch_end(const StepInfo&) override {
      const MemoryStats now = memory_stats(device);
      at.push_back(now.in_use + now.cached);
      peaks.push_back(now.peak);
    }
  };
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices) {
    CAPTURE(text(device));
    synchronize(device);  // other tests' memory that a stream has yet to pass is cached, too
    release_cached_memory(device);
    reset_peak_memory(device);
    Wide module({.gen = Generator(1), .device = device});
    data::DataLoader data = loader(100 * 64, 64);
    const auto held = std::make_shared<Held>(device);
    TrainerOptions options = epochs(1);
    options.callbacks = {held};
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    REQUIRE(held->at.size() == 100);
    for (std::size_t step = 2; step < 100; ++step) {
      CAPTURE(step);
      CHECK(held->at[step] == held->at[1]);
      CHECK(held->peaks[step] == held->peaks[1]);
    }
  }
}
