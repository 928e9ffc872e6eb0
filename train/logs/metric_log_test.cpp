// The rules of log(): where it may be called, under which names values appear, what they weigh.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// Calls `log` in the hook or step of this name, and keeps what it threw.
struct Speaks : TrainModuleOf<Speaks> {
  using TrainModuleOf::TrainModuleOf;
  nn::Parameter w{*this, "w", ones({1}, Device::cpu())};
  std::string where;
  Function<void(Speaks&)> say;
  std::string state_error, config_error;
  void in(const char* hook) {
    if (where != hook) return;
    try {
      say(*this);
    } catch (const StateError& e) { state_error = e.what(); } catch (const ConfigError& e) {
      config_error = e.what();
    }
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    in("training_step");
    return mean(b[0] * w);
  }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override { in("validation_step"); }
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override {
    in("predict_step");
    return b[0];
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
  void setup(Stage) override { in("setup"); }
  void teardown(Stage) override { in("teardown"); }
  void on_fit_start() override { in("on_fit_start"); }
  void on_fit_end() override { in("on_fit_end"); }
  void on_sanity_check_start() override { in("on_sanity_check_start"); }
  void on_train_start() override { in("on_train_start"); }
  void on_train_end() override { in("on_train_end"); }
  void on_train_epoch_start() override { in("on_train_epoch_start"); }
  void on_train_epoch_end() override { in("on_train_epoch_end"); }
  BatchStart on_train_batch_start(const StepInfo&) override {
    in("on_train_batch_start");
    return BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo&) override { in("on_train_batch_end"); }
  void on_after_backward() override { in("on_after_backward"); }
  void on_validation_start() override { in("on_validation_start"); }
  void on_validation_end() override { in("on_validation_end"); }
  void on_validation_epoch_end() override { in("on_validation_epoch_end"); }
  void on_validation_batch_end(const StepInfo&) override { in("on_validation_batch_end"); }
  void on_predict_epoch_end() override { in("on_predict_epoch_end"); }
  void on_save_checkpoint(CheckpointContent&) override { in("on_save_checkpoint"); }
};

using Records = std::vector<LogRecord>;
struct Said {
  std::string state_error, config_error;
  Records history;
};
Said say_in(const char* where, const Function<void(Speaks&)>& say, TrainerOptions options = epochs(1),
            data::DataLoader train = ramp(2)) {
  Speaks net({.gen = Generator(1), .device = Device::cpu()});
  net.where = where;
  net.say = [&](Speaks& s) { say(s); };
  options.num_sanity_val_steps = 1;
  data::DataLoader val = ramp(3);
  const TemporaryFolder folder;
  Trainer trainer(options);
  trainer.fit(net, {.train = train, .val = val});
  trainer.save_checkpoint(folder / "all.safetensors");
  (void)trainer.predict(net, val);
  return {net.state_error, net.config_error, trainer.history()};
}
std::map<std::string, double> all_of(const Records& history) {
  std::map<std::string, double> out;
  for (const LogRecord& r : history) {
    for (const auto& [name, value] : r.values) out[name] = value;
  }
  return out;
}
using Values = std::map<std::string, double>;

}  // namespace

TEST_CASE("hooks of set-up, of checkpoints, of prediction and the ends of stages may not log") {
  const auto log = [](Speaks& s) { s.log("x", 1.0); };
  for (const char* hook : {"setup", "teardown", "on_fit_start", "on_fit_end", "on_sanity_check_start", "on_train_end",
                           "on_validation_end", "predict_step", "on_predict_epoch_end"}) {
    CAPTURE(std::string(hook));
    const Said said = say_in(hook, log);
    CHECK(contains(said.state_error, "log: \"x\" is logged in "));
    CHECK(contains(said.state_error, hook));
    CHECK(said.history.empty());
  }
  TemporaryFolder folder;
  TrainerOptions options = epochs(1);
  options.enable_checkpointing = true;
  options.default_root_dir = folder / "";
  CHECK(contains(say_in("on_save_checkpoint", log, options).state_error, "in on_save_checkpoint, which may not log"));
}

TEST_CASE("hooks of batches log steps, hooks of epochs the epoch alone") {
  const auto log = [](Speaks& s) { s.log("x", 2.0); };
  for (const char* hook : {"training_step", "on_train_batch_start", "on_train_batch_end", "on_after_backward"}) {
    CAPTURE(std::string(hook));
    const Said said = say_in(hook, log);
    CHECK(said.state_error.empty());
    CHECK(said.history.size() == 2);
  }
  for (const char* hook : {"on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_validation_start",
                           "on_validation_epoch_end", "on_validation_batch_end", "validation_step"}) {
    CAPTURE(std::string(hook));
    const Said said = say_in(hook, log);
    CHECK(said.state_error.empty());
    CHECK(said.history.size() == 1);
    CHECK(all_of(said.history) == Values{{"x", 2}});
  }
  const auto step = [](Speaks& s) { s.log("x", 2.0, {.on_step = true}); };
  CHECK(contains(say_in("on_train_epoch_end", step).config_error, "on_step = true in on_train_epoch_end"));
}

TEST_CASE("one name with two sets of options is an error in one hook, and two entries in two") {
  const auto twice = [](Speaks& s) {
    s.log("x", 1.0);
    s.log("x", 1.0, {.prog_bar = true});
  };
  CHECK(contains(say_in("training_step", twice).config_error,
                 "\"x\" is logged in training_step with two sets of options"));
  struct Two : TrainModuleOf<Two, Speaks> {
    using TrainModuleOf::TrainModuleOf;
    void on_train_epoch_end() override { log("x", 7.0, {.prog_bar = true}); }
  };
  Two net({.gen = Generator(1), .device = Device::cpu()});
  net.where = "training_step";
  net.say = [](Speaks& s) { s.log("x", 1.0); };
  data::DataLoader train = ramp(2);
  Trainer trainer(epochs(1));
  trainer.fit(net, {.train = train});
  REQUIRE(trainer.history().size() == 3);
  CHECK(trainer.history()[0].values == Metrics{{"x", 1}});
  CHECK(trainer.history()[2].values == Metrics{{"x", 7}});
  CHECK(trainer.callback_metrics() == Metrics{{"x", 1}});  // the last value logged in the step
}

TEST_CASE("what log refuses or warns of: loaders' names, graphs, integers") {
  const auto refused_as = [](const LogOptions& options, const char* name = "x") {
    return say_in("training_step", [&](Speaks& s) { s.log(name, 1.0, options); }).config_error;
  };
  CHECK(contains(refused_as({}, "x/dataloader_idx_1"), "names a loader itself"));
  CHECK(refused_as({.add_dataloader_idx = false}, "x/dataloader_idx_1").empty());
  CHECK(contains(refused_as({.enable_graph = true}), "keep the tensor itself"));
  CHECK(contains(refused_as({.on_step = false, .on_epoch = false}), "switch one on"));
  CHECK(contains(refused_as({.batch_size = 0}), "expected 1 or more"));
  CHECK(refused_as({.sync_dist = true, .rank_zero_only = true}).empty());  // with one rank its own value
  Warnings warnings;
  const Said said = say_in("training_step", [](Speaks& s) {
    s.log("a", 3);
    s.log("b", full({}, 4, Device::cpu(), DType::i64));
    s.log("c", true);
    s.log("d", 5.0f);
  });
  CHECK(warnings.count("W-LOG-INTEGRAL") == 6);  // three names, two batches; printed once
  CHECK(all_of(said.history) == Values{{"a", 3}, {"b", 4}, {"c", 1}, {"d", 5}});
}

TEST_CASE("log_dict logs each name with the same options") {
  const Said said = say_in("training_step", [](Speaks& s) {
    s.log_dict(Metrics{{"a", 1}, {"b", 2}}, {.on_step = false, .on_epoch = true});
    s.log_dict(NamedTensors{{"c", full({}, 3, Device::cpu())}});
  });
  REQUIRE(said.history.size() == 3);
  CHECK(said.history[0].values == Metrics{{"c", 3}});
  CHECK(said.history[2].values == Metrics{{"a", 1}, {"b", 2}});
}

TEST_CASE("a batch weighs what the first dimension of its first tensor says; nothing to go by is an error") {
  // Samples [2, 1] that are not batched: the loader counts one sample, the tensor has two rows. Sums show the weights.
  const auto of = [](Tensors fields, bool batched, const LogOptions& options = {.on_step = false, .on_epoch = true}) {
    data::DataLoaderOptions how{.batch_size = batched ? std::optional<std::int64_t>(2) : std::nullopt};
    std::int64_t batch = 0;
    return say_in(
        "training_step", [&](Speaks& s) { s.log("x", batch++ == 0 ? 1.0 : 4.0, options); }, epochs(1),
        data::DataLoader(data::tensor_dataset(std::move(fields)), std::move(how)));
  };
  CHECK(all_of(of({ones({3, 5}, Device::cpu())}, true).history) == Values{{"x", 2}});  // (2 1 + 1 4) / 3
  CHECK(
      all_of(of({ones({3, 5}, Device::cpu())}, true, {.on_step = false, .on_epoch = true, .batch_size = 1}).history) ==
      Values{{"x", 2.5}});
  Warnings warnings;
  const Said ambiguous = of({ones({2, 3}, Device::cpu()), ones({2, 4}, Device::cpu())}, false);
  CHECK(warnings.count("W-LOG-BATCH-SIZE") == 2);
  CHECK(all_of(ambiguous.history) == Values{{"x", 2.5}});

  struct NoTensors : data::Dataset {
    std::int64_t size() const override { return 2; }
    data::Sample get(std::int64_t, Generator&) const override { return {}; }
    Tensors gather(std::span<const std::int64_t>, const data::EpochRandom&) const override { return {}; }
  };
  struct Bare : TrainModuleOf<Bare, Speaks> {
    using TrainModuleOf::TrainModuleOf;
    StepOutput training_step(const Batch&, std::int64_t) override {
      in("training_step");
      return mean(w);
    }
  };
  for (const bool told : {false, true}) {
    Bare net({.gen = Generator(1), .device = Device::cpu()});
    net.where = "training_step";
    net.say = [&](Speaks& s) {
      LogOptions options{.on_step = false, .on_epoch = true};
      if (told) options.batch_size = 3;
      s.log("x", 1.0, options);
    };
    data::DataLoader train(std::make_shared<NoTensors>(), {});
    Trainer trainer(epochs(1));
    trainer.fit(net, {.train = train});
    CHECK(net.config_error.empty() == told);
    if (!told) CHECK(contains(net.config_error, "give LogOptions::batch_size"));
  }
}

TEST_CASE("a name of the user's own that ends as a loader's does is of no loader") {
  Speaks net({.gen = Generator(1), .device = Device::cpu()});
  net.where = "validation_step";
  net.say = [](Speaks& s) {
    s.log("x/dataloader_idx_best", 1.0, {.add_dataloader_idx = false});
    s.log("y/dataloader_idx_7", 2.0, {.add_dataloader_idx = false});
    s.log("z", 3.0);
  };
  data::DataLoader a = ramp(2), b = ramp(1);
  Trainer trainer(epochs(1));
  const std::vector<Metrics> results = trainer.validate(net, {&a, &b});
  REQUIRE(results.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(results[i] ==
          Metrics{{"x/dataloader_idx_best", 1}, {"y/dataloader_idx_7", 2}, {"z/dataloader_idx_" + text(i), 3}});
  }
}

TEST_CASE("steps of an evaluation are recorded at the number of the batch, loader by loader") {
  Speaks net({.gen = Generator(1), .device = Device::cpu()});
  double value = 0;
  net.where = "validation_step";
  net.say = [&](Speaks& s) { s.log("v", value++, {.on_step = true, .on_epoch = true}); };
  data::DataLoader train = ramp(1), a = ramp(2), b = ramp(1);
  TrainerOptions options = epochs(2);
  options.num_sanity_val_steps = 1;  // two values without a record
  Trainer trainer(options);
  trainer.fit(net, {.train = train, .val = {&a, &b}});
  struct Row {
    std::int64_t step;
    Metrics values;
    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;
  for (const LogRecord& r : trainer.history()) rows.push_back({r.step, r.values});
  const auto epoch = [](double x, double y) {
    return Metrics{{"v_epoch/dataloader_idx_0", x}, {"v_epoch/dataloader_idx_1", y}};
  };
  const std::vector<Row> expected = {{0, {{"v_step/dataloader_idx_0", 2}}}, {1, {{"v_step/dataloader_idx_0", 3}}},
                                     {0, {{"v_step/dataloader_idx_1", 4}}}, {0, epoch(2.5, 4)},
                                     {2, {{"v_step/dataloader_idx_0", 5}}}, {3, {{"v_step/dataloader_idx_0", 6}}},
                                     {1, {{"v_step/dataloader_idx_1", 7}}}, {1, epoch(5.5, 7)}};
  CHECK(rows == expected);
  const Metrics known = trainer.callback_metrics();
  const auto value_of = [&](const char* name) {
    for (const auto& [n, v] : known) {
      if (n == name) return v;
    }
    return std::nan("");
  };
  CHECK(value_of("v/dataloader_idx_0") == 5.5);
  CHECK(value_of("v_epoch/dataloader_idx_1") == 7);
}

TEST_CASE("the progress bar keeps showing the values of the last validation") {
  Speaks net({.gen = Generator(1), .device = Device::cpu()});
  net.where = "validation_step";
  net.say = [](Speaks& s) { s.log("v", 3.0, {.prog_bar = true}); };
  data::DataLoader train = ramp(1), val = ramp(2);
  Trainer trainer(epochs(1));
  trainer.fit(net, {.train = train, .val = val});
  CHECK(trainer.progress_metrics() == Metrics{{"v", 3}});
}

TEST_CASE("with barebones log keeps nothing, in training too, and a logger that is asked for is refused") {
  TrainerOptions options;
  options.barebones = true;
  options.max_epochs = 1;
  options.handle_signals = false;
  Speaks net({.gen = Generator(1), .device = Device::cpu()});
  net.where = "training_step";
  net.say = [](Speaks& s) { s.log("x", 3.0, {.on_step = true, .on_epoch = true}); };
  data::DataLoader train = ramp(2);
  Warnings warnings;
  Trainer trainer(options);
  trainer.fit(net, {.train = train});
  CHECK(trainer.history().empty());
  CHECK(trainer.callback_metrics().empty());
  REQUIRE(warnings.count("I-TRAIN-BAREBONES") == 1);
  for (const char* what : {"checkpoints", "logger", "progress bar", "summary", "sanity check", "dev run", "anomaly",
                           "profiler", "log()"}) {
    CAPTURE(std::string(what));
    CHECK(contains(warnings.all().front().text, what));
  }
  options.logger = true;
  CHECK_THROWS_AS(Trainer(TrainerOptions(options)), ConfigError);
  options.logger = false;
  (void)Trainer(TrainerOptions(options));
}

TEST_CASE("outside of a trainer log warns and keeps nothing") {
  Warnings warnings;
  Speaks net({.gen = Generator(1), .device = Device::cpu()});
  net.log("x", 1.0);
  net.log_dict(Metrics{{"a", 1}});
  CHECK(warnings.ids() == std::vector<std::string>{"W-TRAIN-LOG", "W-TRAIN-LOG"});
}
