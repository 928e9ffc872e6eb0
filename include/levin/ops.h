// The ops: free functions over tensors, with PyTorch's names and meanings; a comment says where an op differs.
//
// Unless its comment says otherwise, an op
// - returns a new tensor on the device and with the dtype of its operands, and has derivatives of every order;
// - counts dimensions from 0, negative ones from the end. Reductions, scans, sorts, softmax, gather, scatter, squeeze,
//   transpose, flip and roll take a tensor of rank 0 for a line of one element, with the dimensions 0 and -1; for the
//   others it has none;
// - takes f32, f64, f16 and bf16, called floats below. "Numbers" are floats, i32, i64 and u8; "every dtype" is numbers
//   and bool. Kernels compute 16-bit floats in f32 and round once; integers wrap around. Autocast (levin/autograd.h)
//   changes the dtype that an op runs in.
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
#include "levin/layer_ops.h"
#include "levin/losses.h"
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

// A random permutation of 0 .. n-1, i64 [n].
[[nodiscard]] LEVIN_API Tensor randperm(std::int64_t n, Generator& generator, Device device);

// 1 with probability p, else 0, element by element; no gradient. Throws ConfigError for a p outside [0, 1] or NaN; on a
// device the kernel finds it, the result there is 0, and the next wait throws.
[[nodiscard]] LEVIN_API Tensor bernoulli(const Tensor& p, Generator& generator);

// n categories drawn by their weights [m] or [rows, m], which need not add up to 1: i64 [n] or [rows, n]; no gradient.
// Without replacement they differ. Throws ShapeError unless 1 <= n (<= m without replacement), ConfigError for a weight
// that is negative or not finite and for a row with no weight above 0, or fewer than n of them without replacement. On a
// device the kernel finds a weight that is no share of its row's sum, and the next wait throws; there categories of
// weight 0 come last where others are too few.
enum class Replacement : bool { no, yes };
[[nodiscard]] LEVIN_API Tensor multinomial(const Tensor& weights, std::int64_t n, Generator& generator,
                                           Replacement replacement = Replacement::no);

// ---- Pointwise arithmetic. Operands broadcast by NumPy's rules, and a C++ number takes the tensor's dtype.

// a + b, a - b, a * b of numbers; a / b of floats (PyTorch converts integers).
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

// x += y means x = x + y: the handle gets a new tensor, and other handles keep the old one (PyTorch writes in place).
inline Tensor& operator+=(Tensor& a, const Tensor& b) { return a = add(a, b); }
inline Tensor& operator-=(Tensor& a, const Tensor& b) { return a = sub(a, b); }
inline Tensor& operator*=(Tensor& a, const Tensor& b) { return a = mul(a, b); }
inline Tensor& operator/=(Tensor& a, const Tensor& b) { return a = div(a, b); }
inline Tensor& operator+=(Tensor& a, Scalar b) { return a = add(a, b); }
inline Tensor& operator-=(Tensor& a, Scalar b) { return a = sub(a, b); }
inline Tensor& operator*=(Tensor& a, Scalar b) { return a = mul(a, b); }
inline Tensor& operator/=(Tensor& a, Scalar b) { return a = div(a, b); }

// -x; numbers.
[[nodiscard]] LEVIN_API Tensor neg(const Tensor& x);
[[nodiscard]] inline Tensor operator-(const Tensor& x) { return neg(x); }

// x^y; numbers. The derivative in x is 0 where y is 0; the one in y is 0 where x is 0 and y >= 0. An integer to a
// negative power is 0, but for 1 and -1; as a C++ number such a power throws ConfigError.
[[nodiscard]] LEVIN_API Tensor pow(const Tensor& x, const Tensor& y);
[[nodiscard]] LEVIN_API Tensor pow(const Tensor& x, Scalar y);

// The larger, or smaller, of a and b; numbers. NaN wins; equal operands share the gradient equally, and both have all
// of it where one is NaN.
[[nodiscard]] LEVIN_API Tensor maximum(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor minimum(const Tensor& a, const Tensor& b);

// Numbers: a / b rounded toward minus infinity, as Python's //, with derivative 0; a % b with the sign of b, as
// Python's, and with the sign of a, as C's. An integer b of 0 throws IndexError (on a device the next wait does); a
// float / 0 is infinite or NaN, a float % 0 is NaN.
[[nodiscard]] LEVIN_API Tensor floor_divide(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor floor_divide(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor remainder(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor remainder(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor fmod(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor fmod(const Tensor& a, Scalar b);

// The angle of the point (x, y), in [-pi, pi]. Its derivatives are 0 at (0, 0).
[[nodiscard]] LEVIN_API Tensor atan2(const Tensor& y, const Tensor& x);

// sqrt(a^2 + b^2) without overflow on the way. Its derivatives are 0 at (0, 0), where PyTorch's are NaN.
[[nodiscard]] LEVIN_API Tensor hypot(const Tensor& a, const Tensor& b);

// log(e^a + e^b) and log2(2^a + 2^b) without overflow. Equal operands share the gradient equally, infinities too
// (PyTorch's is NaN there).
[[nodiscard]] LEVIN_API Tensor logaddexp(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor logaddexp2(const Tensor& a, const Tensor& b);

// a log(b), and 0 where a is 0 and b is not NaN. Where a is 0 the derivative in b is 0 (PyTorch's is NaN for a b of 0),
// and the one in a is 0 for b <= 0.
[[nodiscard]] LEVIN_API Tensor xlogy(const Tensor& a, const Tensor& b);

// |a| with the sign of b, also of a zero or NaN. The derivative in a is 0 at 0, the one in b is 0.
[[nodiscard]] LEVIN_API Tensor copysign(const Tensor& a, const Tensor& b);

// 0 below 0, 1 above, and `values` where x is 0; numbers. 0 for NaN. No gradient.
[[nodiscard]] LEVIN_API Tensor heaviside(const Tensor& x, const Tensor& values);

// ---- Pointwise functions

// |x|, with derivative 0 at 0; -1, 0 or 1 by the sign of x, with derivative 0; x^2. All three of numbers. The sign of
// NaN is 0, and so is the derivative of |x| there.
[[nodiscard]] LEVIN_API Tensor abs(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor sign(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor square(const Tensor& x);

// Square root, 1 / sqrt(x), 1 / x. Roots are NaN below 0.
[[nodiscard]] LEVIN_API Tensor sqrt(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor rsqrt(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor reciprocal(const Tensor& x);

// e^x, and e^x - 1 without loss of digits near 0.
[[nodiscard]] LEVIN_API Tensor exp(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor expm1(const Tensor& x);

// Logarithms: natural, of 1 + x without loss of digits near 0, to base 2, to base 10. -inf for an argument of 0, NaN
// below.
[[nodiscard]] LEVIN_API Tensor log(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log1p(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log2(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log10(const Tensor& x);

// Sine, cosine and tangent of radians, the hyperbolic tangent, and erf(x) = 2 / sqrt(pi) times the integral of
// exp(-t^2) from 0 to x.
[[nodiscard]] LEVIN_API Tensor sin(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor cos(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor tan(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor tanh(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor erf(const Tensor& x);

// The x of erf(x): infinite for -1 and 1, NaN beyond.
[[nodiscard]] LEVIN_API Tensor erfinv(const Tensor& x);

// log |Gamma(x)|; its derivative, the digamma function; and the n-th derivative of digamma, n from 0 to 170 and
// ConfigError otherwise. At 0 and negative integers lgamma is inf, digamma NaN (at 0 -inf), and polygamma infinite.
[[nodiscard]] LEVIN_API Tensor lgamma(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor digamma(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor polygamma(std::int64_t n, const Tensor& x);

// The angles of a sine, cosine and tangent, in [-pi / 2, pi / 2], [0, pi] and [-pi / 2, pi / 2]: NaN for a sine or
// cosine beyond -1 and 1. Hyperbolic sine and cosine and the inverses of hyperbolic functions: acosh is NaN below 1,
// atanh infinite at -1 and 1 and NaN beyond.
[[nodiscard]] LEVIN_API Tensor asin(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor acos(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor atan(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor sinh(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor cosh(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor asinh(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor acosh(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor atanh(const Tensor& x);

// The integer below or at x, above or at x, nearest to x (ties to even), nearest toward 0; derivative 0.
[[nodiscard]] LEVIN_API Tensor floor(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor ceil(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor round(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor trunc(const Tensor& x);

// min(max(x, low), high); numbers. NaN stays, and a NaN bound gives NaN. The derivative is 1 for low <= x <= high, else
// 0. One bound may be absent; ConfigError without both. Bounds that are tensors broadcast, have the gradient where they
// are the result, and may be undefined.
[[nodiscard]] LEVIN_API Tensor clamp(const Tensor& x, std::optional<Scalar> low, std::optional<Scalar> high);
[[nodiscard]] LEVIN_API Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high);

// x with `nan` for NaN, and `posinf` and `neginf` for the infinities, by default the largest and the lowest number of
// x's dtype; floats (PyTorch also takes integers). The derivative is 0 where x is replaced.
[[nodiscard]] LEVIN_API Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> posinf = {},
                                          std::optional<double> neginf = {});

// ---- Activations

// erf: x Phi(x), with the distribution Phi of N(0, 1); tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
enum class GeluForm : std::uint8_t { erf, tanh };

// max(x, 0), with derivative 0 at 0. NaN stays, with derivative 1.
[[nodiscard]] LEVIN_API Tensor relu(const Tensor& x);

// Hendrycks & Gimpel, "Gaussian Error Linear Units", 2016.
[[nodiscard]] LEVIN_API Tensor gelu(const Tensor& x, GeluForm form = GeluForm::erf);

// x sigmoid(x). Elfwing et al., 2017.
[[nodiscard]] LEVIN_API Tensor silu(const Tensor& x);

// 1 / (1 + e^-x), and its logarithm without overflow.
[[nodiscard]] LEVIN_API Tensor sigmoid(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor logsigmoid(const Tensor& x);

// x above 0, else negative_slope x; the derivative at 0 is negative_slope.
[[nodiscard]] LEVIN_API Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);

// x above 0, else alpha (e^x - 1); the derivative at 0 is alpha. Clevert et al., 2015.
[[nodiscard]] LEVIN_API Tensor elu(const Tensor& x, double alpha = 1.0);

// x above 0, else alpha (e^(x / alpha) - 1); ConfigError for alpha 0. Barron, 2017. selu: 1.0507 elu(x, 1.6733), with
// constants that keep mean 0 and variance 1 through layers. Klambauer et al., 2017.
[[nodiscard]] LEVIN_API Tensor celu(const Tensor& x, double alpha = 1.0);
[[nodiscard]] LEVIN_API Tensor selu(const Tensor& x);

// x tanh(softplus(x)). Misra, 2019.
[[nodiscard]] LEVIN_API Tensor mish(const Tensor& x);

// Straight lines: min(max(x, low), high), with derivative 0 at low and high and ConfigError for low above high; the
// same with 0 and 6; min(max(x / 6 + 1 / 2, 0), 1); and x times the latter (Howard et al., 2019).
[[nodiscard]] LEVIN_API Tensor hardtanh(const Tensor& x, double low = -1.0, double high = 1.0);
[[nodiscard]] LEVIN_API Tensor relu6(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor hardsigmoid(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor hardswish(const Tensor& x);

// x / (1 + |x|).
[[nodiscard]] LEVIN_API Tensor softsign(const Tensor& x);

// x above 0, else weight x. weight [1], or [C] for x [N, C, ...]: one number a channel; ShapeError otherwise. He et
// al., 2015.
[[nodiscard]] LEVIN_API Tensor prelu(const Tensor& x, const Tensor& weight);

// The first half of x along dim times sigmoid of the second half; ShapeError for an odd size. Dauphin et al., 2017.
[[nodiscard]] LEVIN_API Tensor glu(const Tensor& x, std::int64_t dim = -1);

// log(1 + e^(beta x)) / beta, and x where beta x > threshold. Throws ConfigError unless beta is above 0.
[[nodiscard]] LEVIN_API Tensor softplus(const Tensor& x, double beta = 1.0, double threshold = 20.0);

// ---- Comparison and logic: results are bool and carry no gradient.

// a == b, !=, <, <=, >, >=, broadcast; every dtype. NaN is unequal to everything. An integer that a's dtype does not
// hold is below or above every element; a fraction beside integers throws DTypeError.
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

// As operators; == and != compare elements, too: equal() compares tensors.
[[nodiscard]] inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
[[nodiscard]] inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
[[nodiscard]] inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
[[nodiscard]] inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
[[nodiscard]] inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
[[nodiscard]] inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
[[nodiscard]] inline Tensor operator==(const Tensor& a, Scalar b) { return eq(a, b); }
[[nodiscard]] inline Tensor operator!=(const Tensor& a, Scalar b) { return ne(a, b); }
[[nodiscard]] inline Tensor operator<(const Tensor& a, Scalar b) { return lt(a, b); }
[[nodiscard]] inline Tensor operator<=(const Tensor& a, Scalar b) { return le(a, b); }
[[nodiscard]] inline Tensor operator>(const Tensor& a, Scalar b) { return gt(a, b); }
[[nodiscard]] inline Tensor operator>=(const Tensor& a, Scalar b) { return ge(a, b); }
[[nodiscard]] inline Tensor operator==(Scalar a, const Tensor& b) { return eq(b, a); }
[[nodiscard]] inline Tensor operator!=(Scalar a, const Tensor& b) { return ne(b, a); }
[[nodiscard]] inline Tensor operator<(Scalar a, const Tensor& b) { return gt(b, a); }
[[nodiscard]] inline Tensor operator<=(Scalar a, const Tensor& b) { return ge(b, a); }
[[nodiscard]] inline Tensor operator>(Scalar a, const Tensor& b) { return lt(b, a); }
[[nodiscard]] inline Tensor operator>=(Scalar a, const Tensor& b) { return le(b, a); }

// Whether an element is NaN, is infinite, is neither; floats (PyTorch also takes integers).
[[nodiscard]] LEVIN_API Tensor isnan(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor isinf(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor isfinite(const Tensor& x);

// Not, and, or, exclusive or of bool operands, broadcast (PyTorch also takes numbers).
[[nodiscard]] LEVIN_API Tensor logical_not(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor logical_and(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor logical_or(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor logical_xor(const Tensor& a, const Tensor& b);

// And, or, exclusive or, and not of the bits of integers or of bool, broadcast.
[[nodiscard]] LEVIN_API Tensor bitwise_and(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor bitwise_or(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor bitwise_xor(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor bitwise_and(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor bitwise_or(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor bitwise_xor(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor bitwise_not(const Tensor& x);
[[nodiscard]] inline Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise_and(a, b); }
[[nodiscard]] inline Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise_or(a, b); }
[[nodiscard]] inline Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise_xor(a, b); }
[[nodiscard]] inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }

// a 2^b with wrap-around, and a / 2^b toward minus infinity; integers. A b below 0, or of all bits of the dtype and
// more, moves every bit out: 0 remains, and -1 of a negative a to the right.
[[nodiscard]] LEVIN_API Tensor bitwise_left_shift(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor bitwise_right_shift(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor bitwise_left_shift(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor bitwise_right_shift(const Tensor& a, Scalar b);

// a where the bool condition is true, else b; all three broadcast. Every dtype; differentiable in a and b.
[[nodiscard]] LEVIN_API Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// `value` where the bool mask is true, else x; both broadcast. Every dtype; differentiable in x.
[[nodiscard]] LEVIN_API Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);
// The same with a tensor of one element and x's dtype; differentiable in it, too.
[[nodiscard]] LEVIN_API Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);

// True when shapes and dtypes agree and all elements are equal (NaN is not). Waits for the device.
[[nodiscard]] LEVIN_API bool equal(const Tensor& a, const Tensor& b);

// True when shapes agree and |a - b| <= atol + rtol |b| for all elements, in f64. Equal infinities are close, NaN is
// not. Waits for the device.
[[nodiscard]] LEVIN_API bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

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
// x").
[[nodiscard]] LEVIN_API Tensor expand(const Tensor& x, const Shape& shape);

// The same elements in row-major order under another shape; one size may be -1 and is worked out. view throws
// ShapeError when a copy would be needed, reshape makes it.
[[nodiscard]] LEVIN_API Tensor view(const Tensor& x, Dims shape);
[[nodiscard]] LEVIN_API Tensor reshape(const Tensor& x, Dims shape);

// Dimensions begin to end, both included, become one, by reshape; rank 0 becomes [1].
[[nodiscard]] LEVIN_API Tensor flatten(const Tensor& x, std::int64_t begin = 0, std::int64_t end = -1);

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

// sum (x - mean)^2 / max(0, n - correction), and its root. std's derivative is 0 where std is 0 (PyTorch's is NaN).
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

// Sum and mean (floats alone) without the elements that are NaN: 0 and NaN of nothing. How many elements are not 0, i64;
// every dtype.
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

// Elements, and their i64 positions along the dimension.
struct ValuesIndices {
  Tensor values, indices;
};

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

// ---- Sorting, of every dtype. Stable; NaN counts as largest, -0 as equal to 0. UnsupportedError for 2^32 or more
// elements along dim.

enum class Order : std::uint8_t { ascending, descending };

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

// The elements of x without repeats, ascending, [m]; for each element of x its place among them, i64 of x's shape; and
// how often each stands in x, i64 [m]. Each NaN is one of its own. No gradient. It waits for the device, as nonzero
// does.
struct UniqueResult {
  Tensor values, inverse, counts;
};
[[nodiscard]] LEVIN_API UniqueResult unique(const Tensor& x);

// The same of runs of equal elements that follow each other in x, flattened, in the order of x.
[[nodiscard]] LEVIN_API UniqueResult unique_consecutive(const Tensor& x);

// For each value the i64 place in the ascending numbers of sorted's last dimension at which it keeps their order, before
// equal ones (SearchSide::left) or after them. sorted is [n], or has values' shape but for the last dimension. In bucketize
// the numbers are boundaries [n]. Every dtype; NaN counts as largest. The order is not checked.
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

// x with the elements src[i, j, k] joined at y[i, index[i, j, k], k] for dim 1: their sum, product, mean (floats alone),
// largest or smallest. IncludeSelf::yes joins x's element, too. A place that no index names keeps x's. Numbers; index is
// as scatter's. NaN wins; equal extremes share the gradient equally, and products of 0 have their derivatives. Products
// and extremes take log2(index.numel()) passes after a sort. index_reduce does the same to whole slices, as index_add.
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
// in front if a whole dimension lies between two of them, as in PyTorch. A bool mask has the sizes of as many dimensions
// of x as it has itself, and stands for the positions of its true elements; it makes the call wait, as nonzero does.
// IndexError names the dimension of an index out of range. StateError when every tensor is undefined.
[[nodiscard]] LEVIN_API Tensor index(const Tensor& x, std::span<const Tensor> indices);
[[nodiscard]] inline Tensor index(const Tensor& x, std::initializer_list<Tensor> indices) {
  return index(x, std::span(indices.begin(), indices.size()));
}

// A copy of x with `values`, which broadcast, at index(x, indices), or with them added there (numbers). Of equal places
// the last one wins, and sums have a fixed order. x[mask] = v: index_put(x, {mask}, v). That waits only where v varies
// from one true element to the next.
enum class Accumulate : bool { no, yes };
[[nodiscard]] LEVIN_API Tensor index_put(const Tensor& x, std::span<const Tensor> indices, const Tensor& values,
                                         Accumulate accumulate = Accumulate::no);
[[nodiscard]] inline Tensor index_put(const Tensor& x, std::initializer_list<Tensor> indices, const Tensor& values,
                                      Accumulate accumulate = Accumulate::no) {
  return index_put(x, std::span(indices.begin(), indices.size()), values, accumulate);
}

// x, but the k-th true element of the bool mask, which broadcasts to x, takes the k-th element of src; every dtype.
// ShapeError where src has fewer elements than that; on a device an IndexError, at the next wait.
[[nodiscard]] LEVIN_API Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& src);

// The elements of x, flattened, at index: of index's shape. take_along_dim: gather where both are broadcast along the
// dimensions other than dim; without dim both are flattened. Every dtype.
[[nodiscard]] LEVIN_API Tensor take(const Tensor& x, const Tensor& index);
[[nodiscard]] LEVIN_API Tensor take_along_dim(const Tensor& x, const Tensor& index,
                                              std::optional<std::int64_t> dim = {});

// Rows of weight [rows, columns] at index [...]: [..., columns]. The row padding_idx, which may be negative, gets no
// gradient.
[[nodiscard]] LEVIN_API Tensor embedding(const Tensor& weight, const Tensor& index,
                                         std::optional<std::int64_t> padding_idx = {});

// The size of the result depends on values, here and for bincount: these ops wait for the device, and throw
// UnsupportedError on meta and CaptureError while a Graph is recorded. masked_select: the elements where the bool mask
// is true, [count], every dtype, both broadcast. nonzero: the positions of elements that are not 0, i64 [count, rank]
// in row-major order, every dtype.
[[nodiscard]] LEVIN_API Tensor masked_select(const Tensor& x, const Tensor& mask);
[[nodiscard]] LEVIN_API Tensor nonzero(const Tensor& x);

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

// y[(i + shift) mod n] = x[i] along dim; every dtype.
[[nodiscard]] LEVIN_API Tensor roll(const Tensor& x, std::int64_t shift, std::int64_t dim);

// Each element of dim `repeats` times, beside each other; every dtype.
[[nodiscard]] LEVIN_API Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim);

// x `times` times in a row along each dimension, a copy; every dtype. repeat takes a number for each dimension, and
// more for dimensions in front; tile takes fewer, too, for the last ones. ShapeError otherwise.
[[nodiscard]] LEVIN_API Tensor repeat(const Tensor& x, Dims times);
[[nodiscard]] LEVIN_API Tensor tile(const Tensor& x, Dims times);

// Coordinates of a grid: of tensors [n0], [n1], ... one view of shape [n0, n1, ...] each, which varies along its own
// dimension; 1 to 8 tensors of every dtype. Indexing::xy exchanges the first two dimensions, as images have them.
enum class Indexing : bool { ij, xy };
[[nodiscard]] LEVIN_API Tensors meshgrid(std::span<const Tensor> xs, Indexing indexing = Indexing::ij);

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

// The combinations of one element from each vector, [n0 n1 ..., vectors] in row-major order; of one vector itself.
[[nodiscard]] LEVIN_API Tensor cartesian_prod(std::span<const Tensor> xs);

// x[i + 1] - x[i] along dim, n times; numbers, and bool by exclusive or. ConfigError for a negative n.
[[nodiscard]] LEVIN_API Tensor diff(const Tensor& x, std::int64_t n = 1, std::int64_t dim = -1);

// x [..., rows, cols] with 0 above, or below, the diagonal col - row = `diagonal`; every dtype.
[[nodiscard]] LEVIN_API Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
[[nodiscard]] LEVIN_API Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

// ---- Products of matrices. 16-bit floats are summed in f32. On CPUs with AVX512_BF16 or AMX, numbers and sums of
// products of bf16 that are below 2^-126 may count as zero.

// [..., m, k] [..., k, n] -> [..., m, n]; leading dimensions broadcast. A vector is a row on the left and a column on
// the right, and that dimension goes again.
[[nodiscard]] LEVIN_API Tensor matmul(const Tensor& a, const Tensor& b);

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
