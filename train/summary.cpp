#include "levin/train/summary.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "levin/train/trainer.h"

namespace levin {
namespace {

constexpr std::size_t kColumns = 5;
using Line = std::array<std::string, kColumns>;

void check(const SummaryOptions& options) {
  if (options.max_depth < -1)
    fail<ConfigError>("ModelSummary: max_depth is ", options.max_depth, ", expected -1 (all), 0 or more");
}

}  // namespace

std::string readable_count(std::int64_t n) {
  constexpr std::array kUnits = {"", " K", " M", " B", " T"};
  std::size_t unit = 0;
  std::int64_t size = 1;
  for (; unit + 1 < kUnits.size() && n / size >= 1000; ++unit) size *= 1000;
  const std::int64_t whole = n / size;
  std::string out = std::to_string(whole);
  if (unit > 0 && whole < 100) out += "." + std::to_string(n % size / (size / 10));
  return out + kUnits[unit];
}

std::string summarize(const nn::Module& module, const SummaryOptions& options) {
  check(options);
  std::vector<Line> lines = {{"", "Name", "Type", "Params", "Mode"}};
  std::int64_t own = 0, bytes = 0, training = 0, evaluating = 0;
  for (const auto& [name, value] : module.named_parameters()) {
    if (name.find('.') == std::string::npos) own += value.numel();
    bytes += value.numel() * static_cast<std::int64_t>(itemsize(value.dtype()));
  }
  const auto add = [&](const std::string& name, const std::string& type, std::int64_t n, bool train) {
    lines.push_back({std::to_string(lines.size() - 1), name, type, readable_count(n), train ? "train" : "eval"});
  };
  module.visit([&](const std::string& path, const nn::Module& m) {
    ++(m.is_training() ? training : evaluating);
    const auto depth = path.empty() ? 0 : std::count(path.begin(), path.end(), '.') + 1;
    if (depth == 0 && own > 0 && options.max_depth != 0) add("(own)", m.type_name(), own, m.is_training());
    if (depth > 0 && (options.max_depth < 0 || depth <= options.max_depth))
      add(path, m.type_name(), m.parameter_count().total(), m.is_training());
  });

  std::array<std::size_t, kColumns> widths{};
  for (const Line& line : lines) {
    for (std::size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string out;
  std::size_t width = 3 * (kColumns - 1);
  for (const std::size_t w : widths) width += w;
  const std::string rule = std::string(width, '-') + "\n";
  if (lines.size() > 1) {
    for (const Line& line : lines) {
      for (std::size_t c = 0; c < kColumns; ++c) {
        const bool last = c + 1 == kColumns;
        out += line[c] + (last ? "\n" : std::string(widths[c] - line[c].size(), ' ') + " | ");
      }
      if (&line == lines.data()) out += rule;
    }
    out += rule;
  }
  const nn::ParameterCount count = module.parameter_count();
  out += readable_count(count.trainable) + " trainable parameters\n";
  out += readable_count(count.frozen) + " non-trainable parameters\n";
  out += readable_count(count.total()) + " parameters in all, " +
         (bytes < 1'000'000 ? std::to_string(bytes) + " bytes\n" : [&] {
           std::array<char, 48> mb{};
           std::snprintf(mb.data(), mb.size(), "%.3f MB\n", static_cast<double>(bytes) / 1e6);
           return std::string(mb.data());
         }());
  return out + std::to_string(training) + " modules in train mode, " + std::to_string(evaluating) + " in eval mode\n";
}

ModelSummary::ModelSummary(SummaryOptions options) : options_(options) { check(options_); }

void ModelSummary::on_fit_start() {
  const nn::Module* module = trainer().module();
  if (!module) return;
  text_ = summarize(*module, options_);
  std::fputs(text_.c_str(), stderr);
}

}  // namespace levin
