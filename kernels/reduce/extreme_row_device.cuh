// The extremes of many dense rows for devices that launch kernels, and where they first stand; NaN wins over numbers.
//
//   extremes_of_rows<kLargest>(on, const T* x, T* values, std::int64_t* indices, rows, n)
//     x: [rows, n], n >= 1. values may be null.
//
// A warp or a block takes a row. A thread compares the extremes of 16 bytes of elements at a time, and keeps which
// bytes had the best one. Their elements are searched once a row, when all threads have agreed on it.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/device/block.cuh"
#include "kernels/device/row.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels {

// The type in which elements are compared.
template <class T>
using Compared =
    std::conditional_t<std::is_integral_v<T>, std::conditional_t<sizeof(T) == 8, long long, int>, Accum<T>>;

namespace gpu {

// What no element is worse than.
template <bool kLargest, class T>
__device__ __forceinline__ T worst() {
  if constexpr (std::is_integral_v<T>)
    return kLargest ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
  else
    return T((kLargest ? -1 : 1) * std::numeric_limits<Accum<T>>::infinity());
}

template <bool kLargest, class T>
__device__ __forceinline__ Compared<T> extreme_of(const Vec<T>& v) {
  constexpr std::conditional_t<kLargest, Larger, Smaller> of_two{};
  Compared<T> best[kVec<T>];
  if constexpr (std::is_integral_v<T>) {
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) best[j] = v[j];
  } else {
    const auto wide = widened(v);
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) best[j] = wide[j];
  }
#pragma unroll
  for (int w = kVec<T> / 2; w > 0; w /= 2) {
#pragma unroll
    for (int j = 0; j < w; ++j) best[j] = of_two(best[j], best[j + w]);
  }
  return best[0];
}

template <bool kLargest, int kThreads, class T>
__global__ void __launch_bounds__(Team<kThreads>::kBlock)
    extreme_rows(const T* x, RowPlan plan, std::int64_t rows, std::int64_t n, T* values, std::int64_t* indices) {
  using Of = Team<kThreads>;
  using A = Compared<T>;
  const Earlier<std::conditional_t<kLargest, Larger, Smaller>> better;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Of::kRows + Of::row(); row < rows;
       row += std::int64_t{gridDim.x} * Of::kRows) {
    const RowPart<T, kThreads> part(x + row * n, n, plan, nullptr, worst<kLargest, T>());
    // The first chunk has it unless another one is better.
    A best = worst<kLargest, A>();
    std::int64_t where = Of::rank();
    each_first(part, [&](std::int64_t chunk, const Vec<T>& v) {
      const A found = extreme_of<kLargest, T>(v);
      const bool takes = (kLargest ? found > best : found < best) || (found != found && best == best);
      best = takes ? found : best;
      where = takes ? chunk : where;
    });
    // A thread without a chunk loses against all others.
    if (Of::rank() >= plan.chunks) where = std::numeric_limits<std::int64_t>::max();
    const Indexed<A> top = Of::reduce(Indexed<A>{best, where}, better);
    if (Of::rank() >= 32) continue;
    const std::int64_t first = top.index * kVec<T>, k = first + Of::rank();
    bool is_it = false;
    if (Of::rank() < kVec<T> && k < n) {
      const auto v = static_cast<A>(part.in[k]);
      is_it = v == top.value || (v != v && top.value != top.value);
    }
    const unsigned all = __ballot_sync(kAllLanes, is_it);
    if (Of::rank() == 0) {
      const std::int64_t at = first + __ffs(static_cast<int>(all)) - 1;
      indices[row] = at;
      if (values) values[row] = part.in[at];
    }
  }
}

// Rows of fewer chunks would leave most of a warp idle.
inline constexpr std::int64_t kLeastChunks = 16;

template <bool kLargest, class T>
void extremes_of_rows(const Gpu& on, const T* x, T* values, std::int64_t* indices, std::int64_t rows, std::int64_t n) {
  with_team<T, kRowThreads>(n, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    RowPlan plan = plan_rows<T, kThreads>(n, 0, {x});
    plan.keeps = false;
    on.launch(extreme_rows<kLargest, kThreads, T>, row_grid<kThreads>(plan, rows, 0), x, plan, rows, n, values,
              indices);
  });
}

}  // namespace gpu
}  // namespace levin::kernels
