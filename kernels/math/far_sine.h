// sin and cos of large numbers. The product with 2 / pi is formed with as many bits of 2 / pi as matter for the number
// (M. Payne and R. Hanek, "Radian reduction for trigonometric functions", 1983): the bits above are whole turns, those
// below change nothing. Integers and branches, so it has no place in a loop that is to become vector code: such a loop
// takes math.h's forms and leaves what is far to these.
#pragma once

#include "kernels/math/math.h"

namespace levin::kernels::math {

template <class F>
LEVIN_HD bool is_far(F x) {
  return detail::abs(x) > kSineNear<F>;
}

namespace detail {

LEVIN_HD uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(Wide{a} * b >> 64);
#endif
}

// x = (quadrant + 4 k) pi / 2 + rest + tail for some k, |rest| <= pi / 4.
struct Reduced {
  double rest, tail;
  uint64_t quadrant;
};
// For finite x of 2^20 and more. |rest| is at least 2^-62, so the 128 bits kept of it are 64 that count.
LEVIN_HD Reduced reduce_far(double x) {
  // 2 / pi after a word of zeros: bit i of the table, from its front, weighs 2^(63 - i).
  const uint64_t table[20] = {0x0000000000000000u, 0xa2f9836e4e441529u, 0xfc2757d1f534ddc0u, 0xdb6295993c439041u,
                              0xfe5163abdebbc561u, 0xb7246e3a424dd2e0u, 0x06492eea09d1921cu, 0xfe1deb1cb129a73eu,
                              0xe88235f52ebb4484u, 0xe99c7026b45f7e41u, 0x3991d639835339f4u, 0x9c845f8bbdf9283bu,
                              0x1ff897ffde05980fu, 0xef2f118b5a0a6d1fu, 0x6d367ecf27cb09b7u, 0x4f463f669e5fea2du,
                              0x7527bac7ebe5f17bu, 0x3d0739f78a5292eau, 0x6bfb5fb11f8d5d08u, 0x56033046fc7b6babu};
  const uint64_t raw = bits(x), m = (raw & 0xfffffffffffffu) | 0x10000000000000u;
  const int e = static_cast<int>(raw >> 52 & 0x7ff) - 1075;  // |x| = m 2^e
  // From the bit that weighs 2^(1 - e) on: m 2^e times one that weighs more is a multiple of 4.
  const int first = e + 62, shift = first % 64;
  uint64_t w[3];
  for (int i = 0; i < 3; ++i) {
    const uint64_t a = table[first / 64 + i], b = table[first / 64 + i + 1];
    w[i] = shift == 0 ? a : a << shift | b >> (64 - shift);
  }
  // m w below 2^192, whose unit is 2^-190: 2 bits of the quadrant, then those of the fraction.
  const uint64_t p0 = m * w[2], carried = high_product(m, w[2]), p1 = m * w[1] + carried;
  const uint64_t p2 = m * w[0] + high_product(m, w[1]) + (p1 < carried);
  uint64_t quadrant = p2 >> 62, high = p2 << 2 | p1 >> 62, low = p1 << 2 | p0 >> 62;
  const bool above = high >> 63 != 0;  // half a quadrant: counted from the next one
  if (above) {
    quadrant += 1;
    low = ~low + 1;
    high = ~high + (low == 0);
  }
  int zeros = 0;
  for (; high >> 63 == 0 && zeros < 127; ++zeros) {
    high = high << 1 | low >> 63;
    low <<= 1;
  }
  // high 2^(-64 - zeros) quadrants; pi / 2 is half_pi 2^-63.
  constexpr uint64_t half_pi = 0xc90fdaa22168c235u;
  const uint64_t top = high_product(high, half_pi), bottom = high * half_pi, head = top & ~uint64_t{0x7ff};
  const double unit = from_bits<double>(static_cast<uint64_t>(1023 - 63 - zeros) << 52);
  const double rest = static_cast<double>(head) * unit;
  const double tail = (static_cast<double>(top - head) + static_cast<double>(bottom) * 0x1p-64) * unit;
  const bool negative = raw >> 63 != 0;
  if (negative) quadrant = ~quadrant + 1;
  return above != negative ? Reduced{-rest, -tail, quadrant} : Reduced{rest, tail, quadrant};
}

}  // namespace detail

// sin(x + quadrants pi / 2) for x that is_far, to the bounds of sin and cos; NaN for an infinity.
template <class F, int quadrants>
#if defined(__CUDACC__)
__host__ __device__
    __noinline__  // rare, and long: not in each of the elements that a thread has
#else
[[gnu::noinline, gnu::cold]]  // once, and not in each loop of each level
#endif
        F
        far_sine(F x) {
  if (!(detail::abs(x) < detail::Format<F>::inf)) return detail::Format<F>::nan;
  const detail::Reduced r = detail::reduce_far(double(x));
  return detail::sine_of_parts<F>(r.rest, r.tail, typename detail::Format<F>::Bits(r.quadrant) + quadrants);
}

}  // namespace levin::kernels::math
