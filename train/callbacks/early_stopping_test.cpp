#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

using Values = std::vector<double>;
using Reason = EarlyStopping::Reason;

// Logs one value an epoch, as "score": at the end of training epochs, or in validation.
struct Scored : TrainModuleOf<Scored> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  Values values;
  bool in_validation = false;
  std::int64_t validations = 0, epoch_ends = 0;
  [[nodiscard]] double value(std::int64_t i) const { return values.at(static_cast<std::size_t>(i)); }
  StepOutput training_step(const Batch& b, std::int64_t) override { return squared_error(fc(b[0]), b[1]); }
  void validation_step(const Batch&, std::int64_t batch_idx, std::int64_t) override {
    if (in_validation && batch_idx == 0) log("score", value(trainer().sanity_checking() ? 0 : validations));
  }
  void on_validation_end() override { validations += trainer().sanity_checking() ? 0 : 1; }
  void on_train_epoch_end() override {
    ++epoch_ends;
    if (!in_validation) log("score", value(trainer().current_epoch()));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
  }
};

struct Outcome {
  std::int64_t epochs = 0, steps = 0, validations = 0;
  std::shared_ptr<EarlyStopping> stopping;
};

TrainerOptions epochs(std::int64_t n) {
  TrainerOptions options = silent();
  options.max_epochs = n;
  return options;
}

Outcome train(const Values& values, const EarlyStoppingOptions& stopping, TrainerOptions options,
              bool in_validation = false, const std::string& ckpt_path = {}, const std::string& save_to = {}) {
  Generator gen(1);
  Scored module({.gen = gen, .device = Device::cpu()});
  module.values = values;
  module.in_validation = in_validation;
  Outcome out;
  out.stopping = std::make_shared<EarlyStopping>(stopping);
  options.callbacks.push_back(out.stopping);
  data::DataLoader data = loader(8, 4), val(points(4), {.batch_size = 4});
  Trainer trainer(options);
  trainer.fit(module, {.train = &data, .val = &val, .ckpt_path = ckpt_path});
  if (!save_to.empty()) trainer.save_checkpoint(save_to);
  out.epochs = trainer.current_epoch();
  out.steps = trainer.global_step();
  out.validations = module.validations;
  return out;
}
EarlyStoppingOptions score(std::int64_t patience = 3) { return {.monitor = "score", .patience = patience}; }

}  // namespace

TEST_CASE("early stopping counts checks without a gain and stops at patience") {
  const auto stops = [](const Values& values, std::int64_t patience) {
    const Outcome out = train(values, score(patience), epochs(static_cast<std::int64_t>(values.size())));
    CHECK(out.stopping->stopping_reason() == Reason::patience_exhausted);
    CHECK(out.epochs == out.stopping->stopped_epoch() + 1);
    return out.stopping->stopped_epoch();
  };
  CHECK(stops({6, 5, 5, 5, 5, 5}, 3) == 4);
  CHECK(stops({6, 5, 4, 4, 3, 3}, 1) == 3);
  CHECK(stops({6, 5, 4, 4, 3, 3}, 0) == 3);  // as 1
  CHECK(stops({6, 5, 6, 5, 5, 5}, 3) == 4);
  const Outcome whole = train({6, 5, 4, 3}, score(1), epochs(4));
  CHECK(whole.epochs == 4);
  CHECK(whole.stopping->stopping_reason() == Reason::not_stopped);
  CHECK(whole.stopping->stopping_message().empty());
  CHECK(whole.stopping->best_score() == 3);
}

TEST_CASE("early stopping takes no gain of min_delta or less, in both modes") {
  EarlyStoppingOptions o = score(1);
  o.min_delta = 0.5;
  CHECK(train({4, 3.5, 3}, o, epochs(3)).stopping->stopped_epoch() == 1);  // exactly min_delta
  CHECK(train({4, 3.25, 2.5, 2.25}, o, epochs(4)).stopping->stopped_epoch() == 3);
  o.mode = Mode::max;
  CHECK(train({1, 1.5, 9}, o, epochs(3)).stopping->stopped_epoch() == 1);
  const Outcome out = train({1, 1.75, 2.5, 2.75}, o, epochs(4));
  CHECK(out.stopping->stopped_epoch() == 3);
  CHECK(out.stopping->best_score() == 2.5);
  CHECK(out.stopping->wait_count() == 1);
}

TEST_CASE("early stopping has thresholds that are passed strictly, and ends where a metric is not finite") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  EarlyStoppingOptions o = score(100);
  o.stopping_threshold = 2.9;
  Outcome out = train({9, 8, 7, 6, 5, 6, 4, 3, 2, 1}, o, epochs(10));
  CHECK(out.stopping->stopped_epoch() == 8);
  CHECK(out.stopping->stopping_reason() == Reason::stopping_threshold);
  CHECK(out.stopping->stopping_message().find("score is 2, better than stopping_threshold = 2.9") == 0);
  o.stopping_threshold = 3;
  CHECK(train({9, 3, 2}, o, epochs(3)).stopping->stopped_epoch() == 2);  // equal does not stop
  o.stopping_threshold.reset();
  o.divergence_threshold = 15.9;
  out = train({9, 4, 2, 16, 32, 64}, o, epochs(6));
  CHECK(out.stopping->stopped_epoch() == 3);
  CHECK(out.stopping->stopping_reason() == Reason::divergence_threshold);
  o.divergence_threshold = 16;
  CHECK(train({9, 16, 17}, o, epochs(3)).stopping->stopped_epoch() == 2);
  o.divergence_threshold.reset();
  for (const double bad : {kNan, kInf, -kInf}) {
    CAPTURE(bad);
    out = train({9, 8, bad, 1}, o, epochs(4));
    CHECK(out.stopping->stopped_epoch() == 2);
    CHECK(out.stopping->stopping_reason() == Reason::non_finite_metric);
    CHECK(out.stopping->best_score() == 8);
  }
  o.check_finite = false;
  o.patience = 2;
  CHECK(train({9, kNan, kNan, 1}, o, epochs(4)).stopping->stopping_reason() == Reason::patience_exhausted);
}

TEST_CASE("early stopping warns of a stopping threshold that the first check meets, as an accuracy in mode min does") {
  EarlyStoppingOptions o = score();
  o.stopping_threshold = 0.98;
  const Warnings warnings;
  CHECK(train({0.5, 0.6}, o, epochs(2)).epochs == 1);
  REQUIRE(warnings.ids() == std::vector<std::string>{"W-STOP-FIRST"});
  CHECK(warnings.all()[0].text.find("mode = max") != std::string::npos);
  CHECK(warnings.all()[0].category == WarningCategory::possible_user);
  CHECK(train({1.5, 0.6}, o, epochs(2)).stopping->stopped_epoch() == 1);
  CHECK(warnings.all().size() == 1);
}

TEST_CASE("early stopping refuses a metric that is not known with those that are, unless it is not strict") {
  EarlyStoppingOptions o = score();
  o.monitor = "val_acc";
  try {
    (void)train({1, 2}, o, epochs(2));
    FAIL("accepted");
  } catch (const ConfigError& e) {
    const std::string what = e.what();
    for (const std::string part : {"val_acc", "known are: score", "another name", "another time"})
      CHECK(what.find(part) != std::string::npos);
  }
  o.strict = false;
  const Warnings warnings;
  Outcome out = train({1, 2}, o, epochs(2));
  CHECK(out.epochs == 2);
  CHECK(out.stopping->wait_count() == 0);
  CHECK(warnings.all().empty());
  o.verbose = true;
  (void)train({1}, o, epochs(1));
  CHECK(warnings.ids() == std::vector<std::string>{"W-STOP-METRIC"});
  CHECK_THROWS_AS(EarlyStopping({}), ConfigError);
  CHECK_THROWS_AS(EarlyStopping({.monitor = "a", .min_delta = -1}), ConfigError);
  CHECK_THROWS_AS(EarlyStopping({.monitor = "a", .min_delta = NAN}), ConfigError);
  CHECK_THROWS_AS(EarlyStopping({.monitor = "a", .patience = -1}), ConfigError);
}

TEST_CASE("a verbose early stopping reports a gain after checks without one, not each gain in a row") {
  EarlyStoppingOptions o = score(3);
  o.verbose = true;
  const Warnings warnings;
  (void)train({3, 2, 1, 4, 0.5, 0.25}, o, epochs(6));
  REQUIRE(warnings.ids() == std::vector<std::string>{"I-STOP-GAIN"});
  CHECK(warnings.all().front().text == "EarlyStopping: score is at its best again, 0.5, after 1 check without a gain");
}

TEST_CASE("early stopping checks where validation runs: patience counts checks, and not the sanity check") {
  // One validation every 10 epochs: a gain, and 3 checks without.
  TrainerOptions options = epochs(100);
  options.check_val_every_n_epoch = 10;
  options.num_sanity_val_steps = 1;
  Outcome out = train(Values(10, 5.0), score(3), options, /*in_validation=*/true);
  CHECK(out.epochs == 40);
  CHECK(out.validations == 4);
  // Two validations an epoch: the stop comes in the middle of the second epoch, which is closed.
  options = epochs(100);
  options.val_check_interval = 0.5;
  out = train({3, 2, 4}, score(1), options, true);
  CHECK(out.steps == 3);
  CHECK(out.epochs == 2);
  CHECK(out.stopping->stopped_epoch() == 1);
  CHECK(out.validations == 3);
  // Checks at the end of epochs read the value of the last validation.
  EarlyStoppingOptions at_end = score(1);
  at_end.check_on_train_epoch_end = true;
  out = train({3, 2, 4, 1, 0, 5}, at_end, options, true);
  CHECK(out.stopping->stopping_reason() == Reason::patience_exhausted);
  CHECK(out.stopping->stopped_epoch() == 2);  // 2, 1, 5
  // The integer 1 is one batch, not the fraction.
  options.val_check_interval = 1;
  CHECK(train({3, 4}, score(1), options, true).steps == 2);
  TrainerOptions dev = silent();
  dev.fast_dev_run = 1;
  const Warnings warnings;
  EarlyStoppingOptions met = score();
  met.stopping_threshold = 100;
  CHECK(train({3, 4}, met, dev, true).stopping->stopping_reason() == Reason::not_stopped);
}

TEST_CASE("an early stop waits for the minima of the run") {
  TrainerOptions options = epochs(10);
  options.min_epochs = 5;
  const Warnings warnings;
  Values values(10, 1.0);
  CHECK(train(values, score(1), options).epochs == 5);
  options.min_epochs.reset();
  options.min_steps = 7;  // 2 an epoch
  CHECK(train(values, score(1), options).steps == 7);
}

TEST_CASE("early stopping keeps its counts over a resume; two metrics have their own") {
  const TemporaryFolder dir;
  const std::string path = dir / "c.safetensors";
  const auto both = [&](std::int64_t patience_of_other) {
    TrainerOptions options = epochs(3);
    options.callbacks = {std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = "score", .patience = patience_of_other, .mode = Mode::max})};
    return options;
  };
  const Values values = {6, 5, 5.5, 5.5, 5.5, 5.5};
  Outcome out = train(values, score(3), both(50), false, {}, path);
  CHECK(out.epochs == 3);
  CHECK(out.stopping->wait_count() == 1);
  TrainerOptions more = both(50);
  more.max_epochs = 6;
  out = train(values, score(3), more, false, path);
  CHECK(out.stopping->stopped_epoch() == 4);
  CHECK(out.stopping->best_score() == 5);
  CHECK(static_cast<const EarlyStopping&>(*more.callbacks[0]).best_score() == 6);
  // A patience other than that of the file is a warning; that of the file counts.
  {
    const Warnings warnings;
    out = train(values, score(30), more, false, path);
    CHECK(out.stopping->stopped_epoch() == 4);
    CHECK(out.stopping->patience() == 3);
    CHECK(warnings.ids() == std::vector<std::string>{"W-STOP-PATIENCE"});
  }
  // Another monitor begins anew.
  const Warnings warnings;
  EarlyStoppingOptions other = score(3);
  other.monitor = "another";
  other.strict = false;
  out = train(values, other, more, false, path);
  CHECK(out.stopping->wait_count() == 0);
  CHECK(warnings.ids() == std::vector<std::string>{"W-CKPT-CALLBACKS"});
  TrainerOptions twice = epochs(1);
  twice.callbacks = {std::make_shared<EarlyStopping>(score())};
  CHECK_THROWS_WITH_AS((void)train({1}, score(7), twice), doctest::Contains("state key"), ConfigError);
}

TEST_CASE("a stop in the middle of an epoch and a skipped epoch close it as the documentation says") {
  struct Act : Callback {
    std::int64_t at = 0;
    bool skip = false;
    BatchStart on_train_batch_start(const StepInfo& info) override {
      return skip && info.batch_idx == at ? BatchStart::skip_epoch : BatchStart::proceed;
    }
    void on_train_batch_end(const StepInfo& info) override {
      if (!skip && info.batch_idx == at) trainer().request_stop();
    }
  };
  for (const bool skip : {false, true}) {
    CAPTURE(skip);
    Generator gen(1);
    Scored module({.gen = gen, .device = Device::cpu()});
    module.values = Values(10, 1.0);
    const auto act = std::make_shared<Act>();
    act->at = skip ? 5 : 4;
    act->skip = skip;
    TrainerOptions options = epochs(2);
    options.callbacks = {act};
    data::DataLoader data = loader(40, 4), val = loader(4, 4);
    Trainer trainer(options);
    trainer.fit(module, {.train = &data, .val = &val});
    CHECK(trainer.global_step() == (skip ? 10 : 5));
    CHECK(trainer.current_epoch() == (skip ? 2 : 1));
    CHECK(module.validations == (skip ? 0 : 1));
    CHECK(module.epoch_ends == (skip ? 2 : 1));
  }
}

TEST_CASE("a validation that a hook runs is no check") {
  struct Validates : Callback {
    Scored* other = nullptr;
    data::DataLoader* data = nullptr;
    void on_train_batch_end(const StepInfo&) override { (void)trainer().validate(*other, *data); }
  };
  Generator gen(1), other_gen(2);
  Scored other({.gen = other_gen, .device = Device::cpu()});
  other.values = Values(100, 0.0);
  other.in_validation = true;
  data::DataLoader val = loader(4, 4);
  const auto validates = std::make_shared<Validates>();
  validates->other = &other;
  validates->data = &val;
  TrainerOptions options = epochs(3);
  options.check_val_every_n_epoch = 3;
  options.callbacks = {validates};
  const Outcome out = train({2, 2, 2}, score(1), options, true);
  CHECK(other.validations == 6);
  CHECK(out.epochs == 3);
  CHECK(out.stopping->best_score() == 2);
  CHECK(out.stopping->wait_count() == 0);
}
