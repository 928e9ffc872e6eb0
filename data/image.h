// Readers of pictures over bytes in memory: u8 [H, W] grey or [H, W, 3].
#pragma once

#include <string>
#include <string_view>

#include "levin/tensor.h"

namespace levin::data {

// More than any photograph has; PIL refuses half as many.
inline constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 28;
inline constexpr std::size_t kMostImageFile = std::size_t{1} << 30;

[[nodiscard]] Tensor read_png(const std::string& path, std::string_view content);
// Throws UnsupportedError in a build without libjpeg.
[[nodiscard]] Tensor read_jpeg(const std::string& path, std::string_view content,
                               std::uint64_t most_pixels = kMostPixels);
[[nodiscard]] bool has_jpeg();
// By the first bytes.
[[nodiscard]] Tensor read_image(const std::string& path, std::string_view content);

}  // namespace levin::data
