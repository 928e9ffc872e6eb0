// FSDP and ZeRO 3, with threads of this process as ranks.
#include "levin/train/fsdp_strategy.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "levin/train/checkpoint.h"
#include "levin/train/ddp_strategy.h"
#include "levin/train/zero_strategy.h"
#include "tests/warnings.h"
#include "train/strategy/parallel_fixture_test.h"

using namespace levin;
using namespace levin::test::parallel;

namespace {

struct Block : nn::Module {
  Block(nn::Module& parent, const std::string& name, std::int64_t width)
      : Module(parent, name),
        fc1(*this, "fc1", {.in = width, .out = width}),
        fc2(*this, "fc2", {.in = width, .out = width}) {}
  nn::Linear fc1, fc2;
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(x + tanh(fc2(tanh(fc1(x)))));
  }
};

// Blocks as units, and layers around them. Samples come by a distributed sampler.
struct Deep : TrainModuleOf<Deep, OnItsPart> {
  static constexpr std::int64_t kWidth = 32;
  explicit Deep(std::uint64_t seed, std::int64_t n = 4) : TrainModuleOf<Deep, OnItsPart>(seed) {
    for (std::int64_t i = 0; i < n; ++i) blocks.add(kWidth);
  }
  nn::Linear in{*this, "in", {.in = 2, .out = kWidth}};
  nn::ModuleList<Block> blocks{*this, "blocks"};
  nn::Linear out{*this, "out", {.in = kWidth, .out = 1}};
  bool adam = true, checkpoints = false, twice = false;
  std::string path;
  std::int64_t save_after = -1;
  Tensor operator()(const Tensor& x) const {
    Tensor h = in(x);
    if (checkpoints) {
      h = checkpoint([this](const Tensor& at) { return blocks[1](blocks[0](at)); }, h);
      for (std::int64_t i = 2; i < blocks.size(); ++i) h = blocks[i](h);
    } else {
      for (const Block& block : blocks) h = block(h);
    }
    if (twice) h = blocks[1](h);
    return out(h);
  }
  StepOutput training_step(const Batch& b, std::int64_t) override { return test::squared_error((*this)(b[0]), b[1]); }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val", test::squared_error((*this)(b[0]), b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    if (adam) return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.001})}};
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9})}};
  }
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == save_after) trainer().save_checkpoint(path);
  }
};

using MakeStrategy = Function<std::shared_ptr<Strategy>(const Group&)>;
MakeStrategy fsdp(FsdpOptions options = {}) {
  return [options](const Group& group) {
    FsdpOptions of_rank = options;
    of_rank.process.group = group;
    return std::make_shared<FsdpStrategy>(of_rank);
  };
}
MakeStrategy zero_3() {
  return [](const Group& group) {
    return std::make_shared<ZeroStrategy>(ZeroOptions{.stage = 3, .process = {.group = group}});
  };
}
MakeStrategy ddp() {
  return [](const Group& group) { return std::make_shared<DdpStrategy>(DdpOptions{.process = {.group = group}}); };
}

struct Result {
  Weights weights;
  ShardedStrategy::Report report;
  double val = 0;
};
struct Run {
  int ranks = 4;
  MakeStrategy strategy{};  // empty: none
  std::int64_t steps = 20, accumulate = 1, blocks = 4;
  Function<void(Deep&)> change{};
  std::string save{}, resume{};
  std::string precision = "32-true";
};
std::vector<Result> run(const Run& r) {
  return on_ranks(r.ranks, [&](const Group& group) {
    TrainerOptions options = plain();
    options.use_distributed_sampler = true;
    options.max_steps = r.steps;
    options.accumulate_grad_batches = r.accumulate;
    options.gradient_clip_val = 0.5;
    options.precision = r.precision;
    if (r.strategy) options.strategy = r.strategy(group);
    // Different first weights, of which rank 0's count.
    Deep module(3 + static_cast<std::uint64_t>(group->rank()), r.blocks);
    if (r.change) r.change(module);
    module.path = r.save;
    module.save_after = r.save.empty() ? -1 : 7;
    data::DataLoader data = test::loader(160, 32 / r.ranks), val = test::loader(30, 4);
    Trainer trainer(options);
    trainer.fit(module, {.train = data, .val = val, .ckpt_path = r.resume});
    Result result{.weights = test::weights_of(module), .report = {}};
    for (const auto& [name, value] : trainer.callback_metrics()) {
      if (name == "val") result.val = value;
    }
    if (const auto s = std::dynamic_pointer_cast<ShardedStrategy>(options.strategy.object()))
      result.report = s->report();
    return result;
  });
}
void check_equal(const std::vector<Result>& ranks, const Result& alone, double most = 1e-5) {
  for (const Result& r : ranks) {
    CHECK(r.weights == ranks[0].weights);
    CHECK(difference(r.weights, alone.weights) <= most);
    CHECK(r.val == doctest::Approx(alone.val).epsilon(1e-4));
  }
}

}  // namespace

TEST_CASE("4 ranks that share parameters make the steps of one process with their samples, in each kind of sharding") {
  const struct {
    std::string name;
    MakeStrategy make;
  } kinds[] = {
      {"full_shard", fsdp()},
      {"zero_stage_3", zero_3()},
      {"shard_grad_op", fsdp({.sharding = FsdpSharding::shard_grad_op})},
      {"hybrid_shard", fsdp({.sharding = FsdpSharding::hybrid_shard, .hybrid_group = 2})},
      {"no_shard", fsdp({.sharding = FsdpSharding::no_shard})},
      {"units of layers", fsdp({.auto_wrap_policy = wrap_larger_than(1000)})},
      {"one unit", fsdp({.auto_wrap_policy = wrap_larger_than(1'000'000)})},
  };
  for (const bool adam : {false, true}) {
    const std::int64_t accumulate = adam ? 2 : 1;
    const auto change = [&](Deep& m) { m.adam = adam; };
    const Result alone = run({.ranks = 1, .accumulate = accumulate, .change = change})[0];
    for (const auto& kind : kinds) {
      CAPTURE(kind.name);
      CAPTURE(adam);
      check_equal(run({.strategy = kind.make, .accumulate = accumulate, .change = change}), alone);
    }
  }
}

TEST_CASE("checkpointed regions, modules that are called twice and frozen modules are gathered for backward") {
  const Function<void(Deep&)> changes[] = {
      [](Deep& m) { m.checkpoints = true; },
      [](Deep& m) { m.twice = true; },
      [](Deep& m) { m.checkpoints = m.twice = true; },
      [](Deep& m) {
        for (const ParamRef& p : m.blocks[2].parameters()) p.value->requires_grad_(false);
      },
      [](Deep& m) { m.blocks[3].fc1.parameters()[0].value->requires_grad_(false); },
      [](Deep& m) {
        for (const ParamRef& p : m.blocks[0].parameters()) p.value->requires_grad_(false);
        m.twice = true;
      },
  };
  for (const auto& change : changes) {
    const Result alone = run({.ranks = 1, .steps = 4, .change = change})[0];
    check_equal(run({.ranks = 2, .strategy = fsdp(), .steps = 4, .change = change}), alone);
    check_equal(
        run({.ranks = 2, .strategy = fsdp({.sharding = FsdpSharding::shard_grad_op}), .steps = 4, .change = change}),
        alone);
  }
}

TEST_CASE("a rank holds its slices and a few units of the parameters at once, and a quarter of Adam's state") {
  const std::int64_t blocks = 12;
  for (const FsdpSharding sharding : {FsdpSharding::full_shard, FsdpSharding::shard_grad_op}) {
    const auto ranks = run({.strategy = fsdp({.sharding = sharding}), .steps = 6, .blocks = blocks});
    for (const Result& result : ranks) {
      const ShardedStrategy::Report& r = result.report;
      CHECK(r.buckets == blocks + 1);
      CHECK(r.optimizer_state <= 2 * r.parameters / 4 + r.largest_bucket);
      CHECK(r.peak_gradients <= r.parameters / 4 + 3 * r.largest_bucket);
    }
  }
  // Without an evaluation and a checkpoint, which gather the whole model.
  const auto reports = on_ranks(4, [&](const Group& group) {
    TrainerOptions options = plain();
    options.use_distributed_sampler = true;
    options.max_steps = 4;
    const auto strategy = std::make_shared<FsdpStrategy>(FsdpOptions{.process = {.group = group}});
    options.strategy = strategy;
    struct Watching : TrainModuleOf<Watching, Deep> {
      using TrainModuleOf<Watching, Deep>::TrainModuleOf;
      FsdpStrategy* strategy = nullptr;
      ShardedStrategy::Report report;
      void on_train_batch_end(const StepInfo&) override { report = strategy->report(); }
    } module(3, blocks);
    module.strategy = strategy.get();
    data::DataLoader data = test::loader(160, 8);
    Trainer(options).fit(module, {.train = data});
    return module.report;
  });
  for (const ShardedStrategy::Report& r : reports) {
    CHECK(r.peak_parameters <= r.parameters / 4 + 3 * r.largest_bucket);
    CHECK(r.peak_parameters < r.parameters / 2);
  }
}

TEST_CASE("a checkpoint of sharded parameters loads under any strategy and number of ranks, and theirs under FSDP") {
  const test::TemporaryFolder folder;
  const struct {
    MakeStrategy strategy;
    int ranks;
  } kinds[] = {{fsdp(), 4},
               {zero_3(), 2},
               {fsdp({.sharding = FsdpSharding::hybrid_shard, .hybrid_group = 2}), 4},
               {ddp(), 4},
               {{}, 1}};
  int number = 0;
  for (const auto& from : kinds) {
    CAPTURE(number);
    const std::string file = folder / (text(number++) + ".safetensors");
    const auto whole = run({.ranks = from.ranks, .strategy = from.strategy, .steps = 8, .accumulate = 2, .save = file});
    for (const auto& to : kinds) {
      if (number > 1 && &to != &kinds[0]) continue;  // of the first, all; of the others, the first
      CAPTURE(to.ranks);
      check_equal(run({.ranks = to.ranks, .strategy = to.strategy, .steps = 8, .accumulate = 2, .resume = file}),
                  whole[0]);
    }
  }
}

TEST_CASE("a module that does not report its calls is an error that names it") {
  struct Silent : nn::Module {
    Silent(nn::Module& parent, const std::string& name) : Module(parent, name) {}
    nn::Parameter weight{*this, "weight", ones({1, 2}, Device::cpu())};
    Tensor operator()(const Tensor& x) const { return x * weight; }
  };
  struct Net : TrainModuleOf<Net, OnItsPart> {
    explicit Net(std::uint64_t seed) : TrainModuleOf<Net, OnItsPart>(seed) { parts.add(); }
    nn::ModuleList<Silent> parts{*this, "parts"};
    StepOutput training_step(const Batch& b, std::int64_t) override { return mean(parts[0](mine(b[0]))); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters())}};
    }
  };
  CHECK_THROWS_WITH_AS(on_ranks(2,
                                [](const Group& group) {
                                  TrainerOptions options = plain();
                                  options.strategy = fsdp()(group);
                                  return trained<Net>(options);
                                }),
                       doctest::Contains("parts.0 are not gathered"), StateError);
}

TEST_CASE("ranks that call modules in different orders are an error, before a parameter changes") {
  struct Crossed : TrainModuleOf<Crossed, Deep> {
    using TrainModuleOf<Crossed, Deep>::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const std::size_t first = trainer().global_rank() == 0 ? 0 : 1;
      const Tensor h = blocks[static_cast<std::int64_t>(1 - first)](blocks[static_cast<std::int64_t>(first)](in(b[0])));
      return mean(out(h));
    }
  };
  CHECK_THROWS_WITH_AS(on_ranks(2,
                                [](const Group& group) {
                                  TrainerOptions options = plain();
                                  options.strategy = fsdp()(group);
                                  Crossed module(3, 2);
                                  data::DataLoader data = test::loader(32, 8);
                                  Trainer(options).fit(module, {.train = data});
                                  return 0;
                                }),
                       doctest::Contains("call their modules in different orders: blocks.0, blocks.1 and blocks.1, "
                                         "blocks.0"),
                       CommError);
}

TEST_CASE("a fit by FSDP leaves a whole module, which trains on and evaluates without a strategy") {
  const auto ranks = on_ranks(2, [](const Group& group) {
    TrainerOptions options = plain();
    options.use_distributed_sampler = true;
    options.max_steps = 3;
    options.strategy = fsdp()(group);
    Deep module(3);
    data::DataLoader data = test::loader(32, 8);
    Trainer(options).fit(module, {.train = data});
    for (const ParamRef& p : module.parameters()) CHECK(p.value->device() == Device::cpu());
    TrainerOptions alone = plain();
    alone.max_steps = 6;
    Trainer(alone).fit(module, {.train = data});
    return test::weights_of(module);
  });
  CHECK(ranks[0] == ranks[1]);
}

TEST_CASE("FSDP refuses groups that do not divide the ranks, and averages of weights") {
  CHECK_THROWS_WITH_AS(FsdpStrategy({.hybrid_group = -2}), doctest::Contains("hybrid_group is -2"), ConfigError);
  CHECK_THROWS_WITH_AS(
      run({.ranks = 3, .strategy = fsdp({.sharding = FsdpSharding::hybrid_shard, .hybrid_group = 2}), .steps = 1}),
      doctest::Contains("groups of 2 ranks that share parameters, and there are 3"), ConfigError);
  CHECK_THROWS_WITH_AS(on_ranks(2,
                                [](const Group& group) {
                                  TrainerOptions options = plain();
                                  options.callbacks = std::make_shared<EmaWeightAveraging>();
                                  options.strategy = fsdp()(group);
                                  return trained(options);
                                }),
                       doctest::Contains("a callback averages weights"), ConfigError);
  for (const char* name : {"fsdp", "zero_stage_3", "deepspeed_stage_3"}) {
    TrainerOptions named = plain();
    named.devices = 1;
    named.strategy = name;
    CHECK(trained(named) == trained(plain()));
  }
}
