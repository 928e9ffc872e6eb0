// Stages in copies of this process: Note [Stages in copies] in levin/train/process_strategy.h.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/group/local.h"
#include "levin/train/ddp_strategy.h"
#include "levin/train/fsdp_strategy.h"
#include "levin/train/model_checkpoint.h"
#include "tests/temporary.h"
#include "tests/variables.h"
#include "tests/warnings.h"
#include "train/strategy/parallel_fixture_test.h"

using namespace levin;
using namespace levin::test::parallel;
using test::PlantedVariables;

namespace {

struct Net : TrainModuleOf<Net, Mlp> {
  using TrainModuleOf<Net, Mlp>::TrainModuleOf;
  std::int64_t steps = 0;     // an attribute that a stage sets
  int fails_at = -1;          // the step at which rank 1 fails
  bool in_configure = false;  // a layer is made by configure_model
  std::unique_ptr<nn::Linear> made{};
  void configure_model() override {
    if (in_configure && !made) made = std::make_unique<nn::Linear>(*this, "made", nn::LinearOptions{.in = 1, .out = 1});
  }
  StepOutput training_step(const Batch& b, std::int64_t index) override {
    if (++steps == fails_at && trainer().global_rank() == 1) fail<DataError>("data: step ", fails_at, " has no sample");
    log("steps_done", static_cast<double>(steps));
    if (!made) return Mlp::training_step(b, index);
    const Tensor error = square((*made)((*this)(mine(b[0]))) - mine(b[1]));
    return StepOutput::sum(sum(error), static_cast<double>(error.numel()));
  }
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return (*this)(b[0]); }
};

struct Validated final : TrainModuleOf<Validated, Net> {
  using TrainModuleOf<Validated, Net>::TrainModuleOf;
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val_loss", test::squared_error((*this)(b[0]), b[1]));
  }
};

TrainerOptions spawned(const std::string& folder, const std::string& strategy = "ddp_spawn") {
  TrainerOptions options = plain();
  options.accelerator = "cpu";
  options.devices = 2;
  options.strategy = strategy;
  options.default_root_dir = folder;
  return options;
}
std::string fit_error(const TrainerOptions& options, Net& net) {
  data::DataLoader data = test::loader(160, 32);
  try {
    Trainer(options).fit(net, {.train = data});
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

}  // namespace

TEST_CASE("ddp_spawn and its aliases train in copies and bring back what ddp ends with") {
  const PlantedVariables planted({});
  const test::TemporaryFolder folder;
  const auto ranks = on_ranks(2, [&](const Group& group) {
    TrainerOptions options = plain();
    options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.process = {.group = group}});
    return trained<Net>(options);
  });
  for (const std::string name : {"ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_sharded_spawn", "fsdp"}) {
    CAPTURE(name);
    Net net(3);
    const Weights before = values_of(net);
    data::DataLoader data = test::loader(160, 32);
    TrainerOptions options = spawned(folder.path(), name);
    if (name == "fsdp")
      options.strategy = std::make_shared<FsdpStrategy>(FsdpOptions{.process = {.launcher = Launcher::spawn}});
    Trainer trainer(options);
    trainer.fit(net, {.train = data});
    CHECK(difference(values_of(net), ranks[0]) < 1e-5);
    CHECK(difference(values_of(net), before) > 1e-3);
    CHECK(trainer.global_step() == 20);
    CHECK(trainer.current_epoch() == 4);
    CHECK(net.steps == 0);  // attributes stay as they were
    CHECK(trainer.world_size() == 1);
  }
}

TEST_CASE("copies that share the optimizer's state say farewell to each other") {
  const test::TemporaryFolder folder;
  for (const bool sharded : {false, true}) {
    CAPTURE(sharded);
    const PlantedVariables planted({{"LEVIN_POINTS", "rank 1: at exit -> kill"}});
    TrainerOptions options = spawned(folder.path(), "ddp_sharded_spawn");
    if (sharded)
      options.strategy = std::make_shared<FsdpStrategy>(FsdpOptions{.process = {.launcher = Launcher::spawn}});
    Net net(3);
    const std::string error = fit_error(options, net);
    CAPTURE(error);
    CHECK(error.starts_with("spawn: rank 1 (process "));
    CHECK(error.find("was killed by signal 9") != std::string::npos);
  }
}

TEST_CASE("a fit in copies brings back metrics, history and the best checkpoint, and evaluations their results") {
  const PlantedVariables planted({});
  const test::ExpectedWarnings expected({"I-TRAIN-COPIES", "W-CKPT-BEST-USED"});
  const test::TemporaryFolder folder;
  TrainerOptions options = spawned(folder.path());
  const auto checkpoint =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder / "files", .monitor = "val_loss"});
  options.enable_checkpointing = true;
  options.callbacks = {checkpoint};
  options.max_epochs = 2;
  options.max_steps = -1;
  options.log_every_n_steps = 1;
  Validated net(3);
  data::DataLoader data = test::loader(160, 32), val(test::points(40), {.batch_size = 8});
  Trainer trainer(options);
  trainer.fit(net, {.train = data, .val = val});
  const Metrics metrics = trainer.callback_metrics();
  const auto value = [&](const std::string& name) {
    const auto at = std::find_if(metrics.begin(), metrics.end(), [&](const auto& m) { return m.first == name; });
    REQUIRE(at != metrics.end());
    return at->second;
  };
  CHECK(value("steps_done") == 10);
  REQUIRE(!trainer.history().empty());
  CHECK(trainer.history().back().epoch == 1);
  CHECK(trainer.current_epoch() == 2);
  CHECK(std::filesystem::exists(checkpoint->best_model_path()));
  CHECK(checkpoint->best_model_score() == value("val_loss"));

  // With the weights that came back, in copies and in this process.
  const auto results = trainer.validate(net, val, {.verbose = false});
  TrainerOptions alone = plain();
  CHECK(results.at(0).at(0).first == "val_loss");
  CHECK(results.at(0).at(0).second ==
        doctest::Approx(Trainer(alone).validate(net, val, {.verbose = false}).at(0).at(0).second).epsilon(1e-5));
  // The best checkpoint is known to a call without a module.
  CHECK(trainer.validate(val, {.verbose = false}).at(0).at(0).second == doctest::Approx(value("val_loss")));
  // What is no stage runs here.
  CHECK(trainer.evaluate(net, val, [&](const Batch& b) { return test::squared_error(net(b[0]), b[1]); }) ==
        doctest::Approx(results.at(0).at(0).second).epsilon(1e-5));

  CHECK_THROWS_WITH_AS(trainer.fit(net, {.train = data}), doctest::Contains("make another Trainer"), StateError);
  CHECK_THROWS_WITH_AS(trainer.predict(net, val), doctest::Contains("return_predictions is true"), ConfigError);
  CHECK(trainer.predict(net, val, {.return_predictions = false}).empty());
}

TEST_CASE("an error of one copy is thrown by the caller with its type and rank, and no process is left") {
  const PlantedVariables planted({});
  const test::TemporaryFolder folder;
  Net net(3);
  const Weights before = values_of(net);
  net.fails_at = 3;
  TrainerOptions options = spawned(folder.path());
  data::DataLoader data = test::loader(160, 32);
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(net, {.train = data}),
                       doctest::Contains("rank 1: epoch 0, batch 2: data: step 3 has no sample"), DataError);
  CHECK(values_of(net) == before);
  net.fails_at = -1;
  trainer.fit(net, {.train = data});  // the first one has left nothing that it would continue
  CHECK(trainer.global_step() == 20);
}

TEST_CASE("copies of a process whose threads have worked compute and load on threads of their own") {
  const PlantedVariables planted({});
  const test::TemporaryFolder folder;
  Net net(3);
  data::DataLoader data(test::points(160), {.batch_size = 32, .num_workers = 2, .persistent_workers = true});
  std::int64_t batches = 0;
  for (const Batch& b : data) batches += sum(matmul(b[0], ones({2, 512}, Device::cpu()))).defined() ? 1 : 0;
  CHECK(batches == 5);
  TrainerOptions options = spawned(folder.path());
  options.enable_checkpointing = true;
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  CHECK(trainer.global_step() == 20);
  std::string best;  // of the checkpoints that the trainer writes by itself
  for (const auto& c : trainer.callbacks()) {
    if (const auto* const files = dynamic_cast<const ModelCheckpoint*>(c.get())) best = files->best_model_path();
  }
  CHECK(best.starts_with(folder.path()));
  CHECK(std::filesystem::exists(best));
}

TEST_CASE("layers that configure_model makes come back, too") {
  const PlantedVariables planted({});
  const test::TemporaryFolder folder;
  Net net(3);
  net.in_configure = true;
  CHECK(fit_error(spawned(folder.path()), net) == "no error");
  REQUIRE(net.made);
  CHECK(net.state_dict().size() == 6);
}

TEST_CASE("ddp_spawn refuses what copies of one process cannot be, before anything is started") {
  const auto refused = [](const Function<void(TrainerOptions&)>& change) {
    TrainerOptions options = spawned(".");
    change(options);
    try {
      const Trainer trainer(options);
    } catch (const ConfigError& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  CHECK(refused([](TrainerOptions&) {}) == "accepted");
  CHECK(contains(refused([](TrainerOptions& o) { o.num_nodes = 2; }), "num_nodes is 2"));
  CHECK(contains(refused([](TrainerOptions& o) { o.plugins.environment = dist::ClusterEnvironment::detect(); }),
                 "plugins has the environment"));
  CHECK(contains(refused([](TrainerOptions& o) {
                   o.strategy = std::make_shared<DdpStrategy>(
                       DdpOptions{.process = {.group = dist::single_process_group(), .launcher = Launcher::spawn}});
                 }),
                 "ranks that are connected"));
#if defined(LEVIN_SIMT)
  CHECK(contains(refused([](TrainerOptions& o) { o.accelerator = "simt"; }), "does not survive a fork"));
#endif

  // A rank of a job is copied into no other job.
  Net net(3);
  {
    const PlantedVariables rank({{"RANK", "0"},
                                 {"LOCAL_RANK", "0"},
                                 {"WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", "29500"},
                                 {"TORCHELASTIC_RUN_ID", "7"}});
    CHECK(contains(fit_error(spawned("."), net), "torchrun has started as a rank of a job"));
  }
  const PlantedVariables planted({});
  Tensor w = zeros({2, 1}, Device::cpu());
  w.requires_grad_();
  optim::SGD optimizer({{&w, "w", nullptr}}, {.lr = 0.1});
  data::DataLoader data = test::loader(160, 32);
  CHECK_THROWS_WITH_AS(
      Trainer(spawned(".")).fit(optimizer, data, [&](const Batch& b) { return mean(square(matmul(b[0], w) - b[1])); }),
      doctest::Contains("belong to no module"), ConfigError);
}
