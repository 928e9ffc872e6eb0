// CUDA's dialect for the host compiler: what a kernel body may use, under CUDA's own names and with CUDA's meaning.
// Only kernels/device/language.h includes it. A name that is absent here (__activemask, __expf, __shared__) is not to
// be used.
#pragma once

#include <math.h>

#include <cstdint>
#include <source_location>
#include <type_traits>

#include "kernels/simt/run.h"
#include "kernels/simt/types.h"

// In a build with CUDA its headers define these too; the host compiler is to see nothing of them.
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__ inline  // without a launch nothing of it is emitted
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace levin::simt {

using Site = std::source_location;

// What one lane brings to a warp function: a value of up to 8 bytes, and for shuffles the lane argument and the width.
struct LaneInput {
  std::uint64_t value = 0;
  std::int32_t argument = 0, width = 32;
};
// From the inputs of the lanes in `mask` to their results; entries of other lanes are undefined.
using WarpFunction = void (*)(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);

// The one primitive of all warp functions: waits until every lane of `mask` has called it with the same mask, place and
// f, then gives each lane its result. `what` is the CUDA name for messages.
std::uint64_t warp_collective(std::uint32_t mask, const char* what, Site at, LaneInput in, WarpFunction f);

enum class Vote : std::uint8_t { none, count, all, any };
int barrier(Vote vote, int predicate, const char* what, Site at);

void* shared_array(const void* key, std::size_t bytes, std::size_t alignment);
void* shared_dynamic();

[[noreturn]] void trap(Site at);
[[noreturn]] void fail_misaligned(const void* p, std::size_t bytes, Site at);
inline void check_aligned(const void* p, std::size_t bytes, Site at) {
  if (reinterpret_cast<std::uintptr_t>(p) % bytes != 0) fail_misaligned(p, bytes, at);
}

// See kernels/device/mma.cuh.
void copy_async_16(void* shared, const void* global, bool valid, Site at);
void copy_async_commit();
void copy_async_wait(int groups_left);
void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed, Site at);
enum class Half : std::uint8_t { f16, bf16 };
void mma_m16n8k16(Half type, float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  const float (&c)[4], Site at);

template <class T, class... Any>
concept OneOf = (std::is_same_v<T, Any> || ...);
template <class T>
concept Shuffled = OneOf<T, int, unsigned, long, unsigned long, long long, unsigned long long, float, double>;
template <class T>
concept Matched = Shuffled<T>;

template <class T>
inline std::uint64_t to_bits(T x) {
  if constexpr (sizeof(T) == 8) {
    return __builtin_bit_cast(std::uint64_t, x);
  } else {
    return __builtin_bit_cast(std::uint32_t, x);
  }
}
template <class T>
inline T from_bits(std::uint64_t bits) {
  if constexpr (sizeof(T) == 8) {
    return __builtin_bit_cast(T, bits);
  } else {
    return __builtin_bit_cast(T, static_cast<std::uint32_t>(bits));
  }
}

// The library's functions on lanes; lane_functions.cpp.
void shuffle_index(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);
void shuffle_up(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);
void shuffle_down(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);
void shuffle_xor(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);
void ballot(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);
void match_any(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);
void nothing(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask);

// Reduces the 32-bit inputs of the lanes in `mask`; each gets the result.
template <class T, class F>
inline void reduce_lanes(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask) {
  bool first = true;
  T sum{};
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    const T x = from_bits<T>(in[lane].value);
    sum = first ? x : F{}(sum, x);
    first = false;
  }
  for (std::uint64_t& o : out) o = to_bits(sum);
}

// One atomic read, change and write; results are stored even when they equal the old value.
template <class T, class F>
inline T atomic_change(T* p, F f) {
  T old, changed;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do {
    changed = f(old);
  } while (!__atomic_compare_exchange(p, &old, &changed, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

// Rounded here and now: a product that leaves through memory is not contracted into an fma.
template <class T>
inline T rounded(T x) {
  asm("" : "+m"(x));
  return x;
}

}  // namespace levin::simt

// ---- Where a thread is
extern thread_local constinit uint3 threadIdx;
extern thread_local constinit uint3 blockIdx;
extern thread_local constinit dim3 blockDim;
extern thread_local constinit dim3 gridDim;
inline constexpr int warpSize = 32;

// ---- Barriers and fences
inline void __syncthreads(levin::simt::Site at = levin::simt::Site::current()) {
  levin::simt::barrier(levin::simt::Vote::none, 0, "__syncthreads", at);
}
inline int __syncthreads_count(int predicate, levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::barrier(levin::simt::Vote::count, predicate, "__syncthreads_count", at);
}
inline int __syncthreads_and(int predicate, levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::barrier(levin::simt::Vote::all, predicate, "__syncthreads_and", at);
}
inline int __syncthreads_or(int predicate, levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::barrier(levin::simt::Vote::any, predicate, "__syncthreads_or", at);
}
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
[[noreturn]] inline void __trap(levin::simt::Site at = levin::simt::Site::current()) { levin::simt::trap(at); }

// ---- Warp functions
inline void __syncwarp(unsigned mask = 0xffffffffu, levin::simt::Site at = levin::simt::Site::current()) {
  levin::simt::warp_collective(mask, "__syncwarp", at, {}, levin::simt::nothing);
}
template <levin::simt::Shuffled T>
inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32,
                     levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::from_bits<T>(levin::simt::warp_collective(
      mask, "__shfl_sync", at, {levin::simt::to_bits(x), lane, width}, levin::simt::shuffle_index));
}
template <levin::simt::Shuffled T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32,
                        levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::from_bits<T>(levin::simt::warp_collective(
      mask, "__shfl_up_sync", at, {levin::simt::to_bits(x), int(delta), width}, levin::simt::shuffle_up));
}
template <levin::simt::Shuffled T>
inline T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32,
                          levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::from_bits<T>(levin::simt::warp_collective(
      mask, "__shfl_down_sync", at, {levin::simt::to_bits(x), int(delta), width}, levin::simt::shuffle_down));
}
template <levin::simt::Shuffled T>
inline T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = 32,
                         levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::from_bits<T>(levin::simt::warp_collective(
      mask, "__shfl_xor_sync", at, {levin::simt::to_bits(x), lanes, width}, levin::simt::shuffle_xor));
}
inline unsigned __ballot_sync(unsigned mask, int predicate, levin::simt::Site at = levin::simt::Site::current()) {
  return unsigned(
      levin::simt::warp_collective(mask, "__ballot_sync", at, {predicate != 0 ? 1u : 0u}, levin::simt::ballot));
}
inline int __any_sync(unsigned mask, int predicate, levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::warp_collective(mask, "__any_sync", at, {predicate != 0 ? 1u : 0u}, levin::simt::ballot) != 0;
}
inline int __all_sync(unsigned mask, int predicate, levin::simt::Site at = levin::simt::Site::current()) {
  return levin::simt::warp_collective(mask, "__all_sync", at, {predicate != 0 ? 1u : 0u}, levin::simt::ballot) == mask;
}
template <levin::simt::Matched T>
inline unsigned __match_any_sync(unsigned mask, T x, levin::simt::Site at = levin::simt::Site::current()) {
  return unsigned(
      levin::simt::warp_collective(mask, "__match_any_sync", at, {levin::simt::to_bits(x)}, levin::simt::match_any));
}
#define LEVIN_SIMT_REDUCE(name, T, expression)                                                                      \
  inline T name(unsigned mask, T x, levin::simt::Site at = levin::simt::Site::current()) {                          \
    struct F {                                                                                                      \
      T operator()(T a, T b) const { return expression; }                                                           \
    };                                                                                                              \
    return levin::simt::from_bits<T>(                                                                               \
        levin::simt::warp_collective(mask, #name, at, {levin::simt::to_bits(x)}, levin::simt::reduce_lanes<T, F>)); \
  }
LEVIN_SIMT_REDUCE(__reduce_add_sync, unsigned, a + b)
LEVIN_SIMT_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
LEVIN_SIMT_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
LEVIN_SIMT_REDUCE(__reduce_min_sync, int, a < b ? a : b)
LEVIN_SIMT_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
LEVIN_SIMT_REDUCE(__reduce_max_sync, int, a > b ? a : b)
LEVIN_SIMT_REDUCE(__reduce_and_sync, unsigned, a& b)
LEVIN_SIMT_REDUCE(__reduce_or_sync, unsigned, a | b)
LEVIN_SIMT_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef LEVIN_SIMT_REDUCE

// ---- Atomics, for CUDA's types alone: int64_t is `long` here and CUDA has none for it
template <levin::simt::OneOf<int, unsigned, unsigned long long, float, double> T>
inline T atomicAdd(T* p, std::type_identity_t<T> x) {
  if constexpr (std::is_floating_point_v<T>) {
    return levin::simt::atomic_change(p, [x](T old) { return old + x; });
  } else {
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
  }
}
template <levin::simt::OneOf<int, unsigned> T>
inline T atomicSub(T* p, std::type_identity_t<T> x) {
  return __atomic_fetch_sub(p, x, __ATOMIC_RELAXED);
}
template <levin::simt::OneOf<int, unsigned, long long, unsigned long long> T>
inline T atomicMax(T* p, std::type_identity_t<T> x) {
  return levin::simt::atomic_change(p, [x](T old) { return old > x ? old : x; });
}
template <levin::simt::OneOf<int, unsigned, long long, unsigned long long> T>
inline T atomicMin(T* p, std::type_identity_t<T> x) {
  return levin::simt::atomic_change(p, [x](T old) { return old < x ? old : x; });
}
template <levin::simt::OneOf<int, unsigned, unsigned long long, float> T>
inline T atomicExch(T* p, std::type_identity_t<T> x) {
  return levin::simt::atomic_change(p, [x](T) { return x; });
}
template <levin::simt::OneOf<unsigned short, int, unsigned, unsigned long long> T>
inline T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> x) {
  __atomic_compare_exchange(p, &expected, &x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <levin::simt::OneOf<int, unsigned, unsigned long long> T>
inline T atomicAnd(T* p, std::type_identity_t<T> x) {
  return __atomic_fetch_and(p, x, __ATOMIC_RELAXED);
}
template <levin::simt::OneOf<int, unsigned, unsigned long long> T>
inline T atomicOr(T* p, std::type_identity_t<T> x) {
  return __atomic_fetch_or(p, x, __ATOMIC_RELAXED);
}
template <levin::simt::OneOf<int, unsigned, unsigned long long> T>
inline T atomicXor(T* p, std::type_identity_t<T> x) {
  return __atomic_fetch_xor(p, x, __ATOMIC_RELAXED);
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
  return levin::simt::atomic_change(p, [last](unsigned old) { return old >= last ? 0 : old + 1; });
}

// ---- Loads and stores with cache hints: hints alone, but addresses must be aligned as a GPU wants them
#define LEVIN_SIMT_LOAD(name)                                                      \
  template <class T>                                                               \
  inline T name(const T* p, levin::simt::Site at = levin::simt::Site::current()) { \
    levin::simt::check_aligned(p, alignof(T), at);                                 \
    return *p;                                                                     \
  }
#define LEVIN_SIMT_STORE(name)                                                                             \
  template <class T>                                                                                       \
  inline void name(T* p, std::type_identity_t<T> x, levin::simt::Site at = levin::simt::Site::current()) { \
    levin::simt::check_aligned(p, alignof(T), at);                                                         \
    *p = x;                                                                                                \
  }
LEVIN_SIMT_LOAD(__ldg)
LEVIN_SIMT_LOAD(__ldcs)
LEVIN_SIMT_LOAD(__ldcg)
LEVIN_SIMT_LOAD(__ldca)
LEVIN_SIMT_STORE(__stcs)
LEVIN_SIMT_STORE(__stcg)
#undef LEVIN_SIMT_LOAD
#undef LEVIN_SIMT_STORE

// ---- Integers
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)(a)*b >> 32); }
inline int __mulhi(int a, int b) { return int((long long)(a)*b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return (unsigned long long)(Wide(a) * b >> 64);
}

// ---- Floats. The names ending in _rn round this operation alone and are never contracted.
inline float __fadd_rn(float a, float b) { return levin::simt::rounded(a + b); }
inline float __fsub_rn(float a, float b) { return levin::simt::rounded(a - b); }
inline float __fmul_rn(float a, float b) { return levin::simt::rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return levin::simt::rounded(a / b); }
inline float __frcp_rn(float a) { return levin::simt::rounded(1.0f / a); }
inline float __fsqrt_rn(float a) { return levin::simt::rounded(__builtin_sqrtf(a)); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return levin::simt::rounded(a + b); }
inline double __dsub_rn(double a, double b) { return levin::simt::rounded(a - b); }
inline double __dmul_rn(double a, double b) { return levin::simt::rounded(a * b); }
inline double __ddiv_rn(double a, double b) { return levin::simt::rounded(a / b); }
inline double __dsqrt_rn(double a) { return levin::simt::rounded(__builtin_sqrt(a)); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }

// ---- min and max: the common type of C++, and of two floats the one that is a number
#define LEVIN_SIMT_MIN_MAX(R, A, B)                                                       \
  inline constexpr R min(A a, B b) {                                                      \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }                                                                                       \
  inline constexpr R max(A a, B b) {                                                      \
    return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }
LEVIN_SIMT_MIN_MAX(int, int, int)
LEVIN_SIMT_MIN_MAX(unsigned, unsigned, unsigned)
LEVIN_SIMT_MIN_MAX(unsigned, int, unsigned)
LEVIN_SIMT_MIN_MAX(unsigned, unsigned, int)
LEVIN_SIMT_MIN_MAX(long, long, long)
LEVIN_SIMT_MIN_MAX(unsigned long, unsigned long, unsigned long)
LEVIN_SIMT_MIN_MAX(unsigned long, long, unsigned long)
LEVIN_SIMT_MIN_MAX(unsigned long, unsigned long, long)
LEVIN_SIMT_MIN_MAX(long long, long long, long long)
LEVIN_SIMT_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
LEVIN_SIMT_MIN_MAX(unsigned long long, long long, unsigned long long)
LEVIN_SIMT_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef LEVIN_SIMT_MIN_MAX
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
inline double min(float a, double b) { return __builtin_fmin(double(a), b); }
inline double max(float a, double b) { return __builtin_fmax(double(a), b); }
inline double min(double a, float b) { return __builtin_fmin(a, double(b)); }
inline double max(double a, float b) { return __builtin_fmax(a, double(b)); }
