// Metrics: numbers by name, and the records that loggers get of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levin/export.h"

namespace levin {

using Metrics = std::vector<std::pair<std::string, double>>;
// Which of two values of a metric is better: the smaller or the larger one.
enum class Mode : std::uint8_t { min, max };
struct LogRecord {
  // Of training: index of the optimizer step, from 0; with manual optimization of the batch. Of a single batch of an
  // evaluation: how many batches of that loader were evaluated before.
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  Metrics values;
};
// Writes one line for each record and one column for each name, sorted: "step,epoch,name,...". Throws FileError.
LEVIN_API void write_metrics_csv(const std::string& path, std::span<const LogRecord> records);

}  // namespace levin
