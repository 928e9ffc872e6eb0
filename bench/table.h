// What a benchmark program prints of its rows.
#pragma once

#include <benchmark/benchmark.h>

#include <vector>

namespace levin::bench {

enum class Prints {
  table,   // Google Benchmark's
  failed,  // the failed rows alone, on stderr: the others print something themselves
  paced,   // a line "name<TAB>seconds" of each row, or "name<TAB>failed: why"; the next row runs after a line of stdin
};

// Without Google Benchmark's warning about a debug build: Debian's package is one, and the line reads as if Levin were.
// The measured work runs in Levin's code and in benchmark.h, which this build compiles.
class Table final : public benchmark::ConsoleReporter {
 public:
  explicit Table(Prints what) : what_(what) {}
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

 private:
  Prints what_;
};

}  // namespace levin::bench
