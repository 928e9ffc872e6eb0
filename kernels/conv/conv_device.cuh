// Convolution on devices that launch kernels: the three products of conv.cuh, with its arguments and shapes, as matrix
// products whose operands read images through the windows (implicit im2col): nothing is written but the result.
//
//   product          C [m, n]                  sum over k            A                    B
//   forward          y  [O / G, N * P * Q]     C / G, kh, kw         w                    x through its windows
//   input gradient   gx [C / G, N * H * W]     O / G, kh, kw         w turned             gy under its windows
//   weight gradient  gw [O / G, C / G * kh * kw]   N, P, Q           gy                   x through its windows
//
// Groups are the batches. A plan comes from conv_*_plan<T>(shape); where it has a workspace, `partial` is that memory.
// The input gradient multiplies zeros for the pixels that strides skip: stride_h * stride_w times the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/conv/conv_shape.h"
#include "kernels/gemm/gemm_device.cuh"

namespace levin::kernels {

template <class T>
[[nodiscard]] GemmPlan conv_forward_plan(const ConvShape& s) {
  return plan_gemm<T>({s.group_out(), s.batch * s.pixels(), s.group_in() * s.taps()}, s.groups);
}
template <class T>
[[nodiscard]] GemmPlan conv_input_plan(const ConvShape& s) {
  return plan_gemm<T>({s.group_in(), s.batch * s.height * s.width, s.group_out() * s.taps()}, s.groups);
}
template <class T>
[[nodiscard]] GemmPlan conv_weight_plan(const ConvShape& s) {
  return plan_gemm<T>({s.group_out(), s.group_in() * s.taps(), s.batch * s.pixels()}, s.groups);
}

}  // namespace levin::kernels

namespace levin::kernels::gpu {

// Place u of [outer, rows, cols] as its three indices, and the place after it.
struct Grid3 {
  Divider rows, cols;
  Grid3(int64_t rows_, int64_t cols_) : rows(std::max<int64_t>(1, rows_)), cols(std::max<int64_t>(1, cols_)) {}
};
struct Place {
  int64_t outer, row, col;
  __device__ __forceinline__ Place(const Grid3& in, int64_t u) {
    const int64_t line = in.cols.quotient(u);
    outer = in.rows.quotient(line);
    row = line - outer * int64_t(in.rows.divisor);
    col = u - line * int64_t(in.cols.divisor);
  }
  __device__ __forceinline__ void next(const Grid3& in) {
    if (++col < int64_t(in.cols.divisor)) return;
    col = 0;
    if (++row < int64_t(in.rows.divisor)) return;
    row = 0;
    ++outer;
  }
};

// [channels, images * pixels] of a tensor [images, all channels, pixels]: chunks are neighbouring pixels, which are k
// or the lines.
template <class T, bool kAlongK_>
struct Images {
  using Element = T;
  static constexpr bool kAlongK = kAlongK_;
  const T* p;
  int64_t channels, columns;
  int64_t channel_step, image_step;  // elements of a channel, of an image
  Divider pixels;
  bool vectors;  // no chunk spans two images, and all are aligned

  Images(const T* data, int64_t channels_, int64_t all_channels, int64_t images, int64_t pixels_)
      : p(data),
        channels(channels_),
        columns(images * pixels_),
        channel_step(pixels_),
        image_step(all_channels * pixels_),
        pixels(std::max<int64_t>(1, pixels_)),
        vectors(aligned16(data) && pixels_ % kVec<T> == 0) {}

  __device__ __forceinline__ Chunk<T> get(int64_t line, int64_t k) const {
    const int64_t channel = kAlongK ? line : k, column = kAlongK ? k : line;
    Chunk<T> to = no_elements<T>();
    if (channel >= channels || column >= columns) return to;
    int64_t image = pixels.quotient(column), pixel = column - image * channel_step;
    const T* const from = p + channel * channel_step;
    if (vectors) return load<kVec<T>>(from + image * image_step + pixel);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      if (column + e < columns) to[e] = from[image * image_step + pixel];
      if (++pixel == channel_step) {
        pixel = 0;
        ++image;
      }
    }
    return to;
  }
  __device__ __forceinline__ void put(T* shared, int64_t line, int64_t k) const {
    const int64_t channel = kAlongK ? line : k, column = kAlongK ? k : line;
    if (vectors) {
      const bool inside = channel < channels && column < columns;
      const int64_t image = pixels.quotient(column);
      const int64_t at = channel * channel_step + image * image_step + (column - image * channel_step);
      cp_async_16(shared, inside ? p + at : p, inside);
    } else {
      store(shared, get(line, k));
    }
  }
};

// What operands share that collect a chunk element by element.
template <class Self, class T, bool kAlongK_>
struct Collected {
  using Element = T;
  static constexpr bool kAlongK = kAlongK_;
  __device__ __forceinline__ void put(T* shared, int64_t line, int64_t k) const {
    store(shared, static_cast<const Self*>(this)->get(line, k));
  }
};

// [C / G * kh * kw, N * P * Q]: what each tap sees at each output pixel. Chunks are neighbouring output pixels.
template <class T, bool kAlongK_>
struct Windows : Collected<Windows<T, kAlongK_>, T, kAlongK_> {
  const T* p;
  ConvShape s;
  Grid3 taps, pixels;
  int64_t all_taps, all_pixels;

  Windows(const T* x, const ConvShape& shape)
      : p(x),
        s(shape),
        taps(s.kernel_h, s.kernel_w),
        pixels(s.out_height(), s.out_width()),
        all_taps(s.group_in() * s.taps()),
        all_pixels(s.batch * s.pixels()) {}

  __device__ __forceinline__ Chunk<T> get(int64_t line, int64_t k) const {
    const int64_t tap = kAlongK_ ? line : k, pixel = kAlongK_ ? k : line;
    Chunk<T> to = no_elements<T>();
    if (tap >= all_taps || pixel >= all_pixels) return to;
    const Place at(taps, tap);
    Place out(pixels, pixel);
    const T* const channel = p + at.outer * s.height * s.width;
    const int64_t top = at.row * s.dilation_h - s.padding_h, left = at.col * s.dilation_w - s.padding_w;
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      const int64_t row = top + out.row * s.stride_h, col = left + out.col * s.stride_w;
      if (pixel + e < all_pixels && row >= 0 && row < s.height && col >= 0 && col < s.width)
        to[e] = channel[(out.outer * s.in_channels * s.height + row) * s.width + col];
      out.next(pixels);
    }
    return to;
  }
};

// [O / G * kh * kw, N * H * W]: what each tap gave to each input pixel. Chunks are neighbouring input pixels.
template <class T>
struct Spread : Collected<Spread<T>, T, false> {
  const T* p;
  ConvShape s;
  Grid3 taps, pixels;
  Divider stride_h, stride_w;
  int64_t all_taps, all_pixels, out_height, out_width;

  Spread(const T* gy, const ConvShape& shape)
      : p(gy),
        s(shape),
        taps(s.kernel_h, s.kernel_w),
        pixels(s.height, s.width),
        stride_h(s.stride_h),
        stride_w(s.stride_w),
        all_taps(s.group_out() * s.taps()),
        all_pixels(s.batch * s.height * s.width),
        out_height(s.out_height()),
        out_width(s.out_width()) {}

  __device__ __forceinline__ Chunk<T> get(int64_t line, int64_t k) const {
    Chunk<T> to = no_elements<T>();
    if (k >= all_taps || line >= all_pixels) return to;
    const Place at(taps, k);
    Place in(pixels, line);
    const T* const channel = p + at.outer * out_height * out_width;
    const int64_t down = s.padding_h - at.row * s.dilation_h, right = s.padding_w - at.col * s.dilation_w;
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      const int64_t from_top = in.row + down, from_left = in.col + right;
      if (line + e < all_pixels && from_top >= 0 && from_left >= 0) {
        const int64_t row = stride_h.quotient(from_top), col = stride_w.quotient(from_left);
        if (row * s.stride_h == from_top && col * s.stride_w == from_left && row < out_height && col < out_width)
          to[e] = channel[(in.outer * s.out_channels * out_height + row) * out_width + col];
      }
      in.next(pixels);
    }
    return to;
  }
};

// [C / G, O / G * kh * kw] of weights [O / G, C / G, kh * kw].
template <class T>
struct TurnedWeights : Collected<TurnedWeights<T>, T, true> {
  const T* p;
  int64_t channels, depth, taps;
  Divider per_filter;

  TurnedWeights(const T* w, const ConvShape& s)
      : p(w), channels(s.group_in()), depth(s.group_out() * s.taps()), taps(s.taps()), per_filter(s.taps()) {}

  __device__ __forceinline__ Chunk<T> get(int64_t line, int64_t k) const {
    Chunk<T> to = no_elements<T>();
    if (line >= channels || k >= depth) return to;
    int64_t filter = per_filter.quotient(k), tap = k - filter * taps;
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      if (k + e < depth) to[e] = p[(filter * channels + line) * taps + tap];
      if (++tap == taps) {
        tap = 0;
        ++filter;
      }
    }
    return to;
  }
};

// Groups lie so far apart in a, b and c.
[[nodiscard]] inline Strided<3> conv_groups(const ConvShape& s, int64_t a, int64_t b, int64_t c) {
  Strided<3> groups;
  groups.sizes[0] = Divider(s.groups);
  groups.steps[0][0] = a;
  groups.steps[1][0] = b;
  groups.steps[2][0] = c;
  return groups;
}
// Rows of weights, read along k.
template <class T>
[[nodiscard]] Lines<T, true> conv_weights(const ConvShape& s, const T* w) {
  const int64_t depth = s.group_in() * s.taps();
  return {w, depth, 1, s.group_out(), depth, aligned16(w) && depth % kVec<T> == 0};
}
// The places of a tensor [N, channels, pixels], columns being the pixels of all images.
template <class T>
[[nodiscard]] Target<T> conv_images(T* y, int64_t channels, int64_t pixels, Accum<T>* partial) {
  return {.y = y,
          .row_step = pixels,
          .images = true,
          .width = Divider(std::max<int64_t>(1, pixels)),
          .image_step = channels * pixels,
          .partial = partial};
}

template <class T>
void conv_forward(const Gpu& on, const GemmPlan& plan, const ConvShape& s, const T* x, const T* w, const T* bias, T* y,
                  Accum<T>* partial) {
  Target<T> to = conv_images(y, s.out_channels, s.pixels(), partial);
  to.row_bias = bias;
  const int64_t image = s.group_in() * s.height * s.width;
  const Strided<3> groups = conv_groups(s, s.group_out() * s.group_in() * s.taps(), image, s.group_out() * s.pixels());
  if (s.pointwise())
    launch_gemm(on, plan, conv_weights(s, w), Images<T, false>(x, s.group_in(), s.in_channels, s.batch, s.pixels()),
                groups, to);
  else
    launch_gemm(on, plan, conv_weights(s, w), Windows<T, false>(x, s), groups, to);
}

template <class T>
void conv_input_gradient(const Gpu& on, const GemmPlan& plan, const ConvShape& s, const T* gy, const T* w, T* gx,
                         Accum<T>* partial) {
  const Target<T> to = conv_images(gx, s.in_channels, s.height * s.width, partial);
  const Strided<3> groups = conv_groups(s, s.group_out() * s.group_in() * s.taps(), s.group_out() * s.pixels(),
                                        s.group_in() * s.height * s.width);
  if (s.pointwise()) {
    const Lines<T, false> turned{
        w, 1, s.group_in(), s.group_in(), s.group_out(), aligned16(w) && s.group_in() % kVec<T> == 0};
    launch_gemm(on, plan, turned, Images<T, false>(gy, s.group_out(), s.out_channels, s.batch, s.pixels()), groups, to);
  } else {
    launch_gemm(on, plan, TurnedWeights<T>(w, s), Spread<T>(gy, s), groups, to);
  }
}

template <class T>
void conv_weight_gradient(const Gpu& on, const GemmPlan& plan, const ConvShape& s, const T* x, const T* gy, T* gw,
                          Accum<T>* partial) {
  const int64_t weights = s.group_in() * s.taps();
  const Target<T> to{.y = gw, .row_step = weights, .partial = partial};
  const Strided<3> groups =
      conv_groups(s, s.group_out() * s.pixels(), s.group_in() * s.height * s.width, s.group_out() * weights);
  const Images<T, true> left(gy, s.group_out(), s.out_channels, s.batch, s.pixels());
  if (s.pointwise())
    launch_gemm(on, plan, left, Images<T, true>(x, s.group_in(), s.in_channels, s.batch, s.pixels()), groups, to);
  else
    launch_gemm(on, plan, left, Windows<T, true>(x, s), groups, to);
}

}  // namespace levin::kernels::gpu
