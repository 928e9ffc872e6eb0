// Elements and slices without repeats.
#include <algorithm>
#include <cstdint>

#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/point.h"
#include "autograd/ops/index/rank_rows.h"
#include "kernels/executor/dispatch.h"
#include "kernels/index/rank_rows.cuh"
#include "levin/ops.h"
#include "tensor/device/runtime.h"

namespace levin {
namespace {

// The dimension along which x has slices, of at least one element.
int dim_of_slices(const char* op, const Tensor& x, std::int64_t dim) {
  check_defined(op, x);
  const int at = wrap_dim(op, dim, x.rank());
  if (x.shape().with(at, 1).numel() == 0)
    fail<ShapeError>(op, ": slices of x ", x.shape(), " along dimension ", at,
                     " have no elements, expected 1 or more; drop the dimensions of size 0");
  check_has_values(op, x);
  detail::refuse_while_capturing(op, x.device());
  return at;
}

// Slices along `at` that equal the one before: where others stand, and the number of each one's run.
struct Runs {
  Tensor begins, number;
};
Runs runs_of(const Tensor& x, int at) {
  const std::int64_t n = x.shape()[at];
  Tensor begins = ones({std::min<std::int64_t>(n, 1)}, x.device(), DType::b8);
  if (n > 1) {
    Tensor differs = ne(narrow(x, at, 1, n - 1), narrow(x, at, 0, n - 1));
    const std::uint32_t others = ((1u << x.rank()) - 1u) & ~(1u << at);
    if (others != 0) differs = any(differs, dims_of(others));
    begins = cat({begins, differs});
  }
  return {begins, cumsum(begins.to(DType::i64), 0) - 1};
}

// Note [Ranks by sorts of columns]
// A rank says how many different elements of its line stand before one. Lines of ranks become one line of ranks by a
// sort of the pairs, as numbers: the columns of a matrix in pairs, then pairs of pairs, and so on.

// The ranks of each line of x [lines, n].
Tensor ranks_of(const Tensor& x) {
  const auto [values, places] = sort(x, 1);
  const std::int64_t n = x.shape()[1];
  Tensor rank = zeros({x.shape()[0], 1}, x.device(), DType::i64);
  if (n > 1) {
    const Tensor differs = ne(narrow(values, 1, 1, n - 1), narrow(values, 1, 0, n - 1));
    rank = cat({rank, cumsum(differs.to(DType::i64), 1)}, 1);
  }
  return scatter(rank, 1, places, rank);
}
Tensor ranks_of_pairs(const Tensor& first, const Tensor& second) { return ranks_of(first * first.shape()[1] + second); }
// The ranks of the columns of x [lines, n], [1, n].
Tensor ranks_of_columns(const Tensor& x) {
  Tensor ranks = ranks_of(x);
  while (ranks.shape()[0] > 1) {
    const std::int64_t lines = ranks.shape()[0], paired = lines / 2 * 2;
    Tensor joined = ranks_of_pairs(slice(ranks, 0, 0, paired, 2), slice(ranks, 0, 1, paired, 2));
    if (paired < lines) joined = cat({joined, narrow(ranks, 0, paired, 1)});
    ranks = joined;
  }
  return ranks;
}

}  // namespace

Tensor detail::rank_rows_by_sorts(const Tensor& x, std::int64_t most) {
  const std::int64_t n = x.shape()[0], columns = x.shape()[1], together = std::max<std::int64_t>(1, most / n);
  const Tensor numbers = is_storage(x.dtype()) ? x.to(DType::i32) : x;
  Tensor ranks;
  for (std::int64_t begin = 0; begin < columns; begin += together) {
    const Tensor part = narrow(numbers, 1, begin, std::min(together, columns - begin));
    const Tensor next = ranks_of_columns(transpose(part, 0, 1));
    ranks = ranks.defined() ? ranks_of_pairs(ranks, next) : next;
  }
  return reshape(ranks, {n});
}

Tensor detail::rank_rows(const char* op, const Tensor& x) {
  if (!x.device().is_cpu()) return rank_rows_by_sorts(x);
  const std::int64_t n = x.shape()[0];
  if (n > std::int64_t{0xffffffff})
    fail<UnsupportedError>(op, ": x has ", n, " slices, expected at most 2^32 - 1; divide it");
  const Tensor dense = x.contiguous();
  Tensor ranks = empty({n}, x.device(), DType::i64);
  dispatch_dtype(OpInfo{.name = op}, x, kMoved, [&]<class T>(T) {
    kernels::cpu::rank_rows(Cpu{}, ptr<const T>(dense), ptr<std::int64_t>(ranks), n, x.shape()[1]);
  });
  return ranks;
}

UniqueResult unique(const Tensor& x) {
  const Tensor all = flat("unique", x).detach();
  const ValuesIndices sorted = sort(all);
  const Runs runs = runs_of(sorted.values, 0);
  const Tensor inverse = scatter(zeros({all.numel()}, x.device(), DType::i64), 0, sorted.indices, runs.number);
  return {masked_select(sorted.values, runs.begins), reshape(inverse, Dims(x.shape().dims())), bincount(runs.number)};
}

UniqueResult unique(const Tensor& x, std::int64_t dim) {
  constexpr const char* op = "unique";
  const int at = dim_of_slices(op, x, dim);
  const Tensor all = x.detach();
  const std::int64_t n = all.shape()[at], columns = all.shape().with(at, 1).numel();
  const Tensor inverse = n == 0 ? zeros({0}, x.device(), DType::i64)
                                : detail::rank_rows(op, reshape(movedim(all, {at}, {0}), {n, columns}));
  const Tensor counts = bincount(inverse);
  // Of equal places the last one wins, so the places of the first slices come last.
  const Tensor first = scatter(zeros_like(counts), 0, flip(inverse, {0}), flip(arange(n, x.device()), {0}));
  return {index_select(all, at, first), inverse, counts};
}

UniqueResult unique_consecutive(const Tensor& x) {
  const Tensor all = flat("unique_consecutive", x).detach();
  const Runs runs = runs_of(all, 0);
  return {masked_select(all, runs.begins), reshape(runs.number, Dims(x.shape().dims())), bincount(runs.number)};
}

UniqueResult unique_consecutive(const Tensor& x, std::int64_t dim) {
  const int at = dim_of_slices("unique_consecutive", x, dim);
  const Tensor all = x.detach();
  const Runs runs = runs_of(all, at);
  return {index_select(all, at, reshape(nonzero(runs.begins), {-1})), runs.number, bincount(runs.number)};
}

}  // namespace levin
