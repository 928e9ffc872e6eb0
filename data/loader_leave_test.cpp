// The end of a loop whose dataset blocks, and errors of loading, which keep their type.
#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "data/loader_fixture_test.h"
#include "levin/data.h"
#include "tensor/device/interrupt.h"
#include "tests/warnings.h"
using namespace levin;
using namespace levin::data;
using namespace levin::data::testing;
using levin::test::Warnings;

namespace {

// One sample blocks at its first load until open(), for at most 30 seconds: then a test that checks gave_up() fails
// instead of hanging.
class Blocked final : public Numbers {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool inside = false, open = false, gave_up = false, done = false, by_caller = false;
    void set(bool& flag) {
      const std::lock_guard lock(mutex);
      flag = true;
      changed.notify_all();
    }
    [[nodiscard]] bool wait_for(const bool& flag) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, std::chrono::seconds(30), [&] { return flag; });
    }
    [[nodiscard]] bool is(const bool& flag) {
      const std::lock_guard lock(mutex);
      return flag;
    }
  };
  Blocked(std::int64_t n, std::int64_t which, std::shared_ptr<Gate> gate)
      : Numbers(n), which_(which), gate_(std::move(gate)) {}
  Sample get(std::int64_t index, Generator& rng) const override {
    if (std::this_thread::get_id() == caller_) gate_->set(gate_->by_caller);
    if (index == which_ && !gate_->is(gate_->inside)) {
      gate_->set(gate_->inside);
      if (!gate_->wait_for(gate_->open)) gate_->set(gate_->gave_up);
      gate_->set(gate_->done);
    }
    return Numbers::get(index, rng);
  }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  std::int64_t which_;
  std::shared_ptr<Gate> gate_;
};

// While it lives, threads with the default attributes can not be made: their stacks would be larger than any memory.
class NoThreads {
 public:
  NoThreads() {
    REQUIRE(::pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t huge;
    REQUIRE(::pthread_getattr_default_np(&huge) == 0);
    REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 46) == 0);
    REQUIRE(::pthread_setattr_default_np(&huge) == 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

// Says when a thread other than the one that made it has loaded a sample.
class Watched final : public Numbers {
 public:
  using Numbers::Numbers;
  Sample get(std::int64_t index, Generator& rng) const override {
    if (std::this_thread::get_id() != caller_) by_worker.store(true);
    return Numbers::get(index, rng);
  }
  mutable std::atomic<bool> by_worker{false};

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
};

std::vector<std::int64_t> positions(DataLoader& loader) {
  std::vector<std::int64_t> all;
  for (const Batch& b : loader) all.push_back(b.position);
  return all;
}

}  // namespace

TEST_CASE(
    "a loop whose dataset blocks for ever ends by its timeout, and nothing is freed before the blocked thread is "
    "done") {
  Warnings warnings;
  const auto gate = std::make_shared<Blocked::Gate>();
  std::weak_ptr<const Dataset> watched;
  for (const std::int64_t which : {0, 5}) {
    gate->inside = gate->open = gate->done = false;
    auto dataset = std::make_shared<Blocked>(8, which, gate);
    watched = dataset;
    std::optional<DataLoader> loader(std::in_place, std::move(dataset),
                                     DataLoaderOptions{.batch_size = 1, .num_workers = 2, .timeout = 1.5});
    const std::string text = message<DataError>([&] { (void)positions(*loader); });
    CHECK(contains(text, "loader: batch " + std::to_string(which) + " of epoch 0 (samples from "));
    CHECK(contains(text, "did not come within 1.5 seconds"));
    CHECK(!gate->is(gate->gave_up));
    CHECK(warnings.count("W-DATA-LEFT") == (which == 0 ? 1 : 2));
    // While the sample hangs the loader serves another loop, from the beginning of the next epoch.
    CHECK(positions(*loader) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(!gate->is(gate->by_caller));  // which might have blocked as well
    CHECK(!gate->is(gate->done));
    loader.reset();
    CHECK(!watched.expired());
    gate->set(gate->open);
    CHECK(gate->wait_for(gate->done));
    for (int i = 0; i < 3000 && !watched.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(watched.expired());
  }
}

TEST_CASE("a loop that is left while a worker is blocked does not wait for the sample") {
  Warnings warnings;
  const auto gate = std::make_shared<Blocked::Gate>();
  {
    DataLoader loader(std::make_shared<Blocked>(64, 40, gate),
                      {.batch_size = 1, .num_workers = 1, .prefetch_factor = 64});
    for (const Batch& b : loader) {
      if (b.position < 20) continue;
      if (gate->wait_for(gate->inside)) break;
    }
    CHECK(!gate->is(gate->gave_up));
    CHECK(!gate->is(gate->done));
  }
  REQUIRE(warnings.count("W-DATA-LEFT") == 1);
  CHECK(contains(warnings.all().front().text, "(samples from 40 on) is still being loaded"));
  gate->set(gate->open);
  CHECK(gate->wait_for(gate->done));
}

TEST_CASE("a loop that waits for a worker ends by an InterruptedError when the thread is asked to stop") {
  Warnings warnings;
  const auto gate = std::make_shared<Blocked::Gate>();
  static std::atomic<bool> asked;
  asked = false;
  levin::detail::stop_asked = [] { return asked.load(); };
  {
    DataLoader loader(std::make_shared<Blocked>(8, 5, gate), {.batch_size = 1, .num_workers = 1, .timeout = 60});
    std::thread user([&] {
      if (gate->wait_for(gate->inside)) asked = true;
    });
    CHECK_THROWS_WITH_AS((void)positions(loader), doctest::Contains("stopped while it waited for batch 5"),
                         InterruptedError);
    user.join();
  }
  levin::detail::stop_asked = nullptr;
  CHECK(!gate->is(gate->gave_up));
  gate->set(gate->open);
  CHECK(gate->wait_for(gate->done));
}

TEST_CASE("a loader that gets no thread hands out its batches in order") {
  const auto dataset = std::make_shared<Watched>(8);
  DataLoader loader(dataset, {.batch_size = 1, .num_workers = 1, .timeout = 60});
  (void)positions(loader);  // the worker's own thread is there now
  // A worker may load while the loop reports that it got no thread.
  int reports = 0;
  const auto before = set_warning_handler([&](const Warning& w) {
    if (w.id != std::string_view("W-DATA-THREADS")) return;
    ++reports;
    for (int i = 0; i < 200 && !dataset->by_worker; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  std::vector<std::int64_t> seen;
  {
    const NoThreads none;
    dataset->by_worker = false;
    seen = positions(loader);
  }
  set_warning_handler(before);
  CHECK(seen == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(reports > 0);
}

TEST_CASE("std::bad_alloc of a dataset is an OutOfMemoryError with sample, epoch and thread") {
  class Greedy final : public Numbers {
   public:
    using Numbers::Numbers;
    Sample get(std::int64_t index, Generator& rng) const override {
      if (index == 3) throw std::bad_alloc();
      return Numbers::get(index, rng);
    }
  };
  for (const int workers : {0, 2}) {
    DataLoader loader(std::make_shared<Greedy>(6), {.batch_size = 1, .num_workers = workers});
    const std::string text = message<OutOfMemoryError>([&] { (void)positions(loader); });
    CHECK(contains(text, "loading sample 3 of epoch 0, in "));
  }
}

TEST_CASE("options of a loader can be copied, and both loaders use the functions in them") {
  std::atomic<int> collated{0}, begun{0};
  const DataLoaderOptions options{.batch_size = 2,
                                  .num_workers = 1,
                                  .collate =
                                      [&](std::span<const Sample> samples) {
                                        ++collated;
                                        return collate(samples);
                                      },
                                  .worker_init = [&](int) { ++begun; }};
  DataLoader a(std::make_shared<Numbers>(6), options);
  CHECK(positions(a).size() == 3);
  const int of_a = begun;
  CHECK(of_a > 0);
  DataLoader b(std::make_shared<Numbers>(8), options);
  CHECK(positions(b).size() == 4);
  CHECK(collated == 7);
  CHECK(begun > of_a);
}
