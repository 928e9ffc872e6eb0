#include "train/callbacks/monitored.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::train {

std::optional<double> metric(const Metrics& metrics, std::string_view name) {
  for (const auto& [known, value] : metrics) {
    if (known == name) return value;
  }
  return {};
}

std::string names_of(const Metrics& metrics) {
  std::string names;
  for (const auto& [name, value] : metrics) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

const char* name_of(Mode mode) { return mode == Mode::min ? "min" : "max"; }

bool better(Mode mode, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  return mode == Mode::min ? a < b : a > b;
}

std::string exact(double x) { return detail::hexadecimal(x); }

double read_number(const char* who, std::string_view name, const std::string& text) {
  std::string point = text;
  std::replace(point.begin(), point.end(), ',',
               '.');  // files of version 3 may hold the comma of their program's locale
  const std::optional<double> x = detail::read_double(point);
  if (!x) fail<ConfigError>(std::string(who), ": the state's ", name, " is \"", text, "\", expected a number");
  return *x;
}

std::int64_t read_count(const char* who, std::string_view name, const std::string& text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 0)
    fail<ConfigError>(std::string(who), ": the state's ", name, " is \"", text, "\", expected a count");
  return n;
}

}  // namespace levin::train
