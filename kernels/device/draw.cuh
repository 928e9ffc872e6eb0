// Random words to numbers. Every result has the same bits on every device and x86 level: integers and uniforms by
// construction, normals because log, sin and cos are written here in single operations. See Note [One rounding].
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/executor/hd.h"

namespace levin::kernels {

// Note [One rounding]
// a * b + c rounds twice, or once where the compiler fuses it: x86-64-v3 and CUDA would then differ from x86-64. Rn
// is a number whose operations are never fused: on a device through intrinsics that say so; on the host the including
// code must be compiled with fp-contract=off (kernels/random/random.cuh does it for its own functions).
template <class F>
struct Rn {
  F v;
};
#if defined(__CUDA_ARCH__)
LEVIN_HD Rn<float> operator*(Rn<float> a, Rn<float> b) { return {__fmul_rn(a.v, b.v)}; }
LEVIN_HD Rn<float> operator+(Rn<float> a, Rn<float> b) { return {__fadd_rn(a.v, b.v)}; }
LEVIN_HD Rn<float> operator-(Rn<float> a, Rn<float> b) { return {__fsub_rn(a.v, b.v)}; }
LEVIN_HD Rn<float> operator/(Rn<float> a, Rn<float> b) { return {__fdiv_rn(a.v, b.v)}; }
LEVIN_HD Rn<float> root(Rn<float> a) { return {__fsqrt_rn(a.v)}; }
LEVIN_HD Rn<double> operator*(Rn<double> a, Rn<double> b) { return {__dmul_rn(a.v, b.v)}; }
LEVIN_HD Rn<double> operator+(Rn<double> a, Rn<double> b) { return {__dadd_rn(a.v, b.v)}; }
LEVIN_HD Rn<double> operator-(Rn<double> a, Rn<double> b) { return {__dsub_rn(a.v, b.v)}; }
LEVIN_HD Rn<double> operator/(Rn<double> a, Rn<double> b) { return {__ddiv_rn(a.v, b.v)}; }
LEVIN_HD Rn<double> root(Rn<double> a) { return {__dsqrt_rn(a.v)}; }
#else
template <class F>
LEVIN_HD Rn<F> operator*(Rn<F> a, Rn<F> b) {
  return {a.v * b.v};
}
template <class F>
LEVIN_HD Rn<F> operator+(Rn<F> a, Rn<F> b) {
  return {a.v + b.v};
}
template <class F>
LEVIN_HD Rn<F> operator-(Rn<F> a, Rn<F> b) {
  return {a.v - b.v};
}
template <class F>
LEVIN_HD Rn<F> operator/(Rn<F> a, Rn<F> b) {
  return {a.v / b.v};
}
template <class F>
LEVIN_HD Rn<F> root(Rn<F> a) {
  return {std::sqrt(a.v)};
}
#endif

namespace detail {
template <class F>
LEVIN_HD Rn<F> rn_poly(Rn<F>, F c) {
  return {c};
}
template <class F, class... C>
LEVIN_HD Rn<F> rn_poly(Rn<F> x, F c0, C... c) {
  return Rn<F>{c0} + x * rn_poly(x, c...);
}
// A word as a double, exactly and without a conversion: many levels have none for vectors of 64-bit integers.
LEVIN_HD double word_to_double(uint64_t word) { return kernels::bit_cast<double>(0x4330000000000000u | word) - 0x1p52; }
}  // namespace detail

// [0, 1) with `digits` bits, 24 at most; exact.
template <int digits>
LEVIN_HD float unit_float(uint32_t word) {
  return float(int32_t(word >> (32 - digits))) * (1.0f / float(1 << digits));
}
// [0, 1) with 53 bits; exact.
LEVIN_HD double unit_double(uint32_t high, uint32_t low) {
  return detail::word_to_double(high) * 0x1p-32 + detail::word_to_double(low >> 11) * 0x1p-53;
}

// [0, range) from 64 bits; the bias is at most range / 2^64.
LEVIN_HD uint64_t below(uint32_t range, uint32_t high, uint32_t low) {
  return (uint64_t(high) * range + ((uint64_t(low) * range) >> 32)) >> 32;
}
LEVIN_HD uint64_t below64(uint64_t range, uint32_t high, uint32_t low) {
  const uint32_t r1 = uint32_t(range >> 32), r0 = uint32_t(range);
  const uint64_t middle = uint64_t(high) * r0 + ((uint64_t(low) * r0) >> 32);  // < 2^64
  const uint64_t other = uint64_t(low) * r1 + uint32_t(middle);                // < 2^64
  return uint64_t(high) * r1 + (middle >> 32) + (other >> 32);
}

// log x of a normal number x > 0, within a few ulp: x = m 2^e with m in [sqrt(1/2), sqrt(2)), and log x = e ln 2 +
// log(1 + f). 128 and 1024 keep the exponent positive.
LEVIN_HD Rn<float> rn_log(Rn<float> x) {
  using R = Rn<float>;
  const uint32_t raw = (kernels::bit_cast<uint32_t>(x.v) - 0x3f3504f3u + 0x40000000u) >> 23;
  const R e{float(int32_t(raw)) - 128.0f};
  const R f{kernels::bit_cast<float>(kernels::bit_cast<uint32_t>(x.v) - (raw << 23) + 0x40000000u) - 1.0f};
  const R p = detail::rn_poly(f, 0.333333135f, -0.250000089f, 0.200021192f, -0.166679963f, 0.142195538f, -0.124055848f,
                              0.118881561f, -0.116756931f, 0.067467086f);
  const R f2 = f * f;
  return e * R{0x1.62e4p-1f} + (f + ((e * R{0x1.7f7d1cp-20f} + f2 * (f * p)) - R{0.5f} * f2));
}
LEVIN_HD Rn<double> rn_log(Rn<double> x) {
  using R = Rn<double>;
  const uint64_t raw = (kernels::bit_cast<uint64_t>(x.v) - 0x3fe6a09e667f3bcdu + 0x4000000000000000u) >> 52;
  const R e{detail::word_to_double(raw) - 1024.0};
  const R f{kernels::bit_cast<double>(kernels::bit_cast<uint64_t>(x.v) - (raw << 52) + 0x4000000000000000u) - 1.0};
  const R q = f / (R{2.0} + f), q2 = q * q;
  const R p =
      q2 * detail::rn_poly(q2, 0x1.5555555555593p-1, 0x1.999999997fb2ap-2, 0x1.2492494218162p-2, 0x1.c71c51e7973d0p-3,
                           0x1.746646405f433p-3, 0x1.39a0f2fff1fb7p-3, 0x1.2f0da2fb6e0dcp-3);
  return e * R{0x1.62e42fefa38p-1} + (f - (q * (f - p) - e * R{0x1.ef35793c7673p-45}));
}

// e^x, within a few ulp, where the result is a normal number.
LEVIN_HD Rn<float> rn_exp(Rn<float> x) {
  using R = Rn<float>;
  // The low bits of t hold n + 127, where x = n ln 2 + r.
  constexpr float magic = 0x1.8p23f + 127;
  const R t = x * R{0x1.715476p+0f} + R{magic}, n = t - R{magic};
  const R r = (x - n * R{0x1.62e4p-1f}) - n * R{0x1.7f7d1cp-20f};
  const R q =
      r + (r * r) * detail::rn_poly(r, 0.49999994f, 0.166665137f, 0.0416680612f, 0.00836951192f, 0.00138424675f);
  const R s{kernels::bit_cast<float>(kernels::bit_cast<uint32_t>(t.v) << 23)};
  return s + s * q;
}
LEVIN_HD Rn<double> rn_exp(Rn<double> x) {
  using R = Rn<double>;
  constexpr double magic = 0x1.8p52 + 1023;
  const R t = x * R{0x1.71547652b82fep+0} + R{magic}, n = t - R{magic};
  const R r = (x - n * R{0x1.62e42fefa38p-1}) - n * R{0x1.ef35793c7673p-45};
  const R q = r + (r * r) * detail::rn_poly(r, 0x1.000000000000ap-1, 0x1.55555555554f7p-3, 0x1.55555555506b6p-5,
                                            0x1.1111111128455p-7, 0x1.6c16c18494cb3p-10, 0x1.a01a01284d52bp-13,
                                            0x1.a01998da7afdbp-16, 0x1.71df28020571fp-19, 0x1.28ae9a90ccedbp-22,
                                            0x1.ad7e2e809f5f2p-26);
  const R s{kernels::bit_cast<double>(kernels::bit_cast<uint64_t>(t.v) << 52)};
  return s + s * q;
}

template <class F>
struct Pair {
  F first, second;
};

// Two independent standard normal numbers (Box and Muller, 1958): r cos a and r sin a, with r = sqrt(-2 log u) and a
// uniform angle. u has 31 bits, so |z| <= 6.6; log, sin and cos are within a few ulp.
LEVIN_HD Pair<float> normal_pair(uint32_t radius, uint32_t angle) {
  using R = Rn<float>;
  const float u = float(int32_t((radius >> 1) | 1)) * 0x1p-31f;  // (0, 1]
  const R r = root(R{-2.0f} * rn_log(R{u}));
  // The top two bits are the quadrant, the others the angle from its middle line: |x| <= pi / 4.
  const uint32_t quadrant = angle >> 30;
  const R x = R{float(kernels::bit_cast<int32_t>(angle << 2))} * R{0x1.921fb6p-32f};
  const R z = x * x;
  const R s = x + (x * z) * detail::rn_poly(z, -0.166666552f, 0.0083321901f, -0.000195184082f);
  const R c = (R{1.0f} - R{0.5f} * z) + (z * z) * detail::rn_poly(z, 0.0416666456f, -0.00138873013f, 2.44306793e-05f);
  const bool turned = (quadrant & 1) != 0;
  const uint32_t sign_s = (quadrant & 2) << 30, sign_c = ((quadrant + 1) & 2) << 30;
  const R cosine{kernels::bit_cast<float>(kernels::bit_cast<uint32_t>(turned ? s.v : c.v) ^ sign_c)};
  const R sine{kernels::bit_cast<float>(kernels::bit_cast<uint32_t>(turned ? c.v : s.v) ^ sign_s)};
  return {(r * cosine).v, (r * sine).v};
}

// The same from 53 and 62 bits, |z| <= 8.6.
LEVIN_HD Pair<double> normal_pair(uint32_t radius, uint32_t angle, uint32_t radius_low, uint32_t angle_low) {
  using R = Rn<double>;
  const double u = unit_double(radius, radius_low | (1u << 11));  // (0, 1)
  const R r = root(R{-2.0} * rn_log(R{u}));
  const uint32_t quadrant = angle >> 30;
  const uint32_t offset = (angle << 2) ^ 0x80000000u;  // 0 .. 2^32 - 1 for -1/2 .. 1/2 of a quarter turn
  const R t{(detail::word_to_double(offset) - 0x1p31) * 0x1p-32 + detail::word_to_double(angle_low >> 11) * 0x1p-53};
  const R x = t * R{0x1.921fb54442d18p+0};
  const R z = x * x;
  const R s = x + (x * z) * detail::rn_poly(z, -0x1.5555555555549p-3, 0x1.111111110f842p-7, -0x1.a01a019c0a2c3p-13,
                                            0x1.71de3570fe13bp-19, -0x1.ae5e60c43b0d2p-26, 0x1.5d915ddcf6600p-33);
  const R c = (R{1.0} - R{0.5} * z) + (z * z) * detail::rn_poly(z, 0x1.5555555555553p-5, -0x1.6c16c16c16118p-10,
                                                                0x1.a01a019e20ebbp-16, -0x1.27e4f900478c3p-22,
                                                                0x1.1eea864612c12p-29, -0x1.8ff804b87c649p-37);
  const bool turned = (quadrant & 1) != 0;
  const uint64_t sign_s = uint64_t(quadrant & 2) << 62, sign_c = uint64_t((quadrant + 1) & 2) << 62;
  const R cosine{kernels::bit_cast<double>(kernels::bit_cast<uint64_t>(turned ? s.v : c.v) ^ sign_c)};
  const R sine{kernels::bit_cast<double>(kernels::bit_cast<uint64_t>(turned ? c.v : s.v) ^ sign_s)};
  return {(r * cosine).v, (r * sine).v};
}

}  // namespace levin::kernels
