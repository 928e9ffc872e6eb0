// Metrics that are members of a module whose weights are averaged.
#include <doctest/doctest.h>

#include <cmath>

#include "levin/train/averaging.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// Two classes of points, which one layer separates.
data::DataLoader classes(std::int64_t n, std::uint64_t seed) {
  Generator gen(seed);
  const Tensor x = randn({n, 2}, gen, Device::cpu());
  return data::DataLoader(data::tensor_dataset({x, le(sum(x, 1), 0.3).to(DType::i64)}), {.batch_size = 8});
}

struct Model : TrainModuleOf<Model> {
  Model() : TrainModuleOf({.gen = Generator(3), .device = Device::cpu()}) {}
  nn::Linear fc{*this, "fc", {.in = 2, .out = 2}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 2}};
  Accuracy right{*this, "right"}, trained{*this, "trained"};
  Tensor operator()(const Tensor& x) const { return fc(norm(x)); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor out = (*this)(b[0]);
    trained.update(out, b[1]);
    log("train_acc", trained, {.on_step = false, .on_epoch = true});
    return cross_entropy(out, b[1]);
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    const Tensor out = (*this)(b[0]);
    right.update(out, b[1]);
    log("val_acc", right);
    log("val_acc_of_batches", accuracy(out, b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

std::vector<std::pair<const char*, std::shared_ptr<Callback>>> averages() {
  return {{"none", nullptr},
          {"ema", std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.9})},
          {"ema without buffers",
           std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.9, .use_buffers = false})},
          {"mean", std::make_shared<WeightAveraging>()},
          {"swa", std::make_shared<StochasticWeightAveraging>(
                      StochasticWeightAveragingOptions{.swa_lrs = {0.05}, .swa_epoch_start = 2})}};
}

}  // namespace

TEST_CASE("a metric of a module counts every batch once, whatever averages the module's weights") {
  for (const auto& [name, average] : averages()) {
    CAPTURE(std::string(name));
    const Warnings quiet;
    Model model;
    TrainerOptions options = silent();
    options.max_epochs = 4;
    options.num_sanity_val_steps = 2;
    if (average) options.callbacks = {average};
    data::DataLoader train = classes(64, 5), val = classes(64, 6);
    Trainer trainer(options);
    trainer.fit(model, {.train = train, .val = val});
    std::int64_t seen = 0;
    for (const LogRecord& r : trainer.history()) {
      double of_metric = -1, of_batches = -2;
      for (const auto& [key, value] : r.values) {
        if (key == "val_acc") of_metric = value;
        if (key == "val_acc_of_batches") of_batches = value;
        if (key == "train_acc") CHECK((value > 0 && value <= 1));
      }
      if (of_metric == -1) continue;
      ++seen;
      CHECK(of_metric == doctest::Approx(of_batches).epsilon(1e-12));
    }
    CHECK(seen == 4);
  }
}

TEST_CASE("early stopping and the best checkpoint judge a metric's value of the averaged weights") {
  const Warnings quiet;
  const TemporaryFolder dir;
  Model model;
  const auto stop =
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_acc", .patience = 50, .mode = Mode::max});
  const auto best = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = dir.path(), .monitor = "val_acc", .mode = Mode::max});
  TrainerOptions options = silent();
  options.max_epochs = 6;
  options.enable_checkpointing = true;
  options.callbacks = {std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.9}), stop, best};
  data::DataLoader train = classes(64, 5), val = classes(64, 6);
  Trainer trainer(options);
  trainer.fit(model, {.train = train, .val = val});
  CHECK(trainer.current_epoch() == 6);
  double most = 0;
  for (const LogRecord& r : trainer.history()) {
    for (const auto& [key, value] : r.values) {
      if (key == "val_acc") most = std::max(most, value);
    }
  }
  CHECK(most > 0.7);
  CHECK(best->best_model_score() == most);
  CHECK(trainer.validate(model, val, {.ckpt_path = best->best_model_path(), .verbose = false}).at(0).at(0).second ==
        doctest::Approx(most));
}
