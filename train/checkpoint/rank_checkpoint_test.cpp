// Checkpoints of several ranks: Note [Checkpoints of ranks].
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "levin/train/checkpoint.h"
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
  void on_fit_start() override {
    if (trainer().global_rank() == 1 && trainer().resumed_from().empty()) (void)drop(ones({100}, Device::cpu()));
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

TEST_CASE("another global batch leaves the rest of the epoch out, with a warning, and the next epoch is whole") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "other.safetensors";
  (void)run({.n = 40, .save_after = 2, .save = file});  // 2 of the 5 batches of epoch 0
  const test::ExpectedWarnings told{"W-CKPT-WORLD"};
  const std::vector<Ran> three = run({.ranks = 3, .n = 40, .save = "", .resume = file});
  CHECK(three[0].steps == 2 + 4);  // and the epoch 1: 14 samples a rank
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
