// What TMA needs to know of a matrix in global memory, or of many equal ones, to copy boxes of it: a TensorMap, made on
// the host and passed to a kernel as a `const __grid_constant__` parameter. PTX ISA, "Tensor"; CUDA driver API,
// cuTensorMapEncodeTiled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "levin/dtype.h"

namespace levin::kernels {

#if defined(LEVIN_CUDA)
inline constexpr std::size_t kTensorMapAlignment = 64;
#else
inline constexpr std::size_t kTensorMapAlignment = 8;
#endif
struct alignas(kTensorMapAlignment) TensorMap {
  std::uint64_t words[16];
};

// How the 16-byte pieces of a box lie in shared memory: piece c of the bytes at 128 r, r from an address that is a
// multiple of 1024, lies at piece c ^ (r & 7), (r / 2 & 3), (r / 4 & 1) for 128, 64, 32 bytes.
enum class Swizzle : std::uint8_t { none, bytes32, bytes64, bytes128 };

// A matrix of 16-bit floats, [rows, columns], its rows row_bytes apart, and the box of one copy. With heads and batches
// the map is of equal matrices [batches, heads, rows, columns], and a box is of one of them.
struct TiledMatrix {
  struct Many {
    std::int64_t count, bytes;  // neighbours are `bytes` apart
  };
  const void* data;
  DType dtype;
  std::int64_t columns, rows, row_bytes;
  std::int32_t box_columns, box_rows;
  Swizzle swizzle = Swizzle::bytes128;
  Many heads{}, batches{};  // both or neither

  [[nodiscard]] bool is_of_heads() const { return heads.count != 0; }
};

// One of the matrices of a map of heads and batches.
struct MapHead {
  std::int32_t head = 0, batch = 0;
};

// The first limit of TMA that the matrix does not meet, as text; none where it meets all.
[[nodiscard]] std::optional<std::string> tensor_map_refusal(const TiledMatrix& matrix);

// Throws UnsupportedError for a matrix that TMA cannot address, and CudaError where the driver has no TMA.
[[nodiscard]] TensorMap tensor_map(const TiledMatrix& matrix);

#if defined(LEVIN_SIMT)
// What a map of tensor_map describes; none for other bytes. For the shim.
[[nodiscard]] std::optional<TiledMatrix> decoded(const TensorMap& map);
#endif

}  // namespace levin::kernels
