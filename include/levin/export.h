// Symbol visibility of the library: everything is hidden except what is marked LEVIN_API.
#pragma once

#if defined(__GNUC__)
#define LEVIN_API __attribute__((visibility("default")))
#else
#define LEVIN_API
#endif

// An older compiler fails in the middle of the standard library. After the #error a file that does not exist stops it:
// nothing else makes g++ or clang end here, and one line says more than the errors that would follow.
#if defined(__clang__)
#if __clang_major__ < 15
#define LEVIN_OLD_COMPILER
#endif
#elif defined(__GNUC__) && __GNUC__ < 12
#define LEVIN_OLD_COMPILER
#endif
#if defined(LEVIN_OLD_COMPILER)
#error "Levin needs g++ 12 or clang 15, or newer; this compiler is older: choose another, as in CXX=g++-12"
#include "levin/stop/old_compiler"
#elif __cplusplus < 202002L
#error \
    "Levin needs C++20: compile with -std=c++20 \
(Meson: cpp_std=c++20, CMake: target_compile_features(mine PRIVATE cxx_std_20))"
#include "levin/stop/old_standard"
#endif
