// Ops on graphs: reductions of segments, products with a sparse matrix whose values are edge weights, and attention
// over the edges of a node. Differentiable to any order. Spmm's and sddmm's passes make no tensor of entries x features
// elements. 16-bit floats are summed in f32, and the order of sums is fixed, so results repeat bit for bit for any
// number of threads. No op waits for a device, so a recorded graph may hold all of them.
//
// Offsets are i64, columns and edges i64 or i32. On the CPU an offset, column or edge out of range throws IndexError
// before anything is computed. On a device the kernels find it, skip the access, and the next wait throws. Other errors
// as in levin/ops.h.
//
//   const Csr a = checked(with_transpose({.crow = iptr, .col = isrc, .cols = nodes}));   // once a graph
//   Tensor y = spmm(a, segment_softmax(edge_scores(a, u, v), a), h);   // attention: u, v [N, H], h [N, H, C]
#pragma once

#include <cstdint>
#include <optional>

#include "levin/graph.h"
#include "levin/ops.h"

namespace levin {

// ---- Segments: segment i of x [E, ...] is x[offsets[i] .. offsets[i + 1]); offsets [N + 1] rise from 0 to E. A Csr
// stands for its offsets crow, which are not examined again where checked() did before; E is its number of entries.

enum class Reduce : std::uint8_t { sum, mean, min, max };
// y[i] = the reduction of segment i of x [E, ...], column by column: [N, ...]. 0 for an empty segment and every
// reduction. min and max: NaN wins, and the gradient goes to the first element with the value. Floats.
// torch_scatter.segment_csr.
[[nodiscard]] LEVIN_API Tensor segment_reduce(const Tensor& x, const Tensor& offsets, Reduce reduce = Reduce::sum);
[[nodiscard]] LEVIN_API Tensor segment_reduce(const Tensor& x, const Csr& a, Reduce reduce = Reduce::sum);
// y[k] = x[i] for k in segment i: x [N, ...] -> [entries, ...]; every dtype. torch_scatter.gather_csr.
[[nodiscard]] LEVIN_API Tensor gather_csr(const Tensor& x, const Tensor& offsets, std::int64_t entries);
[[nodiscard]] LEVIN_API Tensor gather_csr(const Tensor& x, const Csr& a);
// exp(x - max) / sum(exp(x - max)) over each segment of x [E, ...], column by column: [E, ...]; a segment of -inf alone
// gives 0. Floats.
[[nodiscard]] LEVIN_API Tensor segment_softmax(const Tensor& x, const Tensor& offsets);
[[nodiscard]] LEVIN_API Tensor segment_softmax(const Tensor& x, const Csr& a);

struct BagOptions {
  Reduce mode = Reduce::mean;
  Tensor per_sample_weights{};                // of Reduce::sum: a factor for each entry, in index's shape; or undefined
  std::optional<std::int64_t> padding_idx{};  // entries of this row count for nothing; may be negative
  bool include_last_offset = false;           // offsets end with the number of entries
  EmbeddingGrad gradient = EmbeddingGrad::dense;
};
// The reduction of bags of rows of weight [rows, columns]: index i64 [E], whose bag i is offsets[i] .. offsets[i + 1]
// with offsets i64 [bags] from 0, or index [bags, n] without offsets -> [bags, columns]; 0 for a bag without entries.
// Without padding_idx and with a dense gradient the rows of all entries are never in memory. PyTorch has no Reduce::min
// here. Throws StateError for [E] without offsets, ShapeError, DTypeError, IndexError, and ConfigError for
// per_sample_weights of another reduction.
[[nodiscard]] LEVIN_API Tensor embedding_bag(const Tensor& weight, const Tensor& index, const Tensor& offsets = {},
                                             const BagOptions& options = {});

// ---- Sparse matrices in compressed rows

// Patterns are Csr of levin/graph.h. An op examines its pattern at each call, except where checked() did before: on the
// CPU it then reads no position but to compute, on a device it launches no check of the rows.

// `a` with t_crow, t_col and t_edge, of col's dtype, by a stable sort of the columns. A backward of spmm or sddmm that
// misses them sorts each time: call this once for a graph that is used again. Keeps the facts of checked(); on a device
// longest_column is then the number of entries at most.
[[nodiscard]] LEVIN_API Csr with_transpose(const Csr& a);
// The transposed matrix, with the values of a.
[[nodiscard]] LEVIN_API Csr transpose(const Csr& a);

// y[i] = the reduction over the entries k of row i of value[k] x[col[k]]: x [cols, ...] -> [rows, ...]. value is [E],
// or [E, H] with x [cols, H, ...], or undefined (ones). mean divides by the number of entries; 0 for a row without
// entries. min and max: NaN wins, and the gradient goes to the first entry with the value. Floats.
[[nodiscard]] LEVIN_API Tensor spmm(const Csr& a, const Tensor& value, const Tensor& x, Reduce reduce = Reduce::sum);
// Products on the pattern: y[k] = sum of x[i] z[col[k]] over the features, for k in row i: x [rows, F], z [cols, F] ->
// [E], or with heads x [rows, H, F], z [cols, H, F] -> [E, H]. Floats.
[[nodiscard]] LEVIN_API Tensor sddmm(const Csr& a, const Tensor& x, const Tensor& z);

// ---- Scores of edges, before segment_softmax. Their first derivatives sum by rows and by columns and scatter nothing.

// The scores of GAT: s[k, h] = leaky_relu(u[col[k], h] + v[i, h]) for k in row i: u [cols, H], v [rows, H] -> [E, H].
// Floats. Velickovic et al., "Graph Attention Networks", 2018.
[[nodiscard]] LEVIN_API Tensor edge_scores(const Csr& a, const Tensor& u, const Tensor& v, double negative_slope = 0.2);
// The scores of GATv2: s[k, h] = sum over c of attn[h, c] leaky_relu(l[col[k], h, c] + r[i, h, c]) for k in row i, with
// l [cols, H, C], r [rows, H, C], attn [H, C] -> [E, H]. Value and first derivative make no [E, H, C] tensor. Floats.
// Brody, Alon, Yahav, "How Attentive are Graph Attention Networks?", 2021.
[[nodiscard]] LEVIN_API Tensor gatv2_scores(const Csr& a, const Tensor& l, const Tensor& r, const Tensor& attn,
                                            double negative_slope = 0.2);

}  // namespace levin
