// The reader of CIFAR-10 batches over any source: tests give it damaged bytes in memory.
#pragma once

#include "levin/data/readers.h"
#include "tensor/files/file.h"

namespace levin::data {

// A label, then the red, the green and the blue plane.
inline constexpr std::size_t kCifarPixels = std::size_t{3} * 32 * 32, kCifarRecord = 1 + kCifarPixels;

// Whole records with right labels, at least one. A packed file may hold `most_bytes`, or 64 times its size if that is
// more.
[[nodiscard]] std::vector<std::byte> read_cifar10(detail::Source& source,
                                                  std::uint64_t most_bytes = std::uint64_t{256} << 20,
                                                  std::uint64_t xz_memory = std::uint64_t{128} << 20);

// The ten lines of batches.meta.txt.
[[nodiscard]] std::vector<std::string> read_cifar10_classes(const std::string& file, std::string_view content);

}  // namespace levin::data
