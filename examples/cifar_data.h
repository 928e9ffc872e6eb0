// The pictures that cifar trains on: CIFAR-10's files, or drawn patterns of ten kinds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "levin/levin.h"

namespace levin::examples::cifar {

// Pictures u8 [count, 3, 32, 32] of ten patterns in two random colors, shifted, scaled and noisy, and labels u8
// [count]: a function of the generator's seed and the index, for machines without CIFAR-10.
inline std::pair<Tensor, Tensor> draw_patterns(const Generator& gen, std::int64_t count) {
  constexpr std::int64_t kSide = 32;
  Tensor images = empty({count, 3, kSide, kSide}, Device::cpu(), DType::u8),
         labels = empty({count}, Device::cpu(), DType::u8);
  auto* pixel = images.mutable_data<std::uint8_t>();
  auto* label = labels.mutable_data<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    Generator rng = gen.fork(std::to_string(i));
    const auto kind = static_cast<int>(rng.integer(0, 10));
    label[i] = static_cast<std::uint8_t>(kind);
    double color[2][3];
    for (auto& one : color) {
      for (double& channel : one) channel = rng.uniform() * 255;
    }
    const double x0 = 10 + 12 * rng.uniform(), y0 = 10 + 12 * rng.uniform(), size = 6 + 5 * rng.uniform(),
                 period = 4 + 4 * rng.uniform(), noise = 40;
    for (std::int64_t y = 0; y < kSide; ++y) {
      for (std::int64_t x = 0; x < kSide; ++x) {
        const double u = (static_cast<double>(x) - x0) / size, v = (static_cast<double>(y) - y0) / size,
                     r = std::hypot(u, v);
        const auto wave = [&](double at) { return std::fmod(std::abs(at) * size / period, 2) < 1; };
        bool inside = false;
        switch (kind) {
          case 0: inside = r < 1; break;                                                 // disc
          case 1: inside = r < 1.2 && r > 0.7; break;                                    // ring
          case 2: inside = std::max(std::abs(u), std::abs(v)) < 0.9; break;              // square
          case 3: inside = v > -0.8 && v < 0.8 && std::abs(u) < (v + 0.8) / 1.6; break;  // triangle
          case 4: inside = std::min(std::abs(u), std::abs(v)) < 0.25 && r < 1.4; break;  // cross
          case 5: inside = wave(u); break;                                               // vertical stripes
          case 6: inside = wave(v); break;                                               // horizontal stripes
          case 7: inside = wave(u) != wave(v); break;                                    // squares of a chessboard
          case 8: inside = wave(u + v); break;                                           // diagonal stripes
          default: inside = wave(2 * r); break;                                          // rings
        }
        for (std::int64_t c = 0; c < 3; ++c) {
          const double value = color[inside ? 1 : 0][c] + noise * (rng.uniform() - 0.5);
          pixel[((i * 3 + c) * kSide + y) * kSide + x] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
        }
      }
    }
  }
  return {images, labels};
}
inline const std::vector<std::string> kPatterns = {"disc",     "ring",       "square", "triangle", "cross",
                                                   "vertical", "horizontal", "chess",  "diagonal", "rings"};

}  // namespace levin::examples::cifar
