// The CSV reader over any source: tests and fuzzing give it bytes in memory.
#pragma once

#include "levin/data/readers.h"
#include "tensor/files/file.h"

namespace levin::data {

inline constexpr std::size_t kCsvBlock = std::size_t{1} << 22, kCsvWords = std::size_t{1} << 20;

// `block` bytes are read at a time, at least a record.
[[nodiscard]] CsvTable read_csv(detail::Source& source, const CsvSchema& schema, std::size_t block = kCsvBlock);

}  // namespace levin::data
