// Dense rows of floats as another float type, rounded once to the nearest even: to[i] = From's value as To.
//
//   convert_row<To, From>(on, const From* from, To* to, n)   From and To: float, f16 or bf16, one of them a 16-bit one
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_HALVES_CUH
#define LEVIN_KERNELS_HALVES_CUH

#include <cstdint>

#include "kernels/executor/cpu.h"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/pointwise/halves.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(convert_row)
}  // namespace levin::kernels::cpu

#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class To, class From>
void convert_row(const Cpu&, const From* from, To* to, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = To(float(from[i]));
}

// Compiled once, in pointwise.cpp.
#ifdef LEVIN_COMPILE_HALVES
#define LEVIN_HALVES_IS template
#else
#define LEVIN_HALVES_IS extern template
#endif
#define LEVIN_HALVES(To, From) LEVIN_HALVES_IS void convert_row<To, From>(const Cpu&, const From*, To*, int64_t);
LEVIN_HALVES(f16, float)
LEVIN_HALVES(bf16, float)
LEVIN_HALVES(float, f16)
LEVIN_HALVES(float, bf16)
LEVIN_HALVES(f16, bf16)
LEVIN_HALVES(bf16, f16)
#undef LEVIN_HALVES
#undef LEVIN_HALVES_IS

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
