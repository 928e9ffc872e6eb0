// Sums of dense 16-bit floats in f32. T: f16 or bf16.
//
//   half_sum(on, const T* x, n)                                  x[0] + ... + x[n - 1]
//   half_columns(on, const T* x, step, n, float* to, width)      to[j] = x[j] + x[step + j] + ... of n >= 1 rows
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_HALF_SUMS_CUH
#define LEVIN_KERNELS_HALF_SUMS_CUH
#include <cstdint>

#include "kernels/executor/cpu.h"
#include "kernels/reduce/row_sums.cuh"

#define LEVIN_LEVEL_FILE "kernels/reduce/half_sums.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(half_sum)
LEVIN_PICK_EVERY(half_columns)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
float half_sum(const Cpu&, const T* x, int64_t n) {
  return row_sum(x, n);
}

// Eight rows at a time: `to` is read and written once for all of them.
template <class T>
void half_columns(const Cpu&, const T* x, int64_t step, int64_t n, float* to, int64_t width) {
  int64_t r = 0;
  for (; r + 8 <= n; r += 8, x += 8 * step) {
    each_vector<float>(
        width, [=]<class V>(V, int64_t j) __attribute__((always_inline)) {
          const T *const a = x + j, *const b = a + 4 * step;
          const V low = (load<V>(a) + load<V>(a + step)) + (load<V>(a + 2 * step) + load<V>(a + 3 * step));
          const V high = (load<V>(b) + load<V>(b + step)) + (load<V>(b + 2 * step) + load<V>(b + 3 * step));
          put(to + j, r == 0 ? low + high : load<V>(to + j) + (low + high));
        });
  }
  for (; r < n; ++r, x += step) {
    each_vector<float>(
        width, [=]<class V>(V, int64_t j) __attribute__((always_inline)) {
          const V v = load<V>(x + j);
          put(to + j, r == 0 ? v : load<V>(to + j) + v);
        });
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
