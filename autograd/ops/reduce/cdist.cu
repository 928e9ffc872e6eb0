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

// The composite twin, in public ops: each difference has the slope that the kernel gives it.
Tensor twin(const Tensor& x1, const Tensor& x2, const DistanceRule& rule) {
  const Tensor d = unsqueeze(x1, 2) - unsqueeze(x2, 1), size = abs(d), none = zeros_like(d);
  switch (rule.kind) {
    case DistanceKind::count: return sum(d * 0, {-1});
    case DistanceKind::sum: return sum(size, {-1});
    case DistanceKind::largest: {
      if (d.size(3) == 0) return sum(d, {-1});
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

// Where the pairs i < j of n rows stand in a matrix [n, n], in their order: i64 [n (n - 1) / 2].
Tensor pair_places(std::int64_t n, Device device) {
  const std::int64_t pairs = n * (n - 1) / 2;
  if (device.is_cpu()) {
    const Tensor places = empty({pairs}, device, DType::i64);
    auto* const at = ptr<std::int64_t>(places);
    Cpu{}.parallel_for(n, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        auto* const row = at + i * n - i * (i + 1) / 2;
        for (std::int64_t j = 0; j < n - 1 - i; ++j) row[j] = i * n + i + 1 + j;
      }
    });
    return places;
  }
  // Pair k = i n - i (i + 1) / 2 + j - i - 1 stands at i n + j = k + (i + 1) (i + 2) / 2. The root is an integer and a
  // half where a row begins, and f64 holds both exactly as far as memory goes.
  const double half = double(n) - 0.5;
  const Tensor k = arange(pairs, device, DType::f64), next = floor(half + 1 - sqrt(half * half - 2 * k));
  return cast(k + next * (next + 1) * 0.5, DType::i64);
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
  // w = gy / y; the gradient in row i of x1 is sum_j w_ij (x1_i - x2_j).
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
      return vjp<2>([&](const auto& of) { return std::array{twin(of[0], of[1], rule)}; }, {in[1], in[2]},
                    std::array{in[0]}, wanted);
    };
    return vjp<3>(reference, {gy.get(), x1.get(), x2.get()},
                  std::array{wanted[0] ? gga : Tensor(), wanted[1] ? ggb : Tensor()}, need);
  }
};

struct Cdist {
  static constexpr OpInfo info{.name = "cdist"};
  DistanceRule rule;
  bool of_pairs = false;  // of one matrix with itself: the result holds the pairs of rows i < j
  SavedInput x1{}, x2{};
  SavedOutput y{};
  Stash all{};  // of pairs, in place of y
  auto saved_outputs() { return std::tie(y); }

  Tensor forward(const Tensor& x1_, const Tensor& x2_) {
    x1 = x1_, x2 = x2_;
    const Tensor out = whole(x1_.contiguous(), x2_.contiguous());
    if (of_pairs) {
      all = out;
      return pairs_of(out);
    }
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
  static Tensor pairs_of(const Tensor& from) {
    const std::int64_t n = from.size(1);
    if (!from.device().is_cpu()) return gather(flatten(from), 0, pair_places(n, from.device()));
    const Tensor out = empty({n * (n - 1) / 2}, from.device(), from.dtype());
    if (out.numel() == 0) return out;
    dispatch_dtype(info, from, kWideFloats, [&]<class T>(T) {
      Cpu{}.parallel_for(n - 1, 128, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          std::memcpy(ptr<T>(out) + i * n - i * (i + 1) / 2, ptr<const T>(from) + i * n + i + 1,
                      static_cast<std::size_t>(n - 1 - i) * sizeof(T));
        }
      });
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
    if (!of_pairs) {
      auto [ga, gb] = apply(CdistBackward{rule, need, y.get().detach()}, gy, x1.get(), x2.get());
      return {ga, gb};
    }
    const std::int64_t n = all.size(1);
    const Tensor flat = scatter_add(zeros({n * n}, gy.device(), gy.dtype()), 0, pair_places(n, gy.device()), gy);
    auto [ga, gb] = apply(CdistBackward{rule, need, all}, reshape(flat, {1, n, n}), x1.get(), x2.get());
    return {ga, gb};
  }
};

LEVIN_OP_TABLE(Cdist)
LEVIN_OP_TABLE(CdistBackward)

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
  constexpr const char* op = "pdist";
  check_float(op, x);
  check_power(op, p);
  if (x.rank() != 2) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, M]");
  const Tensor rows = unsqueeze(widened(x), 0);
  return finished(apply(Cdist{.rule = rule_of(p), .of_pairs = true}, rows, rows), x);
}

}  // namespace levin
