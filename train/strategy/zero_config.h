// The options of ZeroStrategy as strategies by name get them.
#pragma once

#include "levin/train/zero_strategy.h"

namespace levin::train {

enum class NamesStage : bool { no, yes };  // whether the strategy's name has a stage

// `named`, or what the file says that LEVIN_ZERO_CONFIG or PL_DEEPSPEED_CONFIG_PATH names. Throws as read_zero_config,
// and ConfigError for two variables with different files, and for another stage than that of the name.
[[nodiscard]] ZeroOptions zero_options_of(const ZeroOptions& named, NamesStage names_stage);

}  // namespace levin::train
