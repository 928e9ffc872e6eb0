// Where the largest (smallest) number of a dense row first stands; NaN wins over numbers.
//
//   extreme_of_row<Largest>(on, const T* x, n)     T: float, f16 or bf16; n >= 1; Largest: std::true_type or false_type
//
// A block of the row that stays in L1 is compared as vectors. Only the block that has the extreme is searched for it.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_EXTREME_ROW_CUH
#define LEVIN_KERNELS_EXTREME_ROW_CUH
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/reduce/row_sums.cuh"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/reduce/extreme_row.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(extreme_of_row)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class Largest>
[[gnu::always_inline]] inline auto exceeds(auto a, auto b) {
  if constexpr (Largest::value)
    return a > b;
  else
    return a < b;
}

// The extreme of `top` and n numbers; NaN where one of them is NaN.
template <class Largest>
float extreme_of_block(const float* x, int64_t n, float top) {
  using V = typename RowVector<float>::Type;
  constexpr int64_t lanes = RowVector<float>::lanes, kAtOnce = 4;
  V best[kAtOnce];
  decltype(V{} != V{}) nan[kAtOnce] = {};
  for (V& b : best) b = V{} + top;
  int64_t i = 0;
  const auto take = [&](int64_t k) __attribute__((always_inline)) {
    const V v = load<V>(x + i + k * lanes);
    best[k] = exceeds<Largest>(v, best[k]) ? v : best[k];
    nan[k] |= v != v;
  };
  for (; i + kAtOnce * lanes <= n; i += kAtOnce * lanes) { take(0), take(1), take(2), take(3); }
  for (; i + lanes <= n; i += lanes) take(0);
  const auto any = (nan[0] | nan[1]) | (nan[2] | nan[3]);
  bool has_nan = false;
  for (int64_t l = 0; l < lanes; ++l) {
    has_nan |= any[l] != 0;
    for (const V& b : best) top = exceeds<Largest>(float(b[l]), top) ? float(b[l]) : top;
  }
  for (; i < n; ++i) {
    has_nan |= x[i] != x[i];
    top = exceeds<Largest>(x[i], top) ? x[i] : top;
  }
  return has_nan ? __builtin_nanf("") : top;
}

template <class Largest, class T>
int64_t extreme_of_row(const Cpu&, const T* x, int64_t n) {
  constexpr int64_t kBlock = 2048;
  alignas(64) float wide[std::is_same_v<T, float> ? 1 : kBlock];
  const auto block = [&](int64_t first) -> const float* {
    if constexpr (std::is_same_v<T, float>) {
      return x + first;
    } else {
      wide_numbers(x + first, std::min(kBlock, n - first), wide);
      return wide;
    }
  };
  float top = float(x[0]);
  int64_t where = 0;
  for (int64_t first = 0; first < n && top == top; first += kBlock) {
    const float found = extreme_of_block<Largest>(block(first), std::min(kBlock, n - first), top);
    if (found != found || exceeds<Largest>(found, top)) top = found, where = first;
  }
  const float* const in = block(where);
  int64_t i = 0;
  while (!(top == top ? in[i] == top : in[i] != in[i])) ++i;
  return where + i;
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
