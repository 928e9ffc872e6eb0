// Evaluations of several ranks give what one process gives.
#include <doctest/doctest.h>

#include <array>

#include "tests/warnings.h"
#include "train/data/rank_fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

data::DatasetRef ramp(std::int64_t n) {
  Tensor x = empty({n, 2}, Device::cpu());
  for (std::int64_t i = 0; i < 2 * n; ++i) x.mutable_data<float>()[i] = static_cast<float>(i + 1) / 3;
  return data::tensor_dataset({x});
}
std::unique_ptr<test::Probe> probe() {
  return std::make_unique<test::Probe>(nn::Options{.gen = Generator(1), .device = Device::cpu()});
}
std::vector<std::vector<float>> values_of(const Tensors& all) {
  std::vector<std::vector<float>> values;
  for (const Tensor& t : all) values.push_back(t.to_vector<float>());
  return values;
}
struct Doubling final : TrainModuleOf<Doubling, test::Probe> {
  using TrainModuleOf<Doubling, test::Probe>::TrainModuleOf;
  bool one_number = false;  // for a batch
  std::int64_t starts = 0;
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return one_number ? sum(b[0]) : b[0] * 2; }
  void on_predict_epoch_end() override { ++starts; }
};

}  // namespace

TEST_CASE("predictions of all ranks come in the batches and the order of one process") {
  for (std::int64_t n = 1; n <= 17; ++n) {
    const auto predict = [&](const TrainerOptions& options, bool reversed) {
      Doubling module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      std::vector<std::int64_t> order;
      for (std::int64_t i = n - 1; i >= 0; --i) order.push_back(i);
      data::DataLoader data(ramp(n), {.batch_size = 3, .sampler = reversed ? data::subset_sampler(order) : nullptr});
      Tensors all = Trainer(options).predict(module, data).front();
      CHECK(module.starts == 1);
      return values_of(all);
    };
    for (const bool reversed : {false, true}) {
      const auto alone = predict(test::silent(), reversed);
      for (const int ranks : {1, 2, 3, 4}) {
        CAPTURE(n);
        CAPTURE(ranks);
        test::on_ranks(ranks, [&](int, const TrainerOptions& options) { CHECK(predict(options, reversed) == alone); });
      }
    }
  }
}

TEST_CASE("predictions that are no rows of samples come batch by batch, and samples without batches one by one") {
  test::on_ranks(2, [&](int, const TrainerOptions& options) {
    Doubling module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader single(ramp(5), {.batch_size = std::nullopt});
    const Tensors samples = Trainer(options).predict(module, single).front();
    REQUIRE(samples.size() == 5);
    for (std::size_t i = 0; i < 5; ++i)
      CHECK(samples[i].to_vector<float>()[0] == static_cast<float>(2 * i + 1) / 3 * 2);
    module.one_number = true;
    data::DataLoader data(ramp(5), {.batch_size = 2});  // rank 0: samples 0 and 2, then 4; rank 1: 1 and 3
    const Tensors sums = Trainer(options).predict(module, data).front();
    REQUIRE(sums.size() == 3);
    const std::array by_batch = {(1 + 2 + 5 + 6) / 3.f, (3 + 4 + 7 + 8) / 3.f, (9 + 10) / 3.f};
    for (std::size_t k = 0; k < 3; ++k) CHECK(sums[k].item() == doctest::Approx(by_batch[k]));
  });
}

TEST_CASE("evaluate gives the mean over all ranks' samples, and a fit's validation has every sample once") {
  for (const std::int64_t n : {1, 4, 7}) {
    const auto run = [&](TrainerOptions options) {
      options.max_epochs = 1;
      options.num_sanity_val_steps = 2;
      struct Counting final : TrainModuleOf<Counting, test::Probe> {
        using TrainModuleOf<Counting, test::Probe>::TrainModuleOf;
        void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
          log("seen", static_cast<double>(b.size()), {.reduce = EpochReduce::sum});
        }
      } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      data::DataLoader train(ramp(8), {.batch_size = 2, .shuffle = true}), val(ramp(n), {.batch_size = 2});
      Trainer trainer(options);
      trainer.fit(module, {.train = train, .val = val});
      double seen = 0;
      for (const auto& [name, value] : trainer.callback_metrics()) seen = name == "seen" ? value : seen;
      CHECK(seen == static_cast<double>(n));
      return trainer.evaluate(*probe(), val, [](const Batch& b) { return mean(b[0].to(DType::f64)); });
    };
    const double alone = run(test::silent());
    for (const int ranks : {2, 3}) {
      test::on_ranks(ranks, [&](int, const TrainerOptions& options) {
        CHECK(run(options) == doctest::Approx(alone).epsilon(1e-12));
      });
    }
  }
}

TEST_CASE("a loader of the user's own division that gives one rank no batch is an error, unless the module allows it") {
  const test::ExpectedWarnings told{"W-DATA-EMPTY", "W-DATA-EMPTY-RANK"};
  for (const bool allows : {false, true}) {
    std::array<std::string, 2> errors{"none", "none"};
    test::on_ranks(2, [&](int rank, TrainerOptions options) {
      struct Lenient final : TrainModuleOf<Lenient, test::Probe> {
        using TrainModuleOf<Lenient, test::Probe>::TrainModuleOf;
        bool allows = false;
        bool allow_zero_length_with_multiple_devices() const override { return allows; }
      } module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      module.allows = allows;
      options.use_distributed_sampler = false;
      data::DataLoader data(ramp(3 * rank), {.batch_size = 2});
      try {
        const Metrics found = Trainer(options).validate(module, data, {.verbose = false}).front();
        CHECK(found.size() == 1);
      } catch (const ConfigError& e) { errors[static_cast<std::size_t>(rank)] = e.what(); }
    });
    for (const std::string& error : errors) {
      if (allows)
        CHECK(error == "none");
      else
        CHECK(test::contains(error, "loader 0 has no batch on rank 0, and others have some"));
    }
  }
}
