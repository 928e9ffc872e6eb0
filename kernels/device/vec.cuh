// Several neighbouring elements in one access. A GPU reaches its bandwidth with 16 bytes a thread; addresses must then
// be multiples of the size, which kernels test with aligned16 and else go element by element.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/hardware_math.cuh"
#include "kernels/device/language.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels::gpu {

// N elements of T, 2 to 16 bytes in all, aligned to their size.
template <class T, int N = 16 / int(sizeof(T))>
struct alignas(sizeof(T) * N) Vec {
  static_assert(sizeof(T) * N <= 16 && (N & (N - 1)) == 0);
  static constexpr int kSize = N;
  T data[N];
  __host__ __device__ T& operator[](int i) { return data[i]; }
  __host__ __device__ const T& operator[](int i) const { return data[i]; }
};

// The same in the type of sums, and back. Two 16-bit numbers share a register: both are converted in place.
template <class T, int N>
struct Widened {
  Accum<T> data[N];
  __device__ __forceinline__ Accum<T>& operator[](int i) { return data[i]; }
  __device__ __forceinline__ const Accum<T>& operator[](int i) const { return data[i]; }
};
template <int N>
struct Pairs {
  std::uint32_t of[N / 2];
};
template <class T, int N>
__device__ __forceinline__ Widened<T, N> widened(const Vec<T, N>& x) {
  Widened<T, N> y;
  if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
    const auto pairs = kernels::bit_cast<Pairs<N>>(x);
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      y[j] = kernels::bit_cast<float>(pairs.of[j / 2] << 16);
      y[j + 1] = kernels::bit_cast<float>(pairs.of[j / 2] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = Accum<T>(x[j]);
  }
  return y;
}
template <class T, int N>
__device__ __forceinline__ Vec<T, N> narrowed(const Widened<T, N>& x) {
  if constexpr ((std::is_same_v<T, bf16> || std::is_same_v<T, f16>)&&N % 2 == 0) {
    Pairs<N> pairs;
#pragma unroll
    for (int j = 0; j < N; j += 2) pairs.of[j / 2] = rounded_pair<T>(x[j], x[j + 1]);
    return kernels::bit_cast<Vec<T, N>>(pairs);
  } else {
    Vec<T, N> y;
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = T(x[j]);
    return y;
  }
}

// How many elements of T make 16 bytes.
template <class T>
inline constexpr int kVec = 16 / int(sizeof(T));

__host__ __device__ __forceinline__ bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// The built-in type of as many bytes: what the access instructions take.
template <int kBytes>
using Raw = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<
        kBytes == 8, uint2,
        std::conditional_t<kBytes == 4, unsigned, std::conditional_t<kBytes == 2, unsigned short, unsigned char>>>>;

#if defined(__CUDACC__)

// load<N>(p) and store(p, v) take p[0 .. N). `_streaming`: the data is used once, so it does not displace other data
// from the caches. p is aligned to N * sizeof(T).
template <int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return __builtin_bit_cast(Vec<T, N>, *reinterpret_cast<const Raw<int(sizeof(T)) * N>*>(p));
}
template <int N, class T>
__device__ __forceinline__ Vec<T, N> load_streaming(const T* p) {
  return __builtin_bit_cast(Vec<T, N>, __ldcs(reinterpret_cast<const Raw<int(sizeof(T)) * N>*>(p)));
}
template <class T, int N>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& v) {
  using R = Raw<int(sizeof(T)) * N>;
  *reinterpret_cast<R*>(p) = __builtin_bit_cast(R, v);
}
template <class T, int N>
__device__ __forceinline__ void store_streaming(T* p, const Vec<T, N>& v) {
  using R = Raw<int(sizeof(T)) * N>;
  __stcs(reinterpret_cast<R*>(p), __builtin_bit_cast(R, v));
}

#else

template <int N, class T>
inline Vec<T, N> load(const T* p, simt::Site at = simt::Site::current()) {
  simt::check_aligned(p, sizeof(Vec<T, N>), at);
  Vec<T, N> v;
  for (int i = 0; i < N; ++i) v.data[i] = p[i];
  return v;
}
template <int N, class T>
inline Vec<T, N> load_streaming(const T* p, simt::Site at = simt::Site::current()) {
  return load<N>(p, at);
}
template <class T, int N>
inline void store(T* p, const Vec<T, N>& v, simt::Site at = simt::Site::current()) {
  simt::check_aligned(p, sizeof v, at);
  for (int i = 0; i < N; ++i) p[i] = v.data[i];
}
template <class T, int N>
inline void store_streaming(T* p, const Vec<T, N>& v, simt::Site at = simt::Site::current()) {
  store(p, v, at);
}

#endif

}  // namespace levin::kernels::gpu
