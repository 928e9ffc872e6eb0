#include "kernels/executor/cpu.h"

namespace levin::kernels {

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

const char* name(CpuLevel level) {
  switch (level) {
    case CpuLevel::v4: return "x86-64-v4";
    case CpuLevel::v3: return "x86-64-v3";
    case CpuLevel::base: break;
  }
  return "base";
}

}  // namespace levin::kernels
