// Orders of dimensions, diagonals, blocks and triangles: views and public ops in a row.
#include <algorithm>
#include <array>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/ops/index/dims.h"
#include "levin/ops.h"
#include "tensor/device/runtime.h"

namespace levin {
namespace {

Dims list(const std::vector<std::int64_t>& dims) { return Dims(std::span<const std::int64_t>(dims)); }

// [m, m]: column - row.
Tensor offsets(std::int64_t m, Device device) {
  const Tensor at = arange(m, device);
  return unsqueeze(at, 0) - unsqueeze(at, 1);
}

// Rows and columns of the elements from `begin` [rows] on, `length` [rows] of them in each row; `count` in all.
Tensor places(const Tensor& begin, const Tensor& length, std::int64_t count) {
  const Tensor end = cumsum(length, 0), at = arange(count, begin.device());
  const Tensor row = searchsorted(end, at, SearchSide::right);
  return stack({row, at - index_select(end - length - begin, 0, row)});
}
void check_triangle(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t offset) {
  if (rows < 0 || cols < 0 || rows > kMaxDim || cols > kMaxDim)
    fail<ShapeError>(op, ": rows is ", rows, " and cols ", cols, ", expected 0 to 2^40");
  if (cols > 0 && rows > kMaxNumel / cols)
    fail<ShapeError>(op, ": a matrix [", rows, ", ", cols, "] has more than 2^48 elements");
  if (offset < -kMaxDim || offset > kMaxDim)
    fail<ShapeError>(op, ": offset is ", offset, ", expected at most 2^40 away from 0");
}
// The sum of clamp(r + from, 0, cols) over r in [0, rows).
std::int64_t clamped_sum(std::int64_t rows, std::int64_t cols, std::int64_t from) {
  const std::int64_t first = std::clamp<std::int64_t>(-from, 0, rows);           // rows below it have none
  const std::int64_t full = std::clamp<std::int64_t>(cols - from, first, rows);  // rows from it on have all
  const std::int64_t some = full - first;
  return some * (first + from) + some * (some - 1) / 2 + (rows - full) * cols;
}

}  // namespace

Tensor swapaxes(const Tensor& x, std::int64_t dim0, std::int64_t dim1) { return transpose(x, dim0, dim1); }

Tensor movedim(const Tensor& x, Dims source, Dims destination) {
  constexpr const char* op = "movedim";
  check_defined(op, x);
  if (source.count() != destination.count())
    fail<ShapeError>(op, ": ", source.count(), " dimensions move to ", destination.count(),
                     " places, expected as many");
  const int rank = x.rank();
  std::vector<std::int64_t> order(static_cast<std::size_t>(rank), -1);
  std::uint32_t moved = 0;
  for (int i = 0; i < source.count(); ++i) {
    const int from = wrap_dim(op, source[i], rank), to = wrap_dim(op, destination[i], rank);
    std::int64_t& place = order[static_cast<std::size_t>(to)];
    if ((moved >> from & 1u) || place >= 0)
      fail<IndexError>(op, ": dimension ", (moved >> from & 1u) ? source[i] : destination[i], " is given twice");
    moved |= 1u << from;
    place = from;
  }
  int next = 0;
  for (std::int64_t& place : order) {
    if (place >= 0) continue;
    while (moved >> next & 1u) ++next;
    place = next++;
  }
  return permute(x, list(order));
}

Tensor diag_embed(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  constexpr const char* op = "diag_embed";
  check_defined(op, x);
  if (x.rank() == 0 || x.rank() == kMaxRank)
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected rank 1 to ", kMaxRank - 1);
  if (offset < -kMaxDim || offset > kMaxDim)
    fail<ShapeError>(op, ": offset is ", offset, ", expected at most 2^40 away from 0");
  const int rows = wrap_dim(op, dim1, x.rank() + 1), cols = wrap_dim(op, dim2, x.rank() + 1);
  if (rows == cols) fail<IndexError>(op, ": dim1 and dim2 are both ", dim1, ", expected two dimensions");
  const std::int64_t away = offset < 0 ? -offset : offset, m = x.size(-1) + away;
  // x stands in each row below the diagonal's start, or in each column.
  const Tensor line = unsqueeze(pad(x, {0, away}), offset < 0 ? -2 : -1);
  const int last = x.rank();
  const Tensor square = expand(line, x.shape().with(last - 1, m).inserted(last, m));
  return movedim(masked_fill(square, ne(offsets(m, x.device()), offset), 0), {-2, -1}, {rows, cols});
}

Tensor tril_indices(std::int64_t rows, std::int64_t cols, Device device, std::int64_t offset) {
  check_triangle("tril_indices", rows, cols, offset);
  const Tensor begin = zeros({rows}, device, DType::i64);
  return places(begin, clamp(arange(rows, device) + (offset + 1), 0, cols), clamped_sum(rows, cols, offset + 1));
}
Tensor triu_indices(std::int64_t rows, std::int64_t cols, Device device, std::int64_t offset) {
  check_triangle("triu_indices", rows, cols, offset);
  const Tensor begin = clamp(arange(rows, device) + offset, 0, cols);
  return places(begin, cols - begin, rows * cols - clamped_sum(rows, cols, offset));
}

Tensor rot90(const Tensor& x, std::int64_t times, Dims dims) {
  constexpr const char* op = "rot90";
  check_defined(op, x);
  if (dims.count() != 2) fail<ShapeError>(op, ": ", dims.count(), " dimensions, expected 2");
  const int from = wrap_dim(op, dims[0], x.rank()), to = wrap_dim(op, dims[1], x.rank());
  if (from == to) fail<IndexError>(op, ": dimension ", dims[1], " is given twice");
  switch ((times % 4 + 4) % 4) {
    case 1: return transpose(flip(x, to), from, to);
    case 2: return flip(x, {from, to});
    case 3: return flip(transpose(x, from, to), to);
    default: return x.clone();
  }
}

Tensor block_diag(std::span<const Tensor> xs) {
  constexpr const char* op = "block_diag";
  if (xs.empty()) fail<ShapeError>(op, ": no tensor is given, expected at least one");
  Tensors blocks;
  std::int64_t cols = 0;
  for (const Tensor& x : xs) {
    check_dtypes_meet(op, xs[0], x);
    check_same_device(op, xs[0], x);
    if (x.rank() > 2) fail<ShapeError>(op, ": a tensor has shape ", x.shape(), ", expected rank 0, 1 or 2");
    blocks.push_back(x.rank() == 2 ? x : reshape(x, {1, x.numel()}));
    cols += blocks.back().size(1);
  }
  std::int64_t left = 0;
  for (Tensor& block : blocks) {
    const std::int64_t width = block.size(1);
    block = pad(block, {left, cols - left - width});
    left += width;
  }
  return cat(blocks, 0);
}

Tensor hstack(std::span<const Tensor> xs) {
  Tensors parts;
  for (const Tensor& x : xs) {
    check_defined("hstack", x);
    parts.push_back(x.rank() == 0 ? reshape(x, {1}) : x);
  }
  if (parts.empty()) fail<ShapeError>("hstack: no tensor is given, expected at least one");
  return cat(parts, parts[0].rank() == 1 ? 0 : 1);
}

Tensor vstack(std::span<const Tensor> xs) {
  Tensors parts;
  for (const Tensor& x : xs) {
    check_defined("vstack", x);
    parts.push_back(x.rank() < 2 ? reshape(x, {1, x.numel()}) : x);
  }
  if (parts.empty()) fail<ShapeError>("vstack: no tensor is given, expected at least one");
  return cat(parts, 0);
}

Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::int64_t dim) {
  constexpr const char* op = "repeat_interleave";
  check_defined(op, x, repeats);
  check_same_device(op, x, repeats);
  const int at = wrap_dim(op, dim, x.rank());
  const std::int64_t n = x.shape()[at];
  if (repeats.dtype() != DType::i64)
    fail<DTypeError>(op, ": repeats is ", repeats.dtype(), ", expected i64; convert it with to(DType::i64)");
  if (repeats.shape() != Shape{n})
    fail<ShapeError>(op, ": repeats has shape ", repeats.shape(), ", expected [", n, "], a number for each element of ",
                     "dimension ", at, " of x ", x.shape());
  check_has_values(op, x);
  detail::refuse_while_capturing(op, x.device());
  if (n == 0) return x.clone();
  if (const auto least = amin(repeats).item<std::int64_t>(); least < 0)
    fail<ShapeError>(op, ": a number of repeats is ", least, ", expected at least 0");
  if (const auto most = amax(repeats).item<std::int64_t>(); most > kMaxDim / n)
    fail<ShapeError>(op, ": dimension ", at, " of x ", x.shape(), " repeated up to ", most,
                     " times may have more than 2^40 elements");
  const Tensor end = cumsum(repeats, 0);
  const Tensor at_output = arange(select(end, 0, -1).item<std::int64_t>(), x.device());
  return index_select(x, at, searchsorted(end, at_output, SearchSide::right));
}

Tensor cartesian_prod(std::span<const Tensor> xs) {
  constexpr const char* op = "cartesian_prod";
  if (xs.empty()) fail<ShapeError>(op, ": no tensor is given, expected at least one");
  for (const Tensor& x : xs) {
    check_dtypes_meet(op, xs[0], x);
    check_same_device(op, xs[0], x);
    if (x.rank() != 1) fail<ShapeError>(op, ": a tensor has shape ", x.shape(), ", expected [n]");
  }
  if (xs.size() == 1) return xs[0].clone();
  Tensors columns = meshgrid(xs);
  for (Tensor& column : columns) column = reshape(column, {column.numel()});
  return stack(columns, 1);
}

Tensor diff(const Tensor& x, std::int64_t n, std::int64_t dim) {
  constexpr const char* op = "diff";
  check_defined(op, x);
  if (n < 0) fail<ConfigError>(op, ": n is ", n, ", expected 0 or more");
  const int at = wrap_dim(op, dim, x.rank());
  Tensor y = x;
  for (std::int64_t i = 0; i < n && y.shape()[at] > 0; ++i) {
    const std::int64_t size = y.shape()[at];
    const Tensor before = narrow(y, at, 0, size - 1), after = narrow(y, at, 1, size - 1);
    y = x.dtype() == DType::b8 ? logical_xor(after, before) : after - before;
  }
  return n == 0 ? x.clone() : y;
}

}  // namespace levin
