// Hooks act once, wherever a run is cut: by max_steps in the middle of an epoch, or between two callbacks that save.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include "levin/train/averaging.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

constexpr std::int64_t kEpochs = 3, kSteps = 5;  // an epoch: ten batches, windows of two

// Its hooks are part of the training: a target follows the weights at each batch, validations are counted, epochs log.
struct Hooked : TrainModuleOf<Hooked> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  nn::Dropout drop{*this, "drop", {.p = 0.25}};
  nn::Buffer target{*this, "target", zeros({1, 2}, Device::cpu())};
  nn::Buffer validations{*this, "validations", zeros({1}, Device::cpu())};
  std::shared_ptr<optim::AdamW> optimizer;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    Tensor loss = squared_error(fc(drop(b[0])), b[1]) + mean(square(fc.weight - target));
    log("loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val_loss", squared_error(fc(b[0]), b[1]));
  }
  void on_train_batch_end(const StepInfo&) override {
    const NoGrad off;
    copy_(target, target * 0.5 + fc.weight * 0.5);
  }
  void on_validation_end() override { copy_(validations, validations + 1.0); }
  void on_train_epoch_start() override { log("start", 1.0, {.reduce = EpochReduce::sum}); }
  void on_train_epoch_end() override { log("end", sum(target)); }
  OptimizerConfig configure_optimizers() override {
    if (!optimizer) optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.05});
    return {.optimizers = {optimizer}};
  }
};

struct Result {
  std::vector<float> weights;
  NamedTensors optimizer;
  std::vector<LogRecord> history;
  std::vector<std::pair<std::string, double>> kept;  // of the checkpoint callback
  Metadata stopping;
  std::string csv;
};

TrainerOptions cut_options(const std::string& folder, std::int64_t max_steps) {
  TrainerOptions options = silent();
  options.max_epochs = kEpochs;
  options.max_steps = max_steps;
  options.accumulate_grad_batches = 2;
  options.val_check_interval = 4;
  options.log_every_n_steps = 2;
  options.enable_checkpointing = true;
  options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder, .name = "", .version = ""});
  return options;
}

bool same_run(const Result& a, const Result& b) {
  const auto record = [](const LogRecord& x, const LogRecord& y) {
    return x.step == y.step && x.epoch == y.epoch && x.values == y.values;
  };
  const auto tensor = [](const auto& x, const auto& y) {
    return x.first == y.first && content_hash(x.first, x.second) == content_hash(y.first, y.second);
  };
  CHECK(a.weights == b.weights);
  CHECK(std::equal(a.optimizer.begin(), a.optimizer.end(), b.optimizer.begin(), b.optimizer.end(), tensor));
  CHECK(std::equal(a.history.begin(), a.history.end(), b.history.begin(), b.history.end(), record));
  CHECK(a.stopping == b.stopping);
  return a.csv == b.csv;
}

enum class GoesOn { file_of_the_callback, file_behind_fit, second_fit };

// Trains until `max_steps`, and with `cut` then to the end in the same folder.
Result train_cut(const std::string& folder, GoesOn how, std::int64_t max_steps = -1) {
  const bool averages = how == GoesOn::file_of_the_callback;  // after a fit the module is the average
  Result out;
  std::string from;
  for (const std::int64_t steps : {max_steps, std::int64_t{-1}}) {
    Hooked model({.gen = Generator(3), .device = Device::cpu()});
    data::DataLoader data = loader(40), val = loader(8);
    TrainerOptions options = cut_options(folder, steps);
    const auto stopping = std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = "end", .patience = 100, .check_on_train_epoch_end = true});
    const auto saving = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder + "/saved", .save_on_train_epoch_end = true});
    options.callbacks = {stopping, saving};
    if (averages)
      options.callbacks.push_back(
          std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.7, .update_starting_at_epoch = 0}));
    Trainer trainer(options);
    trainer.fit(model, {.train = data, .val = val, .ckpt_path = from});
    if (steps >= 0 && how == GoesOn::second_fit) {
      trainer.options().max_steps = -1;
      trainer.fit(model, {.train = data, .val = val});
    } else if (steps >= 0) {
      CHECK(trainer.global_step() == steps);
      CHECK(trainer.epoch_is_cut() == (steps % kSteps != 0));
      from = averages ? saving->best_model_path() : folder + "/behind.safetensors";
      if (!averages) trainer.save_checkpoint(from);
    }
    out.weights = weights_of(model);
    out.optimizer = model.optimizer->state_dict();
    // The callback writes its file of a whole epoch before that epoch's record, which is written again: metrics.csv has
    // it once.
    if (!averages) out.history.insert(out.history.end(), trainer.history().begin(), trainer.history().end());
    out.stopping = stopping->state().values;
    if (steps < 0 || how == GoesOn::second_fit) break;
  }
  out.csv = read_file(folder + "/metrics.csv", 1 << 20);
  return out;
}

}  // namespace

TEST_CASE(
    "a run that max_steps cut in the middle of an epoch resumes as if it had not been: weights, averages, counts of "
    "early stopping, records") {
  const TemporaryFolder dir;
  const Warnings quiet;
  for (const GoesOn how : {GoesOn::file_of_the_callback, GoesOn::file_behind_fit, GoesOn::second_fit}) {
    CAPTURE(static_cast<int>(how));
    const std::string name = dir / std::to_string(static_cast<int>(how));
    const Result whole = train_cut(name, how);
    REQUIRE(std::count(whole.csv.begin(), whole.csv.end(), '\n') > 10);
    for (std::int64_t steps = 1; steps < kEpochs * kSteps; ++steps) {
      CAPTURE(steps);
      CHECK(same_run(train_cut(name + "-" + std::to_string(steps), how, steps), whole));
    }
  }
}

TEST_CASE("an average that is updated at epochs takes the update of one that max_steps cut, if no run resumes") {
  const TemporaryFolder dir;
  const auto averaged = [&](std::int64_t steps) {
    Hooked model({.gen = Generator(3), .device = Device::cpu()});
    data::DataLoader data = loader(40);
    TrainerOptions options = cut_options(dir.path(), steps);
    options.logger = false;
    options.enable_checkpointing = false;
    options.val_check_interval = {};
    const auto average = std::make_shared<EmaWeightAveraging>(
        EmaWeightAveragingOptions{.update_every_n_steps = 0, .update_starting_at_epoch = 0});
    options.callbacks = {average};
    Trainer trainer(options);
    trainer.fit(model, {.train = data});
    return average->average()->n_averaged();
  };
  CHECK(averaged(7) == 2);
  CHECK(averaged(10) == 2);
}

namespace {

struct Crash : std::runtime_error {
  using std::runtime_error::runtime_error;
};
enum class At { batch_end, validation_end, epoch_end };

// Saves at the n-th call of its hook and ends the run there: callbacks after it are not called.
struct SavesAndCrashes : Callback {
  At at;
  std::int64_t n;
  std::string file;
  std::vector<LogRecord> history{};
  SavesAndCrashes(At a, std::int64_t count, std::string path) : at(a), n(count), file(std::move(path)) {}
  bool writes_checkpoints() const override { return true; }
  void now(At a) {
    if (a != at || --n > 0) return;
    trainer().save_checkpoint(file);
    history = trainer().history();
    throw Crash("crash");
  }
  void on_train_batch_end(const StepInfo&) override { now(At::batch_end); }
  void on_validation_end() override { now(At::validation_end); }
  void on_train_epoch_end() override { now(At::epoch_end); }
};

// The two best files of a callback that saves in the hook.
ModelCheckpointOptions two_best(At at, const std::string& folder) {
  ModelCheckpointOptions o{.dirpath = folder + "/saved", .filename = "{step}", .mode = Mode::max, .save_top_k = 2};
  o.monitor = at == At::batch_end ? "loss_step" : at == At::validation_end ? "val_loss" : "end";
  if (at == At::batch_end)
    o.every_n_train_steps = 2;
  else
    o.save_on_train_epoch_end = at == At::epoch_end;
  return o;
}

Result train_saving(const std::string& folder, At at, const std::shared_ptr<SavesAndCrashes>& crash = nullptr,
                    const std::string& from = {}) {
  Hooked model({.gen = Generator(3), .device = Device::cpu()});
  data::DataLoader data = loader(40), val = loader(8);
  TrainerOptions options = cut_options(folder, -1);
  if (crash) options.callbacks.push_back(crash);
  const auto saving = std::make_shared<ModelCheckpoint>(two_best(at, folder));
  options.callbacks.push_back(saving);
  Trainer trainer(options);
  trainer.fit(model, {.train = data, .val = val, .ckpt_path = from});
  Result out;
  out.weights = weights_of(model);
  out.optimizer = model.optimizer->state_dict();
  out.history = trainer.history();
  for (const auto& [path, score] : saving->best_k_models())
    out.kept.emplace_back(std::filesystem::path(path).filename().string(), score);
  out.csv = read_file(folder + "/metrics.csv", 1 << 20);
  return out;
}

}  // namespace

TEST_CASE(
    "a file holds what the module did in the hook in which it was written, and callbacks that would have saved after "
    "it do so when the run resumes") {
  const TemporaryFolder dir;
  const Warnings quiet;
  for (const auto& [at, calls] : {std::pair{At::batch_end, 30}, {At::validation_end, 6}, {At::epoch_end, 3}}) {
    CAPTURE(static_cast<int>(at));
    const std::string name = dir / std::to_string(static_cast<int>(at));
    const Result whole = train_saving(name, at);
    REQUIRE(whole.kept.size() == 2);
    for (std::int64_t n = 1; n <= calls; ++n) {
      CAPTURE(n);
      const std::string folder = name + "-" + std::to_string(n);
      const auto crash = std::make_shared<SavesAndCrashes>(at, n, folder + "/crash.safetensors");
      CHECK_THROWS_AS((void)train_saving(folder, at, crash), Crash);
      Result resumed = train_saving(folder, at, nullptr, crash->file);
      resumed.history.insert(resumed.history.begin(), crash->history.begin(), crash->history.end());
      CHECK(same_run(resumed, whole));
      CHECK(resumed.kept == whole.kept);
    }
  }
}
