// Stochastic rounding to 16 bits: up or down at random, so that the mean is what was to be rounded and updates smaller
// than half a step are not lost. Gupta et al., "Deep learning with limited numerical precision", 2015.
//
// The random bits of element i of parameter k at step t are a word of the Philox block with counter {i / 4, t} and key
// k: a run that is repeated, or resumed at t, or made on another device, has the same bits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/philox.cuh"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels {

// Of the four elements that i is among, in order.
LEVIN_HD PhiloxBlock rounding_words(std::uint64_t step, std::uint32_t parameter, std::int64_t i) {
  const auto block = static_cast<std::uint64_t>(i) / 4;
  constexpr std::uint32_t kUse = 0x726f756eu;  // "roun": another stream than draws with a small seed
  return philox({std::uint32_t(block), std::uint32_t(block >> 32), std::uint32_t(step), std::uint32_t(step >> 32)},
                parameter, kUse);
}

// x to one of its neighbours in H, by the upper bits of a random word: to the upper one with the probability of the
// part that is cut off. What lies beyond the largest finite number, and NaN, is rounded as usual.
template <class H>
LEVIN_HD H round_stochastically(float x, std::uint32_t word) {
  const std::uint32_t u = kernels::bit_cast<std::uint32_t>(x), magnitude = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
  constexpr bool kIsF16 = std::is_same_v<H, f16>;
  if (magnitude >= (kIsF16 ? 0x477fe000u : 0x7f7f0000u)) return H(x);
  H h;
  if constexpr (!kIsF16) {
    h.bits = static_cast<std::uint16_t>((u + (word >> 16)) >> 16);
  } else if (magnitude >= 0x38800000u) {
    h.bits = static_cast<std::uint16_t>(((magnitude - (112u << 23) + (word >> 19)) >> 13) | sign);
  } else {  // below 2^-14 all steps are 2^-24: exact products, one rounding of the sum
    const float steps = kernels::bit_cast<float>(magnitude) * 0x1p24f + static_cast<float>(word >> 19) * 0x1p-13f;
    h.bits = static_cast<std::uint16_t>(static_cast<std::uint32_t>(steps) | sign);
  }
  return h;
}

}  // namespace levin::kernels
