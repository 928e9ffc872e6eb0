#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_ROTARY_CUH
#define LEVIN_KERNELS_ROTARY_CUH
// Pairs of elements turned by angles; T: float, double, f16, bf16, computed in A = Accum<T>, rounded once:
//   rotate_pairs(on, const T* x, const A* cos, const A* sin, T* y, const RotaryPlan& plan)
//     (a, b) of a row becomes (a cos - b sin, b cos + a sin), or with `back` (a cos + b sin, b cos - a sin)
// y [rows, width] is contiguous; rows of x and of the table may lie anywhere, their own elements side by side. What a
// row has beyond its pairs is copied. On devices a thread has 16 bytes of both halves of some pairs where rows are
// aligned, else one pair.
#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/device/row.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/reduce/row_sums.cuh"
#include "levin/dtype.h"
#include "levin/shape.h"

namespace levin::kernels {

struct RotaryPlan {
  int64_t rows = 1, width = 0, half = 0;  // half: pairs of a row
  bool halves = true;                     // pairs (i, i + half), else (2 i, 2 i + 1)
  bool back = false;
  // Where rows lie: dimensions of sizes above 1, the last one innermost, steps in elements.
  int rank = 0;
  std::array<int64_t, kMaxRank> sizes{}, x_steps{}, table_steps{};

  // The next dimension inward.
  void add(int64_t size, int64_t x_step, int64_t table_step) {
    rows *= size;
    if (size == 1) return;
    const auto last = static_cast<size_t>(rank - 1), next = static_cast<size_t>(rank);
    if (rank > 0 && x_steps[last] == size * x_step && table_steps[last] == size * table_step) {
      sizes[last] *= size;
      x_steps[last] = x_step, table_steps[last] = table_step;
      return;
    }
    sizes[next] = size, x_steps[next] = x_step, table_steps[next] = table_step;
    ++rank;
  }
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/pointwise/rotary.cuh"
#include "kernels/executor/each_level.h"

#include "kernels/executor/pick_halves.h"

namespace levin::kernels::cpu {
LEVIN_PICK_HALVES(rotate_pairs)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

template <int V, class T>
__global__ void rotate_items(const T* x, const Accum<T>* cos, const Accum<T>* sin, T* y, int64_t items, Strided<2> at,
                             Divider row_items, int64_t width, int64_t half, bool halves, Accum<T> sign) {
  const int64_t u = own_item();
  if (u >= items) return;
  const int64_t row = row_items.quotient(u), chunk = u - row * int64_t(row_items.divisor), pair = chunk * V;
  int64_t from[2];
  at.offsets(row, from);
  x += from[0], y += row * width;
  if (pair >= half) {  // no pair: V of the elements that stay
    const int64_t rest = pair + half;
    store(y + rest, load<V>(x + rest));
    return;
  }
  const int64_t first = halves ? pair : 2 * pair, second = halves ? pair + half : first + V;
  const auto left = widened(load<V>(x + first)), right = widened(load<V>(x + second));
  const Parameters<V, Accum<T>> c(cos + from[1], pair, half, V > 1, Accum<T>(0)),
      s(sin + from[1], pair, half, V > 1, Accum<T>(0));
  // Of interleaved pairs, element k of both vectors together is one half of pair k / 2.
  Accum<T> p[V], q[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const auto of_both = [&](int k) { return k < V ? left[k % V] : right[k % V]; };
    const Accum<T> a = halves ? left[j] : of_both(2 * j), b = halves ? right[j] : of_both(2 * j + 1),
                   turn = sign * s.v[j];
    p[j] = a * c.v[j] - b * turn;
    q[j] = b * c.v[j] + a * turn;
  }
  Widened<T, V> to_left, to_right;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const auto in_turn = [&](int k) { return k % 2 == 0 ? p[k / 2] : q[k / 2]; };
    to_left[j] = halves ? p[j] : in_turn(j);
    to_right[j] = halves ? q[j] : in_turn(j + V);
  }
  store(y + first, narrowed<T>(to_left));
  store(y + second, narrowed<T>(to_right));
}

template <class T>
void rotate_pairs(const Gpu& on, const T* x, const Accum<T>* cos, const Accum<T>* sin, T* y, const RotaryPlan& plan) {
  constexpr int V = kVec<T>;
  bool vectors =
      aligned16(x) && aligned16(cos) && aligned16(sin) && aligned16(y) && plan.half % V == 0 && plan.width % V == 0;
  Strided<2> at;
  at.rank = std::max(plan.rank, 1);
  for (int d = 0; d < plan.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    at.sizes[d] = Divider(plan.sizes[i]);
    at.steps[0][d] = plan.x_steps[i], at.steps[1][d] = plan.table_steps[i];
    vectors = vectors && plan.x_steps[i] % V == 0;  // a row of the table has `half` elements
  }
  const auto launch = [&](auto kernel, int64_t v) {
    const int64_t row_items = (plan.width - plan.half) / v, items = plan.rows * row_items;
    on.launch(kernel, item_grid(items), x, cos, sin, y, items, at, Divider(row_items), plan.width, plan.half,
              plan.halves, Accum<T>(plan.back ? -1 : 1));
  };
  if (vectors)
    launch(rotate_items<V, T>, V);
  else
    launch(rotate_items<1, T>, 1);
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {
using cpu::rotate_pairs, gpu::rotate_pairs;  // of the executor that is given
}  // namespace levin::kernels

#endif
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
void rotate_pairs(const Cpu& on, const T* x, const Accum<T>* cos, const Accum<T>* sin, T* y, const RotaryPlan& plan) {
  using A = Accum<T>;
  const int64_t half = plan.half, width = plan.width;
  const A sign = plan.back ? A(-1) : A(1);
  on.parallel_for(plan.rows, std::max<int64_t>(1, 32 * 1024 / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x;
      const A *c = cos, *s = sin;
      for (int64_t d = plan.rank - 1, rest = row; d >= 0; --d) {
        const auto i = static_cast<size_t>(d);
        const int64_t place = d > 0 ? rest % plan.sizes[i] : rest;
        rest /= plan.sizes[i];
        from += place * plan.x_steps[i], c += place * plan.table_steps[i], s += place * plan.table_steps[i];
      }
      T* const to = y + row * width;
      if (plan.halves) {
        each_vector<A>(
            half, [=]<class V>(V, int64_t i) __attribute__((always_inline)) {
              const V a = load<V>(from + i), b = load<V>(from + half + i), cosine = load<V>(c + i),
                      turn = sign * load<V>(s + i);
              put(to + i, a * cosine - b * turn);
              put(to + half + i, b * cosine + a * turn);
            });
      } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < half; ++i) {
          const A a = A(from[2 * i]), b = A(from[2 * i + 1]), turn = sign * s[i];
          to[2 * i] = T(a * c[i] - b * turn);
          to[2 * i + 1] = T(b * c[i] + a * turn);
        }
      }
      std::copy(from + 2 * half, from + width, to + 2 * half);
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
