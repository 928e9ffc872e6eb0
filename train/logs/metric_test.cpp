#include <doctest/doctest.h>

#include <cmath>

#include "tests/device.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

const nn::Options kAlone{.gen = Generator(0), .device = Device::cpu()};
Tensor f32s(std::vector<float> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return from_data<float>(values, {n}, Device::cpu());
}
Tensor i64s(std::vector<std::int64_t> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return from_data<std::int64_t>(values, {n}, Device::cpu());
}

// Learns nothing; logs metrics of the samples it gets.
struct Counted : TrainModuleOf<Counted> {
  using TrainModuleOf::TrainModuleOf;
  nn::Parameter w{*this, "w", ones({1}, Device::cpu())};
  MeanMetric seen{*this, "seen"};
  MaxMetric most{*this, "most"};
  MeanMetric val{*this, "val"};
  std::int64_t save_at = -1;
  std::string save_to;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    seen.update(b[0]);
    log("seen", seen, {.on_step = true, .on_epoch = true});
    const Tensor loss = mean(b[0] * w) * 0;
    return loss;
  }
  void on_train_batch_end(const StepInfo& info) override {
    most.update(full({}, static_cast<double>(info.batch_idx), Device::cpu()));
    if (info.batch_idx == save_at) trainer().save_checkpoint(save_to);
  }
  void on_train_epoch_end() override { log("most", most); }  // the checkpoint is written before it is logged
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    val.update(b[0]);
    log("val", val);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

double value_of(const LogRecord& r, const std::string& name) {
  for (const auto& [n, v] : r.values) {
    if (n == name) return v;
  }
  return std::nan("");
}

}  // namespace

TEST_CASE("a mean metric weighs its updates, and knows the newest alone") {
  MeanMetric m(kAlone);
  CHECK(std::isnan(m.compute().item()));
  CHECK(std::isnan(m.batch_value().item()));
  m.update(f32s({1, 2, 3}));
  m.update(f32s({10}), 2);
  CHECK(m.compute().item() == 26.0 / 5);
  CHECK(m.batch_value().item() == 10);
  m.update(f32s({4, 8}), f32s({3, 1}));
  CHECK(m.compute().item() == 46.0 / 9);
  CHECK(m.batch_value().item() == 5);
  CHECK_THROWS_AS(m.update(f32s({4, 8}), f32s({3, 1, 1})), ShapeError);
  m.reset();
  CHECK(std::isnan(m.compute().item()));
  m.update(i64s({2, 4}));
  CHECK(m.compute().item() == 3);
}

TEST_CASE("accuracy is the share of all samples, not the mean of the batches' shares") {
  Accuracy m(kAlone);
  m.update(from_data<float>(std::vector<float>{0, 1, 5, 2, 1, 0}, {3, 2}, Device::cpu()), i64s({1, 0, 1}));
  CHECK(m.batch_value().item() == 2.0 / 3);
  m.update(i64s({4}), i64s({4}));
  CHECK(m.batch_value().item() == 1);
  CHECK(m.compute().item() == 3.0 / 4);
  CHECK_THROWS_AS(m.update(f32s({1, 2}), i64s({1, 0})), ShapeError);
  CHECK_THROWS_AS(m.update(i64s({1, 2}), i64s({1})), ShapeError);
  CHECK_THROWS_AS(m.update(i64s({1, 2}), f32s({1, 2})), DTypeError);
  CHECK(m.compute().item() == 3.0 / 4);
}

TEST_CASE("the greatest and the least of all elements") {
  MaxMetric most(kAlone);
  MinMetric least(kAlone);
  CHECK(most.compute().item() == -std::numeric_limits<double>::infinity());
  CHECK(least.compute().item() == std::numeric_limits<double>::infinity());
  for (const auto& values : {f32s({3, -1}), f32s({2})}) {
    most.update(values);
    least.update(values);
  }
  CHECK(most.compute().item() == 3);
  CHECK(least.compute().item() == -1);
  CHECK(most.batch_value().item() == 2);
  const Tensor greatest = most.compute(), smallest = least.compute();
  most.reset();
  least.reset();
  CHECK(greatest.item() == 3);  // a result is no part of the metric
  CHECK(smallest.item() == -1);
  CHECK(most.compute().item() == -std::numeric_limits<double>::infinity());
}

TEST_CASE(
    "a metric of a module is in no state_dict, records nothing, and stays f64 when the module changes its dtype") {
  Counted net({.gen = Generator(1), .device = Device::cpu()});
  CHECK(net.state_dict().size() == 1);
  CHECK(net.parameters().size() == 1);
  net.to(DType::bf16);
  net.seen.update(f32s({1, 2}));
  net.seen.update(mean(net.w * 3.0f));
  CHECK(net.seen.compute().item() == 2);
  CHECK(net.seen.compute().dtype() == DType::f64);
  CHECK_FALSE(net.seen.compute().requires_grad());
}

TEST_CASE("a logged metric has the batch's value in steps, that of all samples in epochs, and begins anew with each") {
  TrainerOptions options = epochs(2);
  options.log_every_n_steps = 2;
  Counted net({.gen = Generator(1), .device = Device::cpu()});
  // 5 samples in batches of 2: the mean of the batches' means would be 3.33
  data::DataLoader train = data::DataLoader(
      data::tensor_dataset({from_data<float>(std::vector<float>{1, 2, 3, 4, 5}, {5, 1}, Device::cpu())}),
      {.batch_size = 2});
  data::DataLoader val = ramp(3);
  Trainer trainer(options);
  trainer.fit(net, {.train = train, .val = val});
  const auto& h = trainer.history();
  REQUIRE(h.size() == 7);
  CHECK(h[0].step == 1);
  CHECK(value_of(h[0], "seen_step") == 3.5);
  for (const std::size_t epoch : {std::size_t{1}, std::size_t{5}}) {  // the second has a record of steps in between
    CHECK(value_of(h[epoch], "val") == 2);
    CHECK(value_of(h[epoch + 1], "seen_epoch") == 3);
    CHECK(value_of(h[epoch + 1], "most") == 2);
  }
  for (const auto& [name, value] : trainer.callback_metrics()) {
    if (name == "seen") CHECK(value == 3);
  }
  CHECK(std::isnan(net.seen.compute().item()));
}

TEST_CASE("a run that is cut in an epoch resumes with the sums of its metrics, logged already or not") {
  const TemporaryFolder folder;
  const auto fit = [&](Counted& net, const std::string& from) {
    data::DataLoader train = ramp(5);
    Trainer trainer(epochs(1));
    trainer.fit(net, {.train = train, .ckpt_path = from});
    return trainer.history();
  };
  for (const std::int64_t cut : {0, 2, 4}) {
    Counted whole({.gen = Generator(1), .device = Device::cpu()});
    whole.save_at = cut;
    whole.save_to = folder / "cut.safetensors";
    const auto expected = fit(whole, "");
    Counted resumed({.gen = Generator(1), .device = Device::cpu()});
    resumed.seen.update(f32s({1000}));  // earlier values do not count
    const auto actual = fit(resumed, whole.save_to);
    REQUIRE_FALSE(actual.empty());
    CHECK(value_of(expected.back(), "seen_epoch") == 3);
    CHECK(actual.back().values == expected.back().values);
  }
}

TEST_CASE("a metric that is gone, or in training and evaluation at once, or no part of the module") {
  Warnings warnings;
  data::DataLoader train = ramp(4), val = ramp(2);
  Counted net({.gen = Generator(1), .device = Device::cpu()});
  Trainer trainer(epochs(1));
  std::string message;
  {
    MeanMetric outside(kAlone);
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    trainer.fit(opt, train, [&](const Batch& b) {
      outside.update(b[0]);
      trainer.log("outside", outside, {.on_epoch = true});
      return mean(b[0] * net.w);
    });
    CHECK(value_of(trainer.history().back(), "outside_epoch") == 2.5);
    CHECK(warnings.count("W-LOG-METRIC") == 1);
    try {
      trainer.fit(opt, train, [&](const Batch& b) {
        trainer.log("mixed", outside, {.on_epoch = true});
        (void)trainer.evaluate(val, [&](const Batch& v) {
          trainer.log("mixed", outside);
          return mean(v[0]);
        });
        return mean(b[0] * net.w);
      });
    } catch (const ConfigError& e) { message = e.what(); }
  }
  trainer.options().max_epochs = 2;
  CHECK(trainer.callback_metrics().size() > 0);  // the metric is destroyed
}

TEST_CASE("on a device a metric waits for nothing, and a captured step keeps writing to it") {
  DEVICE_OR_SKIP();
  for (const Capture capture : {Capture::off, Capture::step}) {
    struct OnDevice : TrainModuleOf<OnDevice> {
      using TrainModuleOf::TrainModuleOf;
      nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
      MeanMetric seen{*this, "seen"};
      StepOutput training_step(const Batch& b, std::int64_t) override {
        seen.update(b[0]);
        log("seen", seen, {.on_step = true, .on_epoch = true});
        return squared_error(fc(b[0]), b[1]);
      }
      OptimizerConfig configure_optimizers() override {
        return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
      }
    } net({.gen = Generator(1), .device = device});
    data::DataLoader train = loader(48, 4);
    TrainerOptions options = epochs(2);
    options.log_every_n_steps = 6;
    options.sync_budget = 0;
    options.capture = capture;
    Trainer trainer(options);
    trainer.fit(net, {.train = train});
    CHECK((trainer.capture_report().replayed > 0) == (capture == Capture::step));
    double sum = 0;
    for (std::int64_t i = 0; i < 48; ++i) {
      Generator unused(0);
      for (const float x : points(48)->get(i, unused)[0].to_vector<float>()) sum += x;
    }
    std::int64_t records = 0;
    for (const LogRecord& r : trainer.history()) {
      const double all = value_of(r, "seen_epoch");
      if (std::isnan(all)) continue;
      ++records;
      CHECK(all == doctest::Approx(sum / 96).epsilon(1e-9));
    }
    CHECK(records == 2);
  }
}
