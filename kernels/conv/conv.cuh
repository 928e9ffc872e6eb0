// Convolution (cross-correlation, as in every deep-learning library) and its gradients, on the CPU.
//
//   y[n, o, p, q] = bias[o] + sum over c, i, j of w[o, c, i, j] *
//                                     x[n, g(o) * C/G + c, p * sh - ph + i * dh, q * sw - pw + j * dw]
//
//   cpu::conv_forward        (on, shape, const T* x, const T* w, const T* bias or null, T* y)
//   cpu::conv_input_gradient (on, shape, const T* gy, const T* w, T* gx)   also the forward of a transposed convolution
//   cpu::conv_weight_gradient(on, shape, const T* x, const T* gy, T* gw)
//
// x, gx: [N, C, H, W]; w, gw: [O, C / G, kh, kw]; bias: [O]; y, gy: [N, O, out_height(), out_width()]; all contiguous,
// outputs overwritten, none overlapping an input. One dimension: H = kh = 1, padding 0. C and O are multiples of G,
// stride and dilation >= 1, padding >= 0; any extent may be 0. x outside the image is 0: 0 * NaN does not arise from it
// where w is finite. T: float, double, f16, bf16; 16-bit types are summed in float and rounded once.
//
// Note [Convolution as matrix product]
// A task takes one image, one group and a block of output pixels. It copies the part of the image that the block sees
// into a window: padded, in float, columns sorted by their remainder modulo the stride, so that what a tap (c, i, j)
// reads for one output row is contiguous for every stride. From the window it writes the matrix of taps by pixels,
// which stays in L2, and multiplies: w [O, taps] * [taps, pixels] forward; w^T [taps, O] * gy [O, pixels] added back
// into a window for the input gradient; [taps, pixels] * gy^T [pixels, O] for the weight gradient.
// 16-bit images and weights are copied to f32 as a whole: a copy costs one pass over memory, where windows would
// convert a number again for each block that sees it. 3x3 and 5x5 kernels of stride 1 on many channels run by
// winograd.cuh in f32, which states its error.
//
// Bits depend on shape, T and level, not on threads: y is summed over c, i, j in blocks of channels; gx over pixel
// blocks, then taps; gw over images in a number of chunks that the shape gives, and the chunks in order.
// Throws OutOfMemoryError when there is no memory for windows.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CONV_CUH
#define LEVIN_KERNELS_CONV_CUH

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/conv/conv_shape.h"
#include "kernels/conv/winograd.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

namespace levin::kernels {

// Blocks of output pixels: some whole rows, or a piece of one row; contiguous in y either way.
struct PixelBlocks {
  EvenBlocks rows, cols;
  PixelBlocks(const ConvShape& s, int64_t most)
      : rows(s.out_height(), std::max<int64_t>(1, most / std::max<int64_t>(1, s.out_width()))),
        cols(s.out_width(), std::max<int64_t>(most, 64)) {}
  [[nodiscard]] int64_t count() const { return rows.count * cols.count; }
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/conv/conv.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(conv_forward)
LEVIN_PICK_EVERY(conv_input_gradient)
LEVIN_PICK_EVERY(conv_weight_gradient)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// What output rows [r0, r1) and columns [q0, q1) see of a padded image, by channels:
// [channels, rows, step_w phases, phase_width]. Along an axis with one output no stride is ever taken: its step is 1,
// so that a window is not larger than about twice the padded image for any stride.
struct Window {
  int64_t r0, r1, q0, q1;
  int64_t step_h, step_w;     // the strides
  int64_t top, left;          // image coordinates of its corner
  int64_t rows, phase_width;  // phase_width: columns of one remainder modulo step_w
  int64_t channel;            // numbers of a channel

  Window(const ConvShape& s, int64_t row0, int64_t row1, int64_t col0, int64_t col1)
      : r0(row0),
        r1(row1),
        q0(col0),
        q1(col1),
        step_h(s.out_height() == 1 ? 1 : s.stride_h),
        step_w(s.out_width() == 1 ? 1 : s.stride_w),
        top(r0 * step_h - s.padding_h),
        left(q0 * step_w - s.padding_w) {
    rows = (r1 - r0 - 1) * step_h + (s.kernel_h - 1) * s.dilation_h + 1;
    const int64_t cols = (q1 - q0 - 1) * step_w + (s.kernel_w - 1) * s.dilation_w + 1;
    phase_width = (cols + step_w - 1) / step_w;
    channel = rows * step_w * phase_width;
  }
  Window(const ConvShape& s, const PixelBlocks& blocks, int64_t i)
      : Window(s, blocks.rows.begin(i / blocks.cols.count), blocks.rows.end(i / blocks.cols.count),
               blocks.cols.begin(i % blocks.cols.count), blocks.cols.end(i % blocks.cols.count)) {}
  int64_t pixels() const { return (r1 - r0) * (q1 - q0); }
  int64_t first_pixel(const ConvShape& s) const { return r0 * s.out_width() + q0; }
  // Where tap (i, j) of output row r begins, within a channel.
  int64_t at(const ConvShape& s, int64_t r, int64_t i, int64_t j) const {
    const int64_t col = j * s.dilation_w;
    return ((r * step_h + i * s.dilation_h) * step_w + col % step_w) * phase_width + col / step_w;
  }
};

// Rows of a matrix in L2: room for one vector more than `n`, and an odd number of cache lines apart.
template <class F>
inline int64_t pitch_for(int64_t n) {
  const int64_t line = 64 / int64_t(sizeof(F));
  return ((n + kLanes<F> + line - 1) / line | 1) * line;
}

// to[i] = from[i] as To, by several threads.
template <class From, class To>
void convert_all(const Cpu& on, const From* from, To* to, int64_t n) {
  on.parallel_for(n, 32768, [=](int64_t begin, int64_t end) { copy_run(from + begin, 1, to + begin, end - begin); });
}
// Numbers of 16 bits as f32, for the length of a call.
template <class T>
class WideCopy {
 public:
  WideCopy(const Cpu& on, const T* x, int64_t n) : memory_(x != nullptr ? size_t(n) * sizeof(float) : 0) {
    if (x == nullptr) return;
    data_ = memory_.as<float>();
    convert_all(on, x, data_, n);
  }
  const float* data() const { return data_; }  // null where x is

 private:
  lib::Scratch memory_;
  float* data_ = nullptr;
};
// make(float* result) writes n numbers, and y gets them rounded.
template <class T, class F>
void in_f32(const Cpu& on, T* y, int64_t n, const F& make) {
  const lib::Scratch memory(size_t(n) * sizeof(float));
  make(memory.as<float>());
  convert_all(on, memory.as<float>(), y, n);
}

// How many channels, and then pixels, a task holds: about 512 rows of taps, and 384 KiB.
template <class F>
inline EvenBlocks channel_blocks(const ConvShape& s) {
  return EvenBlocks(s.group_in(), std::max<int64_t>(1, 512 / s.taps()));
}
template <class F>
inline PixelBlocks pixel_blocks(const ConvShape& s, const EvenBlocks& channels) {
  const int64_t numbers = 384 * 1024 / int64_t(sizeof(F));
  return PixelBlocks(s, std::clamp<int64_t>(numbers / std::max<int64_t>(1, channels.size * s.taps()), 128, 1024));
}

// Copies `channels` channels of an image [channels, H, W] into a window.
template <class T, class F>
void fill_window(const ConvShape& s, const Window& win, const T* image, int64_t channels, F* to) {
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t row = 0; row < win.rows; ++row) {
      const int64_t y = win.top + row;
      const bool inside = y >= 0 && y < s.height;
      for (int64_t phase = 0; phase < win.step_w; ++phase, to += win.phase_width) {
        // Columns left + phase + k * stride_w of the image, for those k that fall inside.
        const int64_t x = win.left + phase;
        int64_t begin = x >= 0 ? 0 : (-x + win.step_w - 1) / win.step_w;
        int64_t end = x >= s.width ? 0 : (s.width - x + win.step_w - 1) / win.step_w;
        begin = std::min(begin, win.phase_width);
        end = inside ? std::clamp(end, begin, win.phase_width) : begin;
        for (int64_t k = 0; k < begin; ++k) to[k] = F(0);
        if (end > begin)
          copy_run(image + (c * s.height + y) * s.width + x + begin * win.step_w, win.step_w, to + begin, end - begin);
        for (int64_t k = end; k < win.phase_width; ++k) to[k] = F(0);
      }
    }
  for (int64_t k = 0; k < kLanes<F>; ++k) to[k] = F(0);  // write_taps reads whole vectors
}

// [channels * taps, pixels] from a window, rows `pitch` apart. Output rows are copied in whole vectors: the next row
// overwrites the excess, and the last row has room for it.
template <class F>
void write_taps(const ConvShape& s, const Window& win, const F* window, int64_t channels, F* to, int64_t pitch) {
  constexpr int L = kLanes<F>;
  const int64_t cols = win.q1 - win.q0, rows = win.r1 - win.r0;
  const int64_t row_step = win.step_h * win.step_w * win.phase_width;
  for (int64_t c = 0; c < channels; ++c, window += win.channel)
    for (int64_t i = 0; i < s.kernel_h; ++i)
      for (int64_t j = 0; j < s.kernel_w; ++j, to += pitch) {
        const F* src = window + win.at(s, 0, i, j);
        F* dst = to;
        for (int64_t r = 0; r < rows; ++r, src += row_step, dst += cols) {
          int64_t q = 0;
          do {
            Vector<F> v;
            __builtin_memcpy(&v, src + q, sizeof v);
            __builtin_memcpy(dst + q, &v, sizeof v);
            q += L;
          } while (q < cols);
        }
      }
}

// The transpose of write_taps: adds every tap to the place it was read from. `whole` is the window of the whole image.
template <class F>
void add_taps(const ConvShape& s, const Window& whole, const Window& win, const F* taps, int64_t pitch,
              int64_t channels, F* window) {
  using Bits = Vector<std::conditional_t<sizeof(F) == 8, int64_t, int32_t>>;
  constexpr int L = kLanes<F>;
  const int64_t cols = win.q1 - win.q0, rows = win.r1 - win.r0;
  const int64_t full = cols / L * L;
  Bits rest{};  // the lanes of the last, partial vector
  for (int l = 0; l < L; ++l) rest[l] = l < cols - full ? -1 : 0;
  const int64_t row_step = whole.step_h * whole.step_w * whole.phase_width;
  for (int64_t c = 0; c < channels; ++c, window += whole.channel)
    for (int64_t i = 0; i < s.kernel_h; ++i)
      for (int64_t j = 0; j < s.kernel_w; ++j, taps += pitch) {
        F* dst = window + whole.at(s, win.r0, i, j) + win.q0;
        const F* src = taps;
        for (int64_t r = 0; r < rows; ++r, dst += row_step, src += cols) {
          Vector<F> a, b;
          for (int64_t q = 0; q < full; q += L) {
            __builtin_memcpy(&a, dst + q, sizeof a);
            __builtin_memcpy(&b, src + q, sizeof b);
            a += b;
            __builtin_memcpy(dst + q, &a, sizeof a);
          }
          if (full < cols) {
            Bits bits;
            __builtin_memcpy(&a, dst + full, sizeof a);
            __builtin_memcpy(&bits, src + full, sizeof bits);
            bits &= rest;
            __builtin_memcpy(&b, &bits, sizeof b);
            a += b;
            __builtin_memcpy(dst + full, &a, sizeof a);
          }
        }
      }
}

// Tasks of `flops` in all: chunks of about 10 us.
inline int64_t conv_grain(double flops, int64_t tasks) {
  return std::max<int64_t>(1, int64_t(double(kChunkFlops) * double(tasks) / std::max(flops, 1.0)));
}

// The pixels of x that a strided 1x1 convolution sees: [batch, in, out height, out width].
template <class T>
void seen_pixels(const Cpu& on, const ConvShape& s, const T* x, T* seen) {
  const int64_t rows = s.out_height(), cols = s.out_width(), image = s.height * s.width;
  on.parallel_for(s.batch * s.in_channels, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, rows * cols)),
                  [=](int64_t begin, int64_t end) {
                    for (int64_t plane = begin; plane < end; ++plane) {
                      T* to = seen + plane * rows * cols;
                      for (int64_t r = 0; r < rows; ++r, to += cols) {
                        const T* const from = x + plane * image + r * s.stride_h * s.width;
                        if (s.stride_w == 2) {  // a constant stride becomes shuffles
                          for (int64_t c = 0; c < cols; ++c) to[c] = from[2 * c];
                        } else {
                          for (int64_t c = 0; c < cols; ++c) to[c] = from[c * s.stride_w];
                        }
                      }
                    }
                  });
}
// The reverse: gx is 0 but for the pixels that are seen.
template <class T>
void spread_pixels(const Cpu& on, const ConvShape& s, const T* seen, T* gx) {
  const int64_t rows = s.out_height(), cols = s.out_width(), image = s.height * s.width;
  on.parallel_for(s.batch * s.in_channels, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, image)),
                  [=](int64_t begin, int64_t end) {
                    for (int64_t plane = begin; plane < end; ++plane) {
                      std::fill_n(gx + plane * image, image, T(0.0f));
                      const T* from = seen + plane * rows * cols;
                      for (int64_t r = 0; r < rows; ++r, from += cols) {
                        T* const to = gx + plane * image + r * s.stride_h * s.width;
                        for (int64_t c = 0; c < cols; ++c) to[c * s.stride_w] = from[c];
                      }
                    }
                  });
}

template <class T>
void direct_forward(const Cpu& on, const ConvShape& s, const T* x, const T* w, const T* bias, T* y) {
  using F = Accum<T>;
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out(), k = gin * s.taps();
  if (s.batch * s.out_channels * pixels == 0) return;
  if (s.strided_pointwise()) {
    const lib::Scratch seen(size_t(s.batch * s.in_channels * pixels) * sizeof(T));
    seen_pixels(on, s, x, seen.as<T>());
    return direct_forward(on, s.of_seen_pixels(), seen.as<T>(), w, bias, y);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (winograd_forward_pays(s)) return winograd_forward(on, s, x, w, bias, y);
  }
  if (s.pointwise()) {
    for (int64_t g = 0; g < s.groups; ++g) {
      const BatchDim images{s.batch, 0, s.in_channels * pixels, s.out_channels * pixels};
      gemm_batched(on, std::span<const BatchDim>(&images, 1), GemmSize{gout, pixels, gin},
                   Matrix<T>{w + g * gout * gin, gin, 1}, Matrix<T>{x + g * gin * pixels, pixels, 1},
                   y + g * gout * pixels, pixels, GemmOptions<T>{.row_bias = bias ? bias + g * gout : nullptr});
    }
    return;
  }
  // The weights serve where they lie, unless their rows fall into the same sets of L1.
  const bool pack_w = k * int64_t(sizeof(T)) % 1024 == 0;
  const int64_t w_pitch = pack_w ? pitch_for<F>(k) : k;
  lib::Scratch packed(pack_w ? size_t(s.out_channels * w_pitch) * sizeof(F) : 0);
  const F* const weights = pack_w ? packed.as<F>() : w;
  if (pack_w) {
    for (int64_t o = 0; o < s.out_channels; ++o) copy_run(w + o * k, 1, packed.as<F>() + o * w_pitch, k);
  }

  const EvenBlocks channels = channel_blocks<F>(s);
  const PixelBlocks blocks = pixel_blocks<F>(s, channels);
  const int64_t images = s.batch * s.groups * blocks.count();
  // Few images: several tasks share one, each with some of the output channels.
  const EvenBlocks outs(gout, images >= 16 ? gout : std::max<int64_t>(2 * kTileRows, gout * images / 16));
  const int64_t tasks = images * outs.count;
  on.parallel_for(tasks, conv_grain(s.flops(), tasks), [&](int64_t from, int64_t to) {
    const Window largest(s, 0, blocks.rows.size, 0, blocks.cols.size);
    const int64_t pitch = pitch_for<F>(largest.pixels());
    const int64_t window_numbers = channels.size * largest.channel + kLanes<F>;
    const int64_t taps_numbers = channels.size * s.taps() * pitch;
    lib::Scratch memory(size_t(window_numbers + taps_numbers) * sizeof(F));
    F* const taps = memory.as<F>();  // first: its rows are whole cache lines
    F* const window = taps + taps_numbers;
    for (int64_t task = from; task < to; ++task) {
      const int64_t ng = task / (outs.count * blocks.count()), n = ng / s.groups, g = ng % s.groups;
      const int64_t out = task % outs.count, o0 = g * gout + outs.begin(out), m = outs.end(out) - outs.begin(out);
      const Window win(s, blocks, task / outs.count % blocks.count());
      T* const to_y = y + (n * s.out_channels + o0) * pixels + win.first_pixel(s);
      for (int64_t block = 0; block < channels.count; ++block) {
        const int64_t c0 = channels.begin(block), count = channels.end(block) - c0;
        fill_window(s, win, x + (n * s.in_channels + g * gin + c0) * s.height * s.width, count, window);
        write_taps(s, win, window, count, taps, pitch);
        const TileRows<F> a{weights + o0 * w_pitch + c0 * s.taps(), w_pitch, 1};
        multiply_block<F>(m, win.pixels(), count * s.taps(), a, taps, pitch,
                          {to_y, pixels, F(1), F(block > 0), nullptr, bias && block == 0 ? bias + o0 : nullptr}, 0);
      }
    }
  });
}

// An image [channels, H, W] out of the window of the whole image: column x lies at phase (x + padding) % stride. What
// no tap reads has gradient 0.
template <class T, class F>
void read_window(const ConvShape& s, const Window& whole, const F* window, int64_t channels, T* image) {
  const int64_t width = whole.phase_width, step = whole.step_w;
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t row = 0; row < s.height; ++row, image += s.width) {
      const int64_t window_row = row + s.padding_h;
      if (window_row >= whole.rows) {
        std::fill_n(image, s.width, T(0.0f));
        continue;
      }
      const F* src = window + c * whole.channel + window_row * step * width;
      const int64_t seen = std::min(s.width, step * width - s.padding_w);
      if (step == 1) {
        for (int64_t col = 0; col < seen; ++col) image[col] = T(src[col + s.padding_w]);
      } else {
        for (int64_t col = 0; col < seen; ++col)
          image[col] = T(src[(col + s.padding_w) % step * width + (col + s.padding_w) / step]);
      }
      for (int64_t col = std::max<int64_t>(0, seen); col < s.width; ++col) image[col] = T(0.0f);
    }
}

// The transposed weights of every block of channels, tile by tile: [out channels, rows of the tile].
template <class T, class F>
void pack_transposed_weights(const ConvShape& s, const EvenBlocks& channels, const T* w, F* packed) {
  const int64_t gin = s.group_in(), gout = s.group_out();
  for (int64_t gb = 0; gb < s.groups * channels.count; ++gb) {
    const int64_t g = gb / channels.count, block = gb % channels.count;
    const RowTiles tiles((channels.end(block) - channels.begin(block)) * s.taps());
    const T* from = w + g * gout * gin * s.taps() + channels.begin(block) * s.taps();
    F* to = packed + gb * channels.size * s.taps() * gout;
    for (int64_t i = 0; i < tiles.count; ++i)
      for (int64_t o = 0; o < gout; ++o)
        for (int64_t t = tiles.begin(i); t < tiles.begin(i + 1); ++t) *to++ = F(from[o * gin * s.taps() + t]);
  }
}

template <class T>
void direct_input_gradient(const Cpu& on, const ConvShape& s, const T* gy, const T* w, T* gx) {
  using F = Accum<T>;
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out(), image = s.height * s.width;
  if (s.batch * s.in_channels * image == 0) return;
  if (pixels * gout == 0) {
    std::fill_n(gx, s.batch * s.in_channels * image, T(0.0f));
    return;
  }
  if (s.strided_pointwise()) {
    const lib::Scratch seen(size_t(s.batch * s.in_channels * pixels) * sizeof(T));
    direct_input_gradient(on, s.of_seen_pixels(), gy, w, seen.as<T>());
    return spread_pixels(on, s, seen.as<T>(), gx);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (winograd_input_pays(s)) return winograd_input_gradient(on, s, gy, w, gx);
  }
  if (s.pointwise()) {
    for (int64_t g = 0; g < s.groups; ++g) {
      const BatchDim images{s.batch, 0, s.out_channels * pixels, s.in_channels * pixels};
      gemm_batched(on, std::span<const BatchDim>(&images, 1), GemmSize{gin, pixels, gout},
                   Matrix<T>{w + g * gout * gin, 1, gin}, Matrix<T>{gy + g * gout * pixels, pixels, 1},
                   gx + g * gin * pixels, pixels, GemmOptions<T>{});
    }
    return;
  }
  const EvenBlocks channels = channel_blocks<F>(s);
  const PixelBlocks blocks = pixel_blocks<F>(s, channels);
  const int64_t group_blocks = s.groups * channels.count;
  const int64_t block_taps = channels.size * s.taps();
  const lib::Scratch packed(size_t(group_blocks * block_taps * gout) * sizeof(F));
  pack_transposed_weights(s, channels, w, packed.as<F>());
  const int64_t tasks = s.batch * group_blocks;
  on.parallel_for(tasks, conv_grain(s.flops(), tasks), [&](int64_t from, int64_t to) {
    const Window whole(s, 0, s.out_height(), 0, s.out_width());
    const Window largest(s, 0, blocks.rows.size, 0, blocks.cols.size);
    const int64_t pitch = pitch_for<F>(largest.pixels());
    const int64_t window_numbers = channels.size * whole.channel + kLanes<F>;
    lib::Scratch memory(size_t((block_taps + gout) * pitch + window_numbers) * sizeof(F));
    F* const taps = memory.as<F>();
    F* const grads = taps + block_taps * pitch;  // gy of the block [gout, pixels], in F
    F* const window = grads + gout * pitch;
    for (int64_t task = from; task < to; ++task) {
      const int64_t n = task / group_blocks, gb = task % group_blocks, g = gb / channels.count,
                    block = gb % channels.count;
      const int64_t c0 = channels.begin(block), count = channels.end(block) - c0;
      std::fill_n(window, window_numbers, F(0));
      for (int64_t i = 0; i < blocks.count(); ++i) {
        const Window win(s, blocks, i);
        const T* from_gy = gy + (n * s.out_channels + g * gout) * pixels + win.first_pixel(s);
        for (int64_t o = 0; o < gout; ++o) {
          copy_run(from_gy + o * pixels, 1, grads + o * pitch, win.pixels());
          for (int64_t l = 0; l < kLanes<F>; ++l) grads[o * pitch + win.pixels() + l] = F(0);
        }
        multiply_block<F>(count * s.taps(), win.pixels(), gout, {packed.as<F>() + gb * block_taps * gout, 0, 0, true},
                          grads, pitch, {taps, pitch, F(1), F(0), nullptr, nullptr}, pitch);
        add_taps(s, whole, win, taps, pitch, count, window);
      }
      read_window(s, whole, window, count, gx + (n * s.in_channels + g * gin + c0) * image);
    }
  });
}

template <class T>
void direct_weight_gradient(const Cpu& on, const ConvShape& s, const T* x, const T* gy, T* gw) {
  using F = Accum<T>;
  constexpr int L = kLanes<F>;
  constexpr int64_t N = kTileCols<F>;
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out(), k = gin * s.taps();
  if (s.out_channels * k == 0) return;
  if (s.batch * pixels == 0) {
    std::fill_n(gw, s.out_channels * k, T(0.0f));
    return;
  }
  if (s.strided_pointwise()) {
    const lib::Scratch seen(size_t(s.batch * s.in_channels * pixels) * sizeof(T));
    seen_pixels(on, s, x, seen.as<T>());
    return direct_weight_gradient(on, s.of_seen_pixels(), seen.as<T>(), gy, gw);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (winograd_weight_pays(s)) return winograd_weight_gradient(on, s, x, gy, gw);
  }
  const EvenBlocks channels = channel_blocks<F>(s);
  const PixelBlocks blocks = pixel_blocks<F>(s, channels);
  const int64_t group_blocks = s.groups * channels.count;
  const EvenBlocks chunks(s.batch, std::max<int64_t>(1, (s.batch * group_blocks + 31) / 32));
  const int64_t out_pitch = (gout + L - 1) / L * L;
  // Sums of each chunk of images: [chunks, groups, taps of all channels, gout].
  const int64_t chunk_numbers = s.groups * k * out_pitch;
  lib::Scratch partial(size_t(chunks.count * chunk_numbers) * sizeof(F));
  const int64_t tasks = group_blocks * chunks.count;
  on.parallel_for(tasks, conv_grain(s.flops(), tasks), [&](int64_t from, int64_t to) {
    const Window largest(s, 0, blocks.rows.size, 0, blocks.cols.size);
    const int64_t pitch = pitch_for<F>(largest.pixels());
    const int64_t taps_numbers = channels.size * s.taps() * pitch;
    const int64_t grad_numbers = largest.pixels() * out_pitch;
    lib::Scratch memory(size_t(taps_numbers + grad_numbers + channels.size * largest.channel + L) * sizeof(F));
    F* const taps = memory.as<F>();
    F* const grads = taps + taps_numbers;  // gy of the block, transposed: [pixels, gout]
    F* const window = grads + grad_numbers;
    for (int64_t task = from; task < to; ++task) {
      const int64_t chunk = task / group_blocks, gb = task % group_blocks, g = gb / channels.count,
                    block = gb % channels.count;
      const int64_t c0 = channels.begin(block), count = channels.end(block) - c0;
      F* const sums = partial.as<F>() + chunk * chunk_numbers + (g * k + c0 * s.taps()) * out_pitch;
      for (int64_t n = chunks.begin(chunk); n < chunks.end(chunk); ++n)
        for (int64_t i = 0; i < blocks.count(); ++i) {
          const Window win(s, blocks, i);
          fill_window(s, win, x + (n * s.in_channels + g * gin + c0) * s.height * s.width, count, window);
          write_taps(s, win, window, count, taps, pitch);
          const T* from_gy = gy + (n * s.out_channels + g * gout) * pixels + win.first_pixel(s);
          for (int64_t j0 = 0; j0 < gout; j0 += N) {
            const int64_t cols = std::min(N, gout - j0);
            pack_panel<T, F>({from_gy + j0 * pixels, 1, pixels}, win.pixels(), cols, grads + j0, cols <= L ? L : N,
                             out_pitch);
          }
          const bool first = n == chunks.begin(chunk) && i == 0;
          multiply_block<F>(count * s.taps(), gout, win.pixels(), {taps, pitch, 1}, grads, out_pitch,
                            {sums, out_pitch, F(1), F(!first), nullptr, nullptr}, out_pitch);
        }
    }
  });
  const int64_t row_grain = std::max<int64_t>(1, 32768 / (chunks.count * gout));
  on.parallel_for(s.groups * k, row_grain, [&](int64_t from, int64_t to) {
    for (int64_t gt = from; gt < to; ++gt) {
      F* const sums = partial.as<F>() + gt * out_pitch;  // the first chunk's, in place
      for (int64_t chunk = 1; chunk < chunks.count; ++chunk)
        for (int64_t o = 0; o < gout; ++o) sums[o] += sums[chunk * chunk_numbers + o];
      for (int64_t o = 0; o < gout; ++o) gw[(gt / k * gout + o) * k + gt % k] = T(sums[o]);
    }
  });
}

// ---- For every type

inline int64_t input_numbers(const ConvShape& s) { return s.batch * s.in_channels * s.height * s.width; }
inline int64_t output_numbers(const ConvShape& s) { return s.batch * s.out_channels * s.pixels(); }
inline int64_t weight_numbers(const ConvShape& s) { return s.out_channels * s.group_in() * s.taps(); }

template <class T>
void conv_forward(const Cpu& on, const ConvShape& s, const T* x, const T* w, const T* bias, T* y) {
  if constexpr (sizeof(T) == 2) {
    const WideCopy<T> wide_x(on, x, input_numbers(s)), wide_w(on, w, weight_numbers(s)),
        wide_bias(on, bias, s.out_channels);
    in_f32(on, y, output_numbers(s),
           [&](float* result) { direct_forward(on, s, wide_x.data(), wide_w.data(), wide_bias.data(), result); });
  } else {
    direct_forward(on, s, x, w, bias, y);
  }
}

template <class T>
void conv_input_gradient(const Cpu& on, const ConvShape& s, const T* gy, const T* w, T* gx) {
  if constexpr (sizeof(T) == 2) {
    const WideCopy<T> wide_gy(on, gy, output_numbers(s)), wide_w(on, w, weight_numbers(s));
    in_f32(on, gx, input_numbers(s),
           [&](float* result) { direct_input_gradient(on, s, wide_gy.data(), wide_w.data(), result); });
  } else {
    direct_input_gradient(on, s, gy, w, gx);
  }
}

template <class T>
void conv_weight_gradient(const Cpu& on, const ConvShape& s, const T* x, const T* gy, T* gw) {
  if constexpr (sizeof(T) == 2) {
    const WideCopy<T> wide_x(on, x, input_numbers(s)), wide_gy(on, gy, output_numbers(s));
    in_f32(on, gw, weight_numbers(s),
           [&](float* result) { direct_weight_gradient(on, s, wide_x.data(), wide_gy.data(), result); });
  } else {
    direct_weight_gradient(on, s, x, gy, gw);
  }
}

// Compiled once, in conv.cpp.
#ifdef LEVIN_COMPILE_CONV
#define LEVIN_CONV_IS template
#else
#define LEVIN_CONV_IS extern template
#endif
#define LEVIN_CONV(T)                                                                              \
  LEVIN_CONV_IS void conv_forward(const Cpu&, const ConvShape&, const T*, const T*, const T*, T*); \
  LEVIN_CONV_IS void conv_input_gradient(const Cpu&, const ConvShape&, const T*, const T*, T*);    \
  LEVIN_CONV_IS void conv_weight_gradient(const Cpu&, const ConvShape&, const T*, const T*, T*);
LEVIN_CONV(float)
LEVIN_CONV(double)
LEVIN_CONV(f16)
LEVIN_CONV(bf16)
#undef LEVIN_CONV
#undef LEVIN_CONV_IS

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
