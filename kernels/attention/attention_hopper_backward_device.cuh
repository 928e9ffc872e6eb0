// Gradients of attention on compute capability 9.0, for f16 and bf16. The formulas are in
// attention_backward_device.cuh, the shapes in attention_hopper_device.cuh; gy lies as q does, each gradient as its
// operand. Sources: Dao, "FlashAttention-2", 2023, algorithm 2; Shah et al., "FlashAttention-3", 2024.
//
// Note [Gradients in turn]
// A block takes 128 columns of a head, 64 a consumer, and goes over the rows upwards, a tile at a time: 64 rows of
// heads 128 wide, 128 of heads 64 wide. Scores and slopes are [columns, rows] in registers, where they lie as left
// operands of the sums gv and gk. The slopes go to shared memory, too: with k of all 128 columns they give the block's
// part of gq of the tile. One lane copies tiles of q and gy, another adds the parts of gq to memory in f32. A kernel
// before computes the sums of gy y, one after rounds gq.
//   Several blocks add to a tile of gq, and f32 sums depend on their order. A counter for each tile lets the blocks add
// in turn, so that the bits repeat: from the last column down where causal, so that a block starts at the tile where
// its turn is the first, else upwards. The first one overwrites. A turn ends when memory has the sums.
//
// Note [Tickets]
// A block waits for blocks that come before it in a turn. If the device began it earlier than those, they might find no
// place to run, and all would wait for ever. So a block takes what it computes by a ticket when it begins, and tickets
// are in the order of the turns: it waits for blocks alone that have begun.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/attention_hopper_device.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/panel.cuh"

namespace levin::kernels::gpu {

struct HopperColumns {
  int rows, cols, heads, row_tiles, key_tiles;  // of a head
  float scale;                                  // above 0
  bool causal;
};

// Memory of one call, each part [batches, heads, row tiles, ..].
struct HopperScratch {
  float* sums;    // [.., 8192]: gq before its scale, as the consumers' threads hold it
  float* logs;    // [.., kRows]: lse for powers of 2; inf for rows that are not there
  float* deltas;  // [.., kRows]: the sum of gy y
  int* turns;     // how many blocks have added to sums
  int* ticket;
};

struct HopperBackwardBarriers {
  Barrier full_kv, full[2], empty[2], slopes_written, slopes_read, sums_written, sums_read;
};

inline constexpr int kHopperSums = 64 * 64;  // of gq in a consumer

template <int kWidth>
struct HopperBackward {
  static constexpr int kRows = kWidth == 128 ? 64 : 128, kThreads = 384, kGive = 24, kTake = 240;
  static constexpr int kPanels = kWidth / kPanelColumns;
  static constexpr unsigned kRowPanel = kRows * 128, kKeyPanel = kHopperKeys * 128;  // bytes of 64 numbers of each line
  static constexpr unsigned kRowBytes = kPanels * kRowPanel, kKeyBytes = kPanels * kKeyPanel;
  static constexpr unsigned kSlopeBytes = kRows / 64 * kKeyPanel, kSumBytes = 2 * kHopperSums * 4,
                            kTermBytes = kRows * 4;
  static constexpr unsigned kBytes = kAtom + 2 * kKeyBytes + 4 * kRowBytes + kSlopeBytes + kSumBytes + 4 * kTermBytes +
                                     sizeof(HopperBackwardBarriers) + 16;
};

// The block's shared memory.
template <int kWidth>
struct HopperBackwardMemory {
  using Head = HopperBackward<kWidth>;
  unsigned char* k;  // and v, then two stages of q, two of gy, ..
  [[nodiscard]] __device__ __forceinline__ unsigned char* v() const { return k + Head::kKeyBytes; }
  [[nodiscard]] __device__ __forceinline__ unsigned char* q(int stage) const {
    return k + 2 * Head::kKeyBytes + unsigned(stage) * Head::kRowBytes;
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* gy(int stage) const { return q(2 + stage); }
  // [64 rows of a panel][columns]: a row of a panel's memory is 64 rows of one column.
  [[nodiscard]] __device__ __forceinline__ unsigned char* slopes() const { return q(4); }
  [[nodiscard]] __device__ __forceinline__ unsigned char* sums() const { return slopes() + Head::kSlopeBytes; }
  [[nodiscard]] __device__ __forceinline__ float* logs(int stage) const {
    return reinterpret_cast<float*>(sums() + Head::kSumBytes) + stage * Head::kRows;
  }
  [[nodiscard]] __device__ __forceinline__ float* deltas(int stage) const { return logs(2 + stage); }
  [[nodiscard]] __device__ __forceinline__ HopperBackwardBarriers& barriers() const {
    return *reinterpret_cast<HopperBackwardBarriers*>(logs(4));
  }
  [[nodiscard]] __device__ __forceinline__ int& ticket() const { return *reinterpret_cast<int*>(&barriers() + 1); }
};

// What a block computes: columns from `first` on, over `steps` tiles of rows from `tile` on.
struct HopperBackwardBlock {
  int first, tile, steps;
  std::int64_t tiles;  // of the heads before
  MapHead of;
};

template <int kWidth>
__device__ __forceinline__ HopperBackwardBlock backward_block(const HopperColumns& s, int ticket) {
  constexpr int kRows = HopperBackward<kWidth>::kRows;
  const int head = ticket / s.key_tiles, in = ticket % s.key_tiles, n = s.causal ? s.key_tiles - 1 - in : in;
  const int tile = s.causal ? min(s.row_tiles, n * (kHopperKeys / kRows)) : 0;
  return {.first = n * kHopperKeys,
          .tile = tile,
          .steps = s.row_tiles - tile,
          .tiles = std::int64_t{head} * s.row_tiles,
          .of = {head % s.heads, head / s.heads}};
}

// How many blocks add to a tile of gq before block n.
template <int kWidth>
__device__ __forceinline__ int turn_of(const HopperColumns& s, int tile, int n) {
  constexpr int kRows = HopperBackward<kWidth>::kRows;
  return s.causal ? min(s.key_tiles - 1, tile / (kHopperKeys / kRows)) - n : n;
}

// One lane copies k and v, and fills the stages of q and gy.
template <int kWidth>
__device__ __forceinline__ void backward_produce(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                                 const TensorMap& gy, const HopperBackwardBlock& block,
                                                 const HopperScratch& scratch,
                                                 const HopperBackwardMemory<kWidth>& memory) {
  using Head = HopperBackward<kWidth>;
  HopperBackwardBarriers& at = memory.barriers();
  const auto load = [&](const TensorMap& map, unsigned char* to, unsigned panel, int line, Barrier& full) {
#pragma unroll
    for (int p = 0; p < Head::kPanels; ++p)
      tma_load(to + unsigned(p) * panel, map, p * kPanelColumns, line, block.of, full);
  };
  at.full_kv.arrive_expect(2 * Head::kKeyBytes);
  load(k, memory.k, Head::kKeyPanel, block.first, at.full_kv);
  load(v, memory.v(), Head::kKeyPanel, block.first, at.full_kv);
  for (int j = 0; j < block.steps; ++j) {
    const int stage = j % 2, tile = block.tile + j;
    const std::int64_t term = (block.tiles + tile) * Head::kRows;
    at.empty[stage].wait(j / 2 - 1);
    at.full[stage].arrive_expect(2 * Head::kRowBytes + 2 * Head::kTermBytes);
    load(q, memory.q(stage), Head::kRowPanel, tile * Head::kRows, at.full[stage]);
    load(gy, memory.gy(stage), Head::kRowPanel, tile * Head::kRows, at.full[stage]);
    bulk_load(memory.logs(stage), scratch.logs + term, Head::kTermBytes, at.full[stage]);
    bulk_load(memory.deltas(stage), scratch.deltas + term, Head::kTermBytes, at.full[stage]);
  }
}

// One lane adds the parts of gq to memory.
template <int kWidth>
__device__ __forceinline__ void backward_add(const HopperColumns& s, const HopperBackwardBlock& block,
                                             const HopperScratch& scratch, const HopperBackwardMemory<kWidth>& memory) {
  using Head = HopperBackward<kWidth>;
  HopperBackwardBarriers& at = memory.barriers();
  for (int j = 0; j < block.steps; ++j) {
    const std::int64_t tile = block.tiles + block.tile + j;
    float* const to = scratch.sums + tile * (2 * kHopperSums);
    const int turn = turn_of<kWidth>(s, block.tile + j, block.first / kHopperKeys);
    at.sums_written.wait(j);
    wait_turn(scratch.turns + tile, turn);
    fence_async_global();
    if (turn == 0)
      bulk_store(to, memory.sums(), Head::kSumBytes);
    else
      bulk_reduce_add(to, memory.sums(), Head::kSumBytes);
    bulk_commit();
    bulk_wait_read<0>();
    at.sums_read.arrive();
    bulk_wait<0>();
    pass_turn(scratch.turns + tile);
  }
}

// d = a b^T of a consumer's columns, [64, kWidth], and a stage, [kRows, kWidth].
template <class T, int kWidth>
__device__ __forceinline__ void issue_turned(float (&d)[HopperBackward<kWidth>::kRows / 2], const unsigned char* a,
                                             const unsigned char* b) {
  using Head = HopperBackward<kWidth>;
  const std::uint64_t left = descriptor<Major::k>(a), right = descriptor<Major::k>(b);
#pragma unroll
  for (unsigned c = 0; c < kWidth / 16; ++c) {
    wgmma<T, Head::kRows>(d, left + ((c / 4 * Head::kKeyPanel + c % 4 * 32) >> 4),
                          right + ((c / 4 * Head::kRowPanel + c % 4 * 32) >> 4), c > 0);
  }
  wgmma_commit();
}
// sum += x b of a consumer's columns, x [64, kRows] in registers, and a stage b, [kRows, kWidth].
template <class T, int kWidth>
__device__ __forceinline__ void issue_gradient(float (&sum)[kWidth / 2],
                                               const std::uint32_t (&x)[HopperBackward<kWidth>::kRows / 16][4],
                                               const unsigned char* b) {
  using Head = HopperBackward<kWidth>;
  const std::uint64_t right = descriptor<Major::mn>(b, Head::kRowPanel);
#pragma unroll
  for (unsigned c = 0; c < Head::kRows / 16; ++c)
    wgmma<T, kWidth, Major::mn>(sum, x[c], right + c * (2 * kAtom >> 4), true);
  wgmma_commit();
}

template <class T, int kCount>
__device__ __forceinline__ void round_pairs(std::uint32_t (&to)[kCount / 8][4], const float (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) to[i / 4][i % 4] = rounded_pair<T>(from[2 * i], from[2 * i + 1]);
}

// A consumer's place in the block.
template <int kWidth>
struct HopperBackwardConsumer {
  using Head = HopperBackward<kWidth>;
  HopperBackwardMemory<kWidth> memory;
  HopperBackwardBlock block;
  int index, key;  // key: the column of rows g of its fragments
  int cols;
  bool causal;
  float scale;  // of powers of 2

  [[nodiscard]] __device__ __forceinline__ unsigned rows_at() const { return unsigned(index) * kPanelBytes; }
  // What a consumer computes of a part of gq: 64 of its columns, or 64 of its rows.
  [[nodiscard]] __device__ __forceinline__ const unsigned char* left_of_gq() const {
    return memory.slopes() + (Head::kRows == 128 ? unsigned(index) * Head::kKeyPanel : 0);
  }
  [[nodiscard]] __device__ __forceinline__ const unsigned char* right_of_gq() const {
    return memory.k + (kWidth == 128 ? unsigned(index) * Head::kKeyPanel : 0);
  }
  // The warp has read or written what the barrier guards.
  static __device__ __forceinline__ void release(Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier.arrive();
  }
  __device__ __forceinline__ void barrier() const {
    if (index == 0)
      named_barrier<1>(128);
    else
      named_barrier<2>(128);
  }
};

template <int kWidth>
struct HopperGradients {
  float k[kWidth / 2], v[kWidth / 2];
};

// Scores become weights.
template <Edge kEdge, int kWidth, int kCount>
__device__ __forceinline__ void weigh_turned(const HopperBackwardConsumer<kWidth>& on, float (&scores)[kCount], int j) {
  const float* const logs = on.memory.logs(j % 2) + threadIdx.x % 4 * 2;
  const int row = (on.block.tile + j) * HopperBackward<kWidth>::kRows + int(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int c = 0; c < kCount / 4; ++c) {
    const float2 log = *reinterpret_cast<const float2*>(logs + 8 * c);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& x = scores[4 * c + e];
      x = unit::exp2(x * on.scale - (e % 2 == 0 ? log.x : log.y));
      const int column = on.key + e / 2 * 8;
      if (kEdge == Edge::within && (column >= on.cols || (on.causal && column > row + 8 * c + e % 2))) x = 0;
    }
  }
}
// slopes = weights (slopes - deltas)
template <int kWidth, int kCount>
__device__ __forceinline__ void slope_turned(const HopperBackwardConsumer<kWidth>& on, float (&slopes)[kCount],
                                             const float (&weights)[kCount], int j) {
  const float* const deltas = on.memory.deltas(j % 2) + threadIdx.x % 4 * 2;
#pragma unroll
  for (int c = 0; c < kCount / 4; ++c) {
    const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * c);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      slopes[4 * c + e] = weights[4 * c + e] * (slopes[4 * c + e] - (e % 2 == 0 ? delta.x : delta.y));
  }
}

// A consumer's slopes, [64 columns, kRows], to its lines of the panels.
template <int kWidth, int kSteps>
__device__ __forceinline__ void put_slopes(const HopperBackwardConsumer<kWidth>& on,
                                           const std::uint32_t (&slopes)[kSteps][4]) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
  const int line = warp * 16 + lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
  for (int c = 0; c < kSteps; ++c) {
    const int piece = c % 4 * 2 + lane / 16;
    stmatrix_x4(on.memory.slopes() + unsigned(c / 4) * HopperBackward<kWidth>::kKeyPanel + on.rows_at() + line * 128 +
                    (piece ^ line % 8) * 16,
                slopes[c]);
  }
}

template <class T, Edge kEdge, int kWidth>
__device__ __forceinline__ void backward_step(const HopperBackwardConsumer<kWidth>& on, HopperGradients<kWidth>& sums,
                                              int j) {
  using Head = HopperBackward<kWidth>;
  HopperBackwardBarriers& at = on.memory.barriers();
  const int stage = j % 2;
  float scores[Head::kRows / 2], slopes[Head::kRows / 2];
  at.full[stage].wait(j / 2);
  wgmma_fence();
  issue_turned<T, kWidth>(scores, on.memory.k + on.rows_at(), on.memory.q(stage));
  issue_turned<T, kWidth>(slopes, on.memory.v() + on.rows_at(), on.memory.gy(stage));
  wgmma_wait<1>();
  wgmma_registers(scores);
  weigh_turned<kEdge>(on, scores, j);
  wgmma_wait<0>();
  wgmma_registers(slopes);
  slope_turned(on, slopes, scores, j);
  // Both at once: with the f32 numbers of either beside the pairs of the other, registers do not suffice.
  std::uint32_t left[Head::kRows / 16][4], left_slopes[Head::kRows / 16][4];
  round_pairs<T>(left, scores);
  round_pairs<T>(left_slopes, slopes);
  at.slopes_read.wait(j - 1);
  put_slopes(on, left_slopes);
  fence_async_shared();
  on.release(at.slopes_written);
  wgmma_fence();
  issue_gradient<T, kWidth>(sums.v, left, on.memory.gy(stage));
  issue_gradient<T, kWidth>(sums.k, left_slopes, on.memory.q(stage));
  at.slopes_written.wait(j);
  wgmma_fence();
  float part[kHopperSums / 128];
  const std::uint64_t a = descriptor<Major::mn>(on.left_of_gq()), b = descriptor<Major::mn>(on.right_of_gq());
#pragma unroll
  for (unsigned c = 0; c < kHopperKeys / 16; ++c)
    wgmma<T, 64, Major::mn, Major::mn>(part, a + c * (2 * kAtom >> 4), b + c * (2 * kAtom >> 4), c > 0);
  wgmma_commit();
  wgmma_wait<1>();
  on.release(at.empty[stage]);
  wgmma_wait<0>();
  wgmma_registers(part);
  on.release(at.slopes_read);
  at.sums_read.wait(j - 1);
  float4* const to = reinterpret_cast<float4*>(on.memory.sums()) + on.index * (kHopperSums / 4) + threadIdx.x % 128;
#pragma unroll
  for (int c = 0; c < kHopperSums / 512; ++c)
    store_shared(to + c * 128, float4{part[4 * c], part[4 * c + 1], part[4 * c + 2], part[4 * c + 3]});
  fence_async_shared();
  on.release(at.sums_written);
}

// gk and gv through the place of the consumer's columns of k and v, which both consumers have read.
template <class T, int kWidth>
__device__ __forceinline__ void store_columns(const HopperBackwardConsumer<kWidth>& on, HopperGradients<kWidth>& sums,
                                              float scale, const TensorMap& gk, const TensorMap& gv) {
  using Head = HopperBackward<kWidth>;
  unsigned char *const to_k = on.memory.k + on.rows_at(), *const to_v = on.memory.v() + on.rows_at();
  wgmma_registers(sums.k);
  wgmma_registers(sums.v);
#pragma unroll
  for (float& x : sums.k) x *= scale;
  on.memory.barriers().slopes_read.wait(on.block.steps - 1);
  put_panel<T, 0>(sums.k, to_k);
  put_panel<T, 0>(sums.v, to_v);
  if constexpr (Head::kPanels == 2) {
    put_panel<T, 32>(sums.k, to_k + Head::kKeyPanel);
    put_panel<T, 32>(sums.v, to_v + Head::kKeyPanel);
  }
  fence_async_shared();
  on.barrier();
  if (threadIdx.x % 128 != 0) return;
#pragma unroll
  for (int p = 0; p < Head::kPanels; ++p) {
    const int line = on.block.first + on.index * 64;
    tma_store(gk, p * kPanelColumns, line, on.block.of, to_k + unsigned(p) * Head::kKeyPanel);
    tma_store(gv, p * kPanelColumns, line, on.block.of, to_v + unsigned(p) * Head::kKeyPanel);
  }
  bulk_commit();
  bulk_wait_read<0>();  // shared memory ends with the block
}

template <class T, int kWidth>
__device__ __forceinline__ void backward_consume(const HopperColumns& s, const HopperBackwardBlock& block,
                                                 const HopperBackwardMemory<kWidth>& memory, int index,
                                                 const TensorMap& gk, const TensorMap& gv) {
  constexpr int kRows = HopperBackward<kWidth>::kRows;
  const int first = block.first + index * 64;
  const HopperBackwardConsumer<kWidth> on{.memory = memory,
                                          .block = block,
                                          .index = index,
                                          .key = first + int(threadIdx.x) / 32 % 4 * 16 + int(threadIdx.x) % 32 / 4,
                                          .cols = s.cols,
                                          .causal = s.causal,
                                          .scale = s.scale * kLog2e};
  // Tiles of which every row sees all columns of the consumer come last.
  int edges = s.causal ? min(block.steps, (first + 63 + kRows - 1) / kRows - block.tile) : 0;
  if (first + 64 > s.cols) edges = block.steps;
  HopperGradients<kWidth> sums;
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) sums.k[i] = sums.v[i] = 0;
  memory.barriers().full_kv.wait(0);
  int j = 0;
  for (; j < edges; ++j) backward_step<T, Edge::within>(on, sums, j);
  for (; j < block.steps; ++j) backward_step<T, Edge::none>(on, sums, j);
  store_columns<T>(on, sums, s.scale, gk, gv);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(HopperBackward<kWidth>::kThreads, 1)
    attention_hopper_backward(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                              const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap gy,
                              const __grid_constant__ TensorMap gk, const __grid_constant__ TensorMap gv,
                              HopperColumns s, HopperScratch scratch) {
  using Head = HopperBackward<kWidth>;
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  const HopperBackwardMemory<kWidth> memory{atom_aligned(bytes)};
  if (threadIdx.x == 0) {
    memory.ticket() = atomicAdd(scratch.ticket, 1);
    HopperBackwardBarriers& at = memory.barriers();
    at.full_kv.init(1);
    for (int stage = 0; stage < 2; ++stage) {
      at.full[stage].init(1);
      at.empty[stage].init(8);  // a lane of each consumer warp
    }
    at.slopes_written.init(8);
    at.slopes_read.init(8);
    at.sums_written.init(8);
    at.sums_read.init(1);
    fence_barrier_init();
  }
  __syncthreads();
  const HopperBackwardBlock block = backward_block<kWidth>(s, memory.ticket());
  // From a shuffle: ptxas then knows that a warp does not diverge on it.
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0);
  if (warp < 4) {
    registers_give<Head::kGive>();
    if (warp == 0 && elect()) backward_produce<kWidth>(q, k, v, gy, block, scratch, memory);
    if (warp == 1 && elect()) backward_add<kWidth>(s, block, scratch, memory);
  } else {
    registers_take<Head::kTake>();
    backward_consume<T, kWidth>(s, block, memory, warp / 4 - 1, gk, gv);
  }
}

// Lines of the heads of each batch, 16 bytes aligned.
template <class T>
struct HopperLines {
  T* p;
  std::int64_t batch_step, head_step, line_step;
  [[nodiscard]] __device__ __forceinline__ T* line(int head, int heads, int i) const {
    return p + head / heads * batch_step + head % heads * head_step + i * line_step;
  }
};

inline constexpr int kHopperTermThreads = 256;

// The terms of each row, and counters at 0. Grid: x counts blocks of rows of a head's tiles, all heads after another.
template <class T, int kWidth>
__global__ void __launch_bounds__(kHopperTermThreads)
    attention_hopper_terms(HopperColumns s, HopperLines<const T> gy, HopperLines<const T> y, const float* lse,
                           HopperScratch scratch, int count) {
  constexpr int kLanes = kWidth / 8, kRows = HopperBackward<kWidth>::kRows;
  const std::int64_t id = std::int64_t{blockIdx.x} * kHopperTermThreads + threadIdx.x, term = id / kLanes;
  if (id < count) scratch.turns[id] = 0;
  if (id == count) *scratch.ticket = 0;
  const int lines = s.row_tiles * kRows, head = int(term / lines), row = int(term % lines);
  float delta = 0;
  if (row < s.rows) {
    const int col = int(id % kLanes) * 8;
    const Vec<T> a = load<8>(gy.line(head, s.heads, row) + col), b = load<8>(y.line(head, s.heads, row) + col);
#pragma unroll
    for (int e = 0; e < 8; ++e) delta += float(a[e]) * float(b[e]);
  }
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) delta += from_lane_xor(delta, lanes);
  if (id % kLanes != 0) return;
  scratch.deltas[term] = delta;
  scratch.logs[term] = row < s.rows ? lse[std::int64_t{head} * s.rows + row] * kLog2e : INFINITY;
}

// gq = scale times its sums. A thread has 8 columns of two rows, which four threads of a consumer held. Grid: x counts
// tiles, kHopperSums / 8 threads each.
template <class T, int kWidth>
__global__ void __launch_bounds__(kHopperSums / 8)
    attention_hopper_gq(HopperColumns s, const float* sums, HopperLines<T> gq) {
  const int thread = int(threadIdx.x), head = int(blockIdx.x) / s.row_tiles, tile = int(blockIdx.x) % s.row_tiles;
  // Neighbours have neighbouring columns: [consumer][columns / 32][warp][g][columns / 8 % 4].
  const int part = thread % 4 + thread / 128 % 2 * 4, at = thread / 4 % 32, consumer = thread / 256;
  const float4* const from = reinterpret_cast<const float4*>(sums) +
                             (std::int64_t{blockIdx.x} * 2 + consumer) * (kHopperSums / 4) + part * 128 + at * 4;
  const int row = tile * HopperBackward<kWidth>::kRows + at / 8 * 16 + at % 8 + (kWidth == 64 ? consumer * 64 : 0),
            column = part * 8 + (kWidth == 128 ? consumer * 64 : 0);
  Vec<T> low, high;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float4 x = from[q];
    low[2 * q] = T(x.x * s.scale);
    low[2 * q + 1] = T(x.y * s.scale);
    high[2 * q] = T(x.z * s.scale);
    high[2 * q + 1] = T(x.w * s.scale);
  }
  if (row < s.rows) store(gq.line(head, s.heads, row) + column, low);
  if (row + 8 < s.rows) store(gq.line(head, s.heads, row + 8) + column, high);
}

}  // namespace levin::kernels::gpu
