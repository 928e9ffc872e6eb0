#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <stdexcept>

#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

using Words = std::vector<std::string>;

// Notes every hook that is called.
template <class Base>
struct Recording : Base {
  using Base::Base;
  Words* words = nullptr;
  std::string who;
  void note(const char* hook) { words->push_back(who + hook); }
  void on_fit_start() override { note("on_fit_start"); }
  void on_fit_end() override { note("on_fit_end"); }
  void on_train_start() override { note("on_train_start"); }
  void on_train_end() override { note("on_train_end"); }
  void on_train_epoch_start() override { note("on_train_epoch_start"); }
  void on_train_epoch_end() override { note("on_train_epoch_end"); }
  BatchStart on_train_batch_start(const StepInfo&) override {
    note("on_train_batch_start");
    return BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo&) override { note("on_train_batch_end"); }
  void on_before_zero_grad(optim::Optimizer&) override { note("on_before_zero_grad"); }
  void on_before_backward(const Tensor&) override { note("on_before_backward"); }
  void on_after_backward() override { note("on_after_backward"); }
  void on_before_optimizer_step(optim::Optimizer&) override { note("on_before_optimizer_step"); }
  void on_validation_start() override { note("on_validation_start"); }
  void on_validation_end() override { note("on_validation_end"); }
  void on_validation_epoch_start() override { note("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { note("on_validation_epoch_end"); }
  void on_validation_batch_start(const StepInfo&) override { note("on_validation_batch_start"); }
  void on_validation_batch_end(const StepInfo&) override { note("on_validation_batch_end"); }
  void on_exception(const std::exception& e) override { note((std::string("on_exception ") + e.what()).c_str()); }
};

struct RecordingCallback : Recording<Callback> {
  bool last = false;
  bool after_module() const override { return last; }
};

struct RecordingModule : TrainModuleOf<RecordingModule, Recording<TrainModule>> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  StepOutput training_step(const Batch& b, std::int64_t) override {
    note("training_step");
    return squared_error(fc(b[0]), b[1]);
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    note(fc.is_training() ? "validation_step in training mode" : "validation_step");
    log("val_loss", squared_error(fc(b[0]), b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

// A callback that calls a lambda.
struct AtBatchEnd : Callback {
  Function<void(const StepInfo&)> act;
  explicit AtBatchEnd(Function<void(const StepInfo&)> f) : act(std::move(f)) {}
  void on_train_batch_end(const StepInfo& info) override { act(info); }
};

struct Counting {
  std::int64_t steps = 0, epochs = 0;
};
// Trains the small net under these options, and returns how far it came.
Counting train(TrainerOptions options, data::DataLoader& data) {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.05});
  Trainer trainer(options);
  trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
  return {.steps = trainer.global_step(), .epochs = trainer.current_epoch()};
}

}  // namespace

TEST_CASE("one batch runs its hooks in the order of the documentation, callbacks before the module") {
  Words words;
  Generator gen(1);
  RecordingModule module({.gen = gen, .device = Device::cpu()});
  module.words = &words;
  module.who = "m.";
  auto callback = std::make_shared<RecordingCallback>();
  callback->words = &words;
  callback->who = "c.";
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.limit_train_batches = 1;
  options.limit_val_batches = 1;
  options.callbacks = {callback};
  data::DataLoader data = loader(8), val = loader(8);
  Trainer trainer(options);
  trainer.fit(module, {.train = &data, .val = &val});

  Words expected;
  const auto both = [&](const std::string& hook) {
    expected.push_back("c." + hook);
    expected.push_back("m." + hook);
  };
  both("on_fit_start");
  both("on_train_start");
  both("on_train_epoch_start");
  both("on_train_batch_start");
  expected.push_back("m.training_step");
  both("on_before_zero_grad");
  both("on_before_backward");
  both("on_after_backward");
  both("on_before_optimizer_step");
  both("on_train_batch_end");
  both("on_validation_start");
  both("on_validation_epoch_start");
  both("on_validation_batch_start");
  expected.push_back("m.validation_step");
  both("on_validation_batch_end");
  both("on_validation_epoch_end");
  both("on_validation_end");
  both("on_train_epoch_end");
  both("on_train_end");
  both("on_fit_end");
  CHECK(words == expected);
  CHECK(module.fc.is_training());
}

TEST_CASE("a hook that validates another module leaves the one that is trained") {
  const auto weights = [](bool validate_other) {
    Generator gen(1), other_gen(2);
    Words words;
    RecordingModule module({.gen = gen, .device = Device::cpu()});
    RecordingModule other({.gen = other_gen, .device = Device::cpu()});
    module.words = other.words = &words;
    data::DataLoader data = loader(8), val = loader(8);
    TrainerOptions options = silent();
    options.max_epochs = 3;
    Trainer* running = nullptr;
    options.callbacks = {std::make_shared<AtBatchEnd>([&](const StepInfo& info) {
      if (validate_other && info.batch_idx == 0) (void)running->validate(other, val);
    })};
    Trainer trainer(options);
    running = &trainer;
    trainer.fit(module, {.train = &data});
    CHECK_THROWS_AS((void)other.trainer(), StateError);
    return weights_of(module);
  };
  CHECK(weights(true) == weights(false));
}

TEST_CASE("a callback that asks for it sees the end of an epoch after the module") {
  Words words;
  Generator gen(1);
  RecordingModule module({.gen = gen, .device = Device::cpu()});
  module.words = &words;
  module.who = "m.";
  auto early = std::make_shared<RecordingCallback>(), late = std::make_shared<RecordingCallback>();
  for (auto& c : {early, late}) c->words = &words;
  early->who = "early.";
  late->who = "late.";
  late->last = true;
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.callbacks = {late, early};
  data::DataLoader data = loader(8);
  Trainer(options).fit(module, {.train = &data});
  const auto at = [&](const char* word) { return std::find(words.begin(), words.end(), word) - words.begin(); };
  CHECK(at("early.on_train_epoch_end") < at("m.on_train_epoch_end"));
  CHECK(at("m.on_train_epoch_end") < at("late.on_train_epoch_end"));
}

TEST_CASE(
    "an epoch ends for callbacks, the module, EarlyStopping and last for ModelCheckpoint, however they are listed") {
  struct Stopping : EarlyStopping {
    Words* words;
    explicit Stopping(Words* w) : EarlyStopping({.monitor = "score"}), words(w) {}
    void on_train_epoch_end() override {
      words->emplace_back("stopping");
      EarlyStopping::on_train_epoch_end();
    }
  };
  struct Saving : ModelCheckpoint {
    Words* words;
    explicit Saving(Words* w) : words(w) {}
    void on_train_epoch_end() override {
      words->emplace_back("saving");
      ModelCheckpoint::on_train_epoch_end();
    }
  };
  struct Scored : TrainModuleOf<Scored, RecordingModule> {
    using TrainModuleOf::TrainModuleOf;
    void on_train_epoch_end() override {
      note("module");
      log("score", 1.0);  // in time for EarlyStopping
    }
  };
  const TemporaryFolder dir;
  Words words, all;
  Scored module({.gen = Generator(1), .device = Device::cpu()});
  module.words = &all;
  const auto plain = std::make_shared<RecordingCallback>();
  plain->words = &all;
  const auto saving = std::make_shared<Saving>(&all);
  TrainerOptions options = silent();
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  options.max_epochs = 1;
  options.callbacks = {saving, std::make_shared<Stopping>(&all), plain};
  data::DataLoader data = loader(8);
  Trainer(options).fit(module, {.train = &data});
  for (const std::string& word : all) {
    if (word == "saving" || word == "stopping" || word == "module" || word == "on_train_epoch_end")
      words.push_back(word);
  }
  CHECK(words == Words{"on_train_epoch_end", "module", "stopping", "saving"});
  CHECK_FALSE(saving->best_model_path().empty());
}

TEST_CASE("gradients are cleared after the forward pass: the step before's are there until then") {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.05});
  TrainerOptions options = silent();
  options.max_steps = 3;
  data::DataLoader data = loader();
  std::vector<bool> seen;
  Trainer(options).fit(opt, data, [&](const Batch& b) {
    seen.push_back(net.parameters()[0].value->grad().defined());
    return squared_error(net(b[0]), b[1]);
  });
  CHECK(seen == std::vector<bool>{false, true, true});
}

TEST_CASE("limits of epochs, steps and batches are kept") {
  data::DataLoader data = loader(40, 4);  // 10 batches
  TrainerOptions options = silent();
  options.max_epochs = 2;
  CHECK(train(options, data).steps == 20);
  options.max_steps = 13;
  const Counting cut = train(options, data);
  CHECK(cut.steps == 13);
  CHECK(cut.epochs == 1);  // the second one is not complete
  options.max_steps = -1;
  options.limit_train_batches = 0.35;
  CHECK(train(options, data).steps == 6);
  options.limit_train_batches = 100;
  CHECK(train(options, data).steps == 20);
  options.limit_train_batches = 1;
  CHECK(train(options, data).steps == 2);
  options.limit_train_batches = 0;
  CHECK(train(options, data).steps == 0);
  options.limit_train_batches = 0.01;
  CHECK_THROWS_WITH_AS(train(options, data), doctest::Contains("0.1"), ConfigError);
  options.limit_train_batches = -1;
  CHECK_THROWS_AS(train(options, data), ConfigError);
  options.limit_train_batches = 1.5;
  CHECK_THROWS_AS(train(options, data), ConfigError);
}

TEST_CASE("the steps of a run are as many as epochs, batches and max_steps allow, and at most the largest number") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  data::DataLoader data = loader(40, 4);  // 10 batches
  const auto estimate = [&](std::int64_t epochs, std::int64_t steps) {
    TrainerOptions options = silent();
    options.max_epochs = epochs;
    options.max_steps = steps;
    std::optional<std::int64_t> found;
    Trainer* running = nullptr;
    options.callbacks = {std::make_shared<AtBatchEnd>([&](const StepInfo&) {
      found = running->estimated_stepping_batches();
      running->request_stop();
    })};
    Generator gen(3);
    Net net({.gen = gen, .device = Device::cpu()});
    optim::SGD opt(net.parameters(), {.lr = 0.05});
    Trainer trainer(options);
    running = &trainer;
    trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
    return found;
  };
  CHECK(estimate(3, -1) == 30);
  CHECK(estimate(3, 12) == 12);
  CHECK(estimate(-1, 12) == 12);
  CHECK(estimate(-1, -1) == std::nullopt);
  CHECK(estimate(kMost, -1) == kMost);
  CHECK(estimate(kMost / 10, -1) == kMost / 10 * 10);
  CHECK(estimate(kMost / 10 + 1, -1) == kMost);
  CHECK(estimate(kMost, 12) == 12);
}

TEST_CASE("a sampler that gives fewer batches than it promised is refused, it does not loop for ever") {
  struct Short final : data::BatchSampler {
    std::int64_t size() const override { return 5; }
    std::vector<std::vector<std::int64_t>> batches(std::int64_t) const override { return {{0, 1}, {2, 3}}; }
  };
  data::DataLoader data(points(8), {.batch_sampler = std::make_shared<Short>()});
  TrainerOptions options = silent();
  options.max_epochs = 3;
  CHECK_THROWS_WITH_AS(train(options, data), doctest::Contains("gave 2 batches for epoch 0, its size() is 5"),
                       DataError);
}

TEST_CASE("options out of range are refused with the option's name") {
  const auto refused = [](auto change) {
    TrainerOptions options = silent();
    change(options);
    try {
      const Trainer trainer(options);
    } catch (const ConfigError& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  CHECK(refused([](TrainerOptions& o) { o.max_epochs = -2; }).find("max_epochs is -2") != std::string::npos);
  CHECK(refused([](TrainerOptions& o) { o.max_steps = -5; }).find("max_steps is -5") != std::string::npos);
  CHECK(refused([](TrainerOptions& o) { o.log_every_n_steps = -1; }).find("log_every_n_steps") != std::string::npos);
  CHECK(refused([](TrainerOptions& o) { o.gradient_clip_val = std::nan(""); }).find("gradient_clip_val is NaN") !=
        std::string::npos);
  const auto says = [&](auto change, const char* what) { return refused(change).find(what) != std::string::npos; };
  CHECK(says([](TrainerOptions& o) { o.min_epochs = 5, o.max_epochs = 1; }, "min_epochs is 5 and max_epochs 1"));
  CHECK(says([](TrainerOptions& o) { o.min_steps = 5, o.max_steps = 1; }, "min_steps is 5 and max_steps 1"));
  CHECK(refused([](TrainerOptions& o) { o.min_epochs = 5, o.max_epochs = -1; }) == "accepted");
  CHECK(refused([](TrainerOptions& o) {
          o.callbacks = {std::make_shared<ProgressBar>()};
        }).find("enable_progress_bar") != std::string::npos);
  CHECK(refused([](TrainerOptions& o) {
          o.callbacks = {std::make_shared<ModelCheckpoint>()};
        }).find("enable_checkpointing") != std::string::npos);
  CHECK(refused([](TrainerOptions&) {}) == "accepted");
}

TEST_CASE("options that were changed to what is out of range are refused by the next fit, before any work") {
  data::DataLoader data = loader();
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.05});
  const std::vector<float> before = weights_of(net);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  trainer.options().log_every_n_steps = -1;
  CHECK_THROWS_WITH_AS(trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); }),
                       doctest::Contains("log_every_n_steps is -1"), ConfigError);
  CHECK(weights_of(net) == before);
}

// Without validation_step and test_step.
struct OnlyTraining : TrainModuleOf<OnlyTraining> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  StepOutput training_step(const Batch& b, std::int64_t) override { return squared_error(fc(b[0]), b[1]); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

TEST_CASE("a missing step is refused with the name of the call that needs it") {
  Generator gen(3);
  OnlyTraining module({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = loader();
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.validate(module, data),
                       doctest::Contains("validate: the module has no validation_step; override it"), ConfigError);
  CHECK_THROWS_WITH_AS(trainer.test(module, data), doctest::Contains("test: the module has no test_step"), ConfigError);
}

TEST_CASE("an interrupt is reported with the name of the call that it ended") {
  struct Module : TrainModuleOf<Module, OnlyTraining> {
    using TrainModuleOf::TrainModuleOf;
    void validation_step(const Batch&, std::int64_t, std::int64_t) override {}
    void test_step(const Batch&, std::int64_t, std::int64_t) override {}
  };
  Generator gen(3);
  Module module({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = loader();
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.handle_signals = true;
  struct Raise : Callback {
    void on_train_batch_end(const StepInfo&) override { raise(SIGINT); }
    void on_validation_batch_end(const StepInfo&) override { raise(SIGINT); }
    void on_test_batch_end(const StepInfo&) override { raise(SIGTERM); }
  };
  options.callbacks = {std::make_shared<Raise>()};
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(module, {.train = &data}), doctest::Contains("fit: stopped by SIGINT after 1 "),
                       InterruptedError);
  CHECK_THROWS_WITH_AS(
      trainer.validate(module, data),
      doctest::Contains("validate: stopped by SIGINT after 1 optimizer steps; an evaluation changes nothing"),
      InterruptedError);
  CHECK_THROWS_WITH_AS(trainer.test(module, data), doctest::Contains("test: stopped by SIGTERM"), InterruptedError);
  const auto raising = [](const Batch& b) {
    raise(SIGINT);
    return sum(b[1]);
  };
  CHECK_THROWS_WITH_AS((void)trainer.evaluate(module, data, raising), doctest::Contains("evaluate: stopped by SIGINT"),
                       InterruptedError);
  CHECK(trainer.stop_signal() == SIGINT);
}

TEST_CASE("a stop request ends the run after its batch and the epoch counts as done") {
  data::DataLoader data = loader(40, 4);
  TrainerOptions options = silent();
  options.max_epochs = 3;
  std::int64_t ends = 0;
  auto callback = std::make_shared<AtBatchEnd>([&](const StepInfo&) { ++ends; });
  auto stopper = std::make_shared<AtBatchEnd>([](const StepInfo&) {});
  stopper->act = [s = stopper.get()](const StepInfo& info) {
    if (info.batch_idx == 4) s->trainer().request_stop();
  };
  options.callbacks = {callback, stopper};
  const Counting counted = train(options, data);
  stopper->act = {};
  CHECK(counted.steps == 5);
  CHECK(counted.epochs == 1);
  CHECK(ends == 5);
}

TEST_CASE("skip_epoch leaves the batch untrained and continues with the next epoch") {
  struct Skip : Callback {
    std::int64_t epoch_ends = 0;
    BatchStart on_train_batch_start(const StepInfo& info) override {
      return info.batch_idx == 5 ? BatchStart::skip_epoch : BatchStart::proceed;
    }
    void on_train_epoch_end() override { ++epoch_ends; }
  };
  auto skip = std::make_shared<Skip>();
  data::DataLoader data = loader(40, 4);
  TrainerOptions options = silent();
  options.max_epochs = 2;
  options.callbacks = {skip};
  const Counting counted = train(options, data);
  CHECK(counted.steps == 10);
  CHECK(counted.epochs == 2);
  CHECK(skip->epoch_ends == 2);
}

TEST_CASE("evaluate weights batches by size, in eval mode, and restores every module's own mode") {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  net.fc1.train(false);  // frozen by hand
  data::DataLoader data(
      data::tensor_dataset({tensor({1.f, 1.f, 1.f, 1.f, 2.f, 2.f, 2.f, 2.f, 6.f, 6.f}, Device::cpu())}),
      {.batch_size = 4});
  Trainer trainer(silent());
  CHECK_THROWS_AS((void)trainer.evaluate(data, [](const Batch& b) { return mean(b[0]); }), StateError);
  bool training = true, recording = true;
  const double value = trainer.evaluate(net, data, [&](const Batch& b) {
    training = net.drop.is_training();
    recording = grad_mode();
    return mean(b[0]);
  });
  CHECK(value == doctest::Approx(2.4).epsilon(1e-12));
  CHECK_FALSE(training);
  CHECK_FALSE(recording);
  CHECK(net.drop.is_training());
  CHECK(net.is_training());
  CHECK_FALSE(net.fc1.is_training());
  CHECK_THROWS_AS((void)trainer.evaluate(net, data, [](const Batch& b) { return b[0]; }), ShapeError);
}

TEST_CASE("step metrics are recorded every n steps and the epoch's mean is weighted by batch size") {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.0});
  data::DataLoader data(
      data::tensor_dataset({points(10)->gather(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                                               data::EpochRandom(Generator(0), 0))[0]}),
      {.batch_size = 4});
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.log_every_n_steps = 2;
  Trainer trainer(options);
  const std::vector<double> values = {1, 2, 6};
  std::size_t i = 0;
  trainer.fit(opt, data, [&](const Batch& b) {
    trainer.log("x", values[i++], {.on_step = true, .on_epoch = true});
    return mean(net(b[0]));
  });
  const std::vector<LogRecord>& history = trainer.history();
  const auto find = [](const LogRecord& r, const char* name) {
    for (const auto& [n, v] : r.values) {
      if (n == name) return v;
    }
    return std::nan("");
  };
  REQUIRE(history.size() == 2);
  CHECK(history[0].step == 1);
  CHECK(find(history[0], "x_step") == 2);
  CHECK(history[1].step == 2);
  CHECK(find(history[1], "x_epoch") == doctest::Approx(2.4).epsilon(1e-12));
  bool found = false;
  for (const auto& [name, value] : trainer.callback_metrics()) {
    if (name != "x") continue;
    found = true;
    CHECK(value == doctest::Approx(2.4).epsilon(1e-12));
  }
  CHECK(found);
  CHECK_THROWS_AS(trainer.log("late", 1.0), StateError);
}

TEST_CASE("log refuses what it cannot keep") {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.0});
  data::DataLoader data = loader();
  TrainerOptions options = silent();
  options.max_steps = 1;
  Trainer trainer(options);
  const auto step = [&](const Batch& b) {
    CHECK_THROWS_AS(trainer.log("x", b[0]), ShapeError);
    CHECK_THROWS_AS(trainer.log("x", 1.0, {.on_step = false, .on_epoch = false}), ConfigError);
    trainer.log("x", 1.0);
    CHECK_THROWS_AS(trainer.log("x", 1.0, {.on_epoch = true}), ConfigError);
    return mean(net(b[0]));
  };
  trainer.fit(opt, data, step);
}

TEST_CASE("an error of the step reaches on_exception and the caller, with its type") {
  Words words;
  auto callback = std::make_shared<RecordingCallback>();
  callback->words = &words;
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.callbacks = {callback};
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.05});
  data::DataLoader data = loader();
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(opt, data, [](const Batch&) -> Tensor { throw std::out_of_range("planted"); }),
                       "planted", std::out_of_range);
  REQUIRE(!words.empty());
  CHECK(words.back() == "on_exception planted");
  CHECK_THROWS_AS((void)callback->trainer(), StateError);
  // The trainer is usable again.
  trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
  CHECK(trainer.global_step() == 10);
}

TEST_CASE("a step that returns no scalar is refused by name") {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.05});
  data::DataLoader data = loader();
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(opt, data, [&](const Batch& b) { return net(b[0]); }), doctest::Contains("[4, 1]"),
                       ShapeError);
}

TEST_CASE("gradients are clipped to the norm over all parameters before the update") {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.05});
  data::DataLoader data = loader();
  TrainerOptions options = silent();
  options.max_steps = 3;
  options.gradient_clip_val = 1e-3;
  std::vector<double> norms;
  options.callbacks = {std::make_shared<AtBatchEnd>([&](const StepInfo&) {
    double sum = 0;
    for (const ParamRef& p : net.parameters()) {
      const Tensor g = p.value->grad();
      if (g.defined()) sum += levin::sum(square(g.to(DType::f64))).item();
    }
    norms.push_back(std::sqrt(sum));
  })};
  Trainer(options).fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]) * 100.0; });
  REQUIRE(norms.size() == 3);
  // The norm of unclipped gradients is far above. The f32 rounding of 65 values is within 1e-6 relative.
  for (const double n : norms) CHECK(n == doctest::Approx(1e-3).epsilon(1e-5));
}

TEST_CASE("schedules by step and by epoch advance once each") {
  Generator gen(3);
  Net net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 1.0});
  data::DataLoader data = loader(40, 4);
  auto by_step = std::make_shared<optim::ExponentialLR>(opt, 1.0);
  auto by_epoch = std::make_shared<optim::ExponentialLR>(opt, 1.0);
  TrainerOptions options = silent();
  options.max_epochs = 3;
  Trainer trainer(options);
  trainer.fit(opt, data, [&](const Batch& b) { return mean(net(b[0])) * 0.0; },
              {.schedulers = {{.scheduler = by_step, .interval = SchedulerConfig::Interval::step, .frequency = 2},
                              {.scheduler = by_epoch}}});
  CHECK(by_step->steps() == 15);
  CHECK(by_epoch->steps() == 3);
}

TEST_CASE("a warning goes to the handler with id and category") {
  std::vector<Warning> warnings;
  auto before = set_warning_handler([&](const Warning& w) { warnings.push_back(w); });
  warn("W-TEST", WarningCategory::user, "something");
  set_warning_handler(std::move(before));
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].id == "W-TEST");
  CHECK(warnings[0].category == WarningCategory::user);
  CHECK(warnings[0].text == "something");
}
