#include "kernels/executor/cpu.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstring>
#include <fstream>

#include "kernels/executor/streaming.cuh"

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

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Whether the CPU has AMX with bf16, and Linux lets this process use the registers, which a context switch must save.
// Source: Linux, Documentation/arch/x86/xstate.rst.
bool may_use_amx() {
#if defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;  // of leaf 7's EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTiles) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

bool beyond_cache(int64_t bytes) {
  static const int64_t cache = last_cache_bytes();
  return bytes > cache + cache / 4;
}

void copy_few(char* to, const char* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }

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

bool cpu_runs([[maybe_unused]] Bf16Products by) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  static const bool pairs = cpu_level() == CpuLevel::v4 && __builtin_cpu_supports("avx512bf16"),
                    tiles = pairs && may_use_amx();
  if (by == Bf16Products::pairs) return pairs;
  if (by == Bf16Products::tiles) return tiles;
#endif
  return by == Bf16Products::f32;
}

Bf16Products cpu_bf16_products() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (cpu_runs(Bf16Products::tiles)) return Bf16Products::tiles;
  // On AMD's Zen 4 products of pairs take half of the time of those of f32. An Intel core (Emerald Rapids) starts one
  // VDPBF16PS, or four FMAs, in 0.74 ns.
  if (cpu_runs(Bf16Products::pairs) && __builtin_cpu_is("amd")) return Bf16Products::pairs;
#endif
  return Bf16Products::f32;
}

int cpu_l1_ways() {
  static const int ways = [] {
#if defined(_SC_LEVEL1_DCACHE_ASSOC)
    if (const long told = sysconf(_SC_LEVEL1_DCACHE_ASSOC); told > 0 && told <= 64) return static_cast<int>(told);
#endif
    return 8;
  }();
  return ways;
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
