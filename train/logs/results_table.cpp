// The results of an evaluation as a table.
#include <algorithm>

#include "tensor/text/number_text.h"
#include "train/run/evaluation.h"

namespace levin {

std::string train::results_table(std::string_view call, const std::vector<Metrics>& results) {
  // A user's name may end like that of a loader, so only the number of the column's own loader is cut off.
  const auto base = [](const std::string& name, std::size_t loader) {
    const std::string end = "/dataloader_idx_" + text(loader);
    return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : name;
  };
  std::vector<std::string> names;
  for (std::size_t l = 0; l < results.size(); ++l) {
    for (const auto& [name, value] : results[l]) {
      if (std::find(names.begin(), names.end(), base(name, l)) == names.end()) names.push_back(base(name, l));
    }
  }
  if (names.empty()) return {};
  constexpr std::size_t kColumn = 14, kGap = 2;
  std::size_t width = call.size();
  for (const std::string& name : names) width = std::max(width, name.size());
  const auto padded = [](std::string cell, std::size_t to) {
    return cell + std::string(to > cell.size() ? to - cell.size() : 0, ' ');
  };
  std::string out = padded(std::string(call), width + kGap);
  for (std::size_t l = 0; l < results.size(); ++l) out += padded("loader " + text(l), kColumn);
  for (const std::string& name : names) {
    out += '\n' + padded(name, width + kGap);
    for (std::size_t l = 0; l < results.size(); ++l) {
      const auto it =
          std::find_if(results[l].begin(), results[l].end(), [&](const auto& m) { return base(m.first, l) == name; });
      constexpr int kDigits = 6;
      out += padded(it == results[l].end() ? std::string() : detail::general(it->second, kDigits), kColumn);
    }
  }
  return out + '\n';
}

}  // namespace levin
