// Data-parallel training: what communication adds to a step.
//
//   overlap/...     2 ranks, a backward pass of 32 layers of 2 ms, which wait for a timer and compute nothing, so that
//                   communication has a core of its own even where there are few. exposed_us: what the step takes
//                   longer than the pass alone. of_serial: that, divided by the same of one reduction at the end.
//   one_rank/...    a step of a small MLP by ddp with one rank; over_plain: its time / that of no strategy - 1.
//   step/...        2 ranks, a step of an MLP with 670,000 parameters and a batch of 64 each. Ranks are the processes
//                   of a job of two where something starts them as such (bench/compare_ddp.py does), else threads.
//   predicted/...   that step with batches of 64 and of 512 each, in 1, 2 and 4 processes of one thread, beside what
//                   the model of levin plan predicts (Note [The model of a step]) from what the same processes measure:
//                   the step without reductions, all of them at once, and all-reduces of three sizes. Communication of
//                   ranks that fill all cores hides behind nothing. error: measured / predicted - 1.
//   backward/...    forward and backward of an MLP, whose gradients have homes or have none.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "autograd/home.h"
#include "bench/main.h"
#include "comm/group/local.h"
#include "examples/job_plan.h"
#include "levin/comm.h"
#include "levin/comm/launch.h"
#include "levin/levin.h"
#include "tensor/text/number_text.h"
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

// A layer whose backward writes its parameter's gradient where that is born, as Levin's layers do, and ends at a fixed
// time of the pass, as on a device that computes beside the host.
struct Timed {
  static constexpr OpInfo info{.name = "timed"};
  const Clock::time_point* begin;  // of the pass
  Clock::duration end;             // after it
  Shape shape{};
  Tensor forward(const Tensor& x, const Tensor& w) {
    shape = w.shape();
    return x.clone();
  }
  Grads<2> backward(const Tensor& gy, Need<2>) const {
    Tensor gw = detail::place_or_empty(detail::birth_place(1), shape, gy.device(), gy.dtype());
    fill_(gw, 0);
    std::this_thread::sleep_until(*begin + end);
    return {gy, gw};
  }
};

enum class Reduces : std::uint8_t { nothing, at_the_end, beside_backward };

// Seconds of backward passes on rank 0 in the order of Reduces: medians of rounds that alternate between the three.
std::array<double, 3> backward_seconds(std::int64_t layers, std::int64_t elements, Clock::duration layer, int rounds) {
  std::array<double, 3> result{};
  dist::run_local(2, [&](const Group& group) {
    struct Arm {
      Reduces how;
      Tensors weights{};
      std::unique_ptr<train::Reducer> reducer{};
      std::vector<double> seconds{};
    };
    std::array<Arm, 3> arms{{{Reduces::nothing}, {Reduces::at_the_end}, {Reduces::beside_backward}}};
    for (Arm& arm : arms) {
      std::vector<train::Reducer::Member> members;
      for (std::int64_t i = 0; i < layers; ++i) {
        Tensor w = zeros({elements}, Device::cpu());
        w.requires_grad_();
        arm.weights.push_back(w);
        members.push_back({.name = "w" + std::to_string(i), .value = w});
      }
      const double whole = 4e-6 * static_cast<double>(layers * elements);  // more than all MiB
      // A bucket for each layer, or one for all: its reduction starts when the pass has ended.
      const double cap = arm.how == Reduces::at_the_end ? whole : 4.0 * static_cast<double>(elements) / (1 << 20);
      arm.reducer = std::make_unique<train::Reducer>(group, std::move(members), DdpOptions{.bucket_cap_mb = cap});
    }
    for (int round = 0; round < rounds + 2; ++round) {
      for (Arm& arm : arms) {
        Tensor x = ones({1}, Device::cpu());
        Clock::time_point begin;
        for (std::int64_t i = 0; i < layers; ++i)
          x = apply(Timed{&begin, (layers - i) * layer}, x, arm.weights[static_cast<std::size_t>(i)]);
        const Tensor loss = sum(x);
        group->barrier();
        begin = Clock::now();
        arm.reducer->backward(loss, arm.how == Reduces::nothing ? SyncGrad::no : SyncGrad::yes);
        group->barrier();  // a step ends when the slowest rank's does
        if (round >= 2) arm.seconds.push_back(seconds_since(begin));
        for (Tensor& w : arm.weights) w.set_grad({});
      }
    }
    if (group->rank() != 0) return;
    for (std::size_t i = 0; i < arms.size(); ++i) result[i] = median(std::move(arms[i].seconds));
  });
  return result;
}

void overlap(benchmark::State& state, std::int64_t elements) {
  constexpr std::int64_t kLayers = 32;
  const int rounds = settings().quick ? 1 : 21;
  std::array<double, 3> seconds{};
  for (auto _ : state) {
    seconds = backward_seconds(kLayers, elements, std::chrono::milliseconds(2), rounds);
    state.SetIterationTime(seconds[2]);
  }
  const double serial = seconds[1] - seconds[0], exposed = seconds[2] - seconds[0];
  state.counters["exposed_us"] = exposed * 1e6;
  state.counters["serial_us"] = serial * 1e6;
  state.counters["of_serial"] = exposed / serial;
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

// Seconds of each step of a fit.
std::vector<double> fit_steps(std::int64_t width, std::int64_t batch, std::int64_t steps, StrategyChoice strategy) {
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
  return std::move(times->seconds);
}
double fit_seconds(std::int64_t width, std::int64_t batch, std::int64_t steps, StrategyChoice strategy) {
  return median(fit_steps(width, batch, steps, std::move(strategy)));
}
std::shared_ptr<DdpStrategy> ddp_of(const Group& group) {
  return std::make_shared<DdpStrategy>(DdpOptions{.process = {.group = group}});
}

void one_rank(benchmark::State& state) {
  const int rounds = settings().quick ? 1 : 41;
  const std::int64_t steps = settings().quick ? 2 : 200;
  std::vector<double> ratios;
  double last = 0;
  for (auto _ : state) {
    for (int r = 0; r < rounds; ++r) {
      double plain = 0;
      const auto without = [&] { plain = fit_seconds(128, 64, steps, {}); };
      const auto with = [&] { last = fit_seconds(128, 64, steps, ddp_of(dist::single_process_group())); };
      r % 2 == 0 ? (without(), with()) : (with(), without());
      ratios.push_back(last / plain - 1);
    }
    state.SetIterationTime(last);
  }
  state.counters["over_plain"] = median(ratios);
}

void step(benchmark::State& state) {
  double seconds = 0;
  const auto run = [&](const Group& group) {
    const double mine = fit_seconds(512, 64, settings().quick ? 2 : 2000, ddp_of(group));
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

// Processes that share a core take turns, so that most steps of one run alone: the mean is what a step costs.
double mean_of(const std::vector<double>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

// alpha and bandwidth of all-reduces, from three sizes, by least squares over relative errors.
examples::Network network_of(const Group& world, int rounds) {
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const std::int64_t bytes : {std::int64_t{1} << 16, std::int64_t{1} << 20, std::int64_t{1} << 22}) {
    const Tensor t = zeros({bytes / 4}, Device::cpu());
    std::vector<double> seconds;
    for (int i = 0; i < rounds; ++i) {
      world->barrier();
      const Clock::time_point begin = Clock::now();
      world->all_reduce(t).wait();
      seconds.push_back(seconds_since(begin));
    }
    const double y = median(std::move(seconds)), x = static_cast<double>(bytes), weight = 1 / (y * y);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wy += weight * y;
    wxy += weight * x * y;
  }
  const double beta = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  const double ranks = world->size();
  return {.alpha = (wy - beta * wx) / w, .bandwidth = 2 * (ranks - 1) / ranks / beta};
}

// In each rank; rank 0's is the result: "predicted measured", in seconds.
std::string predict(std::int64_t batch, bool quick) {
  set_num_threads(1);
  const Group world = dist::init_process_group({.backend = "shm"});
  const std::int64_t width = 512, steps = quick ? 2 : 50;
  const bool several = world->size() > 1;
  std::vector<double> alone, measured;
  for (int round = 0; round < (quick ? 1 : 5); ++round) {
    world->barrier();
    alone.push_back(mean_of(fit_steps(width, batch, steps, {})));
    world->barrier();
    measured.push_back(mean_of(fit_steps(width, batch, steps, ddp_of(world))));
  }
  double compute = median(std::move(alone)), exposed = 0;
  if (several) {
    const std::vector<std::string> all = world->gather_text(levin::detail::general(compute, 9));
    compute = 0;
    for (const std::string& one : all) compute = std::max(compute, levin::detail::read_double(one).value());
    const examples::Network network = network_of(world, quick ? 2 : 50);
    const auto inputs = static_cast<double>(width);
    const std::vector<double> units = {785 * inputs, (inputs + 1) * inputs, (inputs + 1) * 10};
    const bool hides = world->size() < static_cast<int>(std::thread::hardware_concurrency());
    double total = 0;
    exposed = examples::plan_detail::exposed_after_backward(units, hides ? 2 * compute / 3 : 0, 4, 25 << 20, network,
                                                            world->size(), 2, false, total);
  }
  return levin::detail::general(compute + exposed, 9) + " " + levin::detail::general(median(std::move(measured)), 9);
}

void predicted(benchmark::State& state, int ranks, std::int64_t batch) {
  double expected = 0, measured = 0;
  for (auto _ : state) {
    const bool quick = settings().quick;
    const std::string both = dist::spawn(ranks, [&](int) { return predict(batch, quick); })[0];
    const std::size_t blank = both.find(' ');
    expected = levin::detail::read_double(both.substr(0, blank)).value();
    measured = levin::detail::read_double(both.substr(blank + 1)).value();
    state.SetIterationTime(measured);
  }
  state.counters["predicted_us"] = expected * 1e6;
  state.counters["error"] = measured / expected - 1;
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
  for (const std::int64_t elements : {65536, 262144, 1048576}) {
    manual(add_row("overlap/f32/32x" + std::to_string(elements), [=](auto& state) { overlap(state, elements); }));
  }
  manual(add_row("one_rank/f32/mlp_128", one_rank));
  manual(add_row("step/f32/2_ranks_mlp_512", step));
  for (const std::int64_t batch : {64, 512}) {
    for (const int ranks : {1, 2, 4}) {
      manual(add_row("predicted/f32/" + std::to_string(ranks) + "_ranks_batch_" + std::to_string(batch),
                     [=](auto& state) { predicted(state, ranks, batch); }));
    }
  }
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
