// Shapes of ops that work along dimensions, and checks of index tensors.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "kernels/executor/dispatch.h"
#include "levin/ops.h"

namespace levin {

// A dense tensor seen along one dimension: [outer, n, inner]. A single element of rank 0 is [1, 1, 1].
struct AlongDim {
  std::int64_t outer = 1, n = 1, inner = 1;
  AlongDim(const Shape& shape, int dim) : n(shape.rank() == 0 ? 1 : shape[dim]) {
    for (int d = 0; d < dim; ++d) outer *= shape[d];
    for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  }
};

// The shape after the dimensions in `mask` were reduced.
[[nodiscard]] inline Shape reduced_shape(const Shape& shape, std::uint32_t mask, KeepDim keep) {
  std::array<std::int64_t, kMaxRank> dims{};
  std::size_t rank = 0;
  for (int d = 0; d < shape.rank(); ++d) {
    const bool reduced = mask >> d & 1u;
    if (!reduced) dims[rank++] = shape[d];
    if (reduced && keep == KeepDim::yes) dims[rank++] = 1;
  }
  return Shape(std::span<const std::int64_t>(dims.data(), rank));
}

[[nodiscard]] inline Dims dims_of(std::uint32_t mask) {
  std::array<std::int64_t, kMaxRank> dims{};
  std::size_t count = 0;
  for (int d = 0; d < kMaxRank; ++d) {
    if (mask >> d & 1u) dims[count++] = d;
  }
  return Dims(std::span<const std::int64_t>(dims.data(), count));
}

[[nodiscard]] inline std::int64_t elements(const Shape& shape, std::uint32_t mask) {
  std::int64_t n = 1;
  for (int d = 0; d < shape.rank(); ++d) n *= mask >> d & 1u ? shape[d] : 1;
  return n;
}

// An index tensor must be i64 and on the device of the tensor that it indexes.
inline void check_index_type(const char* op, const Tensor& x, const Tensor& index) {
  if (index.dtype() != DType::i64) {
    fail<DTypeError>(op, ": index is ", index.dtype(), ", expected i64; convert it with to(DType::i64)");
  }
  check_same_device(op, x, index);
}

// Throws IndexError unless every index, i32 or i64, is in [0, bound). `what` names the thing whose size is the bound.
// Indices on a device are checked by its kernels.
void check_indices(const char* op, const Tensor& index, std::int64_t bound, const std::string& what);

// An index [n] for rows along dimension `at`, expanded to the shape of src: x's with n elements along it.
[[nodiscard]] inline Tensor index_of_rows(const char* op, const Tensor& x, int at, const Tensor& index,
                                          const Tensor& src) {
  if (index.rank() != 1 || src.shape() != x.shape().with(at, index.numel())) {
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", index ", index.shape(), " and src ", src.shape(),
                     ", expected index [n] and src of x's shape with n elements along dimension ", at);
  }
  Tensor places = index;
  for (int d = 0; d < at; ++d) places = unsqueeze(places, 0);
  while (places.rank() < x.rank()) places = unsqueeze(places, -1);
  return expand(places, src.shape());
}

// An op whose result's size depends on values cannot give a shape on meta.
inline void check_has_values(const char* op, const Tensor& x) {
  if (x.device().is_meta()) {
    fail<UnsupportedError>(op, ": the size of the result depends on values, a tensor on meta has none");
  }
}

// The gradient of values that were taken from a tensor of shape `in` along `dim`: each value returns to its source.
// indices has gy's shape.
[[nodiscard]] inline Tensor put_back(const Tensor& gy, const Shape& in, int dim, const Tensor& indices) {
  return scatter_add(expand(zeros(Shape{}, gy.device(), gy.dtype()), in), dim, indices, gy);
}

// How often each number below `bins` stands in an i64 index, whose numbers have been checked: i64 [bins].
[[nodiscard]] Tensor counts_of(const Tensor& index, std::int64_t bins);

}  // namespace levin
