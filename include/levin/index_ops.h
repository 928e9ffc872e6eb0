// Sorting, searching, joining and indexing: ops of levin/ops.h, which includes this header. Its rules for dtypes,
// derivatives and errors hold here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "levin/tensor.h"

namespace levin {

// ---- Sorting, of every dtype. Stable; NaN counts as largest, -0 as equal to 0. UnsupportedError for 2^32 or more
// elements along dim.

// x sorted along dim, and where each element stood; argsort gives the latter alone. Shapes are x's.
[[nodiscard]] LEVIN_API ValuesIndices sort(const Tensor& x, std::int64_t dim = -1, Order order = Order::ascending);
[[nodiscard]] LEVIN_API Tensor argsort(const Tensor& x, std::int64_t dim = -1, Order order = Order::ascending);

// The first k of sort: the largest, or with Order::ascending the smallest. IndexError unless 0 <= k <= x.size(dim).
[[nodiscard]] LEVIN_API ValuesIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1,
                                           Order order = Order::descending);

// The k-th smallest element along dim, k from 1 on, and where it stood; the gradient goes to that element. median is
// the middle one, of an even number the lower of two, of all elements or along dim; a NaN anywhere makes it NaN.
// Throws IndexError for k, ShapeError where there are no elements.
[[nodiscard]] LEVIN_API ValuesIndices kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim = -1,
                                               KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor median(const Tensor& x);
[[nodiscard]] LEVIN_API ValuesIndices median(const Tensor& x, std::int64_t dim, KeepDim keep = KeepDim::no);

// The element at place q (n - 1) of the sorted n, of all elements or along dim; q in [0, 1], else ConfigError. A place
// between two elements is interpolated, or takes the lower, the higher, the nearer one (of two the even place) or their
// mean. Floats alone; a NaN anywhere makes it NaN.
enum class Between : std::uint8_t { linear, lower, higher, midpoint, nearest };
struct QuantileOptions {
  Between between = Between::linear;
  KeepDim keep = KeepDim::no;
};
[[nodiscard]] LEVIN_API Tensor quantile(const Tensor& x, double q, std::optional<std::int64_t> dim = {},
                                        const QuantileOptions& options = {});
// The same of m numbers, [m, ...], by one order of each line; or of a tensor q [m] or [], of x's dtype, which has a
// gradient where places are interpolated. On a device a q whose place is none of the line's is an IndexError at the
// next wait, and NaN gives NaN.
[[nodiscard]] LEVIN_API Tensor quantile(const Tensor& x, std::span<const double> qs,
                                        std::optional<std::int64_t> dim = {}, const QuantileOptions& options = {});
[[nodiscard]] inline Tensor quantile(const Tensor& x, std::initializer_list<double> qs,
                                     std::optional<std::int64_t> dim = {}, const QuantileOptions& options = {}) {
  return quantile(x, std::span(qs.begin(), qs.size()), dim, options);
}
[[nodiscard]] LEVIN_API Tensor quantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim = {},
                                        const QuantileOptions& options = {});

// The elements of x without repeats, ascending, [m]; for each element of x its place among them, i64 of x's shape; and
// how often each stands in x, i64 [m]. Each NaN is one of its own. No gradient. It waits for the device, as nonzero
// does.
struct UniqueResult {
  Tensor values, inverse, counts;
};
[[nodiscard]] LEVIN_API UniqueResult unique(const Tensor& x);
// The same of the n slices of x along dim, in lexicographic order: values are x's shape with m along dim, inverse is
// i64 [n]. Of slices that differ in the sign of a zero alone the first one stands for all. Every dtype. ShapeError for
// slices without elements.
[[nodiscard]] LEVIN_API UniqueResult unique(const Tensor& x, std::int64_t dim);

// The same of runs of equal elements that follow each other in x, flattened, in the order of x; or of runs of equal
// slices along dim.
[[nodiscard]] LEVIN_API UniqueResult unique_consecutive(const Tensor& x);
[[nodiscard]] LEVIN_API UniqueResult unique_consecutive(const Tensor& x, std::int64_t dim);

// For each value the i64 place in the ascending numbers of sorted's last dimension at which it keeps their order,
// before equal ones (SearchSide::left) or after them. sorted is [n], or has values' shape but for the last dimension.
// In bucketize the numbers are boundaries [n]. Every dtype; NaN counts as largest. The order is not checked.
enum class SearchSide : bool { left, right };
[[nodiscard]] LEVIN_API Tensor searchsorted(const Tensor& sorted, const Tensor& values,
                                            SearchSide side = SearchSide::left);
[[nodiscard]] LEVIN_API Tensor bucketize(const Tensor& values, const Tensor& boundaries,
                                         SearchSide side = SearchSide::left);

// bool, of elements' shape: whether an element equals one of `test`. Every dtype; NaN equals nothing.
[[nodiscard]] LEVIN_API Tensor isin(const Tensor& elements, const Tensor& test);

// How many elements lie in each of `bins` equal parts of [low, high], both ends included: [bins] of x's dtype, floats.
// Equal ends, as without them, mean the smallest and the largest element; if those are equal, one below and one above.
// What lies outside, and NaN, is not counted. No gradient. ConfigError for ends that are not finite.
[[nodiscard]] LEVIN_API Tensor histc(const Tensor& x, std::int64_t bins = 100, double low = 0, double high = 0);

// a + weight (b - a), from b's side where the weight is 0.5 or more, so that 1 gives b; shapes broadcast.
[[nodiscard]] LEVIN_API Tensor lerp(const Tensor& a, const Tensor& b, double weight);
[[nodiscard]] LEVIN_API Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);

// ---- Joining, indexing. Indices are i64 and not negative.

// The tensors end to end along dim, or beside each other along a new one; every dtype. At least one, of one shape but
// for cat's dim (PyTorch's cat also takes empty tensors of shape [0]).
[[nodiscard]] LEVIN_API Tensor cat(std::span<const Tensor> xs, std::int64_t dim = 0);
[[nodiscard]] LEVIN_API Tensor stack(std::span<const Tensor> xs, std::int64_t dim = 0);
[[nodiscard]] inline Tensor cat(std::initializer_list<Tensor> xs, std::int64_t dim = 0) {
  return cat(std::span(xs.begin(), xs.size()), dim);
}
[[nodiscard]] inline Tensor stack(std::initializer_list<Tensor> xs, std::int64_t dim = 0) {
  return stack(std::span(xs.begin(), xs.size()), dim);
}

// cat along the columns, which are dimension 1, of vectors dimension 0; and along the rows, dimension 0, where a vector
// [n] is a row [1, n]. A tensor of rank 0 is a vector of one element.
[[nodiscard]] LEVIN_API Tensor hstack(std::span<const Tensor> xs);
[[nodiscard]] LEVIN_API Tensor vstack(std::span<const Tensor> xs);
[[nodiscard]] inline Tensor hstack(std::initializer_list<Tensor> xs) {
  return hstack(std::span(xs.begin(), xs.size()));
}
[[nodiscard]] inline Tensor vstack(std::initializer_list<Tensor> xs) {
  return vstack(std::span(xs.begin(), xs.size()));
}

// y[.., i, ..] = x[.., index[i], ..]; index of rank 1, every dtype.
[[nodiscard]] LEVIN_API Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);

// y[i, j, k] = x[i, index[i, j, k], k] for dim 1; every dtype. index has x's rank and y's shape, and is not larger than
// x along the other dimensions.
[[nodiscard]] LEVIN_API Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);

// A copy of x with y[i, index[i, j, k], k] = src[i, j, k] for dim 1, every dtype; scatter_add, of numbers, adds src
// instead. index is as gather's and not larger than src. Where indices repeat, the last one in row-major order wins
// (PyTorch leaves open which), and sums have a fixed order.
[[nodiscard]] LEVIN_API Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
[[nodiscard]] LEVIN_API Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);

// A copy of x with y[.., index[i], ..] += src[.., i, ..]; numbers, index of rank 1. src is as x with index.numel()
// elements along dim.
[[nodiscard]] LEVIN_API Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);

// x with the elements src[i, j, k] joined at y[i, index[i, j, k], k] for dim 1: their sum, product, mean (floats
// alone), largest or smallest. IncludeSelf::yes joins x's element, too. A place that no index names keeps x's. Numbers;
// index is as scatter's. NaN wins; equal extremes share the gradient equally, and products of 0 have their derivatives.
// Products and extremes take log2(index.numel()) passes after a sort. index_reduce does the same to whole slices, as
// index_add.
enum class ScatterReduce : std::uint8_t { sum, prod, mean, amax, amin };
enum class IncludeSelf : bool { no, yes };
[[nodiscard]] LEVIN_API Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                                              ScatterReduce reduce, IncludeSelf include = IncludeSelf::yes);
[[nodiscard]] LEVIN_API Tensor index_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                                            ScatterReduce reduce, IncludeSelf include = IncludeSelf::yes);

// x, but for y[.., index[i], ..] = src[.., i, ..] along dim; every dtype. Of equal indices the last
// one wins.
[[nodiscard]] LEVIN_API Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);

// x[i, j, ...] by several index tensors, one for each of x's first dimensions; every dtype. An undefined tensor means
// the whole dimension. The i64 tensors broadcast, and their shape stands in the result where the first of them does, or
// in front if a whole dimension lies between two of them, as in PyTorch. A bool mask has the sizes of as many
// dimensions of x as it has itself, and stands for the positions of its true elements; it makes the call wait, as
// nonzero does. IndexError names the dimension of an index out of range. StateError when every tensor is undefined.
[[nodiscard]] LEVIN_API Tensor index(const Tensor& x, std::span<const Tensor> indices);
[[nodiscard]] inline Tensor index(const Tensor& x, std::initializer_list<Tensor> indices) {
  return index(x, std::span(indices.begin(), indices.size()));
}

// A copy of x with `values`, which broadcast, at index(x, indices), or with them added there (numbers). Of equal places
// the last one wins, and sums have a fixed order. x[mask] = v: index_put(x, {mask}, v). That waits only where v varies
// from one true element to the next. A C++ number takes x's dtype.
enum class Accumulate : bool { no, yes };
[[nodiscard]] LEVIN_API Tensor index_put(const Tensor& x, std::span<const Tensor> indices, const Tensor& values,
                                         Accumulate accumulate = Accumulate::no);
[[nodiscard]] inline Tensor index_put(const Tensor& x, std::initializer_list<Tensor> indices, const Tensor& values,
                                      Accumulate accumulate = Accumulate::no) {
  return index_put(x, std::span(indices.begin(), indices.size()), values, accumulate);
}
[[nodiscard]] LEVIN_API Tensor index_put(const Tensor& x, std::span<const Tensor> indices, Scalar value,
                                         Accumulate accumulate = Accumulate::no);
[[nodiscard]] inline Tensor index_put(const Tensor& x, std::initializer_list<Tensor> indices, Scalar value,
                                      Accumulate accumulate = Accumulate::no) {
  return index_put(x, std::span(indices.begin(), indices.size()), value, accumulate);
}

// x, but the k-th true element of the bool mask, which broadcasts to x, takes the k-th element of src; every dtype.
// ShapeError where src has fewer elements than that; on a device an IndexError, at the next wait.
[[nodiscard]] LEVIN_API Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& src);

// The elements of x, flattened, at index: of index's shape. take_along_dim: gather where both are broadcast along the
// dimensions other than dim; without dim both are flattened. Every dtype.
[[nodiscard]] LEVIN_API Tensor take(const Tensor& x, const Tensor& index);
[[nodiscard]] LEVIN_API Tensor take_along_dim(const Tensor& x, const Tensor& index,
                                              std::optional<std::int64_t> dim = {});

// What backward gives a table: a gradient of its size, or of the rows that were named alone (row_grad), where the table
// is a leaf, backward accumulates and has no create_graph, and no strategy gives the gradient a place.
enum class EmbeddingGrad : bool { dense, rows };
// Rows of weight [rows, columns] at index [...]: [..., columns]. The row padding_idx, which may be negative, gets no
// gradient.
[[nodiscard]] LEVIN_API Tensor embedding(const Tensor& weight, const Tensor& index,
                                         std::optional<std::int64_t> padding_idx = {},
                                         EmbeddingGrad gradient = EmbeddingGrad::dense);
// Multiplies each row of weight [rows, columns] that index [...] names, and whose norm is above max_norm, by
// max_norm / (norm + 1e-7), in place: what nn::Embedding does first where it has a max_norm. The norm is
// (sum |x|^norm_type)^(1 / norm_type), the largest |x| for infinity. AutogradError where weight requires grad and grad
// mode is on, ConfigError unless both numbers are above 0.
LEVIN_API void embedding_renorm_(Tensor& weight, const Tensor& index, double max_norm, double norm_type = 2);

// The size of the result depends on values, here and for bincount: these ops wait for the device, and throw
// UnsupportedError on meta and CaptureError while a Graph is recorded. masked_select: the elements where the bool mask
// is true, [count], every dtype, both broadcast. nonzero: the positions of elements that are not 0, i64 [count, rank]
// in row-major order, every dtype. where of x alone: the columns of nonzero, an i64 [count] for each dimension
// (PyTorch gives one for rank 0, too).
[[nodiscard]] LEVIN_API Tensor masked_select(const Tensor& x, const Tensor& mask);
[[nodiscard]] LEVIN_API Tensor nonzero(const Tensor& x);
[[nodiscard]] LEVIN_API Tensors where(const Tensor& x);

// 1 at the index, else 0: i64 [..., classes]; classes >= 1 is given (PyTorch can work it out from the values).
[[nodiscard]] LEVIN_API Tensor one_hot(const Tensor& index, std::int64_t classes);

// How often 0, 1, 2, ... stand in index [n]: i64 [max(minlength, largest index + 1)]; or the sums of their weights [n],
// numbers whose dtype the result has (PyTorch's has f64 for integers), differentiable in them.
[[nodiscard]] LEVIN_API Tensor bincount(const Tensor& index, std::int64_t minlength = 0);
[[nodiscard]] LEVIN_API Tensor bincount(const Tensor& index, const Tensor& weights, std::int64_t minlength = 0);

// What stands in the padding: a number; the elements mirrored at the edge, which is not repeated; the edge; what stands
// at the other end.
enum class PadMode : std::uint8_t { constant, reflect, replicate, circular };

// pads: {last_before, last_after, previous_before, ...}, as PyTorch's F.pad; every dtype. With a number negative pads
// crop. With a mode pads are not negative, for reflect smaller than the dimension, and for circular not larger;
// PadMode::constant pads with 0.
[[nodiscard]] LEVIN_API Tensor pad(const Tensor& x, Dims pads, Scalar value = 0);
[[nodiscard]] LEVIN_API Tensor pad(const Tensor& x, Dims pads, PadMode mode);

// x reversed along dims, a copy; every dtype. No dims mean none.
[[nodiscard]] LEVIN_API Tensor flip(const Tensor& x, Dims dims);

// y[(i + shift) mod n] = x[i] along each of dims, with a shift for each; without dims one shift of x, flattened. Every
// dtype; ShapeError for another number of shifts.
[[nodiscard]] LEVIN_API Tensor roll(const Tensor& x, Dims shifts, Dims dims = {});

// Each element of dim `repeats` times, beside each other; every dtype. As a tensor, i64 [n] for the n elements of dim,
// each has a number of its own: that waits for the device, as nonzero does. ShapeError for a negative number.
[[nodiscard]] LEVIN_API Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim);
[[nodiscard]] LEVIN_API Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::int64_t dim);

// x `times` times in a row along each dimension, a copy; every dtype. repeat takes a number for each dimension, and
// more for dimensions in front; tile takes fewer, too, for the last ones. ShapeError otherwise.
[[nodiscard]] LEVIN_API Tensor repeat(const Tensor& x, Dims times);
[[nodiscard]] LEVIN_API Tensor tile(const Tensor& x, Dims times);

// Coordinates of a grid: of tensors [n0], [n1], ... one view of shape [n0, n1, ...] each, which varies along its own
// dimension; 1 to 8 tensors of every dtype. Indexing::xy exchanges the first two dimensions, as images have them.
enum class Indexing : bool { ij, xy };
[[nodiscard]] LEVIN_API Tensors meshgrid(std::span<const Tensor> xs, Indexing indexing = Indexing::ij);
[[nodiscard]] inline Tensors meshgrid(std::initializer_list<Tensor> xs, Indexing indexing = Indexing::ij) {
  return meshgrid(std::span(xs.begin(), xs.size()), indexing);
}

// Of x [n] the square matrix with x on the diagonal col - row = `offset`, else 0; of x [rows, cols] that diagonal, a
// view. trace is the sum of diagonal(x).
[[nodiscard]] LEVIN_API Tensor diag(const Tensor& x, std::int64_t offset = 0);
[[nodiscard]] LEVIN_API Tensor trace(const Tensor& x);

// x [..., n] on the diagonal `offset` of matrices, else 0; their rows and columns are dimensions dim1 and dim2 of the
// result. Every dtype.
[[nodiscard]] LEVIN_API Tensor diag_embed(const Tensor& x, std::int64_t offset = 0, std::int64_t dim1 = -2,
                                          std::int64_t dim2 = -1);

// Rows and columns of the elements that tril, or triu, keeps of a matrix [rows, cols]: i64 [2, count], row by row.
[[nodiscard]] LEVIN_API Tensor tril_indices(std::int64_t rows, std::int64_t cols, Device device,
                                            std::int64_t offset = 0);
[[nodiscard]] LEVIN_API Tensor triu_indices(std::int64_t rows, std::int64_t cols, Device device,
                                            std::int64_t offset = 0);

// x turned by `times` right angles in the plane of two dimensions, from the first toward the second; every dtype.
[[nodiscard]] LEVIN_API Tensor rot90(const Tensor& x, std::int64_t times = 1, Dims dims = {0, 1});

// The matrices, of which a vector is a row and a single element [1, 1], along a diagonal, else 0; every dtype.
[[nodiscard]] LEVIN_API Tensor block_diag(std::span<const Tensor> xs);
[[nodiscard]] inline Tensor block_diag(std::initializer_list<Tensor> xs) {
  return block_diag(std::span(xs.begin(), xs.size()));
}

// The combinations of one element from each vector, [n0 n1 ..., vectors] in row-major order; of one vector itself.
[[nodiscard]] LEVIN_API Tensor cartesian_prod(std::span<const Tensor> xs);
[[nodiscard]] inline Tensor cartesian_prod(std::initializer_list<Tensor> xs) {
  return cartesian_prod(std::span(xs.begin(), xs.size()));
}

// x[i + 1] - x[i] along dim, n times; numbers, and bool by exclusive or. ConfigError for a negative n.
[[nodiscard]] LEVIN_API Tensor diff(const Tensor& x, std::int64_t n = 1, std::int64_t dim = -1);

// x [..., rows, cols] with 0 above, or below, the diagonal col - row = `diagonal`; every dtype.
[[nodiscard]] LEVIN_API Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
[[nodiscard]] LEVIN_API Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

}  // namespace levin
