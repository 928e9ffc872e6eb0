// Launches that begin before the work ahead of them: right kernels, kernels with a bug planted, and what a stream does
// with such launches.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/executor/gpu.h"
#include "kernels/simt/overlap.h"
#include "tests/simt/cluster.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::gpu;
using levin::test::has;
using levin::test::in_every_order;
using levin::test::launch;
using levin::test::message_of;

namespace {

enum class Bug : std::uint8_t { none, reads_before_wait, writes_before_wait, no_wait, one_block_skips_wait };

constexpr int kThreads = 64;

// y[i] += x[i], then *went counts the blocks.
__global__ void add(const int* x, int* y, int* went) {
  dependents_may_start();
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  y[i] += x[i];
  if (threadIdx.x == 0) atomicAdd(went, 1);
}

// z[i] = 10 y[i] + i; before[block] is the number of blocks of `add` that had gone when the block began.
__global__ void scale(int* y, int* z, const int* went, int* before, Bug bug) {
  LEVIN_SHARED(int, own, kThreads);
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  own[threadIdx.x] = i;
  if (threadIdx.x == 0) before[blockIdx.x] = *went;
  __syncthreads();
  int seen = y[i];
  if (bug == Bug::writes_before_wait) y[i] = 0;
  if (bug == Bug::one_block_skips_wait && blockIdx.x == 1) return;
  if (bug != Bug::no_wait && threadIdx.x % 32 == 0) wait_for_prerequisites();
  __syncthreads();
  if (bug != Bug::reads_before_wait) seen = y[i];
  z[i] = 10 * seen + own[kThreads - 1 - threadIdx.x] + 2 * int(threadIdx.x) - (kThreads - 1);
}

struct Pair {
  std::vector<int> x, y, z, before;
  int went = 0;
  explicit Pair(unsigned blocks) : x(blocks * kThreads), y(x.size()), z(x.size(), -1), before(blocks, -1) {
    std::iota(x.begin(), x.end(), 1);
    std::fill(y.begin(), y.end(), 1000);
  }
  void run(Bug bug, unsigned cluster = 1) {
    const unsigned blocks = unsigned(before.size());
    simt::OverlappingGrid second(
        {.blocks = blocks, .threads = kThreads, .cluster = cluster, .large_cluster = true, .follows = true},
        [=, this] { scale(y.data(), z.data(), &went, before.data(), bug); }, "second");
    second.begin();
    launch(add, blocks, kThreads, 0, static_cast<const int*>(x.data()), y.data(), &went);
    second.finish();
  }
  [[nodiscard]] int wrong(int of_y = 1001) const {
    int count = 0;
    for (int i = 0; i < int(z.size()); ++i) count += z[std::size_t(i)] != 10 * (of_y + i) + i;
    return count;
  }
};

// A cluster whose blocks exchange numbers on both sides of the wait.
__global__ void across_wait(const int* y, int* z) {
  LEVIN_SHARED_DYNAMIC(int, own);
  const int other = 1 - cluster_rank();
  if (threadIdx.x == 0) own[0] = 1 + int(blockIdx.x);
  cluster_sync();
  const int seen = remote(own, other).load();
  cluster_sync();
  wait_for_prerequisites();
  if (threadIdx.x == 0) own[0] = y[blockIdx.x];
  cluster_sync();
  if (threadIdx.x == 0) z[blockIdx.x] = 100 * seen + remote(own, other).load();
  cluster_sync();
}

struct Counted {
  int* left;
  explicit Counted(int* count) : left(count) { ++*left; }
  ~Counted() { --*left; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

__global__ void one_more(int* counter, int* seen) {
  dependents_may_start();
  wait_for_prerequisites();
  *seen = ++*counter;
}
__global__ void ranks(int* out) {
  wait_for_prerequisites();
  if (threadIdx.x == 0) out[blockIdx.x] = 10 * cluster_size() + cluster_rank();
}
__global__ void traps() {
  wait_for_prerequisites();
  __trap();
}

}  // namespace

TEST_CASE("simt: a launch that follows gives the same in every order, and 8 of its blocks begin before the one ahead") {
  for (const unsigned blocks : {1u, 3u, 20u}) {
    CAPTURE(blocks);
    in_every_order([&] {
      Pair pair(blocks);
      pair.run(Bug::none);
      CHECK(pair.wrong() == 0);
      int early = 0;
      for (const int went : pair.before) early += went == 0;
      CHECK(early == std::min(8, int(blocks)));
      CHECK(pair.went == int(blocks));
    });
  }
  for (const unsigned cluster : {3u, 8u, 16u}) {
    CAPTURE(cluster);
    in_every_order([&] {
      Pair pair(4 * cluster);
      pair.run(Bug::none, cluster);
      CHECK(pair.wrong() == 0);
      int early = 0;
      for (const int went : pair.before) early += went == 0;
      CHECK(early == (cluster == 3 ? 6 : int(cluster)));
    });
  }
}

TEST_CASE("simt: what a launch reads before wait_for_prerequisites is old, and blocks that end without it are errors") {
  for (const unsigned blocks : {2u, 20u}) {
    in_every_order([&] {
      Pair early(blocks);
      early.run(Bug::reads_before_wait);
      CHECK(early.wrong() == int(std::min(8u, blocks)) * kThreads);
      CHECK(early.wrong(1000) > 0);
      Pair writes(blocks);
      writes.run(Bug::writes_before_wait);
      CHECK(writes.wrong() > 0);
      for (const Bug bug : {Bug::no_wait, Bug::one_block_skips_wait}) {
        Pair pair(blocks);
        CHECK(has(message_of<InternalError>([&] { pair.run(bug); }),
                  "the block ends without wait_for_prerequisites, in a launch that may begin before the work ahead"));
        Pair alone(blocks);  // without work ahead of it
        CHECK(has(message_of<InternalError>([&] {
                    const auto body = [&] {
                      scale(alone.y.data(), alone.z.data(), &alone.went, alone.before.data(), bug);
                    };
                    simt::run_grid({.blocks = blocks, .threads = kThreads, .follows = true}, body, "alone");
                  }),
                  "the block ends without wait_for_prerequisites"));
      }
      Pair right(blocks);
      right.run(Bug::none);
      CHECK(right.wrong() == 0);
    });
  }
}

TEST_CASE("simt: the blocks of a cluster wait for prerequisites between two uses of each other's memory") {
  in_every_order([] {
    std::vector<int> y(6), z(6);
    simt::OverlappingGrid second(
        {.blocks = 6, .threads = 32, .shared_bytes = 16, .cluster = 2, .follows = true},
        [&] { across_wait(y.data(), z.data()); }, "second");
    second.begin();
    const auto first = [&] { y[blockIdx.x] = int(blockIdx.x) + 5; };
    simt::run_grid(6, 1, 0, first, "first");
    second.finish();
    CHECK(z == std::vector<int>{206, 105, 408, 307, 610, 509});
  });
}

TEST_CASE("simt: blocks that have begun and are not finished are unwound") {
  int left = 0;
  {
    simt::OverlappingGrid grid(
        {.blocks = 20, .threads = 4, .follows = true},
        [&] {
          const Counted counted(&left);
          wait_for_prerequisites();
        },
        "unfinished");
    grid.begin();
    CHECK(left == 8 * 4);
  }
  CHECK(left == 0);
  simt::OverlappingGrid refused(
      {.blocks = 2, .threads = 4, .follows = true}, [] { __trap(); }, "trap");
  CHECK(has(message_of<InternalError>([&] { refused.begin(); }), "simt: trap: block (0, 0, 0): thread 0: __trap"));
  CHECK(has(message_of<CudaError>([] {
              simt::OverlappingGrid(
                  {.blocks = 3, .cluster = 2}, [] {}, "odd");
            }),
            "cudaErrorInvalidClusterSize"));
}

TEST_CASE("simt: a launch that one thread has begun is finished by no other") {
  int went = 0;
  simt::OverlappingGrid grid(
      {.blocks = 2, .threads = 4, .follows = true},
      [&] {
        wait_for_prerequisites();
        if (threadIdx.x == 0) ++went;
      },
      "begun here");
  grid.begin();
  std::string message;
  std::thread([&] { message = message_of<InternalError>([&] { grid.finish(); }); }).join();
  CHECK(has(message, "simt: begun here: begun by one thread, before the work ahead of it, and finished by another"));
  grid.finish();
  CHECK(went == 2);
}

TEST_CASE("simt: a stream runs launches of a chain each before the one ahead, and all when the host waits") {
  const Stream streams[] = {levin::detail::stream_of(Device::simt(), 0), levin::detail::stream_of(Device::simt(), 1)};
  for (const Stream& stream : streams) {
    const Gpu gpu{stream};
    in_every_order([&] {
      int counter = 0, seen[4] = {};
      // The blocks of the third begin while the second has not counted.
      Pair pair(3);
      const Grid grid{.blocks = 3, .threads = kThreads};
      const auto with = [&](Overlap overlap) {
        Grid g = grid;
        g.overlap = overlap;
        return g;
      };
      gpu.launch(add, with(Overlap::leads), pair.x.data(), pair.y.data(), &pair.went);
      CHECK(pair.went == 0);
      gpu.launch(scale, with(Overlap::follows), pair.y.data(), pair.z.data(), &pair.went, pair.before.data(),
                 Bug::none);
      CHECK(pair.z[0] == -1);
      gpu.launch(one_more, Grid{.overlap = Overlap::follows}, &counter, seen);
      gpu.launch(one_more, Grid{.overlap = Overlap::follows}, &counter, seen + 1);
      CHECK(seen[1] == 0);
      levin::detail::runtime::synchronize(stream);
      CHECK(pair.wrong() == 0);
      CHECK(pair.before == std::vector<int>{0, 0, 0});
      CHECK((seen[0] == 1 && seen[1] == 2));
      // Another launch of the stream comes after all of them.
      gpu.launch(one_more, Grid{.overlap = Overlap::leads}, &counter, seen + 2);
      gpu.launch(one_more, Grid{}, &counter, seen + 3);
      levin::detail::runtime::synchronize(stream);
      CHECK((seen[2] == 3 && seen[3] == 4));
    });
  }
}

TEST_CASE("simt: a recorded chain of launches overlaps at each replay") {
  const Stream stream = levin::detail::stream_of(Device::simt(), 0);
  const Gpu gpu{stream};
  Pair pair(2);
  levin::detail::runtime::begin_capture(stream);
  gpu.launch(add, Grid{.blocks = 2, .threads = kThreads, .overlap = Overlap::leads}, pair.x.data(), pair.y.data(),
             &pair.went);
  gpu.launch(scale, Grid{.blocks = 2, .threads = kThreads, .overlap = Overlap::follows}, pair.y.data(), pair.z.data(),
             &pair.went, pair.before.data(), Bug::none);
  const auto recorded = levin::detail::runtime::end_capture(stream);
  CHECK(recorded.nodes == 2);
  CHECK(pair.went == 0);
  for (int time = 0; time < 3; ++time) {
    levin::detail::runtime::replay(recorded.graph, stream);
    levin::detail::runtime::synchronize(stream);
    CHECK(pair.before == std::vector<int>{2 * time, 2 * time});
    for (std::size_t i = 0; i < pair.y.size(); ++i) REQUIRE(pair.y[i] == 1000 + (time + 1) * pair.x[i]);
    CHECK(pair.z[5] == 10 * pair.y[5] + 5);
  }
  levin::detail::runtime::free_graph(stream.device(), recorded.graph);
}

TEST_CASE("simt: work put off runs before memory is released, and its error comes from the call that runs it") {
  const Stream stream = levin::detail::stream_of(Device::simt(), 0);
  const Gpu gpu{stream};
  const auto synchronized = [&] { levin::detail::runtime::synchronize(stream); };
  auto* const memory = levin::detail::runtime::allocate(stream.device(), 64);
  int* const counter = reinterpret_cast<int*>(memory);
  *counter = 6;
  int seen = 0;
  gpu.launch(one_more, Grid{.overlap = Overlap::leads}, counter, &seen);
  CHECK(seen == 0);
  levin::detail::runtime::release(stream.device(), memory, 64);
  CHECK(seen == 7);

  gpu.launch(traps, Grid{.overlap = Overlap::leads});
  CHECK(has(message_of<InternalError>(synchronized), "__trap"));
  synchronized();
  gpu.launch(traps, Grid{.overlap = Overlap::leads});
  auto* const other = levin::detail::runtime::allocate(stream.device(), 64);
  levin::detail::runtime::release(stream.device(), other, 64);
  int count = 0;
  CHECK(has(message_of<InternalError>([&] { gpu.launch(one_more, Grid{}, &count, &seen); }), "__trap"));
  gpu.launch(one_more, Grid{}, &count, &seen);
  CHECK(count == 1);
}

TEST_CASE("simt: a Grid asks for clusters, in launches that overlap and in others") {
  const Stream stream = levin::detail::stream_of(Device::simt(), 0);
  const Gpu gpu{stream};
  for (const Overlap overlap : {Overlap::none, Overlap::leads, Overlap::follows}) {
    std::vector<int> out(6);
    gpu.launch(ranks, Grid{.blocks = 6, .threads = 32, .cluster = 3, .overlap = overlap}, out.data());
    levin::detail::runtime::synchronize(stream);
    CHECK(out == std::vector<int>{30, 31, 32, 30, 31, 32});
  }
  std::vector<int> out(16);
  Grid large{.blocks = 16, .cluster = 16};
  CHECK(has(message_of<CudaError>([&] { gpu.launch(ranks, large, out.data()); }),
            "(cudaErrorInvalidClusterSize): 16 blocks a cluster, at most 8"));
  large.large_cluster = true;
  gpu.launch(ranks, large, out.data());
  CHECK(out[15] == 175);
}
