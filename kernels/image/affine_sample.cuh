// Images under an affine map each, and the adjoint. All contiguous; x, y: [images, channels, rows, columns].
//
//   affine_sample(on, const T* x, T* y, shape, const float* maps, Interpolation, T fill)
//     y[n, c, i, j] = x[n, c] at the point that maps[n] gives for (j, i), between its pixels and `fill` outside
//   affine_adjoint(on, const T* y, T* x, shape, maps, Interpolation)
//     x[n, c, r, s] = sum over (i, j), ascending, of the weight that pixel (r, s) has in y[n, c, i, j]
//
// maps: [images, 6] of tensor/image/affine.h, any numbers; a point that is NaN lies outside. T: float, double, f16,
// bf16, for affine_sample also uint8_t (bilinear: rounded to the nearest, half to even).
// A pixel of the adjoint searches the pixels of y whose points lie within one pixel of it, in the box that the inverse
// map gives, or in all of y where the map has no inverse. So sums need no atomics and repeat bit for bit. Points and
// the adjoint's sums are computed in single operations (Note [One rounding]): both directions agree on the points, and
// the adjoint has the same bits on every device.
// On devices a thread computes one pixel of all channels.
#ifndef LEVIN_KERNELS_AFFINE_SAMPLE_CUH
#define LEVIN_KERNELS_AFFINE_SAMPLE_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/device/bits.cuh"
#include "kernels/device/draw.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"
#include "levin/image.h"

// Note [One rounding]
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#elif defined(__clang__)
#pragma clang fp contract(off)
#endif

namespace levin::kernels {

struct AffineShape {
  std::int64_t images = 0, channels = 0, rows = 0, columns = 0;
  [[nodiscard]] LEVIN_HD std::int64_t plane() const { return rows * columns; }
};

// The four pixels around a point and how far it is from the first: (row, column) + (v, u).
template <class A>
struct AffinePoint {
  std::int64_t row = 0, column = 0;
  A u = 0, v = 0;
  bool seen = false;  // the point lies within one pixel of the image

  LEVIN_HD AffinePoint(const float* map, const AffineShape& s, Interpolation how, std::int64_t i, std::int64_t j) {
    using R = Rn<float>;
    const R cx{float(s.columns - 1) * 0.5f}, cy{float(s.rows - 1) * 0.5f};
    const R dx = R{float(j)} - cx, dy = R{float(i)} - cy;
    const float x = (R{map[0]} * dx + R{map[1]} * dy + R{map[2]} + cx).v,
                y = (R{map[3]} * dx + R{map[4]} * dy + R{map[5]} + cy).v;
    seen = x > -1.0f && x < float(s.columns) && y > -1.0f && y < float(s.rows);  // false for NaN
    if (!seen) return;
    column = floor_of(x);
    row = floor_of(y);
    const float across = x - float(column), down = y - float(row);
    if (how == Interpolation::nearest) {
      // Half to even: torchvision's nearbyint.
      column += across > 0.5f || (across == 0.5f && (column & 1) != 0);
      row += down > 0.5f || (down == 0.5f && (row & 1) != 0);
      return;
    }
    u = A(across);
    v = A(down);
  }
  // The weight of pixel (r, s).
  LEVIN_HD A weight(std::int64_t r, std::int64_t s) const {
    const A across = s == column ? A(1) - u : s == column + 1 ? u : A(0);
    const A down = r == row ? A(1) - v : r == row + 1 ? v : A(0);
    return across * down;
  }

 private:
  // x86-64 without SSE4 has no instruction for floor.
  LEVIN_HD static std::int64_t floor_of(float x) {
    const auto cut = std::int64_t(x);
    return cut - (x < float(cut));
  }
};

// Pixel (i, j) of all channels; x and y are the first channel.
template <class T>
LEVIN_HD void affine_sample_pixel(const T* x, T* y, const AffineShape& s, const float* map, Interpolation how, T fill,
                                  std::int64_t i, std::int64_t j) {
  using A = Accum<T>;
  const AffinePoint<A> p(map, s, how, i, j);
  const auto inside = [&](std::int64_t r, std::int64_t c) { return r >= 0 && c >= 0 && r < s.rows && c < s.columns; };
  const std::int64_t plane = s.plane(), from = p.row * s.columns + p.column;
  T* to = y + (i * s.columns + j);
  if (!p.seen || (how == Interpolation::nearest && !inside(p.row, p.column))) {
    for (std::int64_t c = 0; c < s.channels; ++c) to[c * plane] = fill;
    return;
  }
  if (how == Interpolation::nearest) {
    for (std::int64_t c = 0; c < s.channels; ++c) to[c * plane] = x[c * plane + from];
    return;
  }
  const A w[4] = {(A(1) - p.u) * (A(1) - p.v), p.u * (A(1) - p.v), (A(1) - p.u) * p.v, p.u * p.v};
  const auto result = [](A sum) {
    if constexpr (std::is_same_v<T, std::uint8_t>)
      return T(rintf(sum < 0 ? 0.0f : sum > 255.0f ? 255.0f : sum));
    else
      return T(sum);
  };
  // A pixel without weight is not read: its infinity or NaN would spread.
  if (p.u != A(0) && p.v != A(0) && inside(p.row, p.column) && inside(p.row + 1, p.column + 1)) {
    for (std::int64_t c = 0; c < s.channels; ++c) {
      const T *upper = x + (c * plane + from), *lower = upper + s.columns;
      to[c * plane] = result(w[0] * A(upper[0]) + w[1] * A(upper[1]) + w[2] * A(lower[0]) + w[3] * A(lower[1]));
    }
    return;
  }
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const auto pixel = [&](A weight, std::int64_t row, std::int64_t column) {
      if (weight == A(0)) return A(0);
      return weight * A(inside(row, column) ? x[c * plane + row * s.columns + column] : fill);
    };
    to[c * plane] = result(pixel(w[0], p.row, p.column) + pixel(w[1], p.row, p.column + 1) +
                           pixel(w[2], p.row + 1, p.column) + pixel(w[3], p.row + 1, p.column + 1));
  }
}

// The pixels of y whose points may lie within one pixel of (r, s) of x.
struct AffineReach {
  std::int64_t top, left, bottom, right;  // inclusive
  LEVIN_HD AffineReach(const float* m, const AffineShape& s, std::int64_t r, std::int64_t c) {
    const double w = double(s.columns), h = double(s.rows), cx = (w - 1) * 0.5, cy = (h - 1) * 0.5;
    const double a = m[0], b = m[1], d = m[3], e = m[4], det = a * e - b * d;
    // Points are rounded a few times to 24 bits, from numbers of these sizes.
    const double slack_x = 1 + 0x1p-20 * (fabs(a) * w + fabs(b) * h + fabs(double(m[2])) + w),
                 slack_y = 1 + 0x1p-20 * (fabs(d) * w + fabs(e) * h + fabs(double(m[5])) + h);
    const double px = double(c) - cx - m[2], py = double(r) - cy - m[5];
    const double x = (e * px - b * py) / det + cx, y = (a * py - d * px) / det + cy;
    const double reach_x = (fabs(e) * slack_x + fabs(b) * slack_y) / fabs(det) + 0.5,
                 reach_y = (fabs(d) * slack_x + fabs(a) * slack_y) / fabs(det) + 0.5;
    left = first(x - reach_x, s.columns), right = last(x + reach_x, s.columns);
    top = first(y - reach_y, s.rows), bottom = last(y + reach_y, s.rows);
  }

 private:
  // NaN, which a map without an inverse gives, is everything.
  LEVIN_HD static std::int64_t first(double v, std::int64_t n) {
    return !(v > 0) ? 0 : v < double(n) ? std::int64_t(v) : n;
  }
  LEVIN_HD static std::int64_t last(double v, std::int64_t n) {
    return !(v < double(n - 1)) ? n - 1 : v < 0 ? -1 : std::int64_t(v);
  }
};

// Pixel (r, s) of the adjoint for channels c .. c + kAdjointChannels - 1, whose first pixels are y and x.
inline constexpr int kAdjointChannels = 4;
template <class T>
LEVIN_HD void affine_adjoint_pixel(const T* y, T* x, const AffineShape& s, const float* map, Interpolation how,
                                   std::int64_t r, std::int64_t c) {
  using A = Accum<T>;
  using R = Rn<A>;
  const AffineReach reach(map, s, r, c);
  const std::int64_t plane = s.plane();
  for (std::int64_t channel = 0; channel < s.channels; channel += kAdjointChannels) {
    A sums[kAdjointChannels] = {};
    for (std::int64_t i = reach.top; i <= reach.bottom; ++i) {
      for (std::int64_t j = reach.left; j <= reach.right; ++j) {
        const AffinePoint<A> p(map, s, how, i, j);
        const A w = p.seen ? p.weight(r, c) : A(0);
        if (w == A(0)) continue;
        const T* const from = y + channel * plane + i * s.columns + j;
#pragma unroll
        for (int k = 0; k < kAdjointChannels; ++k)
          if (channel + k < s.channels) sums[k] = (R{sums[k]} + R{w} * R{A(from[k * plane])}).v;
      }
    }
    T* const to = x + channel * plane + r * s.columns + c;
#pragma unroll
    for (int k = 0; k < kAdjointChannels; ++k)
      if (channel + k < s.channels) to[k * plane] = T(sums[k]);
  }
}

namespace cpu {

template <class T>
void affine_sample(const Cpu& on, const T* x, T* y, const AffineShape& s, const float* maps, Interpolation how,
                   T fill) {
  if (s.plane() * s.channels == 0) return;
  on.parallel_for(s.images * s.rows, std::max<std::int64_t>(1, 4096 / (s.columns * s.channels)),
                  [=](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t line = begin; line < end; ++line) {
                      const std::int64_t n = line / s.rows, i = line - n * s.rows, image = n * s.channels * s.plane();
                      for (std::int64_t j = 0; j < s.columns; ++j)
                        affine_sample_pixel(x + image, y + image, s, maps + 6 * n, how, fill, i, j);
                    }
                  });
}
template <class T>
void affine_adjoint(const Cpu& on, const T* y, T* x, const AffineShape& s, const float* maps, Interpolation how) {
  if (s.plane() * s.channels == 0) return;
  on.parallel_for(s.images * s.rows, std::max<std::int64_t>(1, 512 / (s.columns * s.channels)),
                  [=](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t line = begin; line < end; ++line) {
                      const std::int64_t n = line / s.rows, image = n * s.channels * s.plane();
                      for (std::int64_t c = 0; c < s.columns; ++c)
                        affine_adjoint_pixel(y + image, x + image, s, maps + 6 * n, how, line - n * s.rows, c);
                    }
                  });
}

}  // namespace cpu

namespace gpu {

template <class T>
__global__ void affine_sample_pixels(const T* x, T* y, AffineShape s, const float* maps, Interpolation how, T fill,
                                     std::int64_t pixels, Divider columns, Divider rows) {
  const std::int64_t u = own_item();
  if (u >= pixels) return;
  const std::int64_t line = columns.quotient(u), n = rows.quotient(line), image = n * s.channels * s.plane();
  affine_sample_pixel(x + image, y + image, s, maps + 6 * n, how, fill, line - n * s.rows, u - line * s.columns);
}
template <class T>
void affine_sample(const Gpu& on, const T* x, T* y, const AffineShape& s, const float* maps, Interpolation how,
                   T fill) {
  const std::int64_t n = s.images * s.plane();
  if (n * s.channels == 0) return;
  on.launch(affine_sample_pixels<T>, item_grid(n), x, y, s, maps, how, fill, n, Divider(s.columns), Divider(s.rows));
}

template <class T>
__global__ void affine_adjoint_pixels(const T* y, T* x, AffineShape s, const float* maps, Interpolation how,
                                      std::int64_t pixels, Divider columns, Divider rows) {
  const std::int64_t u = own_item();
  if (u >= pixels) return;
  const std::int64_t line = columns.quotient(u), n = rows.quotient(line), image = n * s.channels * s.plane();
  affine_adjoint_pixel(y + image, x + image, s, maps + 6 * n, how, line - n * s.rows, u - line * s.columns);
}
template <class T>
void affine_adjoint(const Gpu& on, const T* y, T* x, const AffineShape& s, const float* maps, Interpolation how) {
  const std::int64_t n = s.images * s.plane();
  if (n * s.channels == 0) return;
  on.launch(affine_adjoint_pixels<T>, item_grid(n), y, x, s, maps, how, n, Divider(s.columns), Divider(s.rows));
}

}  // namespace gpu

using cpu::affine_adjoint, gpu::affine_adjoint;  // of the executor that is given
using cpu::affine_sample, gpu::affine_sample;

}  // namespace levin::kernels

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#endif
