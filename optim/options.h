// Checks of options, shared by optimizers and schedules.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "levin/error.h"

namespace levin::optim {

inline void check_not_negative(std::string_view op, std::string_view option, double value) {
  if (!(value >= 0 && std::isfinite(value)))
    fail<ConfigError>(op, ": ", option, " is ", value, ", expected 0 or more, and finite");
}
inline void check_finite(std::string_view op, std::string_view option, double value) {
  if (!std::isfinite(value)) fail<ConfigError>(op, ": ", option, " is ", value, ", expected a finite number");
}
inline void check_at_least(std::string_view op, std::string_view option, std::int64_t value, std::int64_t least) {
  if (value < least) fail<ConfigError>(op, ": ", option, " is ", value, ", expected ", least, " or more");
}

}  // namespace levin::optim
