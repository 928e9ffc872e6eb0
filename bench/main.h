// What every benchmark program does around its benchmarks: its flags, and what machine this is.
//   --json FILE, --threads N, --device cpu|cuda|simt
//   --filter REGEX          rows whose name matches
//   --seconds N             a row is measured about so long (0.1)
//   --commit TEXT           what the figures are of, where the build could not ask git
//   --max-bytes N           of one tensor (bench_kernels)
//   --dtypes all            every dtype at every size, instead of f16 at one and f32 alone on the CPU (bench_kernels)
//   --memory-limit N        bytes that rows may use; those that need more fail
//   --warm-only             nothing is measured with empty caches (bench_kernels)
//   --quick                 the smallest shapes, one sample: shows that rows run, and no figure means anything
//   --gemm own|first, --conv own|first|timed, --attention own|first|timed, --norm own|first|timed
//                           who computes these in a build with CUDA, see levin/engines.h
//   --tf32                  f32 products and convolutions of libraries may round to TF32
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/facts.h"
#include "kernels/cpu.h"
#include "levin/device.h"
#include "levin/engines.h"
#include "levin/error.h"
#include "levin/memory.h"

namespace levin::bench {

struct Settings {
  Device device = Device::cpu();
  double max_bytes = 0;  // of one tensor; 0: what the device's default is
  double seconds = 0.1;  // of a row
  bool cold = true;      // measure with empty caches as well
  bool every_dtype = false, quick = false;
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

// For flags that say whether our kernels or a library computes a family of ops: words[i] is one, and its value follows.
inline void choose_engine(EngineFamily family, const std::vector<std::string>& words, std::size_t& i) {
  const std::string &flag = words[i], &name = words[++i];
  if (name != "own" && name != "first" && name != "timed")
    fail<ConfigError>(flag, ": \"", name, "\", expected own, first or timed");
  set_engine_choice(family, name == "own"     ? EngineChoice::own
                            : name == "first" ? EngineChoice::first
                                              : EngineChoice::timed);
  benchmark::AddCustomContext("levin_" + flag.substr(2), name);
}

inline int& failed_rows() {
  static int n = 0;
  return n;
}
// A row: f(state). What it throws is the row's error, and the rows behind it run.
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

// Levin's flags are taken out of the command line, the rest is Google Benchmark's. Then prepare() may measure and register.
// Returns the exit status: 1 when a row failed.
template <class Prepare>
int run(int argc, char** argv, Prepare&& prepare) {
  std::vector<std::string> words(argv, argv + argc), rest;
  std::optional<std::string> commit;
  std::optional<std::int64_t> memory;
  try {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const bool value = i + 1 < words.size();
      if (words[i] == "--json" && value) {
        rest.push_back("--benchmark_out=" + words[++i]);
        rest.emplace_back("--benchmark_out_format=json");
      } else if (words[i] == "--threads" && value) {
        set_num_threads(std::stoi(words[++i]));
      } else if (words[i] == "--device" && value) {
        settings().device = device_named(words[++i]);
      } else if (words[i] == "--filter" && value) {
        rest.push_back("--benchmark_filter=" + words[++i]);
      } else if (words[i] == "--seconds" && value) {
        settings().seconds = std::stod(words[++i]);
      } else if (words[i] == "--commit" && value) {
        commit = words[++i];
      } else if (words[i] == "--conv" && value) {
        choose_engine(EngineFamily::convolution, words, i);
      } else if (words[i] == "--attention" && value) {
        choose_engine(EngineFamily::attention, words, i);
      } else if (words[i] == "--norm" && value) {
        choose_engine(EngineFamily::batch_norm, words, i);
      } else if (words[i] == "--gemm" && value) {
        choose_engine(EngineFamily::product, words, i);
      } else if (words[i] == "--tf32") {
        set_allow_tf32(EngineFamily::product, AllowTf32::yes);
        set_allow_tf32(EngineFamily::convolution, AllowTf32::yes);
        benchmark::AddCustomContext("levin_tf32", "allowed");
      } else if (words[i] == "--max-bytes" && value) {
        settings().max_bytes = std::stod(words[++i]);
      } else if (words[i] == "--dtypes" && value && words[i + 1] == "all") {
        settings().every_dtype = true;
        ++i;
      } else if (words[i] == "--memory-limit" && value) {
        memory = std::stoll(words[++i]);
      } else if (words[i] == "--warm-only") {
        settings().cold = false;
      } else if (words[i] == "--quick") {
        settings().quick = true;
      } else {
        rest.push_back(words[i]);
      }
    }
    std::vector<char*> pointers;
    for (std::string& w : rest) pointers.push_back(w.data());
    int count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
    benchmark::AddCustomContext("levin_device", text(settings().device));
    benchmark::AddCustomContext("levin_cpu_level", kernels::name(kernels::cpu_level()));
    benchmark::AddCustomContext("levin_threads", std::to_string(num_threads()));
    for (auto& [what, value] : facts(settings().device)) {
      if (what == "levin_commit" && commit) value = *commit;
      benchmark::AddCustomContext(what, value);
    }
    prepare();
    if (memory) set_memory_limit(settings().device, *memory);
    benchmark::RunSpecifiedBenchmarks();
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
