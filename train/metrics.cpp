#include "levin/train/metrics.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "levin/serialize.h"

namespace levin {
namespace {
std::string shortest(double x) {
  // %.17g reads back exactly; the shortest text that does is kinder to the eye.
  std::array<char, 40> buffer{};
  for (const int digits : {6, 9, 12, 15, 17}) {
    const int n = std::snprintf(buffer.data(), buffer.size(), "%.*g", digits, x);
    const std::string s(buffer.data(), static_cast<std::size_t>(n));
    if (std::isnan(x) || std::strtod(s.c_str(), nullptr) == x) return s;
  }
  return buffer.data();
}
}  // namespace

void write_metrics_csv(const std::string& path, std::span<const LogRecord> records) {
  std::set<std::string> names;
  for (const LogRecord& r : records) {
    for (const auto& [name, value] : r.values) names.insert(name);
  }
  std::string out = "step,epoch";
  for (const std::string& name : names) {
    const bool quote = name.find_first_of(",\"\n") != std::string::npos;
    out += ',';
    if (quote) out += '"';
    for (const char c : name) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    if (quote) out += '"';
  }
  out += '\n';
  for (const LogRecord& r : records) {
    out += std::to_string(r.step) + ',' + std::to_string(r.epoch);
    const std::map<std::string, double> values(r.values.begin(), r.values.end());
    for (const std::string& name : names) {
      out += ',';
      if (const auto it = values.find(name); it != values.end()) out += shortest(it->second);
    }
    out += '\n';
  }
  write_file_atomically(path, out);
}

}  // namespace levin
