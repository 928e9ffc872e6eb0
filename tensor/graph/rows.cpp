#include "tensor/graph/rows.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

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
struct Survey {
  bool by_dst = true;  // sorted by destination, source
  bool by_src = true;  // sorted by source
};
// Checks the edges and counts those of each row.
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

// Note [Sorting edges]
// A counting sort that writes to all rows at once misses the cache at each write where there are millions of rows. So
// entries first go to buckets of consecutive rows, few enough to write to all of them at once, in their order. A bucket
// holds the entries of its rows, which are those of the sorted array from its first row's offset on: the buckets are
// the array itself. Then each bucket, which mostly fits the cache, is sorted by row.
constexpr std::int64_t kEntriesPerBucket = std::int64_t{1} << 17, kMostBuckets = 512;

struct Buckets {
  int shift = 0;  // 2^shift rows a bucket
  std::int64_t count = 1;
  std::vector<std::int64_t> start{};  // count + 1 entries

  // `offsets` of `rows` rows.
  Buckets(const std::int64_t* offsets, std::int64_t rows) {
    const std::int64_t wanted = std::clamp<std::int64_t>(offsets[rows] / kEntriesPerBucket, 1, kMostBuckets);
    while ((rows >> shift) >= wanted && shift < 62) ++shift;
    count = (rows >> shift) + 1;
    for (std::int64_t b = 0; b <= count; ++b) start.push_back(offsets[first_row(b, rows)]);
  }
  [[nodiscard]] std::int64_t first_row(std::int64_t bucket, std::int64_t rows) const {
    return std::min(rows, bucket << shift);
  }
};

// Sorts entries by row and keeps their order within a row. each(put) calls put(row, index, id) for each entry.
template <class I, class Each>
void sort_entries(const std::int64_t* offsets, std::int64_t rows, I* index, I* id, const Each& each) {
  const Buckets buckets(offsets, rows);
  Tensor row_of = empty({offsets[rows]}, Device::cpu(), dtype_of<I>);
  I* row = row_of.mutable_data<I>();
  std::vector<std::int64_t> at(buckets.start);
  each([&, shift = buckets.shift](std::int64_t r, I i, I k) {
    const std::int64_t to = at[static_cast<std::size_t>(r >> shift)]++;
    row[to] = static_cast<I>(r);
    index[to] = i;
    id[to] = k;
  });
  std::vector<std::pair<I, I>> sorted;
  for (std::int64_t b = 0; b < buckets.count; ++b) {
    const std::int64_t begin = buckets.start[static_cast<std::size_t>(b)];
    const std::int64_t end = buckets.start[static_cast<std::size_t>(b) + 1];
    const std::int64_t low = buckets.first_row(b, rows);
    sorted.resize(static_cast<std::size_t>(end - begin));
    at.assign(offsets + low, offsets + buckets.first_row(b + 1, rows));
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t to = at[static_cast<std::size_t>(row[k] - low)]++;
      sorted[static_cast<std::size_t>(to - begin)] = {index[k], id[k]};
    }
    for (std::int64_t k = begin; k < end; ++k) std::tie(index[k], id[k]) = sorted[static_cast<std::size_t>(k - begin)];
  }
}

template <class I>
Csr columns(Csr a) {
  const std::int64_t entries = a.entries(), rows = a.rows();
  a.t_crow = zeros(a.cols + 1);
  a.t_col = empty({entries}, Device::cpu(), dtype_of<I>);
  a.t_edge = empty({entries}, Device::cpu(), dtype_of<I>);
  auto* t_crow = a.t_crow.mutable_data<std::int64_t>();
  const auto* crow = a.crow.data<std::int64_t>();
  const I* col = a.col.data<I>();
  for (std::int64_t k = 0; k < entries; ++k) ++t_crow[col[k] + 1];
  const std::int64_t longest = to_offsets(t_crow, a.cols);
  sort_entries(t_crow, a.cols, a.t_col.mutable_data<I>(), a.t_edge.mutable_data<I>(), [&](auto put) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = crow[i]; k < crow[i + 1]; ++k) put(col[k], static_cast<I>(i), static_cast<I>(k));
    }
  });
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
  auto* crow = r.csr.crow.mutable_data<std::int64_t>();
  I* col = r.csr.col.mutable_data<I>();
  const Survey found = survey(op, src, dst, edges, num_src, num_dst, crow);
  const std::int64_t longest = to_offsets(crow, num_dst);
  if (found.by_dst) {
    for (std::int64_t e = 0; e < edges; ++e) col[e] = static_cast<I>(src[e]);
  } else {
    r.edge_ids = empty({edges}, Device::cpu(), dtype_of<I>);
    I* ids = r.edge_ids.mutable_data<I>();
    if (found.by_src) {
      sort_entries(crow, num_dst, col, ids, [&](auto put) {
        for (std::int64_t e = 0; e < edges; ++e) put(dst[e], static_cast<I>(src[e]), static_cast<I>(e));
      });
    } else {  // by source first
      Tensor starts = zeros(num_src + 1), target = empty({edges}, Device::cpu(), dtype_of<I>), id = empty_like(target);
      auto* start = starts.mutable_data<std::int64_t>();
      I *to = target.mutable_data<I>(), *at = id.mutable_data<I>();
      for (std::int64_t e = 0; e < edges; ++e) ++start[src[e] + 1];
      to_offsets(start, num_src);
      sort_entries(start, num_src, to, at, [&](auto put) {
        for (std::int64_t e = 0; e < edges; ++e) put(src[e], static_cast<I>(dst[e]), static_cast<I>(e));
      });
      sort_entries(crow, num_dst, col, ids, [&](auto put) {
        for (std::int64_t i = 0; i < num_src; ++i) {
          for (std::int64_t k = start[i]; k < start[i + 1]; ++k) put(to[k], static_cast<I>(i), at[k]);
        }
      });
    }
  }
  r.csr.facts = std::make_shared<const CsrFacts>(r.csr, CsrFacts::Promise{.longest_row = longest, .ascending = true});
  return r;
}

}  // namespace

Csr with_columns(Csr a) {
  return a.col.dtype() == DType::i32 ? columns<std::int32_t>(std::move(a)) : columns<std::int64_t>(std::move(a));
}

Rows rows_of_edges(const char* op, const Tensor& src, const Tensor& dst, std::int64_t num_src, std::int64_t num_dst,
                   bool transposed, std::int64_t most_narrow) {
  const bool narrow = std::max({num_src, num_dst, src.numel()}) <= most_narrow;
  const auto sort = [&]<class S>(S) {
    return narrow ? sorted_rows<S, std::int32_t>(op, src, dst, num_src, num_dst)
                  : sorted_rows<S, std::int64_t>(op, src, dst, num_src, num_dst);
  };
  Rows r = src.dtype() == DType::i32 ? sort(std::int32_t{}) : sort(std::int64_t{});
  if (transposed) r.csr = with_columns(std::move(r.csr));
  return r;
}

}  // namespace levin::detail
