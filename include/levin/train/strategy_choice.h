// The options that say how many devices and processes a Trainer uses: devices, num_nodes, strategy, plugins.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/export.h"

namespace levin {

class CheckpointIO;
class LayerSync;
class PrecisionPlugin;
class Strategy;
struct TrainerOptions;
namespace dist {
class ClusterEnvironment;
}

namespace detail {
// Makes the strategy that the options name. Only a program that names devices, nodes or a strategy refers to this, and
// only such a program links strategies of several processes.
using MakeStrategy = std::shared_ptr<Strategy> (*)(const TrainerOptions&);
}  // namespace detail

// Which devices of a node are used: how many of them, or which.
//   "auto", -1       all CUDA devices; on the CPU one process, or with a named strategy as many as the launcher started
//                    on this node
//   {}               the same with a named strategy or several nodes, else one device and one process
//   3, "3"           the first three; on the CPU three processes
//   {0, 2}, "0,2"    these; "3," is device 3 alone
class LEVIN_API DeviceChoice {
 public:
  DeviceChoice() = default;
  template <std::integral I>
  DeviceChoice(I count) : DeviceChoice(Count{static_cast<std::int64_t>(count)}) {}
  DeviceChoice(std::initializer_list<int> indices) : DeviceChoice(std::vector<int>(indices)) {}
  DeviceChoice(std::vector<int> indices);
  DeviceChoice(std::string_view text);  // throws ConfigError for another form
  DeviceChoice(const char* text) : DeviceChoice(std::string_view(text)) {}
  DeviceChoice(const std::string& text) : DeviceChoice(std::string_view(text)) {}
  [[nodiscard]] bool is_auto() const { return !count_ && !listed_; }
  [[nodiscard]] const std::optional<std::int64_t>& count() const { return count_; }  // no value: auto, or a list
  [[nodiscard]] bool is_list() const { return listed_; }
  [[nodiscard]] const std::vector<int>& indices() const { return indices_; }
  [[nodiscard]] detail::MakeStrategy maker() const { return make_; }  // null: the program named no devices
  friend bool operator==(const DeviceChoice& a, const DeviceChoice& b) {
    return a.count_ == b.count_ && a.listed_ == b.listed_ && a.indices_ == b.indices_;
  }

 private:
  struct Count {
    std::int64_t value;
  };
  explicit DeviceChoice(Count count);
  std::optional<std::int64_t> count_;
  bool listed_ = false;
  std::vector<int> indices_;
  detail::MakeStrategy make_ = nullptr;
};
[[nodiscard]] LEVIN_API std::string text(const DeviceChoice& devices);  // "auto", "3", "0,2"

// How many machines take part.
class LEVIN_API NodeCount {
 public:
  NodeCount() = default;
  template <std::integral I>
  NodeCount(I count) : NodeCount(Count{static_cast<std::int64_t>(count)}) {}
  [[nodiscard]] std::int64_t value() const { return count_; }
  [[nodiscard]] detail::MakeStrategy maker() const { return make_; }
  friend bool operator==(const NodeCount& a, const NodeCount& b) { return a.count_ == b.count_; }

 private:
  struct Count {
    std::int64_t value;
  };
  explicit NodeCount(Count count);
  std::int64_t count_ = 1;
  detail::MakeStrategy make_ = nullptr;
};

// How processes and devices share the work: a name ("ddp"), or a Strategy object, such as one with options of its own.
// Unset and "auto": ddp where devices and num_nodes ask for more than one process, else single_device.
class LEVIN_API StrategyChoice {
 public:
  StrategyChoice() = default;
  StrategyChoice(std::string_view name);
  StrategyChoice(const char* name) : StrategyChoice(std::string_view(name)) {}
  StrategyChoice(const std::string& name) : StrategyChoice(std::string_view(name)) {}
  template <std::derived_from<Strategy> S>
  StrategyChoice(std::shared_ptr<S> object) : object_(std::move(object)) {}
  [[nodiscard]] const std::string& name() const { return name_; }  // in lower case; empty: none was given
  [[nodiscard]] const std::shared_ptr<Strategy>& object() const { return object_; }
  [[nodiscard]] detail::MakeStrategy maker() const { return make_; }

 private:
  std::string name_;
  std::shared_ptr<Strategy> object_;
  detail::MakeStrategy make_ = nullptr;
};

// Replacements of a Trainer's parts, one of each kind. A null member: the trainer's own.
struct Plugins {
  std::shared_ptr<dist::ClusterEnvironment> environment{};  // who started the processes: levin/comm/cluster.h
  std::shared_ptr<CheckpointIO> checkpoint_io{};            // writes and reads checkpoints: levin/train/checkpoint_io.h
  // Which layers compute over all ranks: levin/train/layer_sync.h. ConfigError with sync_batchnorm, which is one, too.
  std::shared_ptr<LayerSync> layer_sync{};
  // In which numbers the run computes: levin/train/precision_plugin.h. ConfigError with precision, amp_level or
  // grad_scaler, which say the same.
  std::shared_ptr<PrecisionPlugin> precision{};
  friend bool operator==(const Plugins&, const Plugins&) = default;
};

}  // namespace levin
