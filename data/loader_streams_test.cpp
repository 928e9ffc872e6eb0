// Loaders over streams: order, ends, workers, errors, and the position of a loop that resumes.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "data/loader_fixture_test.h"
#include "levin/data.h"
#include "tests/warnings.h"
using namespace levin;
using namespace levin::data;
using namespace levin::data::testing;

namespace {

enum class Division { by_batch, by_sample, all_to_first };

// Numbers 0 .. n-1 as a stream: sample {i, a random number, the epoch}.
class Counting : public IterableDataset {
 public:
  struct Options {
    std::int64_t n = 0;
    Division division = Division::by_batch;
    bool seeks = false, declares = false;
    std::int64_t bad = -1;             // this sample throws
    std::atomic<int>* read = nullptr;  // counts samples
  };
  explicit Counting(Options o) : o_(o) {}
  std::optional<std::int64_t> size() const override { return o_.declares ? std::optional(o_.n) : std::nullopt; }
  std::unique_ptr<SampleStream> stream(const WorkerInfo& info) const override {
    CHECK(worker_info().has_value());
    CHECK(worker_info()->id == info.id);
    return std::make_unique<Stream>(o_, info);
  }

 private:
  class Stream final : public SampleStream {
   public:
    Stream(const Options& o, const WorkerInfo& info) : o_(o), info_(info) {}
    std::optional<Sample> next(Generator& rng) override {
      if (!worker_info() || worker_info()->id != info_.id) throw std::runtime_error("read as another worker");
      while (at_ < o_.n && !mine(at_)) ++at_;
      if (at_ >= o_.n) return std::nullopt;
      if (o_.read) ++*o_.read;
      if (at_ == o_.bad) throw std::runtime_error("the stream broke");
      Tensor x = empty({3}, Device::cpu(), DType::i64);
      x.mutable_data<std::int64_t>()[0] = at_++;
      x.mutable_data<std::int64_t>()[1] = rng.integer(0, 1 << 30);
      x.mutable_data<std::int64_t>()[2] = info_.epoch;
      return Sample{x};
    }
    bool skip(std::int64_t n) override {
      if (!o_.seeks) return false;
      for (; n > 0 && at_ < o_.n; ++at_) n -= mine(at_);
      return true;
    }

   private:
    [[nodiscard]] bool mine(std::int64_t i) const {
      switch (o_.division) {
        case Division::by_batch: return info_.owns(i);
        case Division::by_sample: return i % info_.num_workers == info_.id;
        case Division::all_to_first: return info_.id == 0;
      }
      return false;
    }
    Options o_;
    WorkerInfo info_;
    std::int64_t at_ = 0;
  };
  Options o_;
};

DataLoader over(Counting::Options o, DataLoaderOptions options) {
  return DataLoader(std::make_shared<Counting>(o), std::move(options));
}
// The samples of an epoch, batch by batch.
using Batches = std::vector<std::vector<std::int64_t>>;
std::vector<std::int64_t> values(const Batch& b) {
  CHECK(b.size() == b[0].size(0));
  return b[0].to_vector<std::int64_t>();
}
Batches batches(DataLoader& loader) {
  Batches all;
  for (const Batch& b : loader) all.push_back(values(b));
  return all;
}
std::vector<std::int64_t> first_column(const Batches& all) {
  std::vector<std::int64_t> samples;
  for (const auto& b : all) {
    for (std::size_t i = 0; i < b.size(); i += 3) samples.push_back(b[i]);
  }
  return samples;
}

}  // namespace

TEST_CASE("streams that give what they own give the same batches and random numbers for any number of workers") {
  for (const std::int64_t n : {0, 1, 7, 8, 30, 64}) {
    for (const bool drop : {false, true}) {
      DataLoader one = over({.n = n}, {.batch_size = 4, .drop_last = drop, .generator = Generator(3)});
      const Batches first = batches(one), second = batches(one);
      CHECK(static_cast<std::int64_t>(first.size()) == (drop ? n / 4 : (n + 3) / 4));
      if (n > 4) CHECK(first != second);  // the epoch is in the sample
      for (const int workers : {1, 2, 5}) {
        CAPTURE(n);
        CAPTURE(workers);
        DataLoader several =
            over({.n = n}, {.batch_size = 4, .num_workers = workers, .drop_last = drop, .generator = Generator(3)});
        CHECK(batches(several) == first);
        CHECK(batches(several) == second);
        CHECK(several.state().epoch == 2);
      }
    }
  }
}

TEST_CASE("streams divided by sample give every sample once, in an order that the number of workers decides") {
  std::vector<std::int64_t> all(26);
  for (std::int64_t i = 0; i < 26; ++i) all[static_cast<std::size_t>(i)] = i;
  for (const int workers : {0, 1, 3}) {
    Batches before;
    for (int repeat = 0; repeat < 3; ++repeat) {
      DataLoader loader = over({.n = 26, .division = Division::by_sample}, {.batch_size = 4, .num_workers = workers});
      const Batches got = batches(loader);
      if (repeat > 0) CHECK(got == before);
      before = got;
      std::vector<std::int64_t> samples = first_column(got);
      if (workers == 3)
        CHECK(std::vector(samples.begin(), samples.begin() + 8) == std::vector<std::int64_t>{0, 3, 6, 9, 1, 4, 7, 10});
      std::sort(samples.begin(), samples.end());
      CHECK(samples == all);
    }
  }
}

TEST_CASE("a stream that ends before the others leaves its turns out, and says which") {
  DataLoader loader = over({.n = 12, .division = Division::all_to_first}, {.batch_size = 3, .num_workers = 3});
  std::vector<std::int64_t> positions, absent;
  LoaderState state;
  for (const Batch& b : loader) {
    positions.push_back(b.position);
    absent.insert(absent.end(), b.absent.begin(), b.absent.end());
    state.hand_out(b);
    CHECK(b.indices.front() == b.position * 3);
    CHECK(state.batch == b.position + 1);
    CHECK(state.ahead.empty());
    CHECK(loader.state().batch == state.batch);
  }
  CHECK(positions == std::vector<std::int64_t>{0, 3, 6, 9});
  CHECK(absent == std::vector<std::int64_t>{1, 2, 4, 5, 7, 8});
}

TEST_CASE("without in_order batches of streams come as they finish, each as in order, and every one comes") {
  for (const Division division : {Division::by_batch, Division::by_sample, Division::all_to_first}) {
    std::map<std::int64_t, std::vector<std::int64_t>> expected, got;
    DataLoader ordered = over({.n = 50, .division = division}, {.batch_size = 4, .num_workers = 3});
    for (const Batch& b : ordered) expected[b.position] = values(b);
    for (int repeat = 0; repeat < 5; ++repeat) {
      got.clear();
      DataLoader loader = over({.n = 50, .division = division}, {.batch_size = 4, .num_workers = 3, .in_order = false});
      for (const Batch& b : loader) got[b.position] = values(b);
      CHECK(got == expected);
    }
  }
}

TEST_CASE("without in_order the batches of one stream come in its order, although a later one is finished first") {
  std::promise<void> opens;
  const std::shared_future<void> open = opens.get_future().share();
  // With a timeout the calling thread loads nothing. One thread has batch 0, and the only worker beside it has 1, 2 and
  // 3. So batch 2 is finished when batch 3 lets batch 0 go on.
  const auto collate = [&](std::span<const Sample> samples) {
    const std::int64_t first = samples.front()[0].data<std::int64_t>()[0];
    if (first == 0) CHECK(open.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
    if (first == 12) opens.set_value();
    return data::collate(samples);
  };
  DataLoader loader =
      over({.n = 16}, {.batch_size = 4, .num_workers = 2, .collate = collate, .timeout = 60, .in_order = false});
  std::vector<std::int64_t> even, odd;
  for (const Batch& b : loader) {
    if (even.empty() && odd.empty()) CHECK(b.position == 1);
    (b.position % 2 == 0 ? even : odd).push_back(b.position);
  }
  CHECK(even == std::vector<std::int64_t>{0, 2});
  CHECK(odd == std::vector<std::int64_t>{1, 3});
}

TEST_CASE("a loop over streams that stops at any batch resumes with the same batches, whether streams seek or not") {
  for (const bool seeks : {false, true}) {
    for (const Division division : {Division::by_batch, Division::by_sample, Division::all_to_first}) {
      for (const bool in_order : {true, false}) {
        const DataLoaderOptions options{
            .batch_size = 4, .num_workers = 2, .in_order = in_order, .generator = Generator(8)};
        std::map<std::int64_t, std::vector<std::int64_t>> expected;
        DataLoader whole = over({.n = 30, .division = division}, options);
        for (const Batch& b : whole) expected[b.position] = values(b);
        for (std::size_t stop = 1; stop <= expected.size(); ++stop) {
          std::map<std::int64_t, std::vector<std::int64_t>> got;
          DataLoader first = over({.n = 30, .division = division}, options);
          for (const Batch& b : first) {
            got[b.position] = values(b);
            if (got.size() == stop) break;
          }
          DataLoader second = over({.n = 30, .division = division, .seeks = seeks}, options);
          second.load_state(first.state());
          for (const Batch& b : second) {
            CHECK_FALSE(got.contains(b.position));
            got[b.position] = values(b);
          }
          CHECK(got == expected);
          CHECK(second.state().epoch == 1);
        }
      }
    }
  }
  std::atomic<int> read = 0;
  DataLoader seeking = over({.n = 400, .seeks = true, .read = &read}, {.batch_size = 4});
  seeking.load_state({.epoch = 0, .batch = 99});
  CHECK(first_column(batches(seeking)) == std::vector<std::int64_t>{396, 397, 398, 399});
  CHECK(read == 4);
}

TEST_CASE("streams that give what they own resume with other numbers of workers, also behind batches that came ahead") {
  const LoaderState state{.batch = 1, .ahead = {3, 4, 9}};
  const std::int64_t n = 4 * 11 + 2;  // 12 batches
  for (const bool in_order : {true, false}) {
    for (const bool seeks : {false, true}) {
      std::map<std::int64_t, std::vector<std::int64_t>> expected;
      DataLoader whole = over({.n = n}, {.batch_size = 4, .generator = Generator(8)});
      for (const Batch& b : whole) {
        if (b.position >= state.batch && !std::binary_search(state.ahead.begin(), state.ahead.end(), b.position))
          expected[b.position] = values(b);
      }
      for (const int workers : {1, 2, 3, 5}) {
        CAPTURE(workers);
        std::map<std::int64_t, std::vector<std::int64_t>> got;
        DataLoader loader = over(
            {.n = n, .seeks = seeks},
            {.batch_size = 4, .num_workers = workers, .timeout = 30, .in_order = in_order, .generator = Generator(8)});
        loader.load_state(state);
        for (const Batch& b : loader) got[b.position] = values(b);
        CHECK(got == expected);
        CHECK(loader.state().epoch == 1);
      }
    }
  }
}

TEST_CASE("an error of a stream reaches the loop at its batch, with sample, epoch and worker") {
  for (const int workers : {0, 1, 3}) {
    DataLoader loader = over({.n = 40, .bad = 22}, {.batch_size = 4, .num_workers = workers});
    std::int64_t count = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      count = 0;
      const std::string text = message<DataError>([&] {
        for ([[maybe_unused]] const Batch& b : loader) ++count;
      });
      CHECK(count == 5);
      CHECK(contains(text, "the stream broke"));
      CHECK(contains(text, "reading sample 22 of epoch " + std::to_string(epoch)));
      CHECK((contains(text, "in worker ") || contains(text, "in the calling thread")));
    }
  }
  struct Nothing final : IterableDataset {
    std::unique_ptr<SampleStream> stream(const WorkerInfo&) const override { return nullptr; }
  };
  DataLoader none(std::make_shared<Nothing>(), {.num_workers = 1});
  CHECK(contains(message<DataError>([&] { (void)batches(none); }), "stream() returned null for reader 0"));
  CHECK_FALSE(worker_info().has_value());
}

TEST_CASE("an error of worker_init reaches the loop, and no thread waits for the batch that it kept from being read") {
  const test::Warnings warnings;
  std::atomic<int> calls{0}, read{0};
  const auto init = [&](int) {
    if (calls++ > 0) return;
    // Another worker reads the other stream, and then waits for this one.
    for (int ms = 0; ms < 3000 && read == 0; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw std::runtime_error("no connection");
  };
  DataLoader loader = over({.n = 64, .read = &read}, {.batch_size = 2, .num_workers = 2, .worker_init = init});
  CHECK(contains(message<DataError>([&] { (void)batches(loader); }), "no connection; in worker_init"));
  CHECK(warnings.count("W-DATA-LEFT") == 0);
}

TEST_CASE("a state that no loop over streams reaches is refused, so that it fills no memory and overflows nothing") {
  constexpr std::int64_t far = std::int64_t{1} << 40;
  DataLoader loader = over({.n = 64}, {.batch_size = 4, .num_workers = 2, .in_order = false});
  CHECK(contains(message<StateError>([&] {
                   loader.load_state({.batch = 3, .ahead = {5, far}});
                 }),
                 "batches before it were not, expected at most 1048576"));
  CHECK(contains(message<StateError>([&] { loader.load_state({.batch = std::int64_t{1} << 60}); }),
                 "expected an epoch from 0 and a batch from 0 to 576460752303423488"));
  loader.load_state({.batch = 3, .ahead = {5, 1000}});
}

TEST_CASE("a stream that blocks ends the loop by its timeout, and is left behind") {
  test::Warnings warnings;
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false, done = false;
  };
  const auto gate = std::make_shared<Gate>();
  struct Blocking final : IterableDataset {
    explicit Blocking(std::shared_ptr<Gate> g) : gate(std::move(g)) {}
    struct Blocked final : SampleStream {
      explicit Blocked(std::shared_ptr<Gate> g) : gate(std::move(g)) {}
      std::optional<Sample> next(Generator&) override {
        std::unique_lock lock(gate->mutex);
        gate->changed.wait_for(lock, std::chrono::seconds(30), [&] { return gate->open; });
        gate->done = true;
        gate->changed.notify_all();
        return std::nullopt;
      }
      std::shared_ptr<Gate> gate;
    };
    std::unique_ptr<SampleStream> stream(const WorkerInfo&) const override { return std::make_unique<Blocked>(gate); }
    std::shared_ptr<Gate> gate;
  };
  {
    DataLoader loader(std::make_shared<Blocking>(gate), {.batch_size = 2, .num_workers = 2, .timeout = 0.2});
    const std::string text = message<DataError>([&] { (void)batches(loader); });
    CHECK(contains(text, "loader: batch 0 of epoch 0 (stream 0) did not come within 0.2 seconds"));
    CHECK(warnings.count("W-DATA-LEFT") == 1);
  }
  std::unique_lock lock(gate->mutex);
  CHECK_FALSE(gate->done);
  gate->open = true;
  gate->changed.notify_all();
  CHECK(gate->changed.wait_for(lock, std::chrono::seconds(30), [&] { return gate->done; }));
}

TEST_CASE("streams have a length where they declare one, and refuse what needs an index") {
  const auto with = [](DataLoaderOptions o) {
    return message<ConfigError>([&] { (void)over({.n = 10}, std::move(o)); });
  };
  class None final : public BatchSampler {
   public:
    std::int64_t size() const override { return 0; }
    std::vector<std::vector<std::int64_t>> batches(std::int64_t) const override { return {}; }
  };
  CHECK(contains(with({.shuffle = true}), "shuffle comes with an IterableDataset"));
  CHECK(contains(with({.sampler = sequential_sampler(10)}), "sampler comes with an IterableDataset"));
  CHECK(contains(with({.batch_sampler = std::make_shared<None>()}), "batch_sampler comes with an IterableDataset"));
  CHECK(contains(with({.batch_size = 0}), "batch_size is 0"));
  CHECK_THROWS_AS(DataLoader(IterableDatasetRef(nullptr), {}), ConfigError);
  DataLoader unknown = over({.n = 10}, {.batch_size = 4});
  CHECK_FALSE(unknown.length().has_value());
  CHECK_THROWS_WITH_AS((void)unknown.size(), doctest::Contains("without a length"), StateError);
  CHECK(unknown.dataset() == nullptr);
  CHECK(unknown.stream() != nullptr);
  CHECK_FALSE(unknown.shuffles());
  CHECK(over({.n = 10, .declares = true}, {.batch_size = 4}).size() == 3);
  CHECK(over({.n = 10, .declares = true}, {.batch_size = 4, .drop_last = true}).length() == 2);
  CHECK_THROWS_WITH_AS((void)combine({{"s", &unknown}}), doctest::Contains("reads streams"), ConfigError);
  DataLoader single = over({.n = 3}, {.batch_size = std::nullopt, .num_workers = 1});
  for (const Batch& b : single) CHECK(b[0].shape() == Shape{3});
  DataLoader own =
      over({.n = 5}, {.batch_size = 2, .collate = [](std::span<const Sample> s) { return Tensors{s.back()[0]}; }});
  std::vector<std::int64_t> last;
  for (const Batch& b : own) last.push_back(b[0].data<std::int64_t>()[0]);
  CHECK(last == std::vector<std::int64_t>{1, 3, 4});
}
