// How the running statistics of batch norm follow a batch's.
#pragma once

#include "levin/ops.h"

namespace levin {

// Moves them to a batch's mean and var [C], in public ops: for statistics that batch_norm_train's kernels do not have.
void follow_batch(const RunningStatistics& running, const Tensor& mean, const Tensor& var);

}  // namespace levin
