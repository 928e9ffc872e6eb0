// Checks of layer options, shared by the layers' sources.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "levin/nn/init.h"
#include "levin/nn/module.h"

namespace levin::nn {

inline void check_at_least(std::string_view layer, std::string_view option, std::int64_t value, std::int64_t least) {
  if (value < least) fail<ConfigError>(layer, ": ", option, " is ", value, ", expected ", least, " or more");
}

inline constexpr std::int64_t kMostSize = std::int64_t{1} << 40;    // of a dimension
inline constexpr std::int64_t kMostWindow = std::int64_t{1} << 31;  // of an option of a convolution or a pool
inline constexpr std::int64_t kMostLayers = std::int64_t{1} << 20;  // of a stack

inline void check_range(std::string_view layer, std::string_view option, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
  if (value < least || value > most)
    fail<ConfigError>(layer, ": ", option, " is ", value, ", expected ", least, " to ", most);
}
// The length of a dimension.
inline void check_size(std::string_view layer, std::string_view option, std::int64_t value) {
  check_at_least(layer, option, value, 1);
  check_range(layer, option, value, 1, kMostSize);
}
inline void check_eps(std::string_view layer, double eps) {
  if (!(eps >= 0 && std::isfinite(eps))) fail<ConfigError>(layer, ": eps is ", eps, ", expected 0 or more, and finite");
}

inline void check_probability(std::string_view layer, std::string_view option, double p) {
  if (!(p >= 0 && p <= 1)) fail<ConfigError>(layer, ": ", option, " is ", p, ", expected 0 to 1");
}

// U(-1 / sqrt(fan), 1 / sqrt(fan)): kaiming_uniform with a = sqrt(5), the gain of which is sqrt(1 / 3).
inline Initializer uniform_by_fan(std::int64_t fan) {
  return [fan](Tensor& x, Generator& gen) {
    const double bound = fan > 0 ? 1 / std::sqrt(static_cast<double>(fan)) : 0;
    init::uniform_(x, gen, -bound, bound);
  };
}
inline Initializer constant_value(double value) {
  return [value](Tensor& x, Generator&) { init::constant_(x, value); };
}

}  // namespace levin::nn
