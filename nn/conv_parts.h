// What the convolution layers share: checks of their options, the shapes of their weights, padding in a mode.
#pragma once

#include <array>

#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {

inline void check_groups(std::string_view layer, std::int64_t in, std::int64_t out, std::int64_t groups) {
  check_size(layer, "in", in);
  check_size(layer, "out", out);
  check_at_least(layer, "groups", groups, 1);
  if (in % groups != 0 || out % groups != 0) {
    fail<ConfigError>(layer, ": groups is ", groups, ", expected a divisor of in ", in, " and out ", out);
  }
}

// One number for each axis.
inline std::array<std::int64_t, 1> numbers(std::int64_t n) { return {n}; }
template <class Size>
auto numbers(const Size& size) {
  return size.array();
}

template <class Size>
void check_each(std::string_view layer, std::string_view option, const Size& size, std::int64_t least) {
  for (const std::int64_t v : numbers(size)) {
    check_at_least(layer, option, v, least);
    check_range(layer, option, v, least, kMostWindow);
  }
}

// Of an average pool.
template <class Size>
void check_no_dilation(std::string_view layer, const Size& dilation) {
  for (const std::int64_t v : numbers(dilation)) {
    if (v != 1) fail<ConfigError>(layer, ": dilation is ", v, ", expected 1: only max pools have one");
  }
}

template <class O>
void check_windows(std::string_view layer, const O& o) {
  check_each(layer, "kernel", o.kernel, 1);
  check_each(layer, "stride", o.stride, 1);
  check_each(layer, "padding", o.padding, 0);
  check_each(layer, "dilation", o.dilation, 1);
}

template <class O>
const O& checked_conv(std::string_view layer, const O& o) {
  check_groups(layer, o.in, o.out, o.groups);
  check_windows(layer, o);
  if constexpr (requires { o.padding_rule; }) {
    if (o.padding_rule == PaddingRule::given) return o;
    for (const std::int64_t v : numbers(o.stride)) {
      if (v != 1) fail<ConfigError>(layer, ": stride is ", v, ", expected 1 with PaddingRule::same");
    }
    for (const std::int64_t v : numbers(o.padding)) {
      if (v != 0) fail<ConfigError>(layer, ": padding is ", v, ", expected 0 with PaddingRule::same");
    }
  }
  return o;
}

// [a, b / groups, kernel...]: out and in for a convolution, in and out for its transpose.
template <class Size>
Shape weight_shape(std::int64_t a, std::int64_t b, std::int64_t groups, const Size& kernel) {
  Shape shape{a, b / groups};
  for (const std::int64_t k : numbers(kernel)) shape = shape.inserted(shape.rank(), k);
  return shape;
}
// The number of elements of weight[0].
inline std::int64_t fan_in(const Shape& weight) { return weight.numel() / weight[0]; }

// x with the padding of the options' mode around it, for a convolution without padding. Odd padding has its larger half
// at the end.
template <class O>
Tensor with_border(const Tensor& x, const char* layer, const O& o) {
  const auto kernel = numbers(o.kernel), padding = numbers(o.padding), dilation = numbers(o.dilation);
  constexpr std::size_t kAxes = std::tuple_size_v<decltype(numbers(o.kernel))>;
  // pad would take them for other dimensions.
  if (x.rank() != static_cast<int>(kAxes) + 2)
    fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected ", kAxes + 2, " dimensions");
  std::array<std::int64_t, 2 * kAxes> pads{};
  for (std::size_t i = 0; i < kAxes; ++i) {
    // Both are at most 2^31.
    const bool same = o.padding_rule == PaddingRule::same;
    const std::int64_t total = same ? dilation[i] * (kernel[i] - 1) : 2 * padding[i];
    const std::size_t at = 2 * (kAxes - 1 - i);  // the last axis first
    pads[at] = total / 2;
    pads[at + 1] = total - total / 2;
  }
  return pad(x, Dims(std::span<const std::int64_t>(pads)), o.padding_mode);
}

}  // namespace levin::nn
