// Reads what a checkpoint contains, without a run. Trainer::save_checkpoint writes checkpoints. A checkpoint is a file,
// or the folder NAME.levin of a sharded one, to which each rank of the run wrote its part; both are read alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/export.h"
#include "levin/serialize.h"

namespace levin {

struct CheckpointInfo {
  // An entry that has changed since the file was written.
  struct Damage {
    std::string name;  // of the tensor, or "levin.state"; in a folder that of a rank's file
    std::string what;  // "has hash 1f.., expected 3a.."
  };
  // True: the file has weights and no state of a run. It cannot be resumed, and has no hashes to compare.
  bool weights_only = true;
  std::int64_t epochs_completed = 0, global_step = 0;
  // Everything but tensors, by dotted name: {"loops.batches_in_epoch", "7"}, {"callbacks.Timer.elapsed", "1.5"}.
  // Numbers and lists are written as in JSON.
  Metadata state{};
  NamedTensors weights{};
  NamedTensors rest{};           // tensors of optimizers, schedules and callbacks; names begin with "levin."
  std::vector<Damage> damage{};  // empty: every hash is right
};
// Reads the whole file or folder; tensors are on the CPU. Throws FileError, and FormatError for a file that is no
// safetensors file or is cut off.
[[nodiscard]] LEVIN_API CheckpointInfo read_checkpoint_info(const std::string& path);

// Writes the file that the run would have saved instead of this folder: any strategy resumes it, and PyTorch reads it
// as a state dict. One tensor at a time is in memory. Throws FileError, and FormatError for a damaged folder; `file`
// then stays as it was.
LEVIN_API void consolidate_checkpoint(const std::string& folder, const std::string& file);

}  // namespace levin
