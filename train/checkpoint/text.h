// Reads and writes the two texts in a checkpoint's metadata: "levin.state", all that is no tensor, and "levin.hashes".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "levin/serialize.h"
#include "levin/train/checkpoint.h"
#include "levin/train/hooks.h"
#include "train/checkpoint/content.h"
#include "train/run/resume_point.h"

namespace levin::train {

inline constexpr std::int64_t kVersion = 4, kOldestVersion = 3;  // in version 3 enumerators are numbers
inline constexpr const char* kState = "levin.state";
// Limits of one text. An entry needs some hundred bytes in memory at most, the number of a batch eight.
inline constexpr std::int64_t kMostEntries = 100'000, kMostBatches = 1'000'000;

// The names of enumerators in files. Files of version 3 have their indices in these arrays, so a new name goes to the
// end.
inline constexpr std::array kReduce = {"mean", "sum", "min", "max"};
static_assert(kReduce.size() == static_cast<std::size_t>(EpochReduce::max) + 1);
inline constexpr std::array kDueNames = [] {
  std::array<const char*, kDue.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kDue[i].name;
  return names;
}();

// The text of "levin.state": counters, sums, names, and the values of `states`, which are by state key.
[[nodiscard]] std::string state_text(const Trainer::Run& run,
                                     const std::vector<std::pair<std::string, CallbackState>>& states,
                                     const std::vector<MetricLog::Saved>& log);
// Reads that text. Throws FormatError for an entry that is missing, of another type or out of range, and for an unknown
// version.
void read_state(Checkpoint& to, const std::string& text);
// Sets state, epochs_completed and global_step from a text that may be damaged. Throws FormatError for a text that is
// not JSON.
void describe_state(CheckpointInfo& to, const std::string& path, const std::string& text);

// The text of "levin.hashes": {"name": "hash", ...}.
[[nodiscard]] std::string hashes_text(const std::vector<std::pair<std::string, std::string>>& hashes);
// The damage of a file: entries that differ from their hash, entries without a hash, and hashes without an entry.
[[nodiscard]] std::vector<CheckpointInfo::Damage> find_damage(const std::string& path, const TensorFile& file,
                                                              const std::string& state, const std::string& hashes);

}  // namespace levin::train
