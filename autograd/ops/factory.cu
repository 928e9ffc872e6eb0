// Tensors from nothing: constants, ranges, the identity.
#include <cmath>
#include <cstring>
#include <limits>

#include "autograd/ops/pointwise.h"

namespace levin {
namespace {

constexpr OpInfo kArange{.name = "arange"}, kLinspace{.name = "linspace"}, kEye{.name = "eye"};

void check_number(const char* op, Scalar s, DType dtype) {
  if (!s.is_integer() && !is_float(dtype)) fail<DTypeError>(op, ": the number ", s, " does not fit ", dtype);
}

// Whether an integer dtype holds v.
bool fits(std::int64_t v, DType dtype) {
  if (dtype == DType::u8) return v >= 0 && v <= std::numeric_limits<std::uint8_t>::max();
  if (dtype == DType::i32)
    return v >= std::numeric_limits<std::int32_t>::min() && v <= std::numeric_limits<std::int32_t>::max();
  return true;
}

// How many values there are in [begin, end) in steps of `step`; in unsigned integers, which no difference overflows.
std::uint64_t count_of(std::int64_t begin, std::int64_t end, std::int64_t step) {
  const auto a = static_cast<std::uint64_t>(begin), b = static_cast<std::uint64_t>(end),
             s = static_cast<std::uint64_t>(step);
  const std::uint64_t distance = step > 0 ? b - a : a - b, stride = step > 0 ? s : 0 - s;
  return distance / stride + (distance % stride != 0);
}

// out[i] = begin + i * step, one rounding: in integers when both are, else in double.
void fill_range(const OpInfo& info, const Tensor& out, Scalar begin, Scalar step) {
  const bool exact = begin.is_integer() && step.is_integer();
  const auto first = static_cast<std::uint64_t>(exact ? begin.integer() : 0),
             by = static_cast<std::uint64_t>(exact ? step.integer() : 0);
  dispatch(info, out, kNumbers, [&]<class T>(const Cpu&, T) {
    T* y = ptr<T>(out);
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      const auto whole = static_cast<std::int64_t>(first + static_cast<std::uint64_t>(i) * by);
      if constexpr (std::is_integral_v<T>)
        y[i] = static_cast<T>(whole);
      else
        y[i] = T(exact ? static_cast<double>(whole) : begin.real() + static_cast<double>(i) * step.real());
    }
  });
}

}  // namespace

Tensor full(const Shape& shape, Scalar value, Device device, DType dtype) {
  pointwise::check_scalar("full", dtype, value);
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
  const bool exact = begin.is_integer() && end.is_integer() && step.is_integer();
  const bool arrives = exact ? step.integer() > 0 ? begin.integer() <= end.integer()
                                                  : step.integer() < 0 && begin.integer() >= end.integer()
                             : step.real() != 0 && (end.real() - begin.real()) / step.real() > -1;
  if (!arrives) fail<ShapeError>("arange: from ", begin, " to ", end, " in steps of ", step, " never arrives");
  const double n = exact ? static_cast<double>(count_of(begin.integer(), end.integer(), step.integer()))
                         : std::ceil((end.real() - begin.real()) / step.real());
  if (!(n <= static_cast<double>(kMaxDim)))
    fail<ShapeError>("arange: ", n, " values are asked for, at most 2^40 are supported");
  const auto count = static_cast<std::int64_t>(n);
  if (!is_float(dtype) && count > 0) {
    // Between begin and end, so the sum fits where the product may not.
    const auto last =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(begin.integer()) +
                                  static_cast<std::uint64_t>(count - 1) * static_cast<std::uint64_t>(step.integer()));
    if (!fits(begin.integer(), dtype) || !fits(last, dtype))
      fail<DTypeError>("arange: values from ", begin, " to ", last, " do not fit ", dtype, "; use a wider dtype");
  }
  Tensor out = empty({count}, device, dtype);
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
