// The time of work on a device: between events where kernels are launched, by the clock on the CPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "bench/main.h"
#include "levin/ops.h"
#include "levin/stream.h"

namespace levin::bench {

struct Spread {
  double median = 0, low = 0, high = 0;  // seconds; four fifths of the samples lie between low and high
  int copies = 0;                        // in the replayed graph; 0: the work was called
  double call = 0;                       // where a graph was replayed: seconds of a call
};

// Note [Measuring]
//
// warm(f) runs f many times on the same memory, so data that fits a cache stays there. A sample is as many calls as
// take 50 us, because an event resolves half a microsecond. A kernel of 50 us or less may end before the host has
// launched the next one, so calls would measure the host. Then a graph of 20 calls is recorded and replayed, whose
// launches follow each other directly.
//
// cold(f) writes a tensor larger than any cache before each sample. The first event follows that write, so the launch
// is hidden and the kernel alone is timed.
//
// Where there is no speed (simt, --quick) there is one sample; simt replays a graph of two, which shows that the work
// can be recorded.
class Stopwatch {
 public:
  explicit Stopwatch(Device device, double seconds = settings().seconds) : device_(device), seconds_(seconds) {}

  template <class F>
  Spread warm(F&& f) {
    f();
    const double once = std::min(sample(f, 1), slow() ? 1e9 : sample(f, 1));
    if (std::optional<Graph> graph = recorded(f, once)) {
      const auto replay = [&] { graph->replay(); };
      replay();
      const double short_one = sample(replay, 1) / copies_;
      if (slow() || short_one <= kShort) {
        Spread all = several(replay, short_one * copies_, copies_);
        all.copies = copies_;
        all.call = several(f, once, 1).median;
        return all;
      }
    }
    return several(f, once, 1);
  }
  template <class F>
  Spread cold(F&& f) {
    if (slow()) return several(f, 1, 1);
    if (!flush_.defined()) flush_ = empty({std::int64_t{64} << 20}, device_);  // 256 MiB
    return collect(
        [&] {
          fill_(flush_, 1);
          return sample(f, 1);
        },
        device_.is_cpu() ? 0.02 : 0.005, 20);
  }

 private:
  static constexpr double kShort = 50e-6;

  [[nodiscard]] bool slow() const { return no_speed(device_); }
  // Work of several launches takes longer when it is called, so the bound for a trial is generous.
  template <class F>
  std::optional<Graph> recorded(F& f, double once) {
    if (!device_.launches() || (device_.is_cuda() && once > 10 * kShort)) return {};
    try {
      return Graph(Stream::current(device_), [&] {
        for (int i = 0; i < copies_; ++i) f();
      });
    } catch (const Error&) {  // work that cannot be recorded is called, and the row says so
      return {};
    }
  }
  // The time of work that holds `parts` equal pieces and is expected to take `expected` seconds.
  template <class F>
  Spread several(F&& f, double expected, int parts) {
    if (slow()) {
      const double once = sample(f, 1) / parts;
      return {.median = once, .low = once, .high = once};
    }
    const int calls = static_cast<int>(std::clamp(50e-6 / std::max(expected, 1e-9), 1.0, 1e5));
    return collect([&] { return sample(f, calls) / calls / parts; }, expected * calls, 200);
  }
  template <class F>
  double sample(F& f, int calls) {
    if (!device_.launches()) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) f();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    Event begin(device_, EnableTiming::yes), end(device_, EnableTiming::yes);
    const Stream stream = Stream::current(device_);
    begin.record(stream);
    for (int i = 0; i < calls; ++i) f();
    end.record(stream);
    end.synchronize();
    return end.milliseconds_since(begin) * 1e-3;
  }
  template <class Sample>
  Spread collect(Sample&& one, double expected, int most) {
    const int n = static_cast<int>(std::clamp(seconds_ / std::max(expected, 1e-9), 5.0, double(most)));
    std::vector<double> all;
    for (int i = 0; i < n; ++i) all.push_back(one());
    return spread_of(std::move(all));
  }

 public:
  static Spread spread_of(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return {.median = all[all.size() / 2], .low = all[all.size() / 10], .high = all[all.size() - 1 - all.size() / 10]};
  }

 private:
  Device device_;
  double seconds_;
  int copies_ = slow() ? 2 : 20;  // in a graph
  Tensor flush_;
};

// This machine's limits, measured before anything else: the yardstick of every other row.
struct Ceilings {
  double bytes_per_second = 0;         // a large copy, reads and writes counted: the faster of these two
  double memcpy_bytes_per_second = 0;  // by the runtime: cudaMemcpyAsync, on the CPU memcpy
  double own_bytes_per_second = 0;     // by our kernel
  double flops_f32 = 0, flops_16 = 0;  // a large product of matrices; 16: bf16, where it is faster
  double launch_seconds = 0;           // ops of one element in a row: the host's time for each

  [[nodiscard]] double least_seconds(double bytes, double flops, DType dtype) const {
    return std::max(bytes / bytes_per_second, flops / (dtype == DType::f32 ? flops_f32 : flops_16));
  }
};
// The copies of n f32 numbers. Our kernel's copy alone would hide that kernel's losses from every row. The numbers are
// random, because constant memory may be compressed in transfer and takes less power.
inline Ceilings measure_copies(Stopwatch& watch, std::int64_t n, Device device) {
  Ceilings c;
  Generator gen(1);
  const Tensor from = rand({n}, gen, device);
  const double bytes = 8.0 * static_cast<double>(n);
  // A clone reuses the memory of the freed previous one; warm()'s first call takes it from the system.
  c.memcpy_bytes_per_second = bytes / watch.warm([&] { (void)from.clone(); }).median;
  Tensor to = empty({n}, device);
  c.own_bytes_per_second = bytes / watch.warm([&] { copy_(to, from); }).median;
  c.bytes_per_second = std::max(c.memcpy_bytes_per_second, c.own_bytes_per_second);
  return c;
}
inline Ceilings measure_ceilings(Device device) {
  const bool gpu = device.is_cuda(), slow = no_speed(device);
  Stopwatch watch(device, 5 * settings().seconds);
  Ceilings c = measure_copies(watch, std::int64_t{1} << (slow ? 10 : gpu ? 28 : 25), device);
  const auto product = [&](std::int64_t size, DType dtype) {
    Generator gen(1);
    const Tensor a = randn({size, size}, gen, device, dtype), b = randn({size, size}, gen, device, dtype);
    const double flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    return flops / watch.warm([&] { (void)matmul(a, b); }).median;
  };
  c.flops_f32 = product(slow ? 16 : gpu ? 4096 : 1024, DType::f32);
  c.flops_16 = gpu ? product(8192, DType::bf16) : c.flops_f32;
  Generator gen(1);
  const Tensor one = rand({1}, gen, device);
  const int launches = slow ? 10 : 1000;
  (void)add(one, one);  // loads the kernel, and takes the memory of later ones
  synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < launches; ++i) (void)add(one, one);
  c.launch_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / launches;
  synchronize(device);
  return c;
}

// ---- Into a report

inline void tell(const Ceilings& c) {
  benchmark::AddCustomContext("levin_copy_GB/s", std::to_string(c.bytes_per_second * 1e-9));
  benchmark::AddCustomContext("levin_memcpy_GB/s", std::to_string(c.memcpy_bytes_per_second * 1e-9));
  benchmark::AddCustomContext("levin_own_copy_GB/s", std::to_string(c.own_bytes_per_second * 1e-9));
  benchmark::AddCustomContext("levin_matmul_f32_TFLOP/s", std::to_string(c.flops_f32 * 1e-12));
  benchmark::AddCustomContext("levin_matmul_16_TFLOP/s", std::to_string(c.flops_16 * 1e-12));
  benchmark::AddCustomContext("levin_launch_us", std::to_string(c.launch_seconds * 1e6));
}
// `least`: the seconds that the ceilings allow; 0 where the work was not counted.
inline void tell(benchmark::State& state, const Spread& spread, double least) {
  state.counters["low_us"] = spread.low * 1e6;
  state.counters["high_us"] = spread.high * 1e6;
  state.counters["copies"] = spread.copies;
  if (spread.copies > 0) state.counters["call_us"] = spread.call * 1e6;
  if (least > 0) state.counters["of_bound"] = least / spread.median;
}

}  // namespace levin::bench
