// Attention on devices that launch kernels, forward, for f16 and bf16: y = softmax(scale q k^T) v for each batch,
// without its [rows, cols] weights in memory. Source: Dao, "FlashAttention-2", 2023.
//
//   q: [rows, width], k: [cols, width], v: [cols, out_width], y: [rows, out_width] for each batch, through strides;
//   lse: [batches, rows] f32, the logarithm of each row's sum of exponentials, contiguous. causal: row i sees columns
//   0 .. i. width and out_width 1 to 128, cols >= 1.
//
// A block of 4 warps takes 64 rows of a batch and goes over the columns, 64 at a time: their k and v come by cp.async
// while the ones before are multiplied. A warp has 16 rows; scores and the result stay in registers, in f32; weights
// are rounded to T for the second product, not for their sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/device/block.cuh"
#include "kernels/device/hardware_math.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/gemm/gemm_device.cuh"

namespace levin::kernels::gpu {

struct AttentionRows {
  int64_t batches, rows, cols, width, out_width;
  float scale;
  bool causal;
};

inline constexpr int64_t kWidestHead = 128;
inline constexpr float kLog2e = 1.44269504088896340736f;  // exponentials are powers of 2
inline constexpr int kAttentionTile = 64, kAttentionThreads = 128;
template <int kWidth>
inline constexpr int kAttentionNumbers = kAttentionTile*(kWidth + 8);  // of a tile of q, k or v
template <int kWidth>
inline constexpr unsigned kAttentionBytes = 5 * 2 * kAttentionNumbers<kWidth>;  // q, two of k, two of v

// Blocks of attention_rows on a multiprocessor: what shared memory holds, and 128 registers a thread. 0: ptxas chooses.
template <int kWidth, bool kWhole>
inline constexpr int kAttentionBlocks = !kWhole         ? 0
                                        : kWidth == 128 ? 2
                                                        : 4;

// Over the four lanes that share a row of a fragment.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, from_lane_xor(x, 1));
  return fmaxf(x, from_lane_xor(x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += from_lane_xor(x, 1);
  return x + from_lane_xor(x, 2);
}
// Two neighbouring [16, 8] sums as the left operand [16, 16] of a product.
template <class T>
__device__ __forceinline__ void pack_left(uint32_t (&to)[4], const float (&left)[4], const float (&right)[4]) {
  to[0] = packed<T>(left[0], left[1]);
  to[1] = packed<T>(left[2], left[3]);
  to[2] = packed<T>(right[0], right[1]);
  to[3] = packed<T>(right[2], right[3]);
}

// Whether fetch_lines may take whole chunks of every line.
template <class T, class... More>
[[nodiscard]] bool in_whole_chunks(const Lines<T, true>& first, const More&... more) {
  return first.vectors && first.depth % 8 == 0 && (true && ... && (more.vectors && more.depth % 8 == 0));
}
// Lines [line, line + kLines) of a matrix to shared memory, by all threads of a block, zeros where there are none. A
// thread has one column of chunks. kWhole: in_whole_chunks; a copy is then a step of two addresses, kAtOnce of them in
// registers.
template <bool kWhole, int kWidth, int kLines, int kAtOnce, class T>
__device__ __forceinline__ void fetch_lines(const Lines<T, true>& from, int64_t line, T* tile) {
  constexpr int kPitch = kWidth + 8, kAcross = kWidth / 8, kStep = kAttentionThreads / kAcross;
  constexpr int kCopies = kLines / kStep;
  static_assert(kLines % kStep == 0);
  const int row = static_cast<int>(threadIdx.x) / kAcross, col = static_cast<int>(threadIdx.x) % kAcross * 8;
  T* const to = tile + row * kPitch + col;
  if constexpr (kWhole) {
    const int64_t lines = from.lines - line - row;
    const int left = col < from.depth ? static_cast<int>(lines < kLines ? lines : kLines) : 0;
    const T* p = from.p + (line + row) * from.line_step + col;
    const int64_t step = kStep * from.line_step;
#pragma unroll kAtOnce
    for (int c = 0; c < kCopies; ++c, p += step) cp_async_16(to + c * kStep * kPitch, p, c * kStep < left);
  } else {
#pragma unroll 1  // addresses of all copies at once would not fit beside the sums
    for (int c = 0; c < kCopies; ++c) from.put(to + c * kStep * kPitch, line + row + c * kStep, col);
  }
}

// Where results go: for each batch lines of dense numbers.
template <class T>
struct AttentionOut {
  T* p;
  int64_t line_step;
  bool vectors;  // all lines begin at multiples of 16 bytes and are as long
  Strided<1> batch;
  __device__ __forceinline__ T* line(int64_t b, int64_t i) const {
    int64_t offset[1];
    batch.offsets(b, offset);
    return p + offset[0] + i * line_step;
  }
};

// A warp's [16, kWidth] sums, times a factor for rows g and one for rows g + 8, to lines of `width` from `to` on, of
// which `left` are there. `rows` is its own shared memory, 16 rows of kWidth + 8: memory is then written 16 bytes a
// lane.
template <class T, int kWidth>
__device__ __forceinline__ void write_strip(T* rows, const float (&sums)[kWidth / 8][4], float factor, float factor8,
                                            const AttentionOut<T>& out, T* to, int64_t left, int64_t width) {
  constexpr int kPitch = kWidth + 8;
  const int lane = int(threadIdx.x) % 32;
  T* const own = rows + lane / 4 * kPitch + lane % 4 * 2;
  __syncwarp();
#pragma unroll
  for (int d = 0; d < kWidth / 8; ++d) {
    store(own + d * 8, bit_cast<Vec<T, 2>>(packed<T>(sums[d][0] * factor, sums[d][1] * factor)));
    store(own + 8 * kPitch + d * 8, bit_cast<Vec<T, 2>>(packed<T>(sums[d][2] * factor8, sums[d][3] * factor8)));
  }
  __syncwarp();
#pragma unroll 1
  for (int id = lane; id < 16 * (kWidth / 8); id += 32) {
    const int row = id / (kWidth / 8), col = id % (kWidth / 8) * 8;
    if (row >= left || col >= width) continue;
    const Vec<T> v = load<8>(rows + row * kPitch + col);
    T* const at = to + row * out.line_step + col;
    if (out.vectors) {
      store(at, v);
    } else {
      for (int e = 0; e < 8 && col + e < width; ++e) at[e] = rows[row * kPitch + col + e];
    }
  }
}

// Grid: x and y count batches and blocks of rows, the last rows first: with causal they have the most to do.
template <class T, int kWidth, bool kWhole>
__global__ void __launch_bounds__(kAttentionThreads, (kAttentionBlocks<kWidth, kWhole>))
    attention_rows(AttentionRows s, Lines<T, true> q, Lines<T, true> k, Lines<T, true> v, Strided<3> batch,
                   AttentionOut<T> y, float* lse) {
  constexpr int kTile = kAttentionTile, kPitch = kWidth + 8, kNumbers = kAttentionNumbers<kWidth>;
  LEVIN_SHARED_DYNAMIC(T, tiles);
  const int64_t row_blocks = (s.rows + kTile - 1) / kTile;
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x, b = block / row_blocks;
  if (b >= s.batches) return;
  const int64_t first = (row_blocks - 1 - block % row_blocks) * kTile;
  int64_t offset[3];
  batch.offsets(b, offset);
  q.p += offset[0];
  k.p += offset[1];
  v.p += offset[2];

  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto fetch = [&](const Lines<T, true>& from, int64_t line, T* to) {
    fetch_lines<kWhole, kWidth, kTile, kWidth / 16>(from, line, to);
  };
  T* const tile_q = tiles;
  const auto tile_k = [&](int j) { return tiles + (1 + j % 2 * 2) * kNumbers; };
  const auto tile_v = [&](int j) { return tiles + (2 + j % 2 * 2) * kNumbers; };

  // What this lane addresses for ldmatrix: see gemm_by_warps.
  const int in = lane % 8, matrix = lane / 8, low = matrix % 2 * 8, high = matrix / 2 * 8;
  const int place_a = (low + in) * kPitch + high, place_k = (high + in) * kPitch + low,
            place_v = (low + in) * kPitch + high;

  const int64_t seen = s.causal && first + kTile < s.cols ? first + kTile : s.cols;
  const int steps = static_cast<int>((seen + kTile - 1) / kTile);
  fetch(q, first, tile_q);
  fetch(k, 0, tile_k(0));
  fetch(v, 0, tile_v(0));
  cp_async_commit();

  const float scale = s.scale * kLog2e;
  uint32_t fq[kWidth / 16][4];
  float sums[kWidth / 8][4] = {};
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};  // of rows g and g + 8
  for (int j = 0; j < steps; ++j) {
    cp_async_wait<0>();
    // The other stage was read by all when they came here.
    __syncthreads();
    if (j + 1 < steps) {
      fetch(k, int64_t{j + 1} * kTile, tile_k(j + 1));
      fetch(v, int64_t{j + 1} * kTile, tile_v(j + 1));
    }
    cp_async_commit();
    if (j == 0) {
#pragma unroll
      for (int d = 0; d < kWidth / 16; ++d) ldmatrix_x4(fq[d], tile_q + warp * 16 * kPitch + d * 16 + place_a);
    }

    float scores[kTile / 8][4] = {};
    const T* const at_k = tile_k(j) + place_k;
#pragma unroll
    for (int d = 0; d < kWidth / 16; ++d) {
#pragma unroll
      for (int c = 0; c < kTile / 16; ++c) {
        uint32_t fk[4];
        ldmatrix_x4(fk, at_k + c * 16 * kPitch + d * 16);
        const uint32_t left[2] = {fk[0], fk[1]}, right[2] = {fk[2], fk[3]};
        mma_m16n8k16<T>(scores[2 * c], fq[d], left, scores[2 * c]);
        mma_m16n8k16<T>(scores[2 * c + 1], fq[d], right, scores[2 * c + 1]);
      }
    }

    // Columns of the tile that rows g and g + 8 see, counted from this lane's first: 64 at most.
    const int64_t at = int64_t{j} * kTile;
    const bool edge = at + kTile > s.cols || (s.causal && at + kTile > first);
    const int there = static_cast<int>(s.cols - at < kTile ? s.cols - at : kTile),
              before = s.causal && first - at < kTile ? static_cast<int>(first - at) : kTile,
              own_row = before + warp * 16 + lane / 4 + 1;
    const int seen_here[2] = {min(there, own_row) - lane % 4 * 2, min(there, own_row + 8) - lane % 4 * 2};
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int c = 0; c < kTile / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = scores[c][e] * scale;
        if (edge && c * 8 + e % 2 >= seen_here[e / 2]) x = -INFINITY;
        scores[c][e] = x;
        largest[e / 2] = fmaxf(largest[e / 2], x);
      }
    }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float now = fmaxf(most[r], row_max(largest[r]));
      base[r] = now == -INFINITY ? 0.0f : now;  // -inf - -inf is no number
      const float shrink = unit::exp2(most[r] - base[r]);
      most[r] = now;
      total[r] *= shrink;
#pragma unroll
      for (int d = 0; d < kWidth / 8; ++d) {
        sums[d][2 * r] *= shrink;
        sums[d][2 * r + 1] *= shrink;
      }
    }
#pragma unroll
    for (int c = 0; c < kTile / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[c][e] = unit::exp2(scores[c][e] - base[e / 2]);
        total[e / 2] += scores[c][e];  // of this lane's columns alone
      }
    }

    const T* const at_v = tile_v(j) + place_v;
#pragma unroll
    for (int c = 0; c < kTile / 16; ++c) {
      uint32_t weights[4];
      pack_left<T>(weights, scores[2 * c], scores[2 * c + 1]);
#pragma unroll
      for (int d = 0; d < kWidth / 16; ++d) {
        uint32_t fv[4];
        ldmatrix_x4_trans(fv, at_v + c * 16 * kPitch + d * 16);
        const uint32_t left[2] = {fv[0], fv[1]}, right[2] = {fv[2], fv[3]};
        mma_m16n8k16<T>(sums[2 * d], weights, left, sums[2 * d]);
        mma_m16n8k16<T>(sums[2 * d + 1], weights, right, sums[2 * d + 1]);
      }
    }
  }
  cp_async_wait<0>();

  float share[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first + warp * 16 + lane / 4 + r * 8;
    const float all = row_sum(total[r]);
    share[r] = 1 / all;
    if (row < s.rows && lane % 4 == 0) lse[b * s.rows + row] = (most[r] + log2f(all)) / kLog2e;
  }
  const int64_t row = first + warp * 16;
  write_strip<T, kWidth>(tile_q + warp * 16 * kPitch, sums, share[0], share[1], y, y.line(b, row), s.rows - row,
                         s.out_width);
}

// Blocks of `per_block` lines of each batch.
[[nodiscard]] inline Grid attention_grid(int64_t batches, int64_t lines, int64_t per_block, unsigned shared) {
  const int64_t blocks = batches * ((lines + per_block - 1) / per_block);
  constexpr int64_t kAcross = int64_t{1} << 30;
  return {.blocks = dim3(static_cast<unsigned>(std::min(blocks, kAcross)), blocks_for(blocks, kAcross)),
          .threads = kAttentionThreads,
          .shared = shared};
}

// f(width as a constant), the least that both widths of a head fit in.
template <class F>
void with_head_width(const AttentionRows& s, F&& f) {
  const int64_t width = std::max(s.width, s.out_width);
  if (width <= 32)
    f(std::integral_constant<int, 32>{});
  else if (width <= 64)
    f(std::integral_constant<int, 64>{});
  else
    f(std::integral_constant<int, 128>{});
}

template <class T>
void attention(const Gpu& on, const AttentionRows& s, const Lines<T, true>& q, const Lines<T, true>& k,
               const Lines<T, true>& v, const Strided<3>& batch, const AttentionOut<T>& y, float* lse) {
  with_head_width(s, [&]<int kWidth>(std::integral_constant<int, kWidth>) {
    on.launch(in_whole_chunks(q, k, v) ? attention_rows<T, kWidth, true> : attention_rows<T, kWidth, false>,
              attention_grid(s.batches, s.rows, kAttentionTile, kAttentionBytes<kWidth>), s, q, k, v, batch, y, lse);
  });
}

}  // namespace levin::kernels::gpu
