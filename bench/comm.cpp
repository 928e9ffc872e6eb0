// All-reduces between processes of this host, by the backend and the number of ranks.
//
//   all_reduce/BACKEND/N_ranks   one row a backend and number of ranks. us_of_B: the median time of an all-reduce of B
//                                bytes of f32, on rank 0, between barriers. alpha_us and beta_ns_of_KiB: the fit
//                                time = alpha + beta x bytes over these, in which each size counts by its relative
//                                error. busbw: 2 (N - 1) / N / beta, in GB/s. worst: the largest relative error of the
//                                fit. levin plan takes alpha_us and busbw.
//
// gloo:all is Gloo over the loopback interface. It needs liblevin_gloo.so; without it the row says so. More ranks than
// cores measure the scheduler.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/main.h"
#include "levin/comm/launch.h"
#include "levin/levin.h"
#include "tensor/text/number_text.h"

namespace levin::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSizes[] = {64, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 25 << 20};

struct Point {
  double bytes = 0, seconds = 0;
};

// In each rank. The result is rank 0's: "bytes seconds" of each size.
std::string sweep(const std::string& backend, bool quick) {
  const auto world = dist::init_process_group({.backend = backend});
  std::string out;
  for (const std::int64_t bytes : kSizes) {
    const Tensor t = zeros({bytes / 4}, Device::cpu());
    // About 30 MiB a size, within 5 and 300 rounds.
    const std::int64_t rounds = quick ? 2 : std::clamp<std::int64_t>((30 << 20) / bytes, 5, 300);
    std::vector<double> seconds;
    for (std::int64_t i = 0; i < rounds + 2; ++i) {
      world->barrier();
      const Clock::time_point begin = Clock::now();
      world->all_reduce(t).wait();
      if (i >= 2) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::sort(seconds.begin(), seconds.end());
    if (world->rank() == 0) out += text(bytes) + " " + levin::detail::general(seconds[seconds.size() / 2], 9) + "\n";
  }
  return out;
}

std::vector<Point> points_in(const std::string& lines) {
  std::vector<Point> out;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = lines.find('\n', at), blank = lines.find(' ', at);
    const std::optional<double> bytes = levin::detail::read_double(lines.substr(at, blank - at)),
                                seconds = levin::detail::read_double(lines.substr(blank + 1, end - blank - 1));
    if (!bytes || !seconds) fail<InternalError>("a rank sent `", lines, "`");
    out.push_back({.bytes = *bytes, .seconds = *seconds});
    at = end + 1;
  }
  return out;
}

struct Fit {
  double alpha = 0, beta = 0, worst = 0;
};
// The least squares of (alpha + beta x - y) / y.
Fit fit_of(const std::vector<Point>& points) {
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const Point& p : points) {
    const double weight = 1 / (p.seconds * p.seconds);
    w += weight;
    wx += weight * p.bytes;
    wxx += weight * p.bytes * p.bytes;
    wy += weight * p.seconds;
    wxy += weight * p.bytes * p.seconds;
  }
  Fit fit;
  fit.beta = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  fit.alpha = (wy - fit.beta * wx) / w;
  for (const Point& p : points) {
    fit.worst = std::max(fit.worst, std::abs(fit.alpha + fit.beta * p.bytes - p.seconds) / p.seconds);
  }
  return fit;
}

void all_reduce(benchmark::State& state, const std::string& backend, int ranks) {
  std::vector<Point> points;
  for (auto _ : state) {
    const bool quick = settings().quick;
    points = points_in(dist::spawn(ranks, [&](int) { return sweep(backend, quick); })[0]);
    state.SetIterationTime(points.back().seconds);
  }
  const Fit fit = fit_of(points);
  for (const Point& p : points) {
    state.counters["us_of_" + text(static_cast<std::int64_t>(p.bytes))] = p.seconds * 1e6;
  }
  state.counters["alpha_us"] = fit.alpha * 1e6;
  state.counters["beta_ns_of_KiB"] = fit.beta * 1e9 * 1024;
  state.counters["busbw"] = 2.0 * (ranks - 1) / ranks / fit.beta * 1e-9;
  state.counters["worst"] = fit.worst;
}

void prepare() {
  for (const char* backend : {"shm", "gloo:all"}) {
    for (const int ranks : {2, 4}) {
      add_row("all_reduce/" + std::string(backend) + "/" + text(ranks) + "_ranks",
              [=](auto& state) { all_reduce(state, backend, ranks); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace levin::bench

LEVIN_BENCHMARK_MAIN(levin::bench::prepare)
