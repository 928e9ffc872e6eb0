#include "levin/train/pipeline_ranks_strategy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "comm/group/local.h"
#include "levin/ops.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;

namespace {

const nn::Options kOptions{.gen = Generator(3), .device = Device::cpu()};

struct Net : TrainModuleOf<Net, PipelineModule> {
  explicit Net(bool drops = false) : TrainModuleOf(kOptions) {
    body.add<nn::Linear>({.in = 2, .out = 16});
    body.add<nn::Tanh>();
    if (drops)
      body.add<nn::Dropout>({.p = 0.5});
    else
      body.add<nn::Linear>({.in = 16, .out = 16});
    body.add<nn::GELU>();
    body.add<nn::Linear>({.in = 16, .out = 1});
  }
  nn::Sequential body{*this, "body"};
  nn::Parameter scale{*this, "scale", ones({1}, Device::cpu())};  // of loss_of
  nn::Buffer used{*this, "used", zeros({1}, Device::cpu())};      // of loss_of, too
  bool sums = false, fails = false;
  std::vector<float> val_losses, step_losses;
  nn::Sequential& layers() override { return body; }
  StepOutput loss_of(const Tensor& y, const Batch& b) override {
    if (fails) fail<DataError>("a planted error");
    {
      const NoGrad off;
      fill_(used, 1);
    }
    const Tensor error = square(y * scale - b[1]);
    if (sums) return StepOutput::sum(sum(error), static_cast<double>(error.numel()));
    return NamedTensors{{"loss", mean(error)}, {"y", y}};
  }
  void on_step_output(const StepOutput& output) override {
    log("train_loss", output.loss(), {.on_step = true, .on_epoch = true});
    step_losses.push_back(output.loss().item<float>());
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    const Tensor loss = test::squared_error((*this)(b[0]), b[1]);
    log("val_loss", loss);
    val_losses.push_back(loss.item<float>());
  }
  Batch example_input() override { return {.fields = {empty({8, 2}, Device::meta())}}; }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02})}};
  }
};

struct Trained {
  std::vector<float> weights, losses, val_losses;
  double epoch_loss = 0;
};
struct Setting {
  PipelineOptions pipeline{};
  bool sums = false, drops = false;
  std::int64_t accumulate = 1, max_epochs = 2, save_after = 0;
  std::string precision = "32-true", load{}, save{}, save_at_end{};
};
TrainerOptions options_of(const Setting& with) {
  TrainerOptions o = test::silent();
  o.max_epochs = with.max_epochs;
  o.accumulate_grad_batches = with.accumulate;
  o.precision = with.precision;
  o.gradient_clip_val = 0.5;
  if (with.sums) o.accumulate_weighting = AccumulateWeighting::exact;
  return o;
}
// Batches of 10 of 23 samples: 10, 10 and 3.
Trained trained(TrainerOptions o, const Setting& with) {
  Net net(with.drops);
  net.sums = with.sums;
  struct Saves final : Callback {
    std::string path;
    std::int64_t after = 0;
    std::string state_key() const override { return ""; }
    void on_train_batch_end(const StepInfo& at) override {
      if (at.epoch == 0 && at.batch_idx == after) trainer().save_checkpoint(path);
    }
  };
  if (!with.save.empty()) {
    const auto saves = std::make_shared<Saves>();
    saves->path = with.save;
    saves->after = with.save_after;
    o.callbacks.push_back(saves);
  }
  Trainer trainer(std::move(o));
  data::DataLoader data = test::loader(23, 10), val = test::loader(8, 4);
  trainer.fit(net, {.train = data, .val = val, .ckpt_path = with.load});
  if (!with.save_at_end.empty()) {
    (void)trainer.validate(net, val);
    trainer.save_checkpoint(with.save_at_end);
  }
  Trained result{.weights = {}, .losses = net.step_losses, .val_losses = net.val_losses};
  for (const auto& [name, t] : net.state_dict()) {
    const std::vector<float> one = t.to(DType::f32).to_vector<float>();
    result.weights.insert(result.weights.end(), one.begin(), one.end());
  }
  for (const auto& [name, value] : trainer.callback_metrics()) {
    if (name == "train_loss_epoch") result.epoch_loss = value;
  }
  return result;
}
Trained alone(const Setting& with = {}) {
  const test::Warnings quiet;
  return trained(options_of(with), with);
}
// Of each rank.
std::vector<Trained> on_ranks(int size, const Setting& with) {
  const test::Warnings quiet;
  std::vector<Trained> all(static_cast<std::size_t>(size));
  dist::run_local(size, [&](const std::shared_ptr<dist::ProcessGroup>& group) {
    TrainerOptions o = options_of(with);
    o.strategy = std::make_shared<PipelineRanksStrategy>(
        PipelineRanksOptions{.pipeline = with.pipeline, .process = {.group = group}});
    all[static_cast<std::size_t>(group->rank())] = trained(std::move(o), with);
  });
  return all;
}

void check_close(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= tolerance * (1 + std::abs(b[i])));
}
void check_close(const std::vector<Trained>& ranks, const Trained& whole, double tolerance = 2e-5) {
  for (const Trained& one : ranks) {
    check_close(one.weights, whole.weights, tolerance);
    check_close(one.losses, whole.losses, tolerance);
    check_close(one.val_losses, whole.val_losses, tolerance);
    CHECK(one.epoch_loss == doctest::Approx(whole.epoch_loss).epsilon(1e-5));
    CHECK(one.weights == ranks[0].weights);
    CHECK(one.losses == ranks[0].losses);
    CHECK(one.val_losses == ranks[0].val_losses);
  }
}
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("stages that are ranks train, validate and log as the unsplit module") {
  const Trained whole = alone();
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    check_close(on_ranks(2, {.pipeline = {.balance = {2, 3}, .microbatches = 4, .schedule = schedule}}), whole);
    check_close(on_ranks(4, {.pipeline = {.balance = {1, 1, 2, 1}, .microbatches = 8, .schedule = schedule}}), whole);
  }
  check_close(on_ranks(1, {.pipeline = {.balance = {5}, .microbatches = 3}}), whole);
  check_close(on_ranks(3, {.pipeline = {.microbatches = 3}}), whole);  // a balance of its own
}

TEST_CASE("stages that are ranks accumulate, weigh exactly, and run with a loss scale") {
  const PipelineOptions two{.balance = {3, 2}, .microbatches = 3};
  check_close(on_ranks(2, {.pipeline = two, .accumulate = 2}), alone({.accumulate = 2}));
  check_close(on_ranks(2, {.pipeline = two, .sums = true, .accumulate = 2}), alone({.sums = true, .accumulate = 2}));
  const Trained whole = alone({.precision = "16-mixed"});
  for (const Trained& one : on_ranks(2, {.pipeline = two, .precision = "16-mixed"}))
    check_close(one.losses, whole.losses, 0.02);
}

TEST_CASE("bits of stages that are ranks repeat, with dropout too") {
  const Setting drops{.pipeline = {.balance = {3, 2}, .microbatches = 3}, .drops = true};
  const std::vector<Trained> first = on_ranks(2, drops), again = on_ranks(2, drops);
  CHECK(first[0].weights == again[0].weights);
  CHECK(first[0].weights == first[1].weights);
}

TEST_CASE("a checkpoint of stages that are ranks loads in one process, and one of one process in the stages") {
  const test::TemporaryFolder dir;
  const Setting ranks{.pipeline = {.balance = {2, 3}, .microbatches = 4}};
  const auto with = [](Setting s, const std::string& load, const std::string& save) {
    s.load = load;
    s.save = save;
    return s;
  };
  for (const std::int64_t accumulate : {1, 2}) {
    CAPTURE(accumulate);
    Setting one = {}, two = ranks;
    one.accumulate = two.accumulate = accumulate;
    one.save_after = two.save_after = accumulate == 1 ? 1 : 0;  // after a step, and inside of a window
    const Trained whole = alone(one);
    const std::string of_ranks = dir / ("ranks" + std::to_string(accumulate) + ".safetensors"),
                      of_one = dir / ("one" + std::to_string(accumulate) + ".safetensors");
    (void)on_ranks(2, with(two, "", of_ranks));
    (void)alone(with(one, "", of_one));
    check_close(alone(with(one, of_ranks, "")).weights, whole.weights, 2e-5);
    for (const std::string& file : {of_ranks, of_one})
      check_close(on_ranks(2, with(two, file, ""))[1].weights, whole.weights, 2e-5);
    // The state of every parameter is in the file, also in one of the end.
    one.save_at_end = dir / "one_end.safetensors";
    two.save_at_end = dir / "two_end.safetensors";
    (void)alone(one);
    (void)on_ranks(2, two);
    const auto end_left = load_safetensors(two.save_at_end).tensors,
               end_right = load_safetensors(one.save_at_end).tensors;
    REQUIRE(end_left.size() == end_right.size());
    for (std::size_t i = 0; i < end_left.size(); ++i) CHECK(end_left[i].second.shape() == end_right[i].second.shape());
    const auto left = load_safetensors(of_ranks).tensors, right = load_safetensors(of_one).tensors;
    REQUIRE(left.size() == right.size());
    for (std::size_t i = 0; i < left.size(); ++i) {
      CHECK(left[i].first == right[i].first);
      CHECK(left[i].second.shape() == right[i].second.shape());
    }
  }
}

TEST_CASE("an error in one rank's stage ends the fit of all ranks") {
  std::mutex mutex;
  int failed = 0;
  const auto body = [&](const std::shared_ptr<dist::ProcessGroup>& group) {
    Net net;
    net.fails = true;
    TrainerOptions o = options_of({});
    o.strategy = std::make_shared<PipelineRanksStrategy>(
        PipelineRanksOptions{.pipeline = {.balance = {2, 2, 1}}, .process = {.group = group}});
    data::DataLoader data = test::loader(8, 8);
    Trainer trainer(std::move(o));
    try {
      trainer.fit(net, {.train = data});
    } catch (const Error& e) {
      const std::lock_guard lock(mutex);
      failed += contains(e.what(), "a planted error") ? 1 : 0;
      throw;
    }
  };
  CHECK_THROWS_AS(dist::run_local(3, body), DataError);  // of the rank that failed, not what others say of it
  CHECK(failed == 3);
}

TEST_CASE("stages that are ranks are refused where they do not fit, with both numbers") {
  const auto made = [](PipelineRanksOptions options) { return refusal([&] { PipelineRanksStrategy s(options); }); };
  CHECK(contains(made({.pipeline = {.microbatches = 0}}), "microbatches is 0, expected 1 or more"));
  CHECK(contains(made({.pipeline = {.devices = {Device::cpu()}}}), "each process has one"));
  TrainerOptions o = test::silent();
  o.accelerator = "cpu";
  o.devices = 2;
  o.strategy = std::make_shared<PipelineRanksStrategy>(PipelineRanksOptions{.pipeline = {.balance = {2, 2, 1}}});
  CHECK(contains(refusal([&] { Trainer t(o); }), "balance is {2, 2, 1}, 3 stages, and there are 2 processes"));
  o.strategy = "rpc_sequential";
  o.sync_batchnorm = true;
  CHECK(contains(refusal([&] { Trainer t(o); }), "sync_batchnorm is on, and each rank runs layers of its own"));
  o.sync_batchnorm = false;
  o.callbacks.push_back(std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.9}));
  CHECK(contains(refusal([&] { Trainer t(o); }), "a callback averages those of all"));
  CHECK(contains(refusal([] {
                   (void)on_ranks(2, {.pipeline = {.balance = {2, 2}}});
                 }),
                 "{2, 2}, 4 layers, and layers() has 5"));
  CHECK(contains(refusal([] {
                   (void)on_ranks(2, {.pipeline = {.balance = {2, 2, 1}}});
                 }),
                 "3 stages, and there are 2 processes"));
  CHECK(contains(refusal([] { (void)on_ranks(6, {}); }), "strategy rpc_sequential: 6 stages and 5 layers"));
  CHECK(contains(made({.pipeline = {.balance = {2, 0}}}), "PipelineRanksStrategy: balance is {2, 0}, stage 1 has 0"));
  struct Plain final : TrainModuleOf<Plain, Net> {
    using TrainModuleOf::TrainModuleOf;
    Batch example_input() override { return {}; }
  };
  CHECK(contains(refusal([] {
                   dist::run_local(2, [](const std::shared_ptr<dist::ProcessGroup>& group) {
                     Plain net;
                     TrainerOptions of_rank = options_of({});
                     of_rank.strategy =
                         std::make_shared<PipelineRanksStrategy>(PipelineRanksOptions{.process = {.group = group}});
                     data::DataLoader data = test::loader(8, 8);
                     Trainer(std::move(of_rank)).fit(net, {.train = data});
                   });
                 }),
                 "strategy rpc_sequential has no balance, and Plain has no example_input()"));
}
