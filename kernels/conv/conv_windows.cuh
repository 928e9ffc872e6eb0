// The parts of images that blocks of output pixels see, and the matrices of taps by pixels that conv.cuh multiplies:
// Note [Convolution as matrix product].
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CONV_WINDOWS_CUH
#define LEVIN_KERNELS_CONV_WINDOWS_CUH
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/conv/conv_shape.h"
#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"

namespace levin::kernels {

// Blocks of output pixels: some whole rows, or a piece of one row; contiguous in y either way.
struct PixelBlocks {
  EvenBlocks rows, cols;
  PixelBlocks(const ConvShape& s, int64_t most)
      : rows(rows_of(s, std::max<int64_t>(1, most / std::max<int64_t>(1, s.out_width())))),
        cols(s.out_width(), std::max<int64_t>(most, 64)) {}
  [[nodiscard]] int64_t count() const { return rows.count * cols.count; }

 private:
  // As many blocks as `most` rows each give, all but the last of the size that leaves the fewest lanes of vectors
  // empty.
  static EvenBlocks rows_of(const ConvShape& s, int64_t most) {
    constexpr int64_t kVector = 16;  // lanes of f32 in a vector of AVX-512; any number is right
    const auto vectors = [&](int64_t count) { return (count * s.out_width() + kVector - 1) / kVector; };
    EvenBlocks even(s.out_height(), most);
    int64_t best = even.size, least = std::numeric_limits<int64_t>::max();
    for (int64_t size = even.size; size <= most && even.count > 1 && (even.count - 1) * size < even.total; ++size) {
      const int64_t all = (even.count - 1) * vectors(size) + vectors(even.total - (even.count - 1) * size);
      if (all < least) least = all, best = size;
    }
    even.size = best;
    return even;
  }
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/conv/conv_windows.cuh"
#include "kernels/executor/each_level.h"
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

// Fills a window of `lanes` lanes: copy(lane, at, stride, to, count) writes the numbers of a lane from place `at` of
// [H, W] on.
template <class E, class Copy>
void fill_window(const ConvShape& s, const Window& win, int64_t lanes, E* to, const Copy& copy) {
  for (int64_t c = 0; c < lanes; ++c, to += win.channel)
    for (int64_t phase = 0; phase < win.step_w; ++phase) {
      // Columns left + phase + k * stride_w of the image, for those k that fall inside.
      const int64_t x = win.left + phase;
      const int64_t first = x >= 0 ? 0 : (-x + win.step_w - 1) / win.step_w;
      const int64_t last = x >= s.width ? 0 : (s.width - x + win.step_w - 1) / win.step_w;
      const int64_t begin = std::min(first, win.phase_width), inside = std::clamp(last, begin, win.phase_width);
      E* row_to = to + phase * win.phase_width;
      for (int64_t row = 0; row < win.rows; ++row, row_to += win.step_w * win.phase_width) {
        const int64_t y = win.top + row, end = y >= 0 && y < s.height ? inside : begin;
        for (int64_t k = 0; k < begin; ++k) row_to[k] = E(0);
        if (end > begin) copy(c, y * s.width + x + begin * win.step_w, win.step_w, row_to + begin, end - begin);
        for (int64_t k = end; k < win.phase_width; ++k) row_to[k] = E(0);
      }
    }
  for (int64_t k = 0; k < kLanes<E>; ++k) to[k] = E(0);  // write_taps reads whole vectors
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

// The lanes below n, all ones.
template <class F>
using LaneBits = Vector<std::conditional_t<sizeof(F) == 8, int64_t, int32_t>>;
template <class F>
LaneBits<F> first_lanes(int64_t n) {
  LaneBits<F> bits{};
  for (int l = 0; l < kLanes<F>; ++l) bits[l] = l < n ? -1 : 0;
  return bits;
}
// 0 in the lanes that `lanes` does not have; null has all.
template <class F>
[[gnu::always_inline]] inline Vector<F> in_lanes(const Vector<F>& v, const LaneBits<F>* lanes) {
  if (!lanes) return v;
  LaneBits<F> bits;
  __builtin_memcpy(&bits, &v, sizeof bits);
  bits &= *lanes;
  Vector<F> kept;
  __builtin_memcpy(&kept, &bits, sizeof kept);
  return kept;
}
template <class F>
[[gnu::always_inline]] inline Vector<F> load_lanes(const F* from, const LaneBits<F>* lanes) {
  Vector<F> v;
  __builtin_memcpy(&v, from, sizeof v);
  return in_lanes<F>(v, lanes);
}
template <class F>
[[gnu::always_inline]] inline void add_lanes(F* to, const Vector<F>& v, const LaneBits<F>* lanes) {
  const Vector<F> sum = load_lanes<F>(to, nullptr) + in_lanes<F>(v, lanes);
  __builtin_memcpy(to, &sum, sizeof sum);
}

// The transpose of write_taps: adds every tap to the place it was read from. `whole` is the window of the whole image.
template <class F>
void add_taps(const ConvShape& s, const Window& whole, const Window& win, const F* taps, int64_t pitch,
              int64_t channels, F* window) {
  constexpr int L = kLanes<F>;
  const int64_t cols = win.q1 - win.q0, rows = win.r1 - win.r0;
  const int64_t full = cols / L * L;
  const LaneBits<F> rest = first_lanes<F>(cols - full);  // of the last, partial vector
  const int64_t row_step = whole.step_h * whole.step_w * whole.phase_width;
  for (int64_t c = 0; c < channels; ++c, window += whole.channel)
    for (int64_t i = 0; i < s.kernel_h; ++i)
      for (int64_t j = 0; j < s.kernel_w; ++j, taps += pitch) {
        F* dst = window + whole.at(s, win.r0, i, j) + win.q0;
        const F* src = taps;
        for (int64_t r = 0; r < rows; ++r, dst += row_step, src += cols) {
          for (int64_t q = 0; q < full; q += L) add_lanes<F>(dst + q, load_lanes<F>(src + q, nullptr), nullptr);
          if (full < cols) add_lanes<F>(dst + full, load_lanes<F>(src + full, nullptr), &rest);
        }
      }
}

// to[i] = column first + i of a row whose columns are sorted by their remainder modulo `step`, `width` of each.
template <class F, class T>
void read_columns(const F* row, int64_t width, int64_t step, int64_t first, int64_t n, T* to) {
  int64_t i = 0, k = first / step;
  for (int64_t phase = first % step; phase > 0 && i < n; ++i) {
    to[i] = T(row[phase * width + k]);
    if (++phase == step) phase = 0, ++k;
  }
  if (step == 2) {  // a constant stride becomes shuffles
    const F *const even = row + k, *const odd = even + width;
    const int64_t pairs = std::max<int64_t>(0, n - i) / 2;
    for (int64_t j = 0; j < pairs; ++j) to[i + 2 * j] = T(even[j]), to[i + 2 * j + 1] = T(odd[j]);
    i += 2 * pairs, k += pairs;
  }
  for (; i < n; ++k)
    for (int64_t phase = 0; phase < step && i < n; ++phase, ++i) to[i] = T(row[phase * width + k]);
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
        read_columns(src, width, step, s.padding_w, seen, image);
      }
      for (int64_t col = std::max<int64_t>(0, seen); col < s.width; ++col) image[col] = T(0.0f);
    }
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

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
