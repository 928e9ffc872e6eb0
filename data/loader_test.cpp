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
using namespace levin;
using namespace levin::data;
using namespace levin::data::testing;

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

TEST_CASE("an epoch in sequence has the order of the dataset, that epoch's random numbers, and shuffling comes back") {
  DataLoader shuffled(std::make_shared<Numbers>(7), {.batch_size = 3, .shuffle = true, .generator = Generator(1)});
  DataLoader plain(std::make_shared<Numbers>(7), {.batch_size = 3, .generator = Generator(1)});
  const std::vector<std::int64_t> first = content(shuffled), second = content(shuffled);
  plain.set_epoch(1);
  shuffled.load_state({.epoch = 1, .in_sequence = true});
  CHECK(content(shuffled) == content(plain));
  CHECK(content(shuffled) != content(plain));  // epoch 2 of both
  shuffled.set_epoch(1);
  CHECK(content(shuffled) == second);
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
        // The loader still works: the next epoch fails at the same place.
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
    // Handed out, one ring of 6, and the batches that 3 workers had begun.
    CHECK(loaded <= 4 * (round + 1 + 6 + 3));
  }
  { const DataLoader never_iterated(std::make_shared<Slow>(inside, loaded), {.num_workers = 2}); }
  CHECK(inside == 0);
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

TEST_CASE("a sampler that throws costs no epoch and no position: the next loop begins where this one should have") {
  class Once final : public Sampler {
   public:
    mutable std::vector<std::int64_t> epochs;
    mutable bool fails = true;
    std::int64_t size() const override { return 4; }
    std::vector<std::int64_t> indices(std::int64_t epoch) const override {
      epochs.push_back(epoch);
      if (std::exchange(fails, !fails)) fail<FileError>("the index file");
      return {3, 2, 1, 0};
    }
  };
  const auto sampler = std::make_shared<Once>();
  DataLoader loader(std::make_shared<Numbers>(4), {.sampler = sampler});
  const auto positions = [&] {
    std::vector<std::int64_t> all;
    for (const Batch& b : loader) all.push_back(b.position);
    return all;
  };
  CHECK_THROWS_AS((void)positions(), FileError);
  CHECK(positions() == std::vector<std::int64_t>{0, 1, 2, 3});
  loader.load_state({.epoch = 5, .batch = 2});
  CHECK_THROWS_AS((void)positions(), FileError);
  CHECK(positions() == std::vector<std::int64_t>{2, 3});
  CHECK(sampler->epochs == std::vector<std::int64_t>{0, 0, 5, 5});
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
  CHECK_THROWS_AS(DataLoader(data::DatasetRef()), ConfigError);
  CHECK_THROWS_AS(DataLoader(nullptr), ConfigError);
  CHECK_NOTHROW(make({.batch_sampler = none, .num_workers = 2}));
}

// Notes the modes under which workers and the calling thread load samples. The calling thread begins no sample before a
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
