// What the doors of the tuner and its searches share.
#pragma once

#include <string>

#include "levin/train/tuner.h"
#include "train/run.h"

namespace levin::train {

[[nodiscard]] LrFindResult find_lr(Trainer::Run& run, const LrFindOptions& options);

// Throws StateError where the trainer is running already.
void check_free(const Trainer::Run& run, const char* call);
// With fast_dev_run nothing is searched: true, and a warning.
[[nodiscard]] bool skipped_by_dev_run(const Trainer::Run& run, const char* call);
// Where a member and an hparam have the name of a field: the hparam is read.
void warn_of_both(const TrainModule& module, const std::string& field);

}  // namespace levin::train
