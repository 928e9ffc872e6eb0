#include "train/data/loader_advice.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;
using train::DataWait;
using train::workers_advice;

namespace {

struct OfManyCpus {
  explicit OfManyCpus(int suggested) : before(train::suggested_workers_instead.exchange(suggested)) {}
  ~OfManyCpus() { train::suggested_workers_instead = before; }
  int before;
};

std::vector<std::string> texts_of(const test::Warnings& warnings, std::string_view id) {
  std::vector<std::string> texts;
  for (const Warning& w : warnings.all()) {
    if (w.id == id) texts.push_back(w.text);
  }
  return texts;
}

struct Evaluated : TrainModuleOf<Evaluated, test::Probe> {
  using TrainModuleOf<Evaluated, test::Probe>::TrainModuleOf;
  void test_step(const Batch& b, std::int64_t, std::int64_t) override { log("x", mean(b[0])); }
};
const nn::Options kHere{.gen = Generator(1), .device = Device::cpu()};
const EvaluationOptions kSilent{.data_module = nullptr, .ckpt_path = {}, .verbose = false};

}  // namespace

TEST_CASE("too few workers: the condition, and words that the published regex finds") {
  CHECK(workers_advice("train_loader", 0, 1).empty());
  CHECK(workers_advice("train_loader", 2, 15).empty());
  for (const int workers : {0, 1}) {
    const std::string text = workers_advice("val_loader", workers, 15);
    for (const char* words : {"val_loader", "does not have many workers", "bottleneck",
                              "Consider increasing the value of the `num_workers` argument", "num_workers=15"})
      CHECK(test::contains(text, words));
  }
  CHECK_FALSE(workers_advice("train_loader", 1, 2).empty());
}

TEST_CASE("each loader of each stage is looked at once, and the regex silences that and nothing else") {
  const OfManyCpus many(15);
  Evaluated net(kHere);
  data::DataLoader train_data = test::ramp(3), val = test::ramp(2), other = test::ramp(2, 1, true);
  TrainerOptions options = test::epochs(3);
  Trainer trainer(options);
  {
    const test::Warnings warnings;
    trainer.fit(net, {.train = train_data, .val = {&val, &other}});
    const auto workers = texts_of(warnings, "W-DATA-WORKERS");
    REQUIRE(workers.size() == 3);
    CHECK(workers[0].starts_with("the val_loader 0 does not"));
    CHECK(workers[1].starts_with("the val_loader 1 does not"));
    CHECK(workers[2].starts_with("the train_loader does not"));
    const auto shuffles = texts_of(warnings, "W-DATA-EVAL-SHUFFLE");
    REQUIRE(shuffles.size() == 1);
    CHECK(test::contains(shuffles[0], "val_loader 1 shuffles"));
  }
  {
    const test::Warnings warnings;
    (void)trainer.test(net, other, kSilent);
    (void)trainer.test(net, other, kSilent);
    CHECK(warnings.count("W-DATA-WORKERS") == 2);
    CHECK(warnings.count("W-DATA-EVAL-SHUFFLE") == 2);
  }
  const test::Warnings warnings;
  ignore_warnings({.regex = ".*does not have many workers.*"});
  (void)trainer.test(net, other, kSilent);
  forget_warning_filters();
  CHECK(warnings.ids() == std::vector<std::string>{"W-DATA-EVAL-SHUFFLE"});
}

TEST_CASE("a sampler that shuffles counts, a training loader may, and a loader without batches is a warning") {
  Evaluated net(kHere);
  const data::DatasetRef numbers = test::ramp(4).dataset();
  data::DataLoader drawn(numbers, {.sampler = data::random_sampler(4, Generator(1))});
  data::DataLoader weighted(numbers, {.sampler = data::weighted_sampler({1, 1, 1, 1}, 4, Generator(1))});
  data::DataLoader plain(numbers, {.sampler = data::sequential_sampler(4)});
  data::DataLoader none(numbers, {.batch_size = 9, .drop_last = true});
  Trainer trainer(test::epochs(1));
  const test::Warnings warnings;
  (void)trainer.test(net, drawn, kSilent);
  (void)trainer.test(net, weighted, kSilent);
  CHECK(warnings.count("W-DATA-EVAL-SHUFFLE") == 2);
  (void)trainer.test(net, plain, kSilent);
  trainer.fit(net, {.train = drawn, .val = plain});
  CHECK(warnings.count("W-DATA-EVAL-SHUFFLE") == 2);
  CHECK(warnings.count("W-DATA-EMPTY") == 0);
  trainer.options().max_epochs = 2;
  trainer.fit(net, {.train = plain, .val = none});
  CHECK(texts_of(warnings, "W-DATA-EMPTY") ==
        std::vector<std::string>{"the val_loader has no batches; was that meant?"});
}

TEST_CASE("the share of waiting is of a hundred batches without validation and saving, and reported once") {
  DataWait wait;
  std::int64_t now = 0, apart = 0;
  int told = 0;
  double share = 0;
  for (int k = 0; k < 150 && wait.measures(); ++k) {
    wait.begins(now, apart);
    now += 30;
    wait.arrived(now);
    now += 70;  // the step
    if (k % 10 == 9) {
      now += 1000;  // a validation
      apart += 1000;
    }
    if (const auto s = wait.trained(now, apart)) {
      ++told;
      share = *s;
      CHECK(k == 99);
    }
    if (k % 25 == 0) {  // between two batches, as at the end of an epoch: part of no batch
      now += 5000;
      apart += 5000;
    }
  }
  CHECK(told == 1);
  CHECK(share == 0.3);
}

TEST_CASE("a run that waits for slow samples says so, with the share and the number of workers") {
  data::DataLoader slow(data::transform(test::ramp(120).dataset(),
                                        [](data::Sample s, Generator&) {
                                          std::this_thread::sleep_for(std::chrono::milliseconds(3));
                                          return s;
                                        }),
                        {});
  test::Probe net(kHere);
  Trainer trainer(test::epochs(1));
  const test::Warnings warnings;
  trainer.fit(net, {.train = slow});
  const auto texts = texts_of(warnings, "W-DATA-SLOW");
  REQUIRE(texts.size() == 1);
  CHECK(test::contains(texts[0], "of the first 100 steps' time was waiting for data, with num_workers=0"));
}
