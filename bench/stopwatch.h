// How long work takes on a device: between events where kernels are launched, by the clock on the CPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "levin/ops.h"
#include "levin/stream.h"

namespace levin::bench {

struct Spread {
  double median = 0, low = 0, high = 0;  // seconds; four fifths of the samples lie between low and high
};

// Note [Measuring]
// warm(f): f again and again on the same memory, so what fits a cache stays there. A sample is as many calls as take 50 us,
// because an event resolves half a microsecond. cold(f): before each sample a tensor larger than any cache is written; the
// first event stands behind that write, so the launch is hidden and the kernel alone is timed. simt has no speed: one sample.
class Stopwatch {
 public:
  explicit Stopwatch(Device device, double seconds = 0.1) : device_(device), seconds_(seconds) {}

  template <class F>
  Spread warm(F&& f) {
    f();
    const double once = sample(f, 1);
    if (slow()) return {once, once, once};
    const int calls = static_cast<int>(std::clamp(50e-6 / std::max(once, 1e-9), 1.0, 1e5));
    return collect([&] { return sample(f, calls) / calls; }, once * calls, 200);
  }
  template <class F>
  Spread cold(F&& f) {
    if (slow()) return warm(f);
    if (!flush_.defined()) flush_ = empty({std::int64_t{64} << 20}, device_);  // 256 MiB
    return collect(
        [&] {
          fill_(flush_, 1);
          return sample(f, 1);
        },
        device_.is_cpu() ? 0.02 : 0.005, 20);
  }

 private:
  [[nodiscard]] bool slow() const { return device_.launches() && !device_.is_cuda(); }
  template <class F>
  double sample(F& f, int calls) {
    if (!device_.launches()) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) f();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    Event begin(device_), end(device_);
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
    std::sort(all.begin(), all.end());
    return {all[all.size() / 2], all[all.size() / 10], all[all.size() - 1 - all.size() / 10]};
  }

  Device device_;
  double seconds_;
  Tensor flush_;
};

// What this machine reaches, measured before anything else: the yardstick of every other row.
struct Ceilings {
  double bytes_per_second = 0;         // a large copy, reads and writes counted
  double flops_f32 = 0, flops_16 = 0;  // a large product of matrices; 16: bf16, where it is faster
  double launch_seconds = 0;           // an op of one element, one after the other: what the host needs
};
inline Ceilings measure_ceilings(Device device) {
  const bool gpu = device.is_cuda(), simt = device.launches() && !gpu;
  Stopwatch watch(device, 0.5);
  Ceilings c;
  const std::int64_t n = std::int64_t{1} << (simt ? 10 : gpu ? 28 : 25);
  const Tensor from = ones({n}, device);
  Tensor to = empty({n}, device);
  c.bytes_per_second = 8.0 * static_cast<double>(n) / watch.warm([&] { copy_(to, from); }).median;
  const auto product = [&](std::int64_t size, DType dtype) {
    Generator gen(1);
    const Tensor a = randn({size, size}, gen, device, dtype), b = randn({size, size}, gen, device, dtype);
    const double flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    return flops / watch.warm([&] { (void)matmul(a, b); }).median;
  };
  c.flops_f32 = product(simt ? 16 : gpu ? 4096 : 1024, DType::f32);
  c.flops_16 = gpu ? product(8192, DType::bf16) : c.flops_f32;
  const Tensor one = ones({1}, device);
  const int launches = simt ? 10 : 1000;
  synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < launches; ++i) (void)add(one, one);
  c.launch_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / launches;
  synchronize(device);
  return c;
}

}  // namespace levin::bench
