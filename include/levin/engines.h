// Who computes an op on a GPU, in builds with CUDA: Levin's kernels or the vendor's libraries, cuBLASLt and cuDNN; and
// whether f32 numbers may be rounded to TF32 before they are multiplied. The switches belong to the process, and an op
// reads them when it is called: a recorded graph stays as it was recorded. Without CUDA they change nothing.
//
//   set_engine_choice(EngineFamily::attention, EngineChoice::own);     // by Levin's kernels, not by cuDNN
//   set_allow_tf32(EngineFamily::product, AllowTf32::yes);             // torch.backends.cuda.matmul.allow_tf32 = True
#pragma once

#include <cstdint>

#include "levin/export.h"

namespace levin {

// product: matmul, linear, gelu_mlp and what is made of them, by cuBLASLt where the product is large. convolution:
// conv1d, conv2d and their gradients, where they are large. attention: scaled_dot_product_attention of 16-bit heads,
// forward and backward each for itself. batch_norm: batch_norm_train of images [N, C, H, W]. Levin's kernels compute
// what a library does not take, and with `first` the gradients of attention with more than 2^25 scores on a GPU of
// compute capability 9.0.
enum class EngineFamily : std::uint8_t { product, convolution, attention, batch_norm };

// own: Levin's kernels. first: the library, with the engine that its heuristic names first, so that two processes give
// the same bits. timed: the fastest of the first few engines, timed at the first call of a shape; a product whose shape
// is first met in a recording gets the first. Only engines that repeat their bits are used. cuDNN makes a plan at the
// first call of a shape, which no recording can hold: call a new shape once before a Graph records it, or the recording
// throws CaptureError.
enum class EngineChoice : std::uint8_t { own, first, timed };

// Chooses for a family and returns the previous choice. Batch norm begins with own, because Levin's kernel also updates
// the running statistics; the other families begin with first.
LEVIN_API EngineChoice set_engine_choice(EngineFamily family, EngineChoice choice) noexcept;
[[nodiscard]] LEVIN_API EngineChoice engine_choice(EngineFamily family) noexcept;

// Whether f32 numbers may lose 13 bits of their mantissa before they are multiplied on tensor cores: several times
// faster, with a relative error of up to 2^-10 for each product instead of 2^-24; sums stay f32. Off by default, also
// for convolutions (PyTorch's are on). Affects products and convolutions that the library computes: ConfigError for
// other families. set_allow_tf32 returns the previous value.
enum class AllowTf32 : bool { no, yes };
LEVIN_API AllowTf32 set_allow_tf32(EngineFamily family, AllowTf32 allow);
[[nodiscard]] LEVIN_API AllowTf32 allow_tf32(EngineFamily family) noexcept;

}  // namespace levin
