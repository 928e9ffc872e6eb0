// Winograd convolution in f32, with 25 % of the multiplications for 3x3 kernels, 16 % for 5x5, 50 % for 1x3, 40 % for
// 1x5 and, of stride 2, 36 % for 4x4.
//
//   winograd_forward_pays, _input_pays, _weight_pays(shape): whether conv.cuh goes this way
//   cpu::winograd_forward         (on, shape, const T* x, const T* w, const T* bias or null, T* y)
//   cpu::winograd_input_gradient  (on, shape, const T* gy, const T* w, T* gx)
//   cpu::winograd_weight_gradient (on, shape, const T* x, const T* gy, T* gw)
//
// T is float. Layouts as in conv.cuh; shapes: dilation and groups 1, any padding; stride 1 and kernel 3x3, 5x5, 1x3 or
// 1x5 (conv1d), or stride 2 and kernel 4x4, in channels a multiple of 16 but for an input gradient, every row and
// column seen by an output.
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
// Kernels of one row have tiles of one row, [MH, M] outputs and [TH, T] points with MH = TH = 1: T products for what
// took M * R.
//
// Note [Phases of stride 2]
// Output p sees rows 2 p + i of the padded image. With i = 2 a + f these are rows p + a of phase f, the padded image's
// rows 2 p + f: a convolution of stride 1 with a 2x2 kernel over the 2 * 2 phases of each channel,
//   y[p, q] = sum over c, f, g, a, b < 2 of w[c, 2 a + f, 2 b + g] * phase[f, g, c][p + a, q + b]
// with M = 5. V then has 4 * in channels; in an input gradient the product has 4 times its channels. A kernel has
// S * R taps a side, where S is the stride. Images keep their layout: tiles are read from phases, and written to them.
//
// Note [Error of Winograd]
// Values at points larger and smaller than 1 cancel. For x, w and gy uniform in [-1, 1) and sums of n products the
// largest error seen is 193 * 2^-24 * sqrt(n) for 5x5, 131 for 4x4, 74 for 3x3, 54 for 1x5 and 32 for 1x3, where the
// direct sum in f32 has 18 * 2^-24 * sqrt(n); relative to the results' root mean square, the error's is 3e-6, 2.2e-6,
// 1.1e-6, 1e-6 and 5e-7 (direct: 3.5e-7). The tests hold 128 for three columns of a kernel and 256 for more. That is
// far below what a format of 10 mantissa bits (TF32) does to the inputs alone. A NaN or an infinity in an image reaches
// all pixels of the tiles that see it, at most M - 1 further than directly, in an input gradient of stride 2 at most 8;
// one in w reaches its whole output channel. Numbers within a factor of 10^4 of the largest float may overflow inside.
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

// rows, cols: what the tiles of an image cover, outputs or the input's gradient, of stride 2 those of one phase.
inline bool winograd_pays(const ConvShape& s, int64_t rows, int64_t cols) {
  if (s.stride_h != s.stride_w || s.stride_h > 2 || s.dilation_h != 1 || s.dilation_w != 1 || s.groups != 1)
    return false;
  const bool phases = s.stride_h == 2, row = s.kernel_h == 1;
  if (phases ? s.kernel_w != 4 : s.kernel_w != 3 && s.kernel_w != 5) return false;
  if (s.kernel_h != s.kernel_w && (phases || !row)) return false;
  const int64_t channels = row && s.kernel_w == 3 ? 32 : 16;  // 1x3 saves least
  if (s.in_channels < channels || s.out_channels < channels) return false;
  if (phases && (s.height + s.padding_h > 2 * s.out_height() + 2 || s.width + s.padding_w > 2 * s.out_width() + 2))
    return false;
  // Few tiles do not pay for the transforms of the weights, which have 36 numbers for 16 at stride 2; mostly empty ones
  // multiply more than they save.
  const int64_t m = phases ? 5 : 4, side = phases ? 6 : m + s.kernel_w - 1, mh = row ? 1 : m;
  const int64_t tiles = ((rows + mh - 1) / mh) * ((cols + m - 1) / m), all = s.batch * tiles;
  if (all < 48 || (phases && all * 512 < s.in_channels * s.out_channels)) return false;
  const int64_t products = tiles * (row ? side : side * side), direct = s.pixels() * s.taps();
  if (row) return 5 * direct >= 8 * products;
  return phases ? 3 * direct >= 4 * 4 * products : direct >= 2 * products;
}
inline bool winograd_forward_pays(const ConvShape& s) {
  return winograd_pays(s, s.out_height(), s.out_width()) && (s.stride_h == 1 || s.in_channels % 16 == 0);
}
inline bool winograd_input_pays(const ConvShape& s) {
  return s.stride_h == 2 ? winograd_pays(s, s.out_height() + 1, s.out_width() + 1)
                         : winograd_pays(s, s.height, s.width);
}
// The sums of a chunk are as large as the transformed weights; larger ones leave the caches with every block of tiles,
// and those of four phases are worth it where there are many tiles.
inline bool winograd_weight_pays(const ConvShape& s) {
  const int64_t phases = s.stride_h * s.stride_w, most = s.kernel_h == 1 ? 256 * 256 : 128 * 128;
  return winograd_forward_pays(s) && phases * s.in_channels * s.out_channels <= most &&
         (phases == 1 || s.batch * s.pixels() >= 6 * 1024);
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
constexpr int64_t kChunks = 8;         // of tiles, at most, each with its own sums of the weight gradient

// ---- Blocks of tiles

// What a convolution looks like from inside: forward, or the input gradient as a forward. Tiles cover rows * cols
// outputs, of stride 1 or of one phase. padding: of the image that is read; out_padding: of one that is written in
// phases; both in pixels of their image.
struct Extents {
  int64_t batch;
  int64_t in, height, width;           // the image that is read
  int64_t out, out_height, out_width;  // the image that is written
  int64_t rows, cols;
  int64_t padding_h, padding_w;
  int64_t out_padding_h = 0, out_padding_w = 0;
};
// Of a forward; the weight gradient reads gy where the forward writes y.
inline Extents forward_extents(const ConvShape& s) {
  return {.batch = s.batch,
          .in = s.in_channels,
          .height = s.height,
          .width = s.width,
          .out = s.out_channels,
          .out_height = s.out_height(),
          .out_width = s.out_width(),
          .rows = s.out_height(),
          .cols = s.out_width(),
          .padding_h = s.padding_h,
          .padding_w = s.padding_w};
}
template <class W>
inline Extents input_gradient_extents(const ConvShape& s) {
  const bool phases = s.stride_h == 2;
  return {.batch = s.batch,
          .in = s.out_channels,
          .height = s.out_height(),
          .width = s.out_width(),
          .out = s.in_channels,
          .out_height = s.height,
          .out_width = s.width,
          .rows = phases ? s.out_height() + 1 : s.height,
          .cols = phases ? s.out_width() + 1 : s.width,
          .padding_h = W::RH - 1 - (phases ? 0 : s.padding_h),
          .padding_w = W::R - 1 - (phases ? 0 : s.padding_w),
          .out_padding_h = phases ? s.padding_h : 0,
          .out_padding_w = phases ? s.padding_w : 0};
}

// Some whole images, or some rows of tiles of one image, or a piece of such a row.
struct TileBlocks {
  int64_t mh, m;  // outputs of a tile
  EvenBlocks rows, cols, images;
  TileBlocks(const Extents& e, int64_t tile_rows, int64_t tile_cols, int64_t most)
      : mh(tile_rows),
        m(tile_cols),
        rows((e.rows + mh - 1) / mh, std::max<int64_t>(1, most / ((e.cols + m - 1) / m))),
        cols((e.cols + m - 1) / m, std::max<int64_t>(1, most)),
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
    p = b.rows.begin(row) * b.mh, q = b.cols.begin(col) * b.m;
  }
  [[nodiscard]] int64_t tiles() const { return (n1 - n0) * rows * cols; }
};

// How many tiles of `numbers` floats a task takes: as many as `room` bytes hold, but enough rows for the register tile,
// and where that is possible `tasks` tasks.
template <class W>
inline int64_t tiles_at_once(const Extents& e, int64_t numbers, int64_t room, int64_t tasks) {
  const int64_t all = e.batch * ((e.rows + W::MH - 1) / W::MH) * ((e.cols + W::M - 1) / W::M);
  const int64_t most = std::clamp<int64_t>(room / (numbers * int64_t(sizeof(float))), 14, 256);
  return std::min(most, std::max<int64_t>(14, all / tasks));
}

// Transforms tiles of S * S phases of images [batch, channels, height, width], of which the block's first begins at
// (top, left), to [TH * T, tiles, S * S, pitch].
template <class W, class Transform, int S>
void transform_tiles(const float* images, int64_t channels, int64_t height, int64_t width, const TileBlock& b,
                     int64_t top, int64_t left, int64_t pitch, float* window, float* to, int64_t point) {
  constexpr int kRows = W::kRows ? 1 : Transform::kIn;
  const Rect rect{top, left, S * ((b.rows - 1) * W::MH + kRows), S * ((b.cols - 1) * W::M + Transform::kIn)};
  const int64_t row = rect.cols * pitch;
  for (int64_t n = b.n0; n < b.n1; ++n) {
    rect_to_last(images + n * channels * height * width, channels, height, width, rect, window, pitch);
    for (int64_t r = 0; r < b.rows; ++r)
      for (int64_t c = 0; c < b.cols; ++c)
        for (int64_t phase = 0; phase < S * S; ++phase, to += pitch)
          for (int64_t v = 0; v < pitch; v += kVec) {
            const float* from = window + (S * r * W::MH + phase / S) * row + (S * c * W::M + phase % S) * pitch + v;
            transform_tile<Transform>([&](int i, int j) { return load(from + i * S * row + j * S * pitch); },
                                      [&](int i, int j, Vec x) { store(to + v + (i * W::T + j) * point, x); });
          }
  }
}

// ---- The convolutions

// Where U lies, the transformed weights: [SO * SO phases, panels of out, TH * T points, lanes, panel], with the points
// of a panel `apart`. Lanes: SI * SI phases of in. SI, SO: the phases of a channel that is read, or written.
template <class W, int SO>
struct WeightPanels {
  int64_t lanes, out;
  // Of the panel that begins at output o: its columns, the numbers of a point, and where it begins.
  int64_t width(int64_t o) const { return std::min(kPanel, whole_vectors(out - o)); }
  int64_t point(int64_t o) const { return apart(lanes * width(o)); }
  int64_t begin(int64_t o) const { return o / kPanel * W::kPoints * apart(lanes * kPanel); }
  int64_t phase_numbers() const {
    const int64_t last = (out - 1) / kPanel * kPanel;
    return begin(last) + W::kPoints * point(last);
  }
  int64_t numbers() const { return SO * SO * phase_numbers(); }
};

// U of weights whose in channel c and out channel o are at w[o * w_out + c * w_in], S * RH by S * R taps, in each phase
// flipped or not.
template <class W, int SI, int SO>
void transform_weights(const Cpu& on, const float* w, int64_t in, int64_t out, int64_t w_in, int64_t w_out, bool flip,
                       float* u) {
  constexpr int S = std::max(SI, SO), R = W::R, kTaps = S * W::RH * S * R;
  constexpr int64_t kTask = 65536;  // numbers that a task writes, about
  const WeightPanels<W, SO> panels{SI * SI * in, out};
  on.parallel_for(in, std::max<int64_t>(1, kTask / (S * S * W::kPoints * out)), [&](int64_t from, int64_t to) {
    float taps[size_t(kTaps * kVec)];
    for (int64_t c = from; c < to; ++c)
      for (int64_t o = 0; o < out; o += kVec) {
        to_last(w + c * w_in + o * w_out, w_out, std::min(kVec, out - o), kTaps, taps, kVec, kTaps, 0);
        const int64_t first_o = o / kPanel * kPanel, width = panels.width(first_o), point = panels.point(first_o);
        for (int64_t phase = 0; phase < S * S; ++phase) {
          const float* const first = taps + (phase / S * S * R + phase % S) * kVec;
          float* const at =
              u + panels.begin(o) + c * width + o % kPanel + phase * (SI > 1 ? in * width : panels.phase_numbers());
          transform_tile<Evaluate<W, R, true>>(
              [&](int i, int j) {
                const int row = flip ? W::RH - 1 - i : i, col = flip ? R - 1 - j : j;
                return load(first + (row * S * R + col) * S * kVec);
              },
              [&](int i, int j, Vec x) { store(at + (i * W::T + j) * point, x); });
        }
      }
  });
}

// Where SI > 1, `in` is a number of whole vectors.
template <class W, int SI, int SO>
void winograd(const Cpu& on, const Extents& e, const float* x, const float* u, const float* bias, float* y) {
  constexpr int64_t M = W::M, MH = W::MH, T = W::T, kPoints = W::kPoints;
  const int64_t pitch = whole_vectors(e.in), in_pitch = SI * SI * pitch, lanes = SI * SI * e.in,
                plane = e.out_height * e.out_width;
  const WeightPanels<W, SO> panels{lanes, e.out};
  // Four phases of V are large, and so are four phases of U, which each task reads: it takes more tiles.
  const int64_t room = SI > 1 ? kRoom * 3 / 2 : kRoom, pixels_of_tile = SO > 1 ? SO * MH * SO * M * kPanel : 0;
  const TileBlocks blocks(e, MH, M,
                          tiles_at_once<W>(e, kPoints * (in_pitch + kPanel) + pixels_of_tile, room, 2 * num_threads()));
  const double block_flops = 2.0 * double(kPoints * blocks.tiles()) * double(lanes) * double(SO * SO * e.out);
  const int64_t grain = std::max<int64_t>(1, int64_t(double(kChunkFlops) / block_flops));
  on.parallel_for(blocks.count(), grain, [&](int64_t from, int64_t to) {
    const int64_t v_point = apart(blocks.tiles() * in_pitch), m_point = apart(blocks.tiles() * kPanel);
    const int64_t window_numbers =
        apart(SI * (blocks.rows.size * MH + W::RH - 1) * SI * (blocks.cols.size * M + W::R - 1) * pitch);
    // Pixels of an image, and of every image of the block where they wait for the other phases.
    const int64_t image_numbers = SO * blocks.rows.size * MH * SO * blocks.cols.size * M * kPanel;
    const int64_t pixel_numbers = (SO > 1 ? blocks.images.size : 1) * image_numbers + kVec * kPanel;
    const lib::Scratch memory(size_t(kPoints * (v_point + m_point) + window_numbers + pixel_numbers) * sizeof(float));
    float* const v = memory.as<float>();
    float* const product = v + kPoints * v_point;
    float* const window = product + kPoints * m_point;
    float* const all_pixels = window + window_numbers;
    for (int64_t i = from; i < to; ++i) {
      const TileBlock b(blocks, i);
      transform_tiles<W, DataTransform<W>, SI>(x, e.in, e.height, e.width, b, SI * b.p - e.padding_h,
                                               SI * b.q - e.padding_w, pitch, window, v, v_point);
      // The part of an image that the block writes: of each tile the pixels from (top, left) on.
      const int64_t top = SO * b.p - e.out_padding_h, left = SO * b.q - e.out_padding_w;
      const int64_t y0 = std::max<int64_t>(0, top), y1 = std::min(e.out_height, top + SO * b.rows * MH);
      const int64_t x0 = std::max<int64_t>(0, left), x1 = std::min(e.out_width, left + SO * b.cols * M);
      const int64_t rows = std::max<int64_t>(0, y1 - y0), cols = std::max<int64_t>(0, x1 - x0);
      for (int64_t o = 0; o < e.out; o += kPanel) {
        const int64_t outs = std::min(kPanel, e.out - o), width = panels.width(o), point = panels.point(o);
        float shift[size_t(kPanel)] = {};
        if (bias) copy_run(bias + o, 1, shift, outs);
        for (int64_t phase = 0; phase < SO * SO; ++phase) {
          const float* panel = u + phase * panels.phase_numbers() + panels.begin(o);
          for (int64_t t = 0; t < kPoints; ++t)
            multiply_block<float>(b.tiles(), outs, lanes, {v + t * v_point, in_pitch, 1}, panel + t * point, width,
                                  {product + t * m_point, kPanel, 1.0f, 0.0f, nullptr, nullptr}, width);
          const float* tile = product;
          for (int64_t n = b.n0; n < b.n1; ++n) {
            float* const pixels = all_pixels + (SO > 1 ? n - b.n0 : 0) * image_numbers;
            for (int64_t r = 0; r < b.rows; ++r)
              for (int64_t c = 0; c < b.cols; ++c, tile += kPanel) {
                const int64_t row = top - y0 + SO * r * MH + phase / SO, col = left - x0 + SO * c * M + phase % SO;
                for (int64_t k = 0; k < width; k += kVec) {
                  const Vec add = load(shift + k);
                  transform_tile<Collect<W, W::M, false>>(
                      [&](int p, int q) { return load(tile + (p * T + q) * m_point + k); },
                      [&](int p, int q, Vec sum) {
                        const int64_t at_row = row + SO * p, at_col = col + SO * q;
                        if (at_row >= 0 && at_row < rows && at_col >= 0 && at_col < cols)
                          store(pixels + (at_row * cols + at_col) * kPanel + k, sum + add);
                      });
                }
              }
            if (phase + 1 < SO * SO) continue;
            float* const to_y = y + (n * e.out + o) * plane + y0 * e.out_width + x0;
            if (cols == e.out_width) {
              to_first(pixels, kPanel, outs, rows * cols, to_y, plane);
            } else {
              for (int64_t r = 0; r < rows; ++r)
                to_first(pixels + r * cols * kPanel, kPanel, outs, cols, to_y + r * e.out_width, plane);
            }
          }
        }
      }
    }
  });
}

// Where S > 1, `in` is a number of whole vectors.
template <class W, int S>
void weight_gradient(const Cpu& on, const Extents& e, const float* x, const float* gy, float* gw) {
  constexpr int64_t M = W::M, MH = W::MH, T = W::T, R = W::R, RH = W::RH, kPoints = W::kPoints, kTaps = S * RH * S * R;
  const int64_t pitch = whole_vectors(e.in), in_pitch = S * S * pitch, lanes = S * S * e.in,
                out_pitch = whole_vectors(e.out);
  // Every block of tiles reads and writes all sums: large sums want large blocks.
  const int64_t room = std::max(kRoom * 3 / 2, kPoints * lanes * out_pitch * int64_t(sizeof(float)));
  const TileBlocks blocks(e, MH, M, tiles_at_once<W>(e, kPoints * (in_pitch + out_pitch), room, kChunks));
  const EvenBlocks chunks(blocks.count(), std::max<int64_t>(1, (blocks.count() + kChunks - 1) / kChunks));
  const int64_t sum_point = lanes * out_pitch, chunk_numbers = kPoints * sum_point;
  const lib::Scratch partial(size_t(chunks.count * chunk_numbers) * sizeof(float));
  on.parallel_for(chunks.count, 1, [&](int64_t from, int64_t to) {
    const int64_t v_point = apart(blocks.tiles() * in_pitch), g_point = apart(blocks.tiles() * out_pitch);
    const int64_t window_numbers =
        S * (blocks.rows.size * MH + RH - 1) * S * (blocks.cols.size * M + R - 1) * std::max(pitch, out_pitch);
    const lib::Scratch memory(size_t(kPoints * (v_point + g_point) + window_numbers) * sizeof(float));
    float* const v = memory.as<float>();
    float* const g = v + kPoints * v_point;
    float* const window = g + kPoints * g_point;
    for (int64_t chunk = from; chunk < to; ++chunk)
      for (int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
        const TileBlock b(blocks, i);
        float* const sums = partial.as<float>() + chunk * chunk_numbers;
        transform_tiles<W, DataTransform<W>, S>(x, e.in, e.height, e.width, b, S * b.p - e.padding_h,
                                                S * b.q - e.padding_w, pitch, window, v, v_point);
        transform_tiles<W, Evaluate<W, W::M, false>, 1>(gy, e.out, e.out_height, e.out_width, b, b.p, b.q, out_pitch,
                                                        window, g, g_point);
        const float beta = float(i > chunks.begin(chunk));
        for (int64_t t = 0; t < kPoints; ++t)
          multiply_block<float>(lanes, e.out, b.tiles(), {v + t * v_point, 1, in_pitch}, g + t * g_point, out_pitch,
                                {sums + t * sum_point, out_pitch, 1.0f, beta, nullptr, nullptr}, out_pitch);
      }
  });
  // One in channel: [taps, out] channels last, then to the rows of gw.
  on.parallel_for(e.in, 1, [&](int64_t from, int64_t to) {
    const lib::Scratch memory(size_t((kTaps + kVec) * out_pitch) * sizeof(float));
    float* const taps = memory.as<float>();
    for (int64_t c = from; c < to; ++c) {
      for (int64_t phase = 0; phase < S * S; ++phase)
        for (int64_t o = 0; o < out_pitch; o += kVec) {
          const float* const first = partial.as<float>() + (phase * e.in + c) * out_pitch + o;
          float* const of_phase = taps + (phase / S * S * R + phase % S) * out_pitch + o;
          transform_tile<Collect<W, W::R, true>>(
              [&](int i, int j) {
                const float* at = first + (i * T + j) * sum_point;
                Vec sum = load(at);
                for (int64_t chunk = 1; chunk < chunks.count; ++chunk) sum += load(at + chunk * chunk_numbers);
                return sum;
              },
              [&](int i, int j, Vec sum) { store(of_phase + (i * S * R + j) * S * out_pitch, sum); });
        }
      to_first(taps, out_pitch, e.out, kTaps, gw + c * kTaps, e.in * kTaps);
    }
  });
}

// Calls f(Winograd<M, R, ...>{}, S) for the kernel and the stride of this shape.
template <class F>
void with_winograd(const ConvShape& s, F&& f) {
  constexpr std::integral_constant<int, 1> one{};
  if (s.stride_h == 2) return f(Winograd<5, 2>{}, std::integral_constant<int, 2>{});
  if (s.kernel_h == 1 && s.kernel_w == 3) return f(Winograd<4, 3, true>{}, one);
  if (s.kernel_h == 1) return f(Winograd<4, 5, true>{}, one);
  if (s.kernel_h == 3) return f(Winograd<4, 3>{}, one);
  f(Winograd<4, 5>{}, one);
}

}  // namespace

template <class T>
void winograd_forward(const Cpu& on, const ConvShape& s, const T* x, const T* w, const T* bias, T* y) {
  with_winograd(s, [&](auto kind, auto stride) {
    using W = decltype(kind);
    constexpr int S = stride;
    const int64_t taps = s.taps();
    const WeightPanels<W, 1> panels{S * S * s.in_channels, s.out_channels};
    const lib::Scratch u(size_t(panels.numbers()) * sizeof(T));
    transform_weights<W, S, 1>(on, w, s.in_channels, s.out_channels, taps, s.in_channels * taps, false, u.as<T>());
    winograd<W, S, 1>(on, forward_extents(s), x, u.as<T>(), bias, y);
  });
}

template <class T>
void winograd_input_gradient(const Cpu& on, const ConvShape& s, const T* gy, const T* w, T* gx) {
  with_winograd(s, [&](auto kind, auto stride) {
    using W = decltype(kind);
    constexpr int S = stride;
    const int64_t taps = s.taps();
    const WeightPanels<W, S> panels{s.out_channels, s.in_channels};
    const lib::Scratch u(size_t(panels.numbers()) * sizeof(T));
    transform_weights<W, 1, S>(on, w, s.out_channels, s.in_channels, s.in_channels * taps, taps, true, u.as<T>());
    winograd<W, 1, S>(on, input_gradient_extents<W>(s), gy, u.as<T>(), nullptr, gx);
  });
}

template <class T>
void winograd_weight_gradient(const Cpu& on, const ConvShape& s, const T* x, const T* gy, T* gw) {
  with_winograd(
      s, [&](auto kind, auto stride) { weight_gradient<decltype(kind), stride>(on, forward_extents(s), x, gy, gw); });
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
