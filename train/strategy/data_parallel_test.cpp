#include "levin/train/data_parallel_strategy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "levin/ops.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"
#include "train/strategy/parts.h"

using namespace levin;

namespace {

std::vector<Device> cpus(int n) {
  std::vector<Device> all;
  for (int i = 0; i < n; ++i) all.push_back(Device::cpu(i));
  return all;
}

// Notes how its parts looked. `drop` makes the parts random, `norm` gives it buffers.
struct Net final : TrainModuleOf<Net, DataParallelModule> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 16}};
  nn::Dropout drop{*this, "drop", {.p = 0.5}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  bool plain = true;  // without batch norm and dropout, which see other statistics in parts
  bool own_end = false;
  std::vector<std::int64_t> gathered_sizes;
  Tensor operator()(const Tensor& x) const {
    const Tensor h = fc1(x);
    return fc2(plain ? tanh(h) : drop(tanh(norm(h))));
  }
  std::unique_ptr<TrainModule> replica(const nn::Options& o) const override {
    auto other = std::make_unique<Net>(o);
    other->plain = plain;
    return other;
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor y = (*this)(b[0]), loss = test::squared_error(y, b[1]);
    log("train_loss", loss);
    return NamedTensors{{"loss", loss}, {"y", y}, {"target", b[1]}};
  }
  StepOutput training_step_end(const NamedTensors& outputs) override {
    gathered_sizes = {};
    for (const auto& [name, t] : outputs) gathered_sizes.push_back(t.size(0));
    if (!own_end) return {};
    return test::squared_error(outputs[1].second, outputs[2].second);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9})}};
  }
};

struct Setting {
  bool plain = true, own_end = false;
  std::int64_t accumulate = 1, samples = 23;
  std::string precision = "32-true";
};
struct Trained {
  std::vector<float> weights, losses;
  std::vector<std::int64_t> gathered;
};
std::vector<float> values_of(const nn::Module& net) {
  std::vector<float> all;
  for (const auto& [name, t] : net.state_dict()) {
    const std::vector<float> one = t.to(DType::f32).to_vector<float>();
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}
// Batches of 10: of 23 samples 10, 10 and 3.
Trained trained(const std::vector<Device>& devices, const Setting& with = {}) {
  Net net({.gen = Generator(3), .device = devices.empty() ? Device::cpu() : devices.front()});
  net.plain = with.plain;
  net.own_end = with.own_end;
  TrainerOptions options = test::silent();
  options.max_epochs = 2;
  options.accumulate_grad_batches = with.accumulate;
  options.precision = with.precision;
  if (!devices.empty())
    options.strategy = std::make_shared<DataParallelStrategy>(DataParallelOptions{.devices = devices});
  struct Losses final : Callback {
    std::vector<float> all;
    void on_train_batch_end(const StepInfo& at) override { all.push_back(at.loss.item<float>()); }
  };
  const auto losses = std::make_shared<Losses>();
  options.callbacks.push_back(losses);
  Trainer trainer(std::move(options));
  data::DataLoader data = test::loader(with.samples, 10);
  const test::Warnings quiet;
  trainer.fit(net, {.train = data});
  CHECK(net.fc1.weight.device() == (devices.empty() ? Device::cpu() : devices.front()));
  return {values_of(net), losses->all, net.gathered_sizes};
}

void check_close(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 4e-6 * (1 + std::abs(b[i])));
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TrainerOptions on(DataParallelOptions options) {
  TrainerOptions o = test::silent();
  o.max_steps = 1;
  o.strategy = std::make_shared<DataParallelStrategy>(std::move(options));
  return o;
}

}  // namespace

TEST_CASE("a batch is cut into parts of ceil(n / D) samples, and what has no dimension is in each") {
  const auto sizes = [](std::int64_t n, std::int64_t most) {
    Batch batch{.fields = {zeros({n, 2}, Device::cpu()), zeros({}, Device::cpu())}};
    for (std::int64_t i = 0; i < n; ++i) batch.indices.push_back(i);
    std::vector<std::int64_t> out;
    std::int64_t next = 0;
    for (const train::Part& p : train::cut("dp", batch, most)) {
      CHECK(p.batch[0].size(0) == p.samples);
      CHECK(p.batch[1].rank() == 0);
      for (const std::int64_t i : p.batch.indices) CHECK(i == next++);
      out.push_back(p.samples);
    }
    return out;
  };
  using Sizes = std::vector<std::int64_t>;
  CHECK(sizes(10, 4) == Sizes{3, 3, 3, 1});
  CHECK(sizes(5, 4) == Sizes{2, 2, 1});
  CHECK(sizes(2, 4) == Sizes{1, 1});
  CHECK(sizes(8, 1) == Sizes{8});
  CHECK_THROWS_AS((void)train::cut("dp", {.fields = {zeros({2}, Device::cpu()), zeros({3}, Device::cpu())}}, 2),
                  ShapeError);
  CHECK_THROWS_AS((void)train::cut("dp", {.fields = {zeros({}, Device::cpu())}}, 2), ConfigError);
}

TEST_CASE("dp trains as one device does, also with parts of several sizes, accumulation and bf16 autocast") {
  for (const Setting& with : {Setting{}, Setting{.own_end = true}, Setting{.accumulate = 2}}) {
    CAPTURE(with.own_end);
    CAPTURE(with.accumulate);
    const Trained one = trained({}, with);
    for (const int devices : {1, 2, 4}) {
      const Trained several = trained(cpus(devices), with);
      check_close(several.losses, one.losses);
      check_close(several.weights, one.weights);
    }
  }
  const Trained one = trained({}, {.precision = "bf16-mixed"}), two = trained(cpus(2), {.precision = "bf16-mixed"});
  REQUIRE(one.losses.size() == two.losses.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i) CHECK(std::abs(one.losses[i] - two.losses[i]) < 0.02);
}

TEST_CASE("the bits of dp do not depend on the timing of its threads, with dropout and batch norm too") {
  const Trained first = trained(cpus(3), {.plain = false, .samples = 28});
  for (int i = 0; i < 3; ++i) {
    const Trained again = trained(cpus(3), {.plain = false, .samples = 28});
    CHECK(again.weights == first.weights);
    CHECK(again.losses == first.losses);
  }
}

TEST_CASE("training_step_end sees what all replicas returned") {
  // The last batch has 3 samples: parts of one on three of four devices.
  CHECK(trained(cpus(4)).gathered == std::vector<std::int64_t>{3, 3, 3});
  CHECK(trained(cpus(2)).gathered == std::vector<std::int64_t>{2, 3, 3});
}

TEST_CASE("replicas draw numbers of their own, and only the root's buffers are kept") {
  Net net({.gen = Generator(3), .device = Device::cpu()});
  net.plain = false;
  Trainer trainer(on({.devices = cpus(2)}));
  data::DataLoader data(test::points(8), {.batch_size = 8});
  Batch first;
  for (const Batch& b : data) first = b;
  Net alone({.gen = Generator(3), .device = Device::cpu()});
  (void)alone.norm(alone.fc1(slice(first[0], 0, 0, 4)));  // the statistics of the root's half
  trainer.fit(net, {.train = data});
  CHECK(net.norm.num_batches_tracked.item<std::int64_t>() == 1);
  CHECK(net.norm.running_mean.to_vector<float>() == alone.norm.running_mean.to_vector<float>());
}

TEST_CASE("hooks on gradients see the sum over the replicas, once a step") {
  Net net({.gen = Generator(3), .device = Device::cpu()}), alone({.gen = Generator(3), .device = Device::cpu()});
  Trainer trainer(on({.devices = cpus(3)}));
  data::DataLoader data(test::points(7), {.batch_size = 7});
  Batch whole;
  for (const Batch& b : data) whole = b;
  backward(test::squared_error(alone(whole[0]), whole[1]));
  std::vector<std::vector<float>> seen;
  const HookHandle hook =
      on_gradient_complete(net.fc2.weight, [&](const Tensor& g) { seen.push_back(g.to_vector<float>()); });
  trainer.fit(net, {.train = data});
  REQUIRE(seen.size() == 1);
  check_close(seen[0], alone.fc2.weight.grad().to_vector<float>());
}

TEST_CASE("an error of one replica ends the step, and the next fit trains") {
  struct Fails final : TrainModuleOf<Fails, DataParallelModule> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    std::atomic<bool>* fails = nullptr;
    bool is_replica = false;
    std::unique_ptr<TrainModule> replica(const nn::Options& o) const override {
      auto other = std::make_unique<Fails>(o);
      other->fails = fails;
      other->is_replica = true;
      return other;
    }
    StepOutput training_step(const Batch& b, std::int64_t) override {
      if (is_replica && *fails) fail<DataError>("a planted error");
      return test::squared_error(fc(b[0]), b[1]);
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  std::atomic<bool> fails = true;
  Fails net({.gen = Generator(3), .device = Device::cpu()});
  net.fails = &fails;
  Trainer trainer(on({.devices = cpus(2)}));
  data::DataLoader data = test::loader(8, 4);
  CHECK_THROWS_WITH_AS(trainer.fit(net, {.train = data}), doctest::Contains("a planted error"), DataError);
  fails = false;
  trainer.fit(net, {.train = data});
  CHECK(trainer.global_step() == 1);
}

TEST_CASE("dp refuses what it cannot share, before anything is trained") {
  TrainerOptions by_name = test::silent();
  by_name.strategy = "dp";
  by_name.accelerator = "cpu";
  by_name.devices = 4;
  CHECK(contains(refusal([&] { Trainer t(by_name); }), "strategy is dp and the accelerator is cpu"));
  by_name.strategy = "split_batch";
  CHECK(contains(refusal([&] { Trainer t(by_name); }), "list CPU devices in the options of the strategy"));
  CHECK(contains(refusal([] {
                   DataParallelStrategy s({.devices = {Device::cpu(1), Device::cpu(1)}});
                 }),
                 "lists cpu:1 twice (cpu:1, cpu:1)"));
  TrainerOptions both = on({.devices = cpus(2)});
  both.devices = 2;
  CHECK(contains(refusal([&] { Trainer t(both); }), "leave one of them out"));

  data::DataLoader data = test::loader(8, 4);
  struct Plain : TrainModuleOf<Plain> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override { return test::squared_error(fc(b[0]), b[1]); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  struct Tied final : TrainModuleOf<Tied, Plain> {
    explicit Tied(nn::Options o) : TrainModuleOf(std::move(o)) {
      static_cast<Tensor&>(*same.parameters()[0].value) = *fc.parameters()[0].value;
    }
    nn::Linear same{*this, "same", {.in = 2, .out = 1}};
  };
  Plain plain({.gen = Generator(3), .device = Device::cpu()});
  const auto fit = [&](TrainModule& module, DataParallelOptions options) {
    options.devices = cpus(2);
    return refusal([&] { Trainer(on(std::move(options))).fit(module, {.train = data}); });
  };
  Tied tied({.gen = Generator(3), .device = Device::cpu()});
  CHECK(contains(fit(tied, {}), "fc.weight and same.weight are one tensor"));
  CHECK(contains(fit(plain, {}), "can not be copied; derive it from DataParallelModule"));
  struct Wider final : TrainModuleOf<Wider> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 3, .out = 1}};
    nn::Linear more{*this, "more", {.in = 1, .out = 1}};
  };
  const std::string differs = fit(plain, {.replica = [](const nn::Options& o) { return std::make_unique<Wider>(o); }});
  CHECK(contains(differs, "replica 1 has other parameters than the module"));
  CHECK(contains(differs, "more.weight"));
  CHECK(contains(differs, "fc.weight: f32 [1, 2] given, f32 [1, 3] expected"));
  CHECK(fit(plain, {.replica = [](const nn::Options& o) { return std::make_unique<Plain>(o); }}) == "accepted");
  struct Manual final : TrainModuleOf<Manual, Plain> {
    using TrainModuleOf::TrainModuleOf;
    bool automatic_optimization() const override { return false; }
  };
  Manual manual({.gen = Generator(3), .device = Device::cpu()});
  CHECK(contains(fit(manual, {}), "the module optimizes manually"));
}

TEST_CASE("dp gives advice once a run") {
  test::Warnings said;
  Net net({.gen = Generator(3), .device = Device::cpu()});
  data::DataLoader data = test::loader(8, 4);
  Trainer trainer(on({.devices = cpus(2)}));
  trainer.fit(net, {.train = data});
  CHECK(said.count("I-TRAIN-DP") == 1);
}

TEST_CASE("dp with the root on the simt device copies parameters and gradients over") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  const Trained one = trained({});
  const Trained two = trained({Device::simt(), Device::cpu(1)});
  check_close(two.losses, one.losses);
  check_close(two.weights, one.weights);
}
