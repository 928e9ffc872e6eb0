// The ops: free functions over tensors, differentiable to any order unless their line says otherwise. Names and
// semantics are PyTorch's where it has the op. Operands of different dtypes throw DTypeError, of different devices
// DeviceError, shapes that do not fit ShapeError, dimensions and indices out of range IndexError, other options out of
// range (a probability, a low above its high) ConfigError; a dtype without a kernel, and the values of a meta tensor
// where they are needed, throw UnsupportedError; an undefined tensor throws StateError unless the line says that it may
// be left out. Dimensions may be negative.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "levin/generator.h"
#include "levin/tensor.h"

namespace levin {

enum class KeepDim : bool { no, yes };

// ---- Factories. Random ones take a generator; randn fills N(0, 1), rand U[0, 1), randint integers in [low, high).
[[nodiscard]] LEVIN_API Tensor zeros(const Shape& shape, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor ones(const Shape& shape, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor full(const Shape& shape, Scalar value, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor zeros_like(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor ones_like(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor full_like(const Tensor& x, Scalar value);
// begin, begin + step, ... below (above, for a negative step) end. Throws ShapeError when step is 0 or leads away.
[[nodiscard]] LEVIN_API Tensor arange(Scalar begin, Scalar end, Scalar step, Device device, DType dtype = DType::i64);
[[nodiscard]] LEVIN_API Tensor arange(Scalar end, Device device, DType dtype = DType::i64);
// n values from begin to end, both included.
[[nodiscard]] LEVIN_API Tensor linspace(Scalar begin, Scalar end, std::int64_t n, Device device,
                                        DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor eye(std::int64_t rows, std::int64_t cols, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor eye(std::int64_t n, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor rand(const Shape& shape, Generator& generator, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor randn(const Shape& shape, Generator& generator, Device device, DType dtype = DType::f32);
[[nodiscard]] LEVIN_API Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, Generator& generator,
                                       Device device, DType dtype = DType::i64);
// An i64 permutation of 0 .. n-1.
[[nodiscard]] LEVIN_API Tensor randperm(std::int64_t n, Generator& generator, Device device);
// 1 with probability p, else 0; no gradient. Throws ConfigError for a p outside [0, 1] or NaN; on a device the kernel finds
// it, the result there is 0, and the next wait throws.
[[nodiscard]] LEVIN_API Tensor bernoulli(const Tensor& p, Generator& generator);

// ---- Pointwise arithmetic, with broadcasting. A C++ number takes the tensor's dtype. `/` needs floats.
[[nodiscard]] LEVIN_API Tensor add(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor sub(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor mul(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor div(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor add(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor sub(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor mul(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor div(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor sub(Scalar a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor div(Scalar a, const Tensor& b);
[[nodiscard]] inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
[[nodiscard]] inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
[[nodiscard]] inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
[[nodiscard]] inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
[[nodiscard]] inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
[[nodiscard]] inline Tensor operator-(const Tensor& a, Scalar b) { return sub(a, b); }
[[nodiscard]] inline Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
[[nodiscard]] inline Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
[[nodiscard]] inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
[[nodiscard]] inline Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
[[nodiscard]] inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
[[nodiscard]] inline Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }
[[nodiscard]] LEVIN_API Tensor neg(const Tensor& x);
[[nodiscard]] inline Tensor operator-(const Tensor& x) { return neg(x); }
[[nodiscard]] LEVIN_API Tensor pow(const Tensor& x, const Tensor& y);  // x^y; floats
[[nodiscard]] LEVIN_API Tensor pow(const Tensor& x, Scalar y);
[[nodiscard]] LEVIN_API Tensor maximum(const Tensor& a, const Tensor& b);  // NaN wins; ties share the gradient equally
[[nodiscard]] LEVIN_API Tensor minimum(const Tensor& a, const Tensor& b);
// a % b with the sign of b, as Python's; an integer % 0 throws IndexError (on a device the next wait does).
[[nodiscard]] LEVIN_API Tensor remainder(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor atan2(const Tensor& y, const Tensor& x);  // derivative 0 at (0, 0)

// ---- Pointwise functions. Floats only unless said.
[[nodiscard]] LEVIN_API Tensor abs(const Tensor& x);     // integers too; derivative sign(x), 0 at 0
[[nodiscard]] LEVIN_API Tensor sign(const Tensor& x);    // integers too; derivative 0
[[nodiscard]] LEVIN_API Tensor square(const Tensor& x);  // integers too
[[nodiscard]] LEVIN_API Tensor sqrt(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor rsqrt(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor reciprocal(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor exp(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor expm1(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log1p(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log2(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log10(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor sin(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor cos(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor tan(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor tanh(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor erf(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor floor(const Tensor& x);  // derivative 0, as ceil, round (ties to even), trunc
[[nodiscard]] LEVIN_API Tensor ceil(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor round(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor trunc(const Tensor& x);
// min(max(x, low), high), either bound may be absent; integers too. The derivative is 1 at the bounds.
[[nodiscard]] LEVIN_API Tensor clamp(const Tensor& x, std::optional<Scalar> low, std::optional<Scalar> high);

// ---- Activations.
enum class GeluForm : std::uint8_t { erf, tanh };
[[nodiscard]] LEVIN_API Tensor relu(const Tensor& x);  // derivative 0 at 0
[[nodiscard]] LEVIN_API Tensor gelu(const Tensor& x, GeluForm form = GeluForm::erf);
[[nodiscard]] LEVIN_API Tensor silu(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor sigmoid(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor logsigmoid(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
[[nodiscard]] LEVIN_API Tensor elu(const Tensor& x, double alpha = 1.0);
[[nodiscard]] LEVIN_API Tensor softplus(const Tensor& x, double beta = 1.0, double threshold = 20.0);

// ---- Comparison and logic: results are bool and carry no gradient.
[[nodiscard]] LEVIN_API Tensor eq(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor ne(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor lt(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor le(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor gt(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor ge(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor eq(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor ne(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor lt(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor le(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor gt(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor ge(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor isnan(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor isinf(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor isfinite(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor logical_not(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor logical_and(const Tensor& a, const Tensor& b);  // bool operands
[[nodiscard]] LEVIN_API Tensor logical_or(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor logical_xor(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);  // condition is bool
[[nodiscard]] LEVIN_API Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);
// True when shapes and dtypes agree and all elements are equal (NaN is not). Waits for the device.
[[nodiscard]] LEVIN_API bool equal(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

// ---- In place: for optimizers and statistics. Throws AutogradError when x requires grad and grad mode is on.
LEVIN_API void copy_(Tensor& x, const Tensor& from);  // broadcast, converted to x's dtype; from another device too
LEVIN_API void fill_(Tensor& x, Scalar value);
LEVIN_API void add_(Tensor& x, const Tensor& y, Scalar alpha = 1);  // x += alpha * y
LEVIN_API void mul_(Tensor& x, const Tensor& y);
LEVIN_API void mul_(Tensor& x, Scalar y);

// ---- Conversion.
[[nodiscard]] LEVIN_API Tensor cast(const Tensor& x, DType dtype);  // = x.to(dtype); a float NaN has no integer: 0

// ---- Views: share x's storage.
// Elements begin, begin + step, ... below end, as Python's x[begin:end:step]: negative ends count from the back, what
// lies outside is cut off. step >= 1.
[[nodiscard]] LEVIN_API Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t begin, std::int64_t end,
                                     std::int64_t step = 1);
[[nodiscard]] LEVIN_API Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t begin, std::int64_t length);
[[nodiscard]] LEVIN_API Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);  // drops the dimension
[[nodiscard]] LEVIN_API Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
[[nodiscard]] LEVIN_API Tensor t(const Tensor& x);  // rank 2
[[nodiscard]] LEVIN_API Tensor permute(const Tensor& x, Dims order);
[[nodiscard]] LEVIN_API Tensor expand(const Tensor& x, const Shape& shape);
// One size may be -1 and is worked out. Throws ShapeError when a copy would be needed.
[[nodiscard]] LEVIN_API Tensor view(const Tensor& x, Dims shape);
[[nodiscard]] LEVIN_API Tensor reshape(const Tensor& x, Dims shape);  // a view where possible, else a copy
[[nodiscard]] LEVIN_API Tensor flatten(const Tensor& x, std::int64_t begin = 0, std::int64_t end = -1);
[[nodiscard]] LEVIN_API Tensor squeeze(const Tensor& x, Dims dims = {});  // dims of size 1 among these; empty means all
[[nodiscard]] LEVIN_API Tensor unsqueeze(const Tensor& x, std::int64_t dim);
// Windows of `size` elements along dim, `step` apart: dim counts windows, a new last dimension their elements.
[[nodiscard]] LEVIN_API Tensor unfold(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step);
[[nodiscard]] LEVIN_API Tensor diagonal(const Tensor& x, std::int64_t offset = 0, std::int64_t dim0 = 0,
                                        std::int64_t dim1 = 1);
[[nodiscard]] LEVIN_API Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
[[nodiscard]] LEVIN_API Tensors split(const Tensor& x, std::span<const std::int64_t> sizes, std::int64_t dim = 0);
// Parts of ceil(size / chunks) elements, the last maybe shorter: at most `chunks` of them. An empty dim gives `chunks`
// empty parts.
[[nodiscard]] LEVIN_API Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);
[[nodiscard]] LEVIN_API Tensors unbind(const Tensor& x, std::int64_t dim = 0);

// ---- Reductions over dimensions; no dims mean all. Sums of integers and bool are i64, of 16 bits under Autocast f32.
[[nodiscard]] LEVIN_API Tensor sum(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor mean(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor prod(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
// Ties share the gradient. Throws ShapeError where there is nothing to choose from.
[[nodiscard]] LEVIN_API Tensor amax(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor amin(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
// sum (x - mean)^2 / (n - correction)
[[nodiscard]] LEVIN_API Tensor var(const Tensor& x, Dims dims = {}, double correction = 1, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor std(const Tensor& x, Dims dims = {}, double correction = 1, KeepDim keep = KeepDim::no);
// (sum |x|^p)^(1/p), p in (0, inf].
[[nodiscard]] LEVIN_API Tensor norm(const Tensor& x, double p = 2, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor logsumexp(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
// bool; what is not 0 counts as true.
[[nodiscard]] LEVIN_API Tensor any(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor all(const Tensor& x, Dims dims = {}, KeepDim keep = KeepDim::no);
// i64, the first of equal ones; without dim the position in x flattened.
[[nodiscard]] LEVIN_API Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = {},
                                      KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = {},
                                      KeepDim keep = KeepDim::no);
struct ValuesIndices {
  Tensor values, indices;  // indices are i64 along the dimension
};
[[nodiscard]] LEVIN_API ValuesIndices max(const Tensor& x, std::int64_t dim, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API ValuesIndices min(const Tensor& x, std::int64_t dim, KeepDim keep = KeepDim::no);
[[nodiscard]] LEVIN_API Tensor cumsum(const Tensor& x, std::int64_t dim);
[[nodiscard]] LEVIN_API Tensor sum_to(const Tensor& x, const Shape& shape);  // undoes a broadcast

// ---- Sorting. Stable; NaN counts as largest.
enum class Order : std::uint8_t { ascending, descending };
[[nodiscard]] LEVIN_API ValuesIndices sort(const Tensor& x, std::int64_t dim = -1, Order order = Order::ascending);
[[nodiscard]] LEVIN_API Tensor argsort(const Tensor& x, std::int64_t dim = -1, Order order = Order::ascending);
[[nodiscard]] LEVIN_API ValuesIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1,
                                           Order order = Order::descending);

// ---- Joining, indexing. Indices are i64; one outside its range throws IndexError with the value and the bound.
[[nodiscard]] LEVIN_API Tensor cat(std::span<const Tensor> xs, std::int64_t dim = 0);
[[nodiscard]] LEVIN_API Tensor stack(std::span<const Tensor> xs, std::int64_t dim = 0);
[[nodiscard]] inline Tensor cat(std::initializer_list<Tensor> xs, std::int64_t dim = 0) {
  return cat(std::span(xs.begin(), xs.size()), dim);
}
[[nodiscard]] inline Tensor stack(std::initializer_list<Tensor> xs, std::int64_t dim = 0) {
  return stack(std::span(xs.begin(), xs.size()), dim);
}
[[nodiscard]] LEVIN_API Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);  // index: rank 1
[[nodiscard]] LEVIN_API Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
// Repeated indices: the last wins.
[[nodiscard]] LEVIN_API Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
[[nodiscard]] LEVIN_API Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
[[nodiscard]] LEVIN_API Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
[[nodiscard]] LEVIN_API Tensor embedding(const Tensor& weight, const Tensor& index,
                                         std::optional<std::int64_t> padding_idx = {});
// Of rank 1; its size depends on values.
[[nodiscard]] LEVIN_API Tensor masked_select(const Tensor& x, const Tensor& mask);
[[nodiscard]] LEVIN_API Tensor nonzero(const Tensor& x);                            // i64 [count, rank]
[[nodiscard]] LEVIN_API Tensor one_hot(const Tensor& index, std::int64_t classes);  // i64 [..., classes]
[[nodiscard]] LEVIN_API Tensor bincount(const Tensor& index, std::int64_t minlength = 0);
enum class PadMode : std::uint8_t { constant, reflect, replicate };
// pads: {last_before, last_after, previous_before, ...}, as PyTorch's F.pad; negative ones crop (constant mode).
[[nodiscard]] LEVIN_API Tensor pad(const Tensor& x, Dims pads, Scalar value = 0);
[[nodiscard]] LEVIN_API Tensor pad(const Tensor& x, Dims pads, PadMode mode);
[[nodiscard]] LEVIN_API Tensor flip(const Tensor& x, Dims dims);
[[nodiscard]] LEVIN_API Tensor roll(const Tensor& x, std::int64_t shift, std::int64_t dim);
[[nodiscard]] LEVIN_API Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim);
[[nodiscard]] LEVIN_API Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
[[nodiscard]] LEVIN_API Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

// ---- Products of matrices.
// Ranks 1 and 2 as PyTorch's matmul; higher ranks are batches, broadcast. f32, f64, f16, bf16; 16-bit sums in f32.
[[nodiscard]] LEVIN_API Tensor matmul(const Tensor& a, const Tensor& b);
// x [..., in] W^T [out, in] + b [out]; bias may be undefined.
[[nodiscard]] LEVIN_API Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
// linear(gelu(linear(x, w1, b1), form), w2, b2): the feed-forward block of a transformer as one op. x [..., in],
// w1 [hidden, in], w2 [out, hidden]; b1 [hidden] and b2 [out] may be undefined. On devices GELU is computed where the
// first product ends, and its derivative where the gradient of the hidden values is: they take no pass of their own.
[[nodiscard]] LEVIN_API Tensor gelu_mlp(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                                        const Tensor& b2, GeluForm form = GeluForm::erf);
[[nodiscard]] LEVIN_API Tensor outer(const Tensor& a, const Tensor& b);
// "bij,bjk->bik": letters and one "..."; each pair of operands is contracted by a matmul, left to right.
[[nodiscard]] LEVIN_API Tensor einsum(std::string_view equation, std::span<const Tensor> operands);
[[nodiscard]] inline Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::span(operands.begin(), operands.size()));
}

// ---- Convolution and pooling over [N, C, H, W] (2d) and [N, C, L] (1d).
struct ConvOptions {
  std::array<std::int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  std::int64_t groups = 1;
};
// weight [out, in / groups, kH, kW], bias [out] or undefined.
//
// On the CPU the result and both gradients of a 3x3 or 5x5 kernel with stride, dilation and groups 1, in f32 with 16
// channels or more on both sides, come from Winograd's algorithm where the image is large enough for it to pay. For
// values in [-1, 1) and sums of n products its error stays below 128 * 2^-24 * sqrt(n) for 3x3 and below
// 256 * 2^-24 * sqrt(n) for 5x5, where a sum term by term has about 18 * 2^-24 * sqrt(n): less than rounding the inputs
// to 10 mantissa bits (TF32) costs. A NaN or infinity of the image reaches up to 3 pixels further than term by term,
// and values within a factor of 10^4 of the largest float may overflow. Other shapes and dtypes are summed term by
// term.
[[nodiscard]] LEVIN_API Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvOptions& options = {});
struct ConvOptions1d {
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
};
[[nodiscard]] LEVIN_API Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                      const ConvOptions1d& options = {});
struct ConvTransposeOptions {
  std::array<std::int64_t, 2> stride{1, 1}, padding{0, 0}, output_padding{0, 0}, dilation{1, 1};
  std::int64_t groups = 1;
};
// weight [in, out / groups, kH, kW].
[[nodiscard]] LEVIN_API Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                                const ConvTransposeOptions& options = {});
struct PoolOptions {
  std::array<std::int64_t, 2> kernel{2, 2};
  std::optional<std::array<std::int64_t, 2>> stride = {};  // default: the kernel
  std::array<std::int64_t, 2> padding{0, 0};
  bool ceil_mode = false;
  bool count_include_pad = true;  // average pooling
};
[[nodiscard]] LEVIN_API Tensor max_pool2d(const Tensor& x, const PoolOptions& options);
[[nodiscard]] LEVIN_API Tensor max_pool2d(const Tensor& x, std::int64_t kernel);
[[nodiscard]] LEVIN_API Tensor avg_pool2d(const Tensor& x, const PoolOptions& options);
[[nodiscard]] LEVIN_API Tensor avg_pool2d(const Tensor& x, std::int64_t kernel);
[[nodiscard]] LEVIN_API Tensor adaptive_avg_pool2d(const Tensor& x, std::array<std::int64_t, 2> output);
[[nodiscard]] LEVIN_API Tensor adaptive_max_pool2d(const Tensor& x, std::array<std::int64_t, 2> output);

// ---- Windows of images as columns: PyTorch's F.unfold and F.fold. Along each axis there are
// (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1 windows; L is their number, pH * pW. Limits are
// conv2d's: options up to 2^31, padded images up to 2^31 along an axis and 2^40 pixels; at least one window must fit.
struct WindowOptions {
  std::array<std::int64_t, 2> kernel{0, 0};  // must be given
  std::array<std::int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
};
// x [N, C, H, W] -> [N, C * kH * kW, L], or [C, H, W] -> [C * kH * kW, L]; every dtype. Zero outside of the image:
//   y[n, (c * kH + i) * kW + j, p * pW + q] = x[n, c, p * sH - padH + i * dH, q * sW - padW + j * dW]
// So matmul(view(weight, {out, -1}), im2col(x, windows)) is conv2d with its pixels in one dimension.
[[nodiscard]] LEVIN_API Tensor im2col(const Tensor& x, const WindowOptions& options);
// Its adjoint: columns [N, C * kH * kW, L] -> [N, C, H, W], or [C * kH * kW, L] -> [C, H, W], for size = {H, W}. A pixel
// is the sum of what all windows have for it, 0 where there is none; what lies in the padding is dropped. Floats; 16-bit
// types are summed in f32 and rounded once. Throws ShapeError when C or L is not what size and options make.
[[nodiscard]] LEVIN_API Tensor col2im(const Tensor& columns, std::array<std::int64_t, 2> size,
                                      const WindowOptions& options);

// ---- Normalisation. Statistics are f32 for 16-bit tensors; weight and bias have x's dtype or f32, and may be
// undefined: 1 and 0. y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions, those of weight (the
// last one without it).
[[nodiscard]] LEVIN_API Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);
// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension. Zhang & Sennrich, 2019.
[[nodiscard]] LEVIN_API Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-6);
// x [N, C, ...], weight and bias [C]; statistics per sample and group.
[[nodiscard]] LEVIN_API Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight,
                                          const Tensor& bias, double eps = 1e-5);
struct BatchNormResult {
  Tensor y;
  Tensor mean, var;  // of this batch [C], f32 or f64: var with n - 1; for running statistics, no gradient
};
// Training form: statistics of this batch, per channel of x [N, C, ...]. Throws ShapeError on one value a channel.
[[nodiscard]] LEVIN_API BatchNormResult batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                         double eps = 1e-5);
// Evaluation form: the given statistics.
[[nodiscard]] LEVIN_API Tensor batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                               const Tensor& running_mean, const Tensor& running_var,
                                               double eps = 1e-5);

// ---- Softmax and losses (of 16 bits f32 under Autocast), attention. A loss between two tensors wants equal shapes.
[[nodiscard]] LEVIN_API Tensor softmax(const Tensor& x, std::int64_t dim);
[[nodiscard]] LEVIN_API Tensor log_softmax(const Tensor& x, std::int64_t dim);
enum class Reduction : std::uint8_t { none, mean, sum };
struct CrossEntropyOptions {
  Tensor weight{};  // [classes] or undefined
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};
// logits [N, C] or [N, C, d...], target i64 [N] or [N, d...]. Mean divides by the sum of the targets' weights.
[[nodiscard]] LEVIN_API Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                                             const CrossEntropyOptions& options = {});
struct NllOptions {
  Tensor weight{};
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
};
[[nodiscard]] LEVIN_API Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const NllOptions& options = {});
[[nodiscard]] LEVIN_API Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
[[nodiscard]] LEVIN_API Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
[[nodiscard]] LEVIN_API Tensor huber_loss(const Tensor& x, const Tensor& target, double delta = 1.0,
                                          Reduction reduction = Reduction::mean);
[[nodiscard]] LEVIN_API Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, double beta = 1.0,
                                              Reduction reduction = Reduction::mean);
// weight scales each element, pos_weight the positive class; both may be undefined and broadcast.
[[nodiscard]] LEVIN_API Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                                                const Tensor& weight = {},
                                                                const Tensor& pos_weight = {},
                                                                Reduction reduction = Reduction::mean);
enum class KlReduction : std::uint8_t { none, mean, sum, batchmean };
enum class LogTarget : bool { no, yes };
// target * (log target - x), x in log space.
[[nodiscard]] LEVIN_API Tensor kl_div(const Tensor& x, const Tensor& target, KlReduction reduction = KlReduction::mean,
                                      LogTarget log_target = LogTarget::no);
// The share of argmax(logits, 1) == target, a f32 scalar; no gradient.
[[nodiscard]] LEVIN_API Tensor accuracy(const Tensor& logits, const Tensor& target);
// In training: elements become 0 with probability p, the others are scaled by 1 / (1 - p). 0 <= p <= 1.
[[nodiscard]] LEVIN_API Tensor dropout(const Tensor& x, double p, Generator& generator);
enum class Causal : bool { no, yes };
struct AttentionOptions {
  Tensor mask{};  // bool (true takes part) or floating (added), broadcast to [..., L, S]; or undefined
  Causal causal = Causal::no;
  std::optional<double> scale = {};  // default 1 / sqrt(E)
  double dropout_p = 0;
  Generator* generator = nullptr;  // needed when dropout_p > 0
};
// softmax(q k^T * scale + mask) v; q [..., L, E], k [..., S, E], v [..., S, Ev]. A row that may look at
// nothing gives 0.
[[nodiscard]] LEVIN_API Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                            const AttentionOptions& options = {});

}  // namespace levin
