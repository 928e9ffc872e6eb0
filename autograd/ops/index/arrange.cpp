// Arrangements of elements: views, copies and products of public ops.
#include <algorithm>
#include <array>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "levin/ops.h"

namespace levin {
namespace {

Dims dims_of(const Shape& s) { return Dims(s.dims()); }
std::int64_t product(const Shape& s, int begin, int end) {
  std::int64_t n = 1;
  for (int d = begin; d < end; ++d) n *= s[d];
  return n;
}

// x with each dimension repeated: one copy for up to kAtOnce dimensions, whose counts stand before them.
Tensor repeat_trailing(const char* op, const Tensor& x, std::span<const std::int64_t> times) {
  constexpr int kAtOnce = (kMaxRank - 1) / 2;
  const int rank = x.rank();
  for (int d = 0; d < rank; ++d) {
    const std::int64_t count = times[static_cast<std::size_t>(d)];
    if (count < 0) fail<ShapeError>(op, ": dimension ", d, " is to stand ", count, " times, expected 0 or more");
    if (count > kMaxDim / std::max<std::int64_t>(1, x.shape()[d]))
      fail<ShapeError>(op, ": dimension ", d, " of x ", x.shape(), " repeated ", count,
                       " times has more than 2^40 elements");
  }
  Tensor y = x;
  for (int end = rank; end > 0; end -= kAtOnce) {
    const int begin = std::max(0, end - kAtOnce);
    Shape split{product(y.shape(), 0, begin)}, whole = split, result = y.shape();
    bool is_same = true;
    for (int d = begin; d < end; ++d) {
      const std::int64_t count = times[static_cast<std::size_t>(d)];
      const std::int64_t size = d + 1 < end ? y.shape()[d] : product(y.shape(), d, rank);
      split = split.inserted(split.rank(), 1).inserted(split.rank() + 1, size);
      whole = whole.inserted(whole.rank(), count).inserted(whole.rank() + 1, size);
      result = result.with(d, y.shape()[d] * count);
      is_same = is_same && count == 1;
    }
    if (!is_same) y = reshape(expand(reshape(y, dims_of(split)), whole), dims_of(result));
  }
  return y.shape() == x.shape() ? x.clone() : y;
}
// x with dimensions of size 1 in front, `rank` in all.
Tensor with_rank(Tensor x, int rank) {
  while (x.rank() < rank) x = unsqueeze(x, 0);
  return x;
}

// [m, m]: column - row.
Tensor offsets(std::int64_t m, Device device) {
  const Tensor at = arange(m, device);
  return unsqueeze(at, 0) - unsqueeze(at, 1);
}

}  // namespace

Tensor repeat(const Tensor& x, Dims times) {
  check_defined("repeat", x);
  if (times.count() < x.rank()) {
    fail<ShapeError>("repeat: ", times.count(), " numbers for x of shape ", x.shape(),
                     ", expected one for each dimension and for those in front");
  }
  return repeat_trailing("repeat", with_rank(x, times.count()), times.span());
}

Tensor tile(const Tensor& x, Dims times) {
  check_defined("tile", x);
  const int rank = std::max(x.rank(), times.count());
  std::array<std::int64_t, kMaxRank> all{};
  all.fill(1);
  std::copy(times.span().begin(), times.span().end(), all.begin() + (rank - times.count()));
  return repeat_trailing("tile", with_rank(x, rank), std::span(all.data(), static_cast<std::size_t>(rank)));
}

Tensors meshgrid(std::span<const Tensor> xs, Indexing indexing) {
  const int rank = static_cast<int>(xs.size());
  if (rank == 0 || rank > kMaxRank) fail<ShapeError>("meshgrid: ", rank, " tensors, expected 1 to ", kMaxRank);
  std::array<std::int64_t, kMaxRank> sizes{};
  for (int d = 0; d < rank; ++d) {
    const Tensor& x = xs[static_cast<std::size_t>(d)];
    check_defined("meshgrid", x);
    check_same_device("meshgrid", xs[0], x);
    if (x.rank() > 1) fail<ShapeError>("meshgrid: tensor ", d, " has shape ", x.shape(), ", expected [n]");
    sizes[static_cast<std::size_t>(d)] = x.numel();
  }
  const Shape whole{std::span<const std::int64_t>(sizes.data(), static_cast<std::size_t>(rank))};
  Tensors grids;
  for (int d = 0; d < rank; ++d) {
    Shape line = whole;
    for (int other = 0; other < rank; ++other) line = line.with(other, other == d ? whole[d] : 1);
    const Tensor grid = expand(reshape(xs[static_cast<std::size_t>(d)], dims_of(line)), whole);
    grids.push_back(indexing == Indexing::xy && rank > 1 ? transpose(grid, 0, 1) : grid);
  }
  return grids;
}

Tensor diag(const Tensor& x, std::int64_t offset) {
  check_defined("diag", x);
  if (x.rank() == 2) return diagonal(x, offset);
  if (x.rank() != 1) fail<ShapeError>("diag: x has shape ", x.shape(), ", expected [n] or [rows, cols]");
  if (offset < -kMaxDim || offset > kMaxDim)
    fail<ShapeError>("diag: offset is ", offset, ", expected at most 2^40 away from 0");
  const std::int64_t away = offset < 0 ? -offset : offset;
  // x stands in each row below the diagonal's start, or in each column.
  const Tensor line = unsqueeze(pad(x, {0, away}), offset < 0 ? 0 : 1);
  const std::int64_t m = x.numel() + away;
  return masked_fill(expand(line, {m, m}), ne(offsets(m, x.device()), offset), 0);
}

Tensor trace(const Tensor& x) {
  check_defined("trace", x);
  if (x.rank() != 2) fail<ShapeError>("trace: x has shape ", x.shape(), ", expected [rows, cols]");
  return sum(diagonal(x));
}

Tensor cross(const Tensor& a, const Tensor& b, std::int64_t dim) {
  check_float("cross", a);
  check_dtypes_meet("cross", a, b);
  check_same_device("cross", a, b);
  const int rank = broadcast_shapes("cross", a.shape(), b.shape()).rank();
  const int from_last = wrap_dim("cross", dim, rank) - rank;
  for (const Tensor* x : {&a, &b}) {
    if (x->rank() < -from_last || x->size(from_last) != 3)
      fail<ShapeError>("cross: a has shape ", a.shape(), " and b ", b.shape(), ", expected 3 elements along dimension ",
                       dim, " in both");
  }
  const auto next = [&](const Tensor& x, int by) { return roll(x, -by, from_last); };
  return next(a, 1) * next(b, 2) - next(a, 2) * next(b, 1);
}

Tensor kron(const Tensor& a, const Tensor& b) {
  check_dtypes_meet("kron", a, b);
  check_same_device("kron", a, b);
  const int rank = std::max(a.rank(), b.rank());
  if (2 * rank > kMaxRank)
    fail<ShapeError>("kron: a has shape ", a.shape(), " and b ", b.shape(), ", expected at most ", kMaxRank / 2,
                     " dimensions");
  Tensor left = with_rank(a, rank), right = with_rank(b, rank);
  Shape whole = left.shape();
  for (int d = 0; d < rank; ++d) {  // a_0 1 a_1 1 ... times 1 b_0 1 b_1 ...
    whole = whole.with(d, left.shape()[2 * d] * right.shape()[2 * d]);
    left = unsqueeze(left, 2 * d + 1);
    right = unsqueeze(right, 2 * d);
  }
  return reshape(left * right, dims_of(whole));
}

Tensor tensordot(const Tensor& a, const Tensor& b, Dims a_dims, Dims b_dims) {
  constexpr const char* op = "tensordot";
  check_dtypes_meet(op, a, b);
  check_same_device(op, a, b);
  if (a_dims.count() != b_dims.count())
    fail<ShapeError>(op, ": ", a_dims.count(), " dimensions of a and ", b_dims.count(), " of b, expected as many");
  const auto n = static_cast<std::size_t>(a_dims.count());
  std::array<std::int64_t, kMaxRank> summed_a{}, summed_b{};
  std::int64_t depth = 1;
  for (std::size_t i = 0; i < n; ++i) {
    const int x = wrap_dim(op, a_dims.span()[i], a.rank()), y = wrap_dim(op, b_dims.span()[i], b.rank());
    if (a.shape()[x] != b.shape()[y]) {
      fail<ShapeError>(op, ": dimension ", x, " of a ", a.shape(), " and ", y, " of b ", b.shape(),
                       " are multiplied, expected one size");
    }
    summed_a[i] = x, summed_b[i] = y;
    depth *= a.shape()[x];
  }
  const auto kept_of = [&](const Tensor& x, std::span<const std::int64_t> summed) {
    std::vector<std::int64_t> kept;
    for (int d = 0; d < x.rank(); ++d) {
      if (std::find(summed.begin(), summed.end(), d) == summed.end()) kept.push_back(d);
    }
    if (kept.size() + summed.size() != static_cast<std::size_t>(x.rank()))
      fail<ShapeError>(op, ": a dimension of ", x.shape(), " is named twice");
    return kept;
  };
  const std::span<const std::int64_t> from_a(summed_a.data(), n), from_b(summed_b.data(), n);
  const std::vector<std::int64_t> kept_a = kept_of(a, from_a), kept_b = kept_of(b, from_b);
  std::vector<std::int64_t> sizes;
  std::int64_t rows = 1, cols = 1;
  for (const std::int64_t d : kept_a) sizes.push_back(a.shape()[static_cast<int>(d)]), rows *= sizes.back();
  for (const std::int64_t d : kept_b) sizes.push_back(b.shape()[static_cast<int>(d)]), cols *= sizes.back();
  if (sizes.size() > kMaxRank)
    fail<ShapeError>(op, ": the result of a ", a.shape(), " and b ", b.shape(), " has ", sizes.size(),
                     " dimensions, expected at most ", kMaxRank);
  // The dimensions of first, then those of second, each group as one.
  const auto matrix = [](const Tensor& x, std::span<const std::int64_t> first, std::span<const std::int64_t> second,
                         std::int64_t m, std::int64_t k) {
    std::vector<std::int64_t> order(first.begin(), first.end());
    order.insert(order.end(), second.begin(), second.end());
    return reshape(permute(x, Dims(std::span<const std::int64_t>(order))), {m, k});
  };
  const Tensor y = matmul(matrix(a, kept_a, from_a, rows, depth), matrix(b, from_b, kept_b, depth, cols));
  return reshape(y, Dims(std::span<const std::int64_t>(sizes)));
}

Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims) {
  check_defined("tensordot", a, b);
  if (dims < 0 || dims > a.rank() || dims > b.rank()) {
    fail<ShapeError>("tensordot: ", dims, " dimensions of a ", a.shape(), " and b ", b.shape(),
                     " are to be multiplied, expected 0 to the smaller rank");
  }
  std::array<std::int64_t, kMaxRank> last{}, first{};
  for (std::int64_t i = 0; i < dims; ++i) {
    last[static_cast<std::size_t>(i)] = a.rank() - dims + i;
    first[static_cast<std::size_t>(i)] = i;
  }
  const auto n = static_cast<std::size_t>(dims);
  return tensordot(a, b, Dims(std::span<const std::int64_t>(last.data(), n)),
                   Dims(std::span<const std::int64_t>(first.data(), n)));
}

Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  constexpr const char* op = "index_copy";
  check_defined(op, x, index);
  check_same_dtype(op, x, src);
  check_same_device(op, x, src);
  check_same_device(op, x, index);
  const int at = wrap_dim(op, dim, x.rank());
  return scatter(x, at, index_of_rows(op, x, at, index, src), src);
}

// Of 16-bit numbers the steps are f32, and the result is rounded once.
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight) {
  check_float("lerp", a);
  check_dtypes_meet("lerp", a, b);
  check_dtypes_meet("lerp", a, weight);
  const Tensor x = widened(a), y = widened(b), apart = y - x;
  const Tensor share = widened(weight);
  const bool same = a.dtype() == b.dtype() && a.dtype() == weight.dtype();
  return cast(where(lt(share, 0.5), x + apart * share, y - apart * (1 - share)), same ? a.dtype() : apart.dtype());
}

}  // namespace levin
