// Runs over streams: no length, the end of an epoch, limits, windows, validations, and a resume at each batch.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>

#include "tests/warnings.h"
#include "train/checkpoint/fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

const nn::Options kThere{.gen = Generator(3), .device = Device::cpu()};

// The samples of a dataset as streams.
struct Streamed final : data::IterableDataset {
  data::DatasetRef base;
  bool declares = false, never_ends = false, all_to_first = false;
  mutable std::atomic<std::int64_t> read = 0;  // samples
  Streamed(data::DatasetRef b) : base(std::move(b)) {}
  std::optional<std::int64_t> size() const override { return declares ? std::optional(base->size()) : std::nullopt; }
  bool endless() const override { return never_ends; }
  struct Stream final : data::SampleStream {
    const Streamed& of;
    data::WorkerInfo info;
    std::int64_t at = 0;
    Stream(const Streamed& s, const data::WorkerInfo& i) : of(s), info(i) {}
    std::optional<data::Sample> next(Generator& rng) override {
      const std::int64_t n = of.base->size();
      const auto mine = [&] { return of.all_to_first ? info.id == 0 : info.owns(at); };
      while ((at < n || (of.never_ends && n > 0)) && !mine()) ++at;
      if (at >= n && !of.never_ends) return std::nullopt;
      ++of.read;
      return of.base->get(at++ % n, rng);
    }
  };
  std::unique_ptr<data::SampleStream> stream(const data::WorkerInfo& info) const override {
    return std::make_unique<Stream>(*this, info);
  }
};
struct Kind {
  bool declares = false, endless = false, all_to_first = false;
};
data::DataLoader streamed(std::int64_t n, int workers = 0, Kind kind = {}) {
  auto streams = std::make_shared<Streamed>(test::points(n));
  streams->declares = kind.declares;
  streams->never_ends = kind.endless;
  streams->all_to_first = kind.all_to_first;
  return data::DataLoader(std::move(streams), {.batch_size = 4, .num_workers = workers});
}

struct Learner : TrainModuleOf<Learner> {
  Learner() : TrainModuleOf(kThere) {}
  test::Net net{*this, "net"};
  std::string save_to{};
  std::int64_t save_at = -1, validations = 0, val_batches = 0;
  std::vector<std::int64_t> last_at{}, validated_at{}, batches{};
  StepOutput training_step(const Batch& b, std::int64_t batch_idx) override {
    if (trainer().is_last_batch()) last_at.push_back(batch_idx);
    return test::squared_error(net(b[0]), b[1]);
  }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override { ++val_batches; }
  void on_validation_start() override { validated_at.push_back(trainer().total_batch_idx()); }
  void on_train_epoch_start() override { batches.push_back(trainer().batches_per_epoch()); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
  }
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == save_at) trainer().save_checkpoint(save_to);
  }
};

struct Asking : TrainModuleOf<Asking, Learner> {
  std::optional<std::int64_t> steps = -7;
  OptimizerConfig configure_optimizers() override {
    steps = trainer().estimated_stepping_batches();
    return Learner::configure_optimizers();
  }
};

std::string refused(TrainerOptions options, data::DataLoader train, data::DataLoader* val = nullptr) {
  Learner net;
  try {
    Trainer(std::move(options)).fit(net, {.train = train, .val = val});
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}

}  // namespace

TEST_CASE("a run over a stream without a length ends as one over the same samples in a dataset, windows included") {
  for (const std::int64_t n : {28, 30}) {
    TrainerOptions options = test::epochs(2);
    options.accumulate_grad_batches = 3;
    Learner plain;
    data::DataLoader known(test::points(n), {.batch_size = 4});
    Trainer reference(options);
    reference.fit(plain, {.train = known});
    for (const int workers : {0, 1, 2}) {
      for (const bool declares : {false, true}) {
        const test::Warnings warnings;
        Learner net;
        data::DataLoader loader = streamed(n, workers, {.declares = declares});
        Trainer trainer(options);
        trainer.fit(net, {.train = loader});
        CHECK(trainer.global_step() == reference.global_step());
        CHECK(net.last_at == plain.last_at);
        CHECK(test::weights_of(net) == test::weights_of(plain));
        CHECK(net.batches == (declares ? plain.batches : std::vector<std::int64_t>{-1, -1}));
        CHECK(warnings.count("W-DATA-STREAM-LENGTH") == (declares && workers > 1 ? 1 : 0));
      }
    }
  }
}

TEST_CASE("limits of a stream without a length are counts or 1.0, and its validations come by count, time or its end") {
  const auto with = [](auto set) {
    TrainerOptions o = test::epochs(2);
    set(o);
    return o;
  };
  data::DataLoader val = streamed(8);
  CHECK(test::contains(refused(with([](auto& o) { o.limit_train_batches = 0.5; }), streamed(28)),
                       "limit_train_batches is 0.5 and the loader has no length"));
  CHECK(test::contains(refused(with([](auto& o) { o.limit_val_batches = 0.5; }), streamed(28), &val),
                       "limit_val_batches is 0.5 and the loader has no length"));
  CHECK(test::contains(refused(with([](auto& o) { o.val_check_interval = 0.5; }), streamed(28), &val),
                       "val_check_interval is 0.5 and the training loader has no length"));
  CHECK(test::contains(refused(with([](auto& o) { o.limit_train_batches = -2; }), streamed(28)), "expected a count"));
  CHECK(refused(with([](auto& o) { o.limit_train_batches = 1.0, o.val_check_interval = 1.0; }), streamed(28), &val) ==
        "accepted");

  const auto run = [&](auto set, std::int64_t n = 28) {
    auto net = std::make_unique<Learner>();
    data::DataLoader train = streamed(n), held_out = streamed(10);
    Trainer trainer(with(set));
    trainer.fit(*net, {.train = train, .val = held_out});
    return net;
  };
  const auto whole = run([](auto&) {});
  CHECK(whole->last_at == std::vector<std::int64_t>{6, 6});
  CHECK(whole->validated_at == std::vector<std::int64_t>{7, 14});
  CHECK(whole->val_batches == 6);
  CHECK(run([](auto& o) { o.val_check_interval = 3; })->validated_at == std::vector<std::int64_t>{3, 6, 10, 13});
  const auto limited = run([](auto& o) { o.limit_train_batches = 5, o.limit_val_batches = 2; });
  CHECK(limited->last_at == std::vector<std::int64_t>{4, 4});
  CHECK(limited->validated_at == std::vector<std::int64_t>{5, 10});
  CHECK(limited->val_batches == 4);
  const auto beyond = run([](auto& o) { o.limit_train_batches = 50; });
  CHECK(beyond->last_at == std::vector<std::int64_t>{6, 6});
  CHECK(beyond->validated_at == std::vector<std::int64_t>{7, 14});
}

TEST_CASE("streams that never end need a limit of the run") {
  const auto endless = [] { return streamed(12, 0, {.endless = true}); };
  CHECK(test::contains(refused(test::epochs(1), endless()), "never end, and limit_train_batches is no number"));
  TrainerOptions steps = test::epochs(-1);
  steps.max_steps = 17;
  CHECK(refused(steps, endless()) == "accepted");
  TrainerOptions limit = test::epochs(2);
  limit.limit_train_batches = 5;
  CHECK(refused(limit, endless()) == "accepted");
  data::DataLoader val = endless(), train = streamed(8);
  CHECK(test::contains(refused(test::epochs(1), streamed(8), &val), "never end, and limit_val_batches is no number"));
  Learner net;
  data::DataLoader loader = endless();
  CHECK_THROWS_WITH_AS((void)Trainer(test::epochs(1)).validate(net, val, {.verbose = false}),
                       doctest::Contains("limit_val_batches is no number"), ConfigError);
  Trainer trainer(steps);
  trainer.fit(net, {.train = loader});
  CHECK(trainer.global_step() == 17);
}

TEST_CASE("an epoch whose streams give nothing ends the training with a warning") {
  const test::Warnings warnings;
  Learner net;
  data::DataLoader loader = streamed(0, 2);
  TrainerOptions options = test::epochs(-1);
  options.max_steps = 10;
  Trainer trainer(options);
  trainer.fit(net, {.train = loader});
  CHECK(trainer.global_step() == 0);
  CHECK(warnings.count("W-DATA-EMPTY") == 1);
}

TEST_CASE("an epoch of streams that declare a size and give nothing ends the training with a warning") {
  struct Empty final : data::IterableDataset {
    struct Stream final : data::SampleStream {
      std::optional<data::Sample> next(Generator&) override { return std::nullopt; }
    };
    std::optional<std::int64_t> size() const override { return 8; }
    std::unique_ptr<data::SampleStream> stream(const data::WorkerInfo&) const override {
      return std::make_unique<Stream>();
    }
  };
  const test::Warnings warnings;
  Learner net;
  data::DataLoader loader(std::make_shared<Empty>(), {.batch_size = 4});
  Trainer(test::epochs(3)).fit(net, {.train = loader});
  CHECK(net.batches == std::vector<std::int64_t>{2});
  CHECK(warnings.count("W-DATA-EMPTY") == 1);
}

TEST_CASE("a run over streams that never end reads no batch that it does not train, and no epoch of them alone") {
  struct Estimating : TrainModuleOf<Estimating, Learner> {
    std::string refused{};
    void on_train_end() override {
      try {
        trainer().forward_epoch();
      } catch (const ConfigError& e) { refused = e.what(); }
    }
  };
  const auto streams = std::make_shared<Streamed>(test::points(12));
  streams->never_ends = true;
  data::DataLoader loader(streams, {.batch_size = 4});
  TrainerOptions options = test::epochs(-1);
  options.max_steps = 4;
  Estimating net;
  Trainer(options).fit(net, {.train = loader});
  CHECK(streams->read == 16);
  CHECK(test::contains(net.refused, "forward_epoch: the streams of the train_loader never end"));
}

TEST_CASE("an epoch over streams that is skipped at its first batch leaves the next ones their batches") {
  struct Growing final : data::IterableDataset {  // 1 batch, then 3
    std::unique_ptr<data::SampleStream> stream(const data::WorkerInfo& info) const override {
      return std::make_unique<Streamed::Stream>(info.epoch == 0 ? first : later, info);
    }
    Streamed first{test::points(4)}, later{test::points(12)};
  };
  struct Skipping : TrainModuleOf<Skipping, Learner> {
    BatchStart on_train_batch_start(const StepInfo& at) override {
      return at.epoch == 0 ? BatchStart::skip_epoch : BatchStart::proceed;
    }
    void on_train_epoch_end() override {
      if (trainer().current_epoch() == 0) trainer().save_checkpoint(save_to);
    }
  };
  const test::TemporaryFolder dir;
  for (const bool grows : {true, false}) {
    data::IterableDatasetRef streams = std::make_shared<Streamed>(test::points(12));
    if (grows) streams = std::make_shared<Growing>();
    Skipping whole, resumed;
    whole.save_to = resumed.save_to = dir / "a.safetensors";
    data::DataLoader loader(streams, {.batch_size = 4});
    Trainer first(test::epochs(2)), second(test::epochs(2));
    first.fit(whole, {.train = loader});
    CHECK(first.global_step() == 3);
    second.fit(resumed, {.train = loader, .ckpt_path = whole.save_to});
    CHECK(second.global_step() == 3);
    CHECK(test::weights_of(resumed) == test::weights_of(whole));
  }
}

namespace {

// A file of a run over three streams, the first of which has all three batches: batches 0 and 3 of an epoch that
// declares 3, then 6. As the file has it, batch 3 was trained ahead of 1 and 2, or others were, as `ahead` says.
struct AheadOfOthers {
  test::TemporaryFolder dir;
  data::DataLoader loader = unordered();
  Learner whole;
  static data::DataLoader unordered() {
    auto streams = std::make_shared<Streamed>(test::points(12));
    streams->declares = streams->all_to_first = true;
    return data::DataLoader(std::move(streams), {.batch_size = 4, .num_workers = 3, .in_order = false});
  }
  std::string with(const std::string& ahead) {
    whole.save_at = 2;
    whole.save_to = dir / "whole.safetensors";
    Trainer(test::epochs(1)).fit(whole, {.train = loader});
    const std::string to = dir / "ahead.safetensors";
    test::rewrite(whole.save_to, to, [&](std::string s) {
      s = test::replaced(std::move(s), "\"batches_absent\":", "\"batches_absent\":0,\"x\":");
      return test::replaced(std::move(s), "\"batches_ahead\":", "\"batches_ahead\":[" + ahead + "],\"y\":");
    });
    return to;
  }
};

}  // namespace

TEST_CASE("a run resumes from a file with batches of uneven streams ahead, beyond the size that they declare") {
  AheadOfOthers file;
  const std::string path = file.with("3");
  Learner resumed;
  Trainer trainer(test::epochs(1));
  trainer.fit(resumed, {.train = file.loader, .ckpt_path = path});
  CHECK(trainer.global_step() == 3);
  CHECK(test::weights_of(resumed) == test::weights_of(file.whole));
}

TEST_CASE("a position that no loop over streams reaches is found before the run changes") {
  AheadOfOthers file;
  const std::string path = file.with("2097152");
  Learner resumed;
  const auto before = test::weights_of(resumed);
  Trainer trainer(test::epochs(1));
  CHECK_THROWS_WITH_AS(trainer.fit(resumed, {.train = file.loader, .ckpt_path = path}),
                       doctest::Contains("ahead.safetensors does not fit the training loader: loader: the state says "
                                         "that batch 2097152 was handed out and 2097150 batches before it were not"),
                       ConfigError);
  CHECK(test::weights_of(resumed) == before);
  CHECK(trainer.global_step() == 0);
}

TEST_CASE("the length of a run over streams is that of max_steps, or unknown") {
  const auto asked = [](std::int64_t max_steps, std::optional<std::int64_t> limit) {
    Asking net;
    TrainerOptions options = test::epochs(3);
    options.max_steps = max_steps;
    if (limit) options.limit_train_batches = *limit;
    data::DataLoader loader = streamed(28);
    Trainer(options).fit(net, {.train = loader});
    return net.steps;
  };
  CHECK(asked(-1, {}) == std::nullopt);
  CHECK(asked(9, {}) == 9);
  CHECK(asked(-1, 4) == 12);
}

TEST_CASE("an error of a stream belongs to its batch, although the loop has looked ahead") {
  struct Broken final : data::IterableDataset {
    struct Stream final : data::SampleStream {
      std::int64_t at = 0;
      std::optional<data::Sample> next(Generator& rng) override {
        if (at == 9) fail<DataError>("planted");
        return test::points(12)->get(at++, rng);
      }
    };
    std::unique_ptr<data::SampleStream> stream(const data::WorkerInfo&) const override {
      return std::make_unique<Stream>();
    }
  };
  Learner net;
  data::DataLoader loader(std::make_shared<Broken>(), {.batch_size = 4});
  Trainer trainer(test::epochs(1));
  CHECK_THROWS_WITH_AS(trainer.fit(net, {.train = loader}), doctest::Contains("planted"), DataError);
  CHECK(trainer.global_step() == 2);
}

TEST_CASE("a run over streams that is cut at any batch resumes and ends with the same bits") {
  const test::TemporaryFolder dir;
  for (const Kind kind : {Kind{}, Kind{.all_to_first = true}}) {
    TrainerOptions options = test::epochs(2);
    options.accumulate_grad_batches = 2;
    Learner whole;
    data::DataLoader loader = streamed(26, 2, kind);  // 7 batches
    Trainer trainer(options);
    trainer.fit(whole, {.train = loader});
    CHECK(trainer.global_step() == 2 * 4);
    for (std::int64_t at = 1; at <= 14; ++at) {
      CAPTURE(at);
      Learner cut, resumed;
      cut.save_at = at;
      cut.save_to = dir / "a.safetensors";
      data::DataLoader first = streamed(26, 2, kind), second = streamed(26, 2, kind);
      options.max_steps = (at + 1) / 2 + 1;
      Trainer(options).fit(cut, {.train = first});
      options.max_steps = -1;
      Trainer reader(options);
      reader.fit(resumed, {.train = second, .ckpt_path = cut.save_to});
      CHECK(reader.global_step() == trainer.global_step());
      CHECK(test::weights_of(resumed) == test::weights_of(whole));
    }
  }
}
