// Arithmetic, functions, activations and comparisons of elements: ops of levin/ops.h, which includes this header. Its
// rules for dtypes, derivatives and errors hold here.
#pragma once

#include <cstdint>
#include <optional>

#include "levin/tensor.h"

namespace levin {

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
[[nodiscard]] LEVIN_API Tensor pow(Scalar x, const Tensor& y);

// The larger, or smaller, of a and b; numbers. NaN wins; equal operands share the gradient equally, and both have all
// of it where one is NaN. max and min of two tensors are maximum and minimum.
[[nodiscard]] LEVIN_API Tensor maximum(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor minimum(const Tensor& a, const Tensor& b);
[[nodiscard]] inline Tensor max(const Tensor& a, const Tensor& b) { return maximum(a, b); }
[[nodiscard]] inline Tensor min(const Tensor& a, const Tensor& b) { return minimum(a, b); }

// Numbers: a / b rounded toward minus infinity, as Python's //, with derivative 0; a % b with the sign of b, as
// Python's, and with the sign of a, as C's. The operator is Python's. An integer b of 0 throws IndexError (on a device
// the next wait does); a float / 0 is infinite or NaN, a float % 0 is NaN.
[[nodiscard]] LEVIN_API Tensor floor_divide(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor floor_divide(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor floor_divide(Scalar a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor remainder(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor remainder(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor remainder(Scalar a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor fmod(const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor fmod(const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor fmod(Scalar a, const Tensor& b);
[[nodiscard]] inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
[[nodiscard]] inline Tensor operator%(const Tensor& a, Scalar b) { return remainder(a, b); }
[[nodiscard]] inline Tensor operator%(Scalar a, const Tensor& b) { return remainder(a, b); }
inline Tensor& operator%=(Tensor& a, const Tensor& b) { return a = remainder(a, b); }
inline Tensor& operator%=(Tensor& a, Scalar b) { return a = remainder(a, b); }

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

// e^x, 2^x, and e^x - 1 without loss of digits near 0.
[[nodiscard]] LEVIN_API Tensor exp(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor exp2(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor expm1(const Tensor& x);

// Logarithms: natural, of 1 + x without loss of digits near 0, to base 2, to base 10. -inf for an argument of 0, NaN
// below.
[[nodiscard]] LEVIN_API Tensor log(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log1p(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log2(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor log10(const Tensor& x);

// log(x / (1 - x)), the inverse of sigmoid: -inf at 0, inf at 1, NaN outside of [0, 1]. With eps, in [0, 0.5] and
// ConfigError otherwise, x is clamped to [eps, 1 - eps] first, and the derivative is 0 where that changes x. 16-bit
// numbers are computed in f32.
[[nodiscard]] LEVIN_API Tensor logit(const Tensor& x, std::optional<double> eps = {});

// Sine, cosine and tangent of radians, the hyperbolic tangent, erf(x) = 2 / sqrt(pi) times the integral of exp(-t^2)
// from 0 to x, and erfc(x) = 1 - erf(x) without loss of digits where it is small.
[[nodiscard]] LEVIN_API Tensor sin(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor cos(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor tan(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor tanh(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor erf(const Tensor& x);
[[nodiscard]] LEVIN_API Tensor erfc(const Tensor& x);

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

// a where the bool condition is true, else b; all three broadcast. Every dtype; differentiable in a and b. A number has
// the tensor's dtype.
[[nodiscard]] LEVIN_API Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
[[nodiscard]] LEVIN_API Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
[[nodiscard]] LEVIN_API Tensor where(const Tensor& condition, Scalar a, const Tensor& b);

// `value` where the bool mask is true, else x; both broadcast. Every dtype; differentiable in x.
[[nodiscard]] LEVIN_API Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);
// The same with a tensor of one element and x's dtype; differentiable in it, too.
[[nodiscard]] LEVIN_API Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);

// True when shapes and dtypes agree and all elements are equal (NaN is not). Waits for the device.
[[nodiscard]] LEVIN_API bool equal(const Tensor& a, const Tensor& b);

enum class EqualNan : bool { no, yes };

// bool: whether |a - b| <= atol + rtol |b|, in f64, of each pair of elements, broadcast; every dtype. Equal infinities
// are close. NaN is not, but with EqualNan::yes to NaN. No gradient.
[[nodiscard]] LEVIN_API Tensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
                                       EqualNan equal_nan = EqualNan::no);
// True when shapes agree and all elements are so. Waits for the device.
[[nodiscard]] LEVIN_API bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
                                      EqualNan equal_nan = EqualNan::no);

}  // namespace levin
