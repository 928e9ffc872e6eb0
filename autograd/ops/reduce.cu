// Reductions over a set of dimensions. Forward is one pass over the strided input (two for var and logsumexp), rounded
// once; backward is public ops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/op_table.h"
#include "autograd/ops/dims.h"
#include "kernels/dispatch.h"
#include "kernels/reduce.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::Map;
using kernels::Reduce;
using kernels::ReduceAccum;
using kernels::ReducePlan;

// Which dimensions go, and the shape of the result.
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
  // A tensor of the result's shape, with size 1 where dimensions were reduced: broadcasts against the input.
  [[nodiscard]] Tensor keep(const Tensor& y) const {
    const Shape shape = reduced_shape(in, mask, KeepDim::yes);
    return y.shape() == shape ? y : reshape(y, Dims(shape.dims()));
  }
  [[nodiscard]] Tensor spread(const Tensor& gy) const { return expand(keep(gy), in); }
};

// One value an output in the type sums are kept in; on the stack when there are few.
template <class A>
class Partial {
 public:
  explicit Partial(std::int64_t n) {
    if (n > kInline) heap_.resize(static_cast<std::size_t>(n));
  }
  [[nodiscard]] A* data() { return heap_.empty() ? inline_ : heap_.data(); }

 private:
  static constexpr std::int64_t kInline = 64;
  A inline_[kInline];
  std::vector<A> heap_;
};

// y[o] = finish(o, the reduction of output o), rounded once to O.
template <class T, class O, class F>
void reduce_into(const Cpu& on, const Tensor& x, const ReducePlan& plan, Reduce op, Map map, const Tensor& y, F finish,
                 const ReduceAccum<T>* shift = nullptr, double p = 0) {
  using A = ReduceAccum<T>;
  O* to = ptr<O>(y);
  if constexpr (std::is_same_v<A, O>) {
    kernels::cpu::reduce<T, A>(on, ptr<const T>(x), plan, op, map, to, shift, p);
    for (std::int64_t o = 0; o < plan.outputs; ++o) to[o] = finish(o, to[o]);
  } else {
    Partial<A> partial(plan.outputs);
    kernels::cpu::reduce<T, A>(on, ptr<const T>(x), plan, op, map, partial.data(), shift, p);
    for (std::int64_t o = 0; o < plan.outputs; ++o) to[o] = O(finish(o, partial.data()[o]));
  }
}
constexpr auto kAsIs = [](std::int64_t, auto v) { return v; };

DType sum_dtype(const Tensor& x) { return is_float(x.dtype()) ? x.dtype() : DType::i64; }
template <class T>
using SumType = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;

// ---- Sum and mean

struct Sum {
  static constexpr OpInfo info{.name = "sum", .autocast = AutocastPolicy::full};
  Over over;

  Tensor forward(const Tensor& x) {
    Tensor y = empty(over.out, x.device(), sum_dtype(x));
    dispatch(info, x, kAll, [&]<class T>(const Cpu& on, T) {
      reduce_into<T, SumType<T>>(on, x, over.plan(x), Reduce::sum, Map::value, y, kAsIs);
    });
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {over.spread(gy)}; }
};
LEVIN_OP_TABLE(Sum)

struct Mean {
  static constexpr OpInfo info{.name = "mean", .autocast = AutocastPolicy::full};
  Over over;

  Tensor forward(const Tensor& x) {
    Tensor y = empty(over.out, x.device(), x.dtype());
    dispatch(info, x, kFloats, [&]<class T>(const Cpu& on, T) {
      using A = ReduceAccum<T>;
      const A n = static_cast<A>(over.count());
      reduce_into<T, T>(on, x, over.plan(x), Reduce::sum, Map::value, y, [n](std::int64_t, A v) { return v / n; });
    });
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {over.spread(gy / static_cast<double>(over.count()))}; }
};
LEVIN_OP_TABLE(Mean)

// ---- Product

// The product as a tree of multiplications: right to any order where elements are zero, unlike gy * y / x.
Tensor product_tree(const Tensor& x, const Over& over) {
  std::array<std::int64_t, kMaxRank> order{};
  std::size_t rank = 0;
  for (const bool reduced : {false, true}) {
    for (int d = 0; d < over.in.rank(); ++d) {
      if (bool(over.mask >> d & 1u) == reduced) order[rank++] = d;
    }
  }
  const Shape kept = reduced_shape(over.in, over.mask, KeepDim::no);
  Tensor t = permute(x, Dims(std::span<const std::int64_t>(order.data(), rank)));
  t = reshape(t, Dims(Shape{kept.numel(), over.count()}.dims()));
  if (over.count() == 0) return ones(over.out, x.device(), x.dtype());
  while (t.size(1) > 1) {
    const std::int64_t n = t.size(1), half = n / 2;
    const Tensor pairs = narrow(t, 1, 0, half) * narrow(t, 1, half, half);
    t = n % 2 == 0 ? pairs : cat({pairs, narrow(t, 1, n - 1, 1)}, 1);
  }
  return reshape(t, Dims(over.out.dims()));
}

struct Prod {
  static constexpr OpInfo info{.name = "prod", .autocast = AutocastPolicy::full};
  Over over;
  SavedInput x{};

  Tensor forward(const Tensor& x_) {
    Tensor y = empty(over.out, x_.device(), sum_dtype(x_));
    dispatch(info, x_, kAll, [&]<class T>(const Cpu& on, T) {
      reduce_into<T, SumType<T>>(on, x_, over.plan(x_), Reduce::prod, Map::value, y, kAsIs);
    });
    x = x_;
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1> need) {
    return vjp<1>([&](auto& in) { return product_tree(in[0], over); }, {x.get()}, std::array{gy}, need);
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
    dispatch(info, x_, kAll, [&]<class T>(const Cpu& on, T) {
      reduce_into<T, T>(on, x_, over.plan(x_), kMax ? Reduce::max : Reduce::min, Map::value, out, kAsIs);
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
    dispatch(info, x_, kFloats, [&]<class T>(const Cpu& on, T) {
      using A = ReduceAccum<T>;
      const ReducePlan plan = over.plan(x_);
      Partial<A> mean(plan.outputs);
      kernels::cpu::reduce<T, A>(on, ptr<const T>(x_), plan, Reduce::sum, Map::value, mean.data());
      for (std::int64_t o = 0; o < plan.outputs; ++o) mean.data()[o] /= static_cast<A>(plan.n);
      const A n = static_cast<A>(divisor());
      reduce_into<T, T>(
          on, x_, plan, Reduce::sum, Map::deviation, out,
          [n](std::int64_t, A v) { return kRoot ? std::sqrt(v / n) : v / n; }, mean.data());
    });
    x = x_;
    if constexpr (kRoot) y = out;
    return out;
  }
  auto saved_outputs() requires kRoot { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor centred = x.get() - mean(x.get(), over.dims(), KeepDim::yes);
    if constexpr (kRoot) {
      // Where y is 0 so is every deviation: the gradient is 0, not 0 / 0.
      const Tensor s = y.get();
      return {over.keep(gy / (masked_fill(s, eq(s, 0), 1) * divisor())) * centred};
    } else {
      return {over.keep(gy * (2 / divisor())) * centred};
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
    dispatch(info, x_, kFloats, [&]<class T>(const Cpu& on, T) {
      using A = ReduceAccum<T>;
      const ReducePlan plan = over.plan(x_);
      if (plan.n == 0 || p == 1) {
        reduce_into<T, T>(on, x_, plan, Reduce::sum, Map::abs, out, kAsIs);
      } else if (p == 2) {
        reduce_into<T, T>(on, x_, plan, Reduce::sum, Map::square, out, [](std::int64_t, A v) { return std::sqrt(v); });
      } else if (std::isinf(p)) {
        reduce_into<T, T>(on, x_, plan, Reduce::max, Map::abs, out, kAsIs);
      } else {
        const A root = static_cast<A>(1 / p);
        reduce_into<T, T>(
            on, x_, plan, Reduce::sum, Map::power, out, [root](std::int64_t, A v) { return std::pow(v, root); },
            nullptr, p);
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
    // Where the norm is 0 so is every element: dividing by 1 there gives the gradient 0.
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
    dispatch(info, x_, kFloats, [&]<class T>(const Cpu& on, T) {
      using A = ReduceAccum<T>;
      const ReducePlan plan = over.plan(x_);
      Partial<A> top(plan.outputs);
      A* shift = top.data();
      kernels::cpu::reduce<T, A>(on, ptr<const T>(x_), plan, Reduce::max, Map::value, shift);
      // An infinite maximum must not be subtracted from itself.
      for (std::int64_t o = 0; o < plan.outputs; ++o) shift[o] = std::isfinite(shift[o]) ? shift[o] : A(0);
      reduce_into<T, T>(
          on, x_, plan, Reduce::sum, Map::exp, out, [shift](std::int64_t o, A v) { return std::log(v) + shift[o]; },
          shift);
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
    Tensor y = empty(over.out, x.device(), DType::b8);
    dispatch(info, x, kAll, [&]<class T>(const Cpu& on, T) {
      const ReducePlan plan = over.plan(x);
      Partial<std::int64_t> partial(plan.outputs);
      kernels::cpu::reduce<T, std::int64_t>(on, ptr<const T>(x), plan, kAny ? Reduce::max : Reduce::min, Map::nonzero,
                                            partial.data());
      // Of nothing, any is false and all is true: the identities of max and min.
      for (std::int64_t o = 0; o < plan.outputs; ++o) ptr<bool>(y)[o] = partial.data()[o] > 0;
    });
    return y;
  }
};
LEVIN_OP_TABLE(Truth<true>)
LEVIN_OP_TABLE(Truth<false>)

}  // namespace

Tensor sum(const Tensor& x, Dims dims, KeepDim keep) { return apply(Sum{Over("sum", x, dims, keep)}, x); }
Tensor mean(const Tensor& x, Dims dims, KeepDim keep) { return apply(Mean{Over("mean", x, dims, keep)}, x); }
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
  return apply(Sum{Over(mask, shape, x.shape())}, x);
}

}  // namespace levin
