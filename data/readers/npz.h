// .npz over any source, and its bytes in memory.
#pragma once

#include <deque>

#include "levin/data/readers.h"
#include "tensor/files/file.h"

namespace levin::data {

[[nodiscard]] NamedTensors read_npz(detail::Source& source, NpzLimits limits = {});

// A zip file as parts, of which `texts` and `tensors` own the bytes.
struct NpzParts {
  std::deque<std::string> texts{};
  std::vector<Tensor> tensors{};
  std::vector<std::span<const std::byte>> parts{};
};
// Sizes and positions from `zip64_from` on stand in zip64's fields; tests give a small one.
[[nodiscard]] NpzParts npz_parts(const std::string& path, const NamedTensors& tensors, NpzPacking packing,
                                 std::uint64_t zip64_from = 0xffffffff);

}  // namespace levin::data
