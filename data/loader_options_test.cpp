// Effects of a loader's options: order of batches, notices, and the threads that load.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "data/loader.h"
#include "data/loader_fixture_test.h"
#include "levin/autograd.h"
#include "levin/data.h"
#include "levin/warning.h"
#include "tests/device.h"
using namespace levin;
using namespace levin::data;
using namespace levin::data::testing;

TEST_CASE("a state counts batches in any order") {
  LoaderState s{.epoch = 2};
  for (const std::int64_t k : {3, 1, 5}) s.hand_out(k);
  CHECK(s.batch == 0);
  CHECK(s.ahead == std::vector<std::int64_t>{1, 3, 5});
  s.hand_out(0);
  CHECK(s.batch == 2);
  CHECK(s.ahead == std::vector<std::int64_t>{3, 5});
  CHECK(s.handed_out() == 4);
  s.hand_out(2);
  CHECK(s.batch == 4);
  s.hand_out(4);
  CHECK(s.batch == 6);
  CHECK(s.ahead.empty());
}

namespace {

// The first sample that a worker takes waits until open(), and the loop's own thread waits for the worker. Bounded:
// without a worker all resumes after 20 seconds, and late() stays -1.
class Late final : public Numbers {
 public:
  using Numbers::Numbers;
  Sample get(std::int64_t index, Generator& rng) const override {
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
    return Numbers::get(index, rng);
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] std::int64_t late() const {
    const std::lock_guard lock(mutex_);
    return late_;
  }

 private:
  const std::thread::id consumer_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::int64_t late_ = -1;
  bool open_ = false;
};

using Content = std::map<std::int64_t, std::vector<std::int64_t>>;  // of batches, by their positions
void add(Content& to, const Batch& b) {
  std::vector<std::int64_t>& at = to[b.position];
  CHECK(at.empty());
  at = b.indices;
  for (const Tensor& field : b.fields)
    at.insert(at.end(), field.data<std::int64_t>(), field.data<std::int64_t>() + field.numel());
}

}  // namespace

TEST_CASE("without in_order a late batch holds up no other, and each holds what it holds in order") {
  Content expected;
  {
    DataLoader loader(std::make_shared<Numbers>(12), {.batch_size = 2, .generator = Generator(7)});
    for (const Batch& b : loader) add(expected, b);
  }
  const auto dataset = std::make_shared<Late>(12);
  DataLoader loader(dataset, {.batch_size = 2, .num_workers = 2, .in_order = false, .generator = Generator(7)});
  Content got;
  std::vector<std::int64_t> order;
  for (const Batch& b : loader) {
    add(got, b);
    order.push_back(b.position);
    if (order.size() == 3) {
      const LoaderState state = loader.state();
      CHECK(state.batch <= dataset->late() / 2);
      CHECK(state.handed_out() == 3);
      // Another loader resumes here, in order, with the missing batches.
      DataLoader rest(std::make_shared<Numbers>(12), {.batch_size = 2, .generator = Generator(7)});
      rest.load_state(state);
      Content both = got;
      for (const Batch& other : rest) add(both, other);
      CHECK(both == expected);
      CHECK(rest.state().epoch == 1);
    }
    if (order.size() == 5) dataset->open();  // all others came
  }
  CHECK(got == expected);
  CHECK(dataset->late() >= 0);
  CHECK(order.back() == dataset->late() / 2);
  CHECK(loader.state().epoch == 1);
}

TEST_CASE("without in_order epochs have the same batches for any number of workers, and errors surface") {
  Content expected;
  for (const int workers : {0, 1, 3}) {
    DataLoader loader(
        std::make_shared<Numbers>(60),
        {.batch_size = 3, .shuffle = true, .num_workers = workers, .in_order = false, .generator = Generator(7)});
    for (int e = 0; e < 3; ++e) {
      Content got;
      for (const Batch& b : loader) {
        add(got, b);
        if (workers == 0) CHECK(b.position == static_cast<std::int64_t>(got.size()) - 1);
      }
      CHECK(got.size() == 20);
      if (workers == 0 && e == 2) expected = got;
      if (e == 2) CHECK(got == expected);
    }
  }
  DataLoader bad(std::make_shared<Throwing>(20, 7, false), {.num_workers = 2, .in_order = false});
  const std::string text = message<DataError>([&] {
    for ([[maybe_unused]] const Batch& b : bad) {}
  });
  CHECK(contains(text, "disk on fire"));
  CHECK(contains(text, "sample 7"));
}

TEST_CASE("a loop that waits says for what, again and again, until the batch is there") {
  struct Restore {
    double before = wait_notice_seconds;
    ~Restore() { wait_notice_seconds = before; }
  } const restore;
  CHECK(wait_notice_seconds == 10);
  wait_notice_seconds = 0.01;
  for (const bool in_order : {true, false}) {
    const auto dataset = std::make_shared<Late>(3);
    std::vector<std::string> said;
    auto before = set_warning_handler([&](const Warning& w) {
      if (w.id == "W-DATA-WAIT") said.push_back(w.text);
      if (said.size() == 3) dataset->open();
    });
    DataLoader loader(dataset, {.num_workers = 1, .in_order = in_order});
    std::int64_t batches = 0;
    for ([[maybe_unused]] const Batch& b : loader) ++batches;
    set_warning_handler(std::move(before));
    CHECK(batches == 3);
    REQUIRE(said.size() >= 3);
    const std::string late = std::to_string(dataset->late());
    CHECK(said[0] == "loader: waiting for data: batch " + late + " of epoch 0 (samples from " + late + " on), 0.01 s");
    CHECK(contains(said[1], "0.02 s"));
    CHECK(contains(said[2], "0.03 s"));
  }
}

TEST_CASE("worker_init runs on every thread before it loads, as one of the workers, each loop or once") {
  static thread_local int t_round = -1, t_worker = -1;
  struct Calls {
    std::mutex mutex;
    std::vector<std::pair<std::thread::id, int>> all;
  };
  class Asking final : public Numbers {
   public:
    explicit Asking(const int& round) : Numbers(64), round_(round) {}
    Sample get(std::int64_t index, Generator& rng) const override {
      if (t_round < 0 || (round_ >= 0 && t_round != round_)) ++strangers;
      if (t_worker < 0 || t_worker > 2) ++strangers;
      return Numbers::get(index, rng);
    }
    mutable std::atomic<int> strangers{0};

   private:
    const int& round_;  // the loop that init must have seen; -1: any
  };
  for (const bool persistent : {false, true}) {
    Calls calls;
    int round = 0, any = -1;
    const auto dataset = std::make_shared<Asking>(persistent ? any : round);
    DataLoader loader(dataset, {.batch_size = 4,
                                .num_workers = 2,
                                .worker_init =
                                    [&](int id) {
                                      t_round = round;
                                      t_worker = id;
                                      const std::lock_guard lock(calls.mutex);
                                      calls.all.emplace_back(std::this_thread::get_id(), id);
                                    },
                                .persistent_workers = persistent});
    std::multiset<std::pair<std::thread::id, int>> workers;
    for (; round < 4; ++round) {
      calls.all.clear();
      for ([[maybe_unused]] const Batch& b : loader) {}
      CHECK((persistent || !calls.all.empty()));
      const std::set<std::pair<std::thread::id, int>> once(calls.all.begin(), calls.all.end());
      CHECK(once.size() == calls.all.size());
      for (const auto& [thread, id] : calls.all) {
        CHECK(id >= 0);
        CHECK(id <= 2);
        CHECK((id == 2) == (thread == std::this_thread::get_id()));
        if (id < 2) workers.emplace(thread, id);
      }
    }
    CHECK(dataset->strangers == 0);
    if (persistent) CHECK(std::set(workers.begin(), workers.end()).size() == workers.size());
    t_round = t_worker = -1;
  }
  // Its error is that of the batch that the thread was about to load, and the next loop tries again. The looping thread
  // may be quicker than the worker and load the first batch itself.
  std::atomic<int> tries = 0;
  DataLoader failing(std::make_shared<Numbers>(4), {.num_workers = 1, .worker_init = [&](int) {
                                                      if (++tries == 1) throw std::runtime_error("no handle left");
                                                    }});
  const std::string text = message<DataError>([&] { (void)content(failing); });
  CHECK(contains(text, "no handle left"));
  CHECK(contains(text, "worker_init"));
  CHECK(content(failing).size() == 4 * 4);
  DataLoader none(std::make_shared<Numbers>(4), {.worker_init = [&](int) { tries = -100; }});
  (void)content(none);
  CHECK(tries > 0);
}

TEST_CASE("a process among several on a machine is advised to take its share of the CPUs, less one") {
  CHECK(workers_for(16, 1) == 15);
  CHECK(workers_for(16, 8) == 1);
  CHECK(workers_for(16, 100) == 1);
  CHECK(workers_for(1, 1) == 1);
}

TEST_CASE("more workers than CPUs and pin_memory without a device are told, and change no values") {
  std::vector<std::string> ids, texts;
  auto before = set_warning_handler([&](const Warning& w) {
    ids.push_back(w.id);
    texts.push_back(w.text);
  });
  const auto numbers = std::make_shared<Numbers>(6);
  DataLoader fits(numbers, {.num_workers = available_cpus()});
  CHECK(ids.empty());
  DataLoader many(numbers, {.num_workers = available_cpus() + 1});
  DataLoader pinned(numbers, {.pin_memory = true});
  set_warning_handler(std::move(before));
  const bool has_device = test::launching_device().has_value();
  CHECK(ids == (has_device ? std::vector<std::string>{"W-DATA-MANY-WORKERS"}
                           : std::vector<std::string>{"W-DATA-MANY-WORKERS", "W-DATA-PIN"}));
  CHECK(contains(texts[0], "num_workers is " + std::to_string(available_cpus() + 1)));
  CHECK(contains(texts[0], "num_workers = " + std::to_string(suggested_workers())));
  CHECK(content(pinned) == content(fits));
  for (const Batch& batch : pinned) {
    for (const Tensor& field : batch.fields) CHECK(field.is_pinned() == has_device);
  }
}
