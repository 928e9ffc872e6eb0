#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "levin/train/checkpoint.h"
#include "tests/warnings.h"
#include "train/checkpoint/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_bytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

}  // namespace

TEST_CASE("a run that is cut and resumed ends with the bits of the run that was not cut") {
  const TemporaryFolder dir;
  for (const Rule rule : {Rule::sgd, Rule::adam}) {
    Setup whole(rule, three_epochs());
    whole.fit();
    REQUIRE(whole.trainer.global_step() == 30);
    // In the middle of an epoch, at its last batch, one before it, and at the very first step.
    for (const std::int64_t cut : {1, 9, 10, 14}) {
      CAPTURE(cut);
      TrainerOptions options = three_epochs();
      options.max_steps = cut;
      Setup first(rule, options);
      first.fit();
      CHECK(first.trainer.global_step() == cut);
      const std::string path = dir / "cut.safetensors";
      first.trainer.save_checkpoint(path);

      Setup second(rule, three_epochs());
      second.fit(path);
      CHECK(second.trainer.global_step() == 30);
      CHECK(second.trainer.current_epoch() == 3);
      CHECK(second.trainer.total_batch_idx() == 30);
      CHECK(weights_of(second.net) == weights_of(whole.net));
      // Also of the interrupted epoch, whose sums are in the file.
      for (std::int64_t epoch = cut / 10; epoch < 3; ++epoch)
        CHECK(second.epoch_loss(epoch) == whole.epoch_loss(epoch));
      CHECK(whole.epoch_loss(0) > 0);
      CHECK(weights_of(first.net) != weights_of(whole.net));
    }
  }
}

TEST_CASE("checkpoints written by the callback resume too, and older ones are removed") {
  const levin::test::ExpectedWarnings expected{"W-CKPT-CALLBACKS"};
  const TemporaryFolder dir;
  TrainerOptions options = three_epochs();
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  Setup whole(Rule::adam, options);
  whole.fit();
  CHECK(std::filesystem::exists(dir / "checkpoints/epoch=2-step=30.safetensors"));
  CHECK_FALSE(std::filesystem::exists(dir / "checkpoints/epoch=0-step=10.safetensors"));

  const TemporaryFolder other;
  options.default_root_dir = other.path();
  options.callbacks = {std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.save_top_k = -1, .save_last = SaveLast::on, .every_n_train_steps = 10})};
  Setup steps(Rule::adam, options);
  steps.fit();
  // Written at the last batch of the epoch, before the epoch's end.
  for (const char* name : {"epoch=0-step=10", "epoch=1-step=20", "epoch=2-step=30", "last"}) {
    const std::string path = other / ("checkpoints/" + std::string(name) + ".safetensors");
    REQUIRE(std::filesystem::exists(path));
    Setup resumed(Rule::adam, three_epochs());
    resumed.fit(path);
    CHECK(weights_of(resumed.net) == weights_of(whole.net));
    CHECK(resumed.trainer.global_step() == 30);
    CHECK(resumed.trainer.current_epoch() == 3);
  }
}

TEST_CASE("ckpt_path last takes the newest whole checkpoint and says which it skipped") {
  const TemporaryFolder dir;
  TrainerOptions options = three_epochs();
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  options.max_steps = 14;
  Setup first(Rule::sgd, options);
  first.fit();
  const std::string good = dir / "checkpoints/epoch=1-step=14.safetensors";
  REQUIRE(std::filesystem::exists(good));
  const std::string bad = dir / "checkpoints/epoch=2-step=30.safetensors";
  write_bytes(bad, bytes_of(good).substr(0, 700));
  std::filesystem::last_write_time(bad, std::filesystem::last_write_time(good) + std::chrono::seconds(5));

  std::vector<std::string> ids;
  auto before = set_warning_handler([&](const Warning& w) { ids.push_back(w.id); });
  options.max_steps = -1;
  Setup second(Rule::sgd, options);
  second.fit("last");
  set_warning_handler(std::move(before));
  CHECK(second.trainer.resumed_from() == good);
  CHECK(ids == std::vector<std::string>{"W-CKPT-SKIPPED"});
  CHECK(std::filesystem::exists(good));  // the file that the run resumed stays
  Setup whole(Rule::sgd, three_epochs());
  whole.fit();
  CHECK(weights_of(second.net) == weights_of(whole.net));
}

TEST_CASE("a damaged checkpoint is a typed error and changes nothing") {
  const TemporaryFolder dir;
  TrainerOptions options = three_epochs();
  options.max_steps = 5;
  Setup first(Rule::adam, options);
  first.fit();
  const std::string path = dir / "good.safetensors", bad = dir / "bad.safetensors";
  first.trainer.save_checkpoint(path);
  const std::string good = bytes_of(path);

  Setup victim(Rule::adam, three_epochs());
  const std::vector<float> weights = weights_of(victim.net);
  const auto untouched = [&] {
    CHECK(weights_of(victim.net) == weights);
    CHECK(victim.trainer.global_step() == 0);
    CHECK(victim.opt->lr() == Setup(Rule::adam, three_epochs()).opt->lr());
  };
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{100}, good.size() / 2, good.size() - 1}) {
    CAPTURE(size);
    write_bytes(bad, good.substr(0, size));
    CHECK_THROWS_AS(victim.fit(bad), FormatError);
    untouched();
  }
  // A flipped bit anywhere: header, metadata, weights, optimizer state.
  for (std::size_t at = 0; at < good.size(); at += 131) {
    CAPTURE(at);
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_bytes(bad, flipped);
    CHECK_THROWS_AS(victim.fit(bad), Error);
    untouched();
  }
  CHECK_THROWS_AS(victim.fit(dir / "absent.safetensors"), FileError);
  untouched();
  victim.fit(path);
  CHECK(victim.trainer.global_step() == 30);
}

TEST_CASE("a checkpoint of another run is refused with what differs, and changes nothing") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NOTHING"};
  const TemporaryFolder dir;
  TrainerOptions options = three_epochs();
  options.max_steps = 5;
  Setup first(Rule::adam, options);
  first.fit();
  const std::string path = dir / "a.safetensors", weights_only = dir / "w.safetensors";
  first.trainer.save_checkpoint(path);
  first.trainer.save_checkpoint(weights_only, WeightsOnly::yes);
  CHECK(load_safetensors(weights_only).tensors.size() == first.net.state_dict().size());

  Setup other(Rule::sgd, three_epochs());
  const std::vector<float> before = weights_of(other.net);
  CHECK_THROWS_WITH_AS(other.fit(path), doctest::Contains("optimizer adam"), ConfigError);
  CHECK_THROWS_WITH_AS(other.fit(weights_only), doctest::Contains("weights alone"), ConfigError);
  CHECK(weights_of(other.net) == before);

  TrainerOptions late = three_epochs();
  late.max_epochs = 0;
  Setup done(Rule::adam, late);
  CHECK_NOTHROW(done.fit(path));  // epoch 0 is not finished in the file
  CHECK(done.trainer.global_step() == 5);

  // A net with other shapes.
  struct Wider : nn::Module {
    using Module::Module;
    nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
    nn::Linear out{*this, "out", {.in = 8, .out = 1}};
    Tensor operator()(const Tensor& x) const { return out(tanh(fc1(x))); }
  };
  Generator gen(3);
  Wider net({.gen = gen, .device = Device::cpu()});
  optim::Adam opt(net.parameters(), {.lr = 0.01});
  data::DataLoader data = loader(40, 4);
  Trainer trainer(three_epochs());
  const std::vector<float> wide = weights_of(net);
  const auto step = [&](const Batch& b) { return squared_error(net(b[0]), b[1]); };
  try {
    trainer.fit(opt, data, step, {.ckpt_path = path});
    FAIL("accepted");
  } catch (const ConfigError& e) {
    const std::string what = e.what();
    CHECK((what.find("generators") != std::string::npos || what.find("out.weight") != std::string::npos));
  }
  CHECK(weights_of(net) == wide);
}

TEST_CASE("a signal between batches saves last and throws; the run resumes from there bit for bit") {
  const levin::test::ExpectedWarnings expected{"W-CKPT-CALLBACKS"};
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryFolder dir;
    const std::string root = dir.path();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      set_num_threads(1);  // worker threads do not survive a fork
      int code = 1;
      try {
        TrainerOptions options = three_epochs();
        options.handle_signals = true;
        options.enable_checkpointing = true;
        options.default_root_dir = root;
        struct Raise : Callback {
          int number = 0;
          void on_train_batch_end(const StepInfo& info) override {
            if (info.global_step == 14) raise(number);
          }
        };
        auto callback = std::make_shared<Raise>();
        callback->number = signal;
        options.callbacks = {callback};
        Setup run(Rule::adam, options);
        try {
          run.fit();
          code = 2;
        } catch (const InterruptedError&) { code = run.trainer.stop_signal() + 128; }
      } catch (...) { code = 3; }
      _exit(code);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + signal);

    Setup resumed(Rule::adam, three_epochs());
    resumed.fit(root + "/checkpoints/last.safetensors");
    Setup whole(Rule::adam, three_epochs());
    whole.fit();
    CHECK(weights_of(resumed.net) == weights_of(whole.net));
  }
}

TEST_CASE("a second signal ends the process at once") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    set_num_threads(1);
    try {
      TrainerOptions options = three_epochs();
      options.handle_signals = true;
      Setup run(Rule::sgd, options);
      run.trainer.fit(*run.opt, run.data, [&](const Batch& b) {
        raise(SIGTERM);
        raise(SIGTERM);
        _exit(1);
        return squared_error(run.net(b[0]), b[1]);
      });
    } catch (...) {}
    _exit(2);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM));
}

TEST_CASE("a save removes what a killed save of any step left in its folder") {
  const TemporaryFolder dir;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  const std::string stale = dir / ("epoch=0-step=3.safetensors.tmp-" + std::to_string(child) + "-0"),
                    alive = dir / ("epoch=0-step=3.safetensors.tmp-" + std::to_string(getppid()) + "-0");
  TrainerOptions options = three_epochs();
  options.max_steps = 1;
  Setup run(Rule::sgd, options);
  run.fit();
  for (const WeightsOnly weights : {WeightsOnly::no, WeightsOnly::yes}) {
    write_bytes(stale, "half a file");
    write_bytes(alive, "half a file");
    run.trainer.save_checkpoint(dir / "epoch=0-step=1.safetensors", weights);
    CHECK_FALSE(std::filesystem::exists(stale));
    CHECK(std::filesystem::exists(alive));
  }
}

TEST_CASE("the paths of a checkpoint callback name files that are there, also when a file could not be written") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NOTHING"};
  const TemporaryFolder dir;
  const std::string checkpoints = dir / "checkpoints";
  // At step 2 `last` cannot be written, at step 3 no file can.
  struct Obstacle : Callback {
    std::string folder;
    void put(std::int64_t step) const {
      std::error_code error;
      if (step == 1) {
        std::filesystem::rename(folder + "/last.safetensors", folder + "/kept", error);
        std::filesystem::create_directory(folder + "/last.safetensors", error);
      }
      if (step == 2) {
        std::filesystem::rename(folder, folder + "-away", error);
        write_bytes(folder, "in the way");
      }
      if (step == 3) {
        std::filesystem::remove(folder, error);
        std::filesystem::rename(folder + "-away", folder, error);
        std::filesystem::remove(folder + "/last.safetensors", error);
        std::filesystem::rename(folder + "/kept", folder + "/last.safetensors", error);
      }
    }
    BatchStart on_train_batch_start(const StepInfo& info) override {
      put(info.global_step);
      return BatchStart::proceed;
    }
  };
  struct Paths : Callback {
    std::shared_ptr<ModelCheckpoint> of;
    std::vector<std::string> seen;
    BatchStart on_train_batch_start(const StepInfo&) override {
      const auto name = [](const std::string& p) { return std::filesystem::path(p).filename().string(); };
      seen.push_back(name(of->best_model_path()) + " " + name(of->last_model_path()));
      return BatchStart::proceed;
    }
  };
  const auto checkpoint =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.save_last = SaveLast::on, .every_n_train_steps = 1});
  const auto paths = std::make_shared<Paths>();
  paths->of = checkpoint;
  const auto obstacle = std::make_shared<Obstacle>();
  obstacle->folder = checkpoints;
  TrainerOptions options = three_epochs();
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  options.max_steps = 5;
  options.callbacks = {paths, obstacle, checkpoint};
  std::vector<std::string> ids;
  auto handler = set_warning_handler([&](const Warning& w) { ids.push_back(w.id); });
  Setup run(Rule::sgd, options);
  run.fit();
  set_warning_handler(std::move(handler));
  CHECK(ids == std::vector<std::string>(3, "W-CKPT-WRITE"));
  CHECK(paths->seen == std::vector<std::string>{" ",  // then as each step left them
                                                "epoch=0-step=1.safetensors last.safetensors",
                                                "epoch=0-step=2.safetensors last.safetensors",
                                                "epoch=0-step=2.safetensors last.safetensors",
                                                "epoch=0-step=4.safetensors last.safetensors"});
  // Nothing is left over: each newer file replaced the one before.
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints))
    files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  CHECK(files == std::vector<std::string>{"epoch=0-step=5.safetensors", "last.safetensors"});

  // A file that does not exist is not named after a resume.
  std::filesystem::copy(checkpoints + "/epoch=0-step=5.safetensors", dir / "copy.safetensors");
  std::filesystem::remove(checkpoints + "/epoch=0-step=5.safetensors");
  const auto resumed =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.save_last = SaveLast::on, .every_n_train_steps = 100});
  options.callbacks = {resumed};
  Setup second(Rule::sgd, options);
  second.fit(dir / "copy.safetensors");
  CHECK(resumed->best_model_path() == "");
  CHECK(resumed->last_model_path() == checkpoints + "/last.safetensors");
}

TEST_CASE("the paths of a checkpoint callback stay empty when nothing can be written") {
  const TemporaryFolder dir;
  write_bytes(dir / "checkpoints", "in the way");
  TrainerOptions options = three_epochs();
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  options.max_epochs = 1;
  auto handler = set_warning_handler([](const Warning&) {});
  for (const bool last : {false, true}) {
    const auto checkpoint =
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.save_last = last ? SaveLast::on : SaveLast::off});
    options.callbacks = {checkpoint};
    Setup run(Rule::sgd, options);
    run.fit();
    CHECK(checkpoint->best_model_path() == "");
    CHECK(checkpoint->last_model_path() == "");
  }
  set_warning_handler(std::move(handler));
}

namespace {

// Points; the first sample that a worker takes waits for open(), 20 seconds at most.
class LatePoint final : public data::Dataset {
 public:
  explicit LatePoint(std::int64_t n) : points_(points(n)) {}
  std::int64_t size() const override { return points_->size(); }
  data::Sample get(std::int64_t index, Generator& rng) const override {
    {
      std::unique_lock lock(mutex_);
      if (std::this_thread::get_id() == consumer_) {
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return late_ >= 0; });
      } else if (late_ < 0) {
        late_ = index;
        changed_.notify_all();
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return open_; });
      }
    }
    return points_->get(index, rng);
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  const data::DatasetRef points_;
  const std::thread::id consumer_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::int64_t late_ = -1;
  bool open_ = false;
};

}  // namespace

TEST_CASE("a run over batches as they finish, cut and resumed, trains on every batch of the epoch once") {
  const TemporaryFolder dir;
  const std::string path = dir / "c.safetensors";
  std::vector<std::int64_t> positions;
  const auto dataset = std::make_shared<LatePoint>(16);
  TrainerOptions options = three_epochs();
  options.max_epochs = 1;
  options.max_steps = 5;
  std::int64_t late = -1;
  {
    Setup first(Rule::sgd, options);
    first.data = data::DataLoader(dataset, {.batch_size = 2, .num_workers = 2, .in_order = false});
    first.trainer.fit(*first.opt, first.data, [&](const Batch& b) {
      positions.push_back(b.position);
      if (positions.size() == 5) dataset->open();
      return squared_error(first.net(b[0]), b[1]);
    });
    first.trainer.save_checkpoint(path);
  }
  REQUIRE(positions.size() == 5);
  std::vector<std::int64_t> sorted = positions;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t k = 0; k < 5 && late < 0; ++k) {
    if (sorted[static_cast<std::size_t>(k)] != k) late = k;
  }
  CHECK(late >= 0);  // a batch is missing: the file must say which
  options.max_steps = -1;
  Setup second(Rule::sgd, options);
  second.data = data::DataLoader(points(16), {.batch_size = 2});
  second.trainer.fit(*second.opt, second.data,
                     [&](const Batch& b) {
                       positions.push_back(b.position);
                       return squared_error(second.net(b[0]), b[1]);
                     },
                     {.ckpt_path = path});
  std::sort(positions.begin(), positions.end());
  CHECK(positions == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(second.trainer.global_step() == 8);

  // Data of another size is refused before anything changes.
  Setup third(Rule::sgd, options);
  third.data = data::DataLoader(points(8), {.batch_size = 2});
  const std::vector<float> weights = weights_of(third.net);
  CHECK_THROWS_AS(third.fit(path), ConfigError);
  CHECK(weights_of(third.net) == weights);
}
