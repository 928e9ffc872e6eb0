#ifndef LEVIN_KERNELS_SCAN_CUH
#define LEVIN_KERNELS_SCAN_CUH
// Walks along one dimension. x: [outer, n, inner], contiguous.
//
//   arg_extreme<Largest>(on, const T* x, T* values, int64_t* indices, outer, n, inner)
//     the largest (smallest) of the n and where it first stands; NaN wins over numbers. values may be null; n >= 1.
//   cumsum(on, const T* x, S* y, outer, n, inner)
//     y[k] = x[0] + ... + x[k], summed in double (int64_t for integers and bool, wrapping around). S: T, or int64_t for those.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu.h"
#include "kernels/hd.h"
#include "levin/dtype.h"

namespace levin::kernels::cpu {

namespace scan_detail {
inline constexpr int64_t kTile = 256;  // columns walked together
inline constexpr int64_t kTaskElements = 32 * 1024;

template <bool kLargest, class A>
LEVIN_HD bool is_better(A a, A b) {
  return (kLargest ? a > b : a < b) | ((a != a) & (b == b));
}

// body(outer index, first column, columns) over tiles of the columns.
template <class F>
void each_tile(const Cpu& on, int64_t outer, int64_t n, int64_t inner, const F& body) {
  const int64_t tiles = (inner + kTile - 1) / kTile;
  const int64_t work = std::max<int64_t>(1, n * std::min(inner, kTile));
  on.parallel_for(outer * tiles, std::max<int64_t>(1, kTaskElements / work), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t % tiles * kTile;
      body(t / tiles, first, std::min(kTile, inner - first));
    }
  });
}
}  // namespace scan_detail

template <bool kLargest, class T>
void arg_extreme(const Cpu& on, const T* x, T* values, int64_t* indices, int64_t outer, int64_t n, int64_t inner) {
  using A = std::conditional_t<std::is_integral_v<T>, T, Accum<T>>;
  scan_detail::each_tile(on, outer, n, inner, [&](int64_t o, int64_t first, int64_t width) {
    A best[scan_detail::kTile];
    int64_t at[scan_detail::kTile];
    const T* from = x + o * n * inner + first;
    if (width == 1) {
      A top = A(from[0]);
      int64_t where = 0;
      for (int64_t k = 1; k < n; ++k) {
        const A v = A(from[k * inner]);
        if (scan_detail::is_better<kLargest>(v, top)) top = v, where = k;
      }
      at[0] = where;
    } else {
      for (int64_t j = 0; j < width; ++j) best[j] = A(from[j]), at[j] = 0;
      for (int64_t k = 1; k < n; ++k) {
        const T* row = from + k * inner;
        for (int64_t j = 0; j < width; ++j) {
          const A v = A(row[j]);
          const bool better = scan_detail::is_better<kLargest>(v, best[j]);
          best[j] = better ? v : best[j];
          at[j] = better ? k : at[j];
        }
      }
    }
    for (int64_t j = 0; j < width; ++j) {
      indices[o * inner + first + j] = at[j];
      if (values) values[o * inner + first + j] = from[at[j] * inner + j];
    }
  });
}

template <class T, class S>
void cumsum(const Cpu& on, const T* x, S* y, int64_t outer, int64_t n, int64_t inner) {
  using A = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;  // unsigned: integers wrap around
  scan_detail::each_tile(on, outer, n, inner, [&](int64_t o, int64_t first, int64_t width) {
    const int64_t start = o * n * inner + first;
    if (width == 1) {
      A total = 0;
      for (int64_t k = 0; k < n; ++k) {
        total += A(x[start + k * inner]);
        y[start + k * inner] = S(total);
      }
      return;
    }
    A sum[scan_detail::kTile];
    std::fill_n(sum, width, A(0));
    for (int64_t k = 0; k < n; ++k) {
      const T* from = x + start + k * inner;
      S* to = y + start + k * inner;
      for (int64_t j = 0; j < width; ++j) {
        sum[j] += A(from[j]);
        to[j] = S(sum[j]);
      }
    }
  });
}

}  // namespace levin::kernels::cpu
#endif
