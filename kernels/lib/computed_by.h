// Whether our kernels or the vendor's library compute a family of ops in a build with CUDA, and with which numbers. Switches of
// the process, so that a measurement can compare; levin/engines.h is their public face.
#pragma once

#include <cstdint>

namespace levin::kernels {

enum class ComputedBy : std::uint8_t {
  own,    // our kernels
  first,  // the library, with the engine its heuristic names first: two processes agree on it
  timed,  // the library, with the fastest of the first few engines, timed at the first call of a shape (products: as first)
};
// Products and convolutions begin with `first`, attention and batch norm with `own`: on no device has it been measured whether
// the library is faster than our kernels. Batch norm is that of training; in evaluation it is always ours.
enum class LibraryFamily : std::uint8_t { product, convolution, attention, batch_norm };

[[nodiscard]] ComputedBy computed_by(LibraryFamily family) noexcept;
void set_computed_by(LibraryFamily family, ComputedBy by) noexcept;

// Whether the library may round f32 numbers to TF32 before it multiplies them; false to begin with.
[[nodiscard]] bool tf32_allowed(LibraryFamily family) noexcept;
void allow_tf32(LibraryFamily family, bool allowed) noexcept;

}  // namespace levin::kernels
