// The language of kernel bodies: CUDA C++ as nvcc has it, or the shim's dialect of it for the host compiler. Include
// this and nothing of CUDA in a .cuh.
//
// LEVIN_SHARED(T, name, count) declares a shared array of a block: `name` is a `T* const`, aligned to 16 bytes at
// least, its elements not initialised (under the shim: bytes 0xff, which are NaN). `count` is a constant; 48 KiB a
// kernel in all. LEVIN_SHARED_DYNAMIC(T, name) is the array whose bytes the launch gives. A kernel that has several
// dynamic arrays carves them out of one by hand.
// LEVIN_APART: a device function that is called, not copied into its caller: for long code at many places of a kernel
// that run once an output.
// Kernels are templates or `static`: a header's plain __global__ function would exist once a file.
#pragma once

#if defined(__CUDACC__)

#define LEVIN_SHARED(T, name, count)                                                                     \
  __shared__ alignas(alignof(T) > 16 ? alignof(T) : 16) unsigned char name##_bytes[sizeof(T) * (count)]; \
  T* const name = reinterpret_cast<T*>(name##_bytes)
#define LEVIN_SHARED_DYNAMIC(T, name)                                   \
  extern __shared__ __align__(16) unsigned char levin_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(levin_dynamic_shared)

#define LEVIN_APART __device__ __noinline__

#else

#include "kernels/simt/simt.h"

#define LEVIN_APART __device__ [[gnu::noinline]]

// The address of a static variable is a key of its own for each call site and each instantiation of a template.
#define LEVIN_SHARED(T, name, count)    \
  static constinit char name##_key = 0; \
  T* const name = static_cast<T*>(::levin::simt::shared_array(&name##_key, sizeof(T) * (count), alignof(T)))
#define LEVIN_SHARED_DYNAMIC(T, name) T* const name = static_cast<T*>(::levin::simt::shared_dynamic())

#endif

// CUDA's overloads of these names are global, and an op of the same name in namespace levin would hide them.
namespace levin::kernels::gpu {
using ::max;
using ::min;
using ::rsqrt;
}  // namespace levin::kernels::gpu
