// Dense rows of floats as another float type, rounded once to the nearest even: to[i] = From's value as To.
//
//   convert_row<To, From>(on, const From* from, To* to, n)   From and To: float, f16 or bf16, one of them a 16-bit one
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_HALVES_CUH
#define LEVIN_KERNELS_HALVES_CUH

#include <cstdint>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "levin/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LEVIN_LEVEL_FILE "kernels/pointwise/halves.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(convert_row)
}  // namespace levin::kernels::cpu

#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

#if LEVIN_VECTOR_BYTES >= 32 && LEVIN_X86_LEVELS
// rounded_to_bf16(x): the bits of bf16(x) in the upper half of each lane, as bf16's constructor has them.
// narrow_registers(): of the first elements, as many as fill whole registers; returns their number. It takes half of
// the instructions that the loop of convert_row() becomes.
#if LEVIN_VECTOR_BYTES == 64
inline __m512i rounded_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)),
                  nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i even = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)),
                rounded = _mm512_mask_add_epi32(even, odd, bits, _mm512_set1_epi32(0x8000));
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
inline int64_t narrow_registers(const float* from, bf16* to, int64_t n) {
  alignas(64) std::int16_t upper[32];
  for (int i = 0; i < 32; ++i) upper[i] = std::int16_t(2 * i + 1);
  const __m512i order = _mm512_load_si512(upper);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i low = rounded_to_bf16(_mm512_loadu_ps(from + i)),
                  high = rounded_to_bf16(_mm512_loadu_ps(from + i + 16));
    _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(low, order, high));
  }
  return i;
}
#else
inline __m256i rounded_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x),
                odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1)),
                rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)),
                quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline int64_t narrow_registers(const float* from, bf16* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i low = _mm256_srli_epi32(rounded_to_bf16(_mm256_loadu_ps(from + i)), 16),
                  high = _mm256_srli_epi32(rounded_to_bf16(_mm256_loadu_ps(from + i + 8)), 16);
    // Packed: four of low, four of high, four of low, four of high.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0b11'01'10'00);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), packed);
  }
  return i;
}
#endif
#endif

template <class To, class From>
void convert_row(const Cpu&, const From* from, To* to, int64_t n) {
  int64_t i = 0;
#if LEVIN_VECTOR_BYTES >= 32 && LEVIN_X86_LEVELS
  if constexpr (std::is_same_v<To, bf16> && std::is_same_v<From, float>) i = narrow_registers(from, to, n);
#endif
#pragma GCC ivdep
  for (; i < n; ++i) to[i] = To(float(from[i]));
}

// Compiled once, in pointwise.cpp.
#ifdef LEVIN_COMPILE_HALVES
#define LEVIN_HALVES_IS template
#else
#define LEVIN_HALVES_IS extern template
#endif
#define LEVIN_HALVES(To, From) LEVIN_HALVES_IS void convert_row<To, From>(const Cpu&, const From*, To*, int64_t);
LEVIN_HALVES(f16, float)
LEVIN_HALVES(bf16, float)
LEVIN_HALVES(float, f16)
LEVIN_HALVES(float, bf16)
LEVIN_HALVES(f16, bf16)
LEVIN_HALVES(bf16, f16)
#undef LEVIN_HALVES
#undef LEVIN_HALVES_IS

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
