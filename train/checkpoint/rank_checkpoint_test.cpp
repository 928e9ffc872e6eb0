// Checkpoints of several ranks: Note [Checkpoints of ranks].
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "comm/group/local.h"
#include "levin/train/checkpoint.h"
#include "levin/train/ddp_strategy.h"
#include "tensor/device/interrupt.h"
#include "tests/warnings.h"
#include "train/data/rank_fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;
namespace fs = std::filesystem;

namespace {

data::DatasetRef points(std::int64_t n) { return test::points(n); }
double value_of(const Metrics& all, std::string_view name) {
  for (const auto& [known, value] : all) {
    if (known == name) return value;
  }
  return NAN;
}

// A net with dropout, whose ranks draw different numbers, and a metric.
struct Model final : TrainModuleOf<Model> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 8}};
  nn::Dropout drop{*this, "drop", {.p = 0.5}};
  nn::Linear out{*this, "out", {.in = 8, .out = 1}};
  MeanMetric average{*this, "average"};
  bool dropped = true;
  std::int64_t save_after = -1;  // batches of the run
  std::string path;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor h = tanh(fc(b[0]));
    const Tensor loss = test::squared_error(out(dropped ? drop(h) : h), b[1]);
    average.update(b[0]);
    log("average", average, {.on_step = false, .on_epoch = true});
    log("loss", loss, {.on_step = false, .on_epoch = true});
    return loss;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == save_after) trainer().save_checkpoint(path);
  }
};

struct Run {
  int ranks = 2;
  std::int64_t n = 36, batch_size = 4, epochs = 2, save_after = -1, accumulate = 1;
  bool dropped = true;
  std::string save, resume{};
};
struct Ran {
  std::vector<float> weights;
  std::int64_t steps = 0;
  double loss = 0, average = 0;
};
std::vector<Ran> run(const Run& r) {
  std::vector<Ran> all(static_cast<std::size_t>(r.ranks));
  test::on_ranks(r.ranks, [&](int rank, TrainerOptions options) {
    options.max_epochs = r.epochs;
    options.accumulate_grad_batches = r.accumulate;
    Model model(nn::Options{.gen = Generator(3), .device = Device::cpu()});
    model.dropped = r.dropped;
    model.save_after = r.save_after;
    model.path = r.save;
    data::DataLoader data(points(r.n), {.batch_size = r.batch_size, .shuffle = true, .generator = Generator(9)});
    Trainer trainer(options);
    trainer.fit(model, {.train = data, .ckpt_path = r.resume});
    Ran& mine = all[static_cast<std::size_t>(rank)];
    mine.weights = test::weights_of(model);
    mine.steps = trainer.global_step();
    mine.loss = value_of(trainer.callback_metrics(), "loss");
    mine.average = value_of(trainer.callback_metrics(), "average");
  });
  for (const Ran& mine : all) CHECK(mine.weights == all[0].weights);
  return all;
}
void check_close(const std::vector<Ran>& a, const std::vector<Ran>& b, double epsilon) {
  CHECK(a[0].steps == b[0].steps);
  REQUIRE(a[0].weights.size() == b[0].weights.size());
  for (std::size_t i = 0; i < a[0].weights.size(); ++i) CHECK(std::abs(a[0].weights[i] - b[0].weights[i]) <= epsilon);
  CHECK(a[0].loss == doctest::Approx(b[0].loss).epsilon(1e-6 + epsilon));
  CHECK(a[0].average == doctest::Approx(b[0].average).epsilon(1e-9));
}

}  // namespace

TEST_CASE("ranks resume within an epoch with their own random numbers and places, to the same bits") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "mid.safetensors";
  const std::vector<Ran> whole = run({.save_after = 7, .save = file});
  const std::vector<Ran> resumed = run({.save = "", .resume = file});
  CHECK(resumed[0].weights == whole[0].weights);
  check_close(resumed, whole, 0);
  const Metadata state = read_checkpoint_info(file).state;
  const auto says = [&](const char* name, const char* value) {
    return std::find(state.begin(), state.end(), std::pair<std::string, std::string>(name, value)) != state.end();
  };
  CHECK(says("loops.world_size", "2"));
  CHECK(says("loops.global_batch", "8"));
  const NamedTensors rest = read_checkpoint_info(file).rest;
  for (const char* own : {"levin.rank.0.generators", "levin.rank.1.generators"})
    CHECK(std::count_if(rest.begin(), rest.end(), [&](const auto& t) { return t.first == own; }) == 1);
}

TEST_CASE("rank 0 draws the numbers of one process and other ranks their own, also after a file of one process") {
  struct Drawing final : TrainModuleOf<Drawing, test::Probe> {
    using TrainModuleOf<Drawing, test::Probe>::TrainModuleOf;
    nn::Dropout drop{*this, "drop", {.p = 0.5}};
    std::vector<float> drawn;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      for (const float x : drop(ones({64}, Device::cpu())).to_vector<float>()) drawn.push_back(x);
      return mean(b[0] * w);
    }
  };
  const test::TemporaryFolder folder;
  const std::string file = folder / "one.safetensors";
  const auto drawn = [&](const TrainerOptions& options, const std::string& resume, const std::string& save) {
    Drawing module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::ramp(4);
    Trainer trainer(options);
    if (!resume.empty()) trainer.options().max_epochs = 2;
    trainer.fit(module, {.train = data, .ckpt_path = resume});
    if (!save.empty()) trainer.save_checkpoint(save);
    return module.drawn;
  };
  const std::vector<float> one = drawn(test::epochs(1), "", file);
  const std::vector<float> next = drawn(test::epochs(1), file, "");
  for (const std::string& resume : {std::string(), file}) {
    std::array<std::vector<float>, 3> ranks;
    test::on_ranks(3, [&](int rank, const TrainerOptions& options) {
      ranks[static_cast<std::size_t>(rank)] = drawn(options, resume, "");
    });
    const std::vector<float>& alone = resume.empty() ? one : next;
    REQUIRE(ranks[0].size() <= alone.size());
    CHECK(std::equal(ranks[0].begin(), ranks[0].end(), alone.begin()));
    CHECK(ranks[1] != ranks[0]);
    CHECK(ranks[2] != ranks[0]);
    CHECK(ranks[1] != ranks[2]);
  }
}

TEST_CASE("a file within a window of accumulation holds the gradients and the logged sums of all ranks") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "window.safetensors";
  const std::vector<Ran> whole = run({.save_after = 4, .accumulate = 3, .save = file});
  check_close(run({.accumulate = 3, .save = "", .resume = file}), whole, 1e-6);
}

TEST_CASE("another number of ranks with the same global batch continues at the same sample") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "elastic.safetensors";
  const std::vector<Ran> four =
      run({.ranks = 4, .n = 40, .batch_size = 2, .save_after = 7, .dropped = false, .save = file});
  for (const int ranks : {1, 2})
    check_close(run({.ranks = ranks, .n = 40, .batch_size = 8 / ranks, .dropped = false, .save = "", .resume = file}),
                four, 1e-5);
  const std::string back = folder / "back.safetensors";
  (void)run({.ranks = 1, .n = 40, .batch_size = 8, .save_after = 7, .dropped = false, .save = back});
  check_close(run({.ranks = 4, .n = 40, .batch_size = 2, .dropped = false, .save = "", .resume = back}), four, 1e-5);
}

TEST_CASE("a file that is saved after a fit that ended within an epoch continues there on another number of ranks") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "after.safetensors";
  const auto run = [&](int ranks, std::int64_t steps, const std::string& resume, const std::string& save) {
    std::vector<float> weights;
    test::on_ranks(ranks, [&](int rank, TrainerOptions options) {
      options.max_epochs = 2;
      options.max_steps = steps;
      Model model(nn::Options{.gen = Generator(3), .device = Device::cpu()});
      model.dropped = false;
      data::DataLoader data(points(40), {.batch_size = 8 / ranks, .shuffle = true, .generator = Generator(9)});
      Trainer trainer(options);
      trainer.fit(model, {.train = data, .ckpt_path = resume});
      if (!save.empty()) trainer.save_checkpoint(save);
      if (rank == 0) weights = test::weights_of(model);
    });
    return weights;
  };
  const std::vector<float> whole = run(4, -1, "", "");
  (void)run(4, 7, "", file);
  for (const int ranks : {1, 2}) {
    const std::vector<float> resumed = run(ranks, -1, file, "");
    REQUIRE(resumed.size() == whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) CHECK(std::abs(resumed[i] - whole[i]) <= 1e-5);
  }
}

TEST_CASE("another global batch leaves the rest of the epoch out, with a warning, and the next epoch is whole") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "other.safetensors";
  (void)run({.n = 40, .save_after = 2, .save = file});  // 2 of the 5 batches of epoch 0
  const test::ExpectedWarnings told{"W-CKPT-WORLD"};
  const std::vector<Ran> three = run({.ranks = 3, .n = 40, .save = "", .resume = file});
  CHECK(three[0].steps == 2 + 4);  // and the epoch 1: 14 samples a rank
}

TEST_CASE("virtual ranks continue within an epoch to the same bits on another number of ranks") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "virtual.safetensors";
  const auto run = [&](int ranks, std::int64_t save_after, const std::string& resume) {
    std::vector<float> weights;
    dist::run_local(ranks, [&](const std::shared_ptr<dist::ProcessGroup>& group) {
      TrainerOptions options = test::silent();
      options.max_epochs = 2;
      options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.virtual_ranks = 4, .process = {.group = group}});
      Model model(nn::Options{.gen = Generator(3), .device = Device::cpu()});
      model.save_after = save_after;
      model.path = file;
      data::DataLoader data(points(40), {.batch_size = 8 / ranks, .shuffle = true, .generator = Generator(9)});
      Trainer trainer(options);
      trainer.fit(model, {.train = data, .ckpt_path = resume});
      if (group->rank() == 0) weights = test::weights_of(model);
    });
    return weights;
  };
  const std::vector<float> whole = run(4, 7, "");
  for (const int ranks : {1, 2, 4}) CHECK(run(ranks, -1, file) == whole);
}

TEST_CASE("streams that are divided among another number of ranks begin their next epoch, with a warning") {
  struct Numbers final : data::IterableDataset {
    struct Stream final : data::SampleStream {
      explicit Stream(const data::WorkerInfo& i) : info(i) {}
      std::optional<data::Sample> next(Generator&) override {
        while (at < 12 && !info.owns(at)) ++at;
        if (at >= 12) return std::nullopt;
        return data::Sample{full({1}, static_cast<double>(at++), Device::cpu())};
      }
      data::WorkerInfo info;
      std::int64_t at = 0;
    };
    std::unique_ptr<data::SampleStream> stream(const data::WorkerInfo& info) const override {
      return std::make_unique<Stream>(info);
    }
  };
  const test::TemporaryFolder folder;
  const std::string file = folder / "streams.safetensors";
  const auto run = [&](int ranks, const std::string& resume) {
    std::vector<std::int64_t> batches(static_cast<std::size_t>(ranks));
    test::on_ranks(ranks, [&](int rank, TrainerOptions options) {
      struct Saving final : TrainModuleOf<Saving, test::Probe> {
        using TrainModuleOf<Saving, test::Probe>::TrainModuleOf;
        std::string to;
        void on_train_batch_end(const StepInfo& info) override {
          if (!to.empty() && info.batch_idx == 0 && trainer().current_epoch() == 0) trainer().save_checkpoint(to);
        }
      } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      if (resume.empty()) module.to = file;
      options.max_epochs = 2;
      data::DataLoader data(std::make_shared<Numbers>(), {.batch_size = 2});
      Trainer trainer(options);
      trainer.fit(module, {.train = data, .ckpt_path = resume});
      CHECK(trainer.current_epoch() == 2);
      batches[static_cast<std::size_t>(rank)] = trainer.total_batch_idx();
    });
    return batches;
  };
  CHECK(run(2, "") == std::vector<std::int64_t>{6, 6});
  const test::ExpectedWarnings told{"W-CKPT-WORLD"};
  CHECK(run(3, file) == std::vector<std::int64_t>{3, 3, 3});  // the one of the file, and 2 of the epoch 1
}

TEST_CASE("a signal that one rank gets while it waits for data saves the run of all ranks, which resumes") {
  const test::TemporaryFolder folder;
  struct Raising final : data::Dataset {
    [[nodiscard]] std::int64_t size() const override { return 12; }
    [[nodiscard]] data::Sample get(std::int64_t i, Generator&) const override {
      if (i == at) raise(SIGTERM);
      waits_end = waits_end || static_cast<bool>(levin::detail::stop_asked);
      return {full({1}, static_cast<double>(i + 1), Device::cpu())};
    }
    std::int64_t at = -1;
    mutable bool waits_end = false;
  };
  const auto run = [&](std::int64_t at, const std::string& resume, std::array<std::string, 2>& errors) {
    std::vector<float> weight;
    test::on_ranks(2, [&](int rank, TrainerOptions options) {
      options.handle_signals = true;
      options.enable_checkpointing = true;
      options.default_root_dir = folder.path();
      test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      const auto raising = std::make_shared<Raising>();
      raising->at = rank == 0 ? at : -1;
      data::DataLoader data(raising, {.batch_size = 1, .sampler = data::sequential_sampler(12)});
      Trainer trainer(options);
      const auto r = static_cast<std::size_t>(rank);
      try {
        trainer.fit(probe, {.train = data, .ckpt_path = resume});
      } catch (const InterruptedError& e) { errors[r] = e.what(); }
      CHECK(trainer.stop_signal() == (at < 0 ? 0 : SIGTERM));
      CHECK_FALSE(raising->waits_end);
      if (rank == 0) weight = test::weights_of(probe);
    });
    return weight;
  };
  std::array<std::string, 2> none, errors;
  const std::vector<float> whole = run(-1, "", none);
  fs::remove_all(folder / "checkpoints");
  (void)run(4, "", errors);
  CHECK(none[0].empty());
  CHECK(test::contains(errors[0], "fit: stopped by SIGTERM after 3 optimizer steps; saved "));
  CHECK(errors[0] == errors[1]);
  CHECK(run(-1, "last", none) == whole);
}

TEST_CASE("a request to stop that a rank makes for its run alone is kept by no file, and another is") {
  const test::TemporaryFolder folder;
  for (const KeepStop keep : {KeepStop::no, KeepStop::yes}) {
    const std::string file = folder / "stopped.safetensors";
    test::on_ranks(2, [&](int, TrainerOptions options) {
      struct Stopping final : TrainModuleOf<Stopping, test::Probe> {
        using TrainModuleOf<Stopping, test::Probe>::TrainModuleOf;
        KeepStop keep = KeepStop::no;
        void on_train_batch_end(const StepInfo& info) override {
          if (trainer().global_rank() == 1 && info.batch_idx == 1) trainer().request_stop(keep);
        }
      } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      module.keep = keep;
      options.max_epochs = 3;
      data::DataLoader data = test::ramp(8);
      Trainer trainer(options);
      trainer.fit(module, {.train = data});
      CHECK(trainer.global_step() == 2);
      trainer.save_checkpoint(file);
    });
    const Metadata state = read_checkpoint_info(file).state;
    const std::pair<std::string, std::string> kept("loops.stop", keep == KeepStop::yes ? "true" : "false");
    CHECK(std::find(state.begin(), state.end(), kept) != state.end());
  }
}

TEST_CASE("rank 0's logger names one folder of checkpoints for all ranks, where last and best are found again") {
  const test::TemporaryFolder folder;
  std::array<std::string, 2> best, resumed, reread;
  for (const bool again : {false, true}) {
    test::on_ranks(2, [&](int rank, TrainerOptions options) {
      const auto r = static_cast<std::size_t>(rank);
      options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder.path()});
      options.enable_checkpointing = true;
      options.default_root_dir = folder.path();
      options.max_epochs = again ? 2 : 1;
      const auto keep = std::make_shared<ModelCheckpoint>();
      options.callbacks = keep;
      test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      data::DataLoader train = test::ramp(4), val = test::ramp(2);
      Trainer trainer(options);
      trainer.fit(probe, {.train = train, .val = val, .ckpt_path = again ? "last" : ""});
      best[r] = keep->best_model_path();
      resumed[r] = trainer.resumed_from();
      (void)trainer.validate(probe, val, {.ckpt_path = "best", .verbose = false});
    });
    CHECK(best[0] == best[1]);
    CHECK(test::contains(best[0], again ? "/version_1/checkpoints/" : "/version_0/checkpoints/"));
    CHECK(fs::exists(best[0]));
    CHECK(resumed[0] == resumed[1]);
    CHECK(test::contains(resumed[0], "/version_0/") == again);
    CHECK(fs::exists(folder / "levin_logs/version_2") == false);
  }
}

TEST_CASE("an error of rank 0's disk is the error of all ranks, and a run goes on where it may") {
  std::array<std::string, 3> errors;
  test::on_ranks(3, [&](int rank, const TrainerOptions& options) {
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::ramp(6);
    Trainer trainer(options);
    trainer.fit(probe, {.train = data});
    try {
      trainer.save_checkpoint("/proc/no/such/file.safetensors");
    } catch (const FileError& e) { errors[static_cast<std::size_t>(rank)] = e.what(); }
    try {
      trainer.fit(probe, {.train = data, .ckpt_path = "best"});
    } catch (const ConfigError& e) { errors[static_cast<std::size_t>(rank)] += std::string(" | ") + e.what(); }
  });
  for (const std::string& error : errors) {
    CHECK(test::contains(error, "save_checkpoint: can not make /proc/no/such"));
    CHECK(test::contains(error, " | "));
    CHECK(test::contains(error, "ckpt_path = \"best\" and there is none"));
  }
}

TEST_CASE("ModelCheckpoint has the same files and scores on all ranks, of which rank 0 writes and removes") {
  const test::TemporaryFolder folder;
  std::array<std::vector<std::pair<std::string, double>>, 2> kept;
  std::array<std::string, 2> last, resumed;
  for (const bool again : {false, true}) {
    test::on_ranks(2, [&](int rank, TrainerOptions options) {
      struct Scoring final : TrainModuleOf<Scoring, test::Probe> {
        using TrainModuleOf<Scoring, test::Probe>::TrainModuleOf;
        void validation_step(const Batch&, std::int64_t, std::int64_t) override {
          // 3, 1, 4, 2, ... as the mean of ranks; each rank alone would keep others.
          const std::array scores = {3.0, 1.0, 4.0, 2.0, 0.5};
          const double of_run = scores[static_cast<std::size_t>(trainer().current_epoch()) % scores.size()];
          const double apart = 10.0 * static_cast<double>(trainer().current_epoch());
          log("score", of_run + (trainer().is_global_zero() ? apart : -apart));
        }
      } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      const auto r = static_cast<std::size_t>(rank);
      const auto keep = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
          .dirpath = folder.path(), .monitor = "score", .save_top_k = 2, .save_last = SaveLast::link});
      options.enable_checkpointing = true;
      options.callbacks = keep;
      options.max_epochs = again ? 5 : 4;
      data::DataLoader train = test::ramp(4), val = test::ramp(2);
      Trainer trainer(options);
      trainer.fit(module, {.train = train, .val = val, .ckpt_path = again ? "last" : ""});
      kept[r] = keep->best_k_models();
      last[r] = keep->last_model_path();
      resumed[r] = trainer.resumed_from();
    });
    CHECK(kept[0] == kept[1]);
    CHECK(last[0] == last[1]);
    CHECK(resumed[0] == resumed[1]);
    CHECK(resumed[0].empty() == !again);
    REQUIRE(kept[0].size() == 2);
    CHECK(kept[0][0].second == 1);
    CHECK(kept[0][1].second == (again ? 0.5 : 2));
    std::int64_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder.path())) files += entry.is_symlink() ? 0 : 1;
    CHECK(files == (again ? 3 : 2));  // the file that the run resumed stays
  }
}

TEST_CASE("a save by time and a limit of time are rank 0's, so that all ranks do both at one batch") {
  const test::TemporaryFolder folder;
  std::array<std::int64_t, 2> steps{};
  test::on_ranks(2, [&](int rank, TrainerOptions options) {
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    options.enable_checkpointing = true;
    options.callbacks = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder.path(), .train_time_interval = Duration(std::chrono::nanoseconds(1))});
    options.val_check_interval = Duration(std::chrono::nanoseconds(1));
    options.max_time = Duration(std::chrono::seconds(rank == 0 ? 1000 : 0));
    data::DataLoader data = test::ramp(6), val = test::ramp(2);
    Trainer trainer(options);
    trainer.fit(probe, {.train = data, .val = val});
    steps[static_cast<std::size_t>(rank)] = trainer.global_step();
    CHECK(probe.validated_after.size() == 3);
  });
  CHECK(steps[0] == 3);
  CHECK(steps[1] == 3);
}
