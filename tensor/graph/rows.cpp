#include "tensor/graph/rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "levin/error.h"

namespace levin::detail {
namespace {

Tensor zeros(std::int64_t n) {
  Tensor x = empty({n}, Device::cpu(), DType::i64);
  std::fill_n(x.mutable_data<std::int64_t>(), n, 0);
  return x;
}
// Counts become starts: counts[i + 1] of row i -> offsets. Returns the longest row.
std::int64_t to_offsets(std::int64_t* counts, std::int64_t rows) {
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    longest = std::max(longest, counts[i + 1]);
    counts[i + 1] += counts[i];
  }
  return longest;
}
// Row i's cursor, at[i], stands at the end of row i after a sort: the start of row i + 1.
void cursors_to_offsets(std::int64_t* at, std::int64_t rows) {
  for (std::int64_t i = rows; i > 0; --i) at[i] = at[i - 1];
  at[0] = 0;
}

// What one pass over the edges learns.
struct Survey {
  bool by_dst = true;  // sorted by destination, source
  bool by_src = true;  // sorted by source
};

template <class S>
Survey survey(const char* op, const S* src, const S* dst, std::int64_t edges, std::int64_t num_src,
              std::int64_t num_dst, std::int64_t* rows) {
  Survey s;
  for (std::int64_t e = 0; e < edges; ++e) {
    const auto from = static_cast<std::uint64_t>(src[e]), to = static_cast<std::uint64_t>(dst[e]);
    if (from >= static_cast<std::uint64_t>(num_src))
      fail<IndexError>(op, ": src[", e, "] is ", std::int64_t{src[e]}, ", expected 0 to ", num_src - 1, ", a node");
    if (to >= static_cast<std::uint64_t>(num_dst))
      fail<IndexError>(op, ": dst[", e, "] is ", std::int64_t{dst[e]}, ", expected 0 to ", num_dst - 1, ", a node");
    ++rows[to + 1];
    if (e == 0) continue;
    s.by_dst = s.by_dst && (dst[e - 1] < dst[e] || (dst[e - 1] == dst[e] && src[e - 1] <= src[e]));
    s.by_src = s.by_src && src[e - 1] <= src[e];
  }
  return s;
}

// The edges by source, equal ones by id.
template <class S, class I>
Tensor order_by_source(const S* src, std::int64_t edges, std::int64_t num_src) {
  Tensor starts = zeros(num_src + 1), order = empty({edges}, Device::cpu(), dtype_of<I>);
  auto* at = starts.mutable_data<std::int64_t>();
  for (std::int64_t e = 0; e < edges; ++e) ++at[src[e] + 1];
  to_offsets(at, num_src);
  I* out = order.mutable_data<I>();
  for (std::int64_t e = 0; e < edges; ++e) out[at[src[e]]++] = static_cast<I>(e);
  return order;
}

template <class I>
Csr columns(Csr a) {
  const std::int64_t entries = a.entries(), rows = a.rows();
  a.t_crow = zeros(a.cols + 1);
  a.t_col = empty({entries}, Device::cpu(), dtype_of<I>);
  a.t_edge = empty({entries}, Device::cpu(), dtype_of<I>);
  auto* at = a.t_crow.mutable_data<std::int64_t>();
  const auto* crow = a.crow.data<std::int64_t>();
  const I* col = a.col.data<I>();
  I *t_col = a.t_col.mutable_data<I>(), *t_edge = a.t_edge.mutable_data<I>();
  for (std::int64_t k = 0; k < entries; ++k) ++at[col[k] + 1];
  const std::int64_t longest = to_offsets(at, a.cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = crow[i]; k < crow[i + 1]; ++k) {
      const std::int64_t to = at[col[k]]++;
      t_col[to] = static_cast<I>(i);
      t_edge[to] = static_cast<I>(k);
    }
  }
  cursors_to_offsets(at, a.cols);
  const std::int64_t longest_row = a.facts->longest_row;
  a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{longest_row, longest, true});
  return a;
}

template <class S, class I>
Rows sorted_rows(const char* op, const Tensor& src_, const Tensor& dst_, std::int64_t num_src, std::int64_t num_dst) {
  const std::int64_t edges = src_.numel();
  const S *src = src_.data<S>(), *dst = dst_.data<S>();
  Rows r;
  r.csr = {.crow = zeros(num_dst + 1), .col = empty({edges}, Device::cpu(), dtype_of<I>), .cols = num_src};
  auto* at = r.csr.crow.mutable_data<std::int64_t>();
  I* col = r.csr.col.mutable_data<I>();
  const Survey found = survey(op, src, dst, edges, num_src, num_dst, at);
  const std::int64_t longest = to_offsets(at, num_dst);
  if (found.by_dst) {
    for (std::int64_t e = 0; e < edges; ++e) col[e] = static_cast<I>(src[e]);
  } else {
    r.edge_ids = empty({edges}, Device::cpu(), dtype_of<I>);
    I* ids = r.edge_ids.mutable_data<I>();
    const auto put = [&](std::int64_t e) {
      const std::int64_t to = at[dst[e]]++;
      col[to] = static_cast<I>(src[e]);
      ids[to] = static_cast<I>(e);
    };
    if (found.by_src) {
      for (std::int64_t e = 0; e < edges; ++e) put(e);
    } else {
      const Tensor order = order_by_source<S, I>(src, edges, num_src);
      const I* next = order.data<I>();
      for (std::int64_t k = 0; k < edges; ++k) put(next[k]);
    }
    cursors_to_offsets(at, num_dst);
  }
  r.csr.facts = std::make_shared<const CsrFacts>(r.csr, CsrFacts::Promise{.longest_row = longest, .ascending = true});
  return r;
}

}  // namespace

Csr with_columns(Csr a) {
  return a.col.dtype() == DType::i32 ? columns<std::int32_t>(std::move(a)) : columns<std::int64_t>(std::move(a));
}

Rows rows_of_edges(const char* op, const Tensor& src, const Tensor& dst, std::int64_t num_src, std::int64_t num_dst,
                   bool transposed) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const bool narrow = num_src <= kMost && num_dst <= kMost && src.numel() <= kMost;
  const auto sort = [&]<class S>(S) {
    return narrow ? sorted_rows<S, std::int32_t>(op, src, dst, num_src, num_dst)
                  : sorted_rows<S, std::int64_t>(op, src, dst, num_src, num_dst);
  };
  Rows r = src.dtype() == DType::i32 ? sort(std::int32_t{}) : sort(std::int64_t{});
  if (transposed) r.csr = with_columns(std::move(r.csr));
  return r;
}

}  // namespace levin::detail
