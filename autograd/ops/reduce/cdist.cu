// Distances between rows. Forward and gradients are fused; the gradients' derivative is that of the composite twin in
// public ops.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include "autograd/op_table.h"
#include "autograd/ops/reduce/loss_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/reduce/cdist.cuh"
#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::DistanceKind;
using kernels::DistanceRule;
using kernels::DistanceShape;

DistanceRule rule_of(double p) {
  const DistanceKind kind = p == 0          ? DistanceKind::count
                            : p == 1        ? DistanceKind::sum
                            : p == 2        ? DistanceKind::euclid
                            : std::isinf(p) ? DistanceKind::largest
                                            : DistanceKind::power;
  return {kind, p};
}

// x1 [B, P, M] and x2 [B, R, M].
DistanceShape shape_of(const Tensor& x1, const Tensor& x2) {
  return {.batches = x1.size(0),
          .rows = x1.size(1),
          .others = x2.size(1),
          .length = x1.size(2),
          .row_step = x2.size(1),
          .other_step = 1};
}

// Up to so many rows, and in a forward pass with shorter rows, a loop over all pairs is as fast as matrix products.
constexpr std::int64_t kFewRows = 25, kShortRow = 32;
bool has_products(const DistanceRule& rule, const DistanceShape& s) {
  return rule.kind == DistanceKind::euclid && std::max(s.rows, s.others) > kFewRows;
}

// Both less the mean of all their rows, which distances do not see and products round least without. A mean that is not
// finite moves nothing.
std::array<Tensor, 2> centered(const Tensor& x1, const Tensor& x2) {
  const Tensor center = (mean(x1, {1}, KeepDim::yes) + mean(x2, {1}, KeepDim::yes)) * 0.5;
  const Tensor by = where(isfinite(center), center, zeros_like(center));
  return {x1 - by, x2 - by};
}

// The composite twin, in public ops, of differences [..., M]: each has the slope that the kernel gives it.
Tensor twin(const Tensor& d, const DistanceRule& rule) {
  const Tensor size = abs(d), none = zeros_like(d);
  switch (rule.kind) {
    case DistanceKind::count: return sum(d * 0, {-1});
    case DistanceKind::sum: return sum(size, {-1});
    case DistanceKind::largest: {
      if (d.size(-1) == 0) return sum(d, {-1});
      const Tensor fixed = size.detach(), most = amax(fixed, {-1}, KeepDim::yes);
      return sum(where(eq(fixed, most), size, none), {-1});
    }
    case DistanceKind::euclid:
    case DistanceKind::power: break;
  }
  // The root's derivative is infinite at 0, as that of a power below 1 is.
  const bool squares = rule.kind == DistanceKind::euclid;
  const Tensor same = eq(d, 0), apart = masked_fill(size, same, 1);
  const Tensor total = sum(masked_fill(squares ? square(d) : pow(apart, rule.p), same, 0), {-1}), zero = eq(total, 0);
  const Tensor safe = masked_fill(total, zero, 1);
  return masked_fill(squares ? sqrt(safe) : pow(safe, 1 / rule.p), zero, 0);
}

struct CdistBackward {
  static constexpr OpInfo info{.name = "cdist_backward"};
  DistanceRule rule;
  NeedMask wanted;  // of x1 and x2
  Stash y{};
  SavedInput gy{}, x1{}, x2{};

  std::array<Tensor, 2> forward(const Tensor& gy_, const Tensor& x1_, const Tensor& x2_) {
    gy = gy_, x1 = x1_, x2 = x2_;
    const Tensor g = gy_.contiguous(), a = x1_.contiguous(), b = x2_.contiguous();
    const DistanceShape s = shape_of(a, b);
    DistanceShape back = s;
    std::swap(back.rows, back.others);
    std::swap(back.row_step, back.other_step);
    const bool some = g.numel() > 0 && s.length > 0 && rule.kind != DistanceKind::count;
    if (some && has_products(rule, s)) return by_products(g, a, b);
    const auto of = [&](const Tensor& x) { return some ? empty(x.shape(), x.device(), x.dtype()) : zeros_like(x); };
    Tensor ga, gb;
    if (wanted[0]) ga = of(a);
    if (wanted[1]) gb = of(b);
    dispatch(info, g, kWideFloats, [&]<class T>(const auto& on, T) {
      if (!some) return;
      const T *const from = ptr<const T>(g), *const far = ptr<const T>(y);
      if (wanted[0]) kernels::cdist_backward(on, from, far, ptr<const T>(a), ptr<const T>(b), ptr<T>(ga), s, rule);
      if (wanted[1]) kernels::cdist_backward(on, from, far, ptr<const T>(b), ptr<const T>(a), ptr<T>(gb), back, rule);
    });
    return {ga, gb};
  }
  // w = gy / y; the gradient in row i of x1 is sum_j w_ij (x1_i - x2_j). Rows nearer to each other than to the mean of
  // all lose digits, as in PyTorch: the difference of two large sums is what is left.
  [[nodiscard]] std::array<Tensor, 2> by_products(const Tensor& g, const Tensor& a, const Tensor& b) const {
    const Tensor w = masked_fill(g / y, eq(y, 0), 0);
    const auto [u, v] = centered(a, b);
    Tensor ga, gb;
    if (wanted[0]) ga = u * sum(w, {2}, KeepDim::yes) - matmul(w, v);
    if (wanted[1]) gb = v * transpose(sum(w, {1}, KeepDim::yes), 1, 2) - matmul(transpose(w, 1, 2), u);
    return {ga, gb};
  }
  Grads<3> backward(const Tensor& gga, const Tensor& ggb, NeedMask need) {
    const auto reference = [&](const std::array<Tensor, 3>& in) {
      const auto distances = [&](const auto& of) {
        return std::array{twin(unsqueeze(of[0], 2) - unsqueeze(of[1], 1), rule)};
      };
      return vjp<2>(distances, {in[1], in[2]}, std::array{in[0]}, wanted);
    };
    return vjp<3>(reference, {gy.get(), x1.get(), x2.get()},
                  std::array{wanted[0] ? gga : Tensor(), wanted[1] ? ggb : Tensor()}, need);
  }
};

struct Cdist {
  static constexpr OpInfo info{.name = "cdist"};
  DistanceRule rule;
  SavedInput x1{}, x2{};
  SavedOutput y{};
  auto saved_outputs() { return std::tie(y); }

  Tensor forward(const Tensor& x1_, const Tensor& x2_) {
    x1 = x1_, x2 = x2_;
    const Tensor out = whole(x1_.contiguous(), x2_.contiguous());
    y = out;
    return out;
  }
  [[nodiscard]] Tensor whole(const Tensor& a, const Tensor& b) const {
    const DistanceShape s = shape_of(a, b);
    if (has_products(rule, s) && s.length >= kShortRow && s.rows > 0 && s.others > 0) return of_products(a, b, s);
    const Tensor out = empty({s.batches, s.rows, s.others}, a.device(), a.dtype());
    dispatch(info, a, kWideFloats, [&]<class T>(const auto& on, T) {
      if (out.numel() > 0) kernels::cdist(on, ptr<const T>(a), ptr<const T>(b), ptr<T>(out), s, rule);
    });
    return out;
  }
  static Tensor of_products(const Tensor& a, const Tensor& b, const DistanceShape& s) {
    const auto [u, v] = centered(a, b);
    const Tensor out = matmul(u, transpose(v, 1, 2)), left = sum(square(u), {2}), right = sum(square(v), {2});
    dispatch(info, out, kWideFloats, [&]<class T>(const auto& on, T) {
      kernels::cdist_of_products(on, ptr<T>(out), ptr<const T>(left), ptr<const T>(right), ptr<const T>(a),
                                 ptr<const T>(b), s);
    });
    return out;
  }
  Grads<2> backward(const Tensor& gy, NeedMask need) {
    auto [ga, gb] = apply(CdistBackward{rule, need, y.get().detach()}, gy, x1.get(), x2.get());
    return {ga, gb};
  }
};

struct PdistBackward {
  static constexpr OpInfo info{.name = "pdist_backward"};
  DistanceRule rule;
  Stash y{};
  SavedInput gy{}, x{};

  Tensor forward(const Tensor& gy_, const Tensor& x_) {
    gy = gy_, x = x_;
    const Tensor g = gy_.contiguous(), from = x_.contiguous();
    if (g.numel() == 0 || from.numel() == 0 || rule.kind == DistanceKind::count) return zeros_like(from);
    const Tensor gx = empty(from.shape(), from.device(), from.dtype());
    dispatch(info, g, kWideFloats, [&]<class T>(const auto& on, T) {
      kernels::pdist_backward(on, ptr<const T>(g), ptr<const T>(y), ptr<const T>(from), ptr<T>(gx), from.size(0),
                              from.size(1), rule);
    });
    return gx;
  }
  Grads<2> backward(const Tensor& g, NeedMask need) {
    const std::int64_t n = x.get().size(0);
    const Tensor pairs = triu_indices(n, n, g.device(), 1), i = select(pairs, 0, 0), j = select(pairs, 0, 1);
    const auto reference = [&](const std::array<Tensor, 2>& in) {
      const auto distances = [&](const auto& of) {
        return std::array{twin(index_select(of[0], 0, i) - index_select(of[0], 0, j), rule)};
      };
      return vjp<1>(distances, {in[1]}, std::array{in[0]}, NeedMask(1));
    };
    return vjp<2>(reference, {gy.get(), x.get()}, std::array{g}, need);
  }
};

struct Pdist {
  static constexpr OpInfo info{.name = "pdist"};
  DistanceRule rule;
  SavedInput x{};
  SavedOutput y{};
  auto saved_outputs() { return std::tie(y); }

  // All pairs by differences: half of what a product of all rows with all takes, and as many operations.
  Tensor forward(const Tensor& x_) {
    x = x_;
    const Tensor from = x_.contiguous();
    const std::int64_t n = from.size(0);
    const Tensor out = empty({n * (n - 1) / 2}, from.device(), from.dtype());
    dispatch(info, from, kWideFloats, [&]<class T>(const auto& on, T) {
      if (out.numel() > 0) kernels::pdist(on, ptr<const T>(from), ptr<T>(out), n, from.size(1), rule);
    });
    y = out;
    return out;
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {apply(PdistBackward{rule, y.get().detach()}, gy, x.get())}; }
};

LEVIN_OP_TABLE(Cdist)
LEVIN_OP_TABLE(CdistBackward)
LEVIN_OP_TABLE(Pdist)
LEVIN_OP_TABLE(PdistBackward)

void check_power(const char* op, double p) {
  if (!(p >= 0)) fail<ConfigError>(op, ": p is ", p, ", expected 0 or more, or infinity");
}

}  // namespace

Tensor cdist(const Tensor& x1, const Tensor& x2, double p) {
  constexpr const char* op = Cdist::info.name;
  check_float(op, x1);
  check_dtypes_meet(op, x1, x2);
  check_same_device(op, x1, x2);
  check_power(op, p);
  for (const Tensor* x : {&x1, &x2}) {
    if (x->rank() < 2)
      fail<ShapeError>(op, ": ", x == &x1 ? "x1" : "x2", " has shape ", x->shape(), ", expected [..., rows, length]");
  }
  const std::int64_t rows = x1.size(-2), others = x2.size(-2), length = x1.size(-1);
  if (x2.size(-1) != length) {
    fail<ShapeError>(op, ": x1 has shape ", x1.shape(), " and x2 ", x2.shape(), ", expected rows of one length");
  }
  const auto batch_of = [](const Tensor& x) { return x.shape().removed(x.rank() - 1).removed(x.rank() - 2); };
  const Shape batch = broadcast_shapes(op, batch_of(x1), batch_of(x2));
  const auto whole = [&](const Tensor& x) {
    const Shape shape = batch.inserted(batch.rank(), x.size(-2)).inserted(batch.rank() + 1, length);
    return reshape(expand(widened(x), shape), {batch.numel(), x.size(-2), length});
  };
  const Tensor y = apply(Cdist{rule_of(p)}, whole(x1), whole(x2));
  return finished(reshape(y, Dims(batch.inserted(batch.rank(), rows).inserted(batch.rank() + 1, others).dims())), x1);
}

Tensor pdist(const Tensor& x, double p) {
  constexpr const char* op = Pdist::info.name;
  check_float(op, x);
  check_power(op, p);
  if (x.rank() != 2) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, M]");
  return finished(apply(Pdist{rule_of(p)}, widened(x)), x);
}

}  // namespace levin
