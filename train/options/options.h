// Options as they are written: checked, and brought into one form.
#pragma once

#include "levin/train/options.h"

namespace levin::train {

void check_options(const TrainerOptions& options);    // throws ConfigError
void report_portions(const TrainerOptions& options);  // which of the two meanings an explicit 1 or 1.0 has
void apply_shortcuts(TrainerOptions& options);        // barebones, fast_dev_run, overfit_batches
// Throws ConfigError for an option that the constructor reads and that was changed since; `call` is for the message.
void check_late_options(const TrainerOptions& now, const TrainerOptions& constructed_with, const char* call);

}  // namespace levin::train
