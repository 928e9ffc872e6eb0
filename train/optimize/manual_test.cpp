// Manual optimization: the trainer clears nothing, loses nothing, and counts each step.
#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/device.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

struct Half : nn::Module {
  using Module::Module;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  Tensor operator()(const Tensor& x) const { return fc(x); }
};

// Two halves, each with an optimizer, whose parameters have the same names; steps are made every `window` batches.
struct ByHand : TrainModuleOf<ByHand> {
  using TrainModuleOf::TrainModuleOf;
  std::int64_t window = 1;
  std::optional<double> clip;
  bool clips_first = false;  // both halves before either steps
  nn::Linear a{*this, "a", {.in = 2, .out = 1}};
  nn::Linear b{*this, "b", {.in = 2, .out = 1}};
  std::vector<std::shared_ptr<optim::AdamW>> made;
  [[nodiscard]] bool automatic_optimization() const override { return false; }
  OptimizerConfig configure_optimizers() override {
    made.clear();
    OptimizerConfig config;
    for (nn::Linear* half : {&a, &b}) {
      made.push_back(std::make_shared<optim::AdamW>(half->parameters(), optim::AdamWOptions{.lr = 0.02}));
      config.optimizers.push_back(made.back());
    }
    return config;
  }
  StepOutput training_step(const Batch& batch, std::int64_t batch_idx) override {
    manual_backward(squared_error(a(batch[0]) + b(batch[0]), batch[1]));
    log("rows", static_cast<double>(batch.size()), {.on_step = true, .on_epoch = true});
    if ((batch_idx + 1) % window != 0 && !trainer().is_last_batch()) return {};
    for (OptimizerHandle& o : optimizers()) {
      if (clips_first) clip_gradients(o.optimizer(), clip);
    }
    for (OptimizerHandle& o : optimizers()) {
      if (!clips_first) clip_gradients(o.optimizer(), clip);
      o.step();
      o.zero_grad();
    }
    return {};
  }
  void validation_step(const Batch& batch, std::int64_t, std::int64_t) override {
    log("val_loss", squared_error(a(batch[0]) + b(batch[0]), batch[1]));
  }
};

// The loss scale that a checkpoint holds.
float scale_of(Trainer& trainer) {
  const TemporaryFolder folder;
  trainer.save_checkpoint(folder / "scale.safetensors");
  for (const auto& [name, value] : load_safetensors(folder / "scale.safetensors").tensors) {
    if (name == "levin.precision.scale") return value.item<float>();
  }
  return 0;
}

struct ManualCut : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct CutAfter : Callback {
  std::int64_t n;
  std::string file;
  CutAfter(std::int64_t count, std::string path) : n(count), file(std::move(path)) {}
  void on_train_batch_end(const StepInfo&) override {
    if (--n > 0) return;
    trainer().save_checkpoint(file);
    throw ManualCut("cut");
  }
};

constexpr std::int64_t kBatches = 7, kEpochs = 2;
TrainerOptions for_hand() {
  TrainerOptions options = silent();
  options.max_epochs = kEpochs;
  return options;
}

}  // namespace

TEST_CASE("two optimizers that both step in each of two batches make four steps") {
  ByHand module({.gen = Generator(3), .device = Device::cpu()});
  data::DataLoader data = loader(2 * 4);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  CHECK(trainer.global_step() == 4);
}

TEST_CASE("a validation inside of a window made by hand leaves its gradients") {
  const auto train = [](bool validates) {
    ByHand module({.gen = Generator(3), .device = Device::cpu()});
    module.window = 2;
    data::DataLoader data = loader(kBatches * 4), val = loader(8);
    TrainerOptions options = for_hand();
    if (validates) options.val_check_interval = 1;
    Trainer trainer(options);
    trainer.fit(module, {.train = data, .val = validates ? LoaderRefs(val) : LoaderRefs()});
    return weights_of(module);
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("a manual run that is cut after any batch resumes to the same weights, also inside a window") {
  const TemporaryFolder dir;
  const auto train = [](std::shared_ptr<Callback> cut, const std::string& from) {
    ByHand module({.gen = Generator(3), .device = Device::cpu()});
    module.window = 3;
    data::DataLoader data = loader(kBatches * 4);
    TrainerOptions options = for_hand();
    if (cut) options.callbacks = {std::move(cut)};
    Trainer trainer(options);
    trainer.fit(module, {.train = data, .ckpt_path = from});
    return weights_of(module);
  };
  const std::vector<float> whole = train(nullptr, {});
  for (std::int64_t n = 1; n <= kEpochs * kBatches; ++n) {
    CAPTURE(n);
    const std::string file = dir / "cut.safetensors";
    CHECK_THROWS_AS((void)train(std::make_shared<CutAfter>(n, file), {}), ManualCut);
    CHECK(train(nullptr, file) == whole);
  }
}

TEST_CASE("the records of manual optimization count batches, those of steps, epochs and learning rates alike") {
  const TemporaryFolder dir;
  ByHand module({.gen = Generator(3), .device = Device::cpu()});
  data::DataLoader data = loader(4 * 4), val = loader(8);
  TrainerOptions options = for_hand();
  options.log_every_n_steps = 2;
  options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = dir.path(), .name = "", .version = ""});
  options.callbacks = {
      std::make_shared<LearningRateMonitor>(LearningRateMonitorOptions{.logging_interval = LoggingInterval::step})};
  Trainer trainer(options);
  trainer.fit(module, {.train = data, .val = val});
  std::vector<std::int64_t> steps, epochs, validations, rates;
  for (const LogRecord& r : trainer.history()) {
    for (const auto& [name, value] : r.values) {
      if (name == "rows_step") steps.push_back(r.step);
      if (name == "rows_epoch") epochs.push_back(r.step);
      if (name == "val_loss") validations.push_back(r.step);
      if (name == "lr-AdamW") rates.push_back(r.step);
    }
  }
  CHECK(steps == std::vector<std::int64_t>{1, 3, 5, 7});
  CHECK(rates == steps);
  CHECK(epochs == std::vector<std::int64_t>{3, 7});
  CHECK(validations == epochs);
  CHECK(trainer.global_step() == 16);
}

TEST_CASE("clip_gradients of a manual step sees true gradients where weights have masters and the loss a scale") {
  const auto train = [](std::optional<double> clip) {
    ByHand module({.gen = Generator(3), .device = Device::cpu()});
    module.clip = clip;
    data::DataLoader data = loader(16 * 4);
    TrainerOptions options = silent();
    options.precision = "16-o2";
    options.max_epochs = 1;
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    return module.a.weight.to(DType::f32).to_vector<float>();
  };
  const std::vector<float> free = train({});
  CHECK(train(100) == free);   // true gradients are below it; times the scale, 256 or more, they are above
  CHECK(train(1e-4) != free);  // all true gradients are above it
}

TEST_CASE("two optimizers of one backward pass step under one loss scale, whenever their gradients are clipped") {
  struct Outcome {
    std::vector<float> a, b;
    double skipped = 0, scale = 0;
    bool operator==(const Outcome&) const = default;
  };
  const auto train = [](std::int64_t growth_interval, double scale, std::optional<double> clip, bool clips_first) {
    ByHand module({.gen = Generator(3), .device = Device::cpu()});
    module.clip = clip;
    module.clips_first = clips_first;
    data::DataLoader data = loader(4 * 4);
    TrainerOptions options = silent();
    options.precision = "16-o2";
    options.grad_scaler = optim::GradScalerOptions{.init_scale = scale, .growth_interval = growth_interval};
    options.max_epochs = 1;
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    CHECK(trainer.global_step() == 8);
    const auto values = [](const nn::Linear& half) { return half.weight.to(DType::f32).to_vector<float>(); };
    Outcome outcome{values(module.a), values(module.b), -1, scale_of(trainer)};
    CHECK(trainer.skipped_steps() == (scale > 1e6 ? 8 : 0));
    for (const auto& [name, value] : trainer.callback_metrics()) {
      if (name == "amp/skipped_steps") outcome.skipped = value;
    }
    return outcome;
  };
  const Outcome plain = train(1000, 16, {}, false);
  CHECK(plain.skipped == 0);
  CHECK(plain.scale == 16);
  Outcome doubled = train(1, 16, {}, false);
  CHECK(doubled.scale == 256);  // after 4 batches
  doubled.scale = plain.scale;
  CHECK(doubled == plain);
  for (const double clip : {1e-4, 1e4}) {
    const Outcome in_turn = train(1000, 16, clip, false);
    CHECK((in_turn == plain) == (clip == 1e4));
    CHECK(train(1000, 16, clip, true) == in_turn);
    CHECK(train(1, 16, clip, true).b == in_turn.b);
  }
  // Each batch that overflows halves the scale once, though both optimizers skip it.
  const Outcome skips = train(1000, 0x1p30, {}, false);
  CHECK(skips.skipped == 8);
  CHECK(skips.scale == 0x1p26);
  CHECK(train(1000, 0x1p30, 1e4, true) == skips);
}

TEST_CASE("under a loss scale a batch may clip and make no step, step in a hook, and see what was skipped") {
  enum class How : std::uint8_t { plain, skips_first, in_hook, twice };
  struct Sometimes : TrainModuleOf<Sometimes, ByHand> {
    using TrainModuleOf::TrainModuleOf;
    How how = How::plain;
    std::vector<std::int64_t> skipped;
    void step() {
      for (OptimizerHandle& o : optimizers()) o.step();
      skipped.push_back(trainer().skipped_steps());
    }
    StepOutput training_step(const Batch& batch, std::int64_t batch_idx) override {
      for (OptimizerHandle& o : optimizers()) o.zero_grad();
      const auto backward = [&] { manual_backward(squared_error(a(batch[0]) + b(batch[0]), batch[1])); };
      if (how == How::skips_first) {
        backward();
        for (OptimizerHandle& o : optimizers()) clip_gradients(o.optimizer(), 1e4);
        for (OptimizerHandle& o : optimizers()) o.zero_grad();
        if (batch_idx == 0) return {};
      }
      if (how == How::skips_first && batch_idx == 1) {  // nor are they cleared
        backward();
        for (OptimizerHandle& o : optimizers()) clip_gradients(o.optimizer(), 1e4);
        return {};
      }
      backward();
      if (how != How::in_hook) step();
      if (how == How::twice) step();
      return {};
    }
    void on_train_batch_end(const StepInfo&) override {
      if (how == How::in_hook) step();
    }
  };
  const auto train = [](How how, double scale, std::vector<std::int64_t>& skipped) {
    Sometimes module({.gen = Generator(3), .device = Device::cpu()});
    module.how = how;
    data::DataLoader data = loader(4 * 4);
    TrainerOptions options = silent();
    options.precision = "16-o2";
    options.grad_scaler = optim::GradScalerOptions{.init_scale = scale, .growth_interval = 1};
    options.max_epochs = 1;
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    skipped = module.skipped;
    return std::pair(scale_of(trainer), module.b.weight.to(DType::f32).to_vector<float>());
  };
  std::vector<std::int64_t> skipped;
  const auto plain = train(How::plain, 16, skipped);
  CHECK(plain.first == 256);
  CHECK(train(How::in_hook, 16, skipped) == plain);
  CHECK(skipped == std::vector<std::int64_t>{0, 0, 0, 0});
  CHECK(train(How::skips_first, 16, skipped).first == 64);  // two batches step
  CHECK(skipped == std::vector<std::int64_t>{0, 0});
  for (const How how : {How::plain, How::in_hook}) {
    CHECK(train(how, 0x1p30, skipped).first == 0x1p26);
    CHECK(skipped == std::vector<std::int64_t>{2, 4, 6, 8});
  }
  CHECK_THROWS_WITH_AS((void)train(How::twice, 16, skipped),
                       doctest::Contains("adamw has stepped since the last backward pass"), StateError);
}

TEST_CASE("the step-time report of manual optimization has backward and optimizer, and counts optimizer steps") {
  ByHand module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = loader(28, 4);
  Trainer trainer(for_hand());
  trainer.fit(module, {.train = data});
  const StepTimes& times = trainer.step_times();
  CHECK(times.steps() == trainer.global_step());
  CHECK(times.steps() == 2 * kBatches * kEpochs);
  CHECK(times.nanoseconds(Phase::backward) > 0);
  CHECK(times.nanoseconds(Phase::optimizer) > 0);
  CHECK(times.nanoseconds(Phase::forward) > 0);
}

TEST_CASE("param_groups returns an optimizer's groups with their numbers") {
  struct Groups : TrainModuleOf<Groups, ByHand> {
    using TrainModuleOf::TrainModuleOf;
    std::vector<ParamGroup> seen;
    void on_train_start() override {
      made.front()->set_lr(0, 0.5);
      seen = optimizers()[0].param_groups();
    }
  } module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = loader(4, 4);
  Trainer trainer(for_hand());
  trainer.fit(module, {.train = data});
  REQUIRE(module.seen.size() == 1);
  CHECK(module.seen[0].parameters.size() == 2);
  CHECK(module.seen[0].parameters[0].value == module.a.parameters()[0].value);
  CHECK(module.seen[0].lr == 0.5);
  CHECK(module.seen[0].momentum == 0.9);
  CHECK(module.seen[0].weight_decay.has_value());
}
