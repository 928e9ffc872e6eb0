// Panels: 64 lines of 64 numbers of 16 bits in shared memory, with the 128-byte swizzle in which TMA and wgmma take
// them, 8 KiB at a multiple of 1024. A warpgroup writes its sums of a wgmma there.
#pragma once

#include <cstdint>

#include "kernels/device/hardware_math.cuh"
#include "kernels/device/hopper.cuh"

namespace levin::kernels::gpu {

inline constexpr int kPanelColumns = 64;
inline constexpr unsigned kPanelBytes = 64 * kPanelColumns * 2;

// 64 columns of a warpgroup's sums, d[kFrom] to d[kFrom + 31], rounded to T. fence_async_shared and a barrier come
// before TMA or wgmma reads the panel.
template <class T, int kFrom, int kCount>
__device__ __forceinline__ void put_panel(const float (&d)[kCount], unsigned char* panel) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
  const int to_row = warp * 16 + lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int i = kFrom + 8 * c;
    const std::uint32_t r[4] = {rounded_pair<T>(d[i], d[i + 1]), rounded_pair<T>(d[i + 2], d[i + 3]),
                                rounded_pair<T>(d[i + 4], d[i + 5]), rounded_pair<T>(d[i + 6], d[i + 7])};
    const int piece = 2 * c + lane / 16;
    stmatrix_x4(panel + to_row * 128 + (piece ^ to_row % 8) * 16, r);
  }
}

// The numbers of a panel where put_panel puts d[0] to d[31], which it may then overwrite.
template <class T>
__device__ __forceinline__ void get_panel(float (&d)[32], const unsigned char* panel) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4, row = warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int at = row + i / 2 % 2 * 8;
    const T* const pair = reinterpret_cast<const T*>(panel + at * 128 + (i / 4 ^ at % 8) * 16 + lane % 4 * 4);
    d[i] = float(pair[0]);
    d[i + 1] = float(pair[1]);
  }
  __syncwarp();  // a warp's rows are its own
}

}  // namespace levin::kernels::gpu
