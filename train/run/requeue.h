// Runs whose time in a SLURM job ends: Note [Requeue] in levin/train/trainer.h.
#pragma once

#include <string>
#include <vector>

#include "levin/train/options.h"

namespace levin::train {

// The number of TrainerOptions::requeue_signal; 0: none. Throws ConfigError for a name that is no signal, or one that
// no process can handle.
[[nodiscard]] int requeue_signal(const TrainerOptions& options);
// Whether this process is a task of a SLURM job, started by srun. The job names bash and interactive count as none.
[[nodiscard]] bool in_slurm_task();

// hpc_ckpt_N of default_root_dir, files and folders of checkpoints, the largest N first.
[[nodiscard]] std::vector<std::string> hpc_files(const TrainerOptions& options);
// The path whose N is one above the largest.
[[nodiscard]] std::string next_hpc_file(const TrainerOptions& options, std::string_view ending);

}  // namespace levin::train
