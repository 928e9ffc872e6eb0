// Google Benchmark's table of rows.
#pragma once

#include <benchmark/benchmark.h>

namespace levin::bench {

// Without its warning that it was built for debugging: Debian's package is, and the line reads as if Levin were. What is
// measured here runs in Levin's code and in benchmark.h, which this build compiles.
class Table final : public benchmark::ConsoleReporter {
 public:
  bool ReportContext(const Context& context) override;
};

}  // namespace levin::bench
