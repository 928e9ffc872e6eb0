// Products of a matrix and a vector on the CPU: gemm.cuh calls them where m or n is 1.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_GEMV_CUH
#define LEVIN_KERNELS_GEMV_CUH

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/gemm/gemv.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Less work than this in a chunk is not worth a second thread; about 10 us.
inline constexpr int64_t kChunkFlops = int64_t{1} << 20;

// `rows` dot products of k numbers: out(r, sum of M[r, kk] * x[kk]). M.col is 1 unless the strip is copied.
template <class T, class F, int R>
inline void dot_rows(Matrix<T> m, int64_t k, const F* x, F* out) {
  using Vec = Vector<F>;
  constexpr int L = kLanes<F>;
  constexpr int64_t kStrip = 512;
  constexpr bool kPlain = std::is_same_v<T, F>;
  F copied[R][kStrip];
  Vec sum[R][2] = {};
  F tail[R] = {};
  for (int64_t k0 = 0; k0 < k; k0 += kStrip) {
    const int64_t count = std::min(kStrip, k - k0);
    const F* p[R];
    for (int r = 0; r < R; ++r) {
      const T* from = m.data + r * m.row + k0 * m.col;
      if constexpr (kPlain) {
        if (m.col == 1) {
          p[r] = from;
          continue;
        }
      }
      copy_run(from, m.col, copied[r], count);
      p[r] = copied[r];
    }
    int64_t kk = 0;
    for (; kk + 2 * L <= count; kk += 2 * L) {
      Vec x0, x1;
      __builtin_memcpy(&x0, x + k0 + kk, sizeof(Vec));
      __builtin_memcpy(&x1, x + k0 + kk + L, sizeof(Vec));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        Vec m0, m1;
        __builtin_memcpy(&m0, p[r] + kk, sizeof(Vec));
        __builtin_memcpy(&m1, p[r] + kk + L, sizeof(Vec));
        sum[r][0] += m0 * x0;
        sum[r][1] += m1 * x1;
      }
    }
    for (; kk < count; ++kk)
      for (int r = 0; r < R; ++r) tail[r] += p[r][kk] * x[k0 + kk];
  }
  for (int r = 0; r < R; ++r) {
    const Vec both = sum[r][0] + sum[r][1];
    F s = tail[r];
    for (int l = 0; l < L; ++l) s += both[l];
    out[r] = s;
  }
}

// Columns [0, cols) of a row vector times a matrix whose rows are contiguous: out[j] = sum of x[kk] * M[kk * ld + j].
template <class T, class F>
inline void row_times_matrix(const T* m, int64_t ld, int64_t k, int64_t cols, const F* x, F* out) {
  using Vec = Vector<F>;
  constexpr int L = kLanes<F>;
  constexpr int W = 8;
  int64_t j = 0;
  F copied[size_t(W * L)];
  for (; j < cols; j += W * L) {
    const int64_t width = std::min<int64_t>(W * L, cols - j);
    if (std::is_same_v<T, F> && width < W * L) break;
    Vec sum[W] = {};
    for (int64_t kk = 0; kk < k; ++kk) {
      const F* p = copied;
      if constexpr (std::is_same_v<T, F>) {
        p = m + kk * ld + j;
      } else {
        copy_run(m + kk * ld + j, 1, copied, width);
      }
#pragma GCC unroll 8
      for (int v = 0; v < W; ++v) {
        Vec b;
        __builtin_memcpy(&b, p + v * L, sizeof(Vec));
        sum[v] += b * x[kk];
      }
    }
    std::memcpy(copied, sum, sizeof sum);
    std::memcpy(out + j, copied, size_t(width) * sizeof(F));
  }
  if constexpr (std::is_same_v<T, F>) {
    for (; j + L <= cols; j += L) {
      Vec sum[2] = {};
      for (int64_t kk = 0; kk < k; ++kk) {
        Vec b;
        __builtin_memcpy(&b, m + kk * ld + j, sizeof(Vec));
        sum[0] += b * x[kk];
      }
      __builtin_memcpy(out + j, &sum[0], sizeof(Vec));
    }
    if (j < cols) {
      const int64_t rest = cols - j;
      for (int64_t i = 0; i < rest; ++i) copied[i] = 0;
      for (int64_t kk = 0; kk < k; ++kk)
        for (int64_t i = 0; i < rest; ++i) copied[i] += m[kk * ld + j + i] * x[kk];
      for (int64_t i = 0; i < rest; ++i) out[j + i] = copied[i];
    }
  }
}

// y[i * y_stride] = alpha * (M x)[i] + beta * y[i * y_stride] + bias[i * bias_stride]; M: [rows, k].
template <class T, class C>
void gemv(const Cpu& on, bool spread, int64_t rows, int64_t k, Matrix<T> m, const T* x, int64_t x_stride, double alpha,
          double beta, const T* bias, int64_t bias_stride, const T* one_bias, C* y, int64_t y_stride) {
  using F = Accum<T>;
  const F* dense = nullptr;
  const bool copy_x = x_stride != 1 || !std::is_same_v<T, F>;
  lib::Scratch memory(copy_x ? size_t(k) * sizeof(F) : 0);
  if (copy_x) {
    copy_run(x, x_stride, memory.as<F>(), k);
    dense = memory.as<F>();
  } else if constexpr (std::is_same_v<T, F>) {
    dense = x;
  }
  constexpr int64_t kBlock = 256;  // sums waiting for the epilogue
  const int64_t step = k >= 4096 ? kBlock / 2 : kBlock;
  const int64_t grain = std::max<int64_t>(1, kChunkFlops / 8 / std::max<int64_t>(1, k) / step) * step;
  on.parallel_for(rows, spread ? grain : rows, [&](int64_t from, int64_t to) {
    F sums[kBlock];
    for (int64_t r0 = from; r0 < to; r0 += step) {
      const int64_t count = std::min(step, to - r0);
      if (m.row == 1 && m.col != 1) {
        row_times_matrix<T, F>(m.data + r0, m.col, k, count, dense, sums);
      } else {
        int64_t r = 0;
        for (; r + 4 <= count; r += 4) dot_rows<T, F, 4>({m.data + (r0 + r) * m.row, m.row, m.col}, k, dense, sums + r);
        for (; r < count; ++r) dot_rows<T, F, 1>({m.data + (r0 + r) * m.row, m.row, m.col}, k, dense, sums + r);
      }
      for (int64_t i = 0; i < count; ++i) {
        C& out = y[(r0 + i) * y_stride];
        F s = F(alpha) * sums[i];
        if (beta != 0) s += F(beta) * F(out);
        if (bias) s += F(bias[(r0 + i) * bias_stride]);
        if (one_bias) s += F(*one_bias);
        out = C(s);
      }
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
