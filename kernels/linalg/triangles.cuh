// Systems of equations with triangles on the CPU: forward substitution, on which lu.cuh and cholesky.cuh build.
// kernels/linalg/linalg.h says what the functions of a level compute.
//
// Note [Strips]
// Right sides are solved in strips of as many columns as a tile of a product has (kTileCols). A strip is copied to
// [n, columns], zeros beyond the last column, and solved there a few rows at a time: a tile of gemm_tile.cuh subtracts
// the products of all rows above, and a triangle of at most kSolvedRows rows is solved in registers. So a solution runs
// at the speed of a product, without a call or a copy for each block. An upper triangle is a lower one read from its
// end, and a transpose is an exchange of strides. Each number of a solution is one chain of operations, whatever other
// columns and threads there are. A triangle of more than kStripRows rows is halved: a product of gemm.cuh, which copies
// rows that lie far apart, subtracts one half from the other. On an Intel core of level v4, LU's two triangles of 1,024
// rows take 17 ms with halves, and 31 ms with strips alone.
//
// The diagonal is inverted once, and rows are multiplied with it: a division is as slow as ten products. The inverse of
// a 0 is infinite, as a quotient would be.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_TRIANGLES_CUH
#define LEVIN_KERNELS_TRIANGLES_CUH

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"
#include "kernels/linalg/each_matrix.h"
#include "kernels/linalg/linalg.h"

#define LEVIN_LEVEL_FILE "kernels/linalg/triangles.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(solve_by_triangle)
LEVIN_PICK_EVERY(solve_by_lu)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Rows of a triangle that registers hold.
inline constexpr int kSolvedRows = LEVIN_VECTOR_BYTES == 64 ? 12 : kTileRows;
// Of the rows that are left.
inline constexpr int kFewRows = 4;
// Up to how many rows strips are solved from one end to the other.
inline constexpr std::int64_t kStripRows = 256;

// A strip's columns, and the vectors that hold them.
template <class F>
struct Strip {
  static constexpr std::int64_t kColumns = kTileCols<F>;
  std::int64_t first, cols, width;
  Strip(std::int64_t index, std::int64_t of)
      : first(index * kColumns),
        cols(std::min(kColumns, of - first)),
        width(cols <= kLanes<F> ? kLanes<F> : kColumns) {}
  static std::int64_t count(std::int64_t of) { return (of + kColumns - 1) / kColumns; }
};

// to: `cols` numbers, and zeros up to `width`. A constant count becomes straight vector moves.
template <class F>
inline void copy_row(const F* from, F* to, std::int64_t cols, std::int64_t width) {
  if (cols == kTileCols<F>) return copy_run(from, 1, to, kTileCols<F>);
  copy_run(from, 1, to, cols);
  for (std::int64_t c = cols; c < width; ++c) to[c] = 0;
}

// y [H, V vectors] = l^-1 y of a lower triangle l, whose inverted diagonal is `inverse`.
template <class F, int H, int V>
void solve_in_registers(const F* l, std::int64_t l_row, std::int64_t l_col, const F* inverse, F* y,
                        std::int64_t y_row) {
  using Vec = Vector<F>;
  constexpr int L = kLanes<F>;
  Vec x[H][V];
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) __builtin_memcpy(&x[i][v], y + i * y_row + v * L, sizeof(Vec));
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) x[i][v] *= inverse[i];
    const F* at = l + i * (l_row + l_col);
#pragma GCC unroll 16
    for (int r = i + 1; r < H; ++r) {
      at += l_row;
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) x[r][v] -= x[i][v] * *at;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) __builtin_memcpy(y + i * y_row + v * L, &x[i][v], sizeof(Vec));
}

// y [n, width] = l^-1 y of the lower triangle of l, on one thread. Rows of y are y_row apart.
template <class F>
void substitute(std::int64_t n, Matrix<F> l, const F* inverse, F* y, std::int64_t y_row, std::int64_t width) {
  const bool is_wide = width > kLanes<F>;
  for (std::int64_t i = 0, h = 0; i < n; i += h) {
    h = n - i >= kSolvedRows ? kSolvedRows : n - i >= kFewRows ? kFewRows : 1;
    const F* const rows = l.data + i * l.row;
    F* const to = y + i * y_row;
    if (i > 0)
      tile_of<F>(int(h), is_wide ? 2 : 1)(i, rows, l.row, l.col, y, y_row, {to, y_row, F(-1), F(1), nullptr, nullptr});
    const auto solve = [&]<int H>(std::integral_constant<int, H>) {
      const F* const triangle = rows + i * l.col;
      is_wide ? solve_in_registers<F, H, 2>(triangle, l.row, l.col, inverse + i, to, y_row)
              : solve_in_registers<F, H, 1>(triangle, l.row, l.col, inverse + i, to, y_row);
    };
    if (h == kSolvedRows) {
      solve(std::integral_constant<int, kSolvedRows>{});
    } else if (h == kFewRows) {
      solve(std::integral_constant<int, kFewRows>{});
    } else {
      solve(std::integral_constant<int, 1>{});
    }
  }
}

// A triangle of a matrix, its transpose where that is meant: element (i, j) at data[i * row + j * col].
template <class F>
struct Triangle {
  Matrix<F> a;
  std::int64_t n;
  bool is_upper, is_unit;
  Triangle(const F* matrix, std::int64_t size, TriangularForm form)
      : a{matrix, form.transposed ? 1 : size, form.transposed ? size : 1},
        n(size),
        is_upper(form.upper != form.transposed),
        is_unit(form.unit) {}
  // Of the rows and columns [begin, end).
  [[nodiscard]] Triangle part(std::int64_t begin, std::int64_t end) const {
    Triangle of = *this;
    of.a.data += begin * (a.row + a.col);
    of.n = end - begin;
    return of;
  }
  // y [n, width] = the triangle's inverse times y; `inverse`: room for n numbers.
  void solve(F* inverse, F* y, std::int64_t width) const {
    Matrix<F> lower = a;
    if (is_upper) lower = {a.data + (n - 1) * (a.row + a.col), -a.row, -a.col};
    for (std::int64_t i = 0; i < n; ++i) inverse[i] = is_unit ? F(1) : F(1) / lower.data[i * (lower.row + lower.col)];
    substitute(n, lower, inverse, is_upper ? y + (n - 1) * width : y, is_upper ? -width : width, width);
  }
};

// solve(matrix, strip, y, inverse) for each strip of the k right sides of each of the batch: memory for y [n, strip]
// and for n numbers. It solves `triangles` of them, which decides the size of tasks.
template <class F, class Solve>
void each_strip(const Cpu& on, std::int64_t batch, std::int64_t n, std::int64_t k, std::int64_t triangles,
                const Solve& solve) {
  const std::int64_t strips = Strip<F>::count(k), columns = std::min(k, Strip<F>::kColumns);
  const std::int64_t bytes = n * (Strip<F>(0, k).width + 1) * std::int64_t(sizeof(F));
  const std::int64_t work = triangles * (n * n * columns / 100 + 15 * n);
  (void)each_matrix(on, batch * strips, work, bytes, [&](std::int64_t at, const lib::Scratch& memory) {
    const Strip<F> strip(at % strips, k);
    solve(at / strips, strip, memory.as<F>(), memory.as<F>() + n * strip.width);
    return true;
  });
}

// x [n, k] = the inverse of `of(i)` times x for each matrix i of a batch.
template <class F, class Of>
void solve_strips(const Cpu& on, std::int64_t batch, std::int64_t n, F* x, std::int64_t k, const Of& of) {
  each_strip<F>(on, batch, n, k, 1, [&](std::int64_t i, const Strip<F>& strip, F* y, F* inverse) {
    F* const right = x + i * n * k + strip.first;
    for (std::int64_t r = 0; r < n; ++r) copy_row(right + r * k, y + r * strip.width, strip.cols, strip.width);
    of(i).solve(inverse, y, strip.width);
    for (std::int64_t r = 0; r < n; ++r) copy_row(y + r * strip.width, right + r * k, strip.cols, strip.cols);
  });
}

// The same for one triangle of any size.
template <class F>
void solve_halves(const Cpu& on, const Triangle<F>& of, F* x, std::int64_t k) {
  if (of.n <= kStripRows) return solve_strips(on, 1, of.n, x, k, [&](std::int64_t) { return of; });
  const std::int64_t middle = of.n / 2, rest = of.n - middle;
  F* const below = x + middle * k;
  const GemmOptions<F> minus{.alpha = -1, .beta = 1};
  if (of.is_upper) {
    solve_halves(on, of.part(middle, of.n), below, k);
    gemm(on, {middle, k, rest}, Matrix<F>{of.a.data + middle * of.a.col, of.a.row, of.a.col}, Matrix<F>{below, k, 1}, x,
         k, minus);
    solve_halves(on, of.part(0, middle), x, k);
  } else {
    solve_halves(on, of.part(0, middle), x, k);
    gemm(on, {rest, k, middle}, Matrix<F>{of.a.data + middle * of.a.row, of.a.row, of.a.col}, Matrix<F>{x, k, 1}, below,
         k, minus);
    solve_halves(on, of.part(middle, of.n), below, k);
  }
}

template <class F>
void solve_by_triangle(const Cpu& on, const F* a, F* x, std::int64_t batch, std::int64_t n, std::int64_t k,
                       TriangularForm form) {
  if (n == 0 || k == 0) return;
  const auto of = [&](std::int64_t i) { return Triangle<F>(a + i * n * n, n, form); };
  if (n <= kStripRows) return solve_strips(on, batch, n, x, k, of);
  for (std::int64_t i = 0; i < batch; ++i) solve_halves(on, of(i), x + i * n * k, k);
}

// x of one matrix of more than kStripRows rows.
template <class F>
void solve_large_lu(const Cpu& on, const Triangle<F>& l, const Triangle<F>& u, const std::int64_t* rows, const F* b,
                    F* x, std::int64_t k, bool transposed) {
  const std::int64_t n = l.n;
  if (!transposed) {
    for (std::int64_t r = 0; r < n; ++r) copy_run(b + r * k, 1, x + rows[r] * k, k);
    solve_halves(on, l, x, k);
    solve_halves(on, u, x, k);
    return;
  }
  const lib::Scratch memory(std::size_t(n * k) * sizeof(F));
  F* const y = memory.as<F>();
  copy_run(b, 1, y, n * k);
  solve_halves(on, u, y, k);
  solve_halves(on, l, y, k);
  for (std::int64_t r = 0; r < n; ++r) copy_run(y + rows[r] * k, 1, x + r * k, k);
}

template <class F>
void solve_by_lu(const Cpu& on, const F* lu, const std::int64_t* rows, const F* b, F* x, std::int64_t batch,
                 std::int64_t n, std::int64_t k, bool transposed) {
  if (n == 0 || k == 0) return;
  const auto l = [&](std::int64_t i) {
    return Triangle<F>(lu + i * n * n, n, {.unit = true, .transposed = transposed});
  };
  const auto u = [&](std::int64_t i) {
    return Triangle<F>(lu + i * n * n, n, {.upper = true, .transposed = transposed});
  };
  if (n > kStripRows) {
    for (std::int64_t i = 0; i < batch; ++i)
      solve_large_lu(on, l(i), u(i), rows + i * n, b + i * n * k, x + i * n * k, k, transposed);
    return;
  }
  each_strip<F>(on, batch, n, k, 2, [&](std::int64_t i, const Strip<F>& strip, F* y, F* inverse) {
    const std::int64_t width = strip.width;
    const std::int64_t* const places = rows + i * n;
    const F* const from = b + i * n * k + strip.first;
    F* const to = x + i * n * k + strip.first;
    for (std::int64_t r = 0; r < n; ++r)
      copy_row(from + r * k, y + (transposed ? r : places[r]) * width, strip.cols, width);
    (transposed ? u(i) : l(i)).solve(inverse, y, width);
    (transposed ? l(i) : u(i)).solve(inverse, y, width);
    for (std::int64_t r = 0; r < n; ++r)
      copy_row(y + (transposed ? places[r] : r) * width, to + r * k, strip.cols, strip.cols);
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
