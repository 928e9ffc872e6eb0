// Combined loaders in a run: limits, windows, evaluations one by one, and a resume at each batch.
#include <doctest/doctest.h>

#include <memory>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

const nn::Options kThere{.gen = Generator(3), .device = Device::cpu()};

// Learns from two loaders, of which the second may have ended.
struct TwoSources : TrainModuleOf<TwoSources> {
  TwoSources() : TrainModuleOf(kThere) {}
  test::Net net{*this, "net"};
  std::string save_to{};
  std::int64_t save_at = -1, lasts = 0, alone = 0;
  std::vector<std::int64_t> last_at{};
  StepOutput training_step(const Batch& b, std::int64_t batch_idx) override {
    if (trainer().is_last_batch()) last_at.push_back(batch_idx);
    const Tensor loss = test::squared_error(net(b.part(0)[0]), b.part(0)[1]);
    if (b.part(1).empty()) {
      ++alone;
      return loss;
    }
    return loss + test::squared_error(net(b.part(1)[0]), b.part(1)[1]) * 0.5;
  }
  void test_step(const Batch& b, std::int64_t, std::int64_t) override { log("n", static_cast<double>(b.size())); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
  }
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == save_at) trainer().save_checkpoint(save_to);
  }
};

data::DataLoader shuffled(std::int64_t n, std::uint64_t seed) {
  return data::DataLoader(test::points(n), {.batch_size = 4, .shuffle = true, .generator = Generator(seed)});
}
data::DataLoader both(data::CombineMode mode) {
  data::DataLoader a = shuffled(28, 5), b = shuffled(12, 6);  // 7 and 3 batches
  return data::combine({{"a", &a}, {"b", &b}}, mode);
}

}  // namespace

TEST_CASE("a run on combined loaders that is cut at any batch, inside of a window too, ends with the same bits") {
  const test::TemporaryFolder dir;
  for (const data::CombineMode mode : {data::CombineMode::max_size_cycle, data::CombineMode::max_size}) {
    TrainerOptions options = test::epochs(3);
    options.accumulate_grad_batches = 2;
    TwoSources whole;
    data::DataLoader loader = both(mode);
    Trainer trainer(options);
    trainer.fit(whole, {.train = loader});
    CHECK(trainer.global_step() == 3 * 4);
    CHECK(whole.last_at == std::vector<std::int64_t>{6, 6, 6});
    CHECK(whole.alone == (mode == data::CombineMode::max_size ? 12 : 0));
    for (std::int64_t at = 1; at < 21; ++at) {
      CAPTURE(at);
      TwoSources cut, resumed;
      cut.save_at = at;
      cut.save_to = dir / "a.safetensors";
      data::DataLoader first = both(mode), second = both(mode);
      options.max_steps = (at + 1) / 2 + 1;
      Trainer(options).fit(cut, {.train = first});
      options.max_steps = -1;
      Trainer reader(options);
      reader.fit(resumed, {.train = second, .ckpt_path = cut.save_to});
      CHECK(test::weights_of(resumed) == test::weights_of(whole));
    }
  }
}

TEST_CASE("limits count combined batches; several loaders given for training go through the longest") {
  TwoSources net;
  data::DataLoader a = shuffled(28, 5), b = shuffled(12, 6);
  TrainerOptions options = test::epochs(1);
  Trainer trainer(options);
  trainer.fit(net, {.train = {&a, &b}});
  CHECK(trainer.global_step() == 7);
  options.limit_train_batches = 5;
  Trainer limited(options);
  data::DataLoader least = both(data::CombineMode::min_size);
  limited.fit(net, {.train = {&b, &a}});
  CHECK(limited.global_step() == 5);
  Trainer shortest(options);
  shortest.fit(net, {.train = least});
  CHECK(shortest.global_step() == 3);
  data::DataLoader turns = both(data::CombineMode::sequential);
  CHECK_THROWS_WITH_AS(shortest.fit(net, {.train = turns}), doctest::Contains("combined as sequential"), ConfigError);
}

TEST_CASE("loaders that are combined one by one are several loaders to an evaluation") {
  TwoSources net;
  data::DataLoader turns = both(data::CombineMode::sequential);
  Trainer trainer(test::epochs(1));
  const test::Warnings quiet;
  const std::vector<Metrics> results = trainer.test(net, turns, {.verbose = false});
  REQUIRE(results.size() == 2);
  CHECK(results[0].at(0).first == "n/dataloader_idx_0");
  CHECK(results[1].at(0).first == "n/dataloader_idx_1");
  data::DataLoader pairs = both(data::CombineMode::max_size_cycle);
  CHECK(trainer.test(net, pairs, {.verbose = false}).size() == 1);
}
