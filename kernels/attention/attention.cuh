#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_ATTENTION_CUH
#define LEVIN_KERNELS_ATTENTION_CUH
// Scaled dot-product attention without its [rows, cols] weights in memory: y = softmax(scale q k^T) v for each batch.
//
// q: [rows, width], k: [cols, width], v: [cols, out_width] for each batch, read through strides from q_at[batch] on (a
// broadcast batch is the same start twice); y, gy: [batches, rows, out_width], lse: [batches, rows] of Accum<T>: the
// logarithm of each row's sum of exponentials; gq, gk, gv: [batches, rows or cols, width or out_width]; all contiguous,
// overwritten, apart from the inputs. causal: row i sees columns 0 .. i. Sizes may be 0. T: float, double, f16, bf16;
// scores and sums are Accum<T>, weights are rounded to T for the products.
//   attention(on, shape, const T* q, const T* k, const T* v, T* y, A* lse)
//   attention_backward(on, shape, const T* gy, const T* q, const T* k, const T* v, const T* y, const A* lse,
//                      T* gq, T* gk, T* gv)
//
// A task takes a block of rows: its scores stay in the second-level cache, and the backward pass computes them again
// from lse (Dao et al., "FlashAttention", 2022). The order of sums does not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/lib/scratch.h"
#include "kernels/math/math.h"
#include "kernels/reduce/row_sums.cuh"
#include "levin/dtype.h"

namespace levin::kernels {

struct AttentionShape {
  struct Steps {
    int64_t row, col;
  };
  int64_t rows = 0, cols = 0, width = 0, out_width = 0;
  double scale = 1;
  bool causal = false;
  Steps q{}, k{}, v{};
  std::span<const int64_t> q_at, k_at, v_at;  // one start for each batch

  [[nodiscard]] int64_t batches() const { return int64_t(q_at.size()); }
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/attention/attention.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(attention)
LEVIN_PICK_EVERY(attention_backward)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

inline constexpr int64_t kAttentionRows = 64;

// The operands of rows [first, first + rows) of one batch; no row of them sees a column from `cols` on.
template <class T>
struct AttentionBlock {
  int64_t first, rows, cols;
  Matrix<T> q, k, v;
  AttentionBlock(const AttentionShape& s, int64_t batch, int64_t block, const T* q_, const T* k_, const T* v_)
      : first(block * kAttentionRows),
        rows(std::min(kAttentionRows, s.rows - first)),
        cols(s.causal ? std::min(s.cols, first + rows) : s.cols),
        q{q_ + s.q_at[size_t(batch)] + first * s.q.row, s.q.row, s.q.col},
        k{k_ + s.k_at[size_t(batch)], s.k.row, s.k.col},
        v{v_ + s.v_at[size_t(batch)], s.v.row, s.v.col} {}
  [[nodiscard]] int64_t seen(const AttentionShape& s, int64_t row) const {
    return s.causal ? std::min(cols, first + row + 1) : cols;
  }
};
template <class T>
Matrix<T> turned(Matrix<T> m) {
  return {m.data, m.col, m.row};
}

// Numbers as T for a product: themselves, or a rounded copy.
template <class T>
const T* as_operand(const Accum<T>* from, T* copy, int64_t n) {
  if constexpr (std::is_same_v<T, Accum<T>>) {
    return from;
  } else {
    for (int64_t i = 0; i < n; ++i) copy[i] = T(from[i]);
    return copy;
  }
}
template <class T>
inline constexpr size_t kOperandBytes = std::is_same_v<T, Accum<T>> ? 0 : sizeof(T);

template <class T>
void attention(const Cpu& on, const AttentionShape& s, const T* q, const T* k, const T* v, T* y, Accum<T>* lse) {
  using A = Accum<T>;
  const int64_t blocks = (s.rows + kAttentionRows - 1) / kAttentionRows;
  on.parallel_for(s.batches() * blocks, 1, [&](int64_t from, int64_t to) {
    lib::Scratch memory(size_t(kAttentionRows * s.cols) * (sizeof(A) + kOperandBytes<T>));
    A* const w = memory.as<A>();
    for (int64_t task = from; task < to; ++task) {
      const int64_t batch = task / blocks;
      const AttentionBlock<T> b(s, batch, task % blocks, q, k, v);
      gemm(on, GemmSize{b.rows, b.cols, s.width}, b.q, turned(b.k), w, b.cols, GemmOptions<T>{.alpha = s.scale});
      for (int64_t i = 0; i < b.rows; ++i) {
        A* const row = w + i * b.cols;
        const int64_t n = b.seen(s, i);
        const A top = n > 0 ? row_max(row, n) : A(0);
#pragma GCC ivdep
        for (int64_t j = 0; j < n; ++j) row[j] = math::exp_nonpositive(row[j] - top);
        const A sum = row_sum(row, n), part = 1 / sum;
        for (int64_t j = 0; j < n; ++j) row[j] *= part;
        std::fill(row + n, row + b.cols, A(0));
        lse[batch * s.rows + b.first + i] = top + math::log(sum);
      }
      const T* const weights = as_operand<T>(w, reinterpret_cast<T*>(w + kAttentionRows * s.cols), b.rows * b.cols);
      gemm(on, GemmSize{b.rows, s.out_width, b.cols}, Matrix<T>{weights, b.cols, 1}, b.v,
           y + (batch * s.rows + b.first) * s.out_width, s.out_width, GemmOptions<T>{});
    }
  });
}

template <class T>
void attention_backward(const Cpu& on, const AttentionShape& s, const T* gy, const T* q, const T* k, const T* v,
                        const T* y, const Accum<T>* lse, T* gq, T* gk, T* gv) {
  using A = Accum<T>;
  const int64_t blocks = (s.rows + kAttentionRows - 1) / kAttentionRows, tile = kAttentionRows * s.cols;
  on.parallel_for(s.batches(), 1, [&](int64_t from, int64_t to) {
    const int64_t sums = s.cols * (s.width + s.out_width);
    lib::Scratch memory(size_t(sums + 2 * tile) * sizeof(A) + size_t(2 * tile) * kOperandBytes<T>);
    A* const sum_k = memory.as<A>();
    A* const sum_v = sum_k + s.cols * s.width;
    A* const w = sum_v + s.cols * s.out_width;
    A* const slope = w + tile;
    T* const copy = reinterpret_cast<T*>(slope + tile);
    for (int64_t batch = from; batch < to; ++batch) {
      std::fill(sum_k, sum_k + sums, A(0));
      for (int64_t block = 0; block < blocks; ++block) {
        const AttentionBlock<T> b(s, batch, block, q, k, v);
        const int64_t at = batch * s.rows + b.first;
        const Matrix<T> g{gy + at * s.out_width, s.out_width, 1};
        gemm(on, GemmSize{b.rows, b.cols, s.width}, b.q, turned(b.k), w, b.cols, GemmOptions<T>{.alpha = s.scale});
        gemm(on, GemmSize{b.rows, b.cols, s.out_width}, g, turned(b.v), slope, b.cols, GemmOptions<T>{});
        for (int64_t i = 0; i < b.rows; ++i) {
          A *const row = w + i * b.cols, *const d = slope + i * b.cols;
          const int64_t n = b.seen(s, i);
          const T *const gi = gy + (at + i) * s.out_width, *const yi = y + (at + i) * s.out_width;
          A mean = 0;  // of the slopes under the weights: gy . y
          for (int64_t c = 0; c < s.out_width; ++c) mean += A(gi[c]) * A(yi[c]);
          const A log_sum = lse[at + i], scale = A(s.scale);
#pragma GCC ivdep
          for (int64_t j = 0; j < n; ++j) {
            row[j] = math::exp_nonpositive(row[j] - log_sum);
            d[j] = row[j] * (d[j] - mean) * scale;
          }
          std::fill(row + n, row + b.cols, A(0));
          std::fill(d + n, d + b.cols, A(0));
        }
        const T* const weights = as_operand<T>(w, copy, b.rows * b.cols);
        const T* const slopes = as_operand<T>(slope, copy + tile, b.rows * b.cols);
        gemm(on, GemmSize{b.cols, s.out_width, b.rows}, Matrix<T>{weights, 1, b.cols}, g, sum_v, s.out_width,
             GemmOptions<T>{.beta = 1});
        gemm(on, GemmSize{b.cols, s.width, b.rows}, Matrix<T>{slopes, 1, b.cols}, b.q, sum_k, s.width,
             GemmOptions<T>{.beta = 1});
        gemm(on, GemmSize{b.rows, s.width, b.cols}, Matrix<T>{slopes, b.cols, 1}, b.k, gq + at * s.width, s.width,
             GemmOptions<T>{});
      }
      for (int64_t i = 0; i < s.cols * s.width; ++i) gk[batch * s.cols * s.width + i] = T(sum_k[i]);
      for (int64_t i = 0; i < s.cols * s.out_width; ++i) gv[batch * s.cols * s.out_width + i] = T(sum_v[i]);
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
