// What a save costs: memory of the device and copies; and what a checkpoint callback does if memory is too small for
// it.
#include <doctest/doctest.h>

#include <filesystem>

#include "levin/memory.h"
#include "levin/sync.h"
#include "levin/train/checkpoint.h"
#include "tests/device.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

namespace fs = std::filesystem;

struct Wide : TrainModuleOf<Wide> {
  using TrainModuleOf::TrainModuleOf;
  static constexpr std::int64_t kSize = 256;
  nn::Linear fc{*this, "fc", {.in = kSize, .out = kSize}};
  StepOutput training_step(const Batch& b, std::int64_t) override { return mean(square(fc(b[0]))); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::AdamW>(parameters())}};
  }
};
constexpr std::int64_t kP = 4 * (Wide::kSize * Wide::kSize + Wide::kSize);  // bytes of the parameters

data::DataLoader rows() {
  Generator gen(2);
  return data::DataLoader(data::tensor_dataset({randn({8, Wide::kSize}, gen, Device::cpu())}), {.batch_size = 4});
}
// What one save at the end of the epoch copied to the host.
struct SaveCopies : Callback {
  CopyCounts before, copied;
  void on_train_epoch_start() override { before = copy_counts(); }
  void on_fit_end() override { copied = copy_counts() - before; }
};

TrainerOptions saving(const std::string& dir, std::shared_ptr<Callback> also, SaveLast last = SaveLast::off) {
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.log_every_n_steps = 0;
  options.enable_checkpointing = true;
  options.callbacks = {std::move(also),
                       std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = dir, .save_last = last})};
  return options;
}

}  // namespace

TEST_CASE("a run that fits into a device's memory saves in it: a limit that trains is enough for checkpoints") {
  for (const Device device : {Device::cpu(), launching_device().value_or(Device::cpu())}) {
    CAPTURE(text(device));
    // The peak of the same run without checkpoints.
    std::int64_t need = 0;
    for (const bool saves : {false, true}) {
      const TemporaryFolder dir;
      const Warnings warnings;
      Generator gen(1);
      Wide net({.gen = gen, .device = device});
      data::DataLoader data = rows();
      TrainerOptions options = saving(dir.path(), std::make_shared<Callback>());
      reset_peak_memory(device);
      if (saves)
        options.memory_limit = need + kP / 8;
      else
        options.callbacks.clear(), options.enable_checkpointing = false;
      Trainer trainer(options);
      trainer.fit(net, {.train = data});
      need = memory_stats(device).peak;
      if (!saves) continue;
      CHECK(warnings.count("W-CKPT-WRITE") == 0);
      CHECK(fs::exists(dir / "epoch=0-step=2.safetensors"));
    }
  }
}

TEST_CASE("on a device a save copies parameters and both moments to the host once, for any save_last") {
  DEVICE_OR_SKIP();
  for (const SaveLast last : {SaveLast::off, SaveLast::on, SaveLast::link}) {
    const TemporaryFolder dir;
    Generator gen(1);
    Wide net({.gen = gen, .device = device});
    data::DataLoader data = rows();
    const auto copies = std::make_shared<SaveCopies>();
    Trainer trainer(saving(dir.path(), copies, last));
    trainer.fit(net, {.train = data});
    CHECK(copies->copied.to_host_bytes >= 3 * kP);
    CHECK(copies->copied.to_host_bytes < 3 * kP + 64);  // and the step counts
    CHECK(fs::exists(dir / "last.safetensors") == (last != SaveLast::off));
  }
}

TEST_CASE("a checkpoint that memory is too small for is a warning, and training continues") {
  // The state's text and hashes need memory of the host: a limit that is set during the save is reached there.
  struct Tight : Callback {
    void on_save_checkpoint(CheckpointContent&) override { fail<OutOfMemoryError>("allocate: planted"); }
  };
  const TemporaryFolder dir;
  const Warnings warnings;
  Generator gen(1);
  Wide net({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = rows();
  TrainerOptions options = saving(dir.path(), std::make_shared<Tight>(), SaveLast::on);
  options.max_epochs = 2;
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  CHECK(trainer.global_step() == 4);
  CHECK(warnings.count("W-CKPT-WRITE") > 0);
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("save_last = on: the newest file and last are one content, and a run that resumes from either knows both") {
  const TemporaryFolder dir;
  Generator gen(1);
  Wide net({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = rows();
  TrainerOptions options = saving(dir.path(), std::make_shared<Callback>(), SaveLast::on);
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  const std::string newest = dir / "epoch=0-step=2.safetensors", last = dir / "last.safetensors";
  CHECK_FALSE(fs::is_symlink(last));
  CHECK(read_file(newest, 1 << 24) == read_file(last, 1 << 24));
  const auto named = [](const std::string& path) {
    for (const auto& [name, value] : read_checkpoint_info(path).state) {
      if (name.ends_with("last_model_path")) return value;
    }
    return std::string();
  };
  CHECK(named(newest) == last);
  // The older file is removed, and `last` stays the newest state.
  trainer.options().max_epochs = 2;
  trainer.fit(net, {.train = data});
  CHECK_FALSE(fs::exists(newest));
  CHECK(read_file(dir / "epoch=1-step=4.safetensors", 1 << 24) == read_file(last, 1 << 24));
}

TEST_CASE("a dirpath with a slash at its end is the same folder: older files go, and a resumed run knows its best") {
  const TemporaryFolder dir;
  Generator gen(1);
  Wide net({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = rows();
  TrainerOptions options = saving(dir / "slash/", std::make_shared<Callback>());
  options.max_epochs = 3;
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  std::vector<std::string> files;
  for (const auto& e : fs::directory_iterator(dir / "slash")) files.push_back(e.path().filename().string());
  CHECK(files == std::vector<std::string>{"epoch=2-step=6.safetensors"});

  const Warnings warnings;
  for (const std::string spelling : {"slash", "slash/.", "./slash//"}) {
    CAPTURE(spelling);
    TrainerOptions other = saving(dir / spelling, std::make_shared<Callback>());
    other.max_epochs = 3;
    Trainer again(other);
    again.fit(net, {.train = data, .ckpt_path = dir / "slash/epoch=2-step=6.safetensors"});
    CHECK(warnings.count("W-CKPT-DIR") == 0);
  }
}
