// Patterns in compressed rows: their examination, and copies of them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "levin/graph.h"
#include "tensor/graph/rows.h"

namespace levin {
namespace {

std::array<const Tensor*, 6> parts_of(const Csr& a) {
  return {&a.crow, &a.col, &a.edge, &a.t_crow, &a.t_col, &a.t_edge};
}
constexpr std::array<const char*, 6> kNames{"crow", "col", "edge", "t_crow", "t_col", "t_edge"};

// One side of a pattern: `names` are those of its three tensors, cut after `what`.
struct Side {
  const Tensor &offsets, &index, &edge;
  std::array<const char*, 3> names;
  std::int64_t bound;  // of the index
};

void check_tensor(const char* name, const Tensor& t, DType dtype, std::int64_t elements) {
  if (!t.defined())
    fail<ShapeError>("checked: ", name, " is undefined; a pattern has crow and col, its transpose also t_edge");
  if (t.device() != Device::cpu())
    fail<DeviceError>("checked: ", name, " is on ", t.device(), ", expected cpu; check the pattern before to()");
  if (t.dtype() != dtype) fail<DTypeError>("checked: ", name, " is ", t.dtype(), ", expected ", dtype);
  if (t.rank() != 1 || (elements >= 0 && t.numel() != elements))
    fail<ShapeError>("checked: ", name, " has shape ", t.shape(), ", expected [",
                     elements < 0 ? std::string("E") : text(elements), "]");
}

// The longest row.
std::int64_t check_offsets(const char* name, const Tensor& offsets, std::int64_t entries) {
  const std::int64_t rows = offsets.numel() - 1;
  const auto* at = offsets.data<std::int64_t>();
  const auto bad = [&](std::int64_t i, const std::string& expected) {
    fail<IndexError>("checked: ", name, "[", i, "] is ", at[i], ", expected ", expected);
  };
  if (at[0] != 0) bad(0, "0");
  std::int64_t longest = 0;
  for (std::int64_t i = 1; i <= rows; ++i) {
    if (at[i] < at[i - 1]) bad(i, text(at[i - 1]) + " or more; offsets never fall");
    longest = std::max(longest, at[i] - at[i - 1]);
  }
  if (at[rows] != entries) bad(rows, text(entries) + ", the number of entries");
  return longest;
}

template <class I>
void check_range(const char* name, const Tensor& t, std::int64_t bound) {
  const I* at = t.data<I>();
  for (std::int64_t k = 0; k < t.numel(); ++k) {
    if (at[k] < 0 || at[k] >= bound)
      fail<IndexError>("checked: ", name, "[", k, "] is ", std::int64_t{at[k]}, ", expected 0 to ", bound - 1);
  }
}
template <class I>
void check_permutation(const char* name, const Tensor& t) {
  check_range<I>(name, t, t.numel());
  const I* at = t.data<I>();
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(t.numel()));
  for (std::int64_t k = 0; k < t.numel(); ++k) {
    if (seen[static_cast<std::size_t>(at[k])])
      fail<IndexError>("checked: ", name, "[", k, "] is ", std::int64_t{at[k]},
                       ", which another entry has; expected a permutation");
    seen[static_cast<std::size_t>(at[k])] = 1;
  }
}

template <class I>
std::int64_t check_side(const Side& s) {
  const std::int64_t longest = check_offsets(s.names[0], s.offsets, s.index.numel());
  check_range<I>(s.names[1], s.index, s.bound);
  if (s.edge.defined()) check_permutation<I>(s.names[2], s.edge);
  return longest;
}

// Whether entry t_edge of the transpose is the entry of the pattern that it says.
template <class I>
void check_transpose(const Csr& a) {
  const auto* crow = a.crow.data<std::int64_t>();
  const auto* t_crow = a.t_crow.data<std::int64_t>();
  const I *col = a.col.data<I>(), *edge = a.edge.defined() ? a.edge.data<I>() : nullptr, *t_col = a.t_col.data<I>(),
          *t_edge = a.t_edge.data<I>();
  std::vector<I> row_of(static_cast<std::size_t>(a.entries())), col_of(row_of.size());
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    for (std::int64_t k = crow[i]; k < crow[i + 1]; ++k) {
      const auto at = static_cast<std::size_t>(edge ? std::int64_t{edge[k]} : k);
      row_of[at] = static_cast<I>(i);
      col_of[at] = col[k];
    }
  }
  for (std::int64_t j = 0; j < a.cols; ++j) {
    for (std::int64_t k = t_crow[j]; k < t_crow[j + 1]; ++k) {
      const auto at = static_cast<std::size_t>(t_edge[k]);
      if (row_of[at] != t_col[k] || col_of[at] != j)
        fail<IndexError>("checked: t_edge[", k, "] is ", std::int64_t{t_edge[k]}, ", which stands in row ",
                         std::int64_t{row_of[at]}, " and column ", std::int64_t{col_of[at]}, ", expected row ",
                         std::int64_t{t_col[k]}, " and column ", j, "; make the transpose with with_transpose");
    }
  }
}

template <class I>
CsrFacts::Promise check_all(const Csr& a) {
  CsrFacts::Promise found{.longest_row = check_side<I>({a.crow, a.col, a.edge, {"crow", "col", "edge"}, a.cols}),
                          .ascending = detail::first_descent(a.crow, a.col, a.edge) < 0};
  if (!a.t_crow.defined()) return found;
  found.longest_column = check_side<I>({a.t_crow, a.t_col, a.t_edge, {"t_crow", "t_col", "t_edge"}, a.rows()});
  check_transpose<I>(a);
  found.ascending = found.ascending && detail::first_descent(a.t_crow, a.t_col, a.t_edge) < 0;
  return found;
}

template <class I>
std::int64_t descent(const Tensor& offsets, const Tensor& index, const Tensor& ids) {
  const auto* row = offsets.data<std::int64_t>();
  const I *at = index.data<I>(), *id = ids.defined() ? ids.data<I>() : nullptr;
  for (std::int64_t i = 0; i + 1 < offsets.numel(); ++i) {
    for (std::int64_t k = row[i] + 1; k < row[i + 1]; ++k) {
      if (at[k] < at[k - 1] || (id && at[k] == at[k - 1] && id[k] <= id[k - 1])) return k;
    }
  }
  return -1;
}

}  // namespace

namespace detail {
std::int64_t first_descent(const Tensor& offsets, const Tensor& index, const Tensor& ids) {
  return index.dtype() == DType::i32 ? descent<std::int32_t>(offsets, index, ids)
                                     : descent<std::int64_t>(offsets, index, ids);
}
}  // namespace detail

CsrFacts::CsrFacts(const Csr& a) {
  if (a.cols < 0 || a.cols > kMaxDim) fail<ShapeError>("checked: cols is ", a.cols, ", expected 0 to ", kMaxDim);
  check_tensor("crow", a.crow, DType::i64, -1);
  if (a.crow.numel() == 0)
    fail<ShapeError>("checked: crow has shape [0], expected one element more than there are rows");
  if (!a.col.defined() || (a.col.dtype() != DType::i32 && a.col.dtype() != DType::i64))
    fail<DTypeError>("checked: col is ", a.col.defined() ? text(a.col.dtype()) : "undefined", ", expected i32 or i64");
  const DType index = a.col.dtype();
  check_tensor("col", a.col, index, -1);
  const std::int64_t entries = a.entries();
  if (a.edge.defined()) check_tensor("edge", a.edge, index, entries);
  if (a.t_crow.defined() || a.t_col.defined() || a.t_edge.defined()) {
    check_tensor("t_crow", a.t_crow, DType::i64, a.cols + 1);
    check_tensor("t_col", a.t_col, index, entries);
    check_tensor("t_edge", a.t_edge, index, entries);
  }
  const auto parts = parts_of(a);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->defined() && !parts[i]->is_contiguous())
      fail<ShapeError>("checked: ", kNames[i], " has strides, expected a contiguous tensor; call contiguous()");
  }
  keep(a);
  const Promise found = index == DType::i32 ? check_all<std::int32_t>(a) : check_all<std::int64_t>(a);
  longest_row = found.longest_row;
  longest_column = found.longest_column;
  ascending = found.ascending;
}

CsrFacts::CsrFacts(const CsrFacts& facts, const Csr& copy)
    : CsrFacts(copy, Promise{facts.longest_row, facts.longest_column, facts.ascending}) {}

CsrFacts::CsrFacts(const Csr& a, const Promise& promise)
    : longest_row(promise.longest_row), longest_column(promise.longest_column), ascending(promise.ascending) {
  keep(a);
}

void CsrFacts::keep(const Csr& a) {
  cols_ = a.cols;
  const auto parts = parts_of(a);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts_[i] = *parts[i];
    version_[i] = parts[i]->defined() ? parts[i]->version() : 0;
  }
}

bool CsrFacts::hold(const Csr& a) const {
  if (a.cols != cols_) return false;
  const auto parts = parts_of(a);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Tensor &own = parts_[i], &other = *parts[i];
    if (own.defined() != other.defined()) return false;
    if (!own.defined()) continue;
    if (!own.shares_storage(other) || own.offset() != other.offset() || own.shape() != other.shape() ||
        !other.is_contiguous() || own.dtype() != other.dtype() || other.version() != version_[i])
      return false;
  }
  return true;
}

Csr Csr::to(Device device) const {
  const auto moved = [&](const Tensor& t) { return t.defined() ? t.to(device) : t; };
  Csr copy{.crow = moved(crow),
           .col = moved(col),
           .edge = moved(edge),
           .cols = cols,
           .t_crow = moved(t_crow),
           .t_col = moved(t_col),
           .t_edge = moved(t_edge)};
  if (const CsrFacts* found = known()) copy.facts = std::make_shared<const CsrFacts>(*found, copy);
  return copy;
}

Csr checked(Csr a) {
  a.facts = std::make_shared<const CsrFacts>(a);
  return a;
}

}  // namespace levin
