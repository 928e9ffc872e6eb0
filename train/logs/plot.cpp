#include <algorithm>
#include <array>
#include <cmath>

#include "levin/train.h"
#include "tensor/text/number_text.h"

namespace levin {
namespace {

using detail::fixed;
using detail::general;

constexpr double kWidth = 760, kHeight = 440;                       // pixels
constexpr double kLeft = 70, kRight = 20, kTop = 40, kBottom = 50;  // margins
constexpr std::array kColours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

struct Range {
  double low = HUGE_VAL, high = -HUGE_VAL;
  void take(double x) {
    if (!std::isfinite(x)) return;
    low = std::min(low, x);
    high = std::max(high, x);
  }
  // Widens an empty range, so that no point and points of one value can be drawn.
  void widen() {
    if (low > high) low = 0, high = 1;
    if (low == high) low -= 0.5, high += 0.5;
  }
};

// The step of 1, 2 or 5 times a power of ten that gives about `count` ticks.
double tick_step(const Range& r, int count) {
  const double raw = (r.high - r.low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= raw) return m * power;
  }
  return 10 * power;
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view content, std::string_view more = "") {
  return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + std::string(anchor) + "\"" +
         std::string(more) + ">" + escaped(content) + "</text>\n";
}
std::string line(double x0, double y0, double x1, double y1, std::string_view colour) {
  return "<line x1=\"" + fixed(x0, 1) + "\" y1=\"" + fixed(y0, 1) + "\" x2=\"" + fixed(x1, 1) + "\" y2=\"" +
         fixed(y1, 1) + "\" stroke=\"" + std::string(colour) + "\"/>\n";
}

// The places and labels of grid lines. On a log axis, whose values are exponents, they are whole powers of ten.
std::vector<std::pair<double, std::string>> ticks(const Range& r, int count, Axis axis) {
  std::vector<std::pair<double, std::string>> out;
  const double step = axis == Axis::log ? std::max(1.0, std::ceil((r.high - r.low) / count)) : tick_step(r, count);
  for (double v = std::ceil(r.low / step) * step; v <= r.high; v += step) {
    const double shown = axis == Axis::log ? std::pow(10.0, v) : std::abs(v) < step / 2 ? 0 : v;
    out.emplace_back(v, general(shown, 6));
  }
  return out;
}

}  // namespace

std::string svg_plot(std::span<const Series> series, const PlotOptions& options) {
  const auto along = [&](double x) { return options.x_axis == Axis::log ? std::log10(x > 0 ? x : NAN) : x; };
  Range xs, ys;
  for (const Series& s : series) {
    if (s.x.size() != s.y.size())
      fail<ConfigError>("svg_plot: series \"", s.name, "\" has ", s.x.size(), " x and ", s.y.size(),
                        " y values, expected equally many");
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      if (!std::isfinite(along(s.x[i])) || !std::isfinite(s.y[i])) continue;
      xs.take(along(s.x[i]));
      ys.take(s.y[i]);
    }
  }
  for (const PlotMark& m : options.marks) {
    if (!std::isfinite(along(m.x)) || !std::isfinite(m.y)) continue;
    xs.take(along(m.x));
    ys.take(m.y);
  }
  xs.widen();
  ys.widen();
  const double w = kWidth - kLeft - kRight, h = kHeight - kTop - kBottom;
  const auto px = [&](double x) { return kLeft + (x - xs.low) / (xs.high - xs.low) * w; };
  const auto py = [&](double y) { return kTop + h - (y - ys.low) / (ys.high - ys.low) * h; };

  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + fixed(kWidth, 0) + "\" height=\"" +
                    fixed(kHeight, 0) +
                    "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
                    "fill=\"white\"/>\n";
  for (const auto& [x, label] : ticks(xs, 8, options.x_axis)) {
    out += line(px(x), kTop, px(x), kTop + h, "#eee");
    out += text_at(px(x), kTop + h + 18, "middle", label);
  }
  for (const auto& [y, label] : ticks(ys, 6, Axis::linear)) {
    out += line(kLeft, py(y), kLeft + w, py(y), "#eee");
    out += text_at(kLeft - 6, py(y) + 4, "end", label);
  }
  out += line(kLeft, kTop + h, kLeft + w, kTop + h, "#444") + line(kLeft, kTop, kLeft, kTop + h, "#444");
  out += text_at(kLeft + w / 2, 22, "middle", options.title, " font-size=\"15\"");
  out += text_at(kLeft + w / 2, kHeight - 10, "middle", options.x_label);
  out += text_at(16, kTop + h / 2, "middle", options.y_label,
                 " transform=\"rotate(-90 16 " + fixed(kTop + h / 2, 1) + ")\"");

  for (std::size_t k = 0; k < series.size(); ++k) {
    const Series& s = series[k];
    const std::string colour = kColours[k % kColours.size()];
    std::string path;
    bool drawing = false;
    const auto drawn = [&](std::size_t i) {
      return i < s.x.size() && std::isfinite(along(s.x[i])) && std::isfinite(s.y[i]);
    };
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      if (!drawn(i)) {
        drawing = false;
        continue;
      }
      if (!drawing && !drawn(i + 1))  // a line of one point shows nothing
        out += "<circle cx=\"" + fixed(px(along(s.x[i])), 2) + "\" cy=\"" + fixed(py(s.y[i]), 2) +
               "\" r=\"2.5\" fill=\"" + colour + "\"/>\n";
      path += (drawing ? " L" : " M") + fixed(px(along(s.x[i])), 2) + " " + fixed(py(s.y[i]), 2);
      drawing = true;
    }
    if (!path.empty())
      out += "<path d=\"" + path.substr(1) + "\" fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"1.5\"/>\n";
    const double y = kTop + 14 + 16 * static_cast<double>(k);
    out += line(kLeft + w - 130, y - 4, kLeft + w - 110, y - 4, colour);
    out += text_at(kLeft + w - 104, y, "start", s.name);
  }
  for (const PlotMark& m : options.marks) {
    if (!std::isfinite(along(m.x)) || !std::isfinite(m.y)) continue;
    out += "<circle cx=\"" + fixed(px(along(m.x)), 2) + "\" cy=\"" + fixed(py(m.y), 2) + "\" r=\"" +
           general(m.size / 2, 6) + "\" fill=\"red\"/>\n";
  }
  return out + "</svg>\n";
}

void write_svg_plot(const std::string& path, std::span<const Series> series, const PlotOptions& options) {
  write_file_atomically(path, svg_plot(series, options));
}

}  // namespace levin
