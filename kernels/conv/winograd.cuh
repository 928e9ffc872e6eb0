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
// from its values at T = M + R - 1 points, so with A, B and G from the points (struct Winograd in winograd_tile.cuh)
//   y = A^T [ sum over c of (G w_c G^T) .* (B^T x_c B) ] A             T * T products for what took M * M * R * R
//   gw = G^T [ sum over tiles of (B^T x B) .* (A gy A^T) ] G           the same expression, differentiated by w
// and the input gradient is the forward of gy with flipped, transposed weights and padding R - 1 - padding. The
// products are T * T independent matrix products over channels. Everything inside runs with channels last: transforms
// work on whole vectors of channels, and V [T * T, tiles, in], U [T * T, in, out] and their product are what the
// register tile reads and writes. A task takes a block of tiles whose V, and product with one panel of U, stay in L2.
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
// chunks in order. Throws OutOfMemoryError when there is no memory for tiles.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_WINOGRAD_CUH
#define LEVIN_KERNELS_WINOGRAD_CUH

#include <algorithm>
#include <cstdint>

#include "kernels/conv/conv_shape.h"
#include "kernels/executor/cpu.h"
#ifdef LEVIN_COMPILE_WINOGRAD
#include "kernels/conv/winograd_tile.cuh"
#include "kernels/gemm/gemm.cuh"
#include "kernels/lib/scratch.h"
#endif

namespace levin::kernels {

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

#define LEVIN_LEVEL_FILE "kernels/conv/winograd.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(winograd_forward)
LEVIN_PICK_EVERY(winograd_input_gradient)
LEVIN_PICK_EVERY(winograd_weight_gradient)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

#ifdef LEVIN_COMPILE_WINOGRAD
namespace {

constexpr int64_t kRoom = 512 * 1024;  // of L2, for the tiles of a task

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

// Transforms tiles of images [batch, channels, height, width], `step` pixels apart, of which the block's first begins
// at (top, left), to [T * T, tiles, pitch].
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

// U: [panels of out, T * T, in, panel]: weights of in channel c and out channel o at w[o * w_out + c * w_in], R * R
// taps, flipped or not.
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
