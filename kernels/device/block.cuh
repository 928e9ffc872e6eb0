// Sums, maxima and positions of maxima over a warp or a block, in an order that depends on the lane and warp numbers
// alone: the same bits in every run. T is float, double, int, unsigned, long long or unsigned long long (int64_t is
// `long` on Linux, which shuffles take as well).
//
// All lanes of the warp, or all threads of the block, must call, and all of them get the result.
// A block_ function needs a block of kThreads threads along x, kThreads a multiple of 32 up to 1024, and kThreads / 32
// elements of shared memory as `scratch`. It ends with a barrier, so the scratch may be used again at once; what the
// caller wrote to other shared memory before it is visible to all after it (for kThreads of 32 it is one warp and
// __syncwarp takes the barrier's place).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/hardware_math.cuh"
#include "kernels/device/language.h"

namespace levin::kernels::gpu {

inline constexpr unsigned kAllLanes = 0xffffffffu;

struct Plus {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN wins, as in PyTorch's max and min.
struct Larger {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, float>)
      return larger_or_nan(a, b);
    else
      return a > b || a != a ? a : b;
  }
};
struct Smaller {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, float>)
      return smaller_or_nan(a, b);
    else
      return a < b || a != a ? a : b;
  }
};

// A value and where it stands. `Earlier<Larger>` prefers the larger value (NaN above all), among equals the lower
// index.
template <class T>
struct Indexed {
  T value;
  long long index;
};
template <class Order>
struct Earlier {
  template <class T>
  __device__ __forceinline__ Indexed<T> operator()(Indexed<T> a, Indexed<T> b) const {
    const bool tie = a.value == b.value || (a.value != a.value && b.value != b.value);
    if (tie) return a.index <= b.index ? a : b;
    const T chosen = Order{}(a.value, b.value);
    return chosen == a.value || (chosen != chosen && a.value != a.value) ? a : b;
  }
};

template <class T>
__device__ __forceinline__ T from_lane_xor(T x, int lanes) {
  return __shfl_xor_sync(kAllLanes, x, lanes);
}
template <class T>
__device__ __forceinline__ Indexed<T> from_lane_xor(Indexed<T> x, int lanes) {
  return {__shfl_xor_sync(kAllLanes, x.value, lanes), __shfl_xor_sync(kAllLanes, x.index, lanes)};
}

// f must be commutative: the two lanes of a pair then get the same bits. Order: ((lanes 0, 16), (8, 24)), ...
template <class T, class F>
__device__ __forceinline__ T warp_reduce(T x, F f) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = f(x, from_lane_xor(x, lanes));
  return x;
}
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  return warp_reduce(x, Plus{});
}
template <class T>
__device__ __forceinline__ T warp_max(T x) {
  return warp_reduce(x, Larger{});
}
template <class T>
__device__ __forceinline__ T warp_min(T x) {
  return warp_reduce(x, Smaller{});
}

// Each warp, then the warps in order.
template <int kThreads, class T, class F>
__device__ __forceinline__ T block_reduce(T x, T* scratch, F f) {
  static_assert(kThreads % 32 == 0 && kThreads > 0 && kThreads <= 1024);
  x = warp_reduce(x, f);
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else {
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) x = f(x, scratch[warp]);
    __syncthreads();
  }
  return x;
}
template <int kThreads, class T>
__device__ __forceinline__ T block_sum(T x, T* scratch) {
  return block_reduce<kThreads>(x, scratch, Plus{});
}
template <int kThreads, class T>
__device__ __forceinline__ T block_max(T x, T* scratch) {
  return block_reduce<kThreads>(x, scratch, Larger{});
}
template <int kThreads, class T>
__device__ __forceinline__ T block_min(T x, T* scratch) {
  return block_reduce<kThreads>(x, scratch, Smaller{});
}
// The first of the largest, of the smallest.
template <int kThreads, class T>
__device__ __forceinline__ Indexed<T> block_argmax(Indexed<T> x, Indexed<T>* scratch) {
  return block_reduce<kThreads>(x, scratch, Earlier<Larger>{});
}
template <int kThreads, class T>
__device__ __forceinline__ Indexed<T> block_argmin(Indexed<T> x, Indexed<T>* scratch) {
  return block_reduce<kThreads>(x, scratch, Earlier<Smaller>{});
}

// Inclusive prefix sums in order of the lane or thread number: thread i gets x_0 + ... + x_i. The sum of all threads is
// what the last one gets.
template <class T>
__device__ __forceinline__ T warp_scan(T x) {
  const int lane = int(threadIdx.x % 32);
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    const T before = __shfl_up_sync(kAllLanes, x, unsigned(delta));
    if (lane >= delta) x = before + x;
  }
  return x;
}
template <int kThreads, class T>
__device__ __forceinline__ T block_scan(T x, T* scratch) {
  static_assert(kThreads % 32 == 0 && kThreads > 0 && kThreads <= 1024);
  x = warp_scan(x);
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else {
    const int own = int(threadIdx.x / 32);
    if (threadIdx.x % 32 == 31) scratch[own] = x;
    __syncthreads();
    T before = T(0);
    for (int warp = 0; warp < own; ++warp) before += scratch[warp];
    x = before + x;
    __syncthreads();
  }
  return x;
}

}  // namespace levin::kernels::gpu
