// What strategies of several processes share, with threads of this process as ranks.
#include "levin/train/process_strategy.h"

#include <doctest/doctest.h>

#include <array>

#include "comm/group/local.h"
#include "levin/autograd.h"
#include "train/run/fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

TrainerOptions on(const Group& group) {
  TrainerOptions options = test::silent();
  options.max_epochs = 1;
  options.strategy = std::make_shared<ProcessStrategy>(ProcessOptions{.group = group});
  return options;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("ranks start with the weights and buffers of rank 0, and draw from forks of its generators") {
  struct Mixed : nn::Module {
    using Module::Module;
    nn::Linear fc{*this, "fc", {.in = 300, .out = 7}};
    nn::BatchNorm1d norm{*this, "norm", {.features = 7}};
    nn::Dropout drop{*this, "drop", {.p = 0.5}};
  };
  std::array<std::vector<float>, 3> weights, drawn;
  std::array<RandomRange, 3> states;
  dist::run_local(3, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    Mixed net(nn::Options{.gen = Generator(7 + r), .device = Device::cpu()});
    (void)net.drop(ones({4, static_cast<std::int64_t>(r) + 1}, Device::cpu()));
    ProcessStrategy strategy({.group = group});
    strategy.connect({});
    test::Probe module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    strategy.attach_model(module, &net, Stage::fit);
    CHECK(strategy.ranks().rank == group->rank());
    CHECK(strategy.ranks().size == 3);
    for (const auto& [name, t] : net.state_dict()) {
      const Tensor values = t.to(DType::f32);
      for (const float v : values.to_vector<float>()) weights[r].push_back(v);
    }
    states[r] = net.generators().front().second->state();
    drawn[r] = net.drop(ones({50}, Device::cpu())).to_vector<float>();
  });
  CHECK(weights[1] == weights[0]);
  CHECK(weights[2] == weights[0]);
  for (const std::size_t r : {1, 2}) {
    CHECK(states[r].seed == Generator(states[0].seed).fork("rank " + text(r)).seed());
    CHECK(states[r].offset == states[0].offset);
    CHECK(drawn[r] != drawn[0]);
  }
  CHECK(drawn[1] != drawn[2]);
}

TEST_CASE("ranks take rank 0's buffers that no file has, and keep their own states of metrics") {
  struct Layer : nn::Module {
    Layer(nn::Options o, std::int64_t r, std::int64_t size)
        : Module(std::move(o)),
          mask(*this, "mask", full({size}, static_cast<double>(r), Device::cpu()), nn::Persistent::no) {}
    nn::Buffer mask;
    MeanMetric metric{*this, "metric"};
  };
  std::array<std::vector<float>, 2> masks;
  std::array<double, 2> means{};
  std::array<std::string, 2> errors;
  dist::run_local(2, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    ProcessStrategy strategy({.group = group});
    strategy.connect({});
    test::Probe module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    Layer net(nn::Options{.gen = Generator(1), .device = Device::cpu()}, group->rank() + 1, 3);
    net.metric.update(full({1}, group->rank() + 1.0, Device::cpu()));
    strategy.attach_model(module, &net, Stage::fit);
    masks[r] = net.mask.to_vector<float>();
    means[r] = net.metric.compute().item();
    Layer longer(nn::Options{.gen = Generator(1), .device = Device::cpu()}, 0, 3 + group->rank());
    try {
      strategy.attach_model(module, &longer, Stage::fit);
    } catch (const CommError& e) { errors[r] = e.what(); }
  });
  for (const std::vector<float>& mask : masks) CHECK(mask == std::vector<float>(3, 1));
  CHECK(means == std::array<double, 2>{1, 2});
  for (const std::string& error : errors) CHECK(contains(error, "\"mask f32 [3]\" on rank 0 and \"mask f32 [4]\""));
}

TEST_CASE("modules that differ between ranks are an error that names the tensor and both sides, on every rank") {
  std::array<std::string, 2> errors;
  dist::run_local(2, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    struct Layer : nn::Module {
      Layer(nn::Options o, std::int64_t out) : Module(std::move(o)), fc(*this, "fc", {.in = 3, .out = out}) {}
      nn::Linear fc;
    } net(nn::Options{.gen = Generator(1), .device = Device::cpu()}, 2 + group->rank());
    ProcessStrategy strategy({.group = group});
    strategy.connect({});
    test::Probe module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    try {
      strategy.attach_model(module, &net, Stage::fit);
    } catch (const CommError& e) { errors[r] = e.what(); }
  });
  for (const std::string& error : errors) {
    CHECK(contains(error, "the modules of rank 0 and rank 1 differ"));
    CHECK(contains(error, "\"fc.weight f32 [2, 3]\" on rank 0"));
    CHECK(contains(error, "\"fc.weight f32 [3, 3]\" on rank 1"));
  }
}

TEST_CASE("a stop that one rank requests ends all ranks after the same batch") {
  std::array<std::int64_t, 3> batches{};
  dist::run_local(3, [&](const Group& group) {
    struct Stopping final : Callback {
      std::string state_key() const override { return ""; }
      void on_train_batch_end(const StepInfo& info) override {
        if (trainer().global_rank() == 2 && info.batch_idx == 1) trainer().request_stop();
      }
    };
    TrainerOptions options = on(group);
    options.callbacks.push_back(std::make_shared<Stopping>());
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::loader(24, 4);
    Trainer trainer(std::move(options));
    trainer.fit(probe, {.train = data});
    batches[static_cast<std::size_t>(group->rank())] = trainer.total_batch_idx();
  });
  CHECK(batches == std::array<std::int64_t, 3>{2, 2, 2});
}

TEST_CASE("an error of one rank ends the others with an error that has its text") {
  std::array<std::string, 2> errors;
  const auto body = [&](const Group& group) {
    struct Throwing final : TrainModuleOf<Throwing, test::Probe> {
      using TrainModuleOf<Throwing, test::Probe>::TrainModuleOf;
      StepOutput training_step(const Batch& b, std::int64_t i) override {
        if (trainer().global_rank() == 1 && i == 2) fail<DataError>("planted: the third batch");
        return test::Probe::training_step(b, i);
      }
    };
    Throwing module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::loader(24, 4);
    Trainer trainer(on(group));
    try {
      trainer.fit(module, {.train = data});
    } catch (const Error& e) {
      errors[static_cast<std::size_t>(group->rank())] = e.what();
      throw;
    }
  };
  CHECK_THROWS_AS(dist::run_local(2, body), DataError);
  CHECK(contains(errors[1], "planted: the third batch"));
  CHECK(contains(errors[0], "planted: the third batch"));
}
