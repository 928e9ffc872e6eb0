// Size classes of the allocators: powers of two, each split in four, so that at most a fifth of a block is unused.
#pragma once

#include <bit>
#include <cstddef>

namespace levin::detail {

inline constexpr std::size_t kSizeClasses = 4 * 64;
// The limit of every shape and dtype; it bounds the number of classes.
inline constexpr std::size_t kMaxBlockBytes = std::size_t{1} << 53;

struct SizeClass {
  std::size_t index, bytes;
};
[[nodiscard]] inline SizeClass size_class(std::size_t bytes) {
  bytes = bytes < 256 ? 256 : bytes;
  const std::size_t power = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;  // 2^power < bytes
  const std::size_t quarter = std::size_t{1} << (power - 2);
  const std::size_t steps = (bytes - (std::size_t{1} << power) + quarter - 1) / quarter;  // 1 .. 4
  return {power * 4 + steps, (std::size_t{1} << power) + steps * quarter};
}

// The bytes of the class with this index.
[[nodiscard]] inline std::size_t class_bytes(std::size_t index) {
  const std::size_t power = (index - 1) / 4;  // size_class counts steps from 1
  return (std::size_t{1} << power) + (index - power * 4) * (std::size_t{1} << (power - 2));
}

}  // namespace levin::detail
