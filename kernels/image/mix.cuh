#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_MIX_CUH
#define LEVIN_KERNELS_MIX_CUH
// Every row mixed with another row of the batch; float, double, f16, bf16, all contiguous, sums in Accum<T>:
//   mix_rows(on, const T* x, T* y, rows, columns, shift, const float* weight)
//     y[n] = w x[n] + (1 - w) x[(n + shift) mod rows], w = weight[0], -rows <= shift <= rows
// On devices a thread writes 16 bytes of y.
#include <algorithm>
#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/reduce/row_sums.cuh"
#include "levin/dtype.h"

namespace levin::kernels {

LEVIN_HD int64_t mixed_with(int64_t n, int64_t shift, int64_t rows) {
  const int64_t other = n + shift;
  return other < 0 ? other + rows : other >= rows ? other - rows : other;
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/image/mix.cuh"
#include "kernels/executor/each_level.h"

#include "kernels/executor/pick_halves.h"

namespace levin::kernels::cpu {
LEVIN_PICK_HALVES(mix_rows)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

template <class T>
__global__ void mix_items(const T* x, T* y, int64_t n, int64_t rows, int64_t shift, Divider columns,
                          const float* weight) {
  using A = Accum<T>;
  constexpr int V = kVec<T>;
  const int64_t first = own_item() * V;
  if (first >= n) return;
  const A own = A(*weight), rest = A(1) - own;
  const auto width = int64_t(columns.divisor);
  int64_t row = columns.quotient(first), j = first - row * width;
  int64_t away = (mixed_with(row, shift, rows) - row) * width;
  Vec<T, V> v;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const int64_t at = first + k;
    v[k] = at < n ? T(own * A(x[at]) + rest * A(x[at + away])) : T(0.0f);
    if (++j < width) continue;
    j = 0;
    ++row;
    away = (mixed_with(row, shift, rows) - row) * width;
  }
  if (first + V <= n) {
    store(y + first, v);
  } else {
#pragma unroll
    for (int k = 0; k < V; ++k)
      if (first + k < n) y[first + k] = v[k];
  }
}
template <class T>
void mix_rows(const Gpu& on, const T* x, T* y, int64_t rows, int64_t columns, int64_t shift, const float* weight) {
  const int64_t n = rows * columns;
  if (n == 0) return;
  on.launch(mix_items<T>, item_grid((n + kVec<T> - 1) / kVec<T>), x, y, n, rows, shift, Divider(columns), weight);
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {
using cpu::mix_rows, gpu::mix_rows;  // of the executor that is given
}  // namespace levin::kernels

#endif
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
void mix_rows(const Cpu& on, const T* x, T* y, int64_t rows, int64_t columns, int64_t shift, const float* weight) {
  using A = Accum<T>;
  const A own = A(*weight), rest = A(1) - own;
  on.parallel_for(rows, std::max<int64_t>(1, 32 * 1024 / std::max<int64_t>(1, columns)),
                  [=](int64_t begin, int64_t end) {
                    for (int64_t n = begin; n < end; ++n) {
                      const T *a = x + n * columns, *b = x + mixed_with(n, shift, rows) * columns;
                      T* to = y + n * columns;
                      each_vector<A>(
                          columns, [=]<class V>(V, int64_t j) __attribute__((always_inline)) {
                            put(to + j, own * load<V>(a + j) + rest * load<V>(b + j));
                          });
                    }
                  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
