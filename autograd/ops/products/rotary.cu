// Rotary embedding of positions. Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding",
// 2021, equation 34. 16-bit numbers are computed in f32.
#include <array>
#include <cmath>

#include "autograd/op_table.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/pointwise/rotary.cuh"
#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {
namespace {

void check_table(const char* op, const Tensor& positions, std::int64_t dim, double base) {
  check_defined(op, positions);
  if (positions.dtype() != DType::i64) fail<DTypeError>(op, ": positions are ", positions.dtype(), ", expected i64");
  if (dim < 2 || dim % 2 != 0)
    fail<ConfigError>(op, ": dim is ", dim, ", expected an even number of 2 or more: it counts pairs of elements");
  if (!(base > 0 && std::isfinite(base)))
    fail<ConfigError>(op, ": base is ", base, ", expected a positive finite number");
}

// Pairs are [..., T, pairs] of x's shape.
void check_rotated(const char* op, const Tensor& x, const Shape& pairs, const char* what) {
  const std::int64_t dim = 2 * pairs.back();
  if (x.rank() < 2) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [..., T, D]");
  if (dim > x.size(-1))
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected a last dimension of ", dim, " or more");
  const Shape whole = x.shape().with(x.rank() - 1, pairs.back());
  if (pairs.rank() > whole.rank() || broadcast_shapes(op, whole, pairs) != whole) {
    fail<ShapeError>(op, ": ", what, " have shape ", pairs.removed(pairs.rank() - 1),
                     ", expected one that broadcasts to ", whole.removed(whole.rank() - 1));
  }
}

RotaryTable table_of(const Tensor& positions, std::int64_t dim, double base, DType dtype) {
  // f64: a rounded frequency times a position of a million is an angle without a right digit in f32.
  const Tensor index = arange(dim / 2, positions.device(), DType::f64);
  const Tensor frequency = pow(base, index * -2 / static_cast<double>(dim));
  const Tensor angle = unsqueeze(cast(positions, DType::f64), -1) * frequency;
  return {cast(cos(angle), dtype), cast(sin(angle), dtype)};
}

// The composite twin, in public ops.
Tensor twin(const Tensor& x, const Tensor& cos, const Tensor& sin, RotaryPairs pairs) {
  const std::int64_t half = cos.size(-1), dim = 2 * half;
  const Tensor turning = cast(narrow(x, -1, 0, dim), cos.dtype());
  const bool halves = pairs == RotaryPairs::halves;
  const Tensor a = halves ? narrow(turning, -1, 0, half) : slice(turning, -1, 0, dim, 2);
  const Tensor b = halves ? narrow(turning, -1, half, half) : slice(turning, -1, 1, dim, 2);
  const Tensor left = a * cos - b * sin, right = b * cos + a * sin;
  Tensor y = halves ? cat({left, right}, -1) : flatten(stack({left, right}, -1), -2, -1);
  y = cast(y, x.dtype());
  return dim == x.size(-1) ? y : cat({y, narrow(x, -1, dim, x.size(-1) - dim)}, -1);
}

struct Rotary {
  static constexpr OpInfo info{.name = "apply_rotary"};
  RotaryPairs pairs;
  bool back = false;  // by the opposite angle
  SavedInput x{}, cos{}, sin{};

  Tensor forward(const Tensor& x_, const Tensor& cos_, const Tensor& sin_) {
    cos = cos_, sin = sin_;
    if (records(cos_) || records(sin_)) x = x_;  // for their gradients alone
    const int last = x_.rank() - 1;
    const Tensor from = x_.strides()[last] == 1 ? x_ : x_.contiguous(), y = empty(x_.shape(), x_.device(), x_.dtype());
    const Tensor c = cos_.contiguous(), s = sin_.contiguous();
    const std::int64_t half = c.size(-1);
    const Strides table = expand(c, x_.shape().with(last, half)).strides();
    kernels::RotaryPlan plan{.width = x_.size(-1), .half = half, .halves = pairs == RotaryPairs::halves, .back = back};
    for (int d = 0; d < last; ++d) plan.add(x_.shape()[d], from.strides()[d], table[d]);
    dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
      using A = kernels::Accum<T>;
      if (y.numel() > 0)
        kernels::rotate_pairs(on, ptr<const T>(from), ptr<const A>(c), ptr<const A>(s), ptr<T>(y), plan);
    });
    return y;
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    Grads<3> grads;
    if (need[1] || need[2]) {
      const auto reference = [&](const auto& in) { return twin(in[0], in[1], back ? neg(in[2]) : in[2], pairs); };
      grads = vjp<3>(reference, {x.get(), cos.get(), sin.get()}, std::array{gy}, need);
    } else {
      grads[0] = apply(Rotary{pairs, !back}, gy, cos.get(), sin.get());
    }
    return grads;
  }
};
LEVIN_OP_TABLE(Rotary)

Tensor rotated(const Tensor& x, const RotaryTable& table, RotaryPairs pairs) {
  return apply(Rotary{pairs}, x, table.cos, table.sin);
}

}  // namespace

RotaryTable rotary_table(const Tensor& positions, std::int64_t dim, double base, DType dtype) {
  constexpr const char* op = "rotary_table";
  check_table(op, positions, dim, base);
  if (dtype != DType::f32 && dtype != DType::f64)
    fail<DTypeError>(op, ": dtype is ", dtype, ", expected f32, which 16-bit tensors take too, or f64");
  return table_of(positions, dim, base, dtype);
}

Tensor apply_rotary(const Tensor& x, const RotaryTable& table, RotaryPairs pairs) {
  constexpr const char* op = "apply_rotary";
  check_float(op, x);
  check_defined(op, table.cos, table.sin);
  check_same_device(op, x, table.cos);
  check_same_device(op, x, table.sin);
  const DType dtype = accumulator(x.dtype());
  if (table.cos.dtype() != dtype || table.sin.dtype() != dtype) {
    fail<DTypeError>(op, ": x is ", x.dtype(), " and the table ", table.cos.dtype(), " and ", table.sin.dtype(),
                     ", expected a table of ", dtype);
  }
  if (table.cos.rank() == 0 || table.cos.shape() != table.sin.shape() || table.cos.size(-1) == 0) {
    fail<ShapeError>(op, ": cos has shape ", table.cos.shape(), " and sin ", table.sin.shape(),
                     ", expected one shape [..., T, dim / 2]");
  }
  check_rotated(op, x, table.cos.shape(), "the table's positions");
  return rotated(x, table, pairs);
}

Tensor rotary_embedding(const Tensor& x, const Tensor& positions, const RotaryOptions& options) {
  constexpr const char* op = "rotary_embedding";
  check_float(op, x);
  if (x.rank() < 2) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [..., T, D]");
  const std::int64_t dim = options.dim.value_or(x.size(-1));
  check_table(op, positions, dim, options.base);
  check_same_device(op, x, positions);
  check_rotated(op, x, positions.shape().inserted(positions.rank(), dim / 2), "positions");
  return rotated(x, table_of(positions, dim, options.base, accumulator(x.dtype())), options.pairs);
}

}  // namespace levin
