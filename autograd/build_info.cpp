#include "levin/build_info.h"

#include "kernels/executor/cpu.h"
#include "kernels/lib/versions.h"

namespace levin {
namespace {

constexpr const char* kVersion = "0.1.0";  // a test compares it with meson.build

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

constexpr bool kOptimized =
#ifdef __OPTIMIZE__
    true;
#else
    false;
#endif
constexpr bool kSanitizers =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif
constexpr const char* kLaunchesOn =
#if defined(LEVIN_CUDA)
    "cuda";
#elif defined(LEVIN_SIMT)
    "simt";
#else
            "none";
#endif

}  // namespace

BuildInfo build_info() {
  return {.version = kVersion,
          .compiler = compiler(),
          .optimized = kOptimized,
          .sanitizers = kSanitizers,
          .launches_on = kLaunchesOn,
          .cpu_level = kernels::name(kernels::cpu_level()),
          .libraries = kernels::lib::versions()};
}

}  // namespace levin
