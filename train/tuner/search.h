// What the doors of the tuner and its searches share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levin/train/tuner.h"
#include "train/run.h"

namespace levin::train {

[[nodiscard]] LrFindResult find_lr(Trainer::Run& run, const LrFindOptions& options);

// `loop` none: of a fit.
[[nodiscard]] std::int64_t find_batch_size(Trainer::Run& run, const BatchSizeOptions& options,
                                           std::optional<Trainer::Run::Loop> loop);

// Throws StateError where the trainer is running already.
void check_free(const Trainer::Run& run, const char* call);
// With fast_dev_run nothing is searched: true, and a warning.
[[nodiscard]] bool skipped_by_dev_run(const Trainer::Run& run, const char* call);
// Where a member and an hparam have the name of a field: the hparam is read.
void warn_of_both(const TrainModule& module, const std::string& field);

}  // namespace levin::train
