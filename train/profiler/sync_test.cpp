// Host waits are counted and can be forbidden; on simt, which waits where a GPU waits.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/device.h"
#include "train/profiler/three_logs_test.h"

using namespace levin;
using namespace levin::test;

TEST_CASE("on a device a batch waits for nothing but the records, one copy each") {
  DEVICE_OR_SKIP();
  ThreeLogs module({.gen = Generator(1), .device = device});
  data::DataLoader data = loader(400, 4);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.log_every_n_steps = 50;
  options.sync_budget = 0;
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  CHECK(trainer.global_step() == 100);
  CHECK(trainer.history().size() == 2);
  std::int64_t charged = 0;
  for (const SyncRecord& r : trainer.sync_report().records()) charged += r.charged;
  CHECK(charged == 0);
  CHECK(trainer.sync_report().count() == 2);
}

TEST_CASE("on a device a wait beyond the budget of a batch is an error that names the line") {
  DEVICE_OR_SKIP();
  ThreeLogs module({.gen = Generator(1), .device = device});
  int line = 0;
  module.also = [&](const Tensor& loss) {
    line = __LINE__ + 1;
    (void)loss.item();
  };
  data::DataLoader data = loader(40, 4);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.sync_budget = 0;
  Trainer trainer(options);
  std::string message;
  try {
    trainer.fit(module, {.train = data});
  } catch (const StateError& e) { message = e.what(); }
  CHECK(message.find("item (sync_test.cpp:" + std::to_string(line) + "): waits for the device") != std::string::npos);
  CHECK(trainer.global_step() == 0);

  options.sync_budget = 1;
  Trainer lenient(options);
  lenient.fit(module, {.train = data});
  const std::vector<SyncRecord>& records = lenient.sync_report().records();
  const auto item = std::find_if(records.begin(), records.end(), [](const SyncRecord& r) { return r.call == "item"; });
  REQUIRE(item != records.end());
  CHECK(item->count == 10);
  CHECK(item->charged == 10);
  CHECK(item->seconds >= 0);

  options.sync_budget = std::nullopt;
  Trainer counting(options);
  counting.fit(module, {.train = data});
  CHECK(counting.sync_report().count() >= 20);  // 10 by item(), 10 records
  options.sync_budget = -1;
  CHECK_THROWS_AS(Trainer(TrainerOptions(options)), ConfigError);
}

TEST_CASE("on a device guards nest: the inner one counts, and the outer one continues with its budget") {
  DEVICE_OR_SKIP();
  const Tensor x = ones({}, device);
  SyncLedger outer, inner;
  const SyncGuard guard(outer, SyncCheck::forbid, 1);
  {
    const SyncGuard own(inner);
    (void)x.item();
    (void)x.item();
  }
  CHECK(inner.count() == 2);
  CHECK(inner.records().size() == 2);
  CHECK(outer.count() == 0);
  (void)x.item();
  CHECK_THROWS_AS((void)x.item(), StateError);
  CHECK(outer.count() == 1);
}
