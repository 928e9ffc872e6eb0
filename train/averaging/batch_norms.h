// Estimates the statistics of batch norms from a pass over data.
#pragma once

#include "levin/function.h"
#include "levin/nn/module.h"

namespace levin::train {

// Whether the module has batch norms that keep statistics, in any mode.
[[nodiscard]] bool has_statistics(nn::Module& module);

// Runs `pass` in training mode and without recording. Batch norms that module.train() puts into training mode forget
// their statistics and average over all batches. Modes and momenta are restored at the end, and after an exception the
// statistics too. Without such batch norms `pass` does not run.
void estimate_statistics(nn::Module& module, const Function<void()>& pass);

}  // namespace levin::train
