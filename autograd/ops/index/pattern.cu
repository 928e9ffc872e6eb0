// What pattern.h declares, and the transpose.
#include "autograd/ops/index/pattern.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/sparse/csr_transpose.cuh"

// Nothing below is a hot loop, as in sparse.cu.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC optimize("Os")
#endif
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/sorted.h"
#include "levin/sparse.h"

namespace levin {

[[gnu::cold, gnu::noinline]] void refuse_shape(const char* op, const char* what, const Shape& shape,
                                               const std::string& expected) {
  fail<ShapeError>(op, ": ", what, " has shape ", shape, ", expected ", expected);
}

namespace {

constexpr const char* kTransposeOffsets = "with_transpose: crow must rise from 0 to the number of entries";

struct CsrTranspose {
  static constexpr OpInfo info{.name = "csr_transpose"};
  std::int64_t cols, longest_row;

  // Of the transpose: offsets, rows of a, positions in a.
  std::array<Tensor, 3> forward(const Tensor& crow, const Tensor& col) {
    const auto indices = [&](DType dtype, std::int64_t n) { return empty({n}, crow.device(), dtype); };
    const DensePattern p(Csr{.crow = crow, .col = col, .cols = cols}, col.numel(), longest_row);
    std::array<Tensor, 3> t{indices(DType::i64, cols + 1), indices(col.dtype(), col.numel()),
                            indices(col.dtype(), col.numel())};
    auto* const t_crow = ptr<std::int64_t>(t[0]);
    dispatch(info, col, kPositions,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::csr_transpose(on, p.view, t_crow, ptr<T>(t[1]), ptr<T>(t[2]));
                        },
                        [&]<class T>(const Gpu& on, T) {
                          namespace gpu = kernels::gpu;
                          const gpu::ColumnKey key{gpu::IndexRange(on, info.name, cols), p.view.col};
                          with_sorted(on, gpu::Grouping(col.numel(), cols), key, crow,
                                      [&]<class K>(const gpu::KeyOrder<K>& in) {
                                        gpu::csr_transpose(on, kTransposeOffsets, p.view, in, t_crow, ptr<T>(t[1]),
                                                           ptr<T>(t[2]));
                                      });
                        }});
    return t;
  }
};
LEVIN_OP_TABLE(CsrTranspose)

// ---- Checks

void check_positions(const char* op, const char* what, const Tensor& t, DType dtype, const Tensor& x) {
  if (t.dtype() != dtype)
    fail<DTypeError>(op, ": ", what, " is ", t.dtype(), ", expected ", dtype, "; convert it with to(DType::", dtype,
                     ")");
  check_same_device(op, x, t);
  if (t.rank() != 1) refuse_shape(op, what, t.shape(), "rank 1");
}

void check_offsets(const char* op, const char* what, const Tensor& offsets, std::int64_t entries, const Tensor& x) {
  check_positions(op, what, offsets, DType::i64, x);
  const std::int64_t rows = offsets.numel() - 1;
  if (rows < 0) refuse_shape(op, what, offsets.shape(), "one element more than there are rows");
  if (rows == 0 && entries > 0)
    refuse_shape(op, what, offsets.shape(), "more: there are " + text(entries) + " entries and no rows");
  if (!offsets.device().is_cpu()) return;
  const Tensor dense = offsets.contiguous();
  const auto* at = ptr<const std::int64_t>(dense);
  const auto bad = [&](std::int64_t i, const std::string& expected) {
    fail<IndexError>(op, ": ", what, "[", i, "] is ", at[i], ", expected ", expected);
  };
  if (at[0] != 0) bad(0, "0");
  for (std::int64_t i = 1; i <= rows; ++i)
    if (at[i] < at[i - 1]) bad(i, text(at[i - 1]) + " or more; offsets never fall");
  if (at[rows] != entries) bad(rows, text(entries) + ", the number of entries");
}

// Columns `col` in [0, cols), and `edge`, the places of the entries' values, of `dtype`; x gives the device.
void check_entries(const char* op, const std::array<const char*, 2>& names, const Tensor& col, const Tensor& edge,
                   std::int64_t cols, DType dtype, const Tensor& x) {
  check_positions(op, names[0], col, dtype, x);
  check_indices(op, col, cols, "the dimension of columns");
  if (!edge.defined()) return;
  check_positions(op, names[1], edge, dtype, x);
  if (edge.numel() != col.numel())
    refuse_shape(op, names[1], edge.shape(), "one element an entry, " + text(col.numel()));
  check_indices(op, edge, col.numel(), "the values");
}

}  // namespace

void check_csr(const char* op, const Csr& a, const Tensor& x) {
  if (a.known()) return check_same_device(op, x, a.crow);
  check_defined(op, a.crow, a.col);
  if (a.col.dtype() != DType::i32 && a.col.dtype() != DType::i64)
    fail<DTypeError>(op, ": col is ", a.col.dtype(), ", expected i32 or i64; convert it with to(DType::i64)");
  if (a.cols < 0 || a.cols > kMaxDim) fail<ShapeError>(op, ": cols is ", a.cols, ", expected 0 to ", kMaxDim);
  check_entries(op, {"col", "edge"}, a.col, a.edge, a.cols, a.col.dtype(), x);
  check_offsets(op, "crow", a.crow, a.entries(), x);
}
void check_segments(const char* op, const Tensor& offsets, std::int64_t entries, std::int64_t longest_row,
                    const Tensor& x) {
  if (longest_row < 0) return check_offsets(op, "offsets", offsets, entries, x);
  check_same_device(op, x, offsets);
}

// ---- Transposes

namespace {

// The facts `known` of a pattern for `other`, the same pattern with its transpose, or transposed.
std::shared_ptr<const CsrFacts> facts_for(const Csr& other, const CsrFacts& known, std::int64_t longest_row,
                                          std::int64_t longest_column) {
  const auto facts = std::make_shared<CsrFacts>(known, other);
  facts->longest_row = longest_row;
  facts->longest_column = longest_column;
  return facts;
}
// The longest row of checked offsets. A device is not asked: there it is the number of entries.
std::int64_t longest_of(const Tensor& offsets, std::int64_t entries) {
  if (!offsets.device().is_cpu()) return entries;
  const auto* at = ptr<const std::int64_t>(offsets);
  std::int64_t longest = 0;
  for (std::int64_t i = 1; i < offsets.numel(); ++i) longest = std::max(longest, at[i] - at[i - 1]);
  return longest;
}

// `a`, whose entries were checked, with the transpose, which is checked where the caller gave it.
Csr sorted_by_column(const Csr& a) {
  const CsrFacts* const known = a.known();
  if (a.t_crow.defined()) {
    if (known) return a;
    check_entries("transpose", {"t_col", "t_edge"}, a.t_col, a.t_edge, a.rows(), a.col.dtype(), a.crow);
    check_offsets("transpose", "t_crow", a.t_crow, a.entries(), a.crow);
    if (a.t_crow.numel() != a.cols + 1 || a.t_col.numel() != a.entries())
      refuse_shape(
          "transpose", "t_crow", a.t_crow.shape(),
          text(a.cols + 1) + " offsets, and " + text(a.entries()) + " entries in t_col; make them with with_transpose");
    return a;
  }
  constexpr auto kMost = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (a.col.dtype() == DType::i32 && std::max(a.rows(), a.entries()) > kMost)
    fail<ShapeError>("with_transpose: there are ", a.rows(), " rows and ", a.entries(), " entries, expected at most ",
                     kMost, " where positions are i32; convert col and edge with to(DType::i64)");
  const auto [crow, col, at] = apply(CsrTranspose{a.cols, longest_row_of(a)}, a.crow, a.col);
  Csr both = a;
  both.t_crow = crow;
  both.t_col = col;
  both.t_edge = a.edge.defined() ? index_select(a.edge, 0, at.to(DType::i64)) : at;
  both.facts = known ? facts_for(both, *known, known->longest_row, longest_of(crow, a.entries())) : nullptr;
  return both;
}

}  // namespace

Csr swapped(const Csr& a) {
  const Csr b = sorted_by_column(a);
  Csr t{.crow = b.t_crow,
        .col = b.t_col,
        .edge = b.t_edge,
        .cols = b.rows(),
        .t_crow = b.crow,
        .t_col = b.col,
        .t_edge = b.edge};
  if (const CsrFacts* const known = b.known())
    t.facts = facts_for(t, *known, known->longest_column, known->longest_row);
  return t;
}

Csr with_transpose(const Csr& a) {
  check_csr("with_transpose", a, a.crow);
  return sorted_by_column(a);
}
Csr transpose(const Csr& a) {
  check_csr("transpose", a, a.crow);
  return swapped(a);
}

}  // namespace levin
