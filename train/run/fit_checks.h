// The checks and warnings of a fit.
#pragma once

#include <vector>

#include "levin/train.h"

namespace levin::train {

// All of these throw ConfigError.
// Before any work: the options, the hooks that the module has, and the given loaders.
void check_fit(const Trainer::Run& run, const FitOptions& given, const Overrides& has, bool manual);
// Callbacks that need a logger, and a schedule of accumulation.
void check_callbacks(const Trainer::Run& run, const Overrides& has, bool manual);
void check_accumulation(const Trainer::Run& run);                   // after the optimizers were made
void check_optimizers(const OptimizerConfig& config, bool manual);  // of configure_optimizers, or given to fit

// The devices of parameters, each once, in the order of the first parameter on each.
[[nodiscard]] std::vector<Device> devices_of(const std::vector<ParamRef>& parameters);

// Warnings.
void warn_of_debugging(const TrainerOptions& options);  // detect_anomaly and variables that make a run slow
void warn_of_eval_mode(const nn::Module* tree);
void warn_of_reached_limits(const Trainer::Run& run);
void warn_of_few_records(const Trainer::Run& run);

}  // namespace levin::train
