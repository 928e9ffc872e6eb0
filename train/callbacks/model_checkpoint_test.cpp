#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <thread>

#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/callbacks/checkpoint_name.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

namespace fs = std::filesystem;
using Values = std::vector<double>;
using Names = std::vector<std::string>;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Logs one value an epoch, or a validation, as "score"; two batches an epoch.
struct Scored : TrainModuleOf<Scored> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  Values values;
  bool in_validation = false, nothing = false;
  std::int64_t validations = 0, fails_at = -1;
  void report(std::int64_t i) {
    if (!nothing)
      log("score", i < static_cast<std::int64_t>(values.size()) ? values[static_cast<std::size_t>(i)] : 0.0);
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    if (trainer().global_step() == fails_at) throw std::runtime_error("planned");
    return squared_error(fc(b[0]), b[1]);
  }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override {
    if (in_validation) report(validations);
  }
  void on_validation_end() override { validations += trainer().sanity_checking() ? 0 : 1; }
  void on_train_epoch_end() override {
    if (!in_validation) report(trainer().current_epoch());
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
  }
};

TrainerOptions in_folder(const std::string& root, std::int64_t epochs) {
  TrainerOptions options = silent();
  options.enable_checkpointing = true;
  options.default_root_dir = root;
  options.max_epochs = epochs;
  return options;
}

// A run of its own, as in a fresh process.
struct Run {
  Generator gen{1};
  Scored module{{.gen = gen, .device = Device::cpu()}};
  data::DataLoader data = loader(8, 4), val = loader(4, 4);
  std::shared_ptr<ModelCheckpoint> checkpoint;
  Trainer trainer;
  static TrainerOptions with(TrainerOptions options, const std::shared_ptr<ModelCheckpoint>& c) {
    options.callbacks.push_back(c);
    return options;
  }
  Run(const ModelCheckpointOptions& c, const TrainerOptions& options, Values values = {})
      : checkpoint(std::make_shared<ModelCheckpoint>(c)), trainer(with(options, checkpoint)) {
    module.values = std::move(values);
  }
  Run& fit(const std::string& ckpt_path = {}, bool validate = false) {
    module.in_validation = validate;
    const LoaderRefs loaders = validate ? LoaderRefs(val) : LoaderRefs();
    trainer.fit(module, {.train = &data, .val = loaders, .ckpt_path = ckpt_path});
    return *this;
  }
};

Names files_in(const std::string& folder) {
  Names names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }
// The warnings about checkpoints.
std::string told(const Warnings& warnings) {
  std::string ids;
  for (const std::string& id : warnings.ids()) {
    if (id.find("-CKPT-") != std::string::npos) ids += (ids.empty() ? "" : " ") + id;
  }
  return ids;
}
std::string file(std::int64_t epoch, std::int64_t step) {
  return "epoch=" + std::to_string(epoch) + "-step=" + std::to_string(step) + ".safetensors";
}
ModelCheckpointOptions best_of(std::int64_t k, Mode mode = Mode::min) {
  return {.monitor = "score", .mode = mode, .save_top_k = k};
}

}  // namespace

TEST_CASE("the default checkpoint callback keeps the newest file alone") {
  const TemporaryFolder dir;
  Generator gen(1);
  Scored module({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = loader(40, 4);
  Trainer trainer(in_folder(dir.path(), 3));
  trainer.fit(module, {.train = &data});
  CHECK(files_in(dir / "checkpoints") == Names{"epoch=2-step=30.safetensors"});
}

TEST_CASE("checkpoints are kept by their score: NaN is worst, a tie replaces nothing, -1 keeps all and 0 none") {
  const auto kept = [](const ModelCheckpointOptions& o, Values values) {
    const TemporaryFolder dir;
    Run run(o, in_folder(dir.path(), static_cast<std::int64_t>(values.size())), values);
    run.fit();
    for (const auto& [path, score] : run.checkpoint->best_k_models()) CHECK(fs::exists(path));
    CHECK((o.save_top_k == 0 || fs::exists(run.checkpoint->best_model_path())));
    Names names = files_in(dir / "checkpoints");
    names.push_back("best " + name_of(run.checkpoint->best_model_path()));
    return names;
  };
  const auto best = [](std::int64_t epoch) { return "best " + file(epoch, 2 * (epoch + 1)); };
  CHECK(kept(best_of(2), {3, 1, 2, kNan}) == Names{file(1, 4), file(2, 6), best(1)});
  CHECK(kept(best_of(2), {kNan, 3, kNan, 1, 2}) == Names{file(3, 8), file(4, 10), best(3)});
  CHECK(kept(best_of(1), {2, 2, 2}) == Names{file(0, 2), best(0)});
  CHECK(kept(best_of(2), {2, 3, 3, 2}) == Names{file(0, 2), file(3, 8), best(0)});  // the newest of the worst is gone
  CHECK(kept(best_of(1, Mode::max), {1, 5, 3}) == Names{file(1, 4), best(1)});
  CHECK(kept(best_of(-1), {3, 1, 2}) == Names{file(0, 2), file(1, 4), file(2, 6), best(1)});
  CHECK(kept(best_of(0), {3, 1, 2}) == Names{"best "});
  CHECK(kept({.save_top_k = -1}, {3, 1, 2}) == Names{file(0, 2), file(1, 4), file(2, 6), best(2)});

  const TemporaryFolder dir;
  Run run(best_of(3), in_folder(dir.path(), 3), {3, kNan, 2});
  run.fit();
  CHECK(run.checkpoint->best_model_score() == 2);
  REQUIRE(run.checkpoint->best_k_models().size() == 3);
  CHECK(run.checkpoint->best_k_models()[0] == std::pair<std::string, double>(dir / ("checkpoints/" + file(0, 2)), 3));
  CHECK(std::isnan(run.checkpoint->best_k_models()[1].second));
}

TEST_CASE("names of checkpoints have fields with formats") {
  const auto name = [](std::string_view form, bool insert = true) {
    return train::checkpoint_name(form, static_cast<train::InsertNames>(insert), 3, 12,
                                  {{"val_loss", 0.12345}, {"val/acc", 0.5}, {"bad", kNan}, {"minus", -2.5}});
  };
  CHECK(name("epoch={epoch}-step={step}") == "epoch=3-step=12");
  CHECK(name("epoch={epoch}-step={step}", false) == "epoch=3-step=12");
  CHECK(name("{epoch}-{step}") == "epoch=3-step=12");
  CHECK(name("{epoch}-{step}", false) == "3-12");
  CHECK(name("best-{epoch:02d}-{val_loss:.2f}") == "best-epoch=03-val_loss=0.12");
  CHECK(name("{val_loss}") == "val_loss=0.12345");
  CHECK(name("{val_loss:.3}") == "val_loss=0.123");
  CHECK(name("{val_loss:.1e}", false) == "1.2e-01");
  CHECK(name("{step:06}", false) == "000012");
  CHECK(name("{minus:06.1f}", false) == "-002.5");
  CHECK(name("{step:4}", false) == "  12");
  CHECK(name("{val/acc:.1f}") == "val_acc=0.5");
  CHECK(name("{absent:.2f}") == "absent=0.00");
  CHECK(name("{bad:05.2f}", false) == "  nan");
  CHECK(name("fixed.safetensors") == "fixed");
  for (const std::string bad :
       {"", "a/b", "{epoch", "epoch}", "{}", "{:.2f}", "{a{b}}", "{a:x}", "{a:.f}", "{a:.99f}", "{a:99}"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH_AS((void)name(bad), doctest::Contains("filename"), ConfigError);
    CHECK_THROWS_AS(ModelCheckpoint({.filename = bad}), ConfigError);
  }
  const TemporaryFolder dir;
  ModelCheckpointOptions o = best_of(1);
  o.filename = "{epoch}-{score:.1f}-{unknown}";
  Run(o, in_folder(dir.path(), 2), {3, 1.5}).fit();
  CHECK(files_in(dir / "checkpoints") == Names{"epoch=1-score=1.5-unknown=0.safetensors"});
}

TEST_CASE("a name that is taken gets a version, one's own older file is replaced in place") {
  const TemporaryFolder dir;
  const Warnings warnings;
  ModelCheckpointOptions o{.filename = "fixed", .save_top_k = -1};
  Run(o, in_folder(dir.path(), 3)).fit();
  CHECK(files_in(dir / "checkpoints") == Names{"fixed-v1.safetensors", "fixed-v2.safetensors", "fixed.safetensors"});
  CHECK(told(warnings) == "");
  o.save_top_k = 1;  // the new run's own file is v3, and keeps that name
  Run(o, in_folder(dir.path(), 3)).fit();
  CHECK(files_in(dir / "checkpoints").size() == 4);
  CHECK(told(warnings) == "W-CKPT-FOLDER");
  const TemporaryFolder other;
  o.enable_version_counter = false;
  o.save_top_k = -1;
  o.monitor = "score";
  Run run(o, in_folder(other.path(), 3), {3, 1, 2});
  run.fit();
  CHECK(files_in(other / "checkpoints") == Names{"fixed.safetensors"});
  REQUIRE(run.checkpoint->best_k_models().size() == 1);
  CHECK(run.checkpoint->best_model_score() == 2);
}

TEST_CASE("options of a checkpoint callback that contradict each other are refused") {
  CHECK_THROWS_AS(ModelCheckpoint({.save_top_k = -2}), ConfigError);
  CHECK_THROWS_WITH_AS(ModelCheckpoint({.save_top_k = 2}), doctest::Contains("monitor"), ConfigError);
  CHECK_THROWS_AS(ModelCheckpoint({.every_n_train_steps = -1}), ConfigError);
  CHECK_THROWS_AS(ModelCheckpoint({.every_n_train_steps = 1, .every_n_epochs = 1}), ConfigError);
  CHECK_THROWS_AS(ModelCheckpoint({.every_n_epochs = 1, .train_time_interval = "00:00:00:01"}), ConfigError);
  CHECK_THROWS_AS(ModelCheckpoint({.train_time_interval = "00:00:00:00"}), ConfigError);
  CHECK_THROWS_AS(OnExceptionCheckpoint(""), ConfigError);
  const TemporaryFolder dir;
  const auto make = [&](std::vector<std::shared_ptr<Callback>> callbacks, bool checkpointing = true) {
    TrainerOptions options = in_folder(dir.path(), 1);
    options.enable_checkpointing = checkpointing;
    options.callbacks = std::move(callbacks);
    return Trainer(options).callbacks().size();
  };
  const auto with = [](const ModelCheckpointOptions& o) { return std::make_shared<ModelCheckpoint>(o); };
  CHECK(make({with({.monitor = "a"}), with({.monitor = "b"})}) == 2);
  CHECK(make({with({.dirpath = "a"}), with({.dirpath = "b"})}) == 2);
  CHECK(make({with({.every_n_epochs = 1}), with({.every_n_train_steps = 1})}) == 2);
  CHECK_THROWS_WITH_AS(make({with({.monitor = "a"}), with({.monitor = "a"})}), doctest::Contains("state key"),
                       ConfigError);
  CHECK_THROWS_AS(make({std::make_shared<OnExceptionCheckpoint>("x")}, false), ConfigError);
  CHECK(make({std::make_shared<OnExceptionCheckpoint>("x")}) == 2);  // the default one is added too
}

TEST_CASE("a checkpoint that monitors the step keeps the newest few, without a metric of that name") {
  const TemporaryFolder dir;
  Run run({.monitor = "step", .mode = Mode::max, .save_top_k = 2, .every_n_train_steps = 1}, in_folder(dir.path(), 4));
  run.fit({}, false);
  CHECK(files_in(dir / "checkpoints") == Names{file(3, 7), file(3, 8)});
}

TEST_CASE("checkpoints are written when their trigger says so, never twice at one step, before one or in a dev run") {
  const auto written = [](ModelCheckpointOptions o, Function<void(TrainerOptions&)> change = {},
                          bool validate = false) {
    const TemporaryFolder dir;
    o.save_top_k = -1;
    TrainerOptions options = in_folder(dir.path(), 4);
    if (change) change(options);
    Run run(o, options);
    run.fit({}, validate);
    return files_in(dir / "checkpoints");
  };
  CHECK(written({.every_n_epochs = 2}) == Names{file(1, 4), file(3, 8)});
  CHECK(written({.every_n_train_steps = 3}) == Names{file(1, 3), file(2, 6)});
  // Windows of two batches: 4 steps. The first batch of the next window has the same global_step.
  const auto accumulate = [](TrainerOptions& t) { t.accumulate_grad_batches = 2; };
  CHECK(written({.every_n_train_steps = 1}, accumulate) == Names{file(0, 1), file(1, 2), file(2, 3), file(3, 4)});
  CHECK(written({.train_time_interval = std::chrono::nanoseconds(1)}).size() == 8);
  CHECK(written({.train_time_interval = std::chrono::hours(1)}).empty());
  // After validations, if there is not one an epoch.
  const auto twice = [](TrainerOptions& t) {
    t.val_check_interval = 0.5;
    t.max_epochs = 2;
    t.num_sanity_val_steps = 1;
  };
  CHECK(written({}, twice, true) == Names{file(0, 1), file(0, 2), file(1, 3), file(1, 4)});
  CHECK(written({.save_on_train_epoch_end = true}, twice, true) == Names{file(0, 2), file(1, 4)});
  CHECK(written({}, twice) == Names{file(0, 2), file(1, 4)});  // validation is off
  const auto seldom = [](TrainerOptions& t) { t.check_val_every_n_epoch = 2; };
  CHECK(written({}, seldom, true) == Names{file(1, 4), file(3, 8)});
  CHECK(written({}, seldom).size() == 4);
  CHECK(written({.save_on_train_epoch_end = false}).empty());
  const Warnings warnings;
  CHECK(written(
            {.save_last = SaveLast::on}, [](TrainerOptions& t) { t.fast_dev_run = 3; }, true)
            .empty());
}

TEST_CASE("a save by steps waits for the validation that logs its metric; a metric that never comes is refused") {
  const TemporaryFolder dir;
  ModelCheckpointOptions o = best_of(-1);
  o.every_n_train_steps = 1;
  TrainerOptions options = in_folder(dir.path(), 2);
  const Warnings warnings;
  Run run(o, options, {5, 4});
  run.fit({}, true);
  // The save of step 1 waits for the end of the epoch; later saves use the last value.
  CHECK(files_in(dir / "checkpoints") == Names{file(0, 2), file(1, 3), file(1, 4)});
  CHECK(run.checkpoint->best_k_models()[0].second == 5);
  CHECK(run.checkpoint->best_k_models()[1].second == 5);
  CHECK(told(warnings) == "");

  const TemporaryFolder empty;
  const auto refused = [&](ModelCheckpointOptions with) {
    with.monitor = "val_acc";
    Run other(with, in_folder(empty.path(), 2));
    CHECK_THROWS_WITH_AS(other.fit({}, true), doctest::Contains("known are: score"), ConfigError);
  };
  refused({});
  refused({.every_n_train_steps = 1});
  CHECK(told(warnings) == "");
  // No validation: a warning, and `last` is written.
  o = {.monitor = "val_acc", .save_last = SaveLast::on};
  Run off(o, in_folder(empty.path(), 2));
  off.fit();
  CHECK(told(warnings) == "W-CKPT-MONITOR W-CKPT-MONITOR");
  CHECK(files_in(empty / "checkpoints") == Names{"last.safetensors"});
}

TEST_CASE("last is a link to the newest file, or a file of its own where this step made none") {
  const TemporaryFolder dir;
  ModelCheckpointOptions o = best_of(1);
  o.save_last = SaveLast::link;
  TrainerOptions options = in_folder(dir.path(), 1);
  const std::string last = dir / "checkpoints/last.safetensors", first = dir / ("checkpoints/" + file(0, 2));
  Run(o, options, {1}).fit();
  CHECK(fs::is_symlink(last));
  CHECK(fs::read_symlink(last) == file(0, 2));
  const std::string bytes = read_file(first, 1 << 20);
  // A worse epoch: `last` is the newer state, the best file is unchanged.
  options.max_epochs = 2;
  Run second(o, options, {1, 2});
  second.fit("last");
  CHECK(second.trainer.resumed_from() == last);
  CHECK_FALSE(fs::is_symlink(last));
  CHECK(read_file(first, 1 << 20) == bytes);
  CHECK(second.checkpoint->best_model_path() == first);
  CHECK(second.checkpoint->last_model_path() == last);
  // A better epoch replaces the best file, unless the run resumed that file through the link `last`.
  options.max_epochs = 3;
  Run third(o, options, {1, 2, 0});
  third.fit("last");
  CHECK(fs::read_symlink(last) == file(2, 6));
  CHECK(files_in(dir / "checkpoints") == Names{file(2, 6), "last.safetensors"});
  options.max_epochs = 4;
  Run fourth(o, options, {1, 2, 0, -1});
  fourth.fit("last");
  CHECK(fs::read_symlink(last) == file(3, 8));
  CHECK(files_in(dir / "checkpoints") == Names{file(2, 6), file(3, 8), "last.safetensors"});  // it resumed step 6
}

TEST_CASE("a resumed run keeps the best of before, and in another folder ranks with it and leaves its files") {
  const TemporaryFolder dir;
  const std::string from = dir / ("checkpoints/" + file(2, 6));
  Run(best_of(2), in_folder(dir.path(), 3), {1, 3, 2}).fit();
  REQUIRE(files_in(dir / "checkpoints") == Names{file(0, 2), file(2, 6)});
  const auto better = [&](const std::string& root, Values values) {
    auto run = std::make_unique<Run>(best_of(2), in_folder(root, 5), std::move(values));
    run->fit(from);
    return run;
  };
  const Warnings warnings;
  auto run = better(dir.path(), {1, 3, 2, 1.5, 0});
  // The file of score 2 was replaced and is still there, because the run resumed it.
  CHECK(files_in(dir / "checkpoints") == Names{file(0, 2), file(2, 6), file(4, 10)});
  CHECK(run->checkpoint->best_k_models() ==
        std::vector<std::pair<std::string, double>>{{dir / ("checkpoints/" + file(0, 2)), 1},
                                                    {dir / ("checkpoints/" + file(4, 10)), 0}});
  CHECK(run->checkpoint->best_model_score() == 0);
  CHECK(told(warnings) == "");
  // A file that does not exist is not named.
  fs::remove(dir / ("checkpoints/" + file(0, 2)));
  run = better(dir.path(), {1, 3, 2, 9, 8});
  CHECK(run->checkpoint->best_k_models().size() == 2);
  CHECK(run->checkpoint->best_model_score() == 2);
  CHECK(told(warnings) == "");

  const TemporaryFolder other;
  fs::create_directory(other / "checkpoints");
  std::ofstream(other / "checkpoints/foreign") << "x";
  run = better(other.path(), {1, 3, 2, 9, 8});
  CHECK(told(warnings) == "W-CKPT-FOLDER");
  CHECK(run->checkpoint->best_model_score() == 2);  // of `from`; 9 was kept beside it until 8 came
  CHECK(run->checkpoint->best_model_path() == from);
  CHECK(files_in(other / "checkpoints") == Names{file(4, 10), "foreign"});
  CHECK(fs::exists(from));
  // Better files take both places, and the file of the run before stays.
  const TemporaryFolder better_dir;
  run = better(better_dir.path(), {1, 3, 2, 0.5, 0.25});
  CHECK(run->checkpoint->best_model_score() == 0.25);
  CHECK(files_in(better_dir / "checkpoints") == Names{file(3, 8), file(4, 10)});
  CHECK(fs::exists(from));
  CHECK(told(warnings) == "W-CKPT-FOLDER");

  // Another dirpath: the monitor finds the state, and a warning reports it.
  ModelCheckpointOptions moved = best_of(2);
  moved.dirpath = other / "moved";
  Run third(moved, in_folder(dir.path(), 3));
  third.fit(from);
  CHECK(third.checkpoint->best_model_path() == "");  // of epoch 0, which was removed above
  CHECK(told(warnings) == "W-CKPT-FOLDER W-CKPT-DIR");
}

TEST_CASE("a run that fails saves in the folder it is given, and ckpt_path last resumes from there") {
  const TemporaryFolder dir;
  TrainerOptions options = in_folder(dir.path(), 3);
  options.callbacks = {std::make_shared<OnExceptionCheckpoint>(dir / "failed")};
  const ModelCheckpointOptions o{.save_on_exception = true};
  const auto fails_at = [&](std::int64_t step, const std::string& ckpt_path) {
    Run run(o, options);
    run.module.fails_at = step;
    CHECK_THROWS_WITH_AS(run.fit(ckpt_path), "planned", std::runtime_error);
  };
  fails_at(0, "");  // nothing was trained
  CHECK(files_in(dir.path()).empty());
  fails_at(3, "");
  CHECK(files_in(dir / "failed") == Names{"on_exception.safetensors"});
  CHECK(files_in(dir / "checkpoints") == Names{file(0, 2), file(1, 3)});
  fs::remove_all(dir / "checkpoints");
  {
    Run run(o, options);
    run.fit("last");
    CHECK(run.trainer.resumed_from() == dir / "failed/on_exception.safetensors");
    Run whole(o, in_folder(dir / "whole", 3));
    whole.fit();
    CHECK(weights_of(run.module) == weights_of(whole.module));
  }
  TrainerOptions dev = options;
  dev.fast_dev_run = 3;
  dev.default_root_dir = dir / "dev";
  dev.callbacks = {std::make_shared<OnExceptionCheckpoint>(dir / "dev")};
  const Warnings warnings;
  Run run(o, dev);
  run.module.fails_at = 1;
  CHECK_THROWS_AS(run.fit(), std::runtime_error);
  CHECK_FALSE(fs::exists(dir / "dev"));
}

TEST_CASE("a checkpoint callback with save_weights_only writes weights alone") {
  const TemporaryFolder dir;
  Run run({.save_weights_only = true}, in_folder(dir.path(), 1));
  run.fit();
  const TensorFile saved = load_safetensors(run.checkpoint->best_model_path());
  CHECK(saved.tensors.size() == run.module.state_dict().size());
  Run other({}, in_folder(dir.path(), 1));
  CHECK_THROWS_WITH_AS(other.fit(run.checkpoint->best_model_path()), doctest::Contains("weights alone"), ConfigError);
}

TEST_CASE("ckpt_path best is the best file of the checkpoint callback, or says why there is none") {
  const TemporaryFolder dir;
  Run run(best_of(1), in_folder(dir.path(), 3), {2, 1, 3});
  CHECK_THROWS_WITH_AS(run.fit("best"), doctest::Contains("has saved none yet"), ConfigError);
  run.fit();
  run.trainer.options().max_epochs = 4;
  run.fit("best");
  CHECK(name_of(run.trainer.resumed_from()) == file(1, 4));
  CHECK(run.trainer.global_step() == 8);
  Run none(best_of(0), in_folder(dir.path(), 1));
  CHECK_THROWS_WITH_AS(none.fit("best"), doctest::Contains("save_top_k is 0"), ConfigError);
  TrainerOptions options = in_folder(dir.path(), 1);
  options.fast_dev_run = 1;
  const Warnings warnings;
  Run dev(best_of(1), options);
  CHECK_THROWS_WITH_AS(dev.fit("best"), doctest::Contains("fast_dev_run"), ConfigError);
  Trainer off(silent());
  CHECK_THROWS_WITH_AS(off.fit(run.module, {.train = &run.data, .ckpt_path = "best"}),
                       doctest::Contains("no ModelCheckpoint"), ConfigError);
}

TEST_CASE("a disk that is full costs checkpoints and not the run: the warning names needed and free bytes") {
  // On a small file system that only a child process sees.
  const TemporaryFolder dir;
  constexpr int kNoMount = 77;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string user = "0 " + std::to_string(getuid()) + " 1", group = "0 " + std::to_string(getgid()) + " 1";
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(kNoMount);
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << group;
    if (mount("levin", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0) _exit(kNoMount);
    int code = 1;
    try {
      set_num_threads(1);  // worker threads do not survive a fork
      const std::string folder = dir / "checkpoints";
      fs::create_directory(folder);
      std::ofstream(folder + "/filler") << std::string(64 << 10, 'x');
      const Warnings warnings;
      struct MakeRoom : Callback {
        std::string path;
        void on_train_epoch_start() override {
          if (trainer().current_epoch() == 2) fs::remove(path);
        }
      };
      const auto room = std::make_shared<MakeRoom>();
      room->path = folder + "/filler";
      TrainerOptions options = in_folder(dir.path(), 3);
      options.callbacks = {room};
      Run run({}, options);
      run.fit();
      bool named = true;
      for (const Warning& w : warnings.all()) {
        if (w.id == "W-CKPT-WRITE" && (w.text.find(" bytes are needed, ") == std::string::npos ||
                                       w.text.find(" are free; make room") == std::string::npos)) {
          std::fprintf(stderr, "%s\n", w.text.c_str());
          named = false;
        }
      }
      const std::string expected = "W-CKPT-FOLDER W-CKPT-WRITE W-CKPT-WRITE";
      code = !named                                  ? 2
             : told(warnings) != expected            ? 3
             : run.trainer.global_step() != 6        ? 4
             : files_in(folder) != Names{file(2, 6)} ? 5
                                                     : 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      code = 6;
    }
    _exit(code);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMount) return skip("no file system can be mounted here");
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a run that resumes from one callback's file does not keep another from saving at that step") {
  const TemporaryFolder dir;
  const auto best_path = [&](const std::string& from, std::int64_t n) {
    ModelCheckpointOptions by_steps, by_score = best_of(1);
    by_steps.every_n_train_steps = 2;  // the last batch of each epoch, before its validation
    by_steps.save_top_k = -1;
    by_steps.dirpath = dir / "steps";
    by_score.dirpath = dir / "best";
    TrainerOptions options = in_folder(dir.path(), n);
    options.callbacks = {std::make_shared<ModelCheckpoint>(by_steps)};
    Run run(by_score, options, {1, 2});
    run.fit(from, true);
    return name_of(run.checkpoint->best_model_path());
  };
  const std::string whole = best_path("", 2);
  CHECK(whole == file(0, 2));
  fs::remove_all(dir / "best");
  CHECK(best_path(dir / ("steps/" + file(0, 2)), 2) == whole);
}
