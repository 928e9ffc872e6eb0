// Philox4x32-10: random words as a function of a counter and a key, the same on the host and on devices.
// Source: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
//
// Note [Random numbers by element]
// Element i of a draw with RandomRange {seed, offset} takes lane i % 4 of the block whose counter is
// {low word, high word, part, 0} of offset + i / 4, under the key {low word, high word} of the seed. `part` is 0 for
// the first 32 bits of an element and 1 for 32 more (double, integers). So a number depends on its index alone, not on
// chunks, threads or devices, and a mask can be computed again in the backward pass instead of being kept.
#pragma once

#include <cstdint>

#include "kernels/executor/hd.h"

namespace levin::kernels {

struct PhiloxBlock {
  uint32_t x0, x1, x2, x3;
};

// The paper's multipliers, and what each round adds to the key: the golden ratio and sqrt(3) - 1.
inline constexpr uint32_t kPhiloxM0 = 0xd2511f53u, kPhiloxM1 = 0xcd9e8d57u;
inline constexpr uint32_t kPhiloxW0 = 0x9e3779b9u, kPhiloxW1 = 0xbb67ae85u;

// Ten rounds over N counters. A round's keys serve all of them.
template <int N>
LEVIN_HD void philox_rounds(PhiloxBlock (&c)[N], uint32_t key0, uint32_t key1) {
#if defined(__CUDACC__)
#pragma unroll
#elif defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 10
#endif
  for (uint32_t round = 0; round < 10; ++round) {
    const uint32_t k0 = key0 + round * kPhiloxW0, k1 = key1 + round * kPhiloxW1;
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (int i = 0; i < N; ++i) {
      const uint64_t p0 = uint64_t(kPhiloxM0) * c[i].x0, p1 = uint64_t(kPhiloxM1) * c[i].x2;
      c[i] = {uint32_t(p1 >> 32) ^ c[i].x1 ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c[i].x3 ^ k1, uint32_t(p0)};
    }
  }
}
// Over one counter.
LEVIN_HD PhiloxBlock philox(PhiloxBlock c, uint32_t key0, uint32_t key1) {
  PhiloxBlock blocks[1] = {c};
  philox_rounds(blocks, key0, key1);
  return blocks[0];
}

}  // namespace levin::kernels
