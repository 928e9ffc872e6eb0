#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_STANDARD_GAMMA_CUH
#define LEVIN_KERNELS_STANDARD_GAMMA_CUH
// Draws of the gamma distribution with rate 1, one for each concentration, or their logarithms:
//   standard_gamma(on, const T* concentration, T* out, n, range, bool logs)   floats, contiguous
// `range` is what Generator::reserve(4 n) gave. The bits are the same for every thread count, level and device.
//
// Note [Draws of a gamma variable]
// G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM TOMS 26, 2000: for a >= 1 a
// normal number z and a uniform one u give d v, d = a - 1/3, v = (1 + w)^3, w = z / (3 sqrt(d)), accepted where
//   log u < z^2 / 2 + d (1 - v + log v) = z^2 / 2 + d (3 log(1 + w) - 3 w - 3 w^2 - w^3).
// Because z^2 / 2 = 4.5 d w^2, the terms up to w^3 cancel, and where w is small the right side is their remainder
//   -(z w)^2 (3/4 - 3/5 w + 3/6 w^2 - ...) / 9.
// A concentration below 1 takes the draw of a + 1 times u^(1/a), as a logarithm, of another uniform u.
//
// At least 95 in 100 numbers are accepted, so one element needs an unknown number of words. Element i has counter
// offset + i for itself, and the part of the counter (Note [Random numbers by element]) counts its attempts: attempt k
// takes the words of part 2 k and, for the lower halves of doubles, of 2 k + 1. So all dtypes draw one number, and the
// streams of elements cannot overlap, because no other draw takes that counter. After kGammaAttempts, which all fail
// with a probability below 10^-83, the element is d, the center of the draws.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/device/draw.cuh"
#include "kernels/random/random.cuh"

namespace levin::kernels {

inline constexpr int kGammaAttempts = 64;

// The numbers of an attempt: a normal one, and two uniform ones in (0, 1].
template <class A>
struct GammaWords {
  A z, u, boost;
};
LEVIN_HD float open_unit(uint32_t word) { return float(int32_t((word >> 1) | 1)) * 0x1p-31f; }
LEVIN_HD GammaWords<float> gamma_words(const PhiloxBlock& w) {
  return {normal_pair(w.x0, w.x1).first, open_unit(w.x2), open_unit(w.x3)};
}
LEVIN_HD GammaWords<double> gamma_words(const PhiloxBlock& w, const PhiloxBlock& more) {
  return {normal_pair(w.x0, w.x1, more.x0, more.x1).first, unit_double(w.x2, more.x2 | (1u << 11)),
          unit_double(w.x3, more.x3 | (1u << 11))};
}

// What a concentration needs for each attempt.
template <class A>
struct GammaShape {
  using R = Rn<A>;
  static constexpr A kInf = std::numeric_limits<A>::infinity(), kNan = std::numeric_limits<A>::quiet_NaN();
  A a;
  R d, scale;  // scale: of z in w

  LEVIN_HD explicit GammaShape(A concentration)
      : a(concentration),
        d{(R{concentration} + R{concentration < A(1) ? A(2) / 3 : A(-1) / 3}).v},
        scale{(R{A(1) / 3} / root(d)).v} {}

  // Whether the attempt is taken, without a branch. `w` is then z * scale.
  LEVIN_HD bool accepts(const GammaWords<A>& words, R w) const {
    const R z{words.z}, zw = z * w, w2 = w * w;
    const R tail =
        detail::rn_poly(w, A(3) / 4, A(-3) / 5, A(3) / 6, A(-3) / 7, A(3) / 8, A(-3) / 9, A(3) / 10, A(-3) / 11);
    const R near = R{A(-1) / 9} * ((zw * zw) * tail);
    const R one{A(1)}, three{A(3)};
    const bool inside = w.v > A(-1);
    const R log_v = rn_log(R{inside ? (one + w).v : A(1)});
    const R far = R{A(0.5)} * (z * z) + d * (three * log_v - (three * (w + w2) + w2 * w));
    const A most = w.v > A(-0.125) && w.v < A(0.125) ? near.v : far.v;
    return (int(inside) & int(rn_log(R{words.u}).v < most)) != 0;
  }
  // The draw and its logarithm.
  LEVIN_HD Pair<A> value(const GammaWords<A>& words, R w, A smallest) const {
    const R one{A(1)}, v = one + w;
    const R log_draw = rn_log(d) + R{A(3)} * rn_log(v);
    const R boosted = log_draw + rn_log(R{words.boost}) / R{a};
    const R draw = d * (v * (v * v));
    const bool small = a < A(1);
    const A y = small ? boosted.v : log_draw.v;
    // Below the smallest normal number; e^y of less would have no meaning.
    constexpr A log_least = sizeof(A) == 4 ? A(-87.3) : A(-708.3);
    A x = rn_exp(R{y > log_least ? y : log_least}).v;
    x = y > log_least ? x : smallest;
    x = small ? x : draw.v;
    x = x > smallest ? x : smallest;
    const A edge = a == kInf ? kInf : kNan;
    const bool is_regular = regular();
    return {is_regular ? x : edge, is_regular ? y : edge};
  }
  LEVIN_HD bool regular() const { return (int(a > A(0)) & int(a < kInf)) != 0; }
};

// The least result above 0: the smallest normal number, and for f16, whose normal numbers begin at 2^-14, 2^-24.
template <class T>
inline constexpr Accum<T> kLeastGamma = std::is_same_v<T, double> ? Accum<T>(0x1p-1022)
                                        : std::is_same_v<T, f16>  ? Accum<T>(0x1p-24)
                                                                  : Accum<T>(0x1p-126);

// The element after an attempt that `begin` numbers; block(part) gives its words.
template <class T, class Block>
LEVIN_HD T gamma_attempts(const GammaShape<Accum<T>>& shape, int begin, bool logs, const Block& block) {
  using A = Accum<T>;
  GammaWords<A> words{};
  Rn<A> w{};
  for (int k = begin; k < kGammaAttempts; ++k) {
    if constexpr (std::is_same_v<A, double>)
      words = gamma_words(block(uint32_t(2 * k)), block(uint32_t(2 * k + 1)));
    else
      words = gamma_words(block(uint32_t(2 * k)));
    w = Rn<A>{words.z} * shape.scale;
    if (shape.accepts(words, w) || !shape.regular()) break;
    w = Rn<A>{A(0)};
  }
  const Pair<A> value = shape.value(words, w, kLeastGamma<T>);
  return T(logs ? value.second : value.first);
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/random/standard_gamma.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(standard_gamma)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

template <class T>
__global__ void standard_gammas(const T* concentration, T* out, int64_t n, RandomRange range, bool logs) {
  const int64_t i = own_item();
  if (i >= n) return;
  const Words words(range);
  const Accum<T> a = Accum<T>(concentration[i]);
  const GammaShape<Accum<T>> shape(a);
  out[i] = gamma_attempts<T>(shape, 0, logs, [&](uint32_t part) { return words.block(i, part); });
}
template <class T>
void standard_gamma(const Gpu& on, const T* concentration, T* out, int64_t n, RandomRange range, bool logs) {
  if (n > 0) on.launch(standard_gammas<T>, item_grid(n), concentration, out, n, range, logs);
}

}  // namespace levin::kernels::gpu
#endif
#else
// Note [One rounding]: no function of this file may fuse a multiplication and an addition.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#elif defined(__clang__)
#pragma clang fp contract(off)
#endif
namespace levin::kernels::cpu::LEVIN_LEVEL {

// The first attempts of a tile are vector code; elements whose attempt fails are made again, one by one.
template <class T>
void standard_gamma(const Cpu& on, const T* concentration, T* out, int64_t n, RandomRange range, bool logs) {
  using A = Accum<T>;
  constexpr bool two = std::is_same_v<T, double>;
  on.parallel_for(n, 8 * kTile, [=](int64_t first, int64_t last) {
    alignas(64) uint32_t words[4 * kTile], more[two ? 4 * kTile : 1];
    A a[kTile], x[kTile], y[kTile];
    const A* const result = logs ? y : x;
    int32_t fails[kTile];
    for (int64_t at = first; at < last; at += kTile) {
      const int64_t count = std::min(last - at, kTile);
      random_words(range.seed, range.offset + uint64_t(at), 0, count, words);
      if constexpr (two) random_words(range.seed, range.offset + uint64_t(at), 1, count, more);
      for (int64_t i = 0; i < count; ++i) a[i] = A(concentration[at + i]);
      for (int64_t i = 0; i < count; ++i) {
        const PhiloxBlock block{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
        GammaWords<A> drawn;
        if constexpr (two)
          drawn = gamma_words(block, {more[4 * i], more[4 * i + 1], more[4 * i + 2], more[4 * i + 3]});
        else
          drawn = gamma_words(block);
        const GammaShape<A> shape(a[i]);
        const Rn<A> w = Rn<A>{drawn.z} * shape.scale;
        const Pair<A> value = shape.value(drawn, w, kLeastGamma<T>);
        x[i] = value.first;
        y[i] = value.second;
        fails[i] = int32_t(!shape.accepts(drawn, w)) & int32_t(shape.regular());
      }
      for (int64_t i = 0; i < count; ++i) out[at + i] = T(result[i]);
      for (int64_t i = 0; i < count; ++i) {
        if (fails[i] == 0) continue;
        const uint64_t c = range.offset + uint64_t(at + i);
        const auto block = [&](uint32_t part) {
          return philox({uint32_t(c), uint32_t(c >> 32), part, 0}, uint32_t(range.seed), uint32_t(range.seed >> 32));
        };
        out[at + i] = gamma_attempts<T>(GammaShape<A>(a[i]), 1, logs, block);
      }
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#endif
