// The parts of a Winograd convolution: its numbers, the transforms of a tile on whole vectors of channels, and the
// copies that turn channels around. Only winograd.cpp includes this; winograd.cuh drives it and says what it is for.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_WINOGRAD_TILE_CUH
#define LEVIN_KERNELS_WINOGRAD_TILE_CUH

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/gemm_tile.cuh"

namespace levin::kernels {

// F(M x M, R x R), or F(1 x M, 1 x R) for rows alone, at the points 0, a, -a for some a, and infinity, in this order.
// With u = x^2 and the P positive points a, the polynomial that is 0 at all points is N(x) = x * Q(u), Q = product of
// (u - a^2); its quotient by (x - a) is (u + a x) * Q_a(u), Q_a = Q without the factor of a. Their coefficients are the
// rows of B^T; every point and its negative share the even and the odd half of their rows.
template <int M_, int R_, bool kRows_ = false>
struct Winograd {
  static constexpr int M = M_, R = R_, T = M + R - 1, P = (T - 2) / 2;
  static constexpr bool kRows = kRows_;
  static constexpr int MH = kRows ? 1 : M, RH = kRows ? 1 : R, TH = kRows ? 1 : T, kPoints = TH * T;
  static_assert(T == 6 || T == 8);
  // Of the short binary fractions these lost least in trials; 1 and 2 in place of 3/4 and 3/2 lose twice as much.
  static constexpr double kValues[3] = {T == 6 ? 0.75 : 1, T == 6 ? 1.5 : 2, 0.5};

  struct Numbers {
    float q[P + 1] = {};                  // Q, lowest coefficient first
    float qa[P][P] = {};                  // Q_a
    float power[P][T] = {};               // a^k
    float scale_zero = 0, scale[P] = {};  // 1 / N'(point): the weights carry what Lagrange's formula divides by
  };
  static constexpr Numbers numbers() {
    Numbers all;
    for (int without = -1; without < P; ++without) {
      double c[P + 1] = {1};
      for (int p = 0; p < P; ++p)
        for (int k = P; k >= 0 && p != without; --k) c[k] = (k > 0 ? c[k - 1] : 0) - kValues[p] * kValues[p] * c[k];
      if (without < 0) {
        for (int k = 0; k <= P; ++k) all.q[k] = float(c[k]);
        all.scale_zero = float(1 / c[0]);
        continue;
      }
      const double a = kValues[without], u = a * a;
      double value = 0, power = 1;
      for (int k = P - 1; k >= 0; --k) value = value * u + c[k];
      for (int k = 0; k < P; ++k) all.qa[without][k] = float(c[k]);
      for (int k = 0; k < T; ++k, power *= a) all.power[without][k] = float(power);
      all.scale[without] = float(1 / (2 * u * value));
    }
    return all;
  }
  static constexpr Numbers kNumbers = numbers();
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/conv/winograd_tile.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {
namespace {

using Vec = Vector<float>;
constexpr int64_t kVec = kLanes<float>;
constexpr int64_t kPanel = kTileCols<float>;

inline int64_t whole_vectors(int64_t n) { return (n + kVec - 1) / kVec * kVec; }
// Matrices of one point each: an odd number of cache lines apart, so that the stores of a tile do not fall into one
// set.
inline int64_t apart(int64_t numbers) { return ((numbers + 15) / 16 | 1) * 16; }

inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

// ---- Transforms along one side of a tile

// out = B^T in
template <class W>
struct DataTransform {
  static constexpr int kIn = W::T, kOut = W::T;
  static constexpr bool kRows = W::kRows;
  static void apply(const Vec* in, Vec* out) {
    constexpr int P = W::P;
    Vec zero = in[2 * P], infinity = in[2 * P + 1];
#pragma GCC unroll 4
    for (int k = P - 1; k >= 0; --k) {
      zero += in[2 * k] * W::kNumbers.q[k];
      infinity += in[2 * k + 1] * W::kNumbers.q[k];
    }
    out[0] = zero;
    out[W::T - 1] = infinity;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      Vec even = in[2 * P], odd = in[2 * P - 1];
#pragma GCC unroll 4
      for (int k = P - 2; k >= 0; --k) {
        even += in[2 * k + 2] * W::kNumbers.qa[p][k];
        odd += in[2 * k + 1] * W::kNumbers.qa[p][k];
      }
      odd *= W::kNumbers.power[p][1];
      out[1 + 2 * p] = even + odd;
      out[2 + 2 * p] = even - odd;
    }
  }
};

// Values of the polynomial with K coefficients: out = A in (K = M), or G in (K = R, scaled).
template <class W, int K, bool kScaled>
struct Evaluate {
  static constexpr int kIn = K, kOut = W::T;
  static constexpr bool kRows = W::kRows;
  static void apply(const Vec* in, Vec* out) {
    out[0] = kScaled ? in[0] * W::kNumbers.scale_zero : in[0];
    out[W::T - 1] = in[K - 1];
#pragma GCC unroll 4
    for (int p = 0; p < W::P; ++p) {
      Vec even = in[0], odd = in[1] * W::kNumbers.power[p][1];
#pragma GCC unroll 4
      for (int k = 2; k < K; ++k) (k % 2 ? odd : even) += in[k] * W::kNumbers.power[p][k];
      if (kScaled) even *= W::kNumbers.scale[p], odd *= W::kNumbers.scale[p];
      out[1 + 2 * p] = even + odd;
      out[2 + 2 * p] = even - odd;
    }
  }
};

// The transpose of Evaluate: out = A^T in, or G^T in.
template <class W, int K, bool kScaled>
struct Collect {
  static constexpr int kIn = W::T, kOut = K;
  static constexpr bool kRows = W::kRows;
  static void apply(const Vec* in, Vec* out) {
    Vec even[W::P], odd[W::P];
#pragma GCC unroll 4
    for (int p = 0; p < W::P; ++p) {
      even[p] = in[1 + 2 * p] + in[2 + 2 * p];
      odd[p] = in[1 + 2 * p] - in[2 + 2 * p];
      if (kScaled) even[p] *= W::kNumbers.scale[p], odd[p] *= W::kNumbers.scale[p];
    }
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      Vec sum = (k % 2 ? odd : even)[0] * W::kNumbers.power[0][k];
#pragma GCC unroll 4
      for (int p = 1; p < W::P; ++p) sum += (k % 2 ? odd : even)[p] * W::kNumbers.power[p][k];
      if (k == 0) sum += kScaled ? in[0] * W::kNumbers.scale_zero : in[0];
      if (k == K - 1) sum += in[W::T - 1];
      out[k] = sum;
    }
  }
};

// A transform of a tile, along both sides or along its row: put(i, j, element) of one vector of channels, from
// get(i, j).
template <class Transform, class Get, class Put>
inline void transform_tile(Get&& get, Put&& put) {
  constexpr int I = Transform::kIn, O = Transform::kOut;
  if constexpr (Transform::kRows) {
    Vec in[I], out[O];
#pragma GCC unroll 8
    for (int j = 0; j < I; ++j) in[j] = get(0, j);
    Transform::apply(in, out);
#pragma GCC unroll 8
    for (int j = 0; j < O; ++j) put(0, j, out[j]);
    return;
  }
  Vec half[O][I];
  for (int j = 0; j < I; ++j) {
    Vec in[I], out[O];
#pragma GCC unroll 8
    for (int i = 0; i < I; ++i) in[i] = get(i, j);
    Transform::apply(in, out);
#pragma GCC unroll 8
    for (int i = 0; i < O; ++i) half[i][j] = out[i];
  }
  for (int i = 0; i < O; ++i) {
    Vec out[O];
    Transform::apply(half[i], out);
#pragma GCC unroll 8
    for (int j = 0; j < O; ++j) put(i, j, out[j]);
  }
}

// ---- Channels first to channels last, and back

// Pixels [0, count) of up to one vector of channels, `plane` apart, to vectors `pitch` apart; `row` pixels are a row,
// and rows are `row_pitch` apart. Missing channels are 0.
inline void to_last(const float* src, int64_t plane, int64_t channels, int64_t count, float* dst, int64_t pitch,
                    int64_t row, int64_t row_pitch) {
  float square[size_t(kVec * kVec)], strip[size_t(kVec * kVec)] = {};
  for (int64_t p0 = 0; p0 < count; p0 += kVec) {
    const int64_t n = std::min(kVec, count), p = std::min(p0, count - n);  // the last square is whole, too
    const float* from = src + p;
    int64_t ld = plane;
    if (channels < kVec || n < kVec) {
      for (int64_t c = 0; c < channels; ++c) copy_run(from + c * plane, 1, strip + c * kVec, n);
      from = strip, ld = kVec;
    }
    transpose_square(from, ld, square, kVec);
    int64_t col = p % row;
    float* to = dst + p / row * row_pitch + col * pitch;
    for (int64_t i = 0; i < n; ++i) {
      store(to, load(square + i * kVec));
      to += pitch;
      if (++col == row) col = 0, to += row_pitch - row * pitch;
    }
  }
}

// Pixels [0, count) of `channels` channels from vectors `pitch` apart to planes. Reads one vector of pixels at least.
inline void to_first(const float* src, int64_t pitch, int64_t channels, int64_t count, float* dst, int64_t plane) {
  float square[size_t(kVec * kVec)];
  for (int64_t c = 0; c < channels; c += kVec) {
    const int64_t most = std::min(kVec, channels - c);
    for (int64_t p0 = 0; p0 < count; p0 += kVec) {
      const int64_t n = std::min(kVec, count), p = std::min(p0, count - n);
      float* const to = dst + c * plane + p;
      if (most == kVec && n == kVec) {
        transpose_square(src + p * pitch + c, pitch, to, plane);
        continue;
      }
      transpose_square(src + p * pitch + c, pitch, square, kVec);
      for (int64_t i = 0; i < most; ++i) copy_run(square + i * kVec, 1, to + i * plane, n);
    }
  }
}

// A rectangle of an image [channels, height, width], that may reach over its edges, to [rows, cols, pitch]; 0 outside.
struct Rect {
  int64_t top, left, rows, cols;
};
inline void rect_to_last(const float* image, int64_t channels, int64_t height, int64_t width, const Rect& r, float* dst,
                         int64_t pitch) {
  std::fill_n(dst, r.rows * r.cols * pitch, 0.0f);
  const int64_t y0 = std::max<int64_t>(0, r.top), y1 = std::min(height, r.top + r.rows);
  const int64_t x0 = std::max<int64_t>(0, r.left), x1 = std::min(width, r.left + r.cols);
  if (y0 >= y1 || x0 >= x1) return;
  const bool whole = x0 == 0 && x1 == width;
  for (int64_t c = 0; c < channels; c += kVec) {
    const float* src = image + (c * height + y0) * width + x0;
    float* to = dst + ((y0 - r.top) * r.cols + x0 - r.left) * pitch + c;
    const int64_t most = std::min(kVec, channels - c);
    if (whole) {
      to_last(src, height * width, most, (y1 - y0) * width, to, pitch, width, r.cols * pitch);
      continue;
    }
    for (int64_t y = y0; y < y1; ++y, src += width, to += r.cols * pitch)
      to_last(src, height * width, most, x1 - x0, to, pitch, x1 - x0, 0);
  }
}

}  // namespace
}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
