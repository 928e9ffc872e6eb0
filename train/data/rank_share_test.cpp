// The part of the data that each rank reads: Note [Loaders of ranks].
#include "train/data/rank_share.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "tests/warnings.h"
#include "train/data/rank_fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;
using Numbers = test::Numbers;

namespace {

// Samples that each of `ranks` trains in `epochs`, of a loader that `make` makes.
template <class Make>
std::vector<Numbers> trained(int ranks, const Make& make, std::int64_t epochs = 1,
                             const Function<void(TrainerOptions&)>& change = {}) {
  std::vector<Numbers> samples(static_cast<std::size_t>(ranks));
  test::on_ranks(ranks, [&](int rank, TrainerOptions options) {
    options.max_epochs = epochs;
    if (change) change(options);
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    auto data = make(rank);
    Trainer trainer(options);
    trainer.fit(probe, {.train = data});
    samples[static_cast<std::size_t>(rank)] = probe.samples;
  });
  return samples;
}
data::DatasetRef ramp(std::int64_t n) {
  Tensor x = empty({n, 1}, Device::cpu());
  for (std::int64_t i = 0; i < n; ++i) x.mutable_data<float>()[i] = static_cast<float>(i + 1);
  return data::tensor_dataset({x});
}
// The samples of rank r's batches, where the ranks take every size-th place of `order`.
Numbers dealt(const Numbers& order, std::size_t r, std::size_t ranks) {
  Numbers mine;
  const std::size_t each = (order.size() + ranks - 1) / ranks;
  for (std::size_t i = 0; i < each; ++i) mine.push_back(order[(r + i * ranks) % order.size()]);
  return mine;
}
template <class E, class F>
std::vector<std::string> errors(int ranks, const F& f) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks), "none");
  test::on_ranks(ranks, [&](int rank, TrainerOptions options) {
    try {
      f(rank, options);
    } catch (const E& e) { all[static_cast<std::size_t>(rank)] = e.what(); }
  });
  return all;
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("ranks share a shuffled epoch in the order of one process, padded to equal batches") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::int64_t n : {1, 2, 5, 8, 13, 16, 17}) {
      CAPTURE(ranks);
      CAPTURE(n);
      const auto make = [&](int) {
        return data::DataLoader(ramp(n), {.batch_size = 2, .shuffle = true, .generator = Generator(4)});
      };
      const std::vector<Numbers> all = trained(ranks, make, 2);
      for (std::size_t r = 0; r < all.size(); ++r) {
        Numbers wanted;
        for (const std::int64_t epoch : {0, 1}) {
          const Numbers order = data::random_sampler(n, Generator(4))->indices(epoch);
          const Numbers mine = dealt(order, r, all.size());
          wanted.insert(wanted.end(), mine.begin(), mine.end());
        }
        CHECK(all[r] == wanted);
      }
    }
  }
}

TEST_CASE(
    "a training loader without a sampler shuffles on several ranks, with a note, and its own sampler's order stays") {
  const test::ExpectedWarnings noted{"I-DATA-SHUFFLE"};
  const auto plain = [](int) { return data::DataLoader(ramp(9), {.batch_size = 2, .generator = Generator(6)}); };
  const Numbers order = data::random_sampler(9, Generator(6))->indices(0);
  std::vector<Numbers> all = trained(2, plain);
  for (std::size_t r = 0; r < 2; ++r) CHECK(all[r] == dealt(order, r, 2));
  const auto kept = [](int) {
    return data::DataLoader(ramp(9), {.batch_size = 2, .sampler = data::sequential_sampler(9)});
  };
  all = trained(2, kept);
  for (std::size_t r = 0; r < 2; ++r) CHECK(all[r] == dealt({0, 1, 2, 3, 4, 5, 6, 7, 8}, r, 2));
  all = trained(1, plain);
  CHECK(all[0] == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8});  // one rank reads as one process
}

TEST_CASE("rank 0 draws the order of a sampler that differs between ranks, and batch samplers are divided by it") {
  const auto own = [](int rank) {
    return data::DataLoader(
        ramp(8), {.batch_size = 2, .sampler = data::subset_random_sampler({1, 3, 5, 7, 2}, Generator(rank))});
  };
  const Numbers order = data::subset_random_sampler({1, 3, 5, 7, 2}, Generator(0))->indices(0);
  std::vector<Numbers> all = trained(3, own);
  for (std::size_t r = 0; r < 3; ++r) CHECK(all[r] == dealt(order, r, 3));
  const auto cut = [](int) {
    return data::DataLoader(ramp(8),
                            {.batch_sampler = data::batch_sampler(data::random_sampler(8, Generator(3)), 3, true)});
  };
  all = trained(2, cut);  // four samples a rank, of which drop_last leaves three
  for (std::size_t r = 0; r < 2; ++r) {
    Numbers mine = dealt(data::random_sampler(8, Generator(3))->indices(0), r, 2);
    mine.resize(3);
    CHECK(all[r] == mine);
  }
}

TEST_CASE("a batch sampler of the user's that names no order is refused, and is left alone on request") {
  struct Pairs final : data::BatchSampler {
    std::int64_t size() const override { return 2; }
    std::vector<std::vector<std::int64_t>> batches(std::int64_t) const override { return {{0, 1}, {2, 3}}; }
  };
  const auto make = [](int) { return data::DataLoader(ramp(4), {.batch_sampler = std::make_shared<Pairs>()}); };
  for (const std::string& error : errors<ConfigError>(2, [&](int rank, TrainerOptions options) {
         test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
         auto data = make(rank);
         Trainer(options).fit(probe, {.train = data});
       })) {
    CHECK(contains(error, "the train_loader has a batch sampler of its own"));
    CHECK(contains(error, "use_distributed_sampler = false"));
  }
  const std::vector<Numbers> all = trained(2, make, 1, [](TrainerOptions& o) { o.use_distributed_sampler = false; });
  for (const Numbers& mine : all) CHECK(mine == Numbers{0, 1, 2, 3});
}

TEST_CASE("a sampler that is distributed already stays, and overfit_batches reads every rank's part in order") {
  const auto by_hand = [](int rank) {
    return data::DataLoader(
        ramp(8),
        {.batch_size = 2, .sampler = data::distributed_sampler(8, {.rank = 1 - rank, .world = 2, .shuffle = false})});
  };
  std::vector<Numbers> all = trained(2, by_hand);
  CHECK(all[0] == Numbers{1, 3, 5, 7});
  CHECK(all[1] == Numbers{0, 2, 4, 6});
  const test::ExpectedWarnings noted{"W-TRAIN-OVERFIT"};
  const auto shuffled = [](int) { return data::DataLoader(ramp(12), {.batch_size = 2, .shuffle = true}); };
  const auto few = [](TrainerOptions& o) { o.overfit_batches = 2; };
  all = trained(2, shuffled, 2, few);
  CHECK(all[0] == Numbers{0, 2, 4, 6, 0, 2, 4, 6});
  CHECK(all[1] == Numbers{1, 3, 5, 7, 1, 3, 5, 7});
}

TEST_CASE("combined loaders are divided part by part, and their batches are as many on every rank") {
  std::vector<std::vector<Numbers>> seen(3, std::vector<Numbers>(2));
  std::vector<std::int64_t> batches(3);
  test::on_ranks(3, [&](int rank, const TrainerOptions& options) {
    struct Both final : TrainModuleOf<Both, test::Probe> {
      using TrainModuleOf<Both, test::Probe>::TrainModuleOf;
      std::vector<Numbers>* to = nullptr;
      StepOutput training_step(const Batch& b, std::int64_t) override {
        for (std::size_t k = 0; k < 2; ++k)
          (*to)[k].insert((*to)[k].end(), b.parts[k].indices.begin(), b.parts[k].indices.end());
        return mean(b[0] * w);
      }
    } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    const auto r = static_cast<std::size_t>(rank);
    module.to = &seen[r];
    const auto options_of = [](std::uint64_t seed) {
      return data::DataLoaderOptions{.batch_size = 2, .shuffle = true, .generator = Generator(seed)};
    };
    data::DataLoader a(ramp(13), options_of(1)), b(ramp(4), options_of(2));
    data::DataLoader both = data::combine({{"a", &a}, {"b", &b}}, data::CombineMode::max_size);
    Trainer trainer(options);
    trainer.fit(module, {.train = both});
    batches[r] = trainer.total_batch_idx();
  });
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(batches[r] == 3);
    CHECK(seen[r][0] == dealt(data::random_sampler(13, Generator(1))->indices(0), r, 3));
    CHECK(seen[r][1] == dealt(data::random_sampler(4, Generator(2))->indices(0), r, 3));
  }
}

TEST_CASE("training loaders that differ between ranks are an error on all of them, which shows both") {
  const auto fit = [](int rank, const TrainerOptions& options, std::int64_t n, std::uint64_t seed) {
    (void)rank;
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data(ramp(n), {.batch_size = 2, .shuffle = true, .generator = Generator(seed)});
    Trainer(options).fit(probe, {.train = data});
  };
  for (const std::string& error :
       errors<ConfigError>(2, [&](int r, const TrainerOptions&o) { fit(r, o, 10 + r, 4); })) {
    CHECK(contains(error, "rank 0 has 10 samples, batch_size 2, seed 4, 3 batches an epoch"));
    CHECK(contains(error, "rank 1 has 11 samples"));
  }
  for (const std::string& error :
       errors<ConfigError>(2, [&](int r, const TrainerOptions&o) { fit(r, o, 10, static_cast<std::uint64_t>(4 + r)); }))
    CHECK(contains(error, "rank 1 has 10 samples, batch_size 2, seed 5"));
  for (const std::string& error : errors<ConfigError>(2, [&](int r, TrainerOptions o) {
         o.limit_train_batches = 2 - r;
         fit(r, o, 10, 4);
       }))
    CHECK(contains(error, "2 batches an epoch; rank 1 has 10 samples, batch_size 2, seed 4, 1 batches an epoch"));
}

TEST_CASE("a strategy of shards gets the batches of its shards in turn, whatever the number of ranks") {
  struct Sharded final : test::Averaging {
    Sharded(const std::shared_ptr<dist::ProcessGroup>& group, int shards) : Averaging(group), shards_(shards) {}
    DataShare share() const override {
      return {.index = ranks().rank, .replicas = ranks().size, .shards = shards_ / ranks().size};
    }
    int shards_;
  };
  const auto read = [](int ranks) {
    std::vector<Numbers> samples(static_cast<std::size_t>(ranks));
    dist::run_local(ranks, [&](const std::shared_ptr<dist::ProcessGroup>& group) {
      TrainerOptions options = test::silent();
      options.max_epochs = 1;
      options.strategy = std::make_shared<Sharded>(group, 4);
      test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      data::DataLoader data(ramp(21), {.batch_size = 8 / ranks, .shuffle = true, .generator = Generator(2)});
      Trainer(options).fit(probe, {.train = data});
      samples[static_cast<std::size_t>(group->rank())] = probe.samples;
    });
    return samples;
  };
  const std::vector<Numbers> four = read(4);  // 2 samples of a shard in each batch, 6 in the epoch
  for (const int ranks : {1, 2}) {
    const std::vector<Numbers> all = read(ranks);
    const std::size_t shards = 4 / static_cast<std::size_t>(ranks);
    for (std::size_t r = 0; r < all.size(); ++r) {
      Numbers wanted;
      for (std::size_t k = 0; k < 6; k += 2) {
        for (std::size_t v = r * shards; v < (r + 1) * shards; ++v)
          wanted.insert(wanted.end(), {four[v][k], four[v][k + 1]});
      }
      CHECK(all[r] == wanted);
    }
  }
  test::on_ranks(1, [&](int, TrainerOptions options) {
    const auto group = std::static_pointer_cast<ProcessStrategy>(options.strategy.object());
    group->connect(options);
    options.strategy = std::make_shared<Sharded>(group->group(), 4);
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data(ramp(21), {.batch_size = 6, .shuffle = true});
    CHECK_THROWS_WITH_AS(Trainer(options).fit(probe, {.train = data}), doctest::Contains("batches of 6 samples"),
                         ConfigError);
  });
}
