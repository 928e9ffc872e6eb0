// Ops on graphs: reductions of segments, products with a sparse matrix whose values are edge weights, and what attention
// over edges needs. Differentiable to any order. No intermediate has entries x features elements; sums are in f32 for
// 16-bit tensors and in a fixed order, so results repeat bit for bit, for any number of threads. Nothing waits for a
// device, so a recorded graph may hold all of them.
//
// Positions are i64. On the CPU they are checked before anything else: an offset, column or edge out of range throws
// IndexError. On a device the kernels find it, skip the access, and the next wait throws. Other errors as in levin/ops.h.
//
//   const Csr a = with_transpose({.crow = iptr, .col = isrc, .cols = nodes});   // once a graph
//   Tensor s = leaky_relu(index_select(u, 0, a.col) + gather_csr(v, a.crow, a.col.numel()), 0.2);   // [E, H]
//   Tensor y = spmm(a, segment_softmax(s, a.crow), h);                                              // [N, H, C]
#pragma once

#include <cstdint>

#include "levin/ops.h"

namespace levin {

// ---- Segments: segment i of x [E, ...] is x[offsets[i] .. offsets[i + 1]); offsets [N + 1] rise from 0 to E.

enum class Reduce : std::uint8_t { sum, mean, min, max };
// [N, ...]: torch.segment_reduce, torch_scatter.segment_csr. A segment without elements gives 0 whatever the reduction
// is. min and max: NaN wins, and the gradient goes to the first element that has the value. f32, f64, f16, bf16.
[[nodiscard]] LEVIN_API Tensor segment_reduce(const Tensor& x, const Tensor& offsets, Reduce reduce = Reduce::sum);
// y[k] = x[i] for k in segment i; x [N, ...], y [entries, ...]. Every dtype. torch_scatter.gather_csr.
[[nodiscard]] LEVIN_API Tensor gather_csr(const Tensor& x, const Tensor& offsets, std::int64_t entries);
// exp(x - max) / sum(exp(x - max)) over each segment of x [E, ...], column by column; a segment of -inf alone gives 0.
[[nodiscard]] LEVIN_API Tensor segment_softmax(const Tensor& x, const Tensor& offsets);

// ---- Sparse matrices in compressed rows

// The pattern of a sparse matrix [rows, cols]: entries k in [crow[i], crow[i + 1]) are of row i and stand in column
// col[k]; entries may repeat. The values of entry k are values[edge[k]], values[k] where edge is undefined. For messages
// along edges rows are destinations, columns are sources.
struct Csr {
  Tensor crow{};  // [rows + 1]
  Tensor col{};   // [E]
  Tensor edge{};  // [E], a permutation; or undefined
  std::int64_t cols = 0;
  // crow, col and edge of the transposed matrix, where somebody made them.
  Tensor t_crow{}, t_col{}, t_edge{};
  [[nodiscard]] std::int64_t rows() const { return crow.numel() - 1; }
  [[nodiscard]] std::int64_t entries() const { return col.numel(); }
};
// The same with the transpose, by a stable sort of the columns. A gradient through spmm or sddmm makes it where it is
// needed and missing, each time: make it once for a graph that is used again.
[[nodiscard]] LEVIN_API Csr with_transpose(const Csr& a);
// The transposed matrix, with the values of a.
[[nodiscard]] LEVIN_API Csr transpose(const Csr& a);

// y[i] = the reduction over entries k of row i of value[k] x[col[k]]; x [cols, ...], y [rows, ...]. value is [E], or
// [E, H] with x [cols, H, ...], or undefined (ones). mean divides by the number of entries; a row without any gives 0.
// min and max: NaN wins, the gradient goes to the first entry that has the value. f32, f64, f16, bf16.
[[nodiscard]] LEVIN_API Tensor spmm(const Csr& a, const Tensor& value, const Tensor& x, Reduce reduce = Reduce::sum);
// Products on the pattern: y[k] = sum of x[i] z[col[k]] over the features; x [rows, F], z [cols, F], y [E], or with heads
// x [rows, H, F], z [cols, H, F], y [E, H].
[[nodiscard]] LEVIN_API Tensor sddmm(const Csr& a, const Tensor& x, const Tensor& z);

}  // namespace levin
