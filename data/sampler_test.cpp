// The orders of samplers.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "data/loader_fixture_test.h"
#include "levin/data.h"
using namespace levin;
using namespace levin::data;
using namespace levin::data::testing;

namespace {

using Indices = std::vector<std::int64_t>;
std::vector<Indices> ranks(std::int64_t n, DistributedSamplerOptions o, std::int64_t epoch = 0) {
  std::vector<Indices> all;
  for (o.rank = 0; o.rank < o.world; ++o.rank) {
    const SamplerRef sampler = distributed_sampler(n, o);
    all.push_back(sampler->indices(epoch));
    CHECK(static_cast<std::int64_t>(all.back().size()) == sampler->size());
    CHECK(sampler->shuffles() == o.shuffle);
  }
  return all;
}

}  // namespace

TEST_CASE("the shuffle of 0 .. 9 with seed 42 in epoch 0 is 0 6 9 4 5 7 2 3 1 8") {
  CHECK(random_sampler(10, Generator(42))->indices(0) == Indices{0, 6, 9, 4, 5, 7, 2, 3, 1, 8});
  CHECK(distributed_sampler(10, {.seed = 42})->indices(0) == Indices{0, 6, 9, 4, 5, 7, 2, 3, 1, 8});
}

TEST_CASE("ranks take every world-th place: padded from the start, cut at the end, or as it is") {
  CHECK(ranks(10, {.world = 4, .shuffle = false}) == std::vector<Indices>{{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}});
  CHECK(ranks(10, {.world = 4, .shuffle = false, .drop_last = true}) ==
        std::vector<Indices>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(ranks(10, {.world = 4, .shuffle = false, .pad = false}) ==
        std::vector<Indices>{{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}});
  CHECK(ranks(3, {.world = 8, .shuffle = false}) == std::vector<Indices>{{0}, {1}, {2}, {0}, {1}, {2}, {0}, {1}});
  CHECK(ranks(3, {.world = 8, .shuffle = false, .pad = false}) ==
        std::vector<Indices>{{0}, {1}, {2}, {}, {}, {}, {}, {}});
  CHECK(ranks(3, {.world = 8, .shuffle = false, .drop_last = true}) == std::vector<Indices>(8));
  for (const bool pad : {true, false}) CHECK(ranks(0, {.world = 3, .pad = pad}) == std::vector<Indices>(3));
  CHECK(ranks(8, {.world = 2, .shuffle = false, .drop_last = true}) == ranks(8, {.world = 2, .shuffle = false}));
}

TEST_CASE("all ranks deal the same shuffle, another one in each epoch") {
  for (const std::int64_t epoch : {0, 1}) {
    const Indices order = random_sampler(103, Generator(7))->indices(epoch);
    const std::vector<Indices> all = ranks(103, {.world = 4, .seed = 7}, epoch);
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t i = 0; i < all[r].size(); ++i) CHECK(all[r][i] == order[(r + 4 * i) % 103]);
    }
  }
  CHECK(ranks(103, {.world = 4, .seed = 7}, 0) != ranks(103, {.world = 4, .seed = 7}, 1));
  CHECK(ranks(103, {.world = 4, .seed = 7}) != ranks(103, {.world = 4, .seed = 8}));
}

TEST_CASE("a rank of several shards gets, batch by batch, what its shards get as ranks of a larger world") {
  for (const bool pad : {true, false}) {
    for (const std::int64_t n : {0, 1, 7, 8, 16, 17, 37}) {
      constexpr int kShards = 4;
      constexpr std::int64_t kEach = 3;  // samples of a shard in a batch
      const DistributedSamplerOptions o{.world = 2 * kShards, .pad = pad, .seed = 5};
      const std::vector<Indices> apart = ranks(n, o);
      for (int r = 0; r < 2; ++r) {
        Indices wanted;
        for (std::size_t begin = 0; begin < 64; begin += kEach) {
          for (std::size_t v = 0; v < kShards; ++v) {
            const Indices& one = apart[static_cast<std::size_t>(r * kShards) + v];
            for (std::size_t i = begin; i < std::min(begin + kEach, one.size()); ++i) wanted.push_back(one[i]);
          }
        }
        DistributedSamplerOptions mine = o;
        mine.rank = r, mine.world = 2, mine.shards = kShards, mine.batch_size = kShards * kEach;
        CHECK(distributed_sampler(n, mine)->indices(0) == wanted);
        CHECK(distributed_sampler(n, mine)->size() == static_cast<std::int64_t>(wanted.size()));
      }
    }
  }
  CHECK_THROWS_WITH_AS((void)distributed_sampler(8, {.shards = 4, .batch_size = 6}),
                       doctest::Contains("batch_size is 6 and shards is 4"), ConfigError);
}

TEST_CASE("another sampler's order is divided as it is, and batch samplers pass it on") {
  const SamplerRef order = subset_sampler({5, 3, 8, 1, 9});
  CHECK(distributed_sampler(order, {.rank = 0, .world = 2})->indices(0) == Indices{5, 8, 9});
  CHECK(distributed_sampler(order, {.rank = 1, .world = 2})->indices(0) == Indices{3, 1, 5});
  CHECK(distributed_sampler(order, {.rank = 1, .world = 2, .pad = false})->indices(0) == Indices{3, 1});
  CHECK_THROWS_AS((void)distributed_sampler(nullptr, {}), ConfigError);
  CHECK_FALSE(order->is_distributed());
  const BatchSamplerRef pairs = batch_sampler(order, 2);
  CHECK(pairs->order() == order);
  CHECK_FALSE(pairs->is_distributed());
  const BatchSamplerRef mine = pairs->over(distributed_sampler(order, {.rank = 0, .world = 2}));
  CHECK(mine->is_distributed());
  CHECK(mine->batch_size() == 2);
  CHECK(mine->batches(0) == std::vector<Indices>{{5, 8}, {9}});
}

TEST_CASE("distributed samplers refuse ranks outside of the world, and contradictions") {
  CHECK_THROWS_WITH_AS((void)distributed_sampler(10, {.rank = 4, .world = 4}), doctest::Contains("rank is 4 of 4"),
                       ConfigError);
  CHECK_THROWS_AS((void)distributed_sampler(10, {.rank = -1, .world = 4}), ConfigError);
  CHECK_THROWS_AS((void)distributed_sampler(10, {.rank = 0, .world = 0}), ConfigError);
  CHECK_THROWS_AS((void)distributed_sampler(-1, {}), ConfigError);
  CHECK_THROWS_AS((void)distributed_sampler(10, {.pad = false, .drop_last = true}), ConfigError);
}

TEST_CASE("subset samplers give the listed indices, in the given order or a new one each epoch") {
  const Indices listed{5, 3, 8, 8, 0};
  CHECK(subset_sampler(listed)->indices(0) == listed);
  CHECK(subset_sampler(listed)->indices(4) == listed);
  CHECK_FALSE(subset_sampler(listed)->shuffles());
  const Indices many = [] {
    Indices all;
    for (std::int64_t i = 0; i < 60; ++i) all.push_back(i * 2);
    return all;
  }();
  const SamplerRef random = subset_random_sampler(many, Generator(1));
  CHECK(random->shuffles());
  CHECK(random->size() == 60);
  const Indices a = random->indices(0), b = random->indices(1);
  CHECK(a != b);
  CHECK(a != many);
  for (Indices order : {a, b}) {
    std::sort(order.begin(), order.end());
    CHECK(order == many);
  }
  DataLoader loader(std::make_shared<Numbers>(9), {.batch_size = 5, .sampler = subset_sampler(listed)});
  for (const Batch& batch : loader) CHECK(batch.indices == listed);
}

TEST_CASE("set_epoch of a loader reaches samplers inside of batch samplers") {
  const auto inner = distributed_sampler(20, {.rank = 1, .world = 2, .seed = 3});
  CHECK(batch_sampler(inner, 4)->size() == 3);
  CHECK(batch_sampler(inner, 4, true)->size() == 2);
  DataLoader loader(std::make_shared<Numbers>(20), {.batch_sampler = batch_sampler(inner, 4)});
  for (const std::int64_t epoch : {0, 5, 2}) {
    loader.set_epoch(epoch);
    Indices seen;
    for (const Batch& b : loader) seen.insert(seen.end(), b.indices.begin(), b.indices.end());
    CHECK(seen == inner->indices(epoch));
  }
  DataLoader cut(std::make_shared<Numbers>(20), {.batch_sampler = batch_sampler(inner, 4, true)});
  for (const Batch& b : cut) CHECK(b.size() == 4);
  CHECK_THROWS_AS((void)batch_sampler(nullptr, 4), ConfigError);
  CHECK_THROWS_AS((void)batch_sampler(inner, 0), ConfigError);
}

TEST_CASE("1000 samples in batches of 32 come in one sequence for 0, 1 and 4 workers") {
  std::vector<Indices> expected;
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(std::make_shared<Numbers>(1000),
                      {.batch_size = 32, .shuffle = true, .num_workers = workers, .generator = Generator(4)});
    CHECK(loader.size() == 32);
    std::vector<Indices> got;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const Batch& b : loader) got.push_back(b[0].to_vector<std::int64_t>());
    }
    if (workers == 0) expected = got;
    CHECK(got == expected);
  }
  CHECK(expected.size() == 64);
  CHECK(expected[31].size() == 8);
}

TEST_CASE("a loader over no samples has no batch, with workers and without") {
  for (const int workers : {0, 2}) {
    DataLoader loader(std::make_shared<Numbers>(0), {.batch_size = 4, .shuffle = true, .num_workers = workers});
    CHECK(loader.size() == 0);
    for (int epoch = 0; epoch < 2; ++epoch) CHECK(content(loader).empty());
    CHECK(loader.state().epoch == 2);
  }
}
