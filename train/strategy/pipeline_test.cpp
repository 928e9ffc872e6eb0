#include "levin/train/pipeline_strategy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "levin/ops.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;

namespace {

using Kind = PipelineSlot::Kind;
constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b};
constexpr PipelineCheckpoint kCheckpoints[] = {PipelineCheckpoint::except_last, PipelineCheckpoint::always,
                                               PipelineCheckpoint::never};

std::vector<Device> cpus(int n) {
  std::vector<Device> all;
  for (int i = 0; i < n; ++i) all.push_back(Device::cpu(i));
  return all;
}

// Five layers; `with` adds a batch norm or a dropout among them.
struct Net final : TrainModuleOf<Net, PipelineModule> {
  enum class With { nothing, norm, drop };
  Net(nn::Options options, With with) : TrainModuleOf(std::move(options)) {
    body.add<nn::Linear>({.in = 2, .out = 16});
    body.add<nn::Tanh>();
    if (with == With::norm) body.add<nn::BatchNorm1d>({.features = 16});
    if (with == With::drop) body.add<nn::Dropout>({.p = 0.5});
    if (with == With::nothing) body.add<nn::Linear>({.in = 16, .out = 16});
    body.add<nn::GELU>();
    body.add<nn::Linear>({.in = 16, .out = 1});
  }
  nn::Sequential body{*this, "body"};
  nn::Parameter scale{*this, "scale", ones({1}, Device::cpu())};  // of loss_of
  bool sums = false, fails = false, manual = false;
  std::vector<float> step_losses;  // of on_step_output
  std::vector<float> val_losses;
  nn::Sequential& layers() override { return body; }
  StepOutput loss_of(const Tensor& y, const Batch& b) override {
    if (fails) fail<DataError>("a planted error");
    const Tensor error = square(y * scale - b[1]);
    if (sums) return StepOutput::sum(sum(error), static_cast<double>(error.numel()));
    return NamedTensors{{"loss", mean(error)}, {"y", y}};
  }
  void on_step_output(const StepOutput& output) override {
    log("train_loss", output.loss(), {.on_step = true, .on_epoch = true});
    step_losses.push_back(output.loss().item<float>());
  }
  StepOutput training_step(const Batch& b, std::int64_t i) override {
    if (!manual) return PipelineModule::training_step(b, i);
    StepOutput output = forward_backward(b);
    optimizers()[0].step();
    optimizers()[0].zero_grad();
    return output;
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    const Tensor y = (*this)(b[0]);
    val_losses.push_back(test::squared_error(y, b[1].to(y.device())).item<float>());
  }
  Batch example_input() override { return {.fields = {empty({8, 2}, Device::meta())}}; }
  bool automatic_optimization() const override { return !manual; }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9})}};
  }
};
const nn::Options kOptions{.gen = Generator(3), .device = Device::cpu()};

struct Trained {
  std::vector<float> weights, losses, val_losses;
};
struct Setting {
  Net::With with = Net::With::nothing;
  bool sums = false;
  std::int64_t accumulate = 1;
  std::string precision = "32-true";
  bool manual = false, clip = true;
};
// Batches of 10 of 23 samples: 10, 10 and 3.
Trained trained(const PipelineOptions* options, const Setting& setting = {}) {
  Net net(kOptions, setting.with);
  net.sums = setting.sums;
  net.manual = setting.manual;
  TrainerOptions o = test::silent();
  o.max_epochs = 2;
  o.accumulate_grad_batches = setting.accumulate;
  if (setting.clip) o.gradient_clip_val = 0.5;
  o.precision = setting.precision;
  if (setting.sums) o.accumulate_weighting = AccumulateWeighting::exact;
  if (options) o.strategy = std::make_shared<PipelineStrategy>(*options);
  struct Losses final : Callback {
    std::vector<float> all;
    void on_train_batch_end(const StepInfo& at) override { all.push_back(at.loss.item<float>()); }
  };
  const auto losses = std::make_shared<Losses>();
  o.callbacks.push_back(losses);
  Trainer trainer(std::move(o));
  data::DataLoader data = test::loader(23, 10), val = test::loader(8, 4);
  const test::Warnings quiet;
  trainer.fit(net, {.train = data, .val = val});
  Trained result{.weights = {}, .losses = losses->all, .val_losses = net.val_losses};
  for (const auto& [name, t] : net.state_dict()) {
    const std::vector<float> one = t.to(DType::f32).to_vector<float>();
    result.weights.insert(result.weights.end(), one.begin(), one.end());
  }
  return result;
}

void check_close(const std::vector<float>& a, const std::vector<float>& b, double tolerance = 4e-6) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= tolerance * (1 + std::abs(b[i])));
}
void check_close(const Trained& a, const Trained& b) {
  check_close(a.weights, b.weights);
  check_close(a.losses, b.losses);
  check_close(a.val_losses, b.val_losses);
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TrainerOptions on(PipelineOptions options) {
  TrainerOptions o = test::silent();
  o.max_steps = 1;
  o.strategy = std::make_shared<PipelineStrategy>(std::move(options));
  return o;
}

}  // namespace

TEST_CASE(
    "a schedule runs each pass once after the passes that it needs, and waits (p - 1) / (m + p - 1) of its slots") {
  for (const PipelineSchedule schedule : kSchedules) {
    for (const std::int64_t p : {1, 2, 4, 8}) {
      for (const std::int64_t m : {1, 3, 4, 8, 32}) {
        CAPTURE(p);
        CAPTURE(m);
        const auto slots = pipeline_slots(schedule, p, m);
        REQUIRE(slots.size() == static_cast<std::size_t>(p));
        const auto at = [&](std::int64_t s, PipelineSlot wanted) {
          const auto& row = slots[static_cast<std::size_t>(s)];
          CHECK(std::count(row.begin(), row.end(), wanted) == 1);
          return std::find(row.begin(), row.end(), wanted) - row.begin();
        };
        std::int64_t idle = 0;
        for (std::int64_t s = 0; s < p; ++s) {
          const auto& row = slots[static_cast<std::size_t>(s)];
          CHECK(row.size() == static_cast<std::size_t>(2 * (m + p - 1)));
          std::int64_t live = 0, most = 0;
          for (const PipelineSlot& slot : row) {
            idle += slot.kind == Kind::idle ? 1 : 0;
            live += slot.kind == Kind::forward ? 1 : slot.kind == Kind::backward ? -1 : 0;
            most = std::max(most, live);
          }
          CHECK(most == (schedule == PipelineSchedule::gpipe ? m : std::min(m, p - s)));
          for (std::int64_t i = 0; i < m; ++i) {
            CHECK(at(s, {Kind::forward, i}) < at(s, {Kind::backward, i}));
            if (s == 0) continue;
            CHECK(at(s - 1, {Kind::forward, i}) < at(s, {Kind::forward, i}));
            CHECK(at(s, {Kind::backward, i}) < at(s - 1, {Kind::backward, i}));
          }
        }
        CHECK(idle * (m + p - 1) == (p - 1) * p * 2 * (m + p - 1));
      }
    }
  }
  CHECK_THROWS_AS((void)pipeline_slots(PipelineSchedule::gpipe, 0, 1), ConfigError);
}

TEST_CASE("an automatic balance makes the largest cost of a stage least") {
  using Numbers = std::vector<std::int64_t>;
  CHECK(pipeline_balance({1, 1, 1, 1}, 2) == Numbers{2, 2});
  CHECK(pipeline_balance({9, 1, 1, 1}, 2) == Numbers{1, 3});
  CHECK(pipeline_balance({1, 2, 3, 4, 5}, 3) == Numbers{3, 1, 1});
  CHECK(pipeline_balance({0, 0, 0}, 3) == Numbers{1, 1, 1});
  CHECK_THROWS_AS((void)pipeline_balance({1}, 2), ConfigError);
}

TEST_CASE("a pipeline trains as the unsplit module, for each schedule, policy and number of stages") {
  const Trained whole = trained(nullptr);
  for (const PipelineSchedule schedule : kSchedules) {
    for (const PipelineCheckpoint policy : kCheckpoints) {
      CAPTURE(static_cast<int>(schedule));
      CAPTURE(static_cast<int>(policy));
      const PipelineOptions two{
          .devices = cpus(2), .balance = {2, 3}, .microbatches = 4, .checkpoint = policy, .schedule = schedule};
      check_close(trained(&two), whole);
      const PipelineOptions four{
          .devices = cpus(4), .balance = {1, 1, 2, 1}, .microbatches = 8, .checkpoint = policy, .schedule = schedule};
      check_close(trained(&four), whole);
    }
  }
}

TEST_CASE("a pipeline accumulates, weighs exactly, and runs under autocast as the unsplit module") {
  const PipelineOptions options{.devices = cpus(2), .balance = {3, 2}, .microbatches = 3};
  check_close(trained(&options, {.accumulate = 2}), trained(nullptr, {.accumulate = 2}));
  check_close(trained(&options, {.sums = true, .accumulate = 2}), trained(nullptr, {.sums = true, .accumulate = 2}));
  const Trained half = trained(&options, {.precision = "bf16-mixed"}),
                whole = trained(nullptr, {.precision = "bf16-mixed"}), full = trained(nullptr);
  check_close(half.losses, whole.losses, 0.02);
  CHECK(half.losses != full.losses);
}

TEST_CASE("a module that optimizes manually trains in the stages of a pipeline as unsplit") {
  const PipelineOptions options{.devices = cpus(2), .balance = {3, 2}, .microbatches = 3};
  const Trained automatic = trained(nullptr, {.clip = false});
  check_close(trained(&options, {.manual = true, .clip = false}), automatic);
  const Trained alone = trained(nullptr, {.manual = true, .clip = false});
  CHECK(alone.weights == automatic.weights);
  Net net(kOptions, Net::With::nothing);
  CHECK_THROWS_AS((void)net.forward_backward({.fields = {zeros({1, 2}, Device::cpu())}}), StateError);
}

TEST_CASE("what a module logs of a pipeline's step is the whole batch's, once a step") {
  for (const bool split : {false, true}) {
    Net net(kOptions, Net::With::nothing);
    TrainerOptions o = test::silent();
    o.max_epochs = 1;
    if (split) o.strategy = std::make_shared<PipelineStrategy>(PipelineOptions{.devices = cpus(2), .microbatches = 4});
    Trainer trainer(std::move(o));
    data::DataLoader data = test::loader(23, 10);
    const test::Warnings quiet;
    trainer.fit(net, {.train = data});
    REQUIRE(net.step_losses.size() == 3);
    const double mean = (10 * net.step_losses[0] + 10 * net.step_losses[1] + 3 * net.step_losses[2]) / 23;
    bool known = false;
    for (const auto& [name, value] : trainer.callback_metrics()) {
      if (name == "train_loss_epoch") CHECK(value == doctest::Approx(mean).epsilon(1e-6));
      if (name == "train_loss_step") CHECK(value == net.step_losses[2]);
      known |= name == "train_loss_epoch";
    }
    CHECK(known);
  }
}

TEST_CASE("recomputation repeats dropout, and running statistics take one step a batch whatever the policy") {
  for (const Net::With with : {Net::With::drop, Net::With::norm}) {
    CAPTURE(static_cast<int>(with));
    std::optional<Trained> first;
    for (const PipelineSchedule schedule : kSchedules) {
      for (const PipelineCheckpoint policy : kCheckpoints) {
        // Batches of 10 and 3 samples: parts of 5 and 5, of 2 and 1, so batch norm needs two microbatches of 2 or more.
        Net net(kOptions, with);
        Trainer trainer(
            on({.devices = cpus(2), .balance = {2, 3}, .microbatches = 2, .checkpoint = policy, .schedule = schedule}));
        data::DataLoader data(test::points(8), {.batch_size = 8});
        trainer.fit(net, {.train = data});
        Trained now{};
        for (const auto& [name, t] : net.state_dict()) {
          const std::vector<float> one = t.to(DType::f32).to_vector<float>();
          now.weights.insert(now.weights.end(), one.begin(), one.end());
          if (name == "body.2.num_batches_tracked") CHECK(one == std::vector<float>{1});
        }
        if (!first) first = now;
        check_close(now.weights, first->weights, 1e-6);
      }
    }
  }
}

TEST_CASE("running statistics of a pipeline move towards the mean over the microbatches") {
  Net net(kOptions, Net::With::norm), alone(kOptions, Net::With::norm);
  data::DataLoader data(test::points(8), {.batch_size = 8});
  Batch whole;
  for (const Batch& b : data) whole = b;
  (void)alone.body(whole[0]);  // one step with the mean of the whole batch, which is that of two halves
  Trainer trainer(on({.devices = cpus(2), .balance = {2, 3}, .microbatches = 2}));
  trainer.fit(net, {.train = data});
  auto& mine = dynamic_cast<nn::BatchNorm1d&>(net.body[2]);
  auto& theirs = dynamic_cast<nn::BatchNorm1d&>(alone.body[2]);
  check_close(mine.running_mean.to_vector<float>(), theirs.running_mean.to_vector<float>());
  CHECK(mine.running_mean.device() == Device::cpu(1));
}

TEST_CASE("fewer samples than microbatches are as many microbatches as samples") {
  const PipelineOptions options{.devices = cpus(2), .balance = {3, 2}, .microbatches = 64};
  check_close(trained(&options), trained(nullptr));
}

TEST_CASE("each layer lies on the device of its stage after a fit, and hooks on gradients see one whole gradient") {
  Net net(kOptions, Net::With::nothing);
  std::int64_t calls = 0;
  data::DataLoader data(test::points(8), {.batch_size = 8});
  Trainer trainer(on({.devices = cpus(3), .balance = {1, 2, 2}, .microbatches = 4}));
  struct AtStart final : Callback {
    Net* net = nullptr;
    std::int64_t* calls = nullptr;
    HookHandle hook;
    void on_train_start() override {
      hook = on_gradient_complete(*net->body[0].parameters().front().value, [this](const Tensor&) { ++*calls; });
    }
  };
  TrainerOptions o = on({.devices = cpus(3), .balance = {1, 2, 2}, .microbatches = 4});
  const auto at_start = std::make_shared<AtStart>();
  at_start->net = &net;
  at_start->calls = &calls;
  o.callbacks.push_back(at_start);
  Trainer(std::move(o)).fit(net, {.train = data});
  CHECK(calls == 1);
  const int devices[] = {0, 1, 1, 2, 2};
  for (std::int64_t i = 0; i < 5; ++i) {
    for (const ParamRef& p : net.body[i].parameters()) CHECK(p.value->device() == Device::cpu(devices[i]));
  }
  CHECK(net.scale.device() == Device::cpu(2));
}

TEST_CASE("an automatic balance is printed as the option that repeats it") {
  for (const AutoBalance mode : {AutoBalance::by_size, AutoBalance::by_time}) {
    const test::Warnings said;
    Net net(kOptions, Net::With::nothing);
    const auto strategy = std::make_shared<PipelineStrategy>(PipelineOptions{.devices = cpus(2), .auto_mode = mode});
    TrainerOptions o = test::silent();
    o.max_steps = 1;
    o.strategy = strategy;
    data::DataLoader data = test::loader(8, 8);
    Trainer(std::move(o)).fit(net, {.train = data});
    REQUIRE(strategy->balance().size() == 2);
    CHECK(strategy->balance()[0] + strategy->balance()[1] == 5);
    bool printed = false;
    for (const Warning& w : said.all())
      printed |= w.id == "I-TRAIN-BALANCE" && contains(w.text, "{.balance = {" + text(strategy->balance()[0]) + ", " +
                                                                   text(strategy->balance()[1]) + "}}");
    CHECK(printed);
    for (nn::Module* child : net.body.children()) CHECK(child->is_training());
  }
}

TEST_CASE("an automatic balance is that of the fit's module, also where layers have been placed") {
  struct Uneven final : TrainModuleOf<Uneven, PipelineModule> {
    explicit Uneven(bool wide_first) : TrainModuleOf(kOptions) {
      body.add<nn::Linear>({.in = 2, .out = wide_first ? 64 : 4});
      for (int i = 0; i < 2; ++i) body.add<nn::Linear>({.in = wide_first && i == 0 ? 64 : 4, .out = 4});
      body.add<nn::Linear>({.in = 4, .out = wide_first ? 4 : 64});
      body.add<nn::Linear>({.in = wide_first ? 4 : 64, .out = 1});
    }
    nn::Sequential body{*this, "body"};
    nn::Sequential& layers() override { return body; }
    StepOutput loss_of(const Tensor& y, const Batch& b) override { return mean(square(y - b[1])); }
    Batch example_input() override { return {.fields = {empty({8, 2}, Device::meta())}}; }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  const test::Warnings quiet;
  const auto chosen = [](PipelineStrategy& strategy, Trainer& trainer, Uneven& net) {
    data::DataLoader data = test::loader(8, 8);
    trainer.fit(net, {.train = data});
    ++*trainer.options().max_epochs;
    return strategy.balance();
  };
  const auto options_of = [](const std::shared_ptr<PipelineStrategy>& strategy) {
    TrainerOptions o = test::silent();
    o.max_epochs = 1;
    o.strategy = strategy;
    return o;
  };
  Uneven front(true), back(false);
  const auto strategy = std::make_shared<PipelineStrategy>(PipelineOptions{.devices = cpus(2)});
  Trainer trainer(options_of(strategy));
  const std::vector<std::int64_t> of_front = chosen(*strategy, trainer, front);
  CHECK(chosen(*strategy, trainer, front) == of_front);
  const std::vector<std::int64_t> of_back = chosen(*strategy, trainer, back);
  CHECK(of_front != of_back);
  const auto other = std::make_shared<PipelineStrategy>(PipelineOptions{.devices = cpus(2)});
  Trainer again(options_of(other));
  CHECK(chosen(*other, again, back) == of_back);
  CHECK(chosen(*other, again, front) == of_front);
}

TEST_CASE("an error in a stage ends the step for all stages, and the next fit trains") {
  Net net(kOptions, Net::With::nothing);
  net.fails = true;
  Trainer trainer(on({.devices = cpus(3), .balance = {2, 2, 1}}));
  data::DataLoader data = test::loader(8, 8);
  CHECK_THROWS_WITH_AS(trainer.fit(net, {.train = data}), doctest::Contains("a planted error"), DataError);
  CHECK_FALSE(net.scale.grad().defined());
  net.fails = false;
  trainer.fit(net, {.train = data});
  CHECK(trainer.global_step() == 1);
}

TEST_CASE("a pipeline refuses what does not fit, with both numbers") {
  const auto made = [](PipelineOptions options) { return refusal([&] { PipelineStrategy s(options); }); };
  CHECK(contains(made({.microbatches = 0}), "microbatches is 0, expected 1 or more"));
  CHECK(contains(made({.balance = {2, 0}}), "balance is {2, 0}, stage 1 has 0 layers"));
  CHECK(contains(made({.devices = {Device::cpu(), Device::cpu()}}), "lists cpu twice"));
  CHECK(contains(refusal([] {
                   Trainer t(on({.devices = cpus(3), .balance = {2, 3}}));
                 }),
                 "balance is {2, 3}, 2 stages, and there are 3 devices"));
  TrainerOptions by_name = test::silent();
  by_name.accelerator = "cpu";
  for (const char* name : {"pipeline", "pipe"}) {
    by_name.strategy = name;
    CHECK(contains(refusal([&] { Trainer t(by_name); }), "strategy is pipeline and the accelerator is cpu"));
  }
  data::DataLoader data = test::loader(8, 4);
  const auto fit = [&](TrainModule& module, PipelineOptions options) {
    return refusal([&] { Trainer(on(std::move(options))).fit(module, {.train = data}); });
  };
  Net net(kOptions, Net::With::nothing);
  CHECK(contains(fit(net, {.devices = cpus(2), .balance = {2, 2}}), "{2, 2}, 4 layers, and layers() has 5"));
  CHECK(contains(fit(net, {.devices = cpus(6)}), "6 stages and 5 layers"));
  net.sums = true;
  CHECK(contains(fit(net, {.devices = cpus(2), .balance = {2, 3}}), "returned a sum and its weight"));
  struct Plain final : TrainModuleOf<Plain> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override { return mean(fc(b[0])); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  Plain plain(kOptions);
  CHECK(contains(fit(plain, {.devices = cpus(2)}), "Plain has no layers(); derive it from PipelineModule"));
  struct NoExample final : TrainModuleOf<NoExample, PipelineModule> {
    explicit NoExample(nn::Options o) : TrainModuleOf(std::move(o)) {
      body.add<nn::Linear>({.in = 2, .out = 4});
      body.add<nn::Linear>({.in = 4, .out = 1});
    }
    nn::Sequential body{*this, "body"};
    nn::Sequential& layers() override { return body; }
    StepOutput loss_of(const Tensor& y, const Batch&) override { return mean(y); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  struct Tied final : TrainModuleOf<Tied, PipelineModule> {
    explicit Tied(nn::Options o) : TrainModuleOf(std::move(o)) {
      body.add<nn::Linear>({.in = 2, .out = 2});
      body.add<nn::Linear>({.in = 2, .out = 2});
      const std::vector<ParamRef> one = body[0].parameters(), two = body[1].parameters();
      static_cast<Tensor&>(*two[0].value) = *one[0].value;
    }
    nn::Sequential body{*this, "body"};
    nn::Sequential& layers() override { return body; }
    StepOutput loss_of(const Tensor& y, const Batch&) override { return mean(y); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(body[0].parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  // Within one stage the shared parameter gets its gradient once.
  const auto weights_after = [&](bool in_stages) {
    Tied module(kOptions);
    TrainerOptions o = test::silent();
    o.max_epochs = 1;
    if (in_stages)
      o.strategy =
          std::make_shared<PipelineStrategy>(PipelineOptions{.devices = cpus(1), .balance = {2}, .microbatches = 2});
    Trainer(o).fit(module, {.train = data});
    return test::weights_of(module);
  };
  check_close(weights_after(true), weights_after(false));
  Tied tied(kOptions);
  CHECK(contains(fit(tied, {.devices = cpus(2), .balance = {1, 1}}),
                 "layers of stages 0 and 1 share the parameter body.0.weight (body.1.weight)"));
  NoExample silent(kOptions);
  CHECK(contains(fit(silent, {.devices = cpus(2)}), "has no example_input()"));
}

TEST_CASE("a pipeline from the CPU to the simt device trains as the unsplit module") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  // Two devices without one memory need a group of the optimizer each, so the last stage alone is trained on simt.
  struct Frozen final : TrainModuleOf<Frozen, PipelineModule> {
    explicit Frozen(nn::Options o) : TrainModuleOf(std::move(o)) {
      body.add<nn::Linear>({.in = 2, .out = 4});
      body.add<nn::Linear>({.in = 4, .out = 1});
    }
    nn::Sequential body{*this, "body"};
    nn::Sequential& layers() override { return body; }
    StepOutput loss_of(const Tensor& y, const Batch& b) override { return test::squared_error(y, b[1]); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(body[1].parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  Frozen net(kOptions), alone(kOptions);
  data::DataLoader data(test::points(8), {.batch_size = 8});
  Trainer(on({.devices = {Device::cpu(), Device::simt()}, .balance = {1, 1}, .microbatches = 2}))
      .fit(net, {.train = data});
  TrainerOptions o = test::silent();
  o.max_steps = 1;
  Trainer(std::move(o)).fit(alone, {.train = data});
  check_close(test::weights_of(net), test::weights_of(alone));
}
