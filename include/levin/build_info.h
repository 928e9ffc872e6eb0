// What this copy of Levin is: for reports, and to find out why a program is slow.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "levin/export.h"

namespace levin {

struct BuildInfo {
  std::string version;      // "0.1.0"
  std::string compiler;     // of the host code: "gcc 12.2.0"
  bool optimized = false;   // false: kernels are many times slower
  bool sanitizers = false;  // AddressSanitizer or ThreadSanitizer
  std::string launches_on;  // the device besides the cpu that the build has kernels for: "cuda", "simt", "none"
  std::string cpu_level;    // of this machine: "x86-64-v4", "x86-64-v3", "base"
  // The libraries that kernels use, as found when the program started: {"oneTBB", "2021.8"}, {"cuDNN", "9.1.0"}.
  std::vector<std::pair<std::string, std::string>> libraries{};
};
// Of the library that this program runs with.
[[nodiscard]] LEVIN_API BuildInfo build_info();

}  // namespace levin
