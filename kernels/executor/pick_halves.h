// LEVIN_PICK_HALVES(f) is LEVIN_PICK for kernels whose loops widen 16-bit floats in registers: f16 and bf16 have v4
// code there too, which is up to twice as fast as theirs of v3. Only pointers tell f64 from the others: scalars like an
// eps are double for all types. Include it after each_level.h.
#pragma once

#include <type_traits>

#include "kernels/executor/cpu.h"

namespace levin::kernels {
template <class T>
inline constexpr bool kPointsToDouble =
    std::is_pointer_v<std::remove_cvref_t<T>>&& std::is_same_v<PointedTo<T>, double>;
template <class... T>
inline constexpr bool kHalvesRunAtV4 = (kIsOneOf<T, float, f16, bf16> || ...) && !(kPointsToDouble<T> || ...);
}  // namespace levin::kernels

#if defined(LEVIN_X86_LEVELS) && LEVIN_X86_LEVELS
#define LEVIN_PICK_HALVES(f) LEVIN_PICK_IF(f, (kHalvesRunAtV4<T..., Args...>))
#else
#define LEVIN_PICK_HALVES(f) LEVIN_PICK(f)
#endif
