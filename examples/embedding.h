// The picture of a learned embedding: its two principal components, a dot a sample, colored by class.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "levin/levin.h"

namespace levin::examples {

// The samples x [N, D] on the two directions of greatest variance, and the shares of the variance that they hold.
struct Projection {
  std::vector<std::array<double, 2>> points;
  std::array<double, 2> share{};
};
// By subspace iteration on the covariance [D, D]: D is small beside N.
inline Projection principal_components(const Tensor& x) {
  const auto n = static_cast<std::size_t>(x.size(0)), d = static_cast<std::size_t>(x.size(1));
  const std::vector<double> values = x.detach().to(Device::cpu()).to(DType::f64).contiguous().to_vector<double>();
  std::vector<double> mean(d), cov(d * d);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < d; ++j) mean[j] += values[i * d + j] / static_cast<double>(n);
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      for (std::size_t k = 0; k < d; ++k)
        cov[j * d + k] += (values[i * d + j] - mean[j]) * (values[i * d + k] - mean[k]) / static_cast<double>(n);
    }
  }
  double total = 0;
  for (std::size_t j = 0; j < d; ++j) total += cov[j * d + j];
  Projection out;
  std::array<std::vector<double>, 2> axes;
  for (std::size_t a = 0; a < 2; ++a) {
    std::vector<double> v(d), w(d);
    for (std::size_t j = 0; j < d; ++j) v[j] = 1.0 / static_cast<double>(1 + (j + a) % 7) + (j % 2 == a ? 1 : 0);
    double length = 0;
    for (int round = 0; round < 500; ++round) {
      for (std::size_t b = 0; b < a; ++b) {
        double along = 0;
        for (std::size_t j = 0; j < d; ++j) along += v[j] * axes[b][j];
        for (std::size_t j = 0; j < d; ++j) v[j] -= along * axes[b][j];
      }
      for (std::size_t j = 0; j < d; ++j) {
        w[j] = 0;
        for (std::size_t k = 0; k < d; ++k) w[j] += cov[j * d + k] * v[k];
      }
      length = 0;
      for (const double e : w) length += e * e;
      length = std::sqrt(length);
      if (!(length > 0)) break;
      for (std::size_t j = 0; j < d; ++j) v[j] = w[j] / length;
    }
    out.share[a] = total > 0 ? length / total : 0;
    axes[a] = v;
  }
  out.points.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t a = 0; a < 2; ++a) {
      for (std::size_t j = 0; j < d; ++j) out.points[i][a] += (values[i * d + j] - mean[j]) * axes[a][j];
    }
  }
  return out;
}

// embedding.svg: the samples of x [N, D] by principal components, with a legend of the classes.
inline void draw_embedding(const std::string& path, const Tensor& x, const std::vector<std::int64_t>& label,
                           const std::vector<std::string>& classes, const std::string& title) {
  static constexpr const char* kColors[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee",
                                            "#aa3377", "#bbbbbb", "#ee8866", "#44bb99", "#222255"};
  constexpr double kWidth = 760, kHeight = 620, kLeft = 30, kTop = 50, kPlot = 540;
  const Projection p = principal_components(x);
  std::array<double, 2> low{}, high{};
  for (std::size_t a = 0; a < 2; ++a) {
    for (std::size_t i = 0; i < p.points.size(); ++i) {
      low[a] = i == 0 ? p.points[i][a] : std::min(low[a], p.points[i][a]);
      high[a] = i == 0 ? p.points[i][a] : std::max(high[a], p.points[i][a]);
    }
    if (!(high[a] > low[a])) high[a] = low[a] + 1;
  }
  std::string svg;
  const auto add = [&svg](const char* format, auto... values) {
    std::array<char, 512> line{};
    std::snprintf(line.data(), line.size(), format, values...);
    svg += line.data();
  };
  add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\">\n", kWidth,
      kHeight);
  add("<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%.0f\" y=\"28\" font-size=\"18\">%s</text>\n",
      kLeft, title.c_str());
  add("<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" fill=\"none\" stroke=\"#999\"/>\n", kLeft, kTop,
      kPlot, kPlot);
  for (std::size_t i = 0; i < p.points.size(); ++i) {
    const auto at = [&](std::size_t a) { return (p.points[i][a] - low[a]) / (high[a] - low[a]); };
    add("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\" fill-opacity=\"0.7\"/>\n",
        kLeft + 8 + at(0) * (kPlot - 16), kTop + kPlot - 8 - at(1) * (kPlot - 16),
        kColors[static_cast<std::size_t>(label[i]) % std::size(kColors)]);
  }
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const double y = kTop + 16 + 22 * static_cast<double>(c);
    add("<circle cx=\"%.0f\" cy=\"%.0f\" r=\"6\" fill=\"%s\"/>\n<text x=\"%.0f\" y=\"%.0f\" "
        "font-size=\"14\">%s</text>\n",
        kLeft + kPlot + 20, y, kColors[c % std::size(kColors)], kLeft + kPlot + 32, y + 5, classes[c].c_str());
  }
  add("<text x=\"%.0f\" y=\"%.0f\" font-size=\"13\">first component (%.0f %% of the variance); upwards: the second "
      "(%.0f "
      "%%)</text>\n</svg>\n",
      kLeft, kTop + kPlot + 22, 100 * p.share[0], 100 * p.share[1]);
  write_file_atomically(path, svg);
}

}  // namespace levin::examples
