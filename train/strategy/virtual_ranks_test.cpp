// The same bits on 1, 2, 4 and 8 ranks.
#include <doctest/doctest.h>

#include <cstring>

#include "comm/group/local.h"
#include "levin/autograd.h"
#include "levin/train/ddp_strategy.h"
#include "train/run/fixture_test.h"

using namespace levin;

namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

// Dropout draws, batch norm has statistics.
struct Drawing : TrainModuleOf<Drawing> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 16}};
  nn::Dropout drop{*this, "drop", {.p = 0.25}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  bool sums = false;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor error = square(fc2(drop(tanh(norm(fc1(b[0]))))) - b[1]);
    if (sums) return StepOutput::sum(sum(error), static_cast<double>(error.numel()));
    return mean(error);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01})}};
  }
};

struct Case {
  std::int64_t accumulate = 1;
  bool exact = false;
  std::string precision = "32-true";
  double clip = 0;
};

// The bits of all weights and buffers after 50 steps over batches of 32 samples, on rank 0.
std::string state_after(int ranks, const Case& c, int virtual_ranks = 8) {
  std::string bits;
  dist::run_local(ranks, [&](const Group& group) {
    TrainerOptions options = test::silent();
    options.max_steps = 50;
    options.accumulate_grad_batches = c.accumulate;
    if (c.exact) options.accumulate_weighting = AccumulateWeighting::exact;
    options.precision = c.precision;
    options.gradient_clip_val = c.clip;
    options.strategy =
        std::make_shared<DdpStrategy>(DdpOptions{.virtual_ranks = virtual_ranks, .process = {.group = group}});
    Drawing module(nn::Options{.gen = Generator(7), .device = Device::cpu()});
    module.sums = c.exact;
    data::DataLoader data = test::loader(150, 32 / ranks);  // padded to 152: the last batch of an epoch has 24 samples
    Trainer(options).fit(module, {.train = data});
    if (group->rank() != 0) return;
    for (const auto& [name, t] : module.state_dict()) {
      const Tensor wide = t.to(DType::f64);
      for (const double v : wide.to_vector<double>()) {
        CHECK(v == v);
        char raw[sizeof v];
        std::memcpy(raw, &v, sizeof v);
        bits.append(raw, sizeof v);
      }
    }
  });
  return bits;
}

}  // namespace

TEST_CASE("with 8 virtual ranks 1, 2, 4 and 8 ranks train to the same bits, with dropout, batch norm and clipping") {
  for (const Case& c : {Case{}, Case{.accumulate = 3, .clip = 0.05}, Case{.accumulate = 2, .exact = true},
                        Case{.precision = "16-o2"}}) {
    CAPTURE(c.accumulate);
    CAPTURE(c.precision);
    const std::string one = state_after(1, c);
    CHECK(!one.empty());
    for (const int ranks : {2, 4, 8}) {
      CAPTURE(ranks);
      CHECK(state_after(ranks, c) == one);
    }
  }
}

TEST_CASE("without virtual ranks the number of ranks changes bits, and the number of virtual ranks does, too") {
  CHECK(state_after(2, {}, 0) != state_after(1, {}, 0));
  CHECK(state_after(1, {}, 4) != state_after(1, {}, 8));
}

TEST_CASE("virtual ranks refuse what would make bits depend on ranks, and ranks that do not divide them") {
  const auto error_of = [](const auto& f) {
    try {
      f();
    } catch (const ConfigError& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  const auto has = [](const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(has(error_of([] { DdpStrategy({.virtual_ranks = 6}); }), "virtual_ranks is 6, expected a power of two"));
  CHECK(has(error_of([] { DdpStrategy({.comm_hook = CommHook::bf16, .virtual_ranks = 8}); }), "comm_hook is set"));
  TrainerOptions options = test::silent();
  options.sync_batchnorm = true;
  options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.virtual_ranks = 8});
  CHECK(has(error_of([&] { Trainer trainer(options); }), "sync_batchnorm is on and virtual_ranks is 8"));
  options.sync_batchnorm = false;
  options.devices = 3;  // before a process is started
  CHECK(has(error_of([&] { Trainer trainer(options); }), "virtual_ranks is 8 and there are 3 ranks"));
  dist::run_local(3, [&](const Group& group) {
    DdpStrategy strategy({.virtual_ranks = 8, .process = {.group = group}});
    CHECK(has(error_of([&] { strategy.connect({}); }), "virtual_ranks is 8 and there are 3 ranks"));
  });
}

TEST_CASE("virtual ranks refuse a step that returns other outputs for one of them, and keep each rank's metrics") {
  struct Uneven final : TrainModuleOf<Uneven> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    MaxMetric most{*this, "most"};
    MeanMetric seen{*this, "seen"};
    int calls = 0, kind = 0;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const Tensor loss = mean(square(fc(b[0]) - b[1]));
      most.update(b[1]);
      seen.update(b[1]);
      log("most", most, {.on_epoch = true});
      log("seen", seen, {.on_epoch = true});
      if (++calls % 2 == 1 || kind == 0) return NamedTensors{{"loss", loss}, {"y", loss.detach()}};
      if (kind == 1) return loss;
      return NamedTensors{{"loss", loss}, {"z", loss.detach()}};
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
    }
  };
  struct Metrics {
    double most = 0, seen = 0;
  };
  const auto fit = [](int ranks, int kind) {
    Metrics of_zero;
    dist::run_local(ranks, [&](const Group& group) {
      TrainerOptions options = test::silent();
      options.max_epochs = 1;
      options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.virtual_ranks = 4, .process = {.group = group}});
      Uneven module(nn::Options{.gen = Generator(7), .device = Device::cpu()});
      module.kind = kind;
      data::DataLoader data = test::loader(32, 16 / ranks);
      Trainer trainer(options);
      trainer.fit(module, {.train = data});
      if (group->rank() != 0) return;
      for (const auto& [name, value] : trainer.callback_metrics()) {
        if (name == "most") of_zero.most = value;
        if (name == "seen") of_zero.seen = value;
      }
    });
    return of_zero;
  };
  CHECK_THROWS_WITH_AS(fit(1, 1),
                       doctest::Contains("returned {loss, y} for the first virtual rank of this rank and a "
                                         "loss for virtual rank 1"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(fit(2, 2), doctest::Contains("{loss, z}"), ConfigError);
  const Metrics one = fit(1, 0), two = fit(2, 0);
  data::DataLoader whole = test::loader(32, 32);
  for (const Batch& b : whole) {
    CHECK(one.most == amax(b[1]).to(DType::f64).item<double>());
    CHECK(one.seen == doctest::Approx(mean(b[1].to(DType::f64)).item<double>()));
  }
  CHECK(two.most == one.most);
  CHECK(two.seen == doctest::Approx(one.seen));
}
