// Attention on compute capability 9.0, forward, for f16 and bf16: y = softmax(scale q k^T) v for each head. Sources:
// Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024. attention_hopper.h is the host's side.
//
//   q: [rows, width], k, v: [cols, width], y: [rows, width] for each head of each batch, by maps; width 64 or 128;
//   lse: [batches, heads, rows] f32, the logarithm of each row's sum of exponentials. causal: row i sees columns 0 to
//   i. A row of which all scores are -inf gets NaN, as softmax of it is, and -inf as its lse.
//
// Note [Attention that threads do not load]
// A block takes 64 rows a consumer, which is a warpgroup, and goes over the columns from the last it sees down, 128 at
// a time. One lane of the first warpgroup copies q, and tiles of k and v to two stages each, by TMA. Barriers `full`
// count the bytes of a stage, barriers `empty` the warps that have read it.
//   A consumer issues the scores of a tile and the weighted sum of the tile before together. The exponentials of the
// former then run beside the latter. Consumers issue in turn, by barriers `order`, so that the exponentials of one run
// beside the products of another. Weights are rounded to T in registers, where they lie as the left operand of the sum.
// Columns beyond the edge or the diagonal lie in the first tiles that a consumer takes: only its loop over these
// compares. y leaves through q's place in shared memory. One block owns a row and the order of columns is fixed, so the
// bits repeat.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention/attention_device.cuh"
#include "kernels/device/hardware_math.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/panel.cuh"

namespace levin::kernels::gpu {

struct HopperRows {
  int rows, cols, heads, row_tiles;  // row_tiles: blocks of a head
  float scale;                       // above 0
  bool causal;
};

inline constexpr int kHopperKeys = 128;  // columns of a tile

struct HopperBarriers {
  Barrier full_q, full_k[2], full_v[2], empty_k[2], empty_v[2], order[3];
};

// How a block is cut. The registers of a thread: 64 scores, kWidth / 2 sums, 32 pairs of weights.
template <int kWidth>
struct HopperHead {
  static constexpr int kConsumers = kWidth == 128 ? 2 : 3, kRows = 64 * kConsumers, kThreads = 128 + 128 * kConsumers;
  static constexpr int kGive = kWidth == 128 ? 24 : 32, kTake = kWidth == 128 ? 240 : 160;
  static constexpr int kPanels = kWidth / kPanelColumns;
  static constexpr unsigned kRowPanel = kRows * 128, kKeyPanel = kHopperKeys * 128;  // bytes of 64 columns of a tile
  static constexpr unsigned kRowBytes = kPanels * kRowPanel, kKeyBytes = kPanels * kKeyPanel;
  static constexpr unsigned kBytes = kAtom + kRowBytes + 4 * kKeyBytes + sizeof(HopperBarriers);
};

// The block's shared memory: q, two stages of k, two of v, barriers.
template <int kWidth>
struct HopperMemory {
  using Head = HopperHead<kWidth>;
  unsigned char* q;
  [[nodiscard]] __device__ __forceinline__ unsigned char* k(int stage) const {
    return q + Head::kRowBytes + unsigned(stage) * Head::kKeyBytes;
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* v(int stage) const { return k(2 + stage); }
  [[nodiscard]] __device__ __forceinline__ HopperBarriers& barriers() const {
    return *reinterpret_cast<HopperBarriers*>(k(4));
  }
};

// What a block computes. Tile j of its `tiles` begins at column key(j).
struct HopperBlock {
  int first, tiles;  // the first row
  MapHead of;
  [[nodiscard]] __device__ __forceinline__ int key(int j) const { return (tiles - 1 - j) * kHopperKeys; }
};

// One lane fills the stages.
template <int kWidth>
__device__ __forceinline__ void attention_produce(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                                  const HopperBlock& block, const HopperMemory<kWidth>& memory) {
  using Head = HopperHead<kWidth>;
  HopperBarriers& at = memory.barriers();
  const auto load = [&](const TensorMap& map, unsigned char* to, unsigned panel, int line, Barrier& full) {
    full.arrive_expect(Head::kPanels * panel);
#pragma unroll
    for (int p = 0; p < Head::kPanels; ++p)
      tma_load(to + unsigned(p) * panel, map, p * kPanelColumns, line, block.of, full);
  };
  load(q, memory.q, Head::kRowPanel, block.first, at.full_q);
  for (int j = 0; j <= block.tiles; ++j) {  // v of a tile is read after k of the next
    if (j < block.tiles) {
      at.empty_k[j % 2].wait(j / 2 - 1);
      load(k, memory.k(j % 2), Head::kKeyPanel, block.key(j), at.full_k[j % 2]);
    }
    if (j == 0) continue;
    const int i = j - 1;
    at.empty_v[i % 2].wait(i / 2 - 1);
    load(v, memory.v(i % 2), Head::kKeyPanel, block.key(i), at.full_v[i % 2]);
  }
}

// What a thread of a consumer keeps of rows g and g + 8 of its warp's 16.
template <int kWidth>
struct HopperSums {
  float y[kWidth / 2];
  std::uint32_t weights[kHopperKeys / 16][4];
  float most[2], total[2];  // of the scores before their scale; total: of this lane's columns alone
};

// scores = q k^T of a consumer's rows and a stage.
template <class T, int kWidth>
__device__ __forceinline__ void issue_scores(float (&scores)[64], const unsigned char* q, const unsigned char* k) {
  using Head = HopperHead<kWidth>;
  const std::uint64_t a = descriptor<Major::k>(q), b = descriptor<Major::k>(k);
#pragma unroll
  for (unsigned d = 0; d < kWidth / 16; ++d) {
    wgmma<T, kHopperKeys>(scores, a + ((d / 4 * Head::kRowPanel + d % 4 * 32) >> 4),
                          b + ((d / 4 * Head::kKeyPanel + d % 4 * 32) >> 4), d > 0);
  }
  wgmma_commit();
}
// y = weights v, plus y where there were tiles before.
template <class T, int kWidth>
__device__ __forceinline__ void issue_sums(HopperSums<kWidth>& sums, const unsigned char* v, int before) {
  const std::uint64_t b = descriptor<Major::mn>(v, HopperHead<kWidth>::kKeyPanel);
#pragma unroll
  for (unsigned c = 0; c < kHopperKeys / 16; ++c) {
    wgmma<T, kWidth, Major::mn>(sums.y, sums.weights[c], b + c * (2 * kAtom >> 4), before > 0 || c > 0);
  }
  wgmma_commit();
}

enum class Edge : std::uint8_t { none, within };  // whether a row may not see all columns of a tile

// Scores become weights, up to their sum. seen[r]: how many columns of the tile row r sees, from this lane's first on.
// Returns by how much earlier sums shrink.
template <Edge kEdge, int kWidth>
__device__ __forceinline__ float2 weigh(float (&scores)[64], HopperSums<kWidth>& sums, float scale,
                                        const int (&seen)[2]) {
  float base[2], shrink[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = sums.most[r];
#pragma unroll
    for (int c = 0; c < kHopperKeys / 4; ++c) {
      const int i = c / 2 * 4 + 2 * r + c % 2;
      if (kEdge == Edge::within && c / 2 * 8 + c % 2 >= seen[r]) scores[i] = -INFINITY;
      largest = fmaxf(largest, scores[i]);
    }
    largest = row_max(largest);
    base[r] = largest == -INFINITY ? 0.0f : largest * scale;  // -inf - -inf is no number
    shrink[r] = unit::exp2(sums.most[r] * scale - base[r]);
    sums.most[r] = largest;
    sums.total[r] *= shrink[r];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    scores[i] = unit::exp2(scores[i] * scale - base[i / 2 % 2]);
    sums.total[i / 2 % 2] += scores[i];
  }
  return {shrink[0], shrink[1]};
}

template <class T, int kWidth>
__device__ __forceinline__ void round_weights(HopperSums<kWidth>& sums, const float (&weights)[64]) {
#pragma unroll
  for (int c = 0; c < kHopperKeys / 16; ++c) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      sums.weights[c][r] = rounded_pair<T>(weights[8 * c + 2 * r], weights[8 * c + 2 * r + 1]);
  }
}

// A consumer's place in the block.
template <int kWidth>
struct HopperConsumer {
  HopperMemory<kWidth> memory;
  HopperBlock block;
  int index, limit[2];  // limit: how many columns rows g and g + 8 see
  float scale;          // of powers of 2

  [[nodiscard]] __device__ __forceinline__ const unsigned char* q() const {
    return memory.q + unsigned(index) * kPanelBytes;
  }
  __device__ __forceinline__ void seen(int j, int (&columns)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) columns[r] = limit[r] - block.key(j) - int(threadIdx.x) % 4 * 2;
  }
  // A warp has read what the barrier guards.
  static __device__ __forceinline__ void release(Barrier& empty) {
    if (threadIdx.x % 32 == 0) empty.arrive();
  }
  // Turns of consumers: the first turn of the first one is free.
  __device__ __forceinline__ void begin_turn(int j) const {
    memory.barriers().order[index].wait(index == 0 ? j - 2 : j - 1);
  }
  __device__ __forceinline__ void end_turn() const {
    __syncwarp();  // every lane has seen its turn begin
    release(memory.barriers().order[index + 1 == HopperHead<kWidth>::kConsumers ? 0 : index + 1]);
  }
  // All threads of the consumer. Barriers are named by constants.
  __device__ __forceinline__ void barrier() const {
    if (index == 0)
      named_barrier<1>(128);
    else if (index == 1)
      named_barrier<2>(128);
    else
      named_barrier<3>(128);
  }
};

template <class T, int kWidth>
__device__ __forceinline__ void attend_first(const HopperConsumer<kWidth>& on, HopperSums<kWidth>& sums) {
  HopperBarriers& at = on.memory.barriers();
  float scores[64];
  at.full_q.wait(0);
  at.full_k[0].wait(0);
  wgmma_fence();
  issue_scores<T, kWidth>(scores, on.q(), on.memory.k(0));
  wgmma_wait<0>();
  wgmma_registers(scores);
  on.release(at.empty_k[0]);
  int seen[2];
  on.seen(0, seen);
  weigh<Edge::within>(scores, sums, on.scale, seen);
  round_weights<T>(sums, scores);
}

// The scores of tile j, and the sum of the tile before.
template <class T, Edge kEdge, int kWidth>
__device__ __forceinline__ void attend_next(const HopperConsumer<kWidth>& on, HopperSums<kWidth>& sums, int j) {
  HopperBarriers& at = on.memory.barriers();
  const int before = j - 1;
  float scores[64];
  at.full_k[j % 2].wait(j / 2);
  at.full_v[before % 2].wait(before / 2);
  on.begin_turn(j);
  wgmma_fence();
  issue_scores<T, kWidth>(scores, on.q(), on.memory.k(j % 2));
  issue_sums<T>(sums, on.memory.v(before % 2), before);
  on.end_turn();
  wgmma_wait<1>();
  wgmma_registers(scores);
  on.release(at.empty_k[j % 2]);
  int seen[2];
  on.seen(j, seen);
  const float2 shrink = weigh<kEdge>(scores, sums, on.scale, seen);
  wgmma_wait<0>();
  wgmma_registers(sums.y);
  on.release(at.empty_v[before % 2]);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sums.y[i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
  round_weights<T>(sums, scores);
}

template <class T, int kWidth>
__device__ __forceinline__ void attend_last(const HopperConsumer<kWidth>& on, HopperSums<kWidth>& sums) {
  HopperBarriers& at = on.memory.barriers();
  const int last = on.block.tiles - 1;
  at.full_v[last % 2].wait(last / 2);
  wgmma_fence();
  issue_sums<T>(sums, on.memory.v(last % 2), last);
  wgmma_wait<0>();
  wgmma_registers(sums.y);
}

// y through the place of the consumer's rows of q, which all its warps have read.
template <class T, int kWidth>
__device__ __forceinline__ void store_rows(const HopperConsumer<kWidth>& on, HopperSums<kWidth>& sums, int row,
                                           int rows, const TensorMap& y, float* lse) {
  using Head = HopperHead<kWidth>;
  float share[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = row_sum(sums.total[r]);
    share[r] = 1 / all;
    const int at = row + r * 8;
    if (at < rows && threadIdx.x % 4 == 0) lse[at] = (sums.most[r] * on.scale + log2f(all)) / kLog2e;
  }
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sums.y[i] *= share[i / 2 % 2];
  unsigned char* const to = on.memory.q + unsigned(on.index) * kPanelBytes;
  on.barrier();
  put_panel<T, 0>(sums.y, to);
  if constexpr (Head::kPanels == 2) put_panel<T, 32>(sums.y, to + Head::kRowPanel);
  fence_async_shared();
  on.barrier();
  if (threadIdx.x % 128 != 0) return;
#pragma unroll
  for (int p = 0; p < Head::kPanels; ++p)
    tma_store(y, p * kPanelColumns, on.block.first + on.index * 64, on.block.of, to + unsigned(p) * Head::kRowPanel);
  bulk_commit();
  bulk_wait_read<0>();  // shared memory ends with the block
}

template <class T, int kWidth>
__device__ __forceinline__ void attention_consume(const HopperRows& s, const HopperBlock& block,
                                                  const HopperMemory<kWidth>& memory, int index, const TensorMap& y,
                                                  float* lse) {
  HopperConsumer<kWidth> on{.memory = memory, .block = block, .index = index, .limit = {}, .scale = s.scale * kLog2e};
  const int first = block.first + index * 64, row = first + int(threadIdx.x) / 32 % 4 * 16 + int(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) on.limit[r] = s.causal ? min(s.cols, row + r * 8 + 1) : s.cols;
  // Tiles of which every row of the consumer sees all columns come last.
  const int edges = block.tiles - (s.causal ? min(s.cols, first + 1) : s.cols) / kHopperKeys;
  HopperSums<kWidth> sums;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums.most[r] = -INFINITY;
    sums.total[r] = 0;
  }
  attend_first<T>(on, sums);
  int j = 1;
  for (; j < edges; ++j) attend_next<T, Edge::within>(on, sums, j);
  for (; j < block.tiles; ++j) attend_next<T, Edge::none>(on, sums, j);
  attend_last<T>(on, sums);
  store_rows<T>(on, sums, row, s.rows, y, lse + (std::int64_t{block.of.batch} * s.heads + block.of.head) * s.rows);
}

// Blocks of a head follow each other, so that they share its k and v in the second-level cache; the last rows come
// first: with causal they have the most to do.
template <class T, int kWidth>
__global__ void __launch_bounds__(HopperHead<kWidth>::kThreads, 1)
    attention_hopper(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap y, HopperRows s,
                     float* lse) {
  using Head = HopperHead<kWidth>;
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  const HopperMemory<kWidth> memory{atom_aligned(bytes)};
  if (threadIdx.x == 0) {
    HopperBarriers& at = memory.barriers();
    at.full_q.init(1);
    for (int stage = 0; stage < 2; ++stage) {
      at.full_k[stage].init(1);
      at.full_v[stage].init(1);
      at.empty_k[stage].init(4 * Head::kConsumers);  // a lane of each consumer warp
      at.empty_v[stage].init(4 * Head::kConsumers);
    }
    for (int c = 0; c < Head::kConsumers; ++c) at.order[c].init(4);
    fence_barrier_init();
  }
  __syncthreads();
  const int head = int(blockIdx.x) / s.row_tiles, tile = s.row_tiles - 1 - int(blockIdx.x) % s.row_tiles;
  HopperBlock block{tile * Head::kRows, 0, {head % s.heads, head / s.heads}};
  const int seen = s.causal ? min(s.cols, block.first + Head::kRows) : s.cols;
  block.tiles = (seen + kHopperKeys - 1) / kHopperKeys;
  // From a shuffle: ptxas then knows that a warp does not diverge on it.
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0);
  if (warp < 4) {
    registers_give<Head::kGive>();
    if (warp == 0 && elect()) attention_produce<kWidth>(q, k, v, block, memory);
  } else {
    registers_take<Head::kTake>();
    attention_consume<T, kWidth>(s, block, memory, warp / 4 - 1, y, lse);
  }
}

}  // namespace levin::kernels::gpu
