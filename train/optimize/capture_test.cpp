// Whole-step capture: recorded and replayed steps against the same steps one by one.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>

#include "levin/stream.h"
#include "tensor/device/runtime.h"
#include "tests/device.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// Everything that a step may contain: a convolution, batch norm with running statistics, dropout, products.
struct SmallNet : nn::Module {
  using Module::Module;
  nn::Conv2d conv{*this, "conv", {.in = 1, .out = 2, .kernel = 3, .padding = 1}};
  nn::BatchNorm2d norm{*this, "norm", {.features = 2}};
  nn::Dropout drop{*this, "drop", {.p = 0.25}};
  nn::Linear fc{*this, "fc", {.in = 2 * 2 * 2, .out = 3}};
  Tensor operator()(const Tensor& x) const { return fc(drop(flatten(max_pool2d(relu(norm(conv(x))), 2), 1))); }
};

// A user's own optimizer, whose update reads the learning rate on the host and ignores overflows.
class OwnDescent final : public optim::Optimizer {
 public:
  explicit OwnDescent(optim::Parameters parameters, double lr) { add("own", std::move(parameters), lr); }
  const char* name() const override { return "own"; }

 private:
  void update(int group, const float*) override {
    const NoGrad off;
    for (const ParamRef& p : group_at(group).parameters)
      copy_(*p.value, p.value->detach() - p.value->grad() * lr(group));
  }
  std::array<const char*, kMaxState> state_names(int) const override { return {}; }
};

// `huge`: the index of the sample whose values overflow f16.
data::DatasetRef pictures(std::int64_t n, std::int64_t huge = -1) {
  Generator gen(5);
  Tensor x = randn({n, 1, 4, 4}, gen, Device::cpu());
  if (huge >= 0) x.mutable_data<float>()[huge * 16] = 1e30F;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < n; ++i) labels.push_back(i % 3);
  return data::tensor_dataset({x, from_data(labels, {n}, Device::cpu())});
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(optim::Parameters)>;
template <class O, class Options>
MakeOptimizer make(Options options) {
  return [options](optim::Parameters p) { return std::make_unique<O>(std::move(p), options); };
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Outcome {
  std::string checkpoint;  // the file's bytes: weights, statistics, optimizer, schedules, generators, loss scale
  std::vector<LogRecord> log;
  Trainer::CaptureReport report;
  std::int64_t skipped = 0;
};
struct RunOptions {
  MakeOptimizer optimizer = make<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  std::string precision{};
  std::int64_t epochs = 4, huge = -1;
  std::string resume{};
};

// Four epochs of batches of 4, 4 and 2, with a rate that changes each step and clipping.
Outcome run(Device device, Capture capture, const RunOptions& r, const std::string& file) {
  Generator gen(3);
  SmallNet net({.gen = gen, .device = device});
  const auto optimizer = r.optimizer(net.parameters());
  data::DataLoader data(pictures(10, r.huge), {.batch_size = 4, .shuffle = true, .generator = Generator(9)});
  TrainerOptions options = silent();
  options.max_epochs = r.epochs;
  options.gradient_clip_val = 0.5;
  options.log_every_n_steps = 2;
  options.precision = r.precision;
  options.capture = capture;
  Trainer trainer(options);
  const auto rate = std::make_shared<optim::ExponentialLR>(*optimizer, 0.9);
  trainer.fit(
      *optimizer, data, [&](const Batch& b) { return cross_entropy(net(b[0]), b[1]); },
      {.schedulers = {{.scheduler = rate, .interval = SchedulerConfig::Interval::step}}, .ckpt_path = r.resume});
  trainer.save_checkpoint(file);
  return {.checkpoint = bytes_of(file),
          .log = trainer.history(),
          .report = trainer.capture_report(),
          .skipped = trainer.skipped_steps()};
}

void check_same(const Outcome& a, const Outcome& b) {
  CHECK(a.checkpoint == b.checkpoint);
  REQUIRE(a.log.size() == b.log.size());
  for (std::size_t i = 0; i < a.log.size(); ++i) {
    CHECK(a.log[i].step == b.log[i].step);
    REQUIRE(a.log[i].values.size() == b.log[i].values.size());
    for (std::size_t k = 0; k < a.log[i].values.size(); ++k) {
      CHECK(a.log[i].values[k].first == b.log[i].values[k].first);
      // In bits: the loss of a step that overflows may be NaN.
      CHECK(std::bit_cast<std::uint64_t>(a.log[i].values[k].second) ==
            std::bit_cast<std::uint64_t>(b.log[i].values[k].second));
    }
  }
}

}  // namespace

TEST_CASE("on a device, captured steps equal steps one by one in every bit, for each optimizer") {
  DEVICE_OR_SKIP();
  const std::vector<std::pair<std::string, MakeOptimizer>> kinds{
      {"sgd", make<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9})},
      {"adam", make<optim::Adam>(optim::AdamOptions{.lr = 0.01})},
      {"adamw", make<optim::AdamW>(optim::AdamWOptions{.lr = 0.01})},
      {"rmsprop", make<optim::RMSprop>(optim::RMSpropOptions{.lr = 0.01, .momentum = 0.5})},
      {"adagrad", make<optim::Adagrad>(optim::AdagradOptions{.lr = 0.1, .lr_decay = 0.1})},
      {"nadam", make<optim::NAdam>(optim::NAdamOptions{.lr = 0.01})},
      {"radam", make<optim::RAdam>(optim::RAdamOptions{.lr = 0.01, .beta2 = 0.9})},
      {"adamax", make<optim::Adamax>(optim::AdamaxOptions{.lr = 0.01})},
      {"adadelta", make<optim::Adadelta>(optim::AdadeltaOptions{})},
      {"lion", make<optim::Lion>(optim::LionOptions{.lr = 1e-3})},
      {"asgd", make<optim::ASGD>(optim::ASGDOptions{.lr = 0.1, .t0 = 2})},
      {"lamb", make<optim::LAMB>(optim::LAMBOptions{.lr = 0.01})},
      {"adafactor", make<optim::Adafactor>(optim::AdafactorOptions{})},
      {"rprop", make<optim::Rprop>(optim::RpropOptions{.lr = 0.01})}};
  for (const auto& [name, optimizer] : kinds) {
    CAPTURE(name);
    const TemporaryFolder dir;
    const Outcome eager = run(device, Capture::off, {.optimizer = optimizer}, dir / "eager.safetensors");
    const Outcome replayed = run(device, Capture::step, {.optimizer = optimizer}, dir / "replayed.safetensors");
    check_same(eager, replayed);
    CHECK(eager.report.replayed == 0);
    CHECK(replayed.report.prevented_by.empty());
    // 12 steps: three of the first shape and one of the second train before their record.
    CHECK(replayed.report.recorded == 2);
    CHECK(replayed.report.replayed == 12 - 3 - 1);
  }
}

TEST_CASE("on a device, captured steps with a loss scale skip the steps that steps one by one skip") {
  DEVICE_OR_SKIP();
  for (const std::string precision : {"16-mixed", "16-o2", "bf16-mixed"}) {
    CAPTURE(precision);
    const TemporaryFolder dir;
    const RunOptions options{.precision = precision, .huge = precision == "bf16-mixed" ? -1 : 7};
    const Outcome eager = run(device, Capture::off, options, dir / "eager.safetensors");
    const Outcome replayed = run(device, Capture::step, options, dir / "replayed.safetensors");
    check_same(eager, replayed);
    CHECK(replayed.report.recorded == 2);
    CHECK(eager.skipped == (options.huge >= 0 ? 4 : 0));  // once an epoch
    CHECK(replayed.skipped == eager.skipped);
  }
}

TEST_CASE("on a device, a run that is cut and resumed with captured steps ends with the bits of one that was not") {
  DEVICE_OR_SKIP();
  const TemporaryFolder dir;
  const Outcome whole = run(device, Capture::step, {.precision = "16-mixed", .epochs = 5}, dir / "whole.safetensors");
  (void)run(device, Capture::step, {.precision = "16-mixed", .epochs = 3}, dir / "cut.safetensors");
  const Outcome resumed =
      run(device, Capture::step, {.precision = "16-mixed", .epochs = 5, .resume = dir / "cut.safetensors"},
          dir / "resumed.safetensors");
  CHECK(resumed.checkpoint == whole.checkpoint);
}

TEST_CASE(
    "on a device, captured steps obey what changes between steps: a loaded state, a frozen layer, another limit") {
  DEVICE_OR_SKIP();
  struct Change : Callback {
    SmallNet* net = nullptr;
    NamedTensors first;
    void on_train_epoch_start() override {
      if (trainer().current_epoch() == 0) first = trainer().optimizer()->state_dict();
      if (trainer().current_epoch() == 2) trainer().optimizer()->load_state_dict(first);
      if (trainer().current_epoch() == 4) net->conv.weight.requires_grad_(false);
      if (trainer().current_epoch() == 5) trainer().options().gradient_clip_val = 0.01;
    }
  };
  const auto run_one = [&](Capture capture, const std::string& file) {
    Generator gen(3);
    SmallNet net({.gen = gen, .device = device});
    optim::Adam opt(net.parameters(), {.lr = 0.01});
    data::DataLoader data(pictures(12), {.batch_size = 4, .shuffle = true, .generator = Generator(9)});
    const auto change = std::make_shared<Change>();
    change->net = &net;
    TrainerOptions options = silent();
    options.max_epochs = 6;
    options.gradient_clip_val = 0.5;
    options.capture = capture;
    options.callbacks = {change};
    Trainer trainer(options);
    trainer.fit(opt, data, [&](const Batch& b) { return cross_entropy(net(b[0]), b[1]); });
    trainer.save_checkpoint(file);
    return std::pair(bytes_of(file), trainer.capture_report());
  };
  const TemporaryFolder dir;
  const auto [eager, none] = run_one(Capture::off, dir / "eager.safetensors");
  const auto [replayed, report] = run_one(Capture::step, dir / "replayed.safetensors");
  CHECK(eager == replayed);
  CHECK(none.replayed == 0);
  CHECK(report.recorded == 4);
  CHECK(report.prevented_by.empty());
}

TEST_CASE("on a device, a recorded step reads batches in the layout in which they are, channels first or last") {
  DEVICE_OR_SKIP();
  struct Turned : TrainModuleOf<Turned> {
    explicit Turned(Device there, bool turns_all)
        : TrainModuleOf({.gen = Generator(3), .device = there}), all(turns_all) {}
    nn::Conv2d conv{*this, "conv", {.in = 2, .out = 3, .kernel = 3, .padding = 1}};
    bool all;
    std::vector<bool> seen;  // whether a step, run or recorded, had the channels last in memory
    // Channels last in memory: all batches, or every second one.
    Batch on_after_batch_transfer(Batch b) override {
      if (all || trainer().batch_idx() % 2 == 0)
        b.fields[0] = permute(permute(b[0], {0, 2, 3, 1}).contiguous(), {0, 3, 1, 2});
      return b;
    }
    StepOutput training_step(const Batch& b, std::int64_t) override {
      seen.push_back(b[0].strides()[1] == 1);
      return mean(square(conv(b[0])));
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  Generator gen(5);
  const data::DatasetRef images = data::tensor_dataset({randn({24, 2, 4, 4}, gen, Device::cpu())});
  const auto run_one = [&](Capture capture, bool all) {
    Turned net(device, all);
    data::DataLoader data(images, {.batch_size = 4});
    TrainerOptions options = silent();
    options.max_epochs = 3;
    options.capture = capture;
    Trainer trainer(options);
    trainer.fit(net, {.train = data});
    CHECK((trainer.capture_report().replayed > 0) == (capture == Capture::step));
    return std::pair(net.seen, weights_of(net));
  };
  for (const bool all : {true, false}) {
    CAPTURE(all);
    const auto [eager, weights] = run_one(Capture::off, all);
    const auto [recorded, same] = run_one(Capture::step, all);
    CHECK(same == weights);
    // Both layouts are recorded, each after steps that ran.
    CHECK(std::count(recorded.begin(), recorded.end(), true) >= 2);
    CHECK((std::count(recorded.begin(), recorded.end(), false) >= 2) == !all);
    CHECK(recorded.size() < eager.size());
  }
}

TEST_CASE("on a device an optimizer that does not say it reads its numbers there is not captured, and not skipped") {
  DEVICE_OR_SKIP();
  const levin::test::Warnings quiet;
  for (const char* precision : {"32-true", "16-mixed"}) {
    Generator gen(3);
    Net net({.gen = gen, .device = device});
    OwnDescent own(net.parameters(), 0.01);
    data::DataLoader data = loader(40, 4);
    TrainerOptions options = silent();
    options.max_steps = 6;
    options.capture = Capture::step;
    options.precision = precision;
    Trainer trainer(options);
    const auto fit = [&] { trainer.fit(own, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); }); };
    if (options.precision == std::string("16-mixed")) {
      CHECK_THROWS_WITH_AS(fit(), doctest::Contains("OwnDescent does not say that it can"), ConfigError);
    } else {
      fit();
      CHECK(trainer.global_step() == 6);
      CHECK(trainer.capture_report().replayed == 0);
      CHECK(trainer.capture_report().prevented_by.find("OwnDescent does not say") == 0);
    }
  }
}

TEST_CASE("on a device, what keeps a step from being captured is named, and the step runs one by one") {
  DEVICE_OR_SKIP();
  struct Hooked : Callback {
    void on_after_backward() override {}
  };
  Generator gen(3);
  Net net({.gen = gen, .device = device});
  double seen = 0;
  Trainer* running = nullptr;
  const auto error = [&](const Batch& b) { return squared_error(net(b[0]), b[1]); };
  const auto fit = [&](const Function<Tensor(const Batch&)>& step, std::vector<std::shared_ptr<Callback>> callbacks) {
    optim::SGD sgd(net.parameters(), {.lr = 0.01});
    data::DataLoader data = loader(40, 4);
    TrainerOptions options = silent();
    options.max_steps = 6;
    options.capture = Capture::step;
    options.callbacks = std::move(callbacks);
    Trainer trainer(options);
    running = &trainer;
    trainer.fit(sgd, data, [&](const Batch& b) { return step(b); });
    CHECK(trainer.global_step() == 6);
    CHECK(trainer.capture_report().replayed == 0);
    return trainer.capture_report().prevented_by;
  };
  auto before = set_warning_handler([](const Warning&) {});
  const std::string item = fit(
      [&](const Batch& b) {
        const Tensor loss = error(b);
        seen += loss.item();
        return loss;
      },
      {});
  CAPTURE(item);
  CHECK(item.starts_with("item (capture_test.cpp:"));
  CHECK(fit(
            [&](const Batch& b) {
              running->log("constant", 3.0);
              return error(b);
            },
            {})
            .find("\"constant\"") != std::string::npos);
  CHECK(fit(
            [&](const Batch& b) {
              return error({.fields = {b[0] + tensor({1.F, 2.F}, device), b[1]}});
            },
            {})
            .find("copies from the host") != std::string::npos);
  CHECK(fit(error, {std::make_shared<Hooked>()}).find("on_after_backward") != std::string::npos);
  // Foreign code that waits for the stream itself and hides that the wait was refused.
  CHECK_FALSE(fit(
                  [&](const Batch& b) {
                    try {
                      detail::runtime::synchronize(Stream::current(device));
                    } catch (const CaptureError&) {}
                    return error(b);
                  },
                  {})
                  .empty());
  set_warning_handler(std::move(before));
  CHECK(std::isfinite(seen));
}

TEST_CASE("capture on the cpu says that it records no work and trains all the same") {
  std::vector<Warning> warnings;
  auto before = set_warning_handler([&](const Warning& w) { warnings.push_back(w); });
  const TemporaryFolder dir;
  const Outcome plain = run(Device::cpu(), Capture::off, {}, dir / "plain.safetensors");
  const Outcome asked = run(Device::cpu(), Capture::step, {}, dir / "asked.safetensors");
  set_warning_handler(std::move(before));
  check_same(plain, asked);
  CHECK(asked.report.replayed == 0);
  CHECK(asked.report.prevented_by == "the parameters are on cpu, which records no work");
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].id == "W-TRAIN-CAPTURE");
}

TEST_CASE("on a device, the memory of recorded steps is given back when fit ends") {
  DEVICE_OR_SKIP();
  Generator gen(3);
  Net net({.gen = gen, .device = device});
  optim::SGD sgd(net.parameters(), {.lr = 0.01});
  data::DataLoader data = loader(40, 4);
  TrainerOptions options = silent();
  options.max_steps = 6;
  Trainer eager(options);
  eager.fit(sgd, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
  sgd.zero_grad();
  const std::int64_t in_use = memory_stats(device).in_use;
  options.capture = Capture::step;
  {
    Trainer captured(options);
    captured.fit(sgd, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
    CHECK(captured.capture_report().replayed > 0);
    sgd.zero_grad();
  }
  CHECK(memory_stats(device).in_use == in_use);
}
