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
