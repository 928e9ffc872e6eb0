#include "bench/table.h"

#include <ostream>
#include <sstream>
#include <string>

namespace levin::bench {

bool Table::ReportContext(const Context& context) {
  std::ostream& errors = GetErrorStream();
  std::stringstream lines;
  SetErrorStream(&lines);
  const bool goes_on = ConsoleReporter::ReportContext(context);
  SetErrorStream(&errors);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("Library was built as DEBUG") == std::string::npos) errors << line << "\n";
  }
  return goes_on;
}

void Table::ReportRuns(const std::vector<Run>& runs) {
  if (!failed_alone_) return ConsoleReporter::ReportRuns(runs);
  for (const Run& r : runs) {
    if (r.error_occurred) GetErrorStream() << r.benchmark_name() << ": " << r.error_message << "\n";
  }
}

}  // namespace levin::bench
