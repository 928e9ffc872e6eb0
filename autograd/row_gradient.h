// Gradients of tables that hold rows alone: what ops give and what a leaf keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "levin/autograd.h"
#include "tensor/core/gradient_rows.h"

namespace levin {

// Note [Gradients of rows]
//
// A batch names few rows of a large table, so most of a gradient of the table's size is 0. The engine lets an op that
// gathers rows say which ones received what (takes_rows, give_rows), where the table is a leaf and the pass accumulates
// without create_graph. The leaf joins rows that were named more than once, in the order of the dense gradient, so sums
// have its bits. grad(), hooks, homes and a dense gradient of another op make it dense, and then all is as if the op
// had given a dense one.
namespace detail {

// For ops' backward functions: whether give_rows may stand for the gradient of input i.
[[nodiscard]] bool takes_rows(std::size_t input) noexcept;
// The gradient of input i, of shape [N, ...], is the sum over k of values[k] in row rows[k]: rows i64 of any shape,
// values [rows.numel(), ...]. The op returns an undefined tensor for it.
void give_rows(std::size_t input, const Tensor& rows, const Tensor& values);

// What the engine and leaves do with rows, through pointers: a program that never gives rows does not link the ops.
struct RowSums {
  RowGradient (*merged)(const RowGradient& gradient, std::int64_t rows);
  RowGradient (*sum)(const RowGradient& a, const RowGradient& b, std::int64_t rows);
  Tensor (*dense)(const RowGradient& gradient, const Shape& shape);
};
// Where there are rows, which give_rows or set_row_grad made.
[[nodiscard]] const RowSums& row_sums() noexcept;

// Each row once, as row_grad says, of a table with so many rows.
[[nodiscard]] inline RowGradient merged(const RowGradient& gradient, std::int64_t rows) {
  return row_sums().merged(gradient, rows);
}
// The sum of two gradients of one table.
[[nodiscard]] inline RowGradient sum(const RowGradient& a, const RowGradient& b, std::int64_t rows) {
  return row_sums().sum(a, b, rows);
}
[[nodiscard]] inline Tensor dense(const RowGradient& gradient, const Shape& shape) {
  return row_sums().dense(gradient, shape);
}

// The leaf's gradient as a tensor like the leaf; a gradient of rows stays one. Undefined where there is none.
[[nodiscard]] Tensor gradient_as_dense(const Tensor& leaf);
// [N, ...] where values[k] is added to row rows[k], in the order of k: rows i64 [n] in [0, N), values [n, ...].
[[nodiscard]] Tensor sum_of_rows(const Shape& shape, const Tensor& rows, const Tensor& values);

}  // namespace detail
}  // namespace levin
