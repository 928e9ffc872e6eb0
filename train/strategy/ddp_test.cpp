// Data-parallel training, with threads of this process as ranks.
#include "levin/train/ddp_strategy.h"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>

#include "comm/group/group.h"
#include "comm/group/thread_ranks_test.h"
#include "levin/autograd.h"
#include "tests/variables.h"
#include "tests/warnings.h"
#include "tests/where.h"
#include "train/strategy/parallel_fixture_test.h"
#include "train/strategy/reducer.h"

using namespace levin;
using namespace levin::test::parallel;

namespace {

TrainerOptions on(TrainerOptions options, const Group& group, DdpOptions ddp = {}) {
  ddp.process.group = group;
  options.strategy = std::make_shared<DdpStrategy>(ddp);
  return options;
}

}  // namespace

TEST_CASE("4 ranks with 8 samples each make the steps of one process with 32") {
  for (const bool adam : {false, true}) {
    for (const std::int64_t accumulate : {1, 2}) {
      for (const bool checkpoints : {false, true}) {
        CAPTURE(adam);
        CAPTURE(accumulate);
        CAPTURE(checkpoints);
        TrainerOptions options = plain();
        options.accumulate_grad_batches = accumulate;
        options.gradient_clip_val = 0.5;
        const auto change = [&](Mlp& m) {
          m.adam = adam;
          m.checkpoints = checkpoints;
        };
        const Weights alone = trained<Mlp>(options, 3, change);
        // Different first weights, of which rank 0's count.
        const auto ranks = on_ranks(4, [&](const Group& group) {
          return trained<Mlp>(on(options, group, {.bucket_cap_mb = kSmallBucket}),
                              3 + static_cast<std::uint64_t>(group->rank()), change);
        });
        for (const Weights& weights : ranks) {
          CHECK(weights == ranks[0]);
          CHECK(difference(weights, alone) <= 1e-5);
        }
      }
    }
  }
}

TEST_CASE("4 ranks that read their parts of the data in batches of 8 make the steps of one process with 32") {
  struct Whole : TrainModuleOf<Whole, Mlp> {
    using TrainModuleOf<Whole, Mlp>::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t) override { return test::squared_error((*this)(b[0]), b[1]); }
  };
  TrainerOptions options = plain();
  options.use_distributed_sampler = true;
  const Weights alone = trained<Whole>(options);
  const auto ranks = on_ranks(4, [&](const Group& group) { return trained<Whole>(on(options, group), 3, {}, 160, 8); });
  for (const Weights& weights : ranks) {
    CHECK(weights == ranks[0]);
    CHECK(difference(weights, alone) <= 1e-5);
  }
}

TEST_CASE("with sync_batchnorm 4 ranks make the steps of one process for a convolutional net with batch norms") {
  struct Cnn : TrainModuleOf<Cnn, OnItsPart> {
    using TrainModuleOf<Cnn, OnItsPart>::TrainModuleOf;
    nn::Linear in{*this, "in", {.in = 2, .out = 16}};
    nn::Conv2d conv{*this, "conv", {.in = 1, .out = 4, .kernel = 3, .padding = 1}};
    nn::BatchNorm2d norm{*this, "norm", {.features = 4}};
    nn::Linear out{*this, "out", {.in = 64, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const Tensor x = mine(b[0]), image = reshape(in(x), {x.size(0), 1, 4, 4});
      return test::squared_error(out(reshape(relu(norm(conv(image))), {x.size(0), 64})), mine(b[1]));
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})}};
    }
  };
  TrainerOptions options = plain();
  options.sync_batchnorm = true;
  const test::ExpectedWarnings expected{"W-TRAIN-SYNC-BATCHNORM"};  // of the run with one rank
  const Weights alone = trained<Cnn>(options);
  const auto ranks = on_ranks(4, [&](const Group& group) { return trained<Cnn>(on(options, group)); });
  for (const Weights& weights : ranks) {
    CHECK(weights == ranks[0]);
    CHECK(difference(weights, alone) <= 1e-5);
  }
}

TEST_CASE("4 ranks train channels-last convolutions as one process trains contiguous ones") {
  struct Cnn : TrainModuleOf<Cnn, OnItsPart> {
    using TrainModuleOf<Cnn, OnItsPart>::TrainModuleOf;
    nn::Linear in{*this, "in", {.in = 2, .out = 16}};
    nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 4, .kernel = 3, .padding = 1}};
    nn::Conv2d conv2{*this, "conv2", {.in = 4, .out = 3, .kernel = 3, .padding = 1}};
    nn::Linear out{*this, "out", {.in = 48, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const Tensor x = mine(b[0]), image = reshape(in(x), {x.size(0), 1, 4, 4});
      return test::squared_error(out(reshape(conv2(relu(conv1(image))), {x.size(0), 48})), mine(b[1]));
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.01})}};
    }
  };
  TrainerOptions options = plain();
  options.gradient_clip_val = 0.5;
  const Weights alone = trained<Cnn>(options);
  const auto last = [](Cnn& m) { m.to(MemoryFormat::channels_last); };
  CHECK(difference(trained<Cnn>(options, 3, last), alone) <= 1e-5);
  for (const bool views : {true, false}) {
    const auto ranks = on_ranks(4, [&](const Group& group) {
      return trained<Cnn>(on(options, group, {.gradient_as_bucket_view = views}), 3, last);
    });
    for (const Weights& weights : ranks) {
      CHECK(weights == ranks[0]);
      CHECK(difference(weights, alone) <= 1e-5);
    }
  }
}

TEST_CASE("one rank has the bits of a run without a strategy, and no buckets") {
  const Weights alone = trained(plain());
  on_ranks(1, [&](const Group& group) {
    const TrainerOptions options = on(plain(), group);
    CHECK(trained(options) == alone);
    CHECK(std::dynamic_pointer_cast<DdpStrategy>(options.strategy.object())->report().buckets == 0);
    return 0;
  });
  TrainerOptions named = plain();
  named.devices = 1;
  named.strategy = "ddp";
  CHECK(trained(named) == alone);
}

TEST_CASE("each bucket is reduced once a window of accumulation") {
  TrainerOptions options = plain();
  options.max_steps = -1;
  options.max_epochs = 2;
  options.accumulate_grad_batches = 4;
  const auto reports = on_ranks(2, [&](const Group& group) {
    const TrainerOptions o = on(options, group, {.bucket_cap_mb = kSmallBucket});
    (void)trained<Mlp>(o, 3, {}, 80, 8);  // 10 batches: windows of 4, 4 and 2
    return std::dynamic_pointer_cast<DdpStrategy>(o.strategy.object())->report();
  });
  for (const DdpStrategy::Report& r : reports) {
    CHECK(r.buckets == 4);
    CHECK(r.reductions == 2 * 3 * 4);
    CHECK(r.bytes == 2 * 3 * (128 + 64 + 64 + 64));  // 2 x 16, 16, 16 and 1 floats, padded to 64 bytes
  }
}

TEST_CASE("a run sends the bytes of its gradients once a window") {
  std::array<std::int64_t, 2> sent{};
  dist::run_local(2, [&](const Group& group) {
    struct Counting final : Callback {
      explicit Counting(dist::ProcessGroup& g) : group(g) {}
      dist::ProcessGroup& group;
      std::int64_t before = 0, bytes = 0;
      std::string state_key() const override { return ""; }
      void on_before_backward(const Tensor&) override { before = group.traffic().bytes; }
      void on_after_backward() override { bytes += group.traffic().bytes - before; }
    };
    TrainerOptions options = on(plain(), group);
    options.max_steps = -1;
    options.max_epochs = 1;
    options.accumulate_grad_batches = 4;
    const auto counting = std::make_shared<Counting>(*group);
    options.callbacks.push_back(counting);
    (void)trained<Mlp>(options, 3, {}, 80, 8);
    sent[static_cast<std::size_t>(group->rank())] = counting->bytes;
  });
  CHECK(sent == std::array<std::int64_t, 2>{3 * 320, 3 * 320});  // one bucket: fewer parameters than 1 MiB
}

namespace {

// Two networks with an optimizer each, which take turns.
struct Turns : TrainModuleOf<Turns, OnItsPart> {
  using TrainModuleOf<Turns, OnItsPart>::TrainModuleOf;
  nn::Linear g{*this, "g", {.in = 2, .out = 2}};
  nn::Linear d{*this, "d", {.in = 2, .out = 1}};
  bool automatic_optimization() const override { return false; }
  StepOutput training_step(const Batch& b, std::int64_t i) override {
    const bool closes = (i + 1) % 2 == 0 || trainer().is_last_batch();
    const SyncGrad sync{closes};
    const Tensor made = g(mine(b[0]));
    const auto turn = [&](std::size_t k, const Tensor& input, double sign) {
      OptimizerHandle& optimizer = optimizers()[k];
      const ToggledModel toggled = optimizer.toggle_model(sync);
      const Tensor loss = mean(square(d(input) - sign * mine(b[1])));
      manual_backward(loss);
      if (!closes) return;
      optimizer.step();
      optimizer.zero_grad();
    };
    turn(1, made.detach(), -1);
    turn(0, made, 1);
    return {};
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(g.parameters(), optim::SGDOptions{.lr = 0.1}),
                           std::make_shared<optim::SGD>(d.parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

}  // namespace

TEST_CASE("optimizers that take turns are reduced alone, once a window, and see all ranks' gradients") {
  TrainerOptions options = plain();
  options.max_steps = -1;
  options.max_epochs = 1;
  const Weights alone = trained<Turns>(options, 3, {}, 40, 8);
  const auto ranks = on_ranks(2, [&](const Group& group) {
    const TrainerOptions o = on(options, group);
    Weights weights = trained<Turns>(o, 3, {}, 40, 8);  // 5 batches
    const auto report = std::dynamic_pointer_cast<DdpStrategy>(o.strategy.object())->report();
    CHECK(report.buckets == 2);
    CHECK(report.reductions == 6);
    return weights;
  });
  CHECK(ranks[0] == ranks[1]);
  CHECK(difference(ranks[0], alone) <= 1e-5);
}

namespace {

// Layers that the loss uses on some ranks or in some steps only.
struct Partial : TrainModuleOf<Partial, OnItsPart> {
  using TrainModuleOf<Partial, OnItsPart>::TrainModuleOf;
  nn::Linear first{*this, "first", {.in = 2, .out = 4}};
  nn::Linear second{*this, "second", {.in = 2, .out = 4}};
  nn::Linear never{*this, "never", {.in = 2, .out = 4}};
  std::int64_t uses_on = -1;        // the rank that uses `second`; -1: all
  std::int64_t stops_at = 1 << 20;  // the step from which `second` is not used
  bool freezes = false;
  std::string had;
  StepOutput training_step(const Batch& b, std::int64_t i) override {
    const Tensor x = mine(b[0]);
    Tensor y = mean(square(first(x)));
    if ((uses_on < 0 || uses_on == trainer().global_rank()) && i < stops_at) y = y + mean(square(second(x)));
    return y;
  }
  void on_train_start() override {
    if (!freezes) return;
    for (const ParamRef& p : never.parameters()) p.value->requires_grad_(false);
  }
  void on_after_backward() override {
    had.clear();
    for (const ParamRef& p : parameters()) had += p.value->grad().defined() ? '1' : '0';
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(
                parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1})}};
  }
};

// The errors of a fit on two ranks.
std::array<std::string, 2> errors_of(const DdpOptions& ddp, const Function<void(Partial&)>& change) {
  std::array<std::string, 2> errors;
  CHECK_THROWS(dist::run_local(2, [&](const Group& group) {
    try {
      (void)trained<Partial>(on(plain(), group, ddp), 3, change);
    } catch (const Error& e) {
      errors[static_cast<std::size_t>(group->rank())] = e.what();
      throw;
    }
  }));
  return errors;
}

}  // namespace

TEST_CASE("a parameter without a gradient is an error on all ranks, at once, that names it and the rank") {
  const auto errors = errors_of({.bucket_cap_mb = kSmallBucket}, [](Partial& m) {
    m.freezes = true;  // what requires no grad is not waited for
    m.uses_on = 0;
  });
  for (const std::string& error : errors)
    CHECK(contains(error, "rank 1 has no gradient for second.weight, second.bias; freeze"));
}

TEST_CASE("with find_unused_parameters a missing gradient counts as 0, and one that no rank has stays unset") {
  TrainerOptions options = plain();
  options.max_steps = 3;
  const auto ranks = on_ranks(2, [&](const Group& group) {
    Partial module(3);
    module.uses_on = 1;
    data::DataLoader data = test::loader(160, 32);
    Trainer(on(options, group, {.find_unused_parameters = true, .bucket_cap_mb = kSmallBucket}))
        .fit(module, {.train = data});
    CHECK(module.had == "111100");
    return test::weights_of(module);
  });
  CHECK(ranks[0] == ranks[1]);
  // `second` moved by half of rank 1's gradient; `never` did not even decay.
  const Partial untouched(3);
  const Weights first = test::weights_of(untouched);
  CHECK(Weights(ranks[0].end() - 12, ranks[0].end()) == Weights(first.end() - 12, first.end()));
  CHECK(ranks[0][12] != first[12]);
}

TEST_CASE("a static graph learns what is unused in its first step, and refuses a change") {
  const auto module_of = [](std::int64_t stops_at) {
    return [stops_at](Partial& m) {
      m.uses_on = 1;
      m.stops_at = stops_at;
    };
  };
  TrainerOptions options = plain();
  options.max_steps = 6;
  const auto fit = [&](const DdpOptions& ddp) {
    return on_ranks(
        2, [&](const Group& group) { return trained<Partial>(on(options, group, ddp), 3, module_of(1 << 20)); })[0];
  };
  CHECK(fit({.static_graph = true, .bucket_cap_mb = kSmallBucket}) ==
        fit({.find_unused_parameters = true, .bucket_cap_mb = kSmallBucket}));
  for (const std::string& error : errors_of({.static_graph = true}, module_of(2)))
    CHECK(contains(error, "rank 1 has no gradient for second.weight, second.bias; the first pass had"));
}

TEST_CASE("a layer that begins to require grad in a fit is reduced from then on") {
  struct Thawing : TrainModuleOf<Thawing, Mlp> {
    using TrainModuleOf<Thawing, Mlp>::TrainModuleOf;
    void on_train_epoch_start() override {
      for (const ParamRef& p : fc1.parameters()) p.value->requires_grad_(trainer().current_epoch() >= 1);
    }
  };
  TrainerOptions options = plain();
  options.max_steps = -1;
  options.max_epochs = 2;
  const Weights alone = trained<Thawing>(options);
  const auto ranks = on_ranks(2, [&](const Group& group) { return trained<Thawing>(on(options, group)); });
  CHECK(ranks[0] == ranks[1]);
  CHECK(difference(ranks[0], alone) <= 1e-5);
}

TEST_CASE("16-bit hooks halve the bytes and keep ranks equal") {
  const Weights alone = trained(plain());
  for (const CommHook hook : {CommHook::fp16, CommHook::bf16}) {
    const auto ranks = on_ranks(2, [&](const Group& group) {
      const TrainerOptions options = on(plain(), group, {.comm_hook = hook});
      Weights weights = trained(options);
      CHECK(std::dynamic_pointer_cast<DdpStrategy>(options.strategy.object())->report().bytes == 20 * 160);
      return weights;
    });
    CHECK(ranks[0] == ranks[1]);
    CHECK(difference(ranks[0], alone) > 0);  // gradients were rounded
    CHECK(difference(ranks[0], alone) < (hook == CommHook::fp16 ? 2e-3 : 2e-2));
  }
}

TEST_CASE("16-bit hooks divide before they add, so a sum that overflows leaves the average as it is") {
  struct Steep final : TrainModuleOf<Steep> {
    explicit Steep(std::uint64_t seed) : TrainModuleOf(nn::Options{.gen = Generator(seed), .device = Device::cpu()}) {}
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      return sum(fc(zeros_like(b[0])) * 2500.0);  // on 16 samples: 40,000 for the bias
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.001})}};
    }
  };
  const std::string library = test::build_dir() + "/liblevin_gloo.so";
  const bool gloo = std::filesystem::exists(library);
  const test::PlantedVariables planted({{"LEVIN_GLOO_LIBRARY", library.c_str()}});
  for (const CommHook hook : {CommHook::fp16, CommHook::bf16}) {
    const auto errors = test::run_threads({.ranks = 4}, [&](const std::shared_ptr<dist::Rendezvous>& ranks) {
      TrainerOptions options = plain();
      options.max_steps = 1;
      Steep module(3);
      const float before = module.fc.bias.to_vector<float>()[0];
      data::DataLoader data = test::loader(16, 16);
      Trainer(on(options, dist::make_cpu_group(ranks, gloo ? "gloo:all" : "shm"), {.comm_hook = hook}))
          .fit(module, {.train = data});
      const float moved = before - module.fc.bias.to_vector<float>()[0];
      if (!(std::abs(moved - 40) < 0.2)) fail<InternalError>("the bias moved by ", moved);
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST_CASE("loss scale, master weights and clipping leave ranks equal") {
  TrainerOptions options = plain();
  options.precision = "16-o2";
  options.grad_scaler = optim::GradScalerOptions{.init_scale = 256, .growth_interval = 4};
  options.gradient_clip_val = 0.1;
  const Weights alone = trained(options);
  const auto ranks = on_ranks(2, [&](const Group& group) { return trained(on(options, group)); });
  CHECK(ranks[0] == ranks[1]);
  CHECK(difference(ranks[0], alone) < 1e-2);
}

TEST_CASE("gradients lie in buckets, or are tensors of their own on request") {
  struct Keeping final : Callback {
    std::vector<Tensor> kept;
    std::vector<Weights> then;
    std::string state_key() const override { return ""; }
    void on_before_optimizer_step(optim::Optimizer& o) override {
      kept.push_back(o.parameters().front().value->grad());
      then.push_back(kept.back().to_vector<float>());
    }
  };
  for (const bool view : {true, false}) {
    on_ranks(2, [&](const Group& group) {
      TrainerOptions options = on(plain(), group, {.gradient_as_bucket_view = view});
      options.max_steps = 3;
      const auto keeping = std::make_shared<Keeping>();
      options.callbacks.push_back(keeping);
      (void)trained(options);
      CHECK((keeping->kept[0].to_vector<float>() == keeping->then[0]) == !view);
      CHECK(keeping->kept[0].shares_storage(keeping->kept[1]) == view);
      return 0;
    });
  }
}

TEST_CASE("windows of exact weighting divide by the samples of all ranks, also of uneven ones") {
  TrainerOptions options = plain();
  options.accumulate_weighting = AccumulateWeighting::exact;
  options.accumulate_grad_batches = 2;
  options.max_steps = -1;
  options.max_epochs = 2;
  const Weights alone = trained<Mlp>(options, 3, {}, 45, 10);  // the last batch has 5 samples: 1, 2 and 2 a rank
  const auto ranks = on_ranks(3, [&](const Group& group) { return trained<Mlp>(on(options, group), 3, {}, 45, 10); });
  for (const Weights& weights : ranks) {
    CHECK(weights == ranks[0]);
    CHECK(difference(weights, alone) <= 1e-5);
  }
}

TEST_CASE("a training forward starts with rank 0's buffers, unless broadcast_buffers is off") {
  struct Normed : TrainModuleOf<Normed, OnItsPart> {
    using TrainModuleOf<Normed, OnItsPart>::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 4}};
    nn::BatchNorm1d norm{*this, "norm", {.features = 4}};
    Weights at_start;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      for (const nn::BufferRef& r : buffers()) {
        if (contains(r.name, "running_mean")) at_start = r.value->to_vector<float>();
      }
      return mean(square(norm(fc(mine(b[0]))) - 1.0));
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  for (const bool broadcasts : {true, false}) {
    TrainerOptions options = plain();
    options.max_steps = 3;
    const auto means = on_ranks(2, [&](const Group& group) {
      Normed module(1);
      data::DataLoader data = test::loader(160, 32);
      Trainer(on(options, group, {.broadcast_buffers = broadcasts})).fit(module, {.train = data});
      return module.at_start;
    });
    CHECK(means[0] != Weights(4, 0));
    CHECK((means[0] == means[1]) == broadcasts);
  }
}

TEST_CASE("the broadcast of buffers leaves each rank its metrics, so that an epoch's value is that of all samples") {
  struct Counting : TrainModuleOf<Counting, Mlp> {
    using TrainModuleOf<Counting, Mlp>::TrainModuleOf;
    nn::BatchNorm1d norm{*this, "norm", {.features = 2}};
    MeanMetric seen{*this, "seen"};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const Tensor y = mine(b[1]);
      seen.update(y);
      log("seen", seen, {.on_epoch = true});
      return mean(square((*this)(norm(mine(b[0]))) - y));
    }
  };
  const auto fit = [](const TrainerOptions& options) {
    Counting module(1);
    data::DataLoader data = test::loader(96, 32);
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    double seen = 0;
    for (const auto& [name, value] : trainer.callback_metrics()) {
      if (name == "seen") seen = value;
    }
    return seen;
  };
  TrainerOptions options = plain();
  options.max_steps = -1;
  options.max_epochs = 1;
  const double alone = fit(options);
  CHECK(alone != 0);
  for (const double seen : on_ranks(3, [&](const Group& group) { return fit(on(options, group)); }))
    CHECK(seen == doctest::Approx(alone).epsilon(1e-12));
}

TEST_CASE("buckets are filled in reverse, then in the order in which gradients complete") {
  // a is declared first and used last, so its gradient completes first.
  on_ranks(2, [&](const Group& group) {
    Tensor a = ones({100}, Device::cpu()), b = ones({100}, Device::cpu());
    a.requires_grad_();
    b.requires_grad_();
    train::Reducer reducer(group, {{"a", a}, {"b", b}}, {.bucket_cap_mb = kSmallBucket});
    const auto flat_order = [&] {
      // The order of reductions is that of buckets: the first bucket's reduction is issued while the other waits.
      std::string order;
      const HookHandle of_a =
          on_gradient_complete(a, [&](const Tensor&) { order += "a" + text(reducer.report().reductions % 2); });
      const HookHandle of_b =
          on_gradient_complete(b, [&](const Tensor&) { order += "b" + text(reducer.report().reductions % 2); });
      const Tensor of_first = sum(square(b) * 2), of_last = sum(a);
      reducer.backward(of_first * of_last, SyncGrad::yes);
      HookHandle(of_a).remove();
      HookHandle(of_b).remove();
      a.set_grad({});
      b.set_grad({});
      return order;
    };
    CHECK(flat_order() == "a0b0");  // b's bucket is first: nothing is issued before b is complete
    CHECK(flat_order() == "a1b0");  // a's bucket is first
    return 0;
  });
}

TEST_CASE("a strategy whose group records no collectives prevents a capture, and says why") {
  on_ranks(2, [&](const Group& group) {
    DdpStrategy strategy({.process = {.group = group}});
    strategy.connect({});
    CHECK(strategy.prevents_capture() == "the ranks' gradients are reduced by local, which no graph can record");
    return 0;
  });
  CHECK_THROWS_WITH_AS(DdpStrategy({.bucket_cap_mb = 0}), "DdpStrategy: bucket_cap_mb is 0, expected more than 0",
                       ConfigError);
}

TEST_CASE("of several ranks only rank 0 writes, links and removes checkpoints, and a run resumes from its file") {
  const test::TemporaryFolder folder;
  const auto run = [&](const Group& group, std::int64_t epochs, const std::string& resume) {
    TrainerOptions options = on(plain(), group);
    options.max_steps = -1;
    options.max_epochs = epochs;
    options.enable_checkpointing = true;
    options.default_root_dir = folder.path();
    options.callbacks.push_back(std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder / "ckpts", .save_last = SaveLast::on}));
    Mlp module(3);
    data::DataLoader data = test::loader(32, 8);
    Trainer(options).fit(module, {.train = data, .ckpt_path = resume});
    return test::weights_of(module);
  };
  std::array<std::vector<float>, 2> whole, resumed;
  dist::run_local(2, [&](const Group& group) { whole[static_cast<std::size_t>(group->rank())] = run(group, 3, ""); });
  std::filesystem::remove_all(folder / "ckpts");
  dist::run_local(2, [&](const Group& group) { (void)run(group, 1, ""); });
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "ckpts"))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"epoch=0-step=4.safetensors", "last.safetensors"});
  dist::run_local(2, [&](const Group& group) {
    resumed[static_cast<std::size_t>(group->rank())] = run(group, 3, folder / "ckpts/last.safetensors");
  });
  CHECK(resumed[0] == whole[0]);
  CHECK(resumed[1] == whole[1]);
}
