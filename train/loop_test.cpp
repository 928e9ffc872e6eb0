// Limits, intervals, accumulation, clipping: what the loop does when.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "train/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

using Words = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

// One weight, w = 1 at first; the loss of a batch is the mean of w x.
struct Probe : TrainModuleOf<Probe> {
  using TrainModuleOf::TrainModuleOf;
  nn::Parameter w{*this, "w", ones({1}, Device::cpu())};
  double lr = 0.1;
  std::int64_t skip_at = -1;
  Words words;              // hooks of a step
  Numbers validated_after;  // batches trained when validations began, sanity checks left out
  Numbers stepped_after;    // batches trained in the epoch when the optimizer stepped, with the one at hand
  Numbers cleared_at;       // batch_idx when gradients were cleared
  Numbers samples;          // of the batches trained on
  std::int64_t validation_batches = 0, backwards = 0, epoch_ends = 0;
  bool note_words = false;

  void note(const char* word) {
    if (note_words) words.emplace_back(word);
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    note("training_step");
    for (const std::int64_t i : b.indices) samples.push_back(i);
    return mean(b[0] * w);
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    ++validation_batches;
    log("val_loss", mean(b[0] * w));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = lr})}};
  }
  BatchStart on_train_batch_start(const StepInfo& info) override {
    note("on_train_batch_start");
    return info.batch_idx == skip_at ? BatchStart::skip_epoch : BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo&) override { note("on_train_batch_end"); }
  void on_train_epoch_end() override { ++epoch_ends; }
  void on_validation_start() override {
    if (!trainer().sanity_checking()) validated_after.push_back(trainer().total_batch_idx());
  }
  void on_before_zero_grad(optim::Optimizer&) override { note("on_before_zero_grad"); }
  void optimizer_zero_grad(std::int64_t, std::int64_t batch_idx, optim::Optimizer& o) override {
    note("optimizer_zero_grad");
    cleared_at.push_back(batch_idx);
    o.zero_grad();
  }
  void on_before_backward(const Tensor&) override { note("on_before_backward"); }
  void on_after_backward() override {
    note("on_after_backward");
    ++backwards;
  }
  void on_before_optimizer_step(optim::Optimizer&) override {
    note("on_before_optimizer_step");
    stepped_after.push_back(trainer().batch_idx() + 2);
  }
  void configure_gradient_clipping(optim::Optimizer& o, std::optional<double> value,
                                   std::optional<ClipAlgorithm> algorithm) override {
    note("configure_gradient_clipping");
    clip_gradients(o, value, algorithm);
  }
  void optimizer_step(std::int64_t, std::int64_t, OptimizerHandle& o, const Function<Tensor()>& closure) override {
    (void)o.step(closure);
    note("optimizer_step");
  }
};

struct Ran {
  std::unique_ptr<Probe> module;
  std::int64_t steps = 0, epochs = 0;
  std::vector<LogRecord> history;
  double w = 0;
};

// x of sample i is i + 1, so that gradients tell batches apart.
data::DataLoader ramp(std::int64_t batches, std::int64_t batch_size = 1, bool shuffle = false) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < batches * batch_size; ++i) x.push_back(static_cast<float>(i + 1));
  return data::DataLoader(data::tensor_dataset({from_data<float>(x, {batches * batch_size, 1}, Device::cpu())}),
                          {.batch_size = batch_size, .shuffle = shuffle, .generator = Generator(4)});
}

Ran run(TrainerOptions options, std::int64_t batches, std::int64_t val_batches = 0,
        const Function<void(Probe&)>& change = {}) {
  Ran ran{.module = std::make_unique<Probe>(nn::Options{.gen = Generator(1), .device = Device::cpu()}), .history = {}};
  if (change) change(*ran.module);
  data::DataLoader train = ramp(batches), val = ramp(std::max<std::int64_t>(1, val_batches));
  Trainer trainer(std::move(options));
  trainer.fit(*ran.module, {.train = train, .val = val_batches > 0 ? &val : nullptr});
  ran.steps = trainer.global_step();
  ran.epochs = trainer.current_epoch();
  ran.history = trainer.history();
  ran.w = ran.module->w.item();
  return ran;
}

TrainerOptions epochs(std::int64_t n) {
  TrainerOptions options = silent();
  options.max_epochs = n;
  return options;
}
std::string refused(const TrainerOptions& options, std::int64_t batches = 10, std::int64_t val_batches = 4) {
  try {
    (void)run(options, batches, val_batches);
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Asks for a stop at a batch of the run.
struct StopAt : Callback {
  std::int64_t batch;
  explicit StopAt(std::int64_t b) : batch(b) {}
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == batch + 1) trainer().request_stop();
  }
};

}  // namespace

TEST_CASE("a module sees one batch in the documented order, from its start to its end") {
  const Ran ran = run(epochs(1), 1, 0, [](Probe& p) { p.note_words = true; });
  CHECK(ran.module->words == Words{"on_train_batch_start", "training_step", "on_before_zero_grad",
                                   "optimizer_zero_grad", "on_before_backward", "on_after_backward",
                                   "on_before_optimizer_step", "configure_gradient_clipping", "optimizer_step",
                                   "on_train_batch_end"});
}

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

TEST_CASE("intervals that can not be are refused with the option's name") {
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

TEST_CASE("validation inside of an accumulation window leaves the training as it is") {
  TrainerOptions options = epochs(1);
  options.accumulate_grad_batches = 4;
  const double without = run(options, 8).w;
  options.val_check_interval = 2;
  const Ran ran = run(options, 8, 1);
  CHECK(ran.module->validated_after == Numbers{2, 4, 6, 8});
  CHECK(ran.w == without);
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
    CHECK(s.factor(epoch) == factor);
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

TEST_CASE("predict gives what the module makes of each batch") {
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
    void start(std::int64_t steps) override { calls.push_back("start " + std::to_string(steps)); }
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
  CHECK(kept->calls == std::vector<std::string>{"start 0", "success"});
  const Metrics all = trainer.callback_metrics();
  CHECK(std::find(all.begin(), all.end(), std::pair<std::string, double>{"hidden", 2.4}) != all.end());
  // A second fit goes on where the first ended.
  trainer.options().max_epochs = 3;
  trainer.fit(module, {.train = data});
  CHECK(kept->calls[2] == "start 6");
}

TEST_CASE("the step-time report adds up to the run, and a profiler is told of hooks and steps") {
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
  CHECK(times("batch_to_device") == 4);
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

TEST_CASE("a LearningRateMonitor without a logger is refused") {
  TrainerOptions options = epochs(1);
  options.callbacks = {std::make_shared<LearningRateMonitor>()};
  CHECK(contains(refused(options), "LearningRateMonitor"));
}
