// The two texts in a checkpoint's metadata: "levin.state", what is not a tensor, and "levin.hashes".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "levin/serialize.h"
#include "levin/train/checkpoint.h"
#include "levin/train/hooks.h"
#include "train/checkpoint/content.h"

namespace levin::train {

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
