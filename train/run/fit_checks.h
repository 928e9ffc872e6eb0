// What is checked of a fit before any work, and what is warned of.
#pragma once

#include "levin/train.h"

namespace levin::train {

// All of these throw ConfigError.
void check_fit(const Trainer::Run& run, TrainModule& module, const FitOptions& given, const Overrides& has);
void check_callbacks(const Trainer::Run& run);     // of the run: what they need, and the schedule of accumulation
void check_accumulation(const Trainer::Run& run);  // once the optimizers are known
void check_optimizers(const OptimizerConfig& config, bool manual);  // of configure_optimizers, or given to fit

// Warnings.
void warn_of_debugging(const TrainerOptions& options);  // that makes a run slow
void warn_of_eval_mode(const nn::Module* tree);
void warn_of_reached_limits(const Trainer::Run& run);
void warn_of_few_records(const Trainer::Run& run);

}  // namespace levin::train
