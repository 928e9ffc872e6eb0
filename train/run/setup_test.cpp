// The order in which a fit sets itself up: layers that setup makes are trained, and a file is loaded before the hooks
// of the run.
#include <doctest/doctest.h>

#include "levin/train/averaging.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

const nn::Options kPlace{.gen = Generator(1), .device = Device::cpu()};

// Makes its layer in setup, or in configure_model.
struct Late : TrainModuleOf<Late> {
  using TrainModuleOf::TrainModuleOf;
  std::unique_ptr<nn::Linear> fc;
  bool in_setup = true;
  int configured = 0;
  Words words;
  std::optional<std::int64_t> steps;
  float loaded_in_hook = 0;

  void make() {
    if (!fc) fc = std::make_unique<nn::Linear>(*this, "fc", nn::LinearOptions{.in = 2, .out = 1});
  }
  void setup(Stage) override {
    words.emplace_back("setup");
    if (in_setup) make();
  }
  void configure_model() override {
    words.emplace_back("configure_model");
    ++configured;
    make();
  }
  OptimizerConfig configure_optimizers() override {
    words.emplace_back("configure_optimizers");
    steps = trainer().estimated_stepping_batches();
    auto sgd = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1});
    return {.optimizers = {sgd},
            .schedulers = {{.scheduler = std::make_shared<optim::OneCycleLR>(
                                *sgd, optim::OneCycleOptions{.max_lr = 0.2, .total_steps = steps.value_or(0)}),
                            .interval = SchedulerConfig::Interval::step}}};
  }
  void on_load_checkpoint(CheckpointContent&) override { words.emplace_back("on_load_checkpoint"); }
  void on_fit_start() override {
    words.emplace_back("on_fit_start");
    loaded_in_hook = fc->weight.to(DType::f32).to_vector<float>()[0];
  }
  StepOutput training_step(const Batch& b, std::int64_t) override { return squared_error((*fc)(b[0]), b[1]); }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val_loss", squared_error((*fc)(b[0]), b[1]));
  }
};

}  // namespace

TEST_CASE("layers that setup or configure_model makes are trained, converted and averaged; the run's length is known") {
  for (const bool in_setup : {true, false}) {
    Late module(kPlace);
    module.in_setup = in_setup;
    const auto ema = std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.9});
    TrainerOptions options = epochs(2);
    options.precision = "64-true";
    options.callbacks = {ema};
    data::DataLoader data = loader(), val = loader(8);
    Trainer trainer(options);
    trainer.fit(module, {.train = data, .val = val});
    CHECK(module.words == Words{"setup", "configure_model", "configure_optimizers", "on_fit_start"});
    CHECK(module.steps == 20);
    CHECK(module.fc->weight.dtype() == DType::f64);
    CHECK(trainer.global_step() == 20);
    REQUIRE(ema->average());
    CHECK(ema->average()->n_averaged() == 20);
    CHECK(ema->average()->state().size() >= 2);
    // It trained: the loss of the points fell below that of the start.
    Late fresh(kPlace);
    fresh.make();
    CHECK(fresh.fc->weight.to_vector<float>() != module.fc->weight.to(DType::f32).to_vector<float>());
    (void)trainer.validate(module, val);
    CHECK(module.configured == 2);
  }
}

TEST_CASE("a run that resumes knows its weights and counters in on_fit_start, and shows its module the file first") {
  const TemporaryFolder dir;
  const std::string file = dir / "half.safetensors";
  data::DataLoader data = loader();
  Late first(kPlace);
  Trainer trainer(epochs(1));
  trainer.fit(first, {.train = data});
  trainer.save_checkpoint(file);
  Late second(kPlace);
  Trainer resumed(epochs(2));
  resumed.fit(second, {.train = data, .ckpt_path = file});
  CHECK(second.words ==
        Words{"setup", "configure_model", "on_load_checkpoint", "configure_optimizers", "on_fit_start"});
  CHECK(second.loaded_in_hook == first.fc->weight.to_vector<float>()[0]);
  CHECK(resumed.global_step() == 20);
}

TEST_CASE("what can be refused before any work is refused before setup") {
  Late module(kPlace);
  data::DataLoader data = loader();
  TrainerOptions options = epochs(1);
  options.limit_train_batches = Portion(1.0);
  using S = GradientAccumulationScheduler;
  struct ByHand : TrainModuleOf<ByHand, Late> {
    using TrainModuleOf::TrainModuleOf;
    [[nodiscard]] bool automatic_optimization() const override { return false; }
  };
  ByHand by_hand(kPlace);
  options.callbacks = {std::make_shared<S>(std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 2}})};
  CHECK_THROWS_AS(Trainer(options).fit(by_hand, {.train = data}), ConfigError);
  CHECK_THROWS_AS(Trainer(epochs(1)).fit(module, {}), ConfigError);
  CHECK(by_hand.words.empty());
  CHECK(module.words.empty());
  // A fit of an optimizer checks its schedules before setup too.
  struct Noted : Callback {
    bool called = false;
    void setup(Stage) override { called = true; }
  };
  const auto noted = std::make_shared<Noted>();
  options.callbacks = {noted};
  module.make();
  optim::SGD sgd(module.parameters(), {.lr = 0.1}), other(module.parameters(), {.lr = 0.1});
  CHECK_THROWS_WITH_AS(
      Trainer(options).fit(sgd, data, [&](const Batch& b) { return squared_error((*module.fc)(b[0]), b[1]); },
                           {.schedulers = {{.scheduler = std::make_shared<optim::StepLR>(other, 3, 0.9)}}}),
      doctest::Contains("belongs to another optimizer"), ConfigError);
  CHECK_FALSE(noted->called);
}

TEST_CASE("a run without an optimizer trains nothing and is torn down") {
  struct None : TrainModuleOf<None, Late> {
    using TrainModuleOf::TrainModuleOf;
    OptimizerConfig configure_optimizers() override { return {}; }
    void teardown(Stage) override { words.emplace_back("teardown"); }
  };
  const Warnings warnings;
  None module(kPlace);
  data::DataLoader data = loader();
  Trainer trainer(epochs(1));
  trainer.fit(module, {.train = data});
  CHECK(trainer.global_step() == 0);
  CHECK(module.words == Words{"setup", "configure_model", "teardown"});
  CHECK(warnings.count("W-TRAIN-NO-OPTIMIZER") == 1);
}

TEST_CASE("a found batch size is the resumed run's; another cut of the data into batches is refused inside an epoch") {
  struct Sized : TrainModuleOf<Sized, Late> {
    std::int64_t batch_size = 2;
    Numbers sizes;
    Sized() : TrainModuleOf(kPlace) { tunable("batch_size", &batch_size); }
    std::unique_ptr<data::DataLoader> train_loader() override {
      return std::make_unique<data::DataLoader>(loader(40, batch_size));
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      if (batch_size > 8) throw std::bad_alloc();
      sizes.push_back(b.size());
      return Late::training_step(b, i);
    }
  };
  struct Milestones : BatchSizeFinder {
    using BatchSizeFinder::BatchSizeFinder;
    bool at_start = true;
    void on_fit_start() override {
      if (at_start) BatchSizeFinder::on_fit_start();
    }
    void on_train_epoch_start() override {
      if (!at_start) scale_batch_size();
    }
  };
  struct Cut : Callback {
    std::string file;
    void on_train_batch_end(const StepInfo& i) override {
      if (i.batch_idx != 2) return;
      trainer().save_checkpoint(file);
      throw std::domain_error("planted");
    }
  };
  const TemporaryFolder dir;
  const Warnings quiet;
  const auto cut = std::make_shared<Cut>();
  cut->file = dir / "cut.safetensors";
  TrainerOptions options = epochs(1);
  options.default_root_dir = dir.path();
  for (const bool at_start : {true, false}) {
    const auto finder = [&] {
      auto made = std::make_shared<Milestones>(BatchSizeOptions{});
      made->at_start = at_start;
      return made;
    };
    Sized first, second, third, whole;
    options.callbacks = {finder()};
    Trainer(options).fit(whole);
    options.callbacks = {finder(), cut};
    CHECK_THROWS_AS(Trainer(options).fit(first), std::domain_error);
    CHECK(first.batch_size == 8);
    const auto resumed = finder();
    options.callbacks = {resumed};
    Trainer trainer(options);
    trainer.fit(second, {.ckpt_path = cut->file});
    CHECK(second.sizes == Numbers{8, 8});
    CHECK(resumed->optimal_batch_size() == 8);
    CHECK(second.fc->weight.to_vector<float>() == whole.fc->weight.to_vector<float>());
    options.callbacks.clear();
    CHECK_THROWS_WITH_AS(Trainer(options).fit(third, {.ckpt_path = cut->file}),
                         doctest::Contains("with batch size 8, which is 2 now"), ConfigError);
    third.batch_size = 8;
    options.limit_train_batches = Portion(4);
    CHECK_THROWS_WITH_AS(Trainer(options).fit(third, {.ckpt_path = cut->file}),
                         doctest::Contains("a number of batches of 5, which is 4 now"), ConfigError);
    options.limit_train_batches.reset();
    CHECK_NOTHROW(Trainer(options).fit(third, {.ckpt_path = cut->file}));
  }
}
