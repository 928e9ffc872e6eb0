// Tensors from nothing: constants, ranges, the identity.
#include <cmath>
#include <cstring>

#include "autograd/ops/pointwise.h"

namespace levin {
namespace {

constexpr OpInfo kArange{.name = "arange"}, kLinspace{.name = "linspace"}, kEye{.name = "eye"};

void check_number(const char* op, Scalar s, DType dtype) {
  if (!s.is_integer() && !is_float(dtype))
    fail<DTypeError>(std::string(op), ": the number ", s, " does not fit ", dtype);
}

// out[i] = begin + i * step, computed in double (integers exactly), one rounding.
void fill_range(const OpInfo& info, const Tensor& out, Scalar begin, Scalar step) {
  dispatch(info, out, kNumbers, [&]<class T>(const Cpu&, T) {
    T* y = ptr<T>(out);
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      if constexpr (std::is_integral_v<T>)
        y[i] = static_cast<T>(begin.integer() + i * step.integer());
      else
        y[i] = T(begin.real() + static_cast<double>(i) * step.real());
    }
  });
}

}  // namespace

Tensor full(const Shape& shape, Scalar value, Device device, DType dtype) {
  check_number("full", value, dtype);
  Tensor out = empty(shape, device, dtype);
  if (device.is_cpu() && value.real() == 0 && !std::signbit(value.real())) {
    std::memset(pointwise::address(out), 0, static_cast<std::size_t>(out.numel()) * itemsize(dtype));
    return out;
  }
  const detail::GradOff off;
  fill_(out, value);
  return out;
}
Tensor zeros(const Shape& shape, Device device, DType dtype) { return full(shape, 0, device, dtype); }
Tensor ones(const Shape& shape, Device device, DType dtype) { return full(shape, 1, device, dtype); }
Tensor zeros_like(const Tensor& x) { return zeros(x.shape(), x.device(), x.dtype()); }
Tensor ones_like(const Tensor& x) { return ones(x.shape(), x.device(), x.dtype()); }
Tensor full_like(const Tensor& x, Scalar value) { return full(x.shape(), value, x.device(), x.dtype()); }

Tensor arange(Scalar begin, Scalar end, Scalar step, Device device, DType dtype) {
  for (const Scalar s : {begin, end, step}) check_number("arange", s, dtype);
  const double n = std::ceil((end.real() - begin.real()) / step.real());
  if (step.real() == 0 || !std::isfinite(n) || n < 0) {
    fail<ShapeError>("arange: from ", begin, " to ", end, " in steps of ", step, " never arrives");
  }
  if (n > static_cast<double>(kMaxDim))
    fail<ShapeError>("arange: ", n, " values are asked for, at most 2^40 are supported");
  Tensor out = empty({static_cast<std::int64_t>(n)}, device, dtype);
  fill_range(kArange, out, begin, step);
  return out;
}
Tensor arange(Scalar end, Device device, DType dtype) { return arange(0, end, 1, device, dtype); }

Tensor linspace(Scalar begin, Scalar end, std::int64_t n, Device device, DType dtype) {
  if (n < 0) fail<ShapeError>("linspace: ", n, " values are asked for, expected 0 or more");
  Tensor out = empty({n}, device, dtype);
  const double step = n > 1 ? (end.real() - begin.real()) / static_cast<double>(n - 1) : 0;
  dispatch(kLinspace, out, kFloats, [&]<class T>(const Cpu&, T) {
    T* y = ptr<T>(out);
    // From both ends to the middle, so that the ends are exact and the row is symmetric.
    for (std::int64_t i = 0; i < n; ++i) {
      y[i] = i < n / 2 || n == 1 ? T(begin.real() + static_cast<double>(i) * step)
                                 : T(end.real() - static_cast<double>(n - 1 - i) * step);
    }
  });
  return out;
}

Tensor eye(std::int64_t rows, std::int64_t cols, Device device, DType dtype) {
  Tensor out = zeros({rows, cols}, device, dtype);
  dispatch(kEye, out, kAll, [&]<class T>(const Cpu&, T) {
    T* y = ptr<T>(out);
    for (std::int64_t i = 0; i < std::min(rows, cols); ++i) y[i * cols + i] = T(1);
  });
  return out;
}
Tensor eye(std::int64_t n, Device device, DType dtype) { return eye(n, n, device, dtype); }

}  // namespace levin
