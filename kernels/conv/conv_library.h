// Which convolutions go to the vendor's library in a build with CUDA, and how they read in its terms. Plain host
// code, so that every build tests it; kernels/conv/cudnn_conv.cpp makes the call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/conv/conv_shape.h"
#include "kernels/lib/cudnn_plans.h"
#include "levin/stream.h"
#include "levin/tensor.h"

namespace levin::kernels {

enum class ConvPass : std::uint8_t { forward, input_gradient, weight_gradient };

// y [N, K, P, Q] = conv(x [N, C, H, W], w [K, C / groups, R, S]) + bias [K]; `pass` says which of the three is computed
// from the other two. Strides are in elements and in the order of the sizes, for any layout of the memory.
struct LibraryConv {
  struct Operand {
    void* data;
    std::array<std::int64_t, 4> sizes, strides;
  };
  ConvPass pass;
  DType dtype;
  Operand x, w, y;
  const void* bias;  // or null; of the forward pass alone
  std::array<std::int64_t, 2> stride, padding, dilation;
};

// Less work than this is over before the library's larger tiles are full.
inline constexpr double kLibraryConvFlops = 1 << 23;

// The call, with x, w, y dense in one of the layouts; none where the library cannot take it or need not.
[[nodiscard]] std::optional<LibraryConv> library_conv(ConvPass pass, const ConvShape& shape, const Tensor& x,
                                                      const Tensor& w, const Tensor& y, const Tensor& bias);

[[nodiscard]] LibraryCallText said(const LibraryConv& call);

namespace lib {
// Enqueues the convolution; false where our kernels are to compute it: engine_choice says so, or cuDNN has no engine
// for it that repeats its bits and sums in f32. Plans are made once a shape and kept; CaptureError as Note [Plans and
// recordings] says.
[[nodiscard]] bool cudnn_convolve(const LibraryConv& conv, Stream stream);

[[nodiscard]] CudnnPlans cudnn_plans(const LibraryConv& conv, std::string_view device);
}  // namespace lib

}  // namespace levin::kernels
