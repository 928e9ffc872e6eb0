// What pointwise ops share: broadcasting, the launcher, and op structs made from a functor.
#pragma once

#include <memory>
#include <tuple>
#include <type_traits>

#include "autograd/op_table.h"
#include "kernels/executor/dispatch.h"
#include "kernels/executor/streaming.cuh"
#include "kernels/pointwise/pointwise.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin::pointwise {

// Elements per piece of a parallel loop: about 10 us of arithmetic, or fewer elements of a transcendental function.
inline constexpr std::int64_t kGrain = 32768;
template <class F>
[[nodiscard]] constexpr std::int64_t grain_of() {
  if constexpr (requires { F::kGrain; })
    return F::kGrain;
  else
    return kGrain;
}

template <class T>
struct Immediate {  // a C++ number in the place of a tensor
  T value;
};
template <class T>
inline constexpr bool kIsImmediate = false;
template <class T>
inline constexpr bool kIsImmediate<Immediate<T>> = true;

// f(a, b) with wrap-around for integers, as in NumPy: signed overflow would be undefined.
template <class T, class F>
LEVIN_HD T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}
template <class T>
LEVIN_HD T wrapping_sum(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return static_cast<decltype(x)>(x + y); });
}
template <class T>
LEVIN_HD T wrapping_product(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return static_cast<decltype(x)>(x * y); });
}

template <class O, class... I>
struct Signature {};

[[nodiscard]] inline bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }
[[nodiscard]] inline bool row_like(const Tensor& t, const Shape& shape) {
  return t.is_contiguous() && !is_half(t.dtype()) && t.shape() == shape;
}
template <class T>
[[nodiscard]] bool row_like(const Immediate<T>&, const Shape&) {
  return true;
}
[[nodiscard]] inline char* address(const Tensor& t) { return reinterpret_cast<char*>(detail::address_in_stream(t)); }
template <class T>
[[nodiscard]] char* address(const Immediate<T>& s) {
  return reinterpret_cast<char*>(const_cast<T*>(&s.value));
}
[[nodiscard]] inline std::int64_t row_step(const Tensor& t) { return static_cast<std::int64_t>(itemsize(t.dtype())); }
template <class T>
[[nodiscard]] std::int64_t row_step(const Immediate<T>&) {
  return 0;
}
inline void add_to(kernels::PointwisePlan& plan, const Shape& shape, const Tensor& t) {
  plan.add(address(t), shape, t.shape(), t.strides(), t.dtype());
}
template <class T>
void add_to(kernels::PointwisePlan& plan, const Shape& shape, const Immediate<T>& s) {
  plan.add(address(s), shape, Shape{}, Strides{}, dtype_of<T>);
}

template <class T>
using Wide = kernels::Wide<T>;

// On the CPU, with the types that loops see: one instance serves f32, f16 and bf16.
template <class F, class O, class... I, class... Arg>
[[gnu::noinline]] void run_loop(const Cpu& on, const F& f, Signature<O, I...>, const Tensor& out, const Arg&... args) {
  static_assert(sizeof...(I) == sizeof...(Arg));
  const kernels::PointwiseLoop loop = kernels::cpu::pointwise_loop<F, O, I...>(on);
  const Shape& shape = out.shape();
  // Costly loops have no form for a number: the number is expanded like any broadcast operand.
  constexpr bool spreads = kernels::kCostly<F> && (kIsImmediate<Arg> || ...);
  if (!spreads && row_like(out, shape) && (row_like(args, shape) && ...)) {
    char* p[] = {address(out), address(args)...};
    const std::int64_t step[] = {row_step(out), row_step(args)...};
    const std::int64_t n = shape.numel();
    if (n <= grain_of<F>()) {
      if (n > 0) loop(&f, p, step, n);
      return;
    }
    std::int64_t bytes = 0;
    for (const std::int64_t s : step) bytes += n * s;
    if (!kernels::beyond_cache(bytes)) {
      on.parallel_for(n, grain_of<F>(), [&](std::int64_t begin, std::int64_t end) {
        char* q[sizeof...(Arg) + 1];
        for (std::size_t k = 0; k <= sizeof...(Arg); ++k) q[k] = p[k] + begin * step[k];
        loop(&f, q, step, end - begin);
      });
      return;
    }
  }
  kernels::PointwisePlan plan;
  add_to(plan, shape, out);
  (add_to(plan, shape, args), ...);
  plan.spread = kernels::kCostly<F>;
  plan.collapse();
  kernels::run_pointwise(on, loop, &f, plan, grain_of<F>());
}

// out = f(args...). O and I are the element types in memory; the functor sees float for 16-bit ones.
template <class F, class O, class... I, class... Arg>
void run(const Cpu& on, const F& f, Signature<O, I...>, const Tensor& out, const Arg&... args) {
  run_loop(on, f, Signature<Wide<O>, Wide<I>...>{}, out, args...);
}

template <class T>
[[nodiscard]] kernels::gpu::Operand<T> operand_of(const Tensor& t) {
  return {ptr<T>(t)};
}
template <class T, class N>
[[nodiscard]] kernels::gpu::Number<T> operand_of(const Immediate<N>& s) {
  return {static_cast<Wide<T>>(s.value)};
}
// A number occupies no memory, so its place in the plan is empty.
template <class T>
void add_operand(kernels::PointwisePlan& plan, const Shape& shape, const Immediate<T>&) {
  plan.add(nullptr, shape, Shape{}, Strides{}, DType::u8);
}
inline void add_operand(kernels::PointwisePlan& plan, const Shape& shape, const Tensor& t) { add_to(plan, shape, t); }
template <class F, class O, class... I, class... Arg>
void run(const Gpu& on, const F& f, Signature<O, I...>, const Tensor& out, const Arg&... args) {
  static_assert(sizeof...(I) == sizeof...(Arg));
  kernels::PointwisePlan plan;
  add_to(plan, out.shape(), out);
  (add_operand(plan, out.shape(), args), ...);
  plan.collapse();
  F there = f;  // see Note [Errors that kernels find]
  if constexpr (requires { there.faults; }) there.faults = on.faults();
  kernels::gpu::launch_pointwise(on, there, plan, ptr<O>(out), operand_of<I>(args)...);
}

template <class F, class... D>
[[nodiscard]] Tensor map(const OpInfo& info, const F& f, Types<D...> types, const Tensor& a) {
  Tensor out = empty_like(a);
  dispatch(info, a, types, [&]<class T>(const auto& on, T) { run(on, f, Signature<T, T>{}, out, a); });
  return out;
}

// Checks the two tensors of one op, and returns the shape that they broadcast to.
[[nodiscard]] inline Shape common_shape(const char* op, const Tensor& a, const Tensor& b) {
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
  return a.shape() == b.shape() ? a.shape() : broadcast_shapes(op, a.shape(), b.shape());
}

// The result of a pointwise op: in the memory format of the first operand that has its shape and lies in one.
template <class... Operand>
[[nodiscard]] Tensor empty_result(const Shape& shape, Device device, DType dtype, const Operand&... operands) {
  if ((operands.is_contiguous() && ...)) [[likely]]
    return empty(shape, device, dtype);
  MemoryFormat format = MemoryFormat::contiguous;
  const auto decides = [&](const Tensor& t) {
    format = t.suggest_memory_format();
    return t.shape() == shape && t.is_contiguous(format);
  };
  return (decides(operands) || ...) ? empty(shape, device, dtype, format) : empty(shape, device, dtype);
}

template <class F, class... D>
[[nodiscard]] Tensor map(const OpInfo& info, const F& f, Types<D...> types, const Tensor& a, const Tensor& b) {
  Tensor out = empty_result(common_shape(info.name, a, b), a.device(), a.dtype(), a, b);
  dispatch(info, a, types, [&]<class T>(const auto& on, T) { run(on, f, Signature<T, T, T>{}, out, a, b); });
  return out;
}

// The place of a number relative to the range of an integer dtype.
enum class Range : std::uint8_t { below, inside, above };
[[nodiscard]] inline Range range_of(Scalar s, DType t) {
  const auto place = [&]<class T>(T) {
    return s.below<T>() ? Range::below : s.above<T>() ? Range::above : Range::inside;
  };
  switch (t) {
    case DType::i32: return place(std::int32_t{});
    case DType::i64: return place(std::int64_t{});
    case DType::u8: return place(std::uint8_t{});
    case DType::b8: return place(bool{});
    case DType::i8: return place(std::int8_t{});
    case DType::i16: return place(std::int16_t{});
    default: return Range::inside;
  }
}
// A number takes the tensor's dtype; a fraction is refused beside an integer tensor. Comparisons need no further check:
// they also know the answer for integers outside of the range.
inline void check_kind(const char* op, DType t, Scalar s) {
  if (!s.is_integer() && !is_float(t)) [[unlikely]] {
    fail<DTypeError>(op, ": the number ", s, " meets a tensor of ", t, "; convert the tensor, or write an integer");
  }
}
[[noreturn]] inline void fail_range(const char* op, DType t, Scalar s) {
  const auto bound = [&](auto of) {
    return t == DType::u8    ? text(of(std::uint8_t{}))
           : t == DType::i8  ? text(of(std::int8_t{}))
           : t == DType::i16 ? text(of(std::int16_t{}))
           : t == DType::i32 ? text(of(std::int32_t{}))
                             : text(of(std::int64_t{}));
  };
  fail<DTypeError>(op, ": the number ", s, " does not fit ", t, ", expected ",
                   bound([]<class T>(T) { return std::numeric_limits<T>::min(); }), " to ",
                   bound([]<class T>(T) { return std::numeric_limits<T>::max(); }), "; convert the tensor first");
}
// The result holds the number, or is computed from it, so the number must fit. For bool every integer but 0 is true.
inline void check_scalar(const char* op, DType t, Scalar s) {
  check_kind(op, t, s);
  if (t != DType::b8 && range_of(s, t) != Range::inside) [[unlikely]] { fail_range(op, t, s); }
}
inline void check_scalar(const char* op, const Tensor& x, Scalar s) { check_scalar(op, x.dtype(), s); }

// A number as a tensor of rank 0 beside x.
[[nodiscard]] inline Tensor number_beside(const char* op, Scalar s, const Tensor& x) {
  check_scalar(op, x, s);
  return levin::full({}, s, x.device(), x.dtype());
}

enum class Side : std::uint8_t { left, right };  // where the number stands

template <Side side, class F, class... D>
[[nodiscard]] Tensor map(const OpInfo& info, const F& f, Types<D...> types, const Tensor& a, Scalar s) {
  check_scalar(info.name, a, s);
  Tensor out = empty_like(a);
  dispatch(info, a, types, [&]<class T>(const auto& on, T) {
    const Immediate<Wide<T>> number{s.to<Wide<T>>()};
    if constexpr (side == Side::right)
      run(on, f, Signature<T, T, T>{}, out, a, number);
    else
      run(on, f, Signature<T, T, T>{}, out, number, a);
  });
  return out;
}

// The shapes of two operands, kept only where they differ: the gradient of a broadcast is a sum.
class Broadcast {
 public:
  Broadcast() = default;
  Broadcast(const Tensor& a, const Tensor& b) {
    if (a.shape() != b.shape()) shapes_ = std::make_unique<std::array<Shape, 2>>(std::array{a.shape(), b.shape()});
  }
  [[nodiscard]] Tensor reduce(const Tensor& g, std::size_t operand) const {
    return shapes_ && g.shape() != (*shapes_)[operand] ? sum_to(g, (*shapes_)[operand]) : g;
  }

 private:
  std::unique_ptr<std::array<Shape, 2>> shapes_;
};

enum class Saves : std::uint8_t { nothing, input, output };

// y = f(x). F declares info, kTypes (the dtypes with a kernel), kSaves, the functor, and in public ops
// `Tensor backward(gy, saved) const`, where saved is x or y as kSaves says; `backward(gy)` when it saves nothing.
template <class F>
struct Unary {
  static constexpr OpInfo info = F::info;
  F f;
  std::conditional_t<F::kSaves == Saves::output, SavedOutput, SavedInput> saved{};

  Tensor forward(const Tensor& x) {
    Tensor y = map(info, f, F::kTypes, x);
    if constexpr (F::kSaves == Saves::input) saved = x;
    if constexpr (F::kSaves == Saves::output) saved = y;
    return y;
  }
  auto saved_outputs() requires(F::kSaves == Saves::output) { return std::tie(saved); }
  Grads<1> backward(const Tensor& gy, NeedMask) {
    if constexpr (F::kSaves == Saves::nothing)
      return {f.backward(gy)};
    else
      return {f.backward(gy, saved.get())};
  }
};
template <class F>
[[nodiscard]] Tensor unary(const Tensor& x, F f = {}) {
  return apply(Unary<F>{f}, x);
}

// gx = gy * f'(s) in one pass, where s is what F saves. F also has `T slope(T s) const`, backward_info, and `Tensor
// slope(const Tensor& s) const`, the same in public ops, which gives the second and higher derivatives. F may have
// slope_for_half<H>(s), as for_half<H> (kernels/pointwise/pointwise.cuh).
template <class F>
struct Slope {
  static constexpr std::int64_t kGrain = 16384;
  F f;
  template <class T>
  LEVIN_HD T operator()(T g, T s) const {
    return g * f.slope(s);
  }
  template <class H>
  LEVIN_HD float for_half(float g, float s) const requires requires {
    f.template slope_for_half<H>(s);
  }
  { return g * f.template slope_for_half<H>(s); }
};
template <class F>
struct UnaryBackward {
  static constexpr OpInfo info = F::backward_info;
  F f;
  SavedInput gy{}, saved{};
  Tensor forward(const Tensor& g, const Tensor& s) {
    gy = g;
    saved = s;
    return map(info, Slope<F>{f}, F::kTypes, g, s);
  }
  Grads<2> backward(const Tensor& gg, NeedMask need) {
    Grads<2> grads;
    if (need[0]) grads[0] = apply(UnaryBackward{f}, gg, saved.get());
    if (need[1]) {
      grads[1] =
          vjp<1>([&](auto& in) { return f.slope(in[0]); }, {saved.get()}, std::array{gg * gy.get()}, NeedMask(1))[0];
    }
    return grads;
  }
};

// y = f(a, b), broadcast. F declares info, kTypes, kSaves (input, which is both, or nothing), the functor, and in
// public ops the gradient of each operand in y's shape: backward_a and backward_b of (gy, a, b), or of (gy) when it
// saves nothing.
template <class F>
struct Binary {
  static constexpr OpInfo info = F::info;
  F f;
  Broadcast shapes{};
  SavedInput a{}, b{};

  Tensor forward(const Tensor& x, const Tensor& y) {
    Tensor out = map(info, f, F::kTypes, x, y);
    shapes = Broadcast(x, y);
    if constexpr (F::kSaves == Saves::input) {
      a = x;
      b = y;
    }
    return out;
  }
  Grads<2> backward(const Tensor& gy, NeedMask need) {
    Grads<2> grads;
    if constexpr (F::kSaves == Saves::input) {
      if (need[0]) grads[0] = shapes.reduce(f.backward_a(gy, a.get(), b.get()), 0);
      if (need[1]) grads[1] = shapes.reduce(f.backward_b(gy, a.get(), b.get()), 1);
    } else {
      if (need[0]) grads[0] = shapes.reduce(f.backward_a(gy), 0);
      if (need[1]) grads[1] = shapes.reduce(f.backward_b(gy), 1);
    }
    return grads;
  }
};

// y = f(x, number), or f(number, x) with Side::left. F declares what Binary requires, kSavesWithNumber (whether x is
// saved), and backward_right and backward_left of (gy, saved x, number): the gradient of x where the number stands on
// that side.
template <class F, Side side>
struct WithNumber {
  static constexpr OpInfo info = F::info;
  F f;
  Scalar number;
  SavedInput x{};

  Tensor forward(const Tensor& in) {
    if constexpr (F::kSavesWithNumber) x = in;
    return map<side>(info, f, F::kTypes, in, number);
  }
  Grads<1> backward(const Tensor& gy, NeedMask) {
    if constexpr (side == Side::right)
      return {f.backward_right(gy, x, number)};
    else
      return {f.backward_left(gy, x, number)};
  }
};

}  // namespace levin::pointwise
