// Benchmarks of whole training steps on batches in memory: forward, backward and update, op by op and, on a device that
// launches kernels, recorded once and replayed (rows that end in _captured); and an optimizer step over many tiny
// tensors. Flags are in bench/main.h.
//
//   real_time  median over samples of ten steps (or one, of long steps); low_us, high_us hold four fifths of them
//   of_bound   the time of the step's products at the measured rate of products / real_time
//   host_us    the CPU's time for a step; the device may still run
//
// With --ledger, on simt, nothing is measured: the launches of each recorded step are printed, with the bytes that they
// move (bench/ledger.h).
#include <chrono>

#include "bench/ledger.h"
#include "bench/main.h"
#include "bench/step_models.h"
#include "bench/stopwatch.h"
#include "examples/resnet.h"
#include "levin/levin.h"

namespace levin::bench {
namespace {

Device device() { return settings().device; }

// A step's minimum: multiplications and additions of its products; `dtype` selects their measured rate.
struct Cost {
  double flops = 0;
  DType dtype = DType::f32;
};
const Ceilings& ceilings() {
  static const Ceilings c = measure_ceilings(device());
  return c;
}

// Measures a step of training by a loss: op by op, or as a replay of its record. A sample is ten steps, so that the
// queue stays filled as in training, or one where ten take too long.
enum class How : std::uint8_t { eager, captured };
template <class Loss>
void run_steps(benchmark::State& state, How how, optim::Optimizer& opt, std::int64_t samples, const Cost& cost,
               Loss&& loss) {
  const auto step_in = [&](Phases& phases) {
    const Tensor now = loss();
    phases.end("forward");
    opt.zero_grad();
    backward(now);
    phases.end("backward");
    opt.step();
    phases.end("update");
  };
  const auto step = [&] {
    Phases none;
    step_in(none);
  };
#if defined(LEVIN_SIMT)
  if (settings().ledger) {
    for (int i = 0; i < 2; ++i) step();
    StepLedger().run(Stream::current(device()), step_in, [&] { opt.prepare_replay(); });
    for (auto _ : state) state.SetIterationTime(1);
    return;
  }
#endif
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const Device d = device();
  std::optional<Graph> graph;
  if (how == How::captured) {
    for (int i = 0; i < (no_speed() ? 1 : 3); ++i) step();
    graph.emplace(Stream::current(d), step);
  }
  double host = 0;  // the CPU's time for a step
  const auto sample = [&](int steps) {
    host = 0;
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) {
      const auto launched = Clock::now();
      if (graph) {
        opt.prepare_replay();
        graph->replay();
      } else {
        step();
      }
      host += since(launched) / steps;
    }
    if (d.launches()) synchronize(d);
    return since(begin) / steps;
  };
  double once = sample(1);
  if (!no_speed()) once = sample(1);
  const double seconds = 10 * settings().seconds;
  const int steps = no_speed() || 50 * once > seconds ? 1 : 10;
  const int n = no_speed() ? 1 : static_cast<int>(std::clamp(seconds / (once * steps), 5.0, 1000.0));
  std::vector<double> all, hosts;
  for (int i = 0; i < n; ++i) {
    all.push_back(sample(steps));
    hosts.push_back(host);
  }
  const Spread spread = Stopwatch::spread_of(std::move(all));
  for (auto _ : state) state.SetIterationTime(spread.median);
  state.SetItemsProcessed(samples);
  tell(state, spread, ceilings().least_seconds(0, cost.flops, cost.dtype));
  if (d.launches()) state.counters["host_us"] = Stopwatch::spread_of(std::move(hosts)).median * 1e6;
}

// A layer's weight meets every sample three times: forward, in the weight's gradient and in the input's gradient, which
// the first layer does not need. `rest` and `first`: multiplications of a sample's forward pass.
Cost of_training(std::int64_t batch, double first, double rest, DType dtype = DType::f32) {
  return {.flops = double(batch) * (4 * first + 6 * rest), .dtype = dtype};
}
Cost cost_of(const SmallMlp&, std::int64_t batch) { return of_training(batch, 784 * 128, 128 * 10); }
Cost cost_of(const Mlp&, std::int64_t batch) { return of_training(batch, 784 * 512, 512 * 512 + 512 * 10); }
Cost cost_of(const LeNet&, std::int64_t batch) {
  return of_training(batch, 28 * 28 * 32 * 25, 14.0 * 14 * 64 * 32 * 25 + 64 * 49 * 256 + 256 * 10);
}

// A loss as models compute it in 16 bits: under Autocast, on a GPU or where --dtypes asks for it.
class In16Bits {
 public:
  explicit In16Bits(bool is_wanted) : is_wanted_(is_wanted) {}
  template <class Loss>
  Tensor operator()(Loss&& loss) {
    std::optional<Autocast> on;
    if (is_wanted_) on.emplace(DType::bf16, plan_);
    return loss();
  }

 private:
  bool is_wanted_;
  CastPlan plan_;
};

template <class Net>
void mnist_step(benchmark::State& state, How how) {
  Generator gen(1);
  Net net({.gen = gen, .device = device()});
  optim::Adam opt(net.parameters(), {.lr = 1e-3});
  const std::int64_t batch = state.range(0);
  const Tensor images = rand({batch, 1, 28, 28}, gen, device()), labels = randint(0, 10, {batch}, gen, device());
  In16Bits in_16_bits(settings().in_bf16);
  run_steps(state, how, opt, batch, cost_of(net, batch),
            [&] { return in_16_bits([&] { return cross_entropy(net(images), labels); }); });
}

// A residual network of 8 layers, SGD with momentum.
void resnet_step(benchmark::State& state, How how) {
  Generator gen(1);
  nn::Sequential net({.gen = gen, .device = device()});
  examples::add_resnet(net, 1, 10);
  optim::SGD opt(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const std::int64_t batch = state.range(0);
  Tensor images = rand({batch, 3, 32, 32}, gen, device());
  const Tensor labels = randint(0, 10, {batch}, gen, device());
  if (settings().in_bf16 && device().launches()) {  // convolutions of a GPU are faster so
    net.to(MemoryFormat::channels_last);
    images = images.contiguous(MemoryFormat::channels_last);
  }
  // Multiplications: 3 x 3 convolutions of each stage, the projections, the last layer.
  const double wide = 32.0 * 32 * 9 * 16 * 16, rest = 2 * wide + 1.5 * wide + 1.5 * wide + wide / 9 + 640;
  In16Bits in_16_bits(settings().in_bf16);
  run_steps(state, how, opt, batch, of_training(batch, 32.0 * 32 * 27 * 16, rest),
            [&] { return in_16_bits([&] { return cross_entropy(net(images), labels); }); });
}

// Arguments: batch, length. In bf16 on devices that launch kernels and with --dtypes bf16, else in f32.
void gpt_step(benchmark::State& state, How how, const GptShape& shape) {
  Generator gen(1);
  Gpt net({.gen = gen, .device = device()}, shape);
  optim::AdamW opt(net.parameters(), {.lr = 3e-4});
  const std::int64_t batch = state.range(0), length = state.range(1);
  const Tensor tokens = randint(0, shape.words, {batch, length}, gen, device());
  const Tensor next = randint(0, shape.words, {batch * length}, gen, device());
  // 6 per weight, and 6 length width per layer for the causal half of attention's scores and of its weighted values.
  // The embedding is looked up once and multiplied once.
  double weights = 0;
  for (const auto& parameter : net.parameters()) weights += double(parameter.value->numel());
  const double flops = 6 * (weights + double(shape.layers * length * shape.width));
  const bool narrow = device().launches() || settings().in_bf16;
  const DType dtype = narrow ? DType::bf16 : DType::f32;
  In16Bits in_16_bits(narrow);
  run_steps(state, how, opt, batch * length, {.flops = double(batch * length) * flops, .dtype = dtype},
            [&] { return in_16_bits([&] { return cross_entropy(net(tokens), next); }); });
}

// Arguments: nodes, edges per node, features.
void gcn_step(benchmark::State& state, How how) {
  Generator gen(1);
  const std::int64_t nodes = state.range(0), degree = state.range(1), features = state.range(2);
  // Examined once, as graphs that are read or generated are.
  const Device cpu = Device::cpu();
  const Csr a = checked(with_transpose({.crow = arange(0, nodes * degree + 1, degree, cpu),
                                        .col = randint(0, nodes, {nodes * degree}, gen, cpu),
                                        .cols = nodes}))
                    .to(device());
  const Tensor weight = full({nodes * degree}, 1.0 / static_cast<double>(degree), device());
  const Tensor x = rand({nodes, features}, gen, device()), labels = randint(0, 7, {nodes}, gen, device());
  Gcn net({.gen = gen, .device = device()}, features);
  optim::Adam opt(net.parameters(), {.lr = 1e-2});
  In16Bits in_16_bits(settings().in_bf16);
  run_steps(state, how, opt, nodes, {},
            [&] { return in_16_bits([&] { return cross_entropy(net(a, weight, x), labels); }); });
}

template <class O>
void tiny_updates(benchmark::State& state) {
  constexpr int kTensors = 100;
  std::vector<Tensor> values;
  for (int i = 0; i < kTensors; ++i) {
    values.push_back(ones({4}, device()));
    values.back().requires_grad_();
    values.back().set_grad(ones({4}, device()));
  }
  optim::Parameters parameters;
  for (int i = 0; i < kTensors; ++i)
    parameters.push_back({&values[static_cast<std::size_t>(i)], std::to_string(i), nullptr});
  O opt(parameters, {.lr = 1e-4});
  for (auto _ : state) opt.step();
  synchronize(device());
}

#if defined(LEVIN_SIMT)
// An AdamW step behind f16 gradients: unscaled, examined, clipped to a norm of 1, applied. 1.2 million parameters.
void scaled_update(benchmark::State& state) {
  Generator gen(1);
  std::vector<Tensor> values;
  for (const std::int64_t n : {1, 64, 768, 4096, 100'000, 1'100'000}) {
    values.push_back(rand({n}, gen, device()));
    values.back().requires_grad_();
    values.back().set_grad(rand({n}, gen, device()) * 65536);
  }
  optim::Parameters parameters;
  for (std::size_t i = 0; i < values.size(); ++i) parameters.push_back({&values[i], std::to_string(i), nullptr});
  optim::AdamW opt(parameters, {.lr = 1e-4});
  optim::GradScaler scaler;
  (void)scaler.scale(device());
  const auto step = [&](Phases& phases) {
    scaler.step(opt, {.max_norm = 1, .update = true});
    phases.end("update");
  };
  Phases none;
  for (int i = 0; i < 2; ++i) step(none);
  StepLedger().run(Stream::current(device()), step, [&] { opt.prepare_replay(); });
  for (auto _ : state) state.SetIterationTime(1);
}

// Counts do not depend on the size of a step where a kernel's grid does not: small batches, and layers as wide as the
// kernels' tiles. Where products are small, parts of long sums go through memory: `gpt2_step` has GPT-2's layers, and
// tokens enough to fill a GPU's multiprocessors. It takes minutes. A block of GPT-2 is what `block1` launches.
void prepare_ledger() {
  const auto add = [](const std::string& name, std::vector<std::int64_t> args, auto f) {
    add_row(name,
            [=](benchmark::State& state) {
              std::printf("\n## %s\n", name.c_str());
              f(state, How::captured);
            })
        ->Args(args)
        ->UseManualTime()
        ->Iterations(1);
  };
  add("mnist_mlp_128_step", {64}, mnist_step<SmallMlp>);
  add("mnist_cnn_step", {4}, mnist_step<LeNet>);
  add("resnet8_step", {2}, resnet_step);
  const GptShape gpt{.layers = 2, .width = 128, .heads = 2, .words = 1024};
  add("gpt_step", {2, 128}, [=](auto& state, How how) { gpt_step(state, how, gpt); });
  const GptShape gpt2{.layers = 2, .width = 768, .heads = 12, .words = 1024};
  add("gpt2_step", {3, 256}, [=](auto& state, How how) { gpt_step(state, how, gpt2); });
  add("gcn_step", {2708, 4, 128}, gcn_step);
  add("adamw_scaled_clipped", {}, [](auto& state, How) { scaled_update(state); });
}
#endif

void prepare() {
  const Device d = device();
#if defined(LEVIN_SIMT)
  if (settings().ledger) return prepare_ledger();
#else
  if (settings().ledger) fail<ConfigError>("--ledger: this build has no simt device; use ./run bench step --ledger");
#endif
  if (!settings().listing) tell(ceilings());
  // Without speed one step of the smallest shows that it runs.
  const bool small_ones = no_speed();
  const auto add = [&](const std::string& name, std::vector<std::int64_t> args, auto f) {
    for (const How how : {How::eager, How::captured}) {
      if (how == How::captured && !d.launches()) continue;
      add_row(name + (how == How::captured ? "_captured" : ""), [=](benchmark::State& state) { f(state, how); })
          ->Args(args)
          ->UseManualTime()
          ->Iterations(1);
    }
  };
  const std::int64_t batch = small_ones ? 2 : 64;
  add("mnist_mlp_128_step", {batch}, mnist_step<SmallMlp>);
  if (!small_ones) {
    add("mnist_mlp_512_step", {batch}, mnist_step<Mlp>);
    add("mnist_cnn_step", {batch}, mnist_step<LeNet>);
    add("resnet8_step", {128}, resnet_step);
  }
  const GptShape small = small_ones ? GptShape{.layers = 2, .width = 32, .heads = 1, .words = 64}
                                    : GptShape{.layers = 2, .width = 128, .heads = 4, .words = 1024};
  add("gpt_small_step", small_ones ? std::vector<std::int64_t>{1, 16} : std::vector<std::int64_t>{4, 128},
      [=](auto& state, How how) { gpt_step(state, how, small); });
  add("gcn_step", small_ones ? std::vector<std::int64_t>{32, 4, 8} : std::vector<std::int64_t>{2708, 4, 1433},
      gcn_step);
  if (d.is_cuda() && !small_ones) {
    const GptShape gpt2{.layers = 12, .width = 768, .heads = 12, .words = 50304};
    add("gpt2_124m_step", {16, 1024}, [=](auto& state, How how) { gpt_step(state, how, gpt2); });
  }
  auto* const adamw = add_row("adamw_100_tiny", tiny_updates<optim::AdamW>);
  auto* const sgd = add_row("sgd_100_tiny", tiny_updates<optim::SGD>);
  if (small_ones) adamw->Iterations(1), sgd->Iterations(1);
}

}  // namespace
}  // namespace levin::bench

LEVIN_BENCHMARK_MAIN(levin::bench::prepare)
