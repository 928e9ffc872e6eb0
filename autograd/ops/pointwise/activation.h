// What the sources of activations share. Each backward is one fused pass, gy * f'(x). `slope` of tensors, in public
// ops, defines that pass and gives its derivative.
#pragma once

#include "autograd/ops/pointwise/elementary.h"

// What every activation declares; `backward` is the fused op.
#define LEVIN_ACTIVATION(Type, op_name, policy, saves)                \
  static constexpr OpInfo info{.name = op_name, .autocast = policy};  \
  static constexpr OpInfo backward_info{.name = op_name "_backward"}; \
  static constexpr auto kTypes = kFloats;                             \
  static constexpr Saves kSaves = saves;                              \
  static constexpr std::int64_t kGrain = 16384;                       \
  Tensor backward(const Tensor& gy, const Tensor& s) const { return apply(UnaryBackward<Type>{*this}, gy, s); }

#define LEVIN_LIST(Type)      \
  LEVIN_OP_TABLE(Unary<Type>) \
  LEVIN_OP_TABLE(UnaryBackward<Type>)

namespace levin::pointwise {

// 1 where the condition holds, else 0, in x's dtype. A step has no derivative of its own.
[[nodiscard]] inline Tensor step(const Tensor& condition, const Tensor& x) { return cast(condition, x.dtype()); }

}  // namespace levin::pointwise
