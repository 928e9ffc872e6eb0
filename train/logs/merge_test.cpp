// Logged values of several ranks: Note [Values of several ranks].
#include "train/logs/merge.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "train/data/rank_fixture_test.h"
#include "train/logs/metric_log.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

data::DatasetRef ramp(std::int64_t n) {
  Tensor x = empty({n, 1}, Device::cpu());
  for (std::int64_t i = 0; i < n; ++i) x.mutable_data<float>()[i] = static_cast<float>(i + 1) / 7;
  return data::tensor_dataset({x});
}
double value_of(const Metrics& all, std::string_view name) {
  for (const auto& [known, value] : all) {
    if (known == name) return value;
  }
  return NAN;
}

// Logs each reduction and the metrics of the validated samples.
struct Logging : TrainModuleOf<Logging, test::Probe> {
  using TrainModuleOf<Logging, test::Probe>::TrainModuleOf;
  // A state that is no sum.
  struct Range final : Metric {
    using Metric::Metric;
    Tensor& low = add_state("low", INFINITY, {}, Across::min);
    Tensor& high = add_state("high", -INFINITY, {}, Across::max);
    Tensor& count = add_state("count", 0);
    void update(const Tensor& x) {
      keep_f64();
      const Tensor y = x.to(DType::f64);
      copy_(low, minimum(low, amin(y)));
      copy_(high, maximum(high, amax(y)));
      add_(count, full({}, static_cast<double>(x.numel()), x.device(), DType::f64));
      set_batch_value(count);
    }
    Tensor compute() const override { return (high - low) * count; }
  };
  MeanMetric average{*this, "average"};
  Range range{*this, "range"};
  bool epoch_value = true;
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    const Tensor x = b[0].to(DType::f64);
    log("mean", mean(x));
    log("sum", sum(x), {.reduce = EpochReduce::sum});
    log("min", amin(x), {.reduce = EpochReduce::min});
    log("max", amax(x), {.reduce = EpochReduce::max});
    average.update(x);
    range.update(x);
    log("average", average);
    log("range", range);
  }
  void on_validation_epoch_end() override {
    if (epoch_value) log("of_ranks", static_cast<double>(trainer().global_rank()));
  }
};

}  // namespace

TEST_CASE("values of an evaluation are those of all samples once, the same on every rank") {
  for (const std::int64_t n : {1, 2, 3, 5, 8, 17}) {
    Metrics alone;
    {
      Logging module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      data::DataLoader data(ramp(n), {.batch_size = 2});
      Trainer trainer(test::silent());
      alone = trainer.validate(module, data, {.verbose = false}).front();
    }
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(n);
      CAPTURE(ranks);
      std::vector<Metrics> all(static_cast<std::size_t>(ranks));
      test::on_ranks(ranks, [&](int rank, const TrainerOptions& options) {
        Logging module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
        data::DataLoader data(ramp(n), {.batch_size = 2});
        Trainer trainer(options);
        all[static_cast<std::size_t>(rank)] = trainer.validate(module, data, {.verbose = false}).front();
        CHECK(value_of(trainer.callback_metrics(), "mean") == value_of(all[static_cast<std::size_t>(rank)], "mean"));
      });
      for (const Metrics& mine : all) {
        CHECK(mine == all[0]);
        for (const char* name : {"mean", "sum", "min", "max", "average", "range"})
          CHECK(value_of(mine, name) == doctest::Approx(value_of(alone, name)).epsilon(1e-12));
        CHECK(value_of(mine, "of_ranks") == (ranks - 1) / 2.0);
      }
    }
  }
}

TEST_CASE("ranks that log different names are an error on all of them, with both lists, unless rank 0 logs alone") {
  for (const bool allowed : {false, true}) {
    std::array<std::string, 2> errors;
    std::array<Metrics, 2> results;
    test::on_ranks(2, [&](int rank, const TrainerOptions& options) {
      struct Uneven final : TrainModuleOf<Uneven, test::Probe> {
        using TrainModuleOf<Uneven, test::Probe>::TrainModuleOf;
        bool alone = false;
        void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
          log("loss", mean(b[0]));
          if (alone || trainer().is_global_zero()) log("extra", 3.0, {.rank_zero_only = alone});
        }
      } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      module.alone = allowed;
      data::DataLoader data(ramp(6), {.batch_size = 2});
      const auto r = static_cast<std::size_t>(rank);
      try {
        results[r] = Trainer(options).validate(module, data, {.verbose = false}).front();
      } catch (const ConfigError& e) { errors[r] = e.what(); }
    });
    for (std::size_t r = 0; r < 2; ++r) {
      if (allowed)
        CHECK(value_of(results[r], "extra") == 3);
      else
        CHECK(test::contains(errors[r], "rank 0 logged extra, loss and rank 1 logged loss"));
    }
  }
}

TEST_CASE("a training epoch's mean weighs all ranks' batches, and a monitored value is the same on all") {
  std::array<double, 3> means{}, monitored{};
  std::array<std::int64_t, 3> epochs{};
  test::on_ranks(3, [&](int rank, TrainerOptions options) {
    struct Module final : TrainModuleOf<Module, test::Probe> {
      using TrainModuleOf<Module, test::Probe>::TrainModuleOf;
      StepOutput training_step(const Batch& b, std::int64_t) override {
        // Grows on rank 0 alone from epoch to epoch; the mean of all falls.
        const double mine = trainer().is_global_zero() ? 1 : 5;
        log("loss",
            full({},
                 mine * (trainer().is_global_zero() ? 1.0 : -1.0) * static_cast<double>(trainer().current_epoch() + 1),
                 Device::cpu(), DType::f64),
            {.on_epoch = true, .batch_size = trainer().is_global_zero() ? 2 : 1});
        return mean(b[0] * w);
      }
    } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    const auto stop = std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = "loss", .patience = 1, .check_on_train_epoch_end = true});
    options.callbacks = stop;
    options.max_epochs = 4;
    data::DataLoader data(ramp(6), {.batch_size = 2, .shuffle = true});
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    const auto r = static_cast<std::size_t>(rank);
    means[r] = value_of(trainer.callback_metrics(), "loss_epoch");
    monitored[r] = stop->best_score();
    epochs[r] = trainer.current_epoch();
  });
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(means[r] == doctest::Approx((2.0 * 4 - 5 * 4 - 5 * 4) / 4).epsilon(1e-12));
    CHECK(monitored[r] == means[r]);
    CHECK(epochs[r] == 4);
  }
}

TEST_CASE("records of steps have rank 0's values, and with sync_dist the mean over ranks") {
  std::vector<LogRecord> history;
  test::on_ranks(3, [&](int rank, const TrainerOptions& options) {
    struct Module final : TrainModuleOf<Module, test::Probe> {
      using TrainModuleOf<Module, test::Probe>::TrainModuleOf;
      StepOutput training_step(const Batch& b, std::int64_t k) override {
        const double mine = 10.0 * trainer().global_rank() + static_cast<double>(k);
        log("own", mine);
        log("all", mine, {.sync_dist = true});
        return mean(b[0] * w);
      }
    } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data(ramp(12), {.batch_size = 2, .shuffle = true});
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    if (rank == 0) history = trainer.history();
  });
  REQUIRE(history.size() == 2);
  for (std::size_t k = 0; k < 2; ++k) {
    CHECK(value_of(history[k].values, "own") == static_cast<double>(k));
    CHECK(value_of(history[k].values, "all") == doctest::Approx(10 + static_cast<double>(k)).epsilon(1e-12));
  }
}

TEST_CASE("a metric keeps its own states when ranks compute one of all") {
  test::on_ranks(2, [&](int rank, const TrainerOptions& options) {
    options.strategy.object()->connect(options);
    Strategy& strategy = *options.strategy.object();
    struct Module final : test::Probe {
      using Probe::Probe;
      MeanMetric metric{*this, "metric"};
    } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    MeanMetric& metric = module.metric;
    metric.update(full({2}, rank + 1.0, Device::cpu(), DType::f64));
    train::MetricLog log;
    const train::HookInfo hook{"validation_step", train::Logs::batches};
    log.log("m", metric, &module, {}, {train::LogScope::eval, hook});
    Metrics merged;
    log.newest(merged, [&](std::string_view mine) { return strategy.gather(mine); });
    CHECK(value_of(merged, "m") == 1.5);
    CHECK(metric.compute().item() == rank + 1.0);
  });
}
