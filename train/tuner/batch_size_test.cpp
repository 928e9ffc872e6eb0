#include <doctest/doctest.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "levin/memory.h"
#include "levin/train.h"
#include "train/run/fixture_test.h"
#include "train/tuner/fixture_test.h"

using namespace levin;
using test::tuner_files;

namespace {

// Batches of more than `limit` do not fit; notes the sizes that were tried.
struct Sized : TrainModuleOf<Sized> {
  explicit Sized(std::int64_t most, std::int64_t n = 10000) : TrainModuleOf(test::kTuned), limit(most), samples(n) {
    tunable("batch_size", &batch_size);
  }
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  std::int64_t batch_size = 32, limit, samples;
  std::vector<std::int64_t> tried{};    // in order
  std::vector<std::int64_t> trained{};  // sizes of batches
  int loaders = 0, throw_in_trial = 0, with_loader = 0;
  int kind = 0;  // of error

  void meet(const Batch& b) {
    if (throw_in_trial > 0 && loaders - 1 == throw_in_trial && trainer().global_step() > 0)
      throw std::domain_error("planted");
    if (batch_size <= limit) return;
    if (kind == 1) throw std::bad_alloc();
    if (kind == 2) throw std::runtime_error("CUDA out of memory. Tried to allocate 2 GiB");
    fail<OutOfMemoryError>("planted: ", b.size(), " samples");
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    if (!b[0].device().is_meta()) trained.push_back(b.size());
    const Tensor loss = test::squared_error(fc(b[0]), b[1]);
    meet(b);
    return loss;
  }
  void test_step(const Batch& b, std::int64_t, std::int64_t) override {
    if (!b[0].device().is_meta()) trained.push_back(b.size());
    meet(b);
    log("n", static_cast<double>(b.size()));
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    trained.push_back(b.size());
    meet(b);
  }
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override {
    meet(b);
    return fc(b[0]);
  }
  std::unique_ptr<data::DataLoader> made() {
    ++loaders;
    tried.push_back(batch_size);
    return std::make_unique<data::DataLoader>(test::loader(samples, batch_size));
  }
  std::unique_ptr<data::DataLoader> train_loader() override { return made(); }
  std::unique_ptr<data::DataLoader> test_loader() override { return made(); }
  std::unique_ptr<data::DataLoader> predict_loader() override { return made(); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
  }
  // The first loader shows the number of samples.
  [[nodiscard]] std::vector<std::int64_t> trials() const { return {tried.begin() + 1, tried.end()}; }
};

TrainerOptions in(const test::TemporaryFolder& dir) {
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  options.max_epochs = 1;
  return options;
}

std::int64_t search(Sized& net, const BatchSizeOptions& options) {
  const test::TemporaryFolder dir;
  const test::Warnings warnings;
  Trainer trainer(in(dir));
  const auto found = Tuner(trainer).scale_batch_size(net, options);
  REQUIRE(found.has_value());
  CHECK(net.batch_size == *found);
  CHECK(tuner_files(dir.path()).empty());
  CHECK(warnings.count("I-TUNE-BATCH-SIZE") == 1);
  return *found;
}

using Sizes = std::vector<std::int64_t>;

struct FineTune : BatchSizeFinder {
  FineTune(Sizes when, BatchSizeOptions options) : BatchSizeFinder(std::move(options)), milestones(std::move(when)) {}
  Sizes milestones, searched, found;
  void on_fit_start() override {}
  void on_train_epoch_start() override {
    const std::int64_t epoch = trainer().current_epoch();
    if (std::find(milestones.begin(), milestones.end(), epoch) == milestones.end()) return;
    scale_batch_size();
    searched.push_back(epoch);
    found.push_back(*optimal_batch_size());
  }
};

}  // namespace

TEST_CASE("power doubles until a size does not fit, and takes half of that") {
  Sized net(100);
  CHECK(search(net, {}) == 64);
  CHECK(net.trials() == Sizes{2, 4, 8, 16, 32, 64, 128});
  CHECK(net.trained.size() == 6 * 3 + 1);  // steps_per_trial each
  Sized down(40);
  CHECK(search(down, {.init_val = 64}) == 32);
  CHECK(down.trials() == Sizes{64, 32, 64});
  Sized few(100);
  CHECK(search(few, {.max_trials = 3}) == 8);
  CHECK(few.trials() == Sizes{2, 4, 8});
}

TEST_CASE("binsearch closes the gap between what fits and what does not, and keeps a margin") {
  Sized net(100);
  CHECK(search(net, {.mode = "BinSearch"}) == 95);
  CHECK(net.trials() == Sizes{2, 4, 8, 16, 32, 64, 128, 96, 112, 104, 100, 102, 101});
  Sized whole(100);
  CHECK(search(whole, {.mode = "binsearch", .margin = 0}) == 100);
  Sized few(100);
  CHECK(search(few, {.mode = "binsearch", .init_val = 4, .max_trials = 2}) == 7);
  CHECK(few.trials() == Sizes{4, 8});
  Sized down(5);
  CHECK(search(down, {.mode = "binsearch", .init_val = 64, .margin = 0}) == 5);
  Sized one(1);
  CHECK(search(one, {.mode = "binsearch"}) == 1);  // the margin leaves at least one
}

TEST_CASE("the number of samples and max_val are limits that are tried themselves") {
  Sized net(1000, 100);
  CHECK(search(net, {}) == 100);
  CHECK(net.trials() == Sizes{2, 4, 8, 16, 32, 64, 100});
  Sized most(1000);
  CHECK(search(most, {.max_val = 64}) == 64);
  CHECK(most.trials().back() == 64);
  Sized edge(99, 100);
  CHECK(search(edge, {}) == 64);  // 100 does not fit: the last size that fits stays
  Sized exact(1000, 100);
  CHECK(search(exact, {.mode = "binsearch", .margin = 0}) == 100);
}

TEST_CASE("errors of memory are known by type and by words, and a single sample that does not fit is one of them") {
  for (const int kind : {1, 2}) {
    Sized net(10);
    net.kind = kind;
    CHECK(search(net, {}) == 8);
  }
  for (const std::string mode : {"power", "binsearch"}) {
    const test::TemporaryFolder dir;
    Sized none(0);
    Trainer trainer(in(dir));
    CHECK_THROWS_WITH_AS((void)Tuner(trainer).scale_batch_size(none, {.mode = mode}),
                         doctest::Contains("a batch of 1 does not fit: the trial had "), OutOfMemoryError);
    CHECK(none.batch_size == 32);
    CHECK(tuner_files(dir.path()).empty());
  }
  Sized late(1);
  const test::TemporaryFolder dir;
  Trainer trainer(in(dir));
  CHECK_THROWS_AS((void)Tuner(trainer).scale_batch_size(late, {.init_val = 64, .max_trials = 2}), OutOfMemoryError);
}

TEST_CASE("a search that throws in its third trial leaves all as it was") {
  const test::TemporaryFolder dir;
  Sized net(100);
  net.throw_in_trial = 3;
  TrainerOptions options = in(dir);
  options.limit_train_batches = Portion(7);
  options.max_steps = 9;
  Trainer trainer(options);
  const std::vector<float> before = test::weights_of(net);
  CHECK_THROWS_AS((void)Tuner(trainer).scale_batch_size(net), std::domain_error);
  CHECK(net.trials() == Sizes{2, 4, 8});
  CHECK(test::weights_of(net) == before);
  CHECK(net.batch_size == 32);
  CHECK(trainer.global_step() == 0);
  CHECK(trainer.options().max_steps == 9);
  CHECK(trainer.options().max_epochs == 1);
  CHECK(trainer.options().limit_train_batches == Portion(7));
  CHECK(tuner_files(dir.path()).empty());
}

TEST_CASE("a search leaves weights and counters as they were, and the fit after it trains with the size found") {
  const test::TemporaryFolder dir;
  Sized net(20, 64);
  Trainer trainer(in(dir));
  const std::vector<float> before = test::weights_of(net);
  CHECK(Tuner(trainer).scale_batch_size(net) == 16);
  CHECK(test::weights_of(net) == before);
  CHECK(trainer.global_step() == 0);
  CHECK(trainer.history().empty());
  net.trained.clear();
  trainer.fit(net);
  CHECK(net.trained == Sizes{16, 16, 16, 16});
  Sized fresh(1000, 64);
  fresh.batch_size = 16;
  Trainer plain(in(dir));
  plain.fit(fresh);
  CHECK(test::weights_of(net) == test::weights_of(fresh));
}

TEST_CASE("real memory: a limit makes large batches fail, and is gone with the stage") {
  const test::TemporaryFolder dir;
  const std::int64_t in_use = memory_stats(Device::cpu()).in_use;
  Sized net(10000, 4096);
  TrainerOptions options = in(dir);
  options.memory_limit = in_use + 150000;  // the samples take 49152 bytes, a step with all of them several times that
  Trainer trainer(options);
  const auto found = Tuner(trainer).scale_batch_size(net);
  REQUIRE(found.has_value());
  CHECK(*found >= 32);
  CHECK(*found < 4096);
  CHECK_FALSE(set_memory_limit(Device::cpu(), std::nullopt).has_value());  // the stage's limit is removed
  options.memory_limit = 0;
  CHECK_THROWS_WITH_AS(Trainer{options}, doctest::Contains("memory_limit is 0"), ConfigError);
}

TEST_CASE("BatchSizeFinder searches at the start of a fit, which then trains with loaders of that size") {
  const test::TemporaryFolder dir;
  Sized net(20, 64);
  const auto finder = std::make_shared<BatchSizeFinder>();
  TrainerOptions options = in(dir);
  options.callbacks = {finder};
  Trainer trainer(options);
  trainer.fit(net);
  CHECK(finder->optimal_batch_size() == 16);
  CHECK(trainer.global_step() == 4);
  CHECK(Sizes(net.trained.end() - 4, net.trained.end()) == Sizes{16, 16, 16, 16});
  CHECK_THROWS_WITH_AS((void)Tuner(trainer).scale_batch_size(net), doctest::Contains("BatchSizeFinder"), ConfigError);
  auto given = test::loader();
  trainer.options().max_epochs = 2;
  CHECK_THROWS_WITH_AS(trainer.fit(net, {.train = given}), doctest::Contains("as an argument"), ConfigError);
}

TEST_CASE("FineTuneBatchSizeFinder searches at its milestones, each time by real trials") {
  const test::TemporaryFolder dir;
  Sized net(20, 64);
  const auto finder = std::make_shared<FineTune>(Sizes{0, 2}, BatchSizeOptions{});
  TrainerOptions options = in(dir);
  options.callbacks = {finder};
  options.max_epochs = 3;
  Trainer trainer(options);
  trainer.fit(net);
  CHECK(finder->searched == Sizes{0, 2});
  CHECK(finder->found == Sizes{16, 16});
  CHECK(trainer.global_step() == 12);
  CHECK(trainer.current_epoch() == 3);
  Sized fresh(1000, 64);
  fresh.batch_size = 16;
  options.callbacks.clear();
  Trainer plain(options);
  plain.fit(fresh);
  CHECK(test::weights_of(net) == test::weights_of(fresh));
}

TEST_CASE("evaluations have a size of their own, by the Tuner and by a callback at their start") {
  const test::TemporaryFolder dir;
  Sized net(20, 64);
  Trainer trainer(in(dir));
  CHECK(Tuner(trainer).scale_batch_size(net, {.method = "Test", .mode = "binsearch", .margin = 0}) == 20);
  CHECK(Tuner(trainer).scale_batch_size(net, {.method = "predict"}) == 16);
  TrainerOptions options = in(dir);
  options.callbacks = {std::make_shared<BatchSizeFinder>()};
  Trainer with(options);
  net.trained.clear();
  CHECK(with.test(net).at(0).at(0).second == 16);
  CHECK(Sizes(net.trained.end() - 4, net.trained.end()) == Sizes{16, 16, 16, 16});
  CHECK(with.predict(net).at(0).size() == 4);
}

TEST_CASE("set-ups that a search of sizes cannot work with are refused before any work") {
  Sized net(100);
  Trainer trainer(test::silent());
  Tuner tuner(trainer);
  auto given = test::loader();
  const auto refuses = [&](TrainModule& module, const BatchSizeOptions& o, const std::string& word) {
    try {
      (void)tuner.scale_batch_size(module, o);
      FAIL("expected ConfigError for ", word);
    } catch (const ConfigError& e) { CHECK_MESSAGE(std::string(e.what()).find(word) != std::string::npos, e.what()); }
  };
  refuses(net, {.method = "train"}, "expected one of: fit, validate, test, predict");
  refuses(net, {.mode = "cubic"}, "expected one of: power, binsearch");
  refuses(net, {.margin = 1}, "margin is 1");
  refuses(net, {.margin = -0.1}, "margin is -0.1");
  refuses(net, {.init_val = 0}, "init_val is 0");
  refuses(net, {.max_trials = 0}, "max_trials is 0");
  refuses(net, {.steps_per_trial = 0}, "steps_per_trial is 0");
  refuses(net, {.max_val = 0}, "max_val is 0");
  refuses(net, {.loaders = given}, "1 loaders were given");
  refuses(net, {.batch_arg_name = "size"}, "no field size among its members and hparams, it has: batch_size");
  refuses(net, {.method = "validate"}, "no val_loader");
  test::Tuned unhooked;
  refuses(unhooked, {}, "no train_loader");
  CHECK(net.loaders == 0);
  CHECK_THROWS_AS(BatchSizeFinder({.method = "test"}), ConfigError);

  TrainerOptions dev = test::silent();
  dev.fast_dev_run = 1;
  Trainer quick(dev);
  const test::Warnings warnings;
  CHECK_FALSE(Tuner(quick).scale_batch_size(net).has_value());
  CHECK(warnings.count("W-TUNE-DEV-RUN") == 1);

  scale_lr(unhooked, 2);
  CHECK(unhooked.lr == 0.04);
  CHECK_THROWS_AS(scale_lr(unhooked, 0), ConfigError);
  CHECK_THROWS_AS(scale_lr(net, 2), ConfigError);
}

TEST_CASE("a size that trains and does not validate is too large") {
  // Validation needs the memory of twice the batch.
  struct Validates : TrainModuleOf<Validates, Sized> {
    using TrainModuleOf::TrainModuleOf;
    std::unique_ptr<data::DataLoader> val_loader() override {
      return std::make_unique<data::DataLoader>(test::loader(samples, batch_size));
    }
    void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
      if (2 * b.size() > limit) fail<OutOfMemoryError>("planted: ", b.size(), " samples to validate");
    }
  };
  const test::TemporaryFolder dir;
  const test::Warnings warnings;
  Trainer trainer(in(dir));
  Validates net(100);
  CHECK(Tuner(trainer).scale_batch_size(net) == 32);
}
