// The picture of what mnist misclassified.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "examples/predictions.h"

namespace levin::examples {

inline constexpr std::int64_t kClasses = 10, kSide = 28;

// Digits of 3 x 5 pixels for the labels below the pictures, three bits per row.
inline constexpr std::uint8_t kFont[kClasses][5] = {{7, 5, 5, 5, 7}, {2, 6, 2, 2, 7}, {7, 1, 7, 4, 7}, {7, 1, 7, 1, 7},
                                                    {5, 5, 7, 1, 1}, {7, 4, 7, 1, 7}, {7, 4, 7, 5, 7}, {7, 1, 1, 1, 1},
                                                    {7, 5, 7, 5, 7}, {7, 5, 7, 1, 7}};

// The misclassified pictures, each above "true > predicted".
inline void draw_misclassified(const std::string& path, const data::Dataset& test, const Predictions& p) {
  constexpr std::size_t kMost = 400;
  constexpr std::int64_t kLabel = 14;  // rows below a picture
  constexpr int kScale = 2;            // of the font
  std::vector<std::int64_t> wrong = p.wrong();
  if (wrong.size() > kMost) wrong.resize(kMost);
  const auto count = static_cast<std::int64_t>(wrong.size());
  std::vector<std::uint8_t> pixels(
      static_cast<std::size_t>(std::max<std::int64_t>(1, count) * (kSide + kLabel) * kSide));
  for (std::size_t k = 0; k < wrong.size(); ++k) {
    std::uint8_t* tile = pixels.data() + k * static_cast<std::size_t>((kSide + kLabel) * kSide);
    Generator none(0);  // test samples draw nothing
    const std::vector<float> image = test.get(wrong[k], none)[0].contiguous().to_vector<float>();
    const data::Normalization n = data::kMnistNormalization;
    for (std::size_t i = 0; i < image.size(); ++i)
      tile[i] = static_cast<std::uint8_t>(std::lround(std::clamp(image[i] * n.std + n.mean, 0.f, 1.f) * 255));
    const auto ink = [&](std::int64_t x, std::int64_t y, std::uint8_t grey) {
      for (int dy = 0; dy < kScale; ++dy) {
        for (int dx = 0; dx < kScale; ++dx) tile[(kSide + 2 + y * kScale + dy) * kSide + x + dx] = grey;
      }
    };
    const auto digit = [&](std::int64_t x, std::int64_t which, std::uint8_t grey) {
      for (int row = 0; row < 5; ++row) {
        for (int column = 0; column < 3; ++column) {
          if (kFont[which][row] >> (2 - column) & 1) ink(x + kScale * column, row, grey);
        }
      }
    };
    const auto i = static_cast<std::size_t>(wrong[k]);
    digit(3, p.truth[i], 255);
    for (int row = 0; row < 5; ++row) ink(12 + kScale * (row < 3 ? row : 4 - row), row, 110);
    digit(20, p.predicted[i], 180);
  }
  const Tensor tiles =
      from_data<std::uint8_t>(pixels, {std::max<std::int64_t>(1, count), kSide + kLabel, kSide}, Device::cpu());
  data::save_png(path, data::contact_sheet(tiles, 20));
}

}  // namespace levin::examples
