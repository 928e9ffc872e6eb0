// Convolution of channels-last images on devices: the three products of conv_device.cuh for x, gx [N, H, W, C], y, gy
// [N, P, Q, O] and w, gw [O, kh, kw, C / G]. The numbers of a pixel are channels, so chunks are neighbouring channels:
// 16 bytes of one pixel where a group's channels are a multiple of that.
//
//   product          C [m, n]                      sum over k            A                    B
//   forward          y  [N * P * Q, O / G]         kh, kw, C / G         x through windows    w
//   input gradient   gx [N * H * W, C / G]         kh, kw, O / G         gy under windows     w turned
//   weight gradient  gw [O / G, kh * kw * C / G]   N, P, Q               gy                   x through windows
//
// Names end in _last; plans and workspaces are as there. A kernel of one tap on all channels is a matrix product, which
// gemm_batched computes. The functions are instantiated in conv_channels_last.cu.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/conv/conv_device.cuh"

namespace levin::kernels {

template <class T>
[[nodiscard]] GemmPlan conv_forward_last_plan(const ConvShape& s) {
  return plan_gemm<T>({s.batch * s.pixels(), s.group_out(), s.group_in() * s.taps()}, s.groups);
}
template <class T>
[[nodiscard]] GemmPlan conv_input_last_plan(const ConvShape& s) {
  return plan_gemm<T>({s.batch * s.height * s.width, s.group_in(), s.group_out() * s.taps()}, s.groups);
}

}  // namespace levin::kernels

namespace levin::kernels::gpu {

// A matrix of pixels by numbers, which are taps and, innermost, a group's channels. Self::at(pixel, number) is the
// place of an element, null where the window hangs over the edge. Pixels are the lines where kAlongK_, else k.
template <class Self, class T, bool kAlongK_>
struct PixelChunks {
  using Element = T;
  static constexpr bool kAlongK = kAlongK_;
  int64_t all_pixels, all_numbers;
  bool vectors;  // no chunk spans two taps, and all are aligned

  __device__ __forceinline__ const T* place(int64_t line, int64_t k) const {
    const int64_t pixel = kAlongK ? line : k, number = kAlongK ? k : line;
    return pixel < all_pixels && number < all_numbers ? self().at(pixel, number) : nullptr;
  }
  __device__ __forceinline__ Chunk<T> get(int64_t line, int64_t k) const {
    Chunk<T> to = no_elements<T>();
    if (vectors) {
      const T* const from = place(line, k);
      return from != nullptr ? load<kVec<T>>(from) : to;
    }
#pragma unroll 1
    for (int e = 0; e < kVec<T>; ++e) {
      const T* const from = kAlongK ? place(line, k + e) : place(line + e, k);
      if (from != nullptr) to[e] = *from;
    }
    return to;
  }
  __device__ __forceinline__ void put(T* shared, int64_t line, int64_t k) const {
    if (vectors) {
      const T* const from = place(line, k);
      cp_async_16(shared, from != nullptr ? from : self().p, from != nullptr);
    } else {
      store(shared, get(line, k));
    }
  }

 private:
  __device__ __forceinline__ const Self& self() const { return static_cast<const Self&>(*this); }
};

// [N * P * Q, kh * kw * C / G]: what each output pixel sees.
template <class T, bool kAlongK_>
struct SeenChannels : PixelChunks<SeenChannels<T, kAlongK_>, T, kAlongK_> {
  const T* p;
  ConvShape s;
  Grid3 pixels;
  Divider channels, columns;  // of a tap, of a kernel's row

  SeenChannels(const T* x, const ConvShape& shape)
      : p(x),
        s(shape),
        pixels(s.out_height(), s.out_width()),
        channels(std::max<int64_t>(1, s.group_in())),
        columns(s.kernel_w) {
    this->all_pixels = s.batch * s.pixels();
    this->all_numbers = s.group_in() * s.taps();
    this->vectors = aligned16(x) && s.group_in() % kVec<T> == 0;
  }
  __device__ __forceinline__ const T* at(int64_t pixel, int64_t number) const {
    const Place out(pixels, pixel);
    const int64_t tap = channels.quotient(number), i = columns.quotient(tap), j = tap - i * s.kernel_w;
    const int64_t row = out.row * s.stride_h - s.padding_h + i * s.dilation_h,
                  col = out.col * s.stride_w - s.padding_w + j * s.dilation_w;
    if (row < 0 || row >= s.height || col < 0 || col >= s.width) return nullptr;
    return p + ((out.outer * s.height + row) * s.width + col) * s.in_channels +
           (number - tap * int64_t(channels.divisor));
  }
};

// [N * H * W, kh * kw * O / G]: what each input pixel gave to.
template <class T>
struct GivenChannels : PixelChunks<GivenChannels<T>, T, true> {
  const T* p;
  ConvShape s;
  Grid3 pixels;
  Divider channels, columns, stride_h, stride_w;
  int64_t out_height, out_width;

  GivenChannels(const T* gy, const ConvShape& shape)
      : p(gy),
        s(shape),
        pixels(s.height, s.width),
        channels(std::max<int64_t>(1, s.group_out())),
        columns(s.kernel_w),
        stride_h(s.stride_h),
        stride_w(s.stride_w),
        out_height(s.out_height()),
        out_width(s.out_width()) {
    this->all_pixels = s.batch * s.height * s.width;
    this->all_numbers = s.group_out() * s.taps();
    this->vectors = aligned16(gy) && s.group_out() % kVec<T> == 0;
  }
  __device__ __forceinline__ const T* at(int64_t pixel, int64_t number) const {
    const Place in(pixels, pixel);
    const int64_t tap = channels.quotient(number), i = columns.quotient(tap), j = tap - i * s.kernel_w;
    const int64_t from_top = in.row + s.padding_h - i * s.dilation_h,
                  from_left = in.col + s.padding_w - j * s.dilation_w;
    if (from_top < 0 || from_left < 0) return nullptr;
    const int64_t row = stride_h.quotient(from_top), col = stride_w.quotient(from_left);
    if (row * s.stride_h != from_top || col * s.stride_w != from_left || row >= out_height || col >= out_width)
      return nullptr;
    return p + ((in.outer * out_height + row) * out_width + col) * s.out_channels +
           (number - tap * int64_t(channels.divisor));
  }
};

// [C / G, kh * kw * O / G] of weights [O / G, kh * kw, C / G]: chunks are lines.
template <class T>
struct TurnedFilters {
  using Element = T;
  static constexpr bool kAlongK = false;
  const T* p;
  int64_t channels, depth, taps;
  Divider filters;
  bool vectors;

  TurnedFilters(const T* w, const ConvShape& s)
      : p(w),
        channels(s.group_in()),
        depth(s.group_out() * s.taps()),
        taps(s.taps()),
        filters(std::max<int64_t>(1, s.group_out())),
        vectors(aligned16(w) && s.group_in() % kVec<T> == 0) {}

  __device__ __forceinline__ const T* place(int64_t line, int64_t k) const {
    const int64_t tap = filters.quotient(k), filter = k - tap * int64_t(filters.divisor);
    return p + (filter * taps + tap) * channels + line;
  }
  __device__ __forceinline__ Chunk<T> get(int64_t line, int64_t k) const {
    Chunk<T> to = no_elements<T>();
    if (line >= channels || k >= depth) return to;
    const T* const from = place(line, k);
    if (vectors) return load<kVec<T>>(from);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      if (line + e < channels) to[e] = from[e];
    }
    return to;
  }
  __device__ __forceinline__ void put(T* shared, int64_t line, int64_t k) const {
    if (vectors) {
      const bool inside = line < channels && k < depth;
      cp_async_16(shared, inside ? place(line, k) : p, inside);
    } else {
      store(shared, get(line, k));
    }
  }
};

// sum + bias[channel]; places of a channel are `channels` apart.
template <class T>
struct ChannelBias {
  const T* bias;  // may be null
  Divider channels;
  template <class F>
  __device__ __forceinline__ F operator()(F sum, int64_t at) const {
    if (bias == nullptr) return sum;
    return sum + F(bias[at - channels.quotient(at) * int64_t(channels.divisor)]);
  }
};

// gy as [O / G, N * P * Q], chunks along the filters.
template <class T>
[[nodiscard]] Lines<T, false> filter_lines(const ConvShape& s, const T* gy) {
  const bool vectors = aligned16(gy) && s.group_out() % kVec<T> == 0 && s.out_channels % kVec<T> == 0;
  return {gy, 1, s.out_channels, s.group_out(), s.batch * s.pixels(), vectors};
}

template <class T>
void conv_forward_last(const Gpu& on, const GemmPlan& plan, const ConvShape& s, const T* x, const T* w, const T* bias,
                       T* y, Accum<T>* partial) {
  const int64_t depth = s.group_in() * s.taps();
  if (s.pointwise() && s.groups == 1) {
    return gemm_batched(on, plan, {}, Matrix<T>{x, depth, 1}, Matrix<T>{w, 1, depth},
                        Target<T>{.y = y, .row_step = s.out_channels, .col_bias = bias, .partial = partial});
  }
  const Target<T, ChannelBias<T>> to{.y = y,
                                     .row_step = s.out_channels,
                                     .partial = partial,
                                     .epilogue = {bias, Divider(std::max<int64_t>(1, s.out_channels))}};
  const Strided<3> groups = conv_groups(s, s.group_in(), s.group_out() * depth, s.group_out());
  launch_gemm(on, plan, SeenChannels<T, true>(x, s), conv_weights(s, w), groups, to);
}

template <class T>
void conv_input_gradient_last(const Gpu& on, const GemmPlan& plan, const ConvShape& s, const T* gy, const T* w, T* gx,
                              Accum<T>* partial) {
  const Target<T> to{.y = gx, .row_step = s.in_channels, .partial = partial};
  if (s.pointwise() && s.groups == 1) {
    return gemm_batched(on, plan, {}, Matrix<T>{gy, s.out_channels, 1}, Matrix<T>{w, s.in_channels, 1}, to);
  }
  const Strided<3> groups = conv_groups(s, s.group_out(), s.group_out() * s.group_in() * s.taps(), s.group_in());
  launch_gemm(on, plan, GivenChannels<T>(gy, s), TurnedFilters<T>(w, s), groups, to);
}

// The plan is conv_weight_plan.
template <class T>
void conv_weight_gradient_last(const Gpu& on, const GemmPlan& plan, const ConvShape& s, const T* x, const T* gy, T* gw,
                               Accum<T>* partial) {
  const int64_t weights = s.group_in() * s.taps();
  const Target<T> to{.y = gw, .row_step = weights, .partial = partial};
  if (s.pointwise() && s.groups == 1) {
    return gemm_batched(on, plan, {}, Matrix<T>{gy, 1, s.out_channels}, Matrix<T>{x, s.in_channels, 1}, to);
  }
  const Strided<3> groups = conv_groups(s, s.group_out(), s.group_in(), s.group_out() * weights);
  launch_gemm(on, plan, filter_lines(s, gy), SeenChannels<T, false>(x, s), groups, to);
}

#define LEVIN_CONV_LAST_OF(EXTERN, T)                                                                                  \
  EXTERN template void conv_forward_last<T>(const Gpu&, const GemmPlan&, const ConvShape&, const T*, const T*,         \
                                            const T*, T*, Accum<T>*);                                                  \
  EXTERN template void conv_input_gradient_last<T>(const Gpu&, const GemmPlan&, const ConvShape&, const T*, const T*,  \
                                                   T*, Accum<T>*);                                                     \
  EXTERN template void conv_weight_gradient_last<T>(const Gpu&, const GemmPlan&, const ConvShape&, const T*, const T*, \
                                                    T*, Accum<T>*);
#define LEVIN_CONV_LAST(EXTERN)      \
  LEVIN_CONV_LAST_OF(EXTERN, float)  \
  LEVIN_CONV_LAST_OF(EXTERN, double) \
  LEVIN_CONV_LAST_OF(EXTERN, f16)    \
  LEVIN_CONV_LAST_OF(EXTERN, bf16)
LEVIN_CONV_LAST(extern)

}  // namespace levin::kernels::gpu
