// Google Benchmark's table of rows.
#pragma once

#include <benchmark/benchmark.h>

namespace levin::bench {

// Without its warning about a debug build: Debian's package is one, and the line reads as if Levin were. The measured
// work runs in Levin's code and in benchmark.h, which this build compiles.
class Table final : public benchmark::ConsoleReporter {
 public:
  bool ReportContext(const Context& context) override;
};

}  // namespace levin::bench
