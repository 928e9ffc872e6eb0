// The text of metrics.csv: "step,epoch,name,...", one line a record.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train/records.h"

namespace levin::train {

using Names = std::set<std::string>;

// Lines with their ends.
[[nodiscard]] std::string csv_header(const Names& names);
[[nodiscard]] std::string csv_row(const LogRecord& record, const Names& names);

// A file's text, taken apart. The lines are views of it and have no ends.
struct CsvText {
  std::vector<std::string> names;  // of the columns behind step and epoch, as they stand
  std::vector<std::string_view> lines;
  bool cut = false;  // the last line had no end and is left out
};
// Throws FormatError when it does not begin with a header of ours.
[[nodiscard]] CsvText read_csv(const std::string& path, std::string_view text);
// The number in front. Throws FormatError.
[[nodiscard]] std::int64_t step_of(const std::string& path, std::string_view line);
// The cells of a line as they are written. Throws FormatError unless there is one a column.
[[nodiscard]] std::vector<std::string_view> cells_of(const std::string& path, const CsvText& csv,
                                                     std::string_view line);

}  // namespace levin::train
