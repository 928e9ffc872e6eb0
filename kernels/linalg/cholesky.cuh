// Cholesky factors on the CPU. kernels/linalg/linalg.h says what a level's factor_cholesky computes.
//
// Note [Strips of Cholesky]
// A strip of rows of l, transposed, is a strip of right sides (Note [Strips] in triangles.cuh): its columns before the
// diagonal block are l^-1 a^T of the rows above, the block is a minus the products of the strip with itself, and is
// factored row by row. The strips of a matrix of at most kSerialRows rows follow one another. A larger one is halved:
// the strips of the lower left quarter are solved by tasks, and the products that are subtracted from the lower right
// one are cut into tasks by the same strips.
//
// The upper triangle is not read for a result, but tiles write into it, so it is set to 0 last.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CHOLESKY_CUH
#define LEVIN_KERNELS_CHOLESKY_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"
#include "kernels/linalg/each_matrix.h"
#include "kernels/linalg/triangles.cuh"

#define LEVIN_LEVEL_FILE "kernels/linalg/cholesky.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(factor_cholesky)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// The Cholesky factor of one matrix a [n, n], by rows.
template <class F>
class RecursiveCholesky {
  static constexpr int L = kLanes<F>;
  static constexpr std::int64_t W = Strip<F>::kColumns;
  static constexpr std::int64_t kSerialRows = 128;
  static constexpr std::int64_t kTaskProducts = 192 * 1024;

 public:
  RecursiveCholesky(const Cpu& on, F* a, std::int64_t n, F* room)
      : on_(on), a_(a), n_(n), strip_(room), inverse_(room + std::min(n, kSerialRows) * W) {}
  // Numbers of `room`.
  static std::int64_t numbers(std::int64_t n) { return std::min(n, kSerialRows) * W + n; }

  // Factors the rows and columns [begin, end). Returns whether they are positive definite.
  bool factor(std::int64_t begin, std::int64_t end) const {
    const std::int64_t n = end - begin;
    if (n <= kSerialRows) return factor_strips(begin, end);
    const std::int64_t middle = begin + (n / 2 + W - 1) / W * W;
    if (!factor(begin, middle)) return false;
    solve_below(begin, middle, end);
    subtract_below(begin, middle, end);
    return factor(middle, end);
  }

 private:
  F* at(std::int64_t row, std::int64_t col) const { return a_ + row * n_ + col; }

  // y [count, strip.width]: the strip's rows from `first` on in the columns from `col` on, transposed, or back.
  void load(std::int64_t first, std::int64_t col, std::int64_t count, const Strip<F>& strip, F* y) const {
    const F* const from = at(first + strip.first, col);
    if (count > L) return pack_panel<F, F>({from, 1, n_}, count, strip.cols, y, strip.width, strip.width);
    for (std::int64_t p = 0; p < count; ++p) {
      F* const to = y + p * strip.width;
      for (std::int64_t w = 0; w < strip.width; ++w) to[w] = 0;
      copy_run(from + p, n_, to, strip.cols);
    }
  }
  void store(std::int64_t first, std::int64_t col, std::int64_t count, const Strip<F>& strip, const F* y) const {
    const std::int64_t cols = strip.cols / L * L, whole = count / L * L;
    F* const to = at(first + strip.first, col);
    for (std::int64_t w = 0; w < strip.cols; ++w) {
      const bool in_squares = w < cols;
      if (in_squares && w % L == 0)
        for (std::int64_t p = 0; p < whole; p += L)
          transpose_square(y + p * strip.width + w, strip.width, to + w * n_ + p, n_);
      const std::int64_t done = in_squares ? whole : 0;
      copy_run(y + done * strip.width + w, strip.width, to + w * n_ + done, count - done);
    }
  }

  // d [size, V vectors] by rows: u with d = u^T u from the upper triangle of d, in place, and the inverted diagonal.
  template <int V>
  static bool factor_block(std::int64_t size, F* d, F* inverse) {
    using Vec = Vector<F>;
    constexpr std::int64_t kWidth = V * L;
    for (std::int64_t j = 0; j < size; ++j) {
      F* const row = d + j * kWidth;
      if (row[j] <= F(0)) return false;
      const F root = std::sqrt(row[j]);
      inverse[j] = F(1) / root;
      Vec x[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        __builtin_memcpy(&x[v], row + v * L, sizeof(Vec));
        x[v] *= inverse[j];
        __builtin_memcpy(row + v * L, &x[v], sizeof(Vec));
      }
      for (std::int64_t r = j + 1; r < size; ++r) {
        F* const below = d + r * kWidth;
        const F factor = row[r];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          Vec y;
          __builtin_memcpy(&y, below + v * L, sizeof(Vec));
          y -= x[v] * factor;
          __builtin_memcpy(below + v * L, &y, sizeof(Vec));
        }
      }
      row[j] = root;
    }
    return true;
  }

  bool factor_strips(std::int64_t begin, std::int64_t end) const {
    const std::int64_t n = end - begin;
    F* const y = strip_;
    for (std::int64_t i = 0; i < Strip<F>::count(n); ++i) {
      const Strip<F> strip(i, n);
      const std::int64_t above = strip.first, width = strip.width;
      F* const block = y + above * width;
      load(begin, begin, above + strip.cols, strip, y);
      if (above > 0) {
        substitute(above, {at(begin, begin), n_, 1}, inverse_ + begin, y, width, width);
        multiply_block<F>(strip.cols, width, above, {y, 1, width}, y, width,
                          {block, width, F(-1), F(1), nullptr, nullptr}, width);
      }
      F* const inverse = inverse_ + begin + above;
      if (!(width > L ? factor_block<2>(strip.cols, block, inverse) : factor_block<1>(strip.cols, block, inverse)))
        return false;
      store(begin, begin, above + strip.cols, strip, y);
    }
    return true;
  }

  // task(strip, y [k, strip]) for each strip of `rows` rows; products: of a task.
  template <class Task>
  void each_task(std::int64_t rows, std::int64_t k, std::int64_t products, const Task& task) const {
    on_.parallel_for(Strip<F>::count(rows), std::max(std::int64_t{1}, kTaskProducts / products),
                     [&](std::int64_t from, std::int64_t to) {
                       const lib::Scratch memory(std::size_t(k * W) * sizeof(F));
                       for (std::int64_t i = from; i < to; ++i) task(Strip<F>(i, rows), memory.as<F>());
                     });
  }
  // The rows [middle, end) of l in the columns [begin, middle).
  void solve_below(std::int64_t begin, std::int64_t middle, std::int64_t end) const {
    const std::int64_t k = middle - begin;
    each_task(end - middle, k, W * k * k / 2, [&](const Strip<F>& strip, F* y) {
      load(middle, begin, k, strip, y);
      substitute(k, {at(begin, begin), n_, 1}, inverse_ + begin, y, strip.width, strip.width);
      store(middle, begin, k, strip, y);
    });
  }
  // Subtracts their products from the lower triangle of the rows and columns [middle, end).
  void subtract_below(std::int64_t begin, std::int64_t middle, std::int64_t end) const {
    const std::int64_t k = middle - begin, rows = end - middle;
    each_task(rows, k, W * k * rows / 2, [&](const Strip<F>& strip, F* y) {
      const std::int64_t first = middle + strip.first;
      load(middle, begin, k, strip, y);
      multiply_block<F>(end - first, strip.cols, k, {at(first, begin), n_, 1}, y, strip.width,
                        {at(first, first), n_, F(-1), F(1), nullptr, nullptr}, strip.cols);
    });
  }

  const Cpu& on_;
  F* a_;
  std::int64_t n_;
  F *strip_, *inverse_;  // y of factor_strips; the inverted diagonal of l
};

template <class F>
std::int64_t factor_cholesky(const Cpu& on, F* a, std::int64_t batch, std::int64_t n) {
  if (n == 0) return -1;
  const std::int64_t bytes = RecursiveCholesky<F>::numbers(n) * std::int64_t(sizeof(F));
  return each_matrix(on, batch, n * n * n / 100 + 30 * n, bytes, [&](std::int64_t i, const lib::Scratch& memory) {
    F* const one = a + i * n * n;
    const bool is_positive = RecursiveCholesky<F>(on, one, n, memory.as<F>()).factor(0, n);
    for (std::int64_t r = 0; r < n; ++r)
      for (std::int64_t c = r + 1; c < n; ++c) one[r * n + c] = 0;
    return is_positive;
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
