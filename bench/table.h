// Google Benchmark's table of rows.
#pragma once

#include <benchmark/benchmark.h>

#include <vector>

namespace levin::bench {

// Without its warning about a debug build: Debian's package is one, and the line reads as if Levin were. The measured
// work runs in Levin's code and in benchmark.h, which this build compiles.
class Table final : public benchmark::ConsoleReporter {
 public:
  explicit Table(bool failed_alone = false) : failed_alone_(failed_alone) {}
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

 private:
  bool failed_alone_;  // rows that print something else themselves
};

}  // namespace levin::bench
