#include "kernels/executor/cpu.h"

#include <fstream>

#include "kernels/executor/streaming.h"

namespace levin::kernels {
namespace {

// Of the last cache that a core of this machine uses. On some machines sysconf(_SC_LEVEL3_CACHE_SIZE) adds up those of
// all cores.
int64_t last_cache_bytes() {
  constexpr int64_t kUsual = int64_t{32} << 20;
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  int64_t number = 0;
  char unit = 0;
  if (!(file >> number >> unit) || number <= 0) return kUsual;
  if (unit == 'K') return number << 10;
  return unit == 'M' ? number << 20 : kUsual;
}

}  // namespace

bool beyond_cache(int64_t bytes) {
  static const int64_t cache = last_cache_bytes();
  return bytes > cache + cache / 4;
}

CpuLevel cpu_level() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)  // clang: kernels/executor/each_level.h
  static const CpuLevel level = __builtin_cpu_supports("x86-64-v4")   ? CpuLevel::v4
                                : __builtin_cpu_supports("x86-64-v3") ? CpuLevel::v3
                                                                      : CpuLevel::base;
  return level;
#else
  return CpuLevel::base;
#endif
}

bool cpu_multiplies_bf16() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  static const bool has = cpu_level() == CpuLevel::v4 && __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return false;
#endif
}

const char* name(CpuLevel level) {
  switch (level) {
    case CpuLevel::v4: return "x86-64-v4";
    case CpuLevel::v3: return "x86-64-v3";
    case CpuLevel::base: break;
  }
  return "base";
}

}  // namespace levin::kernels
