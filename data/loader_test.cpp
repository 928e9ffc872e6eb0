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
#include "data/random.h"
#include "levin/autograd.h"
#include "levin/data.h"
#include "levin/warning.h"

using namespace levin;
using namespace levin::data;

namespace {

// Sample i is {i, a random number of its own}.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t n) : n_(n) {}
  std::int64_t size() const override { return n_; }
  Sample get(std::int64_t index, Generator& rng) const override {
    Tensor i = empty({1}, Device::cpu(), DType::i64);
    *i.mutable_data<std::int64_t>() = index;
    const Counter drawn = philox({0, 0, 0, 0}, rng.seed() + rng.reserve(4).offset);
    Tensor r = empty({2}, Device::cpu(), DType::i64);
    r.mutable_data<std::int64_t>()[0] = drawn[0];
    r.mutable_data<std::int64_t>()[1] = drawn[1];
    return {i, r};
  }

 private:
  std::int64_t n_;
};

// All values of some epochs, one after the other.
std::vector<std::int64_t> content(DataLoader& loader, int epochs = 1) {
  std::vector<std::int64_t> all;
  for (int e = 0; e < epochs; ++e) {
    std::int64_t position = 0;
    for (const Batch& b : loader) {
      CHECK(b.position == position++);
      CHECK(b.size() == b[0].size(0));
      for (const Tensor& field : b.fields) {
        all.insert(all.end(), field.data<std::int64_t>(), field.data<std::int64_t>() + field.numel());
      }
      all.push_back(-1);
    }
  }
  return all;
}

template <class E>
std::string message(const auto& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "no such error";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Throwing final : public Numbers {
 public:
  Throwing(std::int64_t n, std::int64_t bad, bool levin_error) : Numbers(n), bad_(bad), levin_error_(levin_error) {}
  Sample get(std::int64_t index, Generator& rng) const override {
    if (index == bad_ && levin_error_) fail<ShapeError>("crop: shape is [3], expected [4]");
    if (index == bad_) throw std::runtime_error("disk on fire");
    return Numbers::get(index, rng);
  }

 private:
  std::int64_t bad_;
  bool levin_error_;
};

}  // namespace

TEST_CASE("a sequential loader gives every sample once, in order, the last batch short") {
  DataLoader loader(std::make_shared<Numbers>(10), {.batch_size = 4});
  CHECK(loader.size() == 3);
  std::vector<std::int64_t> seen, sizes;
  for (const Batch& b : loader) {
    sizes.push_back(b.size());
    CHECK(b[0].shape() == Shape{b.size(), 1});
    seen.insert(seen.end(), b.indices.begin(), b.indices.end());
    CHECK(std::equal(b.indices.begin(), b.indices.end(), b[0].data<std::int64_t>()));
    CHECK_THROWS_WITH_AS((void)b[2], doctest::Contains("batch: field is 2, expected 0 to 1"), IndexError);
    CHECK_THROWS_WITH_AS((void)Batch{}[0], doctest::Contains("batch: field is 0, the batch has none"), IndexError);
  }
  CHECK(sizes == std::vector<std::int64_t>{4, 4, 2});
  CHECK(seen == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("drop_last drops the short batch, and size() says so beforehand") {
  for (const std::int64_t n : {0, 1, 3, 4, 5, 8, 9}) {
    for (const bool drop : {false, true}) {
      DataLoader loader(std::make_shared<Numbers>(n), {.batch_size = 4, .drop_last = drop});
      std::int64_t batches = 0, samples = 0;
      for (const Batch& b : loader) {
        ++batches;
        samples += b.size();
      }
      CHECK(batches == loader.size());
      CHECK(samples == (drop ? n / 4 * 4 : n));
    }
  }
}

TEST_CASE("batches of shuffled epochs, random numbers included, are the same for any number of workers") {
  const auto run = [](int workers, std::uint64_t seed, std::optional<int> prefetch = {}) {
    DataLoader loader(std::make_shared<Numbers>(103), {.batch_size = 8,
                                                       .shuffle = true,
                                                       .num_workers = workers,
                                                       .prefetch_factor = prefetch,
                                                       .generator = Generator(seed)});
    return content(loader, 3);
  };
  const auto expected = run(0, 42);
  for (const int workers : {1, 2, 4, 7}) {
    for (int repeat = 0; repeat < 3; ++repeat) CHECK(run(workers, 42) == expected);
    CHECK(run(workers, 42, 1) == expected);
    CHECK(run(workers, 42, 5) == expected);
  }
  CHECK(run(2, 43) != expected);
}

TEST_CASE("every epoch has an order of its own, every sample once, and set_epoch brings one back") {
  DataLoader loader(std::make_shared<Numbers>(50), {.batch_size = 50, .shuffle = true, .generator = Generator(1)});
  std::vector<std::vector<std::int64_t>> orders;
  for (int e = 0; e < 3; ++e) {
    for (const Batch& b : loader) orders.push_back(b.indices);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  for (const auto& order : orders) CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 50);
  loader.set_epoch(1);
  for (const Batch& b : loader) CHECK(b.indices == orders[1]);
  for (const Batch& b : loader) CHECK(b.indices == orders[2]);
  CHECK_THROWS_AS(loader.set_epoch(-1), ConfigError);
}

TEST_CASE("the random numbers of a sample change with epoch and seed, not with its place in the order") {
  const auto drawn = [](std::uint64_t seed, std::int64_t epoch, bool shuffle) {
    DataLoader loader(std::make_shared<Numbers>(20),
                      {.batch_size = 3, .shuffle = shuffle, .generator = Generator(seed)});
    loader.set_epoch(epoch);
    std::vector<std::int64_t> of(20);
    for (const Batch& b : loader) {
      for (std::int64_t i = 0; i < b.size(); ++i)
        of[static_cast<std::size_t>(b.indices[static_cast<std::size_t>(i)])] = b[1].data<std::int64_t>()[2 * i];
    }
    return of;
  };
  CHECK(drawn(1, 0, true) == drawn(1, 0, false));
  CHECK(drawn(1, 0, true) != drawn(1, 1, true));
  CHECK(drawn(1, 0, true) != drawn(2, 0, true));
  const auto values = drawn(1, 0, false);
  CHECK(std::set<std::int64_t>(values.begin(), values.end()).size() == 20);
}

TEST_CASE("an error of the dataset reaches the loop at its batch, typed, with sample, epoch and worker") {
  for (const int workers : {0, 1, 4}) {
    for (const std::int64_t bad : {0, 37, 99}) {
      for (const bool levin_error : {false, true}) {
        DataLoader loader(std::make_shared<Throwing>(100, bad, levin_error),
                          {.batch_size = 10, .num_workers = workers});
        std::int64_t batches = 0;
        const auto loop = [&] {
          for ([[maybe_unused]] const Batch& b : loader) ++batches;
        };
        const std::string text = levin_error ? message<ShapeError>(loop) : message<DataError>(loop);
        CHECK(contains(text, levin_error ? "crop: shape is [3], expected [4]" : "disk on fire"));
        CHECK(contains(text, "sample " + std::to_string(bad) + " of epoch 0"));
        CHECK((contains(text, "in worker ") || contains(text, "in the calling thread")));
        CHECK(batches == bad / 10);
        // The loader itself is whole: the next epoch fails at the same place.
        batches = 0;
        CHECK_THROWS_AS(loop(), Error);
        CHECK(batches == bad / 10);
      }
    }
  }
}

TEST_CASE("errors of transform and collate surface too") {
  DataLoader bad_transform(transform(std::make_shared<Numbers>(4),
                                     [](Sample s, Generator&) -> Sample {
                                       if (*s[0].data<std::int64_t>() == 2) throw 7;
                                       return s;
                                     }),
                           {.num_workers = 2});
  CHECK(contains(message<DataError>([&] { content(bad_transform); }), "sample 2 of epoch 0"));
  DataLoader ragged(transform(std::make_shared<Numbers>(4),
                              [](Sample s, Generator&) -> Sample {
                                const std::int64_t i = *s[0].data<std::int64_t>();
                                return {empty({i == 3 ? 2 : 1}, Device::cpu())};
                              }),
                    {.batch_size = 4, .num_workers = 1});
  CHECK(
      contains(message<ShapeError>([&] { content(ragged); }), "sample 3 of the batch has shape [2], sample 0 has [1]"));
}

TEST_CASE("leaving a loop early and destroying the loader waits for what runs and no more") {
  std::atomic<int> inside{0}, loaded{0};
  class Slow final : public Numbers {
   public:
    Slow(std::atomic<int>& inside, std::atomic<int>& loaded) : Numbers(100000), inside_(inside), loaded_(loaded) {}
    Sample get(std::int64_t index, Generator& rng) const override {
      ++inside_;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      ++loaded_;
      --inside_;
      return Numbers::get(index, rng);
    }

   private:
    std::atomic<int>&inside_, &loaded_;
  };
  for (int round = 0; round < 5; ++round) {
    loaded = 0;
    {
      DataLoader loader(std::make_shared<Slow>(inside, loaded), {.batch_size = 4, .num_workers = 3});
      for (const Batch& b : loader) {
        if (b.position == round) break;
      }
      CHECK(inside == 0);  // the iterator is gone, and with it every task that runs the dataset
    }
    // Handed out, one ring of 6, and what 3 workers had begun.
    CHECK(loaded <= 4 * (round + 1 + 6 + 3));
  }
  { const DataLoader never_iterated(std::make_shared<Slow>(inside, loaded), {.num_workers = 2}); }
  CHECK(inside == 0);
}

TEST_CASE("a batch that a worker does not bring within the timeout is an error that names it") {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool worker_inside = false, open = false;
    const std::thread::id consumer = std::this_thread::get_id();
  };
  class Blocking final : public Numbers {
   public:
    explicit Blocking(Gate& gate) : Numbers(8), gate_(gate) {}
    Sample get(std::int64_t index, Generator& rng) const override {
      std::unique_lock lock(gate_.mutex);
      if (std::this_thread::get_id() == gate_.consumer) {
        // The consumer loads what no worker has begun; here it does not run ahead of the worker.
        gate_.changed.wait(lock, [&] { return gate_.worker_inside; });
      } else if (index > 0) {
        gate_.worker_inside = true;
        gate_.changed.notify_all();
        // Bounded: should the very first batch be late already, begin() throws and joins before the gate is opened.
        gate_.changed.wait_for(lock, std::chrono::seconds(2), [&] { return gate_.open; });
      }
      return Numbers::get(index, rng);
    }

   private:
    Gate& gate_;
  };
  Gate gate;
  DataLoader loader(std::make_shared<Blocking>(gate),
                    {.batch_size = 1, .num_workers = 1, .timeout = 0.05, .prefetch_factor = 8});
  std::optional<DataLoader::Iterator> it;
  const std::string text = message<DataError>([&] {
    it.emplace(loader.begin());
    while (!(*it == loader.end())) ++*it;
  });
  {
    const std::lock_guard lock(gate.mutex);
    gate.open = true;
    gate.changed.notify_all();
  }
  it.reset();  // joins the worker
  CHECK(contains(text, "of epoch 0 (samples from "));
  CHECK(contains(text, "did not come within 0.05 seconds"));
}

TEST_CASE("a loop broken off and continued from its state gives the same batches as an unbroken one") {
  const auto make = [](int workers) {
    return DataLoader(std::make_shared<Numbers>(23),
                      {.batch_size = 4, .shuffle = true, .num_workers = workers, .generator = Generator(5)});
  };
  DataLoader whole = make(0);
  std::vector<std::vector<std::int64_t>> expected;
  for (int e = 0; e < 3; ++e) {
    for (const Batch& b : whole) expected.push_back(b.indices);
  }
  CHECK(whole.state().epoch == 3);
  CHECK(whole.state().batch == 0);
  for (std::size_t stop = 0; stop <= 12; ++stop) {
    DataLoader first = make(2);
    std::vector<std::vector<std::int64_t>> got;
    for (int e = 0; e < 3 && got.size() < stop; ++e) {
      for (const Batch& b : first) {
        got.push_back(b.indices);
        if (got.size() == stop) break;
      }
    }
    DataLoader second = make(1);
    second.load_state(first.state());
    for (int e = static_cast<int>(first.state().epoch); e < 3; ++e) {
      second.set_epoch(e);
      for (const Batch& b : second) got.push_back(b.indices);
    }
    CHECK(got == expected);
  }
}

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

// The first sample that a worker takes is not there until open(); the loop's own thread does not run ahead of that.
// Bounded: without a worker everything goes on after 20 seconds, and late() stays -1.
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
      // Another loader goes on from here, in order, with the batches that are missing.
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
  // What it throws is the error of the first batch, and the next loop tries again.
  int tries = 0;
  DataLoader failing(std::make_shared<Numbers>(4), {.num_workers = 1, .worker_init = [&](int) {
                                                      if (++tries == 1) throw std::runtime_error("no handle left");
                                                    }});
  const std::string text = message<DataError>([&] { (void)failing.begin(); });
  CHECK(contains(text, "no handle left"));
  CHECK(contains(text, "worker_init"));
  CHECK(content(failing).size() == 4 * 4);
  DataLoader none(std::make_shared<Numbers>(4), {.worker_init = [&](int) { tries = -100; }});
  (void)content(none);
  CHECK(tries > 0);
}

TEST_CASE("more workers than CPUs and pin_memory without a device are told, and change nothing") {
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
  CHECK(ids == std::vector<std::string>{"W-DATA-MANY-WORKERS", "W-DATA-PIN"});
  CHECK(contains(texts[0], "num_workers is " + std::to_string(available_cpus() + 1)));
  CHECK(contains(texts[0], "num_workers = " + std::to_string(suggested_workers())));
  CHECK(content(pinned) == content(fits));
}

TEST_CASE("a loop left early is not continued by the next one") {
  DataLoader loader(std::make_shared<Numbers>(10), {.batch_size = 5});
  for ([[maybe_unused]] const Batch& b : loader) break;
  std::int64_t batches = 0;
  for ([[maybe_unused]] const Batch& b : loader) ++batches;
  CHECK(batches == 2);
}

TEST_CASE("states that do not fit the loader are refused") {
  DataLoader loader(std::make_shared<Numbers>(10), {.batch_size = 5});
  CHECK_THROWS_AS(loader.load_state({0, 3}), StateError);
  CHECK_THROWS_AS(loader.load_state({-1, 0}), StateError);
  CHECK_THROWS_AS(loader.load_state({0, -1}), StateError);
  CHECK_THROWS_AS(loader.load_state({0, 0, {2}}), StateError);
  CHECK_THROWS_AS(loader.load_state({0, 1, {1}}), StateError);
  CHECK_THROWS_AS(loader.load_state({0, 0, {1, 1}}), StateError);
  loader.load_state({0, 2});
  std::int64_t batches = 0;
  for ([[maybe_unused]] const Batch& b : loader) ++batches;
  CHECK(batches == 0);
}

TEST_CASE("samplers and batch samplers decide the order") {
  class Evens final : public BatchSampler {
   public:
    std::int64_t size() const override { return 2; }
    std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const override {
      return {{0, 2, 4}, {6 + epoch}};
    }
  };
  DataLoader loader(std::make_shared<Numbers>(10), {.batch_sampler = std::make_shared<Evens>(), .num_workers = 1});
  CHECK(loader.size() == 2);
  std::vector<std::vector<std::int64_t>> got;
  for (int e = 0; e < 2; ++e) {
    for (const Batch& b : loader) got.push_back(b.indices);
  }
  CHECK(got == std::vector<std::vector<std::int64_t>>{{0, 2, 4}, {6}, {0, 2, 4}, {7}});
  DataLoader outside(std::make_shared<Numbers>(3), {.batch_sampler = std::make_shared<Evens>()});
  CHECK_THROWS_AS((void)outside.begin(), IndexError);
  DataLoader weighted(std::make_shared<Numbers>(3),
                      {.batch_size = 100, .sampler = weighted_sampler({0, 1, 0}, 100, Generator(1))});
  for (const Batch& b : weighted) CHECK(b.indices == std::vector<std::int64_t>(100, 1));
}

TEST_CASE("samplers that do not keep their word are refused before a batch is loaded") {
  class Batches final : public BatchSampler {
   public:
    Batches(std::int64_t size, std::vector<std::vector<std::int64_t>> batches)
        : size_(size), batches_(std::move(batches)) {}
    std::int64_t size() const override { return size_; }
    std::vector<std::vector<std::int64_t>> batches(std::int64_t) const override { return batches_; }

   private:
    std::int64_t size_;
    std::vector<std::vector<std::int64_t>> batches_;
  };
  class Short final : public Sampler {
   public:
    std::int64_t size() const override { return 3; }
    std::vector<std::int64_t> indices(std::int64_t) const override { return {0, 1}; }
  };
  const auto begin = [](DataLoaderOptions options) {
    DataLoader loader(std::make_shared<Numbers>(4), std::move(options));
    return message<DataError>([&] { (void)loader.begin(); });
  };
  CHECK(
      contains(begin({.batch_sampler = std::make_shared<Batches>(2, std::vector<std::vector<std::int64_t>>{{0}, {}})}),
               "batch 1 of the batch sampler's epoch 0 is empty"));
  CHECK(contains(begin({.batch_sampler = std::make_shared<Batches>(2, std::vector<std::vector<std::int64_t>>{{0}})}),
                 "gave 1 batches for epoch 0, its size() is 2"));
  CHECK(contains(begin({.sampler = std::make_shared<Short>()}), "gave 2 indices for epoch 0, its size() is 3"));
}

TEST_CASE("a second loop inside of the first is refused, and the first goes on") {
  for (const int workers : {0, 2}) {
    DataLoader loader(std::make_shared<Numbers>(6), {.batch_size = 2, .num_workers = workers});
    int batches = 0;
    for ([[maybe_unused]] const Batch& b : loader) {
      ++batches;
      CHECK_THROWS_AS((void)loader.begin(), StateError);
    }
    CHECK(batches == 3);
    DataLoader::Iterator first = loader.begin();
    while (!(first == loader.end())) ++first;
    DataLoader::Iterator second = loader.begin();  // the first stands at its end
    CHECK((*second).indices.front() == 0);
  }
}

TEST_CASE("without batching samples pass through as they are, and a collate function replaces stacking") {
  DataLoader single(std::make_shared<Numbers>(3), {.batch_size = std::nullopt, .num_workers = 1});
  CHECK(single.size() == 3);
  for (const Batch& b : single) CHECK(b[0].shape() == Shape{1});
  DataLoader own(
      std::make_shared<Numbers>(3),
      {.batch_size = 2, .num_workers = 1, .collate = [](std::span<const Sample> s) { return Tensors{s.back()[0]}; }});
  std::vector<std::int64_t> last;
  for (const Batch& b : own) last.push_back(*b[0].data<std::int64_t>());
  CHECK(last == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("options that contradict each other are refused before any work") {
  const DatasetRef d = std::make_shared<Numbers>(4);
  const auto make = [&](DataLoaderOptions o) { const DataLoader loader(d, std::move(o)); };
  class None final : public BatchSampler {
   public:
    std::int64_t size() const override { return 0; }
    std::vector<std::vector<std::int64_t>> batches(std::int64_t) const override { return {}; }
  };
  const auto none = std::make_shared<None>();
  CHECK_THROWS_AS(make({.batch_size = 0}), ConfigError);
  CHECK_THROWS_AS(make({.num_workers = -1}), ConfigError);
  CHECK_THROWS_AS(make({.timeout = -1}), ConfigError);
  CHECK_THROWS_AS(make({.prefetch_factor = 2}), ConfigError);
  CHECK_THROWS_AS(make({.num_workers = 1, .prefetch_factor = 0}), ConfigError);
  CHECK_THROWS_AS(make({.persistent_workers = true}), ConfigError);
  CHECK_NOTHROW(make({.num_workers = 1, .persistent_workers = true}));
  CHECK_THROWS_AS(make({.shuffle = true, .sampler = sequential_sampler(4)}), ConfigError);
  CHECK_THROWS_AS(make({.batch_size = std::nullopt, .drop_last = true}), ConfigError);
  CHECK_THROWS_AS(make({.batch_size = 2, .batch_sampler = none}), ConfigError);
  CHECK_THROWS_AS(make({.shuffle = true, .batch_sampler = none}), ConfigError);
  CHECK_THROWS_AS(make({.sampler = sequential_sampler(4), .batch_sampler = none}), ConfigError);
  CHECK_THROWS_AS(make({.batch_sampler = none, .drop_last = true}), ConfigError);
  CHECK_THROWS_AS(DataLoader(nullptr), ConfigError);
  CHECK_NOTHROW(make({.batch_sampler = none, .num_workers = 2}));
}

// Notes under which modes samples are loaded, by workers and by the calling thread. The latter begins no sample before a
// worker has loaded one, so both are seen.
struct ModeSpy : Numbers {
  explicit ModeSpy(std::int64_t n) : Numbers(n) {}
  Sample get(std::int64_t index, Generator& rng) const override {
    const bool is_worker = std::this_thread::get_id() != caller;
    std::unique_lock lock(mutex);
    if (!is_worker) seen.wait_for(lock, std::chrono::seconds(10), [&] { return workers > 0; });
    workers += is_worker;
    callers += !is_worker;
    seen.notify_all();
    recording.insert(grad_mode());
    try {
      const GradMode on(true);
      may_record.insert(true);
    } catch (const StateError&) { may_record.insert(false); }
    return Numbers::get(index, rng);
  }
  const std::thread::id caller = std::this_thread::get_id();
  mutable std::mutex mutex;
  mutable std::condition_variable seen;
  mutable int workers = 0, callers = 0;
  mutable std::set<bool> recording, may_record;
};

TEST_CASE("every sample is loaded under the modes of the thread that began the loop, whichever thread loads it") {
  for (const bool in_order : {true, false}) {
    const auto load_all = [&](auto& begin) {
      const auto spy = std::make_shared<ModeSpy>(64);
      DataLoader loader(spy, {.batch_size = 1, .num_workers = 2, .in_order = in_order});
      begin(loader);
      CHECK(spy->workers > 0);
      CHECK(spy->callers > 0);
      CHECK(spy->workers + spy->callers == 64);
      return std::pair(spy->recording, spy->may_record);
    };
    const std::set<bool> yes{true}, no{false};
    const auto take_all = [](DataLoader& loader) {
      std::int64_t batches = 0;
      for (const Batch& b : loader) batches += b.size();
      CHECK(batches == 64);
    };
    CHECK(load_all(take_all) == std::pair(yes, yes));
    const auto without_recording = [&](DataLoader& loader) {
      const NoGrad off;
      take_all(loader);
    };
    CHECK(load_all(without_recording) == std::pair(no, yes));
    const auto inference = [&](DataLoader& loader) {
      const InferenceMode on;
      take_all(loader);
    };
    CHECK(load_all(inference) == std::pair(no, no));
    const auto begun_before = [](DataLoader& loader) {
      auto batch = loader.begin();
      const NoGrad off;
      while (batch != loader.end()) {
        ++batch;
        CHECK_FALSE(grad_mode());  // the calling thread's own mode is back
      }
    };
    CHECK(load_all(begun_before) == std::pair(yes, yes));
  }
}

TEST_CASE("several loaders run at once, also one inside of the other's loop") {
  DataLoader outer(std::make_shared<Numbers>(20), {.batch_size = 5, .num_workers = 2});
  DataLoader inner(std::make_shared<Numbers>(6), {.batch_size = 2, .num_workers = 2});
  std::int64_t count = 0;
  for ([[maybe_unused]] const Batch& a : outer) {
    for ([[maybe_unused]] const Batch& b : inner) ++count;
  }
  CHECK(count == 12);
}

TEST_CASE("the machine has a CPU, and suggested workers leave one free") {
  CHECK(available_cpus() >= 1);
  CHECK(suggested_workers(1) == std::max(1, available_cpus() - 1));
  CHECK(suggested_workers(1000000) == 1);
  CHECK_THROWS_AS((void)suggested_workers(0), ConfigError);
}
