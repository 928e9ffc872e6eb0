// Products of f16 and bf16 matrices on compute capability 9.0, with an epilogue:
//
//   y [m, n] = epilogue(a [m, k] b [n, k]^T + bias)      sums in f32; gemm_hopper.h is the host's side
//
// Note [A product that threads do not load]
// A grid of as many blocks as the device has multiprocessors goes through the tiles of y, [128, kN]. Of a block's three
// warpgroups one copies tiles of a and b, 64 deep, to a ring of four stages, by TMA; the other two multiply by wgmma,
// 64 rows each, and share the tile of b. Barriers `full` count the bytes of a stage, barriers `empty` the warps that
// have read it. The ring does not drain between tiles: copies for the next tile run beside the epilogue of this one.
// The epilogue takes 64 columns at a time: bias, GELU, rounding, stmatrix into a panel of 8 KiB, TMA to y. Each
// consumer has two panels, so that one is written while the other is read. TMA clips what lies outside of y, and reads
// zeros outside of a and b. Blocks that follow each other share columns of b for eight row tiles, which L2 then holds.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/hardware_math.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/panel.cuh"
#include "kernels/math/gelu.h"

namespace levin::kernels::gpu {

inline constexpr int kHopperRows = 128, kHopperDepth = 64, kHopperStages = 4;
inline constexpr int kHopperThreads = 384;
template <int kN>
inline constexpr unsigned kHopperStage = (kHopperRows + kN) * kHopperDepth * 2;
template <int kN>
inline constexpr unsigned kHopperBytes = kAtom + kHopperStages* kHopperStage<kN> + 4 * kPanelBytes +
                                         2 * kHopperStages * sizeof(Barrier);

// An epilogue without a function, beside GeluErf and GeluTanh.
struct NoForm {
  static __device__ __forceinline__ float half_value(float x) { return x; }
};

// The tiles of y in the order in which blocks take them.
struct HopperTiles {
  int row_tiles, column_tiles, steps;  // steps: stages of a tile
  [[nodiscard]] __device__ __forceinline__ int count() const { return row_tiles * column_tiles; }
  struct At {
    int row, column;
  };
  template <int kN>
  [[nodiscard]] __device__ __forceinline__ At at(int tile) const {
    const int band = 8 * column_tiles, first = tile / band * 8, rows = min(8, row_tiles - first);
    const int in = tile % band;
    return {(first + in % rows) * kHopperRows, in / rows * kN};
  }
};

// One lane fills the ring.
template <int kN, Major kMajorA, Major kMajorB>
__device__ __forceinline__ void hopper_produce(const TensorMap& a, const TensorMap& b, const HopperTiles& tiles,
                                               unsigned char* ring, Barrier* full, Barrier* empty) {
  constexpr unsigned kBytesA = kHopperRows * kHopperDepth * 2;
  int step = 0;  // over all tiles of the block
  for (int tile = int(blockIdx.x); tile < tiles.count(); tile += int(gridDim.x)) {
    const HopperTiles::At at = tiles.at<kN>(tile);
    for (int s = 0; s < tiles.steps; ++s, ++step) {
      const int stage = step % kHopperStages, round = step / kHopperStages, k = s * kHopperDepth;
      unsigned char* const to_a = ring + unsigned(stage) * kHopperStage<kN>;
      unsigned char* const to_b = to_a + kBytesA;
      empty[stage].wait(round - 1);
      full[stage].arrive_expect(kHopperStage<kN>);
      if constexpr (kMajorA == Major::k) {
        tma_load(to_a, a, k, at.row, full[stage]);
      } else {
#pragma unroll
        for (int p = 0; p < kHopperRows / 64; ++p) tma_load(to_a + p * kPanelBytes, a, at.row + p * 64, k, full[stage]);
      }
      if constexpr (kMajorB == Major::k) {
        tma_load(to_b, b, k, at.column, full[stage]);
      } else {
#pragma unroll
        for (int p = 0; p < kN / 64; ++p) tma_load(to_b + p * kPanelBytes, b, at.column + p * 64, k, full[stage]);
      }
    }
  }
}

// The sums of a tile's 64 rows, from the ring. Returns the next step.
template <class T, int kN, Major kMajorA, Major kMajorB>
__device__ __forceinline__ int hopper_multiply(float (&d)[kN / 2], int step, int steps, int consumer,
                                               unsigned char* ring, Barrier* full, Barrier* empty) {
  constexpr unsigned kNextA = kMajorA == Major::k ? 32 : 2 * kAtom, kNextB = kMajorB == Major::k ? 32 : 2 * kAtom;
  const bool releases = threadIdx.x % 32 == 0;
  for (int s = 0; s < steps; ++s, ++step) {
    const int stage = step % kHopperStages;
    unsigned char* const from = ring + unsigned(stage) * kHopperStage<kN>;
    full[stage].wait(step / kHopperStages);
    // Of both directions, 64 rows of a are a panel.
    const std::uint64_t a = descriptor<kMajorA>(from + unsigned(consumer) * kPanelBytes, kPanelBytes);
    const std::uint64_t b = descriptor<kMajorB>(from + kHopperRows * kHopperDepth * 2, kPanelBytes);
    wgmma_fence();
#pragma unroll
    for (unsigned kk = 0; kk < kHopperDepth / 16; ++kk)
      wgmma<T, kN, kMajorA, kMajorB>(d, a + kk * (kNextA >> 4), b + kk * (kNextB >> 4), s > 0 || kk > 0);
    wgmma_commit();
    if (s > 0) {  // the stage before has been read
      wgmma_wait<1>();
      if (releases) empty[(step - 1) % kHopperStages].arrive();
    }
  }
  wgmma_wait<0>();
  wgmma_registers(d);
  if (releases) empty[(step - 1) % kHopperStages].arrive();
  return step;
}

// 64 columns of the sums to y by a panel; all threads of a consumer.
template <class T, int kConsumer>
__device__ __forceinline__ void store_panel(const float (&values)[32], unsigned char* panel, const TensorMap& y,
                                            int column, int row) {
  const bool stores = threadIdx.x % 128 == 0;
  if (stores) bulk_wait_read<1>();  // the panel was last stored from two panels ago
  named_barrier<1 + kConsumer>(128);
  put_panel<T, 0>(values, panel);
  fence_async_shared();
  named_barrier<1 + kConsumer>(128);
  if (stores) {
    tma_store(y, column, row, panel);
    bulk_commit();
  }
}

template <class T, int kN, int kConsumer, class Form, bool kBefore>
__device__ __forceinline__ void hopper_epilogue(const float (&d)[kN / 2], const HopperTiles::At& at, int n,
                                                const T* bias, const TensorMap& y, const TensorMap& before,
                                                unsigned char* panels, int& turn) {
  const int row = at.row + kConsumer * 64;
#pragma unroll
  for (int p = 0; p < kN / kPanelColumns; ++p) {
    const int column = at.column + p * kPanelColumns;
    if (column >= n) break;
    float values[32];
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int j = column + i / 4 * 8 + int(threadIdx.x) % 4 * 2;
      values[i] = d[p * 32 + i] + (bias != nullptr && j < n ? float(bias[j]) : 0.0f);
      values[i + 1] = d[p * 32 + i + 1] + (bias != nullptr && j + 1 < n ? float(bias[j + 1]) : 0.0f);
    }
    if constexpr (kBefore) store_panel<T, kConsumer>(values, panels + turn++ % 2 * kPanelBytes, before, column, row);
#pragma unroll
    for (float& value : values) value = Form::half_value(value);
    store_panel<T, kConsumer>(values, panels + turn++ % 2 * kPanelBytes, y, column, row);
  }
}

template <class T, int kN, int kConsumer, Major kMajorA, Major kMajorB, class Form, bool kBefore>
__device__ __forceinline__ void hopper_consume(const HopperTiles& tiles, int n, const T* bias, const TensorMap& y,
                                               const TensorMap& before, unsigned char* ring, Barrier* full,
                                               Barrier* empty) {
  unsigned char* const panels = ring + kHopperStages * kHopperStage<kN> + 2 * kConsumer * kPanelBytes;
  int step = 0, turn = 0;
  alignas(16) float d[kN / 2];
  for (int tile = int(blockIdx.x); tile < tiles.count(); tile += int(gridDim.x)) {
    step = hopper_multiply<T, kN, kMajorA, kMajorB>(d, step, tiles.steps, kConsumer, ring, full, empty);
    hopper_epilogue<T, kN, kConsumer, Form, kBefore>(d, tiles.at<kN>(tile), n, bias, y, before, panels, turn);
  }
  if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // shared memory ends with the block
}

template <class T, int kN, Major kMajorA, Major kMajorB, class Form, bool kBefore>
__global__ void __launch_bounds__(kHopperThreads, 1)
    gemm_hopper(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                const __grid_constant__ TensorMap y, const __grid_constant__ TensorMap before, HopperTiles tiles, int n,
                const T* bias) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  unsigned char* const ring = atom_aligned(bytes);
  Barrier* const full = reinterpret_cast<Barrier*>(ring + kHopperStages * kHopperStage<kN> + 4 * kPanelBytes);
  Barrier* const empty = full + kHopperStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kHopperStages; ++s) {
      full[s].init(1);
      empty[s].init(8);  // a lane of each consumer warp
    }
    fence_barrier_init();
  }
  __syncthreads();
  // From a shuffle: ptxas then knows that a warp does not diverge on it.
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0);
  if (warp < 4) {
    registers_give<40>();
    if (warp == 0 && elect()) hopper_produce<kN, kMajorA, kMajorB>(a, b, tiles, ring, full, empty);
  } else if (warp < 8) {
    registers_take<232>();
    hopper_consume<T, kN, 0, kMajorA, kMajorB, Form, kBefore>(tiles, n, bias, y, before, ring, full, empty);
  } else {
    registers_take<232>();
    hopper_consume<T, kN, 1, kMajorA, kMajorB, Form, kBefore>(tiles, n, bias, y, before, ring, full, empty);
  }
}

}  // namespace levin::kernels::gpu
