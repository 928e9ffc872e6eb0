// ZeRO, with threads of this process as ranks.
#include "levin/train/zero_strategy.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <limits>

#include "levin/train/checkpoint.h"
#include "levin/train/ddp_strategy.h"
#include "tests/warnings.h"
#include "train/strategy/parallel_fixture_test.h"

using namespace levin;
using namespace levin::test::parallel;

namespace {

TrainerOptions sharded(TrainerOptions options, const Group& group, int stage, double bucket_cap_mb = kSmallBucket) {
  options.strategy = std::make_shared<ZeroStrategy>(
      ZeroOptions{.stage = stage, .bucket_cap_mb = bucket_cap_mb, .process = {.group = group}});
  return options;
}
ShardedStrategy::Report report_of(const TrainerOptions& options) {
  return std::dynamic_pointer_cast<ShardedStrategy>(options.strategy.object())->report();
}

}  // namespace

TEST_CASE("4 ranks that share the optimizer's state make the steps of one process with their samples") {
  for (const int stage : {1, 2}) {
    for (const bool adam : {false, true}) {
      for (const std::int64_t accumulate : {1, 2}) {
        for (const double cap : {kSmallBucket, 3e-4, 25.0}) {
          CAPTURE(stage);
          CAPTURE(adam);
          CAPTURE(accumulate);
          CAPTURE(cap);
          TrainerOptions options = plain();
          options.accumulate_grad_batches = accumulate;
          options.gradient_clip_val = 0.5;
          const auto change = [&](Mlp& m) {
            m.adam = adam;
            m.checkpoints = cap > 1;
          };
          const Weights alone = trained<Mlp>(options, 3, change);
          // Different first weights, of which rank 0's count.
          const auto ranks = on_ranks(4, [&](const Group& group) {
            return trained<Mlp>(sharded(options, group, stage, cap), 3 + static_cast<std::uint64_t>(group->rank()),
                                change);
          });
          for (const Weights& weights : ranks) {
            CHECK(weights == ranks[0]);
            CHECK(difference(weights, alone) <= 1e-5);
          }
        }
      }
    }
  }
}

namespace {

// Reads its part of the data by a distributed sampler, and saves after a batch.
struct Saving : TrainModuleOf<Saving, Mlp> {
  using TrainModuleOf<Saving, Mlp>::TrainModuleOf;
  std::string path;
  std::int64_t save_after = -1;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    // f32 sums: a loss in 16 bits would differ by more than the ranks do.
    return test::squared_error((*this)(b[0]).to(DType::f32), b[1].to(DType::f32));
  }
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == save_after) trainer().save_checkpoint(path);
  }
};
enum class By { nothing, ddp, stage_1, stage_2 };
struct Fit {
  By by = By::nothing;
  int ranks = 4;
  std::string precision = "32-true";
  std::string save{}, resume{};
  bool adam = true;
};
std::vector<Weights> fit(const Fit& f) {
  return on_ranks(f.ranks, [&](const Group& group) {
    TrainerOptions options = plain();
    options.use_distributed_sampler = true;
    options.max_steps = 8;
    options.accumulate_grad_batches = 2;
    options.gradient_clip_val = 0.5;
    options.precision = f.precision;
    if (f.precision == "16-o2") options.grad_scaler = optim::GradScalerOptions{.init_scale = 16};  // no step is skipped
    if (f.by == By::ddp) options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.process = {.group = group}});
    if (f.by >= By::stage_1) options = sharded(options, group, f.by == By::stage_1 ? 1 : 2);
    Saving module(3);
    module.adam = f.adam;
    module.path = f.save;
    module.save_after = f.save.empty() ? -1 : 7;  // of 5 an epoch, in an open window
    data::DataLoader data = test::loader(160, 32 / f.ranks);
    Trainer(options).fit(module, {.train = data, .ckpt_path = f.resume});
    return values_of(module);
  });
}

}  // namespace

TEST_CASE("a checkpoint of sharded ranks loads under any strategy and number of ranks, and theirs under ZeRO") {
  const test::TemporaryFolder folder;
  const Fit kinds[] = {{By::stage_1, 4}, {By::stage_2, 4}, {By::stage_2, 2}, {By::ddp, 4}, {By::nothing, 1}};
  int number = 0;
  for (const Fit& from : kinds) {
    CAPTURE(number);
    const std::string file = folder / (text(number++) + ".safetensors");
    Fit saves = from;
    saves.save = file;
    const std::vector<Weights> whole = fit(saves);
    for (const Fit& to : kinds) {
      CAPTURE(static_cast<int>(to.by));
      CAPTURE(to.ranks);
      Fit resumes = to;
      resumes.resume = file;
      const std::vector<Weights> resumed = fit(resumes);
      for (const Weights& weights : resumed) {
        CHECK(weights == resumed[0]);
        CHECK(difference(weights, whole[0]) <= 1e-5);
      }
    }
  }
}

TEST_CASE("a checkpoint has the optimizer's state of whole parameters") {
  const test::TemporaryFolder folder;
  const std::string sharded_file = folder / "zero.safetensors", whole_file = folder / "ddp.safetensors";
  (void)fit({.by = By::stage_2, .save = sharded_file});
  (void)fit({.by = By::ddp, .save = whole_file});
  const NamedTensors a = load_safetensors(sharded_file).tensors, b = load_safetensors(whole_file).tensors;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].first == b[i].first);
    CHECK(a[i].second.shape() == b[i].second.shape());
    CHECK(a[i].second.dtype() == b[i].second.dtype());
  }
}

TEST_CASE("masters of 16-bit parameters are sharded, and saved whole") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "masters.safetensors";
  // Not Adam, whose first steps have the length of the learning rate, whatever the rounding of a gradient near 0.
  const Fit zero{.by = By::stage_2, .precision = "16-o2", .save = file, .adam = false};
  const Fit ddp{.by = By::ddp, .precision = "16-o2", .adam = false};
  const std::vector<Weights> whole = fit(zero), expected = fit(ddp);
  CHECK(difference(whole[0], expected[0]) <= 2e-3);  // f16 weights around 1: steps of 2^-11 to 2^-10
  const Fit resumes{.by = By::stage_1, .precision = "16-o2", .resume = file, .adam = false};
  CHECK(difference(fit(resumes)[3], whole[3]) <= 2e-3);
  bool any = false;
  for (const auto& [name, t] : load_safetensors(file).tensors) {
    if (name == "levin.optimizer.0.fc1.weight.master") {
      any = true;
      CHECK(t.shape() == Shape{16, 2});
    }
  }
  CHECK(any);
}

namespace {

struct Wide : TrainModuleOf<Wide, OnItsPart> {
  using TrainModuleOf<Wide, OnItsPart>::TrainModuleOf;
  nn::Linear in{*this, "in", {.in = 2, .out = 512}};
  nn::Linear middle{*this, "middle", {.in = 512, .out = 512}};
  nn::Linear last{*this, "last", {.in = 512, .out = 512}};
  nn::Linear out{*this, "out", {.in = 512, .out = 1}};
  StepOutput training_step(const Batch& b, std::int64_t) override {
    return test::squared_error(out(tanh(last(tanh(middle(tanh(in(mine(b[0])))))))), mine(b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{})}};
  }
};

}  // namespace

TEST_CASE("each of 4 ranks has a quarter of Adam's state, and with stage 2 a quarter of the gradients") {
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    TrainerOptions options = plain();
    options.max_steps = 2;
    const auto reports = on_ranks(4, [&](const Group& group) {
      const TrainerOptions o = sharded(options, group, stage, 0.25);
      Wide module(3);
      data::DataLoader data = test::loader(64, 32);
      Trainer trainer(o);
      trainer.fit(module, {.train = data});
      return report_of(o);
    });
    std::int64_t state = 0;
    for (const ShardedStrategy::Report& r : reports) {
      CHECK(r.parameters == 4 * (3 * 512 + 2 * (512 * 512 + 512) + 513));
      CHECK(r.buckets > 2);
      CHECK(r.optimizer_state <= 2 * r.parameters / 4 + r.largest_bucket);
      if (stage == 2) CHECK(r.peak_gradients <= r.parameters / 4 + 2 * r.largest_bucket + r.largest_bucket / 4);
      if (stage == 1) CHECK(r.peak_gradients >= r.parameters);
      state += r.optimizer_state;
    }
    CHECK(state == 2 * reports[0].parameters);
  }
}

TEST_CASE("one rank has the bits of a run without a strategy, and shares nothing") {
  const Weights alone = trained(plain());
  on_ranks(1, [&](const Group& group) {
    const TrainerOptions options = sharded(plain(), group, 2);
    CHECK(trained(options) == alone);
    CHECK(report_of(options).buckets == 0);
    return 0;
  });
  for (const char* name :
       {"zero_stage_1", "zero_stage_2", "ddp_sharded", "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2"}) {
    TrainerOptions named = plain();
    named.devices = 1;
    named.strategy = name;
    CHECK(trained(named) == alone);
  }
}

TEST_CASE("parameters that do not require grad wait, and take part when they do") {
  struct Thawing : TrainModuleOf<Thawing, Mlp> {
    using TrainModuleOf<Thawing, Mlp>::TrainModuleOf;
    void on_fit_start() override { set(false); }
    void on_train_epoch_start() override { set(trainer().current_epoch() % 2 == 1); }
    void set(bool on) {
      for (const ParamRef& p : fc1.parameters()) p.value->requires_grad_(on);
    }
  };
  const Weights alone = trained<Thawing>(plain());
  for (const int stage : {1, 2}) {
    const auto ranks =
        on_ranks(2, [&](const Group& group) { return trained<Thawing>(sharded(plain(), group, stage)); });
    for (const Weights& weights : ranks) {
      CHECK(weights == ranks[0]);
      CHECK(difference(weights, alone) <= 1e-5);
    }
  }
}

TEST_CASE("a gradient that is not finite on one rank skips the step on all") {
  struct Bad : TrainModuleOf<Bad, Saving> {
    using TrainModuleOf<Bad, Saving>::TrainModuleOf;
    std::vector<Weights> after;
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      const bool bad = i == 1 && trainer().global_rank() == 2;
      const Tensor loss = test::squared_error((*this)(b[0]).to(DType::f32), b[1].to(DType::f32));
      return bad ? loss * std::numeric_limits<float>::infinity() : loss;
    }
    void on_train_batch_end(const StepInfo&) override { after.push_back(values_of(*this)); }
  };
  const auto ranks = on_ranks(4, [&](const Group& group) {
    TrainerOptions options = sharded(plain(), group, 2);
    options.use_distributed_sampler = true;
    options.max_steps = 3;
    options.precision = "16-o2";
    options.gradient_clip_val = 0.5;
    Bad module(3);
    data::DataLoader data = test::loader(160, 8);
    Trainer(options).fit(module, {.train = data});
    return module.after;
  });
  for (const auto& after : ranks) {
    REQUIRE(after.size() == 3);
    CHECK(after[1] == after[0]);
    CHECK(after[2] != after[1]);
    CHECK(after[2] == ranks[0][2]);
  }
}

namespace {

template <class Module>
std::string error_of(TrainerOptions options, int ranks = 2) {
  try {
    dist::run_local(ranks, [&](const Group& group) { (void)trained<Module>(sharded(options, group, 2)); });
  } catch (const Error& e) { return e.what(); }
  return "none";
}
struct Two : TrainModuleOf<Two, Mlp> {
  using TrainModuleOf<Two, Mlp>::TrainModuleOf;
  OptimizerConfig configure_optimizers() override {
    return {
        .optimizers = {std::make_shared<optim::SGD>(fc1.parameters()), std::make_shared<optim::SGD>(fc2.parameters())}};
  }
};
struct Memory : TrainModuleOf<Memory, Mlp> {
  using TrainModuleOf<Memory, Mlp>::TrainModuleOf;
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::LBFGS>(parameters())}};
  }
};
struct Scheduled : TrainModuleOf<Scheduled, Mlp> {
  using TrainModuleOf<Scheduled, Mlp>::TrainModuleOf;
  OptimizerConfig configure_optimizers() override {
    const auto o = std::make_shared<optim::SGD>(parameters());
    const auto s = [&] { return std::make_shared<optim::StepLR>(*o, 1); };
    return {.optimizers = {o}, .schedulers = {SchedulerConfig{.scheduler = s()}, SchedulerConfig{.scheduler = s()}}};
  }
};
struct Manual : TrainModuleOf<Manual, Mlp> {
  using TrainModuleOf<Manual, Mlp>::TrainModuleOf;
  bool automatic_optimization() const override { return false; }
};
struct Nothing : TrainModuleOf<Nothing, Mlp> {
  using TrainModuleOf<Nothing, Mlp>::TrainModuleOf;
  StepOutput training_step(const Batch&, std::int64_t) override { return {}; }
};
struct Unused : TrainModuleOf<Unused, Mlp> {
  using TrainModuleOf<Unused, Mlp>::TrainModuleOf;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    return trainer().global_rank() == 0 ? sum(fc1(mine(b[0]))) : sum((*this)(mine(b[0])));
  }
};

}  // namespace

TEST_CASE("ZeRO refuses what it cannot share, in one error each") {
  for (const int ranks : {1, 2}) {  // a program that runs on one process runs on several
    CHECK(contains(error_of<Two>(plain(), ranks), "2 optimizers, automatic optimization has one"));
    CHECK(contains(error_of<Memory>(plain(), ranks), "the optimizer is lbfgs"));
    CHECK(contains(error_of<Scheduled>(plain(), ranks), "there are 2 schedulers, expected at most one"));
    CHECK(contains(error_of<Manual>(plain(), ranks), "the module optimizes manually"));
  }
  CHECK(contains(error_of<Nothing>(plain()), "training_step returned nothing and strategy is zero_stage_2"));
  TrainerOptions one = plain();
  one.strategy = "zero_stage_1";
  one.devices = 1;
  CHECK_THROWS_WITH_AS((void)trained<Nothing>(one), doctest::Contains("training_step returned nothing"), StateError);
  TrainerOptions scheduled = one;
  scheduled.callbacks = {std::make_shared<GradientAccumulationScheduler>(
      std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {2, 4}})};
  CHECK_THROWS_WITH_AS((void)trained(scheduled), doctest::Contains("a callback changes accumulate_grad_batches"),
                       ConfigError);
  CHECK(contains(error_of<Unused>(plain()), "rank 0 has no gradient for fc2.weight, fc2.bias"));
  TrainerOptions clips = plain();
  clips.gradient_clip_val = 1;
  clips.gradient_clip_algorithm = ClipAlgorithm::value;
  CHECK(contains(error_of<Mlp>(clips), "gradient_clip_algorithm is value"));
  CHECK_THROWS_WITH_AS(ZeroStrategy({.stage = 4}), doctest::Contains("stage is 4, expected 1, 2 or 3"), ConfigError);
  CHECK_THROWS_WITH_AS(ZeroStrategy({.bucket_cap_mb = 0}), doctest::Contains("bucket_cap_mb is 0"), ConfigError);
}

TEST_CASE("ranks that share the optimizer's state write no checkpoint after an error, and say so") {
  const test::TemporaryFolder folder;
  struct Failing : TrainModuleOf<Failing, Mlp> {
    using TrainModuleOf<Failing, Mlp>::TrainModuleOf;
    std::string path;
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      if (i == 2) fail<DataError>("a bad sample");
      return Mlp::training_step(b, i);
    }
    void on_exception(const std::exception&) override { trainer().save_checkpoint(path); }
  };
  const test::ExpectedWarnings told{"W-CKPT-SHARDED"};
  const std::string file = folder / "rescue.safetensors";
  CHECK_THROWS_WITH_AS(on_ranks(2,
                                [&](const Group& group) {
                                  return trained<Failing>(sharded(plain(), group, 2), 3,
                                                          [&](Failing& m) { m.path = file; });
                                }),
                       doctest::Contains("a bad sample"), DataError);
  CHECK_FALSE(std::filesystem::exists(file));
}
