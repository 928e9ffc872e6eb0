// Clusters: where blocks are, their barrier, each other's shared memory, copies into all of them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/simt/cluster.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::gpu;
using levin::test::Aligned;
using levin::test::ClusterBug;
using levin::test::has;
using levin::test::in_every_order;
using levin::test::launch;
using levin::test::map_of;
using levin::test::message_of;

namespace {

struct Place {
  int x, y, z, rank, size;
};
__global__ void places(Place* out) {
  LEVIN_SHARED(int, own, 1);
  const int block = int((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
  if (threadIdx.x == 0) *own = block;
  __syncthreads();
  cluster_sync();
  if (threadIdx.x == 39 && *own == block)
    out[block] = {int(blockIdx.x), int(blockIdx.y), int(blockIdx.z), cluster_rank(), cluster_size()};
}

// out[i] of block b: what the block of the next rank has, plus what that of the rank before has sent.
__global__ void neighbours(const int* in, int* out) {
  LEVIN_SHARED_DYNAMIC(int, own);
  int* const sent = own + 64;
  const int rank = cluster_rank(), size = cluster_size(), thread = int(threadIdx.x);
  for (int i = thread; i < 64; i += int(blockDim.x)) own[i] = in[int(blockIdx.x) * 64 + i];
  cluster_sync();
  for (int i = thread; i < 64; i += int(blockDim.x)) {
    const int next = remote(own + i, (rank + 1) % size).load();
    remote(sent + i, (rank + 1) % size).store(own[i]);
    out[int(blockIdx.x) * 64 + i] = next;
  }
  cluster_sync();
  for (int i = thread; i < 64; i += int(blockDim.x)) out[int(blockIdx.x) * 64 + i] += 1000 * sent[i];
}

// Values of 4, 8 and 16 bytes, each way.
__global__ void widths(double* out) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  Barrier* const full = reinterpret_cast<Barrier*>(bytes);
  double* const d = reinterpret_cast<double*>(bytes + 16);
  float4* const v = reinterpret_cast<float4*>(bytes + 64);
  const int rank = cluster_rank(), other = 1 - rank;
  if (threadIdx.x == 0) {
    full->init(1);
    fence_barrier_init();
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    full->arrive_expect(24);
    store_remote(d, other, 10.0 + rank, *full);
    store_remote(v, other, make_float4(1, 2, 3, float(rank)), *full);
    remote(d + 1, other).store(20.0 + rank);
    remote(v + 1, other).store(make_float4(5, 6, 7, float(rank)));
  }
  full->wait(0);
  cluster_sync();
  if (threadIdx.x == 0) {
    const double got[] = {d[0], d[1], v[0].w, v[1].w, remote(d, other).load(), remote(v + 1, other).load().w};
    for (int i = 0; i < 6; ++i) out[rank * 6 + i] = got[i];
  }
  cluster_sync();
}

// Threads that have ended do not count for the cluster's barrier.
__global__ void half_ends(int* out) {
  LEVIN_SHARED_DYNAMIC(int, own);
  if (threadIdx.x >= 32) return;
  if (threadIdx.x == 0) own[0] = cluster_rank() + 1;
  cluster_sync();
  if (threadIdx.x == 0) out[blockIdx.x] = remote(own, 1 - cluster_rank()).load();
  cluster_sync();
}

// A barrier of another block can be arrived at and not waited for.
template <class T>
concept CanWait = requires(T t) {
  t.wait(0);
};
template <class T>
concept CanArrive = requires(T t) {
  t.arrive();
};
static_assert(CanWait<Barrier> && !CanWait<Remote<Barrier>>);
static_assert(CanArrive<Remote<Barrier>> && !CanArrive<Remote<float>>);

__global__ void in_order_of_start(int* started, int* place) {
  if (threadIdx.x == 0) place[cluster_rank()] = (*started)++;
}

// The blocks of a cluster take turns, the last rank first: y = 3 y + rank.
__global__ void in_turn(int* counter, int* y) {
  LEVIN_SHARED_DYNAMIC(int, own);
  if (threadIdx.x == 0) {
    own[0] = 0;
    wait_turn(counter, cluster_size() - 1 - cluster_rank());
    *y = 3 * *y + cluster_rank();
    pass_turn(counter);
  }
}

}  // namespace

TEST_CASE("simt: the blocks of a cluster have the ranks of their places, and shared arrays of their own") {
  in_every_order([] {
    std::vector<Place> out(4 * 2 * 6);
    launch(places, {.blocks = dim3(4, 2, 6), .threads = 40, .cluster = dim3(2, 2, 3), .large_cluster = true},
           out.data());
    int wrong = 0;
    for (int b = 0; b < int(out.size()); ++b) {
      const Place& p = out[std::size_t(b)];
      const int rank = p.x % 2 + 2 * (p.y % 2) + 4 * (p.z % 3);
      wrong += p.x + 4 * p.y + 8 * p.z != b || p.rank != rank || p.size != 12;
    }
    CHECK(wrong == 0);
    launch(places, 3, 40, 0, out.data());
    for (std::size_t b = 0; b < 3; ++b) CHECK((out[b].rank == 0 && out[b].size == 1 && out[b].x == int(b)));
  });
}

TEST_CASE("simt: remote loads and stores between the blocks of a cluster give the same in every order") {
  for (const unsigned size : {1u, 2u, 5u, 16u}) {
    CAPTURE(size);
    std::vector<int> in(2 * size * 64), want(in.size());
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = int(i % 997);
    for (unsigned b = 0; b < 2 * size; ++b) {
      for (unsigned i = 0; i < 64; ++i) {
        const unsigned first = b / size * size, rank = b % size;
        const int next = in[(first + (rank + 1) % size) * 64 + i];
        want[b * 64 + i] = next + 1000 * in[(first + (rank + size - 1) % size) * 64 + i];
      }
    }
    in_every_order([&] {
      std::vector<int> out(in.size());
      launch(neighbours,
             {.blocks = 2 * size, .threads = 48, .shared_bytes = 512, .cluster = size, .large_cluster = true},
             static_cast<const int*>(in.data()), out.data());
      CHECK(out == want);
    });
  }
}

TEST_CASE("simt: values of 8 and 16 bytes pass between blocks, and threads that have ended hold up no cluster_sync") {
  in_every_order([] {
    std::vector<double> out(12);
    launch(widths, {.blocks = 2, .threads = 32, .shared_bytes = 128, .cluster = 2}, out.data());
    CHECK(out == std::vector<double>{11, 21, 1, 1, 10, 0, 10, 20, 0, 0, 11, 1});
    std::vector<int> seen(2);
    launch(half_ends, {.blocks = 2, .threads = 64, .shared_bytes = 16, .cluster = 2}, seen.data());
    CHECK(seen == std::vector<int>{2, 1});
  });
}

TEST_CASE("simt: the moments of rows whose parts lie in the blocks of a cluster have the same bits in every order") {
  constexpr int kRows = 5, kColumns = 240;
  std::vector<float> x(kRows * kColumns);
  std::uint32_t state = 7;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = float(std::int32_t(state)) * 0x1p-31f;
  }
  for (const unsigned size : {1u, 2u, 4u, 8u, 16u}) {
    CAPTURE(size);
    std::vector<float> first;
    in_every_order([&] {
      std::vector<float> out(2 * kRows * size);
      launch(levin::test::row_moments,
             {.blocks = 2 * size,
              .threads = levin::test::kMomentThreads,
              .shared_bytes = levin::test::kMomentBytes,
              .cluster = size,
              .large_cluster = true},
             static_cast<const float*>(x.data()), out.data(), kRows, kColumns, ClusterBug::none);
      if (first.empty()) first = out;
      CHECK(std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) == 0);
    });
    int wrong = 0;
    for (int row = 0; row < kRows; ++row) {
      double mean = 0, squares = 0;
      for (int i = 0; i < kColumns; ++i) mean += double(x[std::size_t(row * kColumns + i)]) / kColumns;
      for (int i = 0; i < kColumns; ++i) squares += std::pow(double(x[std::size_t(row * kColumns + i)]) - mean, 2);
      for (unsigned rank = 0; rank < size; ++rank) {
        const float* const got = &first[2 * (unsigned(row) * size + rank)];
        wrong += std::fabs(double(got[0]) - mean) > 1e-6 || std::fabs(double(got[1]) - squares) > 1e-4;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("simt: tiles that each block of a cluster copies into all are right in every order") {
  constexpr int kDepth = levin::test::kTileDepth;
  for (const unsigned size : {1u, 2u, 4u}) {
    CAPTURE(size);
    const unsigned blocks = size == 2 ? 4 : size;
    Aligned<f16> a(64 * blocks * kDepth), b(64 * kDepth);
    levin::test::fill_integers(a, 1);
    levin::test::fill_integers(b, 2);
    std::vector<float> want(64 * blocks * 64);
    for (std::size_t i = 0; i < 64 * blocks; ++i) {
      for (std::size_t j = 0; j < 64; ++j) {
        for (std::size_t k = 0; k < kDepth; ++k)
          want[i * 64 + j] += float(a[i * kDepth + k]) * float(b[j * kDepth + k]);
      }
    }
    const levin::test::TileMaps maps{map_of(a.data(), kDepth, 64 * blocks, 64, 64),
                                     map_of(b.data(), kDepth, 64, 64, 64 / int(size))};
    std::vector<Barrier*> smuggled(blocks);
    in_every_order([&] {
      std::vector<float> y(want.size());
      launch(levin::test::shared_tile,
             {.blocks = blocks, .threads = 160, .shared_bytes = levin::test::kTileShared, .cluster = size}, maps,
             y.data(), smuggled.data(), ClusterBug::none);
      CHECK(y == want);
    });
  }
}

TEST_CASE("simt: the blocks of a cluster start in an order that follows the schedule") {
  const levin::test::KeepSchedule keep;
  const auto places = [](simt::Schedule schedule, std::uint64_t seed) {
    simt::set_schedule(schedule, seed);
    int started = 0;
    std::vector<int> place(4);
    launch(in_order_of_start, {.blocks = 4, .threads = 32, .cluster = 4}, &started, place.data());
    return place;
  };
  CHECK(places(simt::Schedule::ascending, 0) == std::vector<int>{0, 1, 2, 3});
  CHECK(places(simt::Schedule::descending, 0) == std::vector<int>{3, 2, 1, 0});
  for (const simt::Schedule schedule : {simt::Schedule::shuffled, simt::Schedule::greedy_warp}) {
    int others = 0;
    for (std::uint64_t seed = 0; seed < 8; ++seed) others += places(schedule, seed) != places(schedule, 8);
    CHECK(others > 0);
  }
}

TEST_CASE("simt: two threads launch clusters at once") {
  std::vector<int> in(8 * 64, 3), out[2];
  const auto run = [&](std::vector<int>& to) {
    for (int time = 0; time < 5; ++time) {
      to.assign(in.size(), 0);
      launch(neighbours, {.blocks = 8, .threads = 48, .shared_bytes = 512, .cluster = 4},
             static_cast<const int*>(in.data()), to.data());
    }
  };
  std::thread other([&] { run(out[1]); });
  run(out[0]);
  other.join();
  CHECK(out[0] == std::vector<int>(in.size(), 3003));
  CHECK(out[1] == out[0]);
}

TEST_CASE("simt: blocks of a cluster wait for each other's turns") {
  in_every_order([] {
    int counter = 0, y = 1;
    launch(in_turn, {.blocks = 4, .threads = 32, .shared_bytes = 16, .cluster = 4}, &counter, &y);
    CHECK(y == 81 + 27 * 3 + 9 * 2 + 3);
  });
}

TEST_CASE("simt: a launch refuses grids that are not multiples of the cluster, and clusters that are too large") {
  const auto message = [](const simt::Launch& how) {
    return message_of<CudaError>([&] { launch(half_ends, how, static_cast<int*>(nullptr)); });
  };
  CHECK(has(message({.blocks = 3, .cluster = 2}),
            "(cudaErrorInvalidClusterSize): blocks.x is 3, expected a multiple of "
            "cluster.x, 2"));
  CHECK(has(message({.blocks = dim3(4, 3), .cluster = dim3(2, 2)}), "blocks.y is 3"));
  CHECK(has(message({.blocks = dim3(1, 1, 3), .cluster = dim3(1, 1, 0)}), "blocks.z is 3"));
  CHECK(has(message({.blocks = 9, .cluster = 9}), "9 blocks a cluster, at most 8, or 16 in a large_cluster"));
  CHECK(has(message({.blocks = 17, .cluster = 17, .large_cluster = true}), "17 blocks a cluster, at most 16"));
}
