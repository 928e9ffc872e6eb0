// Plug-ins that write checkpoints.
#include "levin/train/checkpoint_io.h"

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "tests/warnings.h"
#include "train/checkpoint/content.h"
#include "train/data/rank_fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;
namespace fs = std::filesystem;

namespace {

// Files of another form: each byte is inverted.
class Inverting : public CheckpointIO {
 public:
  void save(const std::string& path, TensorFile file) override {
    CheckpointIO::save(path + ".plain", std::move(file));
    write_file_atomically(path, inverted(path + ".plain"));
    fs::remove(path + ".plain");
    ++saves;
  }
  TensorFile load(const std::string& path) override {
    const test::TemporaryFolder folder;
    write_file_atomically(folder / "plain", inverted(path));
    return CheckpointIO::load(folder / "plain");
  }
  void remove(const std::string& path) override {
    CheckpointIO::remove(path);
    ++removals;
  }
  std::atomic<int> saves{0}, removals{0};

 private:
  static std::string inverted(const std::string& path) {
    std::string bytes = read_file(path, std::size_t{1} << 20);
    for (char& c : bytes) c = static_cast<char>(~c);
    return bytes;
  }
};

// Writes when it is allowed to.
class Waiting final : public CheckpointIO {
 public:
  void save(const std::string& path, TensorFile file) override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return allowed; });
    if (fails) fail<FileError>("the disk is full");
    CheckpointIO::save(path, std::move(file));
  }
  void allow() {
    const std::lock_guard lock(mutex);
    allowed = true;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool allowed = false, fails = false;
};

// Every save but the first fails.
class FullAfterOne final : public CheckpointIO {
 public:
  void save(const std::string& path, TensorFile file) override {
    if (saves++ > 0) fail<FileError>("the disk is full");
    CheckpointIO::save(path, std::move(file));
  }

 private:
  int saves = 0;
};

TrainerOptions saving(const std::string& folder, std::shared_ptr<CheckpointIO> io, std::int64_t epochs) {
  TrainerOptions options = test::epochs(epochs);
  options.enable_checkpointing = true;
  options.default_root_dir = folder;
  options.plugins.checkpoint_io = std::move(io);
  return options;
}
std::vector<float> trained(const TrainerOptions& options, const std::string& resume) {
  test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = test::ramp(3);
  Trainer trainer(options);
  trainer.fit(probe, {.train = data, .ckpt_path = resume});
  CHECK(trainer.resumed_from().empty() == resume.empty());
  return test::weights_of(probe);
}

}  // namespace

TEST_CASE("a CheckpointIO of the user's writes, reads and removes all files of a run, of one process and of ranks") {
  for (const bool async : {false, true}) {
    const test::TemporaryFolder folder;
    const auto own = std::make_shared<Inverting>();
    const std::shared_ptr<CheckpointIO> io = async ? std::make_shared<AsyncCheckpointIO>(own) : nullptr;
    const std::vector<float> whole = trained(saving(folder / "whole", nullptr, 4), "");
    (void)trained(saving(folder.path(), io ? io : own, 2), "");
    CHECK(own->saves == 2);  // one each epoch, of which the newest stays
    CHECK(own->removals == 1);
    const std::string newest = folder / "checkpoints/epoch=1-step=6.safetensors";
    CHECK(fs::exists(newest));
    CHECK_THROWS_AS((void)load_safetensors(newest), FormatError);
    CHECK(trained(saving(folder.path(), io ? io : own, 4), "last") == whole);
    test::on_ranks(2, [&](int, TrainerOptions options) {
      options.plugins.checkpoint_io = std::make_shared<Inverting>();
      options.max_epochs = 2;
      test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      data::DataLoader data = test::ramp(6);
      Trainer trainer(options);
      trainer.fit(probe, {.train = data});
      trainer.save_checkpoint(folder / "ranks.safetensors");
      (void)trainer.validate(probe, data, {.ckpt_path = folder / "ranks.safetensors", .verbose = false});
    });
    CHECK_THROWS_AS((void)load_safetensors(folder / "ranks.safetensors"), FormatError);
  }
}

TEST_CASE("AsyncCheckpointIO returns before the file is there, and writes the values of the call") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const auto slow = std::make_shared<Waiting>();
  AsyncCheckpointIO io(slow);
  Tensor t = ones({3}, Device::cpu());
  io.save(path, {.tensors = {{"t", t}}, .metadata = {{"key", "value"}}});
  CHECK_FALSE(fs::exists(path));
  CHECK(io.exists(path));
  t.mutable_data<float>()[0] = 7;
  slow->allow();
  const TensorFile read = io.load(path);  // waits
  CHECK(read.tensors.at(0).second.to_vector<float>() == std::vector<float>{1, 1, 1});
  CHECK(read.metadata.at(0).second == "value");
  io.remove(path);
  CHECK_FALSE(io.exists(path));
  io.finish();
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("a write of AsyncCheckpointIO that fails is told by the next save, which writes, by finish, or at its end") {
  const test::TemporaryFolder folder;
  const auto failing = std::make_shared<Waiting>();
  failing->allowed = failing->fails = true;
  {
    AsyncCheckpointIO io(failing);
    const test::ExpectedWarnings told{"W-CKPT-WRITE"};
    io.save(folder / "a", {});
    CHECK_FALSE(train::is_whole_checkpoint(io, folder / "a"));  // which leaves the error to the next save
    failing->fails = false;
    {
      const test::ExpectedWarnings of_a{"W-CKPT-WRITE"};
      io.save(folder / "b", {});
    }
    io.finish();
    CHECK(fs::exists(folder / "b"));
    failing->fails = true;
    io.save(folder / "c", {});
    CHECK_THROWS_AS(io.finish(), FileError);
    io.finish();  // was told
    io.save(folder / "d", {});
    const test::TemporaryFolder kept;
    write_file_atomically(kept / "old", std::string("whole"));
    {
      AsyncCheckpointIO keeping(failing);
      keeping.save(kept / "new", {});
      keeping.remove(kept / "old");
      CHECK_THROWS_AS(keeping.finish(), FileError);
    }
    CHECK(fs::exists(kept / "old"));  // what the lost file would have replaced
    AsyncCheckpointIO gone(failing);
    gone.save(folder / "e", {});
    CHECK_THROWS_AS(io.finish(), FileError);
  }
  const auto async = [&] { return std::make_shared<AsyncCheckpointIO>(failing); };
  CHECK_THROWS_WITH_AS((void)trained(saving(folder.path(), async(), 1), ""), "the disk is full", FileError);
  const test::ExpectedWarnings told{"W-CKPT-WRITE"};  // of the first save, told by the second, which fails, too
  CHECK_THROWS_WITH_AS((void)trained(saving(folder.path(), async(), 2), ""), "the disk is full", FileError);
}

TEST_CASE("where AsyncCheckpointIO fails to write, the file before it and the link to it stay, and each save warns") {
  for (const SaveLast kind : {SaveLast::link, SaveLast::on}) {
    const test::TemporaryFolder folder;
    TrainerOptions options =
        saving(folder.path(), std::make_shared<AsyncCheckpointIO>(std::make_shared<FullAfterOne>()), 3);
    const auto saves =
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder.path(), .save_last = kind});
    options.callbacks = {saves};
    const test::Warnings warnings;
    (void)trained(options, "");
    CHECK(warnings.count("W-CKPT-WRITE") == 4);  // two epochs, each the file and its `last`
    CHECK(warnings.count("W-CKPT-UNSAVED") == 1);
    const std::string first = saves->best_model_path();
    CHECK(fs::exists(first));
    CHECK(fs::equivalent(saves->last_model_path(), first));
    CHECK(train::is_whole_checkpoint(*options.plugins.checkpoint_io, saves->last_model_path()));
    options.max_epochs = 4;
    CHECK_THROWS_WITH_AS((void)trained(options, "last"), doctest::Contains("3 saves in a row failed"), FileError);
  }
}

TEST_CASE("a LayerSync of the user's is applied in fits of several ranks and undone after each, also after an error") {
  struct Noting final : LayerSync {
    void apply(nn::Module& tree, const std::shared_ptr<dist::ProcessGroup>& group) override {
      words += " apply " + text(tree.parameters().size()) + " of " + text(group->size());
    }
    void revert(nn::Module&) noexcept override { words += " revert"; }
    std::string words;
  };
  const auto alone = std::make_shared<Noting>();
  TrainerOptions one = test::epochs(1);
  one.plugins.layer_sync = alone;
  (void)trained(one, "");
  CHECK(alone->words.empty());
  test::on_ranks(2, [&](int, TrainerOptions options) {
    struct Failing final : TrainModuleOf<Failing, test::Probe> {
      using TrainModuleOf<Failing, test::Probe>::TrainModuleOf;
      bool fails = false;
      void on_train_start() override {
        if (fails) fail<DataError>("on purpose");
      }
    } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    const auto noting = std::make_shared<Noting>();
    options.plugins.layer_sync = noting;
    data::DataLoader data = test::ramp(4);
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    CHECK(noting->words == " apply 1 of 2 revert");
    module.fails = true;
    trainer.options().max_epochs = 2;
    bool failed = false;
    try {
      trainer.fit(module, {.train = data});
    } catch (const Error&) { failed = true; }  // the error of this rank, or that of the other one
    CHECK(failed);
    CHECK(noting->words == " apply 1 of 2 revert apply 1 of 2 revert");
  });
  TrainerOptions both = test::silent();
  both.sync_batchnorm = true;
  both.plugins.layer_sync = alone;
  CHECK_THROWS_WITH_AS((void)Trainer(both), doctest::Contains("sync_batchnorm is on and plugins has a LayerSync"),
                       ConfigError);
}
