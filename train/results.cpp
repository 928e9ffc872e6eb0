// The results of an evaluation as a table.
#include <algorithm>

#include "tensor/number_text.h"
#include "train/run.h"

namespace levin {

std::string train::results_table(std::string_view call, const std::vector<Metrics>& results) {
  const auto base = [](const std::string& name) { return name.substr(0, name.rfind("/dataloader_idx_")); };
  std::vector<std::string> names;
  for (const Metrics& of_loader : results) {
    for (const auto& [name, value] : of_loader) {
      if (std::find(names.begin(), names.end(), base(name)) == names.end()) names.push_back(base(name));
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
    for (const Metrics& of_loader : results) {
      const auto it =
          std::find_if(of_loader.begin(), of_loader.end(), [&](const auto& m) { return base(m.first) == name; });
      constexpr int kDigits = 6;
      out += padded(it == of_loader.end() ? std::string() : detail::general(it->second, kDigits), kColumn);
    }
  }
  return out + '\n';
}

}  // namespace levin
