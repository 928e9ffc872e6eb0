// The two texts in a checkpoint's metadata: "levin.state", what is not a tensor, and "levin.hashes".
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

inline constexpr std::int64_t kVersion = 4, kOldestVersion = 3;  // 3: enumerators are numbers
inline constexpr const char* kState = "levin.state";
// Of one text, each of some hundred bytes in memory at most; numbers of batches have eight.
inline constexpr std::int64_t kMostEntries = 100'000, kMostBatches = 1'000'000;

// Enumerators have names in files. Files of version 3 have the places of these arrays: a further name goes to the end.
inline constexpr std::array kReduce = {"mean", "sum", "min", "max"};
static_assert(kReduce.size() == static_cast<std::size_t>(EpochReduce::max) + 1);
inline constexpr std::array kDueNames = [] {
  std::array<const char*, kDue.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kDue[i].name;
  return names;
}();

// Counters, sums and names. `states`: by state key, of which the values are kept.
[[nodiscard]] std::string state_text(const Trainer::Run& run,
                                     const std::vector<std::pair<std::string, CallbackState>>& states);
// Throws FormatError for what is missing, of another type or out of range, and for another version.
void read_state(Checkpoint& to, const std::string& text);
// The state, epochs_completed and global_step, of a text that may be damaged. Throws FormatError for what is not JSON.
void describe_state(CheckpointInfo& to, const std::string& path, const std::string& text);

// {"name": "hash", ...}.
[[nodiscard]] std::string hashes_text(const std::vector<std::pair<std::string, std::string>>& hashes);
// What of the file is not what its hash says, what has no hash, and what has one and is not there.
[[nodiscard]] std::vector<CheckpointInfo::Damage> find_damage(const std::string& path, const TensorFile& file,
                                                              const std::string& state, const std::string& hashes);

}  // namespace levin::train
