// What this copy of Levin is: for reports, and for people who ask why a program is slow.
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
  std::string launches_on;  // devices that the build has kernels for beside the cpu: "cuda", "simt", "none"
  std::string cpu_level;    // of this machine: "x86-64-v4", "x86-64-v3", "base"
  // What kernels are linked with, as it was found when the program started: {"oneTBB", "2021.8"}, {"cuDNN", "9.1.0"}.
  std::vector<std::pair<std::string, std::string>> libraries{};
};
[[nodiscard]] LEVIN_API BuildInfo build_info();

}  // namespace levin
