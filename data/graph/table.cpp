#include "data/graph/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include "levin/error.h"

namespace levin::gnn {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool separates(char c) { return is_space(c) || c == ','; }

// At most 40 characters of a line, printable.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 40)) out += c >= ' ' && c < '\x7f' ? c : '?';
  return out;
}

}  // namespace

template <class T>
Table<T> read_table(levin::detail::Source& source) {
  Table<T> table{.file = source.name()};
  std::string content(static_cast<std::size_t>(source.size()), '\0');
  source.read(0, content.data(), content.size());
  std::string_view rest = content;
  while (!rest.empty() && (is_space(rest.back()) || rest.back() == '\n')) rest.remove_suffix(1);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const char *at = rest.data(), *const stop = at + end;
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++table.rows;
    std::int64_t columns = 0;
    bool comma = false;  // a number must follow
    for (;;) {
      while (at != stop && is_space(*at)) ++at;
      if (at == stop) break;
      if (*at == '+') ++at;
      std::conditional_t<std::is_same_v<T, float>, double, T> number{};
      const auto [after, error] = std::from_chars(at, stop, number);
      bool good = error == std::errc() && (after == stop || separates(*after));
      if constexpr (std::is_same_v<T, float>)
        good = good && std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max());  // false for NaN
      if (!good)
        fail<FormatError>(table.file, ": line ", table.rows, ", column ", columns + 1, " begins with '",
                          shown({at, static_cast<std::size_t>(stop - at)}), "', expected ",
                          std::is_same_v<T, float> ? "a finite f32" : "an integer of 64 bits");
      table.values.push_back(static_cast<T>(number));
      ++columns;
      at = after;
      while (at != stop && is_space(*at)) ++at;
      comma = at != stop && *at == ',';
      if (comma) ++at;
    }
    if (comma || columns == 0)
      fail<FormatError>(table.file, ": line ", table.rows, comma ? " ends in a comma" : " is empty",
                        ", expected a number");
    if (table.rows == 1) table.columns = columns;
    if (columns != table.columns)
      fail<FormatError>(table.file, ": line ", table.rows, " has ", columns, " columns, expected ", table.columns,
                        " as in line 1");
  }
  return table;
}

template Table<std::int64_t> read_table(levin::detail::Source& source);
template Table<float> read_table(levin::detail::Source& source);

}  // namespace levin::gnn
