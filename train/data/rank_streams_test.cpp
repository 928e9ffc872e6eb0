// Streams of several ranks: an epoch ends on all ranks together.
#include <doctest/doctest.h>

#include <array>

#include "tests/warnings.h"
#include "train/data/rank_fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;
using Numbers = test::Numbers;

namespace {

// Numbers 0 .. n-1, each given by the stream that owns it.
class Counting final : public data::IterableDataset {
 public:
  explicit Counting(std::int64_t n, std::optional<std::int64_t> declared = {}) : n_(n), declared_(declared) {}
  std::optional<std::int64_t> size() const override { return declared_; }
  std::unique_ptr<data::SampleStream> stream(const data::WorkerInfo& info) const override {
    return std::make_unique<Stream>(n_, info);
  }

 private:
  class Stream final : public data::SampleStream {
   public:
    Stream(std::int64_t n, const data::WorkerInfo& info) : n_(n), info_(info) {}
    std::optional<data::Sample> next(Generator&) override {
      while (at_ < n_ && !info_.owns(at_)) ++at_;
      if (at_ >= n_) return std::nullopt;
      return data::Sample{full({1}, static_cast<double>(at_++), Device::cpu())};
    }

   private:
    std::int64_t n_, at_ = 0;
    data::WorkerInfo info_;
  };
  std::int64_t n_;
  std::optional<std::int64_t> declared_;
};

struct Seen {
  Numbers values, indices, last;  // last: batches in which is_last_batch was true
  std::int64_t steps = 0, epochs = 0, total = 0;
};
struct Reading final : TrainModuleOf<Reading, test::Probe> {
  using TrainModuleOf<Reading, test::Probe>::TrainModuleOf;
  Seen seen;
  StepOutput training_step(const Batch& b, std::int64_t k) override {
    for (const float x : b[0].to_vector<float>()) seen.values.push_back(static_cast<std::int64_t>(x));
    seen.indices.insert(seen.indices.end(), b.indices.begin(), b.indices.end());
    if (trainer().is_last_batch()) seen.last.push_back(k);
    return mean(b[0] * w);
  }
};

std::vector<Seen> train(int ranks, std::int64_t n, std::optional<std::int64_t> declared, int workers = 0,
                        const Function<void(TrainerOptions&)>& change = {}) {
  std::vector<Seen> all(static_cast<std::size_t>(ranks));
  test::on_ranks(ranks, [&](int rank, TrainerOptions options) {
    options.max_epochs = 2;
    options.accumulate_grad_batches = 2;
    if (change) change(options);
    Reading module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data(std::make_shared<Counting>(n, declared), {.batch_size = 2, .num_workers = workers});
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    Seen& mine = all[static_cast<std::size_t>(rank)] = std::move(module.seen);
    mine.steps = trainer.global_step();
    mine.epochs = trainer.current_epoch();
    mine.total = trainer.total_batch_idx();
  });
  return all;
}

}  // namespace

TEST_CASE("streams of several ranks end an epoch with the first that runs dry, and that batch is the last on all") {
  for (const int workers : {0, 2}) {
    const std::vector<Seen> all = train(2, 14, std::nullopt, workers);  // 4 batches on rank 0, 3 on rank 1
    CHECK(all[0].values == Numbers{0, 1, 4, 5, 8, 9, 0, 1, 4, 5, 8, 9});
    CHECK(all[1].values == Numbers{2, 3, 6, 7, 10, 11, 2, 3, 6, 7, 10, 11});
    for (const Seen& mine : all) {
      CHECK(mine.indices == mine.values);
      CHECK(mine.last == Numbers{2, 2});
      CHECK(mine.steps == 4);  // windows of 2 and 1 batches
      CHECK(mine.epochs == 2);
    }
  }
}

TEST_CASE(
    "a declared length gives all ranks the batches of the shortest, and one that is too long ends them together") {
  for (const Seen& mine : train(2, 14, 14)) {
    CHECK(mine.total == 6);
    CHECK(mine.last == Numbers{2, 2});
  }
  for (const Seen& mine : train(2, 14, 40)) {
    CHECK(mine.total == 6);
    CHECK(mine.epochs == 2);
  }
}

TEST_CASE("ranks whose streams are empty on one of them train nothing") {
  const test::ExpectedWarnings told{"W-DATA-EMPTY"};
  for (const Seen& mine : train(2, 2, std::nullopt)) {
    CHECK(mine.total == 0);
    CHECK(mine.values.empty());
  }
}

TEST_CASE("without the trainer's division each rank reads all of a stream") {
  const auto alone = [](TrainerOptions& o) { o.use_distributed_sampler = false; };
  for (const Seen& mine : train(2, 4, std::nullopt, 0, alone)) CHECK(mine.values == Numbers{0, 1, 2, 3, 0, 1, 2, 3});
}
