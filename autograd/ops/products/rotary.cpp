// Rotary embedding of positions. Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding",
// 2021, equation 34. Public ops in a row; 16-bit numbers are widened to f32 first.
#include <cmath>

#include "autograd/ops/reduce/loss_parts.h"
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
  const Tensor frequency = exp(index * (-2 * std::log(base) / static_cast<double>(dim)));
  const Tensor angle = unsqueeze(cast(positions, DType::f64), -1) * frequency;
  return {cast(cos(angle), dtype), cast(sin(angle), dtype)};
}

Tensor rotated(const Tensor& x, const RotaryTable& table, RotaryPairs pairs) {
  const std::int64_t half = table.cos.size(-1), dim = 2 * half;
  const Tensor turning = cast(narrow(x, -1, 0, dim), table.cos.dtype());
  const bool halves = pairs == RotaryPairs::halves;
  const Tensor a = halves ? narrow(turning, -1, 0, half) : slice(turning, -1, 0, dim, 2);
  const Tensor b = halves ? narrow(turning, -1, half, half) : slice(turning, -1, 1, dim, 2);
  const Tensor left = a * table.cos - b * table.sin, right = b * table.cos + a * table.sin;
  Tensor y = halves ? cat({left, right}, -1) : flatten(stack({left, right}, -1), -2, -1);
  y = cast(y, x.dtype());
  return dim == x.size(-1) ? y : cat({y, narrow(x, -1, dim, x.size(-1) - dim)}, -1);
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
