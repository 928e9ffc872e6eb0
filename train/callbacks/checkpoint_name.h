// The names of checkpoint files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "levin/train/records.h"

namespace levin::train {

enum class InsertNames : bool { no, yes };

// `form` (ModelCheckpointOptions::filename) with its fields filled in. Metrics that are not known are 0; '/' in their names becomes
// '_'. Throws ConfigError for a form that can not be read or has a '/'.
[[nodiscard]] std::string checkpoint_name(std::string_view form, InsertNames insert, std::int64_t epoch,
                                          std::int64_t step, const Metrics& metrics);

}  // namespace levin::train
