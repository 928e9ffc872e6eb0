// LEVIN_PICK_FLOAT(f) is LEVIN_PICK for kernels that wait for memory: f32 has v3 code, which v4 machines run too; f16
// and bf16, of which v4 widens a register by one instruction, have both; f64, which is for checks, has base code alone.
// It keeps the library small. Include it after each_level.h.
#pragma once

#include <type_traits>

#include "kernels/executor/cpu.h"

#if defined(LEVIN_X86_LEVELS) && LEVIN_X86_LEVELS
#define LEVIN_PICK_FLOAT(f)                                                  \
  template <class T, class... Args>                                          \
  void f(const Cpu& on, const Args&... args) {                               \
    if constexpr (sizeof(T) == 2)                                            \
      if (on.level == CpuLevel::v4) return v4::template f<T>(on, args...);   \
    if constexpr (!std::is_same_v<T, double>)                                \
      if (on.level != CpuLevel::base) return v3::template f<T>(on, args...); \
    base::template f<T>(on, args...);                                        \
  }
#else
#define LEVIN_PICK_FLOAT(f)                    \
  template <class T, class... Args>            \
  void f(const Cpu& on, const Args&... args) { \
    base::template f<T>(on, args...);          \
  }
#endif

// LEVIN_PICK_F32(f): f32 has v3 and v4 code, other types base code alone.
#if defined(LEVIN_X86_LEVELS) && LEVIN_X86_LEVELS
#define LEVIN_PICK_F32(f)                                                     \
  template <class... T, class... Args>                                        \
  void f(const Cpu& on, const Args&... args) {                                \
    if constexpr (kRunsAtV4<Args...>) {                                       \
      if (on.level == CpuLevel::v4) return v4::template f<T...>(on, args...); \
      if (on.level == CpuLevel::v3) return v3::template f<T...>(on, args...); \
    }                                                                         \
    base::template f<T...>(on, args...);                                      \
  }
#else
#define LEVIN_PICK_F32(f) LEVIN_PICK(f)
#endif
