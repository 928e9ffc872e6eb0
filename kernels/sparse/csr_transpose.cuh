// The transpose of a pattern in compressed rows (kernels/sparse/csr.cuh): a stable sort of entries by column.
//
//   csr_transpose(on, CsrView, t_crow, I* t_row, I* t_at)    t_crow: [cols + 1]; t_row, t_at: [entries], the rows and
//     the positions of entries by column, those of a column in their order; I: the type of the view's columns
// On a device a column outside is reported by the sort's key and comes after all others, in no row of the transpose.
#pragma once

#include <cstdint>

#include "kernels/index/group.cuh"
#include "kernels/sparse/csr.cuh"

namespace levin::kernels {

namespace cpu {

template <class I>
void csr_transpose(const Cpu&, const CsrView& view, std::int64_t* t_crow, I* t_row, I* t_at) {
  const CsrArrays<I> a(view);
  std::fill_n(t_crow, view.cols + 1, std::int64_t{0});
  for (std::int64_t k = 0; k < a.entries; ++k) ++t_crow[a.col[k]];
  std::int64_t sum = 0;
  for (std::int64_t j = 0; j <= view.cols; ++j) {
    sum += t_crow[j];
    t_crow[j] = sum;
  }
  // From the back, so that each column's end moves to its begin.
  for (std::int64_t i = a.rows - 1; i >= 0; --i)
    for (std::int64_t k = a.crow[i + 1] - 1; k >= a.crow[i]; --k) {
      const std::int64_t to = --t_crow[a.col[k]];
      t_row[to] = static_cast<I>(i);
      t_at[to] = static_cast<I>(k);
    }
}

}  // namespace cpu

namespace gpu {

// A column outside gets the key `bound`.
struct ColumnKey {
  IndexRange range;
  Positions col;
  __device__ std::int64_t operator()(std::int64_t k) const {
    const std::int64_t j = col[k];
    return range.holds(j) ? j : range.bound;
  }
};

template <class K, class I>
__global__ void write_transpose(CsrRows a, KeyOrder<K> in, I* t_row, I* t_at) {
  const std::int64_t i = own_item();
  if (i >= in.n) return;
  const auto at = std::int64_t(in.at[i]);
  t_at[i] = I(at);
  t_row[i] = I(row_of(a.crow, at, 0, a.rows - 1));
}
// `in`: entries sorted by column. Rows are not 0 where entries are not.
template <class K, class I>
void csr_transpose(const Gpu& on, const char* offsets, const CsrView& a, const KeyOrder<K>& in, std::int64_t* t_crow,
                   I* t_row, I* t_at) {
  check_rows(on, offsets, a);
  on.launch(find_runs<K, std::int64_t>, item_grid(a.cols + 1), in, t_crow, a.cols);
  on.launch(write_transpose<K, I>, item_grid(in.n), CsrRows{a.crow, a.rows, a.entries}, in, t_row, t_at);
}

}  // namespace gpu
}  // namespace levin::kernels
