// Benchmarks of single ops: overhead of one element, and kernels at sizes that people use. `--json FILE` writes Google
// Benchmark's JSON; every other flag is Google Benchmark's.
#include <benchmark/benchmark.h>

#include "bench/main.h"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
Tensor random(const Shape& shape) {
  Generator generator(7);
  return randn(shape, generator, cpu);
}

// ---- Overhead: one element.
void add_1(benchmark::State& state) {
  const Tensor a = ones({1}, cpu), b = ones({1}, cpu);
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(add_1);

void add_1_recorded(benchmark::State& state) {
  Tensor a = ones({1}, cpu), b = ones({1}, cpu);
  a.requires_grad_();
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(add_1_recorded);

void view_1(benchmark::State& state) {
  const Tensor a = ones({1, 1}, cpu);
  for (auto _ : state) benchmark::DoNotOptimize(transpose(a, 0, 1));
}
BENCHMARK(view_1);

// One backward over a chain of 1000 nodes; the chain is rebuilt outside the timing.
void backward_chain(benchmark::State& state, bool multiply) {
  constexpr int kNodes = 1000;
  Tensor x = ones({1}, cpu);
  const Tensor b = ones({1}, cpu);
  x.requires_grad_();
  for (auto _ : state) {
    state.PauseTiming();
    Tensor y = x;
    for (int i = 0; i < kNodes; ++i) y = multiply ? mul(y, b) : add(y, b);
    x.set_grad({});
    state.ResumeTiming();
    backward(y);
    state.PauseTiming();
    y = Tensor();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kNodes);
}
BENCHMARK_CAPTURE(backward_chain, add_1000, false);
BENCHMARK_CAPTURE(backward_chain, mul_1000, true);

// ---- Matrix products.
void sgemm(benchmark::State& state) {
  const std::int64_t m = state.range(0), k = state.range(1), n = state.range(2);
  const Tensor a = random({m, k}), b = random({k, n});
  for (auto _ : state) benchmark::DoNotOptimize(matmul(a, b));
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * double(m * n * k), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(sgemm)
    ->Args({256, 256, 256})
    ->Args({512, 512, 512})
    ->Args({1024, 1024, 1024})
    ->Args({2048, 2048, 2048})
    ->Args({128, 784, 512})
    ->UseRealTime();

// ---- Memory-bound kernels.
template <class F>
void over(benchmark::State& state, int passes, F&& f) {
  const Tensor x = random({state.range(0), state.range(1)});
  for (auto _ : state) benchmark::DoNotOptimize(f(x));
  state.SetBytesProcessed(state.iterations() * x.numel() * 4 * passes);
}
#define LEVIN_SIZES ->Args({512, 1024})->Args({4096, 1024})->UseRealTime()
void softmax_rows(benchmark::State& state) {
  over(state, 2, [](const Tensor& x) { return softmax(x, 1); });
}
BENCHMARK(softmax_rows) LEVIN_SIZES;
void layer_norm_rows(benchmark::State& state) {
  const Tensor w = ones({state.range(1)}, cpu), b = zeros({state.range(1)}, cpu);
  over(state, 2, [&](const Tensor& x) { return layer_norm(x, w, b); });
}
BENCHMARK(layer_norm_rows) LEVIN_SIZES;
void gelu_erf(benchmark::State& state) {
  over(state, 2, [](const Tensor& x) { return gelu(x); });
}
BENCHMARK(gelu_erf) LEVIN_SIZES;
void gelu_tanh(benchmark::State& state) {
  over(state, 2, [](const Tensor& x) { return gelu(x, GeluForm::tanh); });
}
BENCHMARK(gelu_tanh) LEVIN_SIZES;
void exp_all(benchmark::State& state) {
  over(state, 2, [](const Tensor& x) { return exp(x); });
}
BENCHMARK(exp_all) LEVIN_SIZES;
void relu_all(benchmark::State& state) {
  over(state, 2, [](const Tensor& x) { return relu(x); });
}
BENCHMARK(relu_all) LEVIN_SIZES;
void add_all(benchmark::State& state) {
  over(state, 3, [](const Tensor& x) { return x + x; });
}
BENCHMARK(add_all) LEVIN_SIZES;
void sum_all(benchmark::State& state) {
  over(state, 1, [](const Tensor& x) { return sum(x); });
}
BENCHMARK(sum_all) LEVIN_SIZES;
void sum_rows(benchmark::State& state) {
  over(state, 1, [](const Tensor& x) { return sum(x, 0); });
}
BENCHMARK(sum_rows) LEVIN_SIZES;

// ---- Convolution: forward, and forward with both gradients.
void conv_case(benchmark::State& state, const Shape& image, const Shape& filter, std::int64_t padding,
               bool with_backward) {
  Tensor x = random(image), w = random(filter);
  if (with_backward) {
    x.requires_grad_();
    w.requires_grad_();
  }
  const ConvOptions options{.padding = {padding, padding}};
  const Tensor seed = conv2d(x.detach(), w.detach(), {}, options);
  for (auto _ : state) {
    const Tensor y = conv2d(x, w, {}, options);
    if (with_backward) {
      backward(y, seed);
      x.set_grad({});
      w.set_grad({});
    }
    benchmark::DoNotOptimize(y);
  }
}
BENCHMARK_CAPTURE(conv_case, mnist1_forward, {64, 1, 28, 28}, {32, 1, 5, 5}, 2, false)->UseRealTime();
BENCHMARK_CAPTURE(conv_case, mnist1_both, {64, 1, 28, 28}, {32, 1, 5, 5}, 2, true)->UseRealTime();
BENCHMARK_CAPTURE(conv_case, mnist2_forward, {64, 32, 14, 14}, {64, 32, 5, 5}, 2, false)->UseRealTime();
BENCHMARK_CAPTURE(conv_case, mnist2_both, {64, 32, 14, 14}, {64, 32, 5, 5}, 2, true)->UseRealTime();
BENCHMARK_CAPTURE(conv_case, resnet56_both, {32, 64, 56, 56}, {64, 64, 3, 3}, 1, true)->UseRealTime();

}  // namespace
}  // namespace levin

LEVIN_BENCHMARK_MAIN()
