#include "levin/shape.h"

#include <algorithm>

namespace levin {

Shape::Shape(std::span<const std::int64_t> dims) {
  if (dims.size() > static_cast<std::size_t>(kMaxRank)) {
    fail<ShapeError>("shape: rank is ", dims.size(), ", at most ", kMaxRank, " dimensions are supported");
  }
  rank_ = static_cast<std::int32_t>(dims.size());
  // `bound` multiplies max(dim, 1): a zero must not hide a product of other dimensions that overflows.
  std::int64_t bound = 1;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const std::int64_t size = dims[d];
    if (size < 0 || size > kMaxDim) {
      fail<ShapeError>("shape: dimension ", d, " has size ", size, ", expected 0 to 2^40");
    }
    dims_[d] = size;
    // Both factors are at most 2^48 and 2^40: the product may pass 63 bits, so it is checked.
    if (__builtin_mul_overflow(bound, std::max<std::int64_t>(size, 1), &bound) || bound > kMaxNumel) {
      fail<ShapeError>("shape: dimensions 0 to ", d, " multiply to more than 2^48 elements");
    }
    numel_ *= size;  // at most bound
  }
}

Shape Shape::with(int d, std::int64_t size) const {
  std::array<std::int64_t, kMaxRank> dims = dims_;
  dims[static_cast<std::size_t>(d)] = size;
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank_)));
}

Shape Shape::inserted(int d, std::int64_t size) const {
  std::array<std::int64_t, kMaxRank + 1> dims{};
  std::copy(begin(), begin() + d, dims.begin());
  dims[static_cast<std::size_t>(d)] = size;
  std::copy(begin() + d, end(), dims.begin() + d + 1);
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank_) + 1));
}

Shape Shape::removed(int d) const {
  std::array<std::int64_t, kMaxRank> dims{};
  std::copy(begin() + d + 1, end(), std::copy(begin(), begin() + d, dims.begin()));
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank_) - 1));
}

std::string text(const Shape& s) {
  std::string out = "[";
  for (int d = 0; d < s.rank(); ++d) {
    if (d) out += ", ";
    out += text(s[d]);
  }
  return out + "]";
}

Strides contiguous_strides(const Shape& s) {
  Strides out;
  std::int64_t step = 1;
  for (int d = s.rank() - 1; d >= 0; --d) {
    out[d] = step;
    step *= std::max<std::int64_t>(s[d], 1);
  }
  return out;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::array<std::int64_t, kMaxRank> dims{};
  for (int d = 0; d < rank; ++d) {
    const int da = d - (rank - a.rank()), db = d - (rank - b.rank());
    const std::int64_t na = da < 0 ? 1 : a[da], nb = db < 0 ? 1 : b[db];
    if (na != nb && na != 1 && nb != 1) {
      fail<ShapeError>(op, ": shapes ", a, " and ", b, " do not broadcast, dimension ", d, " has sizes ", na, " and ",
                       nb, "; make them equal or 1");
    }
    dims[static_cast<std::size_t>(d)] = na == 1 ? nb : na;
  }
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank)));
}

int wrap_dim(std::string_view op, std::int64_t d, int rank) {
  if (d < -rank || d >= rank) {
    if (rank == 0) fail<IndexError>(op, ": dimension is ", d, ", but a tensor of rank 0 has none");
    fail<IndexError>(op, ": dimension is ", d, ", expected ", -rank, " to ", rank - 1, " for rank ", rank);
  }
  return static_cast<int>(d < 0 ? d + rank : d);
}

std::uint32_t wrap_dims(std::string_view op, std::span<const std::int64_t> dims, int rank) {
  if (dims.empty()) return (1u << rank) - 1u;
  std::uint32_t mask = 0;
  for (const std::int64_t d : dims) {
    const std::uint32_t bit = 1u << wrap_dim(op, d, std::max(1, rank));
    if (mask & bit) fail<IndexError>(op, ": dimension ", d, " is given twice");
    mask |= bit;
  }
  return rank == 0 ? 0 : mask;
}

Dims::Dims(std::span<const std::int64_t> dims) : count_(static_cast<int>(dims.size())) {
  if (dims.size() > static_cast<std::size_t>(kMaxRank)) {
    fail<ShapeError>("shape: ", dims.size(), " dimensions are given, at most ", kMaxRank, " are supported");
  }
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

}  // namespace levin
