// Makes the names of checkpoint files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "levin/train/records.h"

namespace levin::train {

enum class InsertNames : bool { no, yes };

// Fills in the fields of `form` (ModelCheckpointOptions::filename). Unknown metrics are 0; '/' in their names becomes
// '_'. Throws ConfigError for a form with a '/' or with an unreadable field.
[[nodiscard]] std::string checkpoint_name(std::string_view form, InsertNames insert, std::int64_t epoch,
                                          std::int64_t step, const Metrics& metrics);

}  // namespace levin::train
