#include <doctest/doctest.h>

#include "tests/device.h"
#include "tests/printed.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

constexpr std::int64_t kBarMs = 1'000'000;
std::int64_t bar_now = 0;
std::int64_t bar_clock() noexcept { return bar_now; }

struct Drawn {
  std::string text;                // all of it
  std::vector<std::string> parts;  // one a write
  ProgressBarOptions options(std::int64_t refresh_rate = 1, bool terminal = true) {
    bar_now = 0;
    return {.refresh_rate = refresh_rate,
            .terminal = terminal,
            .write =
                [this](std::string_view part) {
                  text += part;
                  parts.emplace_back(part);
                },
            .clock = &bar_clock};
  }
};

// Takes `ms` for a batch of training and logs x with prog_bar.
struct Slow : TrainModuleOf<Slow, Probe> {
  using TrainModuleOf::TrainModuleOf;
  std::int64_t ms = 200;
  double x = 0.25;
  std::string say;
  StepOutput training_step(const Batch& b, std::int64_t i) override {
    bar_now += ms * kBarMs;
    log("x", x, {.prog_bar = true});
    log("y", 2, {.prog_bar = true});
    if (!say.empty() && i == 1) print(say);
    return Probe::training_step(b, i);
  }
  void validation_step(const Batch&, std::int64_t i, std::int64_t) override {
    bar_now += ms * kBarMs;
    if (!say.empty() && i == 1) trainer().print(say);
  }
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return b[0]; }
};

// What a run draws.
Drawn draw(std::int64_t batches, TrainerOptions options, std::int64_t refresh_rate = 1, std::int64_t val_batches = 0,
           const Function<void(Slow&)>& change = {}, bool terminal = true) {
  Warnings quiet;
  Drawn drawn;
  options.enable_progress_bar = true;
  options.enable_model_summary = false;
  options.callbacks.push_back(std::make_shared<ProgressBar>(drawn.options(refresh_rate, terminal)));
  Slow net({.gen = Generator(1), .device = Device::cpu()});
  if (change) change(net);
  data::DataLoader train = ramp(batches), val = ramp(std::max<std::int64_t>(1, val_batches));
  Trainer trainer(std::move(options));
  trainer.fit(net, {.train = train, .val = val_batches > 0 ? &val : nullptr});
  return drawn;
}
std::string cells(int filled) {
  return "[" + std::string(static_cast<std::size_t>(filled), '#') +
         std::string(static_cast<std::size_t>(24 - filled), '.') + "]";
}

}  // namespace

TEST_CASE("the bar shows batches, times, rate and what was logged for it, in three significant digits") {
  const Drawn drawn = draw(4, epochs(1));
  const std::vector<std::string> expected = {
      "\r\033[KEpoch 0: " + cells(6) + " 1/4 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]",
      "\r\033[KEpoch 0: " + cells(12) + " 2/4 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]",
      "\r\033[KEpoch 0: " + cells(18) + " 3/4 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]",
      "\r\033[KEpoch 0: " + cells(24) + " 4/4 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]", "\n"};
  CHECK(drawn.parts == expected);
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{12, "12.00"},
                                                                               {123.4, "123.0"},
                                                                               {12345, "1.23e+4"},
                                                                               {0.000012, "1.2e-5"},
                                                                               {-0.5, "-0.50"},
                                                                               {0.0123456, "0.0123"}}) {
    CHECK(contains(draw(1, epochs(1), 1, 0, [&](Slow& s) { s.x = value; }).text, (" x=" + text + ",").c_str()));
  }
}

TEST_CASE(
    "the bar is redrawn every refresh_rate batches and for the last, ten times a second at most; 0 draws nothing") {
  const auto draws = [](std::int64_t rate, std::int64_t ms, std::int64_t batches = 10) {
    return draw(batches, epochs(1), rate, 0, [&](Slow& s) { s.ms = ms; }).parts.size() - 1;  // the line end
  };
  CHECK(draws(1, 200) == 10);
  CHECK(draws(4, 200) == 3);       // 4, 8, 10
  CHECK(draws(1, 10, 100) == 11);  // the first, then every 100 ms; 1 s in all and the last
  CHECK(draw(10, epochs(1), 0).parts.empty());
  CHECK_THROWS_AS(ProgressBar(ProgressBarOptions{.refresh_rate = -1}), ConfigError);
}

TEST_CASE("the bar's total is what is left of the run where epochs have no limit") {
  TrainerOptions options = silent();
  options.max_epochs = -1;
  options.max_steps = 7;
  const Drawn drawn = draw(5, options);
  CHECK(contains(drawn.text, " 5/5 ["));
  CHECK(contains(drawn.text, ("Epoch 1: " + cells(12) + " 1/2 [").c_str()));
  CHECK(contains(drawn.text, " 2/2 ["));
}

TEST_CASE("a validation has its own bar below, which goes when it ends") {
  const Drawn drawn = draw(1, epochs(1), 1, 2);
  const std::string main = "Epoch 0: " + cells(24) + " 1/1 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]";
  const std::vector<std::string> expected = {
      "\r\033[K" + main, "\n\033[KValidation DataLoader 0: " + cells(12) + " 1/2 [00:00<00:00, 5.0 batches/s]",
      "\r\033[KValidation DataLoader 0: " + cells(24) + " 2/2 [00:00<00:00, 5.0 batches/s]",
      "\r\033[K\033[A\r\033[" + std::to_string(main.size()) + "C", "\n"};
  CHECK(drawn.parts == expected);
  TrainerOptions options = epochs(1);
  options.num_sanity_val_steps = 1;
  CHECK(contains(draw(1, options, 1, 2).text, ("Sanity Checking DataLoader 0: " + cells(24) + " 1/1 [").c_str()));
}

TEST_CASE("print writes its line above the bars and draws them again") {
  const Drawn drawn = draw(2, epochs(1), 1, 2, [](Slow& s) { s.say = "hello"; });
  const std::string first = "Epoch 0: " + cells(12) + " 1/2 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]";
  CHECK(contains(drawn.text, ("\r\033[Khello\n" + first).c_str()));
  CHECK(contains(drawn.text, "\r\033[K\033[A\r\033[Khello\nEpoch 0: "));
  CHECK(contains(drawn.text, "\n\033[KValidation DataLoader 0: "));
}

TEST_CASE("a warning is printed above the bars, which are drawn again after it") {
  struct Warns : TrainModuleOf<Warns, Slow> {
    using TrainModuleOf::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      if (i == 1) warn("I-OF-A-STEP", WarningCategory::info, "a step");
      return Slow::training_step(b, i);
    }
    void validation_step(const Batch& b, std::int64_t i, std::int64_t l) override {
      if (i == 1) warn("I-OF-A-VALIDATION", WarningCategory::info, "a validation");
      Slow::validation_step(b, i, l);
    }
  } net({.gen = Generator(1), .device = Device::cpu()});
  Drawn drawn;
  TrainerOptions options = epochs(1);
  options.enable_progress_bar = true;
  options.enable_model_summary = false;
  options.callbacks.push_back(std::make_shared<ProgressBar>(drawn.options()));
  data::DataLoader train = ramp(2), val = ramp(2);
  Trainer trainer(options);
  const std::string err = printed([&] { trainer.fit(net, {.train = train, .val = val}); });
  CHECK(contains(err, "note: a step [I-OF-A-STEP]\n"));
  CHECK(contains(err, "note: a validation [I-OF-A-VALIDATION]\n"));
  const std::string first = "Epoch 0: " + cells(12) + " 1/2 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]";
  CHECK(contains(drawn.text, ("\r\033[K" + first + "\r\033[K" + first).c_str()));
  const std::string last = "Epoch 0: " + cells(24) + " 2/2 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]";
  const std::string below = "Validation DataLoader 0: " + cells(12) + " 1/2 [00:00<00:00, 5.0 batches/s]";
  CHECK(contains(drawn.text, ("\n\033[K" + below + "\r\033[K\033[A\r\033[K" + last + "\n\033[K" + below).c_str()));
  CHECK(printed([] { warn("I-BEHIND", WarningCategory::info, "x", Repeat::yes); }) == "note: x [I-BEHIND]\n");
  CHECK(drawn.text.ends_with("\n"));  // nothing is drawn after the run
}

TEST_CASE("on a narrow terminal the bar keeps its metrics longest, and never is a line longer than the terminal") {
  const TemporaryFolder folder;
  const auto with = [&](std::int64_t columns) {
    Warnings quiet;
    Drawn drawn;
    TrainerOptions options = epochs(1);
    options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder / "", .version = "3"});
    options.enable_progress_bar = true;
    options.enable_model_summary = false;
    ProgressBarOptions bar = drawn.options();
    bar.columns = columns;
    options.callbacks.push_back(std::make_shared<ProgressBar>(std::move(bar)));
    Slow net({.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader train = ramp(4);
    Trainer trainer(options);
    trainer.fit(net, {.train = train});
    return drawn.parts.at(1).substr(std::string("\r\033[K").size());
  };
  CHECK(with(200) == "Epoch 0: " + cells(12) + " 2/4 [00:00<00:00, 5.0 batches/s, v_num=3, x=0.250, y=2.000]");
  CHECK(with(80) == "Epoch 0: [####....] 2/4 [00:00<00:00, 5.0 batches/s, v_num=3, x=0.250, y=2.000]");
  CHECK(with(60) == "Epoch 0: 2/4 [00:00<00:00, 5.0 batches/s, x=0.250, y=2.000]");
  CHECK(with(45) == "Epoch 0: 2/4 [00:00<00:00, x=0.250, y=2.000]");
  CHECK(with(32) == "Epoch 0: 2/4 [x=0.250, y=2.000]");
  for (std::int64_t columns = 2; columns < 120; ++columns) CHECK(std::ssize(with(columns)) < columns);
  CHECK_THROWS_AS(ProgressBar(ProgressBarOptions{.columns = 1}), ConfigError);
}

TEST_CASE("the bar names the logger's version: a number, or the last four characters") {
  const TemporaryFolder folder;
  const auto with = [&](const std::string& version) {
    TrainerOptions options = epochs(1);
    options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder / "", .version = version});
    return draw(1, options).text;
  };
  CHECK(contains(with("12345"), ", v_num=12345, x=0.250"));
  CHECK(contains(with("my_run7"), ", v_num=run7, x=0.250"));
}

TEST_CASE("without a terminal there is a line every log_every_n_steps and one an epoch") {
  TrainerOptions options = epochs(1);
  options.log_every_n_steps = 2;
  const Drawn drawn = draw(4, options, 1, 2, {}, false);
  REQUIRE(drawn.parts.size() == 3);
  CHECK(drawn.parts[0] == "epoch 0: 2/4 batches, 5.0 batches/s, x=0.250, y=2.000\n");
  CHECK(contains(drawn.parts[2], "epoch 0 done: 4 steps in all, "));
}

TEST_CASE("without a terminal a window of accumulation has one line, and a manual batch of several steps one") {
  TrainerOptions options = epochs(1);
  options.log_every_n_steps = 2;
  options.accumulate_grad_batches = 2;
  const Drawn drawn = draw(8, options, 1, 0, {}, false);
  REQUIRE(drawn.parts.size() == 3);
  CHECK(drawn.parts[0].starts_with("epoch 0: 4/8 batches, "));
  CHECK(drawn.parts[1].starts_with("epoch 0: 8/8 batches, "));
  CHECK(drawn.parts[2].starts_with("epoch 0 done: 4 steps in all, "));

  Warnings quiet;
  Drawn manual;
  TrainerOptions by_hand = epochs(1);
  by_hand.log_every_n_steps = 2;
  by_hand.enable_progress_bar = true;
  by_hand.enable_model_summary = false;
  by_hand.callbacks.push_back(std::make_shared<ProgressBar>(manual.options(1, false)));
  TwoSteps net({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader train = ramp(4);
  Trainer(by_hand).fit(net, {.train = train});
  REQUIRE(manual.parts.size() == 3);
  CHECK(manual.parts[0].starts_with("epoch 0: 2/4 batches, "));
  CHECK(manual.parts[1].starts_with("epoch 0: 4/4 batches, "));
}

TEST_CASE("evaluations outside of a fit have a bar that stays") {
  Drawn drawn;
  TrainerOptions options = silent();
  options.enable_progress_bar = true;
  options.enable_model_summary = false;
  options.callbacks.push_back(std::make_shared<ProgressBar>(drawn.options()));
  Slow net({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader a = ramp(1), b = ramp(2);
  Trainer trainer(options);
  (void)trainer.validate(net, {&a, &b});
  (void)trainer.predict(net, a);
  CHECK(contains(drawn.text, ("Validation DataLoader 0: " + cells(24) + " 1/1 [").c_str()));
  CHECK(contains(drawn.text, ("Validation DataLoader 1: " + cells(24) + " 2/2 [").c_str()));
  CHECK(contains(drawn.text, ("Predicting DataLoader 0: " + cells(24) + " 1/1 [").c_str()));
  CHECK(drawn.text.ends_with("\n"));
}

TEST_CASE("the bar reads a device's metrics when it draws, ten times a second at most, in one copy") {
  DEVICE_OR_SKIP();
  struct OnDeviceBar : TrainModuleOf<OnDeviceBar> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      bar_now += 10 * kBarMs;
      const Tensor loss = squared_error(fc(b[0]), b[1]);
      for (const char* name : {"a", "b", "c"}) log(name, loss, {.prog_bar = true});
      return loss;
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  } net({.gen = Generator(1), .device = device});
  Drawn drawn;
  TrainerOptions options = epochs(1);
  options.enable_progress_bar = true;
  options.enable_model_summary = false;
  options.log_every_n_steps = 0;
  options.callbacks.push_back(std::make_shared<ProgressBar>(drawn.options()));
  data::DataLoader train = loader(400, 4);
  Trainer trainer(options);
  const CopyCounts before = copy_counts();
  trainer.fit(net, {.train = train});
  CHECK(drawn.parts.size() == 12);  // 1 s: 11 and the line end
  CHECK((copy_counts() - before).to_host <= 11);
  CHECK((copy_counts() - before).to_host >= 10);
}
