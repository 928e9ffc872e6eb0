// Whether indices lie in their range.
//
//   any_outside(on, const I* index, n, bound)   whether an index is not in [0, bound); bound >= 1
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_BOUNDS_CUH
#define LEVIN_KERNELS_BOUNDS_CUH

#include <cstdint>
#include <type_traits>

#include "kernels/executor/cpu.h"

#define LEVIN_LEVEL_FILE "kernels/index/bounds.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(any_outside)
}  // namespace levin::kernels::cpu

#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class I>
bool any_outside(const Cpu&, const I* index, int64_t n, int64_t bound) {
  // v and last - v both have no sign exactly where 0 <= v <= last: vector code without a comparison.
  using U = std::make_unsigned_t<I>;
  constexpr int kSign = 8 * int(sizeof(I)) - 1;
  const U most = U(~U(0)) >> 1, last = uint64_t(bound) - 1 < most ? U(bound - 1) : most;
  U all = 0;
  for (int64_t i = 0; i < n; ++i) all |= U(index[i]) | (last - U(index[i]));
  return all >> kSign != 0;
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
