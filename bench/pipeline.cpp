// Pipelines: how long their stages wait.
//
//   bubble/...   a step of p stages and m microbatches in one process, a thread and a CPU device for each stage. Layers
//                wait for a timer in their forward and backward pass and compute nothing, so that p stages work at
//                the same time even where there are fewer cores. bubble: the part of the step in which a stage neither
//                runs forward nor backward, mean over stages; formula: (p - 1) / (m + p - 1); over_points: their
//                difference in percent of the step.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "bench/main.h"
#include "levin/levin.h"

namespace levin::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// Seconds that the layers of a step were at work, all together.
std::atomic<double> busy{0};

void wait_for_timer(double seconds) {
  const Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double took = seconds_since(begin);
  double before = busy.load();
  while (!busy.compare_exchange_weak(before, before + took)) {}
}

struct Wait {
  static constexpr OpInfo info{.name = "wait"};
  double seconds;
  Tensor forward(const Tensor& x, const Tensor& w) {
    wait_for_timer(seconds);
    return x * w;
  }
  Grads<2> backward(const Tensor& gy, Need<2>) const {
    wait_for_timer(seconds);
    return {gy, sum(gy, {0})};
  }
};

struct WaitingOptions {
  double seconds = 0;
};
struct Waiting : nn::Module {
  using Options = WaitingOptions;
  Waiting(nn::Module& parent, std::string_view name, Options o)
      : Module(parent, name), w(*this, "w", ones({1}, Device::cpu())), options(o) {}
  nn::Parameter w;
  Options options;
  Tensor operator()(const Tensor& x) const { return apply(Wait{options.seconds}, x, static_cast<const Tensor&>(w)); }
};

struct Net final : TrainModuleOf<Net, PipelineModule> {
  Net(int stages, double seconds) : TrainModuleOf(nn::Options{.gen = Generator(1), .device = Device::cpu()}) {
    for (int s = 0; s < stages; ++s) body.add<Waiting>({.seconds = seconds});
  }
  nn::Sequential body{*this, "body"};
  nn::Sequential& layers() override { return body; }
  StepOutput loss_of(const Tensor& y, const Batch&) override { return mean(y); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0})}};
  }
};

void bubble(benchmark::State& state, PipelineSchedule schedule, int stages, std::int64_t microbatches) {
  const double wait = 1e-2;  // far above what a stage does besides
  struct Steps final : Callback {
    int stages = 1;
    std::vector<double> seconds, waits;
    Clock::time_point begin{};
    std::string state_key() const override { return ""; }
    BatchStart on_train_batch_start(const StepInfo&) override {
      busy = 0;
      begin = Clock::now();
      return BatchStart::proceed;
    }
    void on_train_batch_end(const StepInfo&) override {
      seconds.push_back(seconds_since(begin));
      waits.push_back(1 - busy.load() / (stages * seconds.back()));
    }
  };
  for (auto _ : state) {
    Net net(stages, wait);
    data::DataLoader data(data::tensor_dataset({ones({microbatches * 12, 1}, Device::cpu())}),
                          {.batch_size = microbatches});
    std::vector<Device> devices;
    for (int s = 0; s < stages; ++s) devices.push_back(Device::cpu(s));
    const auto steps = std::make_shared<Steps>();
    steps->stages = stages;
    TrainerOptions options;
    options.barebones = true;
    options.handle_signals = false;
    options.max_steps = settings().quick ? 1 : 12;
    options.callbacks.push_back(steps);
    options.strategy = std::make_shared<PipelineStrategy>(
        PipelineOptions{.devices = devices,
                        .balance = std::vector<std::int64_t>(static_cast<std::size_t>(stages), 1),
                        .microbatches = microbatches,
                        .checkpoint = PipelineCheckpoint::never,
                        .schedule = schedule});
    Trainer(std::move(options)).fit(net, {.train = data});
    const double formula = static_cast<double>(stages - 1) / static_cast<double>(microbatches + stages - 1);
    const double measured = median(steps->waits);
    state.SetIterationTime(median(steps->seconds));
    state.counters["bubble"] = measured;
    state.counters["formula"] = formula;
    state.counters["over_points"] = 100 * (measured - formula);
  }
}

void prepare() {
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    for (const auto& [stages, microbatches] : {std::pair{2, 4}, {2, 16}, {4, 4}, {4, 8}, {4, 32}}) {
      add_row(std::string("bubble/f32/") + (schedule == PipelineSchedule::gpipe ? "gpipe" : "1f1b") + "_" +
                  std::to_string(stages) + "x" + std::to_string(microbatches),
              [=](auto& state) { bubble(state, schedule, stages, microbatches); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace levin::bench

LEVIN_BENCHMARK_MAIN(levin::bench::prepare)
