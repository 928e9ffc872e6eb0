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
// A task takes one image, one group and a block of output pixels. A task of the input gradient may take several images
// of few pixels, whose columns then share vectors. It copies the part of the image that the block sees into a window:
// padded, in float, columns sorted by their remainder modulo the stride, so that what a tap (c, i, j) reads for one
// output row is contiguous for every stride. From the window it writes the matrix of taps by pixels, which stays in L2,
// and multiplies: w [O, taps] * [taps, pixels] forward; w^T [taps, O] * gy [O, pixels] added back into a window for the
// input gradient; [taps, pixels] * gy^T [pixels, O] for the weight gradient.
// 3x3, 5x5, 1x3 and 1x5 kernels of stride 1, and 4x4 ones of stride 2, on many channels run by winograd.cuh in f32,
// which states its error. 16-bit images and weights are copied to f32 as a whole: a copy costs one pass over
// memory, where windows would convert a number again for each block that sees it. On a CPU that multiplies pairs of
// bf16 (Note [Pairs of bf16]), two neighbours along the summed dimension share a lane instead: two channels of x, of
// gy, or two pixels. All bf16 convolutions go that way with tiles of AMX, which outdo what Winograd saves, and with
// pairs those for which goes_by_pairs says so.
//
// Groups of one channel go by depthwise.cuh.
//
// Bits depend on shape, T, level and, for bf16, on how the CPU multiplies (gemm.cuh), not on threads: y is summed over
// c, i, j in blocks of channels; gx over pixel blocks, then taps; gw over images in a number of chunks that the shape
// gives, and the chunks in order.
// Throws OutOfMemoryError when there is no memory for windows.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CONV_CUH
#define LEVIN_KERNELS_CONV_CUH

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/conv/conv_lanes.cuh"
#include "kernels/conv/conv_shape.h"
#include "kernels/conv/conv_windows.cuh"
#include "kernels/conv/depthwise.cuh"
#include "kernels/conv/winograd.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

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

// to[i] = from[i] as To, by several threads.
template <class From, class To>
void convert_all(const Cpu& on, const From* from, To* to, int64_t n) {
  on.parallel_for(n, 32768, [=](int64_t begin, int64_t end) { copy_run(from + begin, 1, to + begin, end - begin); });
}
// Numbers in the type of their sums, for the length of a call: a copy of those of 16 bits.
template <class T>
class WideCopy {
 public:
  using F = Accum<T>;
  WideCopy(const Cpu& on, const T* x, int64_t n)
      : memory_(std::is_same_v<T, F> || x == nullptr ? 0 : size_t(n) * sizeof(F)) {
    if constexpr (std::is_same_v<T, F>) {
      data_ = x;
    } else if (x != nullptr) {
      data_ = memory_.template as<F>();
      convert_all(on, x, memory_.template as<F>(), n);
    }
  }
  const F* data() const { return data_; }  // null where x is

 private:
  lib::Scratch memory_;
  const F* data_ = nullptr;
};
// make(float* result) writes n numbers, and y gets them rounded.
template <class T, class F>
void in_f32(const Cpu& on, T* y, int64_t n, const F& make) {
  const lib::Scratch memory(size_t(n) * sizeof(float));
  make(memory.as<float>());
  convert_all(on, memory.as<float>(), y, n);
}

// How many lanes of channels, and then pixels, a task holds: about `rows` rows of taps, and 384 KiB. 256 rows leave
// room for more pixels, so that fewer vectors are partly empty; 512 save copies of what all blocks of channels share.
inline EvenBlocks channel_blocks(const ConvShape& s, int64_t lanes, int64_t rows) {
  return EvenBlocks(lanes, std::max<int64_t>(1, rows / s.taps()));
}
template <class F>
inline PixelBlocks pixel_blocks(const ConvShape& s, const EvenBlocks& channels) {
  const int64_t numbers = 384 * 1024 / int64_t(sizeof(F));
  return PixelBlocks(s, std::clamp<int64_t>(numbers / std::max<int64_t>(1, channels.size * s.taps()), 128, 1024));
}

// Tasks of `flops` in all: chunks of about 10 us.
inline int64_t conv_grain(double flops, int64_t tasks) {
  return std::max<int64_t>(1, int64_t(double(kChunkFlops) * double(tasks) / std::max(flops, 1.0)));
}

template <class T>
void direct_forward(const Cpu& on, const ConvShape& s, const T* x, const T* w, const T* bias, T* y) {
  using F = Accum<T>;
  constexpr bool kRounds = !std::is_same_v<T, F>;  // sums of a task wait until they are whole
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out(), lanes = lanes_of<T>(gin);
  const FilterRows<T> filters(s, w, lanes);
  const WideCopy<T> wide_bias(on, bias, s.out_channels);
  const EvenBlocks channels = channel_blocks(s, lanes, 512);
  const PixelBlocks blocks = pixel_blocks<F>(s, channels);
  const int64_t images = s.batch * s.groups * blocks.count();
  // Few images: several tasks share one, each with some of the output channels.
  const EvenBlocks outs(gout, images >= 16 ? gout : std::max<int64_t>(2 * kTileRows, gout * images / 16));
  const int64_t tasks = images * outs.count;
  on.parallel_for(tasks, conv_grain(s.flops(), tasks), [&](int64_t from, int64_t to) {
    const Window largest(s, 0, blocks.rows.size, 0, blocks.cols.size);
    const int64_t pitch = pitch_for<F>(largest.pixels());
    const int64_t window_numbers = channels.size * largest.channel + kLanes<F>;
    const int64_t taps_numbers = channels.size * s.taps() * pitch, sum_numbers = kRounds ? outs.size * pitch : 0;
    lib::Scratch memory(size_t(window_numbers + taps_numbers + sum_numbers) * sizeof(F));
    F* const taps = memory.as<F>();  // first: its rows are whole cache lines
    F* const sums = taps + taps_numbers;
    F* const window = sums + sum_numbers;
    for (int64_t task = from; task < to; ++task) {
      const int64_t ng = task / (outs.count * blocks.count()), n = ng / s.groups, g = ng % s.groups;
      const int64_t out = task % outs.count, o0 = g * gout + outs.begin(out), m = outs.end(out) - outs.begin(out);
      const Window win(s, blocks, task / outs.count % blocks.count());
      T* const to_y = y + (n * s.out_channels + o0) * pixels + win.first_pixel(s);
      F* results = sums;
      if constexpr (!kRounds) results = to_y;
      const int64_t results_pitch = kRounds ? pitch : pixels;
      for (int64_t block = 0; block < channels.count; ++block) {
        const int64_t c0 = channels.begin(block), count = channels.end(block) - c0, first = c0 * kInLane<T>;
        fill_lanes(s, win, x + (n * s.in_channels + g * gin + first) * s.height * s.width,
                   std::min(count * kInLane<T>, gin - first), window);
        write_taps(s, win, window, count, taps, pitch);
        const F* const shift = bias && block == 0 ? wide_bias.data() + o0 : nullptr;
        multiply_lanes<T>(on, m, win.pixels(), count * s.taps(), filters.from(o0, c0 * s.taps()), taps, pitch,
                          {results, results_pitch, F(1), F(block > 0), nullptr, shift}, kRounds ? pitch : 0);
      }
      if constexpr (kRounds) round_rows(sums, pitch, m, win.pixels(), to_y, pixels);
    }
  });
}

// How many images share a product where an image is one block of pixels: up to about 400 columns, of which few fall
// into a partly empty vector. Tasks stay enough for all threads; each image makes `parts` of them.
inline EvenBlocks images_together(const ConvShape& s, const PixelBlocks& blocks, int64_t parts) {
  const int64_t tasks = std::max<int64_t>(16, 4 * num_threads());
  const int64_t most = std::min(400 / std::max<int64_t>(1, s.pixels()), s.batch * parts / tasks);
  return EvenBlocks(s.batch, blocks.count() > 1 ? 1 : std::max<int64_t>(1, most));
}

template <class T>
void direct_input_gradient(const Cpu& on, const ConvShape& s, const T* gy, const T* w, T* gx) {
  using F = Accum<T>;
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out(), image = s.height * s.width,
                lanes = lanes_of<T>(gout);
  const EvenBlocks channels = channel_blocks(s, gin, 256);
  const PixelBlocks blocks = pixel_blocks<F>(s, channels);
  const int64_t group_blocks = s.groups * channels.count;
  const int64_t block_taps = channels.size * s.taps();
  const EvenBlocks images = images_together(s, blocks, group_blocks);
  const TurnedFilters<T> filters(on, s, channels, w);
  const int64_t tasks = images.count * group_blocks;
  on.parallel_for(tasks, conv_grain(s.flops(), tasks), [&](int64_t from, int64_t to) {
    const Window whole(s, 0, s.out_height(), 0, s.out_width());
    const Window largest(s, 0, blocks.rows.size, 0, blocks.cols.size);
    const int64_t pitch = pitch_for<F>(images.size * largest.pixels());
    const int64_t window_numbers = channels.size * whole.channel + kLanes<F>;
    lib::Scratch memory(size_t((block_taps + lanes) * pitch + window_numbers) * sizeof(F));
    F* const taps = memory.as<F>();
    F* const grads = taps + block_taps * pitch;  // gy of the block [lanes of gout, images, pixels]
    F* const window = grads + lanes * pitch;
    for (int64_t task = from; task < to; ++task) {
      const int64_t gb = task % group_blocks, g = gb / channels.count, block = gb % channels.count;
      const int64_t c0 = channels.begin(block), count = channels.end(block) - c0;
      const int64_t n0 = images.begin(task / group_blocks), n1 = images.end(task / group_blocks);
      for (int64_t i = 0; i < blocks.count(); ++i) {
        const Window win(s, blocks, i);
        const int64_t size = win.pixels(), columns = (n1 - n0) * size;
        for (int64_t lane = 0; lane < lanes; ++lane) {
          F* row = grads + lane * pitch;
          for (int64_t n = n0; n < n1; ++n, row += size) {
            const int64_t o = lane * kInLane<T>;
            const T* const first = gy + (n * s.out_channels + g * gout + o) * pixels + win.first_pixel(s);
            copy_lanes(first, o + 1 < gout ? first + pixels : nullptr, 1, row, size);
          }
          for (int64_t l = 0; l < kLanes<F>; ++l) row[l] = F(0);
        }
        multiply_lanes<T>(on, count * s.taps(), columns, lanes, filters.of(gb), grads, pitch,
                          {taps, pitch, F(1), F(0), nullptr, nullptr}, pitch);
        for (int64_t n = n0; n < n1; ++n) {
          if (i == 0) std::fill_n(window, window_numbers, F(0));
          add_taps(s, whole, win, taps + (n - n0) * size, pitch, count, window);
          if (i == blocks.count() - 1)
            read_window(s, whole, window, count, gx + (n * s.in_channels + g * gin + c0) * image);
        }
      }
    }
  });
}

// How the weight gradient holds taps: pairs are of neighbouring pixels, so numbers of 16 bits lie as in the image.
template <class T>
using TapOf = std::conditional_t<kInLane<T> == 2, uint16_t, Accum<T>>;

template <class T>
void direct_weight_gradient(const Cpu& on, const ConvShape& s, const T* x, const T* gy, T* gw) {
  using F = Accum<T>;
  using E = TapOf<T>;
  constexpr int L = kLanes<F>;
  constexpr int64_t N = kTileCols<F>;
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out(), k = gin * s.taps();
  const EvenBlocks channels = channel_blocks(s, gin, 512);
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
    const int64_t pitch = pitch_for<E>(largest.pixels());
    const size_t taps_bytes = size_t(channels.size * s.taps() * pitch) * sizeof(E);
    const int64_t grad_numbers = lanes_of<T>(largest.pixels()) * out_pitch;
    lib::Scratch memory(taps_bytes + size_t(grad_numbers) * sizeof(F) +
                        size_t(channels.size * largest.channel + kLanes<E>) * sizeof(E));
    E* const taps = memory.as<E>();
    F* const grads = reinterpret_cast<F*>(memory.as<char>() + taps_bytes);  // gy, turned: [lanes of pixels, gout]
    E* const window = reinterpret_cast<E*>(grads + grad_numbers);
    for (int64_t task = from; task < to; ++task) {
      const int64_t chunk = task / group_blocks, gb = task % group_blocks, g = gb / channels.count,
                    block = gb % channels.count;
      const int64_t c0 = channels.begin(block), count = channels.end(block) - c0;
      F* const sums = partial.as<F>() + chunk * chunk_numbers + (g * k + c0 * s.taps()) * out_pitch;
      for (int64_t n = chunks.begin(chunk); n < chunks.end(chunk); ++n)
        for (int64_t i = 0; i < blocks.count(); ++i) {
          const Window win(s, blocks, i);
          const T* const image = x + (n * s.in_channels + g * gin + c0) * s.height * s.width;
          fill_window(s, win, count, window, [&](int64_t c, int64_t at, int64_t stride, E* row, int64_t numbers) {
            const T* const numbers_of_c = image + c * s.height * s.width + at;
            if constexpr (kInLane<T> == 2) {
              for (int64_t j = 0; j < numbers; ++j) row[j] = numbers_of_c[j * stride].bits;
            } else {
              copy_run(numbers_of_c, stride, row, numbers);
            }
          });
          write_taps(s, win, window, count, taps, pitch);
          if (win.pixels() % kInLane<T> != 0) {  // the last pair of a row
            for (int64_t row = 0; row < count * s.taps(); ++row) taps[row * pitch + win.pixels()] = E(0);
          }
          const T* from_gy = gy + (n * s.out_channels + g * gout) * pixels + win.first_pixel(s);
          for (int64_t j0 = 0; j0 < gout; j0 += N) {
            const int64_t cols = std::min(N, gout - j0);
            pack_pixels(Matrix<T>{from_gy + j0 * pixels, 1, pixels}, win.pixels(), cols, grads + j0, cols <= L ? L : N,
                        out_pitch);
          }
          const bool first = n == chunks.begin(chunk) && i == 0;
          multiply_lanes<T>(on, count * s.taps(), gout, lanes_of<T>(win.pixels()),
                            {reinterpret_cast<const F*>(taps), pitch / kInLane<T>, 1}, grads, out_pitch,
                            {sums, out_pitch, F(1), F(!first), nullptr, nullptr}, out_pitch);
        }
    }
  });
  // The sums of all chunks, turned in squares: [groups, taps, gout] to [groups, gout, taps]. What stands behind gout in
  // a row has no meaning, and is not copied.
  const EvenBlocks squares(k, L);
  const int64_t grain = std::max<int64_t>(1, 32768 / (chunks.count * out_pitch * L));
  on.parallel_for(s.groups * squares.count, grain, [&](int64_t from, int64_t to) {
    for (int64_t square = from; square < to; ++square) {
      const int64_t g = square / squares.count, t0 = squares.begin(square % squares.count);
      const int64_t rows = squares.end(square % squares.count) - t0;
      F* const sums = partial.as<F>() + (g * k + t0) * out_pitch;  // the first chunk's, in place
      for (int64_t chunk = 1; chunk < chunks.count; ++chunk)
        for (int64_t i = 0; i < rows * out_pitch; ++i) sums[i] += sums[chunk * chunk_numbers + i];
      for (int64_t o0 = 0; o0 < gout; o0 += L) {
        alignas(64) F turned[size_t(L * L)];
        transpose_square(sums + o0, out_pitch, turned, L, int(rows - 1));
        for (int64_t o = o0; o < std::min(gout, o0 + L); ++o)
          copy_run(turned + (o - o0) * L, 1, gw + (g * gout + o) * k + t0, rows);
      }
    }
  });
}

// ---- Which way a convolution goes

inline int64_t input_numbers(const ConvShape& s) { return s.batch * s.in_channels * s.height * s.width; }
inline int64_t output_numbers(const ConvShape& s) { return s.batch * s.out_channels * s.pixels(); }
inline int64_t weight_numbers(const ConvShape& s) { return s.out_channels * s.group_in() * s.taps(); }

// Whether a convolution of bf16 multiplies pairs. Pairs take half of the time of f32. Winograd, where `winograd`,
// takes less still for kernels of several rows, but of stride 2 in the input gradient alone: there, for 32 images of
// 64 channels, pairs take 1.4 of its time, forward 0.7 to 1.0 and in the weight gradient 0.7.
template <class T>
inline bool goes_by_pairs([[maybe_unused]] const Cpu& on, [[maybe_unused]] const ConvShape& s,
                          [[maybe_unused]] bool winograd, [[maybe_unused]] bool of_input = false) {
  if constexpr (LEVIN_VECTOR_BYTES == 64 && kInLane<T> == 2) {
    if (on.bf16_products == Bf16Products::pairs) return !winograd || s.kernel_h == 1 || (s.stride_h == 2 && !of_input);
    return on.bf16_products == Bf16Products::tiles;
  }
  return false;
}

template <class T>
void conv_forward(const Cpu& on, const ConvShape& s, const T* x, const T* w, const T* bias, T* y) {
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out();
  if (output_numbers(s) == 0) return;
  if (s.strided_pointwise()) {
    const lib::Scratch seen(size_t(s.batch * s.in_channels * pixels) * sizeof(T));
    seen_pixels(on, s, x, seen.as<T>());
    return conv_forward(on, s.of_seen_pixels(), seen.as<T>(), w, bias, y);
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
  if constexpr (std::is_same_v<T, Accum<T>>) {
    if (is_depthwise(s)) return depthwise_forward(on, s, x, w, bias, y);
  }
  const bool winograd = sizeof(T) <= 4 && winograd_forward_pays(s);
  if constexpr (std::is_same_v<T, float>) {
    if (winograd) return winograd_forward(on, s, x, w, bias, y);
  }
  if constexpr (sizeof(T) == 2) {
    if (is_depthwise(s) || !goes_by_pairs<T>(on, s, winograd)) {
      const WideCopy<T> wide_x(on, x, input_numbers(s)), wide_w(on, w, weight_numbers(s)),
          wide_bias(on, bias, s.out_channels);
      return in_f32(on, y, output_numbers(s), [&](float* result) {
        conv_forward<float>(on, s, wide_x.data(), wide_w.data(), wide_bias.data(), result);
      });
    }
  }
  if constexpr (kIsDirect<T>) direct_forward(on, s, x, w, bias, y);
}

template <class T>
void conv_input_gradient(const Cpu& on, const ConvShape& s, const T* gy, const T* w, T* gx) {
  const int64_t pixels = s.pixels(), gin = s.group_in(), gout = s.group_out();
  if (input_numbers(s) == 0) return;
  if (pixels * gout == 0) {
    std::fill_n(gx, input_numbers(s), T(0.0f));
    return;
  }
  if (s.strided_pointwise()) {
    const lib::Scratch seen(size_t(s.batch * s.in_channels * pixels) * sizeof(T));
    conv_input_gradient(on, s.of_seen_pixels(), gy, w, seen.as<T>());
    return spread_pixels(on, s, seen.as<T>(), gx);
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
  if constexpr (std::is_same_v<T, Accum<T>>) {
    if (is_depthwise(s)) return depthwise_input_gradient(on, s, gy, w, gx);
  }
  const bool winograd = sizeof(T) <= 4 && winograd_input_pays(s);
  if constexpr (std::is_same_v<T, float>) {
    if (winograd) return winograd_input_gradient(on, s, gy, w, gx);
  }
  if constexpr (sizeof(T) == 2) {
    if (is_depthwise(s) || !goes_by_pairs<T>(on, s, winograd, true)) {
      const WideCopy<T> wide_gy(on, gy, output_numbers(s)), wide_w(on, w, weight_numbers(s));
      return in_f32(on, gx, input_numbers(s),
                    [&](float* result) { conv_input_gradient<float>(on, s, wide_gy.data(), wide_w.data(), result); });
    }
  }
  if constexpr (kIsDirect<T>) direct_input_gradient(on, s, gy, w, gx);
}

template <class T>
void conv_weight_gradient(const Cpu& on, const ConvShape& s, const T* x, const T* gy, T* gw) {
  if (weight_numbers(s) == 0) return;
  if (s.batch * s.pixels() == 0) {
    std::fill_n(gw, weight_numbers(s), T(0.0f));
    return;
  }
  if (s.strided_pointwise()) {
    const lib::Scratch seen(size_t(s.batch * s.in_channels * s.pixels()) * sizeof(T));
    seen_pixels(on, s, x, seen.as<T>());
    return conv_weight_gradient(on, s.of_seen_pixels(), seen.as<T>(), gy, gw);
  }
  if constexpr (std::is_same_v<T, Accum<T>>) {
    if (is_depthwise(s)) return depthwise_weight_gradient(on, s, x, gy, gw);
  }
  const bool winograd = sizeof(T) <= 4 && winograd_weight_pays(s);
  if constexpr (std::is_same_v<T, float>) {
    if (winograd) return winograd_weight_gradient(on, s, x, gy, gw);
  }
  if constexpr (sizeof(T) == 2) {
    if (is_depthwise(s) || !goes_by_pairs<T>(on, s, winograd)) {
      const WideCopy<T> wide_x(on, x, input_numbers(s)), wide_gy(on, gy, output_numbers(s));
      return in_f32(on, gw, weight_numbers(s),
                    [&](float* result) { conv_weight_gradient<float>(on, s, wide_x.data(), wide_gy.data(), result); });
    }
  }
  if constexpr (kIsDirect<T>) direct_weight_gradient(on, s, x, gy, gw);
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
