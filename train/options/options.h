// Checks the options of a trainer and brings them into one form.
#pragma once

#include "levin/train/options.h"

namespace levin::train {

// Throws ConfigError for values that are out of range or contradict each other.
void check_options(const TrainerOptions& options);
// Reports, as an info, which of the two meanings an explicit 1 or 1.0 has.
void report_portions(const TrainerOptions& options);
// Sets the options that barebones, fast_dev_run and overfit_batches stand for. Throws ConfigError where an option
// contradicts barebones.
void apply_shortcuts(TrainerOptions& options);
// Throws ConfigError for an option that only the constructor reads and that was changed later. `call` is for the
// message.
void check_late_options(const TrainerOptions& now, const TrainerOptions& constructed_with, const char* call);

}  // namespace levin::train
