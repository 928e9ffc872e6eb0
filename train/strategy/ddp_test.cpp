// Data parallel training, with threads of this process as ranks.
#include "levin/train/ddp_strategy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "comm/group/local.h"
#include "levin/autograd.h"
#include "train/run/fixture_test.h"

using namespace levin;

namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

struct Regression : TrainModuleOf<Regression> {
  using TrainModuleOf::TrainModuleOf;
  explicit Regression(std::uint64_t seed)
      : TrainModuleOf(nn::Options{.gen = Generator(seed), .device = Device::cpu()}) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  bool adam = false;
  Tensor operator()(const Tensor& x) const { return fc2(tanh(fc1(x))); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor error = square((*this)(b[0]) - b[1]);
    return StepOutput::sum(sum(error), static_cast<double>(error.numel()));
  }
  OptimizerConfig configure_optimizers() override {
    if (adam) return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
};

TrainerOptions options_of(const Group& group, DdpOptions ddp = {}) {
  TrainerOptions options = test::silent();
  options.max_steps = 20;
  if (group) {
    ddp.process.group = group;
    options.strategy = std::make_shared<DdpStrategy>(ddp);
  }
  return options;
}

std::vector<float> trained(const TrainerOptions& options, std::int64_t batch_size, bool adam, std::uint64_t seed = 3,
                           std::int64_t samples = 160) {
  Regression module(seed);
  module.adam = adam;
  data::DataLoader data = test::loader(samples, batch_size);
  Trainer(options).fit(module, {.train = data});
  return test::weights_of(module);
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("4 ranks with batches of 8 make the steps of one process with batches of 32") {
  for (const bool adam : {false, true}) {
    for (const std::int64_t accumulate : {1, 2}) {
      CAPTURE(adam);
      CAPTURE(accumulate);
      const auto change = [&](TrainerOptions options) {
        options.accumulate_grad_batches = accumulate;
        options.gradient_clip_val = 0.5;
        return options;
      };
      const std::vector<float> alone = trained(change(options_of(nullptr)), 32, adam);
      std::array<std::vector<float>, 4> ranks;
      // Small buckets, so that several are under way; different first weights, of which rank 0's count.
      dist::run_local(4, [&](const Group& group) {
        const auto r = static_cast<std::size_t>(group->rank());
        ranks[r] = trained(change(options_of(group, {.bucket_cap_mb = 1e-4})), 8, adam, 3 + r);
      });
      for (const std::vector<float>& weights : ranks) {
        CHECK(weights == ranks[0]);
        CHECK(difference(weights, alone) <= 1e-5);
      }
    }
  }
}

TEST_CASE("one rank has the bits of a run without a strategy") {
  const std::vector<float> alone = trained(options_of(nullptr), 8, true);
  std::vector<float> one;
  dist::run_local(1, [&](const Group& group) { one = trained(options_of(group), 8, true); });
  CHECK(one == alone);
}

TEST_CASE("gradients travel once a window of accumulation") {
  for (const std::int64_t accumulate : {1, 4}) {
    std::array<std::int64_t, 2> sent{};
    dist::run_local(2, [&](const Group& group) {
      TrainerOptions options = options_of(group);
      options.max_steps = -1;
      options.max_epochs = 1;
      options.accumulate_grad_batches = accumulate;
      struct Counting final : Callback {
        explicit Counting(dist::ProcessGroup& g) : group(g) {}
        dist::ProcessGroup& group;
        std::int64_t before = 0, bytes = 0;
        std::string state_key() const override { return ""; }
        void on_before_backward(const Tensor&) override { before = group.traffic().bytes; }
        void on_after_backward() override { bytes += group.traffic().bytes - before; }
      };
      const auto counting = std::make_shared<Counting>(*group);
      options.callbacks.push_back(counting);
      (void)trained(options, 8, false, 3, 160);  // 10 batches a rank
      sent[static_cast<std::size_t>(group->rank())] = counting->bytes;
    });
    // The bucket of 2 x 16 + 16 + 16 + 1 floats, each parameter padded to 64 bytes.
    const std::int64_t bucket = 128 + 64 + 64 + 64;
    const std::int64_t reductions = accumulate == 1 ? 10 : 3;
    CHECK(sent[0] == reductions * bucket);
    CHECK(sent[1] == reductions * bucket);
  }
}

namespace {

// fc2 takes part where `uses` says so.
struct Partial : TrainModuleOf<Partial> {
  Partial(std::uint64_t seed, bool u)
      : TrainModuleOf(nn::Options{.gen = Generator(seed), .device = Device::cpu()}), uses(u) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 4}};
  nn::Linear fc2{*this, "fc2", {.in = 2, .out = 4}};
  nn::Linear never{*this, "never", {.in = 2, .out = 4}};
  bool uses;
  bool freezes = false;
  std::vector<bool> had;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    Tensor y = mean(square(fc1(b[0])));
    if (uses) y = y + mean(square(fc2(b[0])));
    return y;
  }
  void on_train_start() override {
    if (!freezes) return;
    for (const ParamRef& p : never.parameters()) p.value->requires_grad_(false);
  }
  void on_after_backward() override {
    had = {};
    for (const ParamRef& p : parameters()) had.push_back(p.value->grad().defined());
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

}  // namespace

TEST_CASE("a parameter without a gradient is an error that names it and the rank, or counts as zero on request") {
  std::array<std::string, 2> errors;
  CHECK_THROWS(dist::run_local(2, [&](const Group& group) {
    Partial module(1, group->rank() == 0);
    module.freezes = true;
    data::DataLoader data = test::loader(16, 4);
    try {
      Trainer(options_of(group)).fit(module, {.train = data});
    } catch (const Error& e) {
      errors[static_cast<std::size_t>(group->rank())] = e.what();
      throw;
    }
  }));
  for (const std::string& error : errors)
    CHECK(contains(error, "rank 1 has no gradient for fc2.bias, fc2.weight; freeze"));

  std::array<std::vector<float>, 2> weights;
  dist::run_local(2, [&](const Group& group) {
    Partial module(1, group->rank() == 0);
    data::DataLoader data = test::loader(16, 4);
    TrainerOptions options = options_of(group, {.find_unused_parameters = true});
    options.max_steps = 2;
    Trainer(options).fit(module, {.train = data});
    weights[static_cast<std::size_t>(group->rank())] = test::weights_of(module);
    CHECK(module.had == std::vector<bool>{true, true, true, true, false, false});
  });
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("windows of exact weighting divide by the samples of all ranks") {
  const auto exact = [](TrainerOptions options) {
    options.accumulate_weighting = AccumulateWeighting::exact;
    options.max_steps = -1;
    options.max_epochs = 2;
    return options;
  };
  // 18 samples: batches of 8, 8, 2, and on two ranks of 4, 4, 1.
  const std::vector<float> alone = trained(exact(options_of(nullptr)), 8, false, 3, 18);
  std::array<std::vector<float>, 2> ranks;
  dist::run_local(2, [&](const Group& group) {
    ranks[static_cast<std::size_t>(group->rank())] = trained(exact(options_of(group)), 4, false, 3, 18);
  });
  CHECK(ranks[0] == ranks[1]);
  CHECK(difference(ranks[0], alone) <= 1e-5);
}

TEST_CASE("buffers of rank 0 replace those of the others before a step") {
  struct Counting : TrainModuleOf<Counting> {
    explicit Counting(std::uint64_t seed)
        : TrainModuleOf(nn::Options{.gen = Generator(seed), .device = Device::cpu()}) {}
    nn::Linear fc{*this, "fc", {.in = 2, .out = 4}};
    nn::BatchNorm1d norm{*this, "norm", {.features = 4}};
    StepOutput training_step(const Batch& b, std::int64_t) override { return mean(square(norm(fc(b[0])) - 1.0)); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  std::array<std::vector<float>, 2> before;  // running means at the end: of the last step's own batch
  dist::run_local(2, [&](const Group& group) {
    struct Seen final : Callback {
      std::vector<float> mean;
      std::string state_key() const override { return ""; }
      void on_before_backward(const Tensor&) override {}
      void on_train_batch_start_seen() {}
    };
    Counting module(1);
    data::DataLoader data = test::loader(16, 4);
    TrainerOptions options = options_of(group);
    options.max_steps = 3;
    Trainer(options).fit(module, {.train = data});
    for (const auto& [name, t] : module.state_dict()) {
      if (contains(name, "running_mean")) before[static_cast<std::size_t>(group->rank())] = t.to_vector<float>();
    }
  });
  // Ranks saw different batches in the last step, but started it from the same statistics.
  CHECK(before[0] != before[1]);
  CHECK(difference(before[0], before[1]) < 0.2);
}

TEST_CASE("of several ranks only rank 0 writes, links and removes checkpoints, and a run resumes from its file") {
  const test::TemporaryFolder folder;
  const auto run = [&](const Group& group, std::int64_t epochs, const std::string& resume) {
    TrainerOptions options = options_of(group);
    options.max_steps = -1;
    options.max_epochs = epochs;
    options.enable_checkpointing = true;
    options.default_root_dir = folder.path();
    options.callbacks.push_back(std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder / "ckpts", .save_last = SaveLast::on}));
    Regression module(3);
    data::DataLoader data = test::loader(32, 4);
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
