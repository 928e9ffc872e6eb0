// How elementary functions are declared as pointwise ops.
#pragma once

#include "autograd/ops/pointwise/pointwise.h"
#include "kernels/math/math.h"

// One elementary function: its value, the operand of its derivative (x or y), and the rule in public ops.
#define LEVIN_MATH(Type, op_name, policy, saves, value, rule) \
  LEVIN_MATH_OF_GRAIN(Type, 16384, op_name, policy, saves, value, rule)
// The same with the number of elements that are worth a thread of their own.
#define LEVIN_MATH_OF_GRAIN(Type, grain, op_name, policy, saves, value, rule) \
  struct Type {                                                               \
    static constexpr OpInfo info{.name = op_name, .autocast = policy};        \
    static constexpr auto kTypes = kFloats;                                   \
    static constexpr Saves kSaves = saves;                                    \
    static constexpr std::int64_t kGrain = grain;                             \
    template <class T>                                                        \
    LEVIN_HD T operator()(T x) const {                                        \
      return value;                                                           \
    }                                                                         \
    Tensor backward(const Tensor& gy, const Tensor& s) const { return rule; } \
  };                                                                          \
  LEVIN_OP_TABLE(Unary<Type>)

namespace levin::pointwise {

inline constexpr AutocastPolicy keep = AutocastPolicy::keep, full = AutocastPolicy::full;
namespace m = kernels::math;

}  // namespace levin::pointwise
