// What surrounds the loop: which callbacks are attached, what a fit leaves to the next, what a file keeps of a run.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <stdexcept>

#include "levin/train/checkpoint.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

const nn::Options kOptions{.gen = Generator(1), .device = Device::cpu()};

// Has its own callbacks.
struct WithCallbacks : TrainModuleOf<WithCallbacks, Probe> {
  using TrainModuleOf::TrainModuleOf;
  std::vector<std::shared_ptr<Callback>> own;
  std::vector<std::shared_ptr<Callback>> configure_callbacks() override { return own; }
};

struct NamedState : Callback {
  std::string key, value = "fresh";
  explicit NamedState(std::string k) : key(std::move(k)) {}
  [[nodiscard]] std::string state_key() const override { return key; }
  [[nodiscard]] CallbackState state() const override { return {.values = {{"value", value}}, .tensors = {}}; }
  void load_state(const CallbackState& s) override { value = s.values.at(0).second; }
};

// Calls a function in one of its hooks.
struct At : Callback {
  Function<void(const StepInfo&)> batch_end{}, validation_batch_end{};
  Function<void()> epoch_start{}, epoch_end{}, fit_start{}, validation_epoch_end{}, after_backward{};
  void on_train_batch_end(const StepInfo& i) override { batch_end ? batch_end(i) : void(); }
  void on_validation_batch_end(const StepInfo& i) override { validation_batch_end ? validation_batch_end(i) : void(); }
  void on_validation_epoch_end() override { validation_epoch_end ? validation_epoch_end() : void(); }
  void on_train_epoch_start() override { epoch_start ? epoch_start() : void(); }
  void on_train_epoch_end() override { epoch_end ? epoch_end() : void(); }
  void on_fit_start() override { fit_start ? fit_start() : void(); }
  void on_after_backward() override { after_backward ? after_backward() : void(); }
};

struct Planted : std::runtime_error {
  Planted() : std::runtime_error("planted") {}
};

TrainerOptions with(std::int64_t n, std::vector<std::shared_ptr<Callback>> callbacks) {
  TrainerOptions options = epochs(n);
  options.callbacks = std::move(callbacks);
  return options;
}

}  // namespace

TEST_CASE("a fit that is refused while callbacks are attached leaves the trainer idle") {
  WithCallbacks module(kOptions);
  const auto mine = std::make_shared<NamedState>("same");
  data::DataLoader data = ramp(3);
  Trainer trainer(with(1, {mine}));
  for (const bool null : {true, false}) {
    module.own = {null ? nullptr : std::make_shared<NamedState>("same"), std::make_shared<NamedState>("same")};
    CHECK_THROWS_AS(trainer.fit(module, {.train = data}), ConfigError);
    CHECK_THROWS_AS((void)module.trainer(), StateError);
    CHECK_FALSE(mine->attached());
  }
  module.own.clear();
  trainer.fit(module, {.train = data});  // neither nested nor refused
  CHECK(trainer.global_step() == 3);
}

TEST_CASE("a module's callback replaces the trainer's of its class and of its base classes, and none of the module's") {
  struct Derived : NamedState {
    using NamedState::NamedState;
  };
  struct Second {
    virtual ~Second() = default;
  };
  struct Deeper : Second, Derived {
    using Derived::Derived;
  };
  WithCallbacks module(kOptions);
  const auto a = std::make_shared<NamedState>("a");
  const auto other = std::make_shared<At>();
  const auto count = std::make_shared<At>();
  std::vector<std::shared_ptr<Callback>> seen;
  Trainer* running = nullptr;
  count->fit_start = [&] { seen = running->callbacks(); };
  module.own = {std::make_shared<Deeper>("b"), std::make_shared<Deeper>("c")};
  const std::vector<std::shared_ptr<Callback>> own = module.own;
  struct Watch : Callback {
    At* at = nullptr;
    void on_fit_start() override { at->on_fit_start(); }
  };
  const auto watch = std::make_shared<Watch>();
  watch->at = count.get();
  data::DataLoader data = ramp(2);
  Trainer trainer(with(1, {a, other, watch}));
  running = &trainer;
  const Warnings warnings;
  trainer.fit(module, {.train = data});
  CHECK(seen == std::vector<std::shared_ptr<Callback>>{other, watch, own[0], own[1]});
  CHECK(warnings.count("I-TRAIN-CALLBACKS") == 1);
  for (const auto& c : own) CHECK_FALSE(c->attached());

  // A base class does not replace its derived class.
  const auto deeper = std::make_shared<Deeper>("a");
  module.own = {std::make_shared<NamedState>("b")};
  Trainer second(with(1, {deeper, watch}));
  running = &second;
  second.fit(module, {.train = data});
  CHECK(seen == std::vector<std::shared_ptr<Callback>>{deeper, watch, module.own[0]});
}

TEST_CASE("a fit in a hook of a fit or of an evaluation is refused, and the one around it continues") {
  const auto at = std::make_shared<At>();
  Probe module(kOptions), inner(kOptions);
  data::DataLoader data = ramp(3), val = ramp(2);
  Trainer trainer(with(2, {at}));
  int refused_fits = 0;
  const auto nested = [&] {
    CHECK_THROWS_WITH_AS(trainer.fit(inner, {.train = val}), doctest::Contains("the trainer is running"), StateError);
    optim::SGD sgd(inner.parameters(), optim::SGDOptions{.lr = 0.1});
    CHECK_THROWS_AS(trainer.fit(sgd, val, [&](const Batch& b) { return mean(b[0] * inner.w); }), StateError);
    ++refused_fits;
  };
  at->epoch_end = nested;
  at->validation_epoch_end = nested;
  trainer.fit(module, {.train = data, .val = val});
  CHECK(refused_fits == 4);
  CHECK(trainer.global_step() == 6);
  (void)trainer.validate(module, val);
  CHECK(refused_fits == 5);
}

TEST_CASE("an evaluation in a hook of a validation leaves that validation its values") {
  const auto at = std::make_shared<At>();
  Probe module(kOptions), other(kOptions);
  data::DataLoader data = ramp(3), val = ramp(2), few = ramp(1);
  Trainer trainer(with(3, {at}));
  at->validation_batch_end = [&](const StepInfo&) {
    if (!trainer.nested_evaluation()) (void)trainer.evaluate(few, [](const Batch& b) { return mean(b[0]); });
  };
  at->validation_epoch_end = [&] {
    if (!trainer.nested_evaluation()) (void)trainer.validate(other, few);
  };
  trainer.fit(module, {.train = data, .val = val});
  std::vector<double> found;
  for (const LogRecord& r : trainer.history()) {
    for (const auto& [name, value] : r.values) {
      if (name == "val_loss") found.push_back(value);
    }
  }
  // The other module's (w = 1, one batch of x = 1), then this one's, with the weight of its epoch.
  REQUIRE(found.size() == 6);
  for (std::size_t i = 0; i < 6; i += 2) CHECK(found[i] == 1);
  const Ran alone = run(epochs(3), 3, 2);
  std::size_t k = 1;
  for (const LogRecord& r : alone.history) {
    CHECK(r.values[0].second == found[k]);
    k += 2;
  }
}

TEST_CASE("a request to stop is kept in checkpoints, Timer's is not") {
  const TemporaryFolder dir;
  const std::string file = dir / "cut.safetensors";
  const auto asks = [](KeepStop keep) {
    auto at = std::make_shared<At>();
    At* a = at.get();
    at->batch_end = [a, keep](const StepInfo& i) {
      if (i.global_step == 3) a->trainer().request_stop(keep);
    };
    return at;
  };
  TrainerOptions options = with(8, {asks(KeepStop::yes)});
  options.min_steps = 10;
  CHECK(run(options, 4).steps == 10);
  // Cut at step 6, then resumed without the callback that asked for the stop.
  for (const KeepStop keep : {KeepStop::yes, KeepStop::no}) {
    const Warnings quiet;
    const auto cut = std::make_shared<At>();
    At* c = cut.get();
    cut->batch_end = [&, c](const StepInfo& i) {
      if (i.global_step != 6) return;
      c->trainer().save_checkpoint(file);
      throw Planted();
    };
    options.callbacks = {asks(keep), cut};
    CHECK_THROWS_AS((void)run(options, 4), Planted);
    options.callbacks.clear();
    options.max_epochs = 5;
    Probe module(kOptions);
    data::DataLoader data = ramp(4);
    Trainer trainer(options);
    trainer.fit(module, {.train = data, .ckpt_path = file});
    CHECK(trainer.global_step() == (keep == KeepStop::yes ? 10 : 20));
    CHECK(quiet.count("I-CKPT-STOPPED") == (keep == KeepStop::yes ? 1 : 0));
    // A fit that does not resume the file starts without the request.
    options.max_epochs = 8;
  }
  const Warnings quiet;
  TrainerOptions timed = epochs(2);
  timed.callbacks = {std::make_shared<Timer>(Duration("00:00:00:00"))};
  Probe module(kOptions);
  data::DataLoader data = ramp(4);
  Trainer first(timed);
  first.fit(module, {.train = data});
  CHECK(first.global_step() == 0);
  first.save_checkpoint(file);
  Trainer second(epochs(2));
  second.fit(module, {.train = data, .ckpt_path = file});
  CHECK(second.global_step() == 8);
}

TEST_CASE("a fit begins without the gradients that another one left, but for an open window that continues") {
  const auto at = std::make_shared<At>();
  Probe module(kOptions);
  data::DataLoader data = ramp(8);
  TrainerOptions options = with(1, {at});
  options.accumulate_grad_batches = 4;
  options.max_steps = 1;
  module.w.set_grad(full({1}, 100.0, Device::cpu(), DType::f32));
  Trainer trainer(options);
  std::vector<double> seen;
  at->epoch_start = [&] { seen.push_back(module.w.grad().defined() ? module.w.grad().item() : 0); };
  trainer.fit(module, {.train = data});
  CHECK(seen == std::vector<double>{0});
  CHECK(module.w.item() == doctest::Approx(1 - 0.1 * (1 + 2 + 3 + 4) / 4.0));

  // The loader fails in a window: a second fit continues inside it.
  Probe again(kOptions);
  Trainer cut(options);
  bool throws = true;
  again.skip_at = -1;
  at->batch_end = [&](const StepInfo& i) {
    if (std::exchange(throws, throws && i.batch_idx != 1) && i.batch_idx == 1) throw Planted();
  };
  CHECK_THROWS_AS(cut.fit(again, {.train = data}), Planted);
  CHECK(again.w.grad().item() == doctest::Approx((1 + 2) / 4.0));
  cut.fit(again, {.train = data});
  CHECK(again.w.item() == module.w.item());

  // Another module does not continue that window.
  throws = true;
  Probe third(kOptions), fourth(kOptions);
  Trainer changed(options);
  CHECK_THROWS_AS(changed.fit(third, {.train = data}), Planted);
  fourth.w.set_grad(full({1}, 100.0, Device::cpu(), DType::f32));
  changed.fit(fourth, {.train = data});
  CHECK(fourth.w.item() == doctest::Approx(1 - 0.1 * (3 + 4) / 4.0));
}

TEST_CASE("a batch that fails after its backward counts once in a checkpoint that is written then") {
  const TemporaryFolder dir;
  const Warnings warnings;
  TrainerOptions options = epochs(1);
  options.accumulate_grad_batches = 4;
  options.max_steps = 1;
  // In the third batch of the window; if forward fails, the window's sum is whole.
  for (const bool behind : {true, false}) {
    const auto at = std::make_shared<At>();
    At* a = at.get();
    at->after_backward = [a, behind] {
      if (behind && a->trainer().batch_idx() == 2) throw Planted();
    };
    struct Failing : TrainModuleOf<Failing, Probe> {
      using TrainModuleOf::TrainModuleOf;
      bool fails = false;
      StepOutput training_step(const Batch& b, std::int64_t i) override {
        if (fails && i == 2) throw Planted();
        return Probe::training_step(b, i);
      }
    };
    Failing module(kOptions);
    module.fails = !behind;
    data::DataLoader data = ramp(8);
    options.callbacks = {at};
    Trainer trainer(options);
    CHECK_THROWS_AS(trainer.fit(module, {.train = data}), Planted);
    trainer.save_checkpoint(dir / "cut.safetensors");
    CHECK(warnings.count("W-CKPT-WINDOW") == 1);
    options.callbacks.clear();
    Probe resumed(kOptions);
    Trainer second(options);
    second.fit(resumed, {.train = data, .ckpt_path = dir / "cut.safetensors"});
    CHECK(second.global_step() == 1);
    // Torn: batches 3 and 4 alone; else all four.
    CHECK(resumed.w.item() == doctest::Approx(1 - 0.1 * (behind ? 3 + 4 : 1 + 2 + 3 + 4) / 4.0));
  }
}

TEST_CASE("a schedule of accumulation resumes inside a window, serves a second fit, and refuses manual optimization") {
  using S = GradientAccumulationScheduler;
  const TemporaryFolder dir;
  const std::string file = dir / "cut.safetensors";
  const auto schedule = [](std::int64_t window) {
    return std::make_shared<S>(std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, window}});
  };
  const Warnings warnings;
  const Ran whole = run(with(3, {schedule(4)}), 6);
  for (const std::int64_t cut_at : {7, 8, 9, 10, 11, 13}) {
    CAPTURE(cut_at);
    const auto at = std::make_shared<At>();
    At* a = at.get();
    at->batch_end = [&, a](const StepInfo&) {
      if (a->trainer().total_batch_idx() != cut_at) return;
      a->trainer().save_checkpoint(file);
      throw Planted();
    };
    CHECK_THROWS_AS((void)run(with(3, {schedule(4), at}), 6), Planted);
    // Saved again before its first epoch: the window is open from the start.
    const auto again = std::make_shared<At>();
    At* b = again.get();
    again->fit_start = [&, b] { b->trainer().save_checkpoint(dir / "again.safetensors"); };
    for (const char* name : {"cut.safetensors", "again.safetensors"}) {
      Probe module(kOptions);
      data::DataLoader data = ramp(6);
      Trainer trainer(with(3, {schedule(4), again}));
      trainer.fit(module, {.train = data, .ckpt_path = dir / name});
      CHECK(trainer.global_step() == whole.steps);
      CHECK(module.w.item() == whole.w);
      // The option has its value back, and the second fit is not refused.
      CHECK(trainer.options().accumulate_grad_batches == 1);
      trainer.options().max_epochs = 4;
      trainer.fit(module, {.train = data});
      CHECK(trainer.global_step() == whole.steps + 2);
    }
    if (cut_at % 6 == 1 || cut_at % 6 == 4) continue;
    Probe module(kOptions);
    data::DataLoader data = ramp(6);
    Trainer other(with(3, {schedule(3)}));
    if (cut_at == 8)
      CHECK_THROWS_WITH_AS(other.fit(module, {.train = data, .ckpt_path = file}),
                           doctest::Contains("GradientAccumulationScheduler has 3; set it to 4"), ConfigError);
  }
  CHECK(warnings.count("W-TRAIN-ACCUMULATION") > 0);  // Probe overrides optimizer_step

  struct ByHand : TrainModuleOf<ByHand, Probe> {
    using TrainModuleOf::TrainModuleOf;
    [[nodiscard]] bool automatic_optimization() const override { return false; }
  };
  data::DataLoader data = ramp(6);
  ByHand by_hand(kOptions);
  CHECK_THROWS_WITH_AS(Trainer(with(1, {schedule(2)})).fit(by_hand, {.train = data}),
                       doctest::Contains("GradientAccumulationScheduler and the module optimizes manually"),
                       ConfigError);
  Net net({.gen = Generator(3), .device = Device::cpu()});
  optim::LBFGS lbfgs(net.parameters(), {});
  data::DataLoader plane = loader();
  const auto fit = [&](std::int64_t window) {
    Trainer(with(1, {schedule(window)})).fit(lbfgs, plane, [&](const Batch& b) {
      return squared_error(net(b[0]), b[1]);
    });
  };
  CHECK_THROWS_WITH_AS(fit(2), doctest::Contains("goes up to 2 and lbfgs"), ConfigError);
  CHECK_NOTHROW(fit(1));
}

TEST_CASE("modules in eval mode are reported at the start of a training, with their number") {
  const Warnings warnings;
  Net net({.gen = Generator(3), .device = Device::cpu()});
  optim::SGD sgd(net.parameters(), optim::SGDOptions{.lr = 0.1});
  data::DataLoader data = loader();
  const auto fit = [&] {
    Trainer trainer(epochs(1));
    trainer.fit(sgd, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
  };
  fit();
  CHECK(warnings.count("W-TRAIN-EVAL-MODE") == 0);
  net.train(false);
  net.fc1.train(true);
  fit();
  REQUIRE(warnings.count("W-TRAIN-EVAL-MODE") == 1);
  for (const Warning& w : warnings.all()) {
    if (w.id == "W-TRAIN-EVAL-MODE") CHECK(contains(w.text, "3 of 4 modules"));
  }
}

TEST_CASE("a checkpoint that is saved after a fit holds what the module and its callbacks keep") {
  struct Keeping : TrainModuleOf<Keeping, WithCallbacks> {
    using TrainModuleOf::TrainModuleOf;
    std::int64_t steps = 0;
    void on_save_checkpoint(CheckpointContent& content) override {
      content.state.values.emplace_back("steps", text(trainer().global_step()));
    }
    void on_load_checkpoint(CheckpointContent& content) override {
      steps = std::stoll(content.state.values.at(0).second);
    }
  };
  const TemporaryFolder dir;
  const std::string file = dir / "after.safetensors";
  data::DataLoader data = ramp(3);
  {
    Keeping module(kOptions);
    const auto mine = std::make_shared<NamedState>("mine");
    mine->value = "kept";
    module.own = {mine};
    Trainer trainer(epochs(1));
    trainer.fit(module, {.train = data});
    trainer.save_checkpoint(file);
    CHECK_FALSE(mine->attached());
    CHECK_THROWS_AS((void)module.trainer(), StateError);
  }
  Keeping module(kOptions);
  const auto mine = std::make_shared<NamedState>("mine");
  module.own = {mine};
  Trainer trainer(epochs(2));
  trainer.fit(module, {.train = data, .ckpt_path = file});
  CHECK(mine->value == "kept");
  CHECK(module.steps == 3);
}

TEST_CASE("a trainer's second module may log a name of the first with other options, and sees none of its values") {
  struct Logging : TrainModuleOf<Logging, Probe> {
    using TrainModuleOf::TrainModuleOf;
    LogOptions how{};
    std::string name = "loss";
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      log(name, 1.0, how);
      return Probe::training_step(b, i);
    }
  };
  Logging first(kOptions), second(kOptions);
  first.how = {.on_step = true, .on_epoch = true};
  second.how = {.prog_bar = true, .on_step = false, .on_epoch = true};
  data::DataLoader data = ramp(3);
  Trainer trainer(epochs(1));
  trainer.fit(first, {.train = data});
  CHECK(trainer.callback_metrics().size() == 3);
  trainer.options().max_epochs = 2;
  trainer.fit(second, {.train = data});
  CHECK(trainer.callback_metrics() == Metrics{{"loss", 1.0}});
}

TEST_CASE("a signal in the last batch of a run, and one while the disk is full, end it as an interrupt") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NOTHING", "W-CKPT-WRITE"};
  const TemporaryFolder dir;
  const auto at = std::make_shared<At>();
  TrainerOptions options = with(1, {at});
  options.handle_signals = true;
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  const std::string folder = dir / "checkpoints", last = folder + "/last.safetensors";
  const auto fit = [&](const char* told, const std::string& from = {}) {
    Probe module(kOptions);
    data::DataLoader data = ramp(3);
    Trainer trainer(options);
    try {
      trainer.fit(module, {.train = data, .ckpt_path = from});
      CHECK(told == std::string("ended"));
    } catch (const InterruptedError& e) {
      CHECK(contains(e.what(), told));
      CHECK(trainer.stop_signal() == SIGTERM);
    }
    return trainer.global_step();
  };
  at->batch_end = [](const StepInfo& i) {
    if (i.batch_idx == 2) raise(SIGTERM);
  };
  CHECK(fit("SIGTERM after 3 optimizer steps; saved") == 3);
  at->batch_end = {};
  CHECK(fit("ended", last) == 3);
  // Nothing can be written: a file has the name of the folder.
  at->epoch_end = [] { raise(SIGTERM); };
  std::filesystem::rename(folder, folder + "-away");
  write_file_atomically(folder, "in the way");
  CHECK(fit("SIGTERM after 3 optimizer steps; it could not be saved") == 3);
  std::filesystem::remove(folder);
  // The run's own `last` is a link: a file takes its place, and the link's target stays.
  options.callbacks.push_back(
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.save_last = SaveLast::link, .every_n_train_steps = 2}));
  CHECK(fit("; saved") == 3);
  CHECK_FALSE(std::filesystem::is_symlink(last));
  CHECK(read_checkpoint_info(last).global_step == 3);
  CHECK(read_checkpoint_info(folder + "/epoch=0-step=2.safetensors").global_step == 2);
}
