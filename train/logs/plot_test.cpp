#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "levin/train.h"
#include "train/run/fixture_test.h"

using namespace levin;

TEST_CASE("a plot draws one path a series and breaks it where a value is not finite") {
  const std::string svg = svg_plot(
      std::vector<Series>{{.name = "a<b", .x = {0, 1, 2, 3}, .y = {1, std::nan(""), 3, 2}}}, {.title = "T & U"});
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("a&lt;b") != std::string::npos);
  CHECK(svg.find("T &amp; U") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  const std::size_t path = svg.find("<path d=\"");
  REQUIRE(path != std::string::npos);
  const std::string d = svg.substr(path, svg.find("fill", path) - path);
  CHECK(std::count(d.begin(), d.end(), 'M') == 2);  // before and after the gap
  CHECK(std::count(d.begin(), d.end(), 'L') == 1);
}

TEST_CASE("a plot of nothing, of one point and of equal values is a picture too") {
  CHECK(svg_plot({}).find("</svg>") != std::string::npos);
  for (const std::vector<double>& y : {std::vector<double>{5}, std::vector<double>{5, 5}}) {
    const std::string svg = svg_plot(std::vector<Series>{{.name = "s", .x = std::vector<double>(y.size(), 1), .y = y}});
    CHECK(svg.find("inf") == std::string::npos);
    CHECK(svg.find("nan") == std::string::npos);
  }
  CHECK_THROWS_AS((void)svg_plot(std::vector<Series>{{.name = "s", .x = {1, 2}, .y = {1}}}), ConfigError);
}

TEST_CASE("a series of one point, and a point between gaps, are drawn as dots") {
  const auto dots = [](std::vector<double> y) {
    std::vector<double> x(y.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
    const std::string svg = svg_plot(std::vector<Series>{{.name = "s", .x = x, .y = std::move(y)}});
    int n = 0;
    for (std::size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++n;
    return n;
  };
  CHECK(dots({5}) == 1);
  CHECK(dots({5, 6}) == 0);
  CHECK(dots({1, std::nan(""), 3, std::nan(""), 5, 6}) == 2);
}

TEST_CASE("metrics.csv has a sorted column a name and values that read back exactly") {
  const test::TemporaryFolder dir;
  const std::vector<LogRecord> records = {{.step = 49, .epoch = 0, .values = {{"loss", 0.1}}},
                                          {.step = 99, .epoch = 1, .values = {{"acc,\"x\"", 1.0 / 3}}}};
  write_metrics_csv(dir / "m.csv", records);
  CHECK(read_file(dir / "m.csv", 1000) == "step,epoch,\"acc,\"\"x\"\"\",loss\n49,0,,0.1\n99,1,0.33333333333333331,\n");
}
