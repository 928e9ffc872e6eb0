// Line charts as SVG.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "levin/export.h"

namespace levin {

struct Series {
  std::string name;
  std::vector<double> x, y;  // equally many; points that are not finite interrupt the line
};
enum class Axis : std::uint8_t { linear, log };
// A red dot.
struct PlotMark {
  double x = 0, y = 0;
  double size = 10;  // pixels across
};
struct PlotOptions {
  std::string title{}, x_label{}, y_label{};
  Axis x_axis = Axis::linear;  // log: x of 0 or less counts as not finite
  std::vector<PlotMark> marks{};
};
// A line chart as SVG text; `write_svg_plot` writes it to a file. Throws ConfigError when x and y differ in length.
[[nodiscard]] LEVIN_API std::string svg_plot(std::span<const Series> series, const PlotOptions& options = {});
LEVIN_API void write_svg_plot(const std::string& path, std::span<const Series> series, const PlotOptions& options = {});

}  // namespace levin
