// Evaluations of a file's weights, of the last call's module, and their results.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"
#include "train/run/probe_test.h"
#include "train/run/run.h"

using namespace levin;

namespace {

const nn::Options kOnCpu{.gen = Generator(1), .device = Device::cpu()};

// The validation loss is the weight, which a step lowers by 0.1; from epoch `worse_from` on it is worse.
struct Weighs : TrainModuleOf<Weighs> {
  using TrainModuleOf::TrainModuleOf;
  nn::Parameter w{*this, "w", ones({1}, Device::cpu())};
  std::int64_t worse_from = 2, epochs = 0;
  bool doubles = false;  // in on_load_checkpoint
  Tensor operator()(const Tensor& x) { return x * w; }
  StepOutput training_step(const Batch&, std::int64_t) override { return sum(w); }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override {
    log("val_loss", trainer().validating() && trainer().current_epoch() >= worse_from ? 9 - w.item() : w.item());
  }
  void test_step(const Batch& b, std::int64_t, std::int64_t dataloader_idx) override {
    log("w", w.item());
    if (dataloader_idx == 0) log("x", b[0].item());
  }
  void on_save_checkpoint(CheckpointContent& content) override { content.state.values = {{"of", "weighs"}}; }
  void on_load_checkpoint(CheckpointContent& content) override {
    if (!content.state.values.empty()) epochs = static_cast<std::int64_t>(content.state.values.size());
    if (doubles) content.weights.at(0).second = content.weights.at(0).second * 2.0;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

TrainerOptions saving(const test::TemporaryFolder& dir) {
  TrainerOptions options = test::epochs(4);
  options.default_root_dir = dir.path();
  options.enable_checkpointing = true;
  options.callbacks = {
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.monitor = "val_loss", .save_last = SaveLast::on})};
  return options;
}
const EvaluationOptions kQuiet{.data_module = nullptr, .ckpt_path = {}, .verbose = false};
double close(double x) { return std::round(x * 1000) / 1000; }

}  // namespace

TEST_CASE("an evaluation without a module takes the last one with the best weights of the last fit, and says so") {
  const test::TemporaryFolder dir;
  Weighs net(kOnCpu);
  auto train = test::ramp(1), val = test::ramp(1);
  Trainer trainer(saving(dir));
  CHECK_THROWS_AS((void)trainer.test(val), StateError);
  trainer.fit(net, {.train = train, .val = val});
  CHECK(close(net.w.item()) == 0.6);
  {
    const test::Warnings warnings;  // with a module its weights are used as they are
    CHECK(close(trainer.test(net, val, kQuiet).at(0).at(0).second) == 0.6);
    CHECK(warnings.all().empty());
  }
  {
    const test::Warnings warnings;
    CHECK(close(trainer.test(val, kQuiet).at(0).at(0).second) == 0.8);
    CHECK(warnings.count("W-CKPT-BEST-USED") == 1);
    CHECK(close(net.w.item()) == 0.8);
    CHECK(net.epochs == 1);  // on_load_checkpoint saw its state
  }
  CHECK(close(trainer.test(val, {.ckpt_path = "last", .verbose = false}).at(0).at(0).second) == 0.6);
  CHECK(close(trainer.validate(net, val, {.ckpt_path = "best", .verbose = false}).at(0).at(0).second) == 0.8);
  CHECK(trainer.predict(val, {.ckpt_path = "last"}).at(0).at(0).item() == doctest::Approx(0.6));
  // A fit continues with the weights that are there.
  trainer.options().max_epochs = 5;
  trainer.fit(net, {.train = train});
  CHECK(close(net.w.item()) == 0.5);
}

TEST_CASE("what cannot be loaded for an evaluation is a typed error and changes nothing") {
  const levin::test::ExpectedWarnings expected{"W-CKPT-BEST-USED"};
  const test::TemporaryFolder dir;
  Weighs net(kOnCpu);
  auto loader = test::ramp(1);
  TrainerOptions options = test::epochs(1);
  options.default_root_dir = dir.path();
  Trainer trainer(options);
  trainer.fit(net, {.train = loader});
  const std::string weights = dir / "w.safetensors", whole = dir / "whole.safetensors";
  trainer.save_checkpoint(weights, WeightsOnly::yes);
  trainer.save_checkpoint(whole);
  const auto value = [&] { return close(net.w.item()); };
  CHECK(value() == 0.9);

  const auto told = [&](const std::string& path) -> std::string {
    try {
      (void)trainer.test(net, loader, {.ckpt_path = path, .verbose = false});
    } catch (const Error& e) { return e.what(); }
    return "loaded";
  };
  CHECK_THROWS_AS((void)trainer.test(net, loader, {.ckpt_path = dir / "none.safetensors"}), FileError);
  CHECK_THROWS_AS((void)trainer.test(net, loader, {.ckpt_path = "best"}), ConfigError);  // no checkpoint callback
  CHECK_THROWS_AS((void)trainer.test(loader, kQuiet), ConfigError);                      // so there is no best one
  test::Net another(kOnCpu);
  save_safetensors(dir / "another.safetensors", another.state_dict());
  CHECK(told(dir / "another.safetensors").starts_with("test: the weights of "));
  save_safetensors(dir / "wide.safetensors", {{"w", ones({2}, Device::cpu())}});
  CHECK(test::contains(told(dir / "wide.safetensors"), "f32 [2] in the file, f32 [1] here"));
  {  // a byte that has changed
    std::FILE* const file = std::fopen(whole.c_str(), "r+b");
    REQUIRE(file != nullptr);
    std::fseek(file, -1, SEEK_END);
    const int last = std::fgetc(file);
    std::fseek(file, -1, SEEK_END);
    std::fputc(last ^ 1, file);
    std::fclose(file);
  }
  CHECK_THROWS_AS((void)trainer.test(net, loader, {.ckpt_path = whole}), FormatError);
  CHECK(value() == 0.9);

  {
    const NoGrad off;
    copy_(net.w, zeros({1}, Device::cpu()));
  }
  CHECK(told(weights) == "loaded");
  CHECK(value() == 0.9);
  net.doubles = true;
  CHECK(told(weights) == "loaded");
  CHECK(value() == 1.8);
  const test::Warnings warnings;  // an empty folder
  TrainerOptions elsewhere = options;
  elsewhere.default_root_dir = dir / "empty";
  Trainer fresh(elsewhere);
  (void)fresh.test(net, loader, {.ckpt_path = "last", .verbose = false});
  CHECK(warnings.count("W-CKPT-LAST") == 1);
  CHECK(value() == 1.8);
}

TEST_CASE(
    "evaluations in the folders of an earlier training change no byte of what that left, and append to metrics.csv") {
  const test::TemporaryFolder dir;
  const auto options = [&] {
    TrainerOptions o = saving(dir);
    o.logger = std::vector<std::shared_ptr<Logger>>{
        std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = dir.path(), .name = "", .version = ""}),
        std::make_shared<TensorBoardLogger>(
            TensorBoardLoggerOptions{.save_dir = dir.path(), .name = "", .version = ""})};
    return o;
  };
  const auto files = [&] {
    std::map<std::string, std::string> all;
    for (const auto& f : std::filesystem::recursive_directory_iterator(dir.path())) {
      if (f.is_regular_file()) all[f.path().string()] = read_file(f.path().string(), 1 << 24);
    }
    return all;
  };
  Weighs net(kOnCpu);
  auto train = test::ramp(1), val = test::ramp(1);
  {
    Trainer trainer(options());
    trainer.fit(net, {.train = train, .val = val});
  }
  const auto before = files();
  REQUIRE(before.size() >= 4);  // metrics.csv, event file, last and best
  {
    Trainer trainer(options());
    (void)trainer.test(net, val, {.ckpt_path = "last", .verbose = false});
    (void)trainer.validate(net, val, kQuiet);
    (void)trainer.predict(net, val);
  }
  auto after = files();
  for (const auto& [path, content] : before) {
    CAPTURE(path);
    if (!path.ends_with("metrics.csv"))
      CHECK(after[path] == content);
    else
      CHECK(std::count(after[path].begin(), after[path].end(), '\n') ==
            std::count(content.begin(), content.end(), '\n') + 2);
  }
}

TEST_CASE("an evaluation in a hook needs its module and loads no file") {
  struct Asks : Callback {
    Trainer* trainer_of_run = nullptr;
    TrainModule* net = nullptr;
    data::DataLoader* loader = nullptr;
    int refused = 0, results = 0;
    void on_train_epoch_end() override {
      try {
        (void)trainer().test(*loader, kQuiet);
      } catch (const StateError&) { ++refused; }
      try {
        (void)trainer().test(*net, *loader, {.ckpt_path = "last"});
      } catch (const StateError&) { ++refused; }
      results += static_cast<int>(trainer().test(*net, *loader).size());
    }
  };
  Weighs net(kOnCpu);
  auto loader = test::ramp(1);
  const auto asks = std::make_shared<Asks>();
  asks->net = &net;
  asks->loader = &loader;
  TrainerOptions options = test::epochs(1);
  options.callbacks = {asks};
  Trainer trainer(options);
  auto train = test::ramp(1);
  trainer.fit(net, {.train = train});
  CHECK(asks->refused == 2);
  CHECK(asks->results == 1);
}

TEST_CASE("without a module the data module of the call before is asked, where no loader is given") {
  struct Tests : DataModuleOf<Tests> {
    int asked = 0;
    std::unique_ptr<data::DataLoader> train_loader() override {
      return std::make_unique<data::DataLoader>(test::ramp(1));
    }
    std::unique_ptr<data::DataLoader> test_loader() override {
      ++asked;
      return std::make_unique<data::DataLoader>(test::ramp(2));
    }
  } data;
  const test::TemporaryFolder dir;
  Weighs net(kOnCpu);
  TrainerOptions options = saving(dir);
  options.callbacks.clear();
  Trainer trainer(options);
  trainer.fit(net, data);
  const test::Warnings warnings;
  (void)trainer.test({}, kQuiet);
  CHECK(data.asked == 1);
  CHECK_THROWS_WITH_AS((void)trainer.test(net, {}, kQuiet),
                       "test: no loader was given, and test_loader of data module and module gives none; give one, or "
                       "override it",
                       ConfigError);
}

TEST_CASE("the best checkpoint is also that of a callback which the module brought") {
  struct Brings : TrainModuleOf<Brings, Weighs> {
    using TrainModuleOf<Brings, Weighs>::TrainModuleOf;
    std::string folder;
    std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
      return {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder, .monitor = "val_loss"})};
    }
  };
  const test::TemporaryFolder dir;
  Brings net(kOnCpu);
  net.folder = dir / "own";
  TrainerOptions options = saving(dir);
  options.callbacks.clear();
  Trainer trainer(options);
  auto train = test::ramp(1), val = test::ramp(1);
  const test::Warnings warnings;
  trainer.fit(net, {.train = train, .val = val});
  CHECK(close(trainer.test(val, kQuiet).at(0).at(0).second) == 0.8);
}

TEST_CASE("results are a table with a line a metric and a column a loader; predictions need not be kept") {
  CHECK(train::results_table("test", {Metrics{{"acc/dataloader_idx_0", 0.5}, {"loss/dataloader_idx_0", 0.123456789}},
                                      Metrics{{"acc/dataloader_idx_1", 1.0}}}) ==
        "test  loader 0      loader 1      \n"
        "acc   0.5           1             \n"
        "loss  0.123457                    \n");
  CHECK(train::results_table("test", {Metrics{}}).empty());
  const Metrics own{{"x/dataloader_idx_best", 1.0}, {"x/dataloader_idx_worst", 2.0}};
  CHECK(train::results_table("test", {own, own}) ==
        "test                    loader 0      loader 1      \n"
        "x/dataloader_idx_best   1             1             \n"
        "x/dataloader_idx_worst  2             2             \n");

  struct Watches : Callback {
    std::vector<double> seen;
    void on_predict_batch_end(const StepInfo& info) override { seen.push_back(info.outputs.at(0).second.item()); }
  };
  const auto watches = std::make_shared<Watches>();
  TrainerOptions options = test::silent();
  options.callbacks = {watches};
  Weighs net(kOnCpu);
  auto loader = test::ramp(3);
  Trainer trainer(options);
  CHECK(trainer.predict(net, loader, {.return_predictions = false}).empty());
  CHECK(watches->seen == std::vector<double>{1, 2, 3});
  CHECK(trainer.predict(net, loader).at(0).size() == 3);
}

TEST_CASE("predictions come in the order of batches, though the loader hands batches out as they finish") {
  struct Same : TrainModuleOf<Same> {
    using TrainModuleOf::TrainModuleOf;
    Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return b[0]; }
    std::vector<std::int64_t> handed_out;
    void on_predict_batch_start(const StepInfo& at) override { handed_out.push_back(at.batch->position); }
  };
  // The first sample that a worker takes waits for the four behind it, and the loop's own thread waits for the worker.
  struct Late : data::Dataset {
    const std::thread::id loop = std::this_thread::get_id();
    mutable std::atomic<std::int64_t> late{-1}, others{0};
    std::int64_t size() const override { return 6; }
    data::Sample get(std::int64_t i, Generator&) const override {
      const auto wait = [](const auto& over) {
        for (int ms = 0; ms < 20'000 && !over(); ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      };
      std::int64_t none = -1;
      if (std::this_thread::get_id() == loop)
        wait([&] { return late >= 0; });
      else if (late.compare_exchange_strong(none, i))
        wait([&] { return others >= 4; });
      ++others;
      return {tensor({static_cast<double>(i)}, Device::cpu())};
    }
  };
  Same net(kOnCpu);
  data::DataLoader loader(std::make_shared<Late>(), {.num_workers = 2, .in_order = false});
  Trainer trainer(test::silent());
  const Tensors found = trainer.predict(net, loader).at(0);
  REQUIRE(found.size() == 6);
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i].item() == static_cast<double>(i));
  CHECK_FALSE(std::is_sorted(net.handed_out.begin(), net.handed_out.end()));
}

TEST_CASE("evaluate returns what validate returns: transfer hooks are called, and a batch weighs what log() gives it") {
  struct Normal : TrainModuleOf<Normal> {
    using TrainModuleOf::TrainModuleOf;
    nn::Parameter w{*this, "w", ones({1}, Device::cpu())};
    Batch on_after_batch_transfer(Batch b) override {
      CHECK(trainer().current_epoch() >= 0);  // attached
      b.fields[0] = b.fields[0] * 10.0;
      return b;
    }
    StepOutput training_step(const Batch& b, std::int64_t) override { return mean(b[0] * w); }
    void validation_step(const Batch& b, std::int64_t, std::int64_t) override { log("x", mean(b[0])); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters())}};
    }
  };
  // Samples that are batches of 1 and of 9 rows.
  struct Rows : data::Dataset {
    std::int64_t size() const override { return 2; }
    data::Sample get(std::int64_t i, Generator&) const override {
      return {full({i == 0 ? 1 : 9, 2}, i == 0 ? 0.0 : 1.0, Device::cpu())};
    }
  };
  Normal module(kOnCpu);
  data::DataLoader whole(std::make_shared<Rows>(), {.batch_size = std::nullopt});
  Trainer trainer(test::epochs(1));
  const double validated = trainer.validate(module, whole, {.verbose = false}).at(0).at(0).second;
  CHECK(validated == 9.0);
  CHECK(trainer.evaluate(module, whole, [](const Batch& b) { return mean(b[0]); }) == validated);
}

TEST_CASE("the newest file, which is read to be chosen, is not read again for its weights") {
  const levin::test::ExpectedWarnings expected{"W-CKPT-MONITOR"};
  const test::TemporaryFolder dir;
  Weighs module(kOnCpu), other(kOnCpu);
  data::DataLoader data = test::ramp(2);
  Trainer trainer(saving(dir));
  trainer.fit(module, {.train = data});
  TrainerOptions options = test::epochs(1);  // without callbacks, which would ask the trainer for their folder
  options.default_root_dir = dir.path();
  Trainer::Run run(trainer, options);
  const train::FoundCheckpoint found = run.files.find("last");
  REQUIRE(std::filesystem::remove(found.path));
  const test::Warnings quiet;
  run.files.load_weights(found, other);
  CHECK(other.w.item() == module.w.item());
}
