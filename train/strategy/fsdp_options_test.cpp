// FSDP's mixed precision, checkpointing by a policy and ignored modules; the bytes that sharded ranks hold.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "levin/nn/checkpoint_policy.h"
#include "levin/train/checkpoint.h"
#include "levin/train/fsdp_strategy.h"
#include "levin/train/zero_strategy.h"
#include "tests/warnings.h"
#include "train/strategy/parallel_fixture_test.h"

using namespace levin;
using namespace levin::test::parallel;

namespace {

constexpr std::int64_t kWidth = 32;

struct Block : nn::Module {
  Block(nn::Module& parent, const std::string& name, double p = 0)
      : Module(parent, name),
        fc1(*this, "fc1", {.in = kWidth, .out = kWidth}),
        drop(*this, "drop", {.p = p}),
        fc2(*this, "fc2", {.in = kWidth, .out = kWidth}) {}
  nn::Linear fc1;
  nn::Dropout drop;
  nn::Linear fc2;
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(x + tanh(fc2(drop(tanh(fc1(x))))));
  }
};
bool is_block(const nn::Module& m) { return dynamic_cast<const Block*>(&m) != nullptr; }

// Blocks in a Sequential, and layers around them; a rank takes its part of each batch.
struct Stack : TrainModuleOf<Stack, OnItsPart> {
  explicit Stack(std::uint64_t seed, std::int64_t n = 3, double p = 0) : TrainModuleOf<Stack, OnItsPart>(seed) {
    for (std::int64_t i = 0; i < n; ++i) blocks.add<Block>(p);
  }
  nn::Linear in{*this, "in", {.in = 2, .out = kWidth}};
  nn::Sequential blocks{*this, "blocks"};
  nn::Linear out{*this, "out", {.in = kWidth, .out = 1}};
  bool adam = false;
  Tensor operator()(const Tensor& x) const { return out(blocks(in(x))); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    return test::squared_error((*this)(mine(b[0])), mine(b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    if (adam) return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.001})}};
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9})}};
  }
};

constexpr std::int64_t kSteps = 5;  // an epoch
data::DataLoader samples() { return test::loader(160, 32); }

std::shared_ptr<FsdpStrategy> fsdp(FsdpOptions options, const Group& group) {
  options.process.group = group;
  return std::make_shared<FsdpStrategy>(options);
}

// The weights of each rank after an epoch.
template <class Module = Stack>
std::vector<Weights> fit(int ranks, const FsdpOptions& options, const Function<void(Module&)>& look = {},
                         const Function<std::unique_ptr<Module>()>& make = {}) {
  return on_ranks(ranks, [&](const Group& group) {
    TrainerOptions o = plain();
    o.max_steps = kSteps;
    o.strategy = fsdp(options, group);
    const std::unique_ptr<Module> module = make ? make() : std::make_unique<Module>(3);
    data::DataLoader data = samples();
    Trainer(o).fit(*module, {.train = data});
    if (look) look(*module);
    return values_of(*module);
  });
}

// The same epoch by hand: f32 weights; each rank's part of a batch through a copy in `param`; the gradients averaged in
// `reduce`.
Weights by_hand(int ranks, DType param, DType reduce) {
  Stack masters(3), low(3);
  low.to(param);
  const std::vector<ParamRef> wide = masters.parameters(), narrow = low.parameters();
  optim::SGD sgd(wide, {.lr = 0.05, .momentum = 0.9});
  for (const Batch& batch : samples()) {
    {
      const NoGrad off;
      for (std::size_t i = 0; i < wide.size(); ++i) copy_(*narrow[i].value, wide[i].value->detach().to(param));
    }
    Tensors sums(wide.size());
    for (int r = 0; r < ranks; ++r) {
      low.zero_grad();
      const std::int64_t n = batch[0].size(0);
      const auto part = [&](const Tensor& t) { return slice(t, 0, n * r / ranks, n * (r + 1) / ranks).to(param); };
      backward(test::squared_error(low(part(batch[0])), part(batch[1])));
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const Tensor g = narrow[i].value->grad().detach().to(reduce).to(DType::f32);
        sums[i] = sums[i].defined() ? sums[i] + g : g;
      }
    }
    for (std::size_t i = 0; i < wide.size(); ++i)
      wide[i].value->set_grad((sums[i] * (1.0 / ranks)).to(reduce).to(DType::f32));
    sgd.step();
    sgd.zero_grad();
  }
  return values_of(masters);
}

}  // namespace

TEST_CASE("mixed precision of FSDP has the bits of casts by hand") {
  const struct {
    MixedPrecision mixed;
    DType param, reduce;
  } kinds[] = {
      {{.param = DType::bf16}, DType::bf16, DType::bf16},
      {{.param = DType::bf16, .reduce = DType::f32}, DType::bf16, DType::f32},
      {{.param = DType::f16, .reduce = DType::bf16}, DType::f16, DType::bf16},
      {{.reduce = DType::bf16}, DType::f32, DType::bf16},
      {{.param = DType::f32}, DType::f32, DType::f32},
  };
  int number = 0;
  for (const auto& kind : kinds) {
    CAPTURE(number++);
    const Weights expected = by_hand(2, kind.param, kind.reduce);
    for (const bool prefetch : {false, true}) {
      for (const FsdpSharding sharding :
           {FsdpSharding::full_shard, FsdpSharding::shard_grad_op, FsdpSharding::no_shard}) {
        const auto ranks = fit(2, {.sharding = sharding, .mixed_precision = kind.mixed, .forward_prefetch = prefetch});
        for (const Weights& weights : ranks) CHECK(weights == expected);
      }
    }
    CHECK(fit(1, {.mixed_precision = kind.mixed})[0] == by_hand(1, kind.param, kind.reduce));
  }
  CHECK(by_hand(2, DType::bf16, DType::bf16) != by_hand(2, DType::f32, DType::f32));
}

TEST_CASE("with mixed precision half the bytes of parameters and gradients move, and slices stay f32") {
  struct Watching : TrainModuleOf<Watching, Stack> {
    using TrainModuleOf<Watching, Stack>::TrainModuleOf;
    FsdpStrategy* strategy = nullptr;
    ShardedStrategy::Report report;
    std::int64_t sent = 0;
    void on_train_batch_end(const StepInfo&) override {
      report = strategy->report();
      sent = strategy->group()->traffic().bytes;
    }
  };
  struct Moved {
    ShardedStrategy::Report report;
    std::int64_t sent = 0;
  };
  const auto moved = [](const MixedPrecision& mixed) {
    return on_ranks(4, [&](const Group& group) {
      TrainerOptions options = plain();
      options.max_steps = kSteps;
      const auto strategy = fsdp({.mixed_precision = mixed}, group);
      options.strategy = strategy;
      Watching module(3);
      module.adam = true;
      module.strategy = strategy.get();
      data::DataLoader data = samples();
      Trainer(options).fit(module, {.train = data});
      return Moved{module.report, module.sent};
    });
  };
  const auto wide = moved({}), narrow = moved({.param = DType::bf16});
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(wide[r].report.gathered > 0);
    CHECK(wide[r].report.reduced > 0);
    CHECK(2 * narrow[r].report.gathered == wide[r].report.gathered);
    CHECK(2 * narrow[r].report.reduced == wide[r].report.reduced);
    CHECK(static_cast<double>(narrow[r].sent) < 0.6 * static_cast<double>(wide[r].sent));
    CHECK(narrow[r].report.optimizer_state == wide[r].report.optimizer_state);
    CHECK(narrow[r].report.held_parameters == wide[r].report.held_parameters);
    CHECK(narrow[r].report.peak_parameters < wide[r].report.peak_parameters);
  }
}

TEST_CASE("parameters and buffers have their dtypes in training, and f32 in evaluations and checkpoints") {
  struct Normed : TrainModuleOf<Normed, Stack> {
    explicit Normed(std::uint64_t seed) : TrainModuleOf<Normed, Stack>(seed) {
      for (const ParamRef& p : fixed.parameters()) p.value->requires_grad_(false);
    }
    nn::Linear fixed{*this, "fixed", {.in = 2, .out = 2}};  // the optimizer does not have it
    nn::BatchNorm1d norm{*this, "norm", {.features = 2}};
    std::string file;
    bool evaluated = false;
    std::vector<DType> dtypes() {
      return {in.weight.dtype(), fixed.weight.dtype(), norm.running_mean.dtype(), norm.num_batches_tracked.dtype()};
    }
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      CHECK(dtypes() == std::vector{DType::bf16, DType::bf16, DType::bf16, DType::i64});
      CHECK(b[0].dtype() == DType::bf16);
      const Tensor x = norm(fixed(mine(b[0])));
      if (i == 1) {
        trainer().save_checkpoint(file);  // within the step
        CHECK(dtypes() == std::vector{DType::bf16, DType::bf16, DType::bf16, DType::i64});
      }
      return test::squared_error((*this)(x), mine(b[1]));
    }
    void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
      CHECK(dtypes() == std::vector{DType::f32, DType::f32, DType::f32, DType::i64});
      CHECK(b[0].dtype() == DType::f32);
      log("val", test::squared_error((*this)(norm(fixed(b[0]))), b[1]));
      evaluated = true;
    }
    OptimizerConfig configure_optimizers() override {
      std::vector<ParamRef> mine;
      for (const ParamRef& p : parameters()) {
        if (!p.name.starts_with("fixed")) mine.push_back(p);
      }
      return {.optimizers = {std::make_shared<optim::SGD>(mine, optim::SGDOptions{.lr = 0.05})}};
    }
  };
  const test::TemporaryFolder folder;
  const test::ExpectedWarnings told{"W-CKPT-WINDOW"};
  const std::string file = folder / "mixed.safetensors";
  const auto ranks = on_ranks(2, [&](const Group& group) {
    TrainerOptions options = plain();
    options.max_steps = kSteps;
    options.strategy = fsdp({.mixed_precision = {.param = DType::bf16, .buffer = DType::bf16}}, group);
    Normed module(3);
    module.file = file;
    const Weights before = module.fixed.weight.to_vector<float>();
    data::DataLoader data = samples(), val = test::loader(32, 8);
    Trainer(options).fit(module, {.train = data, .val = val});
    CHECK(module.evaluated);
    CHECK(module.dtypes() == std::vector{DType::f32, DType::f32, DType::f32, DType::i64});
    CHECK(module.fixed.weight.to_vector<float>() == before);  // not through bf16
    CHECK(module.norm.running_mean.to_vector<float>() != Weights{0, 0});
    return module.in.weight.to_vector<float>();
  });
  CHECK(ranks[0] == ranks[1]);
  for (const auto& [name, t] : load_safetensors(file).tensors) {
    CAPTURE(name);
    if (is_float(t.dtype()) && !name.starts_with("levin.")) CHECK(t.dtype() == DType::f32);
  }
}

TEST_CASE("a run in mixed precision resumes with its bits") {
  struct Saves : TrainModuleOf<Saves, Stack> {
    using TrainModuleOf<Saves, Stack>::TrainModuleOf;
    std::string file;
    void on_train_batch_end(const StepInfo&) override {
      if (!file.empty() && trainer().global_step() == 3) trainer().save_checkpoint(file);
    }
  };
  const test::TemporaryFolder folder;
  const std::string file = folder / "mixed.safetensors";
  const auto run = [&](const std::string& save, const std::string& resume) {
    return on_ranks(2, [&](const Group& group) {
      TrainerOptions options = plain();
      options.max_steps = kSteps;
      options.strategy = fsdp({.mixed_precision = {.param = DType::bf16}}, group);
      Saves module(3);
      module.adam = true;
      module.file = save;
      data::DataLoader data = samples();
      Trainer(options).fit(module, {.train = data, .ckpt_path = resume});
      return values_of(module);
    })[0];
  };
  const Weights whole = run(file, {});
  CHECK(run({}, file) == whole);
}

TEST_CASE("mixed precision refuses dtypes and precisions that have no f32 parameters") {
  CHECK_THROWS_WITH_AS(FsdpStrategy({.mixed_precision = {.param = DType::i64}}),
                       doctest::Contains("mixed_precision.param is i64, expected f32, f16 or bf16"), ConfigError);
  CHECK_THROWS_AS(FsdpStrategy({.mixed_precision = {.reduce = DType::f64}}), ConfigError);
  CHECK_THROWS_AS(FsdpStrategy({.mixed_precision = {.buffer = DType::b8}}), ConfigError);
  TrainerOptions sharded = plain();
  sharded.strategy = std::make_shared<FsdpStrategy>(
      FsdpOptions{.mixed_precision = {.param = DType::bf16}, .state_dict_type = StateDictType::sharded});
  CHECK_THROWS_WITH_AS(Trainer{sharded}, doctest::Contains("mixed_precision and state_dict_type = sharded"),
                       ConfigError);
  for (const char* precision : {"bf16-true", "16-true", "64-true"}) {
    for (const int ranks : {1, 2}) {
      CHECK_THROWS_WITH_AS(on_ranks(ranks,
                                    [&](const Group& group) {
                                      TrainerOptions options = plain();
                                      options.precision = precision;
                                      options.strategy = fsdp({.mixed_precision = {.param = DType::bf16}}, group);
                                      return trained<Stack>(options);
                                    }),
                           doctest::Contains("mixed_precision, which casts f32 parameters, and in.weight is"),
                           ConfigError);
    }
  }
}

TEST_CASE("a policy that checkpoints units or parts of them leaves the bits, with dropout and without") {
  const Function<bool(const nn::Module&)> policies[] = {
      is_block,
      [](const nn::Module& m) { return m.path() == "blocks.1"; },
  };
  for (const double p : {0.0, 0.25}) {
    const Function<std::unique_ptr<Stack>()> make = [p] { return std::make_unique<Stack>(3, 3, p); };
    for (const FsdpSharding sharding : {FsdpSharding::full_shard, FsdpSharding::shard_grad_op}) {
      const auto plain_fit = fit<Stack>(2, {.sharding = sharding}, {}, make);
      for (const auto& policy : policies) {
        for (const bool prefetch : {false, true}) {
          const FsdpOptions options{
              .sharding = sharding, .forward_prefetch = prefetch, .activation_checkpoint_policy = policy};
          CHECK(fit<Stack>(2, options, {}, make) == plain_fit);
        }
      }
      CHECK(fit<Stack>(1, {.activation_checkpoint_policy = is_block}, {}, make) == fit<Stack>(1, {}, {}, make));
    }
  }
  const auto inside = [](const nn::Module& m) { return m.name() == "fc1"; };
  CHECK_THROWS_WITH_AS(fit(2, {.activation_checkpoint_policy = inside}),
                       doctest::Contains("the activation checkpoint policy takes blocks.0.fc1"), ConfigError);
}

TEST_CASE("ignored modules stay whole on every rank, and train as others do") {
  const Weights alone = trained<Stack>([] {
    TrainerOptions o = plain();
    o.max_steps = kSteps;
    return o;
  }());
  struct Looks : TrainModuleOf<Looks, Stack> {
    using TrainModuleOf<Looks, Stack>::TrainModuleOf;
    void on_train_batch_end(const StepInfo&) override {
      for (const ParamRef& p : parameters()) {
        CAPTURE(p.name);
        CHECK(p.value->device().is_cpu() == (p.name.starts_with("in.") || p.name.starts_with("blocks.1.")));
      }
    }
  };
  const auto ignored = [](const nn::Module& m) { return m.path() == "in" || m.path() == "blocks.1"; };
  for (const FsdpOptions& options :
       {FsdpOptions{.ignored_modules = ignored},
        FsdpOptions{.sharding = FsdpSharding::hybrid_shard, .hybrid_group = 2, .ignored_modules = ignored}}) {
    const auto ranks = fit<Looks>(4, options);
    for (const Weights& weights : ranks) {
      CHECK(weights == ranks[0]);
      CHECK(difference(weights, alone) <= 1e-5);
    }
  }
}

TEST_CASE("a unit that nn::Sequential calls has memory once, and one at a time") {
  struct Watching : TrainModuleOf<Watching, Stack> {
    explicit Watching(std::uint64_t seed) : TrainModuleOf<Watching, Stack>(seed, 12) {}
    FsdpStrategy* strategy = nullptr;
    ShardedStrategy::Report report;
    void on_train_batch_end(const StepInfo&) override { report = strategy->report(); }
  };
  const auto reports = on_ranks(2, [&](const Group& group) {
    TrainerOptions options = plain();
    options.max_steps = 4;
    const auto strategy = fsdp({.backward_prefetch = BackwardPrefetch::backward_post}, group);
    options.strategy = strategy;
    Watching module(3);
    module.strategy = strategy.get();
    data::DataLoader data = samples();
    Trainer(options).fit(module, {.train = data});
    return module.report;
  });
  for (const ShardedStrategy::Report& r : reports)
    CHECK(r.peak_parameters < r.parameters / 2 + r.largest_bucket + r.largest_bucket / 2);
}

TEST_CASE("ranks hold the bytes of ZeRO's formulas: parameters, gradients and Adam's state") {
  constexpr std::int64_t kBlocks = 12;
  struct Watching : TrainModuleOf<Watching, Stack> {
    explicit Watching(std::uint64_t seed) : TrainModuleOf<Watching, Stack>(seed, kBlocks) { adam = true; }
    ShardedStrategy* strategy = nullptr;
    ShardedStrategy::Report report;
    void on_before_optimizer_step(optim::Optimizer&) override { report = strategy->report(); }
  };
  using Sharding = FsdpSharding;
  enum class Kind { stage_1, stage_2, stage_3, full_shard, shard_grad_op, hybrid_shard, no_shard };
  for (const int ranks : {2, 4}) {
    for (const Kind kind : {Kind::stage_1, Kind::stage_2, Kind::stage_3, Kind::full_shard, Kind::shard_grad_op,
                            Kind::hybrid_shard, Kind::no_shard}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(kind));
      const auto make = [&](const Group& group) -> std::shared_ptr<ShardedStrategy> {
        if (kind <= Kind::stage_3)
          return std::make_shared<ZeroStrategy>(
              ZeroOptions{.stage = static_cast<int>(kind) + 1, .bucket_cap_mb = 0.01, .process = {.group = group}});
        constexpr Sharding kinds[] = {Sharding::full_shard, Sharding::shard_grad_op, Sharding::hybrid_shard,
                                      Sharding::no_shard};
        const Sharding sharding = kinds[static_cast<int>(kind) - static_cast<int>(Kind::full_shard)];
        return fsdp({.sharding = sharding, .hybrid_group = 2}, group);
      };
      const auto reports = on_ranks(ranks, [&](const Group& group) {
        TrainerOptions options = plain();
        options.max_steps = 3;
        const std::shared_ptr<ShardedStrategy> strategy = make(group);
        options.strategy = strategy;
        Watching module(3);
        module.strategy = strategy.get();
        data::DataLoader data = samples();
        Trainer(options).fit(module, {.train = data});
        return module.report;
      });
      // Of P parameters and R ranks of a copy: the factors of the bytes 4 P of each of the three.
      const double r = kind == Kind::no_shard ? 1 : kind == Kind::hybrid_shard ? 2 : ranks;
      const double parameters = kind <= Kind::stage_2 ? 1 : 1 / r, gradients = kind == Kind::stage_1 ? 1 : 1 / r;
      for (const ShardedStrategy::Report& got : reports) {
        const auto all = static_cast<double>(got.parameters), bucket = static_cast<double>(got.largest_bucket);
        CHECK(bucket <= 0.11 * all);  // of 12 blocks: what the bound below adds is small
        const auto is = [&](std::int64_t bytes, double factor) {
          CHECK(static_cast<double>(bytes) >= 0.995 * factor * all - bucket);
          CHECK(static_cast<double>(bytes) <= 1.005 * factor * all + bucket);
        };
        is(got.held_parameters, parameters);
        is(got.held_gradients, gradients);
        is(got.optimizer_state, 2 / r);
      }
    }
  }
}
