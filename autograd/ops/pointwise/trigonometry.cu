// Inverse trigonometric functions, hyperbolic functions and their inverses.
#include "kernels/math/trigonometry.h"

#include "autograd/ops/pointwise/elementary.h"
#include "kernels/device/hardware_math.cuh"

namespace levin {
namespace pointwise {
namespace {

namespace h = kernels::half_math;

// sqrt(x^2 + 1) without a square that overflows.
Tensor root_of_square_and_1(const Tensor& x) { return hypot(x, levin::full({}, 1, x.device(), x.dtype())); }

LEVIN_MATH(Asin, "asin", full, Saves::input, m::asin(x), gy* rsqrt((1 - s) * (s + 1)), LEVIN_HALF_FORM(h::asin(x)))
LEVIN_MATH(Acos, "acos", full, Saves::input, m::acos(x), neg(gy* rsqrt((1 - s) * (s + 1))), LEVIN_HALF_FORM(h::acos(x)))
LEVIN_MATH(Atan, "atan", keep, Saves::input, m::atan(x), gy / (s * s + 1), LEVIN_HALF_FORM(h::atan(x)))
LEVIN_MATH(Sinh, "sinh", full, Saves::input, m::sinh(x), gy* cosh(s), LEVIN_HALF_FORM(h::sinh(x)))
LEVIN_MATH(Cosh, "cosh", full, Saves::input, m::cosh(x), gy* sinh(s), LEVIN_HALF_FORM(h::cosh(x)))
LEVIN_MATH(Asinh, "asinh", keep, Saves::input, m::asinh(x), gy / root_of_square_and_1(s), LEVIN_HALF_FORM(h::asinh(x)))
LEVIN_MATH(Acosh, "acosh", full, Saves::input, m::acosh(x), gy* rsqrt(s - 1) * rsqrt(s + 1),
           LEVIN_HALF_FORM(h::acosh(x)))
LEVIN_MATH(Atanh, "atanh", full, Saves::input, m::atanh(x), gy / ((1 - s) * (s + 1)), LEVIN_HALF_FORM(h::atanh(x)))

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor asin(const Tensor& x) { return unary<Asin>(x); }
Tensor acos(const Tensor& x) { return unary<Acos>(x); }
Tensor atan(const Tensor& x) { return unary<Atan>(x); }
Tensor sinh(const Tensor& x) { return unary<Sinh>(x); }
Tensor cosh(const Tensor& x) { return unary<Cosh>(x); }
Tensor asinh(const Tensor& x) { return unary<Asinh>(x); }
Tensor acosh(const Tensor& x) { return unary<Acosh>(x); }
Tensor atanh(const Tensor& x) { return unary<Atanh>(x); }

}  // namespace levin
