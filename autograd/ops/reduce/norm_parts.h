// What the ops of norms share: checks of their parameters, and dtypes of parameters, sums and gradients.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include "autograd/home.h"
#include "kernels/executor/dispatch.h"
#include "levin/ops.h"

namespace levin::norm_parts {

// f64 for f64, else f32: the type of sums and of saved statistics.
inline DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

// Parameters have x's dtype or f32; each may be undefined.
inline void check_parameter(const char* op, const char* what, const Tensor& x, const Tensor& p, const Shape& shape) {
  if (!p.defined()) return;
  check_same_device(op, x, p);
  if (p.shape() != shape)
    fail<ShapeError>(op, ": ", what, " has shape ", p.shape(), ", expected ", shape, " for x ", x.shape());
  if (p.dtype() != x.dtype() && p.dtype() != DType::f32) {
    fail<DTypeError>(op, ": ", what, " is ", p.dtype(), ", expected x's ", x.dtype(), " or f32");
  }
}
inline void check_alike(const char* op, const Tensor& a, const Tensor& b) {
  if (a.defined() && b.defined()) check_same_dtype(op, a, b);
}
inline void check_eps(const char* op, double eps) {
  if (!(eps >= 0)) fail<ConfigError>(op, ": eps is ", eps, ", expected 0 or more");
}

// The eps of an RMS norm: without one PyTorch's, the machine epsilon of the type of sums. The op itself refuses an
// undefined x.
inline double rms_eps(const Tensor& x, std::optional<double> eps) {
  return eps ? *eps : epsilon(x.defined() ? wide(x.dtype()) : DType::f32);
}

// The dtype of the defined parameters; x's dtype where none is defined.
inline DType parameters_of(const Tensor& x, const Tensor& w, const Tensor& b) {
  return w.defined() ? w.dtype() : b.defined() ? b.dtype() : x.dtype();
}

// Kernels take parameters in the type of the sums: parameters are few, and one kernel serves every pair of dtypes.
inline Tensor widened(const Tensor& parameter, const Tensor& x) {
  return parameter.defined() ? cast(parameter.contiguous(), wide(x.dtype())) : parameter;
}
inline Tensor narrowed(const Tensor& gradient, DType parameter) {
  return gradient.defined() ? cast(gradient, parameter) : gradient;
}

// Memory for a parameter's gradient [c], of the type of the sums: `place`, if that has the type, or new memory.
inline Tensor gradient_of(std::int64_t c, const Tensor& x, Tensor place) {
  const DType sums = wide(x.dtype());
  return place.defined() && place.dtype() == sums ? std::move(place) : empty({c}, x.device(), sums);
}
// Where the gradients of weight and bias can be born, which are inputs `weight` and weight + 1 of the forward op.
inline std::array<Tensor, 2> parameter_places(std::size_t weight = 1) {
  return {detail::birth_place(weight), detail::birth_place(weight + 1)};
}
inline Tensor cast_like(const Tensor& g, const Tensor& like) {
  return like.defined() ? cast(g, like.dtype()) : Tensor();
}

// x as [rows, cols] for a norm over the last dimensions: those of weight, or of bias; the last one without both. Throws
// what layer_norm throws.
struct Rows {
  std::int64_t rows = 1, cols = 1;
  [[nodiscard]] Tensor of(const Tensor& x) const {
    return x.rank() == 2 && x.size(1) == cols ? x : reshape(x, {rows, cols});
  }
  [[nodiscard]] static Tensor flat(const Tensor& p) {
    return p.defined() && p.rank() != 1 ? reshape(p, {p.numel()}) : p;
  }
};
inline Rows rows_of(const char* op, const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  check_eps(op, eps);
  if (x.rank() == 0) fail<ShapeError>(op, ": x is a scalar, expected at least one dimension");
  Shape tail{x.shape().back()};
  if (w.defined())
    tail = w.shape();
  else if (b.defined())
    tail = b.shape();
  const int lead = x.rank() - tail.rank();
  bool fits = lead >= 0 && tail.rank() > 0;
  for (int d = 0; fits && d < tail.rank(); ++d) fits = x.shape()[lead + d] == tail[d];
  if (!fits) fail<ShapeError>(op, ": weight has shape ", tail, ", expected the last dimensions of x ", x.shape());
  check_parameter(op, "weight", x, w, tail);
  check_parameter(op, "bias", x, b, tail);
  check_alike(op, w, b);
  Rows form{.cols = tail.numel()};
  for (int d = 0; d < lead; ++d) form.rows *= x.shape()[d];
  return form;
}

}  // namespace levin::norm_parts
