// Saves that fail, and saves in the middle of a batch.
#include <doctest/doctest.h>

#include <filesystem>

#include "levin/serialize.h"
#include "tests/warnings.h"
#include "train/checkpoint/content.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// A folder that cannot be made, because a file has its name.
TrainerOptions into(const std::string& folder, std::int64_t steps) {
  TrainerOptions options = epochs(1);
  options.max_steps = steps;
  options.enable_checkpointing = true;
  options.callbacks = {std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder, .save_last = SaveLast::on, .every_n_train_steps = 1})};
  return options;
}

struct WithNorm : TrainModuleOf<WithNorm> {
  WithNorm() : TrainModuleOf({.gen = Generator(3), .device = Device::cpu()}) {}
  nn::Linear fc{*this, "fc", {.in = 2, .out = 2}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 2}};
  StepOutput training_step(const Batch& b, std::int64_t) override { return mean(square(norm(fc(b[0])) - b[1])); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

struct SavesIn : Callback {
  std::string where, file;
  SavesIn(std::string hook, std::string path) : where(std::move(hook)), file(std::move(path)) {}
  void at(const char* hook) {
    if (where == hook) trainer().save_checkpoint(file);
  }
  BatchStart on_train_batch_start(const StepInfo&) override {
    at("batch start");
    return BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo&) override { at("batch end"); }

 private:
  void on_after_backward() override { at("after backward"); }
};

}  // namespace

TEST_CASE("each save that fails is a warning, and a run that ends so reports how many of its last saves failed") {
  const TemporaryFolder dir;
  write_file_atomically(dir / "taken", "a file");
  const Warnings warnings;
  CHECK(run(into(dir / "taken", 2), 10).steps == 2);
  CHECK(warnings.count("W-CKPT-WRITE") == 4);  // each step the file and its `last`
  REQUIRE(warnings.count("W-CKPT-UNSAVED") == 1);
  CHECK(warnings.all().back().text.find("the last 2 saves of the run failed; no file holds it") != std::string::npos);
}

TEST_CASE("the third save in a row that fails ends the run, and one that succeeds in between begins the count anew") {
  const TemporaryFolder dir;
  write_file_atomically(dir / "taken", "a file");
  const Warnings warnings;
  CHECK_THROWS_WITH_AS((void)run(into(dir / "taken", 5), 10), doctest::Contains("3 saves in a row failed"), FileError);

  // At steps 1, 2, 4 and 5.
  struct InTheWay : Callback {
    std::string path;
    BatchStart on_train_batch_start(const StepInfo& info) override {
      std::filesystem::remove_all(path);
      if (info.global_step != 2) write_file_atomically(path, "a file");
      return BatchStart::proceed;
    }
  };
  TrainerOptions options = into(dir / "taken", 5);
  const auto way = std::make_shared<InTheWay>();
  way->path = dir / "taken";
  options.callbacks.insert(options.callbacks.begin(), way);
  CHECK(run(options, 10).steps == 5);
  CHECK(warnings.count("W-CKPT-UNSAVED") == 1);
}

TEST_CASE("a save in the middle of a batch warns where the file has seen the batch that a resumed run trains again") {
  const TemporaryFolder dir;
  for (const std::string where : {"batch start", "after backward", "batch end"}) {
    CAPTURE(where);
    const Warnings warnings;
    TrainerOptions options = silent();
    options.max_steps = 2;
    options.callbacks = {std::make_shared<SavesIn>(where, dir / "cut.safetensors")};
    {
      WithNorm model;
      data::DataLoader train = loader(24, 4);
      Trainer(options).fit(model, {.train = train});
    }
    CHECK(warnings.count("W-CKPT-WINDOW") == (where == "after backward" ? 2 : 0));
    (void)run(options, 4);  // a module without buffers and random numbers
    CHECK(warnings.count("W-CKPT-WINDOW") == (where == "after backward" ? 2 : 0));
  }
}

TEST_CASE("a link is made by a name that no other process uses on the way") {
  const TemporaryFolder dir;
  write_file_atomically(dir / "a.safetensors", "a");
  std::filesystem::create_directories(dir / "last.safetensors.link/of another process");
  for (const train::Link kind : {train::Link::hard, train::Link::symbolic}) {
    CHECK(train::link_to(dir / "a.safetensors", dir / "last.safetensors", kind));
    CHECK(read_file(dir / "last.safetensors", 10) == "a");
  }
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()) == 3);
}

TEST_CASE("a checkpoint folder one of whose files can not be linked replaces no older folder") {
  const TemporaryFolder dir;
  std::filesystem::create_directories(dir / "last.levin");
  write_file_atomically(dir / "last.levin/rank-0.safetensors", "older");
  std::filesystem::create_directories(dir / "a.levin/rank-1.safetensors");  // no file system links folders
  for (const char* name : {"rank-0.safetensors", "rank-2.safetensors"})
    write_file_atomically(dir / "a.levin" + "/" + name, "newer");
  CHECK_FALSE(train::link_to(dir / "a.levin", dir / "last.levin", train::Link::hard));
  CHECK(read_file(dir / "last.levin/rank-0.safetensors", 10) == "older");
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()) == 2);
}
