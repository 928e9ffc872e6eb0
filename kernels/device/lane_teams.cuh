// Sums by a few lanes of a warp, for the part of a channel that blocks leave over: too little work for a block, and too
// much for one thread, whose steps would wait for each other.
#pragma once

#include <cstdint>

#include "kernels/device/block.cuh"

namespace levin::kernels::gpu {

// `count` teams of 2^shift neighbouring lanes. A block has whole warps, and all of its threads call `joined`, also
// those after the last team.
struct LaneTeams {
  std::int64_t count;
  unsigned shift;

  [[nodiscard]] __host__ __device__ int lanes() const { return 1 << shift; }
  [[nodiscard]] __device__ std::int64_t team() const {
    return (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> shift;
  }
  [[nodiscard]] __device__ int lane() const { return static_cast<int>(threadIdx.x & ((1u << shift) - 1)); }

  // f(i) for this lane's share of [0, n), every lanes()-th, in order.
  template <class F>
  __device__ void each(std::int64_t n, F&& f) const {
    each(team(), n, f);
  }
  // The same of a team with another number.
  template <class F>
  __device__ void each(std::int64_t number, std::int64_t n, F&& f) const {
    if (number >= count) return;
    for (std::int64_t i = lane(); i < n; i += lanes()) f(i);
  }
  // f(number) for teams [first, end), by one block: all of its threads call f together, those without a team with
  // `count`, which has no steps.
  template <class F>
  __device__ void by_one_block(std::int64_t first, std::int64_t end, F&& f) const {
    const std::int64_t at_once = blockDim.x >> shift;
    for (std::int64_t begin = first; begin < end; begin += at_once) {
      const std::int64_t number = begin + (threadIdx.x >> shift);
      f(number < end ? number : count);
    }
  }
  // The team's numbers joined pair by pair, f(lower lane's, upper lane's): every lane has the same bits.
  template <class T, class F>
  [[nodiscard]] __device__ T joined(T x, F f) const {
    for (int apart = lanes() / 2; apart > 0; apart /= 2) {
      const T other = from_lane_xor(x, apart);
      x = (lane() & apart) != 0 ? f(other, x) : f(x, other);
    }
    return x;
  }
};

// As many lanes as a team has steps, and no more than a warp: each takes about steps / 32.
[[nodiscard]] inline LaneTeams lane_teams(std::int64_t count, std::int64_t steps) {
  LaneTeams teams{.count = count, .shift = 0};
  while (teams.shift < 5 && teams.lanes() < steps) ++teams.shift;
  return teams;
}

}  // namespace levin::kernels::gpu
