#include <doctest/doctest.h>

#include <map>

#include "tests/device.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {
std::map<std::string, double> stats_of(Device device, DeviceStatsMonitorOptions monitor = {}) {
  const TemporaryFolder folder;
  TrainerOptions options = epochs(1);
  options.log_every_n_steps = 2;
  options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder / ""});
  options.callbacks.push_back(std::make_shared<DeviceStatsMonitor>(monitor));
  Net net({.gen = Generator(1), .device = device});
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  data::DataLoader train = loader(12, 4);
  Trainer trainer(options);
  trainer.fit(opt, train, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
  REQUIRE(trainer.history().size() == 2);  // step 1 and the epoch
  const Metrics& values = trainer.history()[0].values;
  return {values.begin(), values.end()};
}
}  // namespace

TEST_CASE("on a device its monitor logs memory before and after the batches that are recorded") {
  DEVICE_OR_SKIP();
  const auto stats = stats_of(device, {.cpu = true});
  const std::string name = text(device) + ".memory_";
  for (const char* hook : {"DeviceStatsMonitor.on_train_batch_start/", "DeviceStatsMonitor.on_train_batch_end/"}) {
    for (const std::string& where : {name, std::string("cpu.memory_")}) {
      for (const char* what : {"in_use", "peak", "cached"}) {
        CAPTURE(hook + where + what);
        CHECK(stats.contains(hook + where + what));
      }
    }
    CHECK(stats.at(hook + name + "in_use") > 0);
    CHECK(stats.at(hook + name + "peak") >= stats.at(hook + name + "in_use"));
  }
}

TEST_CASE("the monitor of a module on the cpu logs the cpu's memory, and needs a logger") {
  const auto stats = stats_of(Device::cpu());
  CHECK(stats.contains("DeviceStatsMonitor.on_train_batch_end/cpu.memory_in_use"));
  TrainerOptions options = epochs(1);
  options.callbacks.push_back(std::make_shared<DeviceStatsMonitor>());
  CHECK(contains(refused(options, 2, 0), "the trainer has no logger for it"));
}

TEST_CASE("with several optimizers by hand the monitor logs before and after the batches that are recorded") {
  const TemporaryFolder folder;
  TrainerOptions options = epochs(1);
  options.log_every_n_steps = 2;
  options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder / ""});
  options.callbacks.push_back(std::make_shared<DeviceStatsMonitor>());
  TwoSteps net({.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader train = ramp(4);
  Trainer trainer(options);
  trainer.fit(net, {.train = train});
  REQUIRE(trainer.history().size() == 2);
  for (const LogRecord& record : trainer.history()) {
    const std::map<std::string, double> values(record.values.begin(), record.values.end());
    for (const char* hook : {"on_train_batch_start", "on_train_batch_end"})
      CHECK(values.contains(std::string("DeviceStatsMonitor.") + hook + "/cpu.memory_in_use"));
  }
}
