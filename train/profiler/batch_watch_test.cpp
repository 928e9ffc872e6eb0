// Warnings about costly batches: copies, graphs that are kept, waits.
#include <doctest/doctest.h>

#include "levin/live_graph.h"
#include "levin/memory.h"
#include "tests/device.h"
#include "tests/warnings.h"
#include "train/profiler/three_logs_test.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

struct Watching {
  Trainer::CopyReport copies;
  CopyCounts all;
  Warnings warnings;
};
void fit(Watching& seen, Device device, std::int64_t batches, const Function<void(const Tensor&)>& also = {},
         bool scheduled = false) {
  ThreeLogs net({.gen = Generator(1), .device = device});
  net.scheduled = scheduled;
  net.also = [&](const Tensor& loss) {
    if (also) also(loss);
  };
  data::DataLoader train = loader(4 * batches, 4);
  TrainerOptions options = epochs(1);
  options.log_every_n_steps = 50;
  Trainer trainer(options);
  const CopyCounts before = copy_counts();
  trainer.fit(net, {.train = train});
  seen.all = copy_counts() - before;
  seen.copies = trainer.copy_report();
}

}  // namespace

TEST_CASE(
    "on a device 100 batches with three logged scalars make two copies to the host, and one a tensor to the device") {
  DEVICE_OR_SKIP();
  Watching seen;
  fit(seen, device, 100);
  CHECK(seen.all.to_host == 2);
  CHECK(seen.copies.batches == 100);
  CHECK(seen.copies.all.to_host == 0);  // the trainer's own copies are not the batch's
  CHECK(seen.copies.newest.to_device == 2);
  CHECK(seen.copies.newest.to_device_bytes == 4 * (4 * 2 + 4 * 1));
  CHECK(seen.warnings.count("W-TRAIN-COPIES") == 0);
}

TEST_CASE("on a device more copies to it than the batch has tensors are warned of once") {
  DEVICE_OR_SKIP();
  Watching seen;
  fit(seen, device, 10, [&](const Tensor&) { (void)ones({3}, Device::cpu()).to(device); });
  CHECK(seen.copies.newest.to_device == 3);
  REQUIRE(seen.warnings.count("W-TRAIN-COPIES") == 1);
  for (const Warning& w : seen.warnings.all()) {
    if (w.id == "W-TRAIN-COPIES") CHECK(contains(w.text, "a training batch of 2 tensors made 3 copies to the device"));
  }
}

TEST_CASE("on a device the lr of a schedule travels without a copy, and the warning counts the user's copies alone") {
  DEVICE_OR_SKIP();
  Watching seen;
  fit(seen, device, 10, {}, true);
  CHECK(seen.copies.newest.to_device == 2);  // the tensors of the batch
  CHECK(seen.warnings.count("W-TRAIN-COPIES") == 0);
  Watching blamed;
  fit(
      blamed, device, 10, [&](const Tensor&) { (void)ones({3}, Device::cpu()).to(device); }, true);
  REQUIRE(blamed.warnings.count("W-TRAIN-COPIES") == 1);
  for (const Warning& w : blamed.warnings.all()) {
    if (w.id == "W-TRAIN-COPIES") CHECK(contains(w.text, "of 2 tensors made 3 copies"));
  }
}

TEST_CASE("losses that are kept with their graphs for 60 batches are warned of once, naming the op") {
  Watching seen;
  Tensors losses;
  fit(seen, Device::cpu(), 60, [&](const Tensor& loss) { losses.push_back(loss); });
  REQUIRE(seen.warnings.count("W-TRAIN-GRAPH-GROWS") == 1);
  for (const Warning& w : seen.warnings.all()) {
    if (w.id != "W-TRAIN-GRAPH-GROWS") continue;
    CHECK(contains(w.text, "each of the last 50 batches left recorded ops alive"));
    CHECK(contains(w.text, "the newest of them made by mean"));
  }
}

TEST_CASE("losses that are logged, detached or kept for a while leave nothing, and nothing is warned of") {
  const std::int64_t before = live_graph_nodes();
  {
    Watching seen;
    Tensors losses;
    std::int64_t batch = 0;
    fit(seen, Device::cpu(), 120, [&](const Tensor& loss) {
      losses.push_back(loss.detach());
      if (++batch % 40 == 0) losses.clear();
    });
    CHECK(seen.warnings.count("W-TRAIN-GRAPH-GROWS") == 0);
  }
  {
    Watching seen;
    Tensors losses;
    fit(seen, Device::cpu(), 120, [&](const Tensor& loss) {
      losses.push_back(loss);
      if (losses.size() == 40) losses.clear();
    });
    CHECK(seen.warnings.count("W-TRAIN-GRAPH-GROWS") == 0);
  }
  CHECK(live_graph_nodes() == before);
}

TEST_CASE("logging alone leaves no recorded op behind a step") {
  struct Looking : TrainModuleOf<Looking, ThreeLogs> {
    using TrainModuleOf::TrainModuleOf;
    std::vector<std::int64_t> alive;
    void on_train_batch_end(const StepInfo&) override { alive.push_back(live_graph_nodes()); }
  } net({.gen = Generator(1), .device = Device::cpu()});
  const std::int64_t leaves = live_graph_nodes();
  data::DataLoader train = loader(40, 4);
  Trainer trainer(epochs(1));
  trainer.fit(net, {.train = train});
  for (const std::int64_t alive : net.alive) CHECK(alive == leaves);
}

TEST_CASE("anomaly mode and launches that wait are reported once, at the start") {
  Warnings warnings;
  TrainerOptions options = epochs(2);
  options.detect_anomaly = true;
  setenv("LEVIN_LAUNCH_BLOCKING", "1", 1);
  (void)run(options, 3);
  unsetenv("LEVIN_LAUNCH_BLOCKING");
  CHECK(warnings.count("I-TRAIN-ANOMALY") == 1);
  CHECK(warnings.count("I-TRAIN-DEBUG") == 1);
  for (const Warning& w : warnings.all()) {
    if (w.id == "I-TRAIN-DEBUG") CHECK(contains(w.text, "LEVIN_LAUNCH_BLOCKING is set"));
  }
}

TEST_CASE("a buffer moves to a device with its module, is saved if it is persistent, and is never trained") {
  struct Holder : nn::Module {
    using Module::Module;
    nn::Parameter weight{*this, "weight", ones({2}, Device::cpu())};
  } net({.gen = Generator(1), .device = Device::cpu()});
  net.register_buffer("kept", ones({2}, Device::cpu()));
  net.register_buffer("constant", ones({2}, Device::cpu()), nn::Persistent::no);
  std::vector<std::string> saved, trained;
  for (const auto& [name, t] : net.state_dict()) saved.push_back(name);
  for (const ParamRef& p : net.parameters()) trained.push_back(p.name);
  CHECK(saved == std::vector<std::string>{"weight", "kept"});
  CHECK(trained == std::vector<std::string>{"weight"});
  DEVICE_OR_SKIP();
  net.to(device);
  for (const nn::BufferRef& b : net.buffers()) CHECK(b.value->device() == device);
}

TEST_CASE("a profiler sees fetching, transfer, step, backward and every hook of a batch") {
  TrainerOptions options = epochs(1);
  const auto profiler = std::make_shared<SimpleProfiler>(SimpleProfilerOptions{.path = "/dev/null"});
  options.profiler = profiler;
  (void)run(options, 3, 2);
  const std::string report = profiler->report();
  for (const char* action : {"setup ",
                             "on_fit_start ",
                             "on_train_start ",
                             "on_train_epoch_start ",
                             "fetch_batch ",
                             "batch_to_device ",
                             "on_train_batch_start ",
                             "training_step ",
                             "on_before_zero_grad ",
                             "on_before_backward ",
                             "backward ",
                             "on_after_backward ",
                             "on_before_optimizer_step ",
                             "optimizer_step ",
                             "on_train_batch_end ",
                             "on_validation_start ",
                             "on_validation_batch_start ",
                             "validation_step ",
                             "on_validation_batch_end ",
                             "on_validation_epoch_end ",
                             "on_validation_end ",
                             "on_train_epoch_end ",
                             "on_train_end ",
                             "on_fit_end ",
                             "teardown "}) {
    CAPTURE(std::string(action));
    CHECK(contains(report, action));
  }
}

TEST_CASE("cached memory that is released in a training batch is warned of, and counted") {
  Watching seen;
  const std::int64_t before = cache_releases();
  fit(seen, Device::cpu(), 3);
  CHECK(seen.warnings.count("W-TRAIN-CACHE") == 0);
  fit(seen, Device::cpu(), 3, [](const Tensor&) { release_cached_memory(Device::cpu()); });
  CHECK(seen.warnings.count("W-TRAIN-CACHE") == 3);  // printing shows only the first
  CHECK(cache_releases() == before + 3);
}
