// The options that name devices and strategies, and the strategies by name.
#include "levin/train/strategy_choice.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>

#include "levin/train/options.h"
#include "levin/train/strategy.h"
#include "train/options/accelerators.h"
#include "train/strategy/names.h"

namespace levin {
namespace {

using train::lower;

bool whole(std::string_view text, std::int64_t& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

struct Known {
  StrategyRegistry::Factory make;
  std::string description;
};
struct Table {
  Table() {
    for (const train::NamedStrategy& s : train::named_strategies()) by_name[s.name] = {s.make, s.description};
  }
  std::mutex mutex;
  std::map<std::string, Known> by_name;
};
Table& table() {
  static Table all;
  return all;
}

std::shared_ptr<Strategy> make_strategy(const TrainerOptions& options) {
  const std::string& name = options.strategy.name();
  if (!name.empty() && name != "auto") return StrategyRegistry::make(name);
  return StrategyRegistry::make(train::asks_for_processes(options) ? "ddp" : "single_device");
}

}  // namespace

// ---- devices

DeviceChoice::DeviceChoice(Count count) : make_(&make_strategy) {
  if (count.value < -1 || count.value == 0)
    fail<ConfigError>("Trainer: devices is ", count.value, ", expected a count of 1 or more, or -1 for all");
  if (count.value > 0) count_ = count.value;
}
DeviceChoice::DeviceChoice(std::vector<int> indices)
    : listed_(true), indices_(std::move(indices)), make_(&make_strategy) {
  if (indices_.empty()) fail<ConfigError>("Trainer: devices is an empty list, expected the indices of devices");
  for (std::size_t i = 0; i < indices_.size(); ++i) {
    if (indices_[i] < 0) fail<ConfigError>("Trainer: devices lists ", indices_[i], ", expected indices of 0 or more");
    if (std::find(indices_.begin(), indices_.begin() + static_cast<std::ptrdiff_t>(i), indices_[i]) !=
        indices_.begin() + static_cast<std::ptrdiff_t>(i))
      fail<ConfigError>("Trainer: devices lists ", indices_[i], " twice (", text(*this), "); name each device once");
  }
}
DeviceChoice::DeviceChoice(std::string_view given) {
  if (lower(given) == "auto") return;
  std::int64_t number = 0;
  if (whole(given, number)) {
    *this = DeviceChoice(number);
    return;
  }
  std::vector<int> listed;
  for (std::string_view rest = given; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view one = rest.substr(0, comma);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    while (!one.empty() && one.back() == ' ') one.remove_suffix(1);
    if (!whole(one, number) || number < 0 || number > 0x7fff)
      fail<ConfigError>("Trainer: devices is \"", given,
                        R"(", expected a count ("3"), indices ("0,2", "3,") or "auto")");
    listed.push_back(static_cast<int>(number));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  *this = DeviceChoice(std::move(listed));
}
std::string text(const DeviceChoice& devices) {
  if (devices.count()) return text(*devices.count());
  if (devices.is_auto()) return "auto";
  std::string all;
  for (const int i : devices.indices()) all += (all.empty() ? "" : ",") + text(i);
  return devices.indices().size() == 1 ? all + "," : all;
}

NodeCount::NodeCount(Count count) : count_(count.value), make_(&make_strategy) {
  if (count_ < 1) fail<ConfigError>("Trainer: num_nodes is ", count_, ", expected 1 or more");
}

// ---- strategy

StrategyChoice::StrategyChoice(std::string_view name) : name_(lower(name)), make_(&make_strategy) {}

void StrategyRegistry::add(std::string_view name, Factory factory, std::string_view description, bool replace) {
  const std::string key = lower(name);
  if (key.empty() || key == "auto" || !factory)
    fail<ConfigError>("StrategyRegistry: \"", name, "\" with ", factory ? "a" : "no",
                      " factory cannot be added; give a name other than \"auto\", and a function that makes it");
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  if (!replace && all.by_name.contains(key))
    fail<ConfigError>("StrategyRegistry: \"", key, "\" is there already (", all.by_name[key].description,
                      "); give another name, or replace = true");
  all.by_name[key] = {std::move(factory), std::string(description)};
}
std::shared_ptr<Strategy> StrategyRegistry::make(std::string_view name) {
  Factory factory;
  std::string known;
  {
    Table& all = table();
    const std::lock_guard lock(all.mutex);
    const auto it = all.by_name.find(lower(name));
    if (it != all.by_name.end()) factory = it->second.make;
    for (const auto& [key, one] : all.by_name) known += (known.empty() ? "" : ", ") + key;
  }
  if (!factory) fail<ConfigError>("Trainer: strategy is \"", name, "\", expected one of: auto, ", known);
  return factory();
}
std::vector<StrategyRegistry::Entry> StrategyRegistry::all() {
  std::vector<Entry> entries;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  for (const auto& [key, one] : all.by_name) entries.push_back({key, one.description});
  return entries;
}

}  // namespace levin
