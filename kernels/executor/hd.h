// LEVIN_HD marks a function for host and device under nvcc. Such functions are also forced inline: a kernel compiled
// for an x86 level then gets that level's code for them, wherever they are defined.
#pragma once

#include <type_traits>

#if defined(__CUDACC__)
#define LEVIN_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define LEVIN_HD [[gnu::always_inline]] inline
#else
#define LEVIN_HD inline
#endif

namespace levin::kernels {

// std::bit_cast, callable from device code too.
template <class To, class From>
LEVIN_HD constexpr To bit_cast(From x) {
  return __builtin_bit_cast(To, x);
}

// The type a kernel computes and sums in: double for double, float for float, f16 and bf16.
template <class T>
using Accum = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace levin::kernels
