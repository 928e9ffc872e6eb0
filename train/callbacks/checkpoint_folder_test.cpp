#include <doctest/doctest.h>

#include <filesystem>
#include <stdexcept>

#include "levin/train.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
namespace fs = std::filesystem;

namespace {

// Logs a score that is best in epoch 1; may fail in an epoch.
struct Versioned : TrainModuleOf<Versioned> {
  Versioned() : TrainModuleOf({.gen = Generator(1), .device = Device::cpu()}) {}
  test::Net net{*this, "net"};
  std::int64_t fails_in = -1;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    if (trainer().current_epoch() == fails_in) throw std::domain_error("planted");
    return test::squared_error(net(b[0]), b[1]);
  }
  void on_train_epoch_end() override {
    log("score", trainer().current_epoch() == 1 ? 0.5 : 1.0 + static_cast<double>(trainer().current_epoch()));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
  }
};

TrainerOptions logged(const std::string& root, std::int64_t epochs, bool logger = true) {
  TrainerOptions options = test::silent();
  options.logger = logger;
  options.enable_checkpointing = true;
  options.enable_model_summary = false;
  options.default_root_dir = root;
  options.max_epochs = epochs;
  return options;
}
std::string version(const test::TemporaryFolder& dir, int n) {
  return dir / ("levin_logs/version_" + std::to_string(n) + "/checkpoints");
}

// A user's own checkpoints: epoch N is FOLDER/N.safetensors, and the first is the best.
struct OwnCheckpoints final : Callback {
  std::string folder, best;
  explicit OwnCheckpoints(std::string to) : folder(std::move(to)) { fs::create_directories(folder); }
  void on_train_epoch_end() override {
    const std::string path =
        trainer().options().default_root_dir + "/own/" + std::to_string(trainer().current_epoch()) + ".safetensors";
    trainer().save_checkpoint(path);
    if (best.empty()) best = path;
  }
  bool writes_checkpoints() const override { return true; }
  Kind kind() const override { return Kind::checkpoint; }
  std::optional<CheckpointFiles> checkpoint_files() const override {
    // The trainer also asks outside of runs.
    return CheckpointFiles{.folder = attached() ? trainer().options().default_root_dir + "/own" : "", .best = best};
  }
  std::string state_key() const override { return "OwnCheckpoints"; }
  CallbackState state() const override { return {.values = {{"best_model_path", best}}, .tensors = {}}; }
  void load_state(const CallbackState& state) override { best = state.values.at(0).second; }
};

// One process: a module, a trainer, a fit.
struct Process {
  Versioned module;
  data::DataLoader train = test::loader(8, 4);
  std::shared_ptr<ModelCheckpoint> checkpoint;
  Trainer trainer;
  explicit Process(TrainerOptions options, ModelCheckpointOptions of = {})
      : checkpoint(std::make_shared<ModelCheckpoint>(std::move(of))), trainer([&] {
          options.callbacks.push_back(checkpoint);
          return options;
        }()) {}
  Process& fit(const std::string& from = {}) {
    trainer.fit(module, {.train = train, .ckpt_path = from});
    return *this;
  }
};

}  // namespace

TEST_CASE("checkpoints lie in the first logger's folder, in the root without one, and in dirpath where that is given") {
  const test::TemporaryFolder dir;
  const test::Warnings quiet;
  Process first(logged(dir.path(), 1));
  first.fit();
  CHECK(fs::exists(version(dir, 0) + "/epoch=0-step=2.safetensors"));
  CHECK(fs::equivalent(fs::path(first.checkpoint->best_model_path()).parent_path(), version(dir, 0)));
  CHECK_FALSE(fs::exists(dir / "checkpoints"));

  Process bare(logged(dir.path(), 1, false));
  bare.fit();
  CHECK(fs::exists(dir / "checkpoints/epoch=0-step=2.safetensors"));

  Process own(logged(dir.path(), 1), {.dirpath = dir / "mine"});
  own.fit();
  CHECK(fs::exists(dir / "mine/epoch=0-step=2.safetensors"));
  CHECK_FALSE(fs::exists(version(dir, 1)));

  // The first of several loggers; a logger that writes into its folder itself has no version.
  TrainerOptions two = logged(dir.path(), 1);
  two.logger = std::vector<std::shared_ptr<Logger>>{
      std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = dir / "flat", .name = "", .version = ""}),
      std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = dir / "second"})};
  Process several(two);
  several.fit();
  CHECK(fs::exists(dir / "flat/checkpoints/epoch=0-step=2.safetensors"));
}

TEST_CASE("ckpt_path last of a run that is started again is the newest file of all versions of its logger") {
  const test::TemporaryFolder dir, alone;
  const test::Warnings quiet;
  Process whole(logged(alone.path(), 4));
  whole.fit();

  Process cut(logged(dir.path(), 4));
  cut.module.fails_in = 2;
  CHECK_THROWS_AS(cut.fit(), std::domain_error);
  CHECK(fs::exists(version(dir, 0) + "/epoch=1-step=4.safetensors"));
  Process again(logged(dir.path(), 3));
  again.fit("last");
  CHECK(fs::equivalent(again.trainer.resumed_from(), version(dir, 0) + "/epoch=1-step=4.safetensors"));
  CHECK(fs::exists(version(dir, 1) + "/epoch=2-step=6.safetensors"));
  CHECK(fs::exists(version(dir, 0) + "/epoch=1-step=4.safetensors"));  // the file that a run resumed stays
  Process third(logged(dir.path(), 4));
  third.fit("last");
  CHECK(fs::equivalent(third.trainer.resumed_from(), version(dir, 1) + "/epoch=2-step=6.safetensors"));
  CHECK(test::weights_of(third.module) == test::weights_of(whole.module));

  // With its own folder a run is separate.
  Process apart(logged(dir.path(), 1), {.dirpath = dir / "mine"});
  apart.fit("last");
  CHECK(apart.trainer.resumed_from().empty());
}

TEST_CASE("ckpt_path best of a run that is started again is the best file of the run that wrote the newest") {
  const test::TemporaryFolder dir;
  const test::Warnings quiet;
  const ModelCheckpointOptions best{.monitor = "score", .save_last = SaveLast::on};
  Process nothing(logged(dir.path(), 1), best);
  CHECK_THROWS_WITH_AS(nothing.fit("best"), doctest::Contains("no earlier run in"), ConfigError);
  Process first(logged(dir.path(), 4), best);
  first.fit();
  const std::string path = first.checkpoint->best_model_path();
  CHECK(fs::path(path).filename() == "epoch=1-step=4.safetensors");
  Process again(logged(dir.path(), 4), best);
  again.fit("best");
  CHECK(fs::equivalent(again.trainer.resumed_from(), path));
  CHECK(again.trainer.global_step() == 8);
  // The best file of another monitor does not count.
  Process other(logged(dir.path(), 4), {.monitor = "accuracy", .mode = Mode::max});
  CHECK_THROWS_AS(other.fit("best"), ConfigError);
}

TEST_CASE("a checkpoint callback of the user's own takes the default's place and says where best and last are") {
  const test::TemporaryFolder dir;
  const auto fit = [&](const std::string& from, std::int64_t epochs) {
    Versioned module;
    data::DataLoader train = test::loader(8, 4);
    TrainerOptions options = logged(dir.path(), epochs, false);
    options.callbacks = {std::make_shared<OwnCheckpoints>(dir / "own")};
    Trainer trainer(options);
    trainer.fit(module, {.train = train, .ckpt_path = from});
    return trainer.resumed_from();
  };
  CHECK(fit("", 3).empty());
  CHECK_FALSE(fs::exists(dir / "checkpoints"));
  CHECK(fs::path(fit("last", 4)).filename() == "2.safetensors");
  CHECK(fs::path(fit("best", 4)).filename() == "0.safetensors");  // of the run before, by its state

  TrainerOptions refused = logged(dir.path(), 1, false);
  refused.enable_checkpointing = false;
  refused.callbacks = {std::make_shared<OwnCheckpoints>(dir / "own")};
  CHECK_THROWS_WITH_AS(Trainer{refused}, doctest::Contains("holds a checkpoint callback"), ConfigError);
}

TEST_CASE("a callback of the user's own is a run's progress bar, timer, accumulation schedule or in need of a logger") {
  struct Own final : Callback {
    Kind is = Kind::other;
    std::int64_t window = 0;
    bool log = false;
    std::vector<std::string> lines{};
    Kind kind() const override { return is; }
    std::int64_t accumulation_at(std::int64_t) const override { return window; }
    std::int64_t largest_accumulation() const override { return window; }
    bool needs_logger() const override { return log; }
    bool print_line(std::string_view line) override {
      lines.emplace_back(line);
      return true;
    }
  };
  const auto own = std::make_shared<Own>();
  const auto trainer_of = [&](const Function<void(TrainerOptions&)>& change) {
    TrainerOptions options = test::silent();
    options.max_epochs = 1;
    options.callbacks = {own};
    change(options);
    return Trainer(options);
  };
  own->is = Callback::Kind::progress_bar;
  CHECK_THROWS_WITH_AS((void)trainer_of([](TrainerOptions&) {}), doctest::Contains("holds a ProgressBar"), ConfigError);
  CHECK_THROWS_WITH_AS((void)trainer_of([&](TrainerOptions& o) {
                         o.enable_progress_bar.reset();
                         o.callbacks.push_back(std::make_shared<ProgressBar>());
                       }),
                       doctest::Contains("2 progress bars"), ConfigError);
  const Trainer shown = trainer_of([](TrainerOptions& o) { o.enable_progress_bar.reset(); });
  shown.print("a line");
  CHECK(own->lines == std::vector<std::string>{"a line"});
  own->is = Callback::Kind::other;
  own->window = 2;
  CHECK_THROWS_WITH_AS((void)trainer_of([](TrainerOptions& o) { o.accumulate_grad_batches = 4; }),
                       doctest::Contains("accumulate_grad_batches is 4"), ConfigError);
  own->window = 0;
  own->log = true;
  Versioned module;
  data::DataLoader train = test::loader(8, 4);
  Trainer without = trainer_of([](TrainerOptions&) {});
  CHECK_THROWS_WITH_AS(without.fit(module, {.train = train}),
                       doctest::Contains("callbacks holds a Own and the trainer has no logger for it"), ConfigError);
}
