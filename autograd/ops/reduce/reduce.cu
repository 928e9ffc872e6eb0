// Reductions over a set of dimensions. Forward is one pass over the strided input (two for var and logsumexp), rounded
// once; backward is written in public ops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "kernels/executor/dispatch.h"
#include "kernels/reduce/prod_backward.h"
#include "kernels/reduce/reduce.cuh"
#include "kernels/reduce/reduce_device.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::Finish;
using kernels::Map;
using kernels::Reduce;
using kernels::ReduceAccum;
using kernels::ReducePlan;

// The dimensions to reduce, and the shape of the result.
struct Over {
  std::uint32_t mask = 0;
  Shape out;
  Shape in{};

  Over(const char* op, const Tensor& x, const Dims& dims, KeepDim keep)
      : mask(wrap_dims(op, dims.span(), x.rank())), out(reduced_shape(x.shape(), mask, keep)), in(x.shape()) {}
  Over(std::uint32_t m, const Shape& o, const Shape& i) : mask(m), out(o), in(i) {}

  [[nodiscard]] Dims dims() const { return dims_of(mask); }
  [[nodiscard]] std::int64_t count() const { return elements(in, mask); }
  [[nodiscard]] ReducePlan plan(const Tensor& x) const { return {x.shape(), x.strides(), mask}; }
  // A view of a tensor of the result's shape with size 1 where dimensions were reduced, so it broadcasts against the
  // input.
  [[nodiscard]] Tensor keep(const Tensor& y) const {
    const Shape shape = reduced_shape(in, mask, KeepDim::yes);
    return y.shape() == shape ? y : reshape(y, Dims(shape.dims()));
  }
  [[nodiscard]] Tensor spread(const Tensor& gy) const { return expand(keep(gy), in); }
};

// n values of scratch; few of them lie on the stack on the CPU.
template <class A>
class Partial {
 public:
  Partial(const Cpu&, Device, std::int64_t n) {
    if (n > kInline) heap_.resize(static_cast<std::size_t>(n));
  }
  Partial(const Gpu&, Device device, std::int64_t n) : there_(empty(Shape{n}, device, dtype_of<A>)) {}
  [[nodiscard]] A* data() {
    if (there_.defined()) return ptr<A>(there_);
    return heap_.empty() ? inline_ : heap_.data();
  }

 private:
  static constexpr std::int64_t kInline = 64;
  A inline_[kInline];
  std::vector<A> heap_;
  Tensor there_;
};

template <class T, Map kMap>
using ReduceType = std::conditional_t<kMap == Map::nonzero, std::int64_t, ReduceAccum<T>>;

// to[o] = the reduction of output o, finished and rounded once to O.
template <Reduce kOp, Map kMap, class T, class O, class A = ReduceType<T, kMap>>
void reduce_into(const Cpu& on, const Tensor& x, const ReducePlan& plan, O* to, Finish finish = {},
                 const A* shift = nullptr, double p = 0) {
  const auto finish_all = [&](const A* from) {
    for (std::int64_t o = 0; o < plan.outputs; ++o) to[o] = O(finished(finish, from[o], shift ? shift[o] : A(0)));
  };
  if constexpr (std::is_same_v<A, O>) {
    kernels::cpu::reduce<T, A>(on, ptr<const T>(x), plan, kOp, kMap, to, shift, p);
    if (finish.kind != Finish::as_is) finish_all(to);
  } else {
    Partial<A> partial(on, x.device(), plan.outputs);
    kernels::cpu::reduce<T, A>(on, ptr<const T>(x), plan, kOp, kMap, partial.data(), shift, p);
    finish_all(partial.data());
  }
}
template <Reduce kOp, Map kMap, class T, class O, class A = ReduceType<T, kMap>>
void reduce_into(const Gpu& on, const Tensor& x, const ReducePlan& plan, O* to, Finish finish = {},
                 const A* shift = nullptr, double p = 0) {
  std::optional<Partial<A>> parts;
  kernels::gpu::reduce<kOp, kMap, T, A>(on, ptr<const T>(x), plan, finish, to, shift, p,
                                        [&](std::int64_t n) { return parts.emplace(on, x.device(), n).data(); });
}

DType sum_dtype(const Tensor& x) { return is_float(x.dtype()) ? x.dtype() : DType::i64; }
template <class T>
using SumType = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;

// ---- Sum and mean. Sums of 16-bit numbers are f32, and are stored as f32 or rounded.

template <bool kMean>
struct Sum {
  static constexpr OpInfo info{.name = kMean ? "mean" : "sum", .autocast = AutocastPolicy::full_result};
  Over over;
  DType result;
  DType from = DType::f32;  // x's

  Tensor forward(const Tensor& x) {
    from = x.dtype();
    const Finish finish = kMean ? Finish{Finish::divide, static_cast<double>(over.count())} : Finish{};
    Tensor y = empty(over.out, x.device(), is_float(from) ? result : DType::i64);
    const auto call = [&]<class T>(const auto& on, T) {
      if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
        if (result != from) return reduce_into<Reduce::sum, Map::value, T>(on, x, over.plan(x), ptr<float>(y), finish);
      reduce_into<Reduce::sum, Map::value, T>(on, x, over.plan(x), ptr<SumType<T>>(y), finish);
    };
    if constexpr (kMean)
      dispatch(info, x, kFloats, call);
    else
      dispatch(info, x, kAll, call);
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    return {over.spread(cast(kMean ? gy / static_cast<double>(over.count()) : gy, from))};
  }
};
LEVIN_OP_TABLE(Sum<false>)
LEVIN_OP_TABLE(Sum<true>)

// ---- Product

// The dimensions of x, those that are reduced at the end.
struct ReducedLast {
  std::array<std::int64_t, kMaxRank> order{}, inverse{};
  Shape shape{}, rows;  // of the permuted x, and as [kept, reduced]

  explicit ReducedLast(const Over& over) : rows{reduced_shape(over.in, over.mask, KeepDim::no).numel(), over.count()} {
    std::size_t rank = 0;
    for (const bool reduced : {false, true}) {
      for (int d = 0; d < over.in.rank(); ++d) {
        if (bool(over.mask >> d & 1u) != reduced) continue;
        inverse[static_cast<std::size_t>(d)] = static_cast<std::int64_t>(rank);
        order[rank++] = d;
        shape = shape.inserted(shape.rank(), over.in[d]);
      }
    }
  }
  [[nodiscard]] Tensor rows_of(const Tensor& x) const { return reshape(permute(x, dims_in(order)), Dims(rows.dims())); }
  // From rows back to x's dimensions.
  [[nodiscard]] Tensor back(const Tensor& y) const { return permute(reshape(y, Dims(shape.dims())), dims_in(inverse)); }

 private:
  [[nodiscard]] Dims dims_in(const std::array<std::int64_t, kMaxRank>& list) const {
    return Dims(std::span<const std::int64_t>(list.data(), static_cast<std::size_t>(shape.rank())));
  }
};

// The product as a tree of multiplications: unlike gy * y / x, derivatives of any order are right where elements are
// zero.
Tensor product_tree(const Tensor& x, const Over& over) {
  if (over.count() == 0) return ones(over.out, x.device(), x.dtype());
  Tensor t = ReducedLast(over).rows_of(x);
  while (t.size(1) > 1) {
    const std::int64_t n = t.size(1), half = n / 2;
    const Tensor pairs = narrow(t, 1, 0, half) * narrow(t, 1, half, half);
    t = n % 2 == 0 ? pairs : cat({pairs, narrow(t, 1, n - 1, 1)}, 1);
  }
  return reshape(t, Dims(over.out.dims()));
}
Tensor slope_of_tree(const Tensor& gy, const Tensor& x, const Over& over) {
  if (x.numel() == 0) return zeros(x.shape(), x.device(), x.dtype());
  return vjp<1>([&](auto& in) { return product_tree(in[0], over); }, {x}, std::array{gy}, NeedMask(1))[0];
}

struct ProdBackward {
  static constexpr OpInfo info{.name = "prod_backward"};
  Over over;
  SavedInput gy{}, x{};

  Tensor forward(const Tensor& gy_, const Tensor& x_) {
    gy = gy_, x = x_;
    const ReducedLast last(over);
    const Tensor rows = last.rows_of(x_).contiguous(), g = gy_.contiguous();
    Tensor gx = empty_like(rows);
    dispatch_dtype(info, x_, kFloats, [&]<class T>(T) {
      if (gx.numel() > 0)
        kernels::cpu::prod_backward(Cpu{}, ptr<const T>(g), ptr<const T>(rows), ptr<T>(gx), rows.size(0), rows.size(1));
    });
    return last.back(gx);
  }
  Grads<2> backward(const Tensor& gg, NeedMask need) {
    return vjp<2>([&](auto& in) { return slope_of_tree(in[0], in[1], over); }, {gy.get(), x.get()}, std::array{gg},
                  need);
  }
};
LEVIN_OP_TABLE(ProdBackward)

struct Prod {
  static constexpr OpInfo info{.name = "prod", .autocast = AutocastPolicy::full};
  Over over;
  SavedInput x{};

  Tensor forward(const Tensor& x_) {
    Tensor y = empty(over.out, x_.device(), sum_dtype(x_));
    dispatch(info, x_, kAll, [&]<class T>(const auto& on, T) {
      reduce_into<Reduce::prod, Map::value, T>(on, x_, over.plan(x_), ptr<SumType<T>>(y));
    });
    x = x_;
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor& from = x.get();
    return {from.device().is_cpu() ? apply(ProdBackward{over}, gy, from) : slope_of_tree(gy, from, over)};
  }
};
LEVIN_OP_TABLE(Prod)

// ---- Extremes

template <bool kMax>
struct Extreme {
  static constexpr OpInfo info{.name = kMax ? "amax" : "amin"};
  Over over;
  SavedInput x{};
  Stash y{};

  Tensor forward(const Tensor& x_) {
    Tensor out = empty(over.out, x_.device(), x_.dtype());
    dispatch(info, x_, kAll, [&]<class T>(const auto& on, T) {
      reduce_into<kMax ? Reduce::max : Reduce::min, Map::value, T>(on, x_, over.plan(x_), ptr<T>(out));
    });
    x = x_;
    y = out.detach();
    return out;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor tied = cast(eq(x.get().detach(), over.keep(y)), gy.dtype());
    return {over.keep(gy) * (tied / sum(tied, over.dims(), KeepDim::yes))};
  }
};
LEVIN_OP_TABLE(Extreme<true>)
LEVIN_OP_TABLE(Extreme<false>)

void check_not_empty(const char* op, const Over& over) {
  if (over.count() == 0) {
    fail<ShapeError>(op, ": x ", over.in, " has no elements along the reduced dimensions, expected at least one");
  }
}

// ---- Variance

template <bool kRoot>
struct Var {
  static constexpr OpInfo info{.name = kRoot ? "std" : "var", .autocast = AutocastPolicy::full};
  Over over;
  double correction;
  SavedInput x{};
  SavedOutput y{};

  [[nodiscard]] double divisor() const { return std::max(0.0, static_cast<double>(over.count()) - correction); }

  Tensor forward(const Tensor& x_) {
    Tensor out = empty(over.out, x_.device(), x_.dtype());
    dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
      using A = ReduceAccum<T>;
      const ReducePlan plan = over.plan(x_);
      Partial<A> mean(on, x_.device(), plan.outputs);
      const Finish finish{kRoot ? Finish::divide_root : Finish::divide, divisor()};
      reduce_into<Reduce::sum, Map::value, T>(on, x_, plan, mean.data(),
                                              Finish{Finish::divide, static_cast<double>(plan.n)});
      reduce_into<Reduce::sum, Map::deviation, T>(on, x_, plan, ptr<T>(out), finish, mean.data());
    });
    x = x_;
    if constexpr (kRoot) y = out;
    return out;
  }
  auto saved_outputs() requires kRoot { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    // 16-bit numbers are computed in f32: the factor of the deviation may be far outside of their range.
    const DType dtype = x.get().dtype(), wide = dtype == DType::f64 ? dtype : DType::f32;
    const Tensor v = cast(x.get(), wide), g = cast(gy, wide), centred = v - mean(v, over.dims(), KeepDim::yes);
    if constexpr (kRoot) {
      // Where y is 0 every deviation is 0: the gradient is 0, not 0 / 0.
      const Tensor s = cast(y.get(), wide);
      return {cast(over.keep(g / masked_fill(s, eq(s, 0), 1) / divisor()) * centred, dtype)};
    } else {
      return {cast(over.keep(g * (2 / divisor())) * centred, dtype)};
    }
  }
};
LEVIN_OP_TABLE(Var<false>)
LEVIN_OP_TABLE(Var<true>)

// ---- Norm

struct Norm {
  static constexpr OpInfo info{.name = "norm", .autocast = AutocastPolicy::full};
  Over over;
  double p;
  SavedInput x{};
  SavedOutput y{};

  Tensor forward(const Tensor& x_) {
    Tensor out = empty(over.out, x_.device(), x_.dtype());
    dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
      const ReducePlan plan = over.plan(x_);
      T* to = ptr<T>(out);
      const ReduceAccum<T>* no_shift = nullptr;
      if (plan.n == 0 || p == 1) {
        reduce_into<Reduce::sum, Map::abs, T>(on, x_, plan, to);
      } else if (p == 2) {
        reduce_into<Reduce::sum, Map::square, T>(on, x_, plan, to, Finish{Finish::root});
      } else if (std::isinf(p)) {
        reduce_into<Reduce::max, Map::abs, T>(on, x_, plan, to);
      } else {
        reduce_into<Reduce::sum, Map::power, T>(on, x_, plan, to, Finish{Finish::power, 1 / p}, no_shift, p);
      }
    });
    x = x_;
    y = out;
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor& v = x.get();
    if (p == 1) return {over.keep(gy) * sign(v)};
    const Tensor n = y.get();
    if (std::isinf(p)) {
      const Tensor tied = cast(eq(abs(v.detach()), over.keep(n.detach())), gy.dtype());
      return {over.keep(gy) * (sign(v) * tied / sum(tied, over.dims(), KeepDim::yes))};
    }
    // Where the norm is 0 every element is 0: division by 1 there gives the gradient 0.
    const Tensor safe = masked_fill(n, eq(n, 0), 1);
    if (p == 2) return {over.keep(gy / safe) * v};
    Tensor slope = pow(abs(v), p - 1);
    if (p < 1) slope = masked_fill(slope, eq(v, 0), 0);
    return {over.keep(gy * pow(safe, 1 - p)) * (sign(v) * slope)};
  }
};
LEVIN_OP_TABLE(Norm)

// ---- Log-sum-exp

struct LogSumExp {
  static constexpr OpInfo info{.name = "logsumexp", .autocast = AutocastPolicy::full};
  Over over;
  SavedInput x{};
  SavedOutput y{};

  Tensor forward(const Tensor& x_) {
    Tensor out = empty(over.out, x_.device(), x_.dtype());
    dispatch(info, x_, kFloats, [&]<class T>(const auto& on, T) {
      using A = ReduceAccum<T>;
      const ReducePlan plan = over.plan(x_);
      Partial<A> top(on, x_.device(), plan.outputs);
      // An infinite maximum must not be subtracted from itself.
      reduce_into<Reduce::max, Map::value, T>(on, x_, plan, top.data(), Finish{Finish::finite});
      reduce_into<Reduce::sum, Map::exp, T>(on, x_, plan, ptr<T>(out), Finish{Finish::log}, top.data());
    });
    x = x_;
    y = out;
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor s = y.get();
    const Tensor safe = masked_fill(s, eq(s, -std::numeric_limits<double>::infinity()), 0);
    return {over.keep(gy) * exp(x.get() - over.keep(safe))};
  }
};
LEVIN_OP_TABLE(LogSumExp)

// ---- Any and all

template <bool kAny>
struct Truth {
  static constexpr OpInfo info{.name = kAny ? "any" : "all"};
  Over over;

  Tensor forward(const Tensor& x) {
    if (is_storage(x.dtype())) return forward(x.to(DType::b8));
    Tensor y = empty(over.out, x.device(), DType::b8);
    dispatch(info, x, kAll, [&]<class T>(const auto& on, T) {
      // Over no elements any is false and all is true: the identities of max and min.
      reduce_into<kAny ? Reduce::max : Reduce::min, Map::nonzero, T>(on, x, over.plan(x), ptr<bool>(y),
                                                                     Finish{Finish::positive});
    });
    return y;
  }
};
LEVIN_OP_TABLE(Truth<true>)
LEVIN_OP_TABLE(Truth<false>)

}  // namespace

Tensor sum(const Tensor& x, Dims dims, KeepDim keep) {
  return apply(Sum<false>{Over("sum", x, dims, keep), full_result(x.dtype())}, x);
}
Tensor mean(const Tensor& x, Dims dims, KeepDim keep) {
  return apply(Sum<true>{Over("mean", x, dims, keep), full_result(x.dtype())}, x);
}
Tensor prod(const Tensor& x, Dims dims, KeepDim keep) { return apply(Prod{Over("prod", x, dims, keep)}, x); }
Tensor amax(const Tensor& x, Dims dims, KeepDim keep) {
  const Over over("amax", x, dims, keep);
  check_not_empty("amax", over);
  return apply(Extreme<true>{over}, x);
}
Tensor amin(const Tensor& x, Dims dims, KeepDim keep) {
  const Over over("amin", x, dims, keep);
  check_not_empty("amin", over);
  return apply(Extreme<false>{over}, x);
}
Tensor var(const Tensor& x, Dims dims, double correction, KeepDim keep) {
  return apply(Var<false>{Over("var", x, dims, keep), correction}, x);
}
Tensor std(const Tensor& x, Dims dims, double correction, KeepDim keep) {
  return apply(Var<true>{Over("std", x, dims, keep), correction}, x);
}
Tensor norm(const Tensor& x, double p, Dims dims, KeepDim keep) {
  if (!(p > 0)) fail<ConfigError>("norm: p is ", p, ", expected a number above 0, or infinity");
  return apply(Norm{Over("norm", x, dims, keep), p}, x);
}
Tensor logsumexp(const Tensor& x, Dims dims, KeepDim keep) {
  return apply(LogSumExp{Over("logsumexp", x, dims, keep)}, x);
}
Tensor any(const Tensor& x, Dims dims, KeepDim keep) { return apply(Truth<true>{Over("any", x, dims, keep)}, x); }
Tensor all(const Tensor& x, Dims dims, KeepDim keep) { return apply(Truth<false>{Over("all", x, dims, keep)}, x); }

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (!is_float(x.dtype())) fail<DTypeError>("sum_to: x is ", x.dtype(), ", expected a floating dtype; use sum");
  if (x.shape() == shape) return x;
  const int lead = x.rank() - shape.rank();
  std::uint32_t mask = lead > 0 ? (1u << lead) - 1u : 0u;
  bool fits = lead >= 0;
  for (int d = 0; fits && d < shape.rank(); ++d) {
    if (shape[d] == x.shape()[lead + d]) continue;
    fits = shape[d] == 1;
    mask |= 1u << (lead + d);
  }
  if (!fits)
    fail<ShapeError>("sum_to: x ", x.shape(), " was not broadcast from ", shape,
                     "; give a shape that broadcasts to x's");
  return apply(Sum<false>{Over(mask, shape, x.shape()), full_result(x.dtype())}, x);
}

}  // namespace levin
