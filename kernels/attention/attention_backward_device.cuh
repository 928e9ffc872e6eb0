// Gradients of attention on devices that launch kernels, for f16 and bf16, without the [rows, cols] weights in memory.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2. Sizes and operands as in attention_device.cuh, and
//
//   gy: [rows, out_width] for each batch, through strides; y, lse: what attention() gave;
//   gq: [rows, width], gk: [cols, width], gv: [cols, out_width] for each batch, through strides, overwritten.
//
// With the weights w = exp(scale q k^T - lse) and m = the sum of gy * y along each row, which is the mean of gy v^T
// under w:
//   slope = w * (gy v^T - m);   gv = w^T gy,   gk = scale slope^T q,   gq = scale slope k
//
// Note [Two orders of one product]
// gk and gv are sums over rows, gq is one over columns. One pass would need atomic additions for one of them, and the
// bits would depend on which came first. So there are two passes of one kernel: blocks of rows pass over the columns,
// then blocks of columns over the rows. Scores and gy v^T are computed in both: 7 products instead of 5. The first pass
// also computes m of its rows, and leaves it for the second.
// A block keeps its own lines in shared memory; those of the other side come by cp.async, two stages of them. A warp
// has `kStrips` times 16 own lines, and scores as [own, other]: so they are already laid out as the left operand of the
// products that follow, and never leave registers. Sums are f32; weights and slopes are rounded to T for their
// products.
#pragma once

#include "kernels/attention/attention_device.cuh"

namespace levin::kernels::gpu {

// What a row's weights and slopes need: its lse in powers of 2, and the mean m.
struct RowTerms {
  float log_sum, mean;
};

// How a pass is cut. Registers hold kWidth / 2 sums for each strip and gradient; 128 of them are as many as leave room
// for the scores of a slice, and each further strip saves a read of the other side from shared memory. kBlocks share a
// multiprocessor; left alone, ptxas aims at more of them and spills.
template <int kWidth, bool kOfColumns>
struct AttentionPass {
  static constexpr int kStrips = kWidth == 128 && kOfColumns ? 1 : 2;
  static constexpr int kOwn = kAttentionThreads / 32 * 16 * kStrips;  // lines of a block
  static constexpr int kOther = kWidth == 128 ? 32 : 64;              // lines of a stage
  static constexpr int kSlice = 16;                                   // of them at a time in registers
  static constexpr int kBlocks = kWidth == 128 ? 1 : kWidth == 64 ? 3 - kOfColumns : 3;
  static constexpr int kPitch = kWidth + 8;
  static constexpr int kNumbers = (2 * kOwn + 4 * kOther) * kPitch;
  static constexpr unsigned kBytes = 2 * kNumbers + (kOfColumns ? 2 * kOther * sizeof(RowTerms) : 0);
};

// The sum of gy * y along `row`, by the four lanes that share a row of a fragment.
template <class T, int kWidth>
__device__ __forceinline__ float mean_slope(const Lines<T, true>& gy, const Lines<T, true>& y, int64_t row) {
  float sum = 0;
#pragma unroll
  for (int col = int(threadIdx.x) % 4 * 8; col < kWidth; col += 32) {
    const Chunk<T> a = gy.get(row, col), c = y.get(row, col);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += float(a[e]) * float(c[e]);
  }
  return row_sum(sum);
}

// scores[own, other] of a warp's strips and a slice of the other side: `own` and `other` are where this lane's
// addresses for ldmatrix begin.
template <class T, int kWidth, int kStrips, int kEighths>
__device__ __forceinline__ void scores_of_slice(const T* own, const T* other, float (&scores)[kStrips][kEighths][4]) {
  constexpr int kPitch = kWidth + 8;
#pragma unroll 2
  for (int d = 0; d < kWidth / 16; ++d) {
    uint32_t left[kStrips][4];
#pragma unroll
    for (int i = 0; i < kStrips; ++i) ldmatrix_x4(left[i], own + i * 16 * kPitch + d * 16);
#pragma unroll
    for (int c = 0; c < kEighths / 2; ++c) {
      uint32_t right[4];
      ldmatrix_x4(right, other + c * 16 * kPitch + d * 16);
      const uint32_t r0[2] = {right[0], right[1]}, r1[2] = {right[2], right[3]};
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        mma_m16n8k16<T>(scores[i][2 * c], left[i], r0, scores[i][2 * c]);
        mma_m16n8k16<T>(scores[i][2 * c + 1], left[i], r1, scores[i][2 * c + 1]);
      }
    }
  }
}

// sums[own, :] += x[own, other] (rounded to T) times the slice's lines.
template <class T, int kWidth, int kStrips, int kEighths>
__device__ __forceinline__ void add_slice(const float (&x)[kStrips][kEighths][4], const T* other,
                                          float (&sums)[kStrips][kWidth / 8][4]) {
  constexpr int kPitch = kWidth + 8;
#pragma unroll
  for (int c = 0; c < kEighths / 2; ++c) {
    uint32_t left[kStrips][4];
#pragma unroll
    for (int i = 0; i < kStrips; ++i) pack_left<T>(left[i], x[i][2 * c], x[i][2 * c + 1]);
#pragma unroll
    for (int d = 0; d < kWidth / 16; ++d) {
      uint32_t right[4];
      ldmatrix_x4_trans(right, other + c * 16 * kPitch + d * 16);
      const uint32_t r0[2] = {right[0], right[1]}, r1[2] = {right[2], right[3]};
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        mma_m16n8k16<T>(sums[i][2 * d], left[i], r0, sums[i][2 * d]);
        mma_m16n8k16<T>(sums[i][2 * d + 1], left[i], r1, sums[i][2 * d + 1]);
      }
    }
  }
}

// own1, own2 and other1, other2 are k, v and q, gy for blocks of columns, whose gradients are gk and gv; q, gy and k, v
// for blocks of rows, whose gradient is gq. Blocks of rows, which come first, make the terms of y and lse. Grid as
// attention_rows, the blocks with the most to do first.
template <class T, int kWidth, bool kOfColumns, bool kWhole>
__global__ void __launch_bounds__(kAttentionThreads, (kWhole ? AttentionPass<kWidth, kOfColumns>::kBlocks : 1))
    attention_gradients(AttentionRows s, Lines<T, true> own1, Lines<T, true> own2, Lines<T, true> other1,
                        Lines<T, true> other2, Lines<T, true> y, Strided<5> batch, const float* lse, RowTerms* terms,
                        AttentionOut<T> g1, AttentionOut<T> g2) {
  using Pass = AttentionPass<kWidth, kOfColumns>;
  constexpr int kStrips = Pass::kStrips, kOwn = Pass::kOwn, kOther = Pass::kOther, kSlice = Pass::kSlice;
  constexpr int kPitch = Pass::kPitch, kStage = kOther * kPitch;
  LEVIN_SHARED_DYNAMIC(T, tiles);
  T *const tile1 = tiles, *const tile2 = tiles + kOwn * kPitch, *const stages = tiles + 2 * kOwn * kPitch;
  RowTerms* const kept = reinterpret_cast<RowTerms*>(tiles + Pass::kNumbers);  // [2][kOther], of columns alone

  const int64_t owns = kOfColumns ? s.cols : s.rows, others = kOfColumns ? s.rows : s.cols;
  const int64_t parts = (owns + kOwn - 1) / kOwn;
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x, b = block / parts;
  if (b >= s.batches) return;
  const int64_t first = (kOfColumns ? block % parts : parts - 1 - block % parts) * kOwn;
  int64_t offset[5];
  batch.offsets(b, offset);
  own1.p += offset[0];
  own2.p += offset[1];
  other1.p += offset[2];
  other2.p += offset[3];
  y.p += offset[4];
  terms += b * s.rows;
  lse += b * s.rows;

  // With causal, column c has rows from c on, and row r has columns up to r.
  const int64_t from = kOfColumns && s.causal ? first / kOther * kOther : 0;
  const int64_t to = !kOfColumns && s.causal && first + kOwn < others ? first + kOwn : others;
  const int steps = from < to ? static_cast<int>((to - from + kOther - 1) / kOther) : 0;

  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto stage = [&](int j) { return stages + j % 2 * 2 * kStage; };
  const auto fetch_stage = [&](int j) {
    fetch_lines<kWhole, kWidth, kOther, 2>(other1, from + int64_t{j} * kOther, stage(j));
    fetch_lines<kWhole, kWidth, kOther, 2>(other2, from + int64_t{j} * kOther, stage(j) + kStage);
  };
  // The terms of row `at`; one that is not there has no weights.
  const auto terms_of = [&](int64_t at) { return at < s.rows ? terms[at] : RowTerms{INFINITY, 0}; };

  const int strip0 = warp * 16 * kStrips;  // this warp's first line of the tile
  const int64_t line0 = first + strip0;
  RowTerms own_terms[kStrips][2], next{INFINITY, 0};
  if (steps > 0) {
    fetch_lines<kWhole, kWidth, kOwn, 2>(own1, first, tile1);
    fetch_lines<kWhole, kWidth, kOwn, 2>(own2, first, tile2);
    fetch_stage(0);
    cp_async_commit();
    if constexpr (kOfColumns) {
      if (thread < kOther) next = terms_of(from + thread);
    }
  }
  if constexpr (!kOfColumns) {
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = line0 + i * 16 + lane / 4 + r * 8;
        own_terms[i][r] = {INFINITY, mean_slope<T, kWidth>(own2, y, row)};
        if (row >= s.rows) continue;
        own_terms[i][r].log_sum = lse[row] * kLog2e;
        if (lane % 4 == 0) terms[row] = own_terms[i][r];
      }
    }
  }

  // What this lane addresses for ldmatrix: see gemm_by_warps.
  const int in = lane % 8, matrix = lane / 8, low = matrix % 2 * 8, high = matrix / 2 * 8;
  const int place_own = strip0 * kPitch + (low + in) * kPitch + high, place_other = (high + in) * kPitch + low,
            place_turned = (low + in) * kPitch + high;
  const float scale = s.scale * kLog2e;
  float sums1[kStrips][kWidth / 8][4] = {}, sums2[kOfColumns ? kStrips : 1][kOfColumns ? kWidth / 8 : 1][4] = {};

  for (int j = 0; j < steps; ++j) {
    cp_async_wait<0>();
    if (kOfColumns && thread < kOther) kept[j % 2 * kOther + thread] = next;
    // The other stage was read by all when they came here.
    __syncthreads();
    if (j + 1 < steps) {
      fetch_stage(j + 1);
      if (kOfColumns && thread < kOther) next = terms_of(from + int64_t{j + 1} * kOther + thread);
    }
    cp_async_commit();

#pragma unroll 1
    for (int slice = 0; slice < kOther; slice += kSlice) {
      const int64_t line = from + int64_t{j} * kOther + slice;
      if (line >= others) break;
      const bool diagonal = s.causal && (kOfColumns ? line < line0 + 16 * kStrips : line + kSlice > line0);
      if (diagonal && (kOfColumns ? line + kSlice <= line0 : line >= line0 + 16 * kStrips)) continue;  // none is seen
      const T *const slice1 = stage(j) + slice * kPitch, *const slice2 = slice1 + kStage;

      float scores[kStrips][kSlice / 8][4] = {}, slopes[kStrips][kSlice / 8][4] = {};
      scores_of_slice<T, kWidth>(tile1 + place_own, slice1 + place_other, scores);
      scores_of_slice<T, kWidth>(tile2 + place_own, slice2 + place_other, slopes);

      const bool edge = diagonal || (!kOfColumns && line + kSlice > others);
      const int64_t ahead = line - line0;  // how far the other side's lines are before the warp's
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
#pragma unroll
        for (int c = 0; c < kSlice / 8; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int own = i * 16 + lane / 4 + e / 2 * 8, other = c * 8 + lane % 4 * 2 + e % 2;
            RowTerms row;
            if constexpr (kOfColumns)
              row = kept[j % 2 * kOther + slice + other];
            else
              row = own_terms[i][e / 2];
            float weight = unit::exp2(scores[i][c][e] * scale - row.log_sum);
            if (edge) {
              const bool unseen = s.causal && (kOfColumns ? own - other > ahead : other - own > -ahead);
              if (unseen || (!kOfColumns && line + other >= others)) weight = 0;
            }
            scores[i][c][e] = weight;
            slopes[i][c][e] = weight * (slopes[i][c][e] - row.mean);
          }
        }
      }
      add_slice<T, kWidth>(slopes, slice1 + place_turned, sums1);
      if constexpr (kOfColumns) add_slice<T, kWidth>(scores, slice2 + place_turned, sums2);
    }
  }

#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    const int64_t line = line0 + i * 16;
    T* const rows = tile1 + (strip0 + i * 16) * kPitch;  // which no other warp has read
    write_strip<T, kWidth>(rows, sums1[i], s.scale, s.scale, g1, g1.line(b, line), owns - line, s.width);
    if constexpr (kOfColumns)
      write_strip<T, kWidth>(rows, sums2[i], 1, 1, g2, g2.line(b, line), owns - line, s.out_width);
  }
}

template <class T, int kWidth, bool kOfColumns>
void launch_attention_gradients(const Gpu& on, const AttentionRows& s, const Lines<T, true> (&operands)[4],
                                const Lines<T, true>& y, const Strided<5>& batch, const float* lse, RowTerms* terms,
                                const AttentionOut<T>& g1, const AttentionOut<T>& g2) {
  using Pass = AttentionPass<kWidth, kOfColumns>;
  const Grid grid = attention_grid(s.batches, kOfColumns ? s.cols : s.rows, Pass::kOwn, Pass::kBytes);
  on.launch(in_whole_chunks(operands[0], operands[1], operands[2], operands[3])
                ? attention_gradients<T, kWidth, kOfColumns, true>
                : attention_gradients<T, kWidth, kOfColumns, false>,
            grid, s, operands[0], operands[1], operands[2], operands[3], y, batch, lse, terms, g1, g2);
}

inline Strided<5> in_order(const Strided<5>& batch, const int (&order)[5]) {
  Strided<5> at;
  at.rank = batch.rank;
  for (int d = 0; d < batch.rank; ++d) {
    at.sizes[d] = batch.sizes[d];
    for (int t = 0; t < 5; ++t) at.steps[t][d] = batch.steps[order[t]][d];
  }
  return at;
}

// batch has the steps of q, k, v, gy and y; terms: [batches, rows]. batches >= 1.
template <class T>
void attention_backward(const Gpu& on, const AttentionRows& s, const Lines<T, true>& q, const Lines<T, true>& k,
                        const Lines<T, true>& v, const Lines<T, true>& gy, const Lines<T, true>& y,
                        const Strided<5>& batch, const float* lse, RowTerms* terms, const AttentionOut<T>& gq,
                        const AttentionOut<T>& gk, const AttentionOut<T>& gv) {
  with_head_width(s, [&]<int kWidth>(std::integral_constant<int, kWidth>) {
    launch_attention_gradients<T, kWidth, false>(on, s, {q, gy, k, v}, y, in_order(batch, {0, 3, 1, 2, 4}), lse, terms,
                                                 gq, gq);
    launch_attention_gradients<T, kWidth, true>(on, s, {k, v, q, gy}, y, in_order(batch, {1, 2, 0, 3, 4}), lse, terms,
                                                gk, gv);
  });
}

}  // namespace levin::kernels::gpu
