// What every benchmark program does around its benchmarks: `--json FILE`, `--threads N`, `--conv own|first|timed` (who
// computes convolutions in a build with CUDA, see kernels/conv_library.h), and what machine this is.
#pragma once

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/conv_library.h"
#include "kernels/cpu.h"
#include "levin/device.h"

namespace levin::bench {

inline int run(int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  for (std::size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] == "--json") {
      words[i] = "--benchmark_out=" + words[i + 1];
      words[i + 1] = "--benchmark_out_format=json";
    } else if (words[i] == "--threads" || words[i] == "--conv") {
      if (words[i] == "--threads")
        set_num_threads(std::stoi(words[i + 1]));
      else
        kernels::set_conv_by(words[i + 1] == "own"     ? kernels::ConvBy::own
                             : words[i + 1] == "first" ? kernels::ConvBy::first
                                                       : kernels::ConvBy::timed);
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i), words.begin() + static_cast<std::ptrdiff_t>(i) + 2);
      --i;
    }
  }
  std::vector<char*> pointers;
  for (std::string& w : words) pointers.push_back(w.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
  benchmark::AddCustomContext("levin_cpu_level", kernels::name(kernels::cpu_level()));
  benchmark::AddCustomContext("levin_threads", std::to_string(num_threads()));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace levin::bench

#define LEVIN_BENCHMARK_MAIN() \
  int main(int argc, char** argv) { return ::levin::bench::run(argc, argv); }
