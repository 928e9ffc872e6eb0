// What is in a checkpoint, for programs that look at one without a run; Trainer::save_checkpoint writes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/export.h"
#include "levin/serialize.h"

namespace levin {

struct CheckpointInfo {
  // An entry that is not what it was when the file was written.
  struct Damage {
    std::string name;  // of the tensor, or "levin.state"
    std::string what;  // "has hash 1f.., expected 3a.."
  };
  // No state of a run, as in model.safetensors: nothing can be resumed, and there are no hashes to compare.
  bool weights_only = true;
  std::int64_t epochs_completed = 0, global_step = 0;
  // What is not a tensor, by dotted name: {"loops.batches_in_epoch", "7"}, {"callbacks.Timer.elapsed", "1.5"}. Numbers and
  // lists are as JSON has them.
  Metadata state{};
  NamedTensors weights{};
  NamedTensors rest{};           // of optimizer, schedules, callbacks: below "levin."
  std::vector<Damage> damage{};  // empty: every hash is right
};
// Reads the whole file, on cpu. Throws FileError, FormatError for what is no safetensors file or is cut.
[[nodiscard]] LEVIN_API CheckpointInfo read_checkpoint_info(const std::string& path);

}  // namespace levin
