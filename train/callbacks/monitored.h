// Helpers of callbacks that watch a metric: comparisons, names, and numbers as text in a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levin/train/records.h"

namespace levin::train {

[[nodiscard]] std::optional<double> metric(const Metrics& metrics, std::string_view name);
[[nodiscard]] std::string names_of(const Metrics& metrics);  // "a, b"; "none"
[[nodiscard]] const char* name_of(Mode mode);                // "min", "max"
// Strictly better. NaN is worse than any other value.
[[nodiscard]] bool better(Mode mode, double a, double b);

// Text that reads back as the same number.
[[nodiscard]] std::string exact(double x);
// Throws ConfigError, which names `who`.
[[nodiscard]] double read_number(const char* who, std::string_view name, const std::string& text);
[[nodiscard]] std::int64_t read_count(const char* who, std::string_view name, const std::string& text);  // 0 or more

}  // namespace levin::train
