// What the ends of epochs and of runs mean: skipped batches, stops, minima, portions.
#include <doctest/doctest.h>

#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

const nn::Options kLimitOptions{.gen = Generator(1), .device = Device::cpu()};

struct StopIn : Callback {
  std::int64_t batch;
  explicit StopIn(std::int64_t b) : batch(b) {}
  BatchStart on_train_batch_start(const StepInfo&) override {
    if (trainer().total_batch_idx() == batch) trainer().request_stop();
    return BatchStart::proceed;
  }
};

}  // namespace

TEST_CASE("the sanity check runs where nothing is trained") {
  TrainerOptions options = epochs(1);
  options.num_sanity_val_steps = 2;
  options.limit_train_batches = 0;
  const Ran none = run(options, 5, 4);
  CHECK(none.steps == 0);
  CHECK(none.module->validation_batches == 2);
  options.limit_train_batches.reset();
  options.max_epochs = 0;
  CHECK(run(options, 5, 4).module->validation_batches == 2);
}

TEST_CASE("a gradient_clip_val of 0 or less is off, and an algorithm alone clips nothing") {
  const double free = run(epochs(1), 3).w;
  const auto with = [](std::optional<double> value) {
    TrainerOptions options = epochs(1);
    options.gradient_clip_val = value;
    options.gradient_clip_algorithm = ClipAlgorithm::value;
    return run(options, 3).w;
  };
  CHECK(with(-1) == free);
  CHECK(with(0) == free);
  CHECK(with(std::nullopt) == free);
  CHECK(with(0.5) != free);
}

TEST_CASE("the explicit portions 1 and 1.0 are reported with their meaning, in one note") {
  const Warnings warnings;
  TrainerOptions options = epochs(1);
  options.limit_train_batches = 1;
  options.limit_val_batches = 1.0;
  options.limit_test_batches = 0.5;
  options.val_check_interval = 1.0;
  const Trainer trainer(options);
  REQUIRE(warnings.count("I-TRAIN-PORTION") == 1);
  const std::string text = warnings.all().front().text;
  CHECK(contains(text, "limit_train_batches = 1 is one batch;"));
  CHECK(contains(text, "limit_val_batches = 1.0 is all batches;"));
  CHECK(contains(text, "val_check_interval = 1.0 is at the end of each epoch;"));
  CHECK_FALSE(contains(text, "limit_test_batches"));
  const Trainer silent_one(epochs(1));
  CHECK(warnings.all().size() == 1);
}

TEST_CASE("a stop that is granted inside an epoch leaves schedules by epoch where they are") {
  struct Scheduled : TrainModuleOf<Scheduled, Probe> {
    using TrainModuleOf::TrainModuleOf;
    OptimizerConfig configure_optimizers() override {
      const auto sgd = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.5});
      return {.optimizers = {sgd}, .schedulers = {{.scheduler = std::make_shared<optim::StepLR>(*sgd, 1, 0.5)}}};
    }
  };
  const auto rate_after = [](std::int64_t stop_in) {
    Scheduled module(kLimitOptions);
    data::DataLoader data = ramp(4);
    TrainerOptions options = epochs(3);
    options.callbacks = {std::make_shared<StopIn>(stop_in)};
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    return trainer.optimizer()->lr();
  };
  CHECK(rate_after(1) == 0.5);    // in the first epoch
  CHECK(rate_after(5) == 0.25);   // in the second
  CHECK(rate_after(7) == 0.125);  // in the second's last batch
}

TEST_CASE("a batch that is skipped counts in a validation interval over all epochs, after a resume, too") {
  TrainerOptions options = epochs(3);
  options.check_val_every_n_epoch.reset();
  options.val_check_interval = 3;
  const auto validated = [&](std::int64_t skip_at) {
    return run(options, 4, 1, [&](Probe& p) { p.skip_at = skip_at; }).module->validated_after;
  };
  CHECK(validated(-1) == Numbers{3, 6, 9, 12});
  CHECK(validated(2).empty());  // batches 0 1 (2) | 0 1 (2) | 0 1 (2): each third one is skipped
  CHECK(validated(1) == Numbers{2});

  const TemporaryFolder dir;
  Probe first(kLimitOptions), second(kLimitOptions);
  first.skip_at = second.skip_at = 1;
  data::DataLoader data = ramp(4), val = ramp(1);
  options.max_epochs = 1;
  Trainer begins(options);
  begins.fit(first, {.train = data, .val = val});
  begins.save_checkpoint(dir / "one.safetensors");
  options.max_epochs = 3;
  Trainer goes_on(options);
  goes_on.fit(second, {.train = data, .val = val, .ckpt_path = dir / "one.safetensors"});
  CHECK(second.validated_after == Numbers{2});
}

TEST_CASE("a stop that has to wait is reported with the step at which it was requested") {
  const Warnings warnings;
  TrainerOptions options = epochs(2);
  options.min_steps = 5;
  options.callbacks = {std::make_shared<StopIn>(2)};
  CHECK(run(options, 4).steps == 5);
  REQUIRE(warnings.count("I-TRAIN-MINIMUM") == 1);
  for (const Warning& w : warnings.all()) {
    if (w.id == "I-TRAIN-MINIMUM") CHECK(contains(w.text, "a stop was asked for after 2 steps"));
  }
}
