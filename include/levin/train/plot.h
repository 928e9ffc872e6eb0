// Line charts as SVG.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "levin/export.h"

namespace levin {

// A line of the chart.
struct Series {
  std::string name;
  std::vector<double> x, y;  // of one length; points that are not finite interrupt the line
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
// Draws a line chart: as SVG text, or into a file. Throw ConfigError if x and y differ in length, FileError.
[[nodiscard]] LEVIN_API std::string svg_plot(std::span<const Series> series, const PlotOptions& options = {});
LEVIN_API void write_svg_plot(const std::string& path, std::span<const Series> series, const PlotOptions& options = {});

}  // namespace levin
