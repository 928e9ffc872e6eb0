// Benchmarks of graph kernels beyond the caches, beside this machine's memory bandwidth in the same run.
//
//   real_time     median of rounds; a round runs the kernel once
//   bytes         what the kernel moves where no row of x is read twice from a cache: rows of x, positions and values
//                 for each entry, a row of y and its offset for each row
//   triad_GB/s    a = b + 2 c over arrays far beyond the caches, median of the rounds, 12 bytes an element
//   of_triad      the median over the rounds of bytes / time / the triad's bandwidth of the same round
//   slope         of log(time) over log(entries), by least squares over 10^5 to 10^8 entries: 1 is linear
//   ns_1e5 ...    time an entry
//   epoch rows    real_time of forward, backward and Adam of a two-layer GCN on a graph and features of Cora's size
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/main.h"
#include "bench/stopwatch.h"
#include "kernels/executor/cpu.h"
#include "levin/levin.h"

namespace levin::bench {
namespace {

Device device() { return settings().device; }

double seconds_of(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  synchronize(device());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

Tensor columns(std::int64_t cols, std::int64_t entries) {
  Generator gen(8);
  return randint(0, cols, {entries}, gen, device()).to(DType::i32);
}
// Every row has `degree` entries in columns drawn at random.
Csr uniform(std::int64_t nodes, std::int64_t degree) {
  Csr a{.crow = arange(0, nodes * degree + 1, degree, device()), .col = columns(nodes, nodes * degree), .cols = nodes};
  return device().is_cpu() ? checked(a) : a;
}
Tensor normal(const Shape& shape) {
  Generator gen(7);
  return randn(shape, gen, device());
}

class Triad {
 public:
  explicit Triad(std::int64_t n) : a_(zeros({n}, device())), b_(normal({n})), c_(normal({n})) {}
  // Bytes a second.
  double operator()() {
    return 12.0 * double(a_.numel()) / seconds_of([&] { run(); });
  }

 private:
  void run() {
    if (!device().is_cpu()) {
      a_ = add(b_, c_);
      return;
    }
    float* const a = a_.mutable_data<float>();
    const float *const b = b_.data<float>(), *const c = c_.data<float>();
    kernels::Cpu{}.parallel_for(a_.numel(), 1 << 16, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] + 2 * c[i];
    });
  }
  Tensor a_, b_, c_;
};

int rounds() { return no_speed() ? 1 : 7; }

void spmm_row(benchmark::State& state, std::int64_t nodes, std::int64_t degree, std::int64_t width) {
  const Csr a = uniform(nodes, degree);
  const Tensor x = normal({nodes, width}), value = normal({a.entries()});
  const double row = 4.0 * double(width), bytes = double(a.entries()) * (row + 8) + double(nodes) * (row + 8);
  Triad triad(no_speed() ? 1 << 10 : 1 << 26);
  const auto f = [&] { (void)spmm(a, value, x); };
  f();
  (void)triad();
  std::vector<double> seconds, triads, ratios;
  for (int r = 0; r < rounds(); ++r) {
    triads.push_back(triad());
    seconds.push_back(seconds_of(f));
    ratios.push_back(bytes / seconds.back() / std::max(triads.back(), triad()));
  }
  for (auto _ : state) state.SetIterationTime(median(seconds));
  state.counters["bytes"] = bytes;
  state.counters["GB/s"] = bytes / median(seconds) * 1e-9;
  state.counters["triad_GB/s"] = median(triads) * 1e-9;
  state.counters["of_triad"] = median(ratios);
}

// `nodes` 0: graphs of 25 entries a row, whose features leave the caches as they grow.
void linear_row(benchmark::State& state, std::int64_t nodes, std::int64_t width) {
  std::vector<double> logs, times;
  double last = 0;
  for (std::int64_t entries = 100'000; entries <= (no_speed() ? 1'000'000 : 100'000'000); entries *= 10) {
    const std::int64_t rows = nodes > 0 ? nodes : entries / 25;
    const Csr a = uniform(rows, entries / rows);
    const Tensor x = normal({rows, width}), value = normal({a.entries()});
    const auto f = [&] { (void)spmm(a, value, x); };
    f();
    std::vector<double> seconds;
    const int calls = static_cast<int>(std::max<std::int64_t>(1, no_speed() ? 1 : 2'000'000 / entries));
    for (int r = 0; r < rounds(); ++r)
      seconds.push_back(seconds_of([&] {
                          for (int i = 0; i < calls; ++i) f();
                        }) /
                        calls);
    last = median(seconds);
    logs.push_back(std::log10(double(entries)));
    times.push_back(std::log10(last));
    state.counters["ns_1e" + std::to_string(static_cast<int>(std::lround(logs.back())))] = last / double(entries) * 1e9;
  }
  const double n = double(logs.size());
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
  for (std::size_t i = 0; i < logs.size(); ++i) mean_x += logs[i] / n, mean_y += times[i] / n;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    xx += (logs[i] - mean_x) * (logs[i] - mean_x);
    xy += (logs[i] - mean_x) * (times[i] - mean_y);
  }
  for (auto _ : state) state.SetIterationTime(last);
  state.counters["slope"] = xy / xx;
}

// Kipf and Welling's network and recipe: 1433 sparse features, 49,216 of them not 0, 16 hidden, 7 classes, dropout 0.5,
// Adam with weight decay on the first layer.
class GcnEpoch {
 public:
  GcnEpoch() {
    Generator gen(3);
    const Tensor row = sort(randint(0, kNodes, {kFeatures}, gen, Device::cpu())).values;
    features_ = known({.crow = offsets(row), .col = randint(0, 1433, {kFeatures}, gen, Device::cpu()), .cols = 1433});
    value_ = full({kFeatures}, 1 / 18., device());
    const Tensor loops = arange(kNodes, Device::cpu());
    Tensor src = randint(0, kNodes, {kEdges}, gen, Device::cpu()),
           dst = randint(0, kNodes, {kEdges}, gen, Device::cpu());
    const Tensor from = cat({src, dst, loops}), to = cat({dst, src, loops});
    const Tensor order = sort(to * kNodes + from).indices;
    graph_ = known({.crow = offsets(index_select(to, 0, order)), .col = index_select(from, 0, order), .cols = kNodes});
    weight_ = full({graph_.entries()}, 0.2, device());
    labeled_ = arange(140, device());
    target_ = integers(140);
    const auto weight = [&](const Shape& s) { return ((rand(s, gen_, device()) - 0.5) * 0.3).detach(); };
    w1_ = weight({1433, 16}), b1_ = zeros({16}, device()), w2_ = weight({16, 7}), b2_ = zeros({7}, device());
    for (Tensor* t : {&w1_, &b1_, &w2_, &b2_}) t->requires_grad_();
    adam_.emplace(optim::Parameters{{&w1_, "w1"}, {&b1_, "b1"}}, optim::AdamOptions{.lr = 0.01, .weight_decay = 5e-4});
    adam_->add_group({{&w2_, "w2"}, {&b2_, "b2"}}, {.lr = 0.01});
  }
  void step() {
    adam_->zero_grad();
    Tensor h = spmm(graph_, weight_, spmm(features_, dropout(value_, 0.5, gen_), w1_)) + b1_;
    h = dropout(relu(h), 0.5, gen_);
    const Tensor y = spmm(graph_, weight_, matmul(h, w2_)) + b2_;
    backward(cross_entropy(index_select(y, 0, labeled_), target_));
    adam_->step();
  }

 private:
  static constexpr std::int64_t kNodes = 2708, kEdges = 5278, kFeatures = 49216;
  static Tensor offsets(const Tensor& row) {
    return cat({zeros({1}, Device::cpu(), DType::i64), cumsum(bincount(row, kNodes), 0)});
  }
  static Csr known(Csr a) {
    a.col = a.col.to(DType::i32);
    return with_transpose(checked(a)).to(device());
  }
  static Tensor integers(std::int64_t n) {
    Generator gen(8);
    return randint(0, 7, {n}, gen, device());
  }
  Generator gen_{5};
  Csr features_, graph_;
  Tensor value_, weight_, labeled_, target_, w1_, b1_, w2_, b2_;
  std::optional<optim::Adam> adam_{};
};
void gcn_row(benchmark::State& state) {
  GcnEpoch epoch;
  Stopwatch watch(device(), 10 * settings().seconds);
  epoch.step();
  const Spread spread = watch.warm([&] { epoch.step(); });
  for (auto _ : state) state.SetIterationTime(spread.median);
  tell(state, spread, 0);
}

void prepare() {
  const auto row = [](const std::string& name, auto f) {
    add_row(name, f)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
  };
  row("gcn_epoch/f32/cora", gcn_row);
  const std::int64_t nodes = no_speed() ? 100 : 1'000'000;
  for (const std::int64_t width : {64, 16, 128})
    row("spmm/f32/" + std::to_string(nodes) + "x25x" + std::to_string(width),
        [=](benchmark::State& state) { spmm_row(state, nodes, 25, width); });
  row("spmm_linear/f32/10000_nodes/64", [](benchmark::State& state) { linear_row(state, 10'000, 64); });
  row("spmm_linear/f32/25_a_row/64", [](benchmark::State& state) { linear_row(state, 0, 64); });
}

}  // namespace
}  // namespace levin::bench

LEVIN_BENCHMARK_MAIN(levin::bench::prepare)
