// Limits, intervals, evaluations, records: what the loop does when.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// Asks for a stop at a batch of the run.
struct StopAt : Callback {
  std::int64_t batch;
  explicit StopAt(std::int64_t b) : batch(b) {}
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == batch + 1) trainer().request_stop();
  }
};

}  // namespace

TEST_CASE("of 120 batches with log_every_n_steps = 50 steps 49 and 99 are recorded, and the epoch at 119") {
  struct Logging : TrainModuleOf<Logging, Probe> {
    using TrainModuleOf::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      log("loss", mean(b[0]), {.on_step = true, .on_epoch = true});
      return mean(b[0] * w);
    }
  };
  Logging module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(120);
  TrainerOptions options = epochs(1);
  options.log_every_n_steps = 50;
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  Numbers at;
  for (const LogRecord& r : trainer.history()) at.push_back(r.step);
  CHECK(at == Numbers{49, 99, 119});
  CHECK(trainer.history().back().values == Metrics{{"loss_epoch", 60.5}});
}

TEST_CASE("a run stops when it was asked to and the minima are met") {
  const auto stops = [](std::int64_t batches, std::optional<std::int64_t> min_epochs, std::int64_t min_steps) {
    TrainerOptions options = epochs(100);
    options.min_epochs = min_epochs;
    options.min_steps = min_steps;
    options.callbacks = {std::make_shared<StopAt>(0)};
    return run(options, batches).steps;
  };
  CHECK(stops(3, 0, 10) == 10);
  CHECK(stops(3, 2, 0) == 6);
  CHECK(stops(5, 3, 10) == 15);
  CHECK(stops(3, std::nullopt, 2) == 3);  // min_steps alone makes min_epochs 1

  TrainerOptions options = epochs(5);
  options.callbacks = {std::make_shared<StopAt>(4)};
  const Ran ran = run(options, 10, 2);
  CHECK(ran.steps == 5);
  CHECK(ran.epochs == 1);
  CHECK(ran.module->validated_after == Numbers{5});
  CHECK(ran.module->epoch_ends == 1);
}

TEST_CASE("max_steps counts optimizer steps, not batches") {
  TrainerOptions options = epochs(100);
  options.max_steps = 6;
  options.accumulate_grad_batches = 2;
  CHECK(run(options, 10).module->backwards == 12);
  options.max_steps = 4;
  options.accumulate_grad_batches = 10;
  const Ran ran = run(options, 32);
  CHECK(ran.steps == 4);
  CHECK(ran.module->stepped_after == Numbers{10, 20, 30, 32});
  CHECK(ran.epochs == 1);
  options = silent();
  options.max_steps = 5;
  CHECK(run(options, 3).steps == 5);
  options.max_steps = 0;
  CHECK(run(options, 3).module->words.empty());
}

TEST_CASE("a run without limits says that it trains for 1000 epochs") {
  std::vector<std::string> texts;
  auto before = set_warning_handler([&](const Warning& w) { texts.push_back(w.text); });
  TrainerOptions options = silent();
  options.callbacks = {std::make_shared<StopAt>(0)};
  (void)run(options, 2);
  (void)set_warning_handler(std::move(before));
  CHECK(std::any_of(texts.begin(), texts.end(), [](const std::string& t) { return contains(t, "1000"); }));
}

TEST_CASE("max_time ends a run, at once when it is 0, and counts the time before a resume") {
  TrainerOptions options = silent();
  options.max_time = std::chrono::seconds(0);
  CHECK(run(options, 3).steps == 0);
  options.max_time = Duration(Duration::Parts{.milliseconds = 30});
  const auto start = std::chrono::steady_clock::now();
  CHECK(run(options, 3).steps > 0);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(30));

  Timer timer(std::chrono::seconds(2));
  timer.load_state({.values = {{"time_elapsed", "1.5"}}, .tensors = {}});
  CHECK(timer.time_elapsed() == 1.5);
  CHECK(timer.time_remaining() == 0.5);
  CHECK(timer.state().values[0].second == "0x1.8p+0");
  CHECK_THROWS_AS(timer.load_state({.values = {{"time_elapsed", "soon"}}, .tensors = {}}), ConfigError);
}

TEST_CASE("a duration is read from days, hours, minutes and seconds, or from its parts") {
  CHECK(Duration("00:12:00:00").seconds() == 12 * 3600);
  CHECK(Duration("3:00:00:01").seconds() == 3 * 86400 + 1);
  CHECK(Duration("12:34:56:65").seconds() == 12 * 86400 + 34 * 3600 + 56 * 60 + 65);
  CHECK(Duration(Duration::Parts{.weeks = 4, .days = 2}).seconds() == 30 * 86400);
  CHECK(Duration(std::chrono::milliseconds(1500)).seconds() == 1.5);
  for (const char* bad : {"6:00:00", "", "1:2:3:4", "00:12:00:00:00", "-1:00:00:00", "a:00:00:00", ":00:00:00"})
    CHECK_THROWS_WITH_AS((void)Duration(bad), doctest::Contains("DD:HH:MM:SS"), ConfigError);
}

TEST_CASE("validation runs after the batches that val_check_interval names") {
  const auto at = [](std::int64_t batches, const ValidationInterval& every) {
    TrainerOptions options = epochs(1);
    options.val_check_interval = every;
    return run(options, batches, 1).module->validated_after;
  };
  CHECK(at(10, 0.25) == Numbers{2, 4, 6, 8, 10});
  CHECK(at(10, 0.4) == Numbers{4, 8});
  CHECK(at(7, 0.5) == Numbers{3, 6});
  CHECK(at(64, 0.25) == Numbers{16, 32, 48, 64});
  CHECK(at(100, 0.95) == Numbers{95});
  CHECK(at(10, 1.0) == Numbers{10});
  CHECK(at(10, 1) == Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(at(10, 3) == Numbers{3, 6, 9});
  CHECK(at(3, std::chrono::hours(1)).empty());
  CHECK(at(3, std::chrono::nanoseconds(1)) == Numbers{1, 2, 3});
}

TEST_CASE("validation by epochs, and by batches counted over all epochs") {
  TrainerOptions options = epochs(3);
  options.check_val_every_n_epoch = std::nullopt;
  options.val_check_interval = 3;
  CHECK(run(options, 4, 1).module->validated_after == Numbers{3, 6, 9, 12});
  options = epochs(5);
  options.check_val_every_n_epoch = 2;
  CHECK(run(options, 4, 1).module->validated_after == Numbers{8, 16});  // epochs 1 and 3
}

TEST_CASE("impossible intervals are refused with the option's name") {
  const auto with = [](const ValidationInterval& every) {
    TrainerOptions options = epochs(1);
    options.val_check_interval = every;
    return options;
  };
  CHECK(contains(refused(with(11)), "val_check_interval is 11 batches and an epoch has 10"));
  CHECK(contains(refused(with(0)), "val_check_interval is 0"));
  CHECK(contains(refused(with(0.0)), "val_check_interval is 0"));
  CHECK(contains(refused(with(-1)), "val_check_interval is -1"));
  CHECK(contains(refused(with(1.5)), "val_check_interval is 1.5"));
  CHECK(contains(refused(with(std::chrono::seconds(0))), "val_check_interval is 0 seconds"));
  TrainerOptions options = with(0.5);
  options.check_val_every_n_epoch = std::nullopt;
  CHECK(contains(refused(options), "val_check_interval is the fraction 0.5"));
  options = epochs(1);
  options.check_val_every_n_epoch = 0;
  CHECK(contains(refused(options), "check_val_every_n_epoch is 0"));
  options = epochs(1);
  options.accumulate_grad_batches = 0;
  CHECK(contains(refused(options), "accumulate_grad_batches is 0"));
  options = epochs(1);
  options.fast_dev_run = -1;
  CHECK(contains(refused(options), "fast_dev_run is -1"));
  options = epochs(1);
  options.min_epochs = -1;
  CHECK(contains(refused(options), "min_epochs is -1"));
}

TEST_CASE("limits are counts or fractions, and a fraction that gives no batch is refused with the least that does") {
  const auto trained = [](const Portion& limit) {
    TrainerOptions options = epochs(1);
    options.limit_train_batches = limit;
    return run(options, 64).steps;
  };
  CHECK(trained(0.1) == 6);
  CHECK(trained(100) == 64);
  CHECK(trained(1) == 1);
  CHECK(trained(1.0) == 64);
  CHECK(trained(2.0) == 2);
  CHECK(trained(0) == 0);
  TrainerOptions options = epochs(1);
  options.limit_train_batches = 0.01;
  CHECK(contains(refused(options, 64), "0.015625"));
  options.limit_train_batches = -1;
  CHECK(contains(refused(options), "limit_train_batches is -1"));
  options.limit_train_batches = 1.5;
  CHECK(contains(refused(options), "limit_train_batches is 1.5"));
  CHECK(Portion(0.29).of(100, "x") == 28);  // the IEEE product, cut
  CHECK_FALSE(Portion(1) == Portion(1.0));
}

TEST_CASE("limit_val_batches = 0 switches validation off, the sanity check too") {
  TrainerOptions options = epochs(1);
  options.limit_val_batches = 0;
  options.num_sanity_val_steps = 2;
  const Ran ran = run(options, 4, 2);
  CHECK(ran.steps == 4);
  CHECK(ran.module->validation_batches == 0);

  // No hook of any kind, of callbacks or of the module.
  struct Counts {
    std::int64_t hooks = 0, batches = 0;
  };
  struct Any : Callback {
    Counts* counts = nullptr;
    void on_sanity_check_start() override { ++counts->hooks; }
    void on_sanity_check_end() override { ++counts->hooks; }
    void on_validation_start() override { ++counts->hooks; }
    void on_validation_end() override { ++counts->hooks; }
    void on_validation_epoch_start() override { ++counts->hooks; }
    void on_validation_epoch_end() override { ++counts->hooks; }
    void on_validation_batch_start(const StepInfo&) override { ++counts->hooks; }
    void on_validation_batch_end(const StepInfo&) override { ++counts->hooks; }
  };
  struct Module : TrainModuleOf<Module, Probe> {
    using TrainModuleOf::TrainModuleOf;
    Any all;
    void validation_step(const Batch&, std::int64_t, std::int64_t) override { ++all.counts->batches; }
    void on_sanity_check_start() override { all.on_sanity_check_start(); }
    void on_sanity_check_end() override { all.on_sanity_check_end(); }
    void on_validation_model_zero_grad() override { all.on_validation_start(); }
    void on_validation_start() override { all.on_validation_start(); }
    void on_validation_end() override { all.on_validation_end(); }
    void on_validation_epoch_start() override { all.on_validation_epoch_start(); }
    void on_validation_epoch_end() override { all.on_validation_epoch_end(); }
    void on_validation_batch_start(const StepInfo& i) override { all.on_validation_batch_start(i); }
    void on_validation_batch_end(const StepInfo& i) override { all.on_validation_batch_end(i); }
  };
  for (const bool off : {true, false}) {
    Counts counts;
    const auto any = std::make_shared<Any>();
    Module module({.gen = Generator(1), .device = Device::cpu()});
    any->counts = module.all.counts = &counts;
    options.limit_val_batches = off ? std::optional<Portion>(0) : std::nullopt;
    options.callbacks = {any};
    data::DataLoader data = ramp(4), val = ramp(2);
    Trainer trainer(options);
    trainer.fit(module, {.train = data, .val = val});
    CHECK(trainer.global_step() == 4);
    // Otherwise two validations of two batches, each with 4 + 2 * 2 hooks, and the two hooks of the sanity check; the
    // module has one more for each validation.
    CHECK(counts.batches == (off ? 0 : 4));
    CHECK(counts.hooks == (off ? 0 : 2 * (2 * 8 + 2) + 2));
  }
}

TEST_CASE("the sanity check validates a few batches first and leaves no trace") {
  TrainerOptions options = epochs(1);
  options.num_sanity_val_steps = 2;
  const Ran checked = run(options, 4, 5);
  CHECK(checked.module->validation_batches == 2 + 5);
  CHECK(checked.module->validated_after == Numbers{4});
  CHECK(checked.history.size() == 1);
  options.num_sanity_val_steps = -1;
  CHECK(run(options, 4, 5).module->validation_batches == 5 + 5);
  options.num_sanity_val_steps = 0;
  const Ran plain = run(options, 4, 5);
  CHECK(plain.module->validation_batches == 5);
  CHECK(plain.w == checked.w);
  CHECK(plain.history.front().values == checked.history.front().values);
}

TEST_CASE("overfit_batches trains and validates on the same few batches each epoch") {
  TrainerOptions options = epochs(2);
  options.overfit_batches = 2;
  const Ran ran = run(options, 10, 5);
  CHECK(ran.module->samples == Numbers{0, 1, 0, 1});
  CHECK(ran.module->validation_batches == 4);
  CHECK(ran.steps == 4);
}

TEST_CASE("fast_dev_run runs its batches of everything once and writes no file") {
  const TemporaryFolder dir;
  TrainerOptions options;  // with loggers, checkpoints
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.default_root_dir = dir.path();
  options.max_epochs = 7;
  options.limit_train_batches = 5;
  options.fast_dev_run = 3;
  const Ran ran = run(options, 10, 10);
  CHECK(ran.steps == 3);
  CHECK(ran.epochs == 1);
  CHECK(ran.module->validation_batches == 3);
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("several validation loaders run in turn, and what is logged says in which") {
  struct Two : TrainModuleOf<Two, Probe> {
    using TrainModuleOf::TrainModuleOf;
    Numbers loaders;
    void validation_step(const Batch& b, std::int64_t, std::int64_t dataloader_idx) override {
      loaders.push_back(dataloader_idx);
      log("x", mean(b[0]));
    }
    void on_validation_epoch_end() override { log("done", 1.0); }
  };
  Two module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader a = ramp(2), b = ramp(3);
  Trainer trainer(epochs(1));
  const std::vector<Metrics> found = trainer.validate(module, {&a, &b});
  CHECK(module.loaders == Numbers{0, 0, 1, 1, 1});
  REQUIRE(found.size() == 2);
  CHECK(found[0] == Metrics{{"x/dataloader_idx_0", 1.5}, {"done", 1}});
  CHECK(found[1] == Metrics{{"x/dataloader_idx_1", 2}, {"done", 1}});
  CHECK(trainer.validate(module, a)[0] == Metrics{{"x", 1.5}, {"done", 1}});
}

TEST_CASE("predict returns what the module makes of each batch") {
  struct Callable : TrainModuleOf<Callable, Probe> {
    using TrainModuleOf::TrainModuleOf;
    Tensor operator()(const Tensor& x) const { return x * w; }
  };
  Callable module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader a = ramp(2, 3);
  TrainerOptions options = epochs(1);
  Trainer trainer(options);
  const std::vector<Tensors> found = trainer.predict(module, a);
  REQUIRE(found.size() == 1);
  REQUIRE(found[0].size() == 2);
  CHECK(found[0][1].to_vector<float>() == std::vector<float>{4, 5, 6});
  CHECK_FALSE(found[0][1].requires_grad());
  Probe mute({.gen = Generator(1), .device = Device::cpu()});
  CHECK_THROWS_WITH_AS((void)trainer.predict(mute, a), doctest::Contains("can not be called"), ConfigError);
}

TEST_CASE("an epoch's values become their mean, sum, least or greatest, and some no record has") {
  struct Logging : TrainModuleOf<Logging, Probe> {
    using TrainModuleOf::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t batch_idx) override {
      const double value[] = {1, 2, 6};
      const std::int64_t size[] = {4, 4, 2};
      const auto say = [&](const char* name, EpochReduce reduce, bool logger = true) {
        log(name, value[batch_idx],
            {.logger = logger, .on_step = false, .on_epoch = true, .reduce = reduce, .batch_size = size[batch_idx]});
      };
      say("mean", EpochReduce::mean);
      say("sum", EpochReduce::sum);
      say("min", EpochReduce::min);
      say("max", EpochReduce::max);
      say("hidden", EpochReduce::mean, false);
      return mean(b[0] * w);
    }
  };
  struct Kept : Logger {
    std::vector<LogRecord> records;
    std::vector<std::string> calls;
    void start(std::int64_t steps, std::int64_t records) override {
      calls.push_back("start " + std::to_string(steps) + ", " + std::to_string(records));
    }
    void log_metrics(const LogRecord& r) override { records.push_back(r); }
    void finalize(std::string_view status) override { calls.emplace_back(status); }
  };
  const auto kept = std::make_shared<Kept>();
  Logging module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(3);
  TrainerOptions options = epochs(2);
  options.logger = kept;
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  const Metrics expected{{"mean", 2.4}, {"sum", 9}, {"min", 1}, {"max", 6}};
  REQUIRE(kept->records.size() == 2);
  for (const LogRecord& r : kept->records) CHECK(r.values == expected);
  CHECK(kept->records[1].step == 5);
  CHECK(kept->records[1].epoch == 1);
  CHECK(kept->calls == std::vector<std::string>{"start 0, 0", "success"});
  const Metrics all = trainer.callback_metrics();
  CHECK(std::find(all.begin(), all.end(), std::pair<std::string, double>{"hidden", 2.4}) != all.end());
  // A second fit continues where the first ended.
  trainer.options().max_epochs = 3;
  trainer.fit(module, {.train = data});
  CHECK(kept->calls[2] == "start 6, 2");
}

TEST_CASE("the step-time report adds up to the run, and a profiler sees hooks and steps") {
  struct Counts : Profiler {
    std::vector<std::string> open, all;
    bool finished = false;
    void start(std::string_view action) override {
      open.emplace_back(action);
      all.emplace_back(action);
    }
    void stop(std::string_view action) override {
      CHECK(open.back() == action);
      open.pop_back();
    }
    void finish() override { finished = true; }
  };
  const auto counts = std::make_shared<Counts>();
  Probe module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(4), val = ramp(2);
  TrainerOptions options = epochs(1);
  options.profiler = counts;
  Trainer trainer(options);
  trainer.fit(module, {.train = data, .val = val});
  const auto times = [&](const char* action) { return std::count(counts->all.begin(), counts->all.end(), action); };
  CHECK(counts->finished);
  CHECK(counts->open.empty());
  CHECK(times("training_step") == 4);
  CHECK(times("backward") == 4);
  CHECK(times("optimizer_step") == 4);
  CHECK(times("batch_to_device") == 4 + 2);  // in training and validation
  CHECK(times("validation_step") == 2);
  CHECK(times("on_train_batch_end") == 4);
  CHECK(times("on_fit_end") == 1);

  const StepTimes& t = trainer.step_times();
  CHECK(t.steps() == 4);
  std::int64_t sum = 0;
  for (std::size_t p = 0; p < kPhases; ++p) sum += t.nanoseconds(static_cast<Phase>(p));
  CHECK(sum == t.total_nanoseconds());
  for (const Phase p :
       {Phase::data, Phase::forward, Phase::backward, Phase::optimizer, Phase::hooks, Phase::validating})
    CHECK(t.nanoseconds(p) > 0);
  CHECK(contains(trainer.step_time_report(), "forward"));
}

TEST_CASE("the time of epoch hooks is that of hooks, not unexplained") {
  struct Slow : Callback {
    void on_train_epoch_start() override { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
    void on_train_epoch_end() override { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  };
  Probe module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(1);
  TrainerOptions options = epochs(1);
  options.callbacks = {std::make_shared<Slow>()};
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  CHECK(trainer.step_times().nanoseconds(Phase::hooks) >= 40'000'000);  // sleep_for never ends early
}

TEST_CASE("barebones switches everything beside training off, and refuses what is switched on beside it") {
  TrainerOptions options;
  options.max_epochs = 1;
  options.barebones = true;
  const Ran ran = run(options, 3, 2);
  CHECK(ran.steps == 3);
  CHECK(ran.history.empty());
  CHECK(ran.module->validated_after == Numbers{3});
  CHECK(ran.module->validation_batches == 2);  // no sanity check
  options.enable_checkpointing = true;
  CHECK(contains(refused(options), "barebones is on and enable_checkpointing is set"));
  options.enable_checkpointing = std::nullopt;
  options.detect_anomaly = true;
  CHECK(contains(refused(options), "barebones is on and detect_anomaly is set"));
}

TEST_CASE("where nothing is trained, val_check_interval needs no batches") {
  TrainerOptions options = epochs(1);
  options.val_check_interval = 100;
  CHECK(contains(refused(options, 10), "val_check_interval is 100 batches and an epoch has 10"));
  options.limit_train_batches = 0;
  CHECK(run(options, 10, 4).steps == 0);
}

TEST_CASE("overfit_batches reads a user's sampler as in its first epoch, also if it says that it does not shuffle") {
  struct Drawn : data::Sampler {
    bool says;
    explicit Drawn(bool s) : says(s) {}
    std::int64_t size() const override { return 4; }
    std::vector<std::int64_t> indices(std::int64_t epoch) const override {
      return {epoch + 3, epoch + 1, epoch + 2, epoch};
    }
    bool shuffles() const override { return says; }
  };
  for (const bool says : {true, false}) {
    const Warnings warnings;
    Probe module({.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data(data::tensor_dataset({ones({10, 1}, Device::cpu())}),
                          {.sampler = std::make_shared<Drawn>(says)});
    TrainerOptions options = epochs(2);
    options.overfit_batches = 2;
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    CHECK(module.samples == Numbers{3, 1, 3, 1});
    CHECK(warnings.count("W-TRAIN-OVERFIT") == (says ? 1 : 0));
  }
}

TEST_CASE("a LearningRateMonitor without a logger is refused") {
  TrainerOptions options = epochs(1);
  options.callbacks = {std::make_shared<LearningRateMonitor>()};
  CHECK(contains(refused(options), "LearningRateMonitor"));
}

TEST_CASE(
    "overfit_batches reads loaders that shuffle in sequence: the same two batches each epoch, a warning of each kind") {
  struct Seen : TrainModuleOf<Seen, Probe> {
    using TrainModuleOf::TrainModuleOf;
    Numbers validated;
    void validation_step(const Batch& b, std::int64_t batch_idx, std::int64_t loader) override {
      Probe::validation_step(b, batch_idx, loader);
      for (const std::int64_t i : b.indices) validated.push_back(i);
    }
  };
  const Warnings warnings;
  Seen module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(10, 1, true), val = ramp(5, 1, true);
  TrainerOptions options = epochs(2);
  options.overfit_batches = 2;
  Trainer trainer(options);
  trainer.fit(module, {.train = data, .val = val});
  CHECK(module.samples == Numbers{0, 1, 0, 1});
  CHECK(module.validated == Numbers{0, 1, 0, 1});
  CHECK(warnings.count("W-TRAIN-OVERFIT") == 1);
  CHECK(warnings.count("W-TRAIN-OVERFIT-VAL") == 1);
  (void)trainer.validate(module, val);
  CHECK(module.validated == Numbers{0, 1, 0, 1, 0, 1});
  options.overfit_batches = 0.25;  // two of ten, and none of three
  CHECK(contains(refused(options, 10, 3), "overfit_batches = 0.25 of 3"));
  CHECK(contains(refused(options, 3, 10), "overfit_batches = 0.25 of 3"));
}

TEST_CASE("batch_idx and is_last_batch are of the batch at hand, in its step and in the hooks around it") {
  struct Where : TrainModuleOf<Where, Probe> {
    using TrainModuleOf::TrainModuleOf;
    Numbers before, inside, after, last;
    BatchStart on_train_batch_start(const StepInfo&) override {
      before.push_back(trainer().batch_idx());
      return BatchStart::proceed;
    }
    StepOutput training_step(const Batch& b, std::int64_t) override {
      inside.push_back(trainer().batch_idx());
      if (trainer().is_last_batch()) last.push_back(inside.back());
      return mean(b[0] * w);
    }
    void on_train_batch_end(const StepInfo&) override {
      after.push_back(trainer().batch_idx());
      if (trainer().is_last_batch()) last.push_back(after.back());
    }
  };
  Where module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(5);
  TrainerOptions options = epochs(1);
  options.limit_train_batches = 3;
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  CHECK(module.before == Numbers{0, 1, 2});
  CHECK(module.inside == Numbers{0, 1, 2});
  CHECK(module.after == Numbers{0, 1, 2});
  CHECK(module.last == Numbers{2, 2});
}

TEST_CASE("a profiler that cannot write ends no run, and hides no error of one") {
  struct Full : Profiler {
    void start(std::string_view) override {}
    void stop(std::string_view) override {}
    void finish() override { fail<FileError>("profile: no space left"); }
  };
  struct Throws : Logger {
    void log_metrics(const LogRecord&) override {}
    void finalize(std::string_view status) override {
      if (status == "failed") fail<FileError>("logger: no space left");
    }
  };
  struct Breaks : TrainModuleOf<Breaks, Probe> {
    using TrainModuleOf::TrainModuleOf;
    bool broken = false, torn_down = false;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      if (broken) fail<DataError>("planted");
      return mean(b[0] * w);
    }
    void teardown(Stage) override { torn_down = true; }
  };
  const Warnings warnings;
  Breaks module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(2);
  TrainerOptions options = epochs(1);
  options.profiler = std::make_shared<Full>();
  options.logger = std::make_shared<Throws>();
  Trainer good(options);
  good.fit(module, {.train = data});
  CHECK(good.global_step() == 2);
  CHECK(warnings.count("W-TRAIN-PROFILER") == 1);
  module.broken = true;
  module.torn_down = false;
  Trainer bad(options);
  CHECK_THROWS_WITH_AS(bad.fit(module, {.train = data}), doctest::Contains("planted"), DataError);
  CHECK(module.torn_down);
  CHECK(warnings.count("W-TRAIN-LOGGER") == 1);
}

TEST_CASE("an evaluation that a hook begins goes beside the profiler, not into it") {
  struct Evaluates : TrainModuleOf<Evaluates, Probe> {
    using TrainModuleOf::TrainModuleOf;
    data::DataLoader* more = nullptr;
    void on_validation_end() override {
      if (data::DataLoader* loader = std::exchange(more, nullptr)) (void)trainer().validate(*this, loader);
    }
  };
  Evaluates module({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(2), val = ramp(1), more = ramp(3);
  module.more = &more;
  TrainerOptions options = epochs(1);
  options.profiler = std::make_shared<SimpleProfiler>(SimpleProfilerOptions{.path = "/dev/null"});
  Trainer trainer(options);
  trainer.fit(module, {.train = data, .val = val});
  CHECK(trainer.global_step() == 2);
  CHECK(module.validation_batches == 1 + 3);
}
