// Who computes an op on a GPU, in builds with CUDA: our kernels or the vendor's libraries, cuBLASLt and cuDNN; and whether f32
// numbers may be rounded to TF32 before they are multiplied. Switches of the process, looked at when an op is called: a
// recorded graph stays what it was recorded as. Without CUDA they are kept and change nothing.
//
//   set_engine_choice(EngineFamily::attention, EngineChoice::first);   // by cuDNN where it has an engine
//   set_allow_tf32(EngineFamily::product, AllowTf32::yes);             // torch.backends.cuda.matmul.allow_tf32 = True
#pragma once

#include <cstdint>

#include "levin/export.h"

namespace levin {

// product: matmul, bmm, linear, gelu_mlp and what is made of them, by cuBLASLt where the product is large and its memory
// aligned. convolution: conv1d, conv2d and their gradients, where they are large. attention: scaled_dot_product_attention of
// 16-bit heads, each direction for itself. batch_norm: batch_norm_train of images [N, C, H, W]. What a library does not take
// is always our kernels'.
enum class EngineFamily : std::uint8_t { product, convolution, attention, batch_norm };

// own: our kernels. first: the library, with the engine that its heuristic names first, so that two processes give the
// same bits. timed: with the fastest of the first few, timed at the first call of a shape; for products as first. Of
// both kinds only engines that repeat their bits are asked. cuDNN makes a plan at the first call of a shape, which no
// recording can hold: a shape that a Graph's recording meets first is CaptureError, and one eager call of it before
// mends that.
enum class EngineChoice : std::uint8_t { own, first, timed };

// Products and convolutions begin with first, attention and batch norm with own: on no device has it been measured whether the
// library is faster there. Returns what was chosen before.
LEVIN_API EngineChoice set_engine_choice(EngineFamily family, EngineChoice choice) noexcept;
[[nodiscard]] LEVIN_API EngineChoice engine_choice(EngineFamily family) noexcept;

// Whether f32 numbers may lose 13 bits of their mantissa before they are multiplied, on tensor cores: several times faster,
// with a relative error of up to 2^-10 for each product instead of 2^-24; sums stay f32. By default never, also for convolutions
// (PyTorch allows it there). Of products and convolutions that the library computes: ConfigError for other families. Returns
// what was allowed before.
enum class AllowTf32 : bool { no, yes };
LEVIN_API AllowTf32 set_allow_tf32(EngineFamily family, AllowTf32 allow);
[[nodiscard]] LEVIN_API AllowTf32 allow_tf32(EngineFamily family) noexcept;

}  // namespace levin
