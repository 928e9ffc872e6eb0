// Tensor cores and asynchronous copies, by PTX. The host compiler gets the same, lane for lane, from
// kernels/simt/tensor_core.cpp. All 32 lanes of a warp call ldmatrix and mma together.
//
//   mma_m16n8k16<T>(d, a, b, c)   d = a * b + c for T f16 or bf16, sums in f32; a [16, 16] by rows, b [16, 8] by
//       columns, c, d [16, 8]. With g = lane / 4, t = lane % 4 and two elements a register, the lower column or row in
//       the low half:
//         a[0]: row g,     columns 2t, 2t + 1      a[2]: row g,     columns 2t + 8, 2t + 9
//         a[1]: row g + 8, columns 2t, 2t + 1      a[3]: row g + 8, columns 2t + 8, 2t + 9
//         b[0]: rows 2t, 2t + 1, column g          b[1]: rows 2t + 8, 2t + 9, column g
//         c[0], c[1]: row g, columns 2t, 2t + 1    c[2], c[3]: row g + 8, columns 2t, 2t + 1
//   ldmatrix_x4(r, row)           four 8 x 8 matrices of 2-byte elements from shared memory: lane 8 m + i gives the
//       address of row i of matrix m, 16 bytes, aligned to 16. r[m]: row g, columns 2t, 2t + 1 of matrix m. `_trans`:
//       column g, rows 2t, 2t + 1. An a fragment is the four quarters of [16, 16] in the order top left, bottom left,
//       top right, bottom right, and b stored as [k, n] by rows is loaded by _trans.
//   cp_async_16(shared, global, valid)   16 bytes, both aligned to 16, to be there after a wait of this thread; zeros
//       when not valid (global is then not read). cp_async_commit() closes a group of copies, cp_async_wait<N>() waits
//       for all groups of this thread but the newest N. Other threads see the bytes after a barrier after the wait.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/language.h"
#include "levin/dtype.h"

namespace levin::kernels::gpu {

template <class T>
concept TensorCoreHalf = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

#if defined(__CUDACC__)

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

template <TensorCoreHalf T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                             const float (&c)[4]) {
  if constexpr (std::is_same_v<T, f16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, "
        "%12, "
        "%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, "
        "%12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  }
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroupsLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

#else

template <TensorCoreHalf T>
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                         simt::Site at = simt::Site::current()) {
  simt::mma_m16n8k16(std::is_same_v<T, f16> ? simt::Half::f16 : simt::Half::bf16, d, a, b, c, at);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, simt::Site at = simt::Site::current()) {
  simt::load_matrices(r, row, false, at);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, simt::Site at = simt::Site::current()) {
  simt::load_matrices(r, row, true, at);
}
inline void cp_async_16(void* shared, const void* global, bool valid = true, simt::Site at = simt::Site::current()) {
  simt::copy_async_16(shared, global, valid, at);
}
inline void cp_async_commit() { simt::copy_async_commit(); }
template <int kGroupsLeft>
inline void cp_async_wait() {
  simt::copy_async_wait(kGroupsLeft);
}

#endif

}  // namespace levin::kernels::gpu
