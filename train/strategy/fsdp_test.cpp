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
  double lr = 0.001;  // Adam's
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
    if (adam) return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = lr})}};
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

std::vector<double> exact_values_of(const nn::Module& module) {
  std::vector<double> all;
  for (const auto& [name, t] : module.state_dict()) {
    const std::vector<double> values = t.to(DType::f64).to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}
double exact_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

struct Result {
  Weights weights;
  std::vector<double> exact;  // the weights, in f64
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
    Result result{.weights = values_of(module), .exact = exact_values_of(module), .report = {}};
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
      {"prefetch", fsdp({.forward_prefetch = true})},
      {"no prefetch", fsdp({.backward_prefetch = BackwardPrefetch::backward_post})},
      {"prefetch, hybrid_shard",
       fsdp({.sharding = FsdpSharding::hybrid_shard, .hybrid_group = 2, .forward_prefetch = true})},
      {"prefetch, shard_grad_op", fsdp({.sharding = FsdpSharding::shard_grad_op, .forward_prefetch = true})},
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

// Adam divides by the root of a squared gradient, so what f32 rounds in a gradient near 0 becomes a part of the
// learning rate. In f64 nothing else is left of the difference.
TEST_CASE("at a large learning rate ranks that share parameters differ from one process by rounding alone") {
  const auto change = [](Deep& m) { m.lr = 0.01; };
  const Run of_one{.ranks = 1, .accumulate = 2, .change = change, .precision = "64-true"};
  const std::vector<double> alone = run(of_one)[0].exact;
  for (const MakeStrategy& make : {fsdp(), zero_3(), ddp()}) {
    for (const int ranks : {2, 4}) {
      Run of_ranks = of_one;
      of_ranks.ranks = ranks;
      of_ranks.strategy = make;
      CHECK(exact_difference(run(of_ranks)[0].exact, alone) <= 1e-12);
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
    for (const bool prefetch : {false, true}) {
      const MakeStrategy make = fsdp({.forward_prefetch = prefetch});
      check_equal(run({.ranks = 2, .strategy = make, .steps = 4, .change = change}), alone);
    }
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
}

TEST_CASE("one unit has memory beside the rest, two with a prefetch, and no more") {
  struct Watching : TrainModuleOf<Watching, Deep> {
    using TrainModuleOf<Watching, Deep>::TrainModuleOf;
    FsdpStrategy* strategy = nullptr;
    ShardedStrategy::Report report;
    void on_train_batch_end(const StepInfo&) override { report = strategy->report(); }
  };
  constexpr std::int64_t kBlocks = 12, kRanks = 4, kBlock = 4 * 2 * (32 * 32 + 32);
  const auto peak = [&](bool forward, BackwardPrefetch backward) {
    const auto reports = on_ranks(kRanks, [&](const Group& group) {
      TrainerOptions options = plain();
      options.use_distributed_sampler = true;
      options.max_steps = 4;
      const auto strategy = std::make_shared<FsdpStrategy>(
          FsdpOptions{.forward_prefetch = forward, .backward_prefetch = backward, .process = {.group = group}});
      options.strategy = strategy;
      Watching module(3, kBlocks);
      module.strategy = strategy.get();
      data::DataLoader data = test::loader(160, 8);
      // Neither an evaluation nor a checkpoint, which gather the whole model.
      Trainer(options).fit(module, {.train = data});
      return module.report;
    });
    for (const ShardedStrategy::Report& r : reports) CHECK(r.peak_parameters == reports[0].peak_parameters);
    return reports[0];
  };
  const std::int64_t one = peak(false, BackwardPrefetch::backward_post).peak_parameters;
  const ShardedStrategy::Report both = peak(true, BackwardPrefetch::backward_pre);
  CHECK(both.largest_bucket == kBlock);
  CHECK(peak(false, BackwardPrefetch::backward_pre).peak_parameters == one + kBlock);
  CHECK(peak(true, BackwardPrefetch::backward_post).peak_parameters == one + kBlock);
  CHECK(both.peak_parameters == one + kBlock);
  // Slices, the rest, and one unit. Each parameter of the rest lies at a multiple of 64 bytes.
  CHECK(one >= (kBlocks * kBlock) / kRanks + kBlock);
  CHECK(one <= (kBlocks * kBlock) / kRanks + kBlock + 2 * 4 * (4 * 32 + 4 * 16 + 64));
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

TEST_CASE("a checkpoint that is saved within a forward pass leaves the modules that run their parameters") {
  struct Within : TrainModuleOf<Within, Deep> {
    using TrainModuleOf<Within, Deep>::TrainModuleOf;
    bool saves = false;
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      Tensor h = this->in(b[0]);
      const nn::Call call(blocks[0], h);  // the unit runs while the file is written
      if (saves && i == 1) trainer().save_checkpoint(path);
      h = blocks[0].fc2(blocks[0].fc1(h));
      h = call.gives(h);
      return test::squared_error(out(h), b[1]);
    }
  };
  const test::TemporaryFolder folder;
  const auto weights = [&](bool saves, const char* name) {
    return on_ranks(2, [&](const Group& group) {
      TrainerOptions options = plain();
      options.use_distributed_sampler = true;
      options.max_steps = 4;
      options.accumulate_grad_batches = 2;
      options.strategy = fsdp()(group);
      Within module(3, 1);
      module.saves = saves;
      module.path = folder / name;
      data::DataLoader data = test::loader(64, 4);
      Trainer(options).fit(module, {.train = data});
      return values_of(module);
    });
  };
  const std::vector<Weights> without = weights(false, "none");
  CHECK(weights(true, "a.safetensors") == without);
  CHECK(weights(true, "a.levin") == without);
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

namespace {

// The upper half of the ranks calls the blocks in reverse, from a batch on.
struct Crossed : TrainModuleOf<Crossed, Deep> {
  using TrainModuleOf<Crossed, Deep>::TrainModuleOf;
  std::int64_t from = 0;
  StepOutput training_step(const Batch& b, std::int64_t i) override {
    const bool crosses = i >= from && 2 * trainer().global_rank() >= trainer().world_size();
    const Tensor x = in(b[0]);
    return mean(out(crosses ? blocks[0](blocks[1](x)) : blocks[1](blocks[0](x))));
  }
};
void fit_crossed(int ranks, const MakeStrategy& make, std::int64_t from) {
  on_ranks(ranks, [&](const Group& group) {
    TrainerOptions options = plain();
    options.strategy = make(group);
    Crossed module(3, 2);
    module.from = from;
    const Weights before = values_of(module);
    data::DataLoader data = test::loader(32, 8);
    try {
      Trainer(options).fit(module, {.train = data});
    } catch (...) {
      if (from == 0 && module.parameters()[0].value->device().is_cpu()) CHECK(values_of(module) == before);
      throw;
    }
    return 0;
  });
}

}  // namespace

TEST_CASE("ranks that call modules in different orders are an error, before a parameter changes") {
  CHECK_THROWS_WITH_AS(fit_crossed(2, fsdp(), 0),
                       doctest::Contains("ranks 0 and 1 of a group call their modules in different orders: blocks.0, "
                                         "blocks.1 and blocks.1, blocks.0"),
                       CommError);
  const FsdpOptions copied[] = {{.sharding = FsdpSharding::hybrid_shard, .hybrid_group = 2},
                                {.sharding = FsdpSharding::no_shard}};
  for (const FsdpOptions& options : copied) {
    CHECK_THROWS_WITH_AS(fit_crossed(4, fsdp(options), 0),
                         doctest::Contains("of the parameters call their modules in different orders: blocks.0, "
                                           "blocks.1 and blocks.1, blocks.0"),
                         CommError);
  }
}

TEST_CASE("ranks of a copy that change their order of calls in a later batch meet an error of all ranks") {
  CHECK_THROWS_AS(fit_crossed(2, fsdp(), 2), CommError);
  CHECK_THROWS_AS(fit_crossed(4, fsdp({.sharding = FsdpSharding::hybrid_shard, .hybrid_group = 2}), 2), CommError);
  CHECK_THROWS_AS(fit_crossed(2, fsdp({.sharding = FsdpSharding::no_shard}), 2), CommError);
}

TEST_CASE("a checkpoint within a step leaves the units that are open, and the rest, to the pass") {
  enum class Where { before_the_blocks, in_a_block, before_backward, after_backward };
  struct Saves : TrainModuleOf<Saves, Deep> {
    using TrainModuleOf<Saves, Deep>::TrainModuleOf;
    Where where = Where::before_the_blocks;
    std::string file;
    void save(Where at) {
      if (at == where) trainer().save_checkpoint(file, WeightsOnly::yes);
    }
    StepOutput training_step(const Batch& b, std::int64_t) override {
      Tensor h = in(b[0]);
      save(Where::before_the_blocks);
      {
        const nn::Call call(blocks[0], h);
        const Tensor inner = tanh(blocks[0].fc1(h));
        save(Where::in_a_block);
        h = call.gives(h + tanh(blocks[0].fc2(inner)));
      }
      return test::squared_error(out(blocks[1](h)), b[1]);
    }
    void on_before_backward(const Tensor&) override { save(Where::before_backward); }
    void on_after_backward() override { save(Where::after_backward); }
  };
  const test::TemporaryFolder folder;
  const std::string file = folder / "within.safetensors";
  const auto fit = [&](int ranks, const MakeStrategy& make, Where where) {
    return on_ranks(ranks, [&](const Group& group) {
      TrainerOptions options = plain();
      options.use_distributed_sampler = true;
      options.max_steps = 3;
      if (make) options.strategy = make(group);
      Saves module(3, 2);
      module.where = where;
      module.file = file;
      data::DataLoader data = test::loader(96, 32 / ranks);
      Trainer(options).fit(module, {.train = data});
      return values_of(module);
    });
  };
  for (const Where where :
       {Where::before_the_blocks, Where::in_a_block, Where::before_backward, Where::after_backward}) {
    CAPTURE(static_cast<int>(where));
    const Weights alone = fit(1, {}, where)[0];
    const NamedTensors expected = load_safetensors(file).tensors;
    for (const bool prefetch : {false, true}) {
      const auto ranks = fit(2, fsdp({.forward_prefetch = prefetch}), where);
      for (const Weights& weights : ranks) CHECK(difference(weights, alone) <= 1e-5);
      const NamedTensors saved = load_safetensors(file).tensors;
      REQUIRE(saved.size() == expected.size());
      for (std::size_t i = 0; i < saved.size(); ++i) {
        if (!saved[i].first.starts_with("levin."))
          CHECK(difference(saved[i].second.to_vector<float>(), expected[i].second.to_vector<float>()) <= 1e-5);
      }
    }
  }
}

TEST_CASE("a parameter that two units share is trained once, and has memory during the whole pass") {
  struct Shared : TrainModuleOf<Shared, Deep> {
    explicit Shared(std::uint64_t seed) : TrainModuleOf<Shared, Deep>(seed, 3) {
      static_cast<Tensor&>(*blocks[2].fc1.parameters()[0].value) = *blocks[0].fc1.parameters()[0].value;
    }
    bool there = true;
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      there = there && blocks[2].fc1.parameters()[0].value->device().is_cpu() &&
              (trainer().world_size() == 1 || !blocks[2].fc2.parameters()[0].value->device().is_cpu());
      return Deep::training_step(b, i);
    }
    OptimizerConfig configure_optimizers() override {  // which has the tensor once
      std::vector<ParamRef> once;
      for (const ParamRef& p : parameters()) {
        if (p.name != "blocks.2.fc1.weight") once.push_back(p);
      }
      return {.optimizers = {std::make_shared<optim::Adam>(once, optim::AdamOptions{.lr = 0.001})}};
    }
  };
  const auto fit = [&](int ranks, const MakeStrategy& make) {
    return on_ranks(ranks, [&](const Group& group) {
      TrainerOptions options = plain();
      options.use_distributed_sampler = true;
      if (make) options.strategy = make(group);
      Shared module(3);
      data::DataLoader data = test::loader(160, 32 / ranks);
      Trainer(options).fit(module, {.train = data});
      CHECK(module.there);
      CHECK(module.blocks[2].fc1.parameters()[0].value->impl() == module.blocks[0].fc1.parameters()[0].value->impl());
      return values_of(module);
    });
  };
  const Weights alone = fit(1, {})[0];
  for (const Weights& weights : fit(4, fsdp())) CHECK(difference(weights, alone) <= 1e-5);
}

TEST_CASE("after a rank has failed, parameters of the others are on meta, without memory") {
  struct Failing : TrainModuleOf<Failing, Deep> {
    using TrainModuleOf<Failing, Deep>::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      if (i == 1 && trainer().global_rank() == 1) fail<DataError>("a bad sample");
      return Deep::training_step(b, i);
    }
  };
  for (const bool prefetch : {false, true}) {
    std::vector<int> seen(3);
    CHECK_THROWS_AS(on_ranks(3,
                             [&](const Group& group) {
                               TrainerOptions options = plain();
                               options.use_distributed_sampler = true;
                               const auto strategy = std::make_shared<FsdpStrategy>(
                                   FsdpOptions{.forward_prefetch = prefetch, .process = {.group = group}});
                               options.strategy = strategy;
                               Failing module(3);
                               data::DataLoader data = test::loader(96, 8);
                               try {
                                 Trainer(options).fit(module, {.train = data});
                               } catch (const Error&) {
                                 for (const ParamRef& p : module.parameters()) {
                                   CHECK(p.value->device() == Device::meta());
                                   CHECK(p.value->get().storage->data == nullptr);
                                   CHECK_THROWS_AS((void)p.value->to_vector<float>(), Error);
                                 }
                                 CHECK(strategy->report().parameters > 0);
                                 seen[static_cast<std::size_t>(group->rank())] = 1;
                                 throw;
                               }
                               return 0;
                             }),
                    DataError);
    CHECK(seen == std::vector<int>{1, 1, 1});
  }
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
  for (const int n : {1, 2})
    CHECK_THROWS_WITH_AS(on_ranks(n,
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
