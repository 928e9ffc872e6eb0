// What a run logs: numbers by name, and records of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levin/export.h"

namespace levin {

using Metrics = std::vector<std::pair<std::string, double>>;
// Which of two values of a metric is the better one.
enum class Mode : std::uint8_t { min, max };
struct LogRecord {
  std::int64_t step = 0;  // index of the optimizer step, from 0
  std::int64_t epoch = 0;
  Metrics values;
};
// One line a record, one sorted column a name: "step,epoch,name,...". Throws FileError.
LEVIN_API void write_metrics_csv(const std::string& path, std::span<const LogRecord> records);

}  // namespace levin
