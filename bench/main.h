// What every benchmark program does around its benchmarks: flags (--help lists them), and facts of this machine.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/facts.h"
#include "bench/flags.h"
#include "bench/table.h"
#include "kernels/executor/cpu.h"
#include "levin/device.h"
#include "levin/engines.h"
#include "levin/error.h"
#include "levin/memory.h"

namespace levin::bench {

struct Settings {
  Device device = Device::cpu();
  double max_bytes = 0;  // of one tensor; 0: the device's default
  double seconds = 0.1;  // of a row
  bool cold = true;      // measure with empty caches as well
  bool every_dtype = false, quick = false;
  bool in_bf16 = false;  // rows of kernels in bf16 instead of f32, steps under Autocast
  bool listing = false;  // rows are named and not run
  bool ledger = false;   // the launches of recorded steps are counted, and nothing is measured
  bool paced = false;    // a row waits for a line of stdin
};
inline Settings& settings() {
  static Settings s;
  return s;
}
inline bool no_speed(Device device = settings().device) {
  return settings().quick || (device.launches() && !device.is_cuda());
}

inline Device device_named(const std::string& name) {
  if (name == "cpu") return Device::cpu();
  if (name == "cuda" && device_count(DeviceType::cuda) > 0) return Device::cuda();
  if (name == "simt" && device_count(DeviceType::simt) > 0) return Device::simt();
  fail<ConfigError>("--device: \"", name, "\" can not be used by this build on this machine; has cpu",
                    device_count(DeviceType::cuda) > 0 ? ", cuda" : "",
                    device_count(DeviceType::simt) > 0 ? ", simt" : "");
}

// A flag that chooses between our kernels and a library for a family of ops.
inline Flag engine_flag(const std::string& flag, EngineFamily family, const std::string& ops) {
  return {flag, "own|first|timed", "who computes " + ops + " in a build with CUDA, see levin/engines.h",
          [=](const std::string& name) {
            if (name != "own" && name != "first" && name != "timed")
              fail<ConfigError>(flag, ": \"", name, "\", expected own, first or timed");
            set_engine_choice(family, name == "own"     ? EngineChoice::own
                                      : name == "first" ? EngineChoice::first
                                                        : EngineChoice::timed);
            benchmark::AddCustomContext("levin_" + flag.substr(2), name);
          }};
}

inline int& failed_rows() {
  static int n = 0;
  return n;
}
// A row: f(state). An exception of f is the row's error, and later rows run.
template <class F>
benchmark::internal::Benchmark* add_row(const std::string& name, F f) {
  return benchmark::RegisterBenchmark(name.c_str(), [name, f = std::move(f)](benchmark::State& state) {
    try {
      f(state);
    } catch (const std::exception& e) {
      ++failed_rows();
      state.SkipWithError(e.what());
    }
  });
}

struct Asked {
  std::optional<std::string> commit{};
  std::optional<std::int64_t> memory{};
  std::vector<std::string> of_library{};  // flags of Google Benchmark
};

inline std::vector<Flag> flags_of(Asked& asked) {
  const auto library = [&asked](const char* flag) {
    return [&asked, flag](const std::string& value) { asked.of_library.push_back(flag + value); };
  };
  return {
      {"--json", "FILE", "the figures as JSON",
       [&asked](const std::string& file) {
         asked.of_library.push_back("--benchmark_out=" + file);
         asked.of_library.emplace_back("--benchmark_out_format=json");
       }},
      number_flag<int>("--threads", "N", "CPU threads", 1, [](int n) { set_num_threads(n); }),
      {"--device", "cpu|cuda|simt", "where rows run",
       [](const std::string& name) { settings().device = device_named(name); }},
      {"--list", "cpu|cuda|simt", "the names of the rows of that device, which need not be here; nothing is run",
       [&asked](const std::string& name) {
         if (name != "cpu" && name != "cuda" && name != "simt")
           fail<ConfigError>("--list: \"", name, "\", expected cpu, cuda or simt");
         settings().device = name == "cpu" ? Device::cpu() : name == "cuda" ? Device::cuda() : Device::simt();
         settings().listing = true;
         asked.of_library.emplace_back("--benchmark_list_tests=true");
       }},
      {"--filter", "REGEX", "rows whose name matches", library("--benchmark_filter=")},
      number_flag<double>("--seconds", "X", "a row is measured about so long (0.1)", 0,
                          [](double x) { settings().seconds = x; }),
      {"--commit", "TEXT", "what the figures are of, where the build could not ask git",
       [&asked](const std::string& text) { asked.commit = text; }},
      number_flag<double>("--max-bytes", "N", "of one tensor (bench_kernels)", 0,
                          [](double x) { settings().max_bytes = x; }),
      {"--dtypes", "all|bf16",
       "all: every dtype at every size, instead of f16 at one and f32 alone on the CPU (bench_kernels); bf16: bf16 "
       "instead, and steps under Autocast (bench_kernels, bench_step)",
       [](const std::string& which) {
         if (which != "all" && which != "bf16") fail<ConfigError>("--dtypes: \"", which, "\", expected all or bf16");
         (which == "all" ? settings().every_dtype : settings().in_bf16) = true;
       }},
      number_flag<std::int64_t>("--memory-limit", "N", "bytes that rows may use; those that need more fail", 1,
                                [&asked](std::int64_t n) { asked.memory = n; }),
      {"--warm-only", "", "nothing is measured with empty caches (bench_kernels)",
       [](const std::string&) { settings().cold = false; }},
      {"--paced", "",
       "prints each row as a line, name<TAB>seconds, and waits for a line of standard input before the next row: so "
       "another program can measure its side of the row",
       [](const std::string&) { settings().paced = true; }},
      {"--ledger", "",
       "the launches of recorded steps and the bytes that they move, on simt in a build with -Dledger=true "
       "(bench_step)",
       [](const std::string&) {
         settings().ledger = true;
         if (device_count(DeviceType::simt) > 0) settings().device = Device::simt();
       }},
      {"--quick", "", "the smallest shapes, one sample: shows that rows run, and no figure means anything",
       [](const std::string&) { settings().quick = true; }},
      engine_flag("--gemm", EngineFamily::product, "products"),
      engine_flag("--conv", EngineFamily::convolution, "convolutions"),
      engine_flag("--attention", EngineFamily::attention, "attention"),
      engine_flag("--norm", EngineFamily::batch_norm, "batch norm"),
      {"--tf32", "", "f32 products and convolutions of libraries may round to TF32",
       [](const std::string&) {
         set_allow_tf32(EngineFamily::product, AllowTf32::yes);
         set_allow_tf32(EngineFamily::convolution, AllowTf32::yes);
         benchmark::AddCustomContext("levin_tf32", "allowed");
       }},
  };
}

// Levin's flags are taken from the command line; those that begin with --benchmark_ are Google Benchmark's. Then
// prepare() may measure and register. Returns the exit status: 1 when a row failed, 2 for bad flags.
template <class Prepare>
int run(int argc, char** argv, Prepare&& prepare) {
  Asked asked;
  const Parsed parsed =
      parse(argc, argv, "Measures rows, and says what machine they were measured on.", flags_of(asked), "--benchmark_");
  if (parsed.ended) return *parsed.ended;
  std::vector<std::string> words{argv[0]};
  words.insert(words.end(), asked.of_library.begin(), asked.of_library.end());
  words.insert(words.end(), parsed.passed.begin(), parsed.passed.end());
  try {
    std::vector<char*> pointers;
    for (std::string& w : words) pointers.push_back(w.data());
    int count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
    benchmark::AddCustomContext("levin_device", text(settings().device));
    benchmark::AddCustomContext("levin_cpu_level", kernels::name(kernels::cpu_level()));
    benchmark::AddCustomContext("levin_threads", std::to_string(num_threads()));
    for (auto& [what, value] : facts(settings().device)) {
      if (what == "levin_commit" && asked.commit) value = *asked.commit;
      benchmark::AddCustomContext(what, value);
    }
    prepare();
    if (asked.memory) set_memory_limit(settings().device, *asked.memory);
    Table table(settings().ledger ? Prints::failed : settings().paced ? Prints::paced : Prints::table);
    benchmark::RunSpecifiedBenchmarks(&table);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench: %s\n", e.what());
    return 1;
  }
  if (failed_rows() > 0) std::fprintf(stderr, "bench: %d rows failed; each says why\n", failed_rows());
  return failed_rows() > 0 ? 1 : 0;
}

}  // namespace levin::bench

#define LEVIN_BENCHMARK_MAIN(prepare) \
  int main(int argc, char** argv) { return ::levin::bench::run(argc, argv, prepare); }
