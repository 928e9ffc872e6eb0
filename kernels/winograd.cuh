// Winograd convolution: 3x3 and 5x5 kernels of stride 1 in f32 with a quarter or a fifth of the multiplications.
//
//   winograd_forward_pays, _input_pays, _weight_pays(shape): whether conv.cuh goes this way
//   cpu::winograd_forward         (on, shape, const T* x, const T* w, const T* bias or null, T* y)
//   cpu::winograd_input_gradient  (on, shape, const T* gy, const T* w, T* gx)
//   cpu::winograd_weight_gradient (on, shape, const T* x, const T* gy, T* gw)
//
// T is float. Layouts as in conv.cuh; shapes: stride, dilation and groups 1, kernel 3x3 or 5x5, any padding.
//
// Note [Winograd]
// M x M outputs of one channel pair need a (M + R - 1)^2 tile of the image. A polynomial product of that size is known
// from its values at T = M + R - 1 points, so with A, B and G from the points (Winograd, below)
//   y = A^T [ sum over c of (G w_c G^T) .* (B^T x_c B) ] A             T * T products for what took M * M * R * R
//   gw = G^T [ sum over tiles of (B^T x B) .* (A gy A^T) ] G           the same expression, differentiated by w
// and the input gradient is the forward of gy with flipped, transposed weights and padding R - 1 - padding. The products
// are T * T independent matrix products over channels. Everything inside runs with channels last: transforms work on
// whole vectors of channels, and V [T * T, tiles, in], U [T * T, in, out] and their product are what the register tile
// reads and writes. A task takes a block of tiles whose V, and product with one panel of U, stay in L2.
//
// Note [Error of Winograd]
// Values at points larger and smaller than 1 cancel. For x, w and gy uniform in [-1, 1) and sums of n products the
// largest error seen is 193 * 2^-24 * sqrt(n) for 5x5 and 74 * 2^-24 * sqrt(n) for 3x3, where the direct sum in f32 has
// 18 * 2^-24 * sqrt(n); relative to the results' root mean square, the error's is 3e-6 and 1.1e-6 (direct: 3.5e-7). The
// tests hold 256 and 128. That is far below what a format of 10 mantissa bits (TF32) does to the inputs alone.
// A NaN or an infinity in an image reaches all pixels of the tiles that see it, at most 3 further than directly; one in
// w reaches its whole output channel. Numbers within a factor of 10^4 of the largest float may overflow inside.
//
// Bits depend on shape and level, not on threads: gw is summed over the tiles of a fixed number of chunks, and the
// chunks in order. Throws std::bad_alloc when there is no memory for tiles.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_WINOGRAD_CUH
#define LEVIN_KERNELS_WINOGRAD_CUH

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/conv_shape.h"
#include "kernels/cpu.h"
#include "kernels/gemm.cuh"
#include "kernels/gemm_tile.cuh"
#include "kernels/lib/scratch.h"

namespace levin::kernels {

// F(M x M, R x R) at the points 0, a, -a for some a, and infinity, in this order. With u = x^2 and the P positive
// points a, the polynomial that is 0 at all points is N(x) = x * Q(u), Q = product of (u - a^2); its quotient by (x - a)
// is (u + a x) * Q_a(u), Q_a = Q without the factor of a. Their coefficients are the rows of B^T; every point and its
// negative share the even and the odd half of their rows.
template <int M_, int R_>
struct Winograd {
  static constexpr int M = M_, R = R_, T = M + R - 1, P = (T - 2) / 2;
  static_assert(T == 6 || T == 8);
  // Of the short binary fractions these lost least in trials; 1 and 2 in place of 3/4 and 3/2 lose twice as much.
  static constexpr double kPoints[3] = {T == 6 ? 0.75 : 1, T == 6 ? 1.5 : 2, 0.5};

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
        for (int k = P; k >= 0 && p != without; --k) c[k] = (k > 0 ? c[k - 1] : 0) - kPoints[p] * kPoints[p] * c[k];
      if (without < 0) {
        for (int k = 0; k <= P; ++k) all.q[k] = float(c[k]);
        all.scale_zero = float(1 / c[0]);
        continue;
      }
      const double a = kPoints[without], u = a * a;
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

// height, width: what the tiles cover; the outputs of a forward, the inputs of an input gradient.
inline bool winograd_pays(const ConvShape& s, int64_t height, int64_t width) {
  if (s.stride_h != 1 || s.stride_w != 1 || s.dilation_h != 1 || s.dilation_w != 1 || s.groups != 1) return false;
  if (s.kernel_h != s.kernel_w || (s.kernel_h != 3 && s.kernel_h != 5)) return false;
  if (s.in_channels < 16 || s.out_channels < 16) return false;
  // Few tiles do not pay for the transforms of the weights; mostly empty ones multiply more than they save.
  const int64_t m = 4, side = m + s.kernel_h - 1;
  const int64_t tiles = ((height + m - 1) / m) * ((width + m - 1) / m);
  return s.batch * tiles >= 48 && s.pixels() * s.taps() >= 2 * tiles * side * side;
}
inline bool winograd_forward_pays(const ConvShape& s) { return winograd_pays(s, s.out_height(), s.out_width()); }
inline bool winograd_input_pays(const ConvShape& s) { return winograd_pays(s, s.height, s.width); }
// The sums of a chunk are as large as the transformed weights; larger ones leave the caches with every block of tiles.
inline bool winograd_weight_pays(const ConvShape& s) {
  return winograd_forward_pays(s) && s.in_channels * s.out_channels <= 128 * 128;
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/winograd.cuh"
#include "kernels/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(winograd_forward)
LEVIN_PICK(winograd_input_gradient)
LEVIN_PICK(winograd_weight_gradient)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

#ifdef LEVIN_COMPILE_WINOGRAD
namespace {

using Vec = Vector<float>;
constexpr int64_t kVec = kLanes<float>;
constexpr int64_t kPanel = kTileCols<float>;
constexpr int64_t kRoom = 512 * 1024;  // of L2, for the tiles of a task

inline int64_t whole_vectors(int64_t n) { return (n + kVec - 1) / kVec * kVec; }
// Matrices of one point each: an odd number of cache lines apart, so that the stores of a tile do not fall into one set.
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

// A transform along both sides: put(i, j, element) of one vector of channels, from get(i, j).
template <class Transform, class Get, class Put>
inline void both_sides(Get&& get, Put&& put) {
  constexpr int I = Transform::kIn, O = Transform::kOut;
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

// Pixels [0, count) of up to one vector of channels, `plane` apart, to vectors `pitch` apart; `row` pixels are a row, and
// rows are `row_pitch` apart. Missing channels are 0.
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

// ---- Blocks of tiles

// What a convolution looks like from inside: forward, or the input gradient as a forward.
struct Extents {
  int64_t batch, in, height, width, out, out_height, out_width, padding_h, padding_w;
};

// Some whole images, or some rows of tiles of one image, or a piece of such a row.
struct TileBlocks {
  int64_t m;
  EvenBlocks rows, cols, images;
  TileBlocks(const Extents& e, int64_t outputs, int64_t most)
      : m(outputs),
        rows((e.out_height + m - 1) / m, std::max<int64_t>(1, most / ((e.out_width + m - 1) / m))),
        cols((e.out_width + m - 1) / m, std::max<int64_t>(1, most)),
        images(e.batch, rows.count * cols.count > 1 ? 1 : std::max<int64_t>(1, most / (rows.total * cols.total))) {}
  [[nodiscard]] int64_t count() const { return rows.count * cols.count * images.count; }
  [[nodiscard]] int64_t tiles() const { return rows.size * cols.size * images.size; }
};
struct TileBlock {
  int64_t n0, n1;      // images
  int64_t rows, cols;  // tiles of one image
  int64_t p, q;        // the first output pixel of an image
  TileBlock(const TileBlocks& b, int64_t i) {
    const int64_t col = i % b.cols.count, row = i / b.cols.count % b.rows.count,
                  image = i / b.cols.count / b.rows.count;
    n0 = b.images.begin(image), n1 = b.images.end(image);
    rows = b.rows.end(row) - b.rows.begin(row), cols = b.cols.end(col) - b.cols.begin(col);
    p = b.rows.begin(row) * b.m, q = b.cols.begin(col) * b.m;
  }
  [[nodiscard]] int64_t tiles() const { return (n1 - n0) * rows * cols; }
};

// How many tiles of `numbers` floats a task takes: as many as `room` bytes hold, but enough rows for the register tile,
// and enough tasks for the threads.
inline int64_t tiles_at_once(const Extents& e, int64_t m, int64_t numbers, int64_t room) {
  const int64_t all = e.batch * ((e.out_height + m - 1) / m) * ((e.out_width + m - 1) / m);
  const int64_t most = std::clamp<int64_t>(room / (numbers * int64_t(sizeof(float))), 14, 256);
  return std::min(most, std::max<int64_t>(14, all / 8));
}

// Transforms tiles of images [batch, channels, height, width], `step` pixels apart, of which the block's first begins at
// (top, left), to [T * T, tiles, pitch].
template <class W, class Transform>
void transform_tiles(const float* images, int64_t channels, int64_t height, int64_t width, const TileBlock& b,
                     int64_t top, int64_t left, int64_t pitch, float* window, float* to, int64_t point) {
  const Rect rect{top, left, (b.rows - 1) * W::M + Transform::kIn, (b.cols - 1) * W::M + Transform::kIn};
  const int64_t row = rect.cols * pitch;
  for (int64_t n = b.n0; n < b.n1; ++n) {
    rect_to_last(images + n * channels * height * width, channels, height, width, rect, window, pitch);
    for (int64_t r = 0; r < b.rows; ++r)
      for (int64_t c = 0; c < b.cols; ++c, to += pitch)
        for (int64_t v = 0; v < pitch; v += kVec) {
          const float* from = window + r * W::M * row + c * W::M * pitch + v;
          both_sides<Transform>([&](int i, int j) { return load(from + i * row + j * pitch); },
                                [&](int i, int j, Vec x) { store(to + v + (i * W::T + j) * point, x); });
        }
  }
}

// ---- The convolutions

// U: [panels of out, T * T, in, panel]: weights of in channel c and out channel o at w[o * w_out + c * w_in], R * R taps,
// flipped or not.
template <class W>
void transform_weights(const Cpu& on, const float* w, int64_t in, int64_t out, int64_t w_in, int64_t w_out, bool flip,
                       float* u) {
  constexpr int R = W::R;
  on.parallel_for(in, std::max<int64_t>(1, 4096 / out), [&](int64_t from, int64_t to) {
    float taps[size_t(R * R * kVec)];
    for (int64_t c = from; c < to; ++c)
      for (int64_t o = 0; o < out; o += kVec) {
        to_last(w + c * w_in + o * w_out, w_out, std::min(kVec, out - o), R * R, taps, kVec, R * R, 0);
        const int64_t panel = o / kPanel, width = std::min(kPanel, whole_vectors(out) - panel * kPanel);
        float* const at = u + panel * W::T * W::T * in * kPanel + c * width + o % kPanel;
        both_sides<Evaluate<W, R, true>>(
            [&](int i, int j) { return load(taps + (flip ? R * R - 1 - i * R - j : i * R + j) * kVec); },
            [&](int i, int j, Vec x) { store(at + (i * W::T + j) * in * width, x); });
      }
  });
}

template <class W>
void winograd(const Cpu& on, const Extents& e, const float* x, const float* u, const float* bias, float* y) {
  constexpr int64_t M = W::M, T = W::T;
  const int64_t in_pitch = whole_vectors(e.in), plane = e.out_height * e.out_width;
  const TileBlocks blocks(e, M, tiles_at_once(e, M, T * T * (in_pitch + kPanel), kRoom));
  const double block_flops = 2.0 * double(T * T * blocks.tiles()) * double(e.in) * double(e.out);
  const int64_t grain = std::max<int64_t>(1, int64_t(double(kChunkFlops) / block_flops));
  on.parallel_for(blocks.count(), grain, [&](int64_t from, int64_t to) {
    const int64_t v_point = apart(blocks.tiles() * in_pitch), m_point = apart(blocks.tiles() * kPanel);
    const int64_t window_numbers =
        apart((blocks.rows.size * M + W::R - 1) * (blocks.cols.size * M + W::R - 1) * in_pitch);
    const int64_t pixel_numbers = (blocks.rows.size * blocks.cols.size * M * M + kVec) * kPanel;
    const lib::Scratch memory(size_t(T * T * (v_point + m_point) + window_numbers + pixel_numbers) * sizeof(float));
    float* const v = memory.as<float>();
    float* const product = v + T * T * v_point;
    float* const window = product + T * T * m_point;
    float* const pixels = window + window_numbers;
    for (int64_t i = from; i < to; ++i) {
      const TileBlock b(blocks, i);
      transform_tiles<W, DataTransform<W>>(x, e.in, e.height, e.width, b, b.p - e.padding_h, b.q - e.padding_w,
                                           in_pitch, window, v, v_point);
      const int64_t rows = std::min(b.rows * M, e.out_height - b.p), cols = std::min(b.cols * M, e.out_width - b.q);
      for (int64_t o = 0; o < e.out; o += kPanel) {
        const int64_t outs = std::min(kPanel, e.out - o), width = whole_vectors(outs);
        const float* panel = u + o * T * T * e.in;
        for (int64_t t = 0; t < T * T; ++t)
          multiply_block<float>(b.tiles(), outs, e.in, {v + t * v_point, in_pitch, 1}, panel + t * e.in * width, width,
                                {product + t * m_point, kPanel, 1.0f, 0.0f, nullptr, nullptr}, width);
        float shift[size_t(kPanel)] = {};
        if (bias) copy_run(bias + o, 1, shift, outs);
        const float* tile = product;
        for (int64_t n = b.n0; n < b.n1; ++n) {
          for (int64_t r = 0; r < rows; r += M)
            for (int64_t c = 0; c < cols; c += M, tile += kPanel)
              for (int64_t k = 0; k < width; k += kVec) {
                const Vec add = load(shift + k);
                float* const at = pixels + (r * cols + c) * kPanel + k;
                const int64_t last_row = rows - r, last_col = cols - c;
                both_sides<Collect<W, W::M, false>>(
                    [&](int p, int q) { return load(tile + (p * T + q) * m_point + k); },
                    [&](int p, int q, Vec sum) {
                      if (p < last_row && q < last_col) store(at + (p * cols + q) * kPanel, sum + add);
                    });
              }
          float* const to_y = y + (n * e.out + o) * plane + b.p * e.out_width + b.q;
          if (cols == e.out_width) {
            to_first(pixels, kPanel, outs, rows * cols, to_y, plane);
          } else {
            for (int64_t r = 0; r < rows; ++r)
              to_first(pixels + r * cols * kPanel, kPanel, outs, cols, to_y + r * e.out_width, plane);
          }
        }
      }
    }
  });
}

template <class W>
void weight_gradient(const Cpu& on, const Extents& e, const float* x, const float* gy, float* gw) {
  constexpr int64_t M = W::M, T = W::T, R = W::R;
  const int64_t in_pitch = whole_vectors(e.in), out_pitch = whole_vectors(e.out);
  // Every block of tiles reads and writes all sums: large sums want large blocks.
  const int64_t room = std::max(kRoom * 3 / 2, T * T * e.in * out_pitch * int64_t(sizeof(float)));
  const TileBlocks blocks(e, M, tiles_at_once(e, M, T * T * (in_pitch + out_pitch), room));
  const EvenBlocks chunks(blocks.count(), std::max<int64_t>(1, (blocks.count() + 7) / 8));
  const int64_t sum_point = e.in * out_pitch, chunk_numbers = T * T * sum_point;
  const lib::Scratch partial(size_t(chunks.count * chunk_numbers) * sizeof(float));
  on.parallel_for(chunks.count, 1, [&](int64_t from, int64_t to) {
    const int64_t v_point = apart(blocks.tiles() * in_pitch), g_point = apart(blocks.tiles() * out_pitch);
    const int64_t window_numbers =
        (blocks.rows.size * M + R - 1) * (blocks.cols.size * M + R - 1) * std::max(in_pitch, out_pitch);
    const lib::Scratch memory(size_t(T * T * (v_point + g_point) + window_numbers) * sizeof(float));
    float* const v = memory.as<float>();
    float* const g = v + T * T * v_point;
    float* const window = g + T * T * g_point;
    for (int64_t chunk = from; chunk < to; ++chunk)
      for (int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
        const TileBlock b(blocks, i);
        float* const sums = partial.as<float>() + chunk * chunk_numbers;
        transform_tiles<W, DataTransform<W>>(x, e.in, e.height, e.width, b, b.p - e.padding_h, b.q - e.padding_w,
                                             in_pitch, window, v, v_point);
        transform_tiles<W, Evaluate<W, W::M, false>>(gy, e.out, e.out_height, e.out_width, b, b.p, b.q, out_pitch,
                                                     window, g, g_point);
        const float beta = float(i > chunks.begin(chunk));
        for (int64_t t = 0; t < T * T; ++t)
          multiply_block<float>(e.in, e.out, b.tiles(), {v + t * v_point, 1, in_pitch}, g + t * g_point, out_pitch,
                                {sums + t * sum_point, out_pitch, 1.0f, beta, nullptr, nullptr}, out_pitch);
      }
  });
  // One in channel: [R * R, out] channels last, then to the rows of gw.
  on.parallel_for(e.in, 1, [&](int64_t from, int64_t to) {
    const lib::Scratch memory(size_t((R * R + kVec) * out_pitch) * sizeof(float));
    float* const taps = memory.as<float>();
    for (int64_t c = from; c < to; ++c) {
      for (int64_t o = 0; o < out_pitch; o += kVec) {
        const float* const first = partial.as<float>() + c * out_pitch + o;
        both_sides<Collect<W, W::R, true>>(
            [&](int i, int j) {
              const float* at = first + (i * T + j) * sum_point;
              Vec sum = load(at);
              for (int64_t chunk = 1; chunk < chunks.count; ++chunk) sum += load(at + chunk * chunk_numbers);
              return sum;
            },
            [&](int i, int j, Vec sum) { store(taps + (i * R + j) * out_pitch + o, sum); });
      }
      to_first(taps, out_pitch, e.out, R * R, gw + c * R * R, e.in * R * R);
    }
  });
}

// Calls f(Winograd<M, R>{}) for the kernel of this shape.
template <class F>
void with_winograd(const ConvShape& s, F&& f) {
  if (s.kernel_h == 3) return f(Winograd<4, 3>{});
  f(Winograd<4, 5>{});
}

}  // namespace

template <class T>
void winograd_forward(const Cpu& on, const ConvShape& s, const T* x, const T* w, const T* bias, T* y) {
  with_winograd(s, [&](auto kind) {
    using W = decltype(kind);
    const lib::Scratch u(size_t(W::T * W::T * s.in_channels * whole_vectors(s.out_channels)) * sizeof(T));
    transform_weights<W>(on, w, s.in_channels, s.out_channels, W::R * W::R, s.in_channels * W::R * W::R, false,
                         u.as<T>());
    winograd<W>(on,
                {s.batch, s.in_channels, s.height, s.width, s.out_channels, s.out_height(), s.out_width(), s.padding_h,
                 s.padding_w},
                x, u.as<T>(), bias, y);
  });
}

template <class T>
void winograd_input_gradient(const Cpu& on, const ConvShape& s, const T* gy, const T* w, T* gx) {
  with_winograd(s, [&](auto kind) {
    using W = decltype(kind);
    const lib::Scratch u(size_t(W::T * W::T * s.out_channels * whole_vectors(s.in_channels)) * sizeof(T));
    transform_weights<W>(on, w, s.out_channels, s.in_channels, s.in_channels * W::R * W::R, W::R * W::R, true,
                         u.as<T>());
    winograd<W>(on,
                {s.batch, s.out_channels, s.out_height(), s.out_width(), s.in_channels, s.height, s.width,
                 W::R - 1 - s.padding_h, W::R - 1 - s.padding_w},
                gy, u.as<T>(), nullptr, gx);
  });
}

template <class T>
void winograd_weight_gradient(const Cpu& on, const ConvShape& s, const T* x, const T* gy, T* gw) {
  with_winograd(s, [&](auto kind) {
    weight_gradient<decltype(kind)>(on,
                                    {s.batch, s.in_channels, s.height, s.width, s.out_channels, s.out_height(),
                                     s.out_width(), s.padding_h, s.padding_w},
                                    x, gy, gw);
  });
}
template void winograd_forward(const Cpu&, const ConvShape&, const float*, const float*, const float*, float*);
template void winograd_input_gradient(const Cpu&, const ConvShape&, const float*, const float*, float*);
template void winograd_weight_gradient(const Cpu&, const ConvShape&, const float*, const float*, float*);
#else
// Compiled once, in winograd.cpp.
template <class T>
void winograd_forward(const Cpu& on, const ConvShape& s, const T* x, const T* w, const T* bias, T* y);
template <class T>
void winograd_input_gradient(const Cpu& on, const ConvShape& s, const T* gy, const T* w, T* gx);
template <class T>
void winograd_weight_gradient(const Cpu& on, const ConvShape& s, const T* x, const T* gy, T* gw);
#endif

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
