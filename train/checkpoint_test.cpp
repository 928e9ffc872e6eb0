#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "train/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

enum class Rule : std::uint8_t { sgd, adam };

// One run with its own net, optimizer, loader and trainer, as a fresh process would make them.
struct Setup {
  Generator gen{3};
  Net net{{.gen = gen, .device = Device::cpu()}};
  std::unique_ptr<optim::Optimizer> opt;
  data::DataLoader data = loader(40, 4);
  std::vector<SchedulerConfig> schedulers;
  Trainer trainer;

  Setup(Rule rule, TrainerOptions options) : trainer(std::move(options)) {
    if (rule == Rule::sgd)
      opt = std::make_unique<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    else
      opt = std::make_unique<optim::Adam>(net.parameters(), optim::AdamOptions{.lr = 0.01});
    schedulers.push_back({.scheduler = std::make_shared<optim::OneCycleLR>(
                              *opt, optim::OneCycleOptions{.max_lr = 0.05, .total_steps = 30}),
                          .interval = SchedulerConfig::Interval::step});
  }
  void fit(const std::string& ckpt_path = {}) {
    trainer.fit(*opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); },
                {.schedulers = schedulers, .ckpt_path = ckpt_path});
  }
  // The mean loss of an epoch as it was recorded.
  double epoch_loss(std::int64_t epoch) {
    for (const LogRecord& r : trainer.history()) {
      for (const auto& [name, value] : r.values) {
        if (r.epoch == epoch && name == "train_loss_epoch") return value;
      }
    }
    return -1;
  }
};

TrainerOptions three_epochs() {
  TrainerOptions options = silent();
  options.max_epochs = 3;
  return options;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_bytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

}  // namespace

TEST_CASE("a run that is cut and resumed ends with the bits of the run that was not cut") {
  const TempDir dir;
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
      // The epoch that was cut, too: its sums travel in the file.
      for (std::int64_t epoch = cut / 10; epoch < 3; ++epoch)
        CHECK(second.epoch_loss(epoch) == whole.epoch_loss(epoch));
      CHECK(whole.epoch_loss(0) > 0);
      CHECK(weights_of(first.net) != weights_of(whole.net));
    }
  }
}

TEST_CASE("checkpoints written by the callback resume too, and older ones are removed") {
  const TempDir dir;
  TrainerOptions options = three_epochs();
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  Setup whole(Rule::adam, options);
  whole.fit();
  CHECK(std::filesystem::exists(dir / "checkpoints/epoch=2-step=30.safetensors"));
  CHECK_FALSE(std::filesystem::exists(dir / "checkpoints/epoch=0-step=10.safetensors"));

  const TempDir other;
  options.default_root_dir = other.path();
  options.callbacks = {std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.every_n_train_steps = 10, .save_top_k = -1, .save_last = true})};
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
  const TempDir dir;
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
  CHECK(std::filesystem::exists(good));  // the file that the run came from stays
  Setup whole(Rule::sgd, three_epochs());
  whole.fit();
  CHECK(weights_of(second.net) == weights_of(whole.net));
}

TEST_CASE("a damaged checkpoint is a typed error and changes nothing") {
  const TempDir dir;
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
  const TempDir dir;
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

TEST_CASE("a signal between batches saves last and throws; the run goes on from there bit for bit") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempDir dir;
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

TEST_CASE("a callback keeps its state across a resume") {
  struct Counter : Callback {
    std::int64_t batches = 0;
    Tensor sum = zeros({2}, Device::cpu());
    std::string state_key() const override { return "Counter"; }
    void on_train_batch_end(const StepInfo&) override {
      ++batches;
      sum = sum + 1.0;
    }
    CallbackState state() const override {
      return {.values = {{"batches", std::to_string(batches)}}, .tensors = {{"sum", sum}}};
    }
    void load_state(const CallbackState& s) override {
      batches = std::stoll(s.values.at(0).second);
      sum = s.tensors.at(0).second;
    }
  };
  const TempDir dir;
  TrainerOptions options = three_epochs();
  options.max_steps = 7;
  options.callbacks = {std::make_shared<Counter>()};
  Setup first(Rule::sgd, options);
  first.fit();
  first.trainer.save_checkpoint(dir / "c.safetensors");
  auto counter = std::make_shared<Counter>();
  options.max_steps = 9;
  options.callbacks = {counter};
  Setup second(Rule::sgd, options);
  second.fit(dir / "c.safetensors");
  CHECK(counter->batches == 9);
  CHECK(counter->sum.to_vector<float>() == std::vector<float>{9, 9});
}
