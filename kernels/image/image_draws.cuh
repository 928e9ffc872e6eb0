// Random numbers of augmentations:
//
//   draw_each(on, draw, n, range)    draw(i, words) for i in 0 .. n - 1; `range` is reserve(4 * Draw::kBlocks * n)'s
//
// Image i takes its words from the counters kBlocks * i and on of the range, so it draws the same on every device.
// Draws write to `out`:
//   OffsetDraw   int64_t [n, 2]: rows and columns, each from low to low + count - 1
//   FlipDraw     bool [n]: true with a probability
//   BoxDraw      int64_t [n, 4]: top, left, bottom, right of squares whose centers are pixels of [height, width]
//   AffineDraw   float [n, 6]: tensor/image/affine.h
//   MixDraw      weight [1]: Beta(alpha, alpha), n is 1. With a box [4] (top, left, bottom, right) the box has about
//                1 - weight of the image's area, and `weight` becomes the part of the image that is left.
// All in single operations: Note [One rounding].
#ifndef LEVIN_KERNELS_IMAGE_DRAWS_CUH
#define LEVIN_KERNELS_IMAGE_DRAWS_CUH

#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/device/draw.cuh"
#include "kernels/device/philox.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/random/random.cuh"
#include "levin/generator.h"
#include "tensor/image/affine.h"

// Note [One rounding]
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#elif defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace levin::kernels {

// The words of a range. In a recorded graph its place is in the device's memory.
struct ImageWords {
  uint64_t seed, offset;
  LEVIN_HD explicit ImageWords(const RandomRange& range) : seed(range.seed), offset(range.offset) {
    if (range.on_device == nullptr) return;
    seed += range.on_device[0];
    offset += range.on_device[1];
  }
  LEVIN_HD PhiloxBlock operator()(int64_t block) const {
    const uint64_t c = offset + uint64_t(block);
    return philox({uint32_t(c), uint32_t(c >> 32), 0, 0}, uint32_t(seed), uint32_t(seed >> 32));
  }
};

struct OffsetDraw {
  static constexpr int64_t kBlocks = 1;
  int64_t row_low, rows, column_low, columns;
  int64_t* out = nullptr;
  LEVIN_HD void operator()(int64_t i, const ImageWords& words) const {
    const PhiloxBlock w = words(i);
    out[2 * i] = row_low + int64_t(below64(uint64_t(rows), w.x0, w.x1));
    out[2 * i + 1] = column_low + int64_t(below64(uint64_t(columns), w.x2, w.x3));
  }
};
struct FlipDraw {
  static constexpr int64_t kBlocks = 1;
  Chance flip;
  bool* out = nullptr;
  LEVIN_HD void operator()(int64_t i, const ImageWords& words) const { out[i] = flip(words(i).x0); }
};
struct BoxDraw {
  static constexpr int64_t kBlocks = 1;
  int64_t height, width, size;
  int64_t* out = nullptr;
  LEVIN_HD void operator()(int64_t i, const ImageWords& words) const {
    const PhiloxBlock w = words(i);
    const int64_t top = int64_t(below64(uint64_t(height), w.x0, w.x1)) - size / 2,
                  left = int64_t(below64(uint64_t(width), w.x2, w.x3)) - size / 2;
    out[4 * i] = top, out[4 * i + 1] = left, out[4 * i + 2] = top + size, out[4 * i + 3] = left + size;
  }
};
struct AffineDraw {
  static constexpr int64_t kBlocks = 2;
  levin::detail::AffineRanges ranges;
  float* out = nullptr;
  LEVIN_HD void operator()(int64_t i, const ImageWords& words) const {
    const PhiloxBlock a = words(2 * i), b = words(2 * i + 1);
    const double u[6] = {a.x0 * 0x1p-32, a.x1 * 0x1p-32, a.x2 * 0x1p-32,
                         a.x3 * 0x1p-32, b.x0 * 0x1p-32, b.x1 * 0x1p-32};
    const levin::detail::AffineMap map =
        levin::detail::affine_map<Rn<double>>(ranges, u, [](Rn<double> x) { return x.v; });
    for (int k = 0; k < 6; ++k) out[6 * i + k] = float(map.m[k]);
  }
};

// ---- Beta

namespace detail {
// 0 < x < infinity.
LEVIN_HD Rn<double> log_rn(Rn<double> x) {
  using R = Rn<double>;
  // x = m 2^e, m in [sqrt(1/2), sqrt(2)).
  const uint64_t bits = kernels::bit_cast<uint64_t>(x.v),
                 raw = (bits - 0x3fe6a09e667f3bcdu + 0x4000000000000000u) >> 52;
  const double e = double(int64_t(raw)) - 1024.0;
  const R m{kernels::bit_cast<double>(bits - (raw << 52) + 0x4000000000000000u)};
  const R s = (m - R{1.0}) / (m + R{1.0}), square = s * s;  // |s| < 0.172: twelve terms of 2 artanh(s) reach 2^-53
  R sum{0.0};
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + R{1.0 / k};
  return R{2.0} * s * sum + R{e} * R{0.6931471805599453};
}
// -700 < x < 700.
LEVIN_HD Rn<double> exp_rn(Rn<double> x) {
  using R = Rn<double>;
  const R n = levin::detail::rounded(x * R{1.4426950408889634});
  const R r = (x - n * R{0x1.62e42fefa38p-1}) - n * R{0x1.ef35793c7673p-45};  // |r| <= 0.347
  R sum{1.0};
  for (int k = 14; k >= 1; --k) sum = R{1.0} + sum * r * R{1.0 / k};
  return sum * R{kernels::bit_cast<double>(uint64_t(int64_t(n.v) + 1023) << 52)};
}
}  // namespace detail

// Beta(alpha, alpha) as a / (a + b) of two gamma variates (Marsaglia and Tsang, "A simple method for generating gamma
// variables", 2000), by their logarithms, so that small alphas lose nothing. A try fails with probability 5 % at most,
// so kTries of them with 10^-83.
struct MixDraw {
  static constexpr int64_t kTries = 64, kBlocks = 4 * kTries + 1;
  double alpha;
  int64_t height = 0, width = 0;
  float* weight = nullptr;
  int64_t* box = nullptr;

  // The logarithm of a variate of Gamma(alpha), from the blocks first and on.
  LEVIN_HD Rn<double> log_gamma(const ImageWords& words, int64_t first) const {
    using R = Rn<double>;
    // For alpha below 1: Gamma(alpha) = Gamma(alpha + 1) u^(1 / alpha).
    const bool small = alpha < 1;
    const R d = R{small ? alpha + 1 : alpha} - R{1.0 / 3};
    const R c = R{1.0} / root(R{9.0} * d);
    R log_v{0.0}, boost{0.0};
    for (int64_t k = 0; k < kTries; ++k) {
      const PhiloxBlock w = words(first + 2 * k), l = words(first + 2 * k + 1);
      const R z{normal_pair(w.x0, w.x1, l.x0, l.x1).first};
      const R t = R{1.0} + c * z;
      if (!(t.v > 0)) continue;
      log_v = R{3.0} * detail::log_rn(t);
      if (small) boost = detail::log_rn(R{unit_double(l.x2, l.x3 | (1u << 11))}) / R{alpha};
      // Accepted where log u < z^2 / 2 + d - d v + d log v.
      const R u{unit_double(w.x2, w.x3 | (1u << 11))};
      const R v = t * t * t;
      if (detail::log_rn(u).v < ((R{0.5} * z * z + d) - d * v + d * log_v).v) break;
    }
    return detail::log_rn(d) + log_v + boost;
  }
  LEVIN_HD void operator()(int64_t, const ImageWords& words) const {
    using R = Rn<double>;
    const R apart = log_gamma(words, 0) - log_gamma(words, 2 * kTries);
    R lambda{apart.v > 0 ? 1.0 : 0.0};
    if (apart.v > -700 && apart.v < 700) lambda = R{1.0} / (R{1.0} + detail::exp_rn(R{0.0} - apart));
    if (box == nullptr) {
      *weight = float(lambda.v);
      return;
    }
    // torchvision's box: sqrt(1 - lambda) of both sides, whole pixels, around a random pixel, cut off at the border.
    const PhiloxBlock w = words(kBlocks - 1);
    const R part = R{0.5} * root(R{1.0} - lambda);
    const int64_t rows = int64_t((part * R{double(height)}).v), columns = int64_t((part * R{double(width)}).v);
    const int64_t y = int64_t(below64(uint64_t(height), w.x0, w.x1)), x = int64_t(below64(uint64_t(width), w.x2, w.x3));
    const int64_t top = y > rows ? y - rows : 0, left = x > columns ? x - columns : 0;
    const int64_t bottom = y + rows < height ? y + rows : height, right = x + columns < width ? x + columns : width;
    box[0] = top, box[1] = left, box[2] = bottom, box[3] = right;
    const R area{double((bottom - top) * (right - left))}, all{double(height * width)};
    *weight = float((R{1.0} - area / all).v);
  }
};

namespace cpu {
template <class F>
void draw_each(const Cpu&, const F& f, int64_t n, RandomRange range) {
  const ImageWords words(range);
  for (int64_t i = 0; i < n; ++i) f(i, words);
}
}  // namespace cpu

namespace gpu {
template <class F>
__global__ void draw_images(F f, RandomRange range, int64_t n) {
  const int64_t i = own_item();
  if (i < n) f(i, ImageWords(range));
}
template <class F>
void draw_each(const Gpu& on, const F& f, int64_t n, RandomRange range) {
  on.launch(draw_images<F>, item_grid(n), f, range, n);
}
}  // namespace gpu

using cpu::draw_each, gpu::draw_each;  // of the executor that is given

}  // namespace levin::kernels

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#endif
