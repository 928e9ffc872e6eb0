// Compiles the CPU half of one .cuh once per x86 level (clang: base alone). No include guard: each kernel file has it
// once.
//
//   #ifndef LEVIN_LEVEL                       // outer pass
//   #ifndef LEVIN_KERNELS_NORM_CUH
//   #define LEVIN_KERNELS_NORM_CUH
//   #include "kernels/executor/cpu.h"                  // and every other header: none inside a level
//   #define LEVIN_LEVEL_FILE "kernels/norm/norm.cuh"
//   #include "kernels/executor/each_level.h"           // comes back to this file with LEVIN_LEVEL = base, v3, v4
//   namespace levin::kernels::cpu { LEVIN_PICK(layer_norm) }
//   #endif
//   #else                                     // inner pass: templates (or inline functions), a namespace a level
//   namespace levin::kernels::cpu::LEVIN_LEVEL {
//   template <class T> void layer_norm(const Cpu& on, const T* x, ...);
//   }
//   #endif
//
// Inside a level LEVIN_VECTOR_BYTES is the widest vector register: 16, 32 or 64. What hot loops call must be defined
// inside the level or be small enough to inline: what is defined outside has base code. Do not pass vector types
// (vector_size, __m256) by value to a function or lambda that is not in the level, nor through std templates.
#ifndef LEVIN_LEVEL_FILE
#error "define LEVIN_LEVEL_FILE before including kernels/executor/each_level.h"
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(LEVIN_BASE_LEVEL)
#define LEVIN_X86_LEVELS 1
#else
#define LEVIN_X86_LEVELS 0
#endif

// Where there are higher levels, base runs on none but the oldest machines: there it is built small.
#if LEVIN_X86_LEVELS
#pragma GCC push_options
#pragma GCC optimize("Os")
#endif
#define LEVIN_LEVEL base
#define LEVIN_VECTOR_BYTES 16
#include LEVIN_LEVEL_FILE
#undef LEVIN_LEVEL
#undef LEVIN_VECTOR_BYTES
#if LEVIN_X86_LEVELS
#pragma GCC pop_options
#endif

#if LEVIN_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define LEVIN_LEVEL v3
#define LEVIN_VECTOR_BYTES 32
#include LEVIN_LEVEL_FILE
#undef LEVIN_LEVEL
#undef LEVIN_VECTOR_BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#define LEVIN_LEVEL v4
#define LEVIN_VECTOR_BYTES 64
#include LEVIN_LEVEL_FILE
#undef LEVIN_LEVEL
#undef LEVIN_VECTOR_BYTES
#pragma GCC pop_options
#endif

#undef LEVIN_LEVEL_FILE

// LEVIN_PICK(f) makes cpu::f(on, args...) and cpu::f<T...>(on, args...), which call the f of on's level; at v4 only
// where Note [Levels and types] says so. LEVIN_PICK_EVERY(f) has v4 for all types. Every f must be a function template;
// explicit template arguments must be types.
#ifndef LEVIN_PICK
#if LEVIN_X86_LEVELS
#define LEVIN_PICK_IF(f, at_v4)                                                                    \
  template <class... T, class... Args>                                                             \
  decltype(auto) f(const Cpu& on, Args&&... args) {                                                \
    if constexpr (at_v4) {                                                                         \
      if (on.level == CpuLevel::v4) return v4::template f<T...>(on, static_cast<Args&&>(args)...); \
    }                                                                                              \
    if (on.level != CpuLevel::base) return v3::template f<T...>(on, static_cast<Args&&>(args)...); \
    return base::template f<T...>(on, static_cast<Args&&>(args)...);                               \
  }
#define LEVIN_PICK(f) LEVIN_PICK_IF(f, (kRunsAtV4<T..., Args...>))
#define LEVIN_PICK_EVERY(f) LEVIN_PICK_IF(f, true)
#else
#define LEVIN_PICK(f)                                                \
  template <class... T, class... Args>                               \
  decltype(auto) f(const Cpu& on, Args&&... args) {                  \
    return base::template f<T...>(on, static_cast<Args&&>(args)...); \
  }
#define LEVIN_PICK_EVERY(f) LEVIN_PICK(f)
#endif
#endif
