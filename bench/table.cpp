#include "bench/table.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>

namespace levin::bench {

namespace {

std::string on_one_line(std::string s) {
  std::replace(s.begin(), s.end(), '\n', ' ');
  return s;
}

void wait_after(const std::vector<benchmark::BenchmarkReporter::Run>& runs) {
  for (const auto& r : runs) {
    const double seconds = r.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(r.time_unit);
    std::cout << r.benchmark_name() << '\t';
    if (r.error_occurred) {
      std::cout << "failed: " << on_one_line(r.error_message) << std::endl;
    } else {
      std::cout << std::scientific << std::setprecision(9) << seconds << std::endl;
    }
    std::string line;
    std::getline(std::cin, line);  // where stdin has ended, the rest runs without pauses
  }
}

}  // namespace

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
  if (what_ == Prints::table) return ConsoleReporter::ReportRuns(runs);
  if (what_ == Prints::paced) return wait_after(runs);
  for (const Run& r : runs) {
    if (r.error_occurred) GetErrorStream() << r.benchmark_name() << ": " << r.error_message << "\n";
  }
}

}  // namespace levin::bench
