// How elementary functions are declared as pointwise ops.
#pragma once

#include "autograd/ops/pointwise/pointwise.h"
#include "kernels/math/math.h"

// One elementary function: its value, the operand of its derivative (x or y), the rule in public ops, and what else the
// functor has.
#define LEVIN_MATH(Type, op_name, policy, saves, value, rule, ...) \
  LEVIN_MATH_OF_GRAIN(Type, 16384, op_name, policy, saves, value, rule __VA_OPT__(, ) __VA_ARGS__)
// The same with the number of elements that are worth a thread of their own.
#define LEVIN_MATH_OF_GRAIN(Type, grain, op_name, policy, saves, value, rule, ...) \
  struct Type {                                                                    \
    static constexpr OpInfo info{.name = op_name, .autocast = policy};             \
    static constexpr auto kTypes = kFloats;                                        \
    static constexpr Saves kSaves = saves;                                         \
    static constexpr std::int64_t kGrain = grain;                                  \
    template <class T>                                                             \
    LEVIN_HD T operator()(T x) const {                                             \
      return value;                                                                \
    }                                                                              \
    Tensor backward(const Tensor& gy, const Tensor& s) const { return rule; }      \
    __VA_ARGS__                                                                    \
  };                                                                               \
  LEVIN_OP_TABLE(Unary<Type>)
// Its form for results of 16 bits: see HasHalfForm.
#define LEVIN_HALF_FORM(value)             \
  template <class H>                       \
  LEVIN_HD float for_half(float x) const { \
    return value;                          \
  }

namespace levin::pointwise {

inline constexpr AutocastPolicy keep = AutocastPolicy::keep, full = AutocastPolicy::full;
namespace m = kernels::math;

}  // namespace levin::pointwise
