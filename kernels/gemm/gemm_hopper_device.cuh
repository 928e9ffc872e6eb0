// Products of f16 and bf16 matrices on compute capability 9.0, with an epilogue:
//
//   y [m, n] = epilogue(a [m, k] b [n, k]^T + bias)      sums in f32; gemm_hopper.h is the host's side
//   y [m, n] = (a [m, k] b [n, k]^T) gelu'(z [m, n])
//
// Note [A product that threads do not load]
// A grid of as many blocks as the device has multiprocessors goes through the tiles of y, [128, kN]. Of a block's three
// warpgroups one copies tiles of a and b, 64 deep, to a ring of four stages, by TMA; the other two multiply by wgmma,
// 64 rows each, and share the tile of b. Barriers `full` count the bytes of a stage, barriers `empty` the warps that
// have read it. The ring does not drain between tiles: copies for the next tile run beside the epilogue of this one.
// The epilogue takes 64 columns at a time: bias, GELU, rounding, stmatrix into a panel of 8 KiB, TMA to y. Each
// consumer has two panels, so that one is written while the other is read. Of z, the first panel of a tile is copied
// while the consumers multiply, each further one beside the one before; y overwrites it. TMA clips what lies outside of
// y, and reads zeros outside of a, b and z. Blocks that follow each other share columns of b for eight row tiles, which
// L2 then holds.
//
// In a cluster of two blocks, both have the same columns and neighbouring rows: each copies half of a tile of b into
// both, so that L2 sends 32 KiB a step and block instead of 48. A stage is then free when the warps of both have read
// it, and their turns through the tiles are the same, also where the second block's rows lie beyond y.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/cluster.cuh"
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
                                         (2 * kHopperStages + 4) * sizeof(Barrier);

// An epilogue without a function, beside GeluErf and GeluTanh.
struct NoForm {
  static __device__ __forceinline__ float half_value(float x) { return x; }
};

// What `before` is to the epilogue: nothing, what GELU is applied to, or what its slope is taken at.
enum class Before : std::uint8_t { none, written, read };

// The tiles of y in the order in which clusters of `peers` blocks, 1 or 2, take a group of as many below each other.
struct HopperTiles {
  int row_groups, column_tiles, steps, peers;  // steps: stages of a tile
  [[nodiscard]] __host__ __device__ int groups() const { return row_groups * column_tiles; }
  struct At {
    int row, column;
  };
  template <int kN>
  [[nodiscard]] __device__ __forceinline__ At at(int group) const {
    const int most = 8 / peers, band = most * column_tiles, first = group / band * most;
    const int rows = min(most, row_groups - first), in = group % band;
    return {((first + in % rows) * peers + cluster_rank()) * kHopperRows, in / rows * kN};
  }
  // The groups of this block's cluster are first(), first() + stride(), ..
  [[nodiscard]] __device__ __forceinline__ int first() const { return int(blockIdx.x) / peers; }
  [[nodiscard]] __device__ __forceinline__ int stride() const { return int(gridDim.x) / peers; }
};

// One box of a tile of b, to this block or to both of a cluster.
__device__ __forceinline__ void load_shared_box(unsigned char* to, const TensorMap& b, int x, int y, Barrier& full,
                                                int peers) {
  if (peers == 1) {
    tma_load(to, b, x, y, full);
  } else {
    tma_load(to, b, x, y, full, Ranks{3});
  }
}

// One lane fills the ring.
template <int kN, Major kMajorA, Major kMajorB>
__device__ __forceinline__ void hopper_produce(const TensorMap& a, const TensorMap& b, const HopperTiles& tiles,
                                               unsigned char* ring, Barrier* full, Barrier* empty) {
  constexpr unsigned kBytesA = kHopperRows * kHopperDepth * 2;
  // Of b: this block's part.
  const int lines = kN / tiles.peers, first_line = lines * cluster_rank();
  int step = 0;  // over all tiles of the block
  for (int group = tiles.first(); group < tiles.groups(); group += tiles.stride()) {
    const HopperTiles::At at = tiles.at<kN>(group);
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
        load_shared_box(to_b + first_line * kHopperDepth * 2, b, k, at.column + first_line, full[stage], tiles.peers);
      } else {
        for (int l = first_line; l < first_line + lines; l += 64)
          load_shared_box(to_b + l / 64 * kPanelBytes, b, at.column + l, k, full[stage], tiles.peers);
      }
    }
  }
}

// The sums of a tile's 64 rows, from the ring. Returns the next step.
template <class T, int kN, Major kMajorA, Major kMajorB>
__device__ __forceinline__ int hopper_multiply(float (&d)[kN / 2], int step, const HopperTiles& tiles, int consumer,
                                               unsigned char* ring, Barrier* full, Barrier* empty) {
  constexpr unsigned kNextA = kMajorA == Major::k ? 32 : 2 * kAtom, kNextB = kMajorB == Major::k ? 32 : 2 * kAtom;
  // A lane for each block that copies into this one.
  const int lane = int(threadIdx.x) % 32;
  const auto release = [&](int stage) {
    if (lane < tiles.peers) remote(empty + stage, lane).arrive();
  };
  for (int s = 0; s < tiles.steps; ++s, ++step) {
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
      release((step - 1) % kHopperStages);
    }
  }
  wgmma_wait<0>();
  wgmma_registers(d);
  release((step - 1) % kHopperStages);
  return step;
}

// 64 columns of the sums to y by a panel; all threads of a consumer.
template <class T, int kConsumer, bool kIsFree>
__device__ __forceinline__ void store_panel(const float (&values)[32], unsigned char* panel, const TensorMap& y,
                                            int column, int row) {
  const bool stores = threadIdx.x % 128 == 0;
  if constexpr (!kIsFree) {
    if (stores) bulk_wait_read<1>();  // the panel was last stored from two panels ago
    named_barrier<1 + kConsumer>(128);
  }
  put_panel<T, 0>(values, panel);
  fence_async_shared();
  named_barrier<1 + kConsumer>(128);
  if (stores) {
    tma_store(y, column, row, panel);
    bulk_commit();
  }
}

// A consumer's two panels, by turns, and the barriers that count what is copied into them.
struct HopperPanels {
  unsigned char* bytes;
  Barrier* full;
  int turn = 0;

  [[nodiscard]] __device__ __forceinline__ unsigned char* at(int t) const { return bytes + t % 2 * kPanelBytes; }
  // One thread: 64 columns of z for turn t, once the last store from that panel has read it; kStoresLeft stores are
  // younger.
  template <int kStoresLeft>
  __device__ __forceinline__ void load(int t, const TensorMap& z, int column, int row) const {
    bulk_wait_read<kStoresLeft>();
    full[t % 2].arrive_expect(kPanelBytes);
    tma_load(at(t), z, column, row, full[t % 2]);
  }
};

template <class T, int kN, int kConsumer, class Form, Before kBefore>
__device__ __forceinline__ void hopper_epilogue(const float (&d)[kN / 2], const HopperTiles::At& at, int n,
                                                const T* bias, const TensorMap& y, const TensorMap& before,
                                                HopperPanels& panels) {
  const int row = at.row + kConsumer * 64;
#pragma unroll
  for (int p = 0; p < kN / kPanelColumns; ++p) {
    const int column = at.column + p * kPanelColumns, next = column + kPanelColumns;
    if (column >= n) break;
    float values[32];
    if constexpr (kBefore == Before::read) {
      if (threadIdx.x % 128 == 0 && p + 1 < kN / kPanelColumns && next < n)
        panels.load<0>(panels.turn + 1, before, next, row);
      panels.full[panels.turn % 2].wait(panels.turn / 2);
      get_panel<T>(values, panels.at(panels.turn));
#pragma unroll
      for (int i = 0; i < 32; ++i) values[i] = d[p * 32 + i] * Form::half_slope(values[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int j = column + i / 4 * 8 + int(threadIdx.x) % 4 * 2;
        values[i] = d[p * 32 + i] + (bias != nullptr && j < n ? float(bias[j]) : 0.0f);
        values[i + 1] = d[p * 32 + i + 1] + (bias != nullptr && j + 1 < n ? float(bias[j + 1]) : 0.0f);
      }
      if constexpr (kBefore == Before::written)
        store_panel<T, kConsumer, false>(values, panels.at(panels.turn++), before, column, row);
#pragma unroll
      for (float& value : values) value = Form::half_value(value);
    }
    store_panel<T, kConsumer, kBefore == Before::read>(values, panels.at(panels.turn++), y, column, row);
  }
}

template <class T, int kN, int kConsumer, Major kMajorA, Major kMajorB, class Form, Before kBefore>
__device__ __forceinline__ void hopper_consume(const HopperTiles& tiles, int n, const T* bias, const TensorMap& y,
                                               const TensorMap& before, unsigned char* ring, Barrier* full,
                                               Barrier* empty) {
  HopperPanels panels{ring + kHopperStages * kHopperStage<kN> + 2 * kConsumer * kPanelBytes,
                      empty + kHopperStages + 2 * kConsumer};
  int step = 0;
  alignas(16) float d[kN / 2];
  for (int group = tiles.first(); group < tiles.groups(); group += tiles.stride()) {
    const HopperTiles::At at = tiles.at<kN>(group);
    if constexpr (kBefore == Before::read) {
      if (threadIdx.x % 128 == 0) panels.load<1>(panels.turn, before, at.column, at.row + kConsumer * 64);
    }
    step = hopper_multiply<T, kN, kMajorA, kMajorB>(d, step, tiles, kConsumer, ring, full, empty);
    hopper_epilogue<T, kN, kConsumer, Form, kBefore>(d, at, n, bias, y, before, panels);
  }
  if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // shared memory ends with the block
}

template <class T, int kN, Major kMajorA, Major kMajorB, class Form, Before kBefore>
__global__ void __launch_bounds__(kHopperThreads, 1)
    gemm_hopper(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                const __grid_constant__ TensorMap y, const __grid_constant__ TensorMap before, HopperTiles tiles, int n,
                const T* bias) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  unsigned char* const ring = atom_aligned(bytes);
  Barrier* const full = reinterpret_cast<Barrier*>(ring + kHopperStages * kHopperStage<kN> + 4 * kPanelBytes);
  Barrier* const empty = full + kHopperStages;  // then two of each consumer's panels
  if (threadIdx.x == 0) {
    for (int s = 0; s < kHopperStages; ++s) {
      full[s].init(1);
      empty[s].init(8 * unsigned(tiles.peers));  // a lane of each consumer warp of the cluster
    }
    for (int p = 0; p < 4; ++p) empty[kHopperStages + p].init(1);
    fence_barrier_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
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
  __syncwarp();
  cluster_arrive_relaxed();  // the other block may still release a stage of this one
  cluster_wait();
}

}  // namespace levin::kernels::gpu
