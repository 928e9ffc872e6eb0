// What the kernels between the passes over the image compute of a channel: statistics of a batch from those of its
// parts, and the variance for running statistics from 1 / sqrt(var + eps) alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/norm/channel_norm_device.cuh"
#include "tests/device.h"
#include "tests/simt/launch.h"

using namespace levin;
using namespace levin::kernels;

namespace {

Gpu on_device() { return Gpu{Stream::current(*test::launching_device())}; }

template <class A>
std::vector<A> unbiased_of(const std::vector<A>& rstd, double eps, std::int64_t count) {
  std::vector<A> out(rstd.size(), A(99));
  gpu::unbiased_variance<A>(on_device(), nullptr, rstd.data(), eps, count, out.data(), {}, std::int64_t(rstd.size()));
  return out;
}

// Each thread's steps, and how often each step of a team was taken.
__global__ void count_steps(gpu::LaneTeams teams, std::int64_t steps, int* of_thread, int* of_step) {
  int& mine = of_thread[blockIdx.x * blockDim.x + threadIdx.x];
  teams.each(steps, [&](std::int64_t i) {
    ++mine;
    ++of_step[teams.team() * steps + i];
  });
}

// A plan of channels in parts of one number each, and sums of parts that a double holds only if small ones meet before
// the large one does: 2^53 + 1 is 2^53. Lane 0 has the large one, and loses what it adds by itself.
constexpr std::int64_t kParts = 65;
constexpr double kLarge = 0x1p53, kAddedByLanes = kLarge + 62;
gpu::ChannelPlan plan_of_parts(std::int64_t channels) {
  return {.n = kParts, .c = channels, .s = 1, .items = kParts, .part = 1, .parts = kParts};
}
std::vector<double> large_and_ones(std::int64_t channels, double other) {
  std::vector<double> parts;
  for (std::int64_t part = 0; part < kParts; ++part) {
    for (std::int64_t c = 0; c < channels; ++c) {
      parts.push_back(other);
      parts.push_back(part == 0 ? kLarge : 1);
    }
  }
  return parts;
}

}  // namespace

TEST_CASE("simt: a team's lanes take each step of a channel once and share the steps of many") {
  for (const std::int64_t steps : {0, 1, 2, 3, 5, 31, 32, 33, 352, 1000}) {
    for (const std::int64_t count : {0, 1, 3, 17, 200}) {
      CAPTURE(steps);
      CAPTURE(count);
      const gpu::LaneTeams teams = gpu::lane_teams(count, steps);
      const Grid grid = gpu::a_team_each(teams);
      std::vector<int> of_thread(grid.blocks.x * grid.threads.x), of_step(static_cast<std::size_t>(count * steps));
      on_device().launch(count_steps, grid, teams, steps, of_thread.data(), of_step.data());
      CHECK(std::count(of_step.begin(), of_step.end(), 1) == count * steps);
      CHECK(std::count_if(of_thread.begin(), of_thread.end(), [&](int n) { return n > (steps + 31) / 32; }) == 0);
      CHECK(teams.lanes() < 2 * std::max<std::int64_t>(steps, 1));  // few parts, few lanes: a block has more channels
    }
  }
}

TEST_CASE("simt: statistics and gradients of a channel add its parts pair by pair and not one behind the other") {
  constexpr std::int64_t kChannels = 6;  // more than a block
  const auto n = static_cast<std::size_t>(kChannels);
  const gpu::ChannelPlan plan = plan_of_parts(kChannels);
  const std::vector<double> ones(n, 1), zeros(n, 0);
  std::vector<gpu::Coefficients<double>> table(n);
  SUBCASE("of the batch") {
    const std::vector<double> parts = large_and_ones(kChannels, 3);  // equal means: their squares are added
    std::vector<double> mean(n), rstd(n), unbiased(n);
    const gpu::NormFinish<double> finish{.w = nullptr,
                                         .b = nullptr,
                                         .eps = 0,
                                         .mean = mean.data(),
                                         .rstd = rstd.data(),
                                         .unbiased = unbiased.data(),
                                         .running = {},
                                         .table = table.data(),
                                         .per = 1,
                                         .c = kChannels,
                                         .v = 1,
                                         .teams = gpu::lane_teams(kChannels, kParts),
                                         .ticket = nullptr};
    gpu::launch_finish(on_device(), finish, parts.data(), plan);
    for (const double m : mean) CHECK(m == 3);
    for (const double v : unbiased) CHECK(v == kAddedByLanes / (kParts - 1));
  }
  SUBCASE("of batch norm's gradients") {
    const std::vector<double> parts = large_and_ones(kChannels, 2);
    std::vector<double> gw(n), gb(n);
    const gpu::GradientFinish<double> finish{.w = nullptr,
                                             .mean = zeros.data(),
                                             .rstd = ones.data(),
                                             .gw = gw.data(),
                                             .gb = gb.data(),
                                             .table = table.data(),
                                             .v = 1,
                                             .teams = gpu::lane_teams(kChannels, kParts),
                                             .ticket = nullptr};
    gpu::launch_finish(on_device(), finish, parts.data(), plan);
    for (const double g : gb) CHECK(g == 2 * kParts);
    for (const double g : gw) CHECK(g == kAddedByLanes);
    for (const auto& k : table) CHECK(k.q == -kAddedByLanes / kParts);
  }
  SUBCASE("of group norm's gradients, over samples and parts") {
    const std::vector<double> parts = large_and_ones(kChannels, 2);
    std::vector<double> gw(n), gb(n);
    const gpu::LaneTeams teams = gpu::lane_teams(kChannels, kParts);
    // 13 samples in 5 parts: the plan's channels are those of all samples.
    const gpu::ChannelPlan of_samples{.n = 1, .c = 13 * kChannels, .s = 5, .items = 5, .part = 1, .parts = 5};
    on_device().launch(gpu::group_norm_gradients<double>, gpu::a_team_each(teams), parts.data(), of_samples, gw.data(),
                       gb.data(), teams, std::int64_t{13}, kChannels);
    for (const double g : gb) CHECK(g == 2 * kParts);
    for (const double g : gw) CHECK(g == kAddedByLanes);
  }
  SUBCASE("of group norm's coefficients, over channels and parts") {
    const std::vector<double> parts = large_and_ones(1, 2);
    const std::vector<double> weight(13, 1);
    table.resize(13);
    const gpu::LaneTeams teams = gpu::lane_teams(1, kParts);
    const gpu::ChannelPlan of_group{.n = 1, .c = 13, .s = 5, .items = 5, .part = 1, .parts = 5};
    on_device().launch(gpu::group_norm_coefficients<double>, gpu::a_team_each(teams), parts.data(), of_group,
                       weight.data(), zeros.data(), ones.data(), table.data(), teams, Divider(13), std::int64_t{13},
                       kParts);
    for (const auto& k : table) {
      CHECK(k.q == -kAddedByLanes / kParts);
      CHECK(k.r == -2);
    }
  }
}

TEST_CASE(
    "simt: batch statistics of three channels of a large image keep their digits where the mean is far above the "
    "spread") {
  constexpr std::int64_t kSamples = 2, kChannels = 3, kPixels = 512 * 512;
  const double eps = 1e-5;
  std::vector<float> x(kSamples * kChannels * kPixels);
  std::uint32_t seed = 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    const double channel = double(i / kPixels % kChannels);
    x[i] = float(1000 * (channel + 1) + (channel + 1) * (double(seed >> 8) * 0x1p-24 - 0.5));
  }
  const gpu::ChannelPlan plan = gpu::plan_channels<float>(kSamples, kChannels, kPixels);
  REQUIRE(plan.parts > 32);
  std::vector<double> parts(static_cast<std::size_t>(plan.scratch()));
  std::vector<float> y(x.size()), mean(kChannels), rstd(kChannels), unbiased(kChannels);
  std::vector<gpu::Coefficients<float>> table(kChannels);
  gpu::batch_norm_train<float>(on_device(), x.data(), nullptr, nullptr, y.data(), mean.data(), rstd.data(),
                               unbiased.data(), {}, {}, plan, eps, parts.data(), table.data());
  const double count = double(kSamples * kPixels);
  for (std::int64_t c = 0; c < kChannels; ++c) {
    CAPTURE(c);
    const auto over = [&](auto&& f) {
      double sum = 0;
      for (std::int64_t n = 0; n < kSamples; ++n) {
        for (std::int64_t p = 0; p < kPixels; ++p)
          sum += f(double(x[static_cast<std::size_t>((n * kChannels + c) * kPixels + p)]));
      }
      return sum / count;
    };
    const double m = over([](double v) { return v; }), var = over([&](double v) { return (v - m) * (v - m); });
    const double spread = std::sqrt(var);
    const auto i = static_cast<std::size_t>(c);
    // A thread's sums of 16 numbers around its first, in f32: 16 roundings of at most twice the widest distance, 2
    // spreads.
    const double rounding = 0x1p-24;
    CHECK(std::abs(double(mean[i]) - m) <= rounding * m + 64 * rounding * spread);
    CHECK(std::abs(double(rstd[i]) * std::sqrt(var + eps) - 1) <= 64 * rounding);
    CHECK(std::abs(double(unbiased[i]) / (var * count / (count - 1)) - 1) <= 128 * rounding);
  }
}

TEST_CASE("simt: the unbiased variance of a batch comes from 1 / sqrt(var + eps)") {
  const double eps = 1e-5;
  const std::int64_t count = 10;
  std::vector<float> rstd;
  std::vector<double> var;
  for (int i = 0; i < 300; ++i) {  // more than a block
    var.push_back(std::exp2(double(i % 40) - 20));
    rstd.push_back(float(1 / std::sqrt(var.back() + double(float(eps)))));
  }
  const std::vector<float> got = unbiased_of(rstd, eps, count);
  for (std::size_t i = 0; i < var.size(); ++i) {
    CAPTURE(var[i]);
    // rstd is rounded once: twice that, of var + eps; and the result once.
    const double want = var[i] * 10 / 9, most = (2 * (var[i] + eps) * 10 / 9 + want) * 0x1p-24;
    CHECK(std::abs(double(got[i]) - want) <= 1.01 * most);
  }
}

TEST_CASE("simt: the unbiased variance of channels that are constant is 0 and never below, of NaN it is NaN") {
  std::vector<float> rstd;  // of var 0, rounded, and a last place to each side
  const float eps = 1e-5f, root = float(1 / std::sqrt(double(eps)));
  const float most = std::numeric_limits<float>::infinity();
  for (const float r : {root, std::nextafter(root, most), std::nextafter(root, 0.0f)}) rstd.push_back(r);
  for (const float v : unbiased_of(rstd, double(eps), 4)) {
    CHECK(v >= 0);
    CHECK(v <= eps * 0x1p-20f);
  }
  CHECK(unbiased_of<float>({std::nextafter(root, most)}, double(eps), 4)[0] == 0);
  CHECK(unbiased_of<float>({most}, 0, 4)[0] == 0);
  CHECK(std::isnan(unbiased_of<float>({std::nanf("")}, double(eps), 4)[0]));
}
