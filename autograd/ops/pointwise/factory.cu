// Tensors without an input: constants, ranges, the identity.
#include <cmath>
#include <cstring>
#include <limits>

#include "autograd/ops/pointwise/pointwise.h"
#include "kernels/device/draw.cuh"
#include "kernels/pointwise/generate.cuh"

namespace levin {
namespace {

constexpr OpInfo kArange{.name = "arange"}, kLinspace{.name = "linspace"};

using kernels::cpu::generate;  // for both executors
using kernels::gpu::generate;
using Rounded = kernels::Rn<double>;  // the same bits on every device: Note [One rounding]

void check_number(const char* op, Scalar s, DType dtype) {
  if (!s.is_integer() && !is_float(dtype)) fail<DTypeError>(op, ": the number ", s, " does not fit ", dtype);
}

// Whether an integer dtype holds v.
bool fits(std::int64_t v, DType dtype) { return pointwise::range_of(v, dtype) == pointwise::Range::inside; }

// The number of values in [begin, end) in steps of `step`, in unsigned integers: no difference overflows them.
std::uint64_t count_of(std::int64_t begin, std::int64_t end, std::int64_t step) {
  const auto a = static_cast<std::uint64_t>(begin), b = static_cast<std::uint64_t>(end),
             s = static_cast<std::uint64_t>(step);
  const std::uint64_t distance = step > 0 ? b - a : a - b, stride = step > 0 ? s : 0 - s;
  return distance / stride + (distance % stride != 0);
}

// begin + i * step: in integers when both are, else in double.
template <class T>
struct Range {
  bool exact;
  std::uint64_t first, by;
  double begin, step;
  LEVIN_HD T operator()(std::int64_t i) const {
    const auto whole = static_cast<std::int64_t>(first + static_cast<std::uint64_t>(i) * by);
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(whole);
    else
      return T(exact ? static_cast<double>(whole)
                     : (Rounded{begin} + Rounded{static_cast<double>(i)} * Rounded{step}).v);
  }
};

// From both ends to the middle, so that the ends are exact and the row is symmetric.
template <class T>
struct Steps {
  double begin, end, step;
  std::int64_t n;
  LEVIN_HD T operator()(std::int64_t i) const {
    const bool low = i < n / 2 || n == 1;
    const Rounded distance = Rounded{static_cast<double>(low ? i : n - 1 - i)} * Rounded{step};
    return T((low ? Rounded{begin} + distance : Rounded{end} - distance).v);
  }
};

Tensor full_in(MemoryFormat format, const Shape& shape, Scalar value, Device device, DType dtype) {
  pointwise::check_scalar("full", dtype, value);
  Tensor out = empty(shape, device, dtype, format);
  if (device.is_cpu() && value.real() == 0 && !std::signbit(value.real())) {
    std::memset(pointwise::address(out), 0, static_cast<std::size_t>(out.numel()) * itemsize(dtype));
    return out;
  }
  const detail::GradOff off;
  fill_(out, value);
  return out;
}
Tensor filled_like(const Tensor& x, Scalar value) {
  return full_in(x.suggest_memory_format(), x.shape(), value, x.device(), x.dtype());
}

}  // namespace

Tensor full(const Shape& shape, Scalar value, Device device, DType dtype) {
  return full_in(MemoryFormat::contiguous, shape, value, device, dtype);
}
Tensor zeros(const Shape& shape, Device device, DType dtype) { return full(shape, 0, device, dtype); }
Tensor ones(const Shape& shape, Device device, DType dtype) { return full(shape, 1, device, dtype); }
Tensor zeros_like(const Tensor& x) { return filled_like(x, 0); }
Tensor ones_like(const Tensor& x) { return filled_like(x, 1); }
Tensor full_like(const Tensor& x, Scalar value) { return filled_like(x, value); }

Tensor arange(Scalar begin, Scalar end, Scalar step, Device device, DType dtype) {
  for (const Scalar s : {begin, end, step}) check_number("arange", s, dtype);
  const bool exact = begin.is_integer() && end.is_integer() && step.is_integer();
  const bool arrives = exact ? step.integer() > 0 ? begin.integer() <= end.integer()
                                                  : step.integer() < 0 && begin.integer() >= end.integer()
                             : step.real() != 0 && (end.real() - begin.real()) / step.real() >= 0;
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
  if (is_storage(dtype)) return arange(begin, end, step, device, DType::i32).to(dtype);
  Tensor out = empty({count}, device, dtype);
  const bool in_integers = begin.is_integer() && step.is_integer();
  dispatch(kArange, out, kNumbers, [&]<class T>(const auto& on, T) {
    const auto bits = [&](Scalar s) { return static_cast<std::uint64_t>(in_integers ? s.integer() : 0); };
    generate(on, Range<T>{in_integers, bits(begin), bits(step), begin.real(), step.real()}, ptr<T>(out), count);
  });
  return out;
}
Tensor arange(Scalar end, Device device, DType dtype) { return arange(0, end, 1, device, dtype); }

Tensor linspace(Scalar begin, Scalar end, std::int64_t n, Device device, DType dtype) {
  if (n < 0) fail<ShapeError>("linspace: ", n, " values are asked for, expected 0 or more");
  Tensor out = empty({n}, device, dtype);
  const double step = n > 1 ? (end.real() - begin.real()) / static_cast<double>(n - 1) : 0;
  dispatch(kLinspace, out, kFloats, [&]<class T>(const auto& on, T) {
    generate(on, Steps<T>{begin.real(), end.real(), step, n}, ptr<T>(out), n);
  });
  return out;
}

Tensor eye(std::int64_t rows, std::int64_t cols, Device device, DType dtype) {
  Tensor out = zeros({rows, cols}, device, dtype);
  Strides diagonal{};
  diagonal[0] = cols + 1;
  const detail::GradOff off;
  Tensor ones = as_strided(out, {std::min(rows, cols)}, diagonal, 0);
  fill_(ones, 1);
  return out;
}
Tensor eye(std::int64_t n, Device device, DType dtype) { return eye(n, n, device, dtype); }

}  // namespace levin
