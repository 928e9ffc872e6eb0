// The ops: free functions over tensors, with PyTorch's names and meanings; a comment says where an op differs.
//
// Unless its comment says otherwise, an op
// - returns a new tensor on the device and with the dtype of its operands, and has derivatives of every order;
// - counts dimensions from 0, negative ones from the end. Reductions, scans, sorts, softmax, gather, scatter, squeeze,
//   transpose, flip and roll take a tensor of rank 0 for a line of one element, with the dimensions 0 and -1; for the
//   others it has none;
// - takes f32, f64, f16 and bf16, called floats below. "Numbers" are floats, i32, i64 and u8; "every dtype" is numbers
//   and bool. Kernels compute 16-bit floats in f32 and round once; integers wrap around. Autocast (levin/autograd.h)
//   changes the dtype that an op runs in;
// - refuses i8 and i16 unless it makes, moves, converts or compares elements: factories, casts, copies, views, joins,
//   reads and writes by index or mask, comparisons, where, nonzero, any and all take them as "every dtype".
//
// Errors are thrown before anything is computed:
//   DTypeError        operands of different dtypes, or a C++ number that the tensor's dtype does not hold
//   UnsupportedError  a dtype that the op does not take, or the values of a meta tensor where they are needed
//   DeviceError       operands on different devices
//   ShapeError        shapes that do not fit; sizes, counts, strides and pads out of range
//   IndexError        dimensions and indices out of range. On a device the kernel finds such an index and skips the
//                     access, and the next wait throws
//   ConfigError       other options out of range: a probability, a low above its high
//   StateError        an undefined tensor, unless the comment says that it may be left out
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "levin/generator.h"
#include "levin/index_ops.h"
#include "levin/layer_ops.h"
#include "levin/losses.h"
#include "levin/pointwise_ops.h"
#include "levin/tensor.h"

namespace levin {

// ---- Factories

// Every element is 0, 1 or `value`; every dtype. Any integer but 0 is true as bool.
[[nodiscard]] LEVIN_API Tensor zeros(const Shape& shape, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor ones(const Shape& shape, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor full(const Shape& shape, Scalar value, Device device, DType dtype = DType::f32);

// The same with x's shape, dtype, device and suggest_memory_format().
[[nodiscard]] LEVIN_API Tensor zeros_like(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor ones_like(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor full_like(const Tensor& x, Scalar value);

// begin (0 without it), begin + step, ... below end, or above end for a negative step: ceil((end - begin) / step)
// numbers. Throws ShapeError when step is 0 or leads away from end, DTypeError when an integer dtype does not hold
// them.
[[nodiscard]] LEVIN_API Tensor arange(Scalar begin, Scalar end, Scalar step, Device device, DType dtype = DType::i64);
[[nodiscard]] LEVIN_API Tensor arange(Scalar end, Device device, DType dtype = DType::i64);

// n floats at equal distances from begin to end, both included; one is begin.
[[nodiscard]] LEVIN_API Tensor linspace(Scalar begin, Scalar end, std::int64_t n, Device device,
                                        DType dtype = DType::f32);

// [rows, cols] or [n, n] with 1 on the main diagonal, else 0; every dtype.
[[nodiscard]] LEVIN_API Tensor eye(std::int64_t rows, std::int64_t cols, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor eye(std::int64_t n, Device device, DType dtype = DType::f32);

// Random numbers of `generator` (levin/generator.h), which moves on; on meta it stays. rand fills U[0, 1), randn
// N(0, 1), both floats. randint fills integers low <= x < high, each equally likely, in every dtype that holds all of
// them exactly; ConfigError otherwise.
[[nodiscard]] LEVIN_API Tensor rand(const Shape& shape, Generator& generator, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor randn(const Shape& shape, Generator& generator, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, Generator& generator,
                                       Device device, DType dtype = DType::i64);

// rand and randn with x's shape, device and dtype.
[[nodiscard]] inline Tensor rand_like(const Tensor& x, Generator& generator) {
  return rand(x.shape(), generator, x.device(), x.dtype());
}
[[nodiscard]] inline Tensor randn_like(const Tensor& x, Generator& generator) {
  return randn(x.shape(), generator, x.device(), x.dtype());
}

// A random permutation of 0 .. n-1, i64 [n].
[[nodiscard]] LEVIN_API Tensor randperm(std::int64_t n, Generator& generator, Device device);

// 1 with probability p, else 0, element by element; no gradient. Throws ConfigError for a p outside [0, 1] or NaN; on a
// device the kernel finds it, the result there is 0, and the next wait throws.
[[nodiscard]] LEVIN_API Tensor bernoulli(const Tensor& p, Generator& generator);

// n categories drawn by their weights [m] or [rows, m], which need not add up to 1: i64 [n] or [rows, n]; no gradient.
// Without replacement they differ. Throws ShapeError unless 1 <= n (<= m without replacement), ConfigError for a weight
// that is negative or not finite and for a row with no weight above 0, or fewer than n of them without replacement. On
// a device the kernel finds a weight that is no share of its row's sum, and the next wait throws; there categories of
// weight 0 come last where others are too few.
enum class Replacement : bool { no, yes };
[[nodiscard]] LEVIN_API Tensor multinomial(const Tensor& weights, std::int64_t n, Generator& generator,
                                           Replacement replacement = Replacement::no);

// ---- In place, for optimizers and statistics: no derivative. They throw AutogradError when x requires grad and grad
// mode is on, ShapeError when an element of x stands for several (expand) or y does not broadcast to x's shape.

// x = from, converted as by cast; every dtype, and from another device too.
LEVIN_API void copy_(Tensor& x, const Tensor& from);

// x = value everywhere; every dtype.
LEVIN_API void fill_(Tensor& x, Scalar value);

// x += alpha * y; numbers.
LEVIN_API void add_(Tensor& x, const Tensor& y, Scalar alpha = 1);

// x *= y; numbers.
LEVIN_API void mul_(Tensor& x, const Tensor& y);
LEVIN_API void mul_(Tensor& x, Scalar y);

// ---- Conversion

// x.to(dtype): x itself where it has the dtype. Floats become integers toward 0 and the nearest that fits, NaN becomes
// 0; what is not 0 becomes true.
[[nodiscard]] LEVIN_API Tensor cast(const Tensor& x, DType dtype);

// ---- Views share x's storage; every dtype.

// Elements begin, begin + step, ... below end, as Python's x[begin:end:step]: negative ends count from the back, what
// lies outside is cut off. step >= 1; IndexError otherwise.
[[nodiscard]] LEVIN_API Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t begin, std::int64_t end,
                                     std::int64_t step = 1);

// Elements begin to begin + length - 1; a negative begin counts from the back. IndexError where there are fewer.
[[nodiscard]] LEVIN_API Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t begin, std::int64_t length);

// Element `index` along dim, which goes; a negative index counts from the back.
[[nodiscard]] LEVIN_API Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);

// The two dimensions change places; t does so to the two of a matrix (PyTorch's t also takes ranks 0 and 1).
[[nodiscard]] LEVIN_API Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
[[nodiscard]] LEVIN_API Tensor t(const Tensor& x);

// transpose by NumPy's name; the dimensions `source` moved to the places `destination`, the others in their order.
[[nodiscard]] LEVIN_API Tensor swapaxes(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
[[nodiscard]] LEVIN_API Tensor movedim(const Tensor& x, Dims source, Dims destination);

// Dimension i of the result is dimension order[i] of x.
[[nodiscard]] LEVIN_API Tensor permute(const Tensor& x, Dims order);

// Dimensions of size 1 grow to `shape`, which may have more in front. All sizes are given (PyTorch takes -1 for "as
// x"). broadcast_to is expand by NumPy's name.
[[nodiscard]] LEVIN_API Tensor expand(const Tensor& x, const Shape& shape);
[[nodiscard]] inline Tensor broadcast_to(const Tensor& x, const Shape& shape) { return expand(x, shape); }

// The same elements in row-major order under another shape; one size may be -1 and is worked out. view throws
// ShapeError when a copy would be needed, reshape makes it.
[[nodiscard]] LEVIN_API Tensor view(const Tensor& x, Dims shape);
[[nodiscard]] LEVIN_API Tensor reshape(const Tensor& x, Dims shape);

// Dimensions begin to end, both included, become one, by reshape; rank 0 becomes [1].
[[nodiscard]] LEVIN_API Tensor flatten(const Tensor& x, std::int64_t begin = 0, std::int64_t end = -1);

// Dimension dim as several of these sizes, whose product it has; one size may be -1 and is worked out. ShapeError
// without a size.
[[nodiscard]] LEVIN_API Tensor unflatten(const Tensor& x, std::int64_t dim, Dims sizes);

// Without those of `dims` that have size 1; no dims mean all.
[[nodiscard]] LEVIN_API Tensor squeeze(const Tensor& x, Dims dims = {});

// With a dimension of size 1 inserted as dimension `dim` of the result.
[[nodiscard]] LEVIN_API Tensor unsqueeze(const Tensor& x, std::int64_t dim);

// Windows of `size` elements along dim, `step` apart: dim counts the (n - size) / step + 1 windows, a new last
// dimension their elements. (PyTorch's F.unfold is im2col below.)
[[nodiscard]] LEVIN_API Tensor unfold(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step);

// The elements whose index along dim1 is `offset` more than along dim0; both go, and a new last dimension counts the
// elements.
[[nodiscard]] LEVIN_API Tensor diagonal(const Tensor& x, std::int64_t offset = 0, std::int64_t dim0 = 0,
                                        std::int64_t dim1 = 1);

// Parts of `size` elements along dim, the last maybe shorter, at least one part; or parts of these sizes, whose sum
// must be dim's.
[[nodiscard]] LEVIN_API Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
[[nodiscard]] LEVIN_API Tensors split(const Tensor& x, std::span<const std::int64_t> sizes, std::int64_t dim = 0);

// Parts of ceil(size / chunks) elements, the last maybe shorter: at most `chunks` of them. An empty dim gives `chunks`
// empty parts.
[[nodiscard]] LEVIN_API Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);

// select(x, dim, i) for every i.
[[nodiscard]] LEVIN_API Tensors unbind(const Tensor& x, std::int64_t dim = 0);

// ---- Reductions over dimensions, which go, or have size 1 with KeepDim::yes; no dims mean all.

// Sum, mean (floats alone) and product. Sums and products of integers and bool are i64; of 16 bits they are f32 under
// Autocast. Of nothing they are 0, NaN and 1.
[[nodiscard]] LEVIN_API Tensor sum(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor mean(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor prod(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);

// The largest, or smallest, element; every dtype. NaN wins; equal elements share the gradient equally. Throws
// ShapeError where there is nothing to choose from.
[[nodiscard]] LEVIN_API Tensor amax(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor amin(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
// amax and amin of all elements; of one dimension max and min below give the place, too.
[[nodiscard]] inline Tensor max(const Tensor& x) { return amax(x); }
[[nodiscard]] inline Tensor min(const Tensor& x) { return amin(x); }

// sum (x - mean)^2 / max(0, n - correction), and its root. std's derivative is 0 where std is 0.
[[nodiscard]] LEVIN_API Tensor var(const Tensor& x, Dims dims = {}, double correction = 1, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor std(const Tensor& x, Dims dims = {}, double correction = 1, KeepDim keep = KeepDim::no);

// Both at once; the first is amin, amax, var or std.
struct MinMax {
  Tensor min, max;
};
struct MeanOf {
  Tensor spread, mean;
};
[[nodiscard]] LEVIN_API MinMax aminmax(const Tensor& x, std::optional<std::int64_t> dim = {},
                                       KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API MeanOf var_mean(const Tensor& x, Dims dims = {}, double correction = 1,
                                        KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API MeanOf std_mean(const Tensor& x, Dims dims = {}, double correction = 1,
                                        KeepDim keep = KeepDim::no);

// Sum and mean (floats alone) without the elements that are NaN: 0 and NaN of nothing. How many elements are not 0,
// i64; every dtype.
[[nodiscard]] LEVIN_API Tensor nansum(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor nanmean(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor count_nonzero(const Tensor& x, Dims dims = {});

// (sum |x|^p)^(1/p) for p in (0, inf], ConfigError otherwise; inf: the largest |x|. The derivative is 0 where the norm
// is 0.
[[nodiscard]] LEVIN_API Tensor norm(const Tensor& x, double p = 2, Dims dims = {}, KeepDim keep = KeepDim::no);

// x / max(norm(x, p, dim), eps): vectors along dim of norm 1. ConfigError for eps below 0. This and the next two
// compute 16-bit numbers in f32.
[[nodiscard]] LEVIN_API Tensor normalize(const Tensor& x, double p = 2, std::int64_t dim = 1, double eps = 1e-12);

// sum(a b) / (max(norm(a), eps) max(norm(b), eps)) along dim of the shape that a and b broadcast to.
[[nodiscard]] LEVIN_API Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim = 1,
                                                 double eps = 1e-8);

// norm(a - b + eps, p) along the last dimension; shapes broadcast.
[[nodiscard]] LEVIN_API Tensor pairwise_distance(const Tensor& a, const Tensor& b, double p = 2, double eps = 1e-6,
                                                 KeepDim keep = KeepDim::no);

// The distance of each row of x1 to each of x2, norm(x1_i - x2_j, p): x1 [..., P, M], x2 [..., R, M] -> [..., P, R];
// batches broadcast; floats. p from 0 to infinity: 0 counts the elements that differ, infinity takes the largest
// difference. Equal rows have the gradient 0; at p = infinity each of equal largest differences has the whole one. At p
// = 2 products of matrices give what they can without a loss of digits, and near rows are subtracted. Computes 16-bit
// numbers in f32. Throws ShapeError for less than 2 dimensions and rows of two lengths, ConfigError for another p.
[[nodiscard]] LEVIN_API Tensor cdist(const Tensor& x1, const Tensor& x2, double p = 2);

// The distances of all pairs i < j of rows, as of cdist: x [N, M] -> [N (N - 1) / 2], in the order (0, 1), (0, 2),
// ..., (1, 2), ...
[[nodiscard]] LEVIN_API Tensor pdist(const Tensor& x, double p = 2);

// log(sum(exp(x))) without overflow; -inf of nothing.
[[nodiscard]] LEVIN_API Tensor logsumexp(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);

// bool: whether an element is, or all are, not 0; every dtype. NaN is not 0. Of nothing, any is false and all is true.
[[nodiscard]] LEVIN_API Tensor any(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor all(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);

// i64: where the largest, or smallest, element stands along dim, without dim in x flattened; the first of equal ones.
// Every dtype; NaN wins. Throws ShapeError where there is nothing to choose from.
[[nodiscard]] LEVIN_API Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = {},
                                      KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = {},
                                      KeepDim keep = KeepDim::no);

// amax and argmax, or amin and argmin, along one dimension; the gradient goes to the element at the index alone.
[[nodiscard]] LEVIN_API ValuesIndices max(const Tensor& x, std::int64_t dim, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API ValuesIndices min(const Tensor& x, std::int64_t dim, KeepDim keep = KeepDim::no);

// y[k] = x[0] + ... + x[k] along dim, summed in f64; every dtype, i64 for integers and bool.
[[nodiscard]] LEVIN_API Tensor cumsum(const Tensor& x, std::int64_t dim);

// The same with products, in f64 too. Derivatives are right where elements are 0.
[[nodiscard]] LEVIN_API Tensor cumprod(const Tensor& x, std::int64_t dim);

// log(e^x[0] + ... + e^x[k]) along dim without overflow.
[[nodiscard]] LEVIN_API Tensor logcumsumexp(const Tensor& x, std::int64_t dim);

// The largest, or smallest, of x[0] ... x[k] along dim, and where it last stands; every dtype. NaN wins. The gradient
// goes to the element at the index.
[[nodiscard]] LEVIN_API ValuesIndices cummax(const Tensor& x, std::int64_t dim);
[[nodiscard]] LEVIN_API ValuesIndices cummin(const Tensor& x, std::int64_t dim);

// The sum over the dimensions along which `shape` broadcasts to x's: the gradient of expand. DTypeError unless x is of
// floats.
[[nodiscard]] LEVIN_API Tensor sum_to(const Tensor& x, const Shape& shape);

// ---- Products of matrices. 16-bit floats are summed in f32. On CPUs with AVX512_BF16 or AMX, numbers and sums of
// products of bf16 that are below 2^-126 may count as zero.

// [..., m, k] [..., k, n] -> [..., m, n]; leading dimensions broadcast. A vector is a row on the left and a column on
// the right, and that dimension goes again.
[[nodiscard]] LEVIN_API Tensor matmul(const Tensor& a, const Tensor& b);

// matmul of two matrices, [m, k] [k, n] -> [m, n]; and of two lists of as many, [b, m, k] [b, k, n] -> [b, m, n].
// Nothing broadcasts: ShapeError for other ranks.
[[nodiscard]] LEVIN_API Tensor mm(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor bmm(const Tensor& a, const Tensor& b);

// x W^T + b: x [..., in], weight [out, in], bias [out] -> [..., out]; bias may be undefined.
[[nodiscard]] LEVIN_API Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// linear(gelu(linear(x, w1, b1), form), w2, b2): the feed-forward block of a transformer as one op. x [..., in],
// w1 [hidden, in], w2 [out, hidden]; b1 [hidden] and b2 [out] may be undefined. On devices GELU is computed where the
// first product ends, and its derivative where the gradient of the hidden values is: they take no pass of their own.
[[nodiscard]] LEVIN_API Tensor gelu_mlp(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                                        const Tensor& b2, GeluForm form = GeluForm::erf);

// y[i, j] = a[i] b[j]: [n], [m] -> [n, m]; numbers.
[[nodiscard]] LEVIN_API Tensor outer(const Tensor& a, const Tensor& b);

// The sum over pairs of dimensions, of a and of b, of one size each; the others stand in a's order, then in b's. A
// number means the last ones of a and the first ones of b.
[[nodiscard]] LEVIN_API Tensor tensordot(const Tensor& a, const Tensor& b, Dims a_dims, Dims b_dims);
[[nodiscard]] LEVIN_API Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims = 2);

// The Kronecker product: blocks a[i, j] b; at most 4 dimensions.
[[nodiscard]] LEVIN_API Tensor kron(const Tensor& a, const Tensor& b);

// The cross product of floating vectors of 3 elements along dim of the shape to which both broadcast.
[[nodiscard]] LEVIN_API Tensor cross(const Tensor& a, const Tensor& b, std::int64_t dim = -1);

// "bij,bjk->bik": letters and one "..." for each operand; each pair of operands is contracted by a matmul, left to
// right. Sizes of a letter are equal or 1; a letter twice in one operand is its diagonal. Without "->" the result has
// the dimensions of "..." and the letters that stand once, in alphabetical order.
[[nodiscard]] LEVIN_API Tensor einsum(std::string_view equation, std::span<const Tensor> operands);
[[nodiscard]] inline Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::span(operands.begin(), operands.size()));
}

}  // namespace levin
