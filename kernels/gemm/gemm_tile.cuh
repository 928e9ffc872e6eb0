// The parts of a matrix product on the CPU: a register tile that multiplies a few rows of A by two vectors of columns
// of B, and the copies that bring A and B into shape for it. gemm.cuh and conv.cuh drive them.
//
// Note [Register tile]
// A tile holds H rows by V <= 2 vectors of C in registers and runs down k once: per step it loads V vectors of B and
// one number of each row of A. It reads A through two strides, so A is mostly used where it lies; it reads B as rows of
// V vectors, each `b_row` apart, so B is used where it lies too when its columns are contiguous and few tiles read it,
// and is packed into panels [k, V * lanes] otherwise. It fetches B's row 8 steps ahead, which makes B where it lies as
// fast as a panel on a core with two FMA units of 512 bits: 512^3 on one goes from 157 to 170 of 176 GFLOP/s. H is 14
// with AVX-512 (28 of 32 registers hold sums), 6 with AVX2, 4 with SSE2; each height 1..H has its own code, and m is
// cut into heights that differ by at most one, so no row is wasted. Four steps at once have more loads of A under way:
// rows of A that come from the last cache then cost that core 3 % in place of 9. With AVX2 the strides of four steps
// do not fit into registers. A tile that is packed as [k, H] lies at constant distances from one pointer, and takes two
// steps at once: on a Zen 3 core beside MKL, 512^3 goes from 0.93 to 1.01 of its speed. Few steps ask for the lines of
// C between them, a row at a time: all at once would fill the buffers that A and B come through, 5 % of a product of
// 128 x 64 by 64 x 128. Every element of C is one chain of fused (base: rounded) multiply-adds in ascending k, in
// every tile: its bits depend on the blocks of k alone, not on tiles or threads.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_GEMM_TILE_CUH
#define LEVIN_KERNELS_GEMM_TILE_CUH

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels {

// Element (i, j) is data[i * row + j * col]; any strides, zero and negative ones too.
template <class T>
struct Matrix {
  const T* data;
  int64_t row, col;
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/gemm/gemm_tile.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class F>
struct VectorOf {
  typedef F type __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
};
template <class F>
using Vector = typename VectorOf<F>::type;
template <class F>
inline constexpr int kLanes = LEVIN_VECTOR_BYTES / int(sizeof(F));

inline constexpr int kTileRows = LEVIN_VECTOR_BYTES == 64 ? 14 : LEVIN_VECTOR_BYTES == 32 ? 6 : 4;
template <class F>
inline constexpr int kTileCols = 2 * kLanes<F>;
// Whether there is a loop for A where it is packed as [k, rows of the tile].
inline constexpr bool kHasTileLoop = LEVIN_VECTOR_BYTES >= 32;

// Where a tile puts its sums: c = alpha * sum + beta * c + col_bias + row_bias; c is not read when beta is 0.
template <class F>
struct TileOut {
  F* c;
  int64_t ldc;
  F alpha, beta;
  const F* col_bias;  // one a column, or null
  const F* row_bias;  // one a row, or null
};

// Puts the sums of a tile where `out` says. A copy of `out`: what a reference names might change with each store to C.
template <class F, int H, int V>
[[gnu::always_inline]] inline void put_tile(Vector<F> (&sum)[H][V], TileOut<F> out) {
  using Vec = Vector<F>;
  constexpr int L = kLanes<F>;
  if (out.alpha != F(1)) {
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] *= out.alpha;
  }
  if (out.beta != F(0)) {
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        Vec c;
        __builtin_memcpy(&c, out.c + i * out.ldc + v * L, sizeof(Vec));
        sum[i][v] += c * out.beta;
      }
  }
  if (out.col_bias) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      Vec bias;
      __builtin_memcpy(&bias, out.col_bias + v * L, sizeof(Vec));
#pragma GCC unroll 16
      for (int i = 0; i < H; ++i) sum[i][v] += bias;
    }
  }
  if (out.row_bias) {
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] += out.row_bias[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < H; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) __builtin_memcpy(out.c + i * out.ldc + v * L, &sum[i][v], sizeof(Vec));
}

// Rows of B from the one that is multiplied to the one that is fetched.
inline constexpr int64_t kAhead = 8;
template <class F, int V>
[[gnu::always_inline]] inline void prefetch_row(const F* row) {
#pragma GCC unroll 2
  for (int at = 0; at < V * LEVIN_VECTOR_BYTES; at += 64) __builtin_prefetch(row + at / int(sizeof(F)));
}

// Asks for the lines of [rows, cols] at c before they are written: they arrive during the products. A loop that is kept
// takes no registers from those.
template <class T>
[[gnu::always_inline]] inline void prefetch_to_write(const T* c, int64_t ldc, int64_t rows, int64_t cols) {
#pragma GCC unroll 1
  for (int64_t i = 0; i < rows; ++i, c += ldc)
    for (int64_t j = 0; j < cols; j += 64 / int64_t(sizeof(T))) __builtin_prefetch(c + j, 1);
}

template <class F, int H, int V>
void tile(int64_t k, const F* a, int64_t a_row, int64_t a_col, const F* b, int64_t b_row, const TileOut<F>& out) {
  using Vec = Vector<F>;
  constexpr int L = kLanes<F>;
  // Three rows share a pointer (offsets 0, 1 and 2 times a_row are addressing modes), so that 14 rows need 5 registers.
  constexpr int G = (H + 2) / 3;
  Vec sum[H][V] = {};
  const F* p[G];
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) p[g] = a + 3 * g * a_row;
  const auto add_products = [&](const F* row, const F* ahead, const auto& of_a) __attribute__((always_inline)) {
    prefetch_row<F, V>(ahead);
    Vec bv[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) __builtin_memcpy(&bv[v], row + v * L, sizeof(Vec));
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i) {
      const F s = of_a(i);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] += bv[v] * s;
    }
  };
  const auto step = [&](const F* row, const F* ahead, int64_t at) __attribute__((always_inline)) {
    add_products(
        row, ahead, [&](int i) __attribute__((always_inline)) { return p[i / 3][(i % 3) * a_row + at]; });
  };
  constexpr bool kLarge = V == 2 && 4 * H > 3 * kTileRows;  // the heights of large products
  constexpr bool kTwoSteps = kLarge && kHasTileLoop, kFourSteps = kLarge && LEVIN_VECTOR_BYTES != 32;
  const F* ahead = b + kAhead * b_row;
  int64_t kk = 0, span = (k + H - 1) / H;
  if (kTwoSteps && a_row == 1 && a_col == H && k >= 128) {
    prefetch_to_write(out.c, out.ldc, H, V * L);
    for (const F* q = a; kk + 2 <= k; kk += 2) {
#pragma GCC unroll 2
      for (int at = 0; at < 2 * H; at += H) {
        add_products(
            b, ahead, [&](int i) __attribute__((always_inline)) { return q[at + i]; });
        b += b_row;
        ahead += b_row;
      }
      q += 2 * H;
    }
    p[0] = a + kk * H;
#pragma GCC unroll 16
    for (int g = 1; g < G; ++g) p[g] = p[0] + 3 * g;
    span = 1;  // of the step that is left
  } else if (kFourSteps && a_col == 1 && k >= 256) {
    prefetch_to_write(out.c, out.ldc, H, V * L);
    for (; kk + 4 <= k; kk += 4) {
#pragma GCC unroll 4
      for (int64_t at = 0; at < 4; ++at) step(b + at * b_row, ahead + at * b_row, at);
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) p[g] += 4;
      b += 4 * b_row;
      ahead += 4 * b_row;
    }
    span = 4;  // of the steps that are left
  }
  for (const F* to = out.c; kk < k; to += out.ldc) {
    prefetch_to_write(to, out.ldc, 1, V * L);
    for (const int64_t end = kk + span < k ? kk + span : k; kk < end; ++kk) {
      step(b, ahead, 0);
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) p[g] += a_col;
      b += b_row;
      ahead += b_row;
    }
  }
  put_tile(sum, out);
}

template <class F>
using TileFn = void (*)(int64_t, const F*, int64_t, int64_t, const F*, int64_t, const TileOut<F>&);

template <class F, int V, int... H>
constexpr std::array<TileFn<F>, sizeof...(H)> tiles_of_heights(std::integer_sequence<int, H...>) {
  return {tile<F, H + 1, V>...};
}

// tile<F, h, v> for 1 <= h <= kTileRows, v = 1 or 2. Compiled once, in gemm.cpp.
template <class F>
TileFn<F> tile_of(int h, int v) {
  static constexpr auto one = tiles_of_heights<F, 1>(std::make_integer_sequence<int, kTileRows>());
  static constexpr auto two = tiles_of_heights<F, 2>(std::make_integer_sequence<int, kTileRows>());
  return (v == 1 ? one : two)[size_t(h - 1)];
}
#ifdef LEVIN_COMPILE_GEMM
template TileFn<float> tile_of<float>(int h, int v);
template TileFn<double> tile_of<double>(int h, int v);
#else
extern template TileFn<float> tile_of<float>(int h, int v);
extern template TileFn<double> tile_of<double>(int h, int v);
#endif

#if LEVIN_VECTOR_BYTES == 64
// Note [Pairs of bf16]
// AVX512_BF16 multiplies two bf16 numbers of a lane by two others and adds both products to the lane's f32 sum: twice
// the multiplications of f32 on a CPU that starts it as often as an FMA. A lane of packed A or B is then a pair of
// numbers that follow each other along k, in the room of an f32 number, and a tile runs over (k + 1) / 2 pairs; the
// last one has a zero where k is odd. The products are exact; numbers and sums below 2^-126 count as zero there.
//
// The tile for pairs, as tile_of<float>; only for a CPU that has AVX512_BF16.
TileFn<float> tile_of_pairs(int h, int v);
// c = alpha * sums + beta * c + col_bias, rounded to bf16 by one instruction a vector, for sums [rows, cols] that are
// `ld` apart; for the same CPU. c is not read where beta is 0.
void put_sums_of_pairs(const float* sums, int64_t ld, int64_t rows, int64_t cols, float alpha, float beta,
                       const bf16* col_bias, bf16* c, int64_t ldc);

using PairBits [[gnu::may_alias]] = uint32_t;
inline PairBits pair_of(bf16 first, bf16 second) { return PairBits{first.bits} | PairBits{second.bits} << 16; }

// dst: the pairs of `count` numbers `stride` apart.
inline void copy_pairs(const bf16* src, int64_t stride, PairBits* __restrict dst, int64_t count) {
  const int64_t whole = count / 2;
  if (stride == 1) {
    if (whole > 0) std::memcpy(dst, src, size_t(whole) * sizeof(PairBits));
  } else {
    for (int64_t i = 0; i < whole; ++i) dst[i] = pair_of(src[2 * i * stride], src[(2 * i + 1) * stride]);
  }
  if (count % 2 != 0) dst[whole] = src[(count - 1) * stride].bits;
}
// dst[i]: the pair of first[i * stride] and second[i * stride], or of the first and zero where second is null.
inline void zip_pairs(const bf16* first, const bf16* second, PairBits* __restrict dst, int64_t count,
                      int64_t stride = 1) {
  const auto zip = [=](auto step) {
    if (second != nullptr) {
      for (int64_t i = 0; i < count; ++i) dst[i] = pair_of(first[i * step], second[i * step]);
    } else {
      for (int64_t i = 0; i < count; ++i) dst[i] = first[i * step].bits;
    }
  };
  stride == 1 ? zip(std::integral_constant<int64_t, 1>{}) : zip(stride);
}
#endif

// dst[i] = src[i * stride]
template <class T, class F>
inline void copy_run(const T* src, int64_t stride, F* __restrict dst, int64_t count) {
  if (stride == 1) {
    if constexpr (std::is_same_v<T, F>) {
      if (count > 0) std::memcpy(dst, src, size_t(count) * sizeof(F));
    } else {
      for (int64_t i = 0; i < count; ++i) dst[i] = F(src[i]);
    }
  } else if (stride == 2) {  // a constant stride becomes shuffles
    for (int64_t i = 0; i < count; ++i) dst[i] = F(src[2 * i]);
  } else {
    for (int64_t i = 0; i < count; ++i) dst[i] = F(src[i * stride]);
  }
}

// dst[i] = src[i] for at most kTileRows numbers. From half of them on these are two copies of a constant size, which
// may overlap and become straight vector moves. Returns the end of what is written.
template <class T, class F>
inline F* copy_tile_row(const T* src, int64_t count, F* dst) {
  constexpr int64_t kHalf = (kTileRows + 1) / 2;
  if (count < kHalf) {
    copy_run(src, 1, dst, count);
  } else {
    copy_run(src, 1, dst, kHalf);
    copy_run(src + count - kHalf, 1, dst + count - kHalf, kHalf);
  }
  return dst + count;
}

// The lower halves of a and b interleaved, or the upper ones: a[0], b[0], a[1], ...
template <class F, int kFirst, int... I>
[[gnu::always_inline]] inline Vector<F> interleaved(Vector<F> a, Vector<F> b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (kFirst + I / 2 + (I % 2) * int(sizeof...(I)))...);
#else  // nvcc's front end does not know clang's builtin
  using Index = Vector<std::conditional_t<sizeof(F) == 8, int64_t, int32_t>>;
  return __builtin_shuffle(a, b, Index{(kFirst + I / 2 + (I % 2) * int(sizeof...(I)))...});
#endif
}

// dst[i * ld_dst + j] = src[min(j, last_row) * ld_src + i] for a square of one vector a side: log2(lanes) rounds of
// interleaving, each of which halves the distance between the vectors that belong together.
template <class F>
inline void transpose_square(const F* src, int64_t ld_src, F* dst, int64_t ld_dst, int last_row = kLanes<F>) {
  using Vec = Vector<F>;
  constexpr int L = kLanes<F>;
  constexpr auto kLane = std::make_integer_sequence<int, L>();
  Vec x[L], y[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) __builtin_memcpy(&x[i], src + (i < last_row ? i : last_row) * ld_src, sizeof(Vec));
#pragma GCC unroll 4
  for (int round = 1; round < L; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < L / 2; ++i) {
      y[2 * i] = interleaved<F, 0>(x[i], x[i + L / 2], kLane);
      y[2 * i + 1] = interleaved<F, L / 2>(x[i], x[i + L / 2], kLane);
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) __builtin_memcpy(dst + i * ld_dst, &x[i], sizeof(Vec));
}

// turned[j * pitch + i] = sums[i * kTileCols + j] for all j and the rows of squares that hold a tile.
template <class F>
inline constexpr int kSquareRows = (kTileRows + kLanes<F> - 1) / kLanes<F>* kLanes<F>;
template <class F>
inline void turn_tile(const F* sums, F* turned, int64_t pitch) {
  for (int i = 0; i < kSquareRows<F>; i += kLanes<F>)
    for (int j = 0; j < kTileCols<F>; j += kLanes<F>)
      transpose_square(sums + i * kTileCols<F> + j, kTileCols<F>, turned + j * pitch + i, pitch);
}

// dst[i * h + r] = src[r * row + i] for a tile of h rows and k columns. Squares of fewer rows than lanes write numbers
// beyond a row of dst, h at most: the squares of the rows before them and of the next columns, which come later,
// overwrite these.
template <class F>
inline void pack_rows_as_tile(const F* src, int64_t row, int h, int64_t k, F* dst) {
  constexpr int L = kLanes<F>;
  int64_t i = 0;
  if (2 * h >= L) {
    for (; i + L < k; i += L)
      for (int r = (h - 1) / L * L; r >= 0; r -= L)
        transpose_square(src + r * row + i, row, dst + i * h + r, h, (h - r < L ? h - r : L) - 1);
  }
  for (; i < k; ++i)
    for (int r = 0; r < h; ++r) dst[i * h + r] = src[r * row + i];
}

// dst[t * apart + i * h + r] = src[i * step + t * h + r] for some tiles of h rows and k columns of A^T, with room to
// read kSquareRows numbers of each. A row of dst is written in whole vectors: the next row overwrites what goes beyond,
// and the last row is written alone.
template <class F>
inline void pack_columns_as_tiles(const F* src, int64_t step, int64_t h, int64_t k, int64_t tiles, F* dst,
                                  int64_t apart) {
  for (; k > 1; --k, src += step, dst += h)
    for (int64_t t = 0; t < tiles; ++t) std::memcpy(dst + t * apart, src + t * h, sizeof(F) * kSquareRows<F>);
  if (k > 0)
    for (int64_t t = 0; t < tiles; ++t) copy_tile_row(src + t * h, h, dst + t * apart);
}

// Packs `cols` columns of B, k rows from b.data on, into dst[k, width] whose rows are ld_dst apart; width is 1 or 2
// vectors, the columns beyond `cols` are zero.
template <class T, class F>
void pack_panel(Matrix<T> b, int64_t k, int64_t cols, F* __restrict dst, int64_t width, int64_t ld_dst) {
  constexpr int L = kLanes<F>;
  if (b.col == 1) {
    if (cols == kTileCols<F>) {  // a constant count: straight vector moves
      for (int64_t kk = 0; kk < k; ++kk) copy_run(b.data + kk * b.row, 1, dst + kk * ld_dst, kTileCols<F>);
      return;
    }
    for (int64_t kk = 0; kk < k; ++kk) {
      copy_run(b.data + kk * b.row, 1, dst + kk * ld_dst, cols);
      for (int64_t j = cols; j < width; ++j) dst[kk * ld_dst + j] = F(0);
    }
    return;
  }
  constexpr int64_t kStrip = 64;  // the strip and what it becomes stay in L1
  F strip[size_t(kTileCols<F> * kStrip)];
  for (int64_t k0 = 0; k0 < k; k0 += kStrip) {
    const int64_t count = k - k0 < kStrip ? k - k0 : kStrip;
    for (int64_t j0 = 0; j0 < width; j0 += L) {
      const T* from = b.data + j0 * b.col + k0 * b.row;
      const F* src = strip;
      int64_t ld = kStrip;
      bool in_place = false;
      if constexpr (std::is_same_v<T, F>) in_place = b.row == 1 && cols - j0 >= L;
      if (in_place) {
        if constexpr (std::is_same_v<T, F>) src = from;
        ld = b.col;
      } else {
        for (int64_t j = 0; j < L; ++j) {
          if (j0 + j < cols) {
            copy_run(from + j * b.col, b.row, strip + j * kStrip, count);
          } else {
            for (int64_t i = 0; i < count; ++i) strip[j * kStrip + i] = F(0);
          }
        }
      }
      F* to = dst + k0 * ld_dst + j0;
      int64_t kk = 0;
      for (; kk + L <= count; kk += L) {
        // The square after the next one: the CPU's prefetcher follows fewer rows than a square has.
        if (in_place && k0 + kk + 2 * L < k)
          for (int64_t j = 0; j < L; ++j) __builtin_prefetch(src + kk + 2 * L + j * ld);
        transpose_square(src + kk, ld, to + kk * ld_dst, ld_dst);
      }
      for (; kk < count; ++kk)
        for (int64_t j = 0; j < L; ++j) to[kk * ld_dst + j] = src[j * ld + kk];
    }
  }
}

#if LEVIN_VECTOR_BYTES == 64
// pack_panel for pairs: k numbers down, (k + 1) / 2 rows of pairs.
inline void pack_panel_pairs(Matrix<bf16> b, int64_t k, int64_t cols, float* __restrict dst, int64_t width,
                             int64_t ld_dst) {
  constexpr int L = kLanes<float>;
  auto* const pairs = reinterpret_cast<PairBits*>(dst);
  if (b.col == 1) {
    for (int64_t kk = 0; kk < k; kk += 2) {
      PairBits* const row = pairs + kk / 2 * ld_dst;
      const bf16* const first = b.data + kk * b.row;
      zip_pairs(first, kk + 1 < k ? first + b.row : nullptr, row, cols);
      for (int64_t j = cols; j < width; ++j) row[j] = 0;
    }
    return;
  }
  constexpr int64_t kStrip = 64;  // pairs; the strip and what it becomes stay in L1
  alignas(64) PairBits strip[size_t(L * kStrip)];
  for (int64_t k0 = 0; k0 < k; k0 += 2 * kStrip) {
    const int64_t numbers = k - k0 < 2 * kStrip ? k - k0 : 2 * kStrip, count = (numbers + 1) / 2;
    for (int64_t j0 = 0; j0 < width; j0 += L) {
      for (int64_t j = 0; j < L; ++j) {
        if (j0 + j < cols) {
          copy_pairs(b.data + (j0 + j) * b.col + k0 * b.row, b.row, strip + j * kStrip, numbers);
        } else {
          for (int64_t i = 0; i < count; ++i) strip[j * kStrip + i] = 0;
        }
      }
      const auto* const from = reinterpret_cast<const float*>(strip);
      float* const to = dst + k0 / 2 * ld_dst + j0;
      int64_t kk = 0;
      for (; kk + L <= count; kk += L) transpose_square(from + kk, kStrip, to + kk * ld_dst, ld_dst);
      for (; kk < count; ++kk)
        for (int64_t j = 0; j < L; ++j) pairs[(k0 / 2 + kk) * ld_dst + j0 + j] = strip[j * kStrip + kk];
    }
  }
}
#endif

// Writes rows x cols sums of a tile (pitch `ld`) to C of any type and width, as TileOut says.
template <class F, class T, class C>
inline void put_sums(const F* sums, int64_t ld, int64_t rows, int64_t cols, F alpha, F beta, const T* col_bias,
                     const T* row_bias, C* c, int64_t ldc) {
  for (int64_t i = 0; i < rows; ++i) {
    const F* s = sums + i * ld;
    C* to = c + i * ldc;
    const F shift = row_bias ? F(row_bias[i]) : F(0);
    if (beta == F(0) && !col_bias) {
      for (int64_t j = 0; j < cols; ++j) to[j] = C(alpha * s[j] + shift);
      continue;
    }
    for (int64_t j = 0; j < cols; ++j) {
      F x = alpha * s[j];
      if (beta != F(0)) x += beta * F(to[j]);
      if (col_bias) x += F(col_bias[j]);
      if (row_bias) x += shift;
      to[j] = C(x);
    }
  }
}

// c = sums + col_bias, plus c where `adds`, for rows of kPart numbers and more. The last vector of a row may overlap
// the one before it.
template <int kPart, class F>
inline void put_rows(const F* sums, int64_t ld, int64_t rows, int64_t cols, bool adds, const F* col_bias, F* c,
                     int64_t ldc) {
  typedef F Part __attribute__((vector_size(kPart * sizeof(F))));
  const int64_t end = cols - kPart;
  for (int64_t i = 0; i < rows; ++i) {
    const F* const s = sums + i * ld;
    F* const to = c + i * ldc;
    const auto add = [&](Part& x, int64_t at) {
      Part other;
      __builtin_memcpy(&x, s + at, sizeof x);
      if (adds) {
        __builtin_memcpy(&other, to + at, sizeof other);
        x += other;
      }
      if (col_bias) {
        __builtin_memcpy(&other, col_bias + at, sizeof other);
        x += other;
      }
    };
    Part last, x;
    add(last, end);
    for (int64_t j = 0; j < end; j += kPart) {
      add(x, j);
      __builtin_memcpy(to + j, &x, sizeof x);
    }
    __builtin_memcpy(to + end, &last, sizeof last);
  }
}
// put_sums for the rows of a transposed tile.
template <class F, class T, class C>
inline void put_turned(const F* sums, int64_t ld, int64_t rows, int64_t cols, F alpha, F beta, const T* col_bias,
                       const T* row_bias, C* c, int64_t ldc) {
  if constexpr (std::is_same_v<F, T> && std::is_same_v<F, C>) {
    if (alpha == F(1) && (beta == F(0) || beta == F(1)) && !row_bias) {
      constexpr int L = kLanes<F>;
      if (cols >= L) return put_rows<L>(sums, ld, rows, cols, beta != F(0), col_bias, c, ldc);
      if (cols >= L / 2) return put_rows<L / 2>(sums, ld, rows, cols, beta != F(0), col_bias, c, ldc);
    }
  }
  put_sums(sums, ld, rows, cols, alpha, beta, col_bias, row_bias, c, ldc);
}

#if LEVIN_VECTOR_BYTES == 64
// put_sums on a CPU that has AVX512_BF16.
template <class C>
inline void put_sums_in_bf16(const float* sums, int64_t ld, int64_t rows, int64_t cols, float alpha, float beta,
                             const bf16* col_bias, const bf16* row_bias, C* c, int64_t ldc) {
  if constexpr (std::is_same_v<C, bf16>) {
    if (!row_bias) return put_sums_of_pairs(sums, ld, rows, cols, alpha, beta, col_bias, c, ldc);
  }
  put_sums(sums, ld, rows, cols, alpha, beta, col_bias, row_bias, c, ldc);
}
#endif

// Cuts m rows into the fewest tiles; heights differ by at most one. Every tile of a product asks begin() twice, so that
// begin() divides nothing.
struct RowTiles {
  int64_t m, count;
  int64_t height, taller;  // rows of a tile; the first `taller` tiles have one more
  explicit RowTiles(int64_t rows)
      : m(rows),
        count((rows + kTileRows - 1) / kTileRows),
        height(count > 0 ? rows / count : 0),
        taller(rows - height * count) {}
  int64_t begin(int64_t i) const { return i * height + (i < taller ? i : taller); }
};

// A for multiply_block: element (i, k) at data[i * row + k * col], or, with `by_tile`, each row tile of RowTiles on its
// own as [k, rows of the tile].
template <class F>
struct TileRows {
  const F* data;
  int64_t row, col;
  bool by_tile = false;
};

// out.c[m, n] = alpha * A * B + ... on one thread, with B [k, n] whose rows are b_row apart and may be read up to the
// next whole vector; `writable` columns of C may be overwritten. With tile_of_pairs k counts pairs.
template <class F, TileFn<F> (*tile_for)(int, int) = tile_of<F>>
void multiply_block(int64_t m, int64_t n, int64_t k, TileRows<F> a, const F* b, int64_t b_row, TileOut<F> out,
                    int64_t writable) {
  constexpr int L = kLanes<F>;
  constexpr int64_t N = kTileCols<F>;
  const RowTiles tiles(m);
  for (int64_t i = 0; i < tiles.count; ++i) {
    const int64_t i0 = tiles.begin(i), h = tiles.begin(i + 1) - i0;
    const F* at = a.data + i0 * (a.by_tile ? k : a.row);
    const int64_t a_row = a.by_tile ? 1 : a.row, a_col = a.by_tile ? h : a.col;
    for (int64_t j0 = 0; j0 < n; j0 += N) {
      const int64_t cols = n - j0 < N ? n - j0 : N, width = cols <= L ? L : N;
      const TileFn<F> run = tile_for(int(h), int(width / L));
      const F* col_bias = out.col_bias ? out.col_bias + j0 : nullptr;
      const F* row_bias = out.row_bias ? out.row_bias + i0 : nullptr;
      F* c = out.c + i0 * out.ldc + j0;
      if (cols == width || (j0 + width <= writable && !col_bias)) {
        run(k, at, a_row, a_col, b + j0, b_row, {c, out.ldc, out.alpha, out.beta, col_bias, row_bias});
      } else {
        F sums[size_t(kTileRows * N)];
        run(k, at, a_row, a_col, b + j0, b_row, {sums, N, F(1), F(0), nullptr, nullptr});
        put_sums(sums, N, h, cols, out.alpha, out.beta, col_bias, row_bias, c, out.ldc);
      }
    }
  }
}

#if LEVIN_VECTOR_BYTES == 64
// multiply_block of pairs, whose A is not by tile: by vectors, or by AMX on a CPU that has it.
using PairBlockFn = void (*)(int64_t, int64_t, int64_t, TileRows<float>, const float*, int64_t, TileOut<float>,
                             int64_t);
PairBlockFn block_of_pairs(Bf16Products by);
#endif

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
