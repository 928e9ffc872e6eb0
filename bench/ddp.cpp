// Data-parallel training: what communication adds to a step.
//
//   overlap/...     2 ranks, a backward pass of 32 layers that waits for a timer in each and computes nothing, so that
//                   communication has a core of its own even where there are few. exposed_us: what the step takes
//                   longer than the pass alone. of_serial: that, divided by the same of one reduction at the end.
//   one_rank/...    a step of a small MLP by ddp with one rank; over_plain: its time / that of no strategy - 1.
//   step/...        2 ranks, a step of an MLP with 670,000 parameters and a batch of 64 each. Ranks are the processes
//                   of a job of two where something starts them as such (bench/compare_ddp.py does), else threads.
//   backward/...    forward and backward of an MLP, whose gradients have homes or have none.
#include <algorithm>
#include <chrono>
#include <thread>

#include "autograd/home.h"
#include "bench/main.h"
#include "comm/group/local.h"
#include "levin/comm.h"
#include "levin/levin.h"
#include "train/strategy/reducer.h"

namespace levin::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Group = std::shared_ptr<dist::ProcessGroup>;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// A layer whose backward takes `seconds` and gives its parameter a gradient.
struct Waiting {
  static constexpr OpInfo info{.name = "waiting"};
  double seconds;
  Shape shape{};
  Tensor forward(const Tensor& x, const Tensor& w) {
    shape = w.shape();
    return x.clone();
  }
  Grads<2> backward(const Tensor& gy, Need<2>) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return {gy, zeros(shape, gy.device())};
  }
};

enum class Reduces { nothing, at_the_end, beside_backward };

// Seconds of a backward pass on rank 0, the median of several.
double backward_seconds(Reduces how, std::int64_t layers, std::int64_t elements, double wait, int rounds) {
  double result = 0;
  dist::run_local(2, [&](const Group& group) {
    std::vector<train::Reducer::Member> members;
    Tensors weights;
    for (std::int64_t i = 0; i < layers; ++i) {
      Tensor w = zeros({elements}, Device::cpu());
      w.requires_grad_();
      weights.push_back(w);
      members.push_back({.name = "w" + std::to_string(i), .value = w});
    }
    const double whole = 4e-6 * static_cast<double>(layers * elements);  // more than all MiB
    // A bucket for each layer, or one for all: its reduction starts when the pass has ended.
    const double cap = how == Reduces::at_the_end ? whole : 4.0 * static_cast<double>(elements) / (1 << 20);
    train::Reducer reducer(group, std::move(members), {.bucket_cap_mb = cap});
    std::vector<double> seconds;
    for (int round = 0; round < rounds + 2; ++round) {
      Tensor x = ones({1}, Device::cpu());
      for (const Tensor& w : weights) x = apply(Waiting{wait}, x, w);
      group->barrier();
      const Clock::time_point begin = Clock::now();
      reducer.backward(sum(x), how == Reduces::nothing ? SyncGrad::no : SyncGrad::yes);
      if (round >= 2) seconds.push_back(seconds_since(begin));
      for (Tensor& w : weights) w.set_grad({});
    }
    if (group->rank() == 0) result = median(std::move(seconds));
  });
  return result;
}

void overlap(benchmark::State& state, std::int64_t elements, double wait) {
  constexpr std::int64_t kLayers = 32;
  const int rounds = settings().quick ? 1 : 11;
  double beside = 0, serial = 0;
  for (auto _ : state) {
    const double alone = backward_seconds(Reduces::nothing, kLayers, elements, wait, rounds);
    beside = backward_seconds(Reduces::beside_backward, kLayers, elements, wait, rounds) - alone;
    serial = backward_seconds(Reduces::at_the_end, kLayers, elements, wait, rounds) - alone;
    state.SetIterationTime(alone + beside);
  }
  state.counters["exposed_us"] = beside * 1e6;
  state.counters["serial_us"] = serial * 1e6;
  state.counters["of_serial"] = beside / serial;
}

struct Net : TrainModuleOf<Net> {
  explicit Net(std::int64_t width)
      : TrainModuleOf(nn::Options{.gen = Generator(1), .device = Device::cpu()}), hidden(width) {}
  std::int64_t hidden;
  nn::Linear fc1{*this, "fc1", {.in = 784, .out = hidden}};
  nn::Linear fc2{*this, "fc2", {.in = hidden, .out = hidden}};
  nn::Linear fc3{*this, "fc3", {.in = hidden, .out = 10}};
  StepOutput training_step(const Batch& b, std::int64_t) override {
    return cross_entropy(fc3(relu(fc2(relu(fc1(b[0]))))), b[1]);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
  }
};

constexpr std::int64_t kWarmup = 10;  // steps that are not measured

// Seconds of a step of a fit.
double fit_seconds(std::int64_t width, std::int64_t batch, std::int64_t steps, StrategyChoice strategy) {
  struct Times final : Callback {
    std::vector<double> seconds;
    std::int64_t done = 0;
    Clock::time_point begin{};
    std::string state_key() const override { return ""; }
    void on_train_batch_end(const StepInfo&) override {
      if (done++ >= kWarmup) seconds.push_back(seconds_since(begin));
      begin = Clock::now();
    }
  };
  constexpr std::int64_t kBatches = 32;  // of an epoch, whose end takes time of its own
  Net net(width);
  Generator gen(2);
  const Tensor x = randn({batch * kBatches, 784}, gen, Device::cpu());
  const Tensor y = zeros({batch * kBatches}, Device::cpu(), DType::i64);
  data::DataLoader data(data::tensor_dataset({x, y}), {.batch_size = batch});
  TrainerOptions options;
  options.barebones = true;
  options.handle_signals = false;
  options.use_distributed_sampler = false;
  options.max_steps = steps + kWarmup;
  options.strategy = std::move(strategy);
  const auto times = std::make_shared<Times>();
  options.callbacks.push_back(times);
  Trainer(options).fit(net, {.train = data});
  return median(times->seconds);
}
std::shared_ptr<DdpStrategy> ddp_of(const Group& group) {
  return std::make_shared<DdpStrategy>(DdpOptions{.process = {.group = group}});
}

void one_rank(benchmark::State& state) {
  const int rounds = settings().quick ? 1 : 9;
  const std::int64_t steps = settings().quick ? 2 : 300;
  std::vector<double> ratios;
  double last = 0;
  for (auto _ : state) {
    for (int r = 0; r < rounds; ++r) {
      const double plain = fit_seconds(128, 64, steps, {});
      last = fit_seconds(128, 64, steps, ddp_of(dist::single_process_group()));
      ratios.push_back(last / plain - 1);
    }
    state.SetIterationTime(last);
  }
  state.counters["over_plain"] = median(ratios);
}

void step(benchmark::State& state) {
  double seconds = 0;
  const auto run = [&](const Group& group) {
    const double mine = fit_seconds(512, 64, settings().quick ? 2 : 100, ddp_of(group));
    if (group->rank() == 0) seconds = mine;
  };
  for (auto _ : state) {
    if (dist::ClusterEnvironment::detect()->creates_processes_externally())
      run(dist::init_process_group());
    else
      dist::run_local(2, run);
    state.SetIterationTime(seconds);
  }
}

void backward_of_mlp(benchmark::State& state, std::int64_t width, bool homes) {
  Net net(width);
  for (const ParamRef& p : net.parameters()) {
    if (homes) set_gradient_home(*p.value, zeros_like(p.value->detach()));
  }
  Generator gen(2);
  const Tensor x = randn({64, 784}, gen, Device::cpu()), y = zeros({64}, Device::cpu(), DType::i64);
  Batch batch;
  batch.fields = {x, y};
  for (auto _ : state) {
    backward(net.training_step(batch, 0).loss());
    for (const ParamRef& p : net.parameters()) p.value->set_grad({});
  }
}

void prepare() {
  const auto manual = [](benchmark::internal::Benchmark* b) {
    b->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
  };
  manual(add_row("overlap/f32/32x65536", [](auto& state) { overlap(state, 65536, 2e-3); }));
  manual(add_row("one_rank/f32/mlp_128", one_rank));
  manual(add_row("step/f32/2_ranks_mlp_512", step));
  for (const std::int64_t width : {16, 512}) {
    for (const bool homes : {false, true}) {
      auto* const row = add_row("backward/f32/mlp_" + std::to_string(width) + (homes ? "_homes" : "_plain"),
                                [=](auto& state) { backward_of_mlp(state, width, homes); });
      row->Unit(benchmark::kMicrosecond);
      if (settings().quick) row->Iterations(1);
    }
  }
}

}  // namespace
}  // namespace levin::bench

LEVIN_BENCHMARK_MAIN(levin::bench::prepare)
