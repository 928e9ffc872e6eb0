// Kernels of clusters that more than one test runs.
#pragma once

#include "kernels/device/block.cuh"
#include "kernels/device/cluster.cuh"
#include "tests/simt/hopper.h"

namespace levin::test {

using namespace kernels;
using namespace kernels::gpu;

// Bugs that the kernels below can have.
enum class ClusterBug : std::uint8_t {
  none,
  // row_moments
  no_expect,
  expects_too_little,
  expects_too_much,
  one_barrier,  // for both rounds
  one_slot,     // for all ranks
  no_first_barrier,
  no_init_fence,
  other_rank_misses,  // is sent nothing
  rank_outside,
  value_misaligned,
  reads_before_wait,
  // shared_tile
  peer_expects_nothing,
  peer_expects_half,
  frees_own_alone,  // consumers release the stage in their own block only
  no_empty_wait,
  early_release,
  mask_outside,
  mask_empty,
  no_last_barrier,
  waits_for_remote,
  arrives_twice,
  copies_into_ended,
  copy_unwaited,
};

constexpr int kMomentThreads = 64;
constexpr unsigned kMomentBytes = 512;

// out[row] = mean and sum of squares about it, of x [rows, columns]; each block of a cluster has a part of the columns.
// The blocks exchange their sums by store_remote, in two rounds with a barrier and slots each.
__global__ void row_moments(const float* x, float* out, int rows, int columns, ClusterBug bug) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  LEVIN_SHARED(float, scratch, kMomentThreads / 32);
  Barrier* const full = reinterpret_cast<Barrier*>(bytes);
  float* const slots = reinterpret_cast<float*>(bytes + 64);
  const int rank = cluster_rank(), size = cluster_size(), thread = int(threadIdx.x);
  if (thread == 0) {
    full[0].init(1);
    full[1].init(1);
    if (bug != ClusterBug::no_init_fence) fence_barrier_init();
  }
  if (bug == ClusterBug::no_first_barrier) {
    __syncthreads();
  } else {
    cluster_arrive_relaxed();
    cluster_wait();
  }
  int turns[2] = {0, 0};
  const auto exchanged = [&](int round, float part) {
    const int k = bug == ClusterBug::one_barrier ? 0 : round;
    float* const mine = slots + 16 * k;
    const unsigned expected = unsigned(4 * size) + (bug == ClusterBug::expects_too_much ? 4u : 0u) -
                              (bug == ClusterBug::expects_too_little ? 4u : 0u);
    if (thread == 0) bug == ClusterBug::no_expect ? full[k].arrive() : full[k].arrive_expect(expected);
    if (thread < size && !(bug == ClusterBug::other_rank_misses && rank == 0 && thread == 1)) {
      const int to = bug == ClusterBug::rank_outside ? thread + 1 : thread;
      float* const slot = mine + (bug == ClusterBug::one_slot ? 0 : rank);
      if (bug == ClusterBug::value_misaligned)
        store_remote(reinterpret_cast<double*>(slot + 1 + rank), to, 1.0, full[k]);
      else
        store_remote(slot, to, part, full[k]);
    }
    if (bug != ClusterBug::reads_before_wait) full[k].wait(turns[k]);
    ++turns[k];
    float sum = 0;
    for (int r = 0; r < size; ++r) sum += mine[r];
    if (bug == ClusterBug::reads_before_wait) full[k].wait(turns[k] - 1);
    return sum;
  };
  const int part = columns / size, clusters = int(gridDim.x) / size;
  for (int row = int(blockIdx.x) / size; row < rows; row += clusters) {
    const float* const from = x + row * columns + rank * part;
    float sum = 0;
    for (int i = thread; i < part; i += kMomentThreads) sum += from[i];
    const float mean = exchanged(0, block_sum<kMomentThreads>(sum, scratch)) / float(columns);
    sum = 0;
    for (int i = thread; i < part; i += kMomentThreads) sum += (from[i] - mean) * (from[i] - mean);
    const float squares = exchanged(1, block_sum<kMomentThreads>(sum, scratch));
    if (thread == 0) {
      out[2 * (row * size + rank)] = mean;
      out[2 * (row * size + rank) + 1] = squares;
    }
  }
  cluster_arrive_relaxed();
  cluster_wait();
}

constexpr int kTileBlocks = 6, kTileStages = 2, kTileDepth = 64 * kTileBlocks;
constexpr unsigned kTileBytes = 64 * 64 * 2;
constexpr unsigned kTileShared = kAtom + kTileStages * 2 * kTileBytes + 256;

struct TileMaps {
  TensorMap a, b;  // b: boxes of 64 / (blocks of a cluster) rows
};

// y [64 blocks, 64] = a [64 blocks, 256] b [64, 256]^T: warp 0 copies, a warpgroup multiplies. Each block of a cluster
// copies a part of each tile of b into all, in two stages. A stage is free when the warps of all blocks have read it.
__global__ void shared_tile(const __grid_constant__ TileMaps maps, float* y, Barrier** smuggled, ClusterBug bug) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  unsigned char* const ring = atom_aligned(bytes);
  Barrier* const full = reinterpret_cast<Barrier*>(ring + kTileStages * 2 * kTileBytes);
  Barrier* const empty = full + kTileStages;
  const int rank = cluster_rank(), size = cluster_size(), warp = int(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kTileStages; ++s) {
      full[s].init(1);
      empty[s].init(bug == ClusterBug::frees_own_alone ? 4u : unsigned(4 * size));
    }
    fence_barrier_init();
    smuggled[blockIdx.x] = full;
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (bug == ClusterBug::waits_for_remote && rank == 0) smuggled[blockIdx.x + 1]->wait(0);
  if (warp >= 4) {
    if (warp == 4 && elect()) {
      const unsigned rows = 64u / unsigned(size);
      for (int s = 0; s < kTileBlocks; ++s) {
        const int stage = s % kTileStages;
        unsigned char* const to = ring + unsigned(stage) * 2 * kTileBytes;
        if (bug != ClusterBug::no_empty_wait) empty[stage].wait(s / kTileStages - 1);
        if (bug == ClusterBug::peer_expects_nothing && rank == 1)
          full[stage].arrive();
        else
          full[stage].arrive_expect(bug == ClusterBug::peer_expects_half && rank == 1 ? kTileBytes + kTileBytes / 2
                                                                                      : 2 * kTileBytes);
        tma_load(to, maps.a, s * 64, int(blockIdx.x) * 64, full[stage]);
        const unsigned ranks = bug == ClusterBug::mask_outside ? 2u << size
                               : bug == ClusterBug::mask_empty ? 0
                                                               : (1u << size) - 1;
        tma_load(to + kTileBytes + unsigned(rank) * rows * 128, maps.b, s * 64, rank * int(rows), full[stage],
                 Ranks{ranks});
      }
      if (bug == ClusterBug::copy_unwaited && rank == 0) {
        for (int stage = 0; stage < kTileStages; ++stage) empty[stage].wait(kTileBlocks / kTileStages - 1);
        tma_load(ring, maps.b, 0, 0, full[0], Ranks{2});
      }
    }
  } else {
    const bool releases = threadIdx.x % 32 == 0;
    const auto release = [&](int stage) {
      if (!releases) return;
      if (bug == ClusterBug::frees_own_alone) return empty[stage].arrive();
      for (int r = 0; r < size; ++r) remote(empty + stage, r).arrive();
      if (bug == ClusterBug::arrives_twice && warp == 0) remote(empty + stage, 1).arrive();
    };
    float d[32];
    for (int s = 0; s < kTileBlocks; ++s) {
      const int stage = s % kTileStages;
      const unsigned char* const from = ring + unsigned(stage) * 2 * kTileBytes;
      full[stage].wait(s / kTileStages);
      if (bug == ClusterBug::early_release) release(stage);
      wgmma_fence();
      for (unsigned k = 0; k < 4; ++k)
        wgmma<f16, 64>(d, descriptor<Major::k>(from) + 2 * k, descriptor<Major::k>(from + kTileBytes) + 2 * k,
                       s > 0 || k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      if (bug != ClusterBug::early_release) release(stage);
    }
    const int g = int(threadIdx.x) % 32 / 4, q = int(threadIdx.x) % 4;
    for (int i = 0; i < 32; ++i) {
      const int row = 16 * warp + g + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * q + i % 2;
      y[(int(blockIdx.x) * 64 + row) * 64 + column] = d[i];
    }
  }
  if (bug == ClusterBug::no_last_barrier) return;
  if (bug == ClusterBug::copies_into_ended) {
    if (rank == 1) return;
    cluster_arrive_relaxed();
    cluster_wait();
    if (threadIdx.x == 0) tma_load(ring, maps.b, 0, 0, full[0], Ranks{2});
    return;
  }
  cluster_arrive_relaxed();
  cluster_wait();
}

}  // namespace levin::test
