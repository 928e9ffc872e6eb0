// Kernels with a bug planted: the shim must catch each.
#include <doctest/doctest.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/device/block.cuh"
#include "tests/simt/launch.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels::gpu;
using levin::test::has;
using levin::test::launch;
using levin::test::message_of;
using levin::test::on_every_schedule;

namespace {

std::string here(int line) { return "tests/simt/planted_test.cpp:" + std::to_string(line); }

// ---- An overrun

constexpr int kOverrunLine = __LINE__ + 4;
static __global__ void overrun(float* y) {
  LEVIN_SHARED(float, row, 64);
  row[threadIdx.x] = 1;
  y[threadIdx.x] = row[threadIdx.x + 1];  // thread 63 reads row[64]
}

// ---- Barriers

// Sums 3 values a thread in turn; the barrier that protects scratch from the next sum is missing.
static __global__ void sums_without_last_barrier(const float* x, float* y) {
  LEVIN_SHARED(float, scratch, 8);
  for (int i = 0; i < 3; ++i) {
    const float sum = warp_sum(x[i * 256 + int(threadIdx.x)]);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0;
    for (int warp = 0; warp < 8; ++warp) total += scratch[warp];
    y[i * 256 + int(threadIdx.x)] = total;
  }
}

// The next three are right with kComplete and lack a barrier without.
//
// A tile at a time through shared memory; the barrier before the next tile's write is missing.
template <bool kComplete>
__global__ void tiles(const float* x, float* y, int count) {
  LEVIN_SHARED(float, tile, 256);
  const int n = int(blockDim.x), i = int(threadIdx.x);
  for (int k = 0; k < count; ++k) {
    tile[i] = x[k * n + i];
    __syncthreads();
    y[k * n + i] = tile[n - 1 - i];
    if constexpr (kComplete) __syncthreads();
  }
}

// The first warp combines the results of the others, and all read its result; the barrier before that is missing.
template <bool kComplete>
__global__ void first_warp_combines(const float* x, float* y, int rounds) {
  LEVIN_SHARED(float, parts, 8);
  LEVIN_SHARED(float, total, 1);
  const int n = int(blockDim.x), i = int(threadIdx.x);
  for (int k = 0; k < rounds; ++k) {
    const float sum = warp_sum(x[k * n + i]);
    if (i % 32 == 0) parts[i / 32] = sum;
    __syncthreads();
    if (i == 0) {
      float all = 0;
      for (int w = 0; w < n / 32; ++w) all += parts[w];
      *total = all;
    }
    if constexpr (kComplete) {
      __syncthreads();
    } else if (i < 32) {
      __syncwarp();
    }
    y[k * n + i] = *total;
  }
}

// Lanes of a warp exchange through shared memory without __syncwarp.
template <bool kComplete>
__global__ void lanes_exchange(const float* x, float* y) {
  LEVIN_SHARED(float, row, 32);
  for (int k = 0; k < 3; ++k) {
    row[threadIdx.x] = x[k * 32 + int(threadIdx.x)];
    if constexpr (kComplete) __syncwarp();
    y[k * 32 + int(threadIdx.x)] = row[threadIdx.x ^ 1];
    if constexpr (kComplete) __syncwarp();
  }
}

// Reads what the next thread writes, without any barrier.
static __global__ void neighbour_without_barrier(const float* x, float* y) {
  LEVIN_SHARED(float, row, 64);
  row[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = row[(threadIdx.x + 1) % 64];
}

// Uses a shuffle as a barrier: a shuffle synchronises a warp, not a block.
static __global__ void race_through_shuffle(const float* x, float* y) {
  LEVIN_SHARED(float, row, 128);
  row[threadIdx.x] = x[threadIdx.x];
  const float sum = warp_sum(x[threadIdx.x]);
  y[threadIdx.x] = row[(threadIdx.x + 32) % 128] + sum;
}

constexpr int kExitLine = __LINE__ + 3;
static __global__ void exit_before_barrier(int n) {
  if (int(threadIdx.x) >= n) return;
  __syncthreads();
}

constexpr int kDivergentLine = __LINE__ + 3;
static __global__ void divergent() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

// ---- Warps

constexpr int kShuffleLine = __LINE__ + 3;
static __global__ void full_mask(float* y) {
  if (threadIdx.x % 32 == 7 && y == nullptr) return;
  const float x = __shfl_sync(0xffffffffu, 1.0f, 0);
  if (y != nullptr) y[threadIdx.x] = x;
}
static __global__ void mask_without_itself() { __shfl_sync(0xfffffffeu, 1.0f, 1); }

constexpr int kTwoPlacesLine = __LINE__ + 3;
static __global__ void two_places() {
  if (threadIdx.x % 32 < 16) {
    __syncwarp();
  } else {
    __syncwarp();
  }
}
constexpr int kBarrierInWarpLine = __LINE__ + 3;
static __global__ void barrier_in_half_a_warp() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __ballot_sync(0xffffffffu, 1);
  }
}
static __global__ void two_masks() { __syncwarp(threadIdx.x % 32 < 16 ? 0xffffffffu : 0xffffff00u); }

void right_launch_works() {
  float y[64] = {};
  launch(full_mask, 1, 64, 0, &y[0]);
  for (const float v : y) CHECK(v == 1.0f);
}

template <class Kernel, class... A>
std::string internal_error(Kernel kernel, dim3 threads, A... args) {
  std::set<std::string> messages;
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    messages.insert(message_of<InternalError>([&] { launch(kernel, 2, threads, 0, args...); }));
    right_launch_works();
  });
  CHECK(messages.count("") == 0);
  return *messages.begin();
}

}  // namespace

TEST_CASE("simt: an overrun of a shared array is reported at its line") {
  float y[64];
  if (std::getenv("LEVIN_SIMT_PLANTED") != nullptr) {  // the child process below
    launch(overrun, 1, 64, 0, &y[0]);
    return;
  }
  if (!levin::test::kAddressSanitizer) return levin::test::skip("needs -Db_sanitize=address");
  char self[PATH_MAX] = {};
  REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const std::string command = "LEVIN_SIMT_PLANTED=1 '" + std::string(self) +
                              "' --filter 'simt: an overrun of a shared array is reported at its line' 2>&1";
  FILE* const child = popen(command.c_str(), "r");
  REQUIRE(child != nullptr);
  std::string output;
  char part[4096];
  while (const std::size_t n = fread(part, 1, sizeof part, child)) output.append(part, n);
  CHECK(pclose(child) != 0);
  INFO(output);
  CHECK(has(output, "heap-buffer-overflow"));
  CHECK(has(output, here(kOverrunLine)));
  CHECK(has(output, "0 bytes to the right of 256-byte region"));
}

TEST_CASE("simt: a missing barrier gives a wrong result in at least one schedule") {
  std::vector<float> x(768), right(768);
  for (int i = 0; i < 768; ++i) x[std::size_t(i)] = float(i % 256 + 1) * float(i / 256 + 1);
  for (int i = 0; i < 768; ++i) right[std::size_t(i)] = 256 * 257 / 2 * float(i / 256 + 1);
  int wrong = 0;
  const levin::test::KeepSchedule keep;
  for (const simt::Schedule schedule : simt::kSchedules) {
    simt::set_schedule(schedule);
    std::vector<float> y(768);
    launch(sums_without_last_barrier, 1, 256, 0, static_cast<const float*>(x.data()), y.data());
    if (y != right) ++wrong;
    if (schedule == simt::Schedule::greedy_warp) CHECK(y != right);
  }
  CHECK(wrong >= 1);
}

TEST_CASE("simt: the usual forgotten barriers are found by the four schedules, in blocks of two warps as well") {
  const levin::test::KeepSchedule keep;
  std::vector<float> x(4 * 256);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i * i % 1009);
  const auto wrong = [&](auto kernel, int threads, const std::vector<float>& right, auto... args) {
    int count = 0;
    for (const simt::Schedule schedule : simt::kSchedules) {
      simt::set_schedule(schedule);
      std::vector<float> y(right.size());
      launch(kernel, 1, unsigned(threads), 0, static_cast<const float*>(x.data()), y.data(), args...);
      count += y != right;
    }
    return count;
  };
  for (const int n : {64, 96, 256}) {
    INFO(n, " threads");
    std::vector<float> mirrored(std::size_t(4 * n)), sums(std::size_t(4 * n));
    for (int k = 0; k < 4; ++k) {
      float sum = 0;
      for (int i = 0; i < n; ++i) sum += x[std::size_t(k * n + i)];
      for (int i = 0; i < n; ++i) {
        mirrored[std::size_t(k * n + i)] = x[std::size_t(k * n + n - 1 - i)];
        sums[std::size_t(k * n + i)] = sum;
      }
    }
    CHECK(wrong(tiles<true>, n, mirrored, 4) == 0);
    CHECK(wrong(tiles<false>, n, mirrored, 4) > 0);
    CHECK(wrong(first_warp_combines<true>, n, sums, 4) == 0);
    CHECK(wrong(first_warp_combines<false>, n, sums, 4) > 0);
  }
  std::vector<float> swapped(96);
  for (std::size_t i = 0; i < 96; ++i) swapped[i] = x[i ^ 1];
  CHECK(wrong(lanes_exchange<true>, 32, swapped) == 0);
  CHECK(wrong(lanes_exchange<false>, 32, swapped) > 0);
}

TEST_CASE("simt: shared memory read before it is written is NaN") {
  std::vector<float> x(64, 1.0f);
  int nans = 0;
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    std::vector<float> y(64);
    launch(neighbour_without_barrier, 1, 64, 0, static_cast<const float*>(x.data()), y.data());
    for (const float v : y) nans += std::isnan(v);
  });
  CHECK(nans > 0);
}

TEST_CASE("simt: a race through a shuffle gives a wrong result") {
  std::vector<float> x(128, 1.0f);
  const levin::test::KeepSchedule keep;
  int wrong = 0;
  for (const simt::Schedule schedule : simt::kSchedules) {
    simt::set_schedule(schedule);
    std::vector<float> y(128);
    launch(race_through_shuffle, 1, 128, 0, static_cast<const float*>(x.data()), y.data());
    wrong += y != std::vector<float>(128, 33.0f);
  }
  CHECK(wrong >= 1);
}

TEST_CASE("simt: threads that exit before a barrier are counted, and who waits is told") {
  const std::string message = internal_error(exit_before_barrier, 256, 100);
  CHECK(has(message, "simt: test: block ("));
  CHECK(has(message, "156 threads have exited while 100 wait in a barrier"));
  CHECK(has(message, "thread 0 in __syncthreads, " + here(kExitLine)));
}

TEST_CASE("simt: barriers at two places are reported with both") {
  const std::string message = internal_error(divergent, 64);
  CHECK(has(message, "divergent barriers"));
  CHECK(has(message, "40 threads (thread 0 first) wait in __syncthreads, " + here(kDivergentLine)));
  CHECK(has(message, "24 threads (thread 40 first) wait in __syncthreads, " + here(kDivergentLine + 2)));
}

TEST_CASE("simt: a mask may name only lanes that are there") {
  float y[48];
  const std::string absent = internal_error(full_mask, 48, &y[0]);
  CHECK(has(absent, "__shfl_sync with mask 0xffffffff names lanes 16-31, which are not in the block"));
  CHECK(has(absent, here(kShuffleLine)));
  const std::string exited = internal_error(full_mask, 64, static_cast<float*>(nullptr));
  CHECK((has(exited, "names lanes 7, which have exited") || has(exited, "but lanes 7 have exited")));
  CHECK(has(exited, here(kShuffleLine)));
  const std::string itself = internal_error(mask_without_itself, 32);
  CHECK((has(itself, "called by lane 0, which the mask does not name") || has(itself, "but lanes 0 have exited")));
}

TEST_CASE("simt: a warp that deadlocks says which lanes wait where") {
  const std::string places = internal_error(two_places, 64);
  CHECK(has(places, "waits in __syncwarp, " + here(kTwoPlacesLine)));
  CHECK(has(places, "but lane 16 waits in __syncwarp, " + here(kTwoPlacesLine + 2)));
  const std::string barrier = internal_error(barrier_in_half_a_warp, 32);
  CHECK(has(barrier, "thread 16 waits in __ballot_sync, " + here(kBarrierInWarpLine + 2)));
  CHECK(has(barrier, "but lane 0 waits in __syncthreads, " + here(kBarrierInWarpLine)));
  const std::string masks = internal_error(two_masks, 32);
  CHECK(has(masks, "with mask 0xffffffff, but lane 16 waits in __syncwarp, "));
  CHECK(has(masks, ", with mask 0xffffff00"));
}

TEST_CASE("simt: an exception of a kernel ends the launch and leaves nothing behind") {
  struct Held {
    int* count;
    explicit Held(int* c) : count(c) { ++*count; }
    ~Held() { --*count; }
  };
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    int held = 0, after = 0;
    const auto throwing = [&] {
      const Held hold(&held);
      if (blockIdx.x == 1 && threadIdx.x == 5) throw std::runtime_error("planted");
      __syncthreads();
      if (blockIdx.x == 1) ++after;
    };
    CHECK(message_of<std::runtime_error>([&] { simt::run_grid(3, 64, 0, throwing, "throwing"); }) == "planted");
    CHECK(held == 0);
    CHECK(after == 0);
    right_launch_works();
  });
}

TEST_CASE("simt: what CUDA refuses is a CudaError, and a launch from a kernel an InternalError") {
  const auto nothing = [] {};
  const auto refused = [&](dim3 blocks, dim3 threads, unsigned shared) {
    return message_of<CudaError>([&] { simt::run_grid(blocks, threads, shared, nothing, "nothing"); });
  };
  CHECK(refused(1, 1024, 227 * 1024) == "");
  CHECK(
      refused(1, 1025, 0) ==
      "nothing: invalid configuration argument (cudaErrorInvalidConfiguration): threads.x is 1025, expected 1 to 1024");
  CHECK(has(refused(1, dim3(32, 33), 0), "1056 threads a block, at most 1024"));
  CHECK(has(refused(0, 32, 0), "blocks.x is 0"));
  CHECK(has(refused(dim3(1, 65536), 32, 0), "blocks.y is 65536"));
  CHECK(has(refused(dim3(1, 1, 65536), 32, 0), "blocks.z is 65536"));
  CHECK(has(refused(1, dim3(1, 1, 65), 0), "threads.z is 65"));
  CHECK(has(refused(1, 32, 227 * 1024 + 1), "cudaErrorInvalidValue"));
  const auto nested = [&] { simt::run_grid(1, 1, 0, nothing, "inner"); };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 1, 0, nested, "outer"); }),
            "simt: inner: launched from within a kernel"));
  CHECK(has(message_of<InternalError>([] { __syncthreads(); }), "__syncthreads: called outside of a kernel"));
  const auto large = [] {
    LEVIN_SHARED(double, row, 6145);
    row[0] = 0;
  };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 1, 0, large, "large"); }), "49160 bytes, at most 49152"));
  const auto both = [] {
    LEVIN_SHARED(double, row, 128);
    LEVIN_SHARED_DYNAMIC(double, more);
    row[0] = more[0] = 0;
  };
  CHECK(message_of<InternalError>([&] { simt::run_grid(1, 1, 226 * 1024, both, "both"); }) == "");
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 1, 227 * 1024 - 512, both, "both"); }),
            "1024 bytes beside 231936 dynamic ones, at most 232448 together"));
  const auto dynamic = [] {
    LEVIN_SHARED_DYNAMIC(double, row);
    row[0] = 0;
  };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 1, 0, dynamic, "dynamic"); }), "set Grid::shared"));
  const auto trapped = [] {
    if (threadIdx.x == 3) __trap();
  };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 4, 0, trapped, "t"); }), "thread 3: __trap"));
  right_launch_works();
}
