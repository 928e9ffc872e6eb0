// Batch norms whose statistics are estimated anew.
#pragma once

#include "levin/function.h"
#include "levin/nn/module.h"

namespace levin::train {

// Whether the module has batch norms that keep statistics, whatever their mode.
[[nodiscard]] bool has_statistics(nn::Module& module);

// Runs `pass` in training mode and without recording, while batch norms that are in training mode then forget their statistics and
// average over all batches. Afterwards modes and momenta are as before; statistics too when something throws. Without such batch
// norms `pass` is not run.
void estimate_statistics(nn::Module& module, const Function<void()>& pass);

}  // namespace levin::train
