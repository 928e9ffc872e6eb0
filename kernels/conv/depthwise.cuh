// Convolutions whose groups have one input channel and few output channels: sums over the taps of a window, without a
// matrix. Shapes and meaning are conv.cuh's; T is float or double.
//
// Note [Depthwise convolution]
// A task takes rows of one image's channel. Forward it sums the taps of neighbouring pixels in registers; the last
// register of a row begins early enough to end with the row. The input gradient of stride 1 is the same sum over gy
// with the taps in reverse; of other strides each tap is added to the place it was read from. The weight gradient keeps
// the sums of several taps in registers while it walks over rows of the image, and then adds their lanes.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_DEPTHWISE_CUH
#define LEVIN_KERNELS_DEPTHWISE_CUH

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_shape.h"
#include "kernels/conv/conv_windows.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"

namespace levin::kernels {

// More output channels of one input channel are a product of matrices.
inline bool is_depthwise(const ConvShape& s) { return s.groups > 1 && s.group_in() == 1 && s.group_out() <= 4; }

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/conv/depthwise.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Rows of a task: about 32 KB of the image.
inline EvenBlocks depthwise_rows(const ConvShape& s) {
  return EvenBlocks(s.out_height(), std::max<int64_t>(4, 8192 / std::max<int64_t>(1, s.width * s.stride_h)));
}
// Tasks of about 10 us.
inline int64_t depthwise_grain(const ConvShape& s, int64_t tasks) {
  constexpr double kFlops = 500e3;
  return std::max<int64_t>(1, int64_t(kFlops * double(tasks) / std::max(s.flops(), 1.0)));
}
template <class F>
void fill_channel(const ConvShape& s, const Window& win, const F* image, F* window) {
  constexpr int64_t L = kLanes<F>;
  fill_window(s, win, 1, window, [&](int64_t, int64_t at, int64_t stride, F* row, int64_t numbers) {
    const F* const from = image + at;
    if (stride != 1 || numbers < L) return copy_run(from, stride, row, numbers);
    // A call of memcpy costs as much as a short row.
    for (int64_t k = 0; k < numbers; k += L) {
      const int64_t first = std::min(k, numbers - L);
      __builtin_memcpy(row + first, from + first, sizeof(Vector<F>));
    }
  });
}

// to[r * cols + q] = shift + sum over taps of w[t] window[r * row_step + at[t] + q], in kRows rows, for vectors of
// pixels from `first` and `second` on, which may overlap.
template <int kRows, class F>
[[gnu::always_inline]] inline void depthwise_pixels(const F* window, int64_t row_step, const int64_t* at, const F* w,
                                                    int64_t taps, F shift, F* to, int64_t cols, int64_t first,
                                                    int64_t second) {
  Vector<F> sum[kRows][2];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = Vector<F>{} + shift;
  for (int64_t t = 0; t < taps; ++t) {
    const Vector<F> by = Vector<F>{} + w[t];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      const F* const from = window + r * row_step + at[t];
      Vector<F> x;
      __builtin_memcpy(&x, from + first, sizeof x);
      sum[r][0] += by * x;
      __builtin_memcpy(&x, from + second, sizeof x);
      sum[r][1] += by * x;
    }
  }
  const size_t bytes = cols >= kLanes<F> ? sizeof(Vector<F>) : size_t(cols) * sizeof(F);
  for (int r = 0; r < kRows; ++r) {
    if (cols >= kLanes<F>) {
      __builtin_memcpy(to + r * cols + first, &sum[r][0], sizeof(Vector<F>));
      __builtin_memcpy(to + r * cols + second, &sum[r][1], sizeof(Vector<F>));
    } else {
      __builtin_memcpy(to + r * cols, &sum[r][0], bytes);
    }
  }
}

template <int kRows, class F>
void depthwise_rows_of(const F* window, int64_t row_step, const int64_t* at, const F* w, int64_t taps, F shift, F* to,
                       int64_t cols) {
  constexpr int L = kLanes<F>;
  // The last pair of vectors ends with the row.
  const int64_t end = std::max<int64_t>(0, cols - L);
  for (int64_t q = 0; q < cols; q += 2 * L) {
    const int64_t first = std::min(q, end), second = std::min(q + L, end);
    depthwise_pixels<kRows>(window, row_step, at, w, taps, shift, to, cols, first, second);
  }
}

// Where each tap of output row 0 begins in a window's channel.
inline std::vector<int64_t> places_of_taps(const ConvShape& s, const Window& win) {
  std::vector<int64_t> at;
  for (int64_t i = 0; i < s.kernel_h; ++i)
    for (int64_t j = 0; j < s.kernel_w; ++j) at.push_back(win.at(s, 0, i, j));
  return at;
}

template <class F>
void depthwise_forward(const Cpu& on, const ConvShape& s, const F* x, const F* w, const F* bias, F* y) {
  const int64_t gout = s.group_out(), cols = s.out_width(), image = s.height * s.width, pixels = s.pixels();
  const EvenBlocks rows = depthwise_rows(s);
  const Window largest(s, 0, rows.size, 0, cols);
  const std::vector<int64_t> at = places_of_taps(s, largest);
  const int64_t tasks = s.batch * s.groups * rows.count;
  on.parallel_for(tasks, depthwise_grain(s, tasks), [&](int64_t from, int64_t to) {
    lib::Scratch memory(size_t(largest.channel + 2 * kLanes<F>) * sizeof(F));
    F* const window = memory.as<F>();
    for (int64_t task = from; task < to; ++task) {
      const int64_t plane = task / rows.count, block = task % rows.count, n = plane / s.groups, g = plane % s.groups;
      const Window win(s, rows.begin(block), rows.end(block), 0, cols);
      fill_channel(s, win, x + plane * image, window);
      const int64_t row_step = win.step_h * win.step_w * win.phase_width;
      for (int64_t o = g * gout; o < (g + 1) * gout; ++o) {
        F* const result = y + (n * s.out_channels + o) * pixels + win.r0 * cols;
        const F* const taps = w + o * s.taps();
        const F shift = bias ? bias[o] : F(0);
        int64_t r = 0;
        for (; r + 2 <= win.r1 - win.r0; r += 2)
          depthwise_rows_of<2>(window + r * row_step, row_step, at.data(), taps, s.taps(), shift, result + r * cols,
                               cols);
        if (r < win.r1 - win.r0)
          depthwise_rows_of<1>(window + r * row_step, row_step, at.data(), taps, s.taps(), shift, result + r * cols,
                               cols);
      }
    }
  });
}

template <class F>
void depthwise_input_gradient(const Cpu& on, const ConvShape& s, const F* gy, const F* w, F* gx) {
  constexpr int L = kLanes<F>;
  const int64_t gout = s.group_out(), rows = s.out_height(), cols = s.out_width(), image = s.height * s.width,
                pixels = s.pixels(), taps = s.taps();
  const int64_t back_h = s.dilation_h * (s.kernel_h - 1) - s.padding_h,
                back_w = s.dilation_w * (s.kernel_w - 1) - s.padding_w;
  if (s.stride_h == 1 && s.stride_w == 1 && gout == 1 && back_h >= 0 && back_w >= 0) {
    const lib::Scratch memory(size_t(s.out_channels * taps) * sizeof(F));
    F* const reversed = memory.as<F>();
    for (int64_t o = 0; o < s.out_channels; ++o)
      std::reverse_copy(w + o * taps, w + (o + 1) * taps, reversed + o * taps);
    ConvShape back = s;
    back.height = rows, back.width = cols;
    back.padding_h = back_h, back.padding_w = back_w;
    return depthwise_forward(on, back, gy, reversed, static_cast<const F*>(nullptr), gx);
  }
  const Window whole(s, 0, rows, 0, cols);
  const std::vector<int64_t> at = places_of_taps(s, whole);
  const int64_t row_step = whole.step_h * whole.step_w * whole.phase_width, full = cols / L * L, row_pitch = full + L,
                planes = s.batch * s.groups;
  const LaneBits<F> rest = first_lanes<F>(cols - full);
  on.parallel_for(planes, depthwise_grain(s, planes), [&](int64_t from, int64_t to) {
    lib::Scratch memory(size_t(whole.channel + row_pitch + L) * sizeof(F));
    F* const window = memory.as<F>();
    F* const row = window + whole.channel + L;  // one of gy, with room for whole vectors
    for (int64_t plane = from; plane < to; ++plane) {
      const int64_t n = plane / s.groups, g = plane % s.groups;
      std::fill_n(window, whole.channel + L, F(0));
      std::fill_n(row, row_pitch, F(0));
      for (int64_t o = g * gout; o < (g + 1) * gout; ++o) {
        for (int64_t r = 0; r < rows; ++r) {
          std::copy_n(gy + (n * s.out_channels + o) * pixels + r * cols, cols, row);
          for (int64_t t = 0; t < taps; ++t) {
            F* const to_tap = window + r * row_step + at[size_t(t)];
            const Vector<F> by = Vector<F>{} + w[o * taps + t];
            const auto add = [&](int64_t q, const LaneBits<F>* lanes) {
              add_lanes<F>(to_tap + q, by * load_lanes<F>(row + q, nullptr), lanes);
            };
            for (int64_t q = 0; q < full; q += L) add(q, nullptr);
            if (full < cols) add(full, &rest);
          }
        }
      }
      read_window(s, whole, window, 1, gx + plane * image);
    }
  });
}

// sums[t] += sum over rows and pixels of gy window[at[t] + ...] for kTaps taps.
template <int kTaps, class F>
void depthwise_tap_sums(const F* window, int64_t row_step, const int64_t* at, const F* gy, int64_t rows, int64_t cols,
                        F* sums) {
  constexpr int L = kLanes<F>;
  const int64_t full = cols / L * L, last = std::max<int64_t>(0, cols - L);
  // The last vector of a row ends with it, without the lanes that were counted before; that of a short row begins it.
  const LaneBits<F> rest = cols >= L ? ~first_lanes<F>(full - last) : first_lanes<F>(cols);
  Vector<F> sum[kTaps] = {};
  for (int64_t r = 0; r < rows; ++r, window += row_step, gy += cols) {
    for (int64_t q = 0; q < full; q += L) {
      const Vector<F> g = load_lanes<F>(gy + q, nullptr);
#pragma GCC unroll 9
      for (int t = 0; t < kTaps; ++t) sum[t] += g * load_lanes<F>(window + at[t] + q, nullptr);
    }
    if (full < cols) {
      Vector<F> g{};
      if (cols >= L)
        g = load_lanes<F>(gy + last, &rest);
      else
        __builtin_memcpy(&g, gy, size_t(cols) * sizeof(F));
#pragma GCC unroll 9
      for (int t = 0; t < kTaps; ++t) sum[t] += g * load_lanes<F>(window + at[t] + last, &rest);
    }
  }
  for (int t = 0; t < kTaps; ++t) {
    F all = 0;
    for (int l = 0; l < L; ++l) all += sum[t][l];
    sums[t] += all;
  }
}

template <class F>
void depthwise_weight_gradient(const Cpu& on, const ConvShape& s, const F* x, const F* gy, F* gw) {
  const int64_t gout = s.group_out(), cols = s.out_width(), image = s.height * s.width, pixels = s.pixels(),
                taps = s.taps(), numbers = s.out_channels * taps;
  const EvenBlocks rows = depthwise_rows(s), chunks(s.batch, std::max<int64_t>(1, (s.batch * s.groups + 31) / 32));
  const Window largest(s, 0, rows.size, 0, cols);
  const std::vector<int64_t> at = places_of_taps(s, largest);
  lib::Scratch partial(size_t(chunks.count * numbers) * sizeof(F));  // [chunks, outputs, taps]
  const int64_t tasks = s.groups * chunks.count;
  on.parallel_for(tasks, depthwise_grain(s, tasks), [&](int64_t from, int64_t to) {
    lib::Scratch memory(size_t(largest.channel + 2 * kLanes<F>) * sizeof(F));
    F* const window = memory.as<F>();
    for (int64_t task = from; task < to; ++task) {
      const int64_t chunk = task / s.groups, g = task % s.groups;
      F* const sums = partial.as<F>() + chunk * numbers + g * gout * taps;
      std::fill_n(sums, gout * taps, F(0));
      for (int64_t n = chunks.begin(chunk); n < chunks.end(chunk); ++n)
        for (int64_t block = 0; block < rows.count; ++block) {
          const Window win(s, rows.begin(block), rows.end(block), 0, cols);
          fill_channel(s, win, x + (n * s.in_channels + g) * image, window);
          const int64_t row_step = win.step_h * win.step_w * win.phase_width, height = win.r1 - win.r0;
          for (int64_t o = 0; o < gout; ++o) {
            const F* const grads = gy + (n * s.out_channels + g * gout + o) * pixels + win.r0 * cols;
            F* const to_taps = sums + o * taps;
            int64_t t = 0;
            for (; t + 9 <= taps; t += 9)
              depthwise_tap_sums<9>(window, row_step, at.data() + t, grads, height, cols, to_taps + t);
            for (; t + 3 <= taps; t += 3)
              depthwise_tap_sums<3>(window, row_step, at.data() + t, grads, height, cols, to_taps + t);
            for (; t < taps; ++t)
              depthwise_tap_sums<1>(window, row_step, at.data() + t, grads, height, cols, to_taps + t);
          }
        }
    }
  });
  for (int64_t i = 0; i < numbers; ++i) {
    F sum = partial.as<F>()[i];
    for (int64_t chunk = 1; chunk < chunks.count; ++chunk) sum += partial.as<F>()[chunk * numbers + i];
    gw[i] = sum;
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
