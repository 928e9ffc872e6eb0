#include "comm/launch/nodelist.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace levin::dist {
namespace {

constexpr std::size_t kMostHosts = std::size_t{1} << 20;

// The parts of `text` between commas that stand in no brackets.
std::optional<std::vector<std::string_view>> split_outside_brackets(std::string_view text) {
  std::vector<std::string_view> parts;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !inside)) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[' || text[i] == ']') {
      if ((text[i] == '[') == inside) return std::nullopt;
      inside = !inside;
    }
  }
  if (inside) return std::nullopt;
  return parts;
}

// "5-9" or "12", with the width of its first number.
struct Range {
  std::int64_t first = 0, last = 0;
  std::size_t width = 0;
};
std::optional<Range> read_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const std::string_view begin = text.substr(0, dash),
                         end = dash == std::string_view::npos ? begin : text.substr(dash + 1);
  const auto first = read_count(begin), last = read_count(end);
  if (!first || !last || *last < *first) return std::nullopt;
  return Range{*first, *last, begin.size()};
}

std::string padded(std::int64_t number, std::size_t width) {
  std::string digits = std::to_string(number);
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return digits;
}

// The hosts of one name, appended to `hosts`; false: another form, or too many.
bool expand(std::string_view name, std::size_t most, std::vector<std::string>& hosts) {
  std::vector<std::string> begun{""};
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    const std::string_view plain = name.substr(0, open);
    if (plain.find_first_of(" \t\n") != std::string_view::npos) return false;
    for (std::string& host : begun) host += plain;
    if (open == std::string_view::npos) break;
    const std::size_t close = name.find(']', open);
    const auto ranges = split_outside_brackets(name.substr(open + 1, close - open - 1));
    if (!ranges) return false;
    std::vector<std::string> longer;
    for (const std::string& host : begun) {
      for (const std::string_view text : *ranges) {
        const auto range = read_range(text);
        if (!range || range->width > 20) return false;
        for (std::int64_t number = range->first; number <= range->last && longer.size() < most; ++number)
          longer.push_back(host + padded(number, range->width));
      }
    }
    begun = std::move(longer);
    name.remove_prefix(close + 1);
  }
  for (std::string& host : begun) {
    if (host.empty()) return false;
    if (hosts.size() < most) hosts.push_back(std::move(host));
  }
  return true;
}

}  // namespace

std::optional<std::int64_t> read_count(std::string_view text, std::int64_t most) {
  std::int64_t number = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > most) return std::nullopt;
  return number;
}

std::optional<std::vector<std::string>> slurm_hosts(std::string_view text, std::size_t most) {
  const bool all = most >= kMostHosts;
  if (all) most = kMostHosts + 1;  // one more than allowed shows that there are too many
  const auto names = split_outside_brackets(text);
  if (!names || text.empty()) return std::nullopt;
  std::vector<std::string> hosts;
  for (const std::string_view name : *names) {
    if (name.empty() || !expand(name, most, hosts)) return std::nullopt;
  }
  if (all && hosts.size() > kMostHosts) return std::nullopt;
  return hosts;
}

std::optional<std::vector<int>> slurm_tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  while (true) {
    const std::size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    std::int64_t nodes = 1;
    if (const std::size_t open = part.find("(x"); open != std::string_view::npos) {
      if (part.back() != ')') return std::nullopt;
      const auto repeated = read_count(part.substr(open + 2, part.size() - open - 3), kMostHosts);
      if (!repeated) return std::nullopt;
      nodes = *repeated;
      part = part.substr(0, open);
    }
    const auto count = read_count(part);
    if (!count || tasks.size() + static_cast<std::size_t>(nodes) > kMostHosts) return std::nullopt;
    tasks.insert(tasks.end(), static_cast<std::size_t>(nodes), static_cast<int>(*count));
    if (comma == std::string_view::npos) return tasks;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace levin::dist
