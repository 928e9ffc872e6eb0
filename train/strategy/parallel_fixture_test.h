// Data-parallel training in tests: threads of this process as ranks, each with a module that takes its part of a batch.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/local.h"
#include "levin/autograd.h"
#include "train/run/fixture_test.h"

namespace levin::test::parallel {

using Group = std::shared_ptr<dist::ProcessGroup>;

// A module that trains on the rank's part of each batch, which all ranks read whole.
struct OnItsPart : TrainModule {
  explicit OnItsPart(std::uint64_t seed) : TrainModule(nn::Options{.gen = Generator(seed), .device = Device::cpu()}) {}
  // Rows of t: begin of the rank's part to its end.
  [[nodiscard]] Tensor mine(const Tensor& t) const {
    const std::int64_t ranks = trainer().world_size(), r = trainer().global_rank(), n = t.size(0);
    return slice(t, 0, n * r / ranks, n * (r + 1) / ranks);
  }
};

struct Mlp : TrainModuleOf<Mlp, OnItsPart> {
  using TrainModuleOf<Mlp, OnItsPart>::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  bool adam = false, checkpoints = false;
  Tensor operator()(const Tensor& x) const {
    if (!checkpoints) return fc2(tanh(fc1(x)));
    return fc2(checkpoint([this](const Tensor& in) { return tanh(fc1(in)); }, x));
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor x = mine(b[0]);
    const Tensor error = square((*this)(x)-mine(b[1]));
    return StepOutput::sum(sum(error), static_cast<double>(error.numel()));
  }
  OptimizerConfig configure_optimizers() override {
    if (adam) return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
};

inline TrainerOptions plain() {
  TrainerOptions options = test::silent();
  options.use_distributed_sampler = false;  // modules take their parts themselves
  options.max_steps = 20;
  return options;
}
using Weights = std::vector<float>;

// All weights and buffers, of any dtype.
inline Weights values_of(const nn::Module& module) {
  Weights all;
  for (const auto& [name, t] : module.state_dict()) {
    const Tensor wide = t.to(DType::f32);
    const Weights values = wide.to_vector<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

template <class Module = Mlp>
Weights trained(const TrainerOptions& options, std::uint64_t seed = 3, const Function<void(Module&)>& change = {},
                std::int64_t samples = 160, std::int64_t batch = 32) {
  Module module(seed);
  if (change) change(module);
  data::DataLoader data = test::loader(samples, batch);
  Trainer(options).fit(module, {.train = data});
  return values_of(module);
}

// run(group) on threads, one result a rank.
template <class Run>
auto on_ranks(int ranks, const Run& run) {
  std::vector<decltype(run(Group()))> results(static_cast<std::size_t>(ranks));
  dist::run_local(ranks, [&](const Group& group) { results[static_cast<std::size_t>(group->rank())] = run(group); });
  return results;
}

inline double difference(const Weights& a, const Weights& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(a[i]));
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  }
  return most;
}
inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

constexpr double kSmallBucket = 1e-4;  // MiB: a bucket for each parameter of these modules

}  // namespace levin::test::parallel
