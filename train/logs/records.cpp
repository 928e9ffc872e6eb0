#include "levin/train/records.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "levin/error.h"
#include "levin/serialize.h"
#include "tensor/text/number_text.h"
#include "train/logs/csv.h"

namespace levin {
namespace {

std::string shortest(double x) {
  // 17 digits read back exactly; the shortest text that does is easier to read.
  for (const int digits : {6, 9, 12, 15}) {
    std::string s = detail::general(x, digits);
    if (std::isnan(x) || detail::read_double(s) == x) return s;
  }
  return detail::general(x, 17);
}

// Returns the field that begins at `at`, and moves `at` to the comma or line end after it.
std::string field(std::string_view text, std::size_t& at) {
  std::string out;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' && quoted && at + 1 < text.size() && text[at + 1] == '"') {
      out += c;
      ++at;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == ',' || c == '\n')) {
      break;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

namespace train {

std::string csv_header(const Names& names) {
  std::string out = "step,epoch";
  for (const std::string& name : names) {
    const bool quote = name.find_first_of(",\"\n") != std::string::npos;
    out += ',';
    if (quote) out += '"';
    for (const char c : name) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    if (quote) out += '"';
  }
  return out + '\n';
}

std::string csv_row(const LogRecord& record, const Names& names) {
  std::string out = std::to_string(record.step) + ',' + std::to_string(record.epoch);
  const std::map<std::string_view, double> values(record.values.begin(), record.values.end());
  for (const std::string& name : names) {
    out += ',';
    if (const auto it = values.find(name); it != values.end()) out += shortest(it->second);
  }
  return out + '\n';
}

CsvText read_csv(const std::string& path, std::string_view text) {
  CsvText csv;
  std::vector<std::string> fields;
  std::size_t at = 0;
  for (;; ++at) {
    fields.push_back(field(text, at));
    if (at >= text.size() || text[at] == '\n') break;
  }
  if (at >= text.size() || fields.size() < 2 || fields[0] != "step" || fields[1] != "epoch")
    fail<FormatError>(path, ": does not begin with \"step,epoch\" and a line end; move it out of the way");
  csv.names.assign(fields.begin() + 2, fields.end());
  for (++at; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) {
      csv.cut = true;
      break;
    }
    csv.lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return csv;
}

std::int64_t step_of(const std::string& path, std::string_view line) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  if (error != std::errc() || end == line.data() + line.size() || *end != ',')
    fail<FormatError>(path, ": the line \"", line.substr(0, 80), "\" does not begin with a step");
  return step;
}

std::vector<std::string_view> cells_of(const std::string& path, const CsvText& csv, std::string_view line) {
  std::vector<std::string_view> cells;
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(line.find(',', at), line.size());
    cells.push_back(line.substr(at, end - at));
    if (end == line.size()) break;
    at = end + 1;
  }
  if (cells.size() != csv.names.size() + 2)
    fail<FormatError>(path, ": the line \"", line.substr(0, 80), "\" has ", cells.size(), " cells, expected ",
                      csv.names.size() + 2);
  return cells;
}

}  // namespace train

void write_metrics_csv(const std::string& path, std::span<const LogRecord> records) {
  train::Names names;
  for (const LogRecord& r : records) {
    for (const auto& [name, value] : r.values) names.insert(name);
  }
  std::string out = train::csv_header(names);
  for (const LogRecord& r : records) out += train::csv_row(r, names);
  write_file_atomically(path, out);
}

}  // namespace levin
