// The code of gemm.cuh: its users see declarations, so that they compile fast.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LEVIN_COMPILE_GEMM
#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_amx.h"

#if LEVIN_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16")
namespace levin::kernels::cpu::v4 {
namespace {

// tile<float, H, V> for pairs: Note [Pairs of bf16].
template <int H, int V>
void tile_pairs(int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_row,
                const TileOut<float>& out) {
  constexpr int L = kLanes<float>, G = (H + 2) / 3;
  Vector<float> sum[H][V] = {};
  using Pair [[gnu::may_alias]] = float;  // A may be bf16 numbers where they lie
  const Pair* p[G];
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) p[g] = a + 3 * g * a_row;
  for (int64_t kk = 0; kk < k; ++kk) {
    prefetch_row<float, V>(b + kAhead * b_row);
    __m512bh bv[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) __builtin_memcpy(&bv[v], b + v * L, sizeof bv[v]);
#pragma GCC unroll 16
    for (int i = 0; i < H; ++i) {
      const __m512bh s = (__m512bh)_mm512_set1_ps(p[i / 3][(i % 3) * a_row]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] = (Vector<float>)_mm512_dpbf16_ps((__m512)sum[i][v], s, bv[v]);
    }
#pragma GCC unroll 16
    for (int g = 0; g < G; ++g) p[g] += a_col;
    b += b_row;
  }
  put_tile(sum, out);
}

// L numbers of bf16 as f32, 0 where the mask has no bit.
inline __m512 widened(const bf16* x, __mmask16 mask) {
  const __m256i bits = _mm256_maskz_loadu_epi16(mask, x);
  // The forms with a mask: of the others g++ 12 warns that a vector which they do not read is not initialized.
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(mask, _mm512_maskz_cvtepu16_epi32(mask, bits), 16));
}

template <int V, int... H>
constexpr std::array<TileFn<float>, sizeof...(H)> pair_tiles(std::integer_sequence<int, H...>) {
  return {tile_pairs<H + 1, V>...};
}

void round_sums(const float* sums, int64_t ld, int64_t rows, int64_t cols, float alpha, float beta,
                const bf16* col_bias, bf16* c, int64_t ldc) {
  constexpr int64_t L = kLanes<float>;
  const __m512 factor = _mm512_set1_ps(alpha), of_c = _mm512_set1_ps(beta);
  for (int64_t j = 0; j < cols; j += L) {
    const auto mask = static_cast<__mmask16>(cols - j < L ? (1u << (cols - j)) - 1 : 0xffffu);
    const __m512 bias = col_bias ? widened(col_bias + j, mask) : _mm512_setzero_ps();
    for (int64_t i = 0; i < rows; ++i) {
      bf16* const to = c + i * ldc + j;
      const __m512 sum = _mm512_maskz_loadu_ps(mask, sums + i * ld + j);
      __m512 x;
      if (beta == 0)
        x = _mm512_fmadd_ps(sum, factor, bias);
      else
        x = _mm512_add_ps(_mm512_fmadd_ps(of_c, widened(to, mask), _mm512_mul_ps(sum, factor)), bias);
      _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(x));
    }
  }
}

}  // namespace
}  // namespace levin::kernels::cpu::v4
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")  // as its declaration: g++ tells functions apart by their target
namespace levin::kernels::cpu::v4 {

TileFn<float> tile_of_pairs(int h, int v) {
  static constexpr auto one = pair_tiles<1>(std::make_integer_sequence<int, kTileRows>());
  static constexpr auto two = pair_tiles<2>(std::make_integer_sequence<int, kTileRows>());
  return (v == 1 ? one : two)[size_t(h - 1)];
}

PairBlockFn block_of_pairs(Bf16Products by) {
  return by == Bf16Products::tiles ? PairBlockFn{multiply_block_by_tiles<AmxTiles>}
                                   : PairBlockFn{multiply_block<float, tile_of_pairs>};
}

void put_sums_of_pairs(const float* sums, int64_t ld, int64_t rows, int64_t cols, float alpha, float beta,
                       const bf16* col_bias, bf16* c, int64_t ldc) {
  round_sums(sums, ld, rows, cols, alpha, beta, col_bias, c, ldc);
}

void gemm_by_tiles(const Cpu& on, bool spread, GemmSize size, Matrix<bf16> a, Matrix<bf16> b, bf16* c, int64_t ldc,
                   const GemmOptions<bf16>& options) {
  TiledProduct<AmxTiles, bf16>(on, spread, size, a, b, c, ldc, options).run();
}
void gemm_by_tiles(const Cpu& on, bool spread, GemmSize size, Matrix<bf16> a, Matrix<bf16> b, float* c, int64_t ldc,
                   const GemmOptions<bf16>& options) {
  TiledProduct<AmxTiles, float>(on, spread, size, a, b, c, ldc, options).run();
}

}  // namespace levin::kernels::cpu::v4
#pragma GCC pop_options
#endif
