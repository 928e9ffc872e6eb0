// Writes and reads the text of metrics.csv: "step,epoch,name,...", one line a record.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train/records.h"

namespace levin::train {

using Names = std::set<std::string>;

// Both return a line with its end.
[[nodiscard]] std::string csv_header(const Names& names);
[[nodiscard]] std::string csv_row(const LogRecord& record, const Names& names);

// The text of a file in parts. The lines are views of the text, without their ends.
struct CsvText {
  std::vector<std::string> names;  // of the columns after step and epoch, in the file's order
  std::vector<std::string_view> lines;
  bool cut = false;  // the last line had no end and is left out
};
// Throws FormatError for a text that does not begin with the header of such a file.
[[nodiscard]] CsvText read_csv(const std::string& path, std::string_view text);
// The step of a line. Throws FormatError for a line without one.
[[nodiscard]] std::int64_t step_of(const std::string& path, std::string_view line);
// The cells of a line as written. Throws FormatError unless there is one for each column.
[[nodiscard]] std::vector<std::string_view> cells_of(const std::string& path, const CsvText& csv,
                                                     std::string_view line);

}  // namespace levin::train
